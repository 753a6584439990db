//! Wakes the sessions on nodes that must not be used any more, instead of leaving them to time out.
//!
//! A node that is down or quarantined cuts whoever holds a backend of it; a primary that is none any more
//! cuts who leased it as one. Nothing else does: not a promotion, not lag, not weight, and not a node that
//! leaves the configuration, whose transactions end in peace.

use std::sync::Arc;

use cluster::{Node, NodeState, Role, Topology};

use crate::connect::NodeAddress;
use crate::registry::Flag;
use crate::shared::Shared;

/// What a session counted on when it took a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The server, whatever its place in the list becomes.
    pub address: Arc<NodeAddress>,
    /// What it was.
    pub role: Role,
}

impl Lease {
    /// Whether the backend must be let go of at once.
    #[must_use]
    pub fn is_fenced(&self, topology: &Topology) -> bool {
        is_fenced(&self.address, self.role, topology)
    }
}

/// Whether a backend of the server at `address`, which was taken for one of that role, must be let go of at once.
pub(crate) fn is_fenced(address: &NodeAddress, role: Role, topology: &Topology) -> bool {
    let is_there = |node: &&Node| node.port == address.port && *node.hostname == *address.hostname;
    topology.nodes.iter().find(is_there).is_some_and(|node| {
        let demoted = role == Role::Primary && node.role != Role::Primary;
        demoted || matches!(node.state, NodeState::Down | NodeState::Quarantine)
    })
}

/// Runs for ever, on the control plane.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut changes = shared.deps.topology.changes();
    while changes.changed().await.is_ok() {
        let topology = shared.deps.topology.load();
        let woken = wake(&shared, &topology);
        let closed = close_idle(&shared, &topology);
        if woken + closed > 0 {
            tracing::info!(epoch = topology.epoch.0, sessions = woken, idle = closed, "backends fenced");
        }
    }
}

/// The sessions look for themselves whether they still hold what is fenced; a flag too many costs a look.
fn wake(shared: &Shared, topology: &Topology) -> usize {
    let clients = shared.registry.clients();
    // Who keeps backends without using one now looks through them.
    clients.iter().filter(|client| client.keeps()).for_each(|client| client.raise(Flag::Fence));
    let fenced =
        clients.iter().filter(|client| client.lease().is_some_and(|lease| lease.is_fenced(topology)));
    fenced.map(|client| client.raise(Flag::Fence)).count()
}

fn close_idle(shared: &Shared, topology: &Topology) -> usize {
    let outdated = |pool: &crate::pool::Pool| {
        let node = topology.node(pool.key.node)?;
        Some(pool.close_idle(|backend| backend.epoch < node.changed_epoch))
    };
    shared.pools.all().iter().filter_map(|pool| outdated(pool)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{Epoch, Moment, NodeId};

    fn topology(state: NodeState, role: Role) -> Topology {
        let node = Node {
            id: NodeId(0),
            hostname: "db0".into(),
            port: 5432,
            weight: 0.0,
            state,
            role,
            changed_epoch: Epoch(7),
            changed_at: Moment::default(),
            replay_lag: Some(1 << 40),
        };
        Topology { epoch: Epoch(9), nodes: vec![node], ..Topology::default() }
    }

    fn lease(port: u16, role: Role) -> Lease {
        Lease { address: Arc::new(NodeAddress { hostname: "db0".to_owned(), port }), role }
    }

    #[test]
    fn a_node_that_is_lost_fences_and_one_that_rises_does_not() {
        for (role, state, now, fenced) in [
            (Role::Standby, NodeState::Up, Role::Standby, false),
            (Role::Standby, NodeState::Down, Role::Standby, true),
            (Role::Standby, NodeState::Quarantine, Role::Primary, true),
            (Role::Standby, NodeState::Up, Role::Primary, false),
            (Role::Primary, NodeState::Up, Role::Primary, false),
            (Role::Primary, NodeState::Up, Role::Standby, true),
            (Role::Primary, NodeState::Unused, Role::Primary, false),
        ] {
            let topology = topology(state, now);
            assert_eq!(lease(5432, role).is_fenced(&topology), fenced, "{role:?} to {state:?} {now:?}");
            assert!(!lease(5433, role).is_fenced(&topology), "a server that left the list");
        }
    }
}
