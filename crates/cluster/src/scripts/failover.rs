//! Lost primaries, promotions, switchovers and administrators: events in, actions out.

use super::*;

#[test]
fn detaching_and_attaching() {
    let mut script = Script::running();
    script.event(Event::AdminDetach { node: NodeId(0), insist: Insist::No });
    assert_eq!(script.refusal(), Some(Refusal::IsPrimary(NodeId(0))));
    for node in [1, 2] {
        script.event(Event::AdminDetach { node: NodeId(node), insist: Insist::No });
        assert_eq!(script.refusal(), None);
        script.ok(node, standby());
        assert_eq!(script.state(usize::from(node)), (NodeState::Draining, Role::Standby));
        // Whatever runs there may end, or has a minute.
        match node {
            1 => script.event(Event::Drained { node: NodeId(node) }),
            _ => script.wait(60_000).event(Event::Tick),
        };
        assert_eq!(script.state(usize::from(node)), (NodeState::Down, Role::Standby));
    }
    script.event(Event::AdminDetach { node: NodeId(0), insist: Insist::Force });
    assert_eq!(script.core.topology().primary, None);
    script.event(Event::AdminAttach { node: NodeId(0) });
    assert_eq!(script.state(0), UP_PRIMARY);
    script.event(Event::AdminAttach { node: NodeId(1) });
    assert_eq!(script.state(1), UP_STANDBY);
    script.event(Event::AdminAttach { node: NodeId(9) });
    assert_eq!(script.refusal(), Some(Refusal::NoSuchNode(NodeId(9))));
}

#[test]
fn attaching_a_quarantined_primary_is_the_administrators_word() {
    let mut script = Script::running();
    script.ok(1, primary(2));
    script.event(Event::AdminAttach { node: NodeId(0) });
    assert_eq!(script.refusal(), Some(Refusal::SecondPrimary { node: NodeId(0), primary: NodeId(1) }));
    script.sees(lost, 1).fails(1, ConnectFailure::Unreachable);
    script.event(Event::AdminAttach { node: NodeId(0) });
    assert_eq!(script.state(0), UP_PRIMARY);
    // And stays so when the other one comes back with its newer timeline.
    script.ok(1, primary(2));
    assert_eq!(script.state(1), (NodeState::Quarantine, Role::Unknown));
    assert_eq!(script.state(0), UP_PRIMARY);
    // A later promotion is followed as ever.
    script.ok(2, primary(3));
    assert_eq!(script.state(2), UP_PRIMARY);
}

/// db0 primary on timeline 1, db1 and db2 standbys that receive from it.
fn promoting(promoter: Promoter) -> Script {
    let mut script = Script::running();
    let mut settings = settings();
    settings.failover.promoter = promoter;
    script.event(Event::NodesChanged { nodes: ["db0", "db1", "db2"].map(spec).to_vec(), settings });
    script.ok(0, primary(1)).ok(1, receiving(900)).ok(2, receiving(900));
    script
}

fn receiving(received: u64) -> Facts {
    let upstream =
        Upstream::Streaming { from: Some(NodeId(0)), silent_for: Some(Duration::from_millis(100)) };
    Facts { upstream, received: Some(Lsn(received)), timeline: Some(1), ..standby() }
}

fn orphaned(received: u64) -> Facts {
    Facts { upstream: Upstream::None, ..receiving(received) }
}

impl Script {
    fn promoted(&self) -> Vec<u16> {
        let promoted = |action: &Action| match action {
            Action::Promote { node } => Some(node.0),
            _ => None,
        };
        self.actions.iter().filter_map(promoted).collect()
    }

    fn hooks(&self) -> Vec<HookCall> {
        let hook = |action: &Action| match action {
            Action::RunHook(call) => Some(*call),
            _ => None,
        };
        self.actions.iter().filter_map(hook).collect()
    }

    fn progress(&self, progress: Progress) -> bool {
        self.has(Record::Failover(progress))
    }

    /// Killed: its connections broke, and it refuses new ones until that is beyond doubt.
    fn kill_primary(&mut self) -> &mut Self {
        self.fails_with(0, ConnectFailure::Unreachable, Evidence::ConnectionLost);
        assert_eq!(self.core.topology().primary, None, "not used any more at once");
        assert_eq!(self.promoted(), []);
        self.fails(0, ConnectFailure::Unreachable).fails(0, ConnectFailure::Unreachable)
    }
}

fn call(hook: Hook, node: u16, main: u16, old: u16) -> HookCall {
    HookCall { hook, node: NodeId(node), main: Some(NodeId(main)), old_primary: Some(NodeId(old)) }
}

