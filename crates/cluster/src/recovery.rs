//! Online recovery: a node is rebuilt by a command of the configuration, and taken back when it streams.
//!
//! Invariants: a node is out of service from the word until it is seen as a standby of the primary that it was made
//! from; one recovery a node; each ends once, however it does; what fails leaves the node as it was before, detached or not.

use std::sync::Arc;
use std::time::Duration;

use crate::core::Core;
use crate::event::{Action, Record, Refusal, Upstream};
use crate::failover::Stage;
use crate::member::Member;
use crate::orders::HookOutcome;
use crate::topology::{Moment, NodeId, NodeState, Role};
use crate::verdict::{self, with_ids};

/// One run of `recovery_command`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovery {
    /// Its number; they begin with 1 at the start of the process.
    pub run: u32,
    /// The node that is rebuilt.
    pub node: NodeId,
    /// The primary that it is made a standby of.
    pub primary: NodeId,
}

/// How far a recovery is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryStep {
    /// The command is run.
    Command,
    /// The command has ended well; the node is to be seen as a standby.
    Joining,
    /// It is over.
    Ended(RecoveryEnd),
}

/// How a recovery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryEnd {
    /// The node is a streaming standby of the primary, and attached.
    Joined,
    /// The command failed, took too long, or could not be run.
    CommandFailed,
    /// The node was not seen as a streaming standby in time.
    NotJoined,
    /// Another node is the primary now.
    PrimaryChanged,
    /// An administrator detached the node, or it has left the configuration.
    Stopped,
}

impl RecoveryStep {
    /// The word that SHOW and logs use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Joining => "joining",
            Self::Ended(RecoveryEnd::Joined) => "joined",
            Self::Ended(RecoveryEnd::CommandFailed) => "command_failed",
            Self::Ended(RecoveryEnd::NotJoined) => "not_joined",
            Self::Ended(RecoveryEnd::PrimaryChanged) => "primary_changed",
            Self::Ended(RecoveryEnd::Stopped) => "stopped",
        }
    }
}

/// What a member knows of its own recovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recovering {
    run: u32,
    /// By name: a reload may give nodes other numbers.
    primary: (Arc<str>, u16),
    /// When the command ended.
    joining_since: Option<Moment>,
}

fn name(member: &Member) -> (Arc<str>, u16) {
    (Arc::clone(&member.spec.hostname), member.spec.port)
}

impl Core {
    /// `RECOVER NODE`: out of service, and the command is run.
    pub(crate) fn recover(&mut self, node: NodeId, actions: &mut Vec<Action>) {
        let primary = match self.may_recover(node) {
            Ok(primary) => primary,
            Err(refusal) => {
                actions.push(Action::Refused(refusal));
                return;
            }
        };
        self.recoveries = self.recoveries.saturating_add(1);
        let run = self.recoveries;
        let Some(made_from) = self.members.get(primary.index()).map(name) else { return };
        if let Some(member) = self.members.get_mut(node.index()) {
            member.recovery = Some(Recovering { run, primary: made_from, joining_since: None });
        }
        actions.push(record(run, node, RecoveryStep::Command));
        actions.push(Action::Recover(Recovery { run, node, primary }));
    }

    /// The primary to make it from.
    fn may_recover(&self, node: NodeId) -> Result<NodeId, Refusal> {
        let seen = self.topology.node(node).ok_or(Refusal::NoSuchNode(node))?;
        let member = self.members.get(node.index()).ok_or(Refusal::NoSuchNode(node))?;
        if member.recovery.is_some() {
            return Err(Refusal::Recovering(node));
        }
        if seen.role == Role::Primary {
            return Err(Refusal::RecoverPrimary(node));
        }
        if !matches!(self.stage, Stage::Watching) {
            return Err(Refusal::UnderWay);
        }
        if matches!(seen.state, NodeState::Up | NodeState::Draining | NodeState::Waiting) {
            return Err(Refusal::InUse(node));
        }
        self.topology.primary.ok_or(Refusal::NoPrimary)
    }

    /// Whether some node is being recovered.
    pub(crate) fn recovering(&self) -> Option<NodeId> {
        with_ids(&self.members).find(|(_, member)| member.recovery.is_some()).map(|(id, _)| id)
    }

