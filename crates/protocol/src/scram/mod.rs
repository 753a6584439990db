//! SCRAM-SHA-256 (RFC 5802, RFC 7677, PostgreSQL's `src/backend/libpq/auth-scram.c`): keys and
//! verifiers here, the two sides in [`server`] and [`client`], the messages in `message`.
//!
//! Sans-IO and without randomness: nonces and salts are arguments. Secrets are compared in constant
//! time and masked in Debug. A client never counts as logged in before the server's signature is verified.

pub mod client;
mod message;
pub mod server;

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};
use subtle::ConstantTimeEq;

pub use client::{AwaitingFinal, ClientChannel, ClientSecret, ScramClient};
pub use server::{Accepted, ScramServer, Target};

/// The mechanism's name.
pub const SCRAM_SHA_256: &str = "SCRAM-SHA-256";
/// The mechanism with channel binding, offered over TLS.
pub const SCRAM_SHA_256_PLUS: &str = "SCRAM-SHA-256-PLUS";
/// Iterations of the verifiers we make (PostgreSQL's default).
pub const DEFAULT_ITERATIONS: u32 = 4096;
/// The most iterations a server may make us do. OWASP asks for 600,000; a million costs about a
/// third of a second of one core. More would let a false server block a worker.
pub const MAX_ITERATIONS: u32 = 1_000_000;
/// Length of the salts we make, in bytes (PostgreSQL's `SCRAM_DEFAULT_SALT_LEN`).
pub const SALT_LEN: usize = 16;
/// The longest SCRAM message looked at, in bytes.
pub const MAX_MESSAGE_LEN: usize = 4096;

/// A SHA-256 or HMAC-SHA-256 value.
pub type Key = [u8; 32];

/// What a client selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// SCRAM-SHA-256.
    Sha256,
    /// SCRAM-SHA-256-PLUS.
    Sha256Plus,
}

/// The hash that a certificate is bound by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BindingHash {
    /// SHA-256, also for certificates signed with MD5 or SHA-1.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl BindingHash {
    /// Of the certificate, in DER: the data of `tls-server-end-point` (RFC 5929).
    #[must_use]
    pub fn of(self, certificate: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::digest(certificate).to_vec(),
            Self::Sha384 => Sha384::digest(certificate).to_vec(),
            Self::Sha512 => Sha512::digest(certificate).to_vec(),
        }
    }
}

/// Why an exchange failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    /// A message is not what RFC 5802 says; the text is PostgreSQL's DETAIL.
    #[error("malformed SCRAM message ({0})")]
    Malformed(&'static str),
    /// The peer wants something we do not do.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The nonce is not the one of this exchange.
    #[error("invalid SCRAM response (nonce does not match)")]
    Nonce,
    /// The client could have bound the channel and was not offered it; it was offered.
    #[error("SCRAM channel binding negotiation error")]
    Downgrade,
    /// The client speaks over another TLS connection than we do.
    #[error("SCRAM channel binding check failed")]
    Channel,
    /// The proof is wrong, or the user has no such secret.
    #[error("wrong password")]
    WrongPassword,
    /// An iteration count of 0 or above [`MAX_ITERATIONS`].
    #[error("SCRAM iteration count {0} is not between 1 and {MAX_ITERATIONS}")]
    Iterations(u64),
    /// The server could not prove that it knows the verifier.
    #[error("invalid SCRAM server signature")]
    ServerSignature,
    /// The server said that it failed (`e=`).
    #[error("SCRAM error of the server: {0}")]
    Server(String),
}

/// What a server stores of a password.
#[derive(Clone, PartialEq, Eq)]
pub struct ScramVerifier {
    /// PBKDF2 iterations.
    pub iterations: u32,
    /// The salt, raw.
    pub salt: Vec<u8>,
    /// H(ClientKey): checks clients.
    pub stored_key: Key,
    /// Signs for the server.
    pub server_key: Key,
}

impl ScramVerifier {
    /// Of a password (`pg_be_scram_build_secret`).
    #[must_use]
    pub fn derive(password: &[u8], salt: &[u8], iterations: u32) -> Self {
        let keys = ScramKeys::derive(password, salt, iterations);
        let stored_key = hash(&keys.client_key);
        Self { iterations, salt: salt.to_vec(), stored_key, server_key: keys.server_key }
    }

