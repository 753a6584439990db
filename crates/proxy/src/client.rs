//! From an accepted connection to a session: login, limits, cancel requests, the admin database.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use config::Config;
use protocol::error::{PgError, write_error};
use protocol::sqlstate::SqlState;
use protocol::startup::Replication;
use tokio::io::AsyncWriteExt;

use crate::connect::credentials;
use crate::console_session;
use crate::listener::{Accepted, Arrived};
use crate::login::{LoggedIn, LoginContext, LoginError, Outcome, login};
use crate::registry::{Flag, Names, Registered};
use crate::replication;
use crate::session::{Identity, Session};
use crate::settings::Settings;
use crate::shared::{ClientCount, Others, Shared, Worker};
use crate::stats::{Count, Tally};
use crate::workers::Workers;

/// How long a refused client may take to take the refusal.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);

/// What serves a client until it ends. Boxed, and apart from the login: thousands of sessions are idle, and none
/// should carry what it needed to get in.
type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Serves a connection that was accepted `here` on a worker that has little to do.
pub(crate) fn accept(here: &Worker, workers: &Workers, accepted: Accepted) {
    here.shared.deps.metrics.client_connections.inc();
    let Some(worker) = workers.of_newcomer(here.id) else { return };
    let admitting = Box::pin(admit(Arc::clone(worker), accepted));
    worker.tasks.spawn("session", async move {
        if let Some(serving) = admitting.await {
            serving.await;
        }
    });
}

/// Takes a connection through its login; a cancel request is carried out.
async fn admit(worker: Arc<Worker>, accepted: Accepted) -> Option<Serving> {
    let config = worker.shared.deps.config.load();
    let Arrived { stream, early, peer, local } = accepted
        .into_stream()
        .inspect_err(|error| tracing::debug!(error = %error, "connection lost before it was served"))
        .ok()?;
    let registered = worker.shared.registry.enter(peer, local);
    let tls = worker.shared.deps.tls.load();
    let context = LoginContext {
        config: &config,
        authenticator: &worker.shared.authenticator,
        peer,
        tls: tls.server.as_deref(),
        lookups: Some(&worker.shared.lookups),
    };
    if worker.shared.lobby.enter(&registered.entry) {
        tracing::warn!("too many connections that do not log in: the oldest was closed");
    }
    let Some(outcome) = unless_shut_down(&registered, Box::pin(login(stream, early, &context))).await else {
        tracing::debug!(client = registered.entry.id, peer = %peer, "connection closed during login: shutting down");
        return None;
    };
    match outcome {
        Ok(Outcome::Cancel { stream, pid, secret }) => {
            drop(registered);
            cancel(&worker.shared, pid, &secret).await;
            drop(stream);
            None
        }
        Ok(Outcome::LoggedIn(logged_in)) => enter(worker, registered, *logged_in, &config).await,
        Err(error) => {
            refused(&worker.shared, &registered, &error);
            None
        }
    }
}

/// Waits for a login; a shutdown waits for nobody who may never log in.
pub(crate) async fn unless_shut_down<T>(
    registered: &Registered,
    mut login: Pin<Box<impl Future<Output = T>>>,
) -> Option<T> {
    std::future::poll_fn(|cx| match login.as_mut().poll(cx) {
        Poll::Pending if registered.entry.is_raised(Flag::Kill, cx) || registered.entry.has(Flag::Drain) => {
            Poll::Ready(None)
        }
        polled => polled.map(Some),
    })
    .await
}

fn refused(shared: &Shared, registered: &Registered, error: &LoginError) {
    let kind = error.kind();
    if let Some(position) = LoginError::KINDS.iter().position(|known| *known == kind) {
        shared.deps.metrics.login_failures.inc(position);
    }
    if matches!(error, LoginError::Closed) {
        // A port check: not worth a line.
        tracing::debug!(client = registered.entry.id, peer = %registered.entry.peer, "connection closed before login");
    } else {
        tracing::warn!(client = registered.entry.id, peer = %registered.entry.peer, reason = kind, error = %error, "login refused");
    }
}

