//! Parse, Bind, Describe, Execute, Close and Flush of the mini server.

use bytes::BytesMut;

use super::super::Answer;
use super::super::portal::{Portal, Progress, Statement, cannot_run};
use super::super::split::{Control, statements};
use super::{Context, LocalServer, Next, Running, Started, Status, Transaction, aborted, done, not_utf8};
use super::{no_session, unknown_statement};
use crate::error::PgError;
use crate::sqlstate::SqlState;
use crate::table::{Column, Format, Formats, row_description};
use crate::write::{self, WriteError};

/// Reads the fields of a message; every failure is PostgreSQL's "invalid message format".
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], PgError> {
        let (head, rest) = self.0.split_at_checked(len).ok_or_else(malformed)?;
        self.0 = rest;
        Ok(head)
    }

    fn byte(&mut self) -> Result<u8, PgError> {
        self.bytes(1)?.first().copied().ok_or_else(malformed)
    }

    fn int16(&mut self) -> Result<i16, PgError> {
        let bytes = self.bytes(2)?.try_into().map_err(|_| malformed())?;
        Ok(i16::from_be_bytes(bytes))
    }

    fn int32(&mut self) -> Result<i32, PgError> {
        let bytes = self.bytes(4)?.try_into().map_err(|_| malformed())?;
        Ok(i32::from_be_bytes(bytes))
    }

    /// Counts are unsigned since PostgreSQL 14.
    fn count(&mut self) -> Result<usize, PgError> {
        let bytes = self.bytes(2)?.try_into().map_err(|_| malformed())?;
        Ok(usize::from(u16::from_be_bytes(bytes)))
    }

    fn cstring(&mut self) -> Result<&'a [u8], PgError> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or_else(malformed)?;
        let text = self.bytes(end)?;
        self.bytes(1)?;
        Ok(text)
    }

    fn end(&self) -> Result<(), PgError> {
        if self.0.is_empty() { Ok(()) } else { Err(malformed()) }
    }
}

fn malformed() -> PgError {
    PgError::error(SqlState::PROTOCOL_VIOLATION, "invalid message format")
}

impl LocalServer {
    pub(super) fn extended(
        &mut self,
        context: &Context<'_>,
        tag: u8,
        body: &[u8],
        out: &mut BytesMut,
    ) -> Result<Next, PgError> {
        let fields = Fields(body);
        match tag {
            b'P' => self.parse(context, fields, out)?,
            b'B' => self.bind(context, fields, out)?,
            b'D' => self.describe(fields, out)?,
            b'E' => return self.execute(context, fields, out),
            b'C' => self.close(fields, out)?,
            _ => {}
        }
        Ok(Next::Wait)
    }

    fn parse(
        &mut self,
        context: &Context<'_>,
        mut fields: Fields<'_>,
        out: &mut BytesMut,
    ) -> Result<(), PgError> {
        let (name, text) = (fields.cstring()?, fields.cstring()?);
        for _ in 0..fields.count()? {
            fields.int32()?;
        }
        fields.end()?;
        let sql = std::str::from_utf8(text).map_err(|_| not_utf8())?;
        let found = statements(sql);
        if found.len() > 1 {
            let text = "cannot insert multiple commands into a prepared statement";
            return Err(PgError::error(SqlState::SYNTAX_ERROR, text));
        }
        let sql = found.first().copied().unwrap_or_default().to_owned();
        self.check_transaction(&sql)?;
        if name.is_empty() {
            // As in PostgreSQL the unnamed statement is gone even when the new one fails.
            self.statements.remove(name);
        } else if self.statements.get(name).is_some() {
            let text = format!("prepared statement \"{}\" already exists", String::from_utf8_lossy(name));
            return Err(PgError::error(SqlState::DUPLICATE_PREPARED_STATEMENT, text));
        }
        let columns = columns(context, &sql)?;
        self.statements.insert(name, Statement { sql, columns })?;
        write::parse_complete(out);
        Ok(())
    }

