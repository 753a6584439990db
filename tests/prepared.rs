//! Protocol-level prepared statements that follow their client to any backend.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use harness::{Cluster, Msgs, Pgweir, RawClient, msgs, rig};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Runs a prepared statement without parameters; the compact reply.
fn run(client: &mut RawClient, name: &str) -> Result<String> {
    Ok(client.talk(&msgs().B("", name, &[]).E().S())?.to_string())
}

fn prepare(name: &str, sql: &str) -> Msgs {
    msgs().P(name, sql).S()
}

/// A client that holds a read backend in a transaction until it is dropped; and that backend's pid.
fn holder(weir: &Pgweir) -> Result<(RawClient, String)> {
    let mut client = weir.client()?;
    client.simple("BEGIN READ ONLY")?;
    let pid = client.scalar("SELECT pg_backend_pid()")?;
    Ok((client, pid))
}

#[test]
fn ps_01_named_statement_used_again_on_another_backend() -> Result<()> {
    let (_cluster, weir) = rig(1, "default_pool_size: 2")?;
    let mut a = weir.client()?;
    let batch = msgs().P("s1", "SELECT $1::int+1").P("pid", "SELECT pg_backend_pid()").S();
    assert_eq!(a.talk(&batch)?.to_string(), "1 1 Z(I)");
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..10 {
        seen.insert(run(&mut a, "pid")?);
        let (b, _pid) = holder(&weir)?;
        let reply = a.talk(&msgs().B("", "s1", &["41"]).E().S())?;
        assert_eq!(reply.to_string(), "2 D(42) C(SELECT 1) Z(I)");
        seen.insert(run(&mut a, "pid")?);
        b.terminate()?;
    }
    ensure!(harness::direct_mode() || seen.len() > 1, "the backend never changed: {seen:?}");
    Ok(())
}

#[test]
fn ps_01_named_statement_for_a_write_after_reads() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 2")?;
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    let mut a = weir.client()?;
    let batch = msgs().P("r", "SELECT $1::int").P("w", "INSERT INTO t VALUES ($1::int)").S();
    assert_eq!(a.talk(&batch)?.to_string(), "1 1 Z(I)");
    for n in 1..=5 {
        let n = n.to_string();
        let read = a.talk(&msgs().B("", "r", &[&n]).E().S())?.to_string();
        assert_eq!(read, format!("2 D({n}) C(SELECT 1) Z(I)"));
        let write = a.talk(&msgs().B("", "w", &[&n]).E().S())?.to_string();
        assert_eq!(write, "2 C(INSERT 0 1) Z(I)");
        // Both in one transaction: everything on the primary.
        a.simple("BEGIN")?;
        let both = a.talk(&msgs().B("", "w", &[&n]).E().B("", "r", &[&n]).E().S())?.to_string();
        assert_eq!(both, format!("2 C(INSERT 0 1) 2 D({n}) C(SELECT 1) Z(T)"));
        a.simple("COMMIT")?;
    }
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t")?, "10");
    Ok(())
}

#[test]
fn ps_01_named_statements_in_session_pooling() -> Result<()> {
    let (_cluster, weir) = rig(1, "pool_mode: session\ndefault_pool_size: 2")?;
    let mut a = weir.client()?;
    let mut b = weir.client()?;
    assert_eq!(a.talk(&prepare("s1", "SELECT 'a'"))?.to_string(), "1 Z(I)");
    assert_eq!(b.talk(&prepare("s1", "SELECT 'b'"))?.to_string(), "1 Z(I)");
    for _ in 0..5 {
        assert_eq!(run(&mut a, "s1")?, "2 D(a) C(SELECT 1) Z(I)");
        assert_eq!(run(&mut b, "s1")?, "2 D(b) C(SELECT 1) Z(I)");
    }
    // The backends go to the next clients without the statements of these.
    a.terminate()?;
    b.terminate()?;
    for text in ["c", "d"] {
        let mut client = weir.client()?;
        assert_eq!(run(&mut client, "s1")?, "E(26000) Z(I)");
        assert_eq!(client.talk(&prepare("s1", &format!("SELECT '{text}'")))?.to_string(), "1 Z(I)");
        assert_eq!(run(&mut client, "s1")?, format!("2 D({text}) C(SELECT 1) Z(I)"));
    }
    Ok(())
}