#[test]
fn the_most_advanced_standby_is_promoted_once_and_the_others_follow() {
    let mut script = promoting(Promoter::Core);
    script.kill_primary();
    assert!(script.progress(Progress::Suspected { primary: NodeId(0), failures: 3 }));
    assert_eq!(script.probes(), [(1, 0), (2, 0)]);
    script.ok(1, orphaned(950));
    assert_eq!(script.promoted(), [], "the other one may be ahead");
    script.ok(2, orphaned(960));
    assert_eq!(script.promoted(), [2]);
    assert_eq!(script.probes(), [(2, 50)]);
    let answer = PromoteAnswer::Accepted;
    script.event(Event::PromoteAnswer { node: NodeId(2), answer }).ok(1, orphaned(950)).ok(2, orphaned(960));
    script.fails(0, ConnectFailure::Unreachable).event(Event::Tick);
    assert_eq!(script.promoted(), [], "once");
    // The old one returns as it was, in this very moment.
    script.ok(0, primary(1));
    assert_eq!(script.core.topology().primary, None);
    assert_eq!(script.state(0), (NodeState::Quarantine, Role::Unknown));
    script.ok(2, primary(2));
    assert_eq!(script.core.topology().primary, Some(NodeId(2)));
    assert_eq!(script.hooks(), [call(Hook::FollowPrimary, 1, 2, 0), call(Hook::FollowPrimary, 0, 2, 0)]);
    script.ok(0, Facts { follows: Some(2), ..orphaned(970) });
    assert_eq!(script.state(0), UP_STANDBY);
    // And back again.
    script.fails_with(2, ConnectFailure::Unreachable, Evidence::ConnectionLost);
    script.fails(2, ConnectFailure::Unreachable).fails(2, ConnectFailure::Unreachable);
    script.ok(0, Facts { follows: Some(2), ..orphaned(980) });
    script.ok(1, Facts { follows: Some(2), ..orphaned(970) });
    assert_eq!(script.promoted(), [0]);
}

#[test]
fn nobody_is_promoted_while_a_standby_receives_from_the_primary() {
    let mut script = promoting(Promoter::Core);
    for _ in 0..6 {
        script.fails(0, ConnectFailure::TimedOut);
    }
    script.wait(1_000).ok(1, receiving(950)).ok(2, orphaned(950));
    // It has heard from the primary after the checks began to fail: that one is slow, or only we cannot reach it.
    assert_eq!(script.state(0), UP_PRIMARY);
    assert_eq!(script.promoted(), []);
    // Silence: it does not answer us, and the standby only has not noticed yet.
    let silent_for = Some(Duration::from_secs(30));
    let upstream = Upstream::Streaming { from: Some(NodeId(0)), silent_for };
    script.ok(1, Facts { upstream, ..receiving(950) });
    assert_eq!(script.state(0), (NodeState::Down, Role::Primary));
    script.ok(1, Facts { upstream, ..receiving(950) });
    assert!(script.progress(Progress::Vetoed { primary: NodeId(0), by: NodeId(1) }));
    script.ok(2, orphaned(950));
    assert_eq!(script.promoted(), []);
    script.ok(1, orphaned(950));
    assert_eq!(script.promoted(), [1]);
}

#[test]
fn a_node_that_says_anything_is_alive_and_nobody_takes_its_place() {
    for failure in [ConnectFailure::Rejected, ConnectFailure::NotReady] {
        let mut script = promoting(Promoter::Core);
        for _ in 0..50 {
            script.fails(0, failure).ok(1, orphaned(950)).ok(2, orphaned(950)).event(Event::Tick);
            assert_eq!(script.promoted(), []);
        }
    }
}

#[test]
fn who_may_not_be_promoted_is_not() {
    let mut script = promoting(Promoter::Core);
    let mut nodes = ["db0", "db1", "db2"].map(spec).to_vec();
    nodes[1].on_failure = OnFailure::Keep;
    nodes[2].priority = 0;
    let mut settings = settings();
    settings.failover.promoter = Promoter::Core;
    script.event(Event::NodesChanged { nodes: nodes.clone(), settings });
    script.kill_primary().ok(1, orphaned(950)).ok(2, orphaned(950));
    assert!(script.progress(Progress::NoCandidate { primary: NodeId(0) }));
    script.event(Event::AdminPromote { node: NodeId(1) });
    assert_eq!(script.refusal(), Some(Refusal::NotACandidate(NodeId(1))));
    // Among equals the one of the higher priority.
    nodes[1].on_failure = OnFailure::TakeOut;
    nodes[2].priority = 5;
    script.event(Event::NodesChanged { nodes, settings });
    assert_eq!(script.promoted(), [2]);
}

