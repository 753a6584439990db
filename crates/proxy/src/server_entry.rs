//! One backend, as SHOW and the metrics see it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Instant, SystemTime};

use cluster::NodeId;
use protocol::startup::Replication;
use telemetry::metrics::{BackendState, NodeMetrics};

use crate::registry::{Peer, Registry};

/// What a backend is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ServerState {
    /// In the pool.
    Idle,
    /// On loan.
    Active,
}

/// One backend.
#[derive(Debug)]
pub struct ServerEntry {
    /// Its number.
    pub id: u64,
    /// Its node.
    pub node: NodeId,
    /// The database.
    pub database: Arc<str>,
    /// The user.
    pub user: Arc<str>,
    /// The server's process id.
    pub pid: u32,
    /// Where the node is.
    pub remote: Peer,
    /// Our end of the connection.
    pub local: Peer,
    /// Whether it replicates.
    pub replication: Replication,
    /// How it is encrypted; nothing when it is not.
    pub tls: Option<Box<str>>,
    /// When the connection was made.
    pub connected_at: SystemTime,
    started: Instant,
    active: AtomicBool,
    client: AtomicU32,
    request_at: AtomicU64,
    statements: AtomicU32,
    lent: AtomicU32,
    metrics: Option<Arc<NodeMetrics>>,
    registry: Weak<Registry>,
}

/// What is known of a backend when its connection has been made.
#[derive(Debug)]
pub struct NewServer {
    /// Its node.
    pub node: NodeId,
    /// The database.
    pub database: Arc<str>,
    /// The user.
    pub user: Arc<str>,
    /// The server's process id.
    pub pid: u32,
    /// Where the node is, and our end of the connection.
    pub ends: (Peer, Peer),
    /// The counters of its node.
    pub metrics: Option<Arc<NodeMetrics>>,
    /// Whether it replicates.
    pub replication: Replication,
    /// How it is encrypted.
    pub tls: Option<Box<str>>,
}

impl ServerEntry {
    pub(crate) fn new(id: u64, server: NewServer, registry: Weak<Registry>) -> Self {
        let NewServer { node, database, user, pid, ends: (remote, local), metrics, replication, tls } =
            server;
        let entry = Self {
            id,
            node,
            database,
            user,
            pid,
            remote,
            local,
            replication,
            tls,
            connected_at: SystemTime::now(),
            started: Instant::now(),
            active: AtomicBool::new(true),
            client: AtomicU32::new(0),
            request_at: AtomicU64::new(0),
            statements: AtomicU32::new(0),
            lent: AtomicU32::new(0),
            metrics,
            registry,
        };
        entry.moved(None, Some(BackendState::Active));
        entry
    }

    fn moved(&self, from: Option<BackendState>, to: Option<BackendState>) {
        if let Some(metrics) = &self.metrics {
            metrics.backend_moved(from, to);
        }
    }

    /// The counters of its node.
    #[must_use]
    pub fn metrics(&self) -> Option<&Arc<NodeMetrics>> {
        self.metrics.as_ref()
    }

    /// What it is doing.
    #[must_use]
    pub fn state(&self) -> ServerState {
        if self.active.load(Ordering::Relaxed) { ServerState::Active } else { ServerState::Idle }
    }

    /// When the connection was made, by the clock of its pool.
    #[must_use]
    pub fn opened(&self) -> Instant {
        self.started
    }

    /// The client that has it.
    #[must_use]
    pub fn client(&self) -> Option<u32> {
        Some(self.client.load(Ordering::Relaxed)).filter(|id| *id != 0)
    }

    /// A client has it.
    pub fn lent(&self, client: u32, now: Instant) {
        self.client.store(client, Ordering::Relaxed);
        self.lent.fetch_add(1, Ordering::Relaxed);
        if !self.active.swap(true, Ordering::Relaxed) {
            self.moved(Some(BackendState::Idle), Some(BackendState::Active));
        }
        let nanos = now.duration_since(self.started).as_nanos();
        self.request_at.store(u64::try_from(nanos).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Nobody has it; it holds so many prepared statements.
    pub fn returned(&self, statements: usize) {
        self.client.store(0, Ordering::Relaxed);
        if self.active.swap(false, Ordering::Relaxed) {
            self.moved(Some(BackendState::Active), Some(BackendState::Idle));
        }
        self.statements.store(u32::try_from(statements).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// How often it was lent.
    #[must_use]
    pub fn times_lent(&self) -> u32 {
        self.lent.load(Ordering::Relaxed)
    }

    /// When it was last lent.
    #[must_use]
    pub fn request_at(&self) -> SystemTime {
        self.connected_at + std::time::Duration::from_nanos(self.request_at.load(Ordering::Relaxed))
    }

    /// How many prepared statements it holds.
    #[must_use]
    pub fn statements(&self) -> u32 {
        self.statements.load(Ordering::Relaxed)
    }
}

impl Drop for ServerEntry {
    fn drop(&mut self) {
        let last = if *self.active.get_mut() { BackendState::Active } else { BackendState::Idle };
        self.moved(Some(last), None);
        if let Some(registry) = self.registry.upgrade() {
            registry.leave_server(self.id);
        }
    }
}