#[test]
fn ps_02_same_name_in_many_clients() -> Result<()> {
    const CLIENTS: usize = 50;
    const TEXTS: usize = 20;
    let (_cluster, weir) = rig(1, "default_pool_size: 1")?;
    let seed = rand::rng().random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut clients = Vec::new();
    for n in 0..CLIENTS {
        let mut client = weir.client()?;
        assert_eq!(client.talk(&prepare("s0", &format!("SELECT {}", n % TEXTS)))?.to_string(), "1 Z(I)");
        clients.push((client, n % TEXTS));
    }
    for round in 0..1000 {
        let (client, text) = &mut clients[random.random_range(0..CLIENTS)];
        if random.random_range(0..10) == 0 {
            *text = random.random_range(0..TEXTS);
            let again = msgs().C('S', "s0").P("s0", &format!("SELECT {text}")).S();
            assert_eq!(client.talk(&again)?.to_string(), "3 1 Z(I)", "round {round}");
        }
        assert_eq!(run(client, "s0")?, format!("2 D({text}) C(SELECT 1) Z(I)"), "round {round}");
    }
    Ok(())
}

#[test]
fn ps_02_a_name_in_use_is_refused_as_by_the_server() -> Result<()> {
    let (_cluster, weir) = rig(1, "")?;
    let mut a = weir.client()?;
    assert_eq!(a.talk(&prepare("s0", "SELECT 1"))?.to_string(), "1 Z(I)");
    assert_eq!(a.talk(&prepare("s0", "SELECT 2"))?.to_string(), "E(42P05) Z(I)");
    assert_eq!(run(&mut a, "s0")?, "2 D(1) C(SELECT 1) Z(I)");
    assert_eq!(a.talk(&msgs().C('S', "s0").S())?.to_string(), "3 Z(I)");
    assert_eq!(run(&mut a, "s0")?, "E(26000) Z(I)");
    // A Parse that fails leaves no statement behind.
    assert_eq!(a.talk(&prepare("bad", "SELEC 1"))?.to_string(), "E(42601) Z(I)");
    assert_eq!(run(&mut a, "bad")?, "E(26000) Z(I)");
    assert_eq!(a.talk(&prepare("bad", "SELECT 5"))?.to_string(), "1 Z(I)");
    assert_eq!(run(&mut a, "bad")?, "2 D(5) C(SELECT 1) Z(I)");
    Ok(())
}

#[test]
fn ps_04_deallocate_all_is_the_clients_own() -> Result<()> {
    let (_cluster, weir) = rig(1, "default_pool_size: 1")?;
    let (mut a, mut b) = (weir.client()?, weir.client()?);
    assert_eq!(b.talk(&prepare("s1", "SELECT 'b'"))?.to_string(), "1 Z(I)");
    for (text, tag) in [("DEALLOCATE ALL", "DEALLOCATE ALL"), ("DISCARD ALL", "DISCARD ALL")] {
        for extended in [false, true] {
            assert_eq!(a.talk(&prepare("s1", "SELECT 'a'"))?.to_string(), "1 Z(I)");
            assert_eq!(run(&mut a, "s1")?, "2 D(a) C(SELECT 1) Z(I)");
            assert_eq!(run(&mut b, "s1")?, "2 D(b) C(SELECT 1) Z(I)");
            let (sent, wanted) = if extended {
                (msgs().PBE(text).S(), format!("1 2 C({tag}) Z(I)"))
            } else {
                (msgs().Q(text), format!("C({tag}) Z(I)"))
            };
            assert_eq!(without_parameters(&a.talk(&sent)?), wanted);
            assert_eq!(run(&mut b, "s1")?, "2 D(b) C(SELECT 1) Z(I)", "b after a's {text}");
            assert_eq!(run(&mut a, "s1")?, "E(26000) Z(I)", "a after its own {text}");
        }
    }
    Ok(())
}

