//! What the surfaces show, and what they may ask for: the border to the rest of the process.
//!
//! [`AdminView`] is implemented by the supervisor from immutable snapshots; SHOW commands, `/metrics`'
//! neighbours and the status JSON are all rendered from the same rows. [`AdminControl`] carries out the few
//! commands that change something. This crate knows no pool and no session.

mod control;
mod look;
mod statements;

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use cluster::{NodeId, NodeState, Role};

pub use control::{AdminControl, Databases, NodeOrder, Outcome, Shutdown};
pub use look::AdminView;
pub use statements::StatementRow;

/// One node: the cluster's picture of it and what was counted for it.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeRow {
    /// Its id.
    pub id: NodeId,
    /// Host name, address, or socket directory.
    pub hostname: String,
    /// TCP port.
    pub port: u16,
    /// Whether it may be used.
    pub state: NodeState,
    /// Whether PostgreSQL answered when it was asked last; none before the first answer or failure.
    pub answers: Option<bool>,
    /// Weight as configured; shares are computed here.
    pub weight: f64,
    /// What the cluster takes it for.
    pub role: Role,
    /// What it said itself when it was asked last.
    pub seen_role: Role,
    /// How far it is behind the primary; none when that is not known.
    pub delay: Option<Delay>,
    /// `pg_stat_replication.state` as the primary says; empty when unknown.
    pub replication_state: String,
    /// `pg_stat_replication.sync_state` as the primary says; empty when unknown.
    pub sync_state: String,
    /// When its state or role last changed.
    pub changed_at: SystemTime,
    /// Statements sent to it.
    pub statements: StatementCounts,
    /// Errors it answered with.
    pub errors: ErrorCounts,
    /// The address that is in use, when the name was resolved.
    pub address: Option<IpAddr>,
    /// The timeline it is on.
    pub timeline: Option<u32>,
    /// How far it has written (primary) or replayed (standby) the WAL.
    pub lsn: Option<u64>,
    /// The moment up to which it is known to have replayed everything.
    pub fresh_as_of: Option<SystemTime>,
    /// Why its state is what it is, in the words of the log.
    pub reason: &'static str,
    /// Failed health checks in a row.
    pub failed_checks: u32,
    /// Whom a standby receives from, as it says.
    pub upstream: Option<Source>,
    /// How far its recovery is, in a line; none when it is not being recovered.
    pub recovery: Option<String>,
}

/// Whom a standby receives WAL from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// The node; none: a server that is not configured.
    pub node: Option<NodeId>,
    /// How long ago it heard anything, when it was asked last.
    pub silent_for: Option<Duration>,
}

/// How far a standby is behind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Delay {
    /// Bytes of WAL that it has not replayed.
    Bytes(u64),
    /// Measured by time.
    Time(Duration),
}

/// Statements sent to a node since the start, by what they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatementCounts {
    /// SELECT and the like.
    pub select: u64,
    /// INSERT.
    pub insert: u64,
    /// UPDATE.
    pub update: u64,
    /// DELETE.
    pub delete: u64,
    /// CREATE, ALTER, DROP and the like.
    pub ddl: u64,
    /// Everything else.
    pub other: u64,
}

/// Errors that a node answered with since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ErrorCounts {
    /// Severity PANIC.
    pub panic: u64,
    /// Severity FATAL.
    pub fatal: u64,
    /// Severity ERROR.
    pub error: u64,
}

/// What was counted for a database since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DatabaseTotals {
    /// Backends given to clients.
    pub assignments: u64,
    /// Transactions.
    pub transactions: u64,
    /// Queries.
    pub queries: u64,
    /// Bytes from clients.
    pub received: u64,
    /// Bytes to clients.
    pub sent: u64,
    /// Time that transactions had a backend.
    pub transaction_time: Duration,
    /// Time that servers worked on queries.
    pub query_time: Duration,
    /// Time that clients waited for a backend.
    pub wait_time: Duration,
    /// Parse messages of clients.
    pub client_parses: u64,
    /// Parse messages to servers.
    pub server_parses: u64,
    /// Bind messages of clients.
    pub binds: u64,
    /// Errors that clients were told.
    pub errors: u64,
}

