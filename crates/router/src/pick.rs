//! From a target to a node: balancing.
//!
//! Weights are honoured by every algorithm, nodes that are not usable are never picked, and no
//! combination of weights can starve reads: with no weighted node left the primary reads, then any
//! standby. A standby that has come back takes its weight little by little. Randomness is a seeded generator
//! of the picker's own, time an argument.

use std::time::Duration;

use cluster::{Epoch, Moment, Node, NodeId, Role, Topology};

use crate::decide::Target;

mod ledger;
mod peak;

use ledger::{Candidate, Ledger, Measure};
pub use peak::PeakEwma;

/// A node that was away takes this part of its weight at first.
const SLOW_START_FROM: f64 = 0.1;
/// Nodes that became usable within this time of each other began together: none of them has come back.
const TOGETHER: Duration = Duration::from_secs(2);

/// How a node is chosen among those that qualify; the words are `load_balance`'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Algorithm {
    /// By weighted chance.
    Random,
    /// In turn, smoothly weighted.
    RoundRobin,
    /// In turn, but not to a node that holds clearly more than its share of the requests in flight.
    #[default]
    LeastOutstanding,
    /// As [`Self::LeastOutstanding`]; connections are opened where there are fewest per unit of weight.
    LeastConnections,
    /// As [`Self::LeastOutstanding`], and less often to a node that takes clearly longer to answer ([`PeakEwma`]).
    Latency,
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
            Self::Latency => "latency",
        }
    }
}

/// What is asked of the picker.
#[derive(Debug, Clone, Copy)]
pub struct Choice<'a> {
    /// Where the statement goes.
    pub target: Target,
    /// How a node is chosen.
    pub algorithm: Algorithm,
    /// Nodes to leave out (just failed, or too old to be read).
    pub exclude: &'a [NodeId],
    /// Now.
    pub now: Moment,
    /// How long a standby that has come back takes to get its whole weight; zero gives it at once.
    pub slow_start: Duration,
}

/// How busy the nodes are, as the caller sees it.
pub trait Loads {
    /// Requests in flight on the node.
    fn outstanding(&self, node: NodeId) -> u32;
    /// Connections open to the node.
    fn connections(&self, node: NodeId) -> u32;
    /// How long the node takes to answer (seconds, a [`PeakEwma`]); 0 when that is not known.
    fn latency(&self, node: NodeId) -> f64;
}

/// Picks nodes; one per worker (turns, chance and what is remembered of the nodes are local to it).
#[derive(Debug, Clone)]
pub struct Picker {
    random: SplitMix,
    ledger: Ledger,
    /// Those of the last choice.
    candidates: Vec<Candidate>,
    /// What they are the candidates of, and will be until the topology is another one.
    settled: Option<(Epoch, Target)>,
}

