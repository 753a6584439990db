//! What pgweir answers itself, in an ordinary session: `SHOW POOL_NODES` and its kin.
//!
//! A unit of nothing else needs no backend; between other messages, and inside of transactions, they are
//! answered one by one in their places. An error of theirs does not fail the server's transaction.

use std::sync::Arc;

use bytes::BytesMut;
use protocol::console::{Answer, Caller, Console, Context, Next, SessionAsk, Status};
use protocol::error::{PgError, write_notice};
use protocol::frame::{HEADER_LEN, frontend_header};
use protocol::message::{self, Object, TxStatus, View};
use protocol::sqlstate::SqlState;
use protocol::table::{Cell, Table};

use super::acquire::Interrupt;
use super::own::SessionConsole;
use super::{End, Session};
use crate::console_session::{TELL_EVERY, cancelled};
use crate::engine::{Boundary, Unit, Violation};
use crate::registry::Flag;
use crate::statements::put_header;

impl Session {
    /// Runs the unit at the front of the client's buffer on the console.
    pub(super) async fn answer_locally(&mut self, unit: Unit) -> Result<(), End> {
        self.know_for_explain(unit.len).await;
        let status = self.status();
        let mut left = unit.len;
        while left > 0 {
            let (tag, len) = self.answer_message(status).await?;
            left = left.saturating_sub(len);
            if status == TxStatus::Idle && matches!(tag, b'S' | b'Q') {
                self.engine.end_local_portals();
            }
        }
        if unit.boundary == Boundary::Query {
            self.engine.drop_unnamed();
        }
        if self.skips_local_messages() {
            self.skip_to_sync = true;
            self.end_local_batch();
        }
        self.flush().await
    }

    /// Answers the message at the front of the client's buffer; the backend has nothing left to say.
    pub(super) async fn answer_in_relay(&mut self) -> Result<(), End> {
        let status = self.engine.status();
        let (tag, len) = self.answer_message(status).await?;
        self.taken(len);
        self.engine.passed_locally(tag, len);
        if tag == b'Q' {
            self.engine.drop_unnamed();
        }
        if self.skips_local_messages() {
            self.engine.failed_locally();
            self.end_local_batch();
        }
        Ok(())
    }

    /// An error of the console's server waits for Sync.
    fn skips_local_messages(&self) -> bool {
        self.local.as_ref().is_some_and(|local| local.is_skipping())
    }

    /// Gives the tag and the length of what was answered.
    async fn answer_message(&mut self, status: TxStatus) -> Result<(u8, usize), End> {
        let header = frontend_header(self.from_client.filled()).map_err(Violation::from)?;
        let Some(header) = header.filter(|header| self.from_client.filled().len() >= header.len) else {
            return Err(End::Terminated);
        };
        let message = self.from_client.filled().get(..header.len).unwrap_or_default().to_vec();
        self.from_client.consume(header.len);
        let caller = self.caller();
        let begun = self.skips_local_messages() || self.begin_message(&caller, header.tag, &message);
        let body = message.get(HEADER_LEN..).unwrap_or_default();
        if begun {
            feed(self, &caller, status, header.tag, body).await?;
        }
        if !self.skips_local_messages() {
            self.note_message(header.tag, &message);
        }
        Ok((header.tag, header.len))
    }

    /// Lets the console's server know what the client's books know of the statement that `message` names, and
    /// nothing else; false when it refuses it, which the client has been told.
    fn begin_message(&mut self, caller: &Caller, tag: u8, message: &[u8]) -> bool {
        if matches!(tag, b'P' | b'B') && !self.engine.has_local_portals() {
            self.end_local_batch();
        }
        let name = match tag {
            b'P' => message::parse(message).map(|parse| parse.name),
            b'B' | b'D' => statement_name(tag, message),
            _ => None,
        };
        let Some(name) = name else { return true };
        let known = self.engine.statements().get(name).filter(|_| tag != b'P' || !name.is_empty()).cloned();
        let mut close = BytesMut::new();
        put_header(&mut close, b'C', name.len() + 2);
        close.extend_from_slice(b"S");
        close.extend_from_slice(name);
        close.extend_from_slice(b"\0");
        self.feed_silently(caller, b'C', &close);
        let Some(known) = known else { return true };
        let mut parse = BytesMut::new();
        if tag == b'P' {
            // Whatever it stands for: the name is taken.
            put_header(&mut parse, b'P', name.len() + 4);
            parse.extend_from_slice(name);
            parse.extend_from_slice(b"\0\0\0\0");
        } else {
            known.put_parse(&mut parse, name);
        }
        let said = self.feed_silently(caller, b'P', &parse);
        if self.skips_local_messages() {
            self.to_client.own(|own| own.extend_from_slice(&said));
        }
        !self.skips_local_messages()
    }

    /// Keeps the client's books about a message that was answered.
    fn note_message(&mut self, tag: u8, message: &[u8]) {
        match (tag, message::object(message)) {
            (b'P', _) => {
                if let Some(parse) = message::parse(message) {
                    let knowledge = Arc::clone(self.knowledge.load());
                    let statement = self.intern(parse.tail, parse.sql, &knowledge);
                    self.engine.define_now(parse.name, &statement);
                }
            }
            (b'B', _) => {
                if let View::Ready(bind) = message::bind(message, message.len()) {
                    self.engine.bound_locally(bind.portal, true);
                }
            }
            (b'C', Some(Object::Statement(name))) => self.engine.close_now(name),
            (b'C', Some(Object::Portal(portal))) => self.engine.bound_locally(portal, false),
            _ => {}
        }
    }

