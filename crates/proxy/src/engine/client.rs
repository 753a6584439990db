//! Client to server: messages are forwarded as they stand, names rewritten, ours put in front.

use protocol::frame::{HEADER_LEN, Header, frontend_header};
use protocol::message::{self, TxStatus};
use protocol::tracker::{Ask, Owner, Push};
use router::{MAX_SCANNED, Reason, StatementKind, Verdict};

use super::gate::Pass;
use super::names::Ahead;
use super::scan::query_verdict;
use super::{Books, ClientStep, Engine, Env, Moved, Rest, Violation, put_query};
use crate::buffer::Buf;
use crate::out::Out;
use crate::statements::MAX_STATEMENT_LEN;

/// What both directions write while client bytes are forwarded.
pub struct ClientOuts<'a> {
    /// To the server.
    pub server: &'a mut Out,
    /// To the client: replies that we make ourselves.
    pub client: &'a mut Out,
}

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
            if !Rest::relay(&mut self.client_rest, buf, outs.server) {
                return Ok(ClientStep::More(1));
            }
            let Some(header) = frontend_header(buf.filled())? else {
                return Ok(ClientStep::More(HEADER_LEN));
            };
            if self.waits_for_name(header.tag, buf.filled()) || self.waits_for_reset(header.tag, outs.server)
            {
                return Ok(ClientStep::Hold);
            }
            if self.waits_for_stand_in() {
                return Ok(ClientStep::Hold);
            }
            if header.tag != b'X' && self.skips_locally(header.tag) {
                self.drop_message(header.len);
                continue;
            }
            match self.gate(buf.filled(), env)? {
                Pass::Go => {}
                Pass::More(need) => return Ok(ClientStep::More(need)),
                Pass::Hold => return Ok(ClientStep::Hold),
                Pass::Move => {
                    self.move_batch(outs.server);
                    return Ok(ClientStep::Hold);
                }
                Pass::Leave => {
                    self.leave(outs.server);
                    return Ok(ClientStep::Hold);
                }
                Pass::Chain => {
                    self.leave_failed(outs.server);
                    return Ok(ClientStep::Hold);
                }
            }
            if header.tag == b'X' {
                return Ok(ClientStep::Terminate);
            }
            self.prepare_unit(env, books, outs.server);
            if let Some(need) = self.message(env, books, buf, outs, header)? {
                return Ok(ClientStep::More(need));
            }
            if let Some(step) = self.stop.take().map(ClientStep::from) {
                return Ok(step);
            }
            self.end_doubt();
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
                if self.is_local_portal(portal, outs.server) {
                    return Ok(None);
                }
                let op = self.settings.execute(Push(self.tracker.last_push().0 + 1), portal);
                self.ask(Ask::Execute, buf, outs.server, header);
                env.watch.asked(self.tracker.last_push());
                self.executed(outs.server, op);
            }
            b'S' => {
                self.end_of_batch();
                self.tracker.push(Ask::Sync, Owner::Client);
                self.forward(buf, outs.server, header.len);
            }
            b'F' => return Ok(self.function_call(env, books, buf, outs.server, header)),
            b'd' | b'c' | b'f' => self.copy(buf, outs.server, header),
            // Flush, of which the server refuses what has a body.
            _ if header.len > HEADER_LEN => self.ask(Ask::BadFlush, buf, outs.server, header),
            _ => self.forward(buf, outs.server, header.len),
        }
        Ok(None)
    }

    /// In front of a unit outside of a transaction: settings that the backend lacks, and BEGIN.
    fn prepare_unit(&mut self, env: &Env<'_>, books: &mut Books, out: &mut Out) {
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
        self.forget_sequences(env, books, out);
        for kept in std::mem::take(&mut self.begin) {
            out.own(|own| kept.put(own));
            kept.asks().iter().for_each(|ask| self.tracker.push(*ask, Owner::Setup));
            books.prepared.set_unnamed(None);
            self.setup = self.tracker.last_push();
        }
    }

    pub(super) fn inject_query(&mut self, out: &mut Out, sql: &[u8]) {
        out.own(|own| put_query(own, sql));
        self.tracker.push(Ask::Query, Owner::Ours);
        self.setup = self.tracker.last_push();
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
            None if self.is_unread(header.len, env) => Verdict::unparsed(Reason::TooLong),
            None if buf.filled().len() < header.len => return Some(header.len),
            None => query_verdict(buf.at(buf.position(), header.len), env),
        };
        if self.is_local_query(&verdict, out) {
            return None;
        }
        if self.tracker.is_skipping() {
            // Ignored, and the batch goes on.
            self.ask(Ask::Query, buf, out, header);
            return None;
        }
        let whole = buf.at(buf.position(), buf.filled().len().min(header.len));
        let sql = message::query_text(whole).filter(|_| whole.len() == header.len);
        if self.waits_in_doubt(&verdict, sql, env, out) {
            return None;
        }
        if self.refuse_query(&verdict, env, books, buf, out, header.len) {
            return None;
        }
        let whole = buf.at(buf.position(), buf.filled().len().min(header.len));
        let sql = message::query_text(whole).filter(|_| whole.len() == header.len);
        env.watch.statement(&verdict, sql);
        self.ddl |= verdict.kind == StatementKind::Ddl && may_change_results(sql);
        let ops = self.follow(&verdict, sql, env);
        self.note_reset(&verdict, &ops);
        let disguised = self.disguise(&verdict, sql, env);
        let mut steps = self.steps(&ops, env);
        let spliced = self.splice(disguised.as_deref().or(sql), &ops, &mut steps, env);
        self.settle_names(env, books, out, &ops, Ahead::OfQuery);
        self.follow_sequences(&verdict, env, books, out, Ahead::OfQuery);
        self.follow_executed(&ops, env, books, out, Ahead::OfQuery);
        self.statements.drop_unnamed();
        books.prepared.set_unnamed(None);
        self.end_of_batch();
        self.tracker.push(Ask::Query, Owner::Client);
        env.watch.asked(self.tracker.last_push());
        self.settings.query(self.tracker.last_push(), steps);
        match spliced.map(|spliced| self.note_spliced(spliced)).or(disguised) {
            Some(text) => {
                out.own(|own| put_query(own, &text));
                buf.consume(header.len);
            }
            None => self.forward(buf, out, header.len),
        }
        self.chase(out, &ops);
        None
    }

    /// Whether a Query of `len` bytes is not looked into. On a standby, where it would run, more is.
    fn is_unread(&self, len: usize, env: &Env<'_>) -> bool {
        let longest = if self.gate.is_standby() { env.max_parsed.max(MAX_SCANNED) } else { env.max_parsed };
        len > longest + HEADER_LEN + 1
    }

    /// What passes next ends in ReadyForQuery.
    pub(super) fn end_of_batch(&mut self) {
        self.in_batch = false;
        self.gate.bound = false;
        self.stand_in.end_batch();
        self.statements.end_batch();
    }

    pub(super) fn ask(&mut self, ask: Ask, buf: &mut Buf, out: &mut Out, header: Header) {
        self.in_batch = true;
        self.tracker.push(ask, Owner::Client);
        self.forward(buf, out, header.len);
    }

    /// The client's Terminate was passed on, into a COPY.
    #[must_use]
    pub fn has_said_goodbye(&self) -> bool {
        self.said_goodbye
    }

    /// Passes the client's Terminate on to a server that reads COPY data.
    pub fn say_goodbye(&mut self, out: &mut Out) {
        self.said_goodbye = true;
        out.own(protocol::write::terminate);
        // The server fails on it, as on any message that has no place there.
        self.tracker.push(Ask::Execute, Owner::Client);
    }

    fn copy(&mut self, buf: &mut Buf, out: &mut Out, header: Header) {
        let pass = match header.tag {
            b'd' => self.tracker.push_copy_data(),
            _ => self.tracker.push_copy_end(),
        };
        Rest::begin(&mut self.client_rest, (header.len, pass), buf, out);
    }

    pub(super) fn forward(&mut self, buf: &mut Buf, out: &mut Out, len: usize) {
        Rest::begin(&mut self.client_rest, (len, true), buf, out);
    }
}

/// Whether DDL of that text may give statements other result columns. What only adds or fills does not:
/// it would have everything parsed again for nothing.
pub(super) fn may_change_results(sql: Option<&[u8]>) -> bool {
    let sql = sql.unwrap_or_default().trim_ascii_start();
    let begins = |word: &[u8]| sql.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    let harmless: [&[u8]; 6] =
        [b"truncate", b"grant", b"revoke", b"create index", b"create temp", b"create unlogged"];
    !harmless.into_iter().any(begins)
}
