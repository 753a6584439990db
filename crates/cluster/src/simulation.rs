//! A simulated cluster with faults, lost, late and disordered reports, administrators and reloads;
//! 256 seeds. A failure prints its seed; run that one alone with `PGWEIR_SEED=n`,
//! or more of them with `PGWEIR_SEEDS=count`.
//!
//! What must hold in every step: the core's invariants; epochs never fall, and one epoch has one
//! picture of roles; a primary that was replaced is not used again before it was a standby, or has
//! a newer timeline, or an administrator said so. What must hold in the end, when the faults stop:
//! the picture is the truth.

mod oracle;

use std::collections::BTreeMap;
use std::time::Duration;

use oracle::Oracle;

use crate::scripts::{at, settings, spec};
use crate::*;

const SEEDS: u64 = 256;
const PERIOD: u64 = 2_000;
const TIMEOUT: u64 = 5_000;
const CHAOS: u64 = 180_000;
const SYSTEM: u64 = 7;
const PROMOTE_WITHIN: Duration = Duration::from_secs(20);

/// splitmix64
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound.max(1)).unwrap()).unwrap()
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Running,
    Dead,
    NotReady,
    Full,
    Silent,
    Garbled,
    /// Only pgweir cannot reach it.
    Cut,
}

#[derive(Debug, Clone, Copy)]
struct Server {
    status: Status,
    in_recovery: bool,
    timeline: u32,
    system: u64,
    next_check: u64,
    kept_connection: bool,
    /// Whom it receives from while it is a standby.
    follows: usize,
    /// When its status last changed.
    since: u64,
}

/// What happens later.
enum Delivery {
    Event(Event),
    /// A server is asked to promote itself.
    Promote(usize, NodeId),
    Hook(HookCall, Option<usize>),
}

