//! Events in, actions out.

use std::time::Duration;

use crate::*;

/// Shared by the scripts and the simulation.
pub(crate) fn spec(name: &str) -> NodeSpec {
    NodeSpec {
        hostname: name.into(),
        port: 5432,
        weight: 1.0,
        role_source: RoleSource::Observed,
        on_failure: OnFailure::TakeOut,
        checks: CheckPolicy {
            max_retries: 2,
            retry_delay: Duration::from_secs(1),
            stale_after: Duration::from_secs(30),
        },
        priority: 1,
        trust_sessions: false,
    }
}

pub(crate) fn settings() -> Settings {
    Settings {
        settle: Duration::from_secs(1),
        failback: Failback::Automatic { interval: Duration::from_secs(10) },
        failover: FailoverSettings {
            promote_within: Duration::from_secs(60),
            drain: Duration::from_secs(60),
            switch_within: Duration::from_secs(10),
            ..FailoverSettings::default()
        },
    }
}

pub(crate) fn at(millis: u64) -> Moment {
    Moment(Duration::from_millis(millis))
}

fn standby() -> Facts {
    Facts {
        in_recovery: true,
        timeline: None,
        system_identifier: Some(7),
        lsn: Some(Lsn(900)),
        ..Facts::default()
    }
}

fn primary(timeline: u32) -> Facts {
    Facts { in_recovery: false, timeline: Some(timeline), lsn: Some(Lsn(1000)), ..standby() }
}

fn nameless_primary() -> Facts {
    Facts { timeline: None, ..primary(1) }
}

struct Script {
    core: Core,
    now: u64,
    actions: Vec<Action>,
}

impl Script {
    fn new(nodes: &[&str]) -> Self {
        let nodes = nodes.iter().map(|name| spec(name)).collect();
        Self { core: Core::new(settings(), nodes, at(0)), now: 0, actions: Vec::new() }
    }

    /// db0 primary on timeline 1, db1 and db2 standbys.
    fn running() -> Self {
        let mut script = Self::new(&["db0", "db1", "db2"]);
        script.ok(0, primary(1)).ok(1, standby()).ok(2, standby());
        assert_eq!(script.core.topology().primary, Some(NodeId(0)));
        script
    }

    fn event(&mut self, event: Event) -> &mut Self {
        self.now += 10;
        self.actions = self.core.step(at(self.now), event);
        self.core.check_invariants().unwrap();
        self
    }

    fn wait(&mut self, millis: u64) -> &mut Self {
        self.now += millis;
        self
    }

    fn ok(&mut self, node: u16, facts: Facts) -> &mut Self {
        let started = at(self.now + 10);
        self.event(Event::CheckOk { node: NodeId(node), started, facts })
    }

    fn fails(&mut self, node: u16, failure: ConnectFailure) -> &mut Self {
        self.fails_with(node, failure, Evidence::ConnectOnly)
    }

    fn fails_with(&mut self, node: u16, failure: ConnectFailure, evidence: Evidence) -> &mut Self {
        let started = at(self.now + 10);
        self.event(Event::CheckFailed { node: NodeId(node), started, failure, evidence })
    }

    fn sees(&mut self, make: impl Fn(NodeId, Epoch) -> Observation, node: u16) -> &mut Self {
        let epoch = self.core.topology().epoch;
        self.event(Event::Observed(make(NodeId(node), epoch)))
    }

    fn state(&self, node: usize) -> (NodeState, Role) {
        let node = &self.core.topology().nodes[node];
        (node.state, node.role)
    }

    fn probes(&self) -> Vec<(u16, u64)> {
        let probe = |action: &Action| match action {
            Action::Probe { node, after } => Some((node.0, u64::try_from(after.as_millis()).unwrap())),
            _ => None,
        };
        self.actions.iter().filter_map(probe).collect()
    }

    fn has(&self, record: Record) -> bool {
        self.actions.contains(&Action::Record(record))
    }

    fn refusal(&self) -> Option<Refusal> {
        self.actions.iter().find_map(|action| match action {
            Action::Refused(refusal) => Some(*refusal),
            _ => None,
        })
    }
}

fn lost(node: NodeId, epoch: Epoch) -> Observation {
    Observation::BackendLost { node, epoch }
}

fn refused(node: NodeId, epoch: Epoch) -> Observation {
    Observation::ConnectFailed { node, epoch, failure: ConnectFailure::Unreachable }
}

