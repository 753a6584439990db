//! Why a connection to a node could not be made.

use std::io;

use bytes::Bytes;
use cluster::ConnectFailure;
use protocol::auth::AuthError;
use protocol::error::{ClientFacing, ErrorView, PgError, Severity};
use protocol::sqlstate::SqlState;
use protocol::write::WriteError;

/// An ErrorResponse of a server, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    body: Bytes,
}

impl ServerError {
    /// From the message's body: what follows the length.
    #[must_use]
    pub fn new(body: Bytes) -> Self {
        Self { body }
    }

    /// The raw fields, to be passed on unchanged behind `E` and a length.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The fields.
    #[must_use]
    pub fn view(&self) -> ErrorView<'_> {
        ErrorView::parse(&self.body)
    }

    /// The SQLSTATE, when it has one.
    #[must_use]
    pub fn code(&self) -> Option<SqlState> {
        self.view().code()
    }
}

impl std::fmt::Display for ServerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.view().to_error().fmt(f)
    }
}

/// See the module's documentation. Which node it was is the caller's to say.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name has no address.
    #[error("the host name cannot be resolved: {0}")]
    Resolve(#[source] io::Error),
    /// No address of it takes a connection; the last error.
    #[error("cannot connect: {0}")]
    Unreachable(#[source] io::Error),
    /// The deadline passed.
    #[error("no answer within the time allowed")]
    TimedOut,
    /// The connection broke during the login.
    #[error("connection lost: {0}")]
    Lost(#[source] io::Error),
    /// The server has no TLS, and `backend_sslmode` asks for it.
    #[error("the server does not support TLS, which backend_sslmode asks for")]
    NoTls,
    /// TLS could not be established: the handshake, or the server's certificate.
    #[error("TLS with the server failed: {0}")]
    Tls(#[source] io::Error),
    /// The server hung up during the login, without a word.
    #[error("the server closed the connection unexpectedly")]
    Closed,
    /// The server refused, and said why.
    #[error("{0}")]
    Rejected(ServerError),
    /// The server could not even start a process for us, and said so as plain text.
    #[error("the server said: {0}")]
    RejectedAsText(String),
    /// What came is not the protocol.
    #[error("protocol violation of the server: {0}")]
    Protocol(&'static str),
    /// The login cannot be done.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The start-up packet cannot be written: a NUL in a name or setting.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl ConnectError {
    /// What it says about the node.
    #[must_use]
    pub fn kind(&self) -> ConnectFailure {
        match self {
            Self::Resolve(_)
            | Self::Unreachable(_)
            | Self::Lost(_)
            | Self::Closed
            | Self::NoTls
            | Self::Tls(_) => ConnectFailure::Unreachable,
            Self::TimedOut => ConnectFailure::TimedOut,
            Self::Rejected(error) if error.code().is_some_and(|code| code.is_not_ready()) => {
                ConnectFailure::NotReady
            }
            Self::Rejected(_) | Self::RejectedAsText(_) | Self::Write(_) => ConnectFailure::Rejected,
            Self::Auth(error) if error.is_protocol() => ConnectFailure::Protocol,
            Self::Auth(_) => ConnectFailure::Rejected,
            Self::Protocol(_) => ConnectFailure::Protocol,
        }
    }

    /// The server has no connection left for us at present, of all or of the database or the role.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.server_error().is_some_and(|error| error.code() == Some(SqlState::TOO_MANY_CONNECTIONS))
    }

    /// This machine has no file, port or buffer left for a connection, which says nothing about the node.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        use rustix::io::Errno;
        const SHORTAGES: [Errno; 6] =
            [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL, Errno::NOBUFS, Errno::NOMEM, Errno::AGAIN];
        let (Self::Resolve(error) | Self::Unreachable(error)) = self else { return false };
        let code = error.raw_os_error();
        code.is_some_and(|code| SHORTAGES.iter().any(|shortage| shortage.raw_os_error() == code))
    }

    /// The server's own error, to be passed on unchanged.
    #[must_use]
    pub fn server_error(&self) -> Option<&ServerError> {
        match self {
            Self::Rejected(error) => Some(error),
            _ => None,
        }
    }
}

impl ClientFacing for ConnectError {
    /// The server's error where there is one; of our own, no addresses and no system errors.
    fn to_client(&self) -> PgError {
        let ours = |text: &str| PgError::error(SqlState::CONNECTION_FAILURE, text);
        match self {
            Self::Rejected(error) => PgError { severity: Severity::Fatal, ..error.view().to_error() },
            Self::Auth(error) => error.to_client(),
            Self::TimedOut => ours("connection to the server timed out"),
            Self::Protocol(_) => ours("the server does not speak the PostgreSQL protocol"),
            Self::Write(error) => {
                PgError::error(SqlState::PROTOCOL_VIOLATION, format!("invalid start-up parameter: {error}"))
            }
            _ if self.is_ours() => PgError::error(
                SqlState::INSUFFICIENT_RESOURCES,
                "pgweir's machine has no descriptor, port or buffer left for a connection to the server",
            ),
            Self::Resolve(_) | Self::Unreachable(_) => ours("could not connect to the server"),
            Self::NoTls | Self::Tls(_) => ours("could not establish a secure connection to the server"),
            Self::Lost(_) | Self::Closed => ours("the server closed the connection unexpectedly"),
            Self::RejectedAsText(_) => ours("the server could not accept the connection"),
        }
    }
}
