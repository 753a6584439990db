//! Pools and counts, with PgBouncer's columns.
//!
//! PgBouncer has one pool per database and user; ours are per node as well and are added up here.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::table::Cell;

use super::{ColumnSpec, Rows, Scene, catalog, int4, text};
use crate::render;
use crate::view::{AdminView, ClientState};

pub(super) const POOLS: &[ColumnSpec] = &[
    text("database"),
    text("user"),
    int4("cl_active"),
    int4("cl_waiting"),
    int4("cl_active_cancel_req"),
    int4("cl_waiting_cancel_req"),
    int4("sv_active"),
    int4("sv_active_cancel"),
    int4("sv_being_canceled"),
    int4("sv_idle"),
    int4("sv_used"),
    int4("sv_tested"),
    int4("sv_login"),
    int4("maxwait"),
    int4("maxwait_us"),
    text("pool_mode"),
    text("load_balance_hosts"),
];

pub(super) const LISTS: &[ColumnSpec] = &[text("list"), int4("items")];

/// The pools of one database and user, added up.
#[derive(Default)]
struct Sum {
    clients: u32,
    waiting: u32,
    active: u32,
    idle: u32,
    connecting: u32,
    cancelling: u32,
    max_wait: Duration,
    mode: Option<&'static str>,
}

/// By database and user. Clients that wait are counted by the pools that they wait for, the others here; those
/// of the admin database have no pool, and those that replicate have none either.
fn sums(view: &dyn AdminView) -> BTreeMap<(String, String), Sum> {
    let mut sums: BTreeMap<(String, String), Sum> = BTreeMap::new();
    for pool in view.pools() {
        let sum = sums.entry((pool.database, pool.user)).or_default();
        sum.waiting += pool.waiting;
        sum.active += pool.active;
        sum.idle += pool.idle;
        sum.connecting += pool.connecting;
        sum.cancelling += pool.cancelling;
        sum.max_wait = sum.max_wait.max(pool.max_wait);
        sum.mode = Some(pool.mode);
    }
    for client in view.clients() {
        let served = client.state.has_logged_in() && client.state != ClientState::Waiting;
        let pooled = client.replication == "none";
        if served && pooled && !config::ADMIN_DATABASES.contains(&client.database.as_str()) {
            sums.entry((client.database, client.user)).or_default().clients += 1;
        }
    }
    sums
}

/// States that PgBouncer has and pgweir has not (backends that are tested, or used and not yet checked; cancel
/// requests that wait) hold nothing, hence 0.
pub(super) fn pools(scene: &Scene<'_>) -> Rows {
    let config = scene.view.config();
    let row = |((database, user), sum): ((String, String), Sum)| {
        // No pool yet: the one that the first statement makes will have this mode.
        let mode = sum.mode.unwrap_or_else(|| config.pool_mode(&database, &user).as_str());
        let (maxwait, maxwait_us) = render::seconds_and_micros(sum.max_wait);
        let none = Cell::Int(0);
        vec![
            Cell::Text(database),
            Cell::Text(user),
            Cell::from(sum.clients),
            Cell::from(sum.waiting),
            Cell::from(sum.cancelling),
            none.clone(),
            Cell::from(sum.active),
            Cell::from(sum.cancelling),
            none.clone(),
            Cell::from(sum.idle),
            none.clone(),
            none,
            Cell::from(sum.connecting),
            maxwait,
            maxwait_us,
            Cell::from(mode),
            Cell::Null,
        ]
    };
    sums(scene.view).into_iter().map(row).collect()
}

/// The memory lists (`free_*`), peers and DNS lists of PgBouncer have no counterpart and are empty.
pub(super) fn lists(scene: &Scene<'_>) -> Rows {
    let (clients, servers, sums) = (scene.view.clients(), scene.view.servers(), sums(scene.view));
    let logging_in = clients.iter().filter(|client| client.state == ClientState::Login).count();
    [
        ("databases", catalog::databases(scene).len()),
        ("users", catalog::users(scene).len()),
        ("peers", 0),
        ("pools", sums.len()),
        ("peer_pools", 0),
        ("free_clients", 0),
        ("used_clients", clients.len()),
        ("login_clients", logging_in),
        ("free_servers", 0),
        ("used_servers", servers.len()),
        ("dns_names", 0),
        ("dns_zones", 0),
        ("dns_queries", 0),
        ("dns_pending", 0),
    ]
    .into_iter()
    .map(|(list, items)| vec![Cell::from(list), render::length(items)])
    .collect()
}
