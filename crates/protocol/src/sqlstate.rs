//! SQLSTATE codes: the type, and names for those that pgweir itself raises or acts on.
//!
//! Source: PostgreSQL, Appendix A (`src/backend/utils/errcodes.txt`). Codes of servers are carried
//! as they come; only these have a name.

use std::fmt;

/// A five-character SQLSTATE code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SqlState(pub [u8; 5]);

impl SqlState {
    /// 08000
    pub const CONNECTION_EXCEPTION: Self = Self(*b"08000");
    /// 08003
    pub const CONNECTION_DOES_NOT_EXIST: Self = Self(*b"08003");
    /// 08006
    pub const CONNECTION_FAILURE: Self = Self(*b"08006");
    /// 08P01
    pub const PROTOCOL_VIOLATION: Self = Self(*b"08P01");
    /// 0A000
    pub const FEATURE_NOT_SUPPORTED: Self = Self(*b"0A000");
    /// 22021
    pub const CHARACTER_NOT_IN_REPERTOIRE: Self = Self(*b"22021");
    /// 22023
    pub const INVALID_PARAMETER_VALUE: Self = Self(*b"22023");
    /// 25001
    pub const ACTIVE_SQL_TRANSACTION: Self = Self(*b"25001");
    /// 25006
    pub const READ_ONLY_SQL_TRANSACTION: Self = Self(*b"25006");
    /// 25P01
    pub const NO_ACTIVE_SQL_TRANSACTION: Self = Self(*b"25P01");
    /// 25P02
    pub const IN_FAILED_SQL_TRANSACTION: Self = Self(*b"25P02");
    /// 25P03
    pub const IDLE_IN_TRANSACTION_SESSION_TIMEOUT: Self = Self(*b"25P03");
    /// 26000
    pub const INVALID_SQL_STATEMENT_NAME: Self = Self(*b"26000");
    /// 28000
    pub const INVALID_AUTHORIZATION_SPECIFICATION: Self = Self(*b"28000");
    /// 28P01
    pub const INVALID_PASSWORD: Self = Self(*b"28P01");
    /// 34000
    pub const INVALID_CURSOR_NAME: Self = Self(*b"34000");
    /// 3D000
    pub const INVALID_CATALOG_NAME: Self = Self(*b"3D000");
    /// 40001
    pub const SERIALIZATION_FAILURE: Self = Self(*b"40001");
    /// 42501
    pub const INSUFFICIENT_PRIVILEGE: Self = Self(*b"42501");
    /// 42601
    pub const SYNTAX_ERROR: Self = Self(*b"42601");
    /// 42704
    pub const UNDEFINED_OBJECT: Self = Self(*b"42704");
    /// 42P03
    pub const DUPLICATE_CURSOR: Self = Self(*b"42P03");
    /// 42P05
    pub const DUPLICATE_PREPARED_STATEMENT: Self = Self(*b"42P05");
    /// 42P18
    pub const INDETERMINATE_DATATYPE: Self = Self(*b"42P18");
    /// 53000
    pub const INSUFFICIENT_RESOURCES: Self = Self(*b"53000");
    /// 53200
    pub const OUT_OF_MEMORY: Self = Self(*b"53200");
    /// 53300
    pub const TOO_MANY_CONNECTIONS: Self = Self(*b"53300");
    /// 54000
    pub const PROGRAM_LIMIT_EXCEEDED: Self = Self(*b"54000");
    /// 55000
    pub const OBJECT_NOT_IN_PREREQUISITE_STATE: Self = Self(*b"55000");
    /// 55P02
    pub const CANT_CHANGE_RUNTIME_PARAM: Self = Self(*b"55P02");
    /// 57014
    pub const QUERY_CANCELED: Self = Self(*b"57014");
    /// 57P01
    pub const ADMIN_SHUTDOWN: Self = Self(*b"57P01");
    /// 57P02
    pub const CRASH_SHUTDOWN: Self = Self(*b"57P02");
    /// 57P03
    pub const CANNOT_CONNECT_NOW: Self = Self(*b"57P03");
    /// 57P05
    pub const IDLE_SESSION_TIMEOUT: Self = Self(*b"57P05");
    /// 58000
    pub const SYSTEM_ERROR: Self = Self(*b"58000");
    /// 00000
    pub const SUCCESSFUL_COMPLETION: Self = Self(*b"00000");
    /// 01000
    pub const WARNING: Self = Self(*b"01000");
    /// XX000
    pub const INTERNAL_ERROR: Self = Self(*b"XX000");

    /// Reads a code as a server sent it: five digits or upper-case letters, else `None`.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let code: [u8; 5] = bytes.try_into().ok()?;
        code.iter().all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase()).then_some(Self(code))
    }

    /// The code as text; a code that is not ASCII reads `XX000`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("XX000")
    }

    /// The class: the first two characters.
    #[must_use]
    pub fn class(&self) -> [u8; 2] {
        let [first, second, ..] = self.0;
        [first, second]
    }

    /// Whether a server that says this is alive but cannot be used (57P02, 57P03).
    #[must_use]
    pub fn is_not_ready(&self) -> bool {
        matches!(*self, Self::CRASH_SHUTDOWN | Self::CANNOT_CONNECT_NOW)
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_five_digits_or_upper_case_letters_are_a_code() {
        assert_eq!(SqlState::parse(b"57P01"), Some(SqlState::ADMIN_SHUTDOWN));
        for bad in [&b"57P0"[..], b"57P011", b"57p01", b"57 01", b"\xff7P01", b""] {
            assert_eq!(SqlState::parse(bad), None, "{bad:?}");
        }
        assert_eq!(SqlState::QUERY_CANCELED.to_string(), "57014");
        assert_eq!(SqlState::QUERY_CANCELED.class(), *b"57");
        assert_eq!(SqlState(*b"\xff\xff\xff\xff\xff").as_str(), "XX000");
    }

    #[test]
    fn crash_and_start_up_are_not_ready() {
        assert!(SqlState::CANNOT_CONNECT_NOW.is_not_ready());
        assert!(SqlState::CRASH_SHUTDOWN.is_not_ready());
        assert!(!SqlState::ADMIN_SHUTDOWN.is_not_ready());
        assert!(!SqlState::TOO_MANY_CONNECTIONS.is_not_ready());
    }
}
