//! The extended protocol and pipelining: what PostgreSQL answers on a direct connection.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::{Cluster, Pgweir, RawClient, msgs, rig};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// No backend of `bench` on any node is left in a transaction.
fn no_open_transaction(cluster: &Cluster) -> Result<()> {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench' AND state <> 'idle'";
    (0..cluster.len()).try_for_each(|node| cluster.wait_scalar(node, sql, "0", Duration::from_secs(2)))
}

#[test]
fn ep_01_flush_instead_of_sync() -> Result<()> {
    let (_cluster, weir) = rig(1, "default_pool_size: 1")?;
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let mut a = weir.client()?;
        let started = Instant::now();
        a.send(&msgs().P("s", "SELECT 1").D('S', "s").H())?;
        assert_eq!(a.read_count(3)?.to_string(), "1 t T");
        fastest = fastest.min(started.elapsed());
        let cpu = weir.cpu_seconds()?;
        ensure!(a.silent_for(Duration::from_millis(300))?, "something after the Flush");
        ensure!(weir.cpu_seconds()? - cpu < 0.1, "spinning between Flush and Sync");
        a.send(&msgs().B("", "s", &[]).E().H())?;
        assert_eq!(a.read_count(3)?.to_string(), "2 D(1) C(SELECT 1)");
        a.send(&msgs().S())?;
        assert_eq!(a.read_ready(1)?.to_string(), "Z(I)");
    }
    ensure!(fastest < Duration::from_millis(200), "the fastest answer took {fastest:?}");
    Ok(())
}

#[test]
fn ep_01_the_backend_stays_bound_between_flush_and_sync() -> Result<()> {
    let (_cluster, weir) = rig(0, "default_pool_size: 1")?;
    let (mut a, mut b) = (weir.client()?, weir.client()?);
    a.send(&msgs().PBE("SELECT 1").H())?;
    assert_eq!(a.read_count(4)?.to_string(), "1 2 D(1) C(SELECT 1)");
    b.send(&msgs().Q("SELECT 2"))?;
    ensure!(harness::direct_mode() || b.silent_for(Duration::from_millis(300))?, "served on a's backend");
    a.send(&msgs().S())?;
    assert_eq!(a.read_ready(1)?.to_string(), "Z(I)");
    assert_eq!(b.read_ready(1)?.to_string(), "T D(2) C(SELECT 1) Z(I)");
    Ok(())
}

#[test]
fn ep_02_gone_between_flush_and_sync() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 1")?;
    for end in ["reset", "close", "terminate", "half"] {
        let mut a = weir.client()?;
        a.send(&msgs().P("s", "SELECT 1").D('S', "s").H())?;
        assert_eq!(a.read_count(3)?.to_string(), "1 t T", "{end}");
        match end {
            "reset" => a.reset()?,
            "close" => drop(a),
            "terminate" => a.terminate()?,
            _ => {
                a.half_close()?;
                a.read_to_end()?;
            }
        }
        let mut b = weir.client()?;
        assert_eq!(b.scalar("SELECT now() = statement_timestamp()")?, "t", "{end}");
        assert_eq!(b.scalar("SELECT count(*) FROM pg_prepared_statements WHERE name = 's'")?, "0", "{end}");
        no_open_transaction(&cluster)?;
    }
    Ok(())
}

/// EP-01: what a batch goes on with may be a write, also when a read of it has been answered.
#[test]
fn ep_01_a_flushed_read_and_then_a_write_in_one_batch() -> Result<()> {
    let (cluster, weir) = rig(1, "")?;
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    cluster.wait_replay()?;
    let mut a = weir.client()?;
    for _ in 0..5 {
        a.send(&msgs().PBE("SELECT count(*) >= 0 FROM t").H())?;
        assert_eq!(a.read_count(4)?.to_string(), "1 2 D(t) C(SELECT 1)");
        let write = a.talk(&msgs().PBE("INSERT INTO t VALUES (1)").S())?.to_string();
        assert_eq!(write, "1 2 C(INSERT 0 1) Z(I)");
        // One that is parsed and described only may still go anywhere.
        a.send(&msgs().P("", "SELECT count(*) FROM t").D('S', "").H())?;
        assert_eq!(a.read_count(3)?.to_string(), "1 t T");
        let write = a.talk(&msgs().PBE("DELETE FROM t").S())?.to_string();
        assert_eq!(write, "1 2 C(DELETE 1) Z(I)");
    }
    Ok(())
}

#[test]
fn ep_04_error_in_mid_pipeline_skips_to_sync() -> Result<()> {
    let (_cluster, weir) = rig(1, "default_pool_size: 1")?;
    let mut a = weir.client()?;
    for _ in 0..3 {
        let batch = msgs()
            .P("a", "SELECT 1")
            .B("", "a", &[])
            .E()
            .P("b", "SELECT 1/0")
            .B("", "b", &[])
            .E()
            .P("c", "SELECT 3")
            .B("", "c", &[])
            .E()
            .S()
            .PBE("SELECT 4")
            .S();
        assert_eq!(
            a.talk(&batch)?.to_string(),
            "1 2 D(1) C(SELECT 1) 1 E(22012) Z(I) 1 2 D(4) C(SELECT 1) Z(I)"
        );
        assert_eq!(a.talk(&msgs().B("", "c", &[]).E().S())?.to_string(), "E(26000) Z(I)");
        assert_eq!(a.talk(&msgs().B("", "a", &[]).E().S())?.to_string(), "2 D(1) C(SELECT 1) Z(I)");
        assert_eq!(a.talk(&msgs().C('S', "a").C('S', "b").S())?.to_string(), "3 3 Z(I)");
    }
    Ok(())
}

