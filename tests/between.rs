//! What lies between two answers: messages behind an error, behind a reset, behind a COPY that failed, a
//! length that was announced only, and a shutdown with someone at the door.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{RawClient, msgs, rig};
use rustix::process::Signal;

#[test]
fn a_batch_that_failed_on_a_standby_is_not_carried_out_on_the_primary() -> Result<()> {
    let (cluster, weir) = rig(1, "")?;
    cluster.setup("CREATE TABLE after_error (v int); GRANT ALL ON after_error TO bench")?;
    let write = msgs().PBE("INSERT INTO after_error VALUES (1)").S();
    let mut a = weir.client()?;
    // The error has been read, or is still on its way.
    a.send(&msgs().P("", "SELECT v FROM nowhere").H())?;
    assert_eq!(a.read_count(1)?.error().map(|error| error.get('C')), Some("42P01"));
    a.send(&write)?;
    assert_eq!(a.read_ready(1)?.to_string(), "Z(I)");
    a.send(&msgs().P("", "SELECT v FROM nowhere").H().then(&write))?;
    let answer = a.read_ready(1)?.to_string();
    ensure!(answer.starts_with("E(42P01") && answer.ends_with("Z(I)"), "{answer}");
    assert_eq!(a.scalar("SELECT count(*) FROM after_error")?, "0");
    Ok(())
}

#[test]
fn a_read_only_transaction_flushes_and_goes_on() -> Result<()> {
    let (_cluster, weir) = rig(1, "")?;
    let mut a = weir.client()?;
    a.send(&msgs().Q("BEGIN READ ONLY").P("", "SELECT 7").D('S', "").H())?;
    assert_eq!(a.read_count(5)?.to_string(), "C(BEGIN) Z(T) 1 t T");
    a.send(&msgs().B("", "", &[]).E().H())?;
    assert_eq!(a.read_count(3)?.to_string(), "2 D(7) C(SELECT 1)");
    a.send(&msgs().S().Q("COMMIT"))?;
    assert_eq!(a.read_ready(2)?.to_string(), "Z(T) C(COMMIT) Z(I)");
    Ok(())
}

#[test]
fn what_is_pipelined_behind_discard_all_is_not_forgotten_with_it() -> Result<()> {
    let (_cluster, weir) = rig(0, "default_pool_size: 2")?;
    let (mut a, mut b) = (weir.client()?, weir.client()?);
    a.send(&msgs().Q("DISCARD ALL").Q("LISTEN here"))?;
    assert_eq!(a.read_ready(2)?.to_string(), "C(DISCARD ALL) Z(I) C(LISTEN) Z(I)");
    for _ in 0..4 {
        let listens = b.scalar("SELECT count(*) FROM pg_listening_channels()")?;
        assert_eq!(listens, "0", "another client listens");
    }
    assert_eq!(a.scalar("SELECT pg_listening_channels()")?, "here");
    b.send(&msgs().Q("DEALLOCATE ALL").P("kept", "SELECT 11").S())?;
    assert_eq!(b.read_ready(2)?.to_string(), "C(DEALLOCATE ALL) Z(I) 1 Z(I)");
    assert_eq!(b.talk(&msgs().B("", "kept", &[]).E().S())?.to_string(), "2 D(11) C(SELECT 1) Z(I)");
    Ok(())
}

#[test]
fn a_copy_that_is_refused_before_it_reads() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 1")?;
    cluster.setup("CREATE TABLE frozen (v int); GRANT ALL ON frozen TO bench")?;
    let copy = msgs().P("", "COPY frozen FROM STDIN (FREEZE)").B("", "", &[]).E().S();
    let mut a = weir.client()?;
    for _ in 0..5 {
        // CopyInResponse comes first; the Sync behind it has not been read and is answered.
        let answer = a.talk(&copy)?.to_string();
        ensure!(answer.starts_with("1 2 G E(55000") && answer.ends_with("Z(I)"), "{answer}");
        assert_eq!(a.scalar("SELECT 1")?, "1");
        assert_eq!(weir.client()?.scalar("SELECT 2")?, "2");
    }
    Ok(())
}

