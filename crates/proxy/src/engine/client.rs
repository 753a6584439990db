//! Client to server: messages are forwarded as they stand, names rewritten, ours put in front.

use bytes::BufMut;
use protocol::frame::{HEADER_LEN, Header, frontend_header};
use protocol::message::{self, Object, TxStatus, View};
use protocol::tracker::{Ask, Owner, Push, Synth, Token};
use router::{PinReason, Reason, SessionOp, TxControl, Verdict};

use super::gate::Pass;
use super::scan::query_verdict;
use super::{Books, ClientStep, Engine, Env, Moved, Rest, Violation, put_query};
use crate::buffer::Buf;
use crate::out::Out;
use crate::statements::{MAX_STATEMENT_LEN, NAME_PREFIX, Statement, put_header};

/// What both directions write while client bytes are forwarded.
pub struct ClientOuts<'a> {
    /// To the server.
    pub server: &'a mut Out,
    /// To the client: replies that we make ourselves.
    pub client: &'a mut Out,
}

/// A message of a token that no book waits for.
const NO_TOKEN: Token = Token(0);

impl Engine {
    /// Forwards what is in `buf` as far as it may go.
    ///
    /// # Errors
    /// Bytes that are no messages of a client: the session must end.
    pub fn client(
        &mut self,
        env: &Env<'_>,
        books: &mut Books,
        buf: &mut Buf,
        outs: &mut ClientOuts<'_>,
    ) -> Result<ClientStep, Violation> {
        loop {
            if self.client_rest.is_some() && !self.forward_rest(buf, outs.server) {
                return Ok(ClientStep::More(1));
            }
            let Some(header) = frontend_header(buf.filled())? else {
                return Ok(ClientStep::More(HEADER_LEN));
            };
            if self.waits_for_reset(header.tag) {
                return Ok(ClientStep::Hold);
            }
            match self.gate(buf.filled(), env)? {
                Pass::Go => {}
                Pass::More(need) => return Ok(ClientStep::More(need)),
                Pass::Hold => return Ok(ClientStep::Hold),
                Pass::Move => {
                    self.move_batch(outs.server);
                    return Ok(ClientStep::Hold);
                }
            }
            if header.tag == b'X' {
                return Ok(ClientStep::Terminate);
            }
            self.prepare_unit(books, outs.server);
            if let Some(need) = self.message(env, books, buf, outs, header)? {
                return Ok(ClientStep::More(need));
            }
            self.gate.passed(header.len);
        }
    }

    /// Forwards one message; gives how many bytes of it must be there if there are too few.
    fn message(
        &mut self,
        env: &Env<'_>,
        books: &mut Books,
        buf: &mut Buf,
        outs: &mut ClientOuts<'_>,
        header: Header,
    ) -> Result<Option<usize>, Violation> {
        let whole = buf.filled().len() >= header.len;
        match header.tag {
            b'Q' => return Ok(self.query(env, books, buf, outs.server, header)),
            b'P' if header.len > MAX_STATEMENT_LEN => return Err(Violation::StatementTooLong(header.len)),
            b'P' | b'D' | b'C' | b'E' if !whole => return Ok(Some(header.len)),
            b'P' => self.parse(env, books, buf, outs, header),
            b'B' => return Ok(self.bind_message(env, books, buf, outs.server, header)),
            b'D' | b'C' => self.object(env, books, buf, outs.server, header),
            b'E' => {
                let portal = message::portal(buf.at(buf.position(), header.len)).unwrap_or_default();
                self.settings.execute(Push(self.tracker.last_push().0 + 1), portal);
                self.ask(Ask::Execute, buf, outs.server, header);
            }
            b'S' => {
                self.in_batch = false;
                self.gate.bound = false;
                self.tracker.push(Ask::Sync, Owner::Client);
                self.forward(buf, outs.server, header.len);
            }
            b'F' => {
                let verdict = Verdict::unparsed(Reason::Utility);
                env.watch.statement(&verdict);
                // Like Sync and Query it ends in ReadyForQuery.
                self.in_batch = false;
                self.gate.bound = false;
                self.tracker.push(Ask::FunctionCall, Owner::Client);
                self.forward(buf, outs.server, header.len);
            }
            b'd' | b'c' | b'f' => self.copy(buf, outs.server, header),
            // Flush.
            _ => self.forward(buf, outs.server, header.len),
        }
        Ok(None)
    }

