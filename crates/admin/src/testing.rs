//! A process that stands still, for the tests of what is shown.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cluster::{NodeId, NodeState, Role};
use config::Config;
use parking_lot::Mutex;
use protocol::console::Caller;
use protocol::error::PgError;
use protocol::sqlstate::SqlState;

use crate::view::{
    AdminControl, AdminView, Awaited, ClientRow, ClientState, DatabaseStats, DatabaseTotals, Databases,
    Delay, Endpoint, ErrorCounts, EventRow, HealthRow, MemoryRow, NodeRow, Outcome, PoolRow, ProcessInfo,
    ProcessState, RouteRow, ServerRow, ServerState, Shutdown, Source, StatementCounts, StatementRow,
};

/// 2024-02-29 12:34:56 UTC.
pub(crate) const NOW: Duration = Duration::from_secs(1_709_210_096);

pub(crate) fn now() -> SystemTime {
    UNIX_EPOCH + NOW
}

/// A view whose rows a test sets.
pub(crate) struct FakeView {
    pub(crate) state: Mutex<ProcessState>,
    pub(crate) nodes: Mutex<Vec<NodeRow>>,
    pub(crate) pools: Vec<PoolRow>,
    pub(crate) clients: Vec<ClientRow>,
    pub(crate) servers: Vec<ServerRow>,
    pub(crate) config: Arc<Config>,
}

impl FakeView {
    /// A primary with weight 1 and a standby with weight 2; two pools, three clients.
    pub(crate) fn new() -> Self {
        let yaml = "backends: [{hostname: db0}, {hostname: db1, port: 5433, weight: 2}]\n\
                    databases: {app: {pool_size: 7, dbname: real, max_db_connections: 40}, spare: {pool_mode: session}}\n\
                    users: {bob: {pool_size: 3}}\n\
                    sr_check_password: hush\n";
        Self {
            state: Mutex::new(ProcessState::Active),
            nodes: Mutex::new(vec![node(0, "db0", Role::Primary, 1.0), node(1, "db1", Role::Standby, 2.0)]),
            pools: vec![pool(0, "app", 1), pool(1, "app", 0)],
            clients: vec![
                client(7, "app", "alice", ClientState::Active),
                client(8, "app", "alice", ClientState::Waiting),
                client(9, "other", "bob", ClientState::Idle),
                client(10, "pgweir", "root", ClientState::Idle),
                client(11, "", "", ClientState::Login),
            ],
            servers: vec![server()],
            config: Arc::new(config::parse(yaml, "test").unwrap()),
        }
    }
}

fn node(id: u16, hostname: &str, role: Role, weight: f64) -> NodeRow {
    NodeRow {
        id: NodeId(id),
        hostname: hostname.into(),
        port: 5432 + id,
        state: NodeState::Up,
        answers: Some(true),
        weight,
        role,
        seen_role: role,
        delay: (role == Role::Standby).then_some(Delay::Bytes(4096)),
        replication_state: if role == Role::Standby { "streaming".into() } else { String::new() },
        sync_state: if role == Role::Standby { "async".into() } else { String::new() },
        changed_at: now(),
        statements: StatementCounts {
            select: 10 + u64::from(id),
            insert: 1,
            update: 2,
            delete: 3,
            ddl: 4,
            other: 5,
        },
        errors: ErrorCounts { panic: 6, fatal: 7, error: 8 },
        address: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        timeline: Some(3),
        lsn: Some(0x16_B374_D848),
        fresh_as_of: None,
        reason: "check_ok",
        failed_checks: 0,
        upstream: (role == Role::Standby)
            .then_some(Source { node: Some(NodeId(0)), silent_for: Some(Duration::from_millis(1200)) }),
        recovery: None,
    }
}

fn pool(node: u16, database: &str, waiting: u32) -> PoolRow {
    PoolRow {
        node: NodeId(node),
        database: database.into(),
        user: "alice".into(),
        mode: "transaction",
        size: 7,
        active: 1,
        idle: 2,
        connecting: 1,
        cancelling: 0,
        waiting,
        max_wait: Duration::from_micros(u64::from(waiting) * 1_500_000),
    }
}

