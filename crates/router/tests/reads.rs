//! Queries: which may go to a standby, which not, and why.

mod common;
mod table;

const READ: &str = "read read_only_select select";
const LOCKS: &str = "write locking_read select";
const VOLATILE: &str = "write volatile_function select";
const UNKNOWN: &str = "write unknown_function select";
const UNPARSED: &str = "write unparsed select";

fn all(expected: &str, statements: &[&str]) {
    let rows: Vec<_> = statements.iter().map(|sql| (expected, *sql)).collect();
    table::check(&rows);
}

#[test]
fn plain_queries_read() {
    all(
        READ,
        &[
            "SELECT 1",
            "select 1;",
            ";;SELECT 1;;",
            "SELECT abalance FROM pgbench_accounts WHERE aid = 12345;",
            "select name from test_1 where id=$1;",
            "SELECT * FROM t WHERE a = -1 AND b <> 'x' OR c IS NOT NULL",
            "TABLE t",
            "VALUES (1, 'a'), (2, 'b')",
            "(SELECT 1)",
            "(SELECT 1) UNION ALL (SELECT 2) ORDER BY 1 LIMIT 1 OFFSET 2",
            "SELECT 1 INTERSECT SELECT 2 EXCEPT VALUES (3)",
            "WITH x AS (SELECT 1) SELECT * FROM x",
            "WITH x(a, b) AS (SELECT 1, 2), y AS NOT MATERIALIZED (SELECT 3) SELECT * FROM x, y",
            "WITH RECURSIVE t(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM t WHERE n < 100) SELECT sum(n) FROM t",
            "WITH x AS (WITH y AS (SELECT 1) TABLE y) TABLE x",
            "SELECT DISTINCT ON (a) a, b FROM t ORDER BY a, b DESC NULLS LAST",
            "SELECT * FROM a JOIN b USING (id) LEFT JOIN c ON c.id = a.id CROSS JOIN d NATURAL JOIN e",
            "SELECT * FROM a, LATERAL (SELECT * FROM b WHERE b.id = a.id) s",
            "SELECT EXISTS (SELECT 1 FROM t WHERE x IN (1, 2, 3))",
            "SELECT * FROM t WHERE x = ANY ($1) AND y > ALL (SELECT 1)",
            "SELECT CASE WHEN a THEN 1 ELSE (SELECT 2) END FROM t",
            "SELECT a[1], a[1:2], (r).f, ARRAY[1, 2], ARRAY(SELECT 1), ROW(1, 2) FROM t",
            "SELECT 'for update', $$insert into t$$, E'it\\'s; delete from t'",
            "SELECT 1 AS \"for update\", \"insert\" FROM \"delete\"",
            "SELECT substring(v from 1 for 2) FROM t",
            "SELECT * FROM t FETCH FIRST 3 ROWS ONLY",
            "SELECT * FROM ONLY t TABLESAMPLE system (10)",
            "SELECT nextval FROM t",
            "SELECT 'nextval(1)', \"nextval\" FROM t -- nextval('x')",
            "SELECT * FROM s.t x (a, b) WHERE x.a = 1",
            "SELECT * FROM json_to_recordset($1) AS x(a int, b numeric(10, 2))",
            "SELECT g.i FROM generate_series(1, 10) AS g(i)",
            "SELECT * FROM unnest($1::int[]) WITH ORDINALITY AS u(v, n)",
            "/* comment */ SELECT /* x -- */ 1 -- end",
            "SELECT/**/1",
            "SELECT last_value FROM sq",
            "SELECT * FROM pg_catalog.pg_class",
        ],
    );
}

