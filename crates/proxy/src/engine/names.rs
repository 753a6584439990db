//! Prepared statements by their names in SQL: PREPARE, EXECUTE and DEALLOCATE, mixed with those of the protocol.
//!
//! SQL finds a statement under the client's own name. What the client has under it is made on the backend under
//! that name, in front of the message that names it; what somebody else left there goes first. A backend
//! remembers what it holds under clients' names, and hears no more of it than it needs.

use bytes::BufMut;
use protocol::message::TxStatus;
use protocol::tracker::{Ask, Owner};
use router::{RESERVED_PREFIX, SessionOp, disguised};

use super::prepare::NO_TOKEN;
use super::{Books, Engine, Env};
use crate::out::Out;
use crate::statements::{NAME_PREFIX, Source, Statement, put_header};

/// Where a name is made ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ahead {
    /// In front of a simple Query: the server ignores it when what is in front fails.
    OfQuery,
    /// Inside of a batch.
    InBatch,
}

impl Engine {
    /// Makes ready the names that statements of these operations are about.
    pub(super) fn settle_names(
        &mut self,
        env: &Env<'_>,
        books: &mut Books,
        out: &mut Out,
        ops: &[SessionOp],
        ahead: Ahead,
    ) {
        if ahead == Ahead::OfQuery && ops.len() == 1 && self.has_failed() {
            // Refused before any name is looked up.
            return;
        }
        for op in ops {
            let Some(name) = op.statement() else { continue };
            if disguised(name).is_some() {
                // A text that names it is disguised as well.
                continue;
            }
            // What is dropped only, or taken, need not be the real one, which may fail to be parsed.
            let any = matches!(op, SessionOp::Prepare { .. } | SessionOp::Deallocate(_));
            self.settle_name(env, books, out, name, if any { Real::No } else { Real::Yes }, ahead);
            if let Some(inner) = self.executes(op, env).as_ref().and_then(SessionOp::statement) {
                self.settle_name(env, books, out, inner, Real::No, ahead);
            }
        }
    }

    /// What the backend has under `name` is what the client has.
    pub(super) fn settle_name(
        &mut self,
        env: &Env<'_>,
        books: &mut Books,
        out: &mut Out,
        name: &[u8],
        real: Real,
        ahead: Ahead,
    ) {
        let wanted = self.statements.any(name).cloned();
        let id = wanted.as_ref().map(|statement| statement.id());
        let held = books.prepared.own(name);
        // The server would ignore it.
        let deaf = self.tracker.is_skipping() || self.tracker.in_copy();
        if name.is_empty() || deaf {
            return;
        }
        // What an earlier batch makes ready is not there when that batch fails.
        let (batch, owed) = (self.statements.batch(), self.tracker.next_push());
        let hangs = self.touched.hangs_on_another(name, batch, owed);
        if held == id.map(Some) && !hangs {
            return;
        }
        if held.is_some() || id.is_some() || hangs {
            self.inject_close(out, name, NO_TOKEN, Owner::Ours);
            books.prepared.drop_own(name);
        }
        if let Some(statement) = wanted {
            self.make_named(env, books, out, (name, &statement), real);
            self.guarded |= ahead == Ahead::OfQuery && real == Real::Yes;
        }
        self.touch(name);
    }

    /// Makes `statement`, or anything, under that name, which the backend does not have.
    fn make_named(
        &mut self,
        env: &Env<'_>,
        books: &mut Books,
        out: &mut Out,
        (name, statement): (&[u8], &Statement),
        real: Real,
    ) {
        if let Some(oldest) = books.prepared.make_room_for_own(env.max_prepared) {
            self.inject_close(out, &oldest, NO_TOKEN, Owner::Ours);
            self.touch(&oldest);
        }
        if real == Real::No {
            books.prepared.set_own(name, None);
            return self.inject_named(out, name, b"\0\0\0");
        }
        books.prepared.set_own(name, Some(statement.id()));
        match statement.source() {
            Source::Parse => {
                out.own(|own| statement.put_parse(own, name));
                self.tracker.push(Ask::Parse(NO_TOKEN), Owner::Ours);
            }
            Source::Prepare => self.run_ours(out, statement.sql()),
        }
    }