#[test]
fn a_refusal_lets_the_next_one_try_and_the_old_primary_return() {
    let mut script = promoting(Promoter::Core);
    script.kill_primary().ok(1, orphaned(950)).ok(2, orphaned(940));
    assert_eq!(script.promoted(), [1]);
    script.event(Event::PromoteAnswer { node: NodeId(1), answer: PromoteAnswer::Refused });
    assert!(script.progress(Progress::PromotionFailed { node: NodeId(1) }));
    script.ok(0, primary(1));
    assert_eq!(script.state(0), UP_PRIMARY);
}

#[test]
fn a_promotion_of_which_nobody_knows_is_not_repeated_before_it_is_known_to_have_failed() {
    let mut script = promoting(Promoter::Core);
    script.kill_primary().ok(1, orphaned(950)).ok(2, orphaned(940));
    script.event(Event::PromoteAnswer { node: NodeId(1), answer: PromoteAnswer::Unknown });
    for _ in 0..3 {
        script.fails(1, ConnectFailure::Unreachable);
    }
    script.wait(120_000).fails(0, ConnectFailure::Unreachable).ok(2, orphaned(940)).event(Event::Tick);
    assert_eq!(script.promoted(), []);
    // The old one stays out meanwhile: the other one may be taking writes.
    script.ok(0, primary(1));
    assert_eq!(script.state(0), (NodeState::Quarantine, Role::Unknown));
    script.ok(1, orphaned(950));
    assert!(script.progress(Progress::PromotionFailed { node: NodeId(1) }));
    script.ok(0, primary(1));
    assert_eq!(script.state(0), UP_PRIMARY);
}

#[test]
fn commands_are_run_once_for_each_event() {
    let mut script = promoting(Promoter::Command);
    script.fails(2, ConnectFailure::Unreachable).fails(2, ConnectFailure::Unreachable);
    assert_eq!(script.hooks(), [call(Hook::Failover, 2, 0, 0)]);
    script.fails(2, ConnectFailure::Unreachable).event(Event::Tick);
    assert_eq!(script.hooks(), []);
    script.ok(2, receiving(950));
    assert_eq!(script.hooks(), [call(Hook::Failback, 2, 0, 0)]);
    script.kill_primary();
    assert_eq!(script.hooks(), []);
    script.ok(1, orphaned(960)).ok(2, orphaned(950));
    let failover = call(Hook::Failover, 0, 1, 0);
    assert_eq!((script.hooks(), script.promoted()), (vec![failover], vec![]));
    script.event(Event::HookDone { call: failover, outcome: HookOutcome::Done }).event(Event::Tick);
    assert_eq!(script.hooks(), []);
    script.ok(1, primary(2));
    assert_eq!(script.hooks(), [call(Hook::FollowPrimary, 2, 1, 0)]);
    // One that fails is not run again.
    let mut script = promoting(Promoter::Command);
    script.kill_primary().ok(1, orphaned(960)).ok(2, orphaned(950));
    script.event(Event::HookDone { call: failover, outcome: HookOutcome::Failed });
    assert!(script.progress(Progress::GivenUp { primary: Some(NodeId(0)) }));
    script.ok(1, orphaned(960)).ok(2, orphaned(950)).event(Event::Tick);
    assert_eq!(script.hooks(), []);
    // An administrator's word begins another.
    script.event(Event::AdminPromote { node: NodeId(2) });
    assert_eq!(script.hooks(), [call(Hook::Failover, 0, 2, 0)]);
}

#[test]
fn a_switchover_waits_for_transactions_and_for_the_standby() {
    let mut script = promoting(Promoter::Core);
    script.event(Event::AdminPromote { node: NodeId(2) });
    assert_eq!(script.core.topology().primary, None, "new transactions wait");
    assert_eq!(script.state(0), (NodeState::Draining, Role::Primary));
    script.event(Event::AdminPromote { node: NodeId(1) });
    assert_eq!(script.refusal(), Some(Refusal::UnderWay));
    script.ok(0, primary(1)).ok(2, receiving(2000)).event(Event::Tick);
    assert_eq!(script.promoted(), [], "transactions go on");
    script.event(Event::Drained { node: NodeId(0) });
    assert_eq!(script.state(0), (NodeState::Down, Role::Primary));
    script.ok(0, primary(1)).ok(2, receiving(999));
    assert_eq!(script.promoted(), [], "it lacks something");
    script.ok(2, receiving(1000));
    assert_eq!(script.promoted(), [2]);
    script.ok(2, primary(2));
    assert_eq!(script.state(2), UP_PRIMARY);
    assert_eq!(script.hooks(), [call(Hook::FollowPrimary, 1, 2, 0), call(Hook::FollowPrimary, 0, 2, 0)]);
    assert_eq!(script.state(0), (NodeState::Quarantine, Role::Unknown));
}

