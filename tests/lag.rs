//! Standbys that are behind: left out of reads while they are, shown, and taken back.
//!
//! The primary has weight 0: a read that runs there does so because no standby would do. Consistency is `eventual`, so
//! that nothing but the lag decides.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{Cluster, Pgweir, PgweirOptions, RawClient, WHERE, rig};

const SOON: Duration = Duration::from_secs(10);
const LIMIT: &str = "consistency: eventual\ndelay_threshold: 1MB\nsr_check_period: 200ms";
/// Some 5 MB of WAL.
const MUCH: &str = "INSERT INTO bulk SELECT repeat(md5(g::text), 30) FROM generate_series(1, 5000) g";

fn prepared(yaml: &str) -> Result<(Cluster, Pgweir)> {
    let (cluster, weir) = rig(2, yaml)?;
    cluster.setup("CREATE TABLE bulk (t text); ALTER TABLE bulk ALTER t SET STORAGE PLAIN")?;
    Ok((cluster, weir))
}

fn pause(cluster: &Cluster, node: usize) -> Result<()> {
    cluster.sql(node, "SELECT pg_wal_replay_pause()")?;
    cluster.wait_scalar(node, "SELECT pg_get_wal_replay_pause_state()", "paused", SOON)
}

fn resume(cluster: &Cluster, node: usize) -> Result<()> {
    cluster.sql(node, "SELECT pg_wal_replay_resume()").map(drop)
}

/// Bytes by which a node is said to be behind; 0 when it is not said.
fn delay(node: &BTreeMap<String, String>) -> f64 {
    node["replication_delay"].split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0)
}

fn wait_behind(weir: &Pgweir, node: usize) -> Result<()> {
    weir.wait_pool_nodes(SOON, |nodes| delay(&nodes[node]) > 2e6)
}

fn wait_caught_up(weir: &Pgweir, node: usize) -> Result<()> {
    weir.wait_pool_nodes(SOON, |nodes| delay(&nodes[node]) < 1e5)
}

/// Where that many reads ran.
fn met(client: &mut RawClient, reads: usize) -> Result<BTreeMap<String, usize>> {
    let mut met = BTreeMap::new();
    for read in 0..reads {
        let node = if read % 2 == 0 { client.scalar(WHERE)? } else { client.scalar_extended(WHERE, &[])? };
        *met.entry(node).or_insert(0) += 1;
    }
    Ok(met)
}

fn only(met: &BTreeMap<String, usize>, nodes: &[&str]) -> Result<()> {
    ensure!(met.keys().eq(nodes.iter().copied()), "{met:?}, not {nodes:?}");
    Ok(())
}

#[test]
fn sr_03_a_lagging_standby_is_left_out_and_taken_back() -> Result<()> {
    for prefer in ["off", "on"] {
        let (cluster, weir) = prepared(&format!("{LIMIT}\nprefer_lower_delay_standby: {prefer}"))?;
        let mut client = weir.client()?;
        only(&met(&mut client, 100)?, &["n1", "n2"])?;
        pause(&cluster, 1)?;
        cluster.sql(0, MUCH)?;
        wait_behind(&weir, 1)?;
        wait_caught_up(&weir, 2)?;
        only(&met(&mut client, 500)?, &["n2"])?;
        let nodes = weir.pool_nodes()?;
        ensure!(nodes.iter().all(|node| node["status"] == "up"), "lag is not a failure: {nodes:?}");
        let lag = weir.metrics()?["pgweir_node_replication_lag_bytes{node=\"1\"}"];
        ensure!(lag > 2e6, "{lag}");
        // Both: to the primary, without an error.
        pause(&cluster, 2)?;
        cluster.sql(0, MUCH)?;
        wait_behind(&weir, 2)?;
        only(&met(&mut client, 100)?, &["n0"])?;
        for node in [1, 2] {
            resume(&cluster, node)?;
            wait_caught_up(&weir, node)?;
        }
        only(&met(&mut client, 100)?, &["n1", "n2"])?;
    }
    Ok(())
}

/// Who lags within the limit is still passed over when another lags clearly less and that is preferred.
#[test]
fn sr_03_the_less_lagging_standby_is_preferred_if_wanted() -> Result<()> {
    for (prefer, nodes) in [("off", &["n1", "n2"][..]), ("on", &["n2"])] {
        let yaml = "consistency: eventual\ndelay_threshold: 12MB\nsr_check_period: 200ms";
        let (cluster, weir) = prepared(&format!("{yaml}\nprefer_lower_delay_standby: {prefer}"))?;
        pause(&cluster, 1)?;
        cluster.sql(0, MUCH)?;
        weir.wait_pool_nodes(SOON, |nodes| delay(&nodes[1]) > 4e6)?;
        wait_caught_up(&weir, 2)?;
        only(&met(&mut weir.client()?, 100)?, nodes)?;
        resume(&cluster, 1)?;
    }
    Ok(())
}

/// A session that keeps its node leaves it while it lags.
#[test]
fn sr_03_a_session_leaves_its_node_while_that_lags() -> Result<()> {
    let (cluster, weir) = prepared(&format!("{LIMIT}\nstatement_level_load_balance: off"))?;
    let mut client = weir.client()?;
    let first = client.scalar(WHERE)?;
    let node = usize::from(first == "n2") + 1;
    pause(&cluster, node)?;
    cluster.sql(0, MUCH)?;
    wait_behind(&weir, node)?;
    wait_caught_up(&weir, 3 - node)?;
    let other = met(&mut client, 20)?;
    only(&other, &[if node == 1 { "n2" } else { "n1" }])?;
    resume(&cluster, node)
}

