//! Pgpool-II's processes and pools. pgweir has no process for each client: a session stands for one, and its number
//! for the process id.

use std::time::{Duration, SystemTime};

use protocol::table::Cell;

use super::{ColumnSpec, Rows, Scene, int4, int8, text};
use crate::render;
use crate::view::{ClientRow, ClientState, Endpoint, HealthRow, NodeRow, ServerRow, ServerState};

pub(super) const PROCESSES: &[ColumnSpec] = &[
    int4("pool_pid"),
    text("start_time"),
    int4("client_connection_count"),
    text("database"),
    text("username"),
    text("backend_connection_time"),
    int4("pool_counter"),
    text("status"),
];

pub(super) const POOL_POOLS: &[ColumnSpec] = &[
    int4("pool_pid"),
    text("start_time"),
    int4("client_connection_count"),
    int4("pool_id"),
    int4("backend_id"),
    text("database"),
    text("username"),
    text("backend_connection_time"),
    text("client_connection_time"),
    text("client_disconnection_time"),
    int4("client_idle_duration"),
    int4("majorversion"),
    int4("minorversion"),
    int4("pool_counter"),
    int4("pool_backendpid"),
    int4("pool_connected"),
    text("status"),
    text("load_balance_node"),
    text("client_host"),
    int4("client_port"),
    text("statement"),
];

pub(super) const CACHE: &[ColumnSpec] = &[
    int8("num_cache_hits"),
    int8("num_selects"),
    text("cache_hit_ratio"),
    int8("num_hash_entries"),
    int8("used_hash_entries"),
    int8("num_cache_entries"),
    int8("used_cache_entries_size"),
    int8("free_cache_entries_size"),
    int8("fragment_cache_entries_size"),
];

pub(super) const HEALTH_CHECK_STATS: &[ColumnSpec] = &[
    int4("node_id"),
    text("hostname"),
    int4("port"),
    text("status"),
    text("role"),
    text("last_status_change"),
    int8("total_count"),
    int8("success_count"),
    int8("fail_count"),
    int8("skip_count"),
    int8("retry_count"),
    text("average_retry_count"),
    int8("max_retry_count"),
    text("max_duration"),
    text("min_duration"),
    text("average_duration"),
    text("last_health_check"),
    text("last_successful_health_check"),
    text("last_skip_health_check"),
    text("last_failed_health_check"),
];

pub(super) const HEALTH: &[ColumnSpec] = &[
    int4("node_id"),
    text("hostname"),
    int4("port"),
    text("status"),
    text("answers"),
    int8("total_count"),
    int8("fail_count"),
    text("last_health_check"),
    text("last_failed_health_check"),
    text("last_failure"),
];

/// Pgpool-II's words for what a process does.
pub(crate) fn status(client: &ClientRow) -> &'static str {
    match client.state {
        ClientState::Login | ClientState::Cancel => "Connecting",
        ClientState::Idle | ClientState::Held => "Idle",
        ClientState::InTransaction => "Idle in transaction",
        ClientState::Active | ClientState::Waiting => "Execute command",
    }
}

fn server_of<'a>(client: &ClientRow, servers: &'a [ServerRow]) -> Option<&'a ServerRow> {
    client.backend.and_then(|id| servers.iter().find(|server| server.id == id))
}

pub(super) fn processes(scene: &Scene<'_>) -> Rows {
    let servers = scene.view.servers();
    let row = |client: ClientRow| {
        let server = server_of(&client, &servers);
        vec![
            Cell::from(client.id),
            Cell::Text(render::time(client.connected_at)),
            Cell::Int(1),
            Cell::from(client.database.as_str()),
            Cell::from(client.user.as_str()),
            Cell::Text(server.map_or_else(String::new, |server| render::time(server.connected_at))),
            Cell::from(server.map_or(0, |server| server.times_lent)),
            Cell::from(status(&client)),
        ]
    };
    scene.view.clients().into_iter().map(row).collect()
}

/// A row for each connection to a node. One that is free belongs to no process: 0.
pub(super) fn pool_pools(scene: &Scene<'_>) -> Rows {
    let clients = scene.view.clients();
    let pools = scene.view.pools();
    let row = |server: ServerRow| {
        let client = server.session.and_then(|id| clients.iter().find(|client| client.id == id));
        let pool = pools.iter().position(|pool| {
            pool.node == server.node && pool.database == server.database && pool.user == server.user
        });
        pool_row(scene, &server, client, pool.unwrap_or_default())
    };
    scene.view.servers().into_iter().map(row).collect()
}

