//! From the evidence about all nodes to states, roles and the one primary.
//!
//! Invariants: at most one node is chosen; a node that lost its place, or is behind the newest
//! timeline that was ever accepted, is not chosen again before it was a standby of the new one (so
//! two nodes that both take writes never alternate); a node of another system is never used.

use crate::event::{Reason, RoleSource, Upstream};
use crate::hint;
use crate::member::{Detached, Health, Member};
use crate::orders::FalsePrimary;
use crate::topology::{NodeId, NodeState, Role};

/// What is remembered from one decision to the next.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory {
    /// The node that was the primary last, up or not.
    pub(crate) last_primary: Option<NodeId>,
    /// The node that an administrator made the primary, whatever its timeline, while there was none.
    pub(crate) by_word: Option<NodeId>,
    /// The newest timeline of a node that was the primary.
    pub(crate) newest_timeline: Option<u32>,
    /// The cluster's system identifier.
    pub(crate) system_identifier: Option<u64>,
    /// The primary that another one is about to replace, and whether nothing runs on it any more.
    pub(crate) resting: Option<(NodeId, bool)>,
    /// The timeline and the identifier are those of a status file, and no primary was seen yet.
    pub(crate) hinted: bool,
    /// What becomes of a second primary.
    pub(crate) false_primary: FalsePrimary,
}

/// Whether the nodes had their chance to report since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Settling,
    Settled,
}

/// What one node is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) state: NodeState,
    pub(crate) role: Role,
    pub(crate) reason: Reason,
}

/// What all nodes are to be.
#[derive(Debug, Clone)]
pub(crate) struct Ruling {
    pub(crate) verdicts: Vec<Verdict>,
    pub(crate) primary: Option<NodeId>,
}

/// Members with their ids.
pub(crate) fn with_ids(members: &[Member]) -> impl Iterator<Item = (NodeId, &Member)> {
    (0..=u16::MAX).map(NodeId).zip(members)
}

/// Decides, and remembers what later decisions need.
pub(crate) fn rule(members: &mut [Member], memory: &mut Memory, phase: Phase) -> Ruling {
    let primary = match phase {
        Phase::Settling => None,
        Phase::Settled => {
            hint::weigh(members, memory);
            adopt_identifier(members, memory);
            let chosen = choose(members, memory);
            if let Some(chosen) = chosen {
                enthrone(members, memory, chosen);
            }
            chosen
        }
    };
    let verdicts = with_ids(members)
        .map(|(id, member)| {
            let vouched = is_vouched(id, members, memory);
            let (state, reason) = state_of(id, member, memory, primary, (phase, vouched));
            Verdict { state, role: role_of(id, member, memory, primary, phase), reason }
        })
        .collect();
    Ruling { verdicts, primary }
}

/// Takes the identifier that most nodes bear, once. It is given up only when every node is alive
/// and bears another: a foreign node must not become the cluster because the real nodes are down.
fn adopt_identifier(members: &mut [Member], memory: &mut Memory) {
    let identifiers = || members.iter().filter_map(identifier);
    if let Some(known) = memory.system_identifier {
        let differs = |member: &Member| identifier(member).is_some_and(|id| id != known);
        if !members.iter().all(|member| member.health == Health::Alive && differs(member)) {
            return;
        }
    }
    let mut best: Option<(u64, usize)> = None;
    for candidate in members.iter().filter(|member| member.health == Health::Alive).filter_map(identifier) {
        let count = identifiers().filter(|id| *id == candidate).count();
        if best.is_none_or(|(_, most)| count > most) {
            best = Some((candidate, count));
        }
    }
    let Some((identifier, _)) = best else { return };
    if memory.system_identifier.replace(identifier).is_some() {
        // Another cluster altogether: the old one's timelines mean nothing here.
        memory.last_primary = None;
        memory.by_word = None;
        memory.newest_timeline = None;
        members.iter_mut().for_each(|member| member.deposed = false);
    }
}

fn identifier(member: &Member) -> Option<u64> {
    member.facts.and_then(|facts| facts.system_identifier)
}

fn timeline(member: &Member) -> Option<u32> {
    member.facts.and_then(|facts| facts.timeline)
}

pub(crate) fn is_foreign(member: &Member, memory: &Memory) -> bool {
    match (identifier(member), memory.system_identifier) {
        (Some(own), Some(cluster)) => own != cluster,
        _ => false,
    }
}

/// The node that takes the writes, if one may.
pub(crate) fn choose(members: &[Member], memory: &Memory) -> Option<NodeId> {
    let by_flag = members.iter().any(|member| member.spec.role_source == RoleSource::AlwaysPrimary);
    with_ids(members)
        .filter(|(id, member)| member.health == Health::Alive || is_vouched(*id, members, memory))
        .filter(|(id, _)| memory.resting.is_none_or(|(resting, _)| resting != *id))
        .filter(|(_, member)| !member.is_detached() && member.claims_primary())
        .filter(|(_, member)| !by_flag || member.spec.role_source == RoleSource::AlwaysPrimary)
        .filter(|(id, member)| !is_foreign(member, memory) && is_admissible(*id, member, memory))
        .reduce(|best, other| if outranks(other, best, memory) { other } else { best })
        .map(|(id, _)| id)
}

