//! COPY in both directions, with errors and deaths in the middle.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{Cluster, Pgweir, RawClient, msgs, rig};

const TABLE: &str = "CREATE TABLE t(id int PRIMARY KEY, v text); GRANT ALL ON t TO bench";

/// What a client sends after `COPY t FROM STDIN`: a good row, its duplicate, then much more.
fn late_rows(bytes: usize) -> harness::Msgs {
    let value = "x".repeat(64 * 1024);
    let mut all = msgs().d(b"1\tone\n").d(b"1\tagain\n");
    for row in 0..bytes / value.len() {
        all = all.d(format!("{}\t{value}\n", row + 2).as_bytes());
    }
    all
}

#[test]
fn cp_01_copy_in_under_contention() -> Result<()> {
    const CLIENTS: usize = 20;
    const ROWS: usize = 1000;
    let (cluster, weir) = rig(1, "default_pool_size: 1\nclient_idle_limit: 100ms")?;
    cluster.setup(TABLE)?;
    let port = weir.port();
    let copy = |me: usize| -> Result<()> {
        let mut client = RawClient::bench(port)?;
        client.set_deadline(Duration::from_secs(30));
        client.send(&msgs().Q("COPY t FROM STDIN"))?;
        assert_eq!(client.read_count(1)?.to_string(), "G");
        std::thread::sleep(Duration::from_millis(200));
        let mut rows = msgs();
        for row in 0..ROWS {
            rows = rows.d(format!("{}\tx\n", me * ROWS + row).as_bytes());
        }
        client.send(&rows)?;
        std::thread::sleep(Duration::from_millis(200));
        client.send(&msgs().c())?;
        assert_eq!(client.read_ready(1)?.to_string(), format!("C(COPY {ROWS}) Z(I)"));
        Ok(())
    };
    let read = |me: usize| -> Result<()> {
        let mut client = RawClient::bench(port)?;
        client.set_deadline(Duration::from_secs(30));
        for round in 0..50 {
            let nonce = (me * 1000 + round).to_string();
            assert_eq!(client.scalar(&format!("SELECT {nonce} /* pgweir: primary */"))?, nonce);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let copies: Vec<_> = (0..CLIENTS).map(|me| scope.spawn(move || copy(me))).collect();
        let reads: Vec<_> = (0..4).map(|me| scope.spawn(move || read(me))).collect();
        copies.into_iter().chain(reads).try_for_each(|one| one.join().expect("a client panicked"))
    })?;
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t")?, (CLIENTS * ROWS).to_string());
    ensure!(!cluster.log(0)?.contains("protocol"), "a protocol error in the server's log");
    Ok(())
}

/// The error comes early; everything that the client still sends is dropped.
fn early_error(client: &mut RawClient, bytes: usize) -> Result<()> {
    client.set_deadline(Duration::from_secs(20));
    client.send(&msgs().Q("COPY t FROM STDIN").then(&late_rows(bytes)).c().Q("SELECT 1"))?;
    assert_eq!(client.read_ready(2)?.to_string(), "G E(23505) Z(I) T D(1) C(SELECT 1) Z(I)");

    client.simple("BEGIN")?;
    client.send(&msgs().Q("COPY t FROM STDIN").then(&late_rows(bytes)).c().Q("SELECT 1"))?;
    assert_eq!(client.read_ready(2)?.to_string(), "G E(23505) Z(E) E(25P02) Z(E)");
    client.simple("ROLLBACK")?;

    client.send(&msgs().PBE("COPY t FROM STDIN").then(&late_rows(bytes)).c().S().Q("SELECT 2"))?;
    assert_eq!(client.read_ready(2)?.to_string(), "1 2 G E(23505) Z(I) T D(2) C(SELECT 1) Z(I)");

    let binary = "COPY t FROM STDIN (FORMAT binary)";
    client.send(&msgs().Q(binary).d(b"not binary at all, this").c().Q("SELECT 3"))?;
    assert_eq!(client.read_ready(2)?.to_string(), "G E(22P04) Z(I) T D(3) C(SELECT 1) Z(I)");

    // Refused before it begins: what follows is no data of a COPY.
    client.send(&msgs().Q("COPY t FROM STDIN (FREEZE)").d(b"1\tone\n").c().Q("SELECT 4"))?;
    assert_eq!(client.read_ready(2)?.to_string(), "G E(55000) Z(I) T D(4) C(SELECT 1) Z(I)");
    Ok(())
}

#[test]
fn cp_03_server_error_while_the_client_still_sends() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 2")?;
    cluster.setup(TABLE)?;
    let mut a = weir.client()?;
    early_error(&mut a, 10 << 20)?;
    // 1,000 errors more.
    for _ in 0..200 {
        early_error(&mut a, 0)?;
    }
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t")?, "0");
    // The pool still has its two backends.
    let (mut b, mut c) = (weir.client()?, weir.client()?);
    for client in [&mut b, &mut c] {
        client.simple("BEGIN")?;
        client.simple("INSERT INTO t VALUES (pg_backend_pid(), '')")?;
    }
    Ok(())
}

