//! Columns of PgBouncer 1.7, which Debian's `prometheus-pgbouncer-exporter` reads by name. Who asks for them says so
//! by its application name; PgBouncer itself has renamed them since.

use protocol::console::Caller;
use protocol::table::Cell;

use super::{ColumnSpec, Command, Rights, Rows, Scene, catalog, int4, int8, stats, table, text};

/// The application name that gets them.
const ASKS: &str = "prometheus-pgbouncer-exporter";

const STATS: &[ColumnSpec] = &[
    text("database"),
    int8("total_requests"),
    int8("total_received"),
    int8("total_sent"),
    int8("total_query_time"),
    int8("avg_req"),
    int8("avg_recv"),
    int8("avg_sent"),
    int8("avg_query"),
];

const DATABASES: &[ColumnSpec] = &[
    text("name"),
    text("host"),
    int4("port"),
    text("database"),
    text("force_user"),
    int4("pool_size"),
    int4("reserve_pool"),
];

/// In the order of [`STATS`].
const STATS_NOW: &[&str] = &[
    "database",
    "total_query_count",
    "total_received",
    "total_sent",
    "total_query_time",
    "avg_query_count",
    "avg_recv",
    "avg_sent",
    "avg_query_time",
];

/// In the order of [`DATABASES`].
const DATABASES_NOW: &[&str] =
    &["name", "host", "port", "database", "force_user", "pool_size", "reserve_pool_size"];

const COMMANDS: &[Command] = &[
    table::rows("SHOW STATS", Rights::Stats, STATS, "SHOW STATS as PgBouncer 1.7 had it.", old_stats),
    table::rows(
        "SHOW DATABASES",
        Rights::Stats,
        DATABASES,
        "The databases as PgBouncer 1.7 had them.",
        databases,
    ),
];

/// The commands of such a caller that differ.
pub(super) fn commands(caller: &Caller) -> &'static [Command] {
    if caller.application_name == ASKS { COMMANDS } else { &[] }
}

/// The values of `names` in rows that have `columns`.
fn chosen(rows: &Rows, columns: &[ColumnSpec], names: &[&str]) -> Rows {
    let position = |name: &&str| columns.iter().position(|(column, _)| column == name);
    let at: Vec<Option<usize>> = names.iter().map(position).collect();
    let cell = |row: &[Cell], at: Option<usize>| at.and_then(|at| row.get(at)).cloned().unwrap_or(Cell::Null);
    rows.iter().map(|row| at.iter().map(|at| cell(row, *at)).collect()).collect()
}

fn old_stats(scene: &Scene<'_>) -> Rows {
    chosen(&stats::stats(scene), stats::STATS, STATS_NOW)
}

fn databases(scene: &Scene<'_>) -> Rows {
    chosen(&catalog::databases(scene), catalog::DATABASES, DATABASES_NOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_old_column_has_a_new_one() {
        for (now, old, columns) in
            [(STATS_NOW, STATS, stats::STATS), (DATABASES_NOW, DATABASES, catalog::DATABASES)]
        {
            assert_eq!(now.len(), old.len());
            assert!(now.iter().all(|name| columns.iter().any(|(column, _)| column == name)));
        }
    }
}
