//! Up or down: checks, sessions, retries, who comes back.

use super::*;

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
fn no_report_at_all_counts_as_time_out() {
    let mut script = Script::running();
    for _ in 0..3 {
        script.wait(30_000).ok(0, primary(1)).event(Event::Tick);
    }
    assert_eq!(script.state(0), UP_PRIMARY);
    assert_eq!(script.state(1), (NodeState::Down, Role::Standby));
}