#[test]
fn cp_04_copy_fail_and_the_session_goes_on() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 1")?;
    cluster.setup(TABLE)?;
    let mut a = weir.client()?;
    for _ in 0..3 {
        let replies = a.talk(&msgs().Q("COPY t FROM STDIN").d(b"7\tx\n").f("client abort"))?;
        assert_eq!(replies.to_string(), "G E(57014) Z(I)");
        let message = replies.error().map(|fields| fields.get('M').to_owned());
        assert_eq!(message.as_deref(), Some("COPY from stdin failed: client abort"));
        assert_eq!(a.scalar("SELECT 5")?, "5");
        // By the extended protocol: a Sync in the middle of the data is ignored.
        a.send(&msgs().PBE("COPY t FROM STDIN").S().d(b"8\tx\n").S().f("again").S())?;
        assert_eq!(a.read_ready(1)?.to_string(), "1 2 G E(57014) Z(I)");
        assert_eq!(a.scalar("SELECT 6")?, "6");
    }
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t")?, "0");
    Ok(())
}

#[test]
fn cp_04_several_copies_in_one_simple_query() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 1")?;
    cluster.setup("CREATE TABLE a(i int); CREATE TABLE b(i int); GRANT ALL ON a, b TO bench")?;
    let mut client = weir.client()?;
    let batch = msgs().Q("COPY a FROM STDIN; SELECT 5; COPY b FROM STDIN").d(b"1\n").c().d(b"2\n").c();
    assert_eq!(client.talk(&batch)?.to_string(), "G C(COPY 1) T D(5) C(SELECT 1) G C(COPY 1) Z(I)");
    let out = msgs().Q("COPY a TO STDOUT; COPY (SELECT i FROM b) TO STDOUT");
    assert_eq!(client.talk(&out)?.to_string(), "H d(1) c C(COPY 1) H d(2) c C(COPY 1) Z(I)");
    let extended = msgs().PBE("COPY a TO STDOUT").S();
    assert_eq!(client.talk(&extended)?.to_string(), "1 2 H d(1) c C(COPY 1) Z(I)");
    client.send(&msgs().PBE("COPY a FROM STDIN").d(b"3\n").c().S())?;
    assert_eq!(client.read_ready(1)?.to_string(), "1 2 G C(COPY 1) Z(I)");
    assert_eq!(cluster.scalar(0, "SELECT sum(i) FROM a")?, "4");
    Ok(())
}

/// Nothing of a dead client's COPY is stored, and its backend is of use again.
fn backend_is_clean(cluster: &Cluster, weir: &Pgweir, how: &str) -> Result<()> {
    let mut next = weir.client()?;
    next.simple("BEGIN").and_then(|_| next.simple("INSERT INTO t VALUES (99, 'next')"))?;
    next.simple("ROLLBACK")?;
    let busy = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench' AND state <> 'idle'";
    cluster.wait_scalar(0, busy, "0", Duration::from_secs(2))?;
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t")?, "0", "{how}");
    Ok(())
}

#[test]
fn cp_04_client_death_in_the_middle_of_copy_in() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 1")?;
    cluster.setup(TABLE)?;
    for how in ["reset", "terminate", "close", "half"] {
        let mut a = weir.client()?;
        a.send(&msgs().Q("COPY t FROM STDIN"))?;
        assert_eq!(a.read_count(1)?.to_string(), "G");
        a.send(&msgs().d(b"1\tx\n"))?;
        match how {
            "reset" => a.reset()?,
            "terminate" => a.terminate()?,
            "close" => drop(a),
            _ => {
                a.half_close()?;
                a.read_to_end()?;
            }
        }
        backend_is_clean(&cluster, &weir, how)?;
    }
    Ok(())
}

#[test]
fn cp_04_copy_out_cancelled_and_abandoned() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 1")?;
    cluster.setup(TABLE)?;
    let endless = "COPY (SELECT repeat('x', 1000), generate_series(1, 100000000)) TO STDOUT";
    let mut a = weir.client()?;
    a.set_deadline(Duration::from_secs(10));
    a.send(&msgs().Q(endless))?;
    assert_eq!(a.read_count(1)?.to_string(), "H");
    a.cancel()?;
    let last = a.read_until(|reply| matches!(reply, harness::Reply::ReadyForQuery(_)))?;
    assert!(last.to_string().ends_with("E(57014) Z(I)"));
    assert_eq!(a.scalar("SELECT 5")?, "5");
    for how in ["reset", "close"] {
        let mut b = weir.client()?;
        b.send(&msgs().Q(endless))?;
        assert_eq!(b.read_count(1)?.to_string(), "H");
        if how == "reset" {
            b.reset()?
        } else {
            drop(b)
        }
        let mut next = weir.client()?;
        assert_eq!(next.scalar("SELECT 1")?, "1", "{how}");
    }
    backend_is_clean(&cluster, &weir, "copy out")
}
