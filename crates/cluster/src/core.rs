//! The state machine that decides which node is up, down or primary.
//!
//! Synchronous and pure: events and the time go in, actions come out. Evidence is kept per node
//! (`member`), and after each event the whole picture is derived from it anew (`verdict`), so that
//! no order of events leaves a state that the evidence does not support.
//!
//! Invariants (see [`Core::check_invariants`]): ids are indexes; at most one node has the role
//! primary; `topology.primary` is that node, and up; epochs never fall, and one epoch never has two
//! pictures of roles and states.
//!
//! Failovers and switchovers go on in `failover`, administrators' commands begin in `command`.

use crate::event::{Action, Event, Facts, Lsn, NodeReport, NodeSpec, Reason, Record, Settings};
use crate::failover::Stage;
use crate::member::{FailedCheck, Member, Wish};
use crate::observation::{ConnectFailure, Observation};
use crate::recovery::{self, RecoveryEnd};
use crate::topology::{Epoch, Moment, Node, NodeId, NodeState, Role, Topology};
use crate::verdict::{self, Memory, Phase, Ruling, with_ids};

/// The cluster as pgweir sees it.
#[derive(Debug, Clone)]
pub struct Core {
    pub(crate) settings: Settings,
    pub(crate) members: Vec<Member>,
    pub(crate) memory: Memory,
    pub(crate) phase: Phase,
    reasons: Vec<Reason>,
    pub(crate) topology: Topology,
    pub(crate) stage: Stage,
    /// This step is one of the regular ones.
    pub(crate) ticked: bool,
    /// Whom this step has news of.
    pub(crate) told: Option<NodeId>,
    started: Moment,
    pub(crate) now: Moment,
    /// How many recoveries there were.
    pub(crate) recoveries: u32,
    /// Reports of checks that began before this, and observations of older epochs, are about
    /// nodes that may have other ids now.
    renumbered: Option<(Moment, Epoch)>,
}

/// What is wrong with the core's picture: a defect of pgweir.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A node's id is not its index.
    #[error("the node at index {index} has id {id}")]
    IdNotIndex {
        /// Where it is.
        index: usize,
        /// What it says.
        id: NodeId,
    },
    /// There is not one node per member.
    #[error("{nodes} nodes for {members} members")]
    Count {
        /// In the topology.
        nodes: usize,
        /// In the core.
        members: usize,
    },
    /// More than one node has the role primary.
    #[error("{0} nodes have the role primary")]
    Primaries(usize),
    /// `topology.primary` names a node that is not up or not a primary.
    #[error("node {0} takes the writes but is not an up primary")]
    PrimaryNotUp(NodeId),
    /// A node is an up primary, and `topology.primary` does not name it.
    #[error("node {0} is an up primary that does not take the writes")]
    PrimaryNotNamed(NodeId),
    /// A node changed after the topology did.
    #[error("node {0} changed at an epoch that has not come yet")]
    FutureEpoch(NodeId),
}

impl Core {
    /// A core that knows the nodes' names only. The first event of any kind starts it.
    #[must_use]
    pub fn new(settings: Settings, nodes: Vec<NodeSpec>, now: Moment) -> Self {
        let members: Vec<Member> = nodes.into_iter().map(|spec| Member::new(spec, now)).collect();
        let nodes = with_ids(&members).map(|(id, member)| fresh_node(id, member, Epoch(0), now)).collect();
        Self {
            settings,
            members,
            memory: Memory { false_primary: settings.failover.false_primary, ..Memory::default() },
            stage: Stage::Watching,
            ticked: false,
            told: None,
            phase: Phase::Settling,
            reasons: Vec::new(),
            topology: Topology { nodes, ..Topology::default() },
            started: now,
            now,
            recoveries: 0,
            renumbered: None,
        }
    }

