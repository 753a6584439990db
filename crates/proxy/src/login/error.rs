//! Why a client did not come in, and what it is told.

use std::io;

use bytes::BytesMut;
use protocol::auth::ClientAuthError;
use protocol::error::{ClientFacing, PgError, write_error};
use protocol::sqlstate::SqlState;
use protocol::startup::StartupError;

use super::{Fault, Outside};
use crate::lookup::LookupError;

/// See the module's documentation.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// The first packets are refused.
    #[error(transparent)]
    Startup(StartupError),
    /// Bytes came behind a request for encryption, before it was answered.
    #[error("received unencrypted data after an encryption request")]
    UnencryptedData {
        /// An SSLRequest, not a GSSENCRequest.
        ssl: bool,
    },
    /// TLS was begun without a request, and there is none to be had.
    #[error("direct TLS, which is off")]
    NoTls,
    /// TLS was begun without a request, and the protocol was not named.
    #[error("direct TLS without ALPN")]
    NoAlpn,
    /// The handshake failed.
    #[error("TLS handshake failed: {0}")]
    Handshake(#[source] io::Error),
    /// `ssl: require`, and the client did not ask for TLS.
    #[error("no TLS, which ssl requires")]
    TlsRequired,
    /// A name or setting is not UTF-8.
    #[error("invalid byte sequence for encoding \"UTF8\" in the start-up packet")]
    Encoding,
    /// No rule lets the client in.
    #[error("no pool_hba rule for {0}")]
    NoRule(Applicant),
    /// A rule keeps the client out.
    #[error("pool_hba rule in line {line} rejects {applicant}")]
    RejectedByRule {
        /// The rule's line.
        line: usize,
        /// Who it is.
        applicant: Applicant,
    },
    /// The client could not prove itself.
    #[error("{error} (user {user:?}, database {database:?})")]
    Auth {
        /// Why not.
        #[source]
        error: ClientAuthError,
        /// Who it claimed to be.
        user: String,
        /// Where it wanted to.
        database: String,
    },
    /// The rule asks for a certificate, and the client showed none.
    #[error("no certificate was shown (user {0:?})")]
    NoCertificate(String),
    /// A proof that others check failed.
    #[error("{} authentication by pool_hba line {line} failed: {reason} (user {user:?}, database {database:?})", .method.as_str())]
    Outside {
        /// Who checked.
        method: Outside,
        /// Whose fault it is.
        fault: Fault,
        /// Who it claimed to be.
        user: String,
        /// Where it wanted to.
        database: String,
        /// The rule's line.
        line: usize,
        /// What was wrong; for the log only.
        reason: String,
    },
    /// Nobody could be asked for the user's secret.
    #[error("{error} (user {user:?})")]
    Lookup {
        /// Why not.
        #[source]
        error: LookupError,
        /// Whose.
        user: String,
    },
    /// Too many attempts failed from there.
    #[error("too many failed logins from this address (user {0:?})")]
    TooManyFailures(String),
    /// Another message came where a password or SASL response was due.
    #[error("expected password response, got message type {0}")]
    NotAPassword(u8),
    /// A password or SASL response whose length none has, or longer than is taken.
    #[error("invalid length of authentication message: {0}")]
    TooLong(usize),
    /// It took longer than `authentication_timeout`.
    #[error("authentication timed out")]
    TimedOut,
    /// The client hung up.
    #[error("the client closed the connection")]
    Closed,
    /// The connection broke.
    #[error("connection lost: {0}")]
    Lost(#[source] io::Error),
}

/// Who wants to come in, as PostgreSQL's messages say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applicant {
    /// The address, or `[local]`.
    pub host: String,
    /// The user.
    pub user: String,
    /// The database; `None` for physical replication.
    pub database: Option<String>,
    /// `SSL encryption` or `no encryption`.
    pub encryption: &'static str,
}

impl std::fmt::Display for Applicant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host, user, database, encryption } = self;
        match database {
            Some(database) => {
                write!(f, "host \"{host}\", user \"{user}\", database \"{database}\", {encryption}")
            }
            None => write!(f, "replication connection from host \"{host}\", user \"{user}\", {encryption}"),
        }
    }
}

