//! A PostgreSQL server without a database: the simple and the extended protocol over a [`Console`].
//!
//! Sans-IO: [`LocalServer::feed`] takes a client's message and appends the replies; when a statement
//! must be run it says so, and the shell hands the result to [`LocalServer::answer`]. Between the two
//! no other message may be fed.
//!
//! Invariants: every Query and Sync is answered with exactly one ReadyForQuery; after an error in the
//! extended protocol everything up to Sync is skipped; what a client can make it hold is bounded.

mod extended;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use bytes::BytesMut;

use super::portal::{self, Names, Portal, Statement};
use super::split::{Control, statements};
use super::{Answer, Caller, Console};
use crate::error::{ClientFacing, PgError, write_error, write_notice};
use crate::sqlstate::SqlState;
use crate::table::{Formats, Table, data_row, row_description};
use crate::write;

/// Whose transaction status ReadyForQuery reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The mini server's own: BEGIN, COMMIT and ROLLBACK are accepted (admin database).
    Own,
    /// That of the session's real transaction: `I`, `T` or `E`.
    Session(u8),
}

/// What the statements are run for.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Who describes them.
    pub console: &'a dyn Console,
    /// Who asks.
    pub caller: &'a Caller,
    /// The transaction status to report.
    pub status: Status,
}

/// What the shell does next.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// Send what was appended; feed the next message.
    Wait,
    /// Run this with [`Console::run`] and give the result to [`LocalServer::answer`].
    Run(String),
    /// Send what was appended and close the connection.
    Close,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Transaction {
    #[default]
    None,
    Open,
    Failed,
}

/// What waits for an answer.
#[derive(Debug)]
enum Running {
    /// A simple query: the statements after the one that runs.
    Simple { rest: VecDeque<String> },
    /// An Execute of that portal.
    Execute { portal: Vec<u8>, max_rows: usize },
}

/// What begins to run a statement.
enum Started {
    Answered(Result<Answer, PgError>),
    Run(String),
}

/// The mini server of one session.
#[derive(Debug, Default)]
pub struct LocalServer {
    statements: Names<Statement>,
    portals: Names<Portal>,
    transaction: Transaction,
    skipping: bool,
    running: Option<Running>,
}

impl LocalServer {
    /// A server at the beginning of a session.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a statement is being run: [`LocalServer::answer`] is due.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether messages are skipped up to the next Sync.
    #[must_use]
    pub fn is_skipping(&self) -> bool {
        self.skipping
    }

    /// The byte that ReadyForQuery reports.
    #[must_use]
    pub fn status(&self, status: Status) -> u8 {
        match (status, self.transaction) {
            (Status::Session(byte), _) => byte,
            (Status::Own, Transaction::None) => b'I',
            (Status::Own, Transaction::Open) => b'T',
            (Status::Own, Transaction::Failed) => b'E',
        }
    }

    /// Takes one message of the client: its tag and what follows the length.
    pub fn feed(&mut self, context: &Context<'_>, tag: u8, body: &[u8], out: &mut BytesMut) -> Next {
        if self.running.is_some() {
            return self
                .fatal(PgError::fatal(SqlState::INTERNAL_ERROR, "message fed while a statement runs"), out);
        }
        match tag {
            b'X' => Next::Close,
            b'S' => self.sync(context, out),
            b'P' | b'B' | b'D' | b'E' | b'C' | b'H' if self.skipping => Next::Wait,
            b'P' | b'B' | b'D' | b'E' | b'C' | b'H' => match self.extended(context, tag, body, out) {
                Ok(next) => next,
                Err(error) => self.extended_error(&error, out),
            },
            // In PostgreSQL a Query is skipped too while an error waits for its Sync.
            b'Q' | b'F' if self.skipping => Next::Wait,
            b'Q' => self.query(context, body, out),
            b'F' => {
                let code = SqlState::FEATURE_NOT_SUPPORTED;
                self.failed(context, &PgError::error(code, "function calls are not supported here"), out);
                write::ready_for_query(out, self.status(context.status));
                Next::Wait
            }
            // Leftovers of a COPY that failed; PostgreSQL ignores them.
            b'd' | b'c' | b'f' => Next::Wait,
            other => {
                let text = format!("invalid frontend message type {other}");
                self.fatal(PgError::fatal(SqlState::PROTOCOL_VIOLATION, text), out)
            }
        }
    }

