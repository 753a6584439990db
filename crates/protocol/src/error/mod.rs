//! Errors and notices as the protocol carries them: [`PgError`] is one that pgweir makes,
//! [`ErrorView`] reads one that a server sent.
//!
//! Invariant: what a client sees is made only from types that implement [`ClientFacing`]; anything
//! else an error knows (paths, addresses, sources) stays in the log.

mod view;

use std::fmt;

use bytes::{BufMut, BytesMut};

use crate::sqlstate::SqlState;
pub use view::{ErrorView, Field, Fields};

/// The longest text of one field of an error that we make, in bytes; more is cut and ends in `...`.
pub const MAX_FIELD_LEN: usize = 64 * 1024;

/// How serious an error or notice is (the `S` and `V` fields).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The statement failed; the session goes on.
    Error,
    /// The session ends.
    Fatal,
    /// The server ends all sessions.
    Panic,
    /// A notice of something likely wrong.
    Warning,
    /// A notice.
    Notice,
    /// A notice for developers.
    Debug,
    /// A notice that was asked for.
    Info,
    /// A line for the log.
    Log,
}

impl Severity {
    /// The word of the protocol.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::Fatal => "FATAL",
            Self::Panic => "PANIC",
            Self::Warning => "WARNING",
            Self::Notice => "NOTICE",
            Self::Debug => "DEBUG",
            Self::Info => "INFO",
            Self::Log => "LOG",
        }
    }

    /// Reads the word of the protocol; `None` for a translated one.
    #[must_use]
    pub fn parse(word: &[u8]) -> Option<Self> {
        Some(match word {
            b"ERROR" => Self::Error,
            b"FATAL" => Self::Fatal,
            b"PANIC" => Self::Panic,
            b"WARNING" => Self::Warning,
            b"NOTICE" => Self::Notice,
            b"DEBUG" => Self::Debug,
            b"INFO" => Self::Info,
            b"LOG" => Self::Log,
            _ => return None,
        })
    }

    /// Whether the connection ends with it.
    #[must_use]
    pub fn ends_session(self) -> bool {
        matches!(self, Self::Fatal | Self::Panic)
    }
}

/// An error or notice that pgweir sends to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PgError {
    /// How serious.
    pub severity: Severity,
    /// What kind.
    pub code: SqlState,
    /// One line, in PostgreSQL's style: lower case, no full stop.
    pub message: String,
    /// More about it, whole sentences.
    pub detail: Option<String>,
    /// What to do about it, whole sentences.
    pub hint: Option<String>,
}

impl PgError {
    /// An error of any severity.
    #[must_use]
    pub fn new(severity: Severity, code: SqlState, message: impl Into<String>) -> Self {
        Self { severity, code, message: message.into(), detail: None, hint: None }
    }

    /// The statement failed.
    #[must_use]
    pub fn error(code: SqlState, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, code, message)
    }

    /// The session ends.
    #[must_use]
    pub fn fatal(code: SqlState, message: impl Into<String>) -> Self {
        Self::new(Severity::Fatal, code, message)
    }

    /// A notice, SQLSTATE 00000.
    #[must_use]
    pub fn notice(message: impl Into<String>) -> Self {
        Self::new(Severity::Notice, SqlState::SUCCESSFUL_COMPLETION, message)
    }

    /// A warning, SQLSTATE 01000.
    #[must_use]
    pub fn warning(message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, SqlState::WARNING, message)
    }

    /// With a DETAIL.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// With a HINT.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same as FATAL: the session ends after it.
    #[must_use]
    pub fn into_fatal(mut self) -> Self {
        self.severity = Severity::Fatal;
        self
    }
}

impl fmt::Display for PgError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.severity.as_str(), self.message, self.code)
    }
}

impl std::error::Error for PgError {}

/// An error that may be shown to a client, and how. The allow-list of what leaves the process.
pub trait ClientFacing {
    /// What the client sees.
    fn to_client(&self) -> PgError;
}

