//! `pgweir passwd USER`: a line for pool_passwd.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::ValueEnum;
use config::pool_key::PoolKey;
use postgres_protocol::password;

use crate::cli::{Failure, say};
use crate::terminal;

/// How the secret is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Method {
    /// A SCRAM-SHA-256 verifier; also serves to log in to nodes that hold the same verifier.
    Scram,
    /// The md5 hash of password and user.
    Md5,
    /// The password itself.
    Text,
    /// The password, readable with the key in `--key-file` only.
    Aes,
}

/// Asks for the password and prints the line.
///
/// # Errors
/// The user or the password cannot stand in the file, or the two entries differ.
pub(crate) fn passwd(user: &str, method: Method, key_file: Option<&Path>) -> Result<ExitCode, Failure> {
    check_user(user)?;
    let key = match (method, key_file) {
        (Method::Aes, Some(path)) => Some(PoolKey::read(path).map_err(Failure::Config)?),
        (Method::Aes, None) => {
            return Err(anyhow!("aes needs --key-file, the configuration's pool_key_file").into());
        }
        _ => None,
    };
    let password = terminal::ask_secret(&format!("password for {user}: "), "the same again: ")?;
    check_password(&password)?;
    say(&line(user, &password, method, key.as_ref()))?;
    Ok(ExitCode::SUCCESS)
}

fn check_user(user: &str) -> anyhow::Result<()> {
    if user.is_empty() || user.chars().any(char::is_control) {
        bail!("a user name is not empty and has no control characters")
    }
    Ok(())
}

fn check_password(password: &str) -> anyhow::Result<()> {
    if password.is_empty() {
        bail!("PostgreSQL accepts no empty password")
    }
    if password.chars().any(|c| matches!(c, '\0' | '\r' | '\n')) {
        bail!("a password has no line ends and no NUL")
    }
    Ok(())
}

/// The line of the file: `user:secret`.
fn line(user: &str, password: &str, method: Method, key: Option<&PoolKey>) -> String {
    let secret = match method {
        Method::Scram => password::scram_sha_256(password.as_bytes()),
        Method::Md5 => password::md5(password.as_bytes(), user),
        Method::Text => format!("TEXT{password}"),
        Method::Aes => format!("AES{}", key.map(|key| key.encrypt(password)).unwrap_or_default()),
    };
    format!("{}:{secret}", quoted(user))
}

/// Quotes what the file's grammar would take for something else.
pub(crate) fn quoted(user: &str) -> String {
    let plain = !user.starts_with('#') && !user.contains([':', '"', ' ', '\\']);
    if plain { user.to_owned() } else { format!("\"{}\"", user.replace('"', "\"\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_postgresql() {
        assert_eq!(line("bob", "secret", Method::Text, None), "bob:TEXTsecret");
        // md5('secretbob')
        assert_eq!(line("bob", "secret", Method::Md5, None), "bob:md521f3163f8f86fa10bdefbfbd502a8f06");
        let scram = line("bob", "secret", Method::Scram, None);
        assert!(scram.starts_with("bob:SCRAM-SHA-256$4096:"), "{scram}");
        assert_ne!(scram, line("bob", "secret", Method::Scram, None), "each has a salt of its own");
        assert_eq!(line("a:b", "x", Method::Text, None), "\"a:b\":TEXTx");
        assert_eq!(line("a\"b", "x", Method::Text, None), "\"a\"\"b\":TEXTx");
    }

    #[test]
    fn the_configuration_reads_what_is_printed() {
        for user in ["bob", "a:b", "a\"b", "#x", "with space", "back\\slash", "\"q\""] {
            for method in [Method::Scram, Method::Md5, Method::Text, Method::Aes] {
                let key = PoolKey::new("the key");
                let line = line(user, "s:e c", method, Some(&key));
                let passwords = config::secrets::Passwords::parse_with(&line, "test", Some(&key)).unwrap();
                assert!(passwords.get(user).is_some(), "{line}");
            }
        }
    }

    #[test]
    fn what_cannot_stand_in_a_line_is_refused() {
        assert!(check_user("").is_err());
        assert!(check_user("a\nb").is_err());
        assert!(check_password("").is_err());
        assert!(check_password("a\nb").is_err());
        assert!(check_password("p\u{e4}ss w\u{f6}rd:").is_ok());
    }
}
