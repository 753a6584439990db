//! What statements on their way to the server do to the session, for its books.

use std::collections::VecDeque;

use protocol::message::TxStatus;
use protocol::tracker::{Ask, Owner, Push};
use router::{Access, Effect, Leaves, PinReason, Reason, SessionOp, TxControl, Verdict, covers};

use super::book::Step;
use super::{Books, Engine, Env, put_query};
use crate::out::Out;
use crate::settings::Parameters;

/// A Query of ours behind a client's that has reset settings: it sets the client's start-up values again, and its
/// ReadyForQuery is the client's. In between the client is told of no change.
#[derive(Debug)]
pub(super) struct Chase {
    first: Push,
    second: Push,
    /// What the client had been told before, once the server has begun to answer.
    before: Option<Parameters>,
    /// The client's failed: nothing was reset, and the values that are set are wrong.
    failed: bool,
}

/// What becomes of a message while a [`Chase`] is on its way.
pub(super) enum Chased {
    /// It is not concerned.
    No,
    /// The client does not see it.
    Hidden,
    /// It is the client's, behind the changes that are left.
    Last(Parameters),
}

/// Whether a text of that verdict may be one that the books follow.
pub(super) fn may_concern_session(verdict: &Verdict) -> bool {
    verdict.reason == Reason::SessionControl
        || verdict.statements > 1
        || verdict.pin.is_some()
        || verdict.tx == TxControl::Savepoint
        || verdict.effect != Effect::None
}

impl Engine {
    /// What the statements of a text do to the session. What is not followed pins it from here on.
    pub(super) fn follow(&mut self, verdict: &Verdict, sql: Option<&[u8]>, env: &Env<'_>) -> Vec<SessionOp> {
        self.gate.note(verdict);
        self.changes = self.changes.max(verdict.changes);
        // What is about to hold it may be undone by what is sent behind it.
        let holds = || self.settings.pins.reason().is_some() || self.settings.has_pending();
        let concerned = may_concern_session(verdict) || holds();
        let ops = sql.filter(|_| concerned).and_then(|sql| router::session_ops(sql, env.standard_conforming));
        let followed = |pin: PinReason| ops.as_ref().is_some_and(|ops| covers(ops, pin));
        // A standby refuses what writes: nothing of it would be held there but the session.
        let refused = self.gate.is_standby() && verdict.access == Access::Write;
        self.settings.unseen.note(verdict, sql);
        if ops.is_none() && verdict.effect == Effect::Statements {
            self.settings.unseen.note_unknown();
        }
        // What it leaves the server is asked for.
        let asked = |pin: PinReason| pin == PinReason::Unknown && verdict.leaves >= Leaves::Anything;
        if let Some(pin) = verdict.pin.filter(|pin| !refused && !followed(*pin) && !asked(*pin)) {
            self.settings.pins.hold(pin);
        }
        if ops.is_none() && verdict.tx == TxControl::Mixed {
            // Where its transactions begin and end is not seen.
            self.settings.pins.hold(PinReason::Unknown);
        }
        let ops = ops.unwrap_or_default();
        if ops.iter().any(|op| self.executes(op, env) == Some(SessionOp::Other)) {
            self.settings.pins.hold(PinReason::Unknown);
        }
        ops
    }

    /// What EXECUTE of a statement that was made by Parse does, where its own text does not show it.
    pub(super) fn executes(&self, op: &SessionOp, env: &Env<'_>) -> Option<SessionOp> {
        let SessionOp::Execute(name) = op else { return None };
        let statement = self.statements.get(name)?;
        if !may_concern_session(&statement.verdict()) {
            return None;
        }
        let ops = router::session_ops(statement.sql(), env.standard_conforming);
        // One inside of another is not looked for any further.
        let op = ops.and_then(|mut ops| ops.pop()).filter(|op| !matches!(op, SessionOp::Execute(_)));
        Some(op.unwrap_or(SessionOp::Other))
    }

