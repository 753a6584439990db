//! How reads are shared among nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{Cluster, ClusterOptions, Pgweir, PgweirOptions, RawClient, StopMode, WHERE};

const SOON: Duration = Duration::from_secs(5);

fn cluster(standbys: usize) -> Result<Cluster> {
    Cluster::new(ClusterOptions { standbys, log_statements: false, ..ClusterOptions::default() })
}

/// `total` autocommit reads over 8 long connections, half of them by the extended protocol; share of
/// each node in percent.
fn shares(weir: &Pgweir, total: usize) -> Result<BTreeMap<String, f64>> {
    shares_of(weir, total, 8)
}

fn shares_of(weir: &Pgweir, total: usize, clients: usize) -> Result<BTreeMap<String, f64>> {
    let port = weir.port();
    let each = total / clients;
    let read = move || -> Result<Vec<String>> {
        let mut client = RawClient::bench(port)?;
        let read = |n: usize| {
            if n.is_multiple_of(2) { client.scalar(WHERE) } else { client.scalar_extended(WHERE, &[]) }
        };
        (0..each).map(read).collect()
    };
    let mut counts = BTreeMap::new();
    std::thread::scope(|scope| -> Result<()> {
        let all: Vec<_> = (0..clients).map(|_| scope.spawn(read)).collect();
        for one in all {
            let nodes = one.join().expect("a client panicked")?;
            let one = 100.0 / (each * clients) as f64;
            nodes.into_iter().for_each(|node| *counts.entry(node).or_insert(0.0) += one);
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

/// The shares of n1 and n2 are 1 to 3. A machine that is busy with something else makes nodes unequal for a while, which
/// algorithms that look at the load answer: once in three times it has to be right.
fn one_to_three(weir: &Pgweir, total: usize, clients: usize) -> Result<()> {
    let mut last = Ok(());
    for _ in 0..3 {
        let shares = shares_of(weir, total, clients)?;
        println!("{clients} clients: {shares:?}");
        near(&shares, "n0", 0.0)?;
        last = near(&shares, "n1", 25.0).and_then(|()| near(&shares, "n2", 75.0));
        if last.is_ok() {
            break;
        }
    }
    last
}

#[test]
fn rw_22_reads_are_shared_by_weight() -> Result<()> {
    let cluster = cluster(2)?;
    for method in ["least_outstanding", "least_connections", "latency", "random", "round_robin"] {
        let options = PgweirOptions::yaml(&format!("load_balance: {method}")).weights(&[0, 1, 3]);
        let weir = Pgweir::start_with(&cluster, &options)?;
        one_to_three(&weir, 10_000, 8).map_err(|e| e.context(method))?;
    }
    Ok(())
}

#[test]
fn rw_22_the_primary_takes_reads_by_its_weight() -> Result<()> {
    let cluster = cluster(2)?;
    let weir =
        Pgweir::start_with(&cluster, &PgweirOptions::yaml("load_balance: round_robin").weights(&[2, 1, 1]))?;
    let shares = shares(&weir, 10_000)?;
    near(&shares, "n0", 50.0)?;
    near(&shares, "n1", 25.0)?;
    near(&shares, "n2", 25.0)
}

#[test]
fn rw_22_the_weights_hold_at_any_concurrency() -> Result<()> {
    let cluster = cluster(2)?;
    for method in ["least_outstanding", "least_connections", "latency"] {
        let options = PgweirOptions::yaml(&format!("load_balance: {method}")).weights(&[0, 1, 3]);
        let weir = Pgweir::start_with(&cluster, &options)?;
        for (clients, total) in [(1, 4000), (2, 4000), (32, 10_000)] {
            one_to_three(&weir, total, clients).map_err(|e| e.context(method))?;
        }
    }
    Ok(())
}

/// A node whose reads take five times as long gets fewer of them; by latency nearly in proportion, which is a sixth. By
/// what is under way it is nearly that with 32 clients (docs/benchmarks.md has the model). The times are long, because a
/// busy machine adds to all of them, tens of milliseconds and more: with 4 and 20 ms the slow node was hardly slower then.
#[test]
fn a_slow_standby_gets_less_than_its_weight() -> Result<()> {
    let cluster = cluster(2)?;
    let slow = "SELECT current_setting('cluster_name') \
                FROM pg_sleep(CASE current_setting('cluster_name') WHEN 'n1' THEN 0.5 ELSE 0.1 END)";
    let mut slow_share = BTreeMap::new();
    for method in ["least_outstanding", "latency", "random"] {
        let options = PgweirOptions::yaml(&format!("load_balance: {method}\ndefault_pool_size: 32"));
        let weir = Pgweir::start_with(&cluster, &options)?;
        let port = weir.port();
        let read = move || -> Result<f64> {
            let mut client = RawClient::bench(port)?;
            let mut met = 0.0;
            for _ in 0..6 {
                client.scalar(slow)?;
            }
            for _ in 0..12 {
                met += f64::from(u8::from(client.scalar(slow)? == "n1"));
            }
            Ok(met / 12.0)
        };
        let met: f64 = std::thread::scope(|scope| {
            let all: Vec<_> = (0..32).map(|_| scope.spawn(read)).collect();
            all.into_iter().map(|one| one.join().expect("a client panicked")).sum::<Result<f64>>()
        })?;
        slow_share.insert(method, met / 32.0);
    }
    println!("{slow_share:?}");
    ensure!(slow_share["random"] > 0.4, "{slow_share:?}");
    ensure!(slow_share["latency"] < 0.6 * slow_share["random"], "{slow_share:?}");
    ensure!(slow_share["least_outstanding"] < 0.75 * slow_share["random"], "{slow_share:?}");
    Ok(())
}

/// Who is not there gets nothing, and what is counted adds up. Who comes back is eased in.
#[test]
fn rw_22_a_standby_that_goes_is_not_read_and_starts_slowly_when_it_comes_back() -> Result<()> {
    let mut cluster = cluster(2)?;
    for (slow_start, least, most) in [("1h", 5.0, 13.0), ("0", 47.0, 53.0)] {
        let yaml =
            format!("load_balance: round_robin\nauto_failback_interval: 100ms\nslow_start: {slow_start}");
        let weir = Pgweir::start_with(&cluster, &PgweirOptions::yaml(&yaml))?;
        let counted = || -> Result<Vec<f64>> {
            weir.pool_nodes()?.iter().map(|node| Ok(node["select_cnt"].parse::<f64>()?)).collect()
        };
        let before = counted()?;
        near(&shares(&weir, 400)?, "n1", 50.0)?;
        cluster.stop(1, StopMode::Fast)?;
        weir.wait_pool_nodes(SOON, |nodes| nodes[1]["status"] == "down")?;
        near(&shares(&weir, 400)?, "n2", 100.0)?;
        let served: Vec<f64> = counted()?.iter().zip(&before).map(|(now, before)| now - before).collect();
        ensure!(served.iter().sum::<f64>() == 800.0 && served[0] == 0.0, "{served:?}");
        ensure!((served[1] - 200.0).abs() < 20.0, "{served:?}");
        // What becomes usable within two seconds of the others began with them.
        std::thread::sleep(Duration::from_millis(2500));
        cluster.start(1)?;
        weir.wait_pool_nodes(SOON, |nodes| nodes[1]["status"] == "up")?;
        let share = shares(&weir, 1600)?.get("n1").copied().unwrap_or_default();
        ensure!((least..=most).contains(&share), "slow_start {slow_start}: {share} %");
    }
    Ok(())
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