#[test]
fn a_snapshot_that_cannot_be_taken_is_an_error_of_its_own() -> Result<()> {
    let (_cluster, weir) = rig(1, "")?;
    let mut a = weir.client()?;
    assert_eq!(a.talk(&msgs().Q("BEGIN"))?.to_string(), "C(BEGIN) Z(T)");
    assert_eq!(a.sqlstate_of("SET TRANSACTION SNAPSHOT '00000003-0000001B-1'")?, "0A000");
    assert_eq!(a.talk(&msgs().Q("ROLLBACK"))?.to_string(), "C(ROLLBACK) Z(I)");
    Ok(())
}

#[test]
fn an_announced_length_takes_no_memory() -> Result<()> {
    let (_cluster, weir) = rig(0, "")?;
    let before = weir.rss_kb()?;
    let mut clients = Vec::new();
    for tag in [b'B', b'P', b'B', b'P'] {
        let mut a = weir.client()?;
        a.send_bytes(&[&[tag][..], &0x0fff_0000_u32.to_be_bytes(), b"\0"].concat())?;
        // The second packet is read with the length in mind.
        ensure!(a.silent_for(Duration::from_millis(100))?, "answered");
        a.send_bytes(b"x")?;
        ensure!(a.silent_for(Duration::from_millis(100))?, "answered");
        clients.push(a);
    }
    let grown = weir.rss_kb()?.saturating_sub(before);
    ensure!(grown < 16 * 1024, "grew by {grown} kB");
    Ok(())
}

#[test]
fn every_client_is_told_what_a_primary_reports() -> Result<()> {
    let (_cluster, weir) = rig(2, "")?;
    for _ in 0..6 {
        let mut a = weir.client()?;
        assert_eq!(a.parameters.get("in_hot_standby").map(String::as_str), Some("off"));
        a.scalar("SELECT 1")?;
    }
    Ok(())
}

#[test]
fn nonsense_in_the_middle_of_a_statement_ends_it_on_the_server() -> Result<()> {
    let (cluster, weir) = rig(0, "")?;
    let mut a = weir.client()?;
    a.send(&msgs().Q("SELECT pg_sleep(600)"))?;
    let sleeps =
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'";
    cluster.wait_scalar(0, sleeps, "1", Duration::from_secs(3))?;
    a.send_bytes(b"GET / HTTP/1.1\r\n")?;
    assert_eq!(a.read_to_end()?.error().map(|error| error.get('C')), Some("08P01"));
    cluster.wait_scalar(0, sleeps, "0", Duration::from_secs(3))
}

#[test]
fn someone_at_the_door_does_not_keep_a_shutdown() -> Result<()> {
    let (_cluster, mut weir) = rig(0, "")?;
    let mut door = RawClient::tcp(weir.port())?;
    ensure!(door.silent_for(Duration::from_millis(100))?, "spoke first");
    weir.signal(Signal::TERM);
    assert_eq!(weir.wait_exit(Duration::from_secs(3))?, 0);
    Ok(())
}

/// PP-08: a session has a backend of the nodes that it uses, while it uses them.
#[test]
fn pp_08_a_session_takes_what_it_uses() -> Result<()> {
    let (cluster, weir) = rig(2, "")?;
    let count =
        "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench' AND backend_type = 'client backend'";
    let backends = || (0..3).map(|node| cluster.scalar(node, count)).collect::<Result<Vec<_>>>();
    let mut clients: Vec<RawClient> = (0..8).map(|_| weir.client()).collect::<Result<_>>()?;
    let login = backends()?.concat().replace('0', "").len();
    ensure!(login <= 1, "the logins opened backends of {login} nodes");
    for client in &mut clients {
        client.simple("BEGIN; CREATE TEMP TABLE x(a int) ON COMMIT DROP; COMMIT")?;
    }
    assert_eq!(backends()?, ["1", "0", "0"], "one after the other they need one");
    // One that has not written: the others wait for what they wrote to be on the standby.
    let mut reader = weir.client()?;
    reader.simple("BEGIN READ ONLY")?;
    reader.scalar("SELECT 1")?;
    let now = backends()?;
    ensure!(now == ["1", "1", "0"] || now == ["1", "0", "1"], "{now:?}");
    Ok(())
}
