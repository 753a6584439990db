//! Replication connections: each has a connection of its own to the primary, and bytes pass both ways as they are.
//!
//! Invariants: the connection is made for its client and closed with it, never pooled; it counts as a client, and
//! no time limit is for it. The server's greeting is the client's, but for the key, which is ours. A client that has
//! to go hears why at a message border, where it can. A shutdown that waits for transactions waits for commands that
//! end by themselves (a base backup), and not for streams, which do not.
//!
//! Source: protocol, "Streaming Replication Protocol".

mod pipe;
mod walk;

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use cluster::{Node, Observation};
use config::Config;
use protocol::error::{ClientFacing, PgError, write_error};
use protocol::sqlstate::SqlState;
use protocol::startup::Replication;
use protocol::write::{self, WriteError};
use telemetry::metrics::NodeMetrics;
use tokio::io::AsyncWriteExt;

use crate::cancel::CancelKey;
use crate::connect::{ConnectOptions, Connected, Keepalive, NodeAddress, credentials};
use crate::load::Counted;
use crate::login::LoggedIn;
use crate::open::connect_counted;
use crate::registry::{ClientState, Flag, NewServer, Registered, ServerEntry};
use crate::session::{End, no_primary};
use crate::shared::Worker;
use crate::stream::Stream;
use crate::tls::NodeTls;
use pipe::{Moved, Pipe};
use walk::Walk;

/// How long a client that has to go may take to come to the end of a message, and to take its last one.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves a client that replicates; gives why it ended.
pub(crate) async fn run(
    worker: Arc<Worker>,
    registered: &Registered,
    mut logged_in: LoggedIn,
) -> &'static str {
    let config = worker.shared.deps.config.load();
    let (leftover, due) = (std::mem::take(&mut logged_in.leftover), std::mem::take(&mut logged_in.due));
    let connected = Box::pin(begin(&worker, registered, &logged_in, &config));
    let end = match crate::client::unless_shut_down(registered, connected).await {
        None => Err((End::Drained, logged_in.stream)),
        Some(Err(end)) => Err((end, logged_in.stream)),
        Some(Ok(begun)) => Ok(begun.session(worker, registered, logged_in.stream, (&leftover, &due))),
    };
    match end {
        Ok(session) => Box::pin(session.serve()).await.kind(),
        Err((end, mut stream)) => {
            let mut out = due;
            if let Some(error) = end.farewell() {
                write_error(&mut out, &error);
            }
            // It is turned away whether it hears why or not.
            let telling = async {
                stream.write_all(&out).await?;
                stream.flush().await
            };
            let _ = tokio::time::timeout(FAREWELL_TIMEOUT, telling).await;
            end.kind()
        }
    }
}

/// A connection to the primary that has logged in.
struct Begun {
    connected: Connected,
    key: Arc<CancelKey>,
    entry: Arc<ServerEntry>,
    metrics: Option<Arc<NodeMetrics>>,
    load: Counted,
}

async fn begin(
    worker: &Worker,
    registered: &Registered,
    logged_in: &LoggedIn,
    config: &Config,
) -> Result<Begun, End> {
    let shared = &worker.shared;
    let topology = shared.deps.topology.load();
    let node =
        topology.primary_node().ok_or_else(|| End::refused(no_primary(Duration::ZERO).into_fatal()))?;
    let address = Arc::new(NodeAddress { hostname: node.hostname.to_string(), port: node.port });
    let options =
        connect_options(logged_in, config, Arc::clone(&address), Arc::clone(&shared.deps.tls.load().nodes));
    let metrics = shared.node_metrics(node);
    let connected = connect_counted(metrics.as_ref(), &options).await.map_err(|error| {
        let (node, failure) = (node.id, error.kind());
        if let Some(left_out) = shared.connect_log.admit(node, failure, &logged_in.user, Instant::now()) {
            tracing::warn!(node = %node, user = logged_in.user, failure = failure.as_str(), error = %error, left_out, "cannot connect to node for replication");
        }
        if !error.is_ours() {
            shared.observe(Observation::ConnectFailed { node, epoch: topology.epoch, failure });
        }
        End::refused(error.to_client().into_fatal())
    })?;
    let entry = shared.registry.enter_server(NewServer {
        node: node.id,
        database: options.database.as_str().into(),
        user: options.user.as_str().into(),
        pid: connected.backend_pid,
        ends: connected.stream.ends(),
        tls: connected.stream.tls().map(Into::into),
        metrics: metrics.clone(),
        replication: logged_in.replication,
    });
    let key = Arc::new(CancelKey {
        node: node.id,
        address,
        pid: connected.backend_pid,
        secret: connected.secret.as_slice().into(),
        tls: connected.stream.tls().map(|_| Arc::clone(&options.tls)),
    });
    let load = shared.loads.node(node.id).connection();
    lend(worker, registered, &key, &entry, node)?;
    Ok(Begun { connected, key, entry, metrics, load })
}

