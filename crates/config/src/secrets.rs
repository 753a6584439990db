//! The secrets of `pool_passwd`: lines `user:secret`.
//!
//! Grammar, Pgpool-II's with quoting added: a user is text up to the first colon, or text in double quotes in
//! which `""` is a quote. The rest of the line is the secret, spaces included: `TEXT` and the password,
//! `md5` and 32 hexadecimal digits, or PostgreSQL's own `SCRAM-SHA-256$<iterations>:<salt>$<keys>`. Empty lines
//! and lines that begin with `#` are skipped.
//!
//! Invariant: no secret, nor part of one, gets into an error or a `Debug` text.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::error::{ConfigError, ConfigErrors};
use crate::files;
use crate::pool_key::PoolKey;
use crate::value::{Masked, is_clean, shorten};

/// What is known of a user's password.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The password itself.
    Plain(Masked),
    /// `md5(password || user)`: the digest's 16 bytes.
    Md5([u8; 16]),
    /// A SCRAM-SHA-256 verifier (RFC 5803), as PostgreSQL stores it in `pg_authid.rolpassword`.
    ScramVerifier {
        /// Rounds of PBKDF2, at least 1.
        iterations: u32,
        /// The salt, decoded; not empty.
        salt: Vec<u8>,
        /// H(ClientKey).
        stored_key: [u8; 32],
        /// ServerKey.
        server_key: [u8; 32],
    },
}

impl Secret {
    /// What a server stores (`pg_authid.rolpassword`), or `TEXT` and the password; `None` when it is neither.
    #[must_use]
    pub fn stored(text: &str) -> Option<Self> {
        parse_secret(text, None).ok()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain(********)",
            Self::Md5(_) => "Md5(********)",
            Self::ScramVerifier { .. } => "ScramVerifier(********)",
        })
    }
}

/// Secrets by user. `Debug` tells the users and the kinds of secret only.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Passwords(BTreeMap<String, Secret>);

