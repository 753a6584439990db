//! What more nodes buy: counted, not timed. By Little's law a pool that is always full serves its size divided by the time
//! that a statement takes, whatever machine it is on; the figures of one machine are in docs/benchmarks.md.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{Cluster, ClusterOptions, Pgweir, PgweirOptions, RawClient, msgs};

const POOL: u32 = 4;
const CLIENTS: usize = 32;
const SOON: Duration = Duration::from_secs(10);
const HELD: &str = "SELECT pg_sleep(600)";

/// Statements that each node runs at this moment.
fn running(cluster: &Cluster) -> Result<Vec<u32>> {
    let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE query = '{HELD}' AND state = 'active'");
    (0..cluster.len()).map(|node| Ok(cluster.scalar(node, &sql)?.parse()?)).collect()
}

fn for_all(cluster: &Cluster, function: &str) -> Result<()> {
    let sql =
        format!("SELECT {function}(pid) FROM pg_stat_activity WHERE query = '{HELD}' AND state = 'active'");
    (0..cluster.len()).try_for_each(|node| cluster.sql(node, &sql).map(drop))
}

/// Ends what those leave behind that are gone.
fn end_all(cluster: &Cluster) -> Result<()> {
    let ended = harness::eventually(SOON, || {
        for_all(cluster, "pg_terminate_backend").is_ok()
            && running(cluster).is_ok_and(|now| now.iter().all(|count| *count == 0))
    });
    ensure!(ended, "{:?} statements still run", running(cluster)?);
    Ok(())
}

#[test]
fn capacity_grows_with_the_nodes() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 2, ..ClusterOptions::default() })?;
    for weights in [[0, 1, 0], [0, 1, 1], [1, 1, 1]] {
        let yaml = format!("default_pool_size: {POOL}");
        let weir = Pgweir::start_with(&cluster, &PgweirOptions::yaml(&yaml).trusting().weights(&weights))?;
        let mut clients = (0..CLIENTS).map(|_| RawClient::bench(weir.port())).collect::<Result<Vec<_>>>()?;
        for client in &mut clients {
            client.send(&msgs().Q(HELD))?;
        }
        let full: Vec<u32> = weights.iter().map(|weight| weight * POOL).collect();
        let filled = harness::eventually(SOON, || running(&cluster).is_ok_and(|now| now == full));
        ensure!(filled, "{:?} statements at once, not {full:?}", running(&cluster)?);
        // Whoever is done is followed by one of those who wait, on the same node.
        for_all(&cluster, "pg_cancel_backend")?;
        let refilled = harness::eventually(SOON, || running(&cluster).is_ok_and(|now| now == full));
        ensure!(refilled, "{:?} statements at once, not {full:?}, while clients wait", running(&cluster)?);
        drop((clients, weir));
        end_all(&cluster)?;
    }
    Ok(())
}
