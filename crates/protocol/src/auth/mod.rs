//! Authentication as state machines, both sides: [`ServerAuth`] logs us in to a node, [`ClientAuth`]
//! checks a client of ours. Messages in, messages and a step out; no socket, clock or randomness.
//!
//! Invariants: a node counts as logged in only after it proved itself where the method can prove (SCRAM);
//! a user who does not exist goes through the same exchange as one with a wrong password.

mod client;
mod server;

use std::fmt;

use crate::md5::Md5Hash;
use crate::scram::{Key, ScramKeys, ScramVerifier};
pub use client::{Challenge, ClientAuth, ClientAuthError, ClientStep, Learned, Method, password_of};
pub use server::{AuthError, Channel, ServerAuth, Step};

/// What proves us to a node.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum Credentials {
    /// Nothing: only trust, peer and the like can work.
    #[default]
    None,
    /// The password: works with every method.
    Password(Vec<u8>),
    /// The md5 hash: works with md5 only.
    Md5Hash(Md5Hash),
    /// SCRAM keys: work with SCRAM where the node holds the verifier they belong to.
    ScramKeys(ScramKeys),
}

/// Only the kind is shown.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Password(_) => "Password(***)",
            Self::Md5Hash(_) => "Md5Hash(***)",
            Self::ScramKeys(_) => "ScramKeys(***)",
        })
    }
}

impl Credentials {
    /// What a client proved itself with, where that suffices for the nodes: a client key together with
    /// the verifier it was checked against.
    #[must_use]
    pub fn from_client_key(client_key: Key, verifier: &ScramVerifier) -> Self {
        Self::ScramKeys(ScramKeys { client_key, server_key: verifier.server_key })
    }

    /// The noun for messages.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::None => "no secret",
            Self::Password(_) => "a password",
            Self::Md5Hash(_) => "an md5 hash",
            Self::ScramKeys(_) => "SCRAM keys",
        }
    }
}

/// What is stored of a client's password.
#[derive(Clone, PartialEq, Eq)]
pub enum StoredSecret {
    /// The password itself.
    Plain(Vec<u8>),
    /// Its md5 hash.
    Md5(Md5Hash),
    /// Its SCRAM verifier.
    Scram(ScramVerifier),
}

/// Only the kind is shown.
impl fmt::Debug for StoredSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain(***)",
            Self::Md5(_) => "Md5(***)",
            Self::Scram(_) => "Scram(***)",
        })
    }
}

#[cfg(test)]
mod tests;
