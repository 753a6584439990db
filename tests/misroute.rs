//! What a standby would accept and do wrongly is refused in a transaction that is bound to one; what pgweir
//! answers itself keeps its place there.

use anyhow::{Result, ensure};
use harness::{Cluster, Pgweir, WHERE, msgs, rig};

const SCHEMA: &str = "
CREATE TABLE t(id int);
CREATE UNLOGGED TABLE u(id int);
CREATE SEQUENCE sq;
CREATE FUNCTION locks() RETURNS int VOLATILE LANGUAGE sql AS 'SELECT pg_advisory_xact_lock(7); SELECT 1';
CREATE FUNCTION marked() RETURNS int STABLE LANGUAGE sql AS 'SELECT 1';
CREATE VIEW v_locks AS SELECT locks() AS a;
CREATE VIEW v_built_in AS SELECT pg_try_advisory_xact_lock(7) AS a;
CREATE OPERATOR <#> (LEFTARG = int, RIGHTARG = int, FUNCTION = op_locks);
CREATE PROCEDURE p_locks() LANGUAGE sql AS 'SELECT pg_advisory_xact_lock(7)';
GRANT ALL ON ALL TABLES IN SCHEMA public TO bench;
GRANT ALL ON sq TO bench";
const OPERATOR: &str = "CREATE FUNCTION op_locks(int, int) RETURNS int VOLATILE LANGUAGE sql \
     AS 'SELECT pg_advisory_xact_lock(7); SELECT 1'";

/// What a standby takes and does wrongly.
const SILENT: &[&str] = &[
    "SELECT pg_advisory_lock(7)",
    "SELECT set_config('work_mem', '3MB', false)",
    "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
    "LOCK TABLE t IN ACCESS SHARE MODE",
    "PREPARE p AS INSERT INTO t VALUES (1)",
    // What it does is not to be seen in its text.
    "SELECT locks()",
    "SELECT id FROM t WHERE locks() = 1",
    "SELECT 1 <#> 2",
    "TABLE v_locks",
    "SELECT * FROM v_built_in",
    "COPY (SELECT locks()) TO STDOUT",
    "DECLARE c CURSOR FOR SELECT locks()",
    "EXPLAIN ANALYZE SELECT locks()",
    "SELECT last_value FROM sq",
    "DO $$ BEGIN PERFORM pg_advisory_xact_lock(7); END $$",
    "CALL p_locks()",
    "EXECUTE locking",
    "EXPLAIN ANALYZE EXECUTE locking",
];

const LOCKS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";

fn prepared() -> Result<(Cluster, Pgweir)> {
    let (cluster, weir) = rig(1, "consistency: eventual")?;
    cluster.setup(&format!("{OPERATOR};{SCHEMA}"))?;
    cluster.wait_replay()?;
    weir.wait_on_standby("SELECT marked() FROM t")?;
    Ok((cluster, weir))
}

/// RW-08, RW-11: in a transaction that cannot go elsewhere any more.
#[test]
fn rw_08_rw_11_silent_misroutes_fail_in_a_read_only_transaction_on_a_standby() -> Result<()> {
    let (cluster, weir) = prepared()?;
    // One shows one snapshot, the other has a savepoint on the standby.
    let bound = [["BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ", ""], ["BEGIN READ ONLY", "SAVEPOINT a"]];
    for (number, sql) in SILENT.iter().enumerate() {
        let mut client = weir.client()?;
        client.simple("PREPARE locking AS SELECT locks()")?;
        for (extended, begin) in [(false, bound[0]), (true, bound[1])] {
            begin.into_iter().try_for_each(|sql| client.simple(sql).map(drop))?;
            assert_eq!(client.scalar(WHERE)?, "n1");
            let message = if extended { msgs().PBE(sql).PBE("SELECT 1").S() } else { msgs().Q(sql) };
            let replies = client.talk(&message)?;
            let expected = if extended { "1 E(25006) Z(E)" } else { "E(25006) Z(E)" };
            assert_eq!(replies.to_string(), expected, "{sql}");
            assert_eq!(cluster.scalar(1, LOCKS)?, "0", "a lock on the standby: {sql}");
            assert_eq!(client.sqlstate_of("SELECT 1")?, "25P02", "{sql}");
            client.simple("ROLLBACK")?;
        }
        // As the first statement it goes to the primary, which knows what to do with it.
        client.simple("BEGIN READ ONLY")?;
        let refused = client.talk(&msgs().Q(sql))?.to_string();
        ensure!(!refused.contains("25006") || sql.contains("INSERT"), "{number} {sql}: {refused}");
        client.simple("ROLLBACK")?;
    }
    let mut client = weir.client()?;
    client.simple("BEGIN READ ONLY")?;
    assert_eq!(client.scalar(WHERE)?, "n1");
    assert_eq!(client.scalar("SELECT marked() + 4")?, "5", "reads go on");
    assert_eq!(client.scalar(WHERE)?, "n1");
    client.simple("COMMIT")?;
    Ok(())
}

