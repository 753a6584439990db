//! Where statements go: writes and everything not understood to the primary, reads to standbys.
//!
//! Weight 0 on the primary makes a read there visible, and the server logs make a write on a standby
//! visible even when it succeeds silently. What needs the catalog is in catalog.rs.

use anyhow::{Result, ensure};
use harness::{Cluster, Login, Pgweir, RawClient, WHERE, msgs, rig};

const SCHEMA: &str = "
CREATE TABLE t(id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'one'), (2, 'two');
CREATE TABLE log(n int);
CREATE FUNCTION wr() RETURNS int VOLATILE LANGUAGE sql AS 'INSERT INTO log VALUES (1); SELECT 1';
CREATE FUNCTION \"Wr\"() RETURNS int VOLATILE LANGUAGE sql AS 'INSERT INTO log VALUES (1); SELECT 1';
CREATE SCHEMA s;
CREATE FUNCTION s.wr() RETURNS int VOLATILE LANGUAGE sql AS 'INSERT INTO log VALUES (1); SELECT 1';
CREATE FUNCTION lies() RETURNS int STABLE LANGUAGE plpgsql AS
  'BEGIN RETURN (pg_current_xact_id()::text::bigint % 1000)::int; END';
CREATE PROCEDURE pr() LANGUAGE sql AS 'INSERT INTO log VALUES (2)';
CREATE SEQUENCE sq;
GRANT USAGE ON SCHEMA s TO bench;
GRANT ALL ON ALL TABLES IN SCHEMA public TO bench;
GRANT ALL ON sq TO bench";

fn prepared_rig() -> Result<(Cluster, Pgweir)> {
    // Where a read goes does not depend on what the session has just written.
    let (cluster, weir) = rig(1, "consistency: eventual\nwrite_function_list: [lies]")?;
    cluster.setup(SCHEMA)?;
    Ok((cluster, weir))
}

/// Runs statements one by one, by both protocols, and finds out by the logs which node ran each.
struct Tracer<'a> {
    cluster: &'a Cluster,
    client: RawClient,
    runs: usize,
    id: String,
}

impl<'a> Tracer<'a> {
    fn new(cluster: &'a Cluster, weir: &Pgweir) -> Result<Self> {
        let mut client = weir.client()?;
        let id = client.key.as_ref().map(|(pid, _)| pid.to_string()).unwrap_or_default();
        client.scalar("SELECT 1")?;
        Ok(Self { cluster, client, runs: 0, id })
    }

    /// The node that ran `sql`, and the SQLSTATE it ended with (empty when well).
    fn run(&mut self, sql: &str, extended: bool) -> Result<(usize, String)> {
        self.runs += 1;
        let marker = format!("/*run {}.{}*/", self.id, self.runs);
        let marked = format!("{sql} {marker}");
        let sent = if extended { msgs().PBE(&marked).S() } else { msgs().Q(&marked) };
        let replies = self.client.talk(&sent)?;
        let state = replies.error().map(|fields| fields.get('C').to_owned()).unwrap_or_default();
        let mut nodes = Vec::new();
        for node in 0..self.cluster.len() {
            // By text: a statement that fails in the parser is logged as well.
            if self.cluster.log(node)?.contains(&marker) {
                nodes.push(node);
            }
        }
        ensure!(nodes.len() == 1, "{sql}: ran on {nodes:?}, {state}");
        Ok((nodes[0], state))
    }

    /// `sql` runs on `node` without an error, by both protocols; `undo` runs in between.
    fn expect(&mut self, node: usize, sql: &str, undo: &str) -> Result<()> {
        for extended in [false, true] {
            let (ran, state) = self.run(sql, extended)?;
            ensure!(state.is_empty(), "{sql} (extended: {extended}): {state} on n{ran}");
            ensure!(ran == node, "{sql} (extended: {extended}): on n{ran}");
            if !undo.is_empty() {
                self.client.simple(undo)?;
            }
        }
        Ok(())
    }
}

