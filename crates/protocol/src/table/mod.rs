//! Result sets that pgweir makes itself: columns with real types, rows, and their messages in the
//! text and the binary format.
//!
//! What a cell may hold follows from its column's type: see [`Cell`]. A cell that does not fit
//! is an error (a bug of whoever made the table), never a wrong value.

mod cell;
mod numeric;
mod timestamp;

use std::borrow::Cow;

use bytes::{BufMut, BytesMut};

use crate::error::{ClientFacing, PgError};
use crate::sqlstate::SqlState;
use crate::write::{WriteError, count16, cstring, message};

/// Type oids (PostgreSQL, `src/include/catalog/pg_type.dat`).
pub mod oid {
    /// `boolean`
    pub const BOOL: u32 = 16;
    /// `bigint`
    pub const INT8: u32 = 20;
    /// `integer`
    pub const INT4: u32 = 23;
    /// `text`
    pub const TEXT: u32 = 25;
    /// `double precision`
    pub const FLOAT8: u32 = 701;
    /// `timestamp with time zone`
    pub const TIMESTAMPTZ: u32 = 1184;
    /// `numeric`
    pub const NUMERIC: u32 = 1700;
}

/// One column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: Cow<'static, str>,
    /// Its type, one of [`oid`].
    pub oid: u32,
}

impl Column {
    /// A column of any type.
    pub fn new(name: impl Into<Cow<'static, str>>, oid: u32) -> Self {
        Self { name: name.into(), oid }
    }

    /// A column of type text.
    pub fn text(name: impl Into<Cow<'static, str>>) -> Self {
        Self::new(name, oid::TEXT)
    }

    /// A column of type integer.
    pub fn int4(name: impl Into<Cow<'static, str>>) -> Self {
        Self::new(name, oid::INT4)
    }

    /// A column of type bigint.
    pub fn int8(name: impl Into<Cow<'static, str>>) -> Self {
        Self::new(name, oid::INT8)
    }

    /// The size of the type in bytes, -1 when it varies (`pg_type.typlen`).
    fn type_len(&self) -> i16 {
        match self.oid {
            oid::BOOL => 1,
            oid::INT4 => 4,
            oid::INT8 | oid::FLOAT8 | oid::TIMESTAMPTZ => 8,
            _ => -1,
        }
    }
}

/// One value. Which goes into which column:
///
/// | column | cells |
/// |---|---|
/// | text | all |
/// | integer, bigint | `Int`, `Text` with a number |
/// | numeric | `Int`, `Float` (finite), `Text` with a decimal number |
/// | double precision | `Float`, `Int`, `Text` with a number |
/// | boolean | `Bool`, `Text` with `t` or `f` |
/// | timestamptz | `Int`: microseconds since 1970-01-01 00:00 UTC; `Text`: `2026-01-31 12:00:00[.123456][+00]` |
///
/// A `Text` goes out unchanged in the text format and is converted for the binary one.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// SQL NULL.
    Null,
    /// Text.
    Text(String),
    /// A whole number.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A truth value.
    Bool(bool),
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Cell {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<u32> for Cell {
    fn from(number: u32) -> Self {
        Self::Int(i64::from(number))
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

impl From<bool> for Cell {
    fn from(truth: bool) -> Self {
        Self::Bool(truth)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// A result set.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows, each as long as `columns`.
    pub rows: Vec<Vec<Cell>>,
    /// The command tag, `SHOW` or `SELECT 3`.
    pub tag: String,
}

impl Table {
    /// A table without rows, tagged `SHOW`.
    #[must_use]
    pub fn show(columns: Vec<Column>) -> Self {
        Self { columns, rows: Vec::new(), tag: "SHOW".to_owned() }
    }
}

/// How values are sent (protocol, "Formats and Format Codes").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// As text.
    #[default]
    Text,
    /// As the type's binary form.
    Binary,
}

impl Format {
    /// The format of that code; `None` for a code the protocol does not know.
    #[must_use]
    pub fn from_code(code: i16) -> Option<Self> {
        match code {
            0 => Some(Self::Text),
            1 => Some(Self::Binary),
            _ => None,
        }
    }

    fn code(self) -> i16 {
        match self {
            Self::Text => 0,
            Self::Binary => 1,
        }
    }
}

/// The formats of a row's columns, as Bind asks for them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Formats {
    /// All as text.
    #[default]
    Text,
    /// All the same.
    All(Format),
    /// One for each column.
    Each(Vec<Format>),
}

impl Formats {
    /// The format of a column, 0-based.
    #[must_use]
    pub fn of(&self, column: usize) -> Format {
        match self {
            Self::Text => Format::Text,
            Self::All(format) => *format,
            Self::Each(formats) => formats.get(column).copied().unwrap_or_default(),
        }
    }
}

/// Why a table cannot be sent. Always a bug of whoever made it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The cell does not fit the column's type.
    #[error("column \"{column}\" (type {oid}) cannot hold the value {value}")]
    Cell {
        /// The column's name.
        column: String,
        /// Its type.
        oid: u32,
        /// The value, as Rust shows it.
        value: String,
    },
    /// A row has another number of cells than there are columns.
    #[error("row of {cells} values in a table of {columns} columns")]
    Width {
        /// Cells in the row.
        cells: usize,
        /// Columns of the table.
        columns: usize,
    },
    /// The protocol cannot carry it.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl ClientFacing for TableError {
    fn to_client(&self) -> PgError {
        PgError::error(SqlState::INTERNAL_ERROR, "the result cannot be sent").with_detail(format!("{self}."))
    }
}

/// Appends a RowDescription.
pub fn row_description(out: &mut BytesMut, columns: &[Column], formats: &Formats) -> Result<(), WriteError> {
    message(out, Some(b'T'), |body| {
        count16(body, columns.len())?;
        for (index, column) in columns.iter().enumerate() {
            cstring(body, column.name.as_bytes())?;
            body.put_u32(0);
            body.put_i16(0);
            body.put_u32(column.oid);
            body.put_i16(column.type_len());
            body.put_i32(-1);
            body.put_i16(formats.of(index).code());
        }
        Ok(())
    })
}

/// Appends a DataRow.
pub fn data_row(
    out: &mut BytesMut,
    columns: &[Column],
    row: &[Cell],
    formats: &Formats,
) -> Result<(), TableError> {
    if row.len() != columns.len() {
        return Err(TableError::Width { cells: row.len(), columns: columns.len() });
    }
    message(out, Some(b'D'), |body| {
        count16(body, row.len())?;
        for (index, (column, value)) in columns.iter().zip(row).enumerate() {
            cell::put(body, column, value, formats.of(index))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests;
