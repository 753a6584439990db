//! Who has written sees it: `consistency: read_your_writes`, and what `eventual` does instead.
//!
//! The primary has weight 0: a read that runs there does so because no standby would do.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::{Cluster, ClusterOptions, Pgweir, RawClient, StopMode, WHERE, rig};

const SOON: Duration = Duration::from_secs(3);
const PAUSE: &str = "SELECT pg_wal_replay_pause()";
const RESUME: &str = "SELECT pg_wal_replay_resume()";
/// What is in the table, and where that was read.
const READ: &str = "SELECT max(v)::text || ' on ' || current_setting('cluster_name') FROM seen";

fn prepared(standbys: usize, yaml: &str) -> Result<(Cluster, Pgweir)> {
    let (cluster, weir) = rig(standbys, yaml)?;
    cluster.setup("CREATE TABLE seen (v int); INSERT INTO seen VALUES (0); GRANT ALL ON seen TO bench")?;
    if standbys > 0 {
        weir.wait_on_standby("SELECT v FROM seen")?;
    }
    Ok((cluster, weir))
}

/// Replay stands still on every standby.
fn pause(cluster: &Cluster) -> Result<()> {
    for node in 1..cluster.len() {
        cluster.sql(node, PAUSE)?;
        let paused = "SELECT pg_is_wal_replay_paused()";
        cluster.wait_scalar(node, paused, "t", SOON)?;
    }
    Ok(())
}

fn resume(cluster: &Cluster) -> Result<()> {
    (1..cluster.len()).try_for_each(|node| cluster.sql(node, RESUME).map(drop))
}

fn read(client: &mut RawClient, extended: bool) -> Result<String> {
    if extended { client.scalar_extended(READ, &[]) } else { client.scalar(READ) }
}

fn write(client: &mut RawClient, v: usize, extended: bool) -> Result<()> {
    if extended {
        // The value comes back from the primary: an INSERT with RETURNING is a write like any other.
        client.scalar_extended("INSERT INTO seen VALUES ($1::int) RETURNING v", &[&v.to_string()])?;
    } else {
        client.simple(&format!("INSERT INTO seen VALUES ({v})"))?;
    }
    Ok(())
}