#[test]
fn rw_01_unknown_functions_run_on_the_primary() -> Result<()> {
    let (cluster, weir) = prepared_rig()?;
    let mut tracer = Tracer::new(&cluster, &weir)?;
    for sql in [
        "SELECT wr()",
        "SELECT * FROM wr()",
        "SELECT 1 WHERE wr()=1",
        "SELECT (SELECT wr())",
        "SELECT s.wr()",
        "SELECT \"Wr\"()",
        "SELECT public.wr()",
        "VALUES (wr())",
        "SELECT v FROM t WHERE id = (SELECT wr())",
        "SELECT v FROM t ORDER BY wr()",
        "SELECT count(*) FROM t GROUP BY wr()",
        "SELECT CASE WHEN true THEN wr() END",
        "WITH x AS (SELECT wr()) SELECT * FROM x",
        "SELECT id FROM t UNION ALL SELECT wr()",
        "SELECT * FROM t, LATERAL wr() f",
        "SELECT coalesce(NULL, wr())",
        "SELECT array[wr()]",
        "SELECT sum(wr()) OVER () FROM t",
    ] {
        tracer.expect(0, sql, "")?;
    }
    assert_eq!(cluster.count_logged(1, "wr")?, 0);
    Ok(())
}

#[test]
fn rw_01_plain_reads_run_on_the_standby() -> Result<()> {
    let (cluster, weir) = prepared_rig()?;
    let mut tracer = Tracer::new(&cluster, &weir)?;
    for sql in [
        "SELECT 1",
        "SELECT * FROM t",
        "TABLE t",
        "VALUES (1), (2)",
        "WITH x AS (SELECT * FROM t) SELECT count(*) FROM x",
        "SELECT upper(v), now(), random(), clock_timestamp() FROM t WHERE id = 1",
        "SELECT a.v FROM t a JOIN t b USING (id) WHERE a.id IN (SELECT id FROM t)",
        "(SELECT 1) UNION (SELECT 2) ORDER BY 1 LIMIT 1",
        "select current_setting('cluster_name')",
        "SELECT pg_sleep(0)",
        "SELECT v FROM t WHERE v LIKE 'o%' AND id BETWEEN 0 AND 9",
        "/* a comment */ SELECT 1",
        "-- a comment\nSELECT 1",
        "EXPLAIN SELECT * FROM t",
        "EXPLAIN ANALYZE SELECT * FROM t",
        "COPY (SELECT * FROM t) TO STDOUT",
        "COPY t TO STDOUT",
    ] {
        tracer.expect(1, sql, "")?;
    }
    Ok(())
}

#[test]
fn rw_02_stable_functions_that_fail_on_a_standby() -> Result<()> {
    let (cluster, weir) = prepared_rig()?;
    let mut tracer = Tracer::new(&cluster, &weir)?;
    for sql in [
        "SELECT txid_current()",
        "SELECT pg_current_xact_id()",
        "SELECT pg_catalog.txid_current()",
        "SELECT pg_current_wal_lsn()",
        "SELECT lies()",
        "SELECT nextval('sq')",
        "SELECT setval('sq', 5)",
        "SELECT pg_notify('c', 'x')",
        "SELECT pg_try_advisory_xact_lock(1)",
        "SELECT pg_export_snapshot()",
        "SELECT set_config('work_mem', '4MB', true)",
        "SELECT lo_create(0)",
    ] {
        tracer.expect(0, sql, "")?;
    }
    Ok(())
}

#[test]
fn rw_03_locking_reads_wherever_they_hide() -> Result<()> {
    let (cluster, weir) = prepared_rig()?;
    let mut tracer = Tracer::new(&cluster, &weir)?;
    for sql in [
        "SELECT * FROM t WHERE id=1 FOR UPDATE",
        "SELECT * FROM t WHERE id=1 FOR NO KEY UPDATE SKIP LOCKED",
        "SELECT * FROM t WHERE id=1 FOR SHARE NOWAIT",
        "SELECT * FROM t WHERE id=1 FOR KEY SHARE",
        "SELECT * FROM (SELECT * FROM t FOR SHARE) s",
        "WITH x AS (SELECT * FROM t FOR UPDATE) SELECT * FROM x",
        "SELECT 1 FROM t a, t b FOR UPDATE OF a",
        "select * from t for\nupdate",
        "Select * From t For /* x */ Update",
        "SELECT (SELECT v FROM t WHERE id = 1 FOR UPDATE)",
        "SELECT 1 WHERE EXISTS (SELECT 1 FROM t FOR SHARE)",
        "SELECT * FROM t LIMIT 1 FOR UPDATE NOWAIT",
    ] {
        tracer.expect(0, sql, "")?;
    }
    for sql in [
        "SELECT 'for update'",
        "SELECT 1 AS \"for update\"",
        "SELECT substring(v from 1 for 2) FROM t",
        "SELECT $$ FOR UPDATE $$",
        "SELECT 1 /* FOR UPDATE */",
    ] {
        tracer.expect(1, sql, "")?;
    }
    Ok(())
}

