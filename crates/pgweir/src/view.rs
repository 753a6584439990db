//! What the console and HTTP show, gathered from snapshots: topology, reports, configuration, counters, registry.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use admin::AdminView;
use admin::view::{
    Awaited, ClientRow, ClientState, DatabaseStats, DatabaseTotals, Delay, Endpoint, ErrorCounts, EventRow,
    HealthRow, MemoryRow, NodeRow, PoolRow, ProcessInfo, ProcessState, RouteRow, ServerRow, ServerState,
    Source, StatementCounts, StatementRow,
};
use cluster::{Facts, Freshness, Node, NodeId, NodeReport, Reason, Role, Topology, Upstream};
use config::Config;
use proxy::Proxy;
use proxy::pool::Pool;
use proxy::registry::{self, ClientEntry, Flag, Peer, ServerEntry, WaitsFor};
use proxy::stats::{Count, Totals};
use telemetry::metrics::{Kind, NodeMetrics, Severity};
use telemetry::{Metrics, Published};

use crate::averages::Averages;
use crate::clock::Clock;
use crate::events::Events;
use crate::health::Health;
use crate::memory;
use crate::recoveries::{Recoveries, Told};
use crate::senders::{Senders, Sending};
use crate::statements;

/// The snapshots. The proxy comes last to life and is bound late: it needs the console, which needs this.
pub(crate) struct View {
    pub(crate) clock: Clock,
    pub(crate) config: Published<Config>,
    pub(crate) topology: Published<Topology>,
    pub(crate) freshness: Published<Freshness>,
    pub(crate) reports: Published<Vec<NodeReport>>,
    pub(crate) state: Published<ProcessState>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) proxy: Arc<OnceLock<Arc<Proxy>>>,
    pub(crate) averages: Arc<Averages>,
    pub(crate) events: Events,
    pub(crate) health: Health,
    pub(crate) senders: Senders,
    pub(crate) recoveries: Published<Recoveries>,
}

impl View {
    fn node(&self, node: &Node, report: Option<NodeReport>, counters: Option<&NodeMetrics>) -> NodeRow {
        let facts = report.and_then(|report| report.facts);
        let Sending { state, sync_state } = self.sending(node);
        NodeRow {
            id: node.id,
            hostname: node.hostname.to_string(),
            port: node.port,
            state: node.state,
            answers: report.and_then(|report| report.answers),
            weight: node.weight,
            role: node.role,
            seen_role: facts.map_or(Role::Unknown, seen_role),
            delay: self.delay(node),
            replication_state: state,
            sync_state,
            changed_at: self.clock.wall(node.changed_at),
            statements: counters.map(statements).unwrap_or_default(),
            errors: counters.map(errors).unwrap_or_default(),
            address: node.hostname.parse().ok(),
            timeline: facts.and_then(|facts| facts.timeline),
            lsn: facts.and_then(|facts| facts.lsn).map(|lsn| lsn.0),
            fresh_as_of: self.fresh_as_of(node.id),
            reason: report.map_or(Reason::NotChecked, |report| report.reason).as_str(),
            failed_checks: report.map_or(0, |report| report.failures),
            upstream: facts.and_then(upstream),
            recovery: self.recoveries.load().latest(node.id).and_then(Told::progress),
        }
    }
}

impl View {
    fn fresh_as_of(&self, node: NodeId) -> Option<SystemTime> {
        Some(self.clock.wall(self.freshness.load().of(node).as_of?))
    }

    /// What `pg_stat_replication` says of a standby.
    fn sending(&self, node: &Node) -> Sending {
        let config = self.config.load();
        let backend = config.backends.get(node.id.index());
        // During a reload the configuration is ahead of the topology.
        let backend =
            backend.filter(|backend| *backend.hostname == *node.hostname && backend.port == node.port);
        match backend {
            Some(backend) if node.role != Role::Primary => {
                self.senders.of(node.id, backend, self.topology.load().primary)
            }
            _ => Sending::default(),
        }
    }

    /// In the unit of the limit that is configured, as Pgpool-II shows it; what the health check knows in bytes stands
    /// in for what the sampler does not know.
    fn delay(&self, node: &Node) -> Option<Delay> {
        let lag = self.freshness.load().of(node.id).lag;
        match (lag, self.config.load().delay_threshold_by_time) {
            (Some(lag), Some(_)) => Some(Delay::Time(lag.time)),
            (Some(lag), None) => Some(Delay::Bytes(lag.bytes)),
            (None, _) => node.replay_lag.map(Delay::Bytes),
        }
    }
}

