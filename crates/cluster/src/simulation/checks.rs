//! What a check of a server finds, and when it is told.

use super::*;

impl World {
    pub(super) fn id_of(&self, server: usize) -> NodeId {
        NodeId(u16::try_from(self.order.iter().position(|it| *it == server).unwrap()).unwrap())
    }

    /// A receiver that hears nothing keeps its connection for a minute.
    pub(super) fn upstream(&self, server: usize) -> Upstream {
        let (it, from) = (&self.servers[server], &self.servers[self.servers[server].follows]);
        let frozen = match from.status {
            Status::Dead | Status::NotReady | Status::Garbled => return Upstream::None,
            Status::Silent => self.now - from.since,
            Status::Running | Status::Full | Status::Cut => 0,
        };
        if !it.in_recovery || it.follows == server || from.in_recovery || frozen > 60_000 {
            return Upstream::None;
        }
        let silent_for = Some(Duration::from_millis(frozen + 100));
        Upstream::Streaming { from: Some(self.id_of(it.follows)), silent_for }
    }

    /// What a check of that server would find now.
    pub(super) fn check(&mut self, server: usize) -> (u64, Event) {
        let node = self.id_of(server);
        let started = at(self.now);
        let upstream = self.upstream(server);
        let state = &mut self.servers[server];
        let lost = state.kept_connection && state.status == Status::Dead;
        state.kept_connection = state.status == Status::Running;
        let evidence = if lost { Evidence::ConnectionLost } else { Evidence::ConnectOnly };
        let fails = |failure| Event::CheckFailed { node, started, failure, evidence };
        let event = match state.status {
            Status::Running => Event::CheckOk {
                node,
                started,
                facts: Facts {
                    in_recovery: state.in_recovery,
                    timeline: self.timelines_visible.then_some(state.timeline),
                    system_identifier: Some(state.system),
                    lsn: Some(Lsn(self.now)),
                    received: Some(Lsn(self.now)),
                    upstream,
                    ..Facts::default()
                },
            },
            Status::Dead => fails(ConnectFailure::Unreachable),
            Status::NotReady => fails(ConnectFailure::NotReady),
            Status::Full => fails(ConnectFailure::Rejected),
            Status::Garbled => fails(ConnectFailure::Protocol),
            Status::Silent | Status::Cut => return (TIMEOUT, fails(ConnectFailure::TimedOut)),
        };
        let late = self.lossy && self.rng.chance(10);
        (if late { self.rng.between(50, TIMEOUT) } else { self.rng.between(1, 50) }, event)
    }

    pub(super) fn run_checks(&mut self) {
        for server in self.order.clone() {
            if self.servers[server].next_check > self.now {
                continue;
            }
            self.servers[server].next_check = self.now + PERIOD;
            let (delay, event) = self.check(server);
            if !(self.lossy && self.rng.chance(5)) {
                self.sent += 1;
                self.in_flight.insert((self.now + delay, self.sent), Delivery::Event(event));
            }
        }
    }
}