    /// Reads `SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey`, the form of `pg_authid`; `None` when
    /// it is not one.
    #[must_use]
    pub fn parse(secret: &str) -> Option<Self> {
        let rest = secret.strip_prefix(SCRAM_SHA_256)?.strip_prefix('$')?;
        let (cost, keys) = rest.split_once('$')?;
        let (iterations, salt) = cost.split_once(':')?;
        let (stored_key, server_key) = keys.split_once(':')?;
        let digits_only = iterations.bytes().all(|byte| byte.is_ascii_digit());
        let iterations = iterations.parse().ok().filter(|count| *count >= 1 && digits_only)?;
        let salt = STANDARD.decode(salt).ok().filter(|salt| !salt.is_empty())?;
        Some(Self { iterations, salt, stored_key: key(stored_key)?, server_key: key(server_key)? })
    }

    /// The form it is stored in.
    #[must_use]
    pub fn to_secret(&self) -> String {
        let (salt, stored) = (STANDARD.encode(&self.salt), STANDARD.encode(self.stored_key));
        format!("{SCRAM_SHA_256}${}:{salt}${stored}:{}", self.iterations, STANDARD.encode(self.server_key))
    }

    /// Whether it is the verifier of that password.
    #[must_use]
    pub fn matches_password(&self, password: &[u8]) -> bool {
        let keys = ScramKeys::derive(password, &self.salt, self.iterations);
        hash(&keys.client_key).ct_eq(&self.stored_key).into()
    }
}

/// The verifier is worth an offline attack: masked.
impl fmt::Debug for ScramVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScramVerifier").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

/// What a client needs to log in without the password. The client key is learned when a client logs
/// in to us; with the server key of the verifier it opens every node that holds the same verifier.
#[derive(Clone, PartialEq, Eq)]
pub struct ScramKeys {
    /// Proves the client.
    pub client_key: Key,
    /// Checks the server.
    pub server_key: Key,
}

impl ScramKeys {
    /// Of a password, for that salt and count.
    #[must_use]
    pub fn derive(password: &[u8], salt: &[u8], iterations: u32) -> Self {
        let salted = salted_password(&normalize(password), salt, iterations);
        Self { client_key: hmac(&salted, &[b"Client Key"]), server_key: hmac(&salted, &[b"Server Key"]) }
    }
}

/// As good as the password: masked.
impl fmt::Debug for ScramKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScramKeys(***)")
    }
}

fn key(text: &str) -> Option<Key> {
    STANDARD.decode(text).ok()?.try_into().ok()
}

/// SASLprep; what it cannot prepare (not UTF-8, prohibited characters) is taken as it is, as
/// PostgreSQL does.
fn normalize(password: &[u8]) -> Vec<u8> {
    let prepared = std::str::from_utf8(password).ok().and_then(|text| stringprep::saslprep(text).ok());
    prepared.map_or_else(|| password.to_vec(), |text| text.as_bytes().to_vec())
}

/// PBKDF2 with HMAC-SHA-256 for one block. The keyed state is made once and cloned: two
/// compressions a round instead of four.
fn salted_password(password: &[u8], salt: &[u8], iterations: u32) -> Key {
    let keyed = keyed(password);
    let mut round = keyed.clone().chain_update(salt).chain_update(1u32.to_be_bytes()).finalize().into_bytes();
    let mut result: Key = round.into();
    for _ in 1..iterations {
        round = keyed.clone().chain_update(round).finalize().into_bytes();
        result.iter_mut().zip(round).for_each(|(byte, other)| *byte ^= other);
    }
    result
}

/// HMAC takes a key of any length: a long one is hashed first, a short one padded with zeros.
fn keyed(key: &[u8]) -> Hmac<Sha256> {
    let mut block = [0u8; 64];
    if key.len() > block.len() {
        block.iter_mut().zip(hash(key)).for_each(|(slot, byte)| *slot = byte);
    } else {
        block.iter_mut().zip(key).for_each(|(slot, byte)| *slot = *byte);
    }
    Hmac::<Sha256>::new(&block.into())
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> Key {
    let mut mac = keyed(key);
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

fn hash(bytes: &[u8]) -> Key {
    Sha256::digest(bytes).into()
}

fn xor(left: &Key, right: &Key) -> Key {
    let mut result = *left;
    result.iter_mut().zip(right).for_each(|(byte, other)| *byte ^= other);
    result
}

#[cfg(test)]
mod tests;
