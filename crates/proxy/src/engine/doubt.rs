//! Statements on a standby that name what is not known, and cannot go to the primary any more.
//!
//! What somebody has just made elsewhere may do anything: a standby may take it and do the wrong thing. Such a message
//! stays where it is until the server has answered what stands before it, and until whoever runs the engine has asked
//! what is known ([`super::ClientStep::Doubt`]); then it is judged once more. What is still not known by then is refused.
//!
//! Invariant: nothing of the message is forwarded or noted before it is judged.

use bytes::BufMut;
use protocol::error::PgError;
use protocol::message::TxStatus;
use protocol::sqlstate::SqlState;
use protocol::tracker::{Ask, Owner};
use router::Verdict;

use super::prepare::NO_TOKEN;
use super::{Books, Engine, Env, Stop};
use crate::out::Out;
use crate::statements::put_header;

/// How it stands with the message at the front.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    state: State,
    /// The server was asked for what stands before it.
    hastened: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    None,
    /// What is known now counts.
    Judged,
    /// The client has cancelled it.
    Cancelled,
}

impl Engine {
    /// More is not known about the message at the front: it is judged by what is known now.
    pub fn judge(&mut self) {
        self.doubt.state = State::Judged;
    }

    /// The client has cancelled the message at the front, which waits to be judged.
    pub fn cancel_doubt(&mut self) {
        self.doubt.state = State::Cancelled;
    }

    /// The message at the front has passed.
    pub(super) fn end_doubt(&mut self) {
        self.doubt = Doubt::default();
    }

    /// Whether a statement of that verdict and text must wait until it is judged.
    pub(super) fn waits_in_doubt(
        &mut self,
        verdict: &Verdict,
        sql: Option<&[u8]>,
        env: &Env<'_>,
        out: &mut Out,
    ) -> bool {
        if self.doubt.state != State::None || !self.is_doubtful(verdict, sql, env) {
            return false;
        }
        self.stop = Some(if self.is_waiting() {
            // Without it the answers would wait for the end of the batch.
            if self.in_batch && !std::mem::replace(&mut self.doubt.hastened, true) {
                out.own(|own| own.put_slice(b"H\0\0\0\x04"));
            }
            Stop::Hold
        } else {
            Stop::Doubt
        });
        true
    }

    /// Whether it is not known what would come of it on this standby. What the server ignores harms nobody.
    pub(super) fn is_doubtful(&self, verdict: &Verdict, sql: Option<&[u8]>, env: &Env<'_>) -> bool {
        if !self.gate.is_standby() || self.tracker.is_skipping() || self.tracker.status() == TxStatus::Failed
        {
            return false;
        }
        self.gate.doubts(verdict)
            || self.run_by(verdict, sql, env).any(|executed| self.gate.doubts(&executed))
    }

    /// Why what is still doubtful must not run: `misplaced`, or that the client has cancelled it.
    pub(super) fn cancelled_or(&self, misplaced: PgError) -> PgError {
        match self.doubt.state {
            State::Cancelled => {
                PgError::error(SqlState::QUERY_CANCELED, "canceling statement due to user request")
            }
            State::None | State::Judged => misplaced,
        }
    }

    /// Whether the Query at the front is to be analysed by the server before it is refused: one that names what is
    /// nowhere gets the server's own error.
    pub(super) fn analyses_doubt(&self, verdict: &Verdict) -> bool {
        // Of several statements the server analyses none.
        self.doubt.state == State::Judged && verdict.statements == 1
    }

    /// Sends what analyses `sql` and runs nothing, then what fails in place of it.
    pub(super) fn fail_analysed(&mut self, books: &mut Books, out: &mut Out, sql: &[u8], why: Box<PgError>) {
        out.own(|own| {
            put_header(own, b'P', sql.len() + 4);
            own.put_u8(0);
            own.put_slice(sql);
            own.put_slice(&[0; 3]);
        });
        self.tracker.push(Ask::Parse(NO_TOKEN), Owner::Ours);
        self.put_failing_bind(out, why);
        out.own(protocol::write::sync);
        self.tracker.push(Ask::Sync, Owner::Client);
        self.statements.drop_unnamed();
        books.prepared.set_unnamed(None);
        self.end_of_batch();
    }
}
