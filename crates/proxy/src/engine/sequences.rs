//! What a server remembers of sequences for its session: the answers of `currval` and `lastval`.
//!
//! It cannot be moved to another backend, and most sessions never ask for it. A backend's books say whose it is; who
//! asks finds its own or nothing (DISCARD SEQUENCES goes in front, in the same write). Who is known to ask behind
//! the transaction that advanced a sequence keeps the backend from then on; of whom nothing is known yet, for a while.
//!
//! Left out: the first time that sessions of a kind ask within a transaction in which something may have been advanced,
//! the answer is the backend's: their own when a sequence was advanced, as a direct connection's would be.

use router::{PinReason, Sequences, SessionOp, Verdict};

use super::names::Ahead;
use super::{Books, Engine, Env};
use crate::out::Out;

/// Brings a backend to where it remembers nothing.
const FORGET: &str = "DISCARD SEQUENCES";
/// A session that has not asked within so many statements does not keep its backend any longer.
const PATIENCE: u8 = 16;

/// Whose values of sequences a backend remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Remembers {
    /// Nobody's.
    #[default]
    Nothing,
    /// Of nobody but that session.
    Of(u64),
    /// Of several, or nobody knows.
    Several,
}

impl Remembers {
    fn is_clean_for(self, session: u64) -> bool {
        self == Self::Nothing || self == Self::Of(session)
    }

    fn advanced_by(self, session: u64) -> Self {
        if self.is_clean_for(session) { Self::Of(session) } else { Self::Several }
    }
}

/// What is known of how sessions of a client's kind use sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Habit {
    /// Nothing.
    #[default]
    Unknown,
    /// They do not ask, so far.
    Silent,
    /// They ask within the transaction that advances.
    Within,
    /// They ask behind it.
    Behind,
}

/// A session's part in it.
#[derive(Debug, Default)]
pub(super) struct Asker {
    /// The session's number, and another one whenever it has made everything forgotten.
    me: u64,
    /// Something was or may have been advanced in this transaction.
    advanced: bool,
    /// How many more statements it is held without asking.
    patience: u8,
    /// The backend was told to forget, and has not answered yet.
    forgetting: bool,
}

impl Engine {
    /// The session's number; no other one has it.
    pub fn set_number(&mut self, number: u32) {
        self.settings.asker.me = u64::from(number) << 32;
    }

    /// The session keeps its backend although nobody knows yet whether it will ask.
    #[must_use]
    pub fn may_yield(&self) -> bool {
        self.settings.asker.patience > 0
    }

    /// Others wait: a session that may yield, and is doing nothing, lets go. Says whether it did.
    pub fn yield_sequences(&mut self) -> bool {
        let yields = self.may_yield() && self.is_settled() && self.tracker.is_clean();
        if yields {
            self.release_sequences();
        }
        yields
    }

    fn release_sequences(&mut self) {
        self.settings.asker.patience = 0;
        self.settings.pins.release(PinReason::Sequence);
    }

    /// A backend of the primary was taken for sessions that ask: it remembers nothing of others.
    pub(super) fn forget_sequences(&mut self, env: &Env<'_>, books: &Books, out: &mut Out) {
        let asks = matches!(env.habit, Habit::Within | Habit::Behind);
        if asks && !self.gate.is_standby() && !books.remembers.is_clean_for(self.settings.asker.me) {
            self.inject_query(out, FORGET.as_bytes());
            self.settings.asker.forgetting = true;
        }
    }

    /// A statement of that verdict is about to be forwarded.
    pub(super) fn follow_sequences(
        &mut self,
        verdict: &Verdict,
        env: &Env<'_>,
        books: &mut Books,
        out: &mut Out,
        ahead: Ahead,
    ) {
        let sequences = verdict.sequences();
        if self.may_yield() && sequences == Sequences::Nothing {
            self.settings.asker.patience -= 1;
            if self.settings.asker.patience == 0 {
                self.release_sequences();
                env.watch.held_in_vain();
            }
        }
        if sequences == Sequences::Nothing || self.gate.is_standby() {
            return;
        }
        if sequences.asks() {
            self.forget_others(books, out, ahead);
            self.settings.asker.patience = 0;
            let how = if self.settings.asker.advanced { Habit::Within } else { Habit::Behind };
            env.watch.asked_of_sequences(how);
        }
        if sequences.may_advance() {
            if self.is_to_be_held(sequences, env) {
                self.forget_others(books, out, ahead);
                self.settings.pins.hold(PinReason::Sequence);
                self.settings.asker.patience = if env.habit == Habit::Unknown { PATIENCE } else { 0 };
            }
            self.settings.asker.advanced = true;
            books.remembers = books.remembers.advanced_by(self.settings.asker.me);
        }
    }

    /// A statement of that verdict, which does that, is about to be bound.
    pub(super) fn follow_bound(
        &mut self,
        verdict: &Verdict,
        ops: &[SessionOp],
        env: &Env<'_>,
        books: &mut Books,
        out: &mut Out,
    ) {
        self.follow_sequences(verdict, env, books, out, Ahead::InBatch);
        self.follow_executed(ops, env, books, out, Ahead::InBatch);
    }

    /// The same, of the prepared statements that it executes.
    pub(super) fn follow_executed(
        &mut self,
        ops: &[SessionOp],
        env: &Env<'_>,
        books: &mut Books,
        out: &mut Out,
        ahead: Ahead,
    ) {
        for op in ops {
            let (SessionOp::Execute(name) | SessionOp::Explain(name)) = op else { continue };
            let executed = self.statements.any(name).map(|statement| env.verdict(statement));
            match executed {
                Some(verdict) => {
                    self.settings.unseen.note(&verdict, None);
                    if matches!(op, SessionOp::Execute(_)) {
                        self.follow_sequences(&verdict, env, books, out, ahead);
                    }
                }
                None => self.settings.unseen.note_unknown(),
            }
        }
    }

    /// What the backend remembers of other sessions goes, unless something of this one's would go with it.
    fn forget_others(&mut self, books: &Books, out: &mut Out, ahead: Ahead) {
        let deaf = self.tracker.is_skipping() || self.tracker.in_copy() || self.has_failed();
        let forgets = self.settings.asker.advanced || self.settings.asker.forgetting;
        if !forgets && !deaf && !books.remembers.is_clean_for(self.settings.asker.me) {
            self.run_ours(out, FORGET.as_bytes());
            self.guarded |= ahead == Ahead::OfQuery;
        }
    }

    fn is_to_be_held(&self, sequences: Sequences, env: &Env<'_>) -> bool {
        match env.habit {
            Habit::Behind => true,
            Habit::Unknown => sequences == Sequences::Advances,
            Habit::Silent | Habit::Within => false,
        }
    }

    /// The server has forgotten; of the client's own when it was the client's statement.
    pub(super) fn sequences_forgotten(&mut self, books: &mut Books, by_client: bool) {
        if by_client {
            // What other backends remember is not its own any more.
            self.settings.asker.me = self.settings.asker.me.wrapping_add(1);
            self.release_sequences();
        }
        self.settings.asker.forgetting = false;
        // What was sent behind it may have been advanced since.
        books.remembers = Remembers::Of(self.settings.asker.me);
    }

    /// A backend was taken.
    pub(super) fn bind_sequences(&mut self) {
        (self.settings.asker.advanced, self.settings.asker.forgetting) = (false, false);
    }

    /// The server is ready.
    pub(super) fn end_of_asking(&mut self) {
        self.settings.asker.advanced &= !(self.is_settled() && self.tracker.is_clean());
    }
}
