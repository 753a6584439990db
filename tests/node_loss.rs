//! Nodes that die, freeze or come back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{
    Cluster, ClusterOptions, Pgweir, PgweirOptions, RawClient, StopMode, WHERE, eventually, msgs, sqlstate,
};

/// What happened to one client of a load: served per node, and the errors with their times.
#[derive(Debug, Default)]
struct Served {
    by_node: BTreeMap<String, usize>,
    errors: Vec<(Instant, String)>,
}

/// Reads in a loop until `done`; after an error it goes on, on a new connection when it has to.
fn read_load(port: u16, done: &AtomicBool) -> Served {
    let mut served = Served::default();
    let mut client = None;
    while !done.load(Ordering::Relaxed) {
        let outcome = match client.take().map_or_else(|| RawClient::bench(port), Ok) {
            Ok(mut open) => match open.scalar(WHERE) {
                Ok(node) => {
                    client = Some(open);
                    Ok(node)
                }
                Err(error) => {
                    // An ERROR leaves the session alive, a FATAL or a broken connection does not.
                    let alive = error.to_string().starts_with("ERROR");
                    client = alive.then_some(open);
                    Err(error)
                }
            },
            Err(error) => Err(error),
        };
        match outcome {
            Ok(node) => *served.by_node.entry(node).or_default() += 1,
            Err(error) => served.errors.push((Instant::now(), format!("{error:#}"))),
        }
    }
    served
}

/// Runs `events` while `clients` clients read; what all of them met.
fn under_read_load(weir: &Pgweir, clients: usize, events: impl FnOnce() -> Result<()>) -> Result<Served> {
    let done = AtomicBool::new(false);
    let (port, flag) = (weir.port(), &done);
    std::thread::scope(|scope| {
        let load: Vec<_> = (0..clients).map(|_| scope.spawn(move || read_load(port, flag))).collect();
        let outcome = events();
        done.store(true, Ordering::Relaxed);
        let mut all = Served::default();
        for one in load {
            let one = one.join().expect("a client panicked");
            one.by_node.into_iter().for_each(|(node, n)| *all.by_node.entry(node).or_default() += n);
            all.errors.extend(one.errors);
        }
        outcome.map(|()| all)
    })
}

fn three_nodes() -> Result<Cluster> {
    Cluster::new(ClusterOptions { standbys: 2, log_statements: false, ..ClusterOptions::default() })
}

fn reads_on(weir: &Pgweir, node: &str) -> bool {
    let Ok(mut client) = weir.client() else { return false };
    (0..10).any(|_| client.scalar(WHERE).is_ok_and(|ran| ran == node))
}

/// PP-06: nobody who reads is disconnected or told anything.
#[test]
fn fo_01_killing_a_standby_under_read_load() -> Result<()> {
    const POOL: usize = 4;
    let mut cluster = three_nodes()?;
    let options = PgweirOptions::yaml(&format!("default_pool_size: {POOL}")).trusting();
    let weir = Pgweir::start_with(&cluster, &options)?;
    let mut killed = None;
    let served = under_read_load(&weir, 32, || {
        std::thread::sleep(Duration::from_secs(1));
        killed = Some(Instant::now());
        cluster.kill9(1)?;
        std::thread::sleep(Duration::from_secs(3));
        Ok(())
    })?;
    let killed = killed.context("not killed")?;
    // Nothing was answered yet of what was in flight there: it is asked again elsewhere.
    ensure!(served.errors.is_empty(), "{} errors: {:?}", served.errors.len(), served.errors);
    let late: Vec<_> = served.errors.iter().filter(|(at, _)| *at > killed + Duration::from_secs(1)).collect();
    ensure!(late.is_empty(), "errors after the first second: {late:?}");
    for node in ["n1", "n2"] {
        ensure!(served.by_node.get(node).is_some_and(|n| *n > 100), "{:?}", served.by_node);
    }
    ensure!(!served.by_node.contains_key("n0"), "reads on the primary of weight 0: {:?}", served.by_node);
    weir.wait_pool_nodes(Duration::from_secs(3), |nodes| nodes[1]["status"] == "down")?;

    cluster.start(1)?;
    ensure!(eventually(Duration::from_secs(30), || reads_on(&weir, "n1")), "n1 is not used again");
    weir.wait_nodes(3)?;
    let served = under_read_load(&weir, 8, || {
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    })?;
    ensure!(served.errors.is_empty(), "{:?}", served.errors);
    ensure!(served.by_node.get("n1").is_some_and(|n| *n > 50), "{:?}", served.by_node);
    Ok(())
}