impl AdminView for View {
    fn process(&self) -> ProcessInfo {
        ProcessInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_at: self.clock.started_at(),
        }
    }

    fn state(&self) -> ProcessState {
        match *self.state.load() {
            ProcessState::Active if self.proxy.get().is_some_and(|proxy| proxy.gates().all_paused()) => {
                ProcessState::Paused
            }
            state => state,
        }
    }

    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn epoch(&self) -> u64 {
        self.topology.load().epoch.0
    }

    fn config(&self) -> Arc<Config> {
        self.config.load()
    }

    fn nodes(&self) -> Vec<NodeRow> {
        let (topology, reports, counters) = (self.topology.load(), self.reports.load(), self.metrics.nodes());
        let row = |node: &Node| {
            let counters = counters.iter().find(|counters| counters.label().id == node.id.0);
            self.node(node, reports.get(node.id.index()).copied(), counters.map(|counters| &**counters))
        };
        topology.nodes.iter().map(row).collect()
    }

    fn stats(&self) -> Vec<DatabaseStats> {
        let counts = self.proxy.get().map(|proxy| proxy.database_totals()).unwrap_or_default();
        let (before, window) = self.averages.before(Instant::now(), &counts);
        let row = |(name, totals): (&Arc<str>, &Totals)| DatabaseStats {
            name: name.to_string(),
            totals: database_totals(totals),
            before: before.get(name).map(database_totals).unwrap_or_default(),
            window,
        };
        counts.iter().map(row).collect()
    }

    fn is_paused(&self, database: &str) -> bool {
        self.proxy.get().is_some_and(|proxy| proxy.gates().is_paused(database))
    }

    fn is_disabled(&self, database: &str) -> bool {
        self.proxy.get().is_some_and(|proxy| proxy.gates().is_disabled(database))
    }

    fn health(&self) -> Vec<HealthRow> {
        self.health.rows(self.topology.load().nodes.len())
    }

    fn events(&self) -> Vec<EventRow> {
        self.events.all()
    }

    fn routes(&self) -> Vec<RouteRow> {
        let nodes = self.metrics.nodes();
        let of = |node: &Arc<NodeMetrics>| {
            let (id, routed) = (NodeId(node.label().id), node.routed.clone());
            router::Reason::ALL.iter().enumerate().map(move |(position, reason)| RouteRow {
                node: id,
                reason: reason.as_str(),
                statements: routed.get(position),
            })
        };
        nodes.iter().flat_map(of).filter(|route| route.statements > 0).collect()
    }

    fn statements(&self) -> Vec<StatementRow> {
        statements::rows(self.proxy.get().map(|proxy| &**proxy))
    }

    fn memory(&self) -> Vec<MemoryRow> {
        memory::rows(self.proxy.get().map(|proxy| &**proxy))
    }

    fn pools(&self) -> Vec<PoolRow> {
        let config = self.config.load();
        let pools = self.proxy.get().map(|proxy| proxy.pools()).unwrap_or_default();
        pools.iter().map(|pool| pool_row(pool, &config)).collect()
    }

    fn clients(&self) -> Vec<ClientRow> {
        let clients = self.proxy.get().map(|proxy| proxy.registry().clients()).unwrap_or_default();
        let now = SystemTime::now();
        clients.iter().map(|client| client_row(client, now)).collect()
    }

    fn servers(&self) -> Vec<ServerRow> {
        let servers = self.proxy.get().map(|proxy| proxy.registry().servers()).unwrap_or_default();
        servers.iter().map(|server| server_row(server)).collect()
    }

    fn load_balance_node(&self, session: u32) -> Option<NodeId> {
        let servers = self.proxy.get()?.registry().servers();
        servers.iter().find(|server| server.client() == Some(session)).map(|server| server.node)
    }
}

fn database_totals(totals: &Totals) -> DatabaseTotals {
    let time = |what| Duration::from_nanos(totals.get(what));
    DatabaseTotals {
        assignments: totals.get(Count::Assignments),
        transactions: totals.get(Count::Transactions),
        queries: totals.get(Count::Queries),
        received: totals.get(Count::Received),
        sent: totals.get(Count::Sent),
        transaction_time: time(Count::TransactionNanos),
        query_time: time(Count::QueryNanos),
        wait_time: time(Count::WaitNanos),
        client_parses: totals.get(Count::ClientParses),
        server_parses: totals.get(Count::ServerParses),
        binds: totals.get(Count::Binds),
        errors: totals.get(Count::Errors),
    }
}