/// Reads until that happens on a standby; every answer has `v`.
fn back_on_standbys(client: &mut RawClient, v: usize, limit: Duration) -> Result<Duration> {
    let begun = Instant::now();
    loop {
        let answer = client.scalar(READ)?;
        ensure!(answer.starts_with(&format!("{v} on ")), "{answer} instead of {v}");
        if !answer.ends_with(" on n0") {
            return Ok(begun.elapsed());
        }
        ensure!(begun.elapsed() < limit, "reads are still on the primary after {limit:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn sr_01_a_session_sees_its_own_write_and_others_stay_on_the_standbys() -> Result<()> {
    let (cluster, weir) = prepared(2, "")?;
    let (mut writer, mut other) = (weir.client()?, weir.client()?);
    ensure!(writer.scalar(WHERE)? != "n0", "who has not written reads from standbys");
    pause(&cluster)?;
    for v in 1..=60 {
        write(&mut writer, v, v % 2 == 0)?;
        for extended in [false, true] {
            assert_eq!(read(&mut writer, extended)?, format!("{v} on n0"), "extended: {extended}");
        }
        let elsewhere = read(&mut other, v % 2 == 1)?;
        ensure!(elsewhere.starts_with("0 on n") && elsewhere != "0 on n0", "another session: {elsewhere}");
    }
    // No time heals that.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(read(&mut writer, false)?, "60 on n0");
    resume(&cluster)?;
    back_on_standbys(&mut writer, 60, SOON)?;
    Ok(())
}

#[test]
fn sr_01_only_the_standby_that_has_it_is_read() -> Result<()> {
    let (cluster, weir) = prepared(2, "")?;
    let mut writer = weir.client()?;
    cluster.sql(1, PAUSE)?;
    cluster.wait_scalar(1, "SELECT pg_is_wal_replay_paused()", "t", SOON)?;
    for v in 1..=30 {
        write(&mut writer, v, false)?;
        back_on_standbys(&mut writer, v, SOON)?;
        for extended in [false, true] {
            assert_eq!(read(&mut writer, extended)?, format!("{v} on n2"), "extended: {extended}");
        }
    }
    cluster.sql(1, RESUME)?;
    // Both serve again.
    let both =
        harness::eventually(SOON, || read(&mut writer, false).is_ok_and(|answer| answer == "30 on n1"));
    ensure!(both, "n1 is not read again");
    Ok(())
}

#[test]
fn sr_01_a_committed_transaction_is_a_write() -> Result<()> {
    let (cluster, weir) = prepared(1, "")?;
    let mut writer = weir.client()?;
    pause(&cluster)?;
    writer.simple("BEGIN")?;
    write(&mut writer, 7, false)?;
    writer.simple("COMMIT")?;
    for extended in [false, true] {
        assert_eq!(read(&mut writer, extended)?, "7 on n0");
    }
    // A transaction that may only read is a read.
    writer.simple("BEGIN READ ONLY")?;
    let inside = read(&mut writer, false)?;
    writer.simple("COMMIT")?;
    assert_eq!(inside, "7 on n0");
    resume(&cluster)?;
    back_on_standbys(&mut writer, 7, SOON)?;
    Ok(())
}

#[test]
fn sr_02_eventual_reads_what_the_standby_has() -> Result<()> {
    let (cluster, weir) = prepared(1, "consistency: eventual")?;
    let mut writer = weir.client()?;
    pause(&cluster)?;
    for v in 1..=10 {
        write(&mut writer, v, v % 2 == 0)?;
        assert_eq!(read(&mut writer, v % 2 == 1)?, "0 on n1");
    }
    resume(&cluster)
}

#[test]
fn sr_02_consistency_is_a_database_or_users_own() -> Result<()> {
    let yaml = "consistency: eventual\ndatabases:\n  bench: { consistency: read_your_writes }";
    let (cluster, weir) = prepared(1, yaml)?;
    let mut writer = weir.client()?;
    pause(&cluster)?;
    write(&mut writer, 1, false)?;
    assert_eq!(read(&mut writer, false)?, "1 on n0");
    let users = format!("{yaml}\nusers:\n  bench: {{ consistency: eventual }}");
    weir.rewrite(&cluster, &harness::PgweirOptions::yaml(&users))?;
    weir.admin("RELOAD")?;
    let mut other = weir.client()?;
    write(&mut other, 2, false)?;
    assert_eq!(read(&mut other, false)?, "0 on n1");
    resume(&cluster)
}

#[test]
fn sr_04_an_idle_primary_is_not_lag() -> Result<()> {
    let (_cluster, weir) = prepared(2, "")?;
    let mut writer = weir.client()?;
    write(&mut writer, 5, false)?;
    std::thread::sleep(Duration::from_secs(2));
    for n in 0..50 {
        let answer = read(&mut writer, n % 2 == 0)?;
        ensure!(answer.starts_with("5 on n") && answer != "5 on n0", "{n}: {answer}");
    }
    // Nor is one that writes now and then.
    for v in 6..16 {
        write(&mut writer, v, false)?;
        let took = back_on_standbys(&mut writer, v, SOON)?;
        println!("on a standby after {took:?}");
    }
    Ok(())
}

/// A standby that gets no WAL any more answers as before, and as of an ever older moment.
#[test]
fn sr_05_a_standby_that_was_cut_off_is_not_read_by_who_has_written() -> Result<()> {
    let (cluster, weir) = prepared(1, "")?;
    let mut writer = weir.client()?;
    let conninfo = cluster.scalar(1, "SHOW primary_conninfo")?;
    cluster.sql(1, "ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=1'")?;
    cluster.sql(1, "SELECT pg_reload_conf()")?;
    cluster.wait_scalar(0, "SELECT count(*) FROM pg_stat_replication", "0", SOON)?;
    for v in 1..=20 {
        write(&mut writer, v, v % 2 == 0)?;
        assert_eq!(read(&mut writer, v % 2 == 1)?, format!("{v} on n0"));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(read(&mut weir.client()?, false)?, "0 on n1", "who has not written");
    cluster.sql(1, &format!("ALTER SYSTEM SET primary_conninfo = '{conninfo}'"))?;
    cluster.sql(1, "SELECT pg_reload_conf()")?;
    back_on_standbys(&mut writer, 20, Duration::from_secs(15))?;
    Ok(())
}

#[test]
fn sr_05_a_standby_that_comes_back_is_read_when_it_has_caught_up() -> Result<()> {
    let (mut cluster, weir) = prepared(1, "auto_failback_interval: 100ms")?;
    let mut writer = weir.client()?;
    write(&mut writer, 1, false)?;
    back_on_standbys(&mut writer, 1, SOON)?;
    for (round, mode) in [StopMode::Fast, StopMode::Immediate].into_iter().enumerate() {
        cluster.stop(1, mode)?;
        weir.wait_pool_nodes(SOON, |nodes| nodes[1]["status"] == "down")?;
        let v = 2 + round;
        write(&mut writer, v, false)?;
        assert_eq!(read(&mut writer, false)?, format!("{v} on n0"));
        cluster.start(1)?;
        back_on_standbys(&mut writer, v, Duration::from_secs(10))?;
    }
    Ok(())
}

/// What a standby shows it shows without a primary as well: who has written reads on.
#[test]
fn sr_05_reads_go_on_while_there_is_no_primary() -> Result<()> {
    let (mut cluster, weir) = prepared(2, "")?;
    let mut writer = weir.client()?;
    write(&mut writer, 1, false)?;
    let all_fresh = "SELECT pg_last_wal_replay_lsn() >= pg_last_wal_receive_lsn()";
    for node in [1, 2] {
        cluster.wait_scalar(node, all_fresh, "t", SOON)?;
    }
    back_on_standbys(&mut writer, 1, SOON)?;
    cluster.stop(0, StopMode::Immediate)?;
    weir.wait_pool_nodes(Duration::from_secs(10), |nodes| nodes[0]["status"] == "down")?;
    for n in 0..20 {
        let answer = read(&mut writer, n % 2 == 0)?;
        ensure!(answer.starts_with("1 on n") && answer != "1 on n0", "{answer}");
    }
    Ok(())
}

/// One standby that says nothing does not make the other one old.
#[test]
fn a_frozen_standby_does_not_hold_up_the_others_freshness() -> Result<()> {
    // The frozen one stays in: its checks have all the time.
    let (cluster, weir) = prepared(2, "health_check_timeout: 30s")?;
    let options = harness::PgweirOptions::yaml("health_check_timeout: 30s").weights(&[0, 0, 1]);
    weir.rewrite(&cluster, &options)?;
    weir.admin("RELOAD")?;
    let mut writer = weir.client()?;
    write(&mut writer, 1, false)?;
    back_on_standbys(&mut writer, 1, SOON)?;
    cluster.freeze(1);
    for v in 2..12 {
        write(&mut writer, v, false)?;
        let took = back_on_standbys(&mut writer, v, SOON)?;
        ensure!(took < Duration::from_secs(1), "n2 was fresh after {took:?}");
    }
    cluster.thaw(1);
    Ok(())
}

#[test]
fn sr_06_freshness_is_shown() -> Result<()> {
    let (cluster, weir) = prepared(1, "")?;
    let shown = |node: u16| -> Result<f64> {
        Ok(weir.metrics()?[&format!("pgweir_node_fresh_as_of_seconds{{node=\"{node}\"}}")])
    };
    let moves = |from: f64| harness::eventually(SOON, || shown(1).is_ok_and(|value| value > from));
    ensure!(moves(0.0), "no freshness");
    let before = shown(1)?;
    ensure!(moves(before), "an idle primary's standby does not stay fresh");
    assert!(shown(0)? == 0.0, "the primary is not measured");
    pause(&cluster)?;
    cluster.sql(0, "INSERT INTO seen VALUES (1)")?;
    std::thread::sleep(Duration::from_millis(500));
    let stuck = shown(1)?;
    std::thread::sleep(Duration::from_millis(800));
    assert!(shown(1)? == stuck, "a standby that does not replay is said to be fresh");
    let rows = weir.admin("SHOW NODES")?;
    ensure!(!rows[1]["fresh_as_of"].is_empty() && rows[0]["fresh_as_of"].is_empty(), "{rows:?}");
    resume(&cluster)?;
    ensure!(moves(stuck), "replay goes on, freshness does not");
    Ok(())
}

/// A standby of another history may be ahead in position and has nothing of what is written now.
#[test]
fn sr_07_a_position_on_another_timeline_counts_for_nothing() -> Result<()> {
    let (mut cluster, weir) = prepared(2, "")?;
    // What will be the primary takes reads only when it has to.
    weir.rewrite(&cluster, &harness::PgweirOptions::default().weights(&[0, 0, 1]))?;
    weir.admin("RELOAD")?;
    cluster.sql(1, "ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=1'")?;
    cluster.sql(1, "SELECT pg_reload_conf()")?;
    cluster.wait_scalar(0, "SELECT count(*) FROM pg_stat_replication", "1", SOON)?;
    cluster.sql(0, "CREATE TABLE lost AS SELECT repeat('x', 1000) FROM generate_series(1, 20000)")?;
    let written = cluster.scalar(0, "SELECT pg_current_wal_flush_lsn()")?;
    let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{written}'");
    cluster.wait_scalar(2, &replayed, "t", Duration::from_secs(10))?;
    cluster.stop(0, StopMode::Immediate)?;
    cluster.promote(1)?;
    weir.wait_pool_nodes(Duration::from_secs(10), |nodes| nodes[1]["role"] == "primary")?;
    let ahead = format!("SELECT pg_current_wal_insert_lsn() < '{written}'");
    let mut writer = weir.client()?;
    for v in 1..=10 {
        write(&mut writer, v, v % 2 == 0)?;
        // The first read asks for a look at the standbys; the second one comes after it.
        for extended in [false, true] {
            assert_eq!(read(&mut writer, extended)?, format!("{v} on n1"));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    assert_eq!(cluster.scalar(1, &ahead)?, "t", "the case is none");
    assert_eq!(read(&mut weir.client()?, false)?, "0 on n2", "who has not written");
    Ok(())
}

/// Sampling is slow as long as nobody waits, and bounded when everybody does.
#[test]
fn sr_08_rounds_are_made_on_demand() -> Result<()> {
    let (cluster, weir) = prepared(1, "sr_check_period: 1s\nsr_check_min_period: 50ms")?;
    // The check user's statements are in the log as well.
    let rounds = || -> Result<usize> { Ok(cluster.log(1)?.matches("pg_stat_get_wal_receiver").count()) };
    let (before, begun) = (rounds()?, Instant::now());
    std::thread::sleep(Duration::from_secs(3));
    let (made, time) = (rounds()? - before, begun.elapsed().as_secs_f64());
    ensure!((2.0..=time + 1.5).contains(&(made as f64)), "{made} rounds in {time:.1} idle seconds");
    pause(&cluster)?;
    let mut writer = weir.client()?;
    write(&mut writer, 1, false)?;
    let (before, begun) = (rounds()?, Instant::now());
    while begun.elapsed() < Duration::from_secs(2) {
        assert_eq!(read(&mut writer, false)?, "1 on n0");
    }
    let (made, time) = (rounds()? - before, begun.elapsed().as_secs_f64());
    ensure!((20.0 * time * 0.4..=20.0 * time + 2.0).contains(&(made as f64)), "{made} rounds in {time:.1} s");
    resume(&cluster)
}

/// A session chooses its level, and what it chose follows transactions and savepoints like any parameter.
#[test]
fn sr_02_a_session_chooses_its_level() -> Result<()> {
    let (cluster, weir) = prepared(1, "")?;
    let mut a = weir.client()?;
    let shown = |a: &mut RawClient| a.scalar("SHOW pgweir.consistency");
    assert_eq!(shown(&mut a)?, "read_your_writes", "the configuration's");
    a.simple("SET pgweir.consistency = 'eventual'")?;
    assert_eq!(shown(&mut a)?, "eventual");
    assert_eq!(a.scalar_extended("SHOW pgweir.consistency", &[])?, "eventual");
    assert_eq!(shown(&mut weir.client()?)?, "read_your_writes", "another session's");
    pause(&cluster)?;
    write(&mut a, 1, false)?;
    assert_eq!(read(&mut a, false)?, "0 on n1");
    // What was written under another level counts as well.
    a.scalar_extended("SELECT set_config('pgweir.consistency', 'read_your_writes', false)", &[])?;
    assert_eq!(read(&mut a, true)?, "1 on n0");
    a.simple("SET pgweir.consistency TO eventual")?;
    for (sql, level) in [
        ("BEGIN; SET pgweir.consistency = 'global'; ROLLBACK", "eventual"),
        ("BEGIN; SET pgweir.consistency = 'global'; COMMIT", "global"),
        ("BEGIN; SAVEPOINT s; SET pgweir.consistency = 'eventual'; ROLLBACK TO s; COMMIT", "global"),
        ("RESET pgweir.consistency", "read_your_writes"),
        ("SET pgweir.consistency = 'monotonic'", "monotonic"),
        ("DISCARD ALL", "read_your_writes"),
    ] {
        for statement in sql.split("; ") {
            a.simple(statement)?;
        }
        assert_eq!(shown(&mut a)?, level, "{sql}");
    }
    resume(&cluster)
}

/// The server would take any value: it is pgweir that refuses what is no level, as PostgreSQL does with its own.
#[test]
fn a_level_that_does_not_exist_is_refused() -> Result<()> {
    let (_cluster, weir) = prepared(1, "")?;
    let mut a = weir.client()?;
    assert_eq!(a.sqlstate_of("SET pgweir.consistency = 'strong'")?, "22023");
    let batch = harness::msgs().P("", "SET pgweir.consistency = strong").B("", "", &[]).E().S();
    let answer = a.talk(&batch)?;
    assert_eq!(answer.error().map(|error| error.get('C')), Some("22023"), "{answer}");
    assert_eq!(a.scalar("SHOW pgweir.consistency")?, "read_your_writes");
    // It fails the transaction.
    a.simple("BEGIN")?;
    write(&mut a, 1, false)?;
    assert_eq!(a.sqlstate_of("SET pgweir.consistency = 'strong'")?, "22023");
    assert_eq!(a.sqlstate_of("SELECT 1")?, "25P02");
    a.simple("ROLLBACK")?;
    assert_eq!(a.scalar("SHOW pgweir.consistency")?, "read_your_writes");
    a.simple("BEGIN")?;
    assert_eq!(a.scalar("SHOW pgweir.consistency")?, "read_your_writes", "inside of a transaction");
    a.simple("COMMIT")?;
    Ok(())
}

/// What anybody has written, by whatever way, is shown to who reads at the level `global`.
#[test]
fn sr_01_global_reads_show_what_anybody_has_written() -> Result<()> {
    let conf = "max_prepared_transactions = 2\n".to_owned();
    let cluster = Cluster::new(ClusterOptions { standbys: 1, conf, ..ClusterOptions::default() })?;
    let weir = Pgweir::start(&cluster, "")?;
    cluster.setup("CREATE TABLE seen (v int); INSERT INTO seen VALUES (0); GRANT ALL ON seen TO bench")?;
    let sql =
        "CREATE FUNCTION put(n int) RETURNS int LANGUAGE sql AS 'INSERT INTO seen VALUES (n) RETURNING v'";
    cluster.setup(sql)?;
    let (mut writer, mut reader, mut careless) = (weir.client()?, weir.client()?, weir.client()?);
    reader.simple("SET pgweir.consistency = 'global'")?;
    writer.simple("SET pgweir.consistency = 'eventual'")?;
    pause(&cluster)?;
    let mut v = 0;
    let mut check = |what: &str, v: i32| -> Result<()> {
        for extended in [false, true] {
            assert_eq!(read(&mut reader, extended)?, format!("{v} on n0"), "{what}");
        }
        assert_eq!(read(&mut careless, false)?, "0 on n1", "{what}");
        Ok(())
    };
    let mut next = || {
        v += 1;
        v
    };
    let n = next();
    writer.simple(&format!("INSERT INTO seen VALUES ({n})"))?;
    check("INSERT", n)?;
    let n = next();
    writer.scalar(&format!("SELECT put({n})"))?;
    check("a function", n)?;
    let n = next();
    let copy = harness::msgs().Q("COPY seen FROM STDIN").d(format!("{n}\n").as_bytes()).c();
    ensure!(writer.talk(&copy)?.error().is_none(), "COPY failed");
    check("COPY", n)?;
    let n = next();
    writer.simple("SET synchronous_commit = off")?;
    writer.simple(&format!("INSERT INTO seen VALUES ({n})"))?;
    check("an asynchronous commit", n)?;
    let n = next();
    // Acknowledged while the batch goes on.
    let batch = harness::msgs()
        .Q(&format!("INSERT INTO seen VALUES ({n})"))
        .Q("SELECT pg_sleep(1) FROM seen LIMIT 1 FOR UPDATE");
    writer.send(&batch)?;
    writer.read_ready(1)?;
    check("a statement with another behind it", n)?;
    writer.read_ready(1)?;
    let n = next();
    for sql in [
        "BEGIN",
        &format!("INSERT INTO seen VALUES ({n})"),
        "PREPARE TRANSACTION 'two'",
        "COMMIT PREPARED 'two'",
    ] {
        writer.simple(sql)?;
    }
    check("a transaction in two phases", n)?;
    let n = next();
    writer.simple("CREATE TEMP TABLE pins (v int)")?;
    writer.simple(&format!("INSERT INTO seen VALUES ({n})"))?;
    check("a session that keeps its backend", n)?;
    resume(&cluster)
}
