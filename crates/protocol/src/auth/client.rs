//! We are the server: a client of ours is authenticated.

use std::fmt;
use std::sync::Arc;

use bytes::BytesMut;
use subtle::ConstantTimeEq;

use super::StoredSecret;
use crate::error::{ClientFacing, PgError};
use crate::md5::Md5Hash;
use crate::scram::server::stable_salt;
use crate::scram::{
    DEFAULT_ITERATIONS, Key, Mechanism, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramError, ScramKeys,
    ScramServer, ScramVerifier, Target,
};
use crate::sqlstate::SqlState;
use crate::write;

/// How a client proves itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// Not at all.
    Trust,
    /// The password in clear text.
    Password,
    /// The md5 exchange; SCRAM when a SCRAM verifier is stored, as in PostgreSQL.
    Md5,
    /// SCRAM-SHA-256.
    Scram,
}

/// The random and secret inputs of one login.
#[derive(Clone)]
pub struct Challenge {
    /// Fresh random bytes.
    pub md5_salt: [u8; 4],
    /// Fresh random printable ASCII without commas, 18 bytes of entropy or more.
    pub nonce: String,
    /// The same for the life of the process, and random.
    pub process_secret: [u8; 32],
    /// The hash of our certificate (`tls-server-end-point`), over a connection that can be bound to it.
    pub end_point: Option<Arc<[u8]>>,
}

impl fmt::Debug for Challenge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Challenge(***)")
    }
}

/// What a successful login taught us, for logging in to the nodes.
#[derive(Clone, PartialEq, Eq)]
pub enum Learned {
    /// Nothing.
    Nothing,
    /// The password, by the method `password`.
    Password(Vec<u8>),
    /// The client's key, and the server key of the verifier it was checked against.
    ScramKeys(ScramKeys),
}

/// Only the kind is shown.
impl fmt::Debug for Learned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "Nothing",
            Self::Password(_) => "Password(***)",
            Self::ScramKeys(_) => "ScramKeys(***)",
        })
    }
}

/// Why a client is not let in. The client is told nothing that depends on whether the user exists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientAuthError {
    /// The password is wrong, the user is unknown, or nothing is stored that works with the method.
    #[error("password authentication failed")]
    WrongPassword,
    /// An empty password.
    #[error("empty password returned by client")]
    EmptyPassword,
    /// A message that breaks the protocol.
    #[error("{0}")]
    Protocol(&'static str),
    /// The SCRAM exchange broke off.
    #[error(transparent)]
    Scram(ScramError),
}

impl ClientAuthError {
    /// The word that metrics and logs use.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::WrongPassword => "wrong_password",
            Self::EmptyPassword => "empty_password",
            Self::Protocol(_) | Self::Scram(_) => "protocol",
        }
    }

    /// Whether it looks like a guess, rather than like a client that does not speak the protocol.
    #[must_use]
    pub fn is_wrong_secret(&self) -> bool {
        matches!(self, Self::WrongPassword)
    }

    /// What the client is told; PostgreSQL's texts.
    #[must_use]
    pub fn to_client(&self, user: &str) -> PgError {
        match self {
            Self::WrongPassword => {
                let text = format!("password authentication failed for user \"{user}\"");
                PgError::fatal(SqlState::INVALID_PASSWORD, text)
            }
            Self::EmptyPassword => PgError::fatal(SqlState::INVALID_PASSWORD, self.to_string()),
            Self::Protocol(text) => PgError::fatal(SqlState::PROTOCOL_VIOLATION, *text),
            Self::Scram(error) => error.to_client(),
        }
    }
}

impl ClientFacing for ScramError {
    fn to_client(&self) -> PgError {
        match self {
            Self::Malformed(detail) => {
                PgError::fatal(SqlState::PROTOCOL_VIOLATION, "malformed SCRAM message").with_detail(*detail)
            }
            Self::Unsupported(text) => PgError::fatal(SqlState::FEATURE_NOT_SUPPORTED, *text),
            Self::Downgrade => {
                PgError::fatal(SqlState::INVALID_AUTHORIZATION_SPECIFICATION, self.to_string()).with_detail(
                    "The client supports SCRAM channel binding but thinks the server does not.  \
                     However, this server does support channel binding.",
                )
            }
            Self::Channel => PgError::fatal(SqlState::INVALID_AUTHORIZATION_SPECIFICATION, self.to_string()),
            Self::Nonce => PgError::fatal(SqlState::PROTOCOL_VIOLATION, "invalid SCRAM response")
                .with_detail("Nonce does not match."),
            Self::WrongPassword | Self::Iterations(_) | Self::ServerSignature | Self::Server(_) => {
                PgError::fatal(SqlState::INVALID_PASSWORD, "SCRAM authentication failed")
            }
        }
    }
}

/// What to do after a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum ClientStep {
    /// Send what was appended and wait for the client's next `p` message.
    Wait,
    /// The client is who it says. AuthenticationOk is the caller's to write.
    Done(Learned),
    /// It is not let in.
    Failed(ClientAuthError),
}

