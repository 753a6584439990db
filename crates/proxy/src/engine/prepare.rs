//! Parse, Bind, Describe, Close: a client's names become those that everybody's statements have on the
//! servers, and a statement that the backend lacks is parsed in front.

use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use protocol::frame::{HEADER_LEN, Header};
use protocol::message::{self, Bind, Object, View};
use protocol::tracker::{Ask, Owner, Token};
use router::{Effect, SessionOp, StatementKind, TxControl};

use super::client::{ClientOuts, may_change_results};
use super::names::{Ahead, Real};
use super::{Books, Engine, Env, Passed};
use crate::buffer::Buf;
use crate::out::Out;
use crate::statements::{NAME_PREFIX, Source, Statement, put_header};

/// A message of a token that no book waits for.
pub(super) const NO_TOKEN: Token = Token(0);

impl Engine {
    /// A statement of ours with that text, in place of the one before it; `token` is of what is to be taken back
    /// when the server does not come to it.
    pub(super) fn prepare_stand_in(&mut self, out: &mut Out, name: &str, sql: &str, token: Token) {
        self.inject_close(out, name.as_bytes(), NO_TOKEN, Owner::Ours);
        out.own(|own| {
            put_header(own, b'P', name.len() + sql.len() + 4);
            own.put_slice(name.as_bytes());
            own.put_u8(0);
            own.put_slice(sql.as_bytes());
            own.put_slice(b"\0\0\0");
        });
        self.tracker.push(Ask::Parse(token), Owner::Ours);
    }