impl ClientFacing for PgError {
    fn to_client(&self) -> PgError {
        self.clone()
    }
}

/// Appends an ErrorResponse.
pub fn write_error(out: &mut BytesMut, error: &PgError) {
    write_fields(out, b'E', error);
}

/// Appends a NoticeResponse.
pub fn write_notice(out: &mut BytesMut, notice: &PgError) {
    write_fields(out, b'N', notice);
}

/// Every field is capped at [`MAX_FIELD_LEN`], so the length always fits.
fn write_fields(out: &mut BytesMut, tag: u8, error: &PgError) {
    let mut body = BytesMut::with_capacity(64 + error.message.len().min(MAX_FIELD_LEN));
    field(&mut body, b'S', error.severity.as_str());
    field(&mut body, b'V', error.severity.as_str());
    field(&mut body, b'C', error.code.as_str());
    field(&mut body, b'M', &error.message);
    if let Some(detail) = &error.detail {
        field(&mut body, b'D', detail);
    }
    if let Some(hint) = &error.hint {
        field(&mut body, b'H', hint);
    }
    body.put_u8(0);
    out.put_u8(tag);
    out.put_u32(u32::try_from(body.len() + 4).unwrap_or(u32::MAX));
    out.extend_from_slice(&body);
}

/// One field; a NUL would end it early, so it is shown as a question mark.
fn field(body: &mut BytesMut, kind: u8, text: &str) {
    body.put_u8(kind);
    let shown = head(text, MAX_FIELD_LEN);
    body.extend(shown.bytes().map(|byte| if byte == 0 { b'?' } else { byte }));
    if shown.len() < text.len() {
        body.put_slice(b"...");
    }
    body.put_u8(0);
}

/// As much of `text` as fits in `limit` bytes without splitting a character.
fn head(text: &str, limit: usize) -> &str {
    (0..=limit.min(text.len())).rev().find_map(|at| text.get(..at)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn body_of(out: &[u8], tag: u8) -> &[u8] {
        assert_eq!(out[0], tag);
        let len = u32::from_be_bytes(out[1..5].try_into().unwrap()) as usize;
        assert_eq!(out.len(), len + 1);
        &out[5..]
    }

    #[test]
    fn an_error_is_written_as_postgresql_does() {
        let mut out = BytesMut::new();
        let error = PgError::fatal(SqlState::ADMIN_SHUTDOWN, "going down").with_hint("Wait.");
        write_error(&mut out, &error);
        assert_eq!(&out[..], b"E\0\0\0\x2dSFATAL\0VFATAL\0C57P01\0Mgoing down\0HWait.\0\0".as_slice());
    }

    #[test]
    fn a_nul_and_an_endless_text_do_no_harm() {
        let mut out = BytesMut::new();
        write_notice(&mut out, &PgError::notice("a\0b").with_detail("é".repeat(MAX_FIELD_LEN)));
        let body = body_of(&out, b'N');
        let view = ErrorView::parse(body);
        assert_eq!(view.message(), b"a?b");
        let detail = view.field(b'D').unwrap();
        assert!(detail.ends_with("é...".as_bytes()) && detail.len() <= MAX_FIELD_LEN + 3);
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(message in "[^\0]{0,200}", detail in proptest::option::of("[^\0]{0,99}")) {
            let mut error = PgError::error(SqlState::SYNTAX_ERROR, message.clone());
            error.detail = detail.clone();
            let mut out = BytesMut::new();
            write_error(&mut out, &error);
            let view = ErrorView::parse(body_of(&out, b'E'));
            prop_assert_eq!(view.severity(), Some(Severity::Error));
            prop_assert_eq!(view.code(), Some(SqlState::SYNTAX_ERROR));
            prop_assert_eq!(view.message(), message.as_bytes());
            prop_assert_eq!(view.field(b'D').map(<[u8]>::to_vec), detail.map(String::into_bytes));
        }
    }
}