const UP_STANDBY: (NodeState, Role) = (NodeState::Up, Role::Standby);
const UP_PRIMARY: (NodeState, Role) = (NodeState::Up, Role::Primary);

mod failover;

#[test]
fn nothing_is_used_before_all_have_reported_or_the_time_is_up() {
    let mut script = Script::new(&["db0", "db1"]);
    script.ok(0, primary(1));
    assert_eq!(script.state(0), (NodeState::Waiting, Role::Unknown));
    assert!(!script.core.is_settled());
    script.event(Event::Tick);
    assert_eq!(script.core.topology().primary, None);
    script.wait(1000).event(Event::Tick);
    assert_eq!(script.state(0), UP_PRIMARY);
    let reports = script.core.reports();
    assert_eq!(
        (reports[0].answers, reports[0].facts, reports[0].reason),
        (Some(true), Some(primary(1)), Reason::CheckOk)
    );
    assert_eq!((reports[1].answers, reports[1].facts, reports[1].reason), (None, None, Reason::NotChecked));
    assert!(script.has(Record::PrimaryChange { from: None, to: Some(NodeId(0)), timeline: Some(1) }));
    assert_eq!(script.state(1), (NodeState::Waiting, Role::Unknown));
}

#[test]
fn at_the_start_an_old_primary_that_answers_first_gets_no_writes() {
    let mut script = Script::new(&["db0", "db1"]);
    script.ok(0, primary(1));
    assert_eq!(script.core.topology().primary, None);
    script.ok(1, primary(2));
    assert_eq!(script.state(0), (NodeState::Quarantine, Role::Unknown));
    assert_eq!(script.state(1), UP_PRIMARY);
}

#[test]
fn a_dead_standby_is_left_out_at_once_after_a_session_saw_it() {
    let mut script = Script::running();
    script.sees(lost, 1);
    assert_eq!(script.probes(), [(1, 0)]);
    // One probe answers all who saw it.
    script.sees(refused, 1);
    assert_eq!(script.probes(), []);
    script.fails(1, ConnectFailure::Unreachable);
    assert_eq!(script.state(1), (NodeState::Down, Role::Standby));
    assert!(script.has(Record::StateChange {
        node: NodeId(1),
        from: NodeState::Up,
        to: NodeState::Down,
        reason: Reason::Unreachable
    }));
    script.ok(1, standby());
    assert_eq!(script.state(1), UP_STANDBY);
}

#[test]
fn a_failed_probe_that_began_before_the_observation_is_not_its_answer() {
    let mut script = Script::running();
    let started = at(script.now + 5);
    script.sees(lost, 0);
    script.event(Event::CheckFailed {
        node: NodeId(0),
        started,
        failure: ConnectFailure::Unreachable,
        evidence: Evidence::ConnectOnly,
    });
    assert_eq!(script.state(0), UP_PRIMARY);
}

#[test]
fn a_refused_check_of_a_standby_is_repeated_at_once() {
    let mut script = Script::running();
    script.fails(2, ConnectFailure::Unreachable);
    assert_eq!(script.probes(), [(2, 0)]);
    assert_eq!(script.state(2), UP_STANDBY);
    script.fails(2, ConnectFailure::Unreachable);
    assert_eq!(script.state(2), (NodeState::Down, Role::Standby));
}

#[test]
fn a_check_that_times_out_needs_the_retries() {
    for node in [0, 1] {
        let mut script = Script::running();
        script.sees(lost, node);
        for _ in 0..2 {
            script.fails(node, ConnectFailure::TimedOut);
            assert_eq!(script.probes(), [(node, 1000)]);
            assert_eq!(script.state(usize::from(node)).0, NodeState::Up);
        }
        script.fails(node, ConnectFailure::TimedOut);
        assert_eq!(script.state(usize::from(node)).0, NodeState::Down);
    }
}

#[test]
fn a_primary_is_not_given_up_for_refused_connections_alone() {
    let mut script = Script::running();
    script.sees(refused, 0).fails(0, ConnectFailure::Unreachable);
    assert_eq!(script.state(0), UP_PRIMARY);
    assert_eq!(script.probes(), [(0, 1000)]);
    script.fails(0, ConnectFailure::Unreachable).fails(0, ConnectFailure::Unreachable);
    assert_eq!(script.state(0), (NodeState::Down, Role::Primary));
    assert_eq!(script.core.topology().primary, None);
    assert!(script.has(Record::PrimaryChange { from: Some(NodeId(0)), to: None, timeline: None }));
    assert_eq!(script.state(1), UP_STANDBY);
    script.ok(0, primary(1));
    assert_eq!(script.state(0), UP_PRIMARY);
}

