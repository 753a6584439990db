//! Parse, Bind, Describe, Close: a client's names become those that everybody's statements have on the
//! servers, and a statement that the backend lacks is parsed in front.

use std::sync::Arc;

use bytes::BufMut;
use protocol::frame::{HEADER_LEN, Header};
use protocol::message::{self, Bind, Object, TxStatus, View};
use protocol::tracker::{Ask, Owner, Token};
use router::{Effect, SessionOp, StatementKind, TxControl, Verdict};

use super::client::{ClientOuts, may_change_results, may_change_settings, resets, with_op};
use super::{Books, Engine, Env, Passed, put_query};
use crate::buffer::Buf;
use crate::out::Out;
use crate::statements::{NAME_PREFIX, Statement, put_header};

/// A message of a token that no book waits for.
pub(super) const NO_TOKEN: Token = Token(0);

impl Engine {
    /// DEALLOCATE of a statement that was made by Parse: it stays on the server for others, who is given one
    /// without a text to deallocate. False when the client has no such statement, or the server will refuse
    /// anyway.
    pub(super) fn deallocate(&mut self, books: &mut Books, out: &mut Out, name: &[u8]) -> bool {
        let failed = self.tracker.is_settled() && self.tracker.status() == TxStatus::Failed;
        if failed || name.is_empty() || self.statements.get(name).is_none() {
            return false;
        }
        let stand_in = format!("{NAME_PREFIX}0");
        // Cannot fail, which would have the server ignore the Query behind it.
        self.prepare_stand_in(out, &stand_in, "", NO_TOKEN);
        self.statements.close_now(name);
        self.statements.drop_unnamed();
        books.prepared.set_unnamed(None);
        out.own(|own| put_query(own, format!("DEALLOCATE {stand_in}").as_bytes()));
        self.tracker.push(Ask::Query, Owner::Client);
        self.end_of_batch();
        true
    }

    /// As [`Engine::deallocate`], of a statement that is about to be bound: gives the one to bind in its place.
    fn deallocation(
        &mut self,
        env: &Env<'_>,
        out: &mut Out,
        op: Option<&SessionOp>,
    ) -> Option<Arc<Statement>> {
        let Some(SessionOp::Deallocate(name)) = op else { return None };
        let failed = self.tracker.is_settled() && self.tracker.status() == TxStatus::Failed;
        if failed || name.is_empty() || self.statements.get(name).is_none() {
            return None;
        }
        let stand_in = format!("{NAME_PREFIX}0");
        let token = self.statements.close(name);
        self.prepare_stand_in(out, &stand_in, "", token);
        let sql = format!("DEALLOCATE {stand_in}");
        Some(
            env.cache
                .intern(format!("{sql}\0\0\0").as_bytes(), env.generation, || (env.classify)(sql.as_bytes())),
        )
    }

