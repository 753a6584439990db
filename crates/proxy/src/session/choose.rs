//! Which node, of those that a target allows.

use cluster::{Node, NodeId, Topology};
use router::{Algorithm, Choice, Target};

use super::Session;

impl Session {
    /// A node for `target`, preferably one that does not lag.
    pub(super) fn pick<'t>(
        &mut self,
        topology: &'t Topology,
        target: Target,
        excluded: &[NodeId],
    ) -> Option<&'t Node> {
        if matches!(target, Target::Primary | Target::Anywhere | Target::Node(_)) {
            return self.pick_among(topology, target, excluded);
        }
        let mut lagging = self.lagging_nodes(topology, excluded);
        if lagging.is_empty() {
            return self.pick_among(topology, target, excluded);
        }
        lagging.extend_from_slice(excluded);
        // Without a primary there is nothing better than a standby that lags.
        let node = self.pick_among(topology, target, &lagging);
        node.or_else(|| self.pick_among(topology, target, excluded))
    }

    fn pick_among<'t>(
        &mut self,
        topology: &'t Topology,
        target: Target,
        excluded: &[NodeId],
    ) -> Option<&'t Node> {
        let followed = self.followed_node();
        let config = self.config.get();
        let (algorithm, per_session) = (algorithm(config.load_balance), !config.statement_level_load_balance);
        let slow_start = config.slow_start;
        let stays = followed.or(self.read_node.filter(|_| per_session)).filter(|_| target == Target::Read);
        let stays = stays.and_then(|id| topology.node(id)).filter(|node| node.is_usable());
        if let Some(node) = stays.filter(|node| !excluded.contains(&node.id)) {
            return Some(node);
        }
        let shared = &self.worker.shared;
        let now = shared.deps.moment(self.clock);
        let choice = Choice { target, algorithm, exclude: excluded, now, slow_start };
        let id = self.worker.balancer.lock().pick(topology, &choice, &shared.loads)?;
        if target == Target::Read && excluded.is_empty() {
            self.read_node = Some(id);
        }
        topology.node(id)
    }
}

fn algorithm(configured: config::LoadBalance) -> Algorithm {
    match configured {
        config::LoadBalance::Random => Algorithm::Random,
        config::LoadBalance::RoundRobin => Algorithm::RoundRobin,
        config::LoadBalance::LeastOutstanding => Algorithm::LeastOutstanding,
        config::LoadBalance::LeastConnections => Algorithm::LeastConnections,
        config::LoadBalance::Latency => Algorithm::Latency,
    }
}
