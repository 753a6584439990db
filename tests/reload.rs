//! RL-01: reloads that change who is there, while 200 clients in transaction and in session pooling are at work.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::pgweir::PASSWORDS;
use harness::{Cluster, ClusterOptions, Login, Pgweir, PgweirOptions, eventually, sqlstate};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(30);
/// Clients in transaction pooling, and in session pooling.
const CLIENTS: (usize, usize) = (190, 10);
/// Backends of a node and pool, at the most, at any time.
const LARGEST_POOL: usize = 12;

/// Two of three nodes, or all; a hostname is another node to pgweir, though it is the same server.
fn options(cluster: &Cluster, nodes: &[(usize, &str)], pool: usize, passwords: &str) -> PgweirOptions {
    let row = |(node, host): &(usize, &str)| {
        let weight = usize::from(*node > 0);
        format!("  - {{ hostname: {host}, port: {}, weight: {weight} }}\n", cluster.port(*node))
    };
    let rows: String = nodes.iter().map(row).collect();
    let yaml = format!(
        "default_pool_size: {pool}\nusers: {{ other: {{ pool_mode: session, pool_size: 12 }} }}\nbackends:\n{rows}"
    );
    PgweirOptions { passwords: Some(passwords.to_owned()), ..PgweirOptions::yaml(&yaml) }.trusting()
}

/// What a client does until it is told to stop; how often it did.
fn work(weir: &Pgweir, me: usize, done: &AtomicBool) -> Result<usize> {
    let user = if me < CLIENTS.0 { "bench" } else { "other" };
    let mut client = Login::new(user, "bench").connect(weir.port())?;
    client.set_deadline(LIMIT);
    let mut n = 0;
    while !done.load(Ordering::Relaxed) {
        n += 1;
        let nonce = (me * 1_000_000 + n).to_string();
        ensure!(client.scalar(&format!("SELECT {nonce}"))? == nonce, "another's answer");
        if n % 16 == 0 {
            client.simple("BEGIN")?;
            client.simple("SELECT pg_current_xact_id()")?;
            client.simple("COMMIT")?;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(n)
}

#[test]
fn rl_01_nodes_pools_and_hosts_change_under_load() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 2, ..ClusterOptions::default() })?;
    let (two, three) =
        ([(0, "127.0.0.1"), (1, "127.0.0.1")], [(0, "127.0.0.1"), (1, "127.0.0.1"), (2, "127.0.0.1")]);
    let other_host = [(0, "127.0.0.1"), (1, "localhost"), (2, "127.0.0.1")];
    let mut weir = Pgweir::launch(&cluster, &options(&cluster, &two, 6, PASSWORDS))?;
    weir.wait_answering()?;
    weir.wait_nodes(2)?;
    let (done, most) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| -> Result<()> {
        let (weir, done) = (&weir, &done);
        let clients: Vec<_> =
            (0..CLIENTS.0 + CLIENTS.1).map(|me| scope.spawn(move || work(weir, me, done))).collect();
        let outcome = (|| -> Result<()> {
            for round in 0..100 {
                let (nodes, pool): (&[(usize, &str)], _) = match round % 5 {
                    0 => (&three, 6),
                    1 => (&three, LARGEST_POOL),
                    2 => (&other_host, LARGEST_POOL),
                    3 => (&three, 4),
                    _ => (&two, 6),
                };
                weir.rewrite(&cluster, &options(&cluster, nodes, pool, PASSWORDS))?;
                if round % 2 == 0 {
                    weir.admin("RELOAD")?;
                } else {
                    weir.signal(Signal::HUP);
                }
                let sql = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench'";
                most.fetch_max(cluster.scalar(1, sql)?.parse()?, Ordering::Relaxed);
            }
            Ok(())
        })();
        done.store(true, Ordering::Relaxed);
        for client in clients {
            let served = client.join().expect("a client panicked").context("a client failed")?;
            ensure!(served > 0, "a client was never served");
        }
        outcome
    })?;
    // The old pool of a host that is gone is emptied while the new one fills: never more than both.
    let most = most.into_inner();
    ensure!(most <= 2 * LARGEST_POOL, "{most} backends on a node");
    // What stays is what is configured last: two nodes, and at most six backends each.
    weir.wait_nodes(2)?;
    let sql = "SELECT count(*) <= 6 FROM pg_stat_activity WHERE usename = 'bench'";
    cluster.wait_scalar(1, sql, "t", LIMIT)?;
    cluster.wait_scalar(2, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench'", "0", LIMIT)
}

/// RL-01: a hundred reloads that change nothing recycle no backend; a user who is removed cannot come in any more, and
/// nobody else notices.
#[test]
fn rl_01_what_does_not_change_keeps_its_backends() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let weir = Pgweir::start(&cluster, "default_pool_size: 3")?;
    let pids = || -> Result<BTreeSet<String>> {
        let servers = weir.admin("SHOW SERVERS")?;
        Ok(servers.iter().filter(|row| row["user"] == "bench").map(|row| row["remote_pid"].clone()).collect())
    };
    let mut clients = [weir.client()?, weir.client()?, weir.client()?];
    for client in &mut clients {
        client.simple("BEGIN")?;
        client.simple("SELECT 1")?;
    }
    for client in &mut clients {
        client.simple("COMMIT")?;
    }
    let before = pids()?;
    ensure!(before.len() == 3, "{before:?}");
    for _ in 0..100 {
        let said =
            Login::new("postgres", "pgweir").connect(weir.port())?.talk(&harness::msgs().Q("RELOAD"))?;
        ensure!(said.to_string().contains("C(RELOAD)"), "{said}");
    }
    assert_eq!(pids()?, before);
    let mut other = Login::new("other", "bench").connect(weir.port())?;
    other.scalar("SELECT 1")?;
    let without = PASSWORDS.replace("other:TEXTother\n", "");
    let options = PgweirOptions { passwords: Some(without), ..PgweirOptions::yaml("default_pool_size: 3") };
    weir.rewrite(&cluster, &options)?;
    weir.admin("RELOAD")?;
    let refused = || {
        let login = Login::new("other", "bench").connect(weir.port());
        login.map(|_| ()).is_err_and(|error| sqlstate(&error) == "28P01")
    };
    ensure!(eventually(LIMIT, refused), "a user without a secret comes in");
    for client in &mut clients {
        client.scalar("SELECT 1")?;
    }
    assert_eq!(pids()?, before);
    Ok(())
}
