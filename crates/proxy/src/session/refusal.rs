//! Why a unit of work is refused for want of a backend, and what its client is told.

use std::time::Duration;

use cluster::NodeId;
use protocol::error::{ClientFacing, PgError};
use protocol::sqlstate::SqlState;

use super::busy::{busy, paused};
use crate::connect::ConnectError;
use crate::pool::{PoolKey, Scope};

/// Why a unit gets no backend; the session goes on.
#[derive(Debug)]
pub(super) enum Refusal {
    /// No node takes writes.
    NoPrimary {
        /// How long one was waited for.
        waited: Duration,
    },
    /// No node is up.
    NoNode,
    /// The nodes that are up are not known to show what the session has written.
    Stale,
    /// All backends of the pool are taken.
    Busy {
        /// The pool. Boxed: a refusal is held over waits.
        pool: Box<PoolKey>,
        /// What is full: what it shares with other pools, or `None` for the pool itself.
        full: Option<Scope>,
        /// How many backends there are.
        size: u32,
        /// How long it was waited.
        waited: Duration,
    },
    /// The node could not be connected to, or refused.
    Connect(NodeId, Box<ConnectError>),
    /// The node went out of use while it was waited for.
    Gone(NodeId),
    /// The node could not be connected to lately, and it is not this session's turn to try.
    Unreachable(NodeId),
    /// The database is paused, and was not resumed in that time.
    Paused(Duration),
    /// The client cancelled the wait.
    Cancelled,
}

impl ClientFacing for Refusal {
    fn to_client(&self) -> PgError {
        match self {
            Self::NoPrimary { waited } => no_primary(*waited),
            Self::Stale => PgError::error(
                SqlState::CANNOT_CONNECT_NOW,
                "no node that is alive is known to show what this session has written",
            )
            .with_hint("Try again; or allow older reads with consistency: eventual."),
            Self::NoNode => PgError::error(SqlState::CANNOT_CONNECT_NOW, "no node is alive")
                .with_hint("SHOW POOL_NODES tells the state of the nodes."),
            Self::Busy { pool, full, size, waited } => busy(pool, *full, *size, *waited),
            Self::Connect(node, error) => {
                let error = error.to_client();
                let detail =
                    error.detail.clone().unwrap_or_else(|| format!("The connection is to node {node}."));
                PgError::error(error.code, error.message).with_detail(detail)
            }
            Self::Gone(node) => {
                let text = format!("node {node} went out of use while a connection to it was waited for");
                PgError::error(SqlState::CANNOT_CONNECT_NOW, text)
                    .with_hint("SHOW POOL_NODES tells the state of the nodes.")
            }
            Self::Unreachable(node) => PgError::error(
                SqlState::CONNECTION_FAILURE,
                format!("no connection to node {node} could be made in the time allowed"),
            )
            .with_hint("SHOW POOL_NODES tells the state of the nodes, pgweir's log why it could not."),
            Self::Paused(waited) => paused(*waited),
            Self::Cancelled => {
                PgError::error(SqlState::QUERY_CANCELED, "canceling statement due to user request")
            }
        }
    }
}

/// No node takes writes; one was waited for that long.
pub(crate) fn no_primary(waited: Duration) -> PgError {
    let detail = match waited.as_millis() {
        0 => "No node that is up accepts writes.".to_owned(),
        waited => format!("No node that is up accepts writes; one was waited for {waited} ms."),
    };
    PgError::error(SqlState::CANNOT_CONNECT_NOW, "no primary node is available")
        .with_detail(detail)
        .with_hint("Reads go on if a standby is up. SHOW POOL_NODES tells the state of the nodes.")
}

impl Refusal {
    /// The same, after a wait.
    pub(super) fn after(self, waited: Duration) -> Self {
        match self {
            Self::NoPrimary { .. } => Self::NoPrimary { waited },
            other => other,
        }
    }
}
