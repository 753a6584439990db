//! What is kept over a restart: a hint, never more. What the nodes say themselves decides.
//!
//! Invariants: a hint about another cluster is forgotten; nodes that were detached come back by themselves when
//! without them there is no node, or no primary, at the start; the newest timeline is forgotten when every node
//! answers and none has it. From the first primary on, what was remembered is as good as what was seen.

use std::sync::Arc;

use crate::core::Core;
use crate::member::{Detached, Health, Member};
use crate::verdict::{Memory, choose, with_ids};

/// What a status file holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hint {
    /// The cluster's system identifier; without it the rest is about nobody knows what.
    pub system_identifier: Option<u64>,
    /// The newest timeline of a node that was the primary.
    pub newest_timeline: Option<u32>,
    /// The nodes that an administrator took out, by host name and port.
    pub detached: Vec<(Arc<str>, u16)>,
}

impl Core {
    /// Begins with what was known before the restart. Call it before the first event.
    #[must_use]
    pub fn with_hint(mut self, hint: &Hint) -> Self {
        if hint.system_identifier.is_some() {
            self.memory.system_identifier = hint.system_identifier;
            self.memory.newest_timeline = hint.newest_timeline;
            self.memory.hinted = true;
        }
        for member in &mut self.members {
            let is_it =
                |(host, port): &(Arc<str>, u16)| **host == *member.spec.hostname && *port == member.spec.port;
            if hint.detached.iter().any(is_it) {
                member.detached = Detached::Remembered;
            }
        }
        self
    }

    /// What the next start should know.
    #[must_use]
    pub fn hint(&self) -> Hint {
        let by_word = self.memory.by_word.and_then(|id| self.members.get(id.index()));
        let detached = self.members.iter().filter(|member| member.is_detached());
        Hint {
            system_identifier: self.memory.system_identifier,
            // An administrator's word for an older one holds over the restart as well.
            newest_timeline: by_word
                .and_then(|member| member.facts?.timeline)
                .or(self.memory.newest_timeline),
            detached: detached.map(|member| (Arc::clone(&member.spec.hostname), member.spec.port)).collect(),
        }
    }
}

/// Gives up what the nodes contradict, as long as there never was a primary.
pub(crate) fn weigh(members: &mut [Member], memory: &mut Memory) {
    let is_judged = |member: &Member| member.health != Health::Unchecked || member.is_nameless();
    if memory.last_primary.is_some() || !members.iter().all(is_judged) {
        return;
    }
    if memory.hinted && (is_about_others(members, memory) || nobody_has_the_timeline(members, memory)) {
        memory.hinted = false;
        memory.newest_timeline = None;
        memory.system_identifier = None;
    }
    take_back(members, memory);
}

/// Whether every node that lives belongs to another cluster.
fn is_about_others(members: &[Member], memory: &Memory) -> bool {
    let known = |member: &Member| member.facts.and_then(|facts| facts.system_identifier);
    let mut alive =
        members.iter().filter(|member| member.health == Health::Alive).filter_map(known).peekable();
    alive.peek().is_some() && alive.all(|own| Some(own) != memory.system_identifier)
}

/// Whether all nodes live and none has ever been on the newest timeline.
fn nobody_has_the_timeline(members: &[Member], memory: &Memory) -> bool {
    let Some(newest) = memory.newest_timeline else { return false };
    let is_behind =
        |member: &Member| member.health == Health::Alive && (1..newest).contains(&member.newest_timeline());
    members.iter().all(is_behind)
}

/// Nodes that were detached, when there is nothing else.
fn take_back(members: &mut [Member], memory: &Memory) {
    let in_use = |member: &Member| member.health == Health::Alive && !member.is_detached();
    let nothing_else = !members.iter().any(in_use);
    for index in 0..members.len() {
        let Some(member) = members.get_mut(index).filter(|it| it.detached == Detached::Remembered) else {
            continue;
        };
        member.detached = Detached::No;
        let is_primary = with_ids(members).nth(index).map(|(id, _)| id) == choose(members, memory);
        if let Some(member) = members.get_mut(index).filter(|_| !nothing_else && !is_primary) {
            member.detached = Detached::Remembered;
        }
    }
}
