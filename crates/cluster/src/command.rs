//! What administrators ask for, and why it is refused.

use crate::core::Core;
use crate::event::{Action, Insist, Refusal, RoleSource};
use crate::failover::Stage;
use crate::member::{Detached, Health, Wish};
use crate::orders::Promoter;
use crate::recovery::RecoveryEnd;
use crate::topology::{Moment, NodeId, NodeState, Role};
use crate::verdict;

impl Core {
    /// Taking a node back that claims to be the primary, while there is none, is the administrator's
    /// word that it is.
    pub(crate) fn attach(&mut self, node: NodeId, actions: &mut Vec<Action>) {
        let primary = self.topology.primary;
        let Some(member) = self.members.get_mut(node.index()) else {
            actions.push(Action::Refused(Refusal::NoSuchNode(node)));
            return;
        };
        if verdict::is_foreign(member, &self.memory) {
            actions.push(Action::Refused(Refusal::Foreign(node)));
            return;
        }
        if member.recovery.is_some() {
            actions.push(Action::Refused(Refusal::Recovering(node)));
            return;
        }
        if member.claims_primary() && member.health == Health::Alive {
            match primary {
                Some(primary) if primary != node => {
                    actions.push(Action::Refused(Refusal::SecondPrimary { node, primary }));
                    return;
                }
                Some(_) => {}
                None => {
                    member.deposed = false;
                    let before = self.memory.last_primary.replace(node).filter(|before| *before != node);
                    self.memory.by_word = Some(node);
                    verdict::depose_unless_standby(&mut self.members, before);
                }
            }
        }
        if let Some(member) = self.members.get_mut(node.index()) {
            member.attach();
        }
        crate::core::grant(node, Wish::Probe(std::time::Duration::ZERO), actions);
    }

    /// Without FORCE what runs may end first.
    pub(crate) fn detach(&mut self, node: NodeId, insist: Insist, actions: &mut Vec<Action>) {
        let others = self.topology.nodes.iter().any(|other| other.id != node && other.is_usable());
        let primary = self.topology.primary;
        let until = Moment(self.now.0.saturating_add(self.settings.failover.drain));
        let Some(member) = self.members.get_mut(node.index()) else {
            actions.push(Action::Refused(Refusal::NoSuchNode(node)));
            return;
        };
        if member.recovery.is_some() && insist == Insist::No {
            // It is out of service already; hours of copying are not thrown away by a word that only says so again.
            actions.push(Action::Refused(Refusal::Recovering(node)));
        } else if member.recovery.is_some() {
            member.detached = Detached::Yes;
            self.end_recovery(node, RecoveryEnd::Stopped, actions);
        } else if insist == Insist::No && primary == Some(node) {
            actions.push(Action::Refused(Refusal::IsPrimary(node)));
        } else if insist == Insist::No && !others && member.health == Health::Alive {
            actions.push(Action::Refused(Refusal::LastNode(node)));
        } else if insist == Insist::Force || member.health != Health::Alive {
            member.detached = Detached::Yes;
        } else if !member.is_detached() {
            member.detached = Detached::Draining(until);
        }
    }

    /// A controlled switchover; without a primary, the administrator's word that the old one is dead.
    pub(crate) fn admin_promote(&mut self, node: NodeId, actions: &mut Vec<Action>) {
        match self.may_promote(node) {
            Ok(()) => self.begin_switch(node, actions),
            Err(refusal) => actions.push(Action::Refused(refusal)),
        }
    }

    fn may_promote(&self, node: NodeId) -> Result<(), Refusal> {
        let standby = self.topology.node(node).ok_or(Refusal::NoSuchNode(node))?;
        let member = self.members.get(node.index()).ok_or(Refusal::NoSuchNode(node))?;
        if self.topology.primary == Some(node) {
            return Err(Refusal::AlreadyPrimary(node));
        }
        if self.settings.failover.promoter == Promoter::Nobody {
            return Err(Refusal::ObserveMode);
        }
        if !matches!(self.stage, Stage::Watching | Stage::Confirming(_) | Stage::GivenUp { .. }) {
            return Err(Refusal::UnderWay);
        }
        if standby.state != NodeState::Up || standby.role != Role::Standby {
            return Err(Refusal::NotAStandby(node));
        }
        if let Some(other) = self.recovering().filter(|_| self.topology.primary.is_some()) {
            // It would follow a primary that is none any more.
            return Err(Refusal::Recovering(other));
        }
        let by_flag = self.members.iter().any(|it| it.spec.role_source == RoleSource::AlwaysPrimary);
        if by_flag || !self.is_candidate(member) {
            return Err(Refusal::NotACandidate(node));
        }
        Ok(())
    }
}
