//! What each node is burdened with by us, for the balancing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use cluster::NodeId;
use parking_lot::RwLock;
use router::PeakEwma;

use crate::cancel::Desk;

/// The burden of one node.
#[derive(Debug, Default)]
pub struct NodeLoad {
    outstanding: AtomicU32,
    connections: AtomicU32,
    cancels: Desk,
    /// The bits of a [`PeakEwma`]. Workers that write at once lose one of their samples.
    latency: AtomicU64,
}

/// Counts one piece of work, or one connection, until it is dropped.
#[derive(Debug)]
pub struct Counted {
    load: Arc<NodeLoad>,
    what: What,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Outstanding,
    Connection,
}

impl NodeLoad {
    fn counter(&self, what: What) -> &AtomicU32 {
        match what {
            What::Outstanding => &self.outstanding,
            What::Connection => &self.connections,
        }
    }

    fn count(self: &Arc<Self>, what: What) -> Counted {
        self.counter(what).fetch_add(1, Ordering::Relaxed);
        Counted { load: Arc::clone(self), what }
    }

    /// A session has work for the node: it waits for a backend or has one.
    #[must_use]
    pub fn work(self: &Arc<Self>) -> Counted {
        self.count(What::Outstanding)
    }

    /// Where cancel requests to the node wait for their turn.
    pub(crate) fn cancels(&self) -> &Desk {
        &self.cancels
    }

    /// The node took so long to begin its answer to a read.
    pub fn answered(&self, time: Duration) {
        let next = self.latency_now().after(time.as_secs_f32());
        self.latency.store(next.to_bits(), Ordering::Relaxed);
    }

    fn latency_now(&self) -> PeakEwma {
        PeakEwma::from_bits(self.latency.load(Ordering::Relaxed))
    }

    /// A connection to the node.
    #[must_use]
    pub fn connection(self: &Arc<Self>) -> Counted {
        self.count(What::Connection)
    }
}

impl Counted {
    /// The node that carries it.
    #[must_use]
    pub fn node(&self) -> &NodeLoad {
        &self.load
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.load.counter(self.what).fetch_sub(1, Ordering::Relaxed);
    }
}

/// The burdens of all nodes, made as they are asked for.
#[derive(Debug, Default)]
pub struct Loads {
    nodes: RwLock<Vec<Arc<NodeLoad>>>,
}

impl Loads {
    /// The burden of `node`.
    pub fn node(&self, node: NodeId) -> Arc<NodeLoad> {
        if let Some(load) = self.nodes.read().get(node.index()) {
            return Arc::clone(load);
        }
        let mut nodes = self.nodes.write();
        while nodes.len() <= node.index() {
            nodes.push(Arc::default());
        }
        nodes.get(node.index()).map(Arc::clone).unwrap_or_default()
    }

    fn read(&self, node: NodeId, what: What) -> u32 {
        self.nodes.read().get(node.index()).map_or(0, |load| load.counter(what).load(Ordering::Relaxed))
    }
}

impl router::Loads for Loads {
    fn outstanding(&self, node: NodeId) -> u32 {
        self.read(node, What::Outstanding)
    }

    fn connections(&self, node: NodeId) -> u32 {
        self.read(node, What::Connection)
    }

    fn latency(&self, node: NodeId) -> f64 {
        self.nodes.read().get(node.index()).map_or(0.0, |load| load.latency_now().seconds())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use router::Loads as _;

    #[test]
    fn counts_until_dropped() {
        let loads = Loads::default();
        let work = loads.node(NodeId(1)).work();
        let connection = loads.node(NodeId(1)).connection();
        assert_eq!(
            (loads.outstanding(NodeId(1)), loads.connections(NodeId(1)), loads.outstanding(NodeId(0))),
            (1, 1, 0)
        );
        work.node().answered(Duration::from_millis(3));
        assert!((loads.latency(NodeId(1)) - 0.003).abs() < 1e-9 && loads.latency(NodeId(0)) == 0.0);
        drop((work, connection));
        assert_eq!((loads.outstanding(NodeId(1)), loads.connections(NodeId(1))), (0, 0));
    }
}