#[test]
fn a_switchover_that_takes_too_long_is_called_off() {
    let mut script = promoting(Promoter::Core);
    script.event(Event::AdminPromote { node: NodeId(2) }).wait(5_000).event(Event::Tick);
    assert_eq!(script.state(0), (NodeState::Down, Role::Primary), "what runs is cut off");
    script.ok(0, primary(1)).ok(2, receiving(900)).wait(5_000).event(Event::Tick);
    let called_off = |why| Progress::CalledOff { from: NodeId(0), to: NodeId(2), why };
    assert!(script.progress(called_off(CalledOff::Late)));
    assert_eq!(script.state(0), UP_PRIMARY);
    script.event(Event::AdminPromote { node: NodeId(2) });
    script.fails(2, ConnectFailure::Unreachable).fails(2, ConnectFailure::Unreachable);
    assert!(script.progress(called_off(CalledOff::StandbyLost)));
    assert_eq!(script.state(0), UP_PRIMARY);
}

#[test]
fn what_cannot_be_promoted_is_refused_with_a_reason() {
    let mut script = Script::running();
    script.event(Event::AdminPromote { node: NodeId(1) });
    assert_eq!(script.refusal(), Some(Refusal::ObserveMode));
    let mut script = promoting(Promoter::Core);
    let mut refused = |node| {
        script.event(Event::AdminPromote { node: NodeId(node) });
        script.refusal()
    };
    assert_eq!(refused(0), Some(Refusal::AlreadyPrimary(NodeId(0))));
    assert_eq!(refused(7), Some(Refusal::NoSuchNode(NodeId(7))));
    script.event(Event::AdminDetach { node: NodeId(1), insist: Insist::No });
    script.event(Event::AdminPromote { node: NodeId(1) });
    assert_eq!(script.refusal(), Some(Refusal::NotAStandby(NodeId(1))));
}

#[test]
fn sessions_may_decide_when_they_are_trusted() {
    let mut script = promoting(Promoter::Core);
    let mut nodes = ["db0", "db1", "db2"].map(spec).to_vec();
    nodes.iter_mut().for_each(|node| node.trust_sessions = true);
    let mut settings = settings();
    settings.failover.promoter = Promoter::Core;
    script.event(Event::NodesChanged { nodes, settings });
    script.sees(lost, 0).fails(0, ConnectFailure::TimedOut);
    assert_eq!(script.core.topology().primary, None);
    script.ok(1, receiving(960)).ok(2, receiving(950));
    assert_eq!(script.promoted(), [1], "whatever its standbys say");
}

#[test]
fn a_false_primary_may_be_left_alone_and_is_not_used() {
    let mut script = promoting(Promoter::Core);
    let mut settings = settings();
    settings.failover.false_primary = FalsePrimary::Leave;
    script.event(Event::NodesChanged { nodes: ["db0", "db1", "db2"].map(spec).to_vec(), settings });
    script.ok(2, primary(2)).ok(0, primary(1));
    assert_eq!(script.state(2), UP_PRIMARY);
    assert_eq!(script.state(0), (NodeState::Up, Role::Unknown));
}

#[test]
fn what_refuses_every_check_is_what_sessions_say() {
    let mut script = Script::new(&["db0", "db1"]);
    script.fails(0, ConnectFailure::Rejected).fails(1, ConnectFailure::Rejected);
    assert_eq!(script.state(0), (NodeState::Up, Role::Unknown), "it answers");
    assert_eq!(script.core.reports()[0].reason, Reason::RoleUnknown);
    let seen = |role| move |node, epoch| Observation::RoleSeen { node, epoch, role };
    script.sees(seen(Role::Primary), 0).sees(seen(Role::Standby), 1);
    assert_eq!((script.state(0), script.state(1)), (UP_PRIMARY, UP_STANDBY));
    // What a node says itself is better.
    script.ok(0, standby()).sees(seen(Role::Primary), 0);
    assert_eq!(script.state(0), UP_STANDBY);
}