struct World {
    rng: Rng,
    now: u64,
    core: Core,
    servers: Vec<Server>,
    /// Which server has which id.
    order: Vec<usize>,
    timelines_visible: bool,
    lossy: bool,
    in_flight: BTreeMap<(u64, u64), Delivery>,
    settings: Settings,
    sent: u64,
    oracle: Oracle,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let count = 2 + rng.below(4);
        let servers = (0..count).map(|index| Server {
            status: Status::Running,
            in_recovery: index != 0,
            timeline: 1,
            system: SYSTEM,
            next_check: 0,
            kept_connection: false,
            follows: 0,
            since: 0,
        });
        let order: Vec<usize> = (0..count).collect();
        let nodes = order.iter().map(|server| spec(&format!("db{server}"))).collect();
        let promoter = [Promoter::Core, Promoter::Core, Promoter::Nobody, Promoter::Command][rng.below(4)];
        let failover = FailoverSettings {
            promoter,
            promote_within: PROMOTE_WITHIN,
            drain: Duration::from_secs(3),
            switch_within: Duration::from_secs(6),
            ..FailoverSettings::default()
        };
        let settings = Settings { failover, ..settings() };
        let timelines_visible = rng.chance(60);
        Self {
            rng,
            now: 0,
            core: Core::new(settings, nodes, at(0)),
            settings,
            servers: servers.collect(),
            order,
            timelines_visible,
            lossy: true,
            in_flight: BTreeMap::new(),
            sent: 0,
            oracle: Oracle::default(),
        }
    }

    fn step(&mut self, event: Event) {
        match &event {
            Event::CheckOk { node, started, facts } => {
                self.oracle.hear(self.order.get(node.index()), *started, Ok(*facts));
            }
            Event::CheckFailed { node, started, failure, .. } => {
                self.oracle.hear(self.order.get(node.index()), *started, Err(*failure));
            }
            Event::PromoteAnswer { node, answer: PromoteAnswer::Refused } => {
                self.oracle.promotion_failed(self.order.get(node.index()));
            }
            Event::HookDone { call, outcome: HookOutcome::Failed } if call.hook == Hook::Failover => {
                self.oracle.promotion_failed(call.main.and_then(|node| self.order.get(node.index())));
            }
            _ => {}
        }
        let actions = self.core.step(at(self.now), event);
        self.core.check_invariants().unwrap();
        for action in actions {
            match action {
                Action::Publish(topology) => self.judge(&topology),
                Action::Probe { node, after } => {
                    let due = self.now + u64::try_from(after.as_millis()).unwrap();
                    if let Some(server) = self.order.get(node.index()).copied() {
                        let next = &mut self.servers[server].next_check;
                        *next = (*next).min(due);
                    }
                }
                Action::Promote { node } => self.promote(node),
                Action::RunHook(call) => self.run_hook(call),
                Action::Record(_) | Action::Refused(_) => {}
            }
        }
    }

    fn later(&mut self, what: Delivery, low: u64, high: u64) {
        self.sent += 1;
        let at = self.now + self.rng.between(low, high);
        self.in_flight.insert((at, self.sent), what);
    }

    fn expect_promotion(&mut self, node: NodeId) -> usize {
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

    fn promote(&mut self, node: NodeId) {
        let server = self.expect_promotion(node);
        self.later(Delivery::Promote(server, node), 5, 3_000);
    }

    fn run_hook(&mut self, call: HookCall) {
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
    fn carry_out(&mut self, server: usize) -> PromoteAnswer {
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

    fn end_hook(&mut self, call: HookCall, server: Option<usize>) {
        let Some(server) = server else { return };
        let outcome = match call.hook {
            Hook::Failover if self.oracle.promoting.is_some_and(|(who, _)| who == server) => {
                match self.carry_out(server) {
                    PromoteAnswer::Refused => HookOutcome::Failed,
                    _ => HookOutcome::Done,
                }
            }
            Hook::Failover | Hook::Failback => HookOutcome::Done,
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

    fn judge(&mut self, topology: &Topology) {
        let oracle = &mut self.oracle;
        assert!(topology.epoch >= oracle.epoch, "the epoch fell");
        oracle.epoch = topology.epoch;
        let picture: Vec<_> = topology.nodes.iter().map(|node| (node.state, node.role)).collect();
        let first = oracle.pictures.entry(topology.epoch).or_insert_with(|| picture.clone());
        assert_eq!(*first, picture, "two pictures at {:?}", topology.epoch);
        let Some(primary) = topology.primary.map(|id| self.order[id.index()]) else { return };
        let said = oracle.said(primary);
        assert!(!said.in_recovery, "writes go to a standby");
        assert_eq!(said.system_identifier, Some(SYSTEM), "writes go to another cluster");
        if oracle.primary != Some(primary) {
            let newer = said.timeline > Some(oracle.newest);
            assert!(newer || !oracle.barred.contains(&primary), "db{primary} takes writes again");
            if let Some(old) = oracle.primary.replace(primary)
                && !oracle.said(old).in_recovery
            {
                oracle.barred.insert(old);
            }
            oracle.barred.remove(&primary);
        }
        oracle.newest = oracle.newest.max(said.timeline.unwrap_or(0));
        oracle.promoting = None;
    }

    fn id_of(&self, server: usize) -> NodeId {
        NodeId(u16::try_from(self.order.iter().position(|it| *it == server).unwrap()).unwrap())
    }

    /// A receiver that hears nothing keeps its connection for a minute.
    fn upstream(&self, server: usize) -> Upstream {
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
    fn check(&mut self, server: usize) -> (u64, Event) {
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

    fn run_checks(&mut self) {
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

    fn deliver(&mut self) {
        while let Some(entry) = self.in_flight.first_entry() {
            if entry.key().0 > self.now {
                return;
            }
            match entry.remove() {
                Delivery::Event(event) => self.step(event),
                Delivery::Promote(server, node) => {
                    let answer = self.carry_out(server);
                    if answer != PromoteAnswer::Unknown || self.rng.chance(50) {
                        // Under the id that was asked; it may be another's now, as answers of the actor may.
                        if self.order.get(node.index()) == Some(&server) {
                            self.step(Event::PromoteAnswer { node, answer });
                        }
                    }
                }
                Delivery::Hook(call, server) => self.end_hook(call, server),
            }
        }
    }

    fn sessions_see(&mut self) {
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

    fn newest_timeline(&self) -> u32 {
        self.servers.iter().map(|server| server.timeline).max().unwrap()
    }

    fn fault(&mut self) {
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

    fn administrator(&mut self) {
        let node = NodeId(u16::try_from(self.rng.below(self.order.len() + 1)).unwrap());
        match self.rng.below(8) {
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
    fn reload(&mut self) {
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

    fn run_until(&mut self, end: u64) {
        while self.now < end {
            self.now += 25;
            self.run_checks();
            self.deliver();
            if self.lossy && self.rng.chance(3) {
                self.fault();
            }
            if self.lossy && self.rng.chance(10) {
                self.sessions_see();
            }
            if self.now % 1_000 < 25 {
                self.step(Event::Tick);
            }
        }
    }

    /// The faults stop: one primary on the newest timeline, the others follow it.
    fn heal(&mut self) -> usize {
        self.lossy = false;
        self.in_flight.retain(|_, what| matches!(what, Delivery::Event(_)));
        for server in &mut self.servers {
            server.status = Status::Running;
            server.system = SYSTEM;
            server.in_recovery = true;
        }
        self.run_until(self.now + 15_000);
        for index in 0..self.order.len() {
            self.step(Event::AdminAttach { node: NodeId(u16::try_from(index).unwrap()) });
        }
        self.run_until(self.now + 30_000);
        assert_eq!(self.core.topology().primary, None, "all are standbys");
        let winner = self.rng.below(self.servers.len());
        let timeline = self.newest_timeline() + 1;
        for server in &mut self.servers {
            server.timeline = timeline;
        }
        self.servers[winner].in_recovery = false;
        self.run_until(self.now + 30_000);
        winner
    }
}

fn simulate(seed: u64) {
    let mut world = World::new(seed);
    world.run_until(CHAOS);
    let winner = world.heal();
    let topology = world.core.topology();
    assert_eq!(topology.primary.map(|id| world.order[id.index()]), Some(winner));
    for (node, server) in topology.nodes.iter().zip(&world.order) {
        let role = if *server == winner { Role::Primary } else { Role::Standby };
        assert_eq!((node.state, node.role), (NodeState::Up, role), "db{server}");
    }
}

#[test]
fn the_core_survives_what_256_seeds_do_to_it() {
    let only = std::env::var("PGWEIR_SEED").ok().and_then(|seed| seed.parse().ok());
    let count = std::env::var("PGWEIR_SEEDS").ok().and_then(|count| count.parse().ok());
    let seeds = only.map_or(0..count.unwrap_or(SEEDS), |seed: u64| seed..seed + 1);
    for seed in seeds {
        if let Err(panic) = std::panic::catch_unwind(|| simulate(seed)) {
            eprintln!("the simulation failed with PGWEIR_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn a_dead_standby_is_out_within_the_round_trips_of_two_probes() {
    let mut world = World::new(3);
    world.lossy = false;
    world.run_until(5_000);
    let victim = 1;
    world.servers[victim].status = Status::Dead;
    let died = world.now;
    let node = NodeId(1);
    let epoch = world.core.topology().epoch;
    world.step(Event::Observed(Observation::ConnectFailed {
        node,
        epoch,
        failure: ConnectFailure::Unreachable,
    }));
    while world.core.topology().nodes[1].state == NodeState::Up {
        let now = world.now;
        world.run_until(now + 25);
    }
    assert!(Duration::from_millis(world.now - died) <= Duration::from_millis(150));
}
