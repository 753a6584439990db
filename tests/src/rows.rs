//! What a simple query returns, and the server's error as a Rust error.

use std::fmt;

use anyhow::{Context, Result};

use crate::replies::{Fields, Replies, Reply};

/// An ErrorResponse as an error.
#[derive(Clone, Debug)]
pub struct PgError(pub Fields);

impl fmt::Display for PgError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.0.get('S'), self.0.get('C'), self.0.get('M'))
    }
}

impl std::error::Error for PgError {}

/// The SQLSTATE of an error that came from the other side; empty for any other error.
#[must_use]
pub fn sqlstate(error: &anyhow::Error) -> &str {
    error.downcast_ref::<PgError>().map_or("", |error| error.0.get('C'))
}

/// What a simple query returned.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// Column names of the last result.
    pub columns: Vec<String>,
    /// All rows of all results, as text.
    pub rows: Vec<Vec<Option<String>>>,
    /// Command tags in order.
    pub tags: Vec<String>,
}

impl Rows {
    /// The only column's values, NULL as an empty text.
    #[must_use]
    pub fn first_column(&self) -> Vec<String> {
        self.rows.iter().map(|row| row.first().cloned().flatten().unwrap_or_default()).collect()
    }

    /// The value of a named column in a row.
    ///
    /// # Errors
    /// When there is no such row or column.
    pub fn get(&self, row: usize, column: &str) -> Result<String> {
        let at = self.columns.iter().position(|name| name == column);
        let at = at.with_context(|| format!("no column {column} in {:?}", self.columns))?;
        let row = self.rows.get(row).with_context(|| format!("no row {row}"))?;
        Ok(row.get(at).cloned().flatten().unwrap_or_default())
    }
}

impl From<Replies> for Rows {
    fn from(replies: Replies) -> Self {
        let mut rows = Rows::default();
        for reply in replies.0 {
            match reply {
                Reply::RowDescription(columns) => {
                    rows.columns = columns.into_iter().map(|c| c.name).collect()
                }
                Reply::DataRow(values) => rows.rows.push(
                    values.into_iter().map(|v| v.map(|v| String::from_utf8_lossy(&v).into_owned())).collect(),
                ),
                Reply::CommandComplete(tag) => rows.tags.push(tag),
                _ => {}
            }
        }
        rows
    }
}
