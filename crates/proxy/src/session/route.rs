//! Where a unit of work goes: what the session and the configuration add to what its text says.

use cluster::NodeId;
use config::{Consistency, DisableLoadBalanceOnWrite, RedirectTarget};
use router::{Access, Hint, Policy, Reason, Redirect, Target, TxView, decide};

use super::Session;
use super::declared::value_of;
use crate::engine::{Boundary, Unit, is_early};
use crate::registry::Peer;

/// What a session has written, as far as its reads depend on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Wrote {
    /// Anything.
    anything: bool,
    /// In an explicit transaction.
    in_transaction: bool,
}

impl Wrote {
    /// Something was written.
    pub(super) fn note(&mut self, in_transaction: bool) {
        self.anything = true;
        self.in_transaction |= in_transaction;
    }
}

impl Session {
    /// Where a unit goes.
    pub(super) fn route(&mut self, unit: &Unit) -> (Target, Reason) {
        let verdict = &unit.verdict;
        let view = self.view();
        let mut policy =
            self.policy(view.in_transaction || matches!(verdict.tx, router::TxControl::Begin(_)));
        policy.early_reads = policy.early_reads && is_early(unit, view.mode);
        let may_write = unit.boundary == Boundary::FlushedRun && !view.in_transaction;
        match decide(verdict, &view, &policy) {
            (Target::Read | Target::Prefer(_) | Target::Anywhere, _) if may_write => {
                (Target::Primary, Reason::OpenBatch)
            }
            routed => routed,
        }
    }

    /// The transaction that what comes next is in, or begins.
    pub(super) fn view(&mut self) -> TxView {
        let mut view = self.lazy.view();
        let (settings, knowledge) = (self.engine.settings(), self.knowledge.load());
        let mode = self.declared.mode(settings, knowledge, &self.identity.user);
        view.mode = if view.in_transaction { mode.overlaid(view.mode) } else { mode };
        view
    }

    /// What the configuration and the session say, for this time.
    pub(super) fn policy(&mut self, in_transaction: bool) -> Policy {
        let read_only = self.is_read_only();
        // A standby need not show what others write while the transaction is there.
        let early_reads = in_transaction
            && self.config.get().transaction_load_balance
            && !self.lazy.has_moved()
            && self.consistency() != Consistency::Global;
        let route = self.route_asked_for();
        let config = self.config.get();
        let after_write = match config.disable_load_balance_on_write {
            // A transaction that has written is on the primary to its end anyway.
            DisableLoadBalanceOnWrite::Off | DisableLoadBalanceOnWrite::Transaction => false,
            DisableLoadBalanceOnWrite::TransTransaction => in_transaction && self.wrote.in_transaction,
            DisableLoadBalanceOnWrite::Always => self.wrote.anything,
        };
        Policy {
            load_balance: config.load_balance_mode,
            read_only,
            route,
            after_write,
            early_reads,
            redirect: self.redirect(),
        }
    }

    /// Whether a READ ONLY transaction begins with the unit that could go on elsewhere: READ COMMITTED, as far as is known,
    /// in which each statement sees the present anew.
    pub(super) fn begins_read_only(&mut self, unit: &Unit) -> bool {
        self.lazy.is_open() && !self.lazy.has_moved() && is_early(unit, self.view().mode)
    }

    /// The session asks for a standby, or a node that may be one, whatever it does.
    pub(super) fn is_routed_to_standby(&mut self) -> bool {
        matches!(self.route_asked_for(), Some(Hint::Standby | Hint::Node(_)))
    }

    /// `SET pgweir.route`, that of the transaction or of the session.
    fn route_asked_for(&mut self) -> Option<Hint> {
        self.lazy.route().unwrap_or_else(|| self.declared.of(self.engine.settings()).route)
    }

    /// Whether the unit's answer tells how fast the node is: that of a lone read.
    pub(super) fn times(&mut self, unit: &Unit) -> bool {
        if self.config.get().load_balance != config::LoadBalance::Latency {
            return false;
        }
        matches!(unit.boundary, Boundary::Query | Boundary::Sync)
            && unit.verdict.access == Access::Read
            && unit.verdict.tx == router::TxControl::None
    }

    /// The client came by `read_only_port`.
    pub(super) fn is_read_only(&mut self) -> bool {
        let port = self.config.get().read_only_port;
        matches!(self.client.entry.local, Peer::Tcp(address) if Some(address.port()) == port)
    }

    /// Where the lists send this read.
    fn redirect(&mut self) -> Option<Redirect> {
        let rules = &self.knowledge.load().rules;
        if !rules.redirects() {
            return None;
        }
        let application = self.engine.settings().get("application_name").and_then(value_of);
        let application = application.unwrap_or_default();
        let found = rules.redirect(&self.identity.database, &self.identity.user, &application);
        let (target, share) = found?;
        if share < 1.0 && rand::random::<f64>() >= share {
            return None;
        }
        Some(match target {
            RedirectTarget::Primary => Redirect::Primary,
            RedirectTarget::Standby => Redirect::Standby,
            RedirectTarget::Node(id) => Redirect::Node(NodeId(id)),
        })
    }
}