#[test]
fn safe_functions_read() {
    all(
        READ,
        &[
            "SELECT count(*), sum(a) FILTER (WHERE a > 0), max(b) OVER (PARTITION BY c ORDER BY d) FROM t",
            "SELECT row_number() OVER w FROM t WINDOW w AS (PARTITION BY a)",
            "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY a) FROM t",
            "SELECT string_agg(a, ',' ORDER BY a), array_agg(DISTINCT b) FROM t",
            "SELECT COALESCE(a, 0), NULLIF(a, 1), GREATEST(1, 2), LEAST(1, 2) FROM t",
            "SELECT CAST(a AS numeric(10,2)), a::varchar(10), 'now'::timestamp(3) with time zone FROM t",
            "SELECT extract(year from now()), trim(both 'x' from a), overlay(a placing 'x' from 1), position('a' in b) FROM t",
            "SELECT now(), current_timestamp, current_date, localtime, current_user, session_user",
            "SELECT random(), clock_timestamp(), timeofday(), gen_random_uuid(), pg_sleep(0.1)",
            "SELECT pg_last_wal_replay_lsn(), pg_last_wal_receive_lsn()",
            "SELECT pg_catalog.lower('X'), \"lower\"('X'), LOWER('X')",
            "SELECT current_setting('cluster_name')",
            "SELECT left(a, 1), right(a, 1), replace(a, 'x', 'y') FROM t",
            "SELECT a ->> 'x', a -> 1, a @> '{}', a ? 'k', a #> '{x}' FROM t",
            "SELECT a ~ 'x', a !~* 'y', a LIKE 'z%', a ILIKE ('x'), a SIMILAR TO 'x', a != 1 FROM t",
            "SELECT relname FROM pg_class c WHERE c.relname OPERATOR(pg_catalog.~) '^(t)$' COLLATE pg_catalog.default",
            "SELECT a FROM t GROUP BY GROUPING SETS ((a), ()), ROLLUP (b), CUBE (c)",
            "SELECT interval '1 day' + date '2020-01-01', a AT TIME ZONE 'UTC' FROM t",
            "SELECT pg_size_pretty(1024::bigint), pg_column_size(a) FROM t",
            "SELECT to_char(now(), 'YYYY'), make_interval(days => 10)",
            "SELECT jsonb_build_object('a', 1), to_jsonb(t.*) FROM t",
            "SELECT b'101', x'1F', U&'d\\0061t', N'x'",
        ],
    );
}

#[test]
fn locking_reads_at_any_depth() {
    all(
        LOCKS,
        &[
            "SELECT * FROM t WHERE id=1 FOR UPDATE",
            "select * from t for\nupdate",
            "SELECT * FROM t FOR NO KEY UPDATE SKIP LOCKED",
            "SELECT * FROM t FOR SHARE NOWAIT",
            "SELECT * FROM t FOR KEY SHARE",
            "SELECT 1 FROM a, b FOR UPDATE OF a",
            "SELECT * FROM (SELECT * FROM t FOR SHARE) s",
            "WITH x AS (SELECT * FROM t FOR UPDATE) SELECT * FROM x",
            "SELECT 1 WHERE EXISTS (SELECT 1 FROM t FOR /* c */ UPDATE)",
            "SELECT * FROM t LIMIT 1 FOR UPDATE NOWAIT",
            "SELECT * FROM t FOR UPDATE LIMIT 1",
        ],
    );
    table::check(&[
        ("write select_into select", "SELECT id INTO nt FROM t"),
        ("write select_into select", "SELECT id INTO UNLOGGED TABLE nt FROM t"),
        ("write select_into select pin:temp_table", "SELECT id INTO TEMP nt2 FROM t"),
        ("write select_into select pin:temp_table", "SELECT 1 INTO LOCAL TEMPORARY TABLE x"),
        ("write select_into select pin:temp_table", "SELECT 1 INTO pg_temp.x"),
        (
            "write data_modifying_cte select",
            "WITH x AS (INSERT INTO t VALUES (1) RETURNING a) SELECT * FROM x",
        ),
        ("write data_modifying_cte select", "WITH x AS (UPDATE t SET a = 1 RETURNING *) SELECT 1"),
        ("write data_modifying_cte select", "with x as (delete from t returning *) select 1"),
        (
            "write data_modifying_cte select",
            "WITH y AS (WITH x AS (DELETE FROM t RETURNING 1) TABLE x) TABLE y",
        ),
        (
            "write data_modifying_cte select",
            "WITH x AS MATERIALIZED (MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE) SELECT 1",
        ),
        ("write dml insert", "WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x"),
        ("write dml update", "WITH x AS (SELECT 1) UPDATE t SET a = 1"),
        ("write dml delete", "WITH x(a) AS (SELECT 1) DELETE FROM t USING x"),
        ("write dml other", "WITH x AS (SELECT 1) MERGE INTO t USING x ON true WHEN MATCHED THEN DELETE"),
    ]);
}