    /// The picture as it was published last.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Whether the nodes had their chance to report since the start; no node is used before.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.phase == Phase::Settled
    }

    /// What is known of each node besides, in the order of their ids.
    #[must_use]
    pub fn reports(&self) -> Vec<NodeReport> {
        let reasons = self.reasons.iter().copied().chain(std::iter::repeat(Reason::NotChecked));
        let report = |(member, reason): (&Member, Reason)| NodeReport {
            answers: member.answers,
            facts: member.facts,
            reason,
            failures: member.failures(),
        };
        self.members.iter().zip(reasons).map(report).collect()
    }

    /// Takes one event; a clock that went back is held.
    pub fn step(&mut self, now: Moment, event: Event) -> Vec<Action> {
        self.now = self.now.max(now);
        let mut actions = Vec::new();
        self.ticked = event == Event::Tick;
        self.told = None;
        match event {
            Event::CheckOk { node, started, facts } => self.check_ok(node, started, facts, &mut actions),
            Event::CheckFailed { node, started, failure, evidence } => {
                self.check_failed(node, FailedCheck { started, failure, evidence }, &mut actions);
            }
            Event::Observed(observation) => self.observed(observation, &mut actions),
            Event::AdminAttach { node } => self.attach(node, &mut actions),
            Event::AdminDetach { node, insist } => self.detach(node, insist, &mut actions),
            Event::AdminPromote { node } => self.admin_promote(node, &mut actions),
            Event::AdminRecover { node } => self.recover(node, &mut actions),
            Event::RecoveryDone { run, outcome } => self.recovery_done(run, outcome, &mut actions),
            Event::Drained { node } => self.drained(node),
            Event::PromoteAnswer { node, answer } => self.promote_answered(node, answer),
            Event::HookDone { call, outcome } => self.hook_done(call, outcome),
            Event::Moved { node } => self.moved(node, &mut actions),
            Event::NodesChanged { nodes, settings } => self.reconfigure(nodes, settings, &mut actions),
            Event::Tick => self.tick(&mut actions),
        }
        self.settle();
        self.join_recovered(&mut actions);
        self.go_on(&mut actions);
        self.decide(&mut actions);
        actions
    }

    fn check_ok(&mut self, node: NodeId, started: Moment, facts: Facts, actions: &mut Vec<Action>) {
        if self.is_of_old_numbering(started) {
            return;
        }
        let (now, failback) = (self.now, self.settings.failback);
        let Some(member) = self.members.get_mut(node.index()) else { return };
        if let Some(wish) = member.check_ok(now, started, facts, failback) {
            grant(node, wish, actions);
            self.told = Some(node);
        }
    }

    fn check_failed(&mut self, node: NodeId, report: FailedCheck, actions: &mut Vec<Action>) {
        if self.is_of_old_numbering(report.started) {
            return;
        }
        let (now, role) = (self.now, self.role(node));
        let Some(member) = self.members.get_mut(node.index()) else { return };
        let Some((wish, news)) = member.check_failed(now, report, role) else { return };
        if news {
            let in_a_row = member.failures();
            actions.push(Action::Record(Record::CheckTrouble { node, failure: report.failure, in_a_row }));
        }
        grant(node, wish, actions);
    }

    fn observed(&mut self, observation: Observation, actions: &mut Vec<Action>) {
        let node = observation.node();
        let floor = self.renumbered.map_or(Epoch(0), |(_, epoch)| epoch);
        let changed = self.topology.node(node).map_or(floor, |node| node.changed_epoch).max(floor);
        let now = self.now;
        let Some(member) = self.members.get_mut(node.index()) else { return };
        grant(node, member.observed(now, observation, changed), actions);
    }

    /// Another server to all who hold backends of before: they give them up when they have done with them.
    fn moved(&mut self, node: NodeId, actions: &mut Vec<Action>) {
        let (epoch, now) = (Epoch(self.topology.epoch.0.saturating_add(1)), self.now);
        let Some(moved) = self.topology.nodes.get_mut(node.index()) else { return };
        (moved.changed_epoch, moved.changed_at) = (epoch, now);
        self.topology.epoch = epoch;
        actions.push(Action::Publish(self.topology.clone()));
    }

    fn tick(&mut self, actions: &mut Vec<Action>) {
        let now = self.now;
        let roles: Vec<Role> = self.topology.nodes.iter().map(|node| node.role).collect();
        for ((id, role), member) in (0..=u16::MAX).map(NodeId).zip(roles).zip(&mut self.members) {
            let Some((wish, news)) = member.tick(now, role) else { continue };
            if news {
                let failure = ConnectFailure::TimedOut;
                let in_a_row = member.failures();
                actions.push(Action::Record(Record::CheckTrouble { node: id, failure, in_a_row }));
            }
            grant(id, wish, actions);
        }
    }

    /// Nodes keep what is known of them when their server stays in the list, wherever in it.
    fn reconfigure(&mut self, specs: Vec<NodeSpec>, settings: Settings, actions: &mut Vec<Action>) {
        self.settings = settings;
        self.memory.false_primary = settings.failover.false_primary;
        let epoch = Epoch(self.topology.epoch.0.saturating_add(1));
        let (last_primary, by_word) = (self.memory.last_primary.take(), self.memory.by_word.take());
        let nodes = std::mem::take(&mut self.topology.nodes);
        let mut old: Vec<Option<(Member, Node)>> =
            std::mem::take(&mut self.members).into_iter().zip(nodes).map(Some).collect();
        let mut moved = old.len() != specs.len();
        let mut ids: Vec<(NodeId, NodeId)> = Vec::new();
        for (id, spec) in (0..=u16::MAX).map(NodeId).zip(specs) {
            let (member, node) = match take_server(&mut old, &spec) {
                Some((member, node)) => {
                    ids.push((node.id, id));
                    let moved_to = |held: Option<NodeId>| held.filter(|held| *held == node.id).map(|_| id);
                    self.memory.last_primary = self.memory.last_primary.or(moved_to(last_primary));
                    self.memory.by_word = self.memory.by_word.or(moved_to(by_word));
                    (member.with_spec(spec), Some(node))
                }
                None => (Member::new(spec, self.now), None),
            };
            // Under another id it is another node to all who hold the old one.
            let node = match node.filter(|node| node.id == id) {
                Some(node) => Node { weight: member.spec.weight, ..node },
                None => {
                    moved = true;
                    fresh_node(id, &member, epoch, self.now)
                }
            };
            self.members.push(member);
            self.topology.nodes.push(node);
        }
        for (member, node) in old.into_iter().flatten() {
            let stopped = member.recovery.map(|it| recovery::ended(&it, node.id, RecoveryEnd::Stopped));
            actions.extend(stopped.into_iter().flatten());
        }
        let new_id = |old: NodeId| ids.iter().find(|(from, _)| *from == old).map(|(_, to)| *to);
        self.stage = std::mem::take(&mut self.stage).renumbered(new_id);
        self.memory.resting = None;
        if moved {
            self.renumbered = Some((self.now, epoch));
        }
        self.topology.epoch = epoch;
        if self.topology.primary.is_some() && self.memory.last_primary.is_none() {
            // It has left the list, which is a loss like another.
            self.topology.primary_lost = Some(self.now);
        }
        self.topology.primary = self.topology.primary.and(self.memory.last_primary);
        actions.push(Action::Record(Record::Reconfigured { nodes: self.members.len() }));
    }

    fn is_of_old_numbering(&self, started: Moment) -> bool {
        self.renumbered.is_some_and(|(at, _)| started < at)
    }

    fn role(&self, node: NodeId) -> Role {
        self.topology.node(node).map_or(Role::Unknown, |node| node.role)
    }

    fn settle(&mut self) {
        let waited = self.now.0.saturating_sub(self.started.0) >= self.settings.settle;
        if waited || self.members.iter().all(|member| member.answers.is_some()) {
            self.phase = Phase::Settled;
        }
    }

    /// Derives the picture anew and publishes it when it is another one.
    fn decide(&mut self, actions: &mut Vec<Action>) {
        let before = self.topology.clone();
        let ruling = verdict::rule(&mut self.members, &mut self.memory, self.phase);
        let reconfigured =
            actions.iter().any(|action| matches!(action, Action::Record(Record::Reconfigured { .. })));
        // A reload has taken the next epoch already.
        let epoch = if reconfigured { before.epoch } else { Epoch(before.epoch.0.saturating_add(1)) };
        let changed = self.apply(&ruling, epoch, actions);
        if before.primary != ruling.primary {
            let timeline = ruling.primary.and_then(|id| self.members.get(id.index())?.facts?.timeline);
            let record = Record::PrimaryChange { from: before.primary, to: ruling.primary, timeline };
            actions.push(Action::Record(record));
        }
        self.topology.primary = ruling.primary;
        self.topology.primary_lost = match (before.primary, ruling.primary) {
            (_, Some(_)) => None,
            (Some(_), None) => Some(self.now),
            (None, None) => before.primary_lost,
        };
        if changed || before.primary != ruling.primary {
            self.topology.epoch = epoch;
        }
        self.reasons = ruling.verdicts.iter().map(|verdict| verdict.reason).collect();
        self.measure_lag();
        self.run_hooks(before.primary, actions);
        if reconfigured || self.topology != before {
            actions.push(Action::Publish(self.topology.clone()));
        }
    }

    /// Writes the verdicts into the nodes; tells whether any changed.
    fn apply(&mut self, ruling: &Ruling, epoch: Epoch, actions: &mut Vec<Action>) -> bool {
        let mut changed = false;
        for (node, verdict) in self.topology.nodes.iter_mut().zip(&ruling.verdicts) {
            if node.state != verdict.state {
                let (from, to, reason) = (node.state, verdict.state, verdict.reason);
                actions.push(Action::Record(Record::StateChange { node: node.id, from, to, reason }));
            }
            if node.role != verdict.role {
                actions.push(Action::Record(Record::RoleChange {
                    node: node.id,
                    from: node.role,
                    to: verdict.role,
                }));
            }
            if node.state != verdict.state || node.role != verdict.role {
                node.state = verdict.state;
                node.role = verdict.role;
                node.changed_epoch = epoch;
                node.changed_at = self.now;
                changed = true;
            }
        }
        changed
    }

    /// What the standbys have yet to replay of what the primary wrote, as of their last checks.
    fn measure_lag(&mut self) {
        let lsn = |member: &Member| member.facts.and_then(|facts| facts.lsn);
        let written = self.topology.primary.and_then(|id| self.members.get(id.index())).and_then(lsn);
        let written = written.map(Lsn::before_page_header);
        for (node, member) in self.topology.nodes.iter_mut().zip(&self.members) {
            node.replay_lag = match (node.role, written, lsn(member)) {
                (Role::Standby, Some(written), Some(replayed)) => Some(written.0.saturating_sub(replayed.0)),
                _ => None,
            };
        }
    }

    /// Whether the picture is one that may be published.
    ///
    /// # Errors
    /// The first [`Violation`]: a defect of pgweir, after which nothing it decides can be trusted.
    pub fn check_invariants(&self) -> Result<(), Violation> {
        let topology = &self.topology;
        if topology.nodes.len() != self.members.len() {
            return Err(Violation::Count { nodes: topology.nodes.len(), members: self.members.len() });
        }
        for (index, node) in topology.nodes.iter().enumerate() {
            if node.id.index() != index {
                return Err(Violation::IdNotIndex { index, id: node.id });
            }
            if node.changed_epoch > topology.epoch {
                return Err(Violation::FutureEpoch(node.id));
            }
        }
        let primaries = topology.nodes.iter().filter(|node| node.role == Role::Primary);
        let count = primaries.clone().count();
        if count > 1 {
            return Err(Violation::Primaries(count));
        }
        let up = primaries.into_iter().find(|node| node.state == NodeState::Up).map(|node| node.id);
        match (topology.primary, up) {
            (named, up) if named == up => Ok(()),
            (Some(named), _) => Err(Violation::PrimaryNotUp(named)),
            (None, Some(up)) => Err(Violation::PrimaryNotNamed(up)),
            (None, None) => Ok(()),
        }
    }
}

pub(crate) fn grant(node: NodeId, wish: Wish, actions: &mut Vec<Action>) {
    if let Wish::Probe(after) = wish {
        actions.push(Action::Probe { node, after });
    }
}

fn take_server(old: &mut [Option<(Member, Node)>], spec: &NodeSpec) -> Option<(Member, Node)> {
    old.iter_mut().find(|slot| slot.as_ref().is_some_and(|(member, _)| member.spec.same_server(spec)))?.take()
}

fn fresh_node(id: NodeId, member: &Member, epoch: Epoch, now: Moment) -> Node {
    Node {
        id,
        hostname: member.spec.hostname.clone(),
        port: member.spec.port,
        weight: member.spec.weight,
        state: NodeState::Waiting,
        role: Role::Unknown,
        changed_epoch: epoch,
        changed_at: now,
        replay_lag: None,
    }
}