#[test]
fn a_primary_whose_connections_broke_is_down_at_the_first_refusal() {
    let mut script = Script::running();
    script.sees(lost, 0).fails(0, ConnectFailure::Unreachable);
    assert_eq!(script.core.topology().primary, None);
    let mut script = Script::running();
    script.fails_with(0, ConnectFailure::Unreachable, Evidence::ConnectionLost);
    assert_eq!(script.core.topology().primary, None);
}

#[test]
fn a_node_that_refuses_with_a_code_is_alive() {
    let mut script = Script::running();
    for _ in 0..10 {
        script.sees(lost, 1).fails(1, ConnectFailure::Rejected);
        script.fails(0, ConnectFailure::Rejected);
    }
    assert_eq!(script.state(0), UP_PRIMARY);
    assert_eq!(script.state(1), UP_STANDBY);
    // Said once, not ten times.
    assert_eq!(script.actions, []);
    // One that was dead may be something else now: it lives, and is not used before somebody knows.
    script.sees(lost, 1).fails(1, ConnectFailure::Unreachable).fails(1, ConnectFailure::Rejected);
    assert_eq!(script.state(1), (NodeState::Up, Role::Unknown));
}

#[test]
fn a_node_that_is_not_ready_is_not_used_and_comes_back_as_often_as_it_likes() {
    let mut script = Script::running();
    for _ in 0..3 {
        script.fails(1, ConnectFailure::NotReady);
        assert_eq!(script.state(1), (NodeState::Down, Role::Standby));
        assert_eq!(script.probes(), [(1, 1000)]);
        script.ok(1, standby());
        assert_eq!(script.state(1), UP_STANDBY);
    }
}

#[test]
fn a_flapping_standby_rests() {
    let mut script = Script::running();
    script.sees(lost, 1).fails(1, ConnectFailure::Unreachable).ok(1, standby());
    assert_eq!(script.state(1), UP_STANDBY);
    script.sees(lost, 1).fails(1, ConnectFailure::Unreachable).ok(1, standby());
    assert_eq!(script.state(1), (NodeState::Down, Role::Standby));
    assert!(matches!(script.probes()[..], [(1, after)] if after > 9_000 && after < 10_000));
    script.wait(10_000).ok(1, standby());
    assert_eq!(script.state(1), UP_STANDBY);
}

#[test]
fn without_auto_failback_a_standby_waits_for_attach_and_a_primary_does_not() {
    let mut script = Script::running();
    let nodes = ["db0", "db1", "db2"].map(spec).to_vec();
    let settings = Settings { failback: Failback::Manual, ..settings() };
    script.event(Event::NodesChanged { nodes, settings });
    for node in [0, 1] {
        script.fails_with(node, ConnectFailure::Unreachable, Evidence::ConnectionLost);
    }
    script.ok(0, primary(1)).ok(1, standby());
    assert_eq!(script.state(0), UP_PRIMARY);
    assert_eq!(script.state(1), (NodeState::Down, Role::Standby));
    script.event(Event::AdminAttach { node: NodeId(1) });
    assert_eq!(script.probes(), [(1, 0)]);
    script.ok(1, standby());
    assert_eq!(script.state(1), UP_STANDBY);
}

#[test]
fn a_promotion_by_others_is_followed_and_the_old_primary_stays_out() {
    let mut script = Script::running();
    script.sees(lost, 0).fails(0, ConnectFailure::Unreachable);
    let fenced = script.core.topology().epoch;
    script.ok(1, primary(2));
    assert_eq!(script.state(1), UP_PRIMARY);
    assert_eq!(script.state(0), (NodeState::Down, Role::Unknown));
    assert!(script.core.topology().epoch > fenced);
    // It returns as it was.
    script.ok(0, primary(1));
    assert_eq!(script.state(0), (NodeState::Quarantine, Role::Unknown));
    // The new one dies too: the old one must not take writes on the old timeline.
    script.sees(lost, 1).fails(1, ConnectFailure::Unreachable);
    assert_eq!(script.core.topology().primary, None);
    assert_eq!(script.state(0), (NodeState::Quarantine, Role::Unknown));
    // Rewound, it is a standby; promoted, it is the primary.
    script.ok(0, standby());
    assert_eq!(script.state(0), UP_STANDBY);
    script.ok(0, primary(3));
    assert_eq!(script.state(0), UP_PRIMARY);
}

