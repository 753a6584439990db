//! What may be forwarded to a standby.
//!
//! A backend on the primary takes everything. On a standby each unit is read ahead, and one that a
//! standby must not get waits until the backend is free, to be routed anew.

use bytes::BufMut;
use protocol::frame::HEADER_LEN;
use router::{Access, Effect, Hint, TxControl, Verdict};

use super::prepare::named_statement;
use super::{Boundary, Engine, Env, Scan, Violation, scan};
use crate::out::Out;
use protocol::message::TxStatus;

/// What is known of the bytes that come next.
#[derive(Debug, Default)]
pub(super) struct Gate {
    on_standby: bool,
    /// So many bytes at the front may pass.
    cleared: usize,
    /// The transaction status is not known before the server has answered.
    barrier: bool,
    /// Another unit is routed anew, whatever it is.
    alone: bool,
    /// Somebody says that what is not known may run here.
    believes: bool,
    /// A portal was made since the last Sync: the batch cannot go elsewhere.
    pub(super) bound: bool,
}

/// What the gate says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Go,
    More(usize),
    Hold,
    /// Nothing of this batch has run here: it goes on elsewhere.
    Move,
    /// The transaction has only read here: it goes on elsewhere.
    Leave,
    /// The transaction has failed here: what is chained to it begins elsewhere.
    Chain,
}

impl Gate {
    pub(super) fn new(on_standby: bool, cleared: usize, barrier: bool) -> Self {
        Self { on_standby, cleared, barrier, alone: false, believes: false, bound: false }
    }

    /// The backend is one of a standby.
    pub(super) fn is_standby(&self) -> bool {
        self.on_standby
    }

    /// A statement of that verdict must not run here, although the standby would take it.
    pub(super) fn refuses(&self, verdict: &Verdict) -> bool {
        let writes = verdict.access == Access::Write || verdict.pin.is_some();
        self.on_standby && writes && verdict.silently_wrong_on_standby()
    }

    /// Whether a statement of that verdict may run here is not known, and nobody says that it may.
    pub(super) fn doubts(&self, verdict: &Verdict) -> bool {
        let hinted = matches!(verdict.hint, Some(Hint::Standby | Hint::Node(_)));
        self.on_standby && !self.believes && !hinted && verdict.may_be_silently_wrong()
    }

    /// What is not known may run here.
    pub(super) fn believe(&mut self) {
        self.believes = true;
    }

    /// The transaction status is not known before the server has answered.
    pub(super) fn is_barred(&self) -> bool {
        self.barrier
    }

    /// The server has answered.
    pub(super) fn lift(&mut self) {
        self.barrier = false;
    }

    /// Nothing but the unit that the backend was taken for may pass on a standby.
    pub(super) fn keep_to_unit(&mut self) {
        self.alone = true;
    }

    /// The unit of `len` bytes at the front may pass.
    pub(super) fn clear_unit(&mut self, len: usize) {
        self.cleared = len;
    }

    /// The unit of `len` bytes that the backend was taken for comes once more.
    pub(super) fn renew(&mut self, len: usize) {
        (self.cleared, self.bound) = (len, false);
    }

    /// A message of `len` bytes passes.
    pub(super) fn passed(&mut self, len: usize) {
        self.cleared = self.cleared.saturating_sub(len);
    }

    /// A statement of that verdict passes.
    pub(super) fn note(&mut self, verdict: &Verdict) {
        self.barrier |= !matches!(verdict.tx, TxControl::None | TxControl::Savepoint);
    }
}

impl Engine {
    /// Whether the message at the front of `bytes` may be forwarded.
    pub(super) fn gate(&mut self, bytes: &[u8], env: &Env<'_>) -> Result<Pass, Violation> {
        if !self.gate.on_standby || self.gate.cleared > 0 {
            return Ok(Pass::Go);
        }
        if self.tracker.is_skipping() {
            // Ignored wherever it goes; elsewhere it would be carried out.
            return Ok(Pass::Go);
        }
        if let Some(pass) = self.chain_gate(bytes, env)? {
            return Ok(pass);
        }
        if let Some(pass) = self.early_gate(bytes, env)? {
            return Ok(pass);
        }
        if self.tracker.is_settled() {
            self.gate.barrier = false;
            if self.tracker.status() != TxStatus::Idle {
                return Ok(Pass::Go);
            }
        } else if self.gate.barrier && self.in_batch {
            // What began the transaction stands in this batch, or right in front of it.
            return Ok(Pass::Go);
        } else if self.gate.barrier {
            return Ok(Pass::Hold);
        } else if self.tracker.in_copy() || self.tracker.status() != TxStatus::Idle {
            return Ok(Pass::Go);
        }
        let unit = match scan(bytes, &self.statements, env)? {
            Scan::More(need) => return Ok(Pass::More(need)),
            Scan::Unit(unit) => unit,
        };
        let stays = !self.gate.alone || self.in_batch || unit.verdict.access == Access::Neutral;
        if self.pin().is_some() || (stays && may_run_on_standby(&unit.verdict, unit.boundary)) {
            self.gate.cleared = unit.len;
            return Ok(Pass::Go);
        }
        Ok(match (self.in_batch, self.gate.bound) {
            (true, true) => {
                self.gate.cleared = unit.len;
                Pass::Go
            }
            (true, false) => Pass::Move,
            (false, _) => Pass::Hold,
        })
    }

