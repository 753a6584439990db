//! What was counted for each database, with PgBouncer's columns. Times are in microseconds.
//!
//! Averages are over the time since [`crate::view::DatabaseStats::before`] was taken: of counts and bytes for a
//! second, of times for one transaction, query or wait.

use std::time::Duration;

use protocol::table::{Cell, oid};

use super::{ColumnSpec, Rows, Scene, text};
use crate::render;
use crate::view::{DatabaseStats, DatabaseTotals};

const fn numeric(name: &'static str) -> ColumnSpec {
    (name, oid::NUMERIC)
}

pub(super) const STATS: &[ColumnSpec] = &[
    text("database"),
    numeric("total_server_assignment_count"),
    numeric("total_xact_count"),
    numeric("total_query_count"),
    numeric("total_received"),
    numeric("total_sent"),
    numeric("total_xact_time"),
    numeric("total_query_time"),
    numeric("total_wait_time"),
    numeric("total_client_parse_count"),
    numeric("total_server_parse_count"),
    numeric("total_bind_count"),
    numeric("avg_server_assignment_count"),
    numeric("avg_xact_count"),
    numeric("avg_query_count"),
    numeric("avg_recv"),
    numeric("avg_sent"),
    numeric("avg_xact_time"),
    numeric("avg_query_time"),
    numeric("avg_wait_time"),
    numeric("avg_client_parse_count"),
    numeric("avg_server_parse_count"),
    numeric("avg_bind_count"),
];

pub(super) const STATS_TOTALS: &[ColumnSpec] = &[
    text("database"),
    numeric("server_assignment_count"),
    numeric("xact_count"),
    numeric("query_count"),
    numeric("bytes_received"),
    numeric("bytes_sent"),
    numeric("xact_time"),
    numeric("query_time"),
    numeric("wait_time"),
    numeric("client_parse_count"),
    numeric("server_parse_count"),
    numeric("bind_count"),
];

pub(super) const TOTALS: &[ColumnSpec] = &[text("name"), numeric("value")];

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// In the order of the columns.
fn totals(of: &DatabaseTotals) -> [u64; 11] {
    [
        of.assignments,
        of.transactions,
        of.queries,
        of.received,
        of.sent,
        micros(of.transaction_time),
        micros(of.query_time),
        micros(of.wait_time),
        of.client_parses,
        of.server_parses,
        of.binds,
    ]
}

/// In the order of the columns.
fn averages(of: &DatabaseStats) -> [u64; 11] {
    let (now, before) = (&of.totals, &of.before);
    let millis = of.window.as_millis().max(1);
    let a_second = |now: u64, before: u64| {
        u64::try_from(u128::from(now.saturating_sub(before)) * 1000 / millis).unwrap_or(u64::MAX)
    };
    let each = |now: Duration, before: Duration, count: u64| {
        micros(now.saturating_sub(before)).checked_div(count).unwrap_or(0)
    };
    let transactions = now.transactions.saturating_sub(before.transactions);
    let queries = now.queries.saturating_sub(before.queries);
    let assignments = now.assignments.saturating_sub(before.assignments);
    [
        a_second(now.assignments, before.assignments),
        a_second(now.transactions, before.transactions),
        a_second(now.queries, before.queries),
        a_second(now.received, before.received),
        a_second(now.sent, before.sent),
        each(now.transaction_time, before.transaction_time, transactions),
        each(now.query_time, before.query_time, queries),
        each(now.wait_time, before.wait_time, assignments),
        a_second(now.client_parses, before.client_parses),
        a_second(now.server_parses, before.server_parses),
        a_second(now.binds, before.binds),
    ]
}

fn row(name: &str, numbers: impl IntoIterator<Item = u64>) -> Vec<Cell> {
    std::iter::once(Cell::from(name)).chain(numbers.into_iter().map(render::count)).collect()
}

pub(super) fn stats(scene: &Scene<'_>) -> Rows {
    let line = |of: &DatabaseStats| row(&of.name, totals(&of.totals).into_iter().chain(averages(of)));
    scene.view.stats().iter().map(line).collect()
}

pub(super) fn stats_totals(scene: &Scene<'_>) -> Rows {
    scene.view.stats().iter().map(|of| row(&of.name, totals(&of.totals))).collect()
}

pub(super) fn stats_averages(scene: &Scene<'_>) -> Rows {
    scene.view.stats().iter().map(|of| row(&of.name, averages(of))).collect()
}

/// All databases together, a count a row.
pub(super) fn totals_of_all(scene: &Scene<'_>) -> Rows {
    let mut all = DatabaseStats::default();
    for of in scene.view.stats() {
        all.totals.add(&of.totals);
        all.before.add(&of.before);
        all.window = all.window.max(of.window);
    }
    let names = STATS.iter().skip(1).map(|(name, _)| *name);
    let numbers = totals(&all.totals).into_iter().chain(averages(&all));
    names.zip(numbers).map(|(name, number)| row(name, [number])).collect()
}
