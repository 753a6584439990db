//! CancelRequest: it reaches the right statement or none.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::{Cluster, ClusterOptions, Login, Pgweir, RawClient, Relay, msgs, rig};

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
        a.cancel_with(pid, secret)?;
    }
    assert_eq!(a.read_ready(1)?.to_string(), "T D(a,) C(SELECT 1) Z(I)");
    Ok(())
}

/// Clients that share one backend, by user: one cancels around the end of its statements, the other one must not
/// notice.
const USERS: [&str; 4] = ["bench", "other", "stats", "pgweir"];
/// Rounds of each of them; 2,000 in all.
const ROUNDS: u64 = 500;
/// How often half of them are added when too few cancels reached the node.
const MORE_HALVES: usize = 4;

/// CN-02
#[test]
fn cn_02_a_late_cancel_does_not_hit_the_next_client() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let relay = Relay::start(cluster.port(0))?;
    let yaml = format!(
        "default_pool_size: 1\nbackends:\n  - {{ hostname: 127.0.0.1, port: {}, weight: 1 }}",
        relay.port()
    );
    let weir = Pgweir::start(&cluster, &yaml)?;
    let login = |user| Login::new(user, "bench").connect(weir.port());
    let half = |delay| -> Result<()> {
        relay.set_cancel_delay(Duration::from_millis(delay));
        std::thread::scope(|scope| -> Result<()> {
            let pairs = USERS.map(|user| scope.spawn(move || pair(login(user)?, login(user)?, ROUNDS / 2)));
            pairs.into_iter().try_for_each(|pair| pair.join().expect("a client panicked"))
        })
    };
    half(0)?;
    half(50)?;
    // Where the machine is busy, more statements end before their cancel comes.
    for _ in 0..MORE_HALVES {
        if relay.cancels() <= 500 {
            half(0)?;
        }
    }
    ensure!(relay.cancels() > 500, "only {} cancels reached the node", relay.cancels());
    Ok(())
}

fn pair(a: RawClient, mut b: RawClient, rounds: u64) -> Result<()> {
    let done = std::sync::atomic::AtomicBool::new(false);
    b.set_deadline(Duration::from_secs(20));
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
        let result = cancel_around_the_end(a, rounds);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let served = other.join().expect("the other client panicked")?;
        ensure!(served > 10, "the other client was served {served} times");
        result
    })
}

/// Statements, each with a cancel that arrives about when it ends.
fn cancel_around_the_end(mut a: RawClient, rounds: u64) -> Result<()> {
    a.set_deadline(Duration::from_secs(20));
    for round in 0..rounds {
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

/// CN-02: a cancel that is lost on its way may come at any time: its backend is not used again.
#[test]
fn cn_02_a_backend_that_a_lost_cancel_may_still_hit_is_closed() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let relay = Relay::start(cluster.port(0))?;
    let yaml = format!(
        "default_pool_size: 1\nbackends:\n  - {{ hostname: 127.0.0.1, port: {}, weight: 1 }}",
        relay.port()
    );
    let weir = Pgweir::start(&cluster, &yaml)?;
    let (mut a, mut b) = (weir.client()?, weir.client()?);
    b.set_deadline(Duration::from_secs(20));
    let pid = a.scalar("SELECT pg_backend_pid()")?;
    relay.set_cancel_delay(Duration::from_secs(12));
    a.send(&msgs().Q("SELECT pg_sleep(0.3)"))?;
    let mut canceller = RawClient::tcp(weir.port())?;
    let (id, secret) = a.key.clone().unwrap_or_default();
    canceller.send_bytes(&harness::messages::cancel_request(id, &secret))?;
    assert_eq!(a.read_ready(1)?.to_string(), "T D() C(SELECT 1) Z(I)");
    // It waits for the request that may come, then for a new backend.
    let next = b.scalar("SELECT pg_backend_pid()")?;
    ensure!(next != pid, "used again while a cancel may hit it");
    assert_eq!(b.talk(&msgs().Q("SELECT pg_sleep(4)"))?.to_string(), "T D() C(SELECT 1) Z(I)");
    Ok(())
}

/// CN-06
#[test]
fn cn_06_a_cancel_is_not_charged_to_any_limit() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 2\nmax_client_conn: 3")?;
    let mut clients = [weir.client()?, weir.client()?, weir.client()?];
    let Err(refused) = weir.client() else { anyhow::bail!("a fourth client") };
    assert_eq!(harness::sqlstate(&refused), "53300");
    for client in &mut clients[..2] {
        client.send(&msgs().Q("SELECT pg_sleep(60)"))?;
    }
    let runs =
        "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench' AND query = 'SELECT pg_sleep(60)'";
    cluster.wait_scalar(0, runs, "2", Duration::from_secs(3))?;
    clients[2].send(&msgs().Q("SELECT pg_sleep(60)"))?;
    let waits = || {
        let clients = weir.admin("SHOW CLIENTS").unwrap_or_default();
        clients.iter().filter(|client| client["state"] == "waiting").count() == 1
    };
    ensure!(harness::eventually(Duration::from_secs(30), waits));
    // The one that waits first: a cancel that comes when it has just been given a backend may come before its
    // statement, and PostgreSQL forgets it then.
    for client in clients.iter_mut().rev() {
        let started = Instant::now();
        client.cancel()?;
        let reply = client.read_ready(1)?.to_string();
        ensure!(reply.ends_with("E(57014) Z(I)"), "{reply}");
        ensure!(started.elapsed() < Duration::from_secs(1), "cancelled after {:?}", started.elapsed());
    }
    Ok(())
}

