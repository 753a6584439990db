//! Lifetimes of backends, and limits that must not cut what they are not for.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::{msgs, rig};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const PID: &str = "SELECT pg_backend_pid()";
const BACKENDS: &str = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench'";

/// `server_lifetime`: an old backend is replaced between transactions, never within one, nor under a pinned session.
#[test]
fn an_old_backend_is_replaced_when_nobody_uses_it() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 3\nserver_lifetime: 500ms")?;
    let (mut short, mut long, mut pinned) = (weir.client()?, weir.client()?, weir.client()?);
    long.simple("BEGIN")?;
    let first = long.scalar(PID)?;
    pinned.simple("CREATE TEMP TABLE mine(id int)")?;
    let held = pinned.scalar(PID)?;
    let fresh = short.scalar(PID)?;
    std::thread::sleep(1200 * MS);
    assert_eq!(long.scalar(PID)?, first, "cut in a transaction");
    long.simple("COMMIT")?;
    assert_eq!(pinned.scalar(PID)?, held, "cut though pinned");
    assert_eq!(pinned.scalar("SELECT count(*) FROM mine")?, "0");
    let next = short.scalar(PID)?;
    ensure!(next != fresh && next != first, "an old one was lent again");
    // Idle ones go by themselves.
    drop((short, long));
    cluster.wait_scalar(0, BACKENDS, "1", 4 * SECOND)
}

/// `server_idle_timeout`: what nobody needs is closed, what is used in time is not.
#[test]
fn idle_backends_are_closed_and_used_ones_kept() -> Result<()> {
    // A session that goes on with another worker may get a backend that was last used there.
    let (cluster, weir) = rig(0, "workers: 1\ndefault_pool_size: 3\nserver_idle_timeout: 2s")?;
    let mut clients = [weir.client()?, weir.client()?, weir.client()?];
    for client in &mut clients {
        client.simple("BEGIN; SELECT 1")?;
    }
    cluster.wait_scalar(0, BACKENDS, "3", SECOND)?;
    for client in &mut clients {
        client.simple("COMMIT")?;
    }
    let pid = clients[0].scalar(PID)?;
    let end = Instant::now() + 5 * SECOND;
    while Instant::now() < end {
        assert_eq!(clients[0].scalar(PID)?, pid, "one that is in use was closed");
        std::thread::sleep(100 * MS);
    }
    assert_eq!(cluster.scalar(0, BACKENDS)?, "1", "idle ones are still there");
    Ok(())
}

/// TO-05: who takes an answer slowly is not idle, in a transaction or out of it. (`query_timeout` does count the time of
/// an answer, as PostgreSQL's `statement_timeout` does.)
#[test]
fn to_05_a_slow_reader_is_not_idle() -> Result<()> {
    let (_cluster, weir) = rig(0, "idle_transaction_timeout: 500ms\nclient_idle_limit: 500ms")?;
    let mut client = weir.client()?;
    client.set_deadline(20 * SECOND);
    client.send(&msgs().Q("SELECT repeat('x', 10000) FROM generate_series(1, 10000)"))?;
    std::thread::sleep(1500 * MS);
    let replies = client.read_ready(1)?;
    assert_eq!(replies.0.len(), 10_003);
    ensure!(replies.error().is_none());
    // COPY OUT the same.
    client.send(&msgs().Q("COPY (SELECT repeat('x', 10000) FROM generate_series(1, 10000)) TO STDOUT"))?;
    std::thread::sleep(1500 * MS);
    ensure!(client.read_ready(1)?.error().is_none());
    Ok(())
}

/// TO-05: whoever was cut by a limit may come back at once, and finds nothing of what it had.
#[test]
fn to_05_who_was_cut_comes_back_to_a_clean_session() -> Result<()> {
    let (cluster, weir) =
        rig(0, "default_pool_size: 1\nidle_transaction_timeout: 300ms\nclient_idle_limit: 300ms")?;
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    for begun in [
        "BEGIN; INSERT INTO t VALUES (1); SET work_mem = '7MB'",
        "CREATE TEMP TABLE mine(id int)",
        "SET work_mem = '7MB'",
    ] {
        let mut client = weir.client()?;
        client.simple(begun)?;
        let farewell = client.read_to_end()?;
        let code = farewell.error().map(|fields| fields.get('C').to_owned()).unwrap_or_default();
        ensure!(["25P03", "57P05"].contains(&code.as_str()), "{begun}: {farewell}");
        let mut again = weir.client()?;
        assert_eq!(again.scalar("SHOW work_mem")?, "4MB", "{begun}");
        assert_eq!(again.scalar("SELECT to_regclass('mine') IS NULL")?, "t", "{begun}");
        assert_eq!(again.scalar("SELECT count(*) FROM t")?, "0", "{begun}");
    }
    Ok(())
}
