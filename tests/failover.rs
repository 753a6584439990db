//! The primary is lost and another node takes its place: who waits, who is told, who notices nothing.

mod writers;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{
    Cluster, ClusterOptions, Pgweir, PgweirOptions, RawClient, Relay, Reply, StopMode, WHERE, msgs, sqlstate,
};
use writers::Writers;

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

/// Stops the primary as an operator does, promotes the other node, and brings the old one back as its standby.
fn switch_by_hand(cluster: &mut Cluster, weir: &Pgweir, from: usize, to: usize) -> Result<()> {
    cluster.stop(from, StopMode::Fast)?;
    cluster.promote(to)?;
    cluster.rejoin(from, to)?;
    weir.wait_pool_nodes(Duration::from_secs(15), |nodes| {
        nodes[to]["role"] == "primary" && nodes[from]["role"] == "standby" && nodes[from]["status"] == "up"
    })
}

/// FO-05 (a): switchovers by hand under load in observe mode, as many as `PGWEIR_SWITCHOVERS` says: no 25006, no lost
/// row, idle sessions live, pgweir is not restarted.
#[test]
fn fo_05_switchovers_by_hand_under_load() -> Result<()> {
    let rounds = std::env::var("PGWEIR_SWITCHOVERS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let conf = REWINDABLE.to_owned();
    let options = ClusterOptions { standbys: 1, log_statements: false, conf, ..ClusterOptions::default() };
    let mut cluster = Cluster::new(options)?;
    cluster.setup("CREATE TABLE t(id bigint PRIMARY KEY); GRANT ALL ON t TO bench")?;
    let options = PgweirOptions::yaml("auto_failback_interval: 0\ndefault_pool_size: 8").trusting();
    let weir = Pgweir::start_with(&cluster, &options)?;
    let mut idle = patient(&weir)?;
    idle.simple("SET work_mem = '7MB'")?;
    let writers = Writers::start(weir.port(), 10);
    let mut primary = 0;
    for round in 0..rounds {
        let before = writers.acked();
        let on = harness::eventually(Duration::from_secs(20), || writers.acked() > before + 50);
        ensure!(on, "round {round}: the writers do not write");
        switch_by_hand(&mut cluster, &weir, primary, 1 - primary)
            .with_context(|| format!("round {round}"))?;
        primary = 1 - primary;
    }
    let before = writers.acked();
    ensure!(
        harness::eventually(Duration::from_secs(20), || writers.acked() > before + 50),
        "no writes in the end"
    );
    let written = writers.stop()?;
    ensure!(written.refused.is_empty(), "told: {:?}", written.refused);
    written.are_all_on(&cluster, primary)?;
    assert_eq!(idle.scalar("SHOW work_mem")?, "7MB");
    idle.simple("INSERT INTO t VALUES (-1)").context("an idle client")?;
    println!("{rounds} switchovers: {} rows, all there; {} writers cut", written.acked.len(), written.lost);
    Ok(())
}

/// FO-14: the primary is not node 0, or there is none at the start.
#[test]
fn fo_14_roles_are_seen_wherever_the_primary_is() -> Result<()> {
    let mut cluster = three_nodes()?;
    cluster.stop(0, StopMode::Fast)?;
    let mut weir = Pgweir::launch(&cluster, &PgweirOptions::yaml("failover_hold_timeout: 20s"))?;
    weir.wait_answering()?;
    let reads = |weir: &Pgweir| weir.client().and_then(|mut client| client.scalar(WHERE));
    ensure!(
        harness::eventually(Duration::from_secs(30), || reads(&weir).is_ok()),
        "no reads without a primary"
    );
    let refused =
        patient(&weir)?.simple("INSERT INTO t VALUES (1)").map(|_| ()).expect_err("no primary ever was");
    assert_eq!(sqlstate(&refused), "57P03");
    cluster.promote(2)?;
    let written = || patient(&weir).is_ok_and(|mut client| client.simple("INSERT INTO t VALUES (2)").is_ok());
    ensure!(harness::eventually(Duration::from_secs(30), written), "n2 is not found");
    cluster.rejoin(0, 2)?;
    cluster.repoint(1, 2)?;
    weir.wait_nodes(3)?;
    assert_eq!(weir.pool_nodes()?[2]["role"], "primary");
    drop(weir);
    let weir = Pgweir::start(&cluster, "")?;
    patient(&weir)?.simple("INSERT INTO t VALUES (3)").context("a new pgweir")?;
    Ok(())
}

/// FO-11: everything goes down and comes back; FO-10 meanwhile.
#[test]
fn fo_11_all_nodes_down_and_up_again() -> Result<()> {
    let mut cluster = three_nodes()?;
    let weir = Pgweir::start(&cluster, "failover_hold_timeout: 1s\nauto_failback_interval: 0")?;
    let mut client = patient(&weir)?;
    client.simple("INSERT INTO t VALUES (1)")?;
    for node in [1, 2, 0] {
        cluster.stop(node, StopMode::Immediate)?;
    }
    for sql in ["SELECT 1", "INSERT INTO t VALUES (2)"] {
        let began = Instant::now();
        let refused = client.simple(sql).map(|_| ()).expect_err("nobody is there");
        let code = sqlstate(&refused).to_owned();
        ensure!(code == "57P03" || code.starts_with("08"), "{sql}: {refused:#}");
        ensure!(began.elapsed() < Duration::from_secs(6), "{sql}: after {:?}", began.elapsed());
    }
    assert_eq!(harness::http_get(weir.metrics_port(), "/metrics")?.status, 200);
    for node in [0, 1, 2] {
        cluster.start(node)?;
    }
    weir.wait_nodes(3)?;
    client.simple("INSERT INTO t VALUES (3)")?;
    assert_eq!(client.scalar("SELECT count(*) FROM t")?, "2");
    Ok(())
}

/// FO-16, FO-08: one check that takes too long only stops new work; what runs there ends.
#[test]
fn fo_16_a_long_read_outlives_one_failed_check() -> Result<()> {
    let cluster = three_nodes()?;
    let relay = Relay::start(cluster.port(1))?;
    let yaml = format!(
        "backends:\n  - {{ hostname: 127.0.0.1, port: {}, weight: 0 }}\n  - {{ hostname: 127.0.0.1, port: {}, weight: 1 }}\n\
         health_check_timeout: 500ms\nhealth_check_max_retries: 2\nhealth_check_retry_delay: 300ms",
        cluster.port(0),
        relay.port()
    );
    let mut weir = Pgweir::launch(&cluster, &PgweirOptions::yaml(&yaml))?;
    weir.wait_answering()?;
    weir.wait_nodes(2)?;
    let mut reader = patient(&weir)?;
    reader.send(&msgs().Q("SELECT current_setting('cluster_name') FROM pg_sleep(4)"))?;
    let runs = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench' AND state = 'active'";
    cluster.wait_scalar(1, runs, "1", Duration::from_secs(3))?;
    // One or two checks take too long, none is refused.
    relay.set_delay(Duration::from_millis(700));
    ensure!(
        harness::eventually(Duration::from_secs(30), || weir
            .log()
            .contains("no answer within the time allowed")),
        "no check has failed"
    );
    relay.set_delay(Duration::ZERO);
    assert_eq!(answer(&mut reader)?, "T D(n1) C(SELECT 1) Z(I)");
    Ok(())
}

/// FO-02: a port that refuses, a name that does not resolve, a listener that says nothing.
#[test]
fn fo_02_what_never_answers_is_down_and_nobody_waits_for_it() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let mute = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    let closed = harness::procs::free_port()?;
    let node = |host: &str, port: u16| format!("  - {{ hostname: {host}, port: {port}, weight: 1 }}\n");
    let yaml = [
        "health_check_timeout: 500ms\nbackends:\n".to_owned(),
        node("127.0.0.1", cluster.port(0)),
        node("127.0.0.1", closed),
        node("name.invalid", 5432),
        node("127.0.0.1", mute.local_addr()?.port()),
    ];
    let mut weir = Pgweir::launch(&cluster, &PgweirOptions::yaml(&yaml.concat()))?;
    weir.wait_answering()?;
    weir.wait_pool_nodes(Duration::from_secs(10), |nodes| {
        nodes[0]["status"] == "up" && nodes[1..].iter().all(|node| node["status"] == "down")
    })?;
    let mut client = patient(&weir)?;
    for _ in 0..20 {
        let began = Instant::now();
        assert_eq!(client.scalar(WHERE)?, "n0");
        ensure!(began.elapsed() < Duration::from_secs(1), "a read waited {:?}", began.elapsed());
    }
    Ok(())
}
