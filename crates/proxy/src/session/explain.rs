//! `PGWEIR EXPLAIN statement`: where this session would run it now, and why.
//!
//! What the session knows is taken down when a statement for the console comes; everything else is the console's.

use std::sync::Arc;

use cluster::{NodeId, Role, Topology};
use protocol::console::{Answer, Caller, Console, Pending};
use protocol::error::PgError;
use protocol::table::{Cell, Column, Table};
use router::{ParseOptions, Policy, Reason, Target, TxView, decide};

use super::Session;
use crate::catalog::Knowledge;
use crate::engine::Unit;
use crate::shared::Worker;

/// The console, with what the session knows.
pub(super) struct Explainer {
    console: Arc<dyn Console>,
    worker: Arc<Worker>,
    knowledge: Arc<Knowledge>,
    parse: ParseOptions,
    view: TxView,
    policy: Policy,
    topology: Arc<Topology>,
    /// Standbys that do not show yet what the session has written.
    stale: Vec<NodeId>,
    /// The session has a backend, and stays there.
    bound: Option<(NodeId, Reason)>,
    /// It leaves that for what belongs to the primary.
    may_leave: bool,
}

impl Session {
    pub(super) fn explainer(&mut self) -> Explainer {
        let topology = Arc::clone(self.topology.load());
        let view = self.view();
        Explainer {
            console: Arc::clone(&self.worker.shared.deps.console),
            worker: Arc::clone(&self.worker),
            knowledge: Arc::clone(self.knowledge.load()),
            parse: self.parse,
            view,
            policy: self.policy(view.in_transaction),
            stale: self.stale_nodes(&topology, Target::Read),
            bound: self.bound(&topology),
            may_leave: self.engine.may_leave(),
            topology,
        }
    }

    /// The first digits of the fingerprint are those of SHOW POOL_STATEMENTS.
    pub(super) fn log_route(&self, node: NodeId, reason: Reason, unit: &Unit) {
        let (client, kind) = (self.client.entry.id, unit.verdict.kind.as_str());
        let fingerprint = format!("{:016x}", unit.verdict.print);
        tracing::info!(client, node = %node, reason = reason.as_str(), kind, fingerprint, "statement routed");
    }

    /// Where the session is held, and by what.
    fn bound(&self, topology: &Topology) -> Option<(NodeId, Reason)> {
        let lease = self.client.entry.lease()?;
        let is = |node: &&cluster::Node| {
            *node.hostname == *lease.address.hostname && node.port == lease.address.port
        };
        let node = topology.nodes.iter().find(is)?;
        let reason = match (self.engine.pin(), lease.role) {
            (Some(_), _) => Reason::Pinned,
            (None, _) if self.engine.is_early() => Reason::TransactionLoadBalance,
            (None, Role::Primary) => Reason::TransactionReadWrite,
            (None, _) => Reason::TransactionReadOnly,
        };
        Some((node.id, reason))
    }
}

impl Console for Explainer {
    fn columns(&self, caller: &Caller, sql: &str) -> Result<Option<Vec<Column>>, PgError> {
        match router::explained(sql.as_bytes()) {
            Some(_) => Ok(Some(columns())),
            None => self.console.columns(caller, sql),
        }
    }

    fn run<'a>(&'a self, caller: &'a Caller, sql: &'a str) -> Pending<'a> {
        match router::explained(sql.as_bytes()) {
            Some(statement) => {
                let table = self.explain(statement);
                Box::pin(std::future::ready(Ok(Answer::Table(table))))
            }
            None => self.console.run(caller, sql),
        }
    }

    fn progress(&self, caller: &Caller, sql: &str) -> Option<String> {
        self.console.progress(caller, sql)
    }
}

fn columns() -> Vec<Column> {
    ["target", "node", "reason", "kind", "pin", "fingerprint", "statement"].map(Column::text).to_vec()
}

impl Explainer {
    fn explain(&self, statement: &[u8]) -> Table {
        let verdict = self.worker.classify_followed(statement, &self.parse, &self.knowledge);
        let (target, reason) = decide(&verdict, &self.view, &self.policy);
        let described = router::explain(statement, &self.parse);
        let (target, nodes, reason) = match self.bound {
            Some((node, reason)) if !(self.may_leave && target == Target::Primary) => {
                ("bound", vec![node], reason)
            }
            _ => (word(target), self.nodes(target), reason),
        };
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        let row = vec![
            Cell::from(target),
            Cell::from(nodes.join(",")),
            Cell::from(reason.as_str()),
            Cell::from(verdict.kind.as_str()),
            Cell::from(verdict.pin.map(router::PinReason::as_str)),
            Cell::from(described.fingerprint.to_string()),
            Cell::from(described.normalized),
        ];
        Table { rows: vec![row], ..Table::show(columns()) }
    }

    /// The nodes that it may be.
    fn nodes(&self, target: Target) -> Vec<NodeId> {
        let primary: Vec<NodeId> = self.topology.primary.into_iter().collect();
        let readers = |standbys_only: bool| {
            let nodes = self.topology.nodes.iter().filter(|node| node.is_usable() && node.weight > 0.0);
            let nodes = nodes.filter(|node| !standbys_only || Some(node.id) != self.topology.primary);
            let nodes: Vec<NodeId> =
                nodes.map(|node| node.id).filter(|id| !self.stale.contains(id)).collect();
            if nodes.is_empty() { primary.clone() } else { nodes }
        };
        match target {
            Target::Primary | Target::Anywhere => primary,
            Target::Read => readers(false),
            Target::Standby => readers(true),
            Target::Node(id) | Target::Prefer(id) => vec![id],
        }
    }
}

fn word(target: Target) -> &'static str {
    match target {
        Target::Primary => "primary",
        Target::Read => "read",
        Target::Standby => "standby",
        Target::Node(_) | Target::Prefer(_) => "node",
        Target::Anywhere => "anywhere",
    }
}
