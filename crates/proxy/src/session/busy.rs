//! What a client is told that has waited for a backend in vain.

use std::time::Duration;

use protocol::error::PgError;
use protocol::sqlstate::SqlState;

use crate::pool::{PoolKey, Scope};

/// All backends are taken.
pub(super) fn busy(pool: &PoolKey, full: Option<Scope>, size: u32, waited: Duration) -> PgError {
    let PoolKey { node, database, user } = pool;
    let whose = match full {
        None => format!("node {node}, database \"{database}\", user \"{user}\""),
        Some(Scope::Database) => format!("node {node}, database \"{database}\""),
        Some(Scope::User) => format!("node {node}, user \"{user}\""),
        Some(Scope::Node) => format!("node {node}"),
    };
    let key = full.map_or("default_pool_size", Scope::key);
    let text = format!("pool is busy: no backend became free within {} ms", waited.as_millis());
    PgError::error(SqlState::TOO_MANY_CONNECTIONS, text)
        .with_detail(format!("All {size} backends of {whose} are in use."))
        .with_hint(format!("Raise {key}, or query_wait_timeout."))
}

/// The database is paused.
pub(super) fn paused(waited: Duration) -> PgError {
    let text = format!("the database is paused and was not resumed within {} ms", waited.as_millis());
    PgError::error(SqlState::CANNOT_CONNECT_NOW, text)
        .with_hint("An administrator has used PAUSE; RESUME ends it.")
}
