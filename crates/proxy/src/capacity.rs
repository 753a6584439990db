//! How many connections the nodes take, as they say themselves, and how many of them pools may use.
//!
//! Who asks them is not our business; what they said holds until they say something else.

use std::collections::HashMap;

use cluster::Node;
use config::Config;
use parking_lot::Mutex;
use telemetry::Published;
use tokio::sync::watch;

use crate::connect::NodeAddress;

/// Connections of ours to a node that are no pool's: the health check's and the sampler's.
const OURS: u32 = 2;

/// What a node said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Its `max_connections`.
    pub max_connections: u32,
    /// As many of them ordinary roles cannot have (`superuser_reserved_connections` and, since PostgreSQL 16,
    /// `reserved_connections`).
    pub reserved: u32,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Capacities {
    said: Published<HashMap<NodeAddress, Capacity>>,
    /// Who replaces what was said.
    writing: Mutex<()>,
}

impl Default for Capacities {
    fn default() -> Self {
        Self { said: Published::new(HashMap::new()), writing: Mutex::default() }
    }
}

impl Capacities {
    /// A node said that.
    pub fn learn(&self, address: NodeAddress, capacity: Capacity) {
        let _only_me = self.writing.lock();
        let mut said = HashMap::clone(&self.said.load());
        if said.insert(address, capacity) != Some(capacity) {
            self.said.publish(said);
        }
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.said.changes()
    }

    /// The most backends that all pools of a node may have together; `None` while nobody knows.
    #[must_use]
    pub fn for_pools(&self, config: &Config, node: &Node) -> Option<u32> {
        let row = config.backends.get(node.id.index());
        let (most, kept_free) = match row.and_then(|row| row.max_connections) {
            Some(most) => (most, config.reserved_connections),
            None => {
                let address = NodeAddress { hostname: node.hostname.to_string(), port: node.port };
                let said = *self.said.load().get(&address)?;
                let unusable = said.reserved.saturating_add(OURS);
                (said.max_connections, config.reserved_connections.max(unusable))
            }
        };
        // Never none at all: the server itself may say so.
        Some(most.saturating_sub(kept_free).max(1))
    }
}

#[cfg(test)]
mod tests {
    use cluster::{Epoch, Moment, NodeId, NodeState, Role};

    use super::*;

    fn node(id: u16, hostname: &str) -> Node {
        Node {
            id: NodeId(id),
            hostname: hostname.into(),
            port: 5432,
            weight: 1.0,
            state: NodeState::Up,
            role: Role::Primary,
            changed_epoch: Epoch(1),
            changed_at: Moment::default(),
            replay_lag: None,
        }
    }

    #[test]
    fn what_is_kept_free_is_what_was_asked_for_or_what_cannot_be_used() {
        let capacities = Capacities::default();
        let config = |reserved: u32| {
            let text = format!(
                "backends: [{{hostname: a}}, {{hostname: b, max_connections: 500}}]\nreserved_connections: {reserved}\n"
            );
            config::parse(&text, "test").unwrap()
        };
        let (a, b) = (node(0, "a"), node(1, "b"));
        assert_eq!(capacities.for_pools(&config(3), &a), None, "nobody knows yet");
        assert_eq!(capacities.for_pools(&config(3), &b), Some(497), "its row says so");
        let mut changes = capacities.changes();
        let address = NodeAddress { hostname: "a".to_owned(), port: 5432 };
        let said = Capacity { max_connections: 100, reserved: 3 };
        capacities.learn(address.clone(), said);
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        capacities.learn(address, said);
        assert!(!changes.has_changed().unwrap(), "that is no news");
        for (reserved, most) in [(0, 95), (3, 95), (5, 95), (6, 94), (40, 60), (100, 1)] {
            assert_eq!(capacities.for_pools(&config(reserved), &a), Some(most), "{reserved}");
        }
        assert_eq!(capacities.for_pools(&config(3), &node(0, "other")), None, "the id names another server");
    }
}
