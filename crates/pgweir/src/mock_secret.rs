//! What users who are unknown are challenged with: the same after a restart, as the verifiers of those are who are known.
//! PostgreSQL keeps such a nonce in its control file (`mock_authentication_nonce`); we keep nothing, so it is made from
//! the machine's id, by a keyed hash as machine-id(5) demands.

use std::fs;

use protocol::scram::ScramVerifier;

/// The files that systemd and D-Bus keep the id in.
const FILES: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
/// Hexadecimal digits of an id.
const ID_LEN: usize = 32;
/// What tells our hash of the id from those of others.
const PURPOSE: &[u8] = b"pgweir: challenges of unknown users";

/// Random where the machine has no id.
pub(crate) fn of_this_machine() -> [u8; 32] {
    let texts = FILES.iter().filter_map(|file| fs::read_to_string(file).ok());
    texts.into_iter().find_map(|text| of(&text)).unwrap_or_else(rand::random)
}

fn of(text: &str) -> Option<[u8; 32]> {
    let id = text.trim_end();
    let is_id = id.len() == ID_LEN && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| ScramVerifier::derive(id.as_bytes(), PURPOSE, 1).server_key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_makes_one_secret_and_nonsense_none() {
        let secret = of("0123456789abcdef0123456789abcdef\n");
        assert!(secret.is_some_and(|secret| secret != [0; 32]));
        assert_eq!(secret, of("0123456789abcdef0123456789abcdef"));
        assert_ne!(secret, of("0123456789abcdef0123456789abcdee"));
        for nonsense in ["", "uninitialized\n", "0123456789abcdef", "0123456789abcdef0123456789abcdeg"] {
            assert_eq!(of(nonsense), None, "{nonsense}");
        }
    }
}
