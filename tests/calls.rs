//! FunctionCall, by which libpq and pgjdbc use large objects: there is no text to read, the OID is all there is.

use anyhow::{Context, Result, ensure};
use harness::{Cluster, RawClient, Reply, WHERE, msgs, rig};

const LO_OPEN: u32 = 952;
const LO_CLOSE: u32 = 953;
const LO_READ: u32 = 954;
const LO_WRITE: u32 = 955;
const LO_SEEK: u32 = 956;
const LO_CREAT: u32 = 957;
const LO_UNLINK: u32 = 964;
const LO_TELL64: u32 = 3171;
const READ: u32 = 0x4_0000;
const WRITE: u32 = 0x2_0000;

const ADVISORY_LOCK: u32 = 2880;
const ADVISORY_UNLOCK: u32 = 2884;
const LOCKS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";

/// Calls it; its result as PostgreSQL sends it in binary.
fn call(client: &mut RawClient, oid: u32, values: &[&[u8]]) -> Result<Vec<u8>> {
    let replies = client.talk(&msgs().F_binary(oid, values))?;
    let result = replies.0.iter().find_map(|reply| match reply {
        Reply::FunctionResult(value) => value.clone(),
        _ => None,
    });
    result.with_context(|| format!("{oid}: {replies}"))
}

fn number(client: &mut RawClient, oid: u32, values: &[u32]) -> Result<u32> {
    let values: Vec<[u8; 4]> = values.iter().map(|value| value.to_be_bytes()).collect();
    let values: Vec<&[u8]> = values.iter().map(<[u8; 4]>::as_slice).collect();
    Ok(u32::from_be_bytes(call(client, oid, &values)?.as_slice().try_into()?))
}

fn begin(client: &mut RawClient, mode: &str, reads_on: &str) -> Result<()> {
    client.simple(&format!("BEGIN {mode}"))?;
    ensure!(client.scalar(WHERE)? == reads_on, "{mode}");
    Ok(())
}

fn read(client: &mut RawClient, object: u32) -> Result<Vec<u8>> {
    let opened = number(client, LO_OPEN, &[object, READ])?;
    let fd = opened.to_be_bytes();
    let seen = call(client, LO_READ, &[&fd, &100_u32.to_be_bytes()])?;
    ensure!(call(client, LO_TELL64, &[&fd])? == u64::try_from(seen.len())?.to_be_bytes());
    ensure!(number(client, LO_SEEK, &[opened, 1, 0])? == 1);
    ensure!(call(client, LO_READ, &[&fd, &1_u32.to_be_bytes()])? == seen.get(1..2).unwrap_or_default());
    ensure!(number(client, LO_CLOSE, &[opened])? == 0);
    Ok(seen)
}

fn made(cluster: &Cluster, client: &mut RawClient) -> Result<u32> {
    client.simple("BEGIN")?;
    let object = number(client, LO_CREAT, &[READ | WRITE])?;
    let fd = number(client, LO_OPEN, &[object, READ | WRITE])?.to_be_bytes();
    ensure!(call(client, LO_WRITE, &[&fd, b"large"])? == 5_u32.to_be_bytes());
    client.simple("COMMIT")?;
    cluster.wait_replay()?;
    Ok(object)
}

/// EP-10, RW-12: as pgjdbc's LargeObject does it. A READ ONLY transaction takes it to the primary, or reads on the standby
/// that shows its snapshot.
#[test]
fn ep_10_rw_12_large_objects_by_function_calls() -> Result<()> {
    let (cluster, weir) = rig(1, "consistency: eventual\ndefault_pool_size: 1\nquery_wait_timeout: 5s")?;
    let mut client = weir.client()?;
    let object = made(&cluster, &mut client)?;
    for (mode, first, then) in [
        ("READ WRITE", "n0", "n0"),
        ("READ ONLY", "n1", "n0"),
        ("READ ONLY ISOLATION LEVEL REPEATABLE READ", "n1", "n1"),
    ] {
        begin(&mut client, mode, first)?;
        ensure!(read(&mut client, object)? == b"large", "{mode}");
        assert_eq!(client.scalar(WHERE)?, then, "{mode}");
        client.simple("COMMIT")?;
        // Nothing of it holds the session: the one backend serves another.
        assert_eq!(weir.client()?.scalar("SELECT txid_current() > 0")?, "t");
    }
    begin(&mut client, "READ ONLY", "n1")?;
    client.simple("SAVEPOINT a")?;
    ensure!(read(&mut client, object)? == b"large");
    let refused = client.talk(&msgs().F_binary(LO_UNLINK, &[&object.to_be_bytes()]))?;
    ensure!(refused.error().is_some() && refused.to_string().ends_with("Z(E)"), "{refused}");
    client.simple("ROLLBACK")?;
    assert_eq!(number(&mut client, LO_UNLINK, &[object])?, 1);
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM pg_largeobject_metadata")?, "0");
    Ok(())
}

