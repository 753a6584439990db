//! From a verdict, the transaction it runs in and the policy to a target.
//!
//! Called when a session needs a backend: for a statement outside a transaction, or for the first
//! statement of one (BEGIN is lazy). Inside a transaction that already has a backend there is nothing
//! to decide.

use cluster::NodeId;

use crate::reason::Reason;
use crate::verdict::{Access, Effect, Hint, Isolation, StatementKind, TxControl, TxMode, Verdict};

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
    /// That node; balanced like [`Target::Read`] while it cannot serve.
    Prefer(NodeId),
    /// No preference.
    Anywhere,
}

/// What the configuration and the session say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// `load_balance_mode`; off sends everything to the primary.
    pub load_balance: bool,
    /// The session came by `read_only_port`: everything is a standby's.
    pub read_only: bool,
    /// `SET pgweir.route`.
    pub route: Option<Hint>,
    /// Reads stay on the primary, because of what the session has written.
    pub after_write: bool,
    /// Where a redirect list sends reads this time.
    pub redirect: Option<Redirect>,
    /// `transaction_load_balance`: a READ COMMITTED transaction may read elsewhere before it writes.
    pub early_reads: bool,
}

/// Where a redirect list sends reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redirect {
    /// To the primary.
    Primary,
    /// To any standby.
    Standby,
    /// To that node.
    Node(NodeId),
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            load_balance: true,
            read_only: false,
            route: None,
            after_write: false,
            redirect: None,
            early_reads: false,
        }
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

