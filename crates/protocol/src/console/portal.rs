//! Named statements and portals of the mini server, with a bound on what a client can make it hold.

use std::collections::HashMap;

use bytes::BytesMut;

use crate::error::{ClientFacing, PgError};
use crate::sqlstate::SqlState;
use crate::table::{self, Column, Formats, Table};
use crate::write;

/// The most statements or portals a session may hold at once.
const MAX_NAMES: usize = 1000;
/// The most bytes of statement text and names a session may hold at once.
const MAX_HELD_BYTES: usize = 4 << 20;

/// A parsed statement: one statement of SQL, or none (`""`).
#[derive(Debug, Clone)]
pub(super) struct Statement {
    pub(super) sql: String,
    pub(super) columns: Option<Vec<Column>>,
}

/// A statement that is bound, and how far it has been executed.
#[derive(Debug, Clone)]
pub(super) struct Portal {
    pub(super) statement: Statement,
    pub(super) formats: Formats,
    pub(super) progress: Progress,
}

#[derive(Debug, Clone)]
pub(super) enum Progress {
    /// Not executed yet.
    New,
    /// Executed; rows from `next` on are still to be fetched.
    Rows { table: Table, next: usize },
    /// Executed to the end.
    Finished,
}

/// Something with a name that holds text.
pub(super) trait Held {
    fn bytes(&self) -> usize;
}

impl Held for Statement {
    fn bytes(&self) -> usize {
        self.sql.len()
    }
}

impl Held for Portal {
    fn bytes(&self) -> usize {
        self.statement.sql.len()
    }
}

/// A bounded map of names; `""` is the unnamed one.
#[derive(Debug)]
pub(super) struct Names<T> {
    entries: HashMap<Vec<u8>, T>,
    held: usize,
}

impl<T> Default for Names<T> {
    fn default() -> Self {
        Self { entries: HashMap::new(), held: 0 }
    }
}

impl<T: Held> Names<T> {
    pub(super) fn get(&self, name: &[u8]) -> Option<&T> {
        self.entries.get(name)
    }

    /// To be advanced; what it holds must not grow.
    pub(super) fn get_mut(&mut self, name: &[u8]) -> Option<&mut T> {
        self.entries.get_mut(name)
    }

    /// Adds or replaces; whether replacing is right is the caller's business.
    pub(super) fn insert(&mut self, name: &[u8], value: T) -> Result<(), PgError> {
        self.remove(name);
        let bytes = name.len() + value.bytes();
        if self.entries.len() >= MAX_NAMES || self.held + bytes > MAX_HELD_BYTES {
            let detail = format!("At most {MAX_NAMES} and {MAX_HELD_BYTES} bytes are kept in a session.");
            let code = SqlState::PROGRAM_LIMIT_EXCEEDED;
            return Err(PgError::error(code, "too many prepared statements or portals").with_detail(detail));
        }
        self.held += bytes;
        self.entries.insert(name.to_vec(), value);
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &[u8]) -> bool {
        let Some(old) = self.entries.remove(name) else { return false };
        self.held = self.held.saturating_sub(name.len() + old.bytes());
        true
    }

    pub(super) fn clear(&mut self) {
        self.entries = HashMap::new();
        self.held = 0;
    }
}

impl Portal {
    /// Sends up to `max_rows` rows (0 is all), then CommandComplete or PortalSuspended. As in
    /// PostgreSQL a limit that is met exactly suspends: the end is found by the next Execute.
    pub(super) fn fetch(&mut self, max_rows: usize, out: &mut BytesMut) -> Result<(), PgError> {
        let Progress::Rows { table, next } = &mut self.progress else {
            return Err(cannot_run());
        };
        let left = table.rows.len().saturating_sub(*next);
        let sent = if max_rows == 0 { left } else { left.min(max_rows) };
        for row in table.rows.iter().skip(*next).take(sent) {
            table::data_row(out, &table.columns, row, &self.formats).map_err(|error| error.to_client())?;
        }
        *next += sent;
        if max_rows != 0 && sent == max_rows {
            write::portal_suspended(out);
            return Ok(());
        }
        complete(out, &table.tag)?;
        // The rows are no longer needed; the portal stays at its end until it is closed.
        table.rows = Vec::new();
        *next = 0;
        Ok(())
    }
}

/// CommandComplete; a tag that the protocol cannot carry is an error of ours.
pub(super) fn complete(out: &mut BytesMut, tag: &str) -> Result<(), PgError> {
    write::command_complete(out, tag).map_err(|error| {
        PgError::error(SqlState::INTERNAL_ERROR, "bad command tag").with_detail(format!("{error}."))
    })
}

/// A portal that has run to its end and cannot be rewound.
pub(super) fn cannot_run() -> PgError {
    PgError::error(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "portal cannot be run")
}
