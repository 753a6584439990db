//! `pgweir top`: what the running pgweir is doing, again and again, in a terminal.
//!
//! It reads `/status`, like `pgweir status`, and shows rates between two readings. Where the output is no
//! terminal it prints the readings one after the other.

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;

use crate::cli::{Failure, load, say};
use crate::http_get::get;
use crate::status::{POOLS, table};

/// Home, and what is below and right of it is gone.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Columns of the nodes, with the rate that is computed here.
const NODES: &[(&str, &str)] = &[
    ("node", "node_id"),
    ("hostname", "hostname"),
    ("port", "port"),
    ("status", "status"),
    ("role", "role"),
    ("reads/s", "reads_rate"),
    ("delay", "replication_delay_bytes"),
    ("seconds", "replication_delay_seconds"),
    ("replication", "replication_state"),
];
const DATABASES: &[(&str, &str)] = &[
    ("database", "database"),
    ("transactions/s", "transactions_rate"),
    ("queries/s", "queries_rate"),
    ("errors/s", "errors_rate"),
    ("ms/query", "query_ms"),
    ("ms waiting", "wait_ms"),
];
const EVENTS: &[(&str, &str)] = &[
    ("when", "at"),
    ("event", "event"),
    ("node", "node_id"),
    ("from", "from"),
    ("to", "to"),
    ("why", "reason"),
];
/// So many pools and events are shown: what fits on a screen.
const MOST_ROWS: usize = 12;

/// One reading of `/status`.
struct Reading {
    at: Instant,
    status: Value,
}

