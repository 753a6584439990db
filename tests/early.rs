//! `transaction_load_balance`: transactions that may write read on a standby until they do. WHERE tells the node; the
//! primary has weight 0, the oracle of writes is the standby's log.

use anyhow::{Result, ensure};
use harness::{Cluster, Pgweir, RawClient, Replies, Reply, WHERE, deadline, eventually, msgs, rig};

const TABLE: &str = "CREATE TABLE t(id int); GRANT ALL ON t TO bench";

/// One standby, and the table `t`, which both know.
fn early(yaml: &str) -> Result<(Cluster, Pgweir)> {
    let (cluster, weir) = rig(1, &format!("transaction_load_balance: on\n{yaml}"))?;
    cluster.setup(TABLE)?;
    cluster.wait_replay()?;
    weir.wait_on_standby("SELECT current_setting('cluster_name') FROM (SELECT count(*) FROM t) x")?;
    Ok((cluster, weir))
}

/// The first value that each of the statements answers with, if any.
fn run(client: &mut RawClient, script: &[&str]) -> Result<Vec<String>> {
    script.iter().map(|sql| client.scalar(sql)).collect()
}

/// The transaction's state behind each query.
fn statuses(replies: &Replies) -> String {
    let status = |reply: &Reply| if let Reply::ReadyForQuery(status) = reply { Some(*status) } else { None };
    replies.0.iter().filter_map(status).collect()
}

/// The command tags.
fn tags(replies: &Replies) -> Vec<&str> {
    let tags = replies.0.iter().filter_map(|reply| match reply {
        Reply::CommandComplete(tag) => Some(tag.as_str()),
        _ => None,
    });
    tags.collect()
}

/// The standby shows by now what the client has written, so that its reads go there again.
fn settle(client: &mut RawClient) -> Result<()> {
    let there = || client.scalar(WHERE).is_ok_and(|node| node == "n1");
    ensure!(eventually(deadline(), there), "the reads stay on the primary");
    Ok(())
}

/// Nothing that writes was sent to the standby, and nobody is in a transaction there.
fn standby_is_clean(cluster: &Cluster) -> Result<()> {
    assert_eq!(cluster.count_logged(1, "INSERT INTO t")?, 0);
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'bench' AND usename = 'bench' \
                AND state LIKE 'idle in transaction%'";
    cluster.wait_scalar(1, open, "0", deadline())
}

/// RW-12: reads before the first write are a standby's, everything from it on the primary's.
#[test]
fn rw_12_a_transaction_reads_on_a_standby_until_it_writes() -> Result<()> {
    let (cluster, weir) = early("")?;
    let mut client = weir.client()?;
    client.simple("BEGIN")?;
    assert_eq!(client.scalar(WHERE)?, "n1");
    let begun = client.scalar("SELECT now()")?;
    assert_eq!(client.scalar_extended(WHERE, &[])?, "n1");
    assert_eq!(client.scalar("SELECT now()")?, begun, "one transaction on the standby");
    client.simple("INSERT INTO t VALUES (1)")?;
    assert_eq!(client.scalar(WHERE)?, "n0");
    assert_eq!(client.scalar("SELECT count(*) FROM t")?, "1", "its own write");
    client.simple("COMMIT")?;
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t")?, "1");
    // Undone.
    run(&mut client, &["BEGIN", WHERE, "INSERT INTO t VALUES (2)", "ROLLBACK"])?;
    assert_eq!(client.scalar("SELECT count(*) FROM t")?, "1");
    // It never writes.
    settle(&mut client)?;
    let replies = client.talk(&msgs().Q("BEGIN").Q(WHERE).Q("SELECT count(*) FROM t").Q("COMMIT"))?;
    assert_eq!((replies.values(), statuses(&replies)), (vec!["n1".into(), "1".into()], "TTTI".into()));
    standby_is_clean(&cluster)
}

/// All at once: each answer in its place, each statement on its node.
#[test]
fn pipelined_transactions_go_on_elsewhere() -> Result<()> {
    let (cluster, weir) = early("default_pool_size: 2")?;
    let mut client = weir.client()?;
    for round in 1..=20 {
        settle(&mut client)?;
        let insert = format!("INSERT INTO t VALUES ({round})");
        let count = "SELECT count(*) FROM t";
        let all = msgs().Q("BEGIN").Q(WHERE).P("", WHERE).B("", "", &[]).E().S().Q(&insert).Q(WHERE);
        let replies = client.talk(&all.Q(count).Q("COMMIT").Q("BEGIN").Q("COMMIT"))?;
        let values = vec!["n1".to_owned(), "n1".into(), "n0".into(), round.to_string()];
        assert_eq!((replies.values(), statuses(&replies)), (values, "TTTTTTITI".into()), "{replies:?}");
    }
    standby_is_clean(&cluster)
}