    /// A statement of ours with that text, in place of the one before it; `token` is of what is to be taken back
    /// when the server does not come to it.
    pub(super) fn prepare_stand_in(&mut self, out: &mut Out, name: &str, sql: &str, token: Token) {
        self.inject_close(out, name, NO_TOKEN, Owner::Ours);
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
        let statement = env.cache.intern(parse.tail, env.generation, || (env.classify)(parse.sql));
        // A name that is taken is refused by whom has it.
        let taken = self.statements.get(parse.name).filter(|_| !parse.name.is_empty());
        let verdict = taken.unwrap_or(&statement).verdict();
        if self.is_local(&verdict, outs.server) {
            return;
        }
        env.watch.passed(Passed::ClientParse);
        if parse.name.is_empty() {
            env.watch.passed(Passed::ServerParse);
            let token = self.statements.define(b"", &statement, Some(env.schema));
            books.prepared.set_unnamed(Some(statement.id()));
            return self.ask(Ask::Parse(token), buf, outs.server, header);
        }
        let name: Box<[u8]> = parse.name.into();
        buf.consume(header.len);
        let failed = self.tracker.is_settled() && self.tracker.status() == TxStatus::Failed;
        // A failed transaction still takes what ends it.
        let refused = failed && statement.verdict().tx == TxControl::None;
        if let Some(known) = self.statements.get(&name).cloned() {
            // As the server would: 42P05, told of the name on the server, which is put right on the way back.
            self.ensure_prepared(env, books, outs.server, &known);
            self.inject_parse(env, outs.server, (&statement, known.name()), NO_TOKEN, Owner::Client);
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

    fn inject_parse(
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
    fn make_place(&mut self, env: &Env<'_>, books: &mut Books, out: &mut Out, statement: &Statement) {
        let stale = books.prepared.take(statement.id());
        let oldest = books.prepared.insert(statement.id(), env.max_prepared);
        for dropped in stale.into_iter().chain(oldest) {
            let token = self.statements.close_ours(dropped);
            self.inject_close(out, &dropped.id.name(), token, Owner::Ours);
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

    fn ensure_prepared(
        &mut self,
        env: &Env<'_>,
        books: &mut Books,
        out: &mut Out,
        statement: &Arc<Statement>,
    ) {
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
        let known = self.statements.get(bind.statement).cloned();
        if let Some(statement) =
            known.as_ref().filter(|statement| statement.verdict().effect == Effect::Console)
        {
            if seen.len() < header.len {
                return Some(header.len);
            }
            if self.is_local(&statement.verdict(), out) {
                return None;
            }
        }
        if self.has_local_portals() {
            self.bound_locally(bind.portal, false);
        }
        env.watch.passed(Passed::Bind);
        self.in_batch = true;
        self.gate.bound = true;
        let mut op = None;
        if let Some(statement) = &known {
            let verdict = env.verdict(statement);
            if let Some(why) = self.refusal(&verdict, Some(statement.sql()), env) {
                self.refuse_bind(buf, out, header, why);
                return None;
            }
            env.watch.statement(&verdict, Some(statement.sql()));
            op = self.note_bound(env, verdict, statement);
        }
        let stand_in = self.deallocation(env, out, op.as_ref());
        self.settings.portal(bind.portal, op);
        let unnamed = bind.statement.is_empty() && stand_in.is_none();
        match stand_in.or(known) {
            Some(statement) if unnamed => {
                self.ensure_unnamed(env, books, out, &statement);
                self.ask(Ask::Bind, buf, out, header);
            }
            Some(statement) => {
                self.ensure_prepared(env, books, out, &statement);
                let rest = put_bind(out, &bind, statement.name(), header.len);
                self.tracker.push(Ask::Bind, Owner::Client);
                buf.consume(rest);
                self.forward(buf, out, header.len - rest);
            }
            // The server says that there is none; one made by PREPARE is there, on this backend.
            None => {
                self.hide_unnamed(books, out, bind.statement);
                self.ask(Ask::Bind, buf, out, header);
            }
        }
        self.follow_events(books);
        None
    }

    /// The client has no such statement: the unnamed one that the backend may have is somebody else's.
    fn hide_unnamed(&mut self, books: &mut Books, out: &mut Out, name: &[u8]) {
        if name.is_empty() {
            self.inject_close(out, "", NO_TOKEN, Owner::Ours);
            books.prepared.set_unnamed(None);
        }
    }

    /// What the statement that is bound means for the session.
    fn note_bound(&mut self, env: &Env<'_>, verdict: Verdict, statement: &Statement) -> Option<SessionOp> {
        let (verdict, op) = match may_change_settings(&verdict) {
            true => with_op(verdict, Some(statement.sql()), env),
            false => (verdict, None),
        };
        self.note(&verdict);
        self.resets |= op.as_ref().is_some_and(resets);
        self.ddl |= verdict.kind == StatementKind::Ddl && may_change_results(Some(statement.sql()));
        op
    }

    fn ensure_unnamed(
        &mut self,
        env: &Env<'_>,
        books: &mut Books,
        out: &mut Out,
        statement: &Arc<Statement>,
    ) {
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
            (b'D', Some((b"", Some(statement)))) => {
                self.ensure_unnamed(env, books, out, &statement);
                self.ask(Ask::DescribeStatement, buf, out, header);
            }
            (b'D', Some((_, Some(statement)))) => {
                self.ensure_prepared(env, books, out, &statement);
                let name = statement.name();
                out.own(|own| {
                    put_header(own, b'D', name.len() + 2);
                    own.put_u8(b'S');
                    own.put_slice(name.as_bytes());
                    own.put_u8(0);
                });
                self.tracker.push(Ask::DescribeStatement, Owner::Client);
                buf.consume(header.len);
            }
            (b'D', Some((name, None))) => {
                self.hide_unnamed(books, out, name);
                self.ask(Ask::DescribeStatement, buf, out, header);
            }
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

/// The front of a Bind message of `len` bytes, of the statement that the server knows as `name`; how long it was in
/// the client's.
fn put_bind(out: &mut Out, bind: &Bind<'_>, name: &str, len: usize) -> usize {
    let body = len - 1 - 4 - bind.statement.len() + name.len();
    out.own(|own| {
        put_header(own, b'B', body);
        own.put_slice(bind.portal);
        own.put_u8(0);
        own.put_slice(name.as_bytes());
        own.put_u8(0);
    });
    bind.rest
}
