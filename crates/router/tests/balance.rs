//! The picker: weights, exclusion, what is left when nothing qualifies.

use std::time::Duration;

use cluster::{Epoch, Moment, Node, NodeId, NodeState, Role, Topology};
use router::{Algorithm, Choice, Loads, Picker, Target};

const ALL: [Algorithm; 5] = [
    Algorithm::Random,
    Algorithm::RoundRobin,
    Algorithm::LeastOutstanding,
    Algorithm::LeastConnections,
    Algorithm::Latency,
];

struct Busy([u32; 4]);

fn choice(target: Target, algorithm: Algorithm, exclude: &[NodeId]) -> Choice<'_> {
    Choice { target, algorithm, exclude, now: Moment::default(), slow_start: Duration::ZERO }
}

impl Loads for Busy {
    fn outstanding(&self, node: NodeId) -> u32 {
        self.0.get(node.index()).copied().unwrap_or(0)
    }

    fn connections(&self, node: NodeId) -> u32 {
        self.0.get(node.index()).copied().unwrap_or(0)
    }

    fn latency(&self, _: NodeId) -> f64 {
        0.0
    }
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

fn shares(topology: &Topology, algorithm: Algorithm, loads: &impl Loads, picks: u32) -> [f64; 4] {
    let mut picker = Picker::new(42);
    let mut counts = [0_u32; 4];
    for _ in 0..picks {
        let node = picker.pick(topology, &choice(Target::Read, algorithm, &[]), loads);
        if let Some(count) = node.and_then(|node| counts.get_mut(node.index())) {
            *count += 1;
        }
    }
    counts.map(|count| f64::from(count) / f64::from(picks))
}

#[test]
fn shares_follow_the_weights() {
    for algorithm in ALL {
        let idle = Busy([0; 4]);
        let shares = shares(&topology(&[0.0, 1.0, 3.0]), algorithm, &idle, 10_000);
        assert!((shares[1] - 0.25).abs() < 0.03 && (shares[2] - 0.75).abs() < 0.03, "{shares:?}");
        assert!(shares[0] == 0.0, "{algorithm:?}");
    }
    let thirds = shares(&topology(&[1.0, 1.0, 1.0]), Algorithm::LeastOutstanding, &Busy([0; 4]), 9_000);
    assert!(thirds[..3].iter().all(|share| (share - 1.0 / 3.0).abs() < 0.03), "{thirds:?}");
}

#[test]
fn the_less_busy_node_is_picked() {
    for algorithm in [Algorithm::LeastOutstanding, Algorithm::LeastConnections] {
        let shares = shares(&topology(&[0.0, 1.0, 1.0]), algorithm, &Busy([0, 9, 1, 0]), 100);
        assert_eq!(shares[2], 1.0);
        // By weight it is busier by far.
        let shares = self::shares(&topology(&[0.0, 1.0, 3.0]), algorithm, &Busy([0, 8, 4, 0]), 100);
        assert_eq!(shares[2], 1.0);
    }
}

/// With requests that stay, the load itself settles at the weights.
#[test]
fn a_standing_load_settles_at_the_weights() {
    let topology = topology(&[1.0, 1.0, 2.0]);
    let (mut picker, mut loads) = (Picker::new(1), Busy([0; 4]));
    for _ in 0..400 {
        let node =
            picker.pick(&topology, &choice(Target::Read, Algorithm::LeastOutstanding, &[]), &loads).unwrap();
        loads.0[node.index()] += 1;
    }
    assert!(loads.0[0].abs_diff(100) <= 2 && loads.0[2].abs_diff(200) <= 2, "{:?}", loads.0);
}

#[test]
fn reads_are_never_starved() {
    let idle = Busy([0; 4]);
    for algorithm in ALL {
        let mut picker = Picker::new(3);
        let mut read = |topology: &Topology, exclude: &[NodeId]| {
            picker.pick(topology, &choice(Target::Read, algorithm, exclude), &idle)
        };
        assert_eq!(read(&topology(&[0.0, 0.0, 0.0]), &[]), Some(NodeId(0)));
        assert_eq!(read(&topology(&[0.0, 1.0, 1.0]), &[NodeId(1)]), Some(NodeId(2)));
        assert_eq!(read(&topology(&[0.0, 1.0, 1.0]), &[NodeId(1), NodeId(2)]), Some(NodeId(0)));
        let mut lost = topology(&[1.0, 0.0, 1.0]);
        lost.nodes[0].state = NodeState::Down;
        lost.nodes[2].state = NodeState::Down;
        assert_eq!(read(&lost, &[]), Some(NodeId(1)), "weight 0, but nobody else is left");
        lost.nodes[1].state = NodeState::Quarantine;
        assert_eq!(read(&lost, &[]), None);
        assert_eq!(read(&topology(&[f64::NAN, f64::INFINITY, -1.0]), &[]), Some(NodeId(0)));
    }
}

#[test]
fn other_targets() {
    let idle = Busy([0; 4]);
    let mut picker = Picker::new(3);
    let mut pick =
        |topology: &Topology, target| picker.pick(topology, &choice(target, Algorithm::Random, &[]), &idle);
    let mut nodes = topology(&[1.0, 0.0, 0.0]);
    assert_eq!(pick(&nodes, Target::Primary), Some(NodeId(0)));
    assert_eq!(pick(&nodes, Target::Anywhere), Some(NodeId(0)));
    assert!(matches!(pick(&nodes, Target::Standby), Some(NodeId(1 | 2))));
    assert_eq!(pick(&nodes, Target::Node(NodeId(2))), Some(NodeId(2)));
    assert_eq!(pick(&nodes, Target::Node(NodeId(9))), None);
    nodes.nodes[0].state = NodeState::Down;
    assert_eq!(pick(&nodes, Target::Primary), None);
    assert_eq!(pick(&nodes, Target::Anywhere), Some(NodeId(1)));
    nodes.primary = None;
    nodes.nodes[0].state = NodeState::Up;
    nodes.nodes[0].role = Role::Unknown;
    assert_eq!(pick(&nodes, Target::Primary), None);
    assert!(matches!(pick(&nodes, Target::Read), Some(NodeId(1 | 2))), "an unknown role is not read from");
    nodes.nodes[1].state = NodeState::Down;
    nodes.nodes[2].state = NodeState::Waiting;
    assert_eq!(pick(&nodes, Target::Standby), None);
}
