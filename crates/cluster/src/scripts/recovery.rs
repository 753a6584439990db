//! Nodes that are rebuilt.

use super::*;

/// db2 is down, and RECOVER NODE 2 was given.
fn recovering() -> Script {
    let mut script = Script::running();
    script.fails_with(2, ConnectFailure::Unreachable, Evidence::ConnectionLost);
    assert_eq!(script.state(2).0, NodeState::Down);
    script.event(Event::AdminRecover { node: NodeId(2) });
    let recovery = Recovery { run: 1, node: NodeId(2), primary: NodeId(0) };
    assert!(script.actions.contains(&Action::Recover(recovery)), "{:?}", script.actions);
    script
}

fn streaming(from: u16) -> Facts {
    let upstream = Upstream::Streaming { from: Some(NodeId(from)), silent_for: Some(Duration::ZERO) };
    Facts { upstream, ..standby() }
}

fn ended(script: &Script, end: RecoveryEnd) -> bool {
    let is_it = |action: &Action| matches!(action, Action::Record(Record::Recovery { step, .. }) if *step == RecoveryStep::Ended(end));
    script.actions.iter().any(is_it)
}

fn refusal(script: &mut Script, event: Event) -> Option<Refusal> {
    script.event(event);
    script.actions.iter().find_map(|action| match action {
        Action::Refused(refusal) => Some(*refusal),
        _ => None,
    })
}

#[test]
fn it_serves_again_when_it_streams_and_not_before() {
    let mut script = recovering();
    // The old server answers, or a new one that the command has started: not yet.
    script.ok(2, streaming(0));
    assert_eq!(script.state(2).0, NodeState::Down);
    let outcome = HookOutcome::Done;
    script.event(Event::RecoveryDone { run: 1, outcome }).ok(2, standby());
    assert_eq!(script.state(2).0, NodeState::Down, "it receives nothing");
    script.ok(2, streaming(0));
    assert!(ended(&script, RecoveryEnd::Joined));
    assert_eq!(script.state(2), UP_STANDBY);
}

#[test]
fn a_detached_node_is_attached_by_it() {
    let mut script = Script::running();
    script.event(Event::AdminDetach { node: NodeId(2), insist: Insist::Force });
    script.event(Event::AdminRecover { node: NodeId(2) });
    script.event(Event::RecoveryDone { run: 1, outcome: HookOutcome::Done }).ok(2, streaming(1));
    assert_eq!(script.state(2), UP_STANDBY, "from another standby, too");
}

#[test]
fn what_fails_leaves_the_node_as_it_was() {
    let mut script = recovering();
    script.event(Event::RecoveryDone { run: 1, outcome: HookOutcome::Failed });
    assert!(ended(&script, RecoveryEnd::CommandFailed));
    assert_eq!(script.core.reports()[2].reason, Reason::Unreachable);
    let mut script = recovering();
    script.event(Event::RecoveryDone { run: 1, outcome: HookOutcome::Done });
    script.wait(29_000).event(Event::Tick);
    assert!(!ended(&script, RecoveryEnd::NotJoined));
    script.wait(1_000).event(Event::Tick);
    assert!(ended(&script, RecoveryEnd::NotJoined));
    // What comes too late is nobody's.
    script.event(Event::RecoveryDone { run: 1, outcome: HookOutcome::Done });
    assert_eq!(script.actions, []);
}

#[test]
fn a_new_primary_ends_it() {
    let stops = |script: &Script| script.actions.contains(&Action::StopRecovery { run: 1 });
    // While the command runs: it copies from what is no primary any more.
    let mut script = recovering();
    script.ok(1, primary(2)).event(Event::Tick);
    assert!(ended(&script, RecoveryEnd::PrimaryChanged) && stops(&script), "{:?}", script.actions);
    assert_eq!(script.core.topology().primary, Some(NodeId(1)));
    script.event(Event::RecoveryDone { run: 1, outcome: HookOutcome::Done });
    assert_eq!(script.actions, []);
    // And behind it.
    let mut script = recovering();
    script
        .event(Event::RecoveryDone { run: 1, outcome: HookOutcome::Done })
        .ok(1, primary(2))
        .event(Event::Tick);
    assert!(ended(&script, RecoveryEnd::PrimaryChanged) && !stops(&script), "{:?}", script.actions);
}

#[test]
fn one_at_a_time_and_none_of_what_works() {
    let mut script = recovering();
    let again = Event::AdminRecover { node: NodeId(2) };
    assert_eq!(refusal(&mut script, again), Some(Refusal::Recovering(NodeId(2))));
    let attach = Event::AdminAttach { node: NodeId(2) };
    assert_eq!(refusal(&mut script, attach), Some(Refusal::Recovering(NodeId(2))));
    for (node, refused) in [
        (0, Refusal::RecoverPrimary(NodeId(0))),
        (1, Refusal::InUse(NodeId(1))),
        (7, Refusal::NoSuchNode(NodeId(7))),
    ] {
        assert_eq!(refusal(&mut script, Event::AdminRecover { node: NodeId(node) }), Some(refused));
    }
    let mut settings = settings();
    settings.failover.promoter = Promoter::Core;
    script.event(Event::NodesChanged { nodes: ["db0", "db1", "db2"].map(spec).to_vec(), settings });
    let promote = Event::AdminPromote { node: NodeId(1) };
    assert_eq!(refusal(&mut script, promote), Some(Refusal::Recovering(NodeId(2))));
}

#[test]
fn it_is_stopped_by_detach_force_alone_and_when_its_node_leaves_the_list() {
    let mut script = recovering();
    let detach = Event::AdminDetach { node: NodeId(2), insist: Insist::No };
    assert_eq!(refusal(&mut script, detach), Some(Refusal::Recovering(NodeId(2))));
    assert!(!script.actions.contains(&Action::StopRecovery { run: 1 }));
    script.event(Event::AdminDetach { node: NodeId(2), insist: Insist::Force });
    assert!(script.actions.contains(&Action::StopRecovery { run: 1 }));
    assert_eq!(script.core.reports()[2].reason, Reason::Detached);
    let mut script = recovering();
    // Under another number it goes on.
    let nodes = ["db2", "db0", "db1"].map(spec).to_vec();
    script.event(Event::NodesChanged { nodes, settings: settings() });
    assert!(!ended(&script, RecoveryEnd::Stopped));
    assert_eq!(script.core.reports()[0].reason, Reason::Recovering);
    script.event(Event::NodesChanged { nodes: ["db0", "db1"].map(spec).to_vec(), settings: settings() });
    assert!(script.actions.contains(&Action::StopRecovery { run: 1 }), "{:?}", script.actions);
}
