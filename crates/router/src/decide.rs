//! From a verdict, the transaction it runs in and the policy to a target.
//!
//! Called when a session needs a backend: for a statement outside a transaction, or for the first
//! statement of one (BEGIN is lazy). Inside a transaction that already has a backend there is nothing
//! to decide.

use cluster::NodeId;

use crate::reason::Reason;
use crate::verdict::{Access, Effect, Hint, Isolation, TxControl, TxMode, Verdict};

/// Where a statement goes, before a node is picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// The primary.
    Primary,
    /// Balanced over the nodes that read.
    Read,
    /// A standby, whatever the weights; the primary only when there is none.
    Standby,
    /// That node and no other.
    Node(NodeId),
    /// No preference.
    Anywhere,
}

/// What the configuration says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// `load_balance_mode`; off sends everything to the primary.
    pub load_balance: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self { load_balance: true }
    }
}

/// The transaction a statement runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxView {
    /// A transaction block is open (its BEGIN may not have been sent yet).
    pub in_transaction: bool,
    /// The modes of the transaction being started, the session's defaults included where they are known
    /// (`default_transaction_isolation` counts outside a block, too).
    pub mode: TxMode,
}

/// Where a unit of work goes, and why.
///
/// A statement that pins goes to the primary even if it only reads: what follows in the session, writes
/// included, will have to run on the same backend.
#[must_use]
pub fn decide(verdict: &Verdict, tx: &TxView, policy: &Policy) -> (Target, Reason) {
    if verdict.effect == Effect::Console {
        return (Target::Anywhere, Reason::Console);
    }
    if !policy.load_balance {
        return (Target::Primary, Reason::PrimaryOnly);
    }
    if verdict.hint == Some(Hint::Primary) {
        return (Target::Primary, Reason::Hint);
    }
    if verdict.access == Access::Write && !may_obey_hint(verdict) {
        return (Target::Primary, verdict.reason);
    }
    if verdict.pin.is_some() {
        return (Target::Primary, Reason::Pinned);
    }
    let (begins, mode) = match verdict.tx {
        TxControl::Begin(mode) => (true, tx.mode.overlaid(mode)),
        TxControl::SetTransaction(mode) => (tx.in_transaction, tx.mode.overlaid(mode)),
        _ => (tx.in_transaction, tx.mode),
    };
    if mode.isolation == Some(Isolation::Serializable) && (begins || verdict.access != Access::Neutral) {
        return (Target::Primary, Reason::Serializable);
    }
    if begins && mode.read_only != Some(true) {
        return (Target::Primary, Reason::TransactionReadWrite);
    }
    match (verdict.hint, verdict.access) {
        (Some(Hint::Standby), Access::Read | Access::Write) => (Target::Standby, Reason::Hint),
        (Some(Hint::Node(node)), Access::Read | Access::Write) => (Target::Node(node), Reason::Hint),
        (_, Access::Write) => (Target::Primary, verdict.reason),
        _ if begins => (Target::Read, Reason::TransactionReadOnly),
        (_, Access::Read) => (Target::Read, verdict.reason),
        (_, Access::Neutral) => (Target::Anywhere, verdict.reason),
    }
}