#[test]
fn ep_05_two_changed_parameters_inside_one_pipeline() -> Result<()> {
    let (_cluster, weir) = rig(1, "")?;
    let mut a = weir.client()?;
    let set =
        "SELECT set_config($$application_name$$,$$zz$$,false), set_config($$DateStyle$$,$$German$$,false)";
    let replies = a.talk(&msgs().PBE(set).PBE("SELECT 2").S())?.to_string();
    ensure!(replies.starts_with("1 2 D(zz,German, DMY) C(SELECT 1) 1 2 D(2) C(SELECT 1)"), "{replies}");
    ensure!(replies.ends_with("Z(I)"), "{replies}");
    assert_eq!(a.parameters["application_name"], "zz");
    assert_eq!(a.parameters["DateStyle"], "German, DMY");
    assert_eq!(a.scalar("SELECT current_setting('DateStyle')")?, "German, DMY");
    Ok(())
}

#[test]
fn ep_07_simple_query_before_the_extended_sequence_ended() -> Result<()> {
    let (_cluster, weir) = rig(1, "default_pool_size: 1")?;
    let mut a = weir.client()?;
    for _ in 0..3 {
        let batch = msgs().PBE("SELECT 1").Q("SELECT 9").S();
        assert_eq!(a.talk(&batch)?.to_string(), "1 2 D(1) C(SELECT 1) T D(9) C(SELECT 1) Z(I) Z(I)");
        assert_eq!(a.scalar("SELECT 5")?, "5");
    }
    Ok(())
}

#[test]
fn ep_08_portal_with_a_row_limit() -> Result<()> {
    let (_cluster, weir) = rig(1, "default_pool_size: 2")?;
    let mut a = weir.client()?;
    let open = || msgs().P("", "SELECT generate_series(1,3)").B("p", "", &[]).E_max("p", 1);
    a.simple("BEGIN")?;
    assert_eq!(a.talk(&open().S())?.to_string(), "1 2 D(1) s Z(T)");
    assert_eq!(a.talk(&msgs().E_max("p", 1).S())?.to_string(), "D(2) s Z(T)");
    assert_eq!(a.talk(&msgs().E_max("p", 0).S())?.to_string(), "D(3) C(SELECT 1) Z(T)");
    a.simple("COMMIT")?;

    a.send(&open().H())?;
    assert_eq!(a.read_count(4)?.to_string(), "1 2 D(1) s");
    a.send(&msgs().E_max("p", 1).H())?;
    assert_eq!(a.read_count(2)?.to_string(), "D(2) s");
    assert_eq!(a.talk(&msgs().E_max("p", 0).S())?.to_string(), "D(3) C(SELECT 1) Z(I)");

    assert_eq!(a.talk(&open().S())?.to_string(), "1 2 D(1) s Z(I)");
    assert_eq!(a.talk(&msgs().E_max("p", 1).S())?.to_string(), "E(34000) Z(I)");
    Ok(())
}

#[test]
fn ep_10_corner_cases_of_the_protocol() -> Result<()> {
    const PG_BACKEND_PID: u32 = 2026;
    let (_cluster, weir) = rig(1, "default_pool_size: 1")?;
    let mut a = weir.client()?;
    for (sent, wanted) in [
        (msgs().C('S', "nope").S(), "3 Z(I)"),
        (msgs().C('P', "nope").S(), "3 Z(I)"),
        (msgs().S().S(), "Z(I) Z(I)"),
        (msgs().PBE("").S(), "1 2 I Z(I)"),
        (msgs().P("", "SELECT 1; SELECT 2").S(), "E(42601) Z(I)"),
        (msgs().Q(""), "I Z(I)"),
        (msgs().Q("-- ping"), "I Z(I)"),
        (msgs().Q(";"), "I Z(I)"),
        (msgs().Q(";;SELECT 1;;"), "T D(1) C(SELECT 1) Z(I)"),
        (msgs().F(PG_BACKEND_PID), "V Z(I)"),
        (msgs().D('S', "nope").S(), "E(26000) Z(I)"),
        (msgs().D('P', "nope").S(), "E(34000) Z(I)"),
        (msgs().E_max("nope", 0).S(), "E(34000) Z(I)"),
        (msgs().B("", "nope", &[]).S(), "E(26000) Z(I)"),
        (msgs().H().H().S(), "Z(I)"),
        (
            msgs().P("", "SELECT 7").D('S', "").B("", "", &[]).D('P', "").E().S(),
            "1 t T 2 T D(7) C(SELECT 1) Z(I)",
        ),
        (msgs().P("", "SELECT").B("", "", &[]).D('P', "").E().S(), "1 2 T D() C(SELECT 1) Z(I)"),
        (msgs().PBE("SELECT 1").C('P', "").S(), "1 2 D(1) C(SELECT 1) 3 Z(I)"),
        (msgs().Q("SELECT 'still here'"), "T D(still here) C(SELECT 1) Z(I)"),
    ] {
        assert_eq!(a.talk(&sent)?.to_string(), wanted, "{:?}", String::from_utf8_lossy(sent.bytes()));
    }
    Ok(())
}