#[test]
fn fo_01_a_standby_that_stops_disturbs_nobody_else() -> Result<()> {
    let mut cluster = three_nodes()?;
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    for mode in [StopMode::Fast, StopMode::Immediate] {
        let weir = Pgweir::start(&cluster, "")?;
        let mut writer = weir.client()?;
        let mut reader = weir.client()?;
        reader.scalar(WHERE)?;
        writer.simple("BEGIN")?;
        writer.simple("INSERT INTO t VALUES (1)")?;
        cluster.stop(1, mode)?;
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            writer.simple("INSERT INTO t VALUES (1)").context("a write")?;
            // It had nothing in flight: it never notices.
            let node = reader.scalar(WHERE).context("a read of an idle session")?;
            ensure!(node == "n2", "a read on {node}");
            let started = Instant::now();
            weir.client().context("a login")?.scalar(WHERE).context("a read of a new session")?;
            ensure!(started.elapsed() < Duration::from_secs(2), "a login took {:?}", started.elapsed());
        }
        writer.simple("COMMIT")?;
        cluster.start(1)?;
        weir.wait_nodes(3)?;
    }
    Ok(())
}

/// FO-01: both standbys are lost: reads go to the primary, whatever its weight, and writes go on.
#[test]
fn fo_01_both_standbys_are_lost_and_the_primary_does_all() -> Result<()> {
    let mut cluster = three_nodes()?;
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    let weir = Pgweir::start(&cluster, "auto_failback_interval: 0")?;
    let mut client = weir.client()?;
    client.set_deadline(Duration::from_secs(10));
    ensure!(client.scalar(WHERE)? != "n0", "weight 0");
    cluster.kill9(1)?;
    cluster.stop(2, StopMode::Immediate)?;
    for id in 0..20 {
        client.simple(&format!("INSERT INTO t VALUES ({id})")).context("a write")?;
        assert_eq!(client.scalar(WHERE).context("a read")?, "n0");
        assert_eq!(weir.client().context("a login")?.scalar(WHERE)?, "n0");
    }
    for node in [1, 2] {
        cluster.start(node)?;
    }
    weir.wait_nodes(3)?;
    ensure!(eventually(Duration::from_secs(10), || reads_on(&weir, "n1")), "n1 is not used again");
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t")?, "20");
    Ok(())
}

#[test]
fn pp_01_a_frozen_standby_wedges_nobody() -> Result<()> {
    let cluster = three_nodes()?;
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    let weir = Pgweir::start(&cluster, "default_pool_size: 4")?;
    let mut writer = weir.client()?;
    writer.simple("INSERT INTO t VALUES (0)")?;
    // Backends to both standbys exist.
    ensure!(reads_on(&weir, "n1") && reads_on(&weir, "n2"), "reads are not spread");
    let mut stuck = hold_read_on(&weir, "n1")?;
    cluster.freeze(1);
    let frozen = Instant::now();
    stuck.send(&msgs().Q("SELECT 1"))?;
    // Down within time-out x (1 + retries), plus the period and the pause between: 3 s and slack.
    weir.wait_pool_nodes(Duration::from_secs(5), |nodes| nodes[1]["status"] == "down")?;
    let noticed = frozen.elapsed();
    writer.simple("INSERT INTO t VALUES (1)").context("a write")?;
    for _ in 0..20 {
        let started = Instant::now();
        let mut client = weir.client().context("a login")?;
        let node = client.scalar(WHERE).context("a read")?;
        ensure!(node == "n2", "a read on {node}, {noticed:?} after the freeze");
        ensure!(
            started.elapsed() < Duration::from_secs(1),
            "a login and a read took {:?}",
            started.elapsed()
        );
    }
    // The one in flight there is not left to time out.
    let outcome = stuck.read_until(|reply| matches!(reply, harness::Reply::ReadyForQuery(_)))?.to_string();
    ensure!(
        outcome.contains("E(57P01)") || outcome.contains("E(08006)"),
        "the stuck session got [{outcome}]"
    );
    cluster.thaw(1);
    ensure!(eventually(Duration::from_secs(30), || reads_on(&weir, "n1")), "not used again");
    weir.wait_nodes(3)
}

/// A session inside a read-only transaction on the node named.
fn hold_read_on(weir: &Pgweir, node: &str) -> Result<RawClient> {
    for _ in 0..20 {
        let mut client = weir.client()?;
        client.simple("BEGIN READ ONLY")?;
        if client.scalar(WHERE)? == node {
            return Ok(client);
        }
        client.simple("COMMIT")?;
    }
    anyhow::bail!("no read-only transaction on {node} in 20")
}

