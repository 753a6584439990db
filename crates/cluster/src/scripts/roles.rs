//! Who is the primary, and who never.

use super::*;

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