fn seen_role(facts: Facts) -> Role {
    if facts.in_recovery { Role::Standby } else { Role::Primary }
}

fn upstream(facts: Facts) -> Option<Source> {
    match facts.upstream {
        Upstream::Streaming { from, silent_for } => Some(Source { node: from, silent_for }),
        Upstream::None => None,
    }
}

fn statements(counters: &NodeMetrics) -> StatementCounts {
    let count = |kind: Kind| counters.statements.get(kind.position());
    StatementCounts {
        select: count(Kind::Select),
        insert: count(Kind::Insert),
        update: count(Kind::Update),
        delete: count(Kind::Delete),
        ddl: count(Kind::Ddl),
        other: count(Kind::Other),
    }
}

fn errors(counters: &NodeMetrics) -> ErrorCounts {
    ErrorCounts {
        panic: counters.errors(Severity::Panic),
        fatal: counters.errors(Severity::Fatal),
        error: counters.errors(Severity::Error),
    }
}

fn endpoint(peer: Peer) -> Endpoint {
    match peer {
        Peer::Unix => Endpoint::Unix,
        Peer::Tcp(address) => Endpoint::Tcp(address.ip(), address.port()),
    }
}

fn client_row(client: &ClientEntry, now: SystemTime) -> ClientRow {
    let names = client.names();
    let state = match client.state() {
        registry::ClientState::Login => ClientState::Login,
        registry::ClientState::Idle => ClientState::Idle,
        registry::ClientState::Active => ClientState::Active,
        registry::ClientState::Waiting => ClientState::Waiting,
        registry::ClientState::InTransaction => ClientState::InTransaction,
        registry::ClientState::Held => ClientState::Held,
    };
    let request_at = client.request_at();
    let wait = match state {
        ClientState::Waiting => now.duration_since(request_at).unwrap_or_default(),
        _ => Duration::ZERO,
    };
    ClientRow {
        id: client.id,
        user: names.user.to_string(),
        database: names.database.to_string(),
        replication: names.replication.as_str(),
        state,
        remote: endpoint(client.peer),
        local: endpoint(client.local),
        connected_at: client.connected_at,
        request_at,
        wait,
        close_needed: client.has(Flag::Drain) || client.has(Flag::Kill),
        backend: client.server(),
        tls: names.tls,
        application_name: names.application_name.to_string(),
        prepared_statements: client.statements(),
        pin: client.pin().map(|pin| pin.as_str()),
        waits_for: client.waits_for().map(|what| match what {
            WaitsFor::Backend(node) => Awaited::Backend(node),
            WaitsFor::Turn(node) => Awaited::Turn(node),
            WaitsFor::Resume => Awaited::Resume,
            WaitsFor::Node => Awaited::Node,
        }),
        statement: client.statement(),
    }
}

fn server_row(server: &ServerEntry) -> ServerRow {
    let state = match server.state() {
        registry::ServerState::Idle => ServerState::Idle,
        registry::ServerState::Active => ServerState::Active,
    };
    ServerRow {
        id: server.id,
        node: server.node,
        user: server.user.to_string(),
        database: server.database.to_string(),
        replication: server.replication.as_str(),
        state,
        remote: endpoint(server.remote),
        local: endpoint(server.local),
        connected_at: server.connected_at,
        request_at: server.request_at(),
        close_needed: false,
        session: server.client(),
        pid: i32::try_from(server.pid).unwrap_or_default(),
        tls: server.tls.as_deref().unwrap_or_default().to_owned(),
        application_name: String::new(),
        prepared_statements: server.statements(),
        times_lent: server.times_lent(),
    }
}

fn pool_row(pool: &Pool, config: &Config) -> PoolRow {
    let (key, counts) = (&pool.key, pool.counts());
    PoolRow {
        node: key.node,
        database: key.database.to_string(),
        user: key.user.to_string(),
        mode: config.pool_mode(&key.database, &key.user).as_str(),
        size: counts.limit,
        active: counts.active,
        idle: counts.idle,
        connecting: counts.connecting,
        cancelling: 0,
        waiting: counts.waiting,
        max_wait: counts.first_wait.map(|since| since.elapsed()).unwrap_or_default(),
    }
}
