//! The first packets of a connection, before there are message tags: SSLRequest, GSSENCRequest,
//! CancelRequest and StartupMessage.
//!
//! Errors and their texts are PostgreSQL's (`ProcessStartupPacket` in
//! `src/backend/tcop/backend_startup.c`). Invariant: nothing is read beyond
//! [`MAX_STARTUP_PACKET_LEN`], whatever a length says.

mod options;
mod params;

use bytes::{BufMut, BytesMut};

use crate::error::{ClientFacing, PgError, write_error};
use crate::sqlstate::SqlState;
use crate::write::{CANCEL_REQUEST_CODE, GSSENC_REQUEST_CODE, SSL_REQUEST_CODE, WriteError};
pub use options::Setting;
pub use params::{Replication, StartupMessage};

/// The longest packet accepted, in bytes with its length word (PostgreSQL's
/// `MAX_STARTUP_PACKET_LENGTH` does not count the word).
pub const MAX_STARTUP_PACKET_LEN: usize = 10_000 + 4;
/// Length word and code.
const MIN_STARTUP_PACKET_LEN: usize = 8;
/// The newest minor version of protocol 3 that we speak. It is 3.0 with longer cancel keys; 3.1 was never used.
pub const NEWEST_MINOR: u16 = 2;

/// A packet that may come first.
#[derive(Clone, PartialEq, Eq)]
pub enum StartupPacket {
    /// The client would like TLS.
    SslRequest,
    /// The client would like GSSAPI encryption.
    GssEncRequest,
    /// Another session's statement is to be cancelled. There is no answer.
    Cancel {
        /// The process id that session was given.
        pid: u32,
        /// The secret that session was given: 4 to 256 bytes.
        secret: Vec<u8>,
    },
    /// The session begins.
    Startup(StartupMessage),
}

/// Cancel secrets are masked.
impl std::fmt::Debug for StartupPacket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::SslRequest => f.write_str("SslRequest"),
            Self::GssEncRequest => f.write_str("GssEncRequest"),
            Self::Cancel { pid, .. } => f.debug_struct("Cancel").field("pid", pid).finish_non_exhaustive(),
            Self::Startup(message) => f.debug_tuple("Startup").field(message).finish(),
        }
    }
}

/// Why the first packets are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartupError {
    /// A length that no start-up packet has.
    #[error("invalid length of startup packet: {0}")]
    Length(u32),
    /// A cancel request whose secret is not 4 to 256 bytes.
    #[error("invalid length of cancel request packet: {0}")]
    CancelLength(usize),
    /// A protocol that is not 3.x; also a second SSLRequest or GSSENCRequest.
    #[error("unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.{NEWEST_MINOR}")]
    Version {
        /// The upper half of the code.
        major: u16,
        /// The lower half of the code.
        minor: u16,
    },
    /// The parameters do not end where the packet does.
    #[error("invalid startup packet layout: expected terminator as last byte")]
    Layout,
    /// No user, or an empty one.
    #[error("no PostgreSQL user name specified in startup packet")]
    NoUser,
    /// A value of `replication` that is none.
    #[error("invalid value for parameter \"replication\": \"{0}\"")]
    Replication(String),
    /// A word in `options` that is no setting.
    #[error("invalid command-line argument for server process: {0}")]
    Option(String),
    /// A setting in `options` without a value.
    #[error("{0} requires a value")]
    OptionValue(String),
}

impl ClientFacing for StartupError {
    fn to_client(&self) -> PgError {
        let code = match self {
            Self::Length(_) | Self::CancelLength(_) | Self::Layout => SqlState::PROTOCOL_VIOLATION,
            Self::Version { .. } => SqlState::FEATURE_NOT_SUPPORTED,
            Self::NoUser => SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
            Self::Replication(_) => SqlState::INVALID_PARAMETER_VALUE,
            Self::Option(_) | Self::OptionValue(_) => SqlState::SYNTAX_ERROR,
        };
        let error = PgError::fatal(code, self.to_string());
        match self {
            Self::Replication(_) => {
                error.with_hint("Valid values are: \"false\", 0, \"true\", 1, \"database\".")
            }
            _ => error,
        }
    }
}

