//! What balancing comes to over many statements: a closed system of sessions, each of which asks for a node
//! again as soon as it was served, several workers with a picker each, and nodes of given speeds.

#![cfg(test)]

use std::cell::Cell;
use std::time::Duration;

use cluster::{Epoch, Moment, Node, NodeId, NodeState, Role, Topology};
use router::{Algorithm, Choice, Loads, PeakEwma, Picker, Target};

const STATEMENTS: u32 = 10_000;
const ALL: [Algorithm; 5] = [
    Algorithm::Random,
    Algorithm::RoundRobin,
    Algorithm::LeastOutstanding,
    Algorithm::LeastConnections,
    Algorithm::Latency,
];
const LEAST: [Algorithm; 3] = [Algorithm::LeastOutstanding, Algorithm::LeastConnections, Algorithm::Latency];

fn read(algorithm: Algorithm, exclude: &[NodeId]) -> Choice<'_> {
    Choice { target: Target::Read, algorithm, exclude, now: Moment::default(), slow_start: Duration::ZERO }
}

fn topology(weights: &[f64]) -> Topology {
    let node = |(id, weight): (usize, &f64)| Node {
        id: NodeId(u16::try_from(id).unwrap_or(u16::MAX)),
        hostname: "h".into(),
        port: 5432,
        weight: *weight,
        state: NodeState::Up,
        role: if id == 0 { Role::Primary } else { Role::Standby },
        changed_epoch: Epoch(0),
        changed_at: Moment::default(),
        replay_lag: None,
    };
    Topology {
        epoch: Epoch(1),
        nodes: weights.iter().enumerate().map(node).collect(),
        primary: Some(NodeId(0)),
        ..Topology::default()
    }
}

/// How long a statement takes.
#[derive(Debug, Clone, Copy)]
enum Service {
    /// Always the node's time.
    Constant,
    /// Exponentially distributed around it.
    Exponential,
}

/// What is simulated.
#[derive(Debug, Clone, Copy)]
struct Rig<'a> {
    weights: &'a [f64],
    /// A statement's mean time on each node.
    times: &'a [f64],
    sessions: usize,
    workers: usize,
    service: Service,
    statements: u32,
}

#[derive(Debug)]
struct Outcome {
    served: Vec<u32>,
    throughput: f64,
}

impl Outcome {
    fn share(&self, node: usize) -> f64 {
        f64::from(self.served[node]) / f64::from(self.served.iter().sum::<u32>())
    }
}

#[derive(Default)]
struct Counters {
    outstanding: Vec<u32>,
    /// As a pool does it: opened when none is free, then kept.
    connections: Vec<u32>,
    latency: Vec<PeakEwma>,
}

impl Counters {
    fn new(nodes: usize) -> Self {
        Self {
            outstanding: vec![0; nodes],
            connections: vec![0; nodes],
            latency: vec![PeakEwma::default(); nodes],
        }
    }

    fn begin(&mut self, node: usize) {
        self.outstanding[node] += 1;
        self.connections[node] = self.connections[node].max(self.outstanding[node]);
    }
}

impl Loads for Counters {
    fn outstanding(&self, node: NodeId) -> u32 {
        self.outstanding[node.index()]
    }

    fn connections(&self, node: NodeId) -> u32 {
        self.connections[node.index()]
    }

    fn latency(&self, node: NodeId) -> f64 {
        self.latency[node.index()].seconds()
    }
}

/// A number in `0.0 .. 1.0` (xorshift).
fn random(state: &mut u64) -> f64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    f64::from(u32::try_from(*state >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}

impl Rig<'_> {
    fn run(&self, algorithm: Algorithm, seed: u64) -> Outcome {
        let topology = topology(self.weights);
        let mut pickers: Vec<Picker> = (0..self.workers as u64).map(|n| Picker::new(seed + n)).collect();
        let nodes = self.weights.len();
        let mut loads = Counters::new(nodes);
        let mut served = vec![0; nodes];
        let mut state = seed.wrapping_mul(2_654_435_769) | 1;
        let mut now = 0.0;
        // When each session is served, and by which node.
        let mut sessions: Vec<(f64, Option<(usize, f64)>)> = vec![(0.0, None); self.sessions];
        for _ in 0..self.statements {
            let (session, (at, node)) =
                sessions.iter().copied().enumerate().min_by(|a, b| a.1.0.total_cmp(&b.1.0)).unwrap();
            now = at;
            if let Some((node, time)) = node {
                loads.outstanding[node] -= 1;
                loads.latency[node] = loads.latency[node].after(Duration::from_secs_f64(time).as_secs_f32());
            }
            let picker = &mut pickers[session % self.workers];
            let node = picker.pick(&topology, &read(algorithm, &[]), &loads).unwrap().index();
            served[node] += 1;
            loads.begin(node);
            let time = match self.service {
                Service::Constant => self.times[node],
                Service::Exponential => -self.times[node] * (1.0 - random(&mut state)).max(1e-9).ln(),
            };
            sessions[session] = (now + time, Some((node, time)));
        }
        Outcome { served, throughput: f64::from(self.statements) / now }
    }
}

