//! Making a backend for a pool.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use cluster::Node;
use config::Config;
use protocol::auth::Credentials;
use protocol::startup::Replication;
use telemetry::metrics::{BackendState, NodeMetrics};

use crate::backend::Backend;
use crate::cancel::CancelKey;
use crate::connect::{ConnectError, ConnectOptions, Connected, Keepalive, NodeAddress, connect};
use crate::engine::Books;
use crate::pool::Slot;
use crate::registry::NewServer;
use crate::session::Identity;
use crate::settings::Parameters;
use crate::shared::Worker;
use crate::tls::NodeTls;

/// As whom backends are opened.
#[derive(Debug)]
pub(crate) struct OpenAs {
    /// What clients call the database.
    pub(crate) database: Arc<str>,
    /// What the node calls it.
    pub(crate) node_database: Arc<str>,
    /// The user.
    pub(crate) user: Arc<str>,
    /// How to log in.
    pub(crate) credentials: Credentials,
}

impl From<&Identity> for OpenAs {
    fn from(identity: &Identity) -> Self {
        Self {
            database: Arc::clone(&identity.database),
            node_database: Arc::clone(&identity.node_database),
            user: Arc::clone(&identity.user),
            credentials: identity.credentials.clone(),
        }
    }
}

/// Connects to `node` as `who` says, and takes the place `slot` with the result.
pub(crate) fn open(
    worker: &Arc<Worker>,
    who: Arc<OpenAs>,
    config: &Config,
    slot: Slot,
    node: &Node,
) -> impl Future<Output = Result<Box<Backend>, ConnectError>> + Send + use<> {
    let address = slot.pool().map(|pool| Arc::clone(&pool.address));
    let address = address
        .unwrap_or_else(|| Arc::new(NodeAddress { hostname: node.hostname.to_string(), port: node.port }));
    let options = connect_options(&who, config, address, Arc::clone(&worker.shared.deps.tls.load().nodes));
    let worker = Arc::clone(worker);
    let (id, epoch) = (node.id, node.changed_epoch);
    let metrics = worker.shared.node_metrics(node);
    async move {
        let mut slot = slot;
        let connected = match connect_counted(metrics.as_ref(), &options).await {
            Ok(connected) => connected,
            Err(error) => {
                if let Some(pool) = slot.pool() {
                    pool.retry.failed(Instant::now(), rand::random());
                }
                return Err(error);
            }
        };
        slot.connected();
        let OpenAs { database, node_database, user, .. } = &*who;
        let shared = &worker.shared;
        let entry = shared.registry.enter_server(NewServer {
            node: id,
            database: Arc::clone(node_database),
            user: Arc::clone(user),
            pid: connected.backend_pid,
            ends: connected.stream.ends(),
            tls: connected.stream.tls().map(Into::into),
            metrics,
            replication: Replication::None,
        });
        let mut parameters = Parameters::default();
        connected.parameters.iter().for_each(|(name, value)| parameters.set(name, value));
        shared.greetings.learn(database, user, &parameters);
        if let Some(pool) = slot.pool() {
            pool.has_opened(Arc::clone(&who));
        }
        let key = Arc::new(CancelKey {
            node: id,
            address: options.address,
            pid: connected.backend_pid,
            secret: connected.secret.into(),
            tls: connected.stream.tls().map(|_| options.tls),
        });
        let now = Instant::now();
        Ok(Box::new(Backend {
            stream: connected.stream,
            books: Books { parameters, ..Books::default() },
            key,
            node: id,
            epoch,
            worker: worker.id,
            opened: now,
            idle_since: now,
            entry,
            slot,
        }))
    }
}

/// Connects, and counts that.
pub(crate) async fn connect_counted(
    metrics: Option<&Arc<NodeMetrics>>,
    options: &ConnectOptions,
) -> Result<Connected, ConnectError> {
    let connecting = metrics.map(Connecting::new);
    let began = Instant::now();
    let connected = connect(options).await;
    if let (Some(metrics), Ok(_)) = (&metrics, &connected) {
        metrics.connect_time.observe(began.elapsed().as_secs_f64());
    }
    drop(connecting);
    if let (Some(metrics), Err(error)) = (metrics, &connected) {
        metrics.connect_failures.inc(error.kind() as usize);
    }
    connected
}

/// Counts a connection that is being made, until it is dropped: whoever wanted it may leave meanwhile.
struct Connecting(Arc<NodeMetrics>);

impl Connecting {
    fn new(metrics: &Arc<NodeMetrics>) -> Self {
        metrics.connects.inc();
        metrics.backend_moved(None, Some(BackendState::Connecting));
        Self(Arc::clone(metrics))
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.0.backend_moved(Some(BackendState::Connecting), None);
    }
}

/// How to connect as `who`.
pub(crate) fn connect_options(
    who: &OpenAs,
    config: &Config,
    address: Arc<NodeAddress>,
    tls: Arc<NodeTls>,
) -> ConnectOptions {
    ConnectOptions {
        address,
        tls,
        user: who.user.to_string(),
        database: who.node_database.to_string(),
        // Nothing of the client's: what it asks for comes and goes with it.
        params: Vec::new(),
        credentials: who.credentials.clone(),
        connect_timeout: config.connect_timeout,
        keepalive: Keepalive::from(config),
    }
}