#[test]
fn rw_05_several_statements_in_one_simple_query() -> Result<()> {
    let (cluster, weir) = prepared_rig()?;
    let mut a = weir.client()?;
    let mixed = a.talk(&msgs().Q("SELECT 1; INSERT INTO t VALUES(55,'m')"))?.to_string();
    assert_eq!(mixed, "T D(1) C(SELECT 1) C(INSERT 0 1) Z(I)");
    assert_eq!(cluster.scalar(0, "SELECT v FROM t WHERE id=55")?, "m");

    let local = a.talk(&msgs().Q("SET LOCAL x.y='1'; SELECT current_setting('x.y', true)"))?.to_string();
    ensure!(local.ends_with("T D(1) C(SELECT 1) Z(I)"), "{local}");

    let failing = "INSERT INTO t VALUES(700,''); SELECT 1/0; INSERT INTO t VALUES(701,'')";
    assert_eq!(a.talk(&msgs().Q(failing))?.to_string(), "C(INSERT 0 1) E(22012) Z(I)");
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t WHERE id IN (700,701)")?, "0");

    let opened = a.talk(&msgs().Q("BEGIN; INSERT INTO t VALUES(702,''); SELECT 1"))?.to_string();
    assert_eq!(opened, "C(BEGIN) C(INSERT 0 1) T D(1) C(SELECT 1) Z(T)");
    assert_eq!(a.scalar("SELECT count(*) FROM t WHERE id=702")?, "1");
    assert_eq!(a.scalar(WHERE)?, "n0");
    assert_eq!(a.talk(&msgs().Q("ROLLBACK"))?.to_string(), "C(ROLLBACK) Z(I)");
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t WHERE id=702")?, "0");

    assert_eq!(a.talk(&msgs().Q(";;SELECT 1;;"))?.to_string(), "T D(1) C(SELECT 1) Z(I)");
    let reads = "SELECT current_setting('cluster_name'); SELECT current_setting('cluster_name')";
    assert_eq!(a.simple(reads)?.first_column(), ["n1", "n1"]);
    let mixed = format!("{WHERE}; DELETE FROM log");
    assert_eq!(a.simple(&mixed)?.first_column(), ["n0"]);
    Ok(())
}

#[test]
fn rw_06_statements_whose_first_word_says_nothing() -> Result<()> {
    let (cluster, weir) = prepared_rig()?;
    let mut tracer = Tracer::new(&cluster, &weir)?;
    for (sql, undo) in [
        ("SELECT id INTO nt FROM t", "DROP TABLE nt"),
        ("CREATE TABLE ct AS SELECT 1 AS a", "DROP TABLE ct"),
        ("EXPLAIN ANALYZE INSERT INTO log VALUES (3)", ""),
        ("EXPLAIN (BUFFERS, ANALYZE) DELETE FROM log", ""),
        ("EXPLAIN ANALYZE SELECT wr()", ""),
        ("DO $$BEGIN INSERT INTO log VALUES (4); END$$", ""),
        ("CALL pr()", ""),
        ("WITH x AS (INSERT INTO log VALUES (5) RETURNING n) SELECT * FROM x", ""),
        ("WITH x AS (DELETE FROM log RETURNING n) SELECT count(*) FROM x", ""),
        ("COPY (INSERT INTO log VALUES (6) RETURNING n) TO STDOUT", ""),
        ("TRUNCATE log", ""),
        ("LOCK TABLE t IN ROW EXCLUSIVE MODE; SELECT 1", ""),
        ("NOTIFY c", ""),
        ("ANALYZE t", ""),
        ("COMMENT ON TABLE t IS 'x'", ""),
        ("GRANT SELECT ON t TO other", ""),
        ("MERGE INTO log USING t ON log.n = t.id WHEN NOT MATCHED THEN INSERT VALUES (t.id)", ""),
    ] {
        if sql.contains(';') && !sql.starts_with("DO") {
            let (ran, _state) = tracer.run(sql, false)?;
            ensure!(ran == 0, "{sql}: on n{ran}");
            continue;
        }
        if sql.starts_with("ANALYZE") || sql.starts_with("COMMENT") || sql.starts_with("GRANT") {
            // The table is not bench's: a warning or an error, but on the primary.
            ensure!(tracer.run(sql, false)?.0 == 0 && tracer.run(sql, true)?.0 == 0, "{sql}");
            continue;
        }
        tracer.expect(0, sql, undo)?;
    }
    // Words inside strings do not make a write (a new session: the old one may be pinned by now).
    Tracer::new(&cluster, &weir)?.expect(1, "SELECT 'SELECT id INTO nt FROM t; DELETE FROM t'", "")
}