/// Shows readings, `count` of them (0: until it is ended), `delay` apart.
///
/// # Errors
/// The configuration is refused, or pgweir does not answer the first time.
pub(crate) fn top(file: &Path, delay: Duration, count: u32) -> Result<ExitCode, Failure> {
    let config = load(file)?;
    let read = || -> anyhow::Result<Reading> {
        let text = get(&config, "/status")?;
        let status = serde_json::from_str(&text).context("/status is not JSON")?;
        Ok(Reading { at: Instant::now(), status })
    };
    let clear = if io::stdout().is_terminal() { CLEAR } else { "" };
    let mut before = read()?;
    say(&format!("{clear}{}", frame(&before, None)))?;
    let mut shown = 1;
    while count == 0 || shown < count {
        std::thread::sleep(delay);
        shown += 1;
        // A pgweir that restarts comes back: who watches wants to see that.
        match read() {
            Ok(now) => {
                say(&format!("{clear}{}", frame(&now, Some(&before))))?;
                before = now;
            }
            Err(error) => say(&format!("{clear}pgweir does not answer: {error:#}"))?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn frame(now: &Reading, before: Option<&Reading>) -> String {
    let field = |name: &str| now.status.get(name).map_or_else(String::new, plain);
    let mut out = format!(
        "pgweir {}, process {}, {} for {} s",
        field("version"),
        field("pid"),
        field("state"),
        field("uptime_seconds")
    );
    for part in ["clients", "servers"] {
        let counts = now.status.get(part).and_then(Value::as_object);
        let counts = counts.into_iter().flatten().map(|(name, count)| format!("{} {name}", plain(count)));
        // Writing to a String does not fail.
        let _ = write!(out, "\n{part}: {}", counts.collect::<Vec<_>>().join(", "));
    }
    let tables = [
        (NODES, rated(now, before, "nodes", "node_id", &[("select_cnt", "reads_rate")])),
        (DATABASES, databases(now, before)),
        (POOLS, busiest(rows(&now.status, "pools"))),
        (EVENTS, rows(&now.status, "events").into_iter().take(MOST_ROWS).collect()),
    ];
    for (columns, rows) in tables.iter().filter(|(_, rows)| !rows.is_empty()) {
        out.push_str("\n\n");
        out.push_str(table(columns, rows).trim_end());
    }
    out
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn rows(status: &Value, part: &str) -> Vec<Value> {
    status.get(part).and_then(Value::as_array).cloned().unwrap_or_default()
}

/// The pools with the most to do.
fn busiest(mut pools: Vec<Value>) -> Vec<Value> {
    let number = |pool: &Value, name: &str| pool.get(name).and_then(Value::as_u64).unwrap_or(0);
    pools.sort_by_key(|pool| std::cmp::Reverse((number(pool, "waiting"), number(pool, "active"))));
    pools.truncate(MOST_ROWS);
    pools
}

fn number(row: &Value, name: &str) -> f64 {
    row.get(name).and_then(Value::as_f64).unwrap_or(0.0)
}

/// The same row in the reading before, when it is the same process's.
fn earlier<'a>(
    now: &Reading,
    before: Option<&'a Reading>,
    part: &str,
    key: &str,
    row: &Value,
) -> Option<&'a Value> {
    let before = before.filter(|before| before.status.get("pid") == now.status.get("pid"))?;
    let rows = before.status.get(part)?.as_array()?;
    rows.iter().find(|other| other.get(key) == row.get(key))
}

/// The rows of a part, with rates of counters (counter, name of the rate) since the reading before.
fn rated(
    now: &Reading,
    before: Option<&Reading>,
    part: &str,
    key: &str,
    counters: &[(&str, &str)],
) -> Vec<Value> {
    let mut rows = rows(&now.status, part);
    for row in &mut rows {
        let Some(old) = earlier(now, before, part, key, row) else { continue };
        let seconds = before.map_or(0.0, |before| now.at.duration_since(before.at).as_secs_f64());
        for (counter, rate) in counters {
            let grown = number(row, counter) - number(old, counter);
            if let (Some(fields), true) = (row.as_object_mut(), seconds > 0.0) {
                fields.insert((*rate).to_owned(), format!("{:.1}", grown / seconds).into());
            }
        }
    }
    rows
}

fn databases(now: &Reading, before: Option<&Reading>) -> Vec<Value> {
    let counters =
        [("transactions", "transactions_rate"), ("queries", "queries_rate"), ("errors", "errors_rate")];
    let mut rows = rated(now, before, "databases", "database", &counters);
    for row in &mut rows {
        let Some(old) = earlier(now, before, "databases", "database", row) else { continue };
        let grown = |name: &str| number(row, name) - number(old, name);
        let queries = grown("queries");
        let each =
            |seconds: f64| format!("{:.3}", if queries > 0.0 { seconds * 1000.0 / queries } else { 0.0 });
        let (query, wait) = (each(grown("query_seconds")), each(grown("wait_seconds")));
        if let Some(fields) = row.as_object_mut() {
            fields.insert("query_ms".to_owned(), query.into());
            fields.insert("wait_ms".to_owned(), wait.into());
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reading(at: Instant, pid: u32, reads: u64, queries: u64, seconds: f64) -> Reading {
        let status = json!({
            "version": "1", "pid": pid, "state": "active", "uptime_seconds": 1, "clients": {"total": 3},
            "nodes": [{"node_id": 0, "hostname": "db0", "port": 5432, "status": "up", "select_cnt": reads}],
            "databases": [{"database": "app", "transactions": queries, "queries": queries, "errors": 0,
                           "query_seconds": seconds, "wait_seconds": 0.0}],
        });
        Reading { at, status }
    }

    #[test]
    fn rates_are_between_two_readings_of_one_process() {
        let start = Instant::now();
        let (before, now) =
            (reading(start, 7, 100, 10, 1.0), reading(start + Duration::from_secs(2), 7, 150, 20, 1.5));
        let text = frame(&now, Some(&before));
        let line = |begin: &str| text.lines().find(|line| line.starts_with(begin)).unwrap().to_owned();
        let words = |begin: &str| line(begin).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words("0 ")[5], "25.0", "{text}");
        assert_eq!(words("app")[1..5], ["5.0", "5.0", "0.0", "50.000"], "{text}");
        // Another process counts from 0: no rate.
        let other = reading(start + Duration::from_secs(3), 8, 1, 1, 0.1);
        assert!(frame(&other, Some(&now)).lines().any(|line| line.starts_with("app") && line.contains('-')));
    }
}