    fn bind(&mut self, _: &Context<'_>, mut fields: Fields<'_>, out: &mut BytesMut) -> Result<(), PgError> {
        let (name, statement_name) = (fields.cstring()?, fields.cstring()?);
        for _ in 0..fields.count()? {
            format(fields.int16()?)?;
        }
        let params = fields.count()?;
        for _ in 0..params {
            if let Ok(len) = usize::try_from(fields.int32()?) {
                fields.bytes(len)?;
            }
        }
        let mut formats = Vec::new();
        for _ in 0..fields.count()? {
            formats.push(format(fields.int16()?)?);
        }
        fields.end()?;
        let statement =
            self.statements.get(statement_name).ok_or_else(|| unknown_statement(statement_name))?;
        if params > 0 {
            let shown = String::from_utf8_lossy(statement_name);
            let text = format!(
                "bind message supplies {params} parameters, but prepared statement \"{shown}\" requires 0"
            );
            return Err(PgError::error(SqlState::PROTOCOL_VIOLATION, text));
        }
        self.check_transaction(&statement.sql)?;
        if !name.is_empty() && self.portals.get(name).is_some() {
            let text = format!("cursor \"{}\" already exists", String::from_utf8_lossy(name));
            return Err(PgError::error(SqlState::DUPLICATE_CURSOR, text));
        }
        let formats = result_formats(formats, statement.columns.as_deref().unwrap_or_default().len())?;
        let portal = Portal { statement: statement.clone(), formats, progress: Progress::New };
        self.portals.insert(name, portal)?;
        write::bind_complete(out);
        Ok(())
    }

    fn describe(&mut self, mut fields: Fields<'_>, out: &mut BytesMut) -> Result<(), PgError> {
        let (kind, name) = (fields.byte()?, fields.cstring()?);
        fields.end()?;
        let (columns, formats) = match kind {
            b'S' => {
                let statement = self.statements.get(name).ok_or_else(|| unknown_statement(name))?;
                write::parameter_description(out, &[]).map_err(internal)?;
                (&statement.columns, &Formats::Text)
            }
            b'P' => {
                let portal = self.portals.get(name).ok_or_else(|| unknown_portal(name))?;
                (&portal.statement.columns, &portal.formats)
            }
            other => return Err(bad_kind("DESCRIBE", other)),
        };
        match columns {
            Some(columns) => row_description(out, columns, formats).map_err(internal),
            None => {
                write::no_data(out);
                Ok(())
            }
        }
    }

    fn execute(
        &mut self,
        context: &Context<'_>,
        mut fields: Fields<'_>,
        out: &mut BytesMut,
    ) -> Result<Next, PgError> {
        let (name, max_rows) = (fields.cstring()?, fields.int32()?);
        fields.end()?;
        // Zero and negative numbers are "all" in PostgreSQL.
        let max_rows = usize::try_from(max_rows).unwrap_or(0);
        let portal = self.portals.get_mut(name).ok_or_else(|| unknown_portal(name))?;
        match &portal.progress {
            Progress::Rows { .. } => {
                portal.fetch(max_rows, out)?;
                return Ok(Next::Wait);
            }
            Progress::Finished => return Err(cannot_run()),
            Progress::New => {}
        }
        if portal.statement.sql.is_empty() {
            write::empty_query_response(out);
            return Ok(Next::Wait);
        }
        let sql = portal.statement.sql.clone();
        match self.start(context, sql) {
            Started::Run(sql) => {
                self.running = Some(Running::Execute { portal: name.to_vec(), max_rows });
                Ok(Next::Run(sql))
            }
            Started::Answered(answer) => {
                self.execute_answer(name, max_rows, answer, out)?;
                Ok(Next::Wait)
            }
        }
    }

