//! Reads an ErrorResponse or NoticeResponse of a server without copying it.
//!
//! Tolerant on purpose: a server that fails early (out of memory, a foreign program behind the
//! port) may leave fields out; what is there is shown, nothing panics.

use crate::error::{PgError, Severity};
use crate::sqlstate::SqlState;

/// The fields of one received error or notice.
#[derive(Debug, Clone, Copy)]
pub struct ErrorView<'a> {
    body: &'a [u8],
}

/// One field: its identifier (protocol, "Error and Notice Message Fields") and its raw text.
pub type Field<'a> = (u8, &'a [u8]);

/// Walks the fields; ends at the terminator, or where the body is cut off.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&kind, rest) = self.rest.split_first()?;
        if kind == 0 {
            return None;
        }
        let end = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
        let (text, rest) = rest.split_at_checked(end)?;
        self.rest = rest.split_first().map_or(&[], |(_, rest)| rest);
        Some((kind, text))
    }
}

impl<'a> ErrorView<'a> {
    /// Over the body of the message: what follows the length.
    #[must_use]
    pub fn parse(body: &'a [u8]) -> Self {
        Self { body }
    }

    /// The body as it came, to be passed on unchanged.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// All fields in the order sent.
    #[must_use]
    pub fn fields(&self) -> Fields<'a> {
        Fields { rest: self.body }
    }

    /// The first field of that identifier.
    #[must_use]
    pub fn field(&self, kind: u8) -> Option<&'a [u8]> {
        self.fields().find(|(found, _)| *found == kind).map(|(_, text)| text)
    }

    /// The severity: `V` (never translated, PostgreSQL 9.6 and newer), else `S`.
    #[must_use]
    pub fn severity(&self) -> Option<Severity> {
        self.field(b'V').and_then(Severity::parse).or_else(|| self.field(b'S').and_then(Severity::parse))
    }

    /// The SQLSTATE; `None` when it is missing or malformed.
    #[must_use]
    pub fn code(&self) -> Option<SqlState> {
        self.field(b'C').and_then(SqlState::parse)
    }

    /// The primary message, in whatever encoding the server used; empty when missing.
    #[must_use]
    pub fn message(&self) -> &'a [u8] {
        self.field(b'M').unwrap_or_default()
    }

    /// The primary message for logs.
    #[must_use]
    pub fn message_lossy(&self) -> String {
        String::from_utf8_lossy(self.message()).into_owned()
    }

    /// A copy with the fields that [`PgError`] has; the others are lost. Missing ones read as an
    /// error of XX000.
    #[must_use]
    pub fn to_error(&self) -> PgError {
        let text = |kind| self.field(kind).map(|text| String::from_utf8_lossy(text).into_owned());
        PgError {
            severity: self.severity().unwrap_or(Severity::Error),
            code: self.code().unwrap_or(SqlState::INTERNAL_ERROR),
            message: self.message_lossy(),
            detail: text(b'D'),
            hint: text(b'H'),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_real_message_reads() {
        let body =
            b"SFEHLER\0VFATAL\0C28P01\0Mpassword authentication failed for user \"x\"\0Fauth.c\0L326\0\0";
        let view = ErrorView::parse(body);
        assert_eq!(view.severity(), Some(Severity::Fatal));
        assert_eq!(view.code(), Some(SqlState::INVALID_PASSWORD));
        assert_eq!(view.message(), b"password authentication failed for user \"x\"");
        assert_eq!(view.field(b'L'), Some(&b"326"[..]));
        assert_eq!(view.fields().count(), 6);
    }

    #[test]
    fn missing_fields_are_tolerated() {
        let view = ErrorView::parse(b"SERROR\0Mout of memory\0\0");
        assert_eq!(view.code(), None);
        assert_eq!(view.severity(), Some(Severity::Error));
        assert_eq!(view.to_error().code, SqlState::INTERNAL_ERROR);
        let cut = ErrorView::parse(b"SERROR\0Mout of");
        assert_eq!(cut.message(), b"out of");
        assert_eq!(ErrorView::parse(b"").message(), b"");
        assert_eq!(ErrorView::parse(b"M").message(), b"");
    }

    proptest! {
        #[test]
        fn any_bytes_are_walked_to_an_end(body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let view = ErrorView::parse(&body);
            prop_assert!(view.fields().count() <= body.len());
            let _ = (view.severity(), view.code(), view.to_error());
        }
    }
}
