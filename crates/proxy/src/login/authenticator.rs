//! What lives longer than one login: the secret that mock exchanges follow from, and the verifiers of
//! passwords that are stored in plain text (4096 rounds of HMAC are a millisecond, too much for each login).

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use config::secrets::Secret;
use parking_lot::Mutex;
use protocol::auth::{Challenge, Method, StoredSecret};
use protocol::md5::Md5Hash;
use protocol::scram::server::stable_salt;
use protocol::scram::{DEFAULT_ITERATIONS, ScramVerifier};
use rand::Rng;
use tokio::time::Instant;

use super::LoginError;
use super::names::HostNames;
use super::pam::Helpers;
use crate::connect::nonce;
use crate::registry::Peer;
use crate::throttle::{Throttle, Verdict};

/// The most verifiers kept; only users who are in the configuration have one.
const MAX_VERIFIERS: usize = 10_000;

/// See the module's documentation. One for the whole process.
pub struct Authenticator {
    process_secret: [u8; 32],
    verifiers: Mutex<HashMap<String, Derived>>,
    throttle: Throttle,
    pub(super) names: HostNames,
    pub(super) helpers: Helpers,
}

/// A verifier, and the password it was made from: another one makes it stale.
struct Derived {
    password: String,
    verifier: ScramVerifier,
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticator").finish_non_exhaustive()
    }
}

impl Authenticator {
    /// With what challenges are made from, which nobody else should know.
    #[must_use]
    pub fn new(process_secret: [u8; 32]) -> Self {
        Self {
            process_secret,
            verifiers: Mutex::default(),
            throttle: Throttle::default(),
            names: HostNames::default(),
            helpers: Helpers::default(),
        }
    }

    /// Has an attempt wait whose predecessors failed.
    pub(super) async fn admit(&self, peer: Peer, user: &str) -> Result<(), LoginError> {
        let Peer::Tcp(address) = peer else { return Ok(()) };
        match self.throttle.judge(address.ip(), user, Instant::now()) {
            Verdict::After(Duration::ZERO) => Ok(()),
            Verdict::After(wait) => {
                tokio::time::sleep(wait).await;
                Ok(())
            }
            Verdict::Refused => Err(LoginError::TooManyFailures(user.to_owned())),
        }
    }

    /// An attempt failed.
    pub(super) fn failed(&self, peer: Peer, user: &str) {
        if let Peer::Tcp(address) = peer {
            self.throttle.failed(address.ip(), user, Instant::now());
        }
    }

    /// An attempt succeeded.
    pub(super) fn succeeded(&self, peer: Peer, user: &str) {
        if let Peer::Tcp(address) = peer {
            self.throttle.succeeded(address.ip(), user);
        }
    }

    /// The random inputs of one login. Who is not challenged costs none: they are a tenth of such a login's
    /// instructions.
    pub(super) fn challenge(&self, method: Method) -> Challenge {
        let (md5_salt, nonce) = match method {
            Method::Trust | Method::Password => ([0; 4], String::new()),
            // By md5 one is asked for SCRAM who has a verifier.
            Method::Md5 | Method::Scram => (rand::rng().random(), nonce()),
        };
        Challenge { md5_salt, nonce, process_secret: self.process_secret, end_point: None }
    }

    /// What is stored of a user, in the form the method needs.
    pub(super) fn stored(&self, user: &str, secret: &Secret, method: Method) -> StoredSecret {
        match secret {
            Secret::Plain(password) if method == Method::Scram => {
                StoredSecret::Scram(self.verifier(user, password.expose()))
            }
            Secret::Plain(password) => StoredSecret::Plain(password.expose().as_bytes().to_vec()),
            Secret::Md5(digest) => StoredSecret::Md5(Md5Hash::from_digest(*digest)),
            Secret::ScramVerifier { iterations, salt, stored_key, server_key } => {
                StoredSecret::Scram(ScramVerifier {
                    iterations: *iterations,
                    salt: salt.clone(),
                    stored_key: *stored_key,
                    server_key: *server_key,
                })
            }
        }
    }

    fn verifier(&self, user: &str, password: &str) -> ScramVerifier {
        let known = self
            .verifiers
            .lock()
            .get(user)
            .filter(|known| known.password == password)
            .map(|known| known.verifier.clone());
        if let Some(verifier) = known {
            return verifier;
        }
        // Outside of the lock: other logins go on meanwhile.
        let salt = stable_salt(&self.process_secret, user.as_bytes());
        let verifier = ScramVerifier::derive(password.as_bytes(), &salt, DEFAULT_ITERATIONS);
        let mut verifiers = self.verifiers.lock();
        if verifiers.len() < MAX_VERIFIERS || verifiers.contains_key(user) {
            let derived = Derived { password: password.to_owned(), verifier: verifier.clone() };
            verifiers.insert(user.to_owned(), derived);
        }
        verifier
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verifier_is_made_once_and_again_when_the_password_changes() {
        let authenticator = Authenticator::new([7; 32]);
        let first = authenticator.verifier("joe", "secret");
        assert_eq!(authenticator.verifier("joe", "secret"), first);
        assert!(first.matches_password(b"secret"));
        let second = authenticator.verifier("joe", "other");
        assert_eq!(second.salt, first.salt, "the salt says nothing about the password");
        assert!(second.matches_password(b"other"));
        assert_eq!(authenticator.verifiers.lock().len(), 1);
    }
}