/// The compact form without ParameterStatus: a reset may report values again.
fn without_parameters(replies: &harness::Replies) -> String {
    let kept = replies.0.iter().filter(|r| !matches!(r, harness::Reply::ParameterStatus(..)));
    kept.map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

#[test]
fn ps_07_several_unnamed_statements_in_one_pipeline() -> Result<()> {
    let (_cluster, weir) = rig(1, "default_pool_size: 1")?;
    let mut a = weir.client()?;
    let batch = msgs().PBE("CREATE TEMP TABLE z1(a int) ON COMMIT DROP").PBE("SELECT count(*) FROM z1").S();
    assert_eq!(a.talk(&batch)?.to_string(), "1 2 C(CREATE TABLE) 1 2 D(0) C(SELECT 1) Z(I)");
    let reads = msgs().PBE("SELECT 1").PBE("SELECT 2").PBE("SELECT 3").S();
    assert_eq!(
        a.talk(&reads)?.to_string(),
        "1 2 D(1) C(SELECT 1) 1 2 D(2) C(SELECT 1) 1 2 D(3) C(SELECT 1) Z(I)"
    );
    Ok(())
}

#[test]
fn ps_08_unnamed_statement_described_then_bound_after_sync() -> Result<()> {
    let (_cluster, weir) = rig(1, "default_pool_size: 2")?;
    let mut a = weir.client()?;
    for round in 0..10 {
        let described = a.talk(&msgs().P("", "SELECT $1::int8").D('S', "").S())?;
        assert_eq!(described.to_string(), "1 t T Z(I)");
        // Another client takes the backend that has the statement, and parses its own there.
        let (mut b, _pid) = holder(&weir)?;
        assert_eq!(b.scalar_extended("SELECT $1::text", &["x"])?, "x");
        let value = (round + 7).to_string();
        let bound = a.talk(&msgs().B("", "", &[&value]).E().S())?;
        assert_eq!(bound.to_string(), format!("2 D({value}) C(SELECT 1) Z(I)"));
        b.terminate()?;
    }
    Ok(())
}

#[test]
fn ps_05_sql_deallocate_of_a_protocol_level_name() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 2")?;
    for round in 0..500 {
        let mut a = weir.client()?;
        let batch =
            msgs().P("pdo_stmt_00000001", "SELECT $1::text").B("", "pdo_stmt_00000001", &["x"]).E().S();
        assert_eq!(a.talk(&batch)?.to_string(), "1 2 D(x) C(SELECT 1) Z(I)", "round {round}");
        assert_eq!(a.talk(&msgs().Q("DEALLOCATE pdo_stmt_00000001"))?.to_string(), "C(DEALLOCATE) Z(I)");
        assert_eq!(run(&mut a, "pdo_stmt_00000001")?, "E(26000) Z(I)", "round {round}");
        assert_eq!(a.talk(&prepare("a3", "SELECT 3"))?.to_string(), "1 Z(I)");
        assert_eq!(a.talk(&msgs().Q("DEALLOCATE PREPARE \"a3\""))?.to_string(), "C(DEALLOCATE) Z(I)");
        assert_eq!(run(&mut a, "a3")?, "E(26000) Z(I)", "round {round}");
        a.terminate()?;
    }
    for node in 0..2 {
        let log = cluster.log(node)?;
        let bad = log.lines().find(|line| {
            line.contains("ERROR:") && !line.contains("\"pdo_stmt_00000001\"") && !line.contains("\"a3\"")
        });
        ensure!(bad.is_none(), "n{node}: {bad:?}");
    }
    Ok(())
}