/// What would be missing elsewhere begins there; what says nothing about writing keeps the transaction where it is.
#[test]
fn pp_07_only_what_cannot_stay_moves_a_transaction() -> Result<()> {
    let (cluster, weir) = early("")?;
    let mut client = weir.client()?;
    for (sql, node) in [
        ("EXPLAIN SELECT count(*) FROM t", "n1"),
        ("VALUES (1)", "n1"),
        ("/* first */ TABLE t", "n1"),
        ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "n1"),
        ("SHOW POOL_VERSION", "n1"),
        ("", "n1"),
        ("SAVEPOINT a", "n0"),
        ("DECLARE c CURSOR FOR SELECT 1", "n0"),
        ("LOCK t IN ACCESS SHARE MODE", "n0"),
        ("SET LOCAL work_mem = '2MB'", "n0"),
        ("PREPARE p AS SELECT 1", "n0"),
        ("SELECT pg_advisory_xact_lock(1)", "n0"),
        ("SELECT 1 FROM t FOR UPDATE", "n0"),
        ("SELECT 1; SELECT 2", "n1"),
        ("SELECT 1; INSERT INTO t VALUES (0)", "n0"),
    ] {
        settle(&mut client)?;
        client.simple("BEGIN")?;
        assert_eq!(client.scalar(WHERE)?, "n1", "{sql}");
        client.simple(sql)?;
        assert_eq!(client.scalar(WHERE)?, node, "{sql}");
        client.simple("ROLLBACK")?;
    }
    let script = [
        "BEGIN",
        WHERE,
        "SAVEPOINT a",
        "INSERT INTO t VALUES (1)",
        "ROLLBACK TO a",
        "SELECT count(*) FROM t",
        "COMMIT",
        "BEGIN",
        WHERE,
        "DECLARE c CURSOR FOR SELECT 7",
        "FETCH c",
        "INSERT INTO t VALUES (1)",
        "ROLLBACK",
    ];
    let values = run(&mut client, &script)?;
    assert_eq!((values[5].as_str(), values[10].as_str()), ("0", "7"));
    // A portal that the next messages go on with.
    settle(&mut client)?;
    client.simple("BEGIN")?;
    assert_eq!(client.scalar(WHERE)?, "n1");
    let rows = "SELECT current_setting('cluster_name') FROM generate_series(1, 3)";
    let replies = client.talk(&msgs().P("", rows).B("p", "", &[]).E_max("p", 1).S())?;
    assert_eq!(replies.values(), ["n0"]);
    assert_eq!(client.talk(&msgs().E_max("p", 1).S())?.values(), ["n0"]);
    client.simple("COMMIT")?;
    standby_is_clean(&cluster)
}

/// Errors and modes are those of a server.
#[test]
fn rw_12_errors_and_modes_are_those_of_a_server() -> Result<()> {
    let (cluster, weir) = early("")?;
    let mut client = weir.client()?;
    run(&mut client, &["BEGIN", WHERE])?;
    assert_eq!(client.sqlstate_of("SELECT 1/0")?, "22012");
    assert_eq!(client.sqlstate_of("INSERT INTO t VALUES (1)")?, "25P02");
    let ended = client.talk(&msgs().Q("COMMIT"))?;
    assert_eq!((tags(&ended), statuses(&ended)), (vec!["ROLLBACK"], "I".to_owned()));
    // Behind a query.
    settle(&mut client)?;
    run(&mut client, &["BEGIN", WHERE])?;
    assert_eq!(client.sqlstate_of("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")?, "25001");
    run(&mut client, &["ROLLBACK", "BEGIN", WHERE, "SET TRANSACTION READ ONLY"])?;
    assert_eq!(client.scalar(WHERE)?, "n1");
    assert_eq!(client.sqlstate_of("INSERT INTO t VALUES (1)")?, "25006");
    client.simple("ROLLBACK")?;
    run(
        &mut client,
        &["BEGIN", WHERE, "SET TRANSACTION READ WRITE", "INSERT INTO t VALUES (1)", "ROLLBACK"],
    )?;
    // A snapshot for the whole of it is of one node.
    settle(&mut client)?;
    for begin in ["BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN ISOLATION LEVEL SERIALIZABLE"] {
        client.simple(begin)?;
        assert_eq!(client.scalar(WHERE)?, "n0", "{begin}");
        client.simple("COMMIT")?;
    }
    client.simple("SET default_transaction_isolation = 'repeatable read'")?;
    assert_eq!(run(&mut client, &["BEGIN", WHERE, "COMMIT"])?[1], "n0");
    client.simple("RESET default_transaction_isolation")?;
    assert_eq!(run(&mut client, &["BEGIN", WHERE, "COMMIT"])?[1], "n1");
    assert_eq!(
        cluster.count_logged(1, "INSERT INTO t")?,
        2,
        "in the failed transaction, and in the READ ONLY one"
    );
    Ok(())
}

/// The levels of consistency hold; off, and in sessions that ask for what all have written, it is the primary.
#[test]
fn sr_01_what_a_session_has_written_is_there() -> Result<()> {
    let (cluster, weir) = early("")?;
    let mut client = weir.client()?;
    cluster.sql(1, "SELECT pg_wal_replay_pause()")?;
    client.simple("INSERT INTO t VALUES (900)")?;
    let values = run(&mut client, &["BEGIN", "SELECT count(*) FROM t", WHERE, "COMMIT"])?;
    assert_eq!(values[1..3], ["1".to_owned(), "n0".into()]);
    cluster.sql(1, "SELECT pg_wal_replay_resume()")?;
    let mut there = || Ok(run(&mut client, &["BEGIN", WHERE, "COMMIT"])?[1] == "n1");
    ensure!(eventually(deadline(), || there().unwrap_or_else(|error: anyhow::Error| panic!("{error:#}"))));
    client.simple("SET pgweir.consistency = 'global'")?;
    assert_eq!(run(&mut client, &["BEGIN", WHERE, "COMMIT"])?[1], "n0");
    client.simple("RESET pgweir.consistency")?;
    client.simple("PGPOOL SET transaction_load_balance = off")?;
    assert_eq!(run(&mut client, &["BEGIN", WHERE, "COMMIT"])?[1], "n0");
    // One that leaves in the middle leaves nothing behind.
    client.simple("PGPOOL RESET transaction_load_balance")?;
    run(&mut client, &["BEGIN", WHERE])?;
    drop(client);
    ensure!(weir.client()?.scalar(WHERE)? == "n1");
    standby_is_clean(&cluster)
}