fn client(id: u32, database: &str, user: &str, state: ClientState) -> ClientRow {
    ClientRow {
        id,
        user: user.into(),
        database: database.into(),
        replication: "none",
        state,
        remote: Endpoint::Tcp(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9)), 40_000),
        local: Endpoint::Unix,
        connected_at: now(),
        request_at: now(),
        wait: Duration::from_micros(2_000_003),
        close_needed: false,
        backend: (state == ClientState::Active).then_some(12),
        tls: String::new(),
        application_name: "psql".into(),
        prepared_statements: 2,
        pin: (state == ClientState::Active).then_some("temp_table"),
        waits_for: (state == ClientState::Waiting).then_some(Awaited::Backend(NodeId(0))),
        statement: "SELECT 1".into(),
    }
}

fn server() -> ServerRow {
    ServerRow {
        id: 12,
        node: NodeId(1),
        user: "alice".into(),
        database: "app".into(),
        replication: "none",
        state: ServerState::Active,
        remote: Endpoint::Tcp(IpAddr::V4(Ipv4Addr::LOCALHOST), 5433),
        local: Endpoint::Tcp(IpAddr::V4(Ipv4Addr::LOCALHOST), 40_001),
        connected_at: now(),
        request_at: now(),
        close_needed: true,
        session: Some(7),
        pid: 4711,
        tls: "TLSv1.3".into(),
        application_name: String::new(),
        prepared_statements: 0,
        times_lent: 5,
    }
}

impl AdminView for FakeView {
    fn process(&self) -> ProcessInfo {
        ProcessInfo { version: "9.8.7".into(), pid: 42, started_at: now() - Duration::from_secs(60) }
    }
    fn state(&self) -> ProcessState {
        *self.state.lock()
    }
    fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config)
    }
    fn now(&self) -> SystemTime {
        now()
    }
    fn epoch(&self) -> u64 {
        5
    }
    fn nodes(&self) -> Vec<NodeRow> {
        self.nodes.lock().clone()
    }
    fn stats(&self) -> Vec<DatabaseStats> {
        let totals = DatabaseTotals {
            assignments: 20,
            transactions: 10,
            queries: 12,
            received: 1000,
            sent: 2000,
            transaction_time: Duration::from_millis(100),
            query_time: Duration::from_millis(60),
            wait_time: Duration::from_micros(40),
            client_parses: 5,
            server_parses: 2,
            binds: 7,
            errors: 1,
        };
        let before = DatabaseTotals { transactions: 5, queries: 2, ..DatabaseTotals::default() };
        vec![DatabaseStats { name: "app".into(), totals, before, window: Duration::from_secs(2) }]
    }
    fn is_paused(&self, database: &str) -> bool {
        database == "spare"
    }
    fn is_disabled(&self, database: &str) -> bool {
        database == "spare"
    }
    fn health(&self) -> Vec<HealthRow> {
        let checked = HealthRow {
            total: 10,
            success: 8,
            fail: 2,
            retry: 2,
            max_retry: 2,
            longest: Duration::from_millis(20),
            shortest: Duration::from_millis(1),
            time: Duration::from_millis(40),
            last: Some(now()),
            last_success: Some(now()),
            last_fail: Some(now()),
            failure: "no answer".into(),
            ..HealthRow::new(NodeId(0))
        };
        vec![checked, HealthRow::new(NodeId(1))]
    }
    fn events(&self) -> Vec<EventRow> {
        vec![EventRow {
            number: 1,
            at: now(),
            kind: "node_state",
            node: Some(NodeId(1)),
            from: "up".into(),
            to: "down".into(),
            reason: "health_check".into(),
        }]
    }
    fn routes(&self) -> Vec<RouteRow> {
        vec![RouteRow { node: NodeId(1), reason: "read", statements: 11 }]
    }
    fn statements(&self) -> Vec<StatementRow> {
        vec![StatementRow {
            fingerprint: "0123456789abcdef0123456789abcdef".into(),
            text: "select 1".into(),
            calls: 5,
            errors: 1,
            routes: vec![("primary", 1), ("read", 4)],
            reasons: vec![("read_only_select", 4), ("hint", 1)],
            percentiles: [90, 200, 300].map(Duration::from_micros),
            time: Duration::from_millis(1),
            rows: 5,
            bytes: 400,
        }]
    }
    fn memory(&self) -> Vec<MemoryRow> {
        vec![MemoryRow { what: "process", items: 1, bytes: 1 << 24 }]
    }
    fn pools(&self) -> Vec<PoolRow> {
        self.pools.clone()
    }
    fn clients(&self) -> Vec<ClientRow> {
        self.clients.clone()
    }
    fn servers(&self) -> Vec<ServerRow> {
        self.servers.clone()
    }
    fn load_balance_node(&self, session: u32) -> Option<NodeId> {
        (session == 7).then_some(NodeId(1))
    }
}

