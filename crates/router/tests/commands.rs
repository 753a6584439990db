//! Everything that is not a query: access, transaction control, pins, effects.

mod common;
mod table;

use table::check;

#[test]
fn data_changes() {
    check(&[
        ("write dml insert", "INSERT INTO t (a, b) VALUES (1, 2)"),
        ("write dml insert", "/* x */ insert into t default values returning id"),
        ("write dml insert", "INSERT INTO t SELECT 1 ON CONFLICT (a) DO UPDATE SET b = 1"),
        ("write dml insert pin:advisory_lock", "INSERT INTO t SELECT pg_advisory_lock(1)"),
        ("write dml update", "UPDATE t SET a = 1 WHERE CURRENT OF c"),
        ("write dml delete", "DELETE FROM t"),
        ("write dml other", "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE"),
        ("write dml insert", "INSERT INTO t VALUES (1) RETURNING OLD.*, wr(1)"),
    ]);
}

#[test]
fn definitions() {
    check(&[
        ("write ddl ddl", "CREATE TABLE t (a int)"),
        ("write ddl ddl", "CREATE TABLE t AS SELECT 1"),
        ("write ddl ddl", "CREATE UNIQUE INDEX CONCURRENTLY i ON t (lower(a))"),
        ("write ddl ddl pin:temp_table", "CREATE TEMP TABLE t (a int)"),
        ("write ddl ddl pin:temp_table", "create local temporary table if not exists t as select 1"),
        ("write ddl ddl pin:temp_table", "CREATE GLOBAL TEMPORARY TABLE t (a int) ON COMMIT DELETE ROWS"),
        ("write ddl ddl", "CREATE TEMP TABLE t (a int) ON COMMIT DROP"),
        ("write ddl ddl pin:temp_table", "CREATE TABLE pg_temp.t (a int)"),
        ("write ddl ddl pin:temp_table", "CREATE OR REPLACE TEMP VIEW v AS SELECT 1"),
        ("write ddl ddl pin:temp_table", "CREATE TEMP SEQUENCE s"),
        (
            "write ddl ddl pin:temp_table",
            "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'select 1'",
        ),
        ("write ddl ddl", "CREATE TABLE temp (a int)"),
        ("write ddl ddl", "ALTER TABLE t ADD b int"),
        ("write ddl ddl", "DROP TABLE IF EXISTS t"),
        ("write ddl ddl", "TRUNCATE t"),
        ("write ddl ddl", "GRANT SELECT ON t TO u"),
        ("write ddl ddl", "REVOKE ALL ON t FROM u"),
        ("write ddl ddl", "COMMENT ON TABLE t IS 'x'"),
        ("write ddl ddl", "REINDEX TABLE t"),
        ("write ddl ddl", "REFRESH MATERIALIZED VIEW v"),
        ("write ddl ddl", "SECURITY LABEL ON TABLE t IS 'x'"),
        ("write ddl ddl", "CLUSTER t"),
        ("write ddl ddl", "IMPORT FOREIGN SCHEMA a FROM SERVER b INTO c"),
        ("write ddl ddl", "REASSIGN OWNED BY a TO b"),
        (
            "write ddl ddl",
            "CREATE RULE r AS ON INSERT TO t DO ALSO (INSERT INTO a VALUES (1); DELETE FROM b)",
        ),
        (
            "write ddl ddl",
            "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END",
        ),
        (
            "write multi_statement_write ddl n:2",
            "CREATE PROCEDURE p() BEGIN ATOMIC INSERT INTO t VALUES (1); END; SELECT 1",
        ),
    ]);
}

#[test]
fn utilities() {
    check(&[
        ("write utility other", "VACUUM t"),
        ("write utility other", "ANALYZE"),
        ("write utility other", "CHECKPOINT"),
        ("write utility other", "LOCK TABLE t IN ROW EXCLUSIVE MODE"),
        ("write utility other", "CALL pr(1)"),
        ("write utility other pin:session_setting", "CALL pr(set_config('a', 'b', false))"),
        ("write utility other pin:unknown", "DO $$ BEGIN PERFORM 1; END $$"),
        ("write utility other pin:unknown", "LOAD 'lib'"),
        ("write utility other pin:listen", "LISTEN c"),
        ("write utility other", "UNLISTEN *"),
        ("write utility other", "NOTIFY c, 'x'"),
    ]);
}

