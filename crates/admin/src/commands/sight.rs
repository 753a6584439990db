//! pgweir's own: what pins sessions, why statements went where, what has happened, who waits for what.

use protocol::table::Cell;

use super::{ColumnSpec, Rows, Scene, int4, int8, text};
use crate::render;
use crate::view::{Awaited, ClientRow, EventRow, MemoryRow, RouteRow, StatementRow};

pub(super) const PINS: &[ColumnSpec] = &[
    int8("id"),
    text("user"),
    text("database"),
    text("application_name"),
    text("reason"),
    int4("node_id"),
    int4("remote_pid"),
    text("request_time"),
];

pub(super) const ROUTES: &[ColumnSpec] = &[int4("node_id"), text("reason"), int8("statements")];

pub(super) const EVENTS: &[ColumnSpec] = &[
    int8("number"),
    text("time"),
    text("event"),
    int4("node_id"),
    text("before"),
    text("now"),
    text("reason"),
];

pub(super) const WAITING: &[ColumnSpec] = &[
    int8("id"),
    text("user"),
    text("database"),
    text("application_name"),
    text("waits_for"),
    int4("node_id"),
    int8("wait_us"),
];

pub(super) const STATEMENTS: &[ColumnSpec] = &[
    text("fingerprint"),
    text("statement"),
    int8("calls"),
    int8("errors"),
    text("routes"),
    text("reasons"),
    int8("p50_us"),
    int8("p95_us"),
    int8("p99_us"),
    int8("total_us"),
    int8("rows"),
    int8("bytes"),
];

pub(super) const MEMORY: &[ColumnSpec] = &[text("what"), int8("items"), int8("bytes")];

pub(super) const MEM: &[ColumnSpec] =
    &[text("name"), int4("size"), int4("used"), int4("free"), int8("memtotal")];

pub(super) fn pins(scene: &Scene<'_>) -> Rows {
    let servers = scene.view.servers();
    let row = |client: ClientRow| {
        let reason = client.pin?;
        let server = client.backend.and_then(|id| servers.iter().find(|server| server.id == id));
        Some(vec![
            Cell::from(client.id),
            Cell::Text(client.user),
            Cell::Text(client.database),
            Cell::Text(client.application_name),
            Cell::from(reason),
            Cell::from(server.map(|server| u32::from(server.node.0))),
            server.map_or(Cell::Null, |server| Cell::Int(i64::from(server.pid))),
            Cell::Text(render::time_with_zone(client.request_at)),
        ])
    };
    scene.view.clients().into_iter().filter_map(row).collect()
}

pub(super) fn routes(scene: &Scene<'_>) -> Rows {
    let row = |route: RouteRow| {
        vec![Cell::from(u32::from(route.node.0)), Cell::from(route.reason), render::count(route.statements)]
    };
    scene.view.routes().into_iter().map(row).collect()
}

pub(super) fn statements(scene: &Scene<'_>) -> Rows {
    let micros =
        |time: std::time::Duration| render::count(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    let row = |statement: StatementRow| {
        let [p50, p95, p99] = statement.percentiles;
        vec![
            Cell::Text(statement.fingerprint),
            Cell::Text(statement.text),
            render::count(statement.calls),
            render::count(statement.errors),
            Cell::Text(counts(&statement.routes)),
            Cell::Text(counts(&statement.reasons)),
            micros(p50),
            micros(p95),
            micros(p99),
            micros(statement.time),
            render::count(statement.rows),
            render::count(statement.bytes),
        ]
    };
    scene.view.statements().into_iter().map(row).collect()
}

/// `read=4 primary=1`, the most first.
fn counts(words: &[(&'static str, u64)]) -> String {
    let mut words: Vec<_> = words.iter().filter(|(_, count)| *count > 0).collect();
    words.sort_by_key(|(word, count)| (std::cmp::Reverse(*count), *word));
    let words: Vec<String> = words.iter().map(|(word, count)| format!("{word}={count}")).collect();
    words.join(" ")
}

/// The newest comes first.
pub(super) fn events(scene: &Scene<'_>) -> Rows {
    let row = |event: EventRow| {
        vec![
            render::count(event.number),
            Cell::Text(render::time_with_zone(event.at)),
            Cell::from(event.kind),
            Cell::from(event.node.map(|node| u32::from(node.0))),
            Cell::Text(event.from),
            Cell::Text(event.to),
            Cell::Text(event.reason),
        ]
    };
    scene.view.events().into_iter().rev().map(row).collect()
}

pub(super) fn waiting(scene: &Scene<'_>) -> Rows {
    let row = |client: ClientRow| {
        let (what, node) = match client.waits_for? {
            Awaited::Backend(node) => ("backend", Some(node)),
            Awaited::Turn(node) => ("turn to connect", Some(node)),
            Awaited::Resume => ("RESUME", None),
            Awaited::Node => ("usable node", None),
        };
        Some(vec![
            Cell::from(client.id),
            Cell::Text(client.user),
            Cell::Text(client.database),
            Cell::Text(client.application_name),
            Cell::from(what),
            Cell::from(node.map(|node| u32::from(node.0))),
            render::count(u64::try_from(client.wait.as_micros()).unwrap_or(u64::MAX)),
        ])
    };
    scene.view.clients().into_iter().filter_map(row).collect()
}

pub(super) fn memory(scene: &Scene<'_>) -> Rows {
    let row =
        |use_: MemoryRow| vec![Cell::from(use_.what), render::count(use_.items), render::count(use_.bytes)];
    scene.view.memory().into_iter().map(row).collect()
}

/// PgBouncer's slabs; ours are not slabs, so nothing in them is free, and their size is the mean.
pub(super) fn mem(scene: &Scene<'_>) -> Rows {
    let row = |use_: MemoryRow| {
        let size = use_.bytes.checked_div(use_.items).unwrap_or(0);
        let bounded = |number: u64| Cell::Int(i64::from(i32::try_from(number).unwrap_or(i32::MAX)));
        vec![
            Cell::from(use_.what),
            bounded(size),
            bounded(use_.items),
            Cell::Int(0),
            render::count(use_.bytes),
        ]
    };
    scene.view.memory().into_iter().map(row).collect()
}