#[test]
fn ps_10_a_new_client_is_not_hurt_by_an_old_plan() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 1")?;
    cluster.setup("CREATE TABLE c(a int); INSERT INTO c VALUES (1); GRANT ALL ON c TO bench")?;
    let mut a = weir.client()?;
    assert_eq!(a.talk(&prepare("s", "SELECT * FROM c"))?.to_string(), "1 Z(I)");
    assert_eq!(run(&mut a, "s")?, "2 D(1) C(SELECT 1) Z(I)");
    cluster.setup("ALTER TABLE c ADD COLUMN n int")?;
    let mut b = weir.client()?;
    assert_eq!(b.talk(&msgs().P("s", "SELECT * FROM c").D('S', "s").S())?.to_string(), "1 t T Z(I)");
    assert_eq!(run(&mut b, "s")?, "2 D(1,NULL) C(SELECT 1) Z(I)");
    let old = run(&mut a, "s")?;
    ensure!(old == "E(0A000) Z(I)" || old == "2 D(1,NULL) C(SELECT 1) Z(I)", "{old}");
    let again = a.talk(&msgs().C('S', "s").P("s", "SELECT * FROM c").B("", "s", &[]).E().S())?.to_string();
    assert_eq!(again, "3 1 2 D(1,NULL) C(SELECT 1) Z(I)");
    Ok(())
}

/// PS-10: what was prepared before the columns changed. Who asks for the columns in the same batch gets the new ones;
/// who relies on what it was told before hears of it, as on a direct connection, and so does who is in a transaction.
#[test]
fn ps_10_changed_columns_are_told_or_refused() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 1")?;
    cluster.setup("CREATE TABLE c(a int); INSERT INTO c VALUES (1); GRANT ALL ON c TO bench")?;
    // What nobody knows to be a table is no read that may be repeated.
    let reason =
        || -> Result<String> { weir.client()?.simple("PGWEIR EXPLAIN SELECT * FROM c")?.get(0, "reason") };
    let is_known = || reason().is_ok_and(|reason| !reason.starts_with("unknown"));
    ensure!(harness::eventually(Duration::from_secs(30), is_known), "{:?}", reason());
    let mut client = weir.client()?;
    let described = |name: &str| msgs().B("", name, &[]).D('P', "").E().S();
    for name in ["", "s", "t"] {
        assert_eq!(client.talk(&prepare(name, "SELECT * FROM c"))?.to_string(), "1 Z(I)");
        assert_eq!(run(&mut client, name)?, "2 D(1) C(SELECT 1) Z(I)", "{name}");
    }
    cluster.setup("ALTER TABLE c ADD COLUMN b int")?;
    assert_eq!(run(&mut client, "s")?, "E(0A000) Z(I)");
    client.simple("BEGIN")?;
    assert_eq!(client.talk(&described("t"))?.to_string(), "E(0A000) Z(E)");
    client.simple("ROLLBACK")?;
    assert_eq!(client.talk(&described("s"))?.to_string(), "2 T D(1,NULL) C(SELECT 1) Z(I)");
    assert_eq!(run(&mut client, "s")?, "2 D(1,NULL) C(SELECT 1) Z(I)");
    assert_eq!(client.talk(&msgs().D('S', "t").S())?.to_string(), "t T Z(I)");
    let piped = described("t").then(&msgs().Q("SELECT 2"));
    cluster.setup("ALTER TABLE c DROP COLUMN b")?;
    let replies = client.talk(&piped)?.to_string();
    let end = " T D(2) C(SELECT 1) Z(I)";
    let right =
        replies == format!("2 T D(1) C(SELECT 1) Z(I){end}") || replies == format!("E(0A000) Z(I){end}");
    ensure!(right, "{replies}");
    Ok(())
}

