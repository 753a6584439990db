//! From a target to a node: balancing.
//!
//! Weights are honoured by every algorithm, nodes that are not usable are never picked, and no
//! combination of weights can starve reads: with no weighted node left the primary reads, then any
//! standby. Randomness is a seeded generator of the picker's own.

use cluster::{Node, NodeId, Role, Topology};

use crate::decide::Target;

/// How a node is chosen among those that qualify; the words are `load_balance`'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Algorithm {
    /// By weighted chance.
    Random,
    /// In turn, smoothly weighted.
    RoundRobin,
    /// The fewest requests in flight per unit of weight.
    #[default]
    LeastOutstanding,
    /// The fewest connections per unit of weight.
    LeastConnections,
}

impl Algorithm {
    /// The word that the configuration and SHOW use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::RoundRobin => "round_robin",
            Self::LeastOutstanding => "least_outstanding",
            Self::LeastConnections => "least_connections",
        }
    }
}

/// How busy the nodes are, as the caller sees it.
pub trait Loads {
    /// Requests in flight on the node.
    fn outstanding(&self, node: NodeId) -> u32;
    /// Connections open to the node.
    fn connections(&self, node: NodeId) -> u32;
}

/// Picks nodes; one per worker (round robin and chance are local to it).
#[derive(Debug, Clone)]
pub struct Picker {
    random: SplitMix,
    /// Smooth weighted round robin: what each node, by id, is owed.
    credits: Vec<f64>,
}

impl Picker {
    /// A picker whose choices follow from the seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { random: SplitMix(seed), credits: Vec::new() }
    }

    /// The node to use, `None` when none qualifies. Nodes in `exclude` (just failed) are left out.
    pub fn pick(
        &mut self,
        topology: &Topology,
        target: Target,
        algorithm: Algorithm,
        loads: &impl Loads,
        exclude: &[NodeId],
    ) -> Option<NodeId> {
        let allowed = |node: &&Node| node.is_usable() && !exclude.contains(&node.id);
        let primary = topology.primary_node().filter(allowed);
        match target {
            Target::Primary => primary.map(|node| node.id),
            Target::Node(id) => topology.node(id).filter(allowed).map(|node| node.id),
            Target::Anywhere => primary.or_else(|| readers(topology).find(allowed)).map(|node| node.id),
            Target::Read => self
                .balance(readers(topology).filter(allowed).map(weighed), algorithm, loads)
                .or_else(|| primary.map(|node| node.id))
                .or_else(|| self.balance(readers(topology).filter(allowed).map(alike), algorithm, loads)),
            Target::Standby => {
                let standbys = standbys(topology).filter(allowed);
                self.balance(standbys.clone().map(weighed), algorithm, loads)
                    .or_else(|| self.balance(standbys.map(alike), algorithm, loads))
                    .or_else(|| primary.map(|node| node.id))
            }
        }
    }

    /// Among nodes with a weight above 0.
    fn balance(
        &mut self,
        nodes: impl Iterator<Item = (NodeId, f64)> + Clone,
        algorithm: Algorithm,
        loads: &impl Loads,
    ) -> Option<NodeId> {
        let nodes = nodes.filter(|(_, weight)| *weight > 0.0 && weight.is_finite());
        match algorithm {
            Algorithm::Random => self.by_chance(nodes),
            Algorithm::RoundRobin => self.in_turn(nodes),
            Algorithm::LeastOutstanding => self.least(nodes, |id| loads.outstanding(id)),
            Algorithm::LeastConnections => self.least(nodes, |id| loads.connections(id)),
        }
    }

    fn by_chance(&mut self, nodes: impl Iterator<Item = (NodeId, f64)> + Clone) -> Option<NodeId> {
        let total: f64 = nodes.clone().map(|(_, weight)| weight).sum();
        let mut left = self.random.unit() * total;
        let mut last = None;
        for (id, weight) in nodes {
            last = Some(id);
            left -= weight;
            if left < 0.0 {
                break;
            }
        }
        last
    }

    /// Smooth weighted round robin (as nginx does it): each turn a node earns its weight, the richest
    /// serves and pays the total, so heavy nodes do not serve in bursts.
    fn in_turn(&mut self, nodes: impl Iterator<Item = (NodeId, f64)> + Clone) -> Option<NodeId> {
        let total: f64 = nodes.clone().map(|(_, weight)| weight).sum();
        let mut best: Option<(NodeId, f64)> = None;
        for (id, weight) in nodes {
            let credit = self.credit(id)?;
            *credit += weight;
            if best.is_none_or(|(_, most)| *credit > most) {
                best = Some((id, *credit));
            }
        }
        let (id, _) = best?;
        *self.credit(id)? -= total;
        Some(id)
    }

    fn credit(&mut self, id: NodeId) -> Option<&mut f64> {
        if self.credits.len() <= id.index() {
            self.credits.resize(id.index() + 1, 0.0);
        }
        self.credits.get_mut(id.index())
    }

    /// The lowest load per weight, one more request included (so that an idle pair of nodes is shared by
    /// weight); ties are broken by weighted chance.
    fn least(
        &mut self,
        nodes: impl Iterator<Item = (NodeId, f64)> + Clone,
        load: impl Fn(NodeId) -> u32,
    ) -> Option<NodeId> {
        let cost = |id, weight: f64| (f64::from(load(id)) + 1.0) / weight;
        let lowest = nodes.clone().map(|(id, weight)| cost(id, weight)).min_by(f64::total_cmp)?;
        self.by_chance(nodes.filter(move |(id, weight)| cost(*id, *weight) <= lowest))
    }
}

/// The nodes that can serve a read: the primary first, then the standbys.
fn readers(topology: &Topology) -> impl Iterator<Item = &Node> + Clone {
    let primary = topology.primary;
    topology.nodes.iter().filter(move |node| Some(node.id) == primary).chain(standbys(topology))
}

fn standbys(topology: &Topology) -> impl Iterator<Item = &Node> + Clone {
    let primary = topology.primary;
    topology.nodes.iter().filter(move |node| node.role == Role::Standby && Some(node.id) != primary)
}

fn weighed(node: &Node) -> (NodeId, f64) {
    (node.id, node.weight)
}

fn alike(node: &Node) -> (NodeId, f64) {
    (node.id, 1.0)
}

/// `SplitMix64` (Steele, Lea, Flood 2014): enough for balancing, one word of state.
#[derive(Debug, Clone)]
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In `0.0 .. 1.0`, from 32 random bits.
    fn unit(&mut self) -> f64 {
        let [a, b, c, d, ..] = self.next().to_le_bytes();
        f64::from(u32::from_le_bytes([a, b, c, d])) / (f64::from(u32::MAX) + 1.0)
    }
}