/// Whether a standby has heard from the primary after its checks began to fail: it lives, and only our way to it is
/// broken, or it is slow.
pub(crate) fn is_vouched(id: NodeId, members: &[Member], memory: &Memory) -> bool {
    if memory.last_primary != Some(id) {
        return false;
    }
    let Some(primary) = members.get(id.index()) else { return false };
    let failed = matches!(primary.health, Health::Failed(_)) && !primary.was_lost_by_sessions();
    let Some(since) = primary.failing_since().filter(|_| failed && !primary.deposed) else { return false };
    members.iter().filter(|member| member.health == Health::Alive && !member.claims_primary()).any(|member| {
        let upstream = member.facts.map(|facts| facts.upstream).unwrap_or_default();
        let from_it =
            matches!(upstream, Upstream::Streaming { from, .. } if from.is_none_or(|from| from == id));
        from_it && member.heard_at() > Some(since)
    })
}

/// Whether a node that takes writes may be the primary at all.
fn is_admissible(id: NodeId, member: &Member, memory: &Memory) -> bool {
    if member.spec.role_source == RoleSource::AlwaysPrimary {
        return true;
    }
    if memory.by_word == Some(id) {
        return !member.deposed;
    }
    if let (Some(own), Some(newest)) = (timeline(member), memory.newest_timeline)
        && own != newest
    {
        return own > newest;
    }
    let known = memory.last_primary.is_none_or(|last| last == id) || member.was_standby;
    known && !member.deposed
}

/// Newest timeline first, if both are known; else the primary of before; else whose timeline is known.
fn outranks(one: (NodeId, &Member), other: (NodeId, &Member), memory: &Memory) -> bool {
    match (timeline(one.1), timeline(other.1)) {
        (Some(a), Some(b)) if a != b => a > b,
        _ if memory.last_primary == Some(other.0) => false,
        _ if memory.last_primary == Some(one.0) => true,
        (a, b) => a.is_some() && b.is_none(),
    }
}

/// The primary of before, of which nothing may be known now, takes no writes again before it was a standby.
pub(crate) fn depose_unless_standby(members: &mut [Member], before: Option<NodeId>) {
    if let Some(member) =
        before.and_then(|before| members.get_mut(before.index())).filter(|it| !it.is_standby())
    {
        member.deposed = true;
    }
}

fn enthrone(members: &mut [Member], memory: &mut Memory, chosen: NodeId) {
    let before = memory.last_primary.replace(chosen);
    depose_unless_standby(members, before.filter(|before| *before != chosen));
    memory.by_word = memory.by_word.filter(|id| *id == chosen);
    for (index, member) in members.iter_mut().enumerate() {
        if index == chosen.index() {
            member.deposed = false;
            memory.newest_timeline = memory.newest_timeline.max(timeline(member));
        } else if member.claims_primary() {
            member.deposed = true;
        }
    }
}

fn state_of(
    id: NodeId,
    member: &Member,
    memory: &Memory,
    primary: Option<NodeId>,
    (phase, vouched): (Phase, bool),
) -> (NodeState, Reason) {
    if member.recovery.is_some() {
        return (NodeState::Down, Reason::Recovering);
    }
    match (member.detached, member.health) {
        (Detached::Draining(_), Health::Alive) => return (NodeState::Draining, Reason::Detached),
        (Detached::Draining(_) | Detached::Yes | Detached::Remembered, _) => {
            return (NodeState::Down, Reason::Detached);
        }
        (Detached::No, _) => {}
    }
    if let (Health::Alive, Some((_, drained))) = (member.health, memory.resting.filter(|(it, _)| *it == id)) {
        let state = if drained { NodeState::Down } else { NodeState::Draining };
        return (state, Reason::Switchover);
    }
    match member.health {
        Health::Unchecked if member.is_nameless() && phase == Phase::Settled => {
            (NodeState::Up, Reason::RoleUnknown)
        }
        Health::Unchecked => (NodeState::Waiting, Reason::NotChecked),
        Health::NotReady => (NodeState::Down, Reason::NotReady),
        Health::Failed(_) if vouched && primary == Some(id) => (NodeState::Up, Reason::Vouched),
        Health::Failed(reason) => (NodeState::Down, reason),
        Health::Alive if phase == Phase::Settling => (NodeState::Waiting, Reason::Settling),
        Health::Alive if is_foreign(member, memory) => (NodeState::Quarantine, Reason::ForeignSystem),
        Health::Alive if member.claims_primary() && primary != Some(id) => {
            let state = match memory.false_primary {
                FalsePrimary::Quarantine => NodeState::Quarantine,
                FalsePrimary::Leave => NodeState::Up,
            };
            (state, Reason::FalsePrimary)
        }
        Health::Alive if primary.is_some() && follows_the_past(member, memory) => {
            (NodeState::Quarantine, Reason::OlderTimeline)
        }
        Health::Alive => (NodeState::Up, Reason::CheckOk),
    }
}

/// A standby that still receives from a primary of before, which lives and writes what the cluster does not.
pub(crate) fn follows_the_past(member: &Member, memory: &Memory) -> bool {
    let follows = member.facts.filter(|facts| facts.in_recovery).and_then(|facts| facts.follows);
    follows.is_some_and(|timeline| memory.newest_timeline.is_some_and(|newest| timeline < newest))
}

/// A primary that is down keeps its role in the picture until another takes its place.
fn role_of(id: NodeId, member: &Member, memory: &Memory, primary: Option<NodeId>, phase: Phase) -> Role {
    if phase == Phase::Settling {
        return Role::Unknown;
    }
    if primary == Some(id) {
        return Role::Primary;
    }
    if member.facts.is_none() || is_foreign(member, memory) {
        return Role::Unknown;
    }
    if !member.claims_primary() {
        return Role::Standby;
    }
    let resting = memory.resting.is_some_and(|(resting, _)| resting == id);
    let down = resting || member.is_detached() || member.health != Health::Alive;
    if down && primary.is_none() && memory.last_primary == Some(id) { Role::Primary } else { Role::Unknown }
}