/// One login of a client.
pub struct ClientAuth {
    user: Vec<u8>,
    process_secret: [u8; 32],
    state: State,
}

enum State {
    Trust,
    Password(Option<StoredSecret>),
    Md5 {
        hash: Option<Md5Hash>,
        salt: [u8; 4],
    },
    /// The mechanisms are offered.
    ScramBegin(Exchange),
    /// The mechanism was chosen without data.
    ScramChosen(Exchange, Mechanism),
    Scram {
        server: ScramServer,
        server_key: Key,
    },
    Over,
}

/// What a SCRAM exchange begins with.
struct Exchange {
    target: Target,
    nonce: String,
    end_point: Option<Arc<[u8]>>,
}

impl fmt::Debug for ClientAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientAuth").finish_non_exhaustive()
    }
}

impl ClientAuth {
    /// A login of `user` by `method` against what is stored (`None`: unknown user).
    #[must_use]
    pub fn new(method: Method, user: &[u8], secret: Option<StoredSecret>, challenge: Challenge) -> Self {
        let Challenge { md5_salt: salt, nonce, process_secret, end_point } = challenge;
        let scram = |secret| {
            State::ScramBegin(Exchange { target: target(secret, user, &process_secret), nonce, end_point })
        };
        let state = match (method, secret) {
            (Method::Trust, _) => State::Trust,
            (Method::Password, secret) => State::Password(secret),
            (Method::Scram, secret) | (Method::Md5, secret @ Some(StoredSecret::Scram(_))) => scram(secret),
            (Method::Md5, None) => State::Md5 { hash: None, salt },
            (Method::Md5, Some(StoredSecret::Md5(hash))) => State::Md5 { hash: Some(hash), salt },
            (Method::Md5, Some(StoredSecret::Plain(password))) => {
                State::Md5 { hash: Some(Md5Hash::from_password(user, &password)), salt }
            }
        };
        Self { user: user.to_vec(), process_secret, state }
    }

    /// Appends the request; `Done` at once when nothing is asked of the client.
    pub fn begin(&mut self, out: &mut BytesMut) -> ClientStep {
        match &self.state {
            State::Trust => {
                self.state = State::Over;
                return ClientStep::Done(Learned::Nothing);
            }
            State::Password(_) => write::authentication_cleartext_password(out),
            State::Md5 { salt, .. } => write::authentication_md5_password(out, *salt),
            State::ScramBegin(exchange) => {
                let both: &[&str] = &[SCRAM_SHA_256_PLUS, SCRAM_SHA_256];
                let offered = if exchange.end_point.is_some() { both } else { &[SCRAM_SHA_256] };
                if write::authentication_sasl(out, offered).is_err() {
                    return ClientStep::Failed(ClientAuthError::Protocol("mechanism list too long"));
                }
            }
            State::ScramChosen(..) | State::Scram { .. } | State::Over => return out_of_turn(),
        }
        ClientStep::Wait
    }

    /// Takes the body of a `p` message; what is to be sent is appended.
    pub fn feed(&mut self, body: &[u8], out: &mut BytesMut) -> ClientStep {
        let result = match std::mem::replace(&mut self.state, State::Over) {
            State::Password(secret) => self.password(secret, body),
            State::Md5 { hash, salt } => self.md5(hash, salt, body),
            State::ScramBegin(exchange) => {
                let first = initial_response(body, exchange.end_point.is_some());
                return self.scram_first(exchange, first, out);
            }
            State::ScramChosen(exchange, mechanism) => {
                return self.scram_first(exchange, Ok((mechanism, Some(body))), out);
            }
            State::Scram { server, server_key } => scram_final(server, server_key, body, out),
            State::Trust | State::Over => return out_of_turn(),
        };
        match result {
            Ok(learned) => ClientStep::Done(learned),
            Err(error) => ClientStep::Failed(error),
        }
    }

    fn password(&self, secret: Option<StoredSecret>, body: &[u8]) -> Result<Learned, ClientAuthError> {
        let password = password_of(body)?;
        let right = match secret {
            // The work is in the check.
            Some(StoredSecret::Scram(verifier)) => verifier.matches_password(password),
            Some(StoredSecret::Plain(stored)) => stored.ct_eq(password).into() || self.work_in_vain(password),
            Some(StoredSecret::Md5(hash)) => {
                hash.matches_password(&self.user, password) || self.work_in_vain(password)
            }
            None => self.work_in_vain(password),
        };
        match right {
            true => Ok(Learned::Password(password.to_vec())),
            false => Err(ClientAuthError::WrongPassword),
        }
    }

    /// As much work as a verifier is, so that it takes as long whether a user is unknown, has one, or another secret.
    fn work_in_vain(&self, password: &[u8]) -> bool {
        let salt = stable_salt(&self.process_secret, &self.user);
        std::hint::black_box(ScramVerifier::derive(password, &salt, DEFAULT_ITERATIONS));
        false
    }