fn autocommitted_update_is_visible(cluster: &Cluster, weir: &Pgweir) -> Result<()> {
    cluster.setup("CREATE TABLE t(id int, v int); INSERT INTO t VALUES (1, 0); GRANT ALL ON t TO bench")?;
    let mut a = weir.client()?;
    assert_eq!(a.talk(&msgs().PBE("UPDATE t SET v=1 WHERE id=1").S())?.to_string(), "1 2 C(UPDATE 1) Z(I)");
    assert_eq!(cluster.scalar(0, "SELECT v FROM t WHERE id=1")?, "1");
    no_open_transaction(cluster)?;
    cluster.sql(0, "SET lock_timeout='1s'; DELETE FROM t WHERE id=1")?;
    Ok(())
}

#[test]
fn ep_11_autocommitted_dml_in_transaction_pooling() -> Result<()> {
    let (cluster, weir) = rig(1, "")?;
    autocommitted_update_is_visible(&cluster, &weir)
}

#[test]
fn ep_11_autocommitted_dml_in_session_pooling() -> Result<()> {
    let (cluster, weir) = rig(1, "pool_mode: session")?;
    autocommitted_update_is_visible(&cluster, &weir)
}

#[test]
fn ep_11_autocommitted_dml_with_one_node() -> Result<()> {
    let (cluster, weir) = rig(0, "")?;
    autocommitted_update_is_visible(&cluster, &weir)
}

#[test]
fn ps_13_extended_query_inside_an_explicit_transaction() -> Result<()> {
    let (_cluster, weir) = rig(1, "")?;
    for pool in ["simple", "extended"] {
        let mut a = weir.client()?;
        let word = |sql: &str| if pool == "simple" { msgs().Q(sql) } else { msgs().PBE(sql).S() };
        let started = Instant::now();
        assert!(a.talk(&word("BEGIN"))?.to_string().ends_with("C(BEGIN) Z(T)"), "{pool}");
        let described = a.talk(&msgs().P("", "SELECT $1::int").D('S', "").S())?;
        assert_eq!(described.to_string(), "1 t T Z(T)", "{pool}");
        assert_eq!(
            a.talk(&msgs().B("", "", &["4"]).E().S())?.to_string(),
            "2 D(4) C(SELECT 1) Z(T)",
            "{pool}"
        );
        assert!(a.talk(&word("ROLLBACK"))?.to_string().ends_with("C(ROLLBACK) Z(I)"), "{pool}");
        ensure!(started.elapsed() < Duration::from_secs(1), "{pool}: {:?}", started.elapsed());
    }
    Ok(())
}

/// One client's share of EP-13: everything sent at once in random pieces, then all replies checked.
fn pipeline_many_transactions(port: u16, me: usize, seed: u64) -> Result<()> {
    const ROUNDS: usize = 200;
    let mut client = RawClient::bench(port)?;
    client.set_deadline(Duration::from_secs(60));
    let mut random = StdRng::seed_from_u64(seed + me as u64);
    let mut all = msgs();
    for round in 0..ROUNDS {
        let n = me * ROUNDS + round;
        all = all.Q("SELECT 1").Q("BEGIN READ ONLY").Q(&format!("SELECT {n}")).Q("COMMIT");
    }
    let mut rest = all.bytes();
    while !rest.is_empty() {
        let n = if me.is_multiple_of(5) { 1 } else { random.random_range(1..2000) };
        let (piece, tail) = rest.split_at(n.min(rest.len()));
        client.send_bytes(piece)?;
        rest = tail;
    }
    for round in 0..ROUNDS {
        let n = me * ROUNDS + round;
        let wanted =
            format!("T D(1) C(SELECT 1) Z(I) C(BEGIN) Z(T) T D({n}) C(SELECT 1) Z(T) C(COMMIT) Z(I)");
        assert_eq!(client.read_ready(4)?.to_string(), wanted, "client {me}, round {round}");
    }
    client.terminate()
}

#[test]
fn ep_13_many_transactions_pipelined_on_one_socket() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 4")?;
    let seed: u64 = u64::from(rand::rng().random::<u32>());
    println!("seed {seed}");
    let port = weir.port();
    std::thread::scope(|scope| {
        let all: Vec<_> =
            (0..50).map(|me| scope.spawn(move || pipeline_many_transactions(port, me, seed))).collect();
        all.into_iter().try_for_each(|one| one.join().expect("a client panicked"))
    })?;
    no_open_transaction(&cluster)
}
