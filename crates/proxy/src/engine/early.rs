//! Transactions that read on a standby and may go on at the primary.
//!
//! The standby has the client's BEGIN, and gets units of which nothing is missing when the transaction goes on
//! elsewhere: queries, without cursors, portals or savepoints. It leaves by a COMMIT of ours, which makes the backend
//! free; the session begins the transaction anew on the primary. When it leaves is a matter of why it is here:
//! - one that may write (`transaction_load_balance`), in front of anything but such a query;
//! - one that is READ ONLY, in front of what belongs to the primary. With anything else that would be missing there it
//!   stays for good.

use protocol::message::TxStatus;
use router::{Access, Effect, Isolation, Reason, TxControl, TxMode, Verdict};

use super::gate::Pass;
use super::{Boundary, Engine, Env, Scan, Unit, Violation, scan};
use crate::out::Out;

/// How it stands with a transaction that may go on elsewhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Early {
    /// It stays where it is.
    #[default]
    No,
    /// It may write, and has only read.
    Reads,
    /// It is READ ONLY, and has left nothing that would be missing elsewhere.
    ReadOnly,
    /// It ends here, and goes on elsewhere.
    Leaves,
}

/// What a unit means for such a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// It may run here.
    Stays,
    /// It may run here, and with it the rest.
    Settles,
    /// It belongs to the primary.
    Leaves,
}

impl Engine {
    /// The transaction that begins with this lease may go on elsewhere, as long as it has only read.
    pub fn begin_early(&mut self) {
        self.early = Early::Reads;
    }

    /// The READ ONLY transaction that begins with this lease goes on elsewhere when it comes to what belongs to the
    /// primary.
    pub fn begin_read_only(&mut self) {
        self.early = Early::ReadOnly;
    }

    /// The transaction may write, has only read yet, and may go on elsewhere.
    #[must_use]
    pub fn is_early(&self) -> bool {
        self.early == Early::Reads
    }

    /// The transaction goes on at the primary with what belongs there.
    #[must_use]
    pub fn may_leave(&self) -> bool {
        matches!(self.early, Early::Reads | Early::ReadOnly)
    }

    /// The transaction has left the standby. Said once.
    pub fn take_left(&mut self) -> bool {
        std::mem::take(&mut self.early) == Early::Leaves
    }

    /// The gate of such a transaction; `None` when it is over, or stays.
    pub(super) fn early_gate(&mut self, bytes: &[u8], env: &Env<'_>) -> Result<Option<Pass>, Violation> {
        let settled = self.tracker.is_settled();
        match self.early {
            Early::No => return Ok(None),
            Early::Leaves => return Ok(Some(Pass::Hold)),
            Early::Reads if !settled => return Ok(Some(Pass::Hold)),
            // Reads need not wait for each other.
            Early::ReadOnly if !settled && self.gate.is_barred() => return Ok(Some(Pass::Hold)),
            Early::Reads | Early::ReadOnly => {}
        }
        match self.tracker.status() {
            TxStatus::InTransaction => {}
            // Nothing but its end is carried out.
            TxStatus::Failed => return Ok(Some(Pass::Go)),
            TxStatus::Idle => {
                self.early = Early::No;
                return Ok(None);
            }
        }
        if settled {
            self.gate.lift();
        }
        let unit = match scan(bytes, &self.statements, env)? {
            Scan::More(need) => return Ok(Some(Pass::More(need))),
            Scan::Unit(unit) => unit,
        };
        let next = if self.early == Early::ReadOnly { next_read_only(&unit) } else { next(&unit) };
        Ok(Some(match next {
            Next::Leaves | Next::Settles if !settled => Pass::Hold,
            Next::Leaves => Pass::Leave,
            next => {
                if next == Next::Settles {
                    self.early = Early::No;
                }
                self.gate.clear_unit(unit.len);
                Pass::Go
            }
        }))
    }

    /// Ends the transaction here.
    pub(super) fn leave(&mut self, out: &mut Out) {
        self.early = Early::Leaves;
        self.inject_query(out, b"COMMIT");
    }
}

/// A read that runs, whole, before the transaction is known to write.
pub fn is_early(unit: &Unit, mode: TxMode) -> bool {
    matches!(unit.boundary, Boundary::Query | Boundary::Sync)
        && !unit.leaves_portal
        && router::may_run_early(&unit.verdict, mode)
}

/// Nothing of it would be missing elsewhere.
fn leaves_nothing(unit: &Unit) -> bool {
    let committed = TxMode { isolation: Some(Isolation::ReadCommitted), ..TxMode::default() };
    let nothing = unit.verdict.statements == 0 && !unit.leaves_portal;
    match unit.boundary {
        Boundary::Terminate | Boundary::Stray => true,
        Boundary::Query | Boundary::Sync => {
            nothing || is_local(&unit.verdict) || is_early(unit, committed) || ends(&unit.verdict)
        }
        _ => false,
    }
}

/// What a unit means for a READ ONLY transaction. What EXECUTE runs is looked at where it runs.
fn next_read_only(unit: &Unit) -> Next {
    let belongs = unit.verdict.access == Access::Write && unit.verdict.reason != Reason::Execute;
    match unit.verdict.tx {
        _ if leaves_nothing(unit) => Next::Stays,
        // Behind a query the server takes most of these for an error, here as there.
        TxControl::SetTransaction(TxMode { read_only: None | Some(true), .. }) => Next::Stays,
        _ if belongs => Next::Leaves,
        _ => Next::Settles,
    }
}

/// What a unit means for a transaction that may write.
fn next(unit: &Unit) -> Next {
    if leaves_nothing(unit) {
        return Next::Stays;
    }
    match unit.verdict.tx {
        // Behind a query the server takes a change of the level for an error, here as there.
        TxControl::SetTransaction(TxMode { read_only: None, .. }) => Next::Stays,
        TxControl::SetTransaction(TxMode { read_only: Some(true), .. }) => Next::Settles,
        _ => Next::Leaves,
    }
}

fn is_local(verdict: &Verdict) -> bool {
    verdict.effect == Effect::Console
}

fn ends(verdict: &Verdict) -> bool {
    let end = matches!(verdict.tx, TxControl::Commit { chain: false } | TxControl::Rollback { chain: false });
    end && verdict.statements == 1
}
