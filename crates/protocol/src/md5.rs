//! md5 authentication, both sides: `md5` + hex(md5(hex(md5(password + user)) + salt)).
//!
//! Source: protocol, "AuthenticationMD5Password". Weak by today's measure; kept for the clients and
//! nodes that have nothing else.

use std::fmt;

use md5::{Digest, Md5};
use subtle::ConstantTimeEq;

/// The 32 hex digits of md5(password + user): what `pg_authid` stores behind `md5`.
#[derive(Clone, PartialEq, Eq)]
pub struct Md5Hash([u8; 32]);

impl Md5Hash {
    /// Of a password.
    #[must_use]
    pub fn from_password(user: &[u8], password: &[u8]) -> Self {
        Self(hex_md5(password, user))
    }

    /// Of the digest's 16 bytes.
    #[must_use]
    pub fn from_digest(digest: [u8; 16]) -> Self {
        Self(hex(digest))
    }

    /// Reads a stored secret: `md5` and 32 hex digits.
    #[must_use]
    pub fn parse(secret: &str) -> Option<Self> {
        let digits: [u8; 32] = secret.strip_prefix("md5")?.as_bytes().try_into().ok()?;
        let lower = digits.map(|digit| digit.to_ascii_lowercase());
        lower.iter().all(u8::is_ascii_hexdigit).then_some(Self(lower))
    }

    /// The form it is stored in.
    #[must_use]
    pub fn to_secret(&self) -> String {
        format!("md5{}", String::from_utf8_lossy(&self.0))
    }

    /// The answer to a server's salt, without the terminator.
    #[must_use]
    pub fn response(&self, salt: [u8; 4]) -> Vec<u8> {
        [b"md5".as_slice(), &hex_md5(&self.0, &salt)].concat()
    }

    /// Whether a client's answer to `salt` is right; takes the same time when it is not.
    #[must_use]
    pub fn verify(&self, salt: [u8; 4], response: &[u8]) -> bool {
        self.response(salt).ct_eq(response).into()
    }

    /// Whether it is the hash of that password.
    #[must_use]
    pub fn matches_password(&self, user: &[u8], password: &[u8]) -> bool {
        self.0.ct_eq(&hex_md5(password, user)).into()
    }
}

/// The hash is as good as the password: masked.
impl fmt::Debug for Md5Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Md5Hash(***)")
    }
}

/// md5(a + b) in hex.
fn hex_md5(a: &[u8], b: &[u8]) -> [u8; 32] {
    hex(Md5::new().chain_update(a).chain_update(b).finalize().into())
}

fn hex(digest: [u8; 16]) -> [u8; 32] {
    let mut hex = [0; 32];
    for (pair, byte) in hex.chunks_exact_mut(2).zip(digest) {
        pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
    }
    hex
}

fn digit(nibble: u8) -> u8 {
    match nibble {
        0..=9 => b'0' + nibble,
        _ => b'a' + nibble - 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postgres_protocol::authentication::md5_hash;
    use proptest::prelude::*;

    #[test]
    fn a_hash_that_postgresql_made() {
        // CREATE ROLE joe PASSWORD 'secret' with password_encryption = md5.
        let hash = Md5Hash::from_password(b"joe", b"secret");
        assert_eq!(hash.to_secret(), "md5c59ec932d911ffdf487595b5a2adf973");
        assert_eq!(Md5Hash::parse(&hash.to_secret()), Some(hash.clone()));
        assert_eq!(Md5Hash::parse(&hash.to_secret().replace("md5", "MD5")), None);
        assert_eq!(Md5Hash::from_digest([0xc5; 16]).to_secret(), format!("md5{}", "c5".repeat(16)));
        assert_eq!(Md5Hash::parse("md5123"), None);
        assert_eq!(Md5Hash::parse(&format!("md5{}", "g".repeat(32))), None);
        assert_eq!(format!("{hash:?}"), "Md5Hash(***)");
    }

    proptest! {
        #[test]
        fn agrees_with_another_client(user in "[^\0]{1,9}", password in "[^\0]{0,9}", salt: [u8; 4], other: [u8; 4]) {
            let hash = Md5Hash::from_password(user.as_bytes(), password.as_bytes());
            let theirs = md5_hash(user.as_bytes(), password.as_bytes(), salt);
            prop_assert_eq!(hash.response(salt), theirs.as_bytes());
            prop_assert!(hash.verify(salt, theirs.as_bytes()));
            prop_assert_eq!(hash.verify(other, theirs.as_bytes()), salt == other);
            prop_assert!(!hash.verify(salt, &theirs.as_bytes()[1..]));
            prop_assert!(hash.matches_password(user.as_bytes(), password.as_bytes()));
        }
    }
}