/// RW-08: what a standby would do and nobody would notice. A transaction that cannot go elsewhere gets an error.
#[test]
fn rw_08_a_call_of_anything_else_is_not_left_to_a_standby() -> Result<()> {
    let (cluster, weir) = rig(1, "consistency: eventual\ndefault_pool_size: 1\nquery_wait_timeout: 5s")?;
    let lock = msgs().F_binary(ADVISORY_LOCK, &[&7_u64.to_be_bytes()]);
    let unlock = msgs().F_binary(ADVISORY_UNLOCK, &[&7_u64.to_be_bytes()]);
    let bound = [["BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ", ""], ["BEGIN READ ONLY", "SAVEPOINT a"]];
    for chunk in [1, 5, 9, usize::MAX] {
        let mut client = weir.client()?;
        client.set_chunk(chunk);
        for statements in bound {
            statements.into_iter().try_for_each(|sql| client.simple(sql).map(drop))?;
            assert_eq!(client.scalar(WHERE)?, "n1");
            let replies = client.talk(&lock.clone().PBE("SELECT 1").S())?;
            assert_eq!(replies.to_string(), "E(25006) Z(E) E(25P02) Z(E)");
            assert_eq!(cluster.scalar(1, LOCKS)?, "0");
            client.simple("ROLLBACK")?;
        }
        begin(&mut client, "READ ONLY", "n1")?;
        assert_eq!(client.talk(&lock.clone().Q(WHERE))?.values(), ["n0"], "goes on at the primary");
        assert_eq!(cluster.scalar(0, LOCKS)?, "1");
        // What it left in the session holds that.
        client.simple("COMMIT")?;
        let replies = client.talk(&unlock)?;
        ensure!(
            matches!(replies.0.first(), Some(Reply::FunctionResult(Some(done))) if *done == [1]),
            "{replies}"
        );
        assert_eq!(cluster.scalar(0, LOCKS)?, "0");
    }
    Ok(())
}

/// EP-04, EP-07: inside of a batch that has failed it is skipped, with what it would have left behind.
#[test]
fn ep_04_ep_07_a_call_behind_an_error_is_skipped() -> Result<()> {
    let (cluster, weir) = rig(1, "consistency: eventual\ndefault_pool_size: 1\nquery_wait_timeout: 5s")?;
    for reads in ["SELECT 1/0", "INSERT INTO nowhere VALUES (1)"] {
        let mut client = weir.client()?;
        let batch = msgs().PBE(reads).F_binary(ADVISORY_LOCK, &[&7_u64.to_be_bytes()]).PBE("SELECT 1").S();
        client.send(&batch.Q("SELECT 2"))?;
        let replies = client.read_ready(2)?.to_string();
        ensure!(
            replies.starts_with(['1', 'E']) && replies.ends_with(") Z(I) T D(2) C(SELECT 1) Z(I)"),
            "{replies}"
        );
        assert_eq!(cluster.scalar(0, LOCKS)?, "0");
        assert_eq!(cluster.scalar(1, LOCKS)?, "0");
        // It holds nobody: the one backend serves another.
        assert_eq!(weir.client()?.scalar("SELECT txid_current() > 0")?, "t");
    }
    let mut client = weir.client()?;
    let batch = msgs().PBE("SELECT 1").F_binary(ADVISORY_LOCK, &[&7_u64.to_be_bytes()]).Q(LOCKS);
    assert_eq!(client.talk(&batch)?.to_string(), "1 2 D(1) C(SELECT 1) V Z(I) T D(1) C(SELECT 1) Z(I)");
    Ok(())
}

/// SR-01: what a call has written is there for the next read.
#[test]
fn sr_01_what_a_call_has_written_is_seen() -> Result<()> {
    let (cluster, weir) = rig(1, "")?;
    let mut client = weir.client()?;
    cluster.sql(1, "SELECT pg_wal_replay_pause()")?;
    let object = number(&mut client, LO_CREAT, &[READ | WRITE])?;
    let count = format!("SELECT count(*) FROM pg_largeobject_metadata WHERE oid = {object}");
    assert_eq!(client.scalar(&count)?, "1");
    cluster.sql(1, "SELECT pg_wal_replay_resume()")?;
    Ok(())
}

/// `session_state: reject`: what a call leaves in the session cannot be known.
#[test]
fn a_call_of_anything_else_may_be_refused() -> Result<()> {
    let (_cluster, weir) = rig(0, "session_state: reject")?;
    let mut client = weir.client()?;
    assert_eq!(
        client.talk(&msgs().F_binary(ADVISORY_LOCK, &[&7_u64.to_be_bytes()]).Q("SELECT 1"))?.to_string(),
        "E(0A000) Z(I) T D(1) C(SELECT 1) Z(I)"
    );
    ensure!(number(&mut client, LO_CREAT, &[READ | WRITE])? > 0);
    Ok(())
}
