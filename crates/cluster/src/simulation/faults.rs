//! What befalls servers, sessions and the configuration.

use super::*;

impl World {
    pub(super) fn sessions_see(&mut self) {
        let node = NodeId(u16::try_from(self.rng.below(self.order.len())).unwrap());
        let stale = u64::from(self.rng.chance(20));
        let epoch = Epoch(self.core.topology().epoch.0.saturating_sub(stale));
        let dead = self.servers[self.order[node.index()]].status == Status::Dead;
        let observation = match self.rng.below(4) {
            0 if dead => Observation::BackendLost { node, epoch },
            1 if dead => Observation::ConnectFailed { node, epoch, failure: ConnectFailure::Unreachable },
            2 => Observation::ReadOnly { node, epoch },
            // A lie now and then: one backend crashed, one connection was reset.
            3 => Observation::BackendLost { node, epoch },
            _ => return,
        };
        self.step(Event::Observed(observation));
    }

    pub(super) fn fault(&mut self) {
        let server = self.rng.below(self.servers.len());
        let newest = self.newest_timeline();
        let foreign_allowed =
            self.servers.len() >= 3 && server == self.servers.len() - 1 && self.core.is_settled();
        let choice = self.rng.below(16);
        let now = self.now;
        let primary = self.oracle.primary.unwrap_or(0);
        let it = &mut self.servers[server];
        let before = it.status;
        match choice {
            0 | 1 => it.status = Status::Dead,
            2 => it.status = Status::NotReady,
            3 => it.status = Status::Full,
            4 => it.status = Status::Silent,
            5 => it.status = Status::Garbled,
            13 => it.status = Status::Cut,
            6..=8 => it.status = Status::Running,
            // Promoted by somebody, whether the old primary lives or not.
            9 if it.status == Status::Running && it.in_recovery && it.system == SYSTEM => {
                it.in_recovery = false;
                it.timeline = newest + 1;
            }
            // Rewound and started as a standby.
            10 | 11 if it.system == SYSTEM => {
                it.in_recovery = true;
                it.follows = primary;
                it.timeline = newest;
                it.kept_connection = false;
                it.status = Status::Running;
            }
            12 if foreign_allowed => {
                it.system = if it.system == SYSTEM { SYSTEM + 1 } else { SYSTEM };
                it.in_recovery = true;
                it.timeline = newest;
            }
            _ => return self.administrator(),
        }
        if self.servers[server].status != before {
            self.servers[server].since = now;
        }
    }

    pub(super) fn administrator(&mut self) {
        let node = NodeId(u16::try_from(self.rng.below(self.order.len() + 1)).unwrap());
        match self.rng.below(8) {
            4 => self.step(Event::Moved { node }),
            5 => self.step(Event::Drained { node }),
            6 => {
                self.oracle.at_word = true;
                self.step(Event::AdminPromote { node });
            }
            0 => self.step(Event::AdminDetach { node, insist: Insist::No }),
            1 => self.step(Event::AdminDetach { node, insist: Insist::Force }),
            2 | 3 => {
                if let Some(server) = self.order.get(node.index()) {
                    self.oracle.barred.remove(server);
                }
                self.step(Event::AdminAttach { node });
            }
            _ => self.reload(),
        }
    }

    /// The nodes in another order, now and then.
    pub(super) fn reload(&mut self) {
        let mut order = self.order.clone();
        if self.rng.chance(50) {
            let (a, b) = (self.rng.below(order.len()), self.rng.below(order.len()));
            order.swap(a, b);
        }
        let specs = order.iter().map(|server| NodeSpec {
            weight: if self.rng.chance(50) { 1.0 } else { 2.0 },
            ..spec(&format!("db{server}"))
        });
        let nodes = specs.collect();
        let moved = order != self.order;
        self.order = order;
        // Reports under way are about ids of before.
        self.now += 1;
        if moved {
            self.oracle.renumbered = at(self.now);
        }
        self.step(Event::NodesChanged { nodes, settings: self.settings });
        self.now += 1;
    }
}