/// A hint may overrule what pgweir merely does not know, never what it knows to be a write.
fn may_obey_hint(verdict: &Verdict) -> bool {
    matches!(verdict.hint, Some(Hint::Standby | Hint::Node(_))) && verdict.reason == Reason::UnknownFunction
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{PinReason, StatementKind};

    fn verdict(access: Access, reason: Reason) -> Verdict {
        Verdict::new(access, StatementKind::Select, reason)
    }

    fn auto(verdict: Verdict) -> (Target, Reason) {
        decide(&verdict, &TxView::default(), &Policy::default())
    }

    #[test]
    fn outside_a_transaction_the_access_decides() {
        let read = verdict(Access::Read, Reason::ReadOnlySelect);
        assert_eq!(auto(read), (Target::Read, Reason::ReadOnlySelect));
        assert_eq!(auto(verdict(Access::Write, Reason::Dml)), (Target::Primary, Reason::Dml));
        let set = verdict(Access::Neutral, Reason::SessionControl);
        assert_eq!(auto(set), (Target::Anywhere, Reason::SessionControl));
        assert_eq!(auto(Verdict::empty()), (Target::Anywhere, Reason::Empty));
        let off = Policy { load_balance: false };
        assert_eq!(decide(&read, &TxView::default(), &off), (Target::Primary, Reason::PrimaryOnly));
    }

    #[test]
    fn a_pin_goes_to_the_primary() {
        let pinned =
            verdict(Access::Neutral, Reason::SessionControl).with_pin(Some(PinReason::SessionSetting));
        assert_eq!(auto(pinned), (Target::Primary, Reason::Pinned));
        let prepare = verdict(Access::Read, Reason::ReadOnlySelect).with_pin(Some(PinReason::SqlPrepare));
        assert_eq!(auto(prepare), (Target::Primary, Reason::Pinned));
    }

    #[test]
    fn the_mode_of_the_transaction_decides() {
        let read_only = TxMode { read_only: Some(true), ..TxMode::default() };
        let serializable = TxMode { isolation: Some(Isolation::Serializable), ..read_only };
        let begin =
            |mode| verdict(Access::Neutral, Reason::TransactionControl).with_tx(TxControl::Begin(mode));
        assert_eq!(auto(begin(TxMode::default())), (Target::Primary, Reason::TransactionReadWrite));
        assert_eq!(auto(begin(read_only)), (Target::Read, Reason::TransactionReadOnly));
        assert_eq!(auto(begin(serializable)), (Target::Primary, Reason::Serializable));

        let read = verdict(Access::Read, Reason::ReadOnlySelect);
        let inside = |mode| TxView { in_transaction: true, mode };
        let policy = Policy::default();
        assert_eq!(decide(&read, &inside(TxMode::default()), &policy).1, Reason::TransactionReadWrite);
        assert_eq!(decide(&read, &inside(read_only), &policy), (Target::Read, Reason::TransactionReadOnly));
        assert_eq!(decide(&read, &inside(serializable), &policy), (Target::Primary, Reason::Serializable));
        let write = verdict(Access::Write, Reason::VolatileFunction);
        assert_eq!(decide(&write, &inside(read_only), &policy), (Target::Primary, Reason::VolatileFunction));
        // default_transaction_isolation = serializable, outside a block.
        let view = TxView { in_transaction: false, mode: serializable };
        assert_eq!(decide(&read, &view, &policy), (Target::Primary, Reason::Serializable));
        // SET TRANSACTION READ WRITE after BEGIN READ ONLY.
        let back = TxControl::SetTransaction(TxMode { read_only: Some(false), ..TxMode::default() });
        let set = verdict(Access::Neutral, Reason::TransactionControl).with_tx(back);
        assert_eq!(decide(&set, &inside(read_only), &policy).0, Target::Primary);
    }

    #[test]
    fn hints_overrule_doubt_but_not_writes() {
        let read = verdict(Access::Read, Reason::ReadOnlySelect);
        let node = Hint::Node(NodeId(2));
        assert_eq!(auto(read.with_hint(Some(Hint::Primary))), (Target::Primary, Reason::Hint));
        assert_eq!(auto(read.with_hint(Some(Hint::Standby))), (Target::Standby, Reason::Hint));
        assert_eq!(auto(read.with_hint(Some(node))), (Target::Node(NodeId(2)), Reason::Hint));
        let unknown = verdict(Access::Write, Reason::UnknownFunction).with_hint(Some(Hint::Standby));
        assert_eq!(auto(unknown), (Target::Standby, Reason::Hint));
        let dml = verdict(Access::Write, Reason::Dml).with_hint(Some(Hint::Standby));
        assert_eq!(auto(dml), (Target::Primary, Reason::Dml));
    }
}