/// CN-07
#[test]
fn cn_07_keys_are_as_long_as_the_protocol_version_says() -> Result<()> {
    let (_cluster, weir) = rig(0, "default_pool_size: 5")?;
    for (minor, length) in [(0u32, 4), (2, 32)] {
        let mut client = Login::bench().version(3 << 16 | minor).connect(weir.port())?;
        let (pid, secret) = client.key.clone().unwrap_or_default();
        assert_eq!(secret.len(), length, "3.{minor}");
        client.send(&msgs().Q("SELECT 'whole', pg_sleep(0.6)"))?;
        for claimed in [&secret[..4.min(length - 1)], &secret[..length - 1], &[&secret[..], &[0]].concat()] {
            client.cancel_with(pid, claimed)?;
        }
        assert_eq!(client.read_ready(1)?.to_string(), "T D(whole,) C(SELECT 1) Z(I)", "3.{minor}");
        client.send(&msgs().Q("SELECT pg_sleep(20)"))?;
        ensure!(client.silent_for(Duration::from_millis(100)).is_ok());
        client.cancel()?;
        let reply = client.read_ready(1)?.to_string();
        ensure!(reply.ends_with("E(57014) Z(I)"), "3.{minor}: {reply}");
    }
    Ok(())
}

/// A storm of requests: the node is sent few, and whoever asked is answered by the end of its connection.
#[test]
fn cn_06_a_storm_of_cancels_is_bounded() -> Result<()> {
    const REQUESTS: usize = 300;
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let relay = Relay::start(cluster.port(0))?;
    let yaml = format!("backends:\n  - {{ hostname: 127.0.0.1, port: {}, weight: 1 }}", relay.port());
    let weir = Pgweir::start(&cluster, &yaml)?;
    let (mut a, mut b) = (weir.client()?, weir.client()?);
    relay.set_cancel_delay(Duration::from_millis(300));
    b.send(&msgs().Q("SELECT 'untouched' FROM pg_sleep(2)"))?;
    a.send(&msgs().Q("SELECT pg_sleep(60)"))?;
    // On a busy machine its backend takes a while; before, pgweir would answer the requests itself.
    let runs =
        "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND state = 'active'";
    cluster.wait_scalar(0, runs, "1", Duration::from_secs(20))?;
    let (pid, secret) = a.key.clone().unwrap_or_default();
    let mut storm = Vec::new();
    for _ in 0..REQUESTS {
        let mut one = RawClient::tcp(weir.port())?;
        one.send_bytes(&harness::messages::cancel_request(pid, &secret))?;
        storm.push(one);
    }
    ensure!(a.read_ready(1)?.to_string().ends_with("E(57014) Z(I)"));
    for one in &mut storm {
        ensure!(one.read_to_end()?.0.is_empty());
    }
    assert_eq!(a.scalar("SELECT 'goes on'")?, "goes on");
    assert_eq!(b.read_ready(1)?.to_string(), "T D(untouched) C(SELECT 1) Z(I)");
    ensure!((1..=REQUESTS / 10).contains(&relay.cancels()), "{} requests for one client", relay.cancels());
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

/// Rounds of each user in which a cancel comes about when its statement is given the backend.
const HANDOVERS: u64 = 150;

/// CN-04: a cancel that comes when the other client's statement ends and the client's own, which waits for the backend, is
/// given it: it ends the client's own, in the queue or on the node, and no other one. Statements and cancels of four pairs.
#[test]
fn cn_04_a_cancel_at_the_handover_of_a_backend_ends_what_it_is_for() -> Result<()> {
    let (_cluster, weir) = rig(0, "default_pool_size: 1")?;
    let login = |user| Login::new(user, "bench").connect(weir.port());
    std::thread::scope(|scope| -> Result<()> {
        let login = &login;
        let pairs = USERS.map(|user| scope.spawn(move || handovers(login(user)?, login(user)?)));
        pairs.into_iter().try_for_each(|pair| pair.join().expect("a client panicked"))
    })
}

fn handovers(mut waiting: RawClient, mut holding: RawClient) -> Result<()> {
    for client in [&mut waiting, &mut holding] {
        client.set_deadline(Duration::from_secs(20));
    }
    for round in 0..HANDOVERS {
        // Its second statement waits behind the other client's, or comes right before it.
        let two = msgs().Q(&format!("SELECT {round}, pg_sleep(0.003)")).Q(&format!("SELECT {round}"));
        holding.send(&two)?;
        waiting.send(&msgs().Q("SELECT pg_sleep(600)"))?;
        std::thread::sleep(Duration::from_micros(round * 61 % 6000));
        waiting.cancel()?;
        // PostgreSQL forgets a request that comes before it has read the statement, as on a direct connection: one more.
        while waiting.silent_for(Duration::from_millis(300))? {
            waiting.cancel()?;
        }
        let ended = waiting.read_ready(1)?.to_string();
        ensure!(["E(57014) Z(I)", "T E(57014) Z(I)"].contains(&ended.as_str()), "round {round}: {ended}");
        let own = holding.read_ready(2)?.to_string();
        let wanted = format!("T D({round},) C(SELECT 1) Z(I) T D({round}) C(SELECT 1) Z(I)");
        ensure!(own == wanted, "round {round}: {own}");
    }
    Ok(())
}
