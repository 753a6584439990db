//! CancelRequest: it reaches the right statement or none.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::{Cluster, Pgweir, RawClient, msgs, rig};

/// Sends `sql`, cancels it once it runs on `node`, and returns the compact reply, which must come in 1 s.
fn cancelled(cluster: &Cluster, node: usize, client: &mut RawClient, sql: &str) -> Result<String> {
    client.send(&msgs().Q(sql))?;
    let running =
        format!("SELECT count(*) > 0 FROM pg_stat_activity WHERE state = 'active' AND query = '{sql}'");
    if harness::direct_mode() {
        std::thread::sleep(Duration::from_millis(200));
    } else {
        cluster.wait_scalar(node, &running, "t", Duration::from_secs(3))?;
    }
    let started = Instant::now();
    client.cancel()?;
    let reply = client.read_ready(1)?.to_string();
    ensure!(started.elapsed() < Duration::from_secs(1), "cancelled after {:?}", started.elapsed());
    Ok(reply)
}

fn right_query_is_cancelled(cluster: &Cluster, weir: &Pgweir) -> Result<()> {
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    let (mut a, mut b) = (weir.client()?, weir.client()?);
    for _ in 0..2 {
        // A read on the standby, with another session's beside it.
        b.send(&msgs().Q("SELECT 'b', pg_sleep(1.2)"))?;
        assert_eq!(cancelled(cluster, 1, &mut a, "SELECT 1, pg_sleep(20)")?, "T E(57014) Z(I)");
        assert_eq!(b.read_ready(1)?.to_string(), "T D(b,) C(SELECT 1) Z(I)");
        assert_eq!(a.scalar("SELECT 'next'")?, "next");
        // A write on the primary.
        b.simple("BEGIN")?;
        b.simple("INSERT INTO t VALUES (1)")?;
        b.send(&msgs().Q("SELECT 'b', pg_sleep(1.2)"))?;
        a.simple("BEGIN")?;
        a.simple("INSERT INTO t VALUES (2)")?;
        assert_eq!(cancelled(cluster, 0, &mut a, "SELECT 2, pg_sleep(20)")?, "T E(57014) Z(E)");
        assert_eq!(b.read_ready(1)?.to_string(), "T D(b,) C(SELECT 1) Z(T)");
        a.simple("ROLLBACK")?;
        b.simple("COMMIT")?;
    }
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t WHERE id = 1")?, "2");
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t WHERE id = 2")?, "0");
    Ok(())
}

#[test]
fn cn_01_cancel_reaches_the_right_query_in_transaction_pooling() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 5\nconsistency: eventual")?;
    right_query_is_cancelled(&cluster, &weir)
}

#[test]
fn cn_01_cancel_reaches_the_right_query_in_session_pooling() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 5\npool_mode: session\nconsistency: eventual")?;
    right_query_is_cancelled(&cluster, &weir)
}

#[test]
fn cn_01_a_cancel_with_a_wrong_key_hits_nobody() -> Result<()> {
    let (_cluster, weir) = rig(0, "default_pool_size: 5")?;
    let mut a = weir.client()?;
    a.send(&msgs().Q("SELECT 'a', pg_sleep(1)"))?;
    let (pid, secret) = a.key.clone().unwrap_or_default();
    let wrong: Vec<u8> = secret.iter().map(|byte| !byte).collect();
    for (pid, secret) in [(pid, &wrong[..]), (pid ^ 1, &secret), (pid, &secret[..1]), (0, &[])] {
        let mut canceller = RawClient::tcp(weir.port())?;
        canceller.send_bytes(&harness::messages::cancel_request(pid, secret))?;
        canceller.half_close()?;
        canceller.read_to_end()?;
    }
    assert_eq!(a.read_ready(1)?.to_string(), "T D(a,) C(SELECT 1) Z(I)");
    Ok(())
}

#[test]
fn cn_02_a_late_cancel_does_not_hit_the_next_client() -> Result<()> {
    let (_cluster, weir) = rig(0, "default_pool_size: 1")?;
    let mut b = weir.client()?;
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let other = scope.spawn(|| -> Result<usize> {
            let mut n = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let sum = b.scalar("SELECT sum(g) FROM generate_series(1,20000) g")?;
                ensure!(sum == "200010000", "{sum}");
                n += 1;
            }
            Ok(n)
        });
        let result = cancel_around_the_end(&weir);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let served = other.join().expect("the other client panicked")?;
        ensure!(served > 10, "the other client was served {served} times");
        result
    })
}

/// 300 statements, each with a cancel that arrives about when it ends.
fn cancel_around_the_end(weir: &Pgweir) -> Result<()> {
    let mut a = weir.client()?;
    for round in 0..300u64 {
        a.send(&msgs().Q("SELECT pg_sleep(0.002)"))?;
        std::thread::sleep(Duration::from_micros(round * 37 % 4000));
        a.cancel()?;
        let reply = a.read_ready(1)?.to_string();
        // Before the row description when it was still waiting for the backend.
        let right = ["T D() C(SELECT 1) Z(I)", "T E(57014) Z(I)", "E(57014) Z(I)"].contains(&reply.as_str());
        ensure!(right, "round {round}: {reply}");
        let nonce = round.to_string();
        let next = a.talk(&msgs().Q(&format!("SELECT {nonce}")))?.to_string();
        // On a direct connection, too, a cancel may still hit the client's own next statement.
        let right = next == format!("T D({nonce}) C(SELECT 1) Z(I)") || next.ends_with("E(57014) Z(I)");
        ensure!(right, "round {round}: {next}");
    }
    Ok(())
}

#[test]
fn cn_04_cancel_while_waiting_for_a_backend() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 1")?;
    let (mut a, mut b) = (weir.client()?, weir.client()?);
    for extended in [false, true] {
        b.simple("BEGIN")?;
        b.simple("SELECT 1")?;
        let sql = "SELECT 'first one'";
        a.send(&if extended { msgs().PBE(sql).S() } else { msgs().Q(sql) })?;
        ensure!(a.silent_for(Duration::from_millis(200))?, "a is not queued");
        a.cancel()?;
        assert_eq!(a.read_ready(1)?.to_string(), "E(57014) Z(I)");
        ensure!(a.silent_for(Duration::from_millis(100))?, "a second answer");
        b.simple("COMMIT")?;
        assert_eq!(a.scalar("SELECT 'b'")?, "b");
        assert_eq!(b.scalar("SELECT 'c'")?, "c");
    }
    assert_eq!(cluster.count_logged(0, "first one")?, 0, "the cancelled statement reached the node");
    Ok(())
}
