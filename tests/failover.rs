//! The primary is lost and another node takes its place: who waits, who is told, who notices nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Cluster, ClusterOptions, Pgweir, RawClient, Reply, StopMode, WHERE, msgs, sqlstate};

/// What `pg_rewind` needs.
const REWINDABLE: &str = "full_page_writes = on\nwal_log_hints = on\n";

fn three_nodes() -> Result<Cluster> {
    let cluster = Cluster::new(ClusterOptions {
        standbys: 2,
        log_statements: false,
        conf: REWINDABLE.to_owned(),
        ..ClusterOptions::default()
    })?;
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    Ok(cluster)
}

fn patient(weir: &Pgweir) -> Result<RawClient> {
    let mut client = weir.client()?;
    client.set_deadline(Duration::from_secs(20));
    Ok(client)
}

/// Sends an INSERT and does not wait for its end.
fn begin_insert(client: &mut RawClient, id: u32) -> Result<()> {
    client.send(&msgs().Q(&format!("INSERT INTO t VALUES ({id})")))
}

fn answer(client: &mut RawClient) -> Result<String> {
    Ok(client.read_until(|reply| matches!(reply, Reply::ReadyForQuery(_)))?.to_string())
}

/// FO-04, FO-10, PP-02
#[test]
fn fo_04_what_has_not_begun_waits_for_the_new_primary_and_reads_go_on() -> Result<()> {
    for mode in ["transaction", "session"] {
        let mut cluster = three_nodes()?;
        let weir = Pgweir::start(&cluster, &format!("pool_mode: {mode}\nfailover_hold_timeout: 20s"))?;
        let (mut idle, mut writer, mut lazy, mut late) =
            (patient(&weir)?, patient(&weir)?, patient(&weir)?, patient(&weir)?);
        for client in [&mut idle, &mut writer, &mut lazy, &mut late] {
            client.simple("INSERT INTO t VALUES (0)")?;
            client.simple("SET work_mem = '5MB'")?;
        }
        let mut busy = patient(&weir)?;
        busy.simple("BEGIN")?;
        busy.simple("INSERT INTO t VALUES (1)")?;
        let mut reader = patient(&weir)?;
        cluster.wait_replay()?;
        cluster.kill9(0)?;
        // BEGIN is lazy, so its transaction has not begun either.
        lazy.simple("BEGIN")?;
        begin_insert(&mut writer, 2)?;
        begin_insert(&mut lazy, 3)?;
        let ended = busy.read_to_end()?.to_string();
        ensure!(ended.contains("E(57P01)") || ended.contains("E(08006)"), "{mode}: in flight: [{ended}]");
        weir.wait_pool_nodes(Duration::from_secs(5), |nodes| nodes[0]["status"] == "down")?;
        for _ in 0..5 {
            let node = reader.scalar(WHERE).context("a read without a primary")?;
            ensure!(["n1", "n2"].contains(&node.as_str()), "{node}");
            patient(&weir).context("a login without a primary")?.scalar("SELECT 1")?;
        }
        begin_insert(&mut late, 4)?;
        cluster.promote(1)?;
        for client in [&mut writer, &mut lazy, &mut late] {
            let told = answer(client)?;
            ensure!(told.starts_with("C(INSERT 0 1) Z("), "{mode}: [{told}]");
        }
        lazy.simple("COMMIT")?;
        assert_eq!(idle.scalar("SHOW work_mem")?, "5MB", "{mode}");
        idle.simple("INSERT INTO t VALUES (5)").context("an idle client")?;
        assert_eq!(
            cluster.scalar(1, "SELECT string_agg(id::text, ' ' ORDER BY id) FROM t WHERE id > 0")?,
            "2 3 4 5"
        );
        weir.wait_pool_nodes(Duration::from_secs(3), |nodes| nodes[1]["role"] == "primary")?;
        let held = weir.metrics()?["pgweir_failover_holds_total"];
        ensure!(held >= 3.0, "{held} held");
    }
    Ok(())
}

/// FO-10: held as long as configured, counted from the loss, then refused at once.
#[test]
fn fo_10_the_wait_has_an_end_and_a_clear_error() -> Result<()> {
    let mut cluster = three_nodes()?;
    let weir = Pgweir::start(&cluster, "failover_hold_timeout: 2s")?;
    let mut writer = patient(&weir)?;
    writer.simple("INSERT INTO t VALUES (1)")?;
    cluster.stop(0, StopMode::Immediate)?;
    let stopped = Instant::now();
    let error = writer.simple("INSERT INTO t VALUES (2)").map(|_| ()).expect_err("without a primary");
    let waited = stopped.elapsed();
    assert_eq!(sqlstate(&error), "57P03");
    ensure!(format!("{error:#}").contains("no primary"), "{error:#}");
    ensure!(waited > Duration::from_millis(1500) && waited < Duration::from_secs(8), "after {waited:?}");
    let again = Instant::now();
    let error = writer.simple("INSERT INTO t VALUES (3)").map(|_| ()).expect_err("without a primary");
    assert_eq!(sqlstate(&error), "57P03");
    ensure!(again.elapsed() < Duration::from_millis(900), "the outage is no failover any more");
    assert_eq!(patient(&weir)?.scalar("SELECT 1")?, "1");
    cluster.start(0)?;
    weir.wait_nodes(3)?;
    writer.simple("INSERT INTO t VALUES (4)")?;
    assert_eq!(cluster.scalar(0, "SELECT string_agg(id::text, ' ' ORDER BY id) FROM t")?, "1 4");
    Ok(())
}

/// TO-07, FO-07: a primary that is back in a moment, with one node only: nobody hears an error.
#[test]
fn to_07_a_restart_of_the_only_node_is_a_pause() -> Result<()> {
    let mut cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    let weir = Pgweir::start(&cluster, "failover_hold_timeout: 20s")?;
    let (mut reader, mut writer) = (patient(&weir)?, patient(&weir)?);
    writer.simple("INSERT INTO t VALUES (0)")?;
    for (round, mode) in [(1, StopMode::Fast), (2, StopMode::Immediate)] {
        cluster.stop(0, mode)?;
        begin_insert(&mut writer, round)?;
        reader.send(&msgs().Q("SELECT 'there'"))?;
        cluster.start(0)?;
        assert_eq!(answer(&mut writer)?, "C(INSERT 0 1) Z(I)", "{mode:?}");
        assert_eq!(answer(&mut reader)?, "T D(there) C(SELECT 1) Z(I)", "{mode:?}");
    }
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t")?, "3");
    Ok(())
}
