//! How reads are shared among nodes, and what that buys.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::{Cluster, ClusterOptions, Pgweir, PgweirOptions, RawClient, WHERE, msgs};

fn cluster(standbys: usize) -> Result<Cluster> {
    Cluster::new(ClusterOptions { standbys, log_statements: false, ..ClusterOptions::default() })
}

/// `total` autocommit reads over 8 long connections, half of them by the extended protocol; share of
/// each node in percent.
fn shares(weir: &Pgweir, total: usize) -> Result<BTreeMap<String, f64>> {
    const CLIENTS: usize = 8;
    let port = weir.port();
    let read = move || -> Result<Vec<String>> {
        let mut client = RawClient::bench(port)?;
        let read = |n: usize| {
            if n.is_multiple_of(2) { client.scalar(WHERE) } else { client.scalar_extended(WHERE, &[]) }
        };
        (0..total / CLIENTS).map(read).collect()
    };
    let mut counts = BTreeMap::new();
    std::thread::scope(|scope| -> Result<()> {
        let all: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(read)).collect();
        for one in all {
            let nodes = one.join().expect("a client panicked")?;
            nodes.into_iter().for_each(|node| *counts.entry(node).or_insert(0.0) += 100.0 / total as f64);
        }
        Ok(())
    })?;
    Ok(counts)
}

fn near(shares: &BTreeMap<String, f64>, node: &str, wanted: f64) -> Result<()> {
    let share = shares.get(node).copied().unwrap_or(0.0);
    ensure!((share - wanted).abs() <= 3.0, "{node}: {share:.1} % instead of {wanted} %: {shares:?}");
    Ok(())
}

#[test]
fn rw_22_reads_are_shared_by_weight() -> Result<()> {
    let cluster = cluster(2)?;
    for method in ["least_outstanding", "random", "round_robin"] {
        let options = PgweirOptions::yaml(&format!("load_balance: {method}")).weights(&[0, 1, 3]);
        let weir = Pgweir::start_with(&cluster, &options)?;
        let shares = shares(&weir, 4000)?;
        near(&shares, "n1", 25.0).and_then(|()| near(&shares, "n2", 75.0)).map_err(|e| e.context(method))?;
        near(&shares, "n0", 0.0)?;
    }
    Ok(())
}

#[test]
fn rw_22_the_primary_takes_reads_by_its_weight() -> Result<()> {
    let cluster = cluster(2)?;
    let weir = Pgweir::start_with(&cluster, &PgweirOptions::default().weights(&[2, 1, 1]))?;
    let shares = shares(&weir, 4000)?;
    near(&shares, "n0", 50.0)?;
    near(&shares, "n1", 25.0)?;
    near(&shares, "n2", 25.0)
}

#[test]
fn rw_22_all_weights_zero_means_the_primary() -> Result<()> {
    let cluster = cluster(1)?;
    let weir = Pgweir::start_with(&cluster, &PgweirOptions::default().weights(&[0, 0]))?;
    near(&shares(&weir, 400)?, "n0", 100.0)
}

#[test]
fn rw_22_one_sequential_client_meets_every_standby() -> Result<()> {
    let cluster = cluster(2)?;
    let weir = Pgweir::start(&cluster, "")?;
    let mut client = weir.client()?;
    let mut counts = BTreeMap::new();
    for _ in 0..1000 {
        *counts.entry(client.scalar(WHERE)?).or_insert(0.0) += 0.1;
    }
    // One client alone never has anything outstanding when it asks.
    near(&counts, "n1", 50.0)?;
    near(&counts, "n2", 50.0)
}

#[test]
fn load_balance_mode_off_keeps_everything_on_the_primary() -> Result<()> {
    let cluster = cluster(1)?;
    let weir = Pgweir::start(&cluster, "load_balance_mode: off")?;
    near(&shares(&weir, 400)?, "n0", 100.0)
}

#[test]
#[ignore = "statement_level_load_balance: off is accepted with a warning, without effect"]
fn without_statement_level_balancing_a_session_stays_on_its_node() -> Result<()> {
    let cluster = cluster(2)?;
    let weir = Pgweir::start(&cluster, "statement_level_load_balance: off")?;
    let mut met = BTreeMap::new();
    for _ in 0..20 {
        let mut client = weir.client()?;
        let first = client.scalar(WHERE)?;
        for _ in 0..10 {
            assert_eq!(client.scalar(WHERE)?, first);
        }
        *met.entry(first).or_insert(0) += 1;
    }
    ensure!(met.len() == 2 && !met.contains_key("n0"), "{met:?}");
    Ok(())
}

/// Statements served per second by 32 clients, each statement occupying a backend for 5 ms.
fn capacity(weir: &Pgweir) -> Result<f64> {
    const CLIENTS: usize = 32;
    const WARM_UP: Duration = Duration::from_millis(500);
    const MEASURED: Duration = Duration::from_secs(4);
    let (port, served, counting, done) =
        (weir.port(), AtomicUsize::new(0), AtomicBool::new(false), AtomicBool::new(false));
    let work = || -> Result<()> {
        let mut client = RawClient::bench(port)?;
        let statement = msgs().B("", "s", &[]).E().S();
        client.talk(&msgs().P("s", "SELECT pg_sleep(0.005)").S())?;
        while !done.load(Ordering::Relaxed) {
            client.talk(&statement)?;
            if counting.load(Ordering::Relaxed) {
                served.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    let work = &work;
    let elapsed = std::thread::scope(|scope| -> Result<Duration> {
        let all: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(work)).collect();
        std::thread::sleep(WARM_UP);
        counting.store(true, Ordering::Relaxed);
        let started = Instant::now();
        std::thread::sleep(MEASURED);
        counting.store(false, Ordering::Relaxed);
        let elapsed = started.elapsed();
        done.store(true, Ordering::Relaxed);
        all.into_iter().try_for_each(|one| one.join().expect("a client panicked"))?;
        Ok(elapsed)
    })?;
    Ok(served.into_inner() as f64 / elapsed.as_secs_f64())
}

#[test]
fn capacity_grows_with_the_nodes() -> Result<()> {
    let cluster = cluster(2)?;
    let mut tps = Vec::new();
    for weights in [[0, 1, 0], [0, 1, 1], [1, 1, 1]] {
        let options = PgweirOptions::yaml("default_pool_size: 4").trusting().weights(&weights);
        let weir = Pgweir::start_with(&cluster, &options)?;
        tps.push(capacity(&weir)?);
    }
    println!("one node {:.0}, two {:.0}, three {:.0} statements per second", tps[0], tps[1], tps[2]);
    for (n, wanted) in [(1, 2.0), (2, 3.0)] {
        let ratio = tps[n] / tps[0];
        ensure!((ratio / wanted - 1.0).abs() <= 0.05, "{} nodes: {ratio:.3} times one node: {tps:?}", n + 1);
    }
    Ok(())
}
