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
            join_within: Duration::from_secs(30),
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
mod health;
mod hints;
mod nodes;
mod recovery;
mod roles;
