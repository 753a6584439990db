//! Why a client did not come in, and what it is told.

use std::io;

use bytes::BytesMut;
use protocol::auth::ClientAuthError;
use protocol::error::{ClientFacing, PgError, write_error};
use protocol::sqlstate::SqlState;
use protocol::startup::StartupError;

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
    /// Another message came where a password or SASL response was due.
    #[error("expected password response, got message type {0}")]
    NotAPassword(u8),
    /// A password or SASL response longer than is taken.
    #[error("authentication message of {0} bytes is too long")]
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
}

impl std::fmt::Display for Applicant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host, user, database } = self;
        match database {
            Some(database) => {
                write!(f, "host \"{host}\", user \"{user}\", database \"{database}\", no encryption")
            }
            None => write!(f, "replication connection from host \"{host}\", user \"{user}\", no encryption"),
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
            Self::Encoding => "encoding",
            Self::NoRule(_) => "no_hba_rule",
            Self::RejectedByRule { .. } => "hba_reject",
            Self::Auth { error, .. } => error.kind(),
            Self::TimedOut => "timeout",
            Self::Closed => "client_closed",
            Self::Lost(_) => "connection_lost",
        }
    }

    /// The bytes that the client is sent; none when there is nothing to say or nobody to hear it.
    /// `user` is empty as long as no user is known.
    pub(super) fn answer(&self, user: &str) -> BytesMut {
        let mut out = BytesMut::new();
        match self {
            Self::Startup(error) => error.write(&mut out),
            Self::Closed | Self::Lost(_) => {}
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
            Self::NotAPassword(_) | Self::TooLong(_) => {
                PgError::fatal(SqlState::PROTOCOL_VIOLATION, self.to_string())
            }
            Self::TimedOut => {
                PgError::fatal(SqlState::QUERY_CANCELED, "canceling authentication due to timeout")
            }
            Self::Closed | Self::Lost(_) => PgError::fatal(SqlState::CONNECTION_FAILURE, "connection lost"),
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