    /// The console's server forgets its portals, and an error that waits for Sync.
    fn end_local_batch(&mut self) {
        let caller = self.caller();
        self.feed_silently(&caller, b'S', b"S\0\0\0\x04");
    }

    /// Feeds a whole message of ours; gives what the client is not told.
    fn feed_silently(&mut self, caller: &Caller, tag: u8, message: &[u8]) -> BytesMut {
        let console = self.explainer();
        let console = SessionConsole { console: &console, consistency: self.consistency() };
        let status = Status::Session(TxStatus::Idle.as_byte());
        let context = Context { console: &console, caller, status };
        let mut said = BytesMut::new();
        // None of these runs anything.
        let _ = self.local.get_or_insert_default().feed(
            &context,
            tag,
            message.get(HEADER_LEN..).unwrap_or_default(),
            &mut said,
        );
        said
    }

    /// What a statement asks of the session itself.
    fn carry_out(&mut self, answer: Answer) -> Result<Answer, PgError> {
        let Answer::Session(ask) = answer else { return Ok(answer) };
        let done = |tag: &str| Answer::Done { tag: tag.to_owned(), notices: Vec::new() };
        match ask {
            SessionAsk::Show { columns, rows } => {
                let config = self.config.get();
                let row = |(key, description): (&'static str, String)| {
                    let value = config.text_of(key).unwrap_or_default();
                    vec![Cell::from(key), Cell::Text(value), Cell::Text(description)]
                };
                let rows = rows.into_iter().map(row).collect();
                Ok(Answer::Table(Table { columns, rows, tag: "SHOW".to_owned() }))
            }
            SessionAsk::Set { key, value } => match self.config.set(key, value) {
                Ok(()) => Ok(done("SET")),
                Err(errors) => {
                    let text = format!("invalid value for parameter \"{key}\"");
                    let error = PgError::error(SqlState::INVALID_PARAMETER_VALUE, text);
                    Err(error.with_detail(errors.to_string()))
                }
            },
            SessionAsk::Reset(key) => {
                self.config.reset(key);
                Ok(done("RESET"))
            }
        }
    }

    fn caller(&mut self) -> Caller {
        let config = self.config.get();
        let user = self.identity.user.to_string();
        Caller {
            admin: config.admin_users.contains(&user),
            stats: config.stats_users.contains(&user),
            database: self.identity.database.to_string(),
            application_name: String::new(),
            user,
            in_admin_database: false,
            session: self.client.entry.id,
        }
    }
}

/// Feeds one message.
async fn feed(
    session: &mut Session,
    caller: &Caller,
    status: TxStatus,
    tag: u8,
    body: &[u8],
) -> Result<(), End> {
    let console = session.explainer();
    let console = SessionConsole { console: &console, consistency: session.consistency() };
    let context = Context { console: &console, caller, status: Status::Session(status.as_byte()) };
    let local = session.local.get_or_insert_default();
    let mut next = Next::Wait;
    session.to_client.own(|own| next = local.feed(&context, tag, body, own));
    loop {
        match next {
            Next::Run(sql) => {
                let result = run(session, &console, caller, &sql).await?;
                let result = result.and_then(|answer| session.carry_out(answer));
                let local = session.local.get_or_insert_default();
                let mut after = Next::Wait;
                session.to_client.own(|own| after = local.answer(&context, result, own));
                next = after;
            }
            Next::Wait => return Ok(()),
            _ => return Err(End::Terminated),
        }
    }
}

/// Runs a statement to its end, or until it is cancelled; tells meanwhile how far it is. What it has begun goes on
/// without the session.
async fn run(
    session: &mut Session,
    console: &dyn Console,
    caller: &Caller,
    sql: &str,
) -> Result<Result<Answer, PgError>, End> {
    session.client.entry.runs_here(true);
    let done = run_and_tell(session, console, caller, sql).await;
    session.client.entry.runs_here(false);
    // One that came too late is not for what follows.
    session.client.entry.lower(Flag::Cancel);
    done
}

async fn run_and_tell(
    session: &mut Session,
    console: &dyn Console,
    caller: &Caller,
    sql: &str,
) -> Result<Result<Answer, PgError>, End> {
    let mut running = console.run(caller, sql);
    let mut told = String::new();
    loop {
        match tokio::time::timeout(TELL_EVERY, session.watched_or_cancelled(&mut running)).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(Interrupt::End(end))) => return Err(end),
            Ok(Err(Interrupt::Refused(_))) => return Ok(Err(cancelled())),
            Err(_) => {}
        }
        if session.client.entry.has(Flag::Drain) {
            return Err(End::Drained);
        }
        if let Some(line) = console.progress(caller, sql).filter(|line| *line != told) {
            session.to_client.own(|own| write_notice(own, &PgError::notice(line.as_str())));
            session.flush().await?;
            told = line;
        }
    }
}

fn statement_name(tag: u8, message: &[u8]) -> Option<&[u8]> {
    match (tag, message::object(message)) {
        (b'B', _) => match message::bind(message, message.len()) {
            View::Ready(bind) => Some(bind.statement),
            _ => None,
        },
        (_, Some(Object::Statement(name))) => Some(name),
        _ => None,
    }
}