impl DatabaseTotals {
    /// Adds another database's.
    pub fn add(&mut self, other: &Self) {
        self.assignments += other.assignments;
        self.transactions += other.transactions;
        self.queries += other.queries;
        self.received += other.received;
        self.sent += other.sent;
        self.transaction_time += other.transaction_time;
        self.query_time += other.query_time;
        self.wait_time += other.wait_time;
        self.client_parses += other.client_parses;
        self.server_parses += other.server_parses;
        self.binds += other.binds;
        self.errors += other.errors;
    }
}

/// A database's counts, now and a while ago.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DatabaseStats {
    /// The name that clients ask for.
    pub name: String,
    /// Now.
    pub totals: DatabaseTotals,
    /// A while ago.
    pub before: DatabaseTotals,
    /// How long ago that was.
    pub window: Duration,
}

/// The backends of one node, database and user, and who waits for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolRow {
    /// The node.
    pub node: NodeId,
    /// The database.
    pub database: String,
    /// The user.
    pub user: String,
    /// Pool mode: `session`, `transaction` or `statement`.
    pub mode: &'static str,
    /// How many backends it may have.
    pub size: u32,
    /// Backends on loan to a session.
    pub active: u32,
    /// Backends that are free.
    pub idle: u32,
    /// Backends that connect or log in.
    pub connecting: u32,
    /// Cancel requests on their way to the node.
    pub cancelling: u32,
    /// Sessions that wait for a backend.
    pub waiting: u32,
    /// How long the first of them has waited.
    pub max_wait: Duration,
}

/// One end of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket.
    Unix,
    /// TCP.
    Tcp(IpAddr, u16),
}

/// What a client is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientState {
    /// Starting up or logging in.
    Login,
    /// Between transactions, or in one that has no backend yet.
    Idle,
    /// Has a backend.
    Active,
    /// Waits for a backend.
    Waiting,
    /// Has its turn, inside of a transaction.
    InTransaction,
    /// Has its turn, and a backend that it is held to outside of transactions.
    Held,
    /// A cancel request on its way.
    Cancel,
}

impl ClientState {
    /// The word of `SHOW CLIENTS`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::Idle => "idle",
            Self::Active | Self::InTransaction | Self::Held => "active",
            Self::Waiting => "waiting",
            Self::Cancel => "active_cancel_req",
        }
    }

    /// Whether it is a client of its database, which those that log in or cancel are not yet.
    #[must_use]
    pub fn has_logged_in(self) -> bool {
        !matches!(self, Self::Login | Self::Cancel)
    }
}

/// One client connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRow {
    /// The session's number.
    pub id: u32,
    /// The user; empty before it is known.
    pub user: String,
    /// The database; empty before it is known.
    pub database: String,
    /// `none`, `physical` or `logical`.
    pub replication: &'static str,
    /// What it is doing.
    pub state: ClientState,
    /// Where it comes from.
    pub remote: Endpoint,
    /// Where it came in.
    pub local: Endpoint,
    /// When it connected.
    pub connected_at: SystemTime,
    /// When it last began something.
    pub request_at: SystemTime,
    /// How long it has waited for a backend so far.
    pub wait: Duration,
    /// It is to be closed at the end of its transaction.
    pub close_needed: bool,
    /// The backend it has.
    pub backend: Option<u64>,
    /// TLS version and cipher; empty without TLS.
    pub tls: String,
    /// What the client calls itself.
    pub application_name: String,
    /// Prepared statements that it holds.
    pub prepared_statements: u32,
    /// What holds it to its backend between transactions.
    pub pin: Option<&'static str>,
    /// What it waits for.
    pub waits_for: Option<Awaited>,
    /// What it asked for last, cut; for itself and administrators.
    pub statement: String,
}

/// What a client waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// A backend of that node that another client has.
    Backend(NodeId),
    /// Its turn to connect to that node.
    Turn(NodeId),
    /// RESUME.
    Resume,
    /// A node that may be used: a failover is under way.
    Node,
}

