//! Transactions that read on a standby and may go on at the primary.
//!
//! The standby has the client's BEGIN, and gets units of which nothing is missing when the transaction goes on
//! elsewhere: queries, without cursors, portals or savepoints. It leaves by a COMMIT of ours, which makes the backend
//! free; the session begins the transaction anew on the primary. When it leaves is a matter of why it is here:
//! - one that may write (`transaction_load_balance`), in front of anything but such a query;
//! - one that is READ ONLY, in front of what belongs to the primary. With anything else that would be missing there it
//!   stays for good.
//!
//! A transaction that is chained to a failed one has the session's default modes, whatever the failed one was (`xact.c`
//! looks at them when the abort has reset them already). So a failed one leaves in front of AND CHAIN.

use protocol::frame::frontend_header;
use protocol::message::TxStatus;
use router::{Access, Effect, Isolation, Reason, TxControl, TxMode, Verdict};

use super::gate::Pass;
use super::prepare::named_statement;
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
    /// It has failed and ends here; the one that is chained to it begins elsewhere.
    Chains,
}

/// How a transaction has left the standby.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// It is to go on elsewhere.
    Open,
    /// It has failed, and the statement comes that chains another one to it.
    Failed,
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
    pub fn take_left(&mut self) -> Option<Left> {
        match std::mem::take(&mut self.early) {
            Early::Leaves => Some(Left::Open),
            Early::Chains => Some(Left::Failed),
            Early::No | Early::Reads | Early::ReadOnly => None,
        }
    }

    /// The gate of what chains a transaction to one that has failed here; `None` for anything else.
    pub(super) fn chain_gate(&mut self, bytes: &[u8], env: &Env<'_>) -> Result<Option<Pass>, Violation> {
        let over =
            matches!(self.early, Early::Leaves | Early::Chains) || self.tracker.status() == TxStatus::Idle;
        if over || self.in_batch || self.pin().is_some() {
            return Ok(None);
        }
        let settled = self.tracker.is_settled();
        let failed = settled && self.tracker.status() == TxStatus::Failed;
        // Whether what comes before has failed is not known yet: of what is followed anyway that is waited for.
        if !failed && (settled || self.early != Early::No || !self.may_chain(bytes)) {
            return Ok(None);
        }
        let unit = match scan(bytes, &self.statements, env)? {
            Scan::More(need) => return Ok(Some(Pass::More(need))),
            Scan::Unit(unit) => unit,
        };
        Ok(chains(&unit).then_some(if failed { Pass::Chain } else { Pass::Hold }))
    }

    /// Whether the message at the front may chain a transaction. Long ones are not looked through.
    fn may_chain(&self, bytes: &[u8]) -> bool {
        const MOST: usize = 256;
        let Ok(Some(header)) = frontend_header(bytes) else { return false };
        let Some(message) = bytes.get(..header.len).filter(|message| message.len() <= MOST) else {
            return false;
        };
        match header.tag {
            b'Q' | b'P' => message.windows(5).any(|word| word.eq_ignore_ascii_case(b"chain")),
            b'B' => named_statement(b'B', message)
                .and_then(|name| self.statements.any(name))
                .is_some_and(|statement| statement.verdict().tx.chains()),
            _ => false,
        }
    }

    /// Ends the failed transaction here.
    pub(super) fn leave_failed(&mut self, out: &mut Out) {
        self.early = Early::Chains;
        self.inject_query(out, b"ROLLBACK");
    }

    /// The gate of such a transaction; `None` when it is over, or stays.
    pub(super) fn early_gate(&mut self, bytes: &[u8], env: &Env<'_>) -> Result<Option<Pass>, Violation> {
        let settled = self.tracker.is_settled();
        match self.early {
            Early::No => return Ok(None),
            Early::Leaves | Early::Chains => return Ok(Some(Pass::Hold)),
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

/// COMMIT or ROLLBACK AND CHAIN, and nothing else.
fn chains(unit: &Unit) -> bool {
    unit.verdict.tx.chains()
        && unit.verdict.statements == 1
        && matches!(unit.boundary, Boundary::Query | Boundary::Sync)
}

fn ends(verdict: &Verdict) -> bool {
    verdict.tx.ends() && verdict.statements == 1
}
