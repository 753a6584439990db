//! What each node is burdened with by us, for the balancing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use cluster::{NodeId, Topology};
use parking_lot::RwLock;
use router::{Choice, PeakEwma, Picker};

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

    /// Pieces of work now.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// Connections now.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }

    /// How long it takes to answer (seconds); 0 when that is not known.
    #[must_use]
    pub fn latency(&self) -> f64 {
        self.latency_now().seconds()
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
}

/// A worker's picker, with the burdens of the nodes at hand: choosing one locks nothing that other workers use.
#[derive(Debug)]
pub(crate) struct Balancer {
    picker: Picker,
    burdens: Burdens,
}

/// By the nodes' index; a burden that was made once is the same for good.
#[derive(Debug, Default)]
struct Burdens(Vec<Arc<NodeLoad>>);

impl Balancer {
    /// One whose choices follow from the seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self { picker: Picker::new(seed), burdens: Burdens::default() }
    }

    /// As [`Picker::pick`], by the burdens of `loads`.
    pub(crate) fn pick(&mut self, topology: &Topology, choice: &Choice<'_>, loads: &Loads) -> Option<NodeId> {
        for node in topology.nodes.iter().skip(self.burdens.0.len()) {
            self.burdens.0.push(loads.node(node.id));
        }
        self.picker.pick(topology, choice, &self.burdens)
    }
}

impl router::Loads for Burdens {
    fn outstanding(&self, node: NodeId) -> u32 {
        self.0.get(node.index()).map_or(0, |load| load.outstanding())
    }

    fn connections(&self, node: NodeId) -> u32 {
        self.0.get(node.index()).map_or(0, |load| load.connections())
    }

    fn latency(&self, node: NodeId) -> f64 {
        self.0.get(node.index()).map_or(0.0, |load| load.latency())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_until_dropped() {
        let loads = Loads::default();
        let work = loads.node(NodeId(1)).work();
        let connection = loads.node(NodeId(1)).connection();
        let counts = |node| (loads.node(NodeId(node)).outstanding(), loads.node(NodeId(node)).connections());
        assert_eq!((counts(1), counts(0)), ((1, 1), (0, 0)));
        work.node().answered(Duration::from_millis(3));
        let latency = |node| loads.node(NodeId(node)).latency();
        assert!((latency(1) - 0.003).abs() < 1e-9 && latency(0) == 0.0);
        drop((work, connection));
        assert_eq!(counts(1), (0, 0));
    }

    #[test]
    fn a_balancer_sees_burdens_of_nodes_that_come_later() {
        let (loads, mut balancer) = (Loads::default(), Balancer::new(1));
        let node = |id| cluster::Node {
            id: NodeId(id),
            hostname: "h".into(),
            port: 1,
            weight: 1.0,
            state: cluster::NodeState::Up,
            role: cluster::Role::Standby,
            changed_epoch: cluster::Epoch(0),
            changed_at: cluster::Moment::default(),
            replay_lag: None,
        };
        let choice = Choice {
            target: router::Target::Standby,
            algorithm: router::Algorithm::LeastOutstanding,
            exclude: &[],
            now: cluster::Moment::default(),
            slow_start: Duration::ZERO,
        };
        let one = Topology { nodes: vec![node(0)], ..Topology::default() };
        assert_eq!(balancer.pick(&one, &choice, &loads), Some(NodeId(0)));
        let two = Topology { nodes: vec![node(0), node(1)], epoch: cluster::Epoch(1), ..one };
        let _work: Vec<_> = (0..9).map(|_| loads.node(NodeId(1)).work()).collect();
        assert_eq!(balancer.pick(&two, &choice, &loads), Some(NodeId(0)), "the other is busy");
    }
}