    /// In front of a unit outside of a transaction: settings that the backend lacks, and BEGIN.
    fn prepare_unit(&mut self, books: &mut Books, out: &mut Out) {
        if self.in_batch || !self.tracker.is_settled() || self.tracker.status() != TxStatus::Idle {
            return;
        }
        let settings = std::sync::Arc::clone(self.settings.client());
        if !std::sync::Arc::ptr_eq(&books.settings, &settings) {
            if let Some(sql) = settings.statements_from(&books.settings) {
                self.inject_query(out, sql.as_bytes());
                books.prepared.set_unnamed(None);
            }
            books.settings = settings;
        }
        for message in std::mem::take(&mut self.begin) {
            out.own(|own| own.put_slice(&message));
            self.tracker.push(Ask::Query, Owner::Ours);
            books.prepared.set_unnamed(None);
        }
    }

    fn inject_query(&mut self, out: &mut Out, sql: &[u8]) {
        out.own(|own| put_query(own, sql));
        self.tracker.push(Ask::Query, Owner::Ours);
    }

    /// Ends a batch here of which nothing has run; the client's own Sync ends it elsewhere.
    fn move_batch(&mut self, out: &mut Out) {
        out.own(protocol::write::sync);
        self.tracker.push(Ask::Sync, Owner::Ours);
        self.in_batch = false;
        self.moving = Some(Moved::Well);
    }

    fn query(
        &mut self,
        env: &Env<'_>,
        books: &mut Books,
        buf: &mut Buf,
        out: &mut Out,
        header: Header,
    ) -> Option<usize> {
        let verdict = match self.known.take() {
            Some(verdict) => verdict,
            None if header.len > env.max_parsed + HEADER_LEN + 1 => Verdict::unparsed(Reason::TooLong),
            None if buf.filled().len() < header.len => return Some(header.len),
            None => query_verdict(buf.at(buf.position(), header.len), env),
        };
        env.watch.statement(&verdict);
        let (verdict, op) = if may_change_settings(&verdict) && buf.filled().len() >= header.len {
            with_op(verdict, message::query_text(buf.at(buf.position(), header.len)), env)
        } else {
            (verdict, None)
        };
        self.note(&verdict);
        self.statements.drop_unnamed();
        books.prepared.set_unnamed(None);
        self.in_batch = false;
        self.gate.bound = false;
        self.tracker.push(Ask::Query, Owner::Client);
        self.settings.query(self.tracker.last_push(), op);
        self.forward(buf, out, header.len);
        None
    }

    fn parse(
        &mut self,
        env: &Env<'_>,
        books: &mut Books,
        buf: &mut Buf,
        outs: &mut ClientOuts<'_>,
        header: Header,
    ) {
        self.in_batch = true;
        let Some(parse) = message::parse(buf.at(buf.position(), header.len)) else {
            // The server says what is wrong with it.
            return self.ask(Ask::Parse(NO_TOKEN), buf, outs.server, header);
        };
        let statement = env.cache.intern(parse.tail, || (env.classify)(parse.sql));
        if parse.name.is_empty() {
            let token = self.statements.define(b"", &statement, true);
            books.prepared.set_unnamed(Some(statement.id()));
            return self.ask(Ask::Parse(token), buf, outs.server, header);
        }
        let name: Box<[u8]> = parse.name.into();
        buf.consume(header.len);
        let failed = self.tracker.is_settled() && self.tracker.status() == TxStatus::Failed;
        if let Some(known) = self.statements.get(&name).cloned() {
            // As the server would: 42P05, told of the name on the server, which is put right on the way back.
            self.ensure_prepared(env, books, outs.server, &known);
            self.inject_parse(outs.server, &statement, &known.id().name(), NO_TOKEN, Owner::Client);
        } else if failed {
            self.inject_parse(outs.server, &statement, &statement.id().name(), NO_TOKEN, Owner::Client);
        } else if books.prepared.touch(statement.id()) {
            let token = self.statements.define(&name, &statement, false);
            self.tracker.push_synth(Synth::ParseComplete(token));
            self.put_synths(outs.client, books);
        } else {
            self.make_place(env, books, outs.server, &statement);
            let token = self.statements.define(&name, &statement, true);
            self.inject_parse(outs.server, &statement, &statement.id().name(), token, Owner::Client);
        }
        self.follow_events(books);
    }

