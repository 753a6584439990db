//! Databases and users that are configured or in use, with PgBouncer's columns.

use std::collections::{BTreeMap, BTreeSet};

use config::{Config, DatabaseOverrides, UserOverrides};
use protocol::table::Cell;

use super::{ColumnSpec, Rows, Scene, int4, text};
use crate::render;
use crate::view::AdminView;

/// The entry of `databases` and `users` that stands for all others.
const ALL: &str = "*";

pub(super) const DATABASES: &[ColumnSpec] = &[
    text("name"),
    text("host"),
    int4("port"),
    text("database"),
    text("force_user"),
    int4("pool_size"),
    int4("min_pool_size"),
    int4("reserve_pool_size"),
    int4("server_lifetime"),
    text("pool_mode"),
    text("load_balance_hosts"),
    int4("max_connections"),
    int4("current_connections"),
    int4("max_client_connections"),
    int4("current_client_connections"),
    int4("paused"),
    int4("disabled"),
];

pub(super) const USERS: &[ColumnSpec] = &[
    text("name"),
    text("pool_size"),
    text("reserve_pool_size"),
    text("pool_mode"),
    int4("max_user_connections"),
    int4("current_connections"),
    int4("max_user_client_connections"),
    int4("current_client_connections"),
];

/// Connections under one name.
#[derive(Default, Clone, Copy)]
struct Counts {
    servers: u32,
    clients: u32,
}

/// The counts of databases and of users.
#[derive(Default)]
struct Census {
    databases: BTreeMap<String, Counts>,
    users: BTreeMap<String, Counts>,
}

/// The admin database's own sessions are clients of no database and no user here.
fn census(scene: &Scene<'_>) -> Census {
    let mut census = Census::default();
    for pool in scene.view.pools() {
        let servers = pool.active + pool.idle + pool.connecting;
        census.databases.entry(pool.database).or_default().servers += servers;
        census.users.entry(pool.user).or_default().servers += servers;
    }
    for client in scene.view.clients() {
        if client.state.has_logged_in() && !config::ADMIN_DATABASES.contains(&client.database.as_str()) {
            census.databases.entry(client.database).or_default().clients += 1;
            census.users.entry(client.user).or_default().clients += 1;
        }
    }
    census
}

/// The names that are configured or in use, each once.
fn names<'a, T>(
    configured: &'a BTreeMap<String, T>,
    used: &'a BTreeMap<String, Counts>,
) -> BTreeSet<&'a str> {
    let configured = configured.keys().filter(|name| *name != ALL);
    configured.chain(used.keys()).map(String::as_str).collect()
}

pub(super) fn databases(scene: &Scene<'_>) -> Rows {
    let (config, census) = (scene.view.config(), census(scene));
    let row = |name: &str| {
        database(scene.view, &config, name, census.databases.get(name).copied().unwrap_or_default())
    };
    names(&config.databases, &census.databases).into_iter().map(row).collect()
}

/// `host` lists all nodes, as PgBouncer does for a database with several hosts; `port` is the first one's.
fn database(view: &dyn AdminView, config: &Config, name: &str, counts: Counts) -> Vec<Cell> {
    let hosts: Vec<&str> = config.backends.iter().map(|node| node.hostname.as_str()).collect();
    let port = config.backends.first().map(|node| u32::from(node.port));
    let own = |read: fn(&DatabaseOverrides) -> Option<u32>| {
        config.databases.get(name).and_then(read).or_else(|| config.databases.get(ALL).and_then(read))
    };
    let mode = config.databases.get(name).and_then(|own| own.pool_mode);
    vec![
        Cell::from(name),
        Cell::Text(hosts.join(",")),
        Cell::from(port),
        Cell::from(config.dbname(name)),
        Cell::Null,
        Cell::from(config.pool_size(name, "")),
        Cell::from(config.min_pool_size(name, "")),
        Cell::from(own(|own| own.reserve_pool_size).unwrap_or(config.reserve_pool_size)),
        render::count(config.server_lifetime.as_secs()),
        Cell::from(mode.map(|mode| mode.as_str())),
        Cell::Null,
        Cell::from(own(|own| own.max_db_connections).or(config.max_db_connections).unwrap_or(0)),
        Cell::from(counts.servers),
        Cell::from(
            own(|own| own.max_db_client_connections).or(config.max_db_client_connections).unwrap_or(0),
        ),
        Cell::from(counts.clients),
        Cell::Int(i64::from(view.is_paused(name))),
        Cell::Int(i64::from(view.is_disabled(name))),
    ]
}

pub(super) fn users(scene: &Scene<'_>) -> Rows {
    let (config, census) = (scene.view.config(), census(scene));
    let row = |name: &str| user(&config, name, census.users.get(name).copied().unwrap_or_default());
    names(&config.users, &census.users).into_iter().map(row).collect()
}

/// The pool columns are text and empty where the user has no setting of its own, as PgBouncer has them.
fn user(config: &Config, name: &str, counts: Counts) -> Vec<Cell> {
    let own = config.users.get(name);
    let size = |read: fn(&UserOverrides) -> Option<u32>| {
        Cell::Text(own.and_then(read).map(|size| size.to_string()).unwrap_or_default())
    };
    let limit = |read: fn(&UserOverrides) -> Option<u32>, general: Option<u32>| {
        let all = config.users.get(ALL).and_then(read);
        Cell::from(own.and_then(read).or(all).or(general).unwrap_or(0))
    };
    vec![
        Cell::from(name),
        size(|own| own.pool_size),
        size(|own| own.reserve_pool_size),
        Cell::from(own.and_then(|own| own.pool_mode).map(|mode| mode.as_str())),
        limit(|own| own.max_user_connections, config.max_user_connections),
        Cell::from(counts.servers),
        limit(|own| own.max_user_client_connections, config.max_user_client_connections),
        Cell::from(counts.clients),
    ]
}
