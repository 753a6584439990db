//! What more nodes buy. Alone in its file: it measures, so nothing else may run beside it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::{Cluster, ClusterOptions, Pgweir, PgweirOptions, RawClient, msgs};

/// Statements served per second by 32 clients, each statement occupying a backend for 5 ms.
fn capacity(weir: &Pgweir) -> Result<f64> {
    const CLIENTS: usize = 32;
    const WARM_UP: Duration = Duration::from_millis(500);
    const MEASURED: Duration = Duration::from_secs(2);
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
    let options = ClusterOptions { standbys: 2, log_statements: false, ..ClusterOptions::default() };
    let cluster = Cluster::new(options)?;
    // The best of several: what else runs on the machine can only lower it.
    let mut tps = [0.0_f64; 3];
    for _ in 0..3 {
        for (best, weights) in tps.iter_mut().zip([[0, 1, 0], [0, 1, 1], [1, 1, 1]]) {
            let options = PgweirOptions::yaml("default_pool_size: 4").trusting().weights(&weights);
            let weir = Pgweir::start_with(&cluster, &options)?;
            *best = best.max(capacity(&weir)?);
        }
    }
    println!("one node {:.0}, two {:.0}, three {:.0} statements per second", tps[0], tps[1], tps[2]);
    for (n, wanted) in [(1, 2.0), (2, 3.0)] {
        let ratio = tps[n] / tps[0];
        ensure!((ratio / wanted - 1.0).abs() <= 0.05, "{} nodes: {ratio:.3} times one node: {tps:?}", n + 1);
    }
    Ok(())
}