impl Picker {
    /// A picker whose choices follow from the seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { random: SplitMix(seed), ledger: Ledger::default(), candidates: Vec::new(), settled: None }
    }

    /// The node to use, `None` when none qualifies.
    pub fn pick(&mut self, topology: &Topology, choice: &Choice<'_>, loads: &impl Loads) -> Option<NodeId> {
        if self.settled == Some((topology.epoch, choice.target)) && choice.exclude.is_empty() {
            return self.choose(choice.algorithm, loads);
        }
        self.settled = None;
        let allowed = |node: &&Node| node.is_usable() && !choice.exclude.contains(&node.id);
        let primary = topology.primary_node().filter(allowed);
        match choice.target {
            Target::Primary => primary.map(|node| node.id),
            Target::Node(id) => topology.node(id).filter(allowed).map(|node| node.id),
            Target::Prefer(id) => match topology.node(id).filter(allowed) {
                Some(node) => Some(node.id),
                None => self.pick(topology, &Choice { target: Target::Read, ..*choice }, loads),
            },
            Target::Anywhere => primary.or_else(|| readers(topology).find(allowed)).map(|node| node.id),
            Target::Read => {
                let readers = readers(topology).filter(allowed);
                self.by_weight(topology.epoch, readers.clone().map(weighed), choice, loads)
                    .or_else(|| primary.map(|node| node.id))
                    .or_else(|| self.balance(readers.map(alike), choice, loads))
            }
            Target::Standby => {
                let standbys = standbys(topology).filter(allowed);
                self.by_weight(topology.epoch, standbys.clone().map(weighed), choice, loads)
                    .or_else(|| self.balance(standbys.map(alike), choice, loads))
                    .or_else(|| primary.map(|node| node.id))
            }
        }
    }

    /// As [`Self::balance`]. Candidates that do not depend on the time are kept.
    fn by_weight(
        &mut self,
        epoch: Epoch,
        nodes: impl Iterator<Item = Candidate>,
        choice: &Choice<'_>,
        loads: &impl Loads,
    ) -> Option<NodeId> {
        let chosen = self.balance(nodes, choice, loads)?;
        let stay = choice.exclude.is_empty() && !is_starting(&self.candidates, choice);
        self.settled = stay.then_some((epoch, choice.target));
        Some(chosen)
    }

    /// Among nodes with a weight above 0.
    fn balance(
        &mut self,
        nodes: impl Iterator<Item = Candidate>,
        choice: &Choice<'_>,
        loads: &impl Loads,
    ) -> Option<NodeId> {
        let Self { random, ledger, candidates, .. } = self;
        candidates.clear();
        candidates.extend(nodes.filter(|node| node.share > 0.0 && node.share.is_finite()));
        start_slowly(candidates, choice);
        let total: f64 = candidates.iter().map(|node| node.share).sum();
        for candidate in candidates.iter_mut() {
            candidate.share /= total;
        }
        ledger.meet(candidates, || random.unit());
        self.choose(choice.algorithm, loads)
    }

    /// Among the candidates, whose accounts are open.
    fn choose(&mut self, algorithm: Algorithm, loads: &impl Loads) -> Option<NodeId> {
        let Self { random, ledger, candidates, .. } = self;
        match algorithm {
            Algorithm::Random => random.choose(candidates),
            Algorithm::RoundRobin => ledger.in_turn(candidates),
            Algorithm::LeastOutstanding => ledger.least(candidates, Measure::Outstanding, loads),
            Algorithm::LeastConnections => ledger.least(candidates, Measure::Connections, loads),
            Algorithm::Latency => ledger.least(candidates, Measure::Latency, loads),
        }
    }
}

/// Standbys that have come back when others were there take less than their weight for a while: their caches are
/// cold, and what waits for the first of their connections should be little.
fn start_slowly(candidates: &mut [Candidate], choice: &Choice<'_>) {
    let first = first_change(candidates);
    for candidate in candidates.iter_mut() {
        if let Some(age) = candidate.starting_for(first, choice) {
            let part = age.as_secs_f64() / choice.slow_start.as_secs_f64();
            candidate.share *= part.max(SLOW_START_FROM);
        }
    }
}

/// Whether one of them takes less than its weight for now.
fn is_starting(candidates: &[Candidate], choice: &Choice<'_>) -> bool {
    let first = first_change(candidates);
    candidates.iter().any(|candidate| candidate.starting_for(first, choice).is_some())
}

fn first_change(candidates: &[Candidate]) -> Moment {
    candidates.iter().map(|candidate| candidate.changed_at).min().unwrap_or_default()
}

impl Candidate {
    /// How long it has been back, if it is a standby that came back lately when others were there.
    fn starting_for(&self, first: Moment, choice: &Choice<'_>) -> Option<Duration> {
        let age = choice.now.0.saturating_sub(self.changed_at.0);
        let came_back = self.changed_at.0.saturating_sub(first.0) > TOGETHER;
        (self.role == Role::Standby && came_back && age < choice.slow_start).then_some(age)
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
    Candidate {
        id: node.id,
        share: node.weight,
        role: node.role,
        changed: node.changed_epoch,
        changed_at: node.changed_at,
    }
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
