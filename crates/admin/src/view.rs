//! What the surfaces show, and what they may ask for: the border to the rest of the process.
//!
//! [`AdminView`] is implemented by the supervisor from immutable snapshots; SHOW commands, `/metrics`'
//! neighbours and the status JSON are all rendered from the same rows. [`AdminControl`] carries out the few
//! commands that change something. This crate knows no pool and no session.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cluster::{NodeId, NodeState, Role};
use config::Config;
use protocol::error::PgError;

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
            Self::Active => "active",
            Self::Waiting => "waiting",
            Self::Cancel => "active_cancel_req",
        }
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

/// A snapshot of the process; each call is cheap and does not block.
pub trait AdminView: Send + Sync {
    /// The process.
    fn process(&self) -> ProcessInfo;
    /// What it is doing.
    fn state(&self) -> ProcessState;
    /// The configuration in force.
    fn config(&self) -> Arc<Config>;
    /// The time now, for ages.
    fn now(&self) -> SystemTime;
    /// The topology's epoch.
    fn epoch(&self) -> u64;
    /// The nodes, in the order of their ids.
    fn nodes(&self) -> Vec<NodeRow>;
    /// The pools.
    fn pools(&self) -> Vec<PoolRow>;
    /// The clients, those of the admin database included.
    fn clients(&self) -> Vec<ClientRow>;
    /// The connections to the nodes.
    fn servers(&self) -> Vec<ServerRow>;
    /// The node that the session's reads go to (or went to last), for `load_balance_node`.
    fn load_balance_node(&self, session: u32) -> Option<NodeId>;
}

/// How the process is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shutdown {
    /// Transactions finish, then their sessions are told goodbye.
    Smart,
    /// Sessions are told goodbye now.
    Fast,
    /// The process ends now.
    Immediate,
}

/// Something that is being carried out.
pub type Outcome<'a, T> = Pin<Box<dyn Future<Output = Result<T, PgError>> + Send + 'a>>;

/// The commands that change something.
pub trait AdminControl: Send + Sync {
    /// Reads the configuration again and applies it; the answer is the plan: what changes, what needs a restart.
    ///
    /// # Errors
    /// The configuration is refused; nothing has changed.
    fn reload(&self) -> Outcome<'_, String>;

    /// Begins to end the process. The answer comes when that has begun, not when it is done.
    ///
    /// # Errors
    /// The process is ending already, in a mode at least as strict.
    fn shutdown(&self, mode: Shutdown) -> Outcome<'_, ()>;
}
