//! From a lost primary to a new one: when somebody is promoted, who, and what is done if it does not work.
//!
//! Invariants: nobody is promoted unless the primary has failed more checks than it may, and every standby that
//! answers has said since that it receives nothing from it; one promotion at a time, and no second one before
//! the first is known to have failed; a primary that was given up takes no writes again before it was a standby,
//! unless the promotion is known to have failed.

use std::time::Duration;

use crate::core::Core;
use crate::event::{Action, Lsn, OnFailure, Reason, Record, Upstream};
use crate::member::{Health, Member};
use crate::orders::{CalledOff, Hook, HookCall, HookOutcome, Progress, PromoteAnswer, Promoter};
use crate::topology::{Moment, NodeId};
use crate::verdict::{self, Phase, with_ids};

/// So often somebody is asked to promote itself before an administrator has to look.
const MAX_ATTEMPTS: u32 = 3;
/// A standby that answers but tells nothing is not waited for longer than this.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a node that is being promoted is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What is said once for each loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Said {
    #[default]
    Nothing,
    Vetoed(NodeId),
    NoCandidate,
}

/// Where a failover or switchover is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Stage {
    /// Nothing goes on.
    #[default]
    Watching,
    /// The primary counts as dead, the standbys are asked whether they agree.
    Confirming(Confirming),
    /// A standby is asked to promote itself, or `failover_command` runs.
    Promoting(Promoting),
    /// It did not work.
    GivenUp { old: Option<NodeId> },
    /// An administrator wants another primary.
    Switching(Switching),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Confirming {
    primary: NodeId,
    since: Moment,
    attempts: u32,
    said: Said,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Promoting {
    node: NodeId,
    old: Option<NodeId>,
    lost: Moment,
    asked: Moment,
    attempts: u32,
    failed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Switching {
    pub(crate) from: NodeId,
    to: NodeId,
    began: Moment,
    /// When nothing ran on the old primary any more, or what did was cut off.
    pub(crate) drained: Option<Moment>,
}

/// What the standbys say about the death of the primary.
enum Opinion {
    Wait,
    Veto(NodeId),
    Nobody,
    Promote(NodeId, Option<Lsn>),
}

impl Stage {
    /// The same under other ids. A promotion of a node that left the list is nobody's any more.
    pub(crate) fn renumbered(self, new_id: impl Fn(NodeId) -> Option<NodeId>) -> Self {
        match self {
            Self::Watching => Self::Watching,
            Self::Confirming(it) => new_id(it.primary).map_or(Self::Watching, |primary| {
                Self::Confirming(Confirming { primary, said: Said::Nothing, ..it })
            }),
            Self::Promoting(it) => {
                let old = it.old.and_then(&new_id);
                match new_id(it.node) {
                    Some(node) => Self::Promoting(Promoting { node, old, ..it }),
                    None => Self::GivenUp { old },
                }
            }
            Self::GivenUp { old } => Self::GivenUp { old: old.and_then(new_id) },
            Self::Switching(it) => match (new_id(it.from), new_id(it.to)) {
                (Some(from), Some(to)) => Self::Switching(Switching { from, to, ..it }),
                _ => Self::Watching,
            },
        }
    }
}

impl Core {
    /// Goes on with whatever goes on; called after the evidence has changed, before the picture is derived.
    pub(crate) fn go_on(&mut self, actions: &mut Vec<Action>) {
        if self.phase != Phase::Settled {
            return;
        }
        let chosen = verdict::choose(&self.members, &self.memory);
        self.stage = match std::mem::take(&mut self.stage) {
            Stage::Watching => self.watch(chosen, actions),
            Stage::Confirming(it) => self.confirm(it, chosen, actions),
            Stage::Promoting(it) => self.follow(it, chosen, actions),
            Stage::GivenUp { old } => {
                let over = chosen.is_some() || old.is_some_and(|old| !self.is_dead(old));
                if over { Stage::Watching } else { Stage::GivenUp { old } }
            }
            Stage::Switching(it) => self.switch(it, actions),
        };
        self.memory.resting = match self.stage {
            Stage::Switching(it) => Some((it.from, it.drained.is_some())),
            _ => None,
        };
    }

    /// Whether the checks say that the primary is dead, and no standby vouches for it.
    fn is_dead(&self, primary: NodeId) -> bool {
        let Some(member) = self.members.get(primary.index()) else { return false };
        let failed = matches!(
            member.health,
            Health::Failed(Reason::Unreachable | Reason::TimedOut | Reason::Protocol)
        );
        let enough = member.is_surely_failing() || member.was_lost_by_sessions();
        failed
            && enough
            && !member.is_detached()
            && !verdict::is_vouched(primary, &self.members, &self.memory)
    }

    fn watch(&self, chosen: Option<NodeId>, actions: &mut Vec<Action>) -> Stage {
        let lost = self.memory.last_primary.filter(|primary| chosen.is_none() && self.is_dead(*primary));
        let Some(primary) = lost.filter(|_| self.settings.failover.promoter != Promoter::Nobody) else {
            return Stage::Watching;
        };
        let failures = self.members.get(primary.index()).map_or(0, Member::failures);
        actions.push(progress(Progress::Suspected { primary, failures }));
        self.ask_standbys(actions);
        Stage::Confirming(Confirming { primary, since: self.now, attempts: 0, said: Said::Nothing })
    }

    fn ask_standbys(&self, actions: &mut Vec<Action>) {
        let alive = with_ids(&self.members).filter(|(_, member)| member.answers == Some(true));
        actions.extend(alive.map(|(node, _)| Action::Probe { node, after: Duration::ZERO }));
    }

    fn confirm(&mut self, it: Confirming, chosen: Option<NodeId>, actions: &mut Vec<Action>) -> Stage {
        if chosen.is_some() || !self.is_dead(it.primary) {
            return Stage::Watching;
        }
        let said = match self.opinion(&it) {
            Opinion::Promote(node, position) => {
                let attempts = it.attempts.saturating_add(1);
                return self.promote(node, Some(it.primary), (it.since, attempts), position, actions);
            }
            Opinion::Wait => it.said,
            Opinion::Veto(by) => {
                self.say(&it, Said::Vetoed(by), Progress::Vetoed { primary: it.primary, by }, actions)
            }
            Opinion::Nobody => {
                let news = Progress::NoCandidate { primary: it.primary };
                self.say(&it, Said::NoCandidate, news, actions)
            }
        };
        if self.ticked {
            self.ask_standbys(actions);
        }
        Stage::Confirming(Confirming { said, ..it })
    }

    fn say(&self, it: &Confirming, said: Said, news: Progress, actions: &mut Vec<Action>) -> Said {
        if it.said != said {
            actions.push(progress(news));
        }
        said
    }

    /// Every standby that answers must have been asked since the primary counts as dead.
    fn opinion(&self, it: &Confirming) -> Opinion {
        let patient = self.now.0.saturating_sub(it.since.0) < PATIENCE;
        let trusted = self.members.get(it.primary.index()).is_some_and(Member::was_lost_by_sessions);
        let mut best: Option<(NodeId, &Member)> = None;
        for (id, member) in with_ids(&self.members) {
            // Also one that is detached or rests: it is not used, but it knows.
            let counts = member.answers == Some(true) && !verdict::is_foreign(member, &self.memory);
            if id == it.primary || !counts || member.claims_primary() {
                continue;
            }
            if member.told_at() < Some(it.since) {
                match patient {
                    true => return Opinion::Wait,
                    false => continue,
                }
            }
            if member.streams_from(it.primary) && !trusted {
                return Opinion::Veto(id);
            }
            let eligible =
                member.health == Health::Alive && self.is_candidate(member) && self.is_of_today(member);
            if eligible && best.is_none_or(|(_, best)| member.rank() > best.rank()) {
                best = Some((id, member));
            }
        }
        best.map_or(Opinion::Nobody, |(id, member)| Opinion::Promote(id, member.position()))
    }

    /// Whether it has anything of the primary's timeline, as far as that is known. One that has not would take the
    /// cluster back to a time before the last failover.
    fn is_of_today(&self, member: &Member) -> bool {
        let own = Some(member.newest_timeline()).filter(|own| *own > 0);
        own.zip(self.memory.newest_timeline).is_none_or(|(own, newest)| own >= newest)
    }

    pub(crate) fn is_candidate(&self, member: &Member) -> bool {
        let allowed = member.spec.on_failure == OnFailure::TakeOut && member.spec.priority > 0;
        allowed && !member.is_detached() && !verdict::follows_the_past(member, &self.memory)
    }

    fn promote(
        &mut self,
        node: NodeId,
        old: Option<NodeId>,
        (lost, attempts): (Moment, u32),
        position: Option<Lsn>,
        actions: &mut Vec<Action>,
    ) -> Stage {
        self.depose(old, true);
        actions.push(progress(Progress::Promoting { node, old, position }));
        actions.push(match self.settings.failover.promoter {
            Promoter::Command => Action::RunHook(HookCall {
                hook: Hook::Failover,
                node: old.unwrap_or(node),
                main: Some(node),
                old_primary: old,
            }),
            Promoter::Core | Promoter::Nobody => Action::Promote { node },
        });
        actions.push(Action::Probe { node, after: LOOK_EVERY });
        Stage::Promoting(Promoting { node, old, lost, asked: self.now, attempts, failed: false })
    }

    fn depose(&mut self, old: Option<NodeId>, deposed: bool) {
        if let Some(member) = old.and_then(|old| self.members.get_mut(old.index())) {
            member.deposed = deposed;
        }
    }

    /// A promotion is under way: it is over when there is a primary, or when it is known to have failed.
    fn follow(&mut self, it: Promoting, chosen: Option<NodeId>, actions: &mut Vec<Action>) -> Stage {
        if let Some(primary) = chosen {
            let took = self.now.0.saturating_sub(it.lost.0);
            actions.push(progress(Progress::Done { primary, took }));
            self.let_follow(primary, it.old, actions);
            return Stage::Watching;
        }
        let end = Moment(it.asked.0.saturating_add(self.settings.failover.promote_within));
        let member = self.members.get(it.node.index());
        let still = member.is_some_and(|member| member.told_at() > Some(end) && member.is_standby());
        if it.failed || still {
            actions.push(progress(Progress::PromotionFailed { node: it.node }));
            self.depose(it.old, false);
            return self.after_failure(it, actions);
        }
        if self.ticked || self.told == Some(it.node) {
            actions.push(Action::Probe { node: it.node, after: LOOK_EVERY });
        }
        Stage::Promoting(it)
    }

    /// The command is run once; somebody else may be asked.
    fn after_failure(&self, it: Promoting, actions: &mut Vec<Action>) -> Stage {
        let again = self.settings.failover.promoter == Promoter::Core && it.attempts < MAX_ATTEMPTS;
        match it.old.filter(|_| again) {
            Some(primary) => Stage::Confirming(Confirming {
                primary,
                since: self.now,
                attempts: it.attempts,
                said: Said::Nothing,
            }),
            None => {
                actions.push(progress(Progress::GivenUp { primary: it.old }));
                Stage::GivenUp { old: it.old }
            }
        }
    }

    /// The other standbys are to follow the new primary, and then the old one when it lives: what it writes when it is
    /// stopped must not reach a standby that has not left it yet.
    fn let_follow(&self, primary: NodeId, old: Option<NodeId>, actions: &mut Vec<Action>) {
        let others = with_ids(&self.members).filter(|(id, member)| {
            // Two commands at once on one data directory would ruin it.
            let is_free = member.recovery.is_none();
            *id != primary
                && is_free
                && member.health == Health::Alive
                && !verdict::is_foreign(member, &self.memory)
        });
        let mut nodes: Vec<NodeId> = others.map(|(node, _)| node).collect();
        nodes.sort_by_key(|node| Some(*node) == old);
        actions.extend(nodes.into_iter().map(|node| {
            let (main, old_primary) = (Some(primary), old);
            Action::RunHook(HookCall { hook: Hook::FollowPrimary, node, main, old_primary })
        }));
    }

    /// The node has answered to `pg_promote()`.
    pub(crate) fn promote_answered(&mut self, node: NodeId, answer: PromoteAnswer) {
        if let Stage::Promoting(it) = &mut self.stage
            && it.node == node
            && answer == PromoteAnswer::Refused
        {
            it.failed = true;
        }
        self.told = Some(node);
    }

    /// `failover_command` has ended.
    pub(crate) fn hook_done(&mut self, call: HookCall, outcome: HookOutcome) {
        if let Stage::Promoting(it) = &mut self.stage
            && call.hook == Hook::Failover
            && call.main == Some(it.node)
            && outcome == HookOutcome::Failed
        {
            it.failed = true;
        }
    }

    /// Begins to make `to` the primary, at an administrator's word.
    pub(crate) fn begin_switch(&mut self, to: NodeId, actions: &mut Vec<Action>) {
        let now = self.now;
        self.stage = match self.topology.primary {
            Some(from) => {
                actions.push(progress(Progress::Switching { from, to }));
                Stage::Switching(Switching { from, to, began: now, drained: None })
            }
            None => {
                let position = self.members.get(to.index()).and_then(Member::position);
                self.promote(to, self.memory.last_primary, (now, MAX_ATTEMPTS), position, actions)
            }
        };
    }

    /// Half of the time is for the transactions that run, the other half for the standby to catch up.
    fn switch(&mut self, it: Switching, actions: &mut Vec<Action>) -> Stage {
        let within = self.settings.failover.switch_within;
        let waited = self.now.0.saturating_sub(it.began.0);
        let alive = |id: NodeId| self.members.get(id.index()).filter(|it| it.health == Health::Alive);
        let off = match (alive(it.from), alive(it.to)) {
            (None, _) => Some(CalledOff::PrimaryLost),
            (_, None) => Some(CalledOff::StandbyLost),
            (_, Some(to)) if to.claims_primary() || to.is_detached() => Some(CalledOff::StandbyLost),
            _ if waited >= within => Some(CalledOff::Late),
            _ => None,
        };
        if let Some(why) = off {
            actions.push(progress(Progress::CalledOff { from: it.from, to: it.to, why }));
            return Stage::Watching;
        }
        let Some(drained) = it.drained else {
            let drained = (waited >= within / 2).then_some(self.now);
            return Stage::Switching(Switching { drained, ..it });
        };
        if self.has_caught_up(&it, drained) {
            let position = self.members.get(it.to.index()).and_then(Member::position);
            return self.promote(it.to, Some(it.from), (it.began, MAX_ATTEMPTS), position, actions);
        }
        for node in [it.from, it.to] {
            if self.ticked || self.told == Some(node) || drained == self.now {
                actions.push(Action::Probe { node, after: LOOK_EVERY });
            }
        }
        Stage::Switching(it)
    }

    /// Whether the standby has everything that the primary had written when nothing ran on it any more.
    fn has_caught_up(&self, it: &Switching, drained: Moment) -> bool {
        let told = |id: NodeId| self.members.get(id.index()).filter(|it| it.told_at() > Some(drained));
        let written = told(it.from).and_then(|from| from.facts?.lsn).map(Lsn::before_page_header);
        let received = told(it.to).and_then(Member::position);
        written.zip(received).is_some_and(|(written, received)| received >= written)
    }

    /// Nothing runs on a draining node any more.
    pub(crate) fn drained(&mut self, node: NodeId) {
        let now = self.now;
        match &mut self.stage {
            Stage::Switching(it) if it.from == node => it.drained = it.drained.or(Some(now)),
            _ => {
                if let Some(member) = self.members.get_mut(node.index()) {
                    member.drained();
                }
            }
        }
    }

    /// Commands for nodes that come and go, in the mode that runs commands. A lost primary has its own way.
    pub(crate) fn run_hooks(&self, before: Option<NodeId>, actions: &mut Vec<Action>) {
        if self.settings.failover.promoter != Promoter::Command {
            return;
        }
        let (main, old_primary) = (self.topology.primary.or(before), before);
        let calls: Vec<Action> =
            actions.iter().filter_map(|action| hook_for(action, main, old_primary)).collect();
        let is_primary = |call: &Action| matches!(call, Action::RunHook(call) if Some(call.node) == self.memory.last_primary);
        actions.extend(calls.into_iter().filter(|call| !is_primary(call)));
    }
}

fn hook_for(action: &Action, main: Option<NodeId>, old_primary: Option<NodeId>) -> Option<Action> {
    use crate::topology::NodeState::{Down, Up};
    let Action::Record(Record::StateChange { node, from, to, reason }) = action else { return None };
    let hook = match (from, to, reason) {
        (Up, Down, Reason::Unreachable | Reason::TimedOut | Reason::Protocol) => Hook::Failover,
        (Down, Up, Reason::CheckOk) => Hook::Failback,
        _ => return None,
    };
    Some(Action::RunHook(HookCall { hook, node: *node, main, old_primary }))
}

fn progress(progress: Progress) -> Action {
    Action::Record(Record::Failover(progress))
}

impl Member {
    /// Whether it says that it receives from that node, or from one that is not configured.
    fn streams_from(&self, primary: NodeId) -> bool {
        let upstream = self.facts.map(|facts| facts.upstream).unwrap_or_default();
        matches!(upstream, Upstream::Streaming { from, .. } if from.is_none_or(|from| from == primary))
    }

    /// How far it has received; what it has received it replays before it takes writes.
    fn position(&self) -> Option<Lsn> {
        self.facts.and_then(|facts| facts.received.max(facts.lsn))
    }

    /// Who is promoted first: by history, by how far it is, by what the configuration says.
    fn rank(&self) -> (u32, Option<Lsn>, u32) {
        (self.newest_timeline(), self.position(), self.spec.priority)
    }
}