fn rigs<'a>(weights: &'a [f64], times: &'a [f64]) -> impl Iterator<Item = Rig<'a>> {
    [1, 2, 8, 32].into_iter().flat_map(move |sessions| {
        [(1, Service::Constant), (2, Service::Constant), (1, Service::Exponential), (2, Service::Exponential)]
            .map(|(workers, service)| Rig {
                weights,
                times,
                sessions,
                workers,
                service,
                statements: STATEMENTS,
            })
    })
}

#[test]
fn equally_fast_nodes_get_their_weight() {
    let mut worst = 0.0_f64;
    for weights in [&[0.0, 1.0, 3.0][..], &[2.0, 1.0, 1.0], &[0.0, 1.0, 1.0], &[1.0, 9.0, 0.0]] {
        let total: f64 = weights.iter().sum();
        for rig in rigs(weights, &[1.0; 3]) {
            for algorithm in ALL {
                let outcome = rig.run(algorithm, 7);
                for (node, weight) in weights.iter().enumerate() {
                    let off = (outcome.share(node) - weight / total).abs();
                    worst = worst.max(off);
                    assert!(off < 0.03, "{algorithm:?} {rig:?}: {outcome:?}");
                }
                assert!(weights[0] > 0.0 || outcome.served[0] == 0, "weight 0: {algorithm:?} {rig:?}");
            }
        }
    }
    println!("the worst share is off by {:.2} points", worst * 100.0);
}

/// Small differences between nodes are not taken for slowness.
#[test]
fn nearly_equal_nodes_get_their_weight() {
    for rig in rigs(&[2.0, 1.0, 1.0], &[1.0, 1.2, 0.9]) {
        for algorithm in ALL {
            let outcome = rig.run(algorithm, 7);
            assert!((outcome.share(1) - 0.25).abs() < 0.03, "{algorithm:?} {rig:?}: {outcome:?}");
        }
    }
}

/// A node that is five times slower gets less. By latency nearly in proportion, and also where there are few sessions;
/// by work in flight as soon as it is at its bound, for which there must be some.
#[test]
fn a_slow_node_gets_clearly_less() {
    for (weights, fair) in [([0.0, 1.0, 1.0], 0.5), ([0.0, 1.0, 3.0], 0.25), ([0.0, 3.0, 1.0], 0.75)] {
        for rig in rigs(&weights, &[1.0, 5.0, 1.0]) {
            let rig = Rig { statements: 2 * STATEMENTS, ..rig };
            let random = rig.run(Algorithm::Random, 5).throughput;
            for algorithm in LEAST {
                let (most, least) = match algorithm {
                    Algorithm::Latency => (0.65, 1.35),
                    _ if rig.sessions < 8 => continue,
                    _ if rig.sessions < 32 => (0.8, 1.15),
                    _ => (0.6, 1.45),
                };
                let outcome = rig.run(algorithm, 5);
                let (share, gain) = (outcome.share(1), outcome.throughput / random);
                println!("{fair} {algorithm:?} {rig:?}: {share:.3}, {gain:.2} times random");
                let fits = share < fair * most && gain > least;
                assert!(fits, "{algorithm:?} {rig:?}: {share:.3}, {gain:.2}");
            }
        }
    }
}

/// A node that was slow for a while gets its weight again.
#[test]
fn a_node_recovers() {
    for algorithm in LEAST {
        let topology = topology(&[0.0, 1.0, 1.0]);
        let mut picker = Picker::new(9);
        let mut pick =
            |loads: &Counters| picker.pick(&topology, &read(algorithm, &[]), loads).unwrap().index();
        // Eight statements hang on node 1.
        let stuck = Counters { outstanding: vec![0, 8, 1], connections: vec![0, 8, 8], ..Counters::new(3) };
        let on_stuck = (0..4000).filter(|_| pick(&stuck) == 1).count();
        assert!(on_stuck < 200, "{algorithm:?}: {on_stuck} of 4000");
        let free = Counters { outstanding: vec![0, 0, 1], connections: vec![0, 8, 8], ..Counters::new(3) };
        (0..4000).for_each(|_| _ = pick(&free));
        let on_freed = (0..1000).filter(|_| pick(&free) == 1).count();
        assert!(on_freed > 450, "{algorithm:?}: {on_freed} of 1000");
    }
}