#[test]
fn pp_01_a_freeze_does_not_stop_logins_and_reads_while_it_is_unnoticed() -> Result<()> {
    let cluster = three_nodes()?;
    let options = PgweirOptions::yaml("default_pool_size: 8\nhealth_check_timeout: 1s").trusting();
    let weir = Pgweir::start_with(&cluster, &options)?;
    ensure!(reads_on(&weir, "n1"), "reads are not spread");
    cluster.freeze(1);
    // Writes and logins go on from the first moment; only reads sent to n1 may wait.
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        let started = Instant::now();
        let mut client = weir.client().context("a login")?;
        client.simple("BEGIN; CREATE TEMP TABLE x(a int) ON COMMIT DROP; COMMIT").context("a write")?;
        ensure!(
            started.elapsed() < Duration::from_secs(2),
            "a login and a write took {:?}",
            started.elapsed()
        );
    }
    cluster.thaw(1);
    Ok(())
}

/// SQLSTATE and text of a statement that must fail within the connect time-out and some slack.
fn fails_clearly(client: &mut RawClient, sql: &str) -> Result<()> {
    let started = Instant::now();
    client.set_deadline(Duration::from_secs(4));
    let error = client.simple(sql).map(|_| ()).expect_err("a write without a primary");
    let (state, text) = (sqlstate(&error).to_owned(), format!("{error:#}"));
    ensure!(state == "57P03" || state.starts_with("08"), "{sql}: {text}");
    ensure!(text.to_lowercase().contains("no primary"), "{sql}: the text does not say so: {text}");
    ensure!(started.elapsed() < Duration::from_millis(2500), "{sql}: after {:?}", started.elapsed());
    Ok(())
}

/// PP-02: reads do not need the primary.
#[test]
fn fo_10_no_primary_writes_fail_clearly_and_reads_go_on() -> Result<()> {
    let mut cluster = three_nodes()?;
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    let weir = Pgweir::start(&cluster, "connect_timeout: 2s\nfailover_hold_timeout: 0")?;
    let (mut reader, mut writer) = (weir.client()?, weir.client()?);
    reader.scalar(WHERE)?;
    writer.simple("INSERT INTO t VALUES (1)")?;
    cluster.stop(0, StopMode::Immediate)?;
    let down = |nodes: &[BTreeMap<String, String>]| nodes[0]["status"] == "down";
    for round in 0..3 {
        // Before the checker has seen it as well as after.
        ensure!(["n1", "n2"].contains(&reader.scalar(WHERE)?.as_str()), "round {round}");
        reader.simple("BEGIN READ ONLY")?;
        ensure!(["n1", "n2"].contains(&reader.scalar(WHERE)?.as_str()), "round {round}");
        reader.simple("COMMIT")?;
        let mut new = weir.client().with_context(|| format!("a login, round {round}"))?;
        ensure!(["n1", "n2"].contains(&new.scalar(WHERE)?.as_str()), "round {round}");
        if round > 0 {
            fails_clearly(&mut new, "INSERT INTO t VALUES (2)")?;
            fails_clearly(&mut weir.client()?, "SELECT nextval('nowhere')")?;
            assert_eq!(new.scalar("SELECT 1")?, "1", "the session goes on after the error");
        }
        weir.wait_pool_nodes(Duration::from_secs(5), down)?;
    }
    cluster.start(0)?;
    let written = || weir.client().and_then(|mut client| client.simple("INSERT INTO t VALUES (3)")).is_ok();
    ensure!(eventually(Duration::from_secs(30), written), "no writes after the primary's return");
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t WHERE id = 2")?, "0");
    Ok(())
}

#[test]
fn fo_04_a_promoted_standby_takes_the_writes() -> Result<()> {
    let mut cluster = three_nodes()?;
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    let weir = Pgweir::start(&cluster, "")?;
    let mut client = weir.client()?;
    client.simple("INSERT INTO t VALUES (1)")?;
    cluster.wait_replay()?;
    cluster.kill9(0)?;
    cluster.promote(1)?;
    let written = || weir.client().and_then(|mut client| client.simple("INSERT INTO t VALUES (2)")).is_ok();
    ensure!(eventually(Duration::from_secs(30), written), "no writes after the promotion");
    weir.wait_pool_nodes(Duration::from_secs(3), |nodes| {
        nodes[1]["role"] == "primary" && nodes[0]["status"] == "down"
    })?;
    assert_eq!(cluster.scalar(1, "SELECT count(*) FROM t WHERE id = 2")?, "1");
    // The session from before lives, on the new primary.
    client.simple("INSERT INTO t VALUES (3)").context("the old session")?;
    assert_eq!(cluster.scalar(1, "SELECT count(*) FROM t WHERE id = 3")?, "1");
    Ok(())
}

