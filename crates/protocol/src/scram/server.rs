//! The server's side: checks a client of ours against a verifier.
//!
//! An exchange for a user without a usable secret runs to its end with a verifier made from a
//! secret of the process, and then fails: it looks and costs like a wrong password.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use subtle::ConstantTimeEq;

use super::message::{self, Binding};
use super::{DEFAULT_ITERATIONS, Key, Mechanism, SALT_LEN, ScramError, ScramVerifier, hash, hmac, xor};

/// What a client is checked against.
#[derive(Debug, Clone)]
pub enum Target {
    /// The user's verifier.
    Real(ScramVerifier),
    /// The user is unknown or has no secret for SCRAM: the exchange cannot succeed.
    Mock(ScramVerifier),
}

impl Target {
    /// For a user without a secret. The salt is the same each time, as a real one would be; it follows
    /// from `process_secret`, so that nobody outside can tell it from a real one.
    #[must_use]
    pub fn mock(process_secret: &[u8], user: &[u8]) -> Self {
        let [salt, stored_key, server_key] = ["salt", "stored key", "server key"]
            .map(|what| hmac(process_secret, &[what.as_bytes(), b"\0", user]));
        let salt = salt.iter().copied().take(SALT_LEN).collect();
        Self::Mock(ScramVerifier { iterations: DEFAULT_ITERATIONS, salt, stored_key, server_key })
    }

    /// The server key of the verifier.
    #[must_use]
    pub fn server_key(&self) -> Key {
        self.verifier().server_key
    }

    fn verifier(&self) -> &ScramVerifier {
        match self {
            Self::Real(verifier) | Self::Mock(verifier) => verifier,
        }
    }

    fn is_real(&self) -> bool {
        matches!(self, Self::Real(_))
    }
}

/// A salt for the verifier of a plain password: stable, and like the one of a mock exchange.
#[must_use]
pub fn stable_salt(process_secret: &[u8], user: &[u8]) -> [u8; SALT_LEN] {
    let mut salt = [0; SALT_LEN];
    salt.iter_mut().zip(hmac(process_secret, &[b"salt\0", user])).for_each(|(slot, byte)| *slot = byte);
    salt
}

/// An exchange in which the server's first message was made; it waits for the client's final one.
pub struct ScramServer {
    target: Target,
    /// What `c=` must be in the client's final message.
    channel: String,
    nonce: String,
    binding: Binding,
    /// client-first-bare and server-first, with commas behind: the head of the AuthMessage.
    transcript: String,
}

/// A client that proved its password.
#[derive(Clone, PartialEq, Eq)]
pub struct Accepted {
    /// server-final-message, to be sent before AuthenticationOk.
    pub server_final: Vec<u8>,
    /// The client's key: with it the same login works on a node that holds the same verifier.
    pub client_key: Key,
}

impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Accepted(***)")
    }
}

impl fmt::Debug for ScramServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScramServer").field("binding", &self.binding).finish_non_exhaustive()
    }
}

impl ScramServer {
    /// Takes client-first-message and makes server-first-message. `nonce` is our part of the nonce:
    /// fresh random printable ASCII without commas, 18 bytes of entropy or more. `end_point` is the hash of our
    /// certificate when SCRAM-SHA-256-PLUS was offered, `mechanism` what the client selected.
    ///
    /// # Errors
    /// When the message breaks the protocol, asks for what we do not do, or shows that somebody between us took
    /// SCRAM-SHA-256-PLUS out of the offer.
    pub fn start(
        target: Target,
        client_first: &[u8],
        nonce: &str,
        mechanism: Mechanism,
        end_point: Option<&[u8]>,
    ) -> Result<(Self, Vec<u8>), ScramError> {
        let first = message::client_first(client_first, mechanism)?;
        if first.binding == Binding::NotOffered && end_point.is_some() {
            return Err(ScramError::Downgrade);
        }
        let nonce = format!("{}{nonce}", first.nonce);
        let verifier = target.verifier();
        let salt = STANDARD.encode(&verifier.salt);
        let server_first = format!("r={nonce},s={salt},i={}", verifier.iterations);
        let transcript = format!("{},{server_first},", first.bare);
        let channel = first.binding.encoded(end_point.unwrap_or_default());
        let server = Self { channel, binding: first.binding, nonce, transcript, target };
        Ok((server, server_first.into_bytes()))
    }

    /// Takes client-final-message and decides.
    ///
    /// # Errors
    /// `WrongPassword`, or what breaks the protocol.
    pub fn finish(self, client_final: &[u8]) -> Result<Accepted, ScramError> {
        let last = message::client_final(client_final)?;
        if !bool::from(last.binding.as_bytes().ct_eq(self.channel.as_bytes())) {
            if self.binding == Binding::EndPoint {
                return Err(ScramError::Channel);
            }
            return Err(ScramError::Malformed(
                "Unexpected SCRAM channel-binding attribute in client-final-message.",
            ));
        }
        if !bool::from(last.nonce.as_bytes().ct_eq(self.nonce.as_bytes())) {
            return Err(ScramError::Nonce);
        }
        let auth_message = [self.transcript.as_bytes(), last.without_proof.as_bytes()];
        let verifier = self.target.verifier();
        let client_signature = hmac(&verifier.stored_key, &auth_message);
        let client_key = xor(&last.proof, &client_signature);
        let proven: bool = hash(&client_key).ct_eq(&verifier.stored_key).into();
        if !(proven && self.target.is_real()) {
            return Err(ScramError::WrongPassword);
        }
        let signature = hmac(&verifier.server_key, &auth_message);
        Ok(Accepted { server_final: format!("v={}", STANDARD.encode(signature)).into_bytes(), client_key })
    }
}