    /// The command has ended.
    pub(crate) fn recovery_done(&mut self, run: u32, outcome: HookOutcome, actions: &mut Vec<Action>) {
        let now = self.now;
        let is_it = |member: &Member| member.recovery.as_ref().is_some_and(|it| it.run == run);
        let Some(index) = self.members.iter().position(is_it) else { return };
        let Some(node) = self.topology.nodes.get(index).map(|node| node.id) else { return };
        let Some(recovery) = self.members.get_mut(index).and_then(|member| member.recovery.as_mut()) else {
            return;
        };
        match outcome {
            HookOutcome::Done => {
                recovery.joining_since = Some(now);
                actions.push(record(run, node, RecoveryStep::Joining));
                actions.push(Action::Probe { node, after: Duration::ZERO });
            }
            HookOutcome::Failed => self.end_recovery(node, RecoveryEnd::CommandFailed, actions),
        }
    }

    /// Ends a recovery of that node, if there is one.
    pub(crate) fn end_recovery(&mut self, node: NodeId, end: RecoveryEnd, actions: &mut Vec<Action>) {
        let Some(member) = self.members.get_mut(node.index()) else { return };
        if let Some(recovery) = member.recovery.take() {
            actions.extend(ended(&recovery, node, end));
        }
    }

    /// Takes those back that are what they were to become; gives up those that take too long, or whose primary is none now.
    pub(crate) fn join_recovered(&mut self, actions: &mut Vec<Action>) {
        let recovered = with_ids(&self.members).filter(|(_, member)| member.recovery.is_some());
        for node in recovered.map(|(id, _)| id).collect::<Vec<_>>() {
            if let Some(end) = self.judge_recovered(node) {
                if let Some(member) =
                    self.members.get_mut(node.index()).filter(|_| end == RecoveryEnd::Joined)
                {
                    member.attach();
                }
                self.end_recovery(node, end, actions);
            } else if self.ticked && self.is_joining(node) {
                actions.push(Action::Probe { node, after: Duration::ZERO });
            }
        }
    }

    fn is_joining(&self, node: NodeId) -> bool {
        let recovery = self.members.get(node.index()).and_then(|member| member.recovery.as_ref());
        recovery.is_some_and(|it| it.joining_since.is_some())
    }

    fn judge_recovered(&self, node: NodeId) -> Option<RecoveryEnd> {
        let member = self.members.get(node.index())?;
        let recovery = member.recovery.as_ref()?;
        let primary = self.topology.primary.and_then(|id| Some((id, self.members.get(id.index())?)));
        if primary.is_some_and(|(_, primary)| name(primary) != recovery.primary) {
            return Some(RecoveryEnd::PrimaryChanged);
        }
        let since = recovery.joining_since?;
        let told = member.answers == Some(true) && member.told_at() > Some(since);
        let is_of_us =
            !verdict::is_foreign(member, &self.memory) && !verdict::follows_the_past(member, &self.memory);
        if primary.is_some_and(|(id, _)| told && is_of_us && member.is_standby() && self.streams(member, id))
        {
            return Some(RecoveryEnd::Joined);
        }
        let late = self.now.0.saturating_sub(since.0) >= self.settings.failover.join_within;
        late.then_some(RecoveryEnd::NotJoined)
    }

    /// From the primary, from an address that is not configured, or from a standby that is up.
    fn streams(&self, member: &Member, primary: NodeId) -> bool {
        let is_up = |id: NodeId| {
            self.topology.node(id).is_some_and(|it| it.state == NodeState::Up && it.role == Role::Standby)
        };
        match member.facts.map(|facts| facts.upstream) {
            Some(Upstream::Streaming { from, .. }) => from.is_none_or(|from| from == primary || is_up(from)),
            _ => false,
        }
    }
}

/// What is to be done and said when a recovery is over.
pub(crate) fn ended(recovery: &Recovering, node: NodeId, end: RecoveryEnd) -> Vec<Action> {
    let still_runs = recovery.joining_since.is_none() && end != RecoveryEnd::CommandFailed;
    let stop = still_runs.then_some(Action::StopRecovery { run: recovery.run });
    stop.into_iter().chain([record(recovery.run, node, RecoveryStep::Ended(end))]).collect()
}

fn record(run: u32, node: NodeId, step: RecoveryStep) -> Action {
    Action::Record(Record::Recovery { run, node, step })
}
