//! The JSON forms of the view. Field names are those of the SHOW columns where there are such.

use cluster::{NodeState, Role};
use serde::Serialize;

use crate::render;
use crate::view::{
    AdminView, ClientState, DatabaseStats, Delay, EventRow, NodeRow, PoolRow, ProcessState, ServerState,
};

/// So many events are told; SHOW EVENTS has more.
pub(super) const LAST_EVENTS: usize = 20;

/// A node in few words.
#[derive(Debug, Serialize)]
struct NodeBrief {
    node_id: u16,
    hostname: String,
    port: u16,
    status: &'static str,
    role: &'static str,
}

impl NodeBrief {
    fn of(node: NodeRow) -> Self {
        Self {
            node_id: node.id.0,
            hostname: node.hostname,
            port: node.port,
            status: node.state.as_str(),
            role: node.role.as_str(),
        }
    }
}

/// `/health`.
#[derive(Debug, Serialize)]
pub(super) struct Health {
    status: &'static str,
    pid: u32,
    version: String,
    nodes: Vec<NodeBrief>,
}

impl Health {
    pub(super) fn of(view: &dyn AdminView) -> Self {
        let process = view.process();
        Self {
            status: "ok",
            pid: process.pid,
            version: process.version,
            nodes: view.nodes().into_iter().map(NodeBrief::of).collect(),
        }
    }
}

/// `/ready`.
#[derive(Debug, Serialize)]
pub(super) struct Readiness {
    status: &'static str,
    writes: bool,
    reads: bool,
}

impl Readiness {
    pub(super) fn of(view: &dyn AdminView) -> Self {
        let nodes = view.nodes();
        let usable = |role| nodes.iter().any(|node| node.state == NodeState::Up && node.role == role);
        let (writes, standby) = (usable(Role::Primary), usable(Role::Standby));
        let status = match view.state() {
            ProcessState::Stopping => "stopping",
            ProcessState::Active | ProcessState::Paused if writes || standby => "ready",
            ProcessState::Active | ProcessState::Paused => "no usable node",
        };
        Self { status, writes, reads: writes || standby }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.status == "ready"
    }
}

/// `/status`.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    version: String,
    pid: u32,
    started_at: String,
    uptime_seconds: u64,
    state: &'static str,
    topology_epoch: u64,
    nodes: Vec<NodeFull>,
    pools: Vec<Pool>,
    databases: Vec<Database>,
    clients: Clients,
    servers: Servers,
    /// The latest first.
    events: Vec<Event>,
}

impl Status {
    pub(super) fn of(view: &dyn AdminView) -> Self {
        let process = view.process();
        let uptime = view.now().duration_since(process.started_at).unwrap_or_default();
        let nodes = view.nodes();
        let shares = render::shares(&nodes);
        Self {
            version: process.version,
            pid: process.pid,
            started_at: render::rfc3339(process.started_at),
            uptime_seconds: uptime.as_secs(),
            state: view.state().as_str(),
            topology_epoch: view.epoch(),
            nodes: nodes.into_iter().zip(shares).map(|(node, share)| NodeFull::of(node, share)).collect(),
            pools: view.pools().into_iter().map(Pool::of).collect(),
            databases: view.stats().into_iter().map(Database::of).collect(),
            clients: Clients::of(view),
            servers: Servers::of(view),
            events: view.events().into_iter().rev().take(LAST_EVENTS).map(Event::of).collect(),
        }
    }
}

/// A node with all that is known; what is not is null.
#[derive(Debug, Serialize)]
struct NodeFull {
    #[serde(flatten)]
    brief: NodeBrief,
    answers: Option<bool>,
    seen_role: &'static str,
    lb_weight: f64,
    select_cnt: u64,
    replication_delay_bytes: Option<u64>,
    replication_delay_seconds: Option<f64>,
    replication_state: String,
    replication_sync_state: String,
    last_status_change: String,
    address: Option<String>,
    timeline: Option<u32>,
    replay: Option<String>,
    fresh_as_of: Option<String>,
    reason: &'static str,
    failed_checks: u32,
}

