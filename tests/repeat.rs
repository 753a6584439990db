//! Reads whose backend is lost: repeated elsewhere when nothing of the answer was sent, never else.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::{Cluster, Msgs, Pgweir, RawClient, Reply, StopMode, WHERE, eventually, msgs, rig};

const BUSY: &str = "usename = 'bench' AND state = 'active'";

/// Ends the backend that works on `node` of the nodes named, once there is one; gives the node.
fn end_the_busy_one(cluster: &Cluster, nodes: &[usize]) -> Result<usize> {
    let node = busy_one(cluster, nodes)?;
    let end = format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {BUSY}");
    assert_eq!(cluster.scalar(node, &end)?, "1");
    Ok(node)
}

const SLOW: &str = "SELECT 'x' FROM pg_sleep(1)";

/// The node that works on a statement.
fn busy_one(cluster: &Cluster, nodes: &[usize]) -> Result<usize> {
    let count = format!("SELECT count(*) FROM pg_stat_activity WHERE {BUSY}");
    let mut found = None;
    eventually(Duration::from_secs(30), || {
        found = nodes.iter().copied().find(|&node| cluster.scalar(node, &count).is_ok_and(|n| n == "1"));
        found.is_some()
    });
    found.context("no statement runs")
}

/// Sends `read`, stops the node that runs it, and gives the answer; the node is back then.
fn interrupted(
    cluster: &mut Cluster,
    weir: &Pgweir,
    client: &mut RawClient,
    read: &Msgs,
    mode: StopMode,
) -> Result<String> {
    client.send(read)?;
    let node = busy_one(cluster, &[1, 2])?;
    cluster.stop(node, mode)?;
    let answer = client.read_until(|reply| matches!(reply, Reply::ReadyForQuery(_)))?.to_string();
    cluster.start(node)?;
    let all_up = |nodes: &[BTreeMap<String, String>]| nodes.iter().all(|node| node["status"] == "up");
    weir.wait_pool_nodes(Duration::from_secs(10), all_up)?;
    Ok(answer)
}

/// PP-06: an autocommit read of which nothing was sent is repeated.
#[test]
fn fo_01_an_unanswered_read_is_repeated_on_another_node() -> Result<()> {
    let (mut cluster, weir) = rig(2, "health_check_period: 200ms\nauto_failback_interval: 1s")?;
    let mut client = weir.client()?;
    client.set_deadline(Duration::from_secs(8));
    let simple = "T D(x) C(SELECT 1) Z(I)";
    let extended = "1 2 D(x) C(SELECT 1) Z(I)";
    let named = msgs().P("slow", SLOW).B("", "slow", &[]).E().S();
    let mut run = |read: &Msgs, mode| interrupted(&mut cluster, &weir, &mut client, read, mode);
    assert_eq!(run(&msgs().Q(SLOW), StopMode::Fast)?, simple);
    assert_eq!(run(&msgs().PBE(SLOW).S(), StopMode::Immediate)?, extended);
    assert_eq!(run(&named, StopMode::Fast)?, extended);
    // The client's statement is there, once, whichever backend is asked.
    for _ in 0..4 {
        let again = client.talk(&msgs().B("", "slow", &[]).E().S())?.to_string();
        assert_eq!(again, "2 D(x) C(SELECT 1) Z(I)");
    }
    assert_eq!(client.talk(&msgs().P("slow", "SELECT 1").S())?.to_string(), "E(42P05) Z(I)");
    Ok(())
}

#[test]
fn fo_07_a_read_that_an_administrator_ends_does_not_begin_again() -> Result<()> {
    let (cluster, weir) = rig(2, "")?;
    let mut client = weir.client()?;
    client.send(&msgs().Q("SELECT 'x' FROM pg_sleep(10)"))?;
    end_the_busy_one(&cluster, &[1, 2])?;
    // The server's own words, which come with its goodbye.
    assert_eq!(client.read_to_end()?.to_string(), "T E(57P01)");
    ensure!(weir.pool_nodes()?.iter().all(|node| node["status"] == "up"), "a node went down");
    let busy = format!("SELECT count(*) FROM pg_stat_activity WHERE {BUSY}");
    for node in 0..3 {
        assert_eq!(cluster.scalar(node, &busy)?, "0", "n{node}");
    }
    Ok(())
}

#[test]
fn fo_01_what_was_answered_in_part_or_may_have_written_is_not_repeated() -> Result<()> {
    let (cluster, weir) = rig(2, "")?;
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    let rows = "SELECT n, repeat('x', 20000), pg_sleep(0.2) FROM generate_series(1, 50) n";
    let mut client = weir.client()?;
    client.send(&msgs().Q(rows))?;
    client.read_until(|reply| matches!(reply, Reply::DataRow(_)))?;
    end_the_busy_one(&cluster, &[1, 2])?;
    let replies = client.read_to_end()?.to_string();
    ensure!(replies.ends_with("E(57P01)") && !replies.contains("D(1,"), "{replies:.200}");

    let mut client = weir.client()?;
    client.send(&msgs().Q("INSERT INTO t SELECT 1 FROM pg_sleep(10)"))?;
    end_the_busy_one(&cluster, &[0])?;
    assert_eq!(client.read_to_end()?.to_string(), "E(57P01)");

    let mut client = weir.client()?;
    client.simple("BEGIN READ ONLY")?;
    client.send(&msgs().Q(SLOW))?;
    end_the_busy_one(&cluster, &[1, 2])?;
    assert_eq!(client.read_to_end()?.to_string(), "T E(57P01)");
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t")?, "0");
    Ok(())
}

#[test]
fn pp_01_a_read_on_a_node_that_froze_is_answered_by_another_one() -> Result<()> {
    let (cluster, weir) = rig(2, "")?;
    let mut clients: Vec<RawClient> = (0..8).map(|_| weir.client()).collect::<Result<_>>()?;
    let mut idle = weir.client()?;
    for client in &mut clients {
        // Both nodes get backends.
        client.scalar(WHERE)?;
    }
    cluster.freeze(1);
    for client in &mut clients {
        client.set_deadline(Duration::from_secs(8));
        client.send(&msgs().Q(WHERE))?;
    }
    for client in &mut clients {
        let answer = client.read_until(|reply| matches!(reply, Reply::ReadyForQuery(_)))?.to_string();
        assert_eq!(answer, "T D(n2) C(SELECT 1) Z(I)");
    }
    weir.wait_pool_nodes(Duration::from_secs(5), |nodes| nodes[1]["status"] == "down")?;
    assert_eq!(idle.scalar(WHERE)?, "n2", "an idle client notices nothing");
    cluster.thaw(1);
    Ok(())
}
