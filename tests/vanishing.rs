//! Clients that vanish, and many clients on few backends.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{Cluster, ClusterOptions, Pgweir, PgweirOptions, RawClient, eventually, msgs, psql, rig};

const TABLE: &str =
    "CREATE TABLE t(id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'clean'); GRANT ALL ON t TO bench";

/// How a client leaves in the middle of something.
fn leave(client: RawClient, how: &str) -> Result<()> {
    match how {
        "reset" => client.reset(),
        "close" => {
            drop(client);
            Ok(())
        }
        "half" => {
            client.half_close()?;
            // The other half stays open until the end of the process.
            std::mem::forget(client);
            Ok(())
        }
        _ => client.terminate(),
    }
}

const WAYS: [&str; 4] = ["reset", "close", "half", "terminate"];

fn nothing_is_left(cluster: &Cluster, weir: &Pgweir, how: &str) -> Result<()> {
    let busy = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench' AND state <> 'idle'";
    let locks = "SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass AND pid <> pg_backend_pid()";
    cluster.wait_scalar(0, busy, "0", Duration::from_secs(2))?;
    cluster.wait_scalar(0, locks, "0", Duration::from_secs(2))?;
    let mut next = weir.client()?;
    assert_eq!(next.scalar("SELECT v FROM t WHERE id = 1")?, "clean", "{how}");
    let commit = next.talk(&msgs().Q("COMMIT"))?.to_string();
    assert_eq!(commit, "N(25P01) C(COMMIT) Z(I)", "{how}: the next client is inside a transaction");
    next.simple("BEGIN")?;
    next.simple("UPDATE t SET v = 'next' WHERE id = 1")?;
    next.simple("ROLLBACK")?;
    assert_eq!(cluster.scalar(0, "SELECT v FROM t WHERE id = 1")?, "clean", "{how}");
    Ok(())
}

fn vanish_in_transactions(mode: &str) -> Result<()> {
    let (cluster, weir) = rig(1, &format!("default_pool_size: 1\npool_mode: {mode}"))?;
    cluster.setup(TABLE)?;
    for how in WAYS {
        // Idle in a transaction that has written.
        let mut a = weir.client()?;
        a.simple("BEGIN")?;
        a.simple("UPDATE t SET v = 'dirty' WHERE id = 1")?;
        leave(a, how)?;
        nothing_is_left(&cluster, &weir, how)?;
        // In a failed one.
        let mut a = weir.client()?;
        a.simple("BEGIN")?;
        a.simple("UPDATE t SET v = 'dirty' WHERE id = 1")?;
        assert_eq!(a.sqlstate_of("SELECT 1/0")?, "22012");
        leave(a, how)?;
        nothing_is_left(&cluster, &weir, how)?;
        // In the middle of an extended batch.
        let mut a = weir.client()?;
        a.send(&msgs().PBE("UPDATE t SET v = 'dirty' WHERE id = 1").H())?;
        assert_eq!(a.read_count(3)?.to_string(), "1 2 C(UPDATE 1)");
        leave(a, how)?;
        nothing_is_left(&cluster, &weir, how)?;
    }
    Ok(())
}

#[test]
fn sl_04_vanish_in_mid_transaction_in_transaction_pooling() -> Result<()> {
    vanish_in_transactions("transaction")
}

#[test]
fn sl_04_vanish_in_mid_transaction_in_session_pooling() -> Result<()> {
    vanish_in_transactions("session")
}

#[test]
fn vanish_while_a_statement_runs() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 1")?;
    cluster.setup(TABLE)?;
    for how in ["reset", "close"] {
        let mut a = weir.client()?;
        a.simple("BEGIN")?;
        a.simple("UPDATE t SET v = 'dirty' WHERE id = 1")?;
        a.send(&msgs().Q("SELECT pg_sleep(60)"))?;
        let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%sleep(60)%' AND usename = 'bench' AND state = 'active'";
        cluster.wait_scalar(0, sleeping, "1", Duration::from_secs(2))?;
        leave(a, how)?;
        nothing_is_left(&cluster, &weir, how)?;
    }
    Ok(())
}

#[test]
fn vanish_while_waiting_for_a_backend() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 1")?;
    cluster.setup(TABLE)?;
    let mut holder = weir.client()?;
    holder.simple("BEGIN")?;
    holder.simple("SELECT 1")?;
    for n in 0..20 {
        let mut a = weir.client()?;
        a.send(&msgs().Q("UPDATE t SET v = 'ghost' WHERE id = 1"))?;
        leave(a, WAYS[n % 2])?;
    }
    // Those that were gone before their turn are passed over.
    let mut patient = weir.client()?;
    patient.send(&msgs().Q("SELECT 'patient'"))?;
    ensure!(patient.silent_for(Duration::from_millis(300))?, "served on a busy backend");
    holder.simple("COMMIT")?;
    assert_eq!(patient.read_ready(1)?.to_string(), "T D(patient) C(SELECT 1) Z(I)");
    assert_eq!(cluster.scalar(0, "SELECT v FROM t WHERE id = 1")?, "clean");
    assert_eq!(cluster.count_logged(0, "ghost")?, 0, "a statement of a dead client ran");
    Ok(())
}