    /// Whether a message must wait until DEALLOCATE ALL or DISCARD ALL has emptied the books: a statement
    /// or a pin behind it would be taken for what it has emptied. And whether a Query or FunctionCall inside of a batch must
    /// wait until the batch is answered: the server ignores it behind an error, with all that it would change.
    pub(super) fn waits_for_reset(&mut self, tag: u8, out: &mut Out) -> bool {
        self.resets &= self.tracker.owes();
        let passes = matches!(tag, b'S' | b'H') && !self.guarded;
        let inside = matches!(tag, b'Q' | b'F') && self.in_batch && !self.tracker.is_skipping();
        // Should the batch fail in which all was discarded, the settings are to be made again in front of what follows.
        let behind = self.settings.has_discarded() && !self.in_batch;
        let waits = (self.resets || self.guarded || inside || behind) && self.tracker.owes();
        if !waits || passes || self.tracker.in_copy() || matches!(tag, b'd' | b'c' | b'f') {
            self.hastened = false;
            return false;
        }
        if self.in_batch && !std::mem::replace(&mut self.hastened, true) {
            // Its answers would wait for the end of the batch.
            out.own(|own| own.put_slice(b"H\0\0\0\x04"));
        }
        true
    }

    /// Whether the message at the front is about a statement of which an earlier batch, still to be answered, says
    /// what it is. Its Sync has been sent: the answer comes whatever else waits here.
    pub(super) fn waits_for_name(&mut self, tag: u8, bytes: &[u8]) -> bool {
        self.unsettled = None;
        if !self.statements.has_unsettled() {
            return false;
        }
        // A Parse of the unnamed statement replaces whatever it is.
        let name = named_statement(tag, bytes).filter(|name| tag != b'P' || !name.is_empty());
        let text = match tag {
            b'Q' => bytes.get(HEADER_LEN..).and_then(|body| body.split(|byte| *byte == 0).next()),
            b'P' => bytes.get(HEADER_LEN..).and_then(|body| body.split(|byte| *byte == 0).nth(1)),
            b'B' => name.and_then(|name| self.statements.get(name)).map(|statement| statement.sql()),
            _ => None,
        };
        let ops = text.and_then(|text| router::session_ops(text, true)).unwrap_or_default();
        let mut names = ops.iter().filter_map(|op| op.statement()).chain(name);
        let unsettled = |name: &[u8]| self.unsettled_by(name);
        self.unsettled = names.find_map(unsettled);
        self.unsettled.is_some()
    }

    /// The name that is not known yet of those that running `name` comes to: itself, and what its text executes.
    fn unsettled_by(&self, name: &[u8]) -> Option<Box<[u8]>> {
        if self.statements.is_unsettled(name) {
            return Some(name.into());
        }
        let statement = self.statements.any(name)?;
        let executes = statement.verdict().effect == Effect::Statements;
        let ops = executes.then(|| router::session_ops(statement.sql(), true)).flatten()?;
        let mut names = ops.iter().filter_map(|op| op.statement());
        names.find(|name| self.statements.is_unsettled(name)).map(Into::into)
    }

    /// Whether what made [`ClientStep::Hold`] still stands.
    ///
    /// [`ClientStep::Hold`]: super::ClientStep::Hold
    #[must_use]
    pub fn holds(&self) -> bool {
        match &self.unsettled {
            Some(name) => self.statements.is_unsettled(name),
            None if self.stand_in.holds_next() => self.stand_in.is_pending(),
            None => self.is_waiting(),
        }
    }
}

fn may_run_on_standby(verdict: &Verdict, boundary: Boundary) -> bool {
    let plain = verdict.tx == TxControl::None && verdict.pin.is_none() && verdict.effect == Effect::None;
    let own = matches!(boundary, Boundary::Terminate | Boundary::Stray) || verdict.statements == 0;
    if boundary == Boundary::FlushedRun && !own {
        return false;
    }
    own || (plain && verdict.hint.is_none() && verdict.access != Access::Write)
}