#[test]
fn fo_07_terminated_backends_are_no_node_failure() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 1, ..ClusterOptions::default() })?;
    let weir = Pgweir::start(&cluster, "default_pool_size: 2")?;
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'bench'";
    let mut client = weir.client()?;
    for round in 0..20 {
        client.scalar(WHERE).with_context(|| format!("round {round}"))?;
        // Idle in the pool: replaced without a word.
        cluster.sql(1, kill)?;
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(client.scalar(WHERE).with_context(|| format!("round {round}"))?, "n1");
    }
    // The victim of an active one gets the server's own error.
    client.simple("BEGIN READ ONLY")?;
    client.scalar("SELECT 1")?;
    client.send(&msgs().Q("SELECT pg_sleep(20)"))?;
    std::thread::sleep(Duration::from_millis(200));
    cluster.sql(1, kill)?;
    let replies = client.read_until(|r| matches!(r, harness::Reply::Error(_)))?.to_string();
    ensure!(replies.ends_with("E(57P01)"), "{replies}");
    ensure!(weir.pool_nodes()?.iter().all(|node| node["status"] == "up"), "a node went down");
    Ok(())
}

#[test]
fn to_07_backends_that_died_while_idle_are_replaced_silently() -> Result<()> {
    let mut cluster = Cluster::new(ClusterOptions { standbys: 1, ..ClusterOptions::default() })?;
    let weir = Pgweir::start(&cluster, "default_pool_size: 5\nhealth_check_period: 300ms")?;
    let mut clients: Vec<RawClient> = (0..10).map(|_| weir.client()).collect::<Result<_>>()?;
    for client in &mut clients {
        client.simple("BEGIN; CREATE TEMP TABLE x(a int) ON COMMIT DROP; COMMIT")?;
        client.scalar("SELECT 1").context("a read before")?;
    }
    cluster.stop(0, StopMode::Fast)?;
    cluster.start(0)?;
    weir.wait_nodes(2)?;
    for (n, client) in clients.iter_mut().enumerate() {
        client
            .simple("BEGIN; CREATE TEMP TABLE x(a int) ON COMMIT DROP; COMMIT")
            .with_context(|| format!("client {n}"))?;
        assert_eq!(client.scalar("SELECT 1").with_context(|| format!("client {n} reads"))?, "1");
    }
    Ok(())
}

/// FO-07: what the server's own time-outs end, and what is ended through pgweir itself: idle ones are replaced without a
/// word, the victim of an open transaction gets the server's error, no node goes down.
#[test]
fn fo_07_backends_that_the_server_times_out_are_no_node_failure() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 1, ..ClusterOptions::default() })?;
    cluster.setup(
        "ALTER ROLE bench SET idle_session_timeout = '300ms'; \
         ALTER ROLE bench SET idle_in_transaction_session_timeout = '300ms'",
    )?;
    let weir = Pgweir::start(&cluster, "default_pool_size: 4")?;
    let mut client = weir.client()?;
    client.set_deadline(Duration::from_secs(10));
    let backends = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench'";
    for round in 0..5 {
        assert_eq!(client.scalar(WHERE).with_context(|| format!("round {round}"))?, "n1");
        // 57P05 in the pool.
        cluster.wait_scalar(1, backends, "0", Duration::from_secs(10))?;
    }
    client.simple("BEGIN READ ONLY")?;
    client.scalar(WHERE)?;
    let told = client.read_until(|reply| matches!(reply, harness::Reply::Error(_)))?.to_string();
    ensure!(told.ends_with("E(25P03)"), "an idle transaction is told [{told}]");
    let mut admin = harness::Login::new("postgres", "bench").connect(weir.port())?;
    let mut victim = weir.client()?;
    for round in 0..100 {
        victim.scalar("SELECT txid_current() > 0").with_context(|| format!("round {round}"))?;
        admin
            .simple(
                "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE usename = 'bench'",
            )
            .with_context(|| format!("round {round}"))?;
    }
    ensure!(weir.pool_nodes()?.iter().all(|node| node["status"] == "up"), "a node went down");
    ensure!(!weir.log().contains("to=\"down\""), "a node was down meanwhile");
    Ok(())
}
