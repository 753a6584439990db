//! The data path: listeners, sessions, backends, pools, relay.
//!
//! Worker threads run a single-threaded runtime each; a session is one task that owns both of its
//! sockets. Bytes pass as spans of the read buffer. Nothing here decides that a node is up or down:
//! what is seen of nodes is told to whoever does ([`Deps::observe`]).

pub mod backend;
pub mod buffer;
pub mod cancel;
pub mod capacity;
mod catalog;
mod client;
pub mod connect;
mod connect_log;
mod console_session;
mod control;
pub mod digest;
pub mod engine;
pub mod fence;
pub mod gates;
pub mod greeting;
mod habits;
mod hash;
mod janitor;
mod last_write;
pub mod listener;
pub mod load;
mod lobby;
pub mod login;
pub mod lookup;
mod migration;
mod open;
pub mod out;
pub mod pool;
pub mod prepared;
mod rebalance;
pub mod registry;
mod replication;
pub mod retry;
mod server_entry;
mod session;
pub mod settings;
mod shared;
pub mod statements;
pub mod stats;
pub mod stream;
mod throttle;
pub mod tls;
pub mod workers;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use telemetry::Tasks;
use tokio::task::JoinHandle;

pub use catalog::{Relations, judge};
pub use listener::ListenError;
pub use shared::{Deps, Observe};

use pool::Pool;
use registry::{Flag, Registry};
use shared::Shared;
use workers::Workers;

/// How often it is looked whether all clients have left.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// The proxy could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A listening socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A worker thread.
    #[error("cannot start a worker thread: {0}")]
    Worker(io::Error),
}

/// How to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownMode {
    /// Clients leave when they like; nobody comes in.
    Patient,
    /// Clients leave at the end of their transactions.
    Smart,
    /// Clients leave now; what they do is cancelled.
    Fast,
    /// As fast as the process can end.
    Immediate,
}

/// The limits of the nodes follow what they say of themselves.
async fn follow_capacities(shared: Arc<Shared>) {
    let mut changes = shared.deps.capacities.changes();
    while changes.changed().await.is_ok() {
        shared.limit_nodes();
    }
}

/// The running data path.
pub struct Proxy {
    shared: Arc<Shared>,
    workers: Arc<Workers>,
    listeners: Mutex<Vec<JoinHandle<()>>>,
}

impl Proxy {
    /// Binds the listening sockets, or takes over those that are `inherited`, and starts the workers. `control` is the
    /// control plane's runtime. Must be called inside of it.
    ///
    /// # Errors
    /// A socket that cannot be bound, a thread that cannot be started.
    pub fn start(
        deps: Deps,
        control: &Tasks,
        inherited: Vec<listener::Inherited>,
    ) -> Result<Arc<Self>, StartError> {
        let config = deps.config.load();
        let listeners = match inherited.is_empty() {
            true => listener::bind(&config)?,
            false => listener::adopt(inherited)?,
        };
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let shared = Arc::new(Shared::new(deps, control.clone()));
        let workers = Workers::start(config.workers.unwrap_or(cores), &shared).map_err(StartError::Worker)?;
        let workers = Arc::new(workers);
        let accepting = listeners.into_iter().enumerate().filter_map(|(number, listener)| {
            let (workers, here) = (Arc::clone(&workers), Arc::clone(workers.accepting(number)?));
            let (config, tasks) = (shared.deps.config.clone(), here.tasks.apart());
            let keepalive = move || connect::Keepalive::from(&*config.load());
            let serve = move |accepted| client::accept(&here, &workers, accepted);
            Some(tasks.spawn("listener", listener.run(keepalive, serve)))
        });
        let mut tasks: Vec<_> = accepting.collect();
        tasks.push(control.spawn("janitor", janitor::run(Arc::clone(&shared), Arc::clone(&workers))));
        tasks.push(control.spawn("migration", migration::run(Arc::clone(&shared), Arc::clone(&workers))));
        tasks.push(control.spawn("fence", fence::run(Arc::clone(&shared))));
        tasks.push(control.spawn("capacity", follow_capacities(Arc::clone(&shared))));
        Ok(Arc::new(Self { shared, workers, listeners: Mutex::new(tasks) }))
    }