    fn inject_parse(&mut self, out: &mut Out, statement: &Statement, name: &str, token: Token, owner: Owner) {
        out.own(|own| statement.put_parse(own, name.as_bytes()));
        self.tracker.push(Ask::Parse(token), owner);
    }

    /// The backend will hold one more statement: another one may have to go.
    fn make_place(&mut self, env: &Env<'_>, books: &mut Books, out: &mut Out, statement: &Statement) {
        if let Some(old) = books.prepared.insert(statement.id(), env.max_prepared) {
            self.inject_close(out, &old.name(), NO_TOKEN, Owner::Ours);
        }
    }

    fn inject_close(&mut self, out: &mut Out, name: &str, token: Token, owner: Owner) {
        out.own(|own| {
            put_header(own, b'C', name.len() + 2);
            own.put_u8(b'S');
            own.put_slice(name.as_bytes());
            own.put_u8(0);
        });
        self.tracker.push(Ask::Close(token), owner);
    }

    fn ensure_prepared(&mut self, env: &Env<'_>, books: &mut Books, out: &mut Out, statement: &Statement) {
        if !books.prepared.touch(statement.id()) {
            self.make_place(env, books, out, statement);
            let token = self.statements.prepare_ours(statement.id(), false);
            self.inject_parse(out, statement, &statement.id().name(), token, Owner::Ours);
        }
    }

    fn bind_message(
        &mut self,
        env: &Env<'_>,
        books: &mut Books,
        buf: &mut Buf,
        out: &mut Out,
        header: Header,
    ) -> Option<usize> {
        let seen = buf.at(buf.position(), buf.filled().len().min(header.len));
        let bind = match message::bind(seen, header.len) {
            View::Incomplete => return Some(seen.len() + 1),
            View::Malformed => {
                self.ask(Ask::Bind, buf, out, header);
                return None;
            }
            View::Ready(bind) => bind,
        };
        self.in_batch = true;
        self.gate.bound = true;
        let known = self.statements.get(bind.statement).cloned();
        let mut op = None;
        if let Some(statement) = &known {
            let mut verdict = statement.verdict();
            env.watch.statement(&verdict);
            if may_change_settings(&verdict) {
                (verdict, op) = with_op(verdict, Some(statement.sql()), env);
            }
            self.note(&verdict);
        }
        self.settings.portal(bind.portal, op);
        match known {
            Some(statement) if bind.statement.is_empty() => {
                self.ensure_unnamed(books, out, &statement);
                self.ask(Ask::Bind, buf, out, header);
            }
            Some(statement) => {
                self.ensure_prepared(env, books, out, &statement);
                let name = statement.id().name();
                let body = header.len - 1 - 4 - bind.statement.len() + name.len();
                out.own(|own| {
                    put_header(own, b'B', body);
                    own.put_slice(bind.portal);
                    own.put_u8(0);
                    own.put_slice(name.as_bytes());
                    own.put_u8(0);
                });
                self.tracker.push(Ask::Bind, Owner::Client);
                let rest = bind.rest;
                buf.consume(rest);
                self.forward(buf, out, header.len - rest);
            }
            // The server says that there is none; one made by PREPARE is there, on this backend.
            None => self.ask(Ask::Bind, buf, out, header),
        }
        self.follow_events(books);
        None
    }

    fn ensure_unnamed(&mut self, books: &mut Books, out: &mut Out, statement: &Statement) {
        if books.prepared.unnamed() != Some(statement.id()) {
            let token = self.statements.prepare_ours(statement.id(), true);
            books.prepared.set_unnamed(Some(statement.id()));
            self.inject_parse(out, statement, "", token, Owner::Ours);
        }
    }