#[test]
fn ps_11_same_text_with_different_parameter_types() -> Result<()> {
    const INT4: u32 = 23;
    const TEXT: u32 = 25;
    let (_cluster, weir) = rig(1, "default_pool_size: 1")?;
    let (mut a, mut b) = (weir.client()?, weir.client()?);
    for (client, oid) in [(&mut a, INT4), (&mut b, TEXT)] {
        let replies = client.talk(&msgs().P_typed("s", "SELECT $1", &[oid]).D('S', "s").S())?;
        assert_eq!(replies.0[1], harness::Reply::ParameterDescription(vec![oid]));
    }
    let hello = msgs().B("", "s", &["hello"]).E().S();
    assert_eq!(b.talk(&hello)?.to_string(), "2 D(hello) C(SELECT 1) Z(I)");
    assert_eq!(a.talk(&hello)?.to_string(), "E(22P02) Z(I)");
    assert_eq!(a.talk(&msgs().B("", "s", &["7"]).E().S())?.to_string(), "2 D(7) C(SELECT 1) Z(I)");
    Ok(())
}

#[test]
fn ps_prepare_does_not_wait_for_those_that_hold_the_pool() -> Result<()> {
    // One thread of pgbench -M prepared prepares with blocking calls while its other clients, in
    // transactions, hold every backend: whoever makes it wait stops all of them.
    let (cluster, weir) = rig(1, "default_pool_size: 2")?;
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    let script = ["BEGIN", "SELECT 1", "INSERT INTO t VALUES (1)", "END"];
    let mut holders = Vec::new();
    for _ in 0..2 {
        let mut client = weir.client()?;
        for (n, sql) in script.iter().enumerate() {
            assert_eq!(client.talk(&prepare(&format!("P{n}"), sql))?.to_string(), "1 Z(I)");
        }
        client.simple("BEGIN")?;
        client.simple("INSERT INTO t VALUES (2)")?;
        holders.push(client);
    }
    let mut late = weir.client()?;
    for (n, sql) in script.iter().enumerate() {
        let replies = late.talk(&prepare(&format!("P{n}"), sql)).map_err(|error| error.context(*sql))?;
        assert_eq!(replies.to_string(), "1 Z(I)", "{sql}");
    }
    for client in &mut holders {
        client.simple("END")?;
    }
    assert_eq!(run(&mut late, "P0")?, "2 C(BEGIN) Z(T)");
    assert_eq!(run(&mut late, "P1")?, "2 D(1) C(SELECT 1) Z(T)");
    assert_eq!(run(&mut late, "P3")?, "2 C(COMMIT) Z(I)");
    Ok(())
}

/// Statements of a client in the test of PS-14.
const STATEMENTS: usize = 30;

/// A client with its statements.
fn with_statements(port: u16) -> Result<RawClient> {
    let mut client = RawClient::bench(port)?;
    client.set_deadline(Duration::from_secs(20));
    for n in 0..STATEMENTS {
        let said = client.talk(&prepare(&format!("s{n}"), &format!("SELECT 'text', {n}")))?.to_string();
        ensure!(said == "1 Z(I)", "{said}");
    }
    Ok(client)
}