/// The connection is the client's, unless its node is no primary any more. The client is bound before it is looked,
/// and the fence looks at who is bound after the topology was replaced: one of both sees it.
fn lend(
    worker: &Worker,
    registered: &Registered,
    key: &Arc<CancelKey>,
    entry: &ServerEntry,
    node: &Node,
) -> Result<(), End> {
    let client = &registered.entry;
    client.bind(key, entry.id, node.role);
    entry.lent(client.id, Instant::now());
    client.set_state(ClientState::Active);
    let topology = worker.shared.deps.topology.load();
    if client.lease().is_some_and(|lease| lease.is_fenced(&topology)) {
        return Err(End::Fenced { node: node.id, busy: false });
    }
    Ok(())
}

/// As the client itself would connect.
fn connect_options(
    logged_in: &LoggedIn,
    config: &Config,
    address: Arc<NodeAddress>,
    tls: Arc<NodeTls>,
) -> ConnectOptions {
    let (kind, database) = match logged_in.replication {
        Replication::Database => ("database", config.dbname(&logged_in.database).to_owned()),
        _ => ("true", logged_in.database.clone()),
    };
    let mut params = logged_in.settings.clone();
    params.push(("replication".to_owned(), kind.to_owned()));
    ConnectOptions {
        address,
        tls,
        user: logged_in.user.clone(),
        database,
        params,
        credentials: credentials(logged_in.secret.as_ref(), &logged_in.learned),
        connect_timeout: config.connect_timeout,
        keepalive: Keepalive::from(config),
    }
}

impl Begun {
    fn session<'a>(
        self,
        worker: Arc<Worker>,
        registered: &'a Registered,
        client: Stream,
        (leftover, due): (&[u8], &[u8]),
    ) -> Relay<'a> {
        let mut relay = Relay {
            worker,
            registered,
            client,
            server: self.connected.stream,
            up: Pipe::with(leftover),
            down: Pipe::default(),
            asked: Walk::default(),
            said: Walk::default(),
            key: self.key,
            entry: self.entry,
            metrics: self.metrics,
            _load: self.load,
        };
        relay.asked.feed(leftover);
        let mut greeting = BytesMut::new();
        let written = relay.greeting(&mut greeting, &self.connected.parameters);
        debug_assert!(written.is_ok(), "what a server says can be said again");
        greeting.extend_from_slice(&self.connected.leftover);
        relay.said.feed(&greeting);
        relay.down = Pipe::with(&[due, &greeting].concat());
        relay
    }
}

/// A client and its connection.
struct Relay<'a> {
    worker: Arc<Worker>,
    registered: &'a Registered,
    client: Stream,
    server: Stream,
    up: Pipe,
    down: Pipe,
    /// How far the client is.
    asked: Walk,
    /// How far the server is.
    said: Walk,
    key: Arc<CancelKey>,
    entry: Arc<ServerEntry>,
    metrics: Option<Arc<NodeMetrics>>,
    _load: Counted,
}