#[test]
fn functions_that_belong_to_the_primary() {
    all(
        VOLATILE,
        &[
            "SELECT nextval('sq')",
            "SELECT setval('sq', 1), lastval()",
            "SELECT currval(pg_get_serial_sequence('t', 'id'))",
            "SELECT \"nextval\"('sq')",
            "SELECT pg_catalog . nextval('sq')",
            "SELECT NextVal /* x */ ('sq')",
            "SELECT nextval('\"My Seq\"'::regclass)",
            "SELECT * FROM t WHERE id = (SELECT nextval('sq'))",
            "VALUES (nextval('sq'))",
            "SELECT txid_current()",
            "SELECT pg_current_xact_id()",
            "SELECT pg_notify('c', 'x')",
            "SELECT pg_export_snapshot()",
            "SELECT pg_current_wal_lsn()",
            "SELECT pg_switch_wal(), pg_create_restore_point('x')",
            "SELECT lo_create(0), lo_unlink(1)",
            "SELECT pg_stat_reset()",
            "SELECT pg_reload_conf(), pg_terminate_backend(1)",
            "SELECT pg_advisory_unlock(1)",
            "SELECT pg_advisory_xact_lock(1), pg_try_advisory_xact_lock(2)",
            "SELECT set_config('app.tenant', '7', true)",
            "WITH c AS MATERIALIZED (SELECT set_config('a.b','7',true)) SELECT r.* FROM c, r",
            "SELECT query_to_xml('delete from t', true, true, '')",
            "SELECT count(*) FILTER (WHERE nextval('s') > 1) FROM t",
            "SELECT * FROM a JOIN b ON nextval('s') = 1",
            "SELECT a FROM t ORDER BY nextval('s')",
            "SELECT 1 LIMIT nextval('s')",
            "SELECT pg_logical_emit_message(true, 'a', 'b')",
        ],
    );
    table::check(&[
        ("write volatile_function select pin:advisory_lock", "SELECT pg_advisory_lock($1)"),
        ("write volatile_function select pin:advisory_lock", "SELECT pg_try_advisory_lock_shared(1, 2)"),
        ("write volatile_function select pin:large_object", "SELECT lo_open(1, 131072)"),
        ("write volatile_function select pin:session_setting", "SELECT set_config('a.b', '7', false)"),
        ("write volatile_function select pin:session_setting", "SELECT set_config('a.b', '7', $1)"),
        ("write volatile_function select pin:session_setting", "SELECT set_config('a.b', '7', 'true')"),
        ("write volatile_function select pin:session_setting", "SELECT set_config('a', 'b', f(true))"),
        ("write volatile_function select pin:session_setting", "SELECT setseed(0.5)"),
        ("write volatile_function select pin:advisory_lock", "SELECT wf(), pg_advisory_lock(1)"),
    ]);
}

#[test]
fn what_is_not_known_goes_to_the_primary() {
    all(
        UNKNOWN,
        &[
            "SELECT wr()",
            "SELECT * FROM wr()",
            "SELECT * FROM wr() AS wr(a)",
            "SELECT 1 WHERE wr() = 1",
            "SELECT (SELECT wr())",
            "SELECT s.wr()",
            "SELECT s.lower('x')",
            "SELECT db.pg_catalog.lower('x')",
            "SELECT \"Wr\"()",
            "SELECT \"LOWER\"('x')",
            "VALUES (wr())",
            "SELECT a <#> b FROM t",
            "SELECT a OPERATOR(public.+) b FROM t",
            "SELECT f(1) FROM t AS f(a)",
            "SELECT x.values(1) FROM t",
            "SELECT caf\u{e9}(1)",
            "SELECT * FROM t JOIN LATERAL wr(t.a) ON true",
            "SELECT over(1)",
            "SELECT sum(a) OVER (ORDER BY wr(b)) FROM t",
            "SELECT CASE WHEN wr() THEN 1 END",
            "SELECT * FROM t, (VALUES (wr())) v(a)",
        ],
    );
    all(
        UNPARSED,
        &[
            "SELECT FROM WHERE",
            "SELECT 'unterminated",
            "SELECT \"unterminated",
            "SELECT $$unterminated",
            "SELECT 1 /* unterminated",
            "SELECT 1\0, 2",
            "SELECT 1a",
            "SELECT (1",
            "SELECT 1)",
            "SELECT \\",
            "SELECT * FROM U&\"t\\0061\"",
        ],
    );
    table::check(&[
        ("write unparsed other", "FOO BAR"),
        ("write unparsed other", "'x'"),
        ("write unparsed other", ")"),
        ("write unparsed select pin:unknown", "SELECT U&\"nextv\\0061l\"('sq')"),
    ]);
}