/// Sends a cancel request on to the backend that serves its client. The client's key is ours; one that
/// does not fit is ignored, as PostgreSQL does.
async fn cancel(shared: &Shared, pid: u32, secret: &[u8]) {
    shared.deps.metrics.cancel_requests.inc();
    let client = shared.registry.client(pid).filter(|client| client.secret.is(secret));
    let Some(on_its_way) = client.and_then(|client| client.begin_cancel()) else { return };
    let load = shared.loads.node(on_its_way.node());
    if let Err(error) = on_its_way.carry_out(load.cancels()).await {
        tracing::warn!(client = pid, error = %error, "cannot send a cancel request on");
    }
}

async fn enter(
    worker: Arc<Worker>,
    registered: Registered,
    logged_in: LoggedIn,
    config: &Config,
) -> Option<Serving> {
    let (id, since) = (registered.entry.id, Instant::now());
    registered.entry.secret.speaks(logged_in.minor);
    let in_console = config::ADMIN_DATABASES.contains(&logged_in.database.as_str());
    let names = (logged_in.database.as_str(), logged_in.user.as_str());
    let counted = ClientCount::enter(&worker.shared, (!in_console).then_some(names));
    let (database, user) = counted.names().unwrap_or_else(|| (names.0.into(), names.1.into()));
    registered.entry.set_names(Names {
        tls: logged_in.stream.tls().unwrap_or_default(),
        user: Arc::clone(&user),
        database: Arc::clone(&database),
        application_name: logged_in.application_name.as_str().into(),
        replication: logged_in.replication,
    });
    if let Some(error) = objection(&worker.shared, &counted, &logged_in, config, in_console) {
        tracing::warn!(client = id, user = logged_in.user, reason = %error.message, "client turned away");
        turn_away(logged_in, &error).await;
        return None;
    }
    if config.log_connections {
        let (user, database) = (&logged_in.user, &logged_in.database);
        tracing::info!(client = id, peer = %logged_in.peer, user, database, application_name = logged_in.application_name, "client connected");
    }
    let goodbye = Goodbye { id, user, database, since, log: config.log_disconnections, counted };
    if logged_in.replication != Replication::None {
        return Some(Box::pin(async move {
            goodbye.say(replication::run(worker, &registered, logged_in).await, None);
        }));
    }
    if !in_console {
        return Some(serving(worker, registered, logged_in, config, goodbye));
    }
    Some(Box::pin(async move {
        goodbye.say(console_session::run(&worker, &registered, logged_in).await, None);
    }))
}

fn serving(
    worker: Arc<Worker>,
    registered: Registered,
    logged_in: LoggedIn,
    config: &Config,
    goodbye: Goodbye,
) -> Serving {
    let identity = identity(&logged_in, (&goodbye.database, &goodbye.user), config);
    let LoggedIn { stream, leftover, due, .. } = logged_in;
    run(Box::new(Session::new(worker, registered, stream, identity, (&leftover, &due))), goodbye)
}

/// Serves a client until it leaves, or goes on with another worker.
fn run(mut session: Box<Session>, goodbye: Goodbye) -> Serving {
    Box::pin(async move {
        let tally = session.tally();
        let end = session.run().await;
        match session.leave() {
            Some(worker) => move_to(worker, session, goodbye),
            None => {
                tracing::debug!(client = goodbye.id, end = %end, "session ended");
                goodbye.say(end.kind(), Some(&tally));
            }
        }
    })
}

/// From here on the session is the other worker's.
fn move_to(worker: Arc<Worker>, session: Box<Session>, goodbye: Goodbye) {
    worker.shared.deps.metrics.sessions_moved.inc();
    let to = Arc::clone(&worker);
    worker.tasks.spawn("session", async move {
        let tally = session.tally();
        match session.arrive(to) {
            Ok(session) => run(session, goodbye).await,
            Err(error) => {
                tracing::warn!(client = goodbye.id, error = %error, "client lost: its socket cannot be moved to another worker");
                goodbye.say("client_lost", Some(&tally));
            }
        }
    });
}

/// What is to be done when a client has left.
struct Goodbye {
    id: u32,
    user: Arc<str>,
    database: Arc<str>,
    since: Instant,
    log: bool,
    counted: ClientCount,
}

impl Goodbye {
    fn say(self, why: &'static str, tally: Option<&Tally>) {
        drop(self.counted);
        if self.log {
            said_goodbye((self.id, &self.user, &self.database), self.since, why, tally);
        }
    }
}

