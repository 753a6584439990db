//! The client's side: logs us in to a node, with a password or with the keys alone.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use subtle::ConstantTimeEq;

use super::message::{self, Binding};
use super::{Key, ScramError, ScramKeys, hash, hmac, xor};

/// What proves us.
#[derive(Clone)]
pub enum ClientSecret {
    /// The password.
    Password(Vec<u8>),
    /// Keys; they work where the verifier has the salt and count they came from.
    Keys(ScramKeys),
}

impl fmt::Debug for ClientSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Password(_) => "Password(***)",
            Self::Keys(_) => "Keys(***)",
        })
    }
}

/// An exchange whose first message was made; it waits for the server's first one.
#[derive(Debug)]
pub struct ScramClient {
    secret: ClientSecret,
    nonce: String,
    binding: Binding,
    end_point: Vec<u8>,
}

/// What we say of the channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientChannel {
    /// There is none that could be bound.
    Unbound,
    /// It could be bound, and the server does not offer that.
    NotOffered,
    /// Bound to the server's certificate, by its hash (`tls-server-end-point`).
    EndPoint(Vec<u8>),
}

/// An exchange whose final message was made. Only [`AwaitingFinal::finish`] makes it count.
#[derive(Debug)]
pub struct AwaitingFinal {
    expected: Signature,
}

/// What the server must prove with.
struct Signature(Key);

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl ScramClient {
    /// Makes client-first-message. `nonce`: fresh random printable ASCII without commas. The user
    /// name stays empty: a server takes that of the start-up packet.
    #[must_use]
    pub fn start(secret: ClientSecret, nonce: &str, channel: ClientChannel) -> (Self, Vec<u8>) {
        let (binding, end_point) = match channel {
            ClientChannel::Unbound => (Binding::Unsupported, Vec::new()),
            ClientChannel::NotOffered => (Binding::NotOffered, Vec::new()),
            ClientChannel::EndPoint(hash) => (Binding::EndPoint, hash),
        };
        let first = format!("{}n=,r={nonce}", binding.header()).into_bytes();
        (Self { secret, nonce: nonce.to_owned(), binding, end_point }, first)
    }

    /// Takes server-first-message and makes client-final-message.
    ///
    /// # Errors
    /// When the message breaks the protocol, the nonce is not an extension of ours, or the count is
    /// out of bounds.
    pub fn server_first(self, server_first: &[u8]) -> Result<(AwaitingFinal, Vec<u8>), ScramError> {
        let first = message::server_first(server_first)?;
        let extended = first.nonce.strip_prefix(&self.nonce).is_some_and(|added| !added.is_empty());
        if !extended {
            return Err(ScramError::Nonce);
        }
        let keys = match self.secret {
            ClientSecret::Password(password) => ScramKeys::derive(&password, &first.salt, first.iterations),
            ClientSecret::Keys(keys) => keys,
        };
        let without_proof = format!("c={},r={}", self.binding.encoded(&self.end_point), first.nonce);
        let bare = format!("n=,r={},", self.nonce);
        let auth_message: [&[u8]; 4] = [bare.as_bytes(), server_first, b",", without_proof.as_bytes()];
        let proof = xor(&keys.client_key, &hmac(&hash(&keys.client_key), &auth_message));
        let expected = Signature(hmac(&keys.server_key, &auth_message));
        let client_final = format!("{without_proof},p={}", STANDARD.encode(proof));
        Ok((AwaitingFinal { expected }, client_final.into_bytes()))
    }
}

impl AwaitingFinal {
    /// Takes server-final-message: the server knew the verifier, or it is an impostor.
    ///
    /// # Errors
    /// When the signature is wrong or missing.
    pub fn finish(self, server_final: &[u8]) -> Result<(), ScramError> {
        let signature = message::server_final(server_final)?;
        match bool::from(signature.ct_eq(&self.expected.0)) {
            true => Ok(()),
            false => Err(ScramError::ServerSignature),
        }
    }
}