    /// Sends the answer to an Execute. The portal may be gone: COMMIT closes them all.
    pub(super) fn execute_answer(
        &mut self,
        name: &[u8],
        max_rows: usize,
        answer: Result<Answer, PgError>,
        out: &mut BytesMut,
    ) -> Result<(), PgError> {
        let begin = out.len();
        let sent = answer.and_then(|answer| self.send(name, max_rows, answer, out));
        if sent.is_err() {
            out.truncate(begin);
        }
        sent
    }

    fn send(
        &mut self,
        name: &[u8],
        max_rows: usize,
        answer: Answer,
        out: &mut BytesMut,
    ) -> Result<(), PgError> {
        let portal = self.portals.get_mut(name);
        match answer {
            Answer::Table(table) => {
                let portal = portal.ok_or_else(|| unknown_portal(name))?;
                if portal.statement.columns.as_ref() != Some(&table.columns) {
                    let text = "cached plan must not change result type";
                    return Err(PgError::error(SqlState::FEATURE_NOT_SUPPORTED, text));
                }
                portal.progress = Progress::Rows { table, next: 0 };
                portal.fetch(max_rows, out)
            }
            Answer::Done { tag, notices } => {
                if let Some(portal) = portal {
                    portal.progress = Progress::Finished;
                }
                done(out, &tag, &notices)
            }
            Answer::Empty => {
                write::empty_query_response(out);
                Ok(())
            }
            Answer::Session(_) => Err(no_session()),
        }
    }

    fn close(&mut self, mut fields: Fields<'_>, out: &mut BytesMut) -> Result<(), PgError> {
        let (kind, name) = (fields.byte()?, fields.cstring()?);
        fields.end()?;
        match kind {
            b'S' => self.statements.remove(name),
            b'P' => self.portals.remove(name),
            other => return Err(bad_kind("CLOSE", other)),
        };
        write::close_complete(out);
        Ok(())
    }

    /// In a failed transaction only what ends it may be parsed or bound.
    fn check_transaction(&self, sql: &str) -> Result<(), PgError> {
        let ends = || matches!(Control::parse(sql), Some(Control::Commit | Control::Rollback));
        if self.transaction == Transaction::Failed && !sql.is_empty() && !ends() {
            return Err(aborted());
        }
        Ok(())
    }
}

/// What the statement returns; the mini server's own and empty ones return nothing.
fn columns(context: &Context<'_>, sql: &str) -> Result<Option<Vec<Column>>, PgError> {
    if sql.is_empty() || (context.status == Status::Own && Control::parse(sql).is_some()) {
        return Ok(None);
    }
    context.console.columns(context.caller, sql)
}

fn format(code: i16) -> Result<Format, PgError> {
    Format::from_code(code).ok_or_else(|| {
        PgError::error(SqlState::INVALID_PARAMETER_VALUE, format!("unsupported format code: {code}"))
    })
}

fn result_formats(formats: Vec<Format>, columns: usize) -> Result<Formats, PgError> {
    match formats.as_slice() {
        [] => Ok(Formats::Text),
        [one] => Ok(Formats::All(*one)),
        many if many.len() == columns => Ok(Formats::Each(formats)),
        many => {
            let text =
                format!("bind message has {} result formats but query has {columns} columns", many.len());
            Err(PgError::error(SqlState::PROTOCOL_VIOLATION, text))
        }
    }
}

fn unknown_portal(name: &[u8]) -> PgError {
    let text = format!("portal \"{}\" does not exist", String::from_utf8_lossy(name));
    PgError::error(SqlState::INVALID_CURSOR_NAME, text)
}

fn bad_kind(message: &str, kind: u8) -> PgError {
    let text = format!("invalid {message} message subtype {kind}");
    PgError::error(SqlState::PROTOCOL_VIOLATION, text)
}

fn internal(error: WriteError) -> PgError {
    PgError::error(SqlState::INTERNAL_ERROR, "the result cannot be described")
        .with_detail(format!("{error}."))
}
