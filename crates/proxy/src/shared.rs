//! What all sessions share, and what those of one worker share.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use cluster::{Freshness, Moment, Node, Observation, Topology};
use config::Config;
use parking_lot::Mutex;
use protocol::console::Console;
use router::{Classifier, ParseOptions, Verdict};
use telemetry::metrics::{Metrics, NodeMetrics};
use telemetry::{Published, Tasks};

use crate::buffer::Buffers;
use crate::capacity::Capacities;
use crate::catalog::{Catalogs, Knowledge};
use crate::connect::NodeAddress;
use crate::connect_log::ConnectLog;
use crate::digest::DigestBook;
use crate::gates::Gates;
use crate::greeting::Greetings;
use crate::habits::Habits;
use crate::hash::Seeded;
use crate::last_write::LastWrites;
use crate::load::{Balancer, Loads};
use crate::lobby::Lobby;
use crate::login::Authenticator;
use crate::lookup::Lookups;
use crate::migration::Migration;
use crate::pool::{Pool, PoolKey, Pools, QuotaBook, QuotaLimits, Scope};
use crate::registry::Registry;
use crate::statements::StatementCache;
use crate::stats::Book;
use crate::tls::TlsSetup;

/// Bytes of verdicts that a worker remembers.
const VERDICT_CACHE_BYTES: usize = 4 * 1024 * 1024;
/// Bytes of prepared statements that are kept although no client holds them.
const STATEMENT_CACHE_BYTES: usize = 64 * 1024 * 1024;

/// Whom the proxy tells what it saw of nodes; may lose it, never blocks.
pub type Observe = Arc<dyn Fn(Observation) + Send + Sync>;

/// What the proxy is given.
pub struct Deps {
    /// The configuration.
    pub config: Published<Config>,
    /// What TLS is done with; made from the configuration, before it is published.
    pub tls: Published<TlsSetup>,
    /// The nodes, their roles and states.
    pub topology: Published<Topology>,
    /// Answers what is not for a server.
    pub console: Arc<dyn Console>,
    /// Hears what sessions see of nodes.
    pub observe: Observe,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// How many connections the nodes take.
    pub capacities: Arc<Capacities>,
    /// Moments count from here.
    pub started: Instant,
    /// Up to when each standby shows everything.
    pub freshness: Published<Freshness>,
    /// A session waits for that to advance; may be called often, never blocks.
    pub want_fresh: Arc<dyn Fn() + Send + Sync>,
    /// What users who are unknown are challenged with. Secret, and best the same after a restart, as the challenges of
    /// those are who are known.
    pub mock_secret: [u8; 32],
}

impl Deps {
    /// Now, as [`Freshness`] counts.
    pub(crate) fn now(&self) -> Moment {
        self.moment(Instant::now())
    }

    /// That time, as [`Freshness`] counts.
    pub(crate) fn moment(&self, at: Instant) -> Moment {
        Moment(at.saturating_duration_since(self.started))
    }
}

/// What all sessions share.
pub struct Shared {
    pub(crate) deps: Deps,
    pub(crate) pools: Pools,
    quotas: QuotaBook,
    pub(crate) loads: Loads,
    pub(crate) registry: Arc<Registry>,
    pub(crate) statements: StatementCache,
    pub(crate) catalogs: Catalogs,
    pub(crate) greetings: Greetings,
    pub(crate) habits: Habits,
    pub(crate) last_writes: LastWrites,
    pub(crate) draining: AtomicBool,
    pub(crate) gates: Gates,
    pub(crate) authenticator: Authenticator,
    pub(crate) lookups: Lookups,
    pub(crate) lobby: Lobby,
    pub(crate) connect_log: ConnectLog,
    clients: AtomicU32,
    /// Clients by database and by user.
    census: Mutex<Census>,
    nodes: Mutex<HashMap<u16, Arc<NodeMetrics>>>,
}

impl Shared {
    pub(crate) fn new(deps: Deps, control: Tasks) -> Self {
        let lookups = Lookups::new(deps.config.clone(), deps.topology.clone(), deps.tls.clone());
        Self {
            catalogs: Catalogs::new(&deps.config.load(), control),
            authenticator: Authenticator::new(deps.mock_secret),
            deps,
            lookups,
            lobby: Lobby::default(),
            pools: Pools::default(),
            quotas: QuotaBook::default(),
            loads: Loads::default(),
            registry: Arc::default(),
            statements: StatementCache::new(STATEMENT_CACHE_BYTES),
            greetings: Greetings::default(),
            habits: Habits::default(),
            last_writes: LastWrites::default(),
            draining: AtomicBool::new(false),
            gates: Gates::default(),
            connect_log: ConnectLog::default(),
            clients: AtomicU32::new(0),
            census: Mutex::default(),
            nodes: Mutex::default(),
        }
    }

    pub(crate) fn observe(&self, observation: Observation) {
        (self.deps.observe)(observation);
    }

    /// The counters of a node. They are looked up when a backend is opened, not when it is used.
    pub(crate) fn node_metrics(&self, node: &Node) -> Option<Arc<NodeMetrics>> {
        let mut known = self.nodes.lock();
        let fits = |metrics: &&Arc<NodeMetrics>| {
            metrics.label().port == node.port && metrics.label().hostname == *node.hostname
        };
        if let Some(metrics) = known.get(&node.id.0).filter(fits) {
            return Some(Arc::clone(metrics));
        }
        let all = self.deps.metrics.nodes();
        let metrics = all.into_iter().find(|metrics| metrics.label().id == node.id.0)?;
        known.insert(node.id.0, Arc::clone(&metrics));
        Some(metrics)
    }

