//! The nodes, with Pgpool-II's columns.

use protocol::table::Cell;

use super::{ColumnSpec, Rows, Scene, int4, int8, progress, text};
use crate::render;
use crate::view::{NodeRow, Source};

pub(super) const POOL_NODES: &[ColumnSpec] = &[
    int4("node_id"),
    text("hostname"),
    int4("port"),
    text("status"),
    text("pg_status"),
    text("lb_weight"),
    text("role"),
    text("pg_role"),
    int8("select_cnt"),
    text("load_balance_node"),
    text("replication_delay"),
    text("replication_state"),
    text("replication_sync_state"),
    text("last_status_change"),
];

pub(super) const NODES: &[ColumnSpec] = &[
    int4("node_id"),
    text("hostname"),
    int4("port"),
    text("status"),
    text("pg_status"),
    text("lb_weight"),
    text("role"),
    text("pg_role"),
    int8("select_cnt"),
    text("load_balance_node"),
    text("replication_delay"),
    text("replication_state"),
    text("replication_sync_state"),
    text("last_status_change"),
    text("address"),
    int8("timeline"),
    text("replay"),
    text("fresh_as_of"),
    text("reason"),
    int4("failed_checks"),
    text("upstream"),
    int4("in_use"),
];

pub(super) const BACKEND_STATS: &[ColumnSpec] = &[
    int4("node_id"),
    text("hostname"),
    int4("port"),
    text("status"),
    text("role"),
    int8("select_cnt"),
    int8("insert_cnt"),
    int8("update_cnt"),
    int8("delete_cnt"),
    int8("ddl_cnt"),
    int8("other_cnt"),
    int8("panic_cnt"),
    int8("fatal_cnt"),
    int8("error_cnt"),
];

pub(super) const POOL_VERSION: &[ColumnSpec] = &[text("pool_version")];

pub(super) fn pool_nodes(scene: &Scene<'_>) -> Rows {
    let nodes = scene.view.nodes();
    let balanced = scene.view.load_balance_node(scene.caller.session);
    let row = |(node, share): (&NodeRow, f64)| pool_node(node, share, balanced == Some(node.id));
    nodes.iter().zip(render::shares(&nodes)).map(row).collect()
}

/// `load_balance_node` is text: Pgpool-II prints `true`, where a boolean would print `t`.
fn pool_node(node: &NodeRow, share: f64, balanced: bool) -> Vec<Cell> {
    vec![
        Cell::Int(i64::from(node.id.0)),
        Cell::from(node.hostname.as_str()),
        Cell::from(u32::from(node.port)),
        Cell::from(node.state.as_str()),
        Cell::from(answers(node)),
        Cell::Text(format!("{share:.6}")),
        Cell::from(node.role.as_str()),
        Cell::from(render::seen_role(node).as_str()),
        render::count(node.statements.select),
        Cell::from(if balanced { "true" } else { "false" }),
        Cell::Text(render::delay(node.delay)),
        Cell::from(node.replication_state.as_str()),
        Cell::from(node.sync_state.as_str()),
        Cell::Text(render::time(node.changed_at)),
    ]
}

pub(super) fn answers(node: &NodeRow) -> &'static str {
    match node.answers {
        Some(true) => "up",
        Some(false) => "down",
        None => "unknown",
    }
}

pub(super) fn nodes(scene: &Scene<'_>) -> Rows {
    let servers = scene.view.servers();
    let more = scene.view.nodes().into_iter().map(|node| {
        let in_use = progress::in_use(&servers, |server| server.node == node.id);
        [
            Cell::from(node.address.map(|address| address.to_string())),
            Cell::from(node.timeline),
            Cell::from(node.lsn.map(render::lsn)),
            Cell::from(node.fresh_as_of.map(render::time)),
            Cell::from(node.reason),
            Cell::from(node.failed_checks),
            Cell::from(node.upstream.map(upstream)),
            Cell::from(u32::try_from(in_use).unwrap_or(u32::MAX)),
        ]
    });
    let join = |(mut row, more): (Vec<Cell>, [Cell; 8])| {
        row.extend(more);
        row
    };
    pool_nodes(scene).into_iter().zip(more).map(join).collect()
}

/// `node 0`, or `elsewhere`, and for how long it has been silent.
fn upstream(source: Source) -> String {
    let from = source.node.map_or_else(|| "elsewhere".to_owned(), |node| format!("node {node}"));
    match source.silent_for {
        Some(silent) => format!("{from}, silent for {} ms", silent.as_millis()),
        None => from,
    }
}

pub(super) fn backend_stats(scene: &Scene<'_>) -> Rows {
    let row = |node: NodeRow| {
        let (statements, errors) = (node.statements, node.errors);
        vec![
            Cell::Int(i64::from(node.id.0)),
            Cell::Text(node.hostname),
            Cell::from(u32::from(node.port)),
            Cell::from(node.state.as_str()),
            Cell::from(node.role.as_str()),
            render::count(statements.select),
            render::count(statements.insert),
            render::count(statements.update),
            render::count(statements.delete),
            render::count(statements.ddl),
            render::count(statements.other),
            render::count(errors.panic),
            render::count(errors.fatal),
            render::count(errors.error),
        ]
    };
    scene.view.nodes().into_iter().map(row).collect()
}

pub(super) fn pool_version(scene: &Scene<'_>) -> Rows {
    vec![vec![Cell::Text(format!("{} (pgweir)", scene.view.process().version))]]
}
