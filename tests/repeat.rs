//! Reads whose backend is lost: repeated elsewhere when nothing of the answer was sent, never else.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::{Cluster, Msgs, RawClient, Reply, WHERE, eventually, msgs, rig};

const BUSY: &str = "usename = 'bench' AND state = 'active'";

/// Ends the backend that works on `node` of the nodes named, once there is one; gives the node.
fn end_the_busy_one(cluster: &Cluster, nodes: &[usize]) -> Result<usize> {
    let count = format!("SELECT count(*) FROM pg_stat_activity WHERE {BUSY}");
    let mut found = None;
    eventually(Duration::from_secs(5), || {
        found = nodes.iter().copied().find(|&node| cluster.scalar(node, &count).is_ok_and(|n| n == "1"));
        found.is_some()
    });
    let node = found.context("no statement runs")?;
    let end = format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {BUSY}");
    assert_eq!(cluster.scalar(node, &end)?, "1");
    Ok(node)
}

const SLOW: &str = "SELECT 'x' FROM pg_sleep(1)";

/// Sends `read`, ends its backend, and gives the answer.
fn interrupted(cluster: &Cluster, client: &mut RawClient, read: &Msgs, nodes: &[usize]) -> Result<String> {
    client.send(read)?;
    end_the_busy_one(cluster, nodes)?;
    Ok(client.read_until(|reply| matches!(reply, Reply::ReadyForQuery(_)))?.to_string())
}

#[test]
fn fo_01_an_unanswered_read_is_repeated_on_another_node() -> Result<()> {
    let (cluster, weir) = rig(2, "")?;
    let mut client = weir.client()?;
    let simple = "T D(x) C(SELECT 1) Z(I)";
    let extended = "1 2 D(x) C(SELECT 1) Z(I)";
    assert_eq!(interrupted(&cluster, &mut client, &msgs().Q(SLOW), &[1, 2])?, simple);
    assert_eq!(interrupted(&cluster, &mut client, &msgs().PBE(SLOW).S(), &[1, 2])?, extended);
    let named = msgs().P("slow", SLOW).B("", "slow", &[]).E().S();
    assert_eq!(interrupted(&cluster, &mut client, &named, &[1, 2])?, extended);
    // The client's statement is there, once, whichever backend is asked.
    for _ in 0..4 {
        let again = client.talk(&msgs().B("", "slow", &[]).E().S())?.to_string();
        assert_eq!(again, "2 D(x) C(SELECT 1) Z(I)");
    }
    assert_eq!(client.talk(&msgs().P("slow", "SELECT 1").S())?.to_string(), "E(42P05) Z(I)");
    ensure!(weir.pool_nodes()?.iter().all(|node| node["status"] == "up"), "a node went down");
    Ok(())
}

#[test]
fn fo_01_a_read_that_is_lost_everywhere_ends_as_the_server_said() -> Result<()> {
    let (cluster, weir) = rig(2, "")?;
    let mut client = weir.client()?;
    client.send(&msgs().Q("SELECT 'x' FROM pg_sleep(10)"))?;
    for _ in 0..3 {
        end_the_busy_one(&cluster, &[0, 1, 2])?;
    }
    // The server's own words, which come with its goodbye.
    assert_eq!(client.read_to_end()?.to_string(), "T E(57P01)");
    let (cluster, weir) = rig(0, "")?;
    let mut client = weir.client()?;
    client.send(&msgs().Q("SELECT 'x' FROM pg_sleep(10)"))?;
    end_the_busy_one(&cluster, &[0])?;
    assert_eq!(client.read_to_end()?.to_string(), "T E(57P01)", "there is no other node");
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
