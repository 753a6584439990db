//! How a session ends: what the client is told, what becomes of its backend.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use cluster::NodeId;
use protocol::error::{ClientFacing, PgError, write_error};
use protocol::sqlstate::SqlState;

use super::Session;
use super::deadline::Limit;
use crate::backend::Backend;
use crate::engine::Violation;
use crate::stats::Count;

/// How long a client may take to take its last message.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);
/// `ERRCODE_TRANSACTION_TIMEOUT`, since PostgreSQL 17.
const TRANSACTION_TIMEOUT: SqlState = SqlState(*b"25P04");

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    /// The client said goodbye.
    #[error("terminated")]
    Terminated,
    /// The client's stream ended without a goodbye.
    #[error("client closed the connection")]
    ClientLeft,
    /// The client's socket failed.
    #[error("client connection lost: {0}")]
    ClientGone(io::Error),
    /// Shutdown, at a transaction border.
    #[error("shut down")]
    Drained,
    /// Shutdown, at once, or an administrator's command.
    #[error("killed")]
    Killed,
    /// The node's socket failed or ended.
    #[error("node connection lost: {0}")]
    NodeLost(io::Error),
    /// The node must not be used any more.
    #[error("node {node} fenced")]
    Fenced {
        /// The node.
        node: NodeId,
        /// Something was in flight.
        busy: bool,
    },
    /// What was prepared has other columns by now: not the session's end, its unit is repeated.
    #[error("columns have changed")]
    Outdated,
    /// The login, or settings that it asked for, were refused. Boxed: how a session may end is held over its waits, more
    /// than once.
    #[error("refused: {}", .0.message)]
    Refused(Box<PgError>),
    /// Not the session's end: it goes on with another worker.
    #[error("goes on with another worker")]
    Moved,
    /// A time limit.
    #[error("{} reached", .0.as_str())]
    Overdue(Limit),
    /// One side did not keep to the protocol.
    #[error("protocol violation: {0}")]
    Violation(Violation),
}

impl End {
    pub(crate) fn refused(error: PgError) -> Self {
        Self::Refused(Box::new(error))
    }

    /// The word that logs and metrics use.
    #[must_use]
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Terminated => "terminated",
            Self::ClientLeft => "client_left",
            Self::ClientGone(_) => "client_lost",
            Self::Drained => "drained",
            Self::Killed => "killed",
            Self::NodeLost(_) => "node_lost",
            Self::Fenced { .. } => "node_fenced",
            Self::Outdated => "outdated",
            Self::Moved => "moved",
            Self::Refused(_) => "refused",
            Self::Overdue(limit) => limit.as_str(),
            Self::Violation(_) => "protocol_violation",
        }
    }

    /// What to tell the client, if it can still be told.
    pub(crate) fn farewell(&self) -> Option<PgError> {
        match self {
            Self::Terminated | Self::ClientLeft | Self::ClientGone(_) | Self::Outdated | Self::Moved => None,
            Self::Drained | Self::Killed => Some(PgError::fatal(
                SqlState::ADMIN_SHUTDOWN,
                "terminating connection due to administrator command",
            )),
            Self::NodeLost(_) => Some(
                PgError::fatal(SqlState::CONNECTION_FAILURE, "the node closed the connection unexpectedly")
                    .with_detail("Whether the statement in flight took effect is not known."),
            ),
            Self::Fenced { node, busy } => {
                let text = format!("terminating connection because node {node} is not in use any more");
                let unknown = "Whether the statement in flight took effect is not known.";
                let undone = "Nothing was in flight; an open transaction is rolled back.";
                Some(
                    PgError::fatal(SqlState::ADMIN_SHUTDOWN, text)
                        .with_detail(if *busy { unknown } else { undone })
                        .with_hint("Connect again; SHOW POOL_NODES tells the state of the nodes."),
                )
            }
            Self::Refused(error) => Some((**error).clone()),
            Self::Overdue(limit) => Some(overdue(*limit)),
            Self::Violation(violation) => Some(violation.to_client()),
        }
    }
}

/// PostgreSQL's words for the same limits of its own (`postgres.c`).
fn overdue(limit: Limit) -> PgError {
    let (code, what) = match limit {
        Limit::ClientIdle => (SqlState::IDLE_SESSION_TIMEOUT, "idle-session timeout"),
        Limit::IdleTransaction => {
            (SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT, "idle-in-transaction timeout")
        }
        Limit::Transaction => (TRANSACTION_TIMEOUT, "transaction timeout"),
        Limit::Query | Limit::Cancel => {
            let text = "terminating connection because the server did not cancel an overdue statement";
            let detail = "Whether the statement in flight took effect is not known.";
            let error = PgError::fatal(SqlState::QUERY_CANCELED, text).with_detail(detail);
            return error.with_hint("The limit is pgweir's query_timeout.");
        }
    };
    PgError::fatal(code, format!("terminating connection due to {what}"))
        .with_hint(format!("The limit is pgweir's {}.", limit.as_str()))
}

impl Session {
    /// Tells the client why, and lets go of what it has.
    pub(super) async fn finish(&mut self, end: &End) {
        if self.engine.saw_fatal() && matches!(end, End::NodeLost(_)) {
            // The server's own words are on their way to the client.
        } else if self.engine.is_inside_answer() {
            tracing::debug!(
                client = self.client.entry.id,
                "client not told why: it is in the middle of a message"
            );
        } else if let Some(error) = end.farewell() {
            self.worker.shared.deps.metrics.errors.inc(&error.code.0);
            self.tally.add(Count::Errors, 1);
            self.to_client.own(|own| write_error(own, &error));
        }
        // A client that takes nothing is left behind.
        if !self.to_client.is_empty() {
            let _ = tokio::time::timeout(FAREWELL_TIMEOUT, self.flush()).await;
        }
        if self.engine.may_yield() {
            self.habits.held_in_vain();
        }
        self.reset_kept().await;
        self.return_buffers();
    }

    /// A backend that the client leaves in the middle: closed, and what it does is cancelled.
    pub(super) fn abandon(&mut self, backend: Box<Backend>, end: &End) {
        self.client.entry.unbind();
        self.work = None;
        let deaf =
            matches!(end, End::NodeLost(_) | End::Fenced { .. } | End::Violation(Violation::Desync(_)));
        let busy = self.engine.tracker().owes() && !deaf && !self.engine.saw_fatal();
        if !busy {
            return if self.engine.is_settled() { backend.close() } else { drop(backend) };
        }
        let (key, load) = (Arc::clone(&backend.key), self.worker.shared.loads.node(backend.node));
        // The connection stays open until the server has the request: its process would not be found else.
        self.worker.tasks.spawn("cancel", async move {
            if let Err(error) = load.cancels().send(&key).await {
                tracing::warn!(error = %error, "cannot cancel what a lost client asked for");
            }
            drop(backend);
        });
    }
}