/// Runs them until `done`, coming back when the backend is killed under it; how many were answered.
fn ask_by_name(port: u16, seed: u64, done: &AtomicBool) -> Result<usize> {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut client, mut answered) = (None, 0);
    while !done.load(Ordering::Relaxed) {
        let mut one = match client.take() {
            Some(one) => one,
            // A kill may hit this, too.
            None => match with_statements(port) {
                Ok(one) => one,
                Err(error) if format!("{error:#}").contains("57P01") => continue,
                Err(error) => bail!("{error:#}"),
            },
        };
        let n = random.random_range(0..STATEMENTS);
        one.send(&msgs().B("", &format!("s{n}"), &[]).E().S())?;
        match one.read_ready(1).map(|replies| replies.to_string()) {
            Ok(said) if said == format!("2 D(text,{n}) C(SELECT 1) Z(I)") => {
                answered += 1;
                client = Some(one);
            }
            Ok(said) => bail!("statement {n}: {said}"),
            Err(error) if format!("{error:#}").contains("57P01") => {}
            Err(error) => bail!("statement {n}: {error:#}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(answered)
}

/// One standby comes to lag and catches up, the backends of the other one are killed, over and over.
fn disturb(cluster: &Cluster) -> Result<()> {
    const SOON: Duration = Duration::from_secs(10);
    for _ in 0..12 {
        cluster.sql(1, "SELECT pg_wal_replay_pause()")?;
        cluster.wait_scalar(1, "SELECT pg_get_wal_replay_pause_state()", "paused", SOON)?;
        cluster.sql(0, "INSERT INTO w SELECT generate_series(1, 100)")?;
        std::thread::sleep(Duration::from_millis(100));
        let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'bench'";
        cluster.sql(2, kill)?;
        cluster.sql(1, "SELECT pg_wal_replay_resume()")?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// PS-14: standbys that come to lag and backends that are killed move statements to other nodes all the time; each
/// name still means its own text everywhere.
#[test]
fn ps_14_statements_that_change_their_node_keep_their_text() -> Result<()> {
    let yaml = "consistency: eventual\ndelay_threshold: 1\nsr_check_period: 50ms\n";
    let (cluster, weir) = rig(2, yaml)?;
    cluster.setup("CREATE TABLE w(n int)")?;
    let (port, done) = (weir.port(), AtomicBool::new(false));
    std::thread::scope(|scope| -> Result<()> {
        let done = &done;
        let clients: Vec<_> = (0..20).map(|me| scope.spawn(move || ask_by_name(port, me, done))).collect();
        let disturbed = disturb(&cluster);
        done.store(true, Ordering::Relaxed);
        for (me, client) in clients.into_iter().enumerate() {
            let answered = client.join().expect("a client panicked")?;
            ensure!(answered > 0, "client {me} was never answered");
        }
        disturbed
    })?;
    for node in 0..3 {
        let log = cluster.log(node)?;
        let bad = log.lines().find(|line| line.contains("ERROR:") || line.contains("protocol"));
        ensure!(bad.is_none(), "n{node}: {bad:?}");
    }
    for node in 1..3 {
        ensure!(cluster.count_logged(node, "SELECT 'text'")? > 0, "n{node} was not used");
    }
    Ok(())
}

/// PS-01 for what ends a failed transaction: psycopg and SQLAlchemy prepare `ROLLBACK TO SAVEPOINT` in one.
#[test]
fn ps_01_what_ends_a_failed_transaction_is_prepared_in_it() -> Result<()> {
    let (_cluster, weir) = rig(0, "default_pool_size: 1")?;
    for n in 0..3 {
        // A new client: the backend holds the statement already.
        let mut client = weir.client()?;
        client.simple("BEGIN; SAVEPOINT a")?;
        assert_eq!(client.talk(&msgs().Q("SELECT 1/0"))?.to_string(), "E(22012) Z(E)");
        assert_eq!(client.talk(&prepare("no", "SELECT 1"))?.to_string(), "E(25P02) Z(E)");
        assert_eq!(client.talk(&prepare("back", "ROLLBACK TO SAVEPOINT a"))?.to_string(), "1 Z(E)");
        assert_eq!(run(&mut client, "back")?, "2 C(ROLLBACK) Z(T)");
        assert_eq!(client.talk(&prepare("no", "SELECT 2"))?.to_string(), "1 Z(T)", "round {n}");
        assert_eq!(client.talk(&msgs().Q("SELECT 1/0"))?.to_string(), "E(22012) Z(E)");
        assert_eq!(run(&mut client, "no")?, "E(25P02) Z(E)");
        assert_eq!(run(&mut client, "back")?, "2 C(ROLLBACK) Z(T)");
        assert_eq!(client.talk(&prepare("end", "ROLLBACK"))?.to_string(), "1 Z(T)");
        assert_eq!(run(&mut client, "end")?, "2 C(ROLLBACK) Z(I)");
        assert_eq!(run(&mut client, "no")?, "2 D(2) C(SELECT 1) Z(I)");
        client.terminate()?;
    }
    Ok(())
}