    /// Who is connected, to us and by us.
    #[must_use]
    pub fn registry(&self) -> &Arc<Registry> {
        &self.shared.registry
    }

    /// Every pool.
    #[must_use]
    pub fn pools(&self) -> Vec<Arc<Pool>> {
        self.shared.pools.all()
    }

    /// What was counted for each database, over all workers.
    #[must_use]
    pub fn database_totals(&self) -> BTreeMap<Arc<str>, stats::Totals> {
        let mut totals = BTreeMap::new();
        self.workers.all().for_each(|worker| worker.book.add_to(&mut totals));
        totals
    }

    /// What was counted for each statement, over all workers.
    #[must_use]
    pub fn digests(&self) -> HashMap<router::Fingerprint, digest::Digest> {
        let mut all = HashMap::new();
        self.workers.all().for_each(|worker| worker.digests.add_to(&mut all));
        all
    }

    /// Forgets what was counted for each statement.
    pub fn forget_digests(&self) {
        self.workers.all().for_each(|worker| worker.digests.clear());
    }

    /// For how many statements something is counted, and the bytes of that.
    #[must_use]
    pub fn digest_size(&self) -> (usize, usize) {
        let sizes = self.workers.all().map(|worker| worker.digests.size());
        sizes.fold((0, 0), |(items, bytes), (i, b)| (items + i, bytes + b))
    }

    /// How many prepared statements are known, and their bytes.
    #[must_use]
    pub fn statements(&self) -> (usize, usize) {
        self.shared.statements.size()
    }

    /// How many classifications the workers remember, and their bytes.
    #[must_use]
    pub fn verdicts(&self) -> (usize, usize) {
        let sizes = self.workers.all().map(|worker| worker.classifier_size());
        sizes.fold((0, 0), |(items, bytes), (i, b)| (items + i, bytes + b))
    }

    /// How many buffers the workers keep unused, and their bytes.
    #[must_use]
    pub fn free_buffers(&self) -> (usize, usize) {
        let free = self.workers.all().map(|worker| worker.buffers.unused()).sum();
        (free, free * buffer::BUFFER_LEN)
    }

    /// The configuration was replaced: limits apply from now on.
    pub fn config_changed(&self) {
        self.shared.lookups.forget();
        let config = self.shared.deps.config.load();
        self.shared.catalogs.config_changed(&config);
        for pool in self.pools() {
            // The limits are those of the name that clients use.
            let opened_as = pool.opened_as();
            let database = opened_as.as_ref().map_or(&pool.key.database, |who| &who.database);
            pool.set_limit(config.pool_size(database, &pool.key.user));
            pool.set_quotas(pool::QuotaLimits::of(&config, database, &pool.key.user));
        }
        self.shared.limit_nodes();
    }

    /// Closes the listeners and asks clients to leave. May be called again with a harder mode.
    pub fn shutdown(&self, mode: ShutdownMode) {
        self.shared.draining.store(true, Ordering::Release);
        for task in self.listeners.lock().drain(..) {
            task.abort();
        }
        match mode {
            ShutdownMode::Patient => {}
            ShutdownMode::Smart => self.shared.registry.raise_all(Flag::Drain),
            ShutdownMode::Fast | ShutdownMode::Immediate => self.shared.registry.raise_all(Flag::Kill),
        }
    }

    /// Returns when every worker has run a task: none of them is stuck.
    pub async fn workers_answer(&self) {
        let asked: Vec<_> =
            self.workers.all().map(|worker| worker.tasks.spawn("heartbeat", async {})).collect();
        for answer in asked {
            // An error is the end of its runtime, which is no hang.
            let _ = answer.await;
        }
    }

    /// Waits until all clients have left.
    pub async fn drained(&self) {
        while self.shared.registry.client_count() > 0 {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    }

    /// Ends the workers; whoever is still there is cut off.
    pub fn stop(&self) {
        for pool in self.pools() {
            pool.retire();
        }
        self.workers.stop();
    }
}