impl Passwords {
    /// Reads lines `user:secret`; `origin` is the file in errors.
    ///
    /// # Errors
    /// Everything that is wrong, by line; never the secrets.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigErrors> {
        Self::parse_with(text, origin, None)
    }

    /// As [`Passwords::parse`]; `key` opens AES secrets, which are plain passwords then.
    ///
    /// # Errors
    /// As [`Passwords::parse`].
    pub fn parse_with(text: &str, origin: &str, key: Option<&PoolKey>) -> Result<Self, ConfigErrors> {
        // An editor's byte order mark is no part of the first user.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let (mut secrets, mut errors) = (BTreeMap::new(), Vec::new());
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            match parse_line(line, key) {
                Ok((user, _)) if secrets.contains_key(&user) => {
                    errors.push((index, "user", format!("a second line for {}", shorten(&user)), EACH_ONCE));
                }
                Ok((user, secret)) => {
                    secrets.insert(user, secret);
                }
                Err((field, found, expected)) => errors.push((index, field, found.to_owned(), expected)),
            }
        }
        if errors.is_empty() {
            return Ok(Self(secrets));
        }
        let tell = |(index, field, found, expected): (usize, &str, String, &str)| ConfigError {
            key: field.to_owned(),
            ..files::error(origin, Some(index + 1), &found, expected)
        };
        Err(ConfigErrors::new(errors.into_iter().map(tell).collect()))
    }

    /// The user's secret.
    #[must_use]
    pub fn get(&self, user: &str) -> Option<&Secret> {
        self.0.get(user)
    }

    /// Whether most of what is stored are SCRAM verifiers: who is not known is asked as most are, so that it does not
    /// show. Also when there is nothing, as a server's default is.
    #[must_use]
    pub fn are_mostly_verifiers(&self) -> bool {
        let verifiers = self.0.values().filter(|secret| matches!(secret, Secret::ScramVerifier { .. }));
        verifiers.count() * 2 >= self.0.len()
    }

    /// The users, in the order of their names.
    pub fn users(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

const EACH_ONCE: &str = "each user once";
const USER: &str = "user:secret, the user in double quotes when it has a colon or a quote in it";
const KINDS: &str = "TEXT and the password, md5 and 32 hexadecimal digits, a SCRAM-SHA-256 verifier, or AES and a password in AES";
const MD5: &str = "md5 and 32 hexadecimal digits";
const SCRAM: &str =
    "SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>, at most a million and the rest in base64";
/// More would let one login hold a core for longer than the others can wait (the client's side has the same bound).
const MAX_ITERATIONS: u32 = 1_000_000;

/// Field, found, expected.
type Refused = (&'static str, &'static str, &'static str);

fn parse_line(line: &str, key: Option<&PoolKey>) -> Result<(String, Secret), Refused> {
    let (user, secret) = match line.strip_prefix('"') {
        Some(rest) => quoted_user(rest)?,
        None => {
            let (user, secret) = line.split_once(':').ok_or(("user", "a line without a colon", USER))?;
            (user.to_owned(), secret)
        }
    };
    if !is_clean(&user) {
        return Err(("user", "an empty or unusable name", USER));
    }
    Ok((user, parse_secret(secret, key)?))
}

/// The text up to the closing quote, and what follows its colon.
fn quoted_user(text: &str) -> Result<(String, &str), Refused> {
    let mut user = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_once('"').ok_or(("user", "a quote that is not closed", USER))?;
        user.push_str(part);
        if let Some(secret) = after.strip_prefix(':') {
            return Ok((user, secret));
        }
        rest = after.strip_prefix('"').ok_or(("user", "a quoted name without a colon after it", USER))?;
        user.push('"');
    }
}

fn parse_secret(text: &str, key: Option<&PoolKey>) -> Result<Secret, Refused> {
    if let Some(password) = text.strip_prefix("TEXT") {
        if !is_clean(password) {
            return Err(("secret", "TEXT without a usable password", KINDS));
        }
        return Ok(Secret::Plain(Masked::new(password)));
    }
    if let Some(digits) = text.strip_prefix("md5") {
        return hexadecimal(digits).map(Secret::Md5).ok_or(("secret", "md5 and something else", MD5));
    }
    if let Some(verifier) = text.strip_prefix("SCRAM-SHA-256$") {
        return scram(verifier).ok_or(("secret", "SCRAM-SHA-256 and something else", SCRAM));
    }
    if let Some(encrypted) = text.strip_prefix("AES") {
        let key = key.ok_or(("secret", "an AES secret", "pool_key_file to be set, for AES secrets"))?;
        let password = key.decrypt(encrypted).filter(|password| is_clean(password));
        let wrong =
            ("secret", "an AES secret that the key does not open", "one made with pool_key_file's key");
        return password.map(|password| Secret::Plain(Masked::new(&password))).ok_or(wrong);
    }
    Err(("secret", "a secret of no known kind", KINDS))
}

fn hexadecimal(digits: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = digits
        .chars()
        .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()?;
    let bytes: Vec<u8> =
        digits.chunks(2).map(|pair| pair.iter().fold(0_u8, |byte, digit| (byte << 4) | digit)).collect();
    if digits.len() == 32 { bytes.try_into().ok() } else { None }
}

/// PostgreSQL: `parse_scram_secret()` in src/backend/libpq/auth-scram.c.
fn scram(text: &str) -> Option<Secret> {
    let (rounds, keys) = text.split_once('$')?;
    let (iterations, salt) = rounds.split_once(':')?;
    let (stored, server) = keys.split_once(':')?;
    let iterations = iterations.parse::<u32>().ok().filter(|rounds| (1..=MAX_ITERATIONS).contains(rounds))?;
    let salt = BASE64.decode(salt).ok().filter(|salt| !salt.is_empty())?;
    let key = |text: &str| BASE64.decode(text).ok().and_then(|key| <[u8; 32]>::try_from(key).ok());
    Some(Secret::ScramVerifier { iterations, salt, stored_key: key(stored)?, server_key: key(server)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Passwords {
        Passwords::parse(text, "pool_passwd").unwrap()
    }

    fn refusal(text: &str) -> String {
        Passwords::parse(text, "pool_passwd").unwrap_err().to_string()
    }

    fn plain(password: &str) -> Secret {
        Secret::Plain(Masked::new(password))
    }

    #[test]
    fn reads_every_kind() {
        let stored = BASE64.encode([1_u8; 32]);
        let server = BASE64.encode([2_u8; 32]);
        let text = format!(
            "# comment\n\nplain:TEXTse cret \nmd5user:md5000102030405060708090a0b0C0d0e0f\n\
             scram:SCRAM-SHA-256$4096:c2FsdA==${stored}:{server}\r\n"
        );
        let secrets = parse(&text);
        assert_eq!(secrets.get("plain"), Some(&plain("se cret ")));
        assert_eq!(
            secrets.get("md5user"),
            Some(&Secret::Md5(*b"\0\x01\x02\x03\x04\x05\x06\x07\x08\t\n\x0b\x0c\r\x0e\x0f"))
        );
        let scram = Secret::ScramVerifier {
            iterations: 4096,
            salt: b"salt".to_vec(),
            stored_key: [1; 32],
            server_key: [2; 32],
        };
        assert_eq!(secrets.get("scram"), Some(&scram));
        assert_eq!(secrets.get("other"), None);
        assert_eq!(secrets.users().collect::<Vec<_>>(), ["md5user", "plain", "scram"]);
    }

    #[test]
    fn splits_user_and_secret() {
        for (line, user, password) in [
            ("a:TEXTb", "a", "b"),
            ("a:TEXTb:c", "a", "b:c"),
            ("a:TEXTTEXT", "a", "TEXT"),
            ("a b:TEXT#c", "a b", "#c"),
            (r#""a:b":TEXTc"#, "a:b", "c"),
            (r#""a""b":TEXT"c""#, "a\"b", "\"c\""),
            (r##""#a":TEXTc"##, "#a", "c"),
            ("ä:TEXTö", "ä", "ö"),
        ] {
            assert_eq!(parse(line).get(user), Some(&plain(password)), "{line}");
        }
    }

    #[test]
    fn refuses_by_line_and_never_tells_the_secret() {
        for (line, told) in [
            ("secretuser", "user: found a line without a colon"),
            (":TEXTsecret", "user: found an empty or unusable name"),
            ("\"a:TEXTsecret", "user: found a quote that is not closed"),
            ("\"a\"b:TEXTsecret", "user: found a quoted name without a colon after it"),
            ("a:secret", "secret: found a secret of no known kind, expected TEXT and the password"),
            ("a:TEXT", "secret: found TEXT without a usable password"),
            ("a:md5secret", "secret: found md5 and something else"),
            ("a:md5000102030405060708090a0b0c0d0e0", "secret: found md5"),
            ("a:md5000102030405060708090a0b0c0d0e0f00", "secret: found md5"),
            ("a:AESsecret", "secret: found an AES secret, expected pool_key_file to be set"),
            ("a:SCRAM-SHA-256$secret", "secret: found SCRAM-SHA-256 and something else"),
            ("a:SCRAM-SHA-256$0:c2FsdA==$c2FsdA==:c2FsdA==", "secret: found SCRAM-SHA-256"),
            ("a:SCRAM-SHA-256$4096:c2FsdA==$c2FsdA==:c2FsdA==", "secret: found SCRAM-SHA-256"),
            ("b:TEXTother", "user: found a second line for \"b\", expected each user once"),
        ] {
            let told_whole = refusal(&format!("b:TEXTx\n{line}\n"));
            assert!(told_whole.starts_with(&format!("pool_passwd:2: {told}")), "{line}: {told_whole}");
            assert!(!told_whole.contains("TEXTsecret") && !told_whole.contains("5secret"), "{told_whole}");
        }
    }

    #[test]
    fn aes_secrets_are_opened_with_the_key_only() {
        let key = PoolKey::new("the key");
        let line = format!("a:AES{}", key.encrypt("s:e c"));
        let read = Passwords::parse_with(&line, "pool_passwd", Some(&key)).unwrap();
        assert_eq!(read.get("a"), Some(&plain("s:e c")));
        let other = Passwords::parse_with(&line, "pool_passwd", Some(&PoolKey::new("another")));
        let told = other.unwrap_err().to_string();
        assert!(
            told.contains("pool_passwd:1: secret: found an AES secret that the key does not open"),
            "{told}"
        );
    }

    #[test]
    fn a_byte_order_mark_and_line_ends_of_elsewhere_are_no_part_of_it() {
        assert_eq!(parse("\u{feff}a:TEXTb\r\nc:TEXTd\r\n").get("a"), Some(&plain("b")));
    }

    #[test]
    fn tells_every_error_once_up_to_a_bound() {
        assert_eq!(refusal("a\nb:TEXTx\nc\n").lines().count(), 2);
        assert_eq!(refusal(&"a\n".repeat(1000)).lines().count(), crate::error::MAX_ERRORS);
    }

    #[test]
    fn debug_tells_no_secret() {
        let text = format!("{:?}", parse("alice:TEXTopensesame\nbob:md5000102030405060708090a0b0c0d0e0f"));
        assert_eq!(text, r#"Passwords({"alice": Plain(********), "bob": Md5(********)})"#);
    }
}