/// Where a unit of work goes, and why. What stands first here goes before what follows:
///
/// 1. `read_only_port`: a standby, whatever it is.
/// 2. `load_balance_mode: off`: the primary.
/// 3. A hint for the primary.
/// 4. What writes, what belongs to the primary, what pins (what follows in the session, writes included, has to
///    run on the same backend), SERIALIZABLE, the beginning of a READ WRITE transaction: the primary. Where
///    something is merely not known, a hint or `SET pgweir.route` for a standby is believed.
/// 5. A hint for a standby or a node.
/// 6. `SET pgweir.route`.
/// 7. `primary_routing_query_pattern_list`.
/// 8. `disable_load_balance_on_write`.
/// 9. A redirect list.
/// 10. Balancing.
#[must_use]
pub fn decide(verdict: &Verdict, tx: &TxView, policy: &Policy) -> (Target, Reason) {
    if verdict.effect == Effect::Console {
        return (Target::Anywhere, Reason::Console);
    }
    if policy.read_only {
        return (Target::Standby, Reason::ReadOnlyPort);
    }
    if !policy.load_balance {
        return (Target::Primary, Reason::PrimaryOnly);
    }
    if verdict.hint == Some(Hint::Primary) {
        return (Target::Primary, Reason::Hint);
    }
    let (wish, wished) = match verdict.hint {
        Some(hint) => (Some(hint), Reason::Hint),
        None => (policy.route, Reason::SessionRoute),
    };
    if verdict.access == Access::Write && !(is_elsewhere(wish) && verdict.is_in_doubt()) {
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
    let early = policy.early_reads && tx.in_transaction && may_run_early(verdict, mode);
    if begins && mode.read_only != Some(true) && !early {
        return (Target::Primary, Reason::TransactionReadWrite);
    }
    if verdict.access == Access::Neutral && !begins {
        return (Target::Anywhere, verdict.reason);
    }
    match wish {
        Some(Hint::Primary) => return (Target::Primary, wished),
        Some(Hint::Standby) => return (Target::Standby, wished),
        Some(Hint::Node(node)) => return (Target::Node(node), wished),
        None => {}
    }
    let reason = match (begins, mode.read_only) {
        (true, Some(true)) => Reason::TransactionReadOnly,
        (true, _) => Reason::TransactionLoadBalance,
        (false, _) => verdict.reason,
    };
    balance(verdict.by_pattern, policy, reason)
}

/// A read that a transaction may do before it is known to write: nothing of it is missing when the transaction goes
/// on elsewhere (a cursor would be), and READ COMMITTED sees the present anew with each statement anyway.
#[must_use]
pub fn may_run_early(verdict: &Verdict, mode: TxMode) -> bool {
    let fresh = matches!(mode.isolation, Some(Isolation::ReadCommitted | Isolation::ReadUncommitted));
    let query = verdict.kind == StatementKind::Select || verdict.reason == Reason::Explain;
    let plain = verdict.tx == TxControl::None && verdict.effect == Effect::None && verdict.pin.is_none();
    fresh && query && plain && verdict.access == Access::Read
}

/// A read that nobody has said anything about.
fn balance(by_pattern: bool, policy: &Policy, reason: Reason) -> (Target, Reason) {
    if by_pattern {
        return (Target::Primary, Reason::QueryPattern);
    }
    if policy.after_write {
        return (Target::Primary, Reason::AfterWrite);
    }
    match policy.redirect {
        Some(Redirect::Primary) => (Target::Primary, Reason::Redirect),
        Some(Redirect::Standby) => (Target::Standby, Reason::Redirect),
        Some(Redirect::Node(node)) => (Target::Prefer(node), Reason::Redirect),
        None => (Target::Read, reason),
    }
}

/// Somebody says that a standby will do.
fn is_elsewhere(wish: Option<Hint>) -> bool {
    matches!(wish, Some(Hint::Standby | Hint::Node(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::PinReason;

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
        let off = Policy { load_balance: false, ..Policy::default() };
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
    fn a_transaction_that_may_write_reads_elsewhere_before_it_does() {
        let policy = Policy { early_reads: true, ..Policy::default() };
        let read = verdict(Access::Read, Reason::ReadOnlySelect);
        let at = |verdict: &Verdict, isolation, policy: &Policy| {
            let mode = TxMode { isolation, ..TxMode::default() };
            decide(verdict, &TxView { in_transaction: true, mode }, policy)
        };
        let committed = Some(Isolation::ReadCommitted);
        let early = (Target::Read, Reason::TransactionLoadBalance);
        let primary = (Target::Primary, Reason::TransactionReadWrite);
        assert_eq!(at(&read, committed, &policy), early);
        assert_eq!(at(&read, committed, &Policy::default()), primary);
        // What the server takes for the level when nobody says is not known.
        for isolation in [None, Some(Isolation::RepeatableRead)] {
            assert_eq!(at(&read, isolation, &policy), primary);
        }
        let cursor = read.with_kind(StatementKind::Other);
        assert_eq!(at(&cursor, committed, &policy), primary);
        let write = verdict(Access::Write, Reason::Dml);
        assert_eq!(at(&write, committed, &policy), (Target::Primary, Reason::Dml));
        let written = Policy { after_write: true, ..policy };
        assert_eq!(at(&read, committed, &written), (Target::Primary, Reason::AfterWrite));
    }

    #[test]
    fn one_precedence() {
        let read = verdict(Access::Read, Reason::ReadOnlySelect);
        let everything = Policy {
            load_balance: true,
            read_only: true,
            route: Some(Hint::Node(NodeId(1))),
            after_write: true,
            redirect: Some(Redirect::Node(NodeId(2))),
            early_reads: false,
        };
        let mut hinted = read.with_hint(Some(Hint::Standby));
        hinted.by_pattern = true;
        let at = |verdict: &Verdict, policy: &Policy| decide(verdict, &TxView::default(), policy);
        // From the first to the last, each one taken away in its turn.
        assert_eq!(at(&hinted, &everything), (Target::Standby, Reason::ReadOnlyPort));
        let policy = Policy { read_only: false, ..everything };
        assert_eq!(
            at(&hinted, &Policy { load_balance: false, ..policy }),
            (Target::Primary, Reason::PrimaryOnly)
        );
        assert_eq!(at(&hinted, &policy), (Target::Standby, Reason::Hint));
        let plain = Verdict { hint: None, ..hinted };
        assert_eq!(at(&plain, &policy), (Target::Node(NodeId(1)), Reason::SessionRoute));
        let policy = Policy { route: None, ..policy };
        assert_eq!(at(&plain, &policy), (Target::Primary, Reason::QueryPattern));
        assert_eq!(at(&read, &policy), (Target::Primary, Reason::AfterWrite));
        let policy = Policy { after_write: false, ..policy };
        assert_eq!(at(&read, &policy), (Target::Prefer(NodeId(2)), Reason::Redirect));
        let policy = Policy { redirect: None, ..policy };
        assert_eq!(at(&read, &policy), (Target::Read, Reason::ReadOnlySelect));
    }

    #[test]
    fn nothing_but_the_read_only_port_moves_a_write() {
        let write = verdict(Access::Write, Reason::Dml);
        let doubt = verdict(Access::Write, Reason::UnknownFunction);
        for route in [None, Some(Hint::Primary), Some(Hint::Standby), Some(Hint::Node(NodeId(1)))] {
            let policy = Policy { route, redirect: Some(Redirect::Standby), ..Policy::default() };
            let target = |verdict: &Verdict| decide(verdict, &TxView::default(), &policy).0;
            assert_eq!(target(&write), Target::Primary);
            let believed = matches!(route, Some(Hint::Standby | Hint::Node(_)));
            assert_eq!(target(&doubt) != Target::Primary, believed);
            let tx = TxView { in_transaction: true, mode: TxMode::default() };
            let read = verdict(Access::Read, Reason::ReadOnlySelect);
            assert_eq!(decide(&read, &tx, &policy), (Target::Primary, Reason::TransactionReadWrite));
        }
        let policy = Policy { read_only: true, ..Policy::default() };
        assert_eq!(decide(&write, &TxView::default(), &policy).0, Target::Standby);
    }

    #[test]
    fn settings_and_neutral_statements_say_nothing_about_nodes() {
        let set = verdict(Access::Neutral, Reason::SessionControl);
        let policy = Policy { route: Some(Hint::Primary), after_write: true, ..Policy::default() };
        assert_eq!(decide(&set, &TxView::default(), &policy), (Target::Anywhere, Reason::SessionControl));
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
