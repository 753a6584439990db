//! From a target to a node: balancing.
//!
//! Weights are honoured by every algorithm, nodes that are not usable are never picked, and no
//! combination of weights can starve reads: with no weighted node left the primary reads, then any
//! standby. Randomness is a seeded generator of the picker's own.

use cluster::{Node, NodeId, Role, Topology};

use crate::decide::Target;

mod ledger;

use ledger::{Candidate, Least, Ledger};

/// How a node is chosen among those that qualify; the words are `load_balance`'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Algorithm {
    /// By weighted chance.
    Random,
    /// In turn, smoothly weighted.
    RoundRobin,
    /// In turn, but not to a node that holds clearly more than its share of the requests in flight, and
    /// less often to one that is clearly slower.
    #[default]
    LeastOutstanding,
    /// As [`Self::LeastOutstanding`]; connections are opened where there are fewest per unit of weight.
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

/// Picks nodes; one per worker (turns, chance and what is remembered of the nodes are local to it).
#[derive(Debug, Clone)]
pub struct Picker {
    random: SplitMix,
    ledger: Ledger,
    /// Kept for its memory only.
    candidates: Vec<Candidate>,
}

impl Picker {
    /// A picker whose choices follow from the seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { random: SplitMix(seed), ledger: Ledger::default(), candidates: Vec::new() }
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
        nodes: impl Iterator<Item = Candidate>,
        algorithm: Algorithm,
        loads: &impl Loads,
    ) -> Option<NodeId> {
        let Self { random, ledger, candidates } = self;
        candidates.clear();
        candidates.extend(nodes.filter(|node| node.share > 0.0 && node.share.is_finite()));
        let total: f64 = candidates.iter().map(|node| node.share).sum();
        for candidate in candidates.iter_mut() {
            candidate.share /= total;
        }
        ledger.meet(candidates, || random.unit());
        match algorithm {
            Algorithm::Random => random.choose(candidates),
            Algorithm::RoundRobin => ledger.in_turn(candidates),
            Algorithm::LeastOutstanding => ledger.least(candidates, Least::Outstanding, loads),
            Algorithm::LeastConnections => ledger.least(candidates, Least::Connections, loads),
        }
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

/// By its weight, which becomes a share when all candidates are known.
fn weighed(node: &Node) -> Candidate {
    Candidate { id: node.id, share: node.weight, changed: node.changed_epoch }
}

fn alike(node: &Node) -> Candidate {
    Candidate { share: 1.0, ..weighed(node) }
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

    /// By weighted chance; the shares add up to 1.
    fn choose(&mut self, candidates: &[Candidate]) -> Option<NodeId> {
        let mut left = self.unit();
        let mut last = None;
        for candidate in candidates {
            last = Some(candidate.id);
            left -= candidate.share;
            if left < 0.0 {
                break;
            }
        }
        last
    }
}