#[test]
fn rw_12_begin_and_transaction_characteristics() -> Result<()> {
    let (cluster, weir) = prepared_rig()?;
    for extended in [false, true] {
        let mut client = weir.client()?;
        let mut run = |sql: &str| -> Result<String> {
            if extended { client.scalar_extended(sql, &[]) } else { client.scalar(sql) }
        };
        for begin in ["BEGIN", "START TRANSACTION READ WRITE", "BEGIN ISOLATION LEVEL SERIALIZABLE"] {
            run(begin)?;
            run("SELECT count(*) FROM t")?;
            run("INSERT INTO log VALUES (7)")?;
            assert_eq!(run(WHERE)?, "n0", "{begin}");
            run("SAVEPOINT a")?;
            run("ROLLBACK TO a")?;
            assert_eq!(run("SELECT count(*) FROM log WHERE n = 7")?, "1", "{begin}");
            run("ROLLBACK")?;
        }
        for begin in ["BEGIN READ ONLY", "START TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"] {
            run(begin)?;
            assert_eq!(run(WHERE)?, "n1", "{begin}");
            let snapshot = run("SELECT pg_backend_pid()")?;
            cluster.setup("INSERT INTO log VALUES (8)")?;
            assert_eq!(run("SELECT pg_backend_pid()")?, snapshot, "{begin}: moved in mid-transaction");
            run("COMMIT")?;
        }
        // Read only by a later word; a serializable transaction never goes to a standby.
        run("BEGIN")?;
        run("SET TRANSACTION READ ONLY")?;
        run("SELECT count(*) FROM t")?;
        run("COMMIT")?;
        run("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY")?;
        assert_eq!(run(WHERE)?, "n0");
        run("COMMIT")?;
        run("BEGIN READ ONLY")?;
        run("SET TRANSACTION READ WRITE")?;
        run("INSERT INTO log VALUES (9)")?;
        run("ROLLBACK")?;
    }
    let mut client = weir.client()?;
    client.simple("BEGIN READ ONLY")?;
    assert_eq!(client.sqlstate_of("INSERT INTO log VALUES (10)")?, "25006", "as the server's own");
    assert_eq!(client.sqlstate_of("SELECT 1")?, "25P02");
    client.simple("ROLLBACK")?;
    Ok(())
}