/// RW-16, RW-19: nor does what is not understood, or too long to be parsed, when what it names is known.
#[test]
fn rw_16_rw_19_texts_that_are_not_looked_through_are_still_looked_at() -> Result<()> {
    let (cluster, weir) = prepared()?;
    let padding = "x".repeat(100_000);
    // sqlparser does not understand COLLATION FOR.
    let odd = "collation for ('a'::text)";
    for (sql, refused) in [
        (format!("SELECT {odd} FROM v_locks"), true),
        (format!("SELECT {odd}, locks()"), true),
        (format!("SELECT {odd}, id FROM t WHERE (1 <#> 2) = 1"), true),
        (format!("SELECT {odd} FROM t"), false),
        (format!("SELECT pg_advisory_lock(7), '{padding}'"), true),
        (format!("SELECT locks(), '{padding}'"), true),
        (format!("SELECT a, '{padding}' FROM v_locks"), true),
        (format!("SELECT 1 <#> 2, '{padding}'"), true),
        (format!("SELECT marked(), '{padding}' FROM t"), false),
    ] {
        for extended in [false, true] {
            let told = sql.get(..60).unwrap_or(&sql);
            let mut client = weir.client()?;
            client.simple("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")?;
            assert_eq!(client.scalar(WHERE)?, "n1");
            let replies = client.talk(&if extended { msgs().PBE(&sql).S() } else { msgs().Q(&sql) })?;
            assert_eq!(replies.to_string().ends_with("E(25006) Z(E)"), refused, "{told}: {replies}");
            assert_eq!(replies.error().is_some(), refused, "{told}");
            assert_eq!(cluster.scalar(1, LOCKS)?, "0", "a lock on the standby: {told}");
            client.simple("ROLLBACK")?;
        }
    }
    Ok(())
}

/// RW-08, RW-12: a transaction that only reads goes on at the primary with what belongs there, as long as nothing of it
/// would be missing, and comes out as on one server.
#[test]
fn rw_08_rw_12_a_read_only_transaction_goes_on_where_its_statement_belongs() -> Result<()> {
    let (cluster, weir) = prepared()?;
    let others = [
        "SELECT pg_advisory_xact_lock(7)",
        "SELECT count(*) FROM u",
        "EXPLAIN SELECT * FROM u",
        "SELECT txid_current()",
        "SELECT pg_notify('c', 'x')",
        "NOTIFY c",
        "SELECT pg_current_wal_lsn()",
        "SELECT pg_export_snapshot()",
    ];
    let executes = |sql: &&&str| !sql.contains("EXECUTE") && !sql.contains("set_config");
    for (number, sql) in SILENT.iter().filter(executes).chain(&others).enumerate() {
        let mut client = weir.client()?;
        client.simple("BEGIN READ ONLY")?;
        assert_eq!(client.scalar(WHERE)?, "n1", "{sql}");
        let message = if number % 2 == 0 { msgs().Q(sql) } else { msgs().PBE(sql).S() };
        let replies = client.talk(&message)?;
        ensure!(replies.error().is_none() && replies.to_string().ends_with("Z(T)"), "{sql}: {replies}");
        assert_eq!(cluster.scalar(1, LOCKS)?, "0", "a lock on the standby: {sql}");
        if sql.starts_with("SELECT locks()") {
            assert_eq!(cluster.scalar(0, LOCKS)?, "1", "no lock on the primary: {sql}");
        }
        assert_eq!(client.scalar(WHERE)?, "n0", "{sql}");
        assert_eq!(client.sqlstate_of("INSERT INTO t VALUES (1)")?, "25006", "still READ ONLY: {sql}");
        client.simple("ROLLBACK")?;
    }
    // All at once: each answer in its place.
    let mut client = weir.client()?;
    for _ in 0..10 {
        let all =
            msgs().Q("BEGIN READ ONLY").Q(WHERE).P("", WHERE).B("", "", &[]).E().S().Q("SELECT marked()");
        let all = all.Q("SELECT locks()").Q(WHERE).Q("COMMIT");
        let replies = client.talk(&all)?;
        ensure!(replies.error().is_none(), "{replies}");
        assert_eq!(replies.values(), ["n1", "n1", "1", "1", "n0"], "{replies}");
    }
    // What is not the primary's keeps it where it is.
    for sql in ["SAVEPOINT a", "DECLARE c CURSOR FOR SELECT 1", "SET LOCAL work_mem = '2MB'", "SHOW work_mem"]
    {
        client.simple("BEGIN READ ONLY")?;
        assert_eq!(client.scalar(WHERE)?, "n1");
        client.simple(sql)?;
        assert_eq!(client.scalar(WHERE)?, "n1", "{sql}");
        assert_eq!(client.sqlstate_of("SELECT locks()")?, "25006", "{sql}");
        client.simple("ROLLBACK")?;
    }
    assert_eq!(cluster.count_logged(1, "SELECT locks()")?, 0);
    Ok(())
}

