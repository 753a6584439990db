//! What servers and commands do when the core has somebody promoted, and what must be true of it.

use super::*;

impl World {
    pub(super) fn expect_promotion(&mut self, node: NodeId) -> usize {
        assert_ne!(self.settings.failover.promoter, Promoter::Nobody);
        let (server, old) = (self.order[node.index()], self.oracle.primary);
        let old_id = old.and_then(|old| self.order.iter().position(|it| *it == old));
        let streams = |facts: Facts| match facts.upstream {
            Upstream::Streaming { from, .. } => from.is_none_or(|from| Some(from.index()) == old_id),
            Upstream::None => false,
        };
        let word = self.oracle.at_word;
        self.oracle.promotion(at(self.now), server, old, streams);
        if let Some(old) = old.filter(|_| !word) {
            let it = &self.servers[old];
            let well = it.status == Status::Running && !it.in_recovery && self.now - it.since > 15_000;
            assert!(!well, "db{old} is well");
        }
        server
    }

    pub(super) fn promote(&mut self, node: NodeId) {
        let server = self.expect_promotion(node);
        self.later(Delivery::Promote(server, node), 5, 3_000);
    }

    pub(super) fn run_hook(&mut self, call: HookCall) {
        assert_eq!(
            call.hook == Hook::FollowPrimary,
            call.hook != Hook::Failover && call.hook != Hook::Failback
        );
        let promotes = call.hook == Hook::Failover && call.main != self.core.topology().primary;
        let lost_primary = call.old_primary == Some(call.node);
        let server = match call.main.filter(|_| promotes && lost_primary) {
            Some(main) => Some(self.expect_promotion(main)),
            None => call.main.map(|main| self.order[main.index()]),
        };
        self.later(Delivery::Hook(call, server), 5, 3_000);
    }

    /// A server is asked for `pg_promote()`; now and then it may not, or the answer is lost.
    pub(super) fn carry_out(&mut self, server: usize) -> PromoteAnswer {
        let newest = self.newest_timeline();
        let it = &mut self.servers[server];
        if !self.lossy {
            return PromoteAnswer::Refused;
        }
        match it.status {
            Status::Running if !it.in_recovery => PromoteAnswer::Refused,
            Status::Running if !self.rng.chance(10) => {
                it.in_recovery = false;
                it.timeline = newest + 1;
                if self.rng.chance(20) { PromoteAnswer::Unknown } else { PromoteAnswer::Accepted }
            }
            Status::Running | Status::Dead => PromoteAnswer::Refused,
            _ => PromoteAnswer::Unknown,
        }
    }

    pub(super) fn end_hook(&mut self, call: HookCall, server: Option<usize>) {
        let Some(server) = server else { return };
        let outcome = match call.hook {
            Hook::Failover if self.oracle.promoting.is_some_and(|(who, _)| who == server) => {
                match self.carry_out(server) {
                    PromoteAnswer::Refused => HookOutcome::Failed,
                    _ => HookOutcome::Done,
                }
            }
            Hook::Failover | Hook::Failback | Hook::Recovery => HookOutcome::Done,
            Hook::FollowPrimary => {
                let newest = self.newest_timeline();
                let it = &mut self.servers[self.order[call.node.index()]];
                if self.lossy && it.system == SYSTEM && self.rng.chance(80) {
                    (it.in_recovery, it.follows, it.timeline) = (true, server, newest);
                }
                HookOutcome::Done
            }
        };
        self.step(Event::HookDone { call, outcome });
    }
}