#[test]
fn explain_is_planned_or_run() {
    check(&[
        ("read explain other", "EXPLAIN SELECT 1"),
        ("read explain other", "EXPLAIN VERBOSE SELECT wr()"),
        ("read explain other", "EXPLAIN (SELECT 1)"),
        ("read explain other", "EXPLAIN INSERT INTO t VALUES (1)"),
        ("read explain other", "EXPLAIN (ANALYZE false) INSERT INTO t VALUES (1)"),
        ("read explain other", "EXPLAIN (COSTS off, BUFFERS, ANALYZE OFF) DELETE FROM t"),
        ("read explain other", "EXPLAIN (FORMAT json) WITH x AS (DELETE FROM t RETURNING 1) SELECT 1"),
        ("read explain other", "EXPLAIN CREATE TABLE x AS SELECT 1"),
        ("read read_only_select other", "EXPLAIN ANALYZE SELECT 1"),
        ("read read_only_select other", "EXPLAIN (ANALYZE, BUFFERS) SELECT count(*) FROM t"),
        ("read read_only_select other", "EXPLAIN ANALYZE VERBOSE TABLE t"),
        ("write dml other", "EXPLAIN ANALYZE INSERT INTO t VALUES (1)"),
        ("write dml other", "EXPLAIN (BUFFERS, ANALYZE) DELETE FROM t"),
        ("write dml other", "EXPLAIN (ANALYZE true) UPDATE t SET a = 1"),
        ("write dml other", "EXPLAIN (ANALYZE 0) UPDATE t SET a = 1"),
        ("write unknown_function other", "EXPLAIN ANALYZE SELECT wr()"),
        ("write execute other effect:statements", "EXPLAIN ANALYZE EXECUTE w(1)"),
        ("write execute other effect:statements", "EXPLAIN EXECUTE w(1)"),
        ("write ddl other pin:temp_table", "EXPLAIN ANALYZE CREATE TEMP TABLE x AS SELECT 1"),
        ("write unparsed other", "EXPLAIN"),
        ("write unparsed other", "EXPLAIN FOO"),
    ]);
}

#[test]
fn copy_both_ways() {
    check(&[
        ("read read_only_select other", "COPY t TO STDOUT"),
        ("read read_only_select other", "copy t (a, b) to stdout with (format csv)"),
        ("read read_only_select other", "COPY (SELECT * FROM t) TO STDOUT"),
        ("write dml other", "COPY t FROM STDIN"),
        ("write dml other", "copy t from stdin csv"),
        ("write dml other", "COPY BINARY t FROM STDIN"),
        ("write dml other", "COPY t FROM PROGRAM 'true'"),
        ("write dml other", "COPY t (a,b) FROM stdin WHERE a>0"),
        ("write utility other", "COPY t TO '/tmp/x'"),
        ("write utility other", "COPY (SELECT 1) TO PROGRAM 'cat'"),
        ("write dml other", "COPY (INSERT INTO t VALUES (1) RETURNING id) TO STDOUT"),
        ("write data_modifying_cte other", "COPY (WITH x AS (DELETE FROM t RETURNING 1) SELECT 1) TO STDOUT"),
        ("write unknown_function other", "COPY (SELECT wf()) TO STDOUT"),
        ("write unparsed other", "COPY t"),
        ("write unparsed other", "COPY (SELECT 1) STDOUT"),
    ]);
}