    pub(super) fn parse(
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
            env.watch.passed(Passed::ClientParse);
            env.watch.passed(Passed::ServerParse);
            return self.ask(Ask::Parse(NO_TOKEN), buf, outs.server, header);
        };
        let statement = self.parsed(env, &parse);
        // A name that is taken is refused by whom has it.
        let taken = self.statements.any(parse.name).filter(|_| !parse.name.is_empty());
        let verdict = taken.unwrap_or(&statement).verdict();
        if self.is_local(&verdict, outs.server) {
            return;
        }
        env.watch.passed(Passed::ClientParse);
        let named_by_sql = self.statements.get_by_sql(parse.name).is_some();
        // The columns of what is executed are looked up now.
        self.settle_named_by(env, books, outs.server, &statement, |op| {
            matches!(op, SessionOp::Execute(_) | SessionOp::Explain(_))
        });
        if parse.name.is_empty() && self.may_keep(env, buf, &statement, (&parse, header)) {
            buf.consume(header.len);
            self.keep(env, books, outs.server, &statement);
            return self.follow_events(books);
        }
        if parse.name.is_empty() {
            env.watch.passed(Passed::ServerParse);
            let token = self.statements.define(b"", &statement, Some(env.schema));
            self.statements.held_before(books.prepared.unnamed());
            books.prepared.set_unnamed(Some(statement.id()));
            if statement.sql() == parse.sql {
                return self.ask(Ask::Parse(token), buf, outs.server, header);
            }
            buf.consume(header.len);
            return self.inject_parse(env, outs.server, (&statement, ""), token, Owner::Client);
        }
        let name: Box<[u8]> = parse.name.into();
        buf.consume(header.len);
        let failed = self.has_failed();
        // A failed transaction still takes what ends it, and what is empty.
        let verdict = statement.verdict();
        let refused = failed && verdict.tx == TxControl::None && verdict.statements > 0;
        if named_by_sql {
            // The server has it under the client's name, and refuses the same: 42P05.
            self.settle_name(env, books, outs.server, &name, Real::No, Ahead::InBatch);
            outs.server.own(|own| statement.put_parse(own, &name));
            self.tracker.push(Ask::Parse(NO_TOKEN), Owner::Client);
        } else if let Some(known) = self.statements.get(&name).cloned() {
            // As the server would: 42P05, told of the name on the server, which is put right on the way back.
            self.ensure_prepared(env, books, outs.server, &known);
            self.inject_parse(env, outs.server, (&statement, known.name()), NO_TOKEN, Owner::Client);
            self.asked_by(&name);
        } else if refused {
            self.inject_parse(env, outs.server, (&statement, statement.name()), NO_TOKEN, Owner::Client);
        } else {
            // Parsed anew even where the backend holds it: the client expects the schema as it is now.
            self.make_place(env, books, outs.server, &statement);
            let token = self.statements.define(&name, &statement, Some(env.schema));
            self.inject_parse(env, outs.server, (&statement, statement.name()), token, Owner::Client);
        }
        self.follow_events(books);
    }

    /// The statement of a Parse message; names in it that could be ours are disguised.
    fn parsed(&mut self, env: &Env<'_>, parse: &message::Parse<'_>) -> Arc<Statement> {
        let statement = env.cache.intern(parse.tail, env.generation, || (env.classify)(parse.sql));
        match self.disguise(&statement.verdict(), Some(parse.sql), env) {
            Some(text) => {
                let rest = parse.tail.get(parse.sql.len()..).unwrap_or_default();
                env.cache.intern(&[&text, rest].concat(), env.generation, || (env.classify)(&text))
            }
            None => statement,
        }
    }

    /// Makes ready the names that a statement's text is about, as far as they are `wanted`.
    fn settle_named_by(
        &mut self,
        env: &Env<'_>,
        books: &mut Books,
        out: &mut Out,
        statement: &Statement,
        wanted: impl Fn(&SessionOp) -> bool,
    ) {
        if statement.verdict().effect == Effect::Statements {
            let mut ops = router::session_ops(statement.sql(), env.standard_conforming).unwrap_or_default();
            let one_of = ops.len();
            // Of several the server takes none.
            ops.retain(|op| one_of == 1 && wanted(op));
            self.settle_names(env, books, out, &ops, Ahead::InBatch);
        }
    }

    pub(super) fn inject_parse(
        &mut self,
        env: &Env<'_>,
        out: &mut Out,
        (statement, name): (&Statement, &str),
        token: Token,
        owner: Owner,
    ) {
        env.watch.passed(Passed::ServerParse);
        out.own(|own| statement.put_parse(own, name.as_bytes()));
        self.tracker.push(Ask::Parse(token), owner);
    }

    /// The backend will hold one more statement: another one may have to go.
    pub(super) fn make_place(
        &mut self,
        env: &Env<'_>,
        books: &mut Books,
        out: &mut Out,
        statement: &Statement,
    ) {
        let stale = books.prepared.take(statement.id());
        let oldest = books.prepared.insert(statement.id(), env.max_prepared);
        for dropped in stale.into_iter().chain(oldest) {
            let token = self.statements.close_ours(dropped);
            self.inject_close(out, dropped.id.name().as_bytes(), token, Owner::Ours);
        }
    }

    pub(super) fn inject_close(&mut self, out: &mut Out, name: &[u8], token: Token, owner: Owner) {
        out.own(|own| put_object(own, b'C', name));
        self.tracker.push(Ask::Close(token), owner);
    }

    fn ensure_prepared(
        &mut self,
        env: &Env<'_>,
        books: &mut Books,
        out: &mut Out,
        statement: &Arc<Statement>,
    ) {
        if self.stand_in.is_for(statement) {
            // It is there, or about to be.
            return;
        }
        self.settle_named_by(env, books, out, statement, |_| true);
        let unasked = self.statements.take_unasked(statement.id());
        if !books.prepared.touch(statement.id()) || unasked {
            self.make_place(env, books, out, statement);
            let token = self.statements.prepare_ours(statement, env.schema, false);
            self.inject_parse(env, out, (statement, statement.name()), token, Owner::Ours);
        }
    }

    pub(super) fn bind_message(
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
                env.watch.passed(Passed::Bind);
                self.ask(Ask::Bind, buf, out, header);
                return None;
            }
            View::Ready(bind) => bind,
        };
        let known = self.statements.any(bind.statement).cloned();
        let by_sql = known.as_ref().is_some_and(|statement| statement.source() == Source::Prepare);
        let missing = (seen.len() < header.len).then_some(header.len);
        if let Some(stops) = known.as_ref().and_then(|known| self.stops_bind(env, known, missing, out)) {
            return stops;
        }
        if self.has_local_portals() {
            self.bound_locally(bind.portal, false);
        }
        env.watch.bound(seen, bind.rest);
        self.in_batch = true;
        self.gate.bound = true;
        let mut step = None;
        if let Some(statement) = &known {
            let verdict = env.verdict(statement);
            if let Some(why) = self.refusal(&verdict, Some(statement.sql()), env) {
                self.refuse_bind(buf, out, header, why);
                return None;
            }
            env.watch.statement(&verdict, Some(statement.sql()));
            let ops = self.follow(&verdict, Some(statement.sql()).filter(|_| !by_sql), env);
            step = self.steps(&ops, env).pop_front();
            self.ddl |= verdict.kind == StatementKind::Ddl && may_change_results(Some(statement.sql()));
            self.follow_bound(&verdict, &ops, env, books, out);
        }
        self.settings.portal(bind.portal, step);
        match self.bind_front(env, books, out, known.as_ref(), (&bind, header.len)) {
            Some(rest) => self.pass_rest(out, buf, rest, header.len),
            None => self.ask(Ask::Bind, buf, out, header),
        }
        self.follow_events(books);
        None
    }

    /// Has the server make what a Bind of `len` bytes binds, where it lacks it, and writes the front of the Bind under the
    /// server's name; how many bytes of the client's that stands for. `None` where the client's own does.
    fn bind_front(
        &mut self,
        env: &Env<'_>,
        books: &mut Books,
        out: &mut Out,
        known: Option<&Arc<Statement>>,
        (bind, len): (&Bind<'_>, usize),
    ) -> Option<usize> {
        if let Some(statement) = known.filter(|known| self.is_refused_unheld(known, bind.statement, books)) {
            return Some(self.bind_refused(out, statement, bind, len));
        }
        match known.filter(|statement| statement.source() == Source::Parse) {
            Some(statement) if bind.statement.is_empty() && !self.stand_in.is_for(statement) => {
                self.ensure_unnamed(env, books, out, statement);
                None
            }
            Some(statement) => {
                self.ensure_prepared(env, books, out, statement);
                Some(self.bind_as(out, bind, statement.name().as_bytes(), len))
            }
            // The server says that there is none; one made by PREPARE is there.
            None => {
                self.hide_unnamed(books, out, bind.statement);
                self.settle_name(env, books, out, bind.statement, Real::Yes, Ahead::InBatch);
                let name = self.disguised(bind.statement);
                name.map(|name| self.bind_as(out, bind, &name, len))
            }
        }
    }

    /// Whether a Bind of that statement is not forwarded, or not yet: it is for us to answer, once what is `missing` of it
    /// is there, or it is to be judged first. Gives how many bytes must be there, if there are too few.
    fn stops_bind(
        &mut self,
        env: &Env<'_>,
        statement: &Statement,
        missing: Option<usize>,
        out: &mut Out,
    ) -> Option<Option<usize>> {
        let verdict = statement.verdict();
        if verdict.effect == Effect::Console {
            if missing.is_some() {
                return Some(missing);
            }
            if self.is_local(&verdict, out) {
                return Some(None);
            }
        }
        let waits = self.gate.is_standby()
            && self.waits_in_doubt(&env.verdict(statement), Some(statement.sql()), env, out);
        waits.then_some(None)
    }

    /// What follows the first `rest` bytes of a Bind message of `len` bytes, whose front has been written.
    fn pass_rest(&mut self, out: &mut Out, buf: &mut Buf, rest: usize, len: usize) {
        buf.consume(rest);
        self.forward(buf, out, len - rest);
    }

    /// Writes the front of a Bind message of the statement that the server knows as `name`; how many bytes of the
    /// client's it stands for.
    pub(super) fn bind_as(&mut self, out: &mut Out, bind: &Bind<'_>, name: &[u8], len: usize) -> usize {
        self.tracker.push(Ask::Bind, Owner::Client);
        self.asked_by(bind.statement);
        put_bind_front(out, bind, name, len)
    }

    /// The message that was pushed last is about the statement that the client calls `name`.
    fn asked_by(&mut self, name: &[u8]) {
        let push = self.tracker.last_push();
        self.statements.ask_by(push, name, self.tracker.next_push().unwrap_or(push));
    }

    /// Describe of a statement that was not made by Parse.
    fn describe_other(
        &mut self,
        env: &Env<'_>,
        books: &mut Books,
        buf: &mut Buf,
        out: &mut Out,
        (name, header): (Box<[u8]>, Header),
    ) {
        self.hide_unnamed(books, out, &name);
        self.settle_name(env, books, out, &name, Real::Yes, Ahead::InBatch);
        let Some(other) = self.disguised(&name) else {
            return self.ask(Ask::DescribeStatement, buf, out, header);
        };
        out.own(|own| put_object(own, b'D', &other));
        self.tracker.push(Ask::DescribeStatement, Owner::Client);
        buf.consume(header.len);
    }

    /// The client has no such statement: the unnamed one that the backend may have is somebody else's.
    fn hide_unnamed(&mut self, books: &mut Books, out: &mut Out, name: &[u8]) {
        if name.is_empty() {
            self.inject_close(out, b"", NO_TOKEN, Owner::Ours);
            books.prepared.set_unnamed(None);
        }
    }

    fn ensure_unnamed(
        &mut self,
        env: &Env<'_>,
        books: &mut Books,
        out: &mut Out,
        statement: &Arc<Statement>,
    ) {
        self.settle_named_by(env, books, out, statement, |_| true);
        if !books.prepared.is_unnamed(statement.id()) {
            let token = self.statements.prepare_ours(statement, env.schema, true);
            books.prepared.set_unnamed(Some(statement.id()));
            self.inject_parse(env, out, (statement, ""), token, Owner::Ours);
        }
    }

    /// Describe and Close.
    pub(super) fn object(
        &mut self,
        env: &Env<'_>,
        books: &mut Books,
        buf: &mut Buf,
        out: &mut Out,
        header: Header,
    ) {
        self.in_batch = true;
        let object = message::object(buf.at(buf.position(), header.len));
        let named = match object {
            Some(Object::Statement(name)) => Some((name, self.statements.get(name).cloned())),
            Some(Object::Portal(portal)) if self.is_local_portal(portal, out) => return,
            _ => None,
        };
        if let Some((_, Some(statement))) = &named
            && self.is_local(&statement.verdict(), out)
        {
            return;
        }
        match (header.tag, named) {
            (b'D', Some((b"", Some(statement)))) if !self.stand_in.is_for(&statement) => {
                self.ensure_unnamed(env, books, out, &statement);
                self.ask(Ask::DescribeStatement, buf, out, header);
            }
            (b'D', Some((name, Some(statement)))) => {
                self.ensure_prepared(env, books, out, &statement);
                out.own(|own| put_object(own, b'D', statement.name().as_bytes()));
                self.tracker.push(Ask::DescribeStatement, Owner::Client);
                self.asked_by(name);
                buf.consume(header.len);
            }
            (b'D', Some((name, None))) => self.describe_other(env, books, buf, out, (name.into(), header)),
            (b'D', None) => self.ask(Ask::DescribePortal, buf, out, header),
            (_, Some((name, Some(_)))) if !name.is_empty() => {
                // The statement stays for others; closing one that never was gives the same answer.
                let token = self.statements.close(name);
                books.prepared.forget_own(name);
                self.inject_close(out, format!("{NAME_PREFIX}0").as_bytes(), token, Owner::Client);
                buf.consume(header.len);
            }
            (_, Some((name, None))) if !name.is_empty() => {
                let by_sql = self.statements.get_by_sql(name).is_some();
                let token = self.statements.close(name);
                // What the backend has under that name is the client's, or somebody else's.
                let closed = if by_sql { name.to_vec() } else { format!("{NAME_PREFIX}0").into_bytes() };
                books.prepared.forget_own(name);
                self.inject_close(out, &closed, token, Owner::Client);
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
}

/// Describe or Close of a statement.
fn put_object(own: &mut BytesMut, tag: u8, name: &[u8]) {
    put_header(own, tag, name.len() + 2);
    own.put_u8(b'S');
    own.put_slice(name);
    own.put_u8(0);
}

/// The statement that a message names, when as much of it has arrived.
pub(super) fn named_statement(tag: u8, message: &[u8]) -> Option<&[u8]> {
    let body = message.get(HEADER_LEN..)?;
    let text = |at: usize| body.get(at..)?.split(|byte| *byte == 0).next();
    match (tag, body) {
        (b'P', _) | (b'D' | b'C', [b'S', ..]) => text(usize::from(tag != b'P')),
        (b'B', _) => text(text(0)?.len() + 1),
        _ => None,
    }
}

/// Writes the front of a Bind message of `len` bytes, of the statement that the server knows as `name`; how many bytes
/// of the client's it stands for.
fn put_bind_front(out: &mut Out, bind: &Bind<'_>, name: &[u8], len: usize) -> usize {
    let length = bind.portal.len() + bind.statement.len() + 2;
    out.own(|own| {
        put_header(own, b'B', len - HEADER_LEN - length + bind.portal.len() + name.len() + 2);
        own.put_slice(bind.portal);
        own.put_u8(0);
        own.put_slice(name);
        own.put_u8(0);
    });
    bind.rest
}
