//! How reads are shared among nodes.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use harness::{Cluster, ClusterOptions, Pgweir, PgweirOptions, RawClient, WHERE};

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
