//! The commands that the console may give: those about sessions are the proxy's, the others go to the supervisor.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use admin::AdminControl;
use admin::view::{Databases, NodeOrder, Outcome, Shutdown};
use cluster::{Event, Hook, Insist, NodeId, Topology};
use config::Config;
use protocol::error::PgError;
use protocol::sqlstate::SqlState;
use proxy::Proxy;
use proxy::gates::Scope;
use telemetry::Published;
use telemetry::logging::LoggingError;
use tokio::sync::{mpsc, oneshot};

use crate::actor::{Cluster, CommandError};
use crate::hook;
use crate::recoveries::Recoveries;
use crate::reload::ReloadError;

/// Commands that wait for the supervisor.
const CHANNEL: usize = 16;
/// A promotion is not waited for longer than this.
const PROMOTED_WITHIN: Duration = Duration::from_secs(60);
/// PostgreSQL's code for a configuration file that cannot be used.
const CONFIG_FILE_ERROR: SqlState = SqlState(*b"F0000");

/// What the supervisor is asked to do, and where the answer goes.
pub(crate) enum Command {
    Reload(oneshot::Sender<Result<String, ReloadError>>),
    Set { key: String, value: String, reply: oneshot::Sender<Result<String, ReloadError>> },
    ReopenLogs(oneshot::Sender<Result<(), LoggingError>>),
    Shutdown(Shutdown, oneshot::Sender<Result<(), Already>>),
}

/// The process is ending already, in a mode at least as strict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Already;

/// The console's end.
pub(crate) struct Control {
    supervisor: mpsc::Sender<Command>,
    proxy: Arc<OnceLock<Arc<Proxy>>>,
    cluster: Cluster,
    snapshots: Snapshots,
}

/// What the commands look at.
pub(crate) struct Snapshots {
    pub(crate) topology: Published<Topology>,
    pub(crate) config: Published<Config>,
    pub(crate) recoveries: Published<Recoveries>,
}

/// The two ends. The proxy comes to life later.
pub(crate) fn channel(
    proxy: Arc<OnceLock<Arc<Proxy>>>,
    cluster: Cluster,
    snapshots: Snapshots,
) -> (Control, mpsc::Receiver<Command>) {
    let (supervisor, receiver) = mpsc::channel(CHANNEL);
    (Control { supervisor, proxy, cluster, snapshots }, receiver)
}

impl Control {
    async fn ask<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, PgError> {
        let (reply, answer) = oneshot::channel();
        self.supervisor.send(make(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }

    /// Gives the order to the core.
    async fn order(&self, event: Event) -> Result<(), PgError> {
        self.cluster.command(event).await.map_err(|error| match error {
            CommandError::Refused(refusal) => not_now(refusal.to_string()),
            CommandError::Busy => PgError::error(SqlState::CANNOT_CONNECT_NOW, error.to_string()),
        })
    }

    /// Waits for the end of a promotion: that node takes writes, or another one does (again).
    async fn promoted(&self, node: NodeId) -> Result<String, PgError> {
        let mut changes = self.snapshots.topology.changes();
        let mut lost = false;
        let end = tokio::time::Instant::now() + PROMOTED_WITHIN;
        loop {
            match self.snapshots.topology.load().primary {
                Some(primary) if primary == node => return Ok(format!("node {node} is the primary")),
                Some(primary) if lost => {
                    let text = format!("node {node} was not promoted; node {primary} is the primary");
                    return Err(not_now(text).with_hint("pgweir's log says why."));
                }
                Some(_) => {}
                None => lost = true,
            }
            if !matches!(tokio::time::timeout_at(end, changes.changed()).await, Ok(Ok(()))) {
                let text = format!("node {node} does not take writes yet; SHOW NODES tells when it does");
                return Err(not_now(text).with_hint("pgweir's log says how far it is."));
            }
        }
    }

    /// Rebuilds a node, and waits until it streams.
    async fn recover(&self, node: NodeId) -> Result<String, PgError> {
        if hook::command(&self.snapshots.config.load(), Hook::Recovery).is_none() {
            return Err(not_now("recovery_command is not configured: nothing can rebuild a node").with_hint(
                "etc/failover/rejoin.sh is a sample for it; docs/failover.md tells how to use it.",
            ));
        }
        let mut changes = self.snapshots.recoveries.changes();
        self.order(Event::AdminRecover { node }).await?;
        let run = self.snapshots.recoveries.load().latest(node).map(|told| told.run).ok_or_else(gone)?;
        loop {
            let recoveries = self.snapshots.recoveries.load();
            // It is kept for long after its end.
            if let Some(outcome) = recoveries.of(run).ok_or_else(gone)?.outcome() {
                return outcome;
            }
            changes.changed().await.map_err(|_| gone())?;
        }
    }

    fn proxy(&self) -> Result<&Proxy, PgError> {
        self.proxy.get().map(|proxy| &**proxy).ok_or_else(gone)
    }

    /// The proxy, and the databases that are meant.
    fn scope(&self, databases: Databases) -> Result<(&Proxy, Scope), PgError> {
        let proxy = self.proxy()?;
        match databases {
            Databases::All => Ok((proxy, Scope::All)),
            Databases::One(name) if proxy.knows(&name) => Ok((proxy, Scope::Database(name))),
            Databases::One(name) => Err(unknown(&name)),
        }
    }
}

fn gone() -> PgError {
    PgError::error(SqlState::ADMIN_SHUTDOWN, "pgweir is ending")
}

fn unknown(database: &str) -> PgError {
    PgError::error(SqlState::INVALID_CATALOG_NAME, format!("nobody uses a database \"{database}\""))
        .with_hint("SHOW DATABASES lists those that are configured or in use.")
}

fn not_now(text: impl Into<String>) -> PgError {
    PgError::error(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, text.into())
}

fn done<'a, T: Send + 'a>(outcome: Result<T, PgError>) -> Outcome<'a, T> {
    Box::pin(async move { outcome })
}

fn config_error(error: &ReloadError) -> PgError {
    PgError::error(CONFIG_FILE_ERROR, "the configuration is refused; nothing has changed")
        .with_detail(error.to_string())
}

impl AdminControl for Control {
    fn reload(&self) -> Outcome<'_, String> {
        Box::pin(async { self.ask(Command::Reload).await?.map_err(|error| config_error(&error)) })
    }