    /// What the backend has under `name` is what the books say if it carries out what was pushed last.
    fn touch(&mut self, name: &[u8]) {
        let push = self.tracker.last_push();
        let owed = self.tracker.next_push().unwrap_or(push);
        self.touched.note(name, push, self.statements.batch(), owed);
    }

    fn inject_named(&mut self, out: &mut Out, name: &[u8], tail: &[u8]) {
        out.own(|own| {
            put_header(own, b'P', name.len() + 1 + tail.len());
            own.put_slice(name);
            own.put_u8(0);
            own.put_slice(tail);
        });
        self.tracker.push(Ask::Parse(NO_TOKEN), Owner::Ours);
    }

    /// Runs a statement of ours inside of a batch.
    pub(super) fn run_ours(&mut self, out: &mut Out, sql: &[u8]) {
        let name = format!("{NAME_PREFIX}0");
        let name = name.as_bytes();
        self.inject_close(out, name, NO_TOKEN, Owner::Ours);
        self.inject_named(out, name, &[sql, b"\0\0\0"].concat());
        out.own(|own| {
            put_header(own, b'B', 2 * (name.len() + 1) + 6);
            own.put_slice(name);
            own.put_u8(0);
            own.put_slice(name);
            // The end of the name, no formats, no values, no result formats.
            own.put_slice(&[0; 7]);
            put_header(own, b'E', name.len() + 5);
            own.put_slice(name);
            own.put_slice(&[0; 5]);
            put_header(own, b'C', name.len() + 2);
            own.put_u8(b'P');
            own.put_slice(name);
            own.put_u8(0);
        });
        for ask in [Ask::Bind, Ask::Execute, Ask::Close(NO_TOKEN)] {
            self.tracker.push(ask, Owner::Ours);
        }
    }

    /// `name` as the server gets it, when it could be one of ours.
    pub(super) fn disguised(&mut self, name: &[u8]) -> Option<Vec<u8>> {
        disguised(name).inspect(|_| self.disguises = true)
    }

    /// An error of the server about such a name, with the client's own. False when it is about none.
    pub(super) fn put_undisguised(&self, message: &[u8], out: &mut Out) -> bool {
        let undone = self.disguises.then(|| undisguised(message)).flatten();
        undone.map(|undone| out.own(|own| own.put_slice(&undone))).is_some()
    }

    /// The server failed in something, or ignored it: what was made ready on the way there may not be.
    pub(super) fn doubt_names(&mut self, books: &mut Books) {
        for name in self.touched.take() {
            books.prepared.set_own(&name, None);
        }
    }

    /// What the server has ignored because something of ours failed in front of it ends here.
    pub fn end_guarded(&mut self, out: &mut Out) {
        if !self.guarded || self.tracker.owes() {
            return;
        }
        self.guarded = false;
        if self.tracker.is_skipping() {
            out.own(protocol::write::sync);
            self.tracker.push(Ask::Sync, Owner::Client);
        }
    }

    /// Follows what a statement that names others has done.
    pub(super) fn named(
        &mut self,
        op: SessionOp,
        made: Option<std::sync::Arc<Statement>>,
        books: &mut Books,
    ) {
        match op {
            SessionOp::Prepare { name, .. } => {
                if let Some(statement) = made {
                    books.prepared.set_own(&name, Some(statement.id()));
                    self.statements.define_by_sql(&name, &statement);
                }
            }
            SessionOp::Deallocate(name) => {
                books.prepared.drop_own(&name);
                self.statements.close_now(&name);
            }
            _ => {}
        }
    }

    /// The transaction has failed, as far as is known.
    pub(super) fn has_failed(&self) -> bool {
        self.tracker.is_settled() && self.tracker.status() == TxStatus::Failed
    }
}

fn undisguised(message: &[u8]) -> Option<Vec<u8>> {
    let prefix = RESERVED_PREFIX.len();
    let at = message.windows(prefix).position(|part| part == RESERVED_PREFIX)? + prefix;
    let letter = message.get(at).filter(|letter| (b'a'..=b'j').contains(letter))?;
    let mut undone = message.to_vec();
    *undone.get_mut(at)? = b'0' + (letter - b'a');
    Some(undone)
}

/// Whether the statement itself is needed, or anything of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Real {
    Yes,
    No,
}