    /// Takes the result of the statement that [`Next::Run`] asked for.
    pub fn answer(
        &mut self,
        context: &Context<'_>,
        answer: Result<Answer, PgError>,
        out: &mut BytesMut,
    ) -> Next {
        match self.running.take() {
            Some(Running::Simple { rest }) => {
                if self.simple_answer(context, answer, out) {
                    return self.simple(context, rest, out);
                }
                self.simple_end(context, out)
            }
            Some(Running::Execute { portal, max_rows }) => {
                match self.execute_answer(&portal, max_rows, answer, out) {
                    Ok(()) => Next::Wait,
                    Err(error) => self.extended_error(&error, out),
                }
            }
            None => self.fatal(PgError::fatal(SqlState::INTERNAL_ERROR, "answer to nothing"), out),
        }
    }

    /// Writes the error and ends the session.
    fn fatal(&mut self, error: PgError, out: &mut BytesMut) -> Next {
        write_error(out, &error.into_fatal());
        Next::Close
    }

    /// Query: all its statements, then ReadyForQuery.
    fn query(&mut self, context: &Context<'_>, body: &[u8], out: &mut BytesMut) -> Next {
        self.statements.remove(b"");
        self.portals.remove(b"");
        let Some(text) = body.strip_suffix(&[0]).filter(|text| !text.contains(&0)) else {
            let error = PgError::error(SqlState::PROTOCOL_VIOLATION, "invalid string in message");
            self.failed(context, &error, out);
            return self.simple_end(context, out);
        };
        let Ok(sql) = std::str::from_utf8(text) else {
            self.failed(context, &not_utf8(), out);
            return self.simple_end(context, out);
        };
        let rest: VecDeque<String> = statements(sql).into_iter().map(str::to_owned).collect();
        if rest.is_empty() {
            write::empty_query_response(out);
        }
        self.simple(context, rest, out)
    }

    /// Runs statements until one must be awaited, fails, or none is left.
    fn simple(&mut self, context: &Context<'_>, mut rest: VecDeque<String>, out: &mut BytesMut) -> Next {
        while let Some(sql) = rest.pop_front() {
            match self.start(context, sql) {
                Started::Run(sql) => {
                    self.running = Some(Running::Simple { rest });
                    return Next::Run(sql);
                }
                Started::Answered(answer) => {
                    if !self.simple_answer(context, answer, out) {
                        break;
                    }
                }
            }
        }
        self.simple_end(context, out)
    }

    fn simple_end(&mut self, context: &Context<'_>, out: &mut BytesMut) -> Next {
        self.end_of_unit(context);
        write::ready_for_query(out, self.status(context.status));
        Next::Wait
    }

    /// Sends the answer to one statement; false when it failed and the rest is not run.
    fn simple_answer(
        &mut self,
        context: &Context<'_>,
        answer: Result<Answer, PgError>,
        out: &mut BytesMut,
    ) -> bool {
        let begin = out.len();
        let sent = answer.and_then(|answer| match answer {
            Answer::Table(table) => send_table(out, &table),
            Answer::Done { tag, notices } => done(out, &tag, &notices),
            Answer::Empty => {
                write::empty_query_response(out);
                Ok(())
            }
            Answer::Session(_) => Err(no_session()),
        });
        match sent {
            Ok(()) => true,
            Err(error) => {
                out.truncate(begin);
                self.failed(context, &error, out);
                false
            }
        }
    }

    /// Sync: the end of an extended batch.
    fn sync(&mut self, context: &Context<'_>, out: &mut BytesMut) -> Next {
        self.skipping = false;
        self.end_of_unit(context);
        write::ready_for_query(out, self.status(context.status));
        Next::Wait
    }

    /// Outside of a transaction block portals end with the implicit transaction.
    fn end_of_unit(&mut self, context: &Context<'_>) {
        if self.status(context.status) == b'I' {
            self.portals.clear();
        }
    }

    /// Begins a statement: it is ours, refused, or to be run by the console.
    fn start(&mut self, context: &Context<'_>, sql: String) -> Started {
        if context.status != Status::Own {
            return Started::Run(sql);
        }
        let control = Control::parse(&sql);
        let ends = matches!(control, Some(Control::Commit | Control::Rollback));
        if self.transaction == Transaction::Failed && !ends {
            return Started::Answered(Err(aborted()));
        }
        match control {
            Some(control) => Started::Answered(self.control(control)),
            None => Started::Run(sql),
        }
    }