#[test]
fn two_primaries_of_unknown_timelines_never_alternate() {
    let mut script = Script::new(&["db0", "db1"]);
    script.ok(0, nameless_primary()).ok(1, standby());
    script.ok(1, nameless_primary());
    assert_eq!(script.state(0), UP_PRIMARY);
    assert_eq!(script.state(1), (NodeState::Quarantine, Role::Unknown));
    script.sees(lost, 0).fails(0, ConnectFailure::Unreachable);
    assert_eq!(script.core.topology().primary, None);
    script.ok(0, nameless_primary());
    assert_eq!(script.state(0), UP_PRIMARY);
}

#[test]
fn the_newest_timeline_wins_while_both_live() {
    let mut script = Script::running();
    script.ok(2, primary(2));
    assert_eq!(script.state(2), UP_PRIMARY);
    assert_eq!(script.state(0), (NodeState::Quarantine, Role::Unknown));
    for _ in 0..3 {
        script.ok(0, primary(1)).ok(2, primary(2));
        assert_eq!(script.actions, []);
    }
}

#[test]
fn a_standby_of_the_past_is_not_read() {
    let mut script = Script::running();
    let follows = |timeline| Facts { follows: Some(timeline), ..standby() };
    script.ok(1, follows(1));
    assert_eq!(script.state(1), (NodeState::Up, Role::Standby));
    script.ok(2, primary(2));
    assert_eq!(script.state(1).0, NodeState::Quarantine, "it follows the one that is the primary no more");
    script.ok(1, follows(2));
    assert_eq!(script.state(1), (NodeState::Up, Role::Standby));
    // Without a primary there is nothing to be measured by, and reads go on.
    script.ok(1, follows(1));
    for _ in 0..5 {
        script.fails(2, ConnectFailure::Unreachable);
    }
    script.ok(1, follows(1));
    assert_eq!(script.state(1), (NodeState::Up, Role::Standby));
}

#[test]
fn a_switchover_is_followed_both_ways() {
    let mut script = Script::running();
    let mut timeline = 1;
    for (old, new) in [(0, 1), (1, 0), (0, 1)] {
        timeline += 1;
        script.ok(old, standby());
        assert_eq!(script.core.topology().primary, None);
        script.ok(new, primary(timeline));
        assert_eq!(script.core.topology().primary, Some(NodeId(new)));
        assert_eq!(script.state(usize::from(old)), UP_STANDBY);
    }
}

#[test]
fn a_node_of_another_system_is_never_used() {
    let mut script = Script::new(&["db0", "db1", "db2"]);
    let foreign = Facts { system_identifier: Some(8), ..primary(9) };
    script.ok(0, foreign).ok(1, primary(1)).ok(2, standby());
    assert_eq!(script.state(0), (NodeState::Quarantine, Role::Unknown));
    assert_eq!(script.state(1), UP_PRIMARY);
    // Not even when it is the last one that answers.
    for node in [1, 2] {
        script.fails_with(node, ConnectFailure::Unreachable, Evidence::ConnectionLost);
    }
    script.ok(0, foreign).event(Event::AdminAttach { node: NodeId(0) });
    assert_eq!(script.refusal(), Some(Refusal::Foreign(NodeId(0))));
    assert_eq!(script.core.topology().primary, None);
    // When all are of the other system, that is the cluster.
    script.ok(1, Facts { system_identifier: Some(8), ..standby() });
    script.ok(2, Facts { system_identifier: Some(8), ..standby() });
    assert_eq!(script.state(0), UP_PRIMARY);
}

#[test]
fn always_primary_is_believed_whatever_it_says() {
    let flagged = NodeSpec { role_source: RoleSource::AlwaysPrimary, ..spec("db0") };
    let mut script = Script::new(&[]);
    script.core = Core::new(settings(), vec![flagged, spec("db1")], at(0));
    script.ok(0, standby()).ok(1, standby());
    assert_eq!(script.state(0), UP_PRIMARY);
    script.ok(1, primary(5));
    assert_eq!(script.state(0), UP_PRIMARY);
    assert_eq!(script.state(1), (NodeState::Quarantine, Role::Unknown));
}