/// The one line of a session's end, with its sums.
fn said_goodbye(
    (client, user, database): (u32, &str, &str),
    since: Instant,
    reason: &str,
    tally: Option<&Tally>,
) {
    let seconds = since.elapsed().as_secs_f64();
    let Some(tally) = tally else {
        return tracing::info!(client, user, database, reason, seconds, "client disconnected");
    };
    let own = |what| tally.own(what);
    tracing::info!(
        client,
        user,
        database,
        reason,
        seconds,
        transactions = own(Count::Transactions),
        queries = own(Count::Queries),
        errors = own(Count::Errors),
        received_bytes = own(Count::Received),
        sent_bytes = own(Count::Sent),
        query_ms = own(Count::QueryNanos) / 1_000_000,
        wait_ms = own(Count::WaitNanos) / 1_000_000,
        "client disconnected"
    );
}

fn identity(logged_in: &LoggedIn, (database, user): (&Arc<str>, &Arc<str>), config: &Config) -> Identity {
    let on_nodes = config.dbname(database);
    Identity {
        user: Arc::clone(user),
        database: Arc::clone(database),
        node_database: if *on_nodes == **database { Arc::clone(database) } else { on_nodes.into() },
        credentials: credentials(logged_in.secret.as_ref(), &logged_in.learned),
        settings: Arc::new(Settings::new(logged_in.settings.iter().cloned())),
    }
}

/// Why a client that has proved itself may not stay.
fn objection(
    shared: &Shared,
    counted: &ClientCount,
    logged_in: &LoggedIn,
    config: &Config,
    in_console: bool,
) -> Option<PgError> {
    if shared.draining.load(Ordering::Acquire) {
        return Some(PgError::fatal(SqlState::CANNOT_CONNECT_NOW, "pgweir is shutting down"));
    }
    if in_console && logged_in.replication != Replication::None {
        return Some(replication::no_replica_of_the_console());
    }
    if shared.gates.is_disabled(&logged_in.database) {
        let text = format!("database \"{}\" is not currently accepting connections", logged_in.database);
        let error = PgError::fatal(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, text);
        return Some(error.with_hint("An administrator has used DISABLE; ENABLE ends it."));
    }
    let user = &logged_in.user;
    if in_console && !config.admin_users.contains(user) && !config.stats_users.contains(user) {
        let text = format!("user \"{user}\" may not use the admin database");
        let error = PgError::fatal(SqlState::INSUFFICIENT_PRIVILEGE, text);
        return Some(error.with_hint("Add the user to admin_users or stats_users."));
    }
    if in_console { None } else { too_many(counted.others(), logged_in, config) }
}

/// The limit that one client more would pass. With those of PostgreSQL for a database and for a role, the words
/// are its own.
fn too_many(others: Others, logged_in: &LoggedIn, config: &Config) -> Option<PgError> {
    let (database, user) = (&logged_in.database, &logged_in.user);
    let limits = [
        ("max_client_conn", Some(config.max_client_conn), others.all),
        ("max_db_client_connections", config.max_db_client_connections(database), others.database),
        ("max_user_client_connections", config.max_user_client_connections(user), others.user),
    ];
    let reached = |(_, limit, others): &(&str, Option<u32>, u32)| limit.is_some_and(|limit| *others >= limit);
    let (name, limit, _) = limits.into_iter().find(reached)?;
    let text = match name {
        "max_db_client_connections" => format!("too many connections for database \"{database}\""),
        "max_user_client_connections" => format!("too many connections for role \"{user}\""),
        _ => "sorry, too many clients already".to_owned(),
    };
    let detail = format!("{name} is {}.", limit.unwrap_or_default());
    Some(PgError::fatal(SqlState::TOO_MANY_CONNECTIONS, text).with_detail(detail))
}

async fn turn_away(logged_in: LoggedIn, error: &PgError) {
    let LoggedIn { mut stream, due: mut out, .. } = logged_in;
    write_error(&mut out, error);
    // It is turned away whether it hears why or not.
    let telling = async {
        stream.write_all(&out).await?;
        stream.flush().await
    };
    let _ = tokio::time::timeout(REFUSAL_TIMEOUT, telling).await;
}