impl LoginError {
    /// Every word of [`LoginError::kind`].
    pub const KINDS: &'static [&'static str] = &[
        "protocol_version",
        "protocol",
        "encoding",
        "no_hba_rule",
        "hba_reject",
        "wrong_password",
        "empty_password",
        "certificate",
        "peer",
        "ldap",
        "pam",
        "lookup",
        "too_many_failures",
        "tls",
        "tls_required",
        "timeout",
        "client_closed",
        "connection_lost",
    ];

    /// The word that metrics and logs use.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Startup(StartupError::Version { .. }) => "protocol_version",
            Self::Startup(_) | Self::UnencryptedData { .. } | Self::NotAPassword(_) | Self::TooLong(_) => {
                "protocol"
            }
            Self::NoTls | Self::NoAlpn | Self::Handshake(_) => "tls",
            Self::TlsRequired => "tls_required",
            Self::Encoding => "encoding",
            Self::NoCertificate(_) => "certificate",
            Self::Outside { method, .. } => match method {
                Outside::Certificate => "certificate",
                Outside::Peer => "peer",
                Outside::Ldap => "ldap",
                Outside::Pam => "pam",
            },
            Self::Lookup { .. } => "lookup",
            Self::TooManyFailures(_) => "too_many_failures",
            Self::NoRule(_) => "no_hba_rule",
            Self::RejectedByRule { .. } => "hba_reject",
            Self::Auth { error, .. } => error.kind(),
            Self::TimedOut => "timeout",
            Self::Closed => "client_closed",
            Self::Lost(_) => "connection_lost",
        }
    }

    /// Whether it looks like a guess.
    pub(super) fn is_wrong_secret(&self) -> bool {
        match self {
            Self::Auth { error, .. } => error.is_wrong_secret(),
            Self::Outside { method, fault, .. } => {
                matches!(method, Outside::Ldap | Outside::Pam) && *fault == Fault::Client
            }
            _ => false,
        }
    }

    /// The bytes that the client is sent; none when there is nothing to say or nobody to hear it.
    /// `user` is empty as long as no user is known.
    pub(super) fn answer(&self, user: &str) -> BytesMut {
        let mut out = BytesMut::new();
        match self {
            Self::Startup(error) => error.write(&mut out),
            Self::Closed | Self::Lost(_) | Self::NoTls | Self::NoAlpn | Self::Handshake(_) => {}
            // Whoever said nothing yet may not speak the protocol at all.
            Self::TimedOut if user.is_empty() => {}
            _ => write_error(&mut out, &self.to_error(user)),
        }
        out
    }

    fn to_error(&self, user: &str) -> PgError {
        match self {
            Self::Startup(error) => error.to_client(),
            Self::Auth { error, .. } => error.to_client(user),
            Self::UnencryptedData { ssl } => {
                let request = if *ssl { "SSL" } else { "GSSAPI encryption" };
                let text = format!("received unencrypted data after {request} request");
                let detail = "This could be either a client-software bug or evidence of an attempted \
                    man-in-the-middle attack.";
                PgError::fatal(SqlState::PROTOCOL_VIOLATION, text).with_detail(detail)
            }
            Self::Encoding => {
                let text = "invalid byte sequence for encoding \"UTF8\"";
                PgError::fatal(SqlState::CHARACTER_NOT_IN_REPERTOIRE, text)
                    .with_detail("Names and settings of the start-up packet must be in UTF-8.")
            }
            Self::NoRule(applicant) => hba(format!("no pg_hba.conf entry for {applicant}")),
            Self::RejectedByRule { applicant, .. } => {
                hba(format!("pg_hba.conf rejects {}", connection_for(applicant)))
            }
            Self::NoCertificate(_) => hba("connection requires a valid client certificate".to_owned()),
            Self::Outside { method, user, .. } => {
                let text = format!("{} authentication failed for user \"{user}\"", method.as_str());
                PgError::fatal(SqlState::INVALID_AUTHORIZATION_SPECIFICATION, text)
            }
            // What is wrong there is not the client's to know.
            Self::Lookup { .. } => {
                PgError::fatal(SqlState::CONNECTION_FAILURE, "the user's secret could not be looked up")
            }
            Self::TooManyFailures(_) => {
                let text = "too many failed logins from this address";
                PgError::fatal(SqlState::INVALID_PASSWORD, text).with_hint("Try again in a few seconds.")
            }
            Self::NotAPassword(_) | Self::TooLong(_) => {
                PgError::fatal(SqlState::PROTOCOL_VIOLATION, self.to_string())
            }
            Self::TimedOut => {
                PgError::fatal(SqlState::QUERY_CANCELED, "canceling authentication due to timeout")
            }
            Self::TlsRequired => {
                let text = "this server accepts TLS connections only";
                PgError::fatal(SqlState::INVALID_AUTHORIZATION_SPECIFICATION, text)
                    .with_hint("Connect with sslmode=require or a stricter mode.")
            }
            Self::NoTls | Self::NoAlpn | Self::Handshake(_) | Self::Closed | Self::Lost(_) => {
                PgError::fatal(SqlState::CONNECTION_FAILURE, "connection lost")
            }
        }
    }
}

/// PostgreSQL's wording: "rejects connection for host ...", "rejects replication connection for host ...".
fn connection_for(applicant: &Applicant) -> String {
    match applicant.database {
        Some(_) => format!("connection for {applicant}"),
        None => applicant.to_string().replacen(" from ", " for ", 1),
    }
}

fn hba(text: String) -> PgError {
    PgError::fatal(SqlState::INVALID_AUTHORIZATION_SPECIFICATION, text)
        .with_hint("The rules are those of the proxy's pool_hba.conf.")
}
