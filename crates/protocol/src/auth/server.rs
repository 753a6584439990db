//! We are the client: a node authenticates us.

use std::fmt;

use bytes::BytesMut;

use super::Credentials;
use crate::error::{ClientFacing, PgError};
use crate::md5::Md5Hash;
use crate::scram::{
    AwaitingFinal, ClientChannel, ClientSecret, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramClient, ScramError,
};
use crate::sqlstate::SqlState;
use crate::write::{self, WriteError};

/// What an Authentication message asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// Send these bytes: one whole message.
    Send(BytesMut),
    /// Logged in.
    Ok,
    /// Wait for the next message.
    Continue,
}

/// Why we cannot log in to a node. No text holds a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The node wants a method for which what we have does not suffice.
    #[error("the server asks for {method} authentication, which does not work with {have}")]
    Unusable {
        /// What the node wants.
        method: &'static str,
        /// What we have.
        have: &'static str,
    },
    /// The node wants a method that we do not do.
    #[error("the server asks for {0} authentication, which is not supported")]
    Unsupported(String),
    /// The node broke the protocol.
    #[error("protocol violation of the server during authentication: {0}")]
    Protocol(&'static str),
    /// The SCRAM exchange failed on our side: malformed, or the node could not prove itself.
    #[error(transparent)]
    Scram(#[from] ScramError),
    /// Our answer cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl AuthError {
    /// The word that metrics and logs use.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unusable { .. } => "credentials_unusable",
            Self::Unsupported(_) => "method_unsupported",
            Self::Scram(ScramError::ServerSignature) => "server_not_verified",
            Self::Scram(_) => "scram",
            Self::Protocol(_) => "protocol",
            Self::Write(_) => "write",
        }
    }

    /// Whether the node's bytes were at fault rather than its configuration or ours.
    #[must_use]
    pub fn is_protocol(&self) -> bool {
        matches!(self, Self::Protocol(_) | Self::Scram(_) | Self::Write(_))
    }
}

impl ClientFacing for AuthError {
    fn to_client(&self) -> PgError {
        PgError::fatal(SqlState::CONNECTION_FAILURE, "could not log in to the server")
            .with_detail(format!("{self}."))
    }
}

/// One login of ours at a node.
pub struct ServerAuth {
    user: Vec<u8>,
    credentials: Credentials,
    nonce: String,
    channel: Channel,
    state: State,
}

/// The connection to the node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Channel {
    /// In the clear.
    #[default]
    Plain,
    /// TLS, with the hash of the node's certificate where it has one (`tls-server-end-point`).
    Tls(Option<Vec<u8>>),
}

#[derive(Debug)]
enum State {
    /// Nothing was asked yet.
    Begin,
    /// We answered; only AuthenticationOk can follow.
    Answered,
    /// SCRAM: our first message is out.
    ScramFirst(ScramClient),
    /// SCRAM: our final message is out.
    ScramFinal(AwaitingFinal),
    /// Logged in, or failed.
    Over,
}

impl fmt::Debug for ServerAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerAuth").field("state", &self.state).finish_non_exhaustive()
    }
}

impl ServerAuth {
    /// A login as `user`. `nonce`: fresh random printable ASCII without commas (used by SCRAM).
    #[must_use]
    pub fn new(user: &[u8], credentials: Credentials, nonce: String) -> Self {
        Self { user: user.to_vec(), credentials, nonce, channel: Channel::Plain, state: State::Begin }
    }

    /// Over that connection: SCRAM is bound to it where the node can.
    #[must_use]
    pub fn over(mut self, channel: Channel) -> Self {
        self.channel = channel;
        self
    }