/// A standby that receives nothing any more has replayed all that it has. The primary's position tells.
#[test]
fn sr_03_a_standby_that_was_cut_off_lags() -> Result<()> {
    let (cluster, weir) = prepared(LIMIT)?;
    cluster.sql(1, "ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=1'")?;
    cluster.sql(1, "SELECT pg_reload_conf()")?;
    cluster.wait_scalar(0, "SELECT count(*) FROM pg_stat_replication", "1", SOON)?;
    let mut client = weir.client()?;
    only(&met(&mut client, 50)?, &["n1", "n2"])?;
    cluster.sql(0, MUCH)?;
    wait_behind(&weir, 1)?;
    wait_caught_up(&weir, 2)?;
    only(&met(&mut client, 100)?, &["n2"])
}

/// By time: an idle primary is not lag, however long it is idle; a standby that does not replay is behind for ever longer.
#[test]
fn sr_04_lag_by_time_does_not_grow_while_nobody_writes() -> Result<()> {
    let yaml =
        "consistency: eventual\ndelay_threshold: 0\ndelay_threshold_by_time: 1s\nsr_check_period: 100ms";
    let (cluster, weir) = prepared(yaml)?;
    let mut client = weir.client()?;
    cluster.wait_replay()?;
    let shown = |nodes: &[BTreeMap<String, String>], node: usize| {
        nodes[node]["replication_delay"].strip_suffix(" second").and_then(|text| text.parse::<f64>().ok())
    };
    weir.wait_pool_nodes(SOON, |nodes| shown(nodes, 1) == Some(0.0) && shown(nodes, 2) == Some(0.0))?;
    // Paused with nothing to replay it is as good as the other, and the limit passes three times.
    pause(&cluster, 1)?;
    std::thread::sleep(Duration::from_secs(3));
    only(&met(&mut client, 100)?, &["n1", "n2"])?;
    let nodes = weir.pool_nodes()?;
    ensure!(shown(&nodes, 1) == Some(0.0), "{nodes:?}");
    cluster.sql(0, "CREATE TABLE later ()")?;
    weir.wait_pool_nodes(SOON, |nodes| shown(nodes, 1).is_some_and(|delay| delay > 1.0))?;
    only(&met(&mut client, 100)?, &["n2"])?;
    ensure!(weir.metrics()?["pgweir_node_replication_lag_seconds{node=\"1\"}"] > 1.0, "not in the metrics");
    resume(&cluster, 1)?;
    weir.wait_pool_nodes(SOON, |nodes| shown(nodes, 1) == Some(0.0))?;
    only(&met(&mut client, 100)?, &["n1", "n2"])
}

/// SR-04: a new primary does not lag by what it had not replayed when it was a standby.
#[test]
fn sr_04_a_promoted_standby_does_not_lag() -> Result<()> {
    let (mut cluster, weir) = prepared(LIMIT)?;
    weir.rewrite(&cluster, &PgweirOptions::yaml(LIMIT).weights(&[0, 1, 0]))?;
    weir.admin("RELOAD")?;
    cluster.stop(0, harness::StopMode::Fast)?;
    cluster.promote(1)?;
    weir.wait_pool_nodes(SOON, |nodes| nodes[1]["role"] == "primary")?;
    only(&met(&mut weir.client()?, 50)?, &["n1"])?;
    let nodes = weir.pool_nodes()?;
    ensure!(delay(&nodes[1]) == 0.0, "{nodes:?}");
    Ok(())
}

#[test]
fn fo_16_a_long_read_on_a_standby_that_comes_to_lag_is_not_cut() -> Result<()> {
    let yaml = format!("{LIMIT}\nhealth_check_period: 200ms\nhealth_check_timeout: 500ms");
    let (cluster, weir) = prepared(&yaml)?;
    let mut long: Vec<RawClient> = (0..2).map(|_| weir.client()).collect::<Result<_>>()?;
    let mut on = Vec::new();
    for (client, node) in long.iter_mut().zip([1, 2]) {
        client.set_deadline(Duration::from_secs(30));
        let sql =
            format!("/* pgweir: node={node} */ SELECT current_setting('cluster_name') FROM pg_sleep(6)");
        client.send(&harness::msgs().Q(&sql))?;
    }
    let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(6)' AND state = 'active' \
                  AND pid <> pg_backend_pid()";
    for node in [1, 2] {
        cluster.wait_scalar(node, sleeps, "1", SOON)?;
    }
    pause(&cluster, 1)?;
    cluster.sql(0, MUCH)?;
    wait_behind(&weir, 1)?;
    wait_caught_up(&weir, 2)?;
    only(&met(&mut weir.client()?, 50)?, &["n2"])?;
    // It says nothing for longer than a check may take, and then goes on.
    cluster.freeze(1);
    std::thread::sleep(Duration::from_millis(800));
    cluster.thaw(1);
    for client in &mut long {
        let answer = client.read_ready(1)?;
        ensure!(answer.error().is_none(), "{answer}");
        on.push(answer.to_string());
    }
    ensure!(weir.pool_nodes()?[1]["status"] == "up", "one check that fails takes nobody out");
    on.sort();
    ensure!(on[0].contains("D(n1)") && on[1].contains("D(n2)"), "{on:?}");
    resume(&cluster, 1)
}