/// Loads that never stop changing, as other workers make them: there is always an answer, and it is never
/// the primary that has no weight.
#[test]
fn loads_that_change_between_two_looks() {
    struct Restless(Cell<u64>);
    impl Loads for Restless {
        fn outstanding(&self, _: NodeId) -> u32 {
            let mut state = self.0.get();
            let load = u32::from(random(&mut state) < 0.5) * 50;
            self.0.set(state);
            load
        }
        fn connections(&self, node: NodeId) -> u32 {
            self.outstanding(node)
        }
        fn latency(&self, node: NodeId) -> f64 {
            f64::from(self.outstanding(node)) / 1000.0
        }
    }
    for algorithm in LEAST {
        let (topology, loads) = (topology(&[0.0, 1.0, 3.0]), Restless(Cell::new(11)));
        let mut picker = Picker::new(1);
        for _ in 0..STATEMENTS {
            let node = picker.pick(&topology, &read(algorithm, &[]), &loads);
            assert!(matches!(node, Some(NodeId(1 | 2))), "{algorithm:?}: {node:?}");
        }
    }
}

/// Each load is read once a choice.
#[test]
fn loads_are_read_once() {
    struct Counting(Cell<u32>);
    impl Loads for Counting {
        fn outstanding(&self, _: NodeId) -> u32 {
            self.0.set(self.0.get() + 1);
            0
        }
        fn connections(&self, _: NodeId) -> u32 {
            0
        }
        fn latency(&self, _: NodeId) -> f64 {
            0.0
        }
    }
    let loads = Counting(Cell::new(0));
    let choice = read(Algorithm::LeastOutstanding, &[]);
    let node = Picker::new(1).pick(&topology(&[0.0, 1.0, 3.0]), &choice, &loads);
    assert_eq!((node.is_some(), loads.0.get()), (true, 2));
}

/// Nodes that go and come back: never picked while away, at their weight again after.
#[test]
fn nodes_come_and_go() {
    for algorithm in ALL {
        let mut topology = topology(&[0.0, 1.0, 3.0]);
        let loads = Counters { connections: vec![4; 3], ..Counters::new(3) };
        let mut picker = Picker::new(2);
        let mut share = |topology: &Topology, exclude: &[NodeId]| {
            let mut pick = || picker.pick(topology, &read(algorithm, exclude), &loads);
            (0..2000).filter(|_| pick() == Some(NodeId(1))).count()
        };
        let fair = |picked: usize| picked.abs_diff(500) < 60;
        assert!(fair(share(&topology, &[])), "{algorithm:?}");
        assert_eq!(share(&topology, &[NodeId(2)]), 2000, "{algorithm:?}: the only one left");
        assert_eq!(share(&topology, &[NodeId(1)]), 0, "{algorithm:?}: excluded");
        (topology.nodes[1].state, topology.epoch) = (NodeState::Down, Epoch(2));
        assert_eq!(share(&topology, &[]), 0, "{algorithm:?}: down");
        (topology.nodes[1].state, topology.epoch) = (NodeState::Up, Epoch(3));
        topology.nodes[1].changed_epoch = Epoch(3);
        let back = share(&topology, &[]);
        assert!(fair(back), "{algorithm:?}: {back} of 2000 after its return");
    }
}

/// A standby that comes back takes a part of its weight that grows; those that began together do not.
#[test]
fn a_node_that_comes_back_starts_slowly() {
    let at = |seconds: f64| Moment(Duration::from_secs_f64(seconds));
    for algorithm in ALL {
        let mut topology = topology(&[0.0, 1.0, 1.0]);
        let loads = Counters { connections: vec![4; 3], ..Counters::new(3) };
        let mut picker = Picker::new(2);
        let mut share = |topology: &Topology, now: f64| {
            let choice = Choice { now: at(now), slow_start: Duration::from_secs(10), ..read(algorithm, &[]) };
            let mut pick = || picker.pick(topology, &choice, &loads);
            (0..4000).filter(|_| pick() == Some(NodeId(1))).count() as f64 / 4000.0
        };
        topology.nodes[1].changed_at = at(1.9);
        let together = share(&topology, 2.0);
        assert!((together - 0.5).abs() < 0.03, "{algorithm:?}: {together}");
        topology.nodes[1].changed_at = at(100.0);
        (topology.nodes[1].changed_epoch, topology.epoch) = (Epoch(2), Epoch(2));
        let ramp = [(100.0, 0.1), (105.0, 0.5), (109.0, 0.9), (111.0, 1.0)];
        for (now, part) in ramp {
            let (share, wanted) = (share(&topology, now), part / (1.0 + part));
            assert!((share - wanted).abs() < 0.03, "{algorithm:?} at {now}: {share}, not {wanted}");
        }
    }
}

#[test]
fn the_seed_decides() {
    for algorithm in ALL {
        let rig = Rig {
            weights: &[1.0, 1.0, 3.0],
            times: &[1.0; 3],
            sessions: 8,
            workers: 2,
            service: Service::Exponential,
            statements: STATEMENTS,
        };
        assert_eq!(rig.run(algorithm, 3).served, rig.run(algorithm, 3).served);
    }
}