#[test]
fn cursors_and_prepared_statements() {
    check(&[
        ("read read_only_select other", "DECLARE c CURSOR FOR SELECT * FROM t"),
        ("read read_only_select other", "DECLARE c BINARY NO SCROLL CURSOR WITHOUT HOLD FOR SELECT 1"),
        ("write utility other pin:hold_cursor", "DECLARE h CURSOR WITH HOLD FOR SELECT 1"),
        ("write locking_read other", "DECLARE c CURSOR FOR SELECT * FROM t FOR UPDATE"),
        ("write unparsed other", "DECLARE c SELECT 1"),
        ("neutral cursor other", "FETCH 2 FROM c"),
        ("neutral cursor other", "MOVE FORWARD ALL IN c"),
        ("neutral cursor other", "CLOSE ALL"),
        ("read read_only_select other pin:sql_prepare effect:statements", "PREPARE p AS SELECT 1"),
        (
            "read read_only_select other pin:sql_prepare effect:statements",
            "PREPARE p (int, text) AS SELECT $1",
        ),
        ("write dml other pin:sql_prepare effect:statements", "PREPARE p(int) AS INSERT INTO t VALUES ($1)"),
        ("write unparsed other effect:statements", "PREPARE p"),
        ("write execute other effect:statements", "EXECUTE p(1)"),
        ("neutral session_control other effect:statements", "DEALLOCATE p"),
        ("neutral session_control other effect:statements", "DEALLOCATE PREPARE \"all\""),
        ("neutral session_control other effect:deallocate_all", "DEALLOCATE ALL"),
        ("neutral session_control other effect:deallocate_all", "deallocate prepare all;"),
        ("neutral session_control other effect:discard_all", "DISCARD ALL"),
        ("neutral session_control other", "DISCARD PLANS"),
    ]);
}