    /// Takes the body of an Authentication message (`R`).
    ///
    /// # Errors
    /// When the login cannot go on; the connection is of no use then.
    pub fn feed(&mut self, body: &[u8]) -> Result<Step, AuthError> {
        let (code, data) = body.split_first_chunk::<4>().ok_or(AuthError::Protocol("message too short"))?;
        let state = std::mem::replace(&mut self.state, State::Over);
        match (u32::from_be_bytes(*code), state) {
            (0, State::Begin | State::Answered) => Ok(Step::Ok),
            (0, State::ScramFirst(_) | State::ScramFinal(_)) => {
                Err(AuthError::Protocol("AuthenticationOk before the server proved itself"))
            }
            (3, State::Begin) => self.cleartext(),
            (5, State::Begin) => self.md5(data),
            (10, State::Begin) => self.sasl(data),
            (11, State::ScramFirst(client)) => {
                let (waiting, last) = client.server_first(data)?;
                self.state = State::ScramFinal(waiting);
                send(|out| write::sasl_response(out, &last))
            }
            (12, State::ScramFinal(waiting)) => {
                waiting.finish(data)?;
                self.state = State::Answered;
                Ok(Step::Continue)
            }
            (code, State::Begin) => Err(AuthError::Unsupported(method_name(code))),
            _ => Err(AuthError::Protocol("unexpected authentication message")),
        }
    }

    fn cleartext(&mut self) -> Result<Step, AuthError> {
        let Credentials::Password(password) = &self.credentials else {
            return Err(self.unusable("password"));
        };
        self.state = State::Answered;
        send(|out| write::password_message(out, password))
    }

    fn md5(&mut self, salt: &[u8]) -> Result<Step, AuthError> {
        let salt: [u8; 4] = salt.try_into().map_err(|_| AuthError::Protocol("md5 salt is not 4 bytes"))?;
        let hash = match &self.credentials {
            Credentials::Password(password) => Md5Hash::from_password(&self.user, password),
            Credentials::Md5Hash(hash) => hash.clone(),
            Credentials::None | Credentials::ScramKeys(_) => return Err(self.unusable("md5")),
        };
        self.state = State::Answered;
        send(|out| write::password_message(out, &hash.response(salt)))
    }

    fn sasl(&mut self, mechanisms: &[u8]) -> Result<Step, AuthError> {
        let offers = |wanted: &str| mechanisms.split(|&byte| byte == 0).any(|name| name == wanted.as_bytes());
        let plus = offers(SCRAM_SHA_256_PLUS);
        if plus && self.channel == Channel::Plain {
            // libpq refuses it too: somebody between us has TLS with the node.
            return Err(AuthError::Protocol("SCRAM-SHA-256-PLUS offered over a connection without TLS"));
        }
        let channel = match std::mem::take(&mut self.channel) {
            Channel::Tls(Some(hash)) if plus => ClientChannel::EndPoint(hash),
            Channel::Tls(Some(_)) => ClientChannel::NotOffered,
            Channel::Tls(None) | Channel::Plain => ClientChannel::Unbound,
        };
        let bound = matches!(channel, ClientChannel::EndPoint(_));
        if !bound && !offers(SCRAM_SHA_256) {
            let shown = String::from_utf8_lossy(mechanisms).replace('\0', " ");
            let shown: String = shown.trim().chars().take(100).collect();
            return Err(AuthError::Unsupported(format!("SASL ({shown})")));
        }
        let secret = match &self.credentials {
            Credentials::Password(password) => ClientSecret::Password(password.clone()),
            Credentials::ScramKeys(keys) => ClientSecret::Keys(keys.clone()),
            Credentials::None | Credentials::Md5Hash(_) => return Err(self.unusable(SCRAM_SHA_256)),
        };
        let (client, first) = ScramClient::start(secret, &self.nonce, channel);
        self.state = State::ScramFirst(client);
        let mechanism = if bound { SCRAM_SHA_256_PLUS } else { SCRAM_SHA_256 };
        send(|out| write::sasl_initial_response(out, mechanism, &first))
    }

    fn unusable(&self, method: &'static str) -> AuthError {
        AuthError::Unusable { method, have: self.credentials.as_str() }
    }
}

fn send(write: impl FnOnce(&mut BytesMut) -> Result<(), WriteError>) -> Result<Step, AuthError> {
    let mut out = BytesMut::new();
    write(&mut out)?;
    Ok(Step::Send(out))
}

/// The method of an authentication code (protocol, "Message Formats").
fn method_name(code: u32) -> String {
    match code {
        2 => "Kerberos V5".to_owned(),
        6 => "SCM".to_owned(),
        7 => "GSSAPI".to_owned(),
        9 => "SSPI".to_owned(),
        other => format!("unknown ({other})"),
    }
}
