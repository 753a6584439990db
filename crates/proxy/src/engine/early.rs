//! Transactions that read on a standby until they write (`transaction_load_balance`).
//!
//! The standby has the client's BEGIN, and gets units of which nothing is missing when the transaction goes on
//! elsewhere: queries, without cursors, portals or savepoints. In front of anything else the transaction is ended
//! there by a COMMIT of ours, and the backend is free; the session begins it anew on the primary.

use protocol::message::TxStatus;
use router::{Effect, Isolation, TxControl, TxMode, Verdict};

use super::gate::Pass;
use super::{Boundary, Engine, Env, Scan, Unit, Violation, scan};
use crate::out::Out;

/// How it stands with a transaction that may go on elsewhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Early {
    /// It stays where it is.
    #[default]
    No,
    /// It has only read.
    Reads,
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

    /// The transaction has only read yet, and may go on elsewhere.
    #[must_use]
    pub fn is_early(&self) -> bool {
        self.early == Early::Reads
    }

    /// The transaction has left the standby. Said once.
    pub fn take_left(&mut self) -> bool {
        std::mem::take(&mut self.early) == Early::Leaves
    }

    /// The gate of such a transaction; `None` when it is over, or stays.
    pub(super) fn early_gate(&mut self, bytes: &[u8], env: &Env<'_>) -> Result<Option<Pass>, Violation> {
        match self.early {
            Early::No => return Ok(None),
            Early::Leaves => return Ok(Some(Pass::Hold)),
            Early::Reads if !self.tracker.is_settled() => return Ok(Some(Pass::Hold)),
            Early::Reads => {}
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
        let unit = match scan(bytes, &self.statements, env)? {
            Scan::More(need) => return Ok(Some(Pass::More(need))),
            Scan::Unit(unit) => unit,
        };
        Ok(Some(match next(&unit) {
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

fn next(unit: &Unit) -> Next {
    let committed = TxMode { isolation: Some(Isolation::ReadCommitted), ..TxMode::default() };
    let nothing = unit.verdict.statements == 0 && !unit.leaves_portal;
    let stays = match unit.boundary {
        Boundary::Terminate | Boundary::Stray => true,
        Boundary::Query | Boundary::Sync => {
            nothing || is_local(&unit.verdict) || is_early(unit, committed) || ends(&unit.verdict)
        }
        _ => false,
    };
    if stays {
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