#[test]
fn a_killed_psql_leaves_no_lock() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 2")?;
    cluster.setup(TABLE)?;
    let script = "BEGIN; UPDATE t SET v = 'dirty' WHERE id = 1; \\! kill -9 $PPID";
    let file = cluster.root().join("suicide.sql");
    std::fs::write(&file, script.replace("; ", ";\n"))?;
    let out = psql(&cluster, weir.port(), "bench", &["-f", &file.display().to_string()])?;
    ensure!(out.code != 0, "psql survived: {out:?}");
    nothing_is_left(&cluster, &weir, "kill -9")
}

#[test]
fn five_hundred_clients_on_a_pool_of_ten() -> Result<()> {
    const CLIENTS: usize = 500;
    let cluster =
        Cluster::new(ClusterOptions { standbys: 1, log_statements: false, ..ClusterOptions::default() })?;
    let weir = Pgweir::start_with(&cluster, &PgweirOptions::yaml("default_pool_size: 10").trusting())?;
    let port = weir.port();
    let serve = |me: usize| -> Result<()> {
        let mut client = RawClient::bench(port)?;
        client.set_deadline(Duration::from_secs(30));
        for round in 0..10 {
            let nonce = (me * 100 + round).to_string();
            ensure!(client.scalar(&format!("SELECT {nonce} FROM pg_sleep(0.001)"))? == nonce, "client {me}");
            let replies =
                client.talk(&msgs().Q("BEGIN").PBE(&format!("SELECT {nonce}")).S().Q("COMMIT"))?.to_string();
            let wanted = format!("C(BEGIN) Z(T) 1 2 D({nonce}) C(SELECT 1) Z(T) C(COMMIT) Z(I)");
            ensure!(replies == wanted, "client {me}: {replies}");
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..CLIENTS).map(|me| scope.spawn(move || serve(me))).collect();
        all.into_iter().try_for_each(|one| one.join().expect("a client panicked"))
    })?;
    for node in 0..2 {
        let used = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench'";
        let used: usize = cluster.scalar(node, used)?.parse()?;
        ensure!(used <= 10, "{used} backends on n{node}");
    }
    ensure!(
        eventually(Duration::from_secs(30), || weir.open_fds().is_ok_and(|n| n < 100)),
        "descriptors leak"
    );
    Ok(())
}

#[test]
fn a_statement_and_a_goodbye_in_one_packet() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 1")?;
    cluster.setup(TABLE)?;
    let pid = weir.client()?.scalar("SELECT pg_backend_pid()")?;
    for n in 0..5 {
        let mut a = weir.client()?;
        a.send(&msgs().Q(&format!("UPDATE t SET v = 'bye {n}' WHERE id = 1")).X())?;
        assert_eq!(a.read_to_end()?.to_string(), "C(UPDATE 1) Z(I)");
        assert_eq!(cluster.scalar(0, "SELECT v FROM t WHERE id = 1")?, format!("bye {n}"));
        // Nobody waits for the answer.
        let mut b = weir.client()?;
        b.send(&msgs().PBE("SELECT generate_series(1, 1000)").S().X())?;
        drop(b);
    }
    let mut next = weir.client()?;
    assert_eq!(next.scalar("SELECT pg_backend_pid()")?, pid, "a clean backend was closed");
    Ok(())
}

#[test]
fn who_has_said_goodbye_keeps_its_place_in_the_queue() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 1")?;
    cluster.setup(TABLE)?;
    let mut holder = weir.client()?;
    holder.simple("BEGIN; SELECT 1")?;
    let mut a = weir.client()?;
    a.send(&msgs().Q("UPDATE t SET v = 'last will' WHERE id = 1").X())?;
    drop(a);
    let mut b = weir.client()?;
    b.send(&msgs().Q("UPDATE t SET v = 'ghost' WHERE id = 1"))?;
    drop(b);
    holder.simple("COMMIT")?;
    cluster.wait_scalar(0, "SELECT v FROM t WHERE id = 1", "last will", Duration::from_secs(3))?;
    assert_eq!(weir.client()?.scalar("SELECT v FROM t WHERE id = 1")?, "last will");
    Ok(())
}

#[test]
fn vanish_while_what_was_sent_next_waits() -> Result<()> {
    let (cluster, weir) = rig(1, "")?;
    cluster.setup(TABLE)?;
    cluster.wait_replay()?;
    weir.wait_on_standby("SELECT v FROM t")?;
    for how in ["reset", "close", "half"] {
        let mut a = weir.client()?;
        // The read sleeps on the standby, the write waits for its end.
        a.send(&msgs().Q("SELECT pg_sleep(60), v FROM t").Q("UPDATE t SET v = 'ghost'"))?;
        let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%sleep(60)%' AND usename = 'bench' AND state = 'active'";
        cluster.wait_scalar(1, sleeping, "1", Duration::from_secs(3))?;
        leave(a, how)?;
        cluster.wait_scalar(1, sleeping, "0", Duration::from_secs(4))?;
    }
    assert_eq!(cluster.scalar(0, "SELECT v FROM t WHERE id = 1")?, "clean");
    Ok(())
}