#[test]
fn transaction_control() {
    check(&[
        ("neutral transaction_control other tx:begin", "BEGIN"),
        ("neutral transaction_control other tx:begin", "/* x */ begin work ;"),
        ("neutral transaction_control other tx:begin", "BEGIN TRANSACTION"),
        ("neutral transaction_control other tx:begin", "START TRANSACTION"),
        ("neutral transaction_control other tx:begin,ro", "BEGIN READ ONLY"),
        ("neutral transaction_control other tx:begin,rw", "START TRANSACTION READ WRITE"),
        (
            "neutral transaction_control other tx:begin,ro,ser,def",
            "START TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE",
        ),
        (
            "neutral transaction_control other tx:begin,rw,rr,notdef",
            "BEGIN ISOLATION LEVEL repeatable /**/ read READ WRITE NOT DEFERRABLE",
        ),
        ("neutral transaction_control other tx:begin,rc", "BEGIN TRANSACTION ISOLATION LEVEL READ COMMITTED"),
        ("neutral transaction_control other tx:begin,ru", "BEGIN ISOLATION LEVEL READ UNCOMMITTED"),
        ("neutral transaction_control other tx:commit", "COMMIT"),
        ("neutral transaction_control other tx:commit", "END WORK"),
        ("neutral transaction_control other tx:commit+chain", "COMMIT AND CHAIN"),
        ("neutral transaction_control other tx:commit", "COMMIT TRANSACTION AND NO CHAIN"),
        ("neutral transaction_control other tx:rollback", "ROLLBACK -- now"),
        ("neutral transaction_control other tx:rollback", "ABORT TRANSACTION"),
        ("neutral transaction_control other tx:rollback+chain", "ROLLBACK WORK AND CHAIN"),
        ("neutral transaction_control other tx:savepoint", "SAVEPOINT a"),
        ("neutral transaction_control other tx:savepoint", "RELEASE SAVEPOINT a"),
        ("neutral transaction_control other tx:savepoint", "release \"A\""),
        ("neutral transaction_control other tx:savepoint", "ROLLBACK TO a"),
        ("neutral transaction_control other tx:savepoint", "ROLLBACK WORK TO SAVEPOINT a"),
        ("neutral transaction_control other tx:savepoint", "ROLLBACK TO savepoint"),
        ("write utility other tx:2pc", "PREPARE TRANSACTION 'x'"),
        ("write utility other tx:2pc", "COMMIT PREPARED 'x'"),
        ("write utility other tx:2pc", "ROLLBACK PREPARED 'x'"),
        ("neutral transaction_control other tx:set,ro", "SET TRANSACTION READ ONLY"),
        (
            "neutral transaction_control other tx:set,ser",
            "SET LOCAL TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        ),
        ("neutral transaction_control other tx:set,rw", "SET transaction_read_only = off"),
        ("neutral transaction_control other tx:set,ro", "SET LOCAL transaction_read_only TO 'on'"),
        ("neutral transaction_control other tx:set,rr", "SET transaction_isolation TO 'repeatable read'"),
        ("write transaction_control other tx:set", "SET TRANSACTION SNAPSHOT '00000003-1'"),
        ("write unparsed other tx:mixed", "BEGIN FOO"),
        ("write unparsed other tx:mixed", "BEGIN READ"),
        ("write unparsed other tx:mixed", "COMMIT AND"),
        ("write unparsed other tx:mixed", "START"),
        ("write unparsed other tx:mixed", "SET transaction_read_only = maybe"),
    ]);
}

#[test]
fn session_settings() {
    check(&[
        ("neutral session_control other pin:session_setting", "SET search_path = a, b"),
        ("neutral session_control other pin:session_setting", "SET SESSION work_mem TO '64MB'"),
        ("neutral session_control other pin:session_setting", "SET TIME ZONE 'UTC'"),
        ("neutral session_control other pin:session_setting", "SET ROLE r"),
        ("neutral session_control other pin:session_setting", "SET SESSION AUTHORIZATION DEFAULT"),
        (
            "neutral session_control other tx:mixed pin:session_setting",
            "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        ),
        (
            "neutral session_control other tx:mixed pin:session_setting",
            "SET default_transaction_isolation='serializable'",
        ),
        ("neutral session_control other pin:session_setting", "SET app.tenant = '7'"),
        ("neutral session_control other", "SET LOCAL work_mem = '64MB'"),
        ("neutral session_control other", "SET LOCAL ROLE r"),
        ("neutral session_control other", "SET CONSTRAINTS ALL DEFERRED"),
        ("neutral session_control other", "RESET ALL"),
        ("neutral session_control other", "SHOW server_version"),
        ("neutral session_control other", "SHOW TRANSACTION ISOLATION LEVEL"),
        ("neutral console other effect:console", "SHOW POOL_NODES"),
        ("neutral console other effect:console", "show pool_processes;"),
        ("neutral console other effect:console", "PGPOOL SHOW ALL"),
        ("neutral console other effect:console", "PGWEIR EXPLAIN SELECT 1"),
        ("neutral empty other n:0", ""),
        ("neutral empty other n:0", " ; /* x */ ; -- ping"),
    ]);
}

#[test]
fn several_statements() {
    check(&[
        ("read read_only_select select n:2", "SELECT 1; SELECT 2"),
        ("write multi_statement_write insert n:2", "SELECT 1; INSERT INTO t VALUES(55,'m')"),
        ("read read_only_select select n:2", "SET LOCAL x.y='1'; SELECT 1"),
        ("read read_only_select select pin:session_setting n:2", "SET x.y='1'; SELECT 1"),
        ("write multi_statement_write other tx:mixed n:2", "BEGIN; COMMIT"),
        ("write multi_statement_write insert tx:mixed n:3", "BEGIN; INSERT INTO t VALUES (1); SELECT 1"),
        ("write multi_statement_write select tx:mixed n:3", "BEGIN READ ONLY; SELECT 1; COMMIT;"),
        ("read read_only_select select n:2", "SHOW pool_nodes; SELECT 1"),
        ("neutral session_control other effect:deallocate_all n:2", "DEALLOCATE ALL; RESET ALL"),
        ("write multi_statement_write select pin:advisory_lock n:2", "SELECT 1; SELECT pg_advisory_lock(1)"),
        ("read read_only_select select n:2", "SELECT ';'; SELECT $$;$$ /* ; */"),
    ]);
}