#[test]
fn show_pool_nodes_keeps_its_place_and_harms_nothing() -> Result<()> {
    let (_cluster, weir) = rig(1, "")?;
    let mut client = weir.client()?;
    // Pinned.
    client.simple("CREATE TEMP TABLE x(a int)")?;
    let pinned = client.talk(&msgs().Q("SHOW POOL_NODES").Q("SELECT count(*) FROM x"))?.to_string();
    ensure!(pinned.ends_with("C(SHOW) Z(I) T D(0) C(SELECT 1) Z(I)"), "{pinned}");
    // Behind an error it is ignored with the rest.
    let mut client = weir.client()?;
    let batch = msgs().PBE("SELECT nothing").PBE("SHOW POOL_NODES").S().Q("SELECT 1");
    assert_eq!(client.talk(&batch)?.to_string(), "E(42703) Z(I) T D(1) C(SELECT 1) Z(I)");
    // In a failed transaction the status is told as it is.
    client.simple("BEGIN")?;
    assert_eq!(client.sqlstate_of("SELECT nothing")?, "42703");
    let failed = client.talk(&msgs().Q("SHOW POOL_NODES"))?.to_string();
    ensure!(failed.ends_with("Z(E)"), "{failed}");
    client.simple("ROLLBACK")?;
    // A console command that is wrong ends its batch and nothing else.
    client.simple("BEGIN")?;
    assert_eq!(client.scalar("SELECT 1")?, "1");
    let wrong = client.talk(&msgs().PBE("SHOW POOL_NONSENSE").PBE("SELECT 2").S())?.to_string();
    ensure!(wrong.starts_with("E(") && wrong.ends_with(") Z(T)") && !wrong.contains("D("), "{wrong}");
    assert_eq!(client.scalar("SELECT 3")?, "3");
    client.simple("COMMIT")?;
    // A batch in pieces, the portal made before the others.
    client.send(&msgs().P("n", "SHOW POOL_NODES").B("", "n", &[]).D('P', "").H())?;
    assert_eq!(client.read_count(3)?.to_string(), "1 2 T");
    let rest = client.talk(&msgs().E().S())?.to_string();
    ensure!(rest.starts_with("D(0,") && rest.ends_with("C(SHOW) Z(I)"), "{rest}");
    // Its name is taken as any other.
    assert_eq!(client.talk(&msgs().P("n", "SELECT 1").S())?.to_string(), "E(42P05) Z(I)");
    assert_eq!(client.talk(&msgs().P("n", "SHOW POOL_NODES").S())?.to_string(), "E(42P05) Z(I)");
    // What ends a batch that has failed may come later.
    client.send(&msgs().P("n", "SELECT 1").H())?;
    assert_eq!(client.read_count(1)?.to_string(), "E(42P05)");
    assert_eq!(client.talk(&msgs().PBE("SELECT 5").S())?.to_string(), "Z(I)");
    // An unfinished batch is ended by a simple query.
    let mixed = client.talk(&msgs().PBE("SELECT 4").Q("SHOW POOL_NODES"))?.to_string();
    ensure!(mixed.starts_with("1 2 D(4) C(SELECT 1) T D(0,") && mixed.ends_with("C(SHOW) Z(I)"), "{mixed}");
    assert_eq!(client.scalar("SELECT 1")?, "1");
    Ok(())
}