fn pool_row(scene: &Scene<'_>, server: &ServerRow, client: Option<&ClientRow>, pool: usize) -> Vec<Cell> {
    let time = |at: Option<SystemTime>| Cell::Text(at.map(render::time).unwrap_or_default());
    let idle = client.filter(|client| matches!(client.state, ClientState::InTransaction | ClientState::Held));
    let idle = idle.and_then(|client| scene.view.now().duration_since(client.request_at).ok());
    let balanced = client.is_some_and(|client| scene.view.load_balance_node(client.id) == Some(server.node));
    let seen = client.filter(|client| scene.caller.admin || client.user == scene.caller.user);
    let (host, port) = match client.map(|client| client.remote) {
        Some(Endpoint::Tcp(address, port)) => (address.to_string(), i64::from(port)),
        Some(Endpoint::Unix) => ("unix".to_owned(), 0),
        None => (String::new(), 0),
    };
    vec![
        Cell::from(client.map_or(0, |client| client.id)),
        time(client.map(|client| client.connected_at)),
        Cell::Int(i64::from(client.is_some())),
        render::length(pool),
        Cell::from(u32::from(server.node.0)),
        Cell::from(server.database.as_str()),
        Cell::from(server.user.as_str()),
        time(Some(server.connected_at)),
        time(client.map(|client| client.connected_at)),
        // That of a client that has gone is not kept: the connection may have served many.
        Cell::Text(String::new()),
        render::count(idle.unwrap_or_default().as_secs()),
        Cell::Int(3),
        Cell::Int(0),
        Cell::from(server.times_lent),
        Cell::Int(i64::from(server.pid)),
        Cell::Int(i64::from(server.state == ServerState::Active)),
        Cell::from(client.map_or("Wait for connection", status)),
        Cell::from(if balanced { "1" } else { "0" }),
        Cell::Text(host),
        Cell::Int(port),
        Cell::Text(seen.map(|client| client.statement.clone()).unwrap_or_default()),
    ]
}

/// pgweir keeps no results of queries: the cache has no place and no hit.
pub(super) fn cache(scene: &Scene<'_>) -> Rows {
    let selects: u64 = scene.view.nodes().iter().map(|node| node.statements.select).sum();
    let none = || Cell::Int(0);
    let ratio = Cell::from("0.00");
    vec![vec![none(), render::count(selects), ratio, none(), none(), none(), none(), none(), none()]]
}

/// Milliseconds, as Pgpool-II has them; nothing when no check was answered.
fn millis(time: Duration, count: u64) -> Cell {
    if count == 0 {
        return Cell::Text("0".to_owned());
    }
    let each = u32::try_from(count).map_or(Duration::ZERO, |count| time / count);
    Cell::Text(format!("{:.6}", each.as_secs_f64() * 1000.0))
}

#[allow(clippy::cast_precision_loss, reason = "a mean needs no more digits than a float has")]
fn mean(sum: u64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { sum as f64 / count as f64 }
}

fn at(time: Option<SystemTime>) -> Cell {
    Cell::Text(time.map(render::time).unwrap_or_default())
}

pub(super) fn health_check_stats(scene: &Scene<'_>) -> Rows {
    let row = |(node, health): (NodeRow, HealthRow)| {
        vec![
            Cell::from(u32::from(node.id.0)),
            Cell::Text(node.hostname),
            Cell::from(u32::from(node.port)),
            Cell::from(node.state.as_str()),
            Cell::from(node.role.as_str()),
            Cell::Text(render::time(node.changed_at)),
            render::count(health.total),
            render::count(health.success),
            render::count(health.fail),
            Cell::Int(0),
            render::count(health.retry),
            Cell::Text(format!("{:.6}", mean(health.retry, health.total))),
            render::count(health.max_retry),
            millis(health.longest, health.success.min(1)),
            millis(health.shortest, health.success.min(1)),
            millis(health.time, health.success),
            at(health.last),
            at(health.last_success),
            at(None),
            at(health.last_fail),
        ]
    };
    scene.view.nodes().into_iter().zip(scene.view.health()).map(row).collect()
}

pub(super) fn health(scene: &Scene<'_>) -> Rows {
    let row = |(node, health): (NodeRow, HealthRow)| {
        let answers = super::nodes::answers(&node);
        vec![
            Cell::from(u32::from(node.id.0)),
            Cell::Text(node.hostname),
            Cell::from(u32::from(node.port)),
            Cell::from(node.state.as_str()),
            Cell::from(answers),
            render::count(health.total),
            render::count(health.fail),
            at(health.last),
            at(health.last_fail),
            Cell::Text(health.failure),
        ]
    };
    scene.view.nodes().into_iter().zip(scene.view.health()).map(row).collect()
}