    /// The pool of a node, database (as the node calls it) and user; `limits` are asked for a new one.
    pub(crate) fn pool(
        &self,
        node: &Node,
        database: &Arc<str>,
        user: &Arc<str>,
        limits: &dyn Fn() -> (u32, QuotaLimits),
    ) -> Arc<Pool> {
        let key = PoolKey { node: node.id, database: Arc::clone(database), user: Arc::clone(user) };
        let pool = self.pools.get(&key, || {
            let address = NodeAddress { hostname: node.hostname.to_string(), port: node.port };
            let (limit, quotas) = limits();
            let of_node = self.deps.capacities.for_pools(&self.deps.config.load(), node);
            let quotas = (&self.quotas, QuotaLimits { node: of_node, ..quotas });
            Pool::limited(key.clone(), Arc::new(address), self.loads.node(node.id), limit, quotas)
        });
        if pool.address.port == node.port && *pool.address.hostname == *node.hostname {
            return pool;
        }
        // The id names another server since a reload.
        pool.retire();
        self.pool(node, database, user, limits)
    }

    /// All pools of each node may have so many backends from now on.
    pub(crate) fn limit_nodes(&self) {
        let (config, topology) = (self.deps.config.load(), self.deps.topology.load());
        for pool in self.pools.all() {
            if let Some(node) = topology.node(pool.key.node) {
                pool.set_quota(Scope::Node, self.deps.capacities.for_pools(&config, node));
            }
        }
    }
}

/// What the sessions of one worker share.
pub struct Worker {
    pub(crate) id: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) tasks: Tasks,
    pub(crate) buffers: Buffers,
    pub(crate) book: Book,
    pub(crate) digests: DigestBook,
    classifier: Mutex<Classifier>,
    pub(crate) balancer: Mutex<Balancer>,
    pub(crate) migration: Migration,
}

impl Worker {
    pub(crate) fn new(id: usize, shared: Arc<Shared>, tasks: Tasks) -> Self {
        Self {
            id,
            shared,
            tasks,
            buffers: Buffers::default(),
            book: Book::default(),
            digests: DigestBook::default(),
            classifier: Mutex::new(Classifier::with_seed(VERDICT_CACHE_BYTES, rand::random())),
            balancer: Mutex::new(Balancer::new(rand::random())),
            migration: Migration::default(),
        }
    }

    /// What a text is, for a session whose settings are followed from backend to backend.
    pub(crate) fn classify_followed(
        &self,
        sql: &[u8],
        options: &ParseOptions,
        knowledge: &Knowledge,
    ) -> Verdict {
        let mut verdict = self.classifier.lock().classify_with(sql, options, &knowledge.view());
        verdict.by_pattern = knowledge.rules.matches(sql);
        router::unpin_followed(verdict, sql, options.standard_conforming_strings)
    }

    pub(crate) fn classifier_size(&self) -> (usize, usize) {
        let classifier = self.classifier.lock();
        (classifier.len(), classifier.bytes())
    }

    pub(crate) fn classifier_counts(&self) -> (u64, u64) {
        let classifier = self.classifier.lock();
        (classifier.hits(), classifier.misses())
    }
}

type Counts = HashMap<Arc<str>, u32, Seeded>;

/// How many clients there are of each name.
#[derive(Default)]
struct Census {
    databases: Counts,
    users: Counts,
}

/// How many clients there were before one came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Others {
    /// In all.
    pub(crate) all: u32,
    /// Of its database.
    pub(crate) database: u32,
    /// Of its user.
    pub(crate) user: u32,
}

/// Counts a client that has logged in until it is dropped; those of the admin database are not limited.
pub(crate) struct ClientCount {
    shared: Arc<Shared>,
    others: Others,
    /// Database and user of one that is limited.
    limited: Option<(Arc<str>, Arc<str>)>,
}

impl ClientCount {
    /// `limited` is the database and the user of one that counts for the limits.
    pub(crate) fn enter(shared: &Arc<Shared>, limited: Option<(&str, &str)>) -> Self {
        shared.deps.metrics.clients.inc();
        let (mut others, mut names) = (Others::default(), None);
        if let Some((database, user)) = limited {
            let mut census = shared.census.lock();
            let (database, of_database) = one_more(&mut census.databases, database);
            let (user, of_user) = one_more(&mut census.users, user);
            let all = shared.clients.fetch_add(1, Ordering::Relaxed);
            others = Others { all, database: of_database, user: of_user };
            names = Some((database, user));
        }
        Self { shared: Arc::clone(shared), others, limited: names }
    }

    /// Database and user of one that is limited: the same memory for all clients of that name.
    pub(crate) fn names(&self) -> Option<(Arc<str>, Arc<str>)> {
        self.limited.clone()
    }

    /// How many limited ones there were before this one.
    pub(crate) fn others(&self) -> Others {
        self.others
    }
}

/// The name as it is kept, and how many there were.
fn one_more(counts: &mut Counts, name: &str) -> (Arc<str>, u32) {
    let name = counts.get_key_value(name).map_or_else(|| Arc::from(name), |(known, _)| Arc::clone(known));
    let count = counts.entry(Arc::clone(&name)).or_default();
    *count += 1;
    (name, *count - 1)
}

/// Names of nobody are forgotten.
fn one_less(counts: &mut Counts, name: &str) {
    let Some(count) = counts.get_mut(name) else { return };
    *count = count.saturating_sub(1);
    if *count == 0 {
        counts.remove(name);
    }
}

impl Drop for ClientCount {
    fn drop(&mut self) {
        if let Some((database, user)) = &self.limited {
            let mut census = self.shared.census.lock();
            self.shared.clients.fetch_sub(1, Ordering::Relaxed);
            one_less(&mut census.databases, database);
            one_less(&mut census.users, user);
        }
        self.shared.deps.metrics.clients.dec();
    }
}