impl Relay<'_> {
    fn greeting(&self, out: &mut BytesMut, parameters: &[(String, String)]) -> Result<(), WriteError> {
        for (name, value) in parameters {
            write::parameter_status(out, name, value)?;
        }
        let client = &self.registered.entry;
        write::backend_key_data(out, client.id, client.secret.bytes())?;
        write::ready_for_query(out, b'I');
        Ok(())
    }

    async fn serve(mut self) -> End {
        let end = std::future::poll_fn(|cx| self.poll(cx)).await;
        tracing::debug!(client = self.registered.entry.id, node = %self.entry.node, end = %end, "replication ended");
        // A client that takes nothing is left behind.
        let _ = tokio::time::timeout(FAREWELL_TIMEOUT, self.farewell(&end)).await;
        if matches!(end, End::NodeLost(_)) && !self.said.ends_with_error() {
            let epoch = self.worker.shared.deps.topology.load().epoch;
            self.worker.shared.observe(Observation::BackendLost { node: self.entry.node, epoch });
        }
        self.abandon(&end);
        end
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            if let Some(end) = self.asked_to_end(cx) {
                return Poll::Ready(end);
            }
            let moved = match (self.poll_up(cx), self.poll_down(cx)) {
                (Ok(up), Ok(down)) => up | down,
                // What the server said before is worth more than that the client's bytes cannot be passed.
                (_, Err(end)) | (Err(end), _) => return Poll::Ready(end),
            };
            if !moved {
                return Poll::Pending;
            }
        }
    }

    fn asked_to_end(&self, cx: &Context<'_>) -> Option<End> {
        let client = &self.registered.entry;
        if client.is_raised(Flag::Kill, cx) {
            return Some(End::Killed);
        }
        if client.has(Flag::Fence) {
            client.lower(Flag::Fence);
            let topology = self.worker.shared.deps.topology.load();
            if client.lease().is_some_and(|lease| lease.is_fenced(&topology)) {
                return Some(End::Fenced { node: self.entry.node, busy: !self.said.is_idle() });
            }
        }
        let rests = self.said.is_streaming() || (self.said.is_idle() && self.up.is_empty());
        (rests && client.has(Flag::Drain)).then_some(End::Drained)
    }

    fn poll_up(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let metrics = &self.worker.shared.deps.metrics;
        let moved = self.up.poll(cx, &mut self.client, &mut self.server, None);
        match moved {
            Moved::Nothing => Ok(false),
            Moved::Read(bytes) => {
                metrics.client_received_bytes.inc_by(bytes.len() as u64);
                self.asked.feed(bytes);
                self.said.asked();
                self.registered.entry.set_request(Instant::now());
                Ok(true)
            }
            Moved::Written(count) => {
                if let Some(node) = &self.metrics {
                    node.sent_bytes.inc_by(count as u64);
                }
                Ok(true)
            }
            Moved::End => Err(if self.asked.said_goodbye() { End::Terminated } else { End::ClientLeft }),
            Moved::ReadFailed(error) => Err(End::ClientGone(error)),
            // The reason is on its way from the server; if not, its end is.
            Moved::WriteFailed(_) => {
                self.up.clear();
                Ok(true)
            }
        }
    }

    fn poll_down(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        self.move_down(cx, None)
    }

    /// Server to client, reading at most `most` bytes.
    fn move_down(&mut self, cx: &mut Context<'_>, most: Option<usize>) -> Result<bool, End> {
        match self.down.poll(cx, &mut self.server, &mut self.client, most) {
            Moved::Nothing => Ok(false),
            Moved::Read(bytes) => {
                if let Some(node) = &self.metrics {
                    node.received_bytes.inc_by(bytes.len() as u64);
                }
                self.said.feed(bytes);
                Ok(true)
            }
            Moved::Written(count) => {
                self.worker.shared.deps.metrics.client_sent_bytes.inc_by(count as u64);
                Ok(true)
            }
            Moved::End if self.asked.said_goodbye() => Err(End::Terminated),
            Moved::End => Err(End::NodeLost(io::ErrorKind::UnexpectedEof.into())),
            Moved::ReadFailed(error) => Err(End::NodeLost(error)),
            Moved::WriteFailed(error) => Err(End::ClientGone(error)),
        }
    }

    /// Tells the client why, behind the message that is on its way to it.
    async fn farewell(&mut self, end: &End) {
        let Some(error) = end.farewell() else { return };
        let node_lost = matches!(end, End::NodeLost(_));
        if node_lost && self.said.ends_with_error() {
            // The server's own words are there.
            return;
        }
        let at_border = std::future::poll_fn(|cx| self.poll_to_border(cx)).await;
        if !at_border {
            return;
        }
        self.worker.shared.deps.metrics.errors.inc(&error.code.0);
        let mut out = BytesMut::new();
        write_error(&mut out, &error);
        // It goes whether it hears why or not.
        if self.client.write_all(&out).await.is_ok() {
            let _ = self.client.flush().await;
        }
    }

    /// Ready when the client has got whole messages only (true), or never will (false).
    fn poll_to_border(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        loop {
            let Some(missing) = self.said.missing() else { return Poll::Ready(false) };
            if self.down.is_empty() && missing == 0 {
                return Poll::Ready(true);
            }
            match self.move_down(cx, Some(missing)) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(_) => return Poll::Ready(false),
            }
        }
    }

    /// Closes the connection; what the server does for it is cancelled.
    fn abandon(self, end: &End) {
        self.registered.entry.unbind();
        let deaf = matches!(end, End::NodeLost(_) | End::Fenced { .. });
        if deaf || self.said.is_idle() || self.asked.said_goodbye() {
            return;
        }
        let (key, server) = (self.key, self.server);
        let load = self.worker.shared.loads.node(key.node);
        // The connection stays open until the server has the request: its process would not be found else.
        self.worker.tasks.spawn("cancel", async move {
            if let Err(error) = load.cancels().send(&key).await {
                tracing::warn!(error = %error, "cannot cancel the replication of a client that is gone");
            }
            drop(server);
        });
    }
}

/// Why a client may not replicate the admin database.
pub(crate) fn no_replica_of_the_console() -> PgError {
    PgError::fatal(SqlState::FEATURE_NOT_SUPPORTED, "the admin database cannot be replicated")
}