    fn control(&mut self, control: Control) -> Result<Answer, PgError> {
        let before = self.transaction;
        let mut notices = Vec::new();
        let tag = match control {
            Control::Begin => {
                if before == Transaction::Open {
                    notices.push(warning(
                        SqlState::ACTIVE_SQL_TRANSACTION,
                        "there is already a transaction in progress",
                    ));
                }
                self.transaction = Transaction::Open;
                "BEGIN"
            }
            Control::Commit | Control::Rollback => {
                if before == Transaction::None {
                    notices.push(warning(
                        SqlState::NO_ACTIVE_SQL_TRANSACTION,
                        "there is no transaction in progress",
                    ));
                }
                self.transaction = Transaction::None;
                self.portals.clear();
                if control == Control::Commit && before != Transaction::Failed {
                    "COMMIT"
                } else {
                    "ROLLBACK"
                }
            }
            Control::DiscardAll if before == Transaction::Open => {
                let text = "DISCARD ALL cannot run inside a transaction block";
                return Err(PgError::error(SqlState::ACTIVE_SQL_TRANSACTION, text));
            }
            Control::DiscardAll => {
                self.statements.clear();
                self.portals.clear();
                "DISCARD ALL"
            }
            Control::Deallocate(None) => {
                self.statements.clear();
                "DEALLOCATE ALL"
            }
            Control::Deallocate(Some(name)) => {
                if !self.statements.remove(name.as_bytes()) {
                    return Err(unknown_statement(name.as_bytes()));
                }
                "DEALLOCATE"
            }
        };
        Ok(Answer::Done { tag: tag.to_owned(), notices })
    }

    /// Writes the error of a statement; an own transaction fails with it.
    fn failed(&mut self, context: &Context<'_>, error: &PgError, out: &mut BytesMut) {
        if context.status == Status::Own {
            self.fail_transaction();
        }
        write_error(out, error);
    }

    fn fail_transaction(&mut self) {
        if self.transaction == Transaction::Open {
            self.transaction = Transaction::Failed;
        }
    }

    /// Writes the error of an extended message; the rest is skipped until Sync.
    fn extended_error(&mut self, error: &PgError, out: &mut BytesMut) -> Next {
        // With a session's status the own transaction is never open.
        self.fail_transaction();
        write_error(out, error);
        self.skipping = true;
        if error.severity.ends_session() { Next::Close } else { Next::Wait }
    }
}

fn send_table(out: &mut BytesMut, table: &Table) -> Result<(), PgError> {
    let internal = |error: crate::table::TableError| error.to_client();
    row_description(out, &table.columns, &Formats::Text).map_err(|error| internal(error.into()))?;
    for row in &table.rows {
        data_row(out, &table.columns, row, &Formats::Text).map_err(internal)?;
    }
    portal::complete(out, &table.tag)
}

fn done(out: &mut BytesMut, tag: &str, notices: &[PgError]) -> Result<(), PgError> {
    notices.iter().for_each(|notice| write_notice(out, notice));
    portal::complete(out, tag)
}

fn warning(code: SqlState, text: &str) -> PgError {
    PgError { code, ..PgError::warning(text) }
}

fn aborted() -> PgError {
    let text = "current transaction is aborted, commands ignored until end of transaction block";
    PgError::error(SqlState::IN_FAILED_SQL_TRANSACTION, text)
}

/// The admin database's sessions have no configuration of their own.
fn no_session() -> PgError {
    let text = "this is for sessions in other databases than the admin database";
    PgError::error(SqlState::FEATURE_NOT_SUPPORTED, text).with_hint("Use SHOW CONFIG and SET here.")
}

fn not_utf8() -> PgError {
    PgError::error(SqlState::CHARACTER_NOT_IN_REPERTOIRE, "invalid byte sequence for encoding \"UTF8\"")
}

fn unknown_statement(name: &[u8]) -> PgError {
    let text = format!("prepared statement \"{}\" does not exist", String::from_utf8_lossy(name));
    PgError::error(SqlState::INVALID_SQL_STATEMENT_NAME, text)
}