    fn md5(&self, hash: Option<Md5Hash>, salt: [u8; 4], body: &[u8]) -> Result<Learned, ClientAuthError> {
        let response = password_of(body)?;
        let known = hash.is_some();
        let hash = hash.unwrap_or_else(|| Md5Hash::from_password(&self.user, &self.process_secret));
        match hash.verify(salt, response) && known {
            true => Ok(Learned::Nothing),
            false => Err(ClientAuthError::WrongPassword),
        }
    }

    fn scram_first(
        &mut self,
        exchange: Exchange,
        first: Result<(Mechanism, Option<&[u8]>), ClientAuthError>,
        out: &mut BytesMut,
    ) -> ClientStep {
        let server_key = exchange.target.server_key();
        let started = first.and_then(|first| match first {
            (mechanism, Some(first)) => {
                let Exchange { target, nonce, end_point } = exchange;
                ScramServer::start(target, first, &nonce, mechanism, end_point.as_deref())
                    .map_err(ClientAuthError::Scram)
                    .map(|(server, reply)| (State::Scram { server, server_key }, reply))
            }
            // Chosen without data: an empty challenge asks for it (`scram_exchange` in PostgreSQL).
            (mechanism, None) => Ok((State::ScramChosen(exchange, mechanism), Vec::new())),
        });
        let sent = started.and_then(|(state, reply)| {
            self.state = state;
            write::authentication_sasl_continue(out, &reply).map_err(|_| TOO_LONG)
        });
        sent.map_or_else(ClientStep::Failed, |()| ClientStep::Wait)
    }
}

const TOO_LONG: ClientAuthError = ClientAuthError::Protocol("SCRAM message too long");

fn scram_final(
    server: ScramServer,
    server_key: Key,
    body: &[u8],
    out: &mut BytesMut,
) -> Result<Learned, ClientAuthError> {
    let accepted = server.finish(body).map_err(|error| match error {
        ScramError::WrongPassword => ClientAuthError::WrongPassword,
        other => ClientAuthError::Scram(other),
    })?;
    write::authentication_sasl_final(out, &accepted.server_final).map_err(|_| TOO_LONG)?;
    Ok(Learned::ScramKeys(ScramKeys { client_key: accepted.client_key, server_key }))
}

/// What SCRAM is done against. A plain password gets a verifier with a stable salt, so that callers can
/// keep it; an md5 hash cannot do SCRAM and fails as an unknown user does.
fn target(secret: Option<StoredSecret>, user: &[u8], process_secret: &[u8]) -> Target {
    match secret {
        Some(StoredSecret::Scram(verifier)) => Target::Real(verifier),
        Some(StoredSecret::Plain(password)) => {
            let salt = stable_salt(process_secret, user);
            Target::Real(ScramVerifier::derive(&password, &salt, DEFAULT_ITERATIONS))
        }
        Some(StoredSecret::Md5(_)) | None => Target::mock(process_secret, user),
    }
}

/// A PasswordMessage's text: one string, not empty.
///
/// # Errors
/// When it is something else.
pub fn password_of(body: &[u8]) -> Result<&[u8], ClientAuthError> {
    let text = body.strip_suffix(&[0]).filter(|text| !text.contains(&0));
    match text {
        Some([]) => Err(ClientAuthError::EmptyPassword),
        Some(text) => Ok(text),
        None => Err(ClientAuthError::Protocol("invalid password packet size")),
    }
}

/// A SASLInitialResponse's mechanism, which must be one that was offered, and its data.
fn initial_response(body: &[u8], with_plus: bool) -> Result<(Mechanism, Option<&[u8]>), ClientAuthError> {
    const INVALID: ClientAuthError = ClientAuthError::Protocol("invalid SASLInitialResponse message");
    let end = body.iter().position(|&byte| byte == 0).ok_or(INVALID)?;
    let (mechanism, rest) = body.split_at_checked(end).ok_or(INVALID)?;
    let mechanism = if mechanism == SCRAM_SHA_256.as_bytes() {
        Mechanism::Sha256
    } else if mechanism == SCRAM_SHA_256_PLUS.as_bytes() && with_plus {
        Mechanism::Sha256Plus
    } else {
        let text = "client selected an invalid SASL authentication mechanism";
        return Err(ClientAuthError::Protocol(text));
    };
    let (len, data) = rest.get(1..).and_then(|rest| rest.split_first_chunk::<4>()).ok_or(INVALID)?;
    match i32::from_be_bytes(*len) {
        -1 if data.is_empty() => Ok((mechanism, None)),
        len if usize::try_from(len) == Ok(data.len()) => Ok((mechanism, Some(data))),
        _ => Err(INVALID),
    }
}

fn out_of_turn() -> ClientStep {
    ClientStep::Failed(ClientAuthError::Protocol("unexpected authentication message"))
}