    /// A Query of that effect is being forwarded.
    pub(super) fn note_reset(&mut self, verdict: &Verdict, ops: &[SessionOp]) {
        let all = matches!(verdict.effect, Effect::DeallocateAll | Effect::DiscardAll);
        self.resets |= all || ops.iter().any(empties);
    }

    /// What is kept of operations until the server has answered.
    pub(super) fn steps(&self, ops: &[SessionOp], env: &Env<'_>) -> VecDeque<Step> {
        ops.iter().map(|op| step(&self.executes(op, env).unwrap_or_else(|| op.clone()), env)).collect()
    }

    /// A portal of that effect was executed.
    pub(super) fn executed(&mut self, out: &mut Out, op: Option<SessionOp>) {
        let Some(op) = op else { return };
        self.resets |= empties(&op);
        for sql in self.settings.startup_again(&op) {
            self.run_ours(out, sql.as_bytes());
        }
    }

    /// Behind a Query of that effect.
    pub(super) fn chase(&mut self, out: &mut Out, ops: &[SessionOp]) {
        let [op] = ops else { return };
        let sql = self.settings.startup_again(op).join(";");
        if sql.is_empty() || self.tracker.is_skipping() {
            return;
        }
        let first = self.tracker.last_push();
        out.own(|own| put_query(own, sql.as_bytes()));
        self.tracker.push(Ask::Query, Owner::Ours);
        let second = self.tracker.last_push();
        self.chase = Some(Box::new(Chase { first, second, before: None, failed: false }));
        // One at a time.
        self.resets = true;
    }

    /// The server answers `push`.
    pub(super) fn begin_chase(&mut self, push: Push, books: &Books) {
        if let Some(chase) = self.chase.as_deref_mut().filter(|chase| chase.first == push) {
            chase.before.get_or_insert_with(|| books.parameters.clone());
        }
    }

    /// What a message of the server that answers `push` is in a chase.
    pub(super) fn chased(&mut self, tag: u8, push: Push, books: &mut Books) -> Chased {
        let Some(chase) = self.chase.as_deref_mut() else { return Chased::No };
        match tag {
            b'E' => {
                chase.failed |= push == chase.first;
                Chased::No
            }
            b'S' if push == chase.first || push == chase.second => Chased::Hidden,
            b'Z' if push == chase.first => Chased::Hidden,
            b'Z' if push == chase.second => {
                let before = chase.before.as_ref().unwrap_or(&books.parameters);
                let mut changes = before.changes_to(&books.parameters);
                if chase.failed && self.tracker.status() == TxStatus::Idle {
                    // Set again in front of what comes next.
                    (books.settings, changes) = Default::default();
                }
                self.chase = None;
                Chased::Last(changes)
            }
            _ => Chased::No,
        }
    }

    /// A failure of that message says nothing about the backend that is not known.
    pub(super) fn is_second_of_chase(&self, push: Push) -> bool {
        self.chase.as_deref().is_some_and(|chase| chase.second == push)
    }

    /// The text with names in it disguised that could be those of our statements.
    pub(super) fn disguise(
        &mut self,
        verdict: &Verdict,
        sql: Option<&[u8]>,
        env: &Env<'_>,
    ) -> Option<Vec<u8>> {
        let sql = sql.filter(|_| verdict.effect == Effect::Statements)?;
        let text = router::with_names_disguised(sql, env.standard_conforming)?;
        self.disguises = true;
        Some(text)
    }
}

fn step(op: &SessionOp, env: &Env<'_>) -> Step {
    let made = match op {
        SessionOp::Prepare { text, .. } => {
            Some(env.cache.intern_prepare(text, env.generation, || (env.classify)(text)))
        }
        _ => None,
    };
    Step { op: op.clone(), made, of: Owner::Client }
}

/// What changes the books of statements when it is answered: what stands behind it must wait for that.
fn empties(op: &SessionOp) -> bool {
    matches!(
        op,
        SessionOp::Prepare { .. }
            | SessionOp::Deallocate(_)
            | SessionOp::DeallocateAll
            | SessionOp::DiscardAll
    )
}