/// What a backend is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServerState {
    /// Connecting or logging in.
    New,
    /// Free.
    Idle,
    /// On loan to a session.
    Active,
}

impl ServerState {
    /// The word of `SHOW SERVERS`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Idle => "idle",
            Self::Active => "active",
        }
    }
}

/// One connection of ours to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRow {
    /// Its number.
    pub id: u64,
    /// The node.
    pub node: NodeId,
    /// The user it is logged in as.
    pub user: String,
    /// The database it is in.
    pub database: String,
    /// `none`, `physical` or `logical`.
    pub replication: &'static str,
    /// What it is doing.
    pub state: ServerState,
    /// The node's end.
    pub remote: Endpoint,
    /// Our end.
    pub local: Endpoint,
    /// When it was opened.
    pub connected_at: SystemTime,
    /// When it was last lent out.
    pub request_at: SystemTime,
    /// It is to be closed when it comes back.
    pub close_needed: bool,
    /// The session that has it.
    pub session: Option<u32>,
    /// The server's process id, 0 before it is known.
    pub pid: i32,
    /// TLS version and cipher; empty without TLS.
    pub tls: String,
    /// The `application_name` it runs under.
    pub application_name: String,
    /// Prepared statements that it holds.
    pub prepared_statements: u32,
    /// How often a session had it.
    pub times_lent: u32,
}

/// What the whole process is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProcessState {
    /// Serving.
    Active,
    /// Clients wait until RESUME.
    Paused,
    /// Going down when the transactions have ended.
    Stopping,
}

impl ProcessState {
    /// The word of the status JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
        }
    }
}

/// The checks of one node since the start, or since it is configured.
#[derive(Debug, Clone, PartialEq)]
pub struct HealthRow {
    /// The node.
    pub node: NodeId,
    /// Checks.
    pub total: u64,
    /// Those that the node answered.
    pub success: u64,
    /// Those that it did not.
    pub fail: u64,
    /// Checks that were repeated because the one before failed.
    pub retry: u64,
    /// The longest row of such repeats.
    pub max_retry: u64,
    /// Times that answered checks took.
    pub longest: Duration,
    /// The shortest of them.
    pub shortest: Duration,
    /// All of them.
    pub time: Duration,
    /// The last check.
    pub last: Option<SystemTime>,
    /// The last that was answered.
    pub last_success: Option<SystemTime>,
    /// The last that was not.
    pub last_fail: Option<SystemTime>,
    /// Why.
    pub failure: String,
}

impl HealthRow {
    /// Of a node that was not checked yet.
    #[must_use]
    pub fn new(node: NodeId) -> Self {
        Self {
            node,
            total: 0,
            success: 0,
            fail: 0,
            retry: 0,
            max_retry: 0,
            longest: Duration::ZERO,
            shortest: Duration::ZERO,
            time: Duration::ZERO,
            last: None,
            last_success: None,
            last_fail: None,
            failure: String::new(),
        }
    }
}

/// Something that has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRow {
    /// Its number; they rise by one.
    pub number: u64,
    /// When.
    pub at: SystemTime,
    /// What kind of thing: `node_state`, `node_role`, `primary`, `nodes` ...
    pub kind: &'static str,
    /// The node that it is about.
    pub node: Option<NodeId>,
    /// What was before.
    pub from: String,
    /// What is now.
    pub to: String,
    /// Why.
    pub reason: String,
}

/// Statements sent to a node for a reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteRow {
    /// The node.
    pub node: NodeId,
    /// Why it was chosen.
    pub reason: &'static str,
    /// How many.
    pub statements: u64,
}

/// One use of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryRow {
    /// What for.
    pub what: &'static str,
    /// How many things.
    pub items: u64,
    /// Their bytes, together.
    pub bytes: u64,
}

/// What does not change while the process lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessInfo {
    /// pgweir's version, such as `0.1.0`.
    pub version: String,
    /// The process id.
    pub pid: u32,
    /// When it started.
    pub started_at: SystemTime,
}