    fn set(&self, key: String, value: String) -> Outcome<'_, String> {
        Box::pin(async move {
            let set = self.ask(|reply| Command::Set { key, value, reply }).await?;
            set.map_err(|error| match &error {
                ReloadError::NeedsRestart(_) => {
                    PgError::error(SqlState::CANT_CHANGE_RUNTIME_PARAM, error.to_string())
                        .with_hint("Change it in the configuration file, and restart pgweir.")
                }
                _ => config_error(&error),
            })
        })
    }

    fn reset_statements(&self) -> Outcome<'_, ()> {
        done(self.scope(Databases::All).map(|(proxy, _)| proxy.forget_digests()))
    }

    fn reopen_logs(&self) -> Outcome<'_, ()> {
        Box::pin(async {
            let reopened = self.ask(Command::ReopenLogs).await?;
            reopened.map_err(|error| PgError::error(SqlState::SYSTEM_ERROR, error.to_string()))
        })
    }

    fn pause(&self, databases: Databases) -> Outcome<'_, ()> {
        Box::pin(async move {
            let (proxy, scope) = self.scope(databases)?;
            tracing::info!(?scope, "paused");
            match proxy.pause(&scope).await {
                true => Ok(()),
                false => Err(not_now("it was resumed before all transactions had ended")),
            }
        })
    }

    fn resume(&self, databases: Databases) -> Outcome<'_, ()> {
        done(self.scope(databases).and_then(|(proxy, scope)| {
            tracing::info!(?scope, "resumed");
            if proxy.resume(&scope) { Ok(()) } else { Err(not_now("nothing is paused")) }
        }))
    }

    fn reconnect(&self, databases: Databases) -> Outcome<'_, ()> {
        done(self.scope(databases).map(|(proxy, scope)| proxy.renew(&scope)))
    }

    fn wait_close(&self, databases: Databases) -> Outcome<'_, ()> {
        Box::pin(async move {
            let (proxy, scope) = self.scope(databases)?;
            proxy.wait_closed(&scope).await;
            Ok(())
        })
    }

    fn kill(&self, databases: Databases) -> Outcome<'_, ()> {
        done(self.scope(databases).map(|(proxy, scope)| proxy.kill(&scope)))
    }

    fn kill_client(&self, id: u32) -> Outcome<'_, ()> {
        let error = || {
            PgError::error(SqlState::UNDEFINED_OBJECT, format!("there is no client {id}"))
                .with_hint("SHOW CLIENTS has their numbers in the column id.")
        };
        done(self.proxy().and_then(|proxy| proxy.kill_client(id).then_some(()).ok_or_else(error)))
    }

    fn enable(&self, database: String) -> Outcome<'_, ()> {
        done(self.proxy().and_then(|proxy| {
            let was = proxy.gates().enable(&database);
            was.then_some(()).ok_or_else(|| not_now(format!("database \"{database}\" is not disabled")))
        }))
    }

    fn disable(&self, database: String) -> Outcome<'_, ()> {
        done(self.scope(Databases::One(database.clone())).and_then(|(proxy, _)| {
            let news = proxy.gates().disable(&database);
            news.then_some(()).ok_or_else(|| not_now(format!("database \"{database}\" is disabled already")))
        }))
    }

    fn node(&self, order: NodeOrder, node: u16) -> Outcome<'_, String> {
        let id = NodeId(node);
        Box::pin(async move {
            match order {
                NodeOrder::Attach => {
                    self.order(Event::AdminAttach { node: id }).await?;
                    Ok(format!("node {node} is used again as soon as its check succeeds"))
                }
                NodeOrder::Detach => {
                    self.order(Event::AdminDetach { node: id, insist: Insist::No }).await?;
                    Ok(format!(
                        "node {node} takes no new work; SHOW NODES tells when nothing runs on it any more"
                    ))
                }
                NodeOrder::DetachNow => {
                    self.order(Event::AdminDetach { node: id, insist: Insist::Force }).await?;
                    Ok(format!("node {node} is detached"))
                }
                NodeOrder::Promote => {
                    self.order(Event::AdminPromote { node: id }).await?;
                    self.promoted(id).await
                }
                NodeOrder::Recover => self.recover(id).await,
            }
        })
    }

    fn shutdown(&self, mode: Shutdown) -> Outcome<'_, ()> {
        Box::pin(async move {
            self.ask(|reply| Command::Shutdown(mode, reply)).await?.map_err(|Already| {
                let code = SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE;
                PgError::error(code, "pgweir is ending already")
            })
        })
    }
}
