//! What a status file may do to a start, and what not.

use super::*;

fn hint(timeline: u32, detached: &[&str]) -> Hint {
    let detached = detached.iter().map(|name| ((*name).into(), 5432)).collect();
    Hint { system_identifier: Some(7), newest_timeline: Some(timeline), detached }
}

fn restarted(hint: &Hint) -> Script {
    let mut script = Script::new(&["db0", "db1", "db2"]);
    script.core = script.core.with_hint(hint);
    script
}

#[test]
fn what_was_detached_stays_so_and_is_known_to_the_next_start() {
    let mut script = restarted(&hint(1, &["db1"]));
    script.ok(0, primary(1)).ok(1, standby()).ok(2, standby());
    assert_eq!(script.state(0), UP_PRIMARY);
    assert_eq!(script.state(1), (NodeState::Down, Role::Standby));
    assert_eq!(script.core.hint(), hint(1, &["db1"]));
    // Also when everybody else goes later: from now on it is as if it had been detached today.
    script.fails_with(2, ConnectFailure::Unreachable, Evidence::ConnectionLost);
    script.fails_with(0, ConnectFailure::Unreachable, Evidence::ConnectionLost);
    assert_eq!(script.state(1).0, NodeState::Down);
    script.event(Event::AdminAttach { node: NodeId(1) });
    assert_eq!(script.state(1), UP_STANDBY);
    assert_eq!(script.core.hint(), hint(1, &[]));
}

#[test]
fn a_detached_node_comes_back_when_there_is_no_other_primary() {
    let mut script = restarted(&hint(1, &["db0", "db1"]));
    script.ok(0, primary(1)).ok(1, standby()).ok(2, standby());
    assert_eq!(script.state(0), UP_PRIMARY);
    assert_eq!(script.state(1).0, NodeState::Down);
}

#[test]
fn all_nodes_come_back_when_nothing_else_lives() {
    let mut script = restarted(&hint(1, &["db0", "db1", "db2"]));
    script.ok(0, standby()).ok(1, standby()).ok(2, standby());
    assert_eq!([script.state(0), script.state(1), script.state(2)], [UP_STANDBY; 3]);
}

#[test]
fn a_detached_node_does_not_come_back_before_the_others_had_their_say() {
    let mut script = restarted(&hint(1, &["db0"]));
    script.ok(0, primary(1)).wait(1_000).event(Event::Tick);
    assert_eq!(script.state(0).0, NodeState::Down);
    script.fails(1, ConnectFailure::Unreachable).fails(2, ConnectFailure::Unreachable);
    for node in [1, 2] {
        script.fails(node, ConnectFailure::Unreachable);
    }
    assert_eq!(script.state(0), UP_PRIMARY);
}

#[test]
fn an_old_primary_takes_no_writes_while_the_new_one_is_down() {
    let mut script = restarted(&hint(2, &[]));
    script.ok(0, primary(1)).ok(2, standby());
    for _ in 0..3 {
        script.fails(1, ConnectFailure::Unreachable);
    }
    script.wait(1_000).event(Event::Tick);
    assert_eq!(script.state(0), (NodeState::Quarantine, Role::Unknown));
    assert_eq!(script.core.topology().primary, None);
    // The administrator's word is stronger, and outlives a restart.
    script.event(Event::AdminAttach { node: NodeId(0) });
    assert_eq!(script.state(0), UP_PRIMARY);
    let word = script.core.hint();
    assert_eq!(word, hint(1, &[]));
    let mut script = restarted(&word);
    script.ok(0, primary(1)).ok(2, standby()).fails(1, ConnectFailure::Unreachable);
    script.fails(1, ConnectFailure::Unreachable);
    assert_eq!(script.state(0), UP_PRIMARY);
}

#[test]
fn a_timeline_that_nobody_has_is_forgotten_when_all_answer() {
    let mut script = restarted(&hint(9, &[]));
    let follows = Facts { timeline: Some(1), ..standby() };
    script.ok(0, primary(1)).ok(1, follows);
    assert_eq!(script.core.topology().primary, None);
    script.ok(2, follows);
    assert_eq!(script.state(0), UP_PRIMARY);
    assert_eq!(script.core.hint(), hint(1, &[]));
}

#[test]
fn a_hint_about_another_cluster_is_none() {
    let stale = Hint { system_identifier: Some(6), ..hint(9, &[]) };
    let mut script = restarted(&stale);
    script.ok(0, primary(1)).ok(1, standby());
    for _ in 0..3 {
        script.fails(2, ConnectFailure::Unreachable);
    }
    assert_eq!(script.state(0), UP_PRIMARY);
    assert_eq!(script.core.hint(), hint(1, &[]));
    // Without an identifier nobody knows what the rest is about.
    let mut script = restarted(&Hint { system_identifier: None, ..hint(9, &[]) });
    script.ok(0, primary(1)).ok(1, standby()).ok(2, standby());
    assert_eq!(script.state(0), UP_PRIMARY);
}