/// Remembers what it was asked to do.
#[derive(Default)]
pub(crate) struct FakeControl {
    pub(crate) done: Mutex<Vec<&'static str>>,
    /// What the commands were about.
    pub(crate) named: Mutex<Vec<String>>,
    /// The reload is refused.
    pub(crate) broken: bool,
}

impl FakeControl {
    fn note(&self, what: &'static str, databases: &Databases) -> Outcome<'_, ()> {
        self.done.lock().push(what);
        if let Databases::One(name) = databases {
            self.named.lock().push(name.clone());
        }
        Box::pin(async { Ok(()) })
    }
}

impl AdminControl for FakeControl {
    fn reload(&self) -> Outcome<'_, String> {
        Box::pin(async move {
            self.done.lock().push("reload");
            match self.broken {
                true => {
                    Err(PgError::error(SqlState::INVALID_PARAMETER_VALUE, "port: found x, expected a number"))
                }
                false => Ok("weight: 1 -> 2".to_owned()),
            }
        })
    }

    fn set(&self, key: String, value: String) -> Outcome<'_, String> {
        self.done.lock().push("set");
        Box::pin(async move { Ok(format!("{key}: {value}")) })
    }
    fn pause(&self, databases: Databases) -> Outcome<'_, ()> {
        self.note("pause", &databases)
    }
    fn resume(&self, databases: Databases) -> Outcome<'_, ()> {
        self.note("resume", &databases)
    }
    fn reconnect(&self, databases: Databases) -> Outcome<'_, ()> {
        self.note("reconnect", &databases)
    }
    fn wait_close(&self, databases: Databases) -> Outcome<'_, ()> {
        self.note("wait_close", &databases)
    }
    fn kill(&self, databases: Databases) -> Outcome<'_, ()> {
        self.note("kill", &databases)
    }
    fn node(&self, order: crate::view::NodeOrder, node: u16) -> Outcome<'_, String> {
        self.done.lock().push("node");
        Box::pin(async move { Ok(format!("{order:?} {node}")) })
    }
    fn kill_client(&self, id: u32) -> Outcome<'_, ()> {
        self.note("kill_client", &Databases::One(id.to_string()))
    }
    fn enable(&self, database: String) -> Outcome<'_, ()> {
        self.note("enable", &Databases::One(database))
    }
    fn disable(&self, database: String) -> Outcome<'_, ()> {
        self.note("disable", &Databases::One(database))
    }
    fn reset_statements(&self) -> Outcome<'_, ()> {
        self.note("reset_statements", &Databases::All)
    }
    fn reopen_logs(&self) -> Outcome<'_, ()> {
        self.note("reopen_logs", &Databases::All)
    }
    fn shutdown(&self, mode: Shutdown) -> Outcome<'_, ()> {
        Box::pin(async move {
            self.done.lock().push(match mode {
                Shutdown::Patient => "patient",
                Shutdown::Smart => "smart",
                Shutdown::Fast => "fast",
                Shutdown::Immediate => "immediate",
            });
            Ok(())
        })
    }
}

/// A caller in an ordinary session, without rights.
pub(crate) fn ordinary() -> Caller {
    Caller {
        user: "alice".into(),
        database: "app".into(),
        application_name: "psql".into(),
        admin: false,
        stats: false,
        in_admin_database: false,
        session: 7,
    }
}

/// A stats user in the admin database.
pub(crate) fn stats() -> Caller {
    Caller { database: "pgweir".into(), stats: true, in_admin_database: true, ..ordinary() }
}

/// An admin user in the admin database.
pub(crate) fn admin() -> Caller {
    Caller { admin: true, ..stats() }
}