impl NodeFull {
    fn of(mut node: NodeRow, share: f64) -> Self {
        let (bytes, seconds) = match node.delay {
            Some(Delay::Bytes(bytes)) => (Some(bytes), None),
            Some(Delay::Time(time)) => (None, Some(time.as_secs_f64())),
            None => (None, None),
        };
        Self {
            answers: node.answers,
            seen_role: render::seen_role(&node).as_str(),
            lb_weight: share,
            select_cnt: node.statements.select,
            replication_delay_bytes: bytes,
            replication_delay_seconds: seconds,
            replication_state: std::mem::take(&mut node.replication_state),
            replication_sync_state: std::mem::take(&mut node.sync_state),
            last_status_change: render::rfc3339(node.changed_at),
            address: node.address.map(|address| address.to_string()),
            timeline: node.timeline,
            replay: node.lsn.map(render::lsn),
            fresh_as_of: node.fresh_as_of.map(render::rfc3339),
            reason: node.reason,
            failed_checks: node.failed_checks,
            brief: NodeBrief::of(node),
        }
    }
}

#[derive(Debug, Serialize)]
struct Pool {
    node_id: u16,
    database: String,
    user: String,
    pool_mode: &'static str,
    size: u32,
    active: u32,
    idle: u32,
    connecting: u32,
    waiting: u32,
    max_wait_seconds: f64,
}

impl Pool {
    fn of(pool: PoolRow) -> Self {
        Self {
            node_id: pool.node.0,
            database: pool.database,
            user: pool.user,
            pool_mode: pool.mode,
            size: pool.size,
            active: pool.active,
            idle: pool.idle,
            connecting: pool.connecting,
            waiting: pool.waiting,
            max_wait_seconds: pool.max_wait.as_secs_f64(),
        }
    }
}

/// What was counted for a database since the start.
#[derive(Debug, Serialize)]
struct Database {
    database: String,
    transactions: u64,
    queries: u64,
    errors: u64,
    received_bytes: u64,
    sent_bytes: u64,
    transaction_seconds: f64,
    query_seconds: f64,
    wait_seconds: f64,
}

impl Database {
    fn of(stats: DatabaseStats) -> Self {
        let totals = stats.totals;
        Self {
            database: stats.name,
            transactions: totals.transactions,
            queries: totals.queries,
            errors: totals.errors,
            received_bytes: totals.received,
            sent_bytes: totals.sent,
            transaction_seconds: totals.transaction_time.as_secs_f64(),
            query_seconds: totals.query_time.as_secs_f64(),
            wait_seconds: totals.wait_time.as_secs_f64(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Event {
    at: String,
    event: &'static str,
    node_id: Option<u16>,
    from: String,
    to: String,
    reason: String,
}

impl Event {
    fn of(event: EventRow) -> Self {
        Self {
            at: render::rfc3339(event.at),
            event: event.kind,
            node_id: event.node.map(|node| node.0),
            from: event.from,
            to: event.to,
            reason: event.reason,
        }
    }
}

#[derive(Debug, Serialize)]
struct Clients {
    total: usize,
    login: usize,
    idle: usize,
    active: usize,
    waiting: usize,
    pinned: usize,
}

impl Clients {
    fn of(view: &dyn AdminView) -> Self {
        let clients = view.clients();
        let count = |state| clients.iter().filter(|client| client.state == state).count();
        Self {
            total: clients.len(),
            login: count(ClientState::Login),
            idle: count(ClientState::Idle),
            active: count(ClientState::Active) + count(ClientState::InTransaction) + count(ClientState::Held),
            waiting: count(ClientState::Waiting),
            pinned: clients.iter().filter(|client| client.pin.is_some()).count(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Servers {
    total: usize,
    new: usize,
    idle: usize,
    active: usize,
}

impl Servers {
    fn of(view: &dyn AdminView) -> Self {
        let servers = view.servers();
        let count = |state| servers.iter().filter(|server| server.state == state).count();
        Self {
            total: servers.len(),
            new: count(ServerState::New),
            idle: count(ServerState::Idle),
            active: count(ServerState::Active),
        }
    }
}