    /// Describe and Close.
    fn object(&mut self, env: &Env<'_>, books: &mut Books, buf: &mut Buf, out: &mut Out, header: Header) {
        self.in_batch = true;
        let object = message::object(buf.at(buf.position(), header.len));
        let named = match object {
            Some(Object::Statement(name)) => Some((name, self.statements.get(name).cloned())),
            _ => None,
        };
        match (header.tag, named) {
            (b'D', Some((name, Some(statement)))) if name.is_empty() => {
                self.ensure_unnamed(books, out, &statement);
                self.ask(Ask::DescribeStatement, buf, out, header);
            }
            (b'D', Some((_, Some(statement)))) => {
                self.ensure_prepared(env, books, out, &statement);
                let name = statement.id().name();
                out.own(|own| {
                    put_header(own, b'D', name.len() + 2);
                    own.put_u8(b'S');
                    own.put_slice(name.as_bytes());
                    own.put_u8(0);
                });
                self.tracker.push(Ask::DescribeStatement, Owner::Client);
                buf.consume(header.len);
            }
            (b'D', Some((_, None))) => self.ask(Ask::DescribeStatement, buf, out, header),
            (b'D', None) => self.ask(Ask::DescribePortal, buf, out, header),
            (_, Some((name, Some(_)))) if !name.is_empty() => {
                // The statement stays for others; closing one that never was gives the same answer.
                let token = self.statements.close(name);
                self.inject_close(out, &format!("{NAME_PREFIX}0"), token, Owner::Client);
                buf.consume(header.len);
            }
            (_, Some((name, _))) => {
                let token = self.statements.close(name);
                if name.is_empty() {
                    books.prepared.set_unnamed(None);
                }
                self.ask(Ask::Close(token), buf, out, header);
            }
            (_, None) => self.ask(Ask::Close(NO_TOKEN), buf, out, header),
        }
        self.follow_events(books);
    }

    fn ask(&mut self, ask: Ask, buf: &mut Buf, out: &mut Out, header: Header) {
        self.in_batch = true;
        self.tracker.push(ask, Owner::Client);
        self.forward(buf, out, header.len);
    }

    fn copy(&mut self, buf: &mut Buf, out: &mut Out, header: Header) {
        let pass = match header.tag {
            b'd' => self.tracker.push_copy_data(),
            _ => self.tracker.push_copy_end(),
        };
        self.client_rest = Some(Rest { left: header.len, pass });
        self.forward_rest(buf, out);
    }

    fn forward(&mut self, buf: &mut Buf, out: &mut Out, len: usize) {
        self.client_rest = Some(Rest { left: len, pass: true });
        self.forward_rest(buf, out);
    }

    /// Passes on what is there of the current message; says whether that was all of it.
    fn forward_rest(&mut self, buf: &mut Buf, out: &mut Out) -> bool {
        let Some(rest) = &mut self.client_rest else { return true };
        let count = rest.left.min(buf.filled().len());
        if rest.pass && count > 0 {
            out.span(buf, count);
        }
        buf.consume(count);
        rest.left -= count;
        let done = rest.left == 0;
        if done {
            self.client_rest = None;
        }
        done
    }
}

/// Whether a text of that verdict may be one that the settings' book follows.
fn may_change_settings(verdict: &Verdict) -> bool {
    verdict.reason == Reason::SessionControl
        || verdict.tx == TxControl::Savepoint
        || verdict.pin == Some(PinReason::SessionSetting)
}

/// What a text does to the settings; when that can be followed it does not pin.
fn with_op(verdict: Verdict, sql: Option<&[u8]>, env: &Env<'_>) -> (Verdict, Option<SessionOp>) {
    let op = sql.and_then(|sql| router::session_op(sql, env.standard_conforming));
    let followed = op.is_some() && verdict.pin == Some(PinReason::SessionSetting);
    (Verdict { pin: verdict.pin.filter(|_| !followed), ..verdict }, op)
}
