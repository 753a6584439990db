//! What is counted: exactly what was done, in PgBouncer's and Pgpool-II's columns.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use harness::{Login, Pgweir, eventually, msgs, rig};

type Row = BTreeMap<String, String>;

fn number(row: &Row, column: &str) -> Result<u64> {
    row.get(column).with_context(|| format!("no {column} in {row:?}"))?.parse().context(column.to_owned())
}

/// How much each of `columns` differs between two rows.
fn grown(before: &Row, after: &Row, columns: &[&str]) -> Result<Vec<u64>> {
    columns.iter().map(|column| Ok(number(after, column)? - number(before, column)?)).collect()
}

fn of_bench(weir: &Pgweir, command: &str) -> Result<Row> {
    let rows = weir.admin(command)?;
    rows.into_iter().find(|row| row["database"] == "bench").with_context(|| format!("{command}: no bench"))
}

/// AD-01: what SHOW STATS counts is what a client did, in transactions, batches, and without a backend.
#[test]
fn show_stats_counts_what_was_done() -> Result<()> {
    let (_cluster, weir) = rig(1, "")?;
    let mut client = weir.client()?;
    client.scalar("SELECT 1")?;
    let before = of_bench(&weir, "SHOW STATS")?;
    for _ in 0..5 {
        client.scalar("SELECT 1")?;
    }
    client.simple("BEGIN")?;
    client.simple("SELECT pg_sleep(0.1)")?;
    client.simple("COMMIT")?;
    // Answered without a backend.
    client.simple("BEGIN")?;
    client.simple("ROLLBACK")?;
    client.talk(&msgs().P("s", "SELECT $1::int").S())?;
    client.talk(&msgs().B("", "s", &["4"]).E().S())?;
    client.talk(&msgs().B("", "s", &["5"]).E().B("", "s", &["6"]).E().S())?;
    // Answered by pgweir: nothing of the database's.
    client.simple("SHOW POOL_VERSION")?;
    let after = of_bench(&weir, "SHOW STATS")?;
    let columns = ["total_xact_count", "total_query_count", "total_client_parse_count", "total_bind_count"];
    assert_eq!(grown(&before, &after, &columns)?, [10, 13, 1, 3], "{before:?} {after:?}");
    let times = ["total_xact_time", "total_query_time", "total_received", "total_sent"];
    let times = grown(&before, &after, &times)?;
    ensure!(times[0] >= 100_000 && times[1] >= 100_000 && times[1] < 5_000_000, "{times:?}");
    ensure!(times[2] > 200 && times[3] > 400, "{times:?}");
    let parses = number(&after, "total_server_parse_count")? - number(&before, "total_server_parse_count")?;
    ensure!((1..=2).contains(&parses), "one for each backend that runs it: {parses}");
    let totals = of_bench(&weir, "SHOW STATS_TOTALS")?;
    assert_eq!(totals["xact_count"], after["total_xact_count"]);
    let all = weir.admin("SHOW TOTALS")?;
    let all: BTreeMap<_, _> = all.iter().map(|row| (row["name"].clone(), row["value"].clone())).collect();
    assert_eq!(all["total_xact_count"], after["total_xact_count"]);
    ensure!(number(&after, "avg_query_time")? > 0, "{after:?}");
    Ok(())
}

/// A client that waits for a backend shows in the times, and one that leaves has a line with its sums.
#[test]
fn waiting_is_counted_and_a_session_ends_with_its_sums() -> Result<()> {
    let (_cluster, weir) = rig(0, "default_pool_size: 1\nlog_disconnections: on")?;
    let mut first = weir.client()?;
    first.simple("BEGIN")?;
    first.simple("SELECT 1")?;
    let before = of_bench(&weir, "SHOW STATS")?;
    let mut second = Login::bench().connect(weir.port())?;
    second.send(&msgs().Q("SELECT 2"))?;
    ensure!(eventually(std::time::Duration::from_secs(5), || {
        weir.admin("SHOW CLIENTS").is_ok_and(|rows| rows.iter().any(|row| row["state"] == "waiting"))
    }));
    ensure!(second.silent_for(std::time::Duration::from_millis(60))?, "answered without a backend");
    first.simple("COMMIT")?;
    second.read_ready(1)?;
    second.sqlstate_of("SELECT 1/0")?;
    let after = of_bench(&weir, "SHOW STATS")?;
    let columns = ["total_server_assignment_count", "total_wait_time"];
    let grown = grown(&before, &after, &columns)?;
    ensure!(grown[0] == 2 && grown[1] >= 60_000, "{grown:?}");
    second.send(&msgs().X())?;
    let line = || {
        weir.log()
            .lines()
            .find(|line| line.contains("client disconnected") && line.contains("errors=1"))
            .map(str::to_owned)
    };
    ensure!(eventually(std::time::Duration::from_secs(5), || line().is_some()), "{}", weir.log());
    let line = line().context("no line")?;
    for part in
        ["user=\"bench\"", "database=\"bench\"", "reason=\"terminated\"", "queries=2", "transactions=2"]
    {
        ensure!(line.contains(part), "{part}: {line}");
    }
    Ok(())
}

/// AD-06: statements by kind, errors by severity, and latencies by node and route.
#[test]
fn nodes_count_statements_by_kind() -> Result<()> {
    let (_cluster, weir) = rig(1, "")?;
    let mut client = weir.client()?;
    client.simple("CREATE TABLE counted(a int)")?;
    let rows = |weir: &Pgweir| -> Result<Vec<Row>> {
        let rows = weir.client()?.simple("SHOW POOL_BACKEND_STATS")?;
        let row = |row: Vec<Option<String>>| {
            rows.columns.iter().cloned().zip(row.into_iter().map(Option::unwrap_or_default)).collect()
        };
        Ok(rows.rows.clone().into_iter().map(row).collect())
    };
    let (before, metrics) = (rows(&weir)?, weir.metrics()?);
    for sql in [
        "INSERT INTO counted VALUES (1)",
        "INSERT INTO counted VALUES (2)",
        "UPDATE counted SET a = 3",
        "DELETE FROM counted WHERE a = 4",
        "CREATE TABLE counted2(a int)",
        "VACUUM counted",
        "SELECT 1 FROM counted FOR UPDATE",
    ] {
        client.simple(sql)?;
    }
    assert_eq!(client.sqlstate_of("INSERT INTO counted VALUES (1/0)")?, "22012");
    let after = rows(&weir)?;
    let columns =
        ["select_cnt", "insert_cnt", "update_cnt", "delete_cnt", "ddl_cnt", "other_cnt", "error_cnt"];
    assert_eq!(grown(&before[0], &after[0], &columns)?, [1, 3, 1, 1, 1, 1, 1]);
    assert_eq!(grown(&before[1], &after[1], &columns)?, [0; 7]);
    let now = weir.metrics()?;
    let count =
        |of: &BTreeMap<String, f64>| of["pgweir_statement_seconds_count{node=\"0\",route=\"primary\"}"];
    assert_eq!(count(&now) - count(&metrics), 8.0);
    Ok(())
}
