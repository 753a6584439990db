//! What was counted for statements.

use std::time::Duration;

/// What was counted for a statement, by its fingerprint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatementRow {
    /// The fingerprint, as `PGWEIR EXPLAIN` shows it.
    pub fingerprint: String,
    /// The text with its literals left out.
    pub text: String,
    /// Times it was executed.
    pub calls: u64,
    /// Those that ended in an error.
    pub errors: u64,
    /// By route: primary, read, standby, any.
    pub routes: Vec<(&'static str, u64)>,
    /// By what decided where it ran.
    pub reasons: Vec<(&'static str, u64)>,
    /// The time that half of them did not exceed, 95 and 99 of 100.
    pub percentiles: [Duration; 3],
    /// All of their time.
    pub time: Duration,
    /// Rows returned or changed.
    pub rows: u64,
    /// Bytes of the answers.
    pub bytes: u64,
}
