//! Waiting out a failover: what has not begun yet waits for a node instead of being refused.
//!
//! Invariants: only units of which nothing was sent wait; nobody waits longer than `failover_hold_timeout`
//! from the moment the primary was lost, nor at all when there never was one; while the primary counts as alive
//! although it cannot be connected to, not longer than the health check needs to find that out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::{ConnectFailure, Moment, Node, NodeId, Observation, Role, Topology};
use router::Target;
use tokio::sync::watch;

use super::Session;
use super::acquire::Interrupt;
use super::refusal::Refusal;
use crate::registry::WaitsFor;

/// How often it is tried again to connect to a primary that counts as alive.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How long the cluster core may take to think about what it was told.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// One unit's wait.
pub(super) struct Hold {
    began: Moment,
    changes: watch::Receiver<u64>,
}

impl Hold {
    /// How long it has lasted.
    pub(super) fn waited(&self, now: Moment) -> Duration {
        now.0.saturating_sub(self.began.0)
    }
}

/// Whether waiting may help: a node is missing, and the unit is not bound to one node.
pub(super) fn may_help(target: Target, refusal: &Refusal) -> bool {
    let missing = match refusal {
        Refusal::NoPrimary { .. }
        | Refusal::NoNode
        | Refusal::Stale
        | Refusal::Gone(_)
        | Refusal::Unreachable(_) => true,
        Refusal::Connect(_, error) => {
            let of_the_node = matches!(
                error.kind(),
                ConnectFailure::Unreachable | ConnectFailure::TimedOut | ConnectFailure::NotReady
            );
            of_the_node && !error.is_ours()
        }
        Refusal::Busy { .. } | Refusal::Paused(_) | Refusal::Cancelled => false,
    };
    missing && !matches!(target, Target::Node(_))
}

impl Session {
    /// Waits until it is worth to try again.
    ///
    /// # Errors
    /// The refusal, when it was waited long enough; or why the session ends.
    pub(super) async fn hold(&mut self, hold: &mut Option<Hold>, refusal: Refusal) -> Result<(), Interrupt> {
        let topology = Arc::clone(self.topology.load());
        let now = self.worker.shared.deps.now();
        let Some(held) = hold else {
            let changes = self.worker.shared.deps.topology.changes();
            let first = Hold { began: now, changes };
            let nameless = has_nameless(&topology);
            if nameless {
                self.find_out(&topology).await?;
            }
            // Nobody is kept waiting by a primary that never was.
            if !nameless && self.hold_ends(&topology, &first).is_none_or(|end| now >= end) {
                return Err(refusal.into());
            }
            self.client.entry.set_waiting(WaitsFor::Node);
            self.worker.shared.deps.metrics.failover_holds.inc();
            // The topology may have changed before it was listened to: once more without a wait.
            *hold = Some(first);
            return Ok(());
        };
        let Some(end) = self.hold_ends(&topology, held).filter(|end| now < *end) else {
            let waited = held.waited(now);
            tracing::debug!(client = self.client.entry.id, waited_ms = waited.as_millis(), "held in vain");
            return Err(refusal.after(waited).into());
        };
        let left = end.0.saturating_sub(now.0);
        let nap = if topology.primary.is_some() { left.min(LOOK_AGAIN) } else { left };
        let until = Instant::now() + nap;
        let mut changes = held.changes.clone();
        let changed = self.watched_or_cancelled(async move {
            // The sender lives as long as the process.
            let _ = tokio::time::timeout_at(until.into(), changes.changed()).await;
            changes
        });
        held.changes = changed.await?;
        Ok(())
    }

    /// Nobody knows what some nodes are, because they refuse the health check. A session's own connection tells, from
    /// PostgreSQL 14 on.
    async fn find_out(&mut self, topology: &Topology) -> Result<(), Interrupt> {
        let mut changes = self.worker.shared.deps.topology.changes();
        let mut told = false;
        for node in topology.nodes.iter().filter(|node| is_nameless(node)) {
            let backend = match self.acquire_here(node, topology).await {
                Ok(backend) => backend,
                Err(Interrupt::Refused(_)) => continue,
                Err(end) => return Err(end),
            };
            let role = match backend.books.parameters.get("in_hot_standby") {
                Some("off") => Role::Primary,
                Some(_) => Role::Standby,
                None => Role::Unknown,
            };
            told |= role != Role::Unknown;
            let (node, epoch) = (node.id, topology.epoch);
            self.worker.shared.observe(Observation::RoleSeen { node, epoch, role });
            self.give_back(backend).await;
        }
        if told {
            let answer = async {
                // The sender lives as long as the process.
                let _ = tokio::time::timeout(ANSWER_WITHIN, changes.changed()).await;
            };
            self.watched_or_cancelled(answer).await?;
        }
        Ok(())
    }

    /// When nothing is held any more; `None` when nothing is held at all.
    fn hold_ends(&mut self, topology: &Topology, hold: &Hold) -> Option<Moment> {
        let config = self.config.get();
        let limit = config.failover_hold_timeout;
        let (since, limit) = match (topology.primary, topology.primary_lost) {
            (Some(primary), _) => (hold.began, limit.min(time_to_notice(config, primary))),
            (None, Some(lost)) => (lost, limit),
            (None, None) => return None,
        };
        Some(Moment(since.0.saturating_add(limit)))
    }
}

/// It answers, and nobody knows what it is.
fn is_nameless(node: &Node) -> bool {
    node.is_usable() && node.role == Role::Unknown
}

fn has_nameless(topology: &Topology) -> bool {
    topology.primary.is_none() && topology.nodes.iter().any(is_nameless)
}

/// How long the health check needs at most until it takes a node for dead.
fn time_to_notice(config: &config::Config, node: NodeId) -> Duration {
    config.health_check(node).map_or(Duration::ZERO, |check| {
        let round = check.timeout.saturating_add(check.retry_delay);
        check.period.saturating_add(round.saturating_mul(check.max_retries.saturating_add(1)))
    })
}