#[test]
fn rw_12_the_session_default_of_read_only() -> Result<()> {
    let (_cluster, weir) = prepared_rig()?;
    for set in
        ["SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "SET default_transaction_read_only = on"]
    {
        let mut client = weir.client()?;
        client.simple(set)?;
        assert_eq!(client.scalar("SELECT count(*) FROM t")?, "2", "{set}");
        assert_eq!(client.sqlstate_of("INSERT INTO log VALUES (1)")?, "25006", "{set}");
        client.simple("BEGIN READ WRITE")?;
        client.simple("INSERT INTO log VALUES (1)")?;
        client.simple("ROLLBACK")?;
        let mut next = weir.client()?;
        next.simple("INSERT INTO log VALUES (2)")?;
    }
    Ok(())
}

/// RW-12: the same by the start-up packet, as a parameter and in `options`.
#[test]
fn rw_12_the_modes_that_a_session_starts_with() -> Result<()> {
    let (_cluster, weir) = prepared_rig()?;
    for (name, read_only, serializable) in [
        ("options", "-c default_transaction_read_only=on", false),
        ("default_transaction_read_only", "on", false),
        ("options", "-c default_transaction_isolation=serializable", true),
        (
            "options",
            "-c default_transaction_isolation=serializable -c default_transaction_read_only=on",
            true,
        ),
    ] {
        let mut client = Login::bench().with(name, read_only).connect(weir.port())?;
        for extended in [false, true] {
            let at = |client: &mut RawClient| match extended {
                true => client.scalar_extended(WHERE, &[]),
                false => client.scalar(WHERE),
            };
            let expected = if serializable { "n0" } else { "n1" };
            assert_eq!(at(&mut client)?, expected, "{read_only}");
            client.simple("BEGIN")?;
            assert_eq!(at(&mut client)?, expected, "{read_only}, in a transaction");
            client.simple("COMMIT")?;
            client.simple("BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE")?;
            assert_eq!(at(&mut client)?, "n0", "{read_only}, said otherwise");
            client.simple("INSERT INTO log VALUES (1)")?;
            client.simple("ROLLBACK")?;
        }
        if read_only.contains("read_only=on") || name.ends_with("read_only") {
            assert_eq!(client.sqlstate_of("INSERT INTO log VALUES (1)")?, "25006", "{read_only}");
        }
    }
    Ok(())
}

#[test]
fn pp_03_a_transaction_that_has_written_reads_its_own_writes() -> Result<()> {
    let (_cluster, weir) = prepared_rig()?;
    let mut a = weir.client()?;
    let count = "SELECT count(*) FROM t WHERE id = 900";
    for steps in [
        &["BEGIN", "INSERT INTO t VALUES (900, '')", "SAVEPOINT a", "ROLLBACK TO a"][..],
        &["BEGIN", "INSERT INTO t VALUES (900, '')", "BEGIN"],
        &["BEGIN; INSERT INTO t VALUES (900, '')"],
        &["BEGIN READ WRITE", "SELECT 1", "INSERT INTO t VALUES (900, '')", "SELECT 1"],
    ] {
        for step in steps {
            a.simple(step)?;
        }
        assert_eq!(a.scalar(count)?, "1", "{steps:?}");
        assert_eq!(a.scalar_extended(count, &[])?, "1", "{steps:?}");
        a.simple("ROLLBACK")?;
        assert_eq!(a.scalar(count)?, "0", "{steps:?}");
    }
    Ok(())
}

#[test]
fn rw_16_statements_that_nobody_understands() -> Result<()> {
    let (cluster, weir) = prepared_rig()?;
    let mut tracer = Tracer::new(&cluster, &weir)?;
    for extended in [false, true] {
        let (ran, state) = tracer.run("FOO BAR", extended)?;
        assert_eq!((ran, state.as_str()), (0, "42601"));
        let (ran, state) = tracer.run("SELECT 1 <#@#> 2", extended)?;
        assert_eq!((ran, state.as_str()), (0, "42883"));
    }
    let replies = tracer.client.talk(&msgs().Q("SELECT FROM WHERE"))?;
    let position = replies.error().map(|fields| fields.get('P').to_owned());
    assert_eq!((replies.to_string().as_str(), position.as_deref()), ("E(42601) Z(I)", Some("13")));
    Ok(())
}

#[test]
fn rw_12_a_read_only_transaction_ends_by_either_protocol() -> Result<()> {
    let (_cluster, weir) = prepared_rig()?;
    for begin_extended in [false, true] {
        for end in ["COMMIT", "ROLLBACK", "END"] {
            for end_extended in [false, true] {
                let mut client = weir.client()?;
                let word = |sql: &str, extended| if extended { msgs().PBE(sql).S() } else { msgs().Q(sql) };
                let what = format!("begin extended: {begin_extended}, {end} extended: {end_extended}");
                client.talk(&word("BEGIN READ ONLY", begin_extended)).map_err(|e| e.context(what.clone()))?;
                assert_eq!(client.scalar(WHERE)?, "n1", "{what}");
                for set in ["SAVEPOINT a", "RELEASE a"] {
                    client.talk(&word(set, end_extended)).map_err(|e| e.context(format!("{what}: {set}")))?;
                }
                let replies = client.talk(&word(end, end_extended)).map_err(|e| e.context(what.clone()))?;
                ensure!(replies.to_string().ends_with("Z(I)"), "{what}: {replies}");
            }
        }
    }
    Ok(())
}