#[test]
fn a_node_that_must_not_be_taken_out_is_not() {
    let kept = NodeSpec { on_failure: OnFailure::Keep, ..spec("db1") };
    let mut script = Script::new(&[]);
    script.core = Core::new(settings(), vec![spec("db0"), kept], at(0));
    script.ok(0, primary(1)).fails(1, ConnectFailure::Unreachable);
    assert_eq!(script.state(1).0, NodeState::Down, "it was never seen alive");
    script.ok(1, standby());
    for failure in [ConnectFailure::Unreachable, ConnectFailure::NotReady, ConnectFailure::TimedOut] {
        for _ in 0..5 {
            script.sees(lost, 1).fails(1, failure);
            assert_eq!(script.state(1), UP_STANDBY);
        }
    }
    script.event(Event::AdminDetach { node: NodeId(1), insist: Insist::Force });
    assert_eq!(script.state(1).0, NodeState::Down);
}

#[test]
fn a_new_weight_changes_nothing_else() {
    let mut script = Script::running();
    let before = script.core.topology().clone();
    let mut nodes = ["db0", "db1", "db2"].map(spec).to_vec();
    nodes[1].weight = 3.0;
    script.event(Event::NodesChanged { nodes, settings: settings() });
    let after = script.core.topology().clone();
    assert_eq!(after.nodes[1].weight, 3.0);
    assert_eq!(after.nodes[1].changed_epoch, before.nodes[1].changed_epoch);
    assert_eq!(after.primary, Some(NodeId(0)));
    assert!(after.epoch > before.epoch);
    assert_eq!(script.actions, [Action::Record(Record::Reconfigured { nodes: 3 }), Action::Publish(after)]);
}

#[test]
fn nodes_that_move_in_the_list_keep_what_is_known_and_are_fenced() {
    let mut script = Script::running();
    let late = at(script.now);
    let before = script.core.topology().epoch;
    script.event(Event::NodesChanged { nodes: ["db1", "db0"].map(spec).to_vec(), settings: settings() });
    assert_eq!(script.state(0), UP_STANDBY);
    assert_eq!(script.state(1), UP_PRIMARY);
    assert!(script.core.topology().nodes.iter().all(|node| node.changed_epoch > before));
    // A report and an observation from before are about other nodes.
    script.event(Event::CheckOk { node: NodeId(0), started: late, facts: primary(1) });
    script.event(Event::Observed(Observation::BackendLost { node: NodeId(1), epoch: before }));
    assert_eq!(script.actions, []);
    assert_eq!(script.core.topology().primary, Some(NodeId(1)));
}

#[test]
fn no_report_at_all_counts_as_time_out() {
    let mut script = Script::running();
    for _ in 0..3 {
        script.wait(30_000).ok(0, primary(1)).event(Event::Tick);
    }
    assert_eq!(script.state(0), UP_PRIMARY);
    assert_eq!(script.state(1), (NodeState::Down, Role::Standby));
}

#[test]
fn lag_is_measured_and_does_not_raise_the_epoch() {
    let mut script = Script::running();
    assert_eq!(script.core.topology().nodes[1].replay_lag, Some(100));
    let epoch = script.core.topology().epoch;
    script.ok(1, Facts { lsn: Some(Lsn(1010)), ..standby() });
    assert_eq!(script.core.topology().nodes[1].replay_lag, Some(0));
    assert_eq!(script.core.topology().epoch, epoch);
    assert!(matches!(script.actions[..], [Action::Publish(_)]));
}

#[test]
fn positions_are_read_and_written_as_postgresql_does() {
    let lsn = Lsn::parse("16/B374D848").unwrap();
    assert_eq!(lsn, Lsn(0x16_B374_D848));
    assert_eq!(lsn.to_string(), "16/B374D848");
    for (inserted, written) in [(0x900_0028, 0x900_0000), (0x900_2018, 0x900_2000), (0x900_2029, 0x900_2029)]
    {
        assert_eq!(Lsn(inserted).before_page_header(), Lsn(written));
    }
    for bad in ["", "/", "16", "1/2/3", "1FFFFFFFF/0", "x/0"] {
        assert_eq!(Lsn::parse(bad), None, "{bad}");
    }
}