impl StartupError {
    /// Appends what the client is told. Nothing when the peer does not speak the protocol at all (a
    /// length that cannot be); in the form of protocol 2 when it asked for that or an older one.
    pub fn write(&self, out: &mut BytesMut) {
        match self {
            Self::Length(_) | Self::CancelLength(_) => {}
            Self::Version { major: ..3, .. } => {
                out.put_u8(b'E');
                out.put_slice(format!("FATAL:  {self}\n").as_bytes());
                out.put_u8(0);
            }
            _ => write_error(out, &self.to_client()),
        }
    }
}

/// Reads one packet from the front of `buf`: it and its length, or `None` when more bytes are
/// needed (never more than [`MAX_STARTUP_PACKET_LEN`]).
///
/// # Errors
/// As soon as the bytes seen cannot become a packet that we accept.
pub fn parse_startup(buf: &[u8]) -> Result<Option<(StartupPacket, usize)>, StartupError> {
    let Some((length, rest)) = word(buf) else { return Ok(None) };
    let len = usize::try_from(length).map_err(|_| StartupError::Length(length))?;
    if !(MIN_STARTUP_PACKET_LEN..=MAX_STARTUP_PACKET_LEN).contains(&len) {
        return Err(StartupError::Length(length));
    }
    let Some((code, _)) = word(rest) else { return Ok(None) };
    check_code(code, len)?;
    let Some(body) = buf.get(MIN_STARTUP_PACKET_LEN..len) else { return Ok(None) };
    let packet = match code {
        SSL_REQUEST_CODE => StartupPacket::SslRequest,
        GSSENC_REQUEST_CODE => StartupPacket::GssEncRequest,
        CANCEL_REQUEST_CODE => {
            let (pid, secret) = word(body).ok_or(StartupError::CancelLength(len))?;
            StartupPacket::Cancel { pid, secret: secret.to_vec() }
        }
        version => StartupPacket::Startup(params::parse(halves(version).1, body)?),
    };
    Ok(Some((packet, len)))
}

/// Refuses what can be refused before the packet is complete.
fn check_code(code: u32, len: usize) -> Result<(), StartupError> {
    let (major, minor) = halves(code);
    match code {
        // PostgreSQL does not look at the length of these two.
        SSL_REQUEST_CODE | GSSENC_REQUEST_CODE => Ok(()),
        CANCEL_REQUEST_CODE if (16..=12 + 256).contains(&len) => Ok(()),
        CANCEL_REQUEST_CODE => Err(StartupError::CancelLength(len)),
        _ if major == 3 => Ok(()),
        _ => Err(StartupError::Version { major, minor }),
    }
}

/// The error of a request that was answered already: PostgreSQL reads it as a version then.
#[must_use]
pub fn repeated(packet: &StartupPacket) -> Option<StartupError> {
    let code = match packet {
        StartupPacket::SslRequest => SSL_REQUEST_CODE,
        StartupPacket::GssEncRequest => GSSENC_REQUEST_CODE,
        _ => return None,
    };
    let (major, minor) = halves(code);
    Some(StartupError::Version { major, minor })
}

/// Appends a NegotiateProtocolVersion when the client asked for a newer version than we speak, or for options that
/// we do not know. It names the version that is spoken from now on, as PostgreSQL does since 18.
///
/// # Errors
/// None that a message read by [`parse_startup`] could cause.
pub fn write_negotiation(out: &mut BytesMut, message: &StartupMessage) -> Result<(), WriteError> {
    if message.minor <= NEWEST_MINOR && message.unknown_options.is_empty() {
        return Ok(());
    }
    crate::write::negotiate_protocol_version(out, message.spoken_minor(), &message.unknown_options)
}

fn word(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*head), rest))
}

fn halves(code: u32) -> (u16, u16) {
    let [a, b, c, d] = code.to_be_bytes();
    (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
}

#[cfg(test)]
mod tests;
