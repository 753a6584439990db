//! What only the catalog knows: views, operators, casts, domains, policies and defaults over functions that write,
//! unlogged and foreign tables, functions that only read, and that changes are noticed. What ran where is told by
//! the servers' logs; the primary has weight 0.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{Cluster, ClusterOptions, Pgweir, RawClient, WHERE, eventually, msgs, rig, run_all};

const SCHEMA: &str = "
CREATE TABLE t(id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'one'), (2, 'two');
CREATE TABLE log(n int);
CREATE FUNCTION wr() RETURNS int VOLATILE LANGUAGE sql AS 'INSERT INTO log VALUES (1); SELECT 1';
CREATE FUNCTION wr(int) RETURNS int VOLATILE LANGUAGE sql AS 'INSERT INTO log VALUES (1); SELECT $1';
CREATE FUNCTION rd(int) RETURNS int STABLE LANGUAGE sql AS 'SELECT $1 + 1';
CREATE FUNCTION im(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 + 1';
CREATE FUNCTION over(int) RETURNS int STABLE LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION over(text) RETURNS int VOLATILE LANGUAGE sql AS 'INSERT INTO log VALUES (1); SELECT 1';
CREATE SCHEMA s;
CREATE FUNCTION s.rd(text) RETURNS int STABLE LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION withdefault(a int DEFAULT wr()) RETURNS int STABLE LANGUAGE sql AS 'SELECT $1';
CREATE SEQUENCE sq;
CREATE VIEW v_wr AS SELECT wr() AS a;
CREATE VIEW v_nested AS SELECT * FROM v_wr UNION ALL SELECT 1;
CREATE VIEW v_nextval AS SELECT nextval('sq') AS a;
CREATE VIEW v_notify AS SELECT pg_notify('c', 'x')::text AS a;
CREATE VIEW v_lock AS SELECT * FROM t FOR UPDATE;
CREATE VIEW v_lock_inside AS SELECT * FROM (SELECT * FROM t FOR SHARE) x;
CREATE VIEW v_plain AS SELECT id, upper(v) AS v, rd(id) AS r, random() AS x FROM t;
CREATE MATERIALIZED VIEW m_wr AS SELECT wr() AS a;
CREATE UNLOGGED TABLE u(id int);
CREATE VIEW v_unlogged AS SELECT * FROM u;
CREATE TABLE parent(id int) PARTITION BY LIST (id);
CREATE UNLOGGED TABLE parent_1 PARTITION OF parent FOR VALUES IN (1);
CREATE TABLE parent_2 PARTITION OF parent FOR VALUES IN (2);
CREATE FUNCTION op_wr(int, int) RETURNS boolean VOLATILE LANGUAGE sql AS 'INSERT INTO log VALUES (1); SELECT true';
CREATE OPERATOR <#> (LEFTARG = int, RIGHTARG = int, FUNCTION = op_wr);
CREATE FUNCTION op_rd(int, int) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true';
CREATE OPERATOR <##> (LEFTARG = int, RIGHTARG = int, FUNCTION = op_rd);
CREATE VIEW v_operator AS SELECT 1 <#> 2 AS a;
CREATE TYPE pair AS (a int, b int);
CREATE FUNCTION to_pair(int) RETURNS pair VOLATILE LANGUAGE sql AS 'INSERT INTO log VALUES (1); SELECT ROW($1, $1)::pair';
CREATE CAST (int AS pair) WITH FUNCTION to_pair(int);
CREATE FUNCTION check_wr(int) RETURNS boolean VOLATILE LANGUAGE sql AS 'INSERT INTO log VALUES (1); SELECT true';
CREATE DOMAIN checked AS int CHECK (check_wr(VALUE));
CREATE FUNCTION of_row(t) RETURNS int VOLATILE LANGUAGE sql AS 'INSERT INTO log VALUES (1); SELECT 1';
CREATE TABLE secret(id int);
INSERT INTO secret VALUES (1);
ALTER TABLE secret ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON secret USING (wr() = 1);
CREATE FUNCTION agg_step(int, int) RETURNS int VOLATILE LANGUAGE sql AS 'INSERT INTO log VALUES (1); SELECT $1 + $2';
CREATE AGGREGATE agg_wr(int) (SFUNC = agg_step, STYPE = int, INITCOND = '0');
GRANT USAGE ON SCHEMA s TO bench;
GRANT ALL ON ALL TABLES IN SCHEMA public TO bench;
GRANT ALL ON sq TO bench";

fn prepared_rig(yaml: &str) -> Result<(Cluster, Pgweir)> {
    let (cluster, weir) = rig(1, &format!("consistency: eventual\n{yaml}"))?;
    cluster.setup(SCHEMA)?;
    Ok((cluster, weir))
}

/// RW-01, RW-02, PP-05: a write that only the catalog shows goes to the primary, a read that only the catalog shows
/// to a standby.
#[test]
fn rw_01_pp_05_what_the_catalog_shows() -> Result<()> {
    let (cluster, weir) = prepared_rig("")?;
    weir.wait_on_standby("SELECT * FROM v_plain")?;
    run_all(
        &cluster,
        &weir,
        &[
            (0, "SELECT * FROM v_wr"),
            (0, "TABLE v_wr"),
            (0, "SELECT * FROM public.v_nested"),
            (0, "SELECT (SELECT max(a) FROM v_nested)"),
            (0, "WITH x AS (SELECT * FROM v_nested) SELECT count(*) FROM x"),
            (0, "SELECT a FROM v_nextval"),
            (0, "SELECT * FROM v_notify"),
            (0, "SELECT * FROM v_lock"),
            (0, "SELECT id FROM t WHERE id IN (SELECT id FROM v_lock_inside)"),
            (0, "COPY (SELECT * FROM v_wr) TO STDOUT"),
            (0, "COPY (SELECT wr()) TO STDOUT"),
            (0, "EXPLAIN ANALYZE SELECT * FROM v_wr"),
            (0, "EXPLAIN SELECT * FROM v_wr"),
            (0, "SELECT * FROM u"),
            (0, "SELECT count(*) FROM v_unlogged"),
            (0, "COPY u TO STDOUT"),
            (0, "EXPLAIN SELECT * FROM u"),
            (0, "SELECT * FROM parent"),
            (1, "SELECT * FROM parent_2"),
            (1, "SELECT * FROM v_plain"),
            (1, "SELECT * FROM m_wr"),
            (1, "SELECT * FROM t"),
            (1, "COPY t TO STDOUT"),
            (0, "SELECT last_value FROM sq"),
            (0, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"),
            (0, "SELECT count(*) FROM pg_catalog.pg_locks WHERE locktype = 'advisory'"),
            (0, "TABLE pg_stat_replication"),
            (0, "SELECT slot_name FROM pg_replication_slots"),
            (1, "SELECT rd(1), im(id), public.rd(2) FROM t"),
            (1, "SELECT s.rd('x')"),
            (0, "SELECT over(1)"),
            (0, "SELECT withdefault()"),
            (0, "SELECT 1 <#> 2"),
            (1, "SELECT 1 <##> 2"),
            (0, "SELECT 1 OPERATOR(public.<#>) 2"),
            (1, "SELECT 1 OPERATOR(public.<##>) 2"),
            (0, "SELECT a FROM v_operator"),
            (0, "SELECT 1::pair"),
            (0, "SELECT CAST(id AS pair) FROM t"),
            (0, "SELECT 1::checked"),
            (0, "SELECT checked '1'"),
            (0, "SELECT x.of_row FROM t x"),
            (0, "SELECT (x).of_row FROM t x"),
            (0, "SELECT * FROM secret"),
            (0, "SELECT agg_wr(id) FROM t"),
            (1, "SELECT * FROM pg_class LIMIT 1"),
            (1, "SELECT count(*) FROM information_schema.tables"),
            (1, "WITH r AS (SELECT 1 AS a) SELECT * FROM r"),
        ],
    )?;
    for function in ["wr", "op_wr", "to_pair", "check_wr", "of_row", "agg_step"] {
        ensure!(
            cluster.count_logged(1, &format!("CONTEXT:  SQL function \"{function}\""))? == 0,
            "{function} ran on n1"
        );
    }
    Ok(())
}

/// Where a read of `relation` runs.
fn place(client: &mut RawClient, relation: &str) -> Result<String> {
    client.scalar(&format!("SELECT current_setting('cluster_name') FROM {relation} LIMIT 1"))
}

/// RW-01: what a name means changes; what passed through pgweir counts at once.
#[test]
fn rw_01_changes_are_noticed_at_once() -> Result<()> {
    let (cluster, weir) = prepared_rig("catalog_check_period: 1h")?;
    let (mut client, mut other) = (weir.client()?, weir.client()?);
    client.simple("CREATE VIEW w AS SELECT id FROM t")?;
    cluster.wait_replay()?;
    assert_eq!(place(&mut other, "w")?, "n1");
    other.talk(&msgs().P("prepared", "SELECT current_setting('cluster_name') FROM w").S())?;
    let prepared = msgs().B("", "prepared", &[]).E().S();
    assert_eq!(other.talk(&prepared)?.values().first().map(String::as_str), Some("n1"));
    for round in 0..5 {
        client.simple("CREATE OR REPLACE VIEW w AS SELECT wr() AS id")?;
        assert_eq!(place(&mut other, "w")?, "n0", "round {round}");
        assert_eq!(other.talk(&prepared)?.values().first().map(String::as_str), Some("n0"), "round {round}");
        client.simple("BEGIN")?;
        client.simple("CREATE OR REPLACE VIEW w AS SELECT id FROM t")?;
        client.simple("COMMIT")?;
        cluster.wait_replay()?;
        assert_eq!(place(&mut other, "w")?, "n1", "round {round}");
        assert_eq!(other.talk(&prepared)?.values().first().map(String::as_str), Some("n1"), "round {round}");
    }
    // A function, in one string with others, and by DO.
    cluster.setup("ALTER FUNCTION rd(int) OWNER TO bench; GRANT CREATE ON SCHEMA public TO bench")?;
    client.simple(
        "SELECT 1; CREATE OR REPLACE FUNCTION rd(int) RETURNS int VOLATILE LANGUAGE sql AS 'SELECT $1'",
    )?;
    let call = "SELECT current_setting('cluster_name') WHERE rd(1) > 0";
    assert_eq!(other.scalar(call)?, "n0");
    client.simple("ALTER FUNCTION rd(int) STABLE")?;
    cluster.wait_replay()?;
    assert_eq!(other.scalar(call)?, "n1");
    client.simple("DO $$ BEGIN ALTER FUNCTION rd(int) VOLATILE; END $$")?;
    ensure!(eventually(Duration::from_secs(30), || other.scalar(call).is_ok_and(|node| node == "n0")), "DO");
    Ok(())
}

/// RW-01: what is changed elsewhere counts after `catalog_check_period`, and what is new when it is first named.
#[test]
fn rw_01_changes_elsewhere_are_noticed_by_period() -> Result<()> {
    let (cluster, weir) = prepared_rig("catalog_check_period: 100ms")?;
    let mut client = weir.client()?;
    // Until the catalog is there, which a busy machine may delay, the view is not trusted.
    let trusted = || place(&mut client, "v_plain").is_ok_and(|node| node == "n1");
    ensure!(eventually(Duration::from_secs(30), trusted), "v_plain");
    cluster.setup("CREATE TABLE fresh(id int); INSERT INTO fresh VALUES (1); GRANT ALL ON fresh TO bench")?;
    cluster.wait_replay()?;
    ensure!(
        eventually(Duration::from_secs(30), || place(&mut client, "fresh").is_ok_and(|node| node == "n1")),
        "fresh"
    );
    cluster.setup(
        "CREATE OR REPLACE VIEW v_plain AS SELECT id, upper(v) AS v, wr(id) AS r, random() AS x FROM t",
    )?;
    ensure!(
        eventually(Duration::from_secs(30), || place(&mut client, "v_plain").is_ok_and(|node| node == "n0")),
        "v_plain"
    );
    Ok(())
}

/// RW-01, PP-05: a table of which nothing is known yet may be one that a standby cannot even open. By whatever way it
/// is named.
#[test]
fn rw_01_a_table_that_is_new_is_the_primarys() -> Result<()> {
    let (cluster, weir) = prepared_rig("catalog_check_period: 1h")?;
    weir.wait_on_standby("SELECT * FROM v_plain")?;
    let mut client = weir.client()?;
    let statements = [
        "SELECT * FROM NEW",
        "SELECT * FROM t, NEW",
        "TABLE NEW",
        "SELECT (SELECT count(*) FROM public.NEW)",
        "COPY NEW TO STDOUT",
        "COPY (SELECT * FROM NEW) TO STDOUT",
        "EXPLAIN SELECT * FROM NEW",
        "EXPLAIN (COSTS off) TABLE NEW",
        "EXPLAIN ANALYZE SELECT * FROM NEW",
        "EXPLAIN INSERT INTO NEW VALUES (1)",
        "EXPLAIN UPDATE t SET id = 1 FROM NEW",
        "EXPLAIN DELETE FROM t USING NEW",
        "EXPLAIN WITH x AS (SELECT * FROM NEW) SELECT * FROM x",
        "EXPLAIN CREATE TABLE made AS SELECT * FROM NEW",
        "EXPLAIN DECLARE c CURSOR FOR SELECT * FROM NEW",
        "PREPARE p_NEW AS SELECT * FROM NEW",
        "DECLARE c CURSOR WITH HOLD FOR SELECT * FROM NEW",
    ];
    for (number, sql) in statements.into_iter().enumerate() {
        let name = format!("new_{number}");
        // Not through pgweir, which would know.
        cluster.setup(&format!("CREATE UNLOGGED TABLE {name}(id int); GRANT ALL ON {name} TO bench"))?;
        let sql = sql.replace("NEW", &name);
        let sent = if number % 2 == 0 { msgs().Q(&sql) } else { msgs().PBE(&sql).S() };
        let replies = client.talk(&sent)?;
        ensure!(replies.error().is_none(), "{sql}: {replies}");
        assert_eq!(cluster.count_logged(1, &name)?, 0, "{sql} was sent to n1");
    }
    Ok(())
}

/// RW-02: `read_only_function_list` and `write_function_list` go before the catalog, also in views.
#[test]
fn rw_02_function_lists_overrule_the_catalog() -> Result<()> {
    let yaml = "read_only_function_list: ['wr', 'public\\.op_rd', 'pg_current_wal_.*']\nwrite_function_list: ['rd', 'lower', 'pg_catalog\\.upper']";
    let (cluster, weir) = rig(1, &format!("consistency: eventual\n{yaml}"))?;
    cluster.setup(
        "CREATE FUNCTION wr() RETURNS int VOLATILE LANGUAGE sql AS 'SELECT 1';
         CREATE FUNCTION rd(int) RETURNS int STABLE LANGUAGE sql AS 'SELECT $1';
         CREATE VIEW v_wr AS SELECT wr(); CREATE VIEW v_rd AS SELECT rd(1); CREATE VIEW v_lower AS SELECT lower('A');
         GRANT ALL ON ALL TABLES IN SCHEMA public TO bench",
    )?;
    run_all(
        &cluster,
        &weir,
        &[
            (1, "SELECT wr()"),
            (1, "SELECT public.wr()"),
            (1, "SELECT * FROM v_wr"),
            (0, "SELECT rd(1)"),
            (0, "SELECT public.rd(1)"),
            (0, "SELECT * FROM v_rd"),
            (0, "SELECT lower('A')"),
            (0, "SELECT upper('A')"),
            (0, "SELECT * FROM v_lower"),
            (1, "SELECT initcap('a')"),
        ],
    )?;
    weir.rewrite(
        &cluster,
        &harness::PgweirOptions::yaml("consistency: eventual\nwrite_function_list: [initcap]"),
    )?;
    weir.admin("RELOAD")?;
    run_all(
        &cluster,
        &weir,
        &[(0, "SELECT initcap('b')"), (1, "SELECT rd(2)"), (0, "SELECT * FROM v_wr OFFSET 0")],
    )
}

/// RW-12: the modes that ALTER ROLE, ALTER DATABASE, the start-up packet and SET give transactions.
#[test]
fn rw_12_default_modes_of_transactions() -> Result<()> {
    let (cluster, weir) = prepared_rig("")?;
    let mut client = weir.client()?;
    assert_eq!(client.scalar(WHERE)?, "n1");
    // By SET: nothing fails that would not fail on the primary, and reads of READ ONLY ones are spread.
    client.simple("SET default_transaction_isolation = 'serializable'")?;
    assert_eq!(client.scalar(WHERE)?, "n0");
    client.simple("RESET default_transaction_isolation")?;
    assert_eq!(client.scalar(WHERE)?, "n1");
    client.simple("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")?;
    client.simple("BEGIN")?;
    assert_eq!(client.scalar(WHERE)?, "n1");
    assert_eq!(client.sqlstate_of("INSERT INTO log VALUES (5)")?, "25006");
    client.simple("ROLLBACK")?;
    assert_eq!(client.sqlstate_of("INSERT INTO log VALUES (5)")?, "25006");
    client.simple("SET default_transaction_read_only = off")?;
    client.simple("INSERT INTO log VALUES (5)")?;
    client.simple("BEGIN")?;
    assert_eq!(client.scalar(WHERE)?, "n0");
    client.simple("COMMIT")?;
    // In one go: what follows is judged by what was set.
    let pipeline = msgs().Q(WHERE).Q("SET default_transaction_isolation = 'serializable'").Q(WHERE);
    let replies = client.talk(&pipeline)?;
    assert_eq!(replies.values(), ["n1", "n0"]);
    client.simple("RESET ALL")?;
    // By ALTER ROLE and ALTER DATABASE: sessions that begin later.
    for (alter, expected) in [
        ("ALTER ROLE bench SET default_transaction_isolation = 'serializable'", "n0"),
        ("ALTER ROLE bench IN DATABASE bench SET default_transaction_isolation = 'repeatable read'", "n1"),
        ("ALTER ROLE bench IN DATABASE bench RESET ALL", "n0"),
        ("ALTER ROLE bench RESET ALL", "n1"),
        ("ALTER DATABASE bench SET default_transaction_isolation = 'serializable'", "n0"),
        ("ALTER DATABASE bench RESET ALL", "n1"),
    ] {
        cluster.sql(0, alter)?;
        weir.rewrite(
            &cluster,
            &harness::PgweirOptions::yaml("consistency: eventual\ncatalog_check_period: 100ms"),
        )?;
        weir.admin("RELOAD")?;
        let there =
            || weir.client().and_then(|mut client| client.scalar(WHERE)).is_ok_and(|node| node == expected);
        ensure!(eventually(Duration::from_secs(30), there), "{alter}");
    }
    // By the primary's own configuration, noticed by the period.
    for (level, expected) in [("serializable", "n0"), ("read committed", "n1")] {
        cluster.sql(0, &format!("ALTER SYSTEM SET default_transaction_isolation = '{level}'"))?;
        cluster.sql(0, "SELECT pg_reload_conf()")?;
        let there =
            || weir.client().and_then(|mut client| client.scalar(WHERE)).is_ok_and(|node| node == expected);
        let explained = || weir.client()?.simple(&format!("PGWEIR EXPLAIN {WHERE}"))?.get(0, "reason");
        ensure!(eventually(Duration::from_secs(30), there), "{level}: {:?}", explained());
    }
    Ok(())
}

/// RW-02: what a name means changes within what is sent at once: by SET search_path, and by a temporary table.
#[test]
fn rw_02_names_change_their_meaning_within_a_pipeline() -> Result<()> {
    let (cluster, weir) = prepared_rig("")?;
    cluster.setup(
        "CREATE SCHEMA plain; CREATE SCHEMA writes; GRANT USAGE ON SCHEMA plain, writes TO bench;
         CREATE VIEW plain.seen AS SELECT 1 AS a; CREATE VIEW writes.seen AS SELECT public.wr() + 1 AS a;
         GRANT SELECT ON plain.seen, writes.seen TO bench; TRUNCATE log",
    )?;
    weir.wait_on_standby("SELECT count(*) FROM plain.seen")?;
    let (mut one, mut other) = (weir.client()?, weir.client()?);
    let path = |schema: &str| format!("SET search_path = {schema}, public");
    let seen = "SELECT a FROM seen";
    for extended in [false, true] {
        let add = |sent: harness::Msgs, sql: &str| if extended { sent.PBE(sql).S() } else { sent.Q(sql) };
        let steps = [path("plain"), seen.into(), path("writes"), seen.into(), path("plain"), seen.into()];
        let sent = steps.iter().fold(msgs(), |sent, sql| add(sent, sql));
        assert_eq!(one.talk(&sent)?.values(), ["1", "2", "1"], "extended: {extended}");
        // Another session has a search path of its own.
        assert_eq!(other.sqlstate_of(seen)?, "42P01");
        let shadow = [
            "CREATE TEMP TABLE t AS SELECT 9 AS id",
            "SELECT id FROM t",
            "DROP TABLE t",
            "SELECT min(id) FROM t",
        ];
        let sent = shadow.iter().fold(msgs(), |sent, sql| add(sent, sql));
        assert_eq!(one.talk(&sent)?.values(), ["9", "1"], "extended: {extended}");
        one.simple("RESET search_path")?;
    }
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM log")?, "2");
    Ok(())
}

/// What a newer server has built in is taken as its catalog says: functions are made and given the OIDs of built-ins.
#[test]
fn built_ins_of_a_newer_server_are_read_from_its_catalog() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 1, ..ClusterOptions::default() })?;
    let mut setup = String::from("SET allow_system_table_mods = on;");
    let new = [("json_newer", "STABLE"), ("json_newer_state", "VOLATILE"), ("pg_newer_xact_id", "STABLE")];
    for ((name, volatility), oid) in new.iter().zip(9900..) {
        setup.push_str(&format!(
            "CREATE FUNCTION pg_catalog.{name}(int) RETURNS int {volatility} LANGUAGE sql AS 'SELECT $1';
             UPDATE pg_proc SET oid = {oid} WHERE proname = '{name}';"
        ));
    }
    cluster.setup(&setup)?;
    cluster.wait_replay()?;
    let weir = Pgweir::start(&cluster, "consistency: eventual")?;
    weir.wait_on_standby("SELECT json_newer(1)")?;
    let node = |call: &str| weir.client()?.scalar(&format!("{WHERE} WHERE {call} = 1"));
    assert_eq!(node("json_newer(1)")?, "n1");
    assert_eq!(node("pg_catalog.json_newer(1)")?, "n1");
    assert_eq!(node("json_newer_state(1)")?, "n0");
    assert_eq!(node("pg_newer_xact_id(1)")?, "n0");
    Ok(())
}
