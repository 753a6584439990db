//! Statements and things in a database by which a write, a lock or a volatile function could hide from the router: each
//! where it runs, by both protocols, as the servers' logs have it. The primary has weight 0.

use anyhow::{Result, ensure};
use harness::{Cluster, ClusterOptions, Login, Pgweir, PgweirOptions, WHERE, msgs, run_all};

const SCHEMA: &str = "
CREATE TABLE t(id int PRIMARY KEY, v text);
INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 20) n;
CREATE TABLE log(n int);
CREATE FUNCTION wr(int) RETURNS int VOLATILE LANGUAGE sql AS 'INSERT INTO log VALUES (1); SELECT $1';
CREATE FUNCTION rd(int) RETURNS int STABLE LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION im(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION rows_wr(int) RETURNS SETOF int VOLATILE LANGUAGE sql AS 'INSERT INTO log VALUES (1); SELECT $1';
CREATE FUNCTION rows_rd(int) RETURNS SETOF int STABLE LANGUAGE sql AS 'SELECT $1';
CREATE AGGREGATE sum_wr(int) (SFUNC = pair_wr, STYPE = int, INITCOND = '0');
CREATE AGGREGATE sum_final(int) (SFUNC = int4pl, STYPE = int, INITCOND = '0', FINALFUNC = wr);
CREATE AGGREGATE sum_moving(int) (SFUNC = int4pl, STYPE = int, INITCOND = '0', MSFUNC = pair_wr, MINVFUNC = pair_wr, MSTYPE = int, MINITCOND = '0');
CREATE AGGREGATE sum_rd(int) (SFUNC = int4pl, STYPE = int, INITCOND = '0');
CREATE OPERATOR <#> (LEFTARG = int, RIGHTARG = int, FUNCTION = pair_wr);
CREATE OPERATOR @@# (RIGHTARG = int, FUNCTION = wr);
CREATE TYPE money_like AS (n int);
CREATE FUNCTION to_money_like(int) RETURNS money_like VOLATILE LANGUAGE sql AS 'INSERT INTO log VALUES (1); SELECT ROW($1)::money_like';
CREATE CAST (int AS money_like) WITH FUNCTION to_money_like(int) AS ASSIGNMENT;
CREATE TABLE by_function(id int, d int DEFAULT wr(1), g int GENERATED ALWAYS AS (im(id)) STORED);
CREATE INDEX ON by_function (im(id)) WHERE im(id) > 0;
CREATE TABLE parts(id int) PARTITION BY RANGE (id);
CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);
CREATE UNLOGGED TABLE parts_lost PARTITION OF parts_high FOR VALUES FROM (10) TO (20);
CREATE TABLE parent(id int);
CREATE UNLOGGED TABLE child() INHERITS (parent);
CREATE TABLE sound(id int);
CREATE TABLE sound_child() INHERITS (sound);
CREATE VIEW v_ruled AS SELECT id FROM t;
CREATE RULE r AS ON INSERT TO v_ruled DO INSTEAD INSERT INTO log VALUES (NEW.id);
CREATE RULE also AS ON INSERT TO sound DO ALSO INSERT INTO log VALUES (NEW.id);
CREATE VIEW v_window AS SELECT sum_wr(id) OVER (ORDER BY id) AS s FROM t;
CREATE VIEW v_lateral AS SELECT x FROM t, LATERAL rows_wr(id) x;
CREATE VIEW v_sample AS SELECT id FROM t TABLESAMPLE system (100);
CREATE VIEW v_parts AS SELECT id FROM parts;
CREATE VIEW v_security WITH (security_barrier) AS SELECT id FROM t WHERE rd(id) > 0;
CREATE MATERIALIZED VIEW m AS SELECT wr(id) AS a FROM t;
CREATE UNIQUE INDEX ON m (a);
CREATE TABLE guarded(id int);
INSERT INTO guarded VALUES (1);
ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON guarded FOR SELECT USING (wr(id) > 0);
CREATE TABLE guarded_soundly(id int);
ALTER TABLE guarded_soundly ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON guarded_soundly FOR SELECT USING (rd(id) > 0);
CREATE EXTENSION file_fdw;
CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;
CREATE FOREIGN TABLE of_file(line text) SERVER files OPTIONS (filename '/dev/null');
CREATE VIEW v_of_file AS SELECT line FROM of_file;
CREATE FUNCTION on_ddl() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO log VALUES (9); END';
CREATE EVENT TRIGGER e ON ddl_command_end EXECUTE FUNCTION on_ddl();
ALTER MATERIALIZED VIEW m OWNER TO bench;
GRANT ALL ON SCHEMA public TO bench;
GRANT ALL ON ALL TABLES IN SCHEMA public TO bench";

/// Where statements run.
const ROWS: &[(usize, &str)] = &[
    // Aggregates and windows.
    (0, "SELECT sum_wr(id) FROM t"),
    (0, "SELECT sum_wr(id) OVER (PARTITION BY v ORDER BY id) FROM t"),
    (0, "SELECT sum_final(id) FROM t"),
    (0, "SELECT sum_moving(id) OVER (ORDER BY id ROWS 2 PRECEDING) FROM t"),
    (0, "SELECT count(*) FILTER (WHERE wr(id) > 0) FROM t"),
    (0, "SELECT sum(id) OVER w FROM t WINDOW w AS (ORDER BY wr(id))"),
    (0, "SELECT id FROM t GROUP BY GROUPING SETS ((id), (wr(1))) HAVING id > 0"),
    (
        1,
        "SELECT sum_rd(id) OVER (ORDER BY id), rank() OVER w, lag(id, 1) OVER w FROM t WINDOW w AS (ORDER BY id)",
    ),
    (1, "SELECT v, grouping(v), count(*) FROM t GROUP BY GROUPING SETS ((v), ()) ORDER BY 1"),
    (1, "SELECT v, id FROM t GROUP BY CUBE (v, id)"),
    (1, "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY id) FROM t"),
    (0, "TABLE v_window"),
    // FROM.
    (0, "SELECT * FROM rows_wr(1)"),
    (0, "SELECT * FROM t, LATERAL rows_wr(t.id) x"),
    (0, "SELECT * FROM t LEFT JOIN LATERAL (SELECT wr(t.id)) x ON true"),
    (0, "SELECT * FROM ROWS FROM (rows_rd(1), rows_wr(2)) WITH ORDINALITY"),
    (0, "SELECT rows_wr(id) FROM t"),
    (0, "TABLE v_lateral"),
    (1, "SELECT * FROM t, LATERAL rows_rd(t.id) x"),
    // Not understood, so care is taken.
    (0, "SELECT * FROM ROWS FROM (rows_rd(1), generate_series(1, 3)) WITH ORDINALITY AS x(a, b, c)"),
    (1, "SELECT * FROM generate_series(1, 3) WITH ORDINALITY"),
    (1, "SELECT id FROM t TABLESAMPLE bernoulli (50)"),
    // REPEATABLE could be a function's name.
    (0, "SELECT id FROM t TABLESAMPLE bernoulli (50) REPEATABLE (1)"),
    (0, "SELECT id FROM t TABLESAMPLE system (wr(100))"),
    (1, "TABLE v_sample"),
    // Operators and casts.
    (0, "SELECT id <#> 1 FROM t"),
    (0, "SELECT @@# id FROM t"),
    (0, "SELECT id OPERATOR(public.<#>) 1 FROM t"),
    (0, "SELECT id::money_like FROM t"),
    (0, "SELECT (1::money_like).n"),
    // Partitions, inheritance.
    (0, "SELECT * FROM parts"),
    (0, "SELECT * FROM parts_high"),
    (0, "TABLE v_parts"),
    (1, "SELECT * FROM parts_low"),
    (0, "SELECT * FROM parent"),
    (1, "SELECT * FROM sound"),
    // Defaults, generated columns and expressions of indexes are not computed by a read.
    (1, "SELECT d, g FROM by_function WHERE im(id) = 1"),
    (0, "INSERT INTO by_function (id) VALUES (1)"),
    // Rules, views, policies, foreign tables.
    (1, "SELECT * FROM v_ruled"),
    (0, "INSERT INTO v_ruled VALUES (1)"),
    (0, "INSERT INTO sound VALUES (1)"),
    (1, "TABLE v_security"),
    (1, "SELECT * FROM m"),
    (0, "REFRESH MATERIALIZED VIEW m"),
    (0, "SELECT * FROM guarded"),
    (1, "SELECT * FROM guarded_soundly"),
    (0, "SELECT * FROM of_file"),
    (0, "TABLE v_of_file"),
    // Locks and writes at any depth.
    (0, "SELECT 1 FROM (SELECT 1 FROM (SELECT id FROM t WHERE id = 1 FOR KEY SHARE) a) b"),
    (0, "SELECT (SELECT count(*) FROM (SELECT 1 FROM t FOR UPDATE SKIP LOCKED) x)"),
    (0, "SELECT 1 WHERE EXISTS (WITH x AS (SELECT id FROM t FOR NO KEY UPDATE OF t NOWAIT) SELECT 1 FROM x)"),
    (0, "SELECT id FROM t UNION (SELECT id FROM (SELECT id FROM t FOR SHARE) y)"),
    (0, "WITH x AS (INSERT INTO log VALUES (1) RETURNING n) SELECT * FROM x"),
    (
        0,
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3), x AS (DELETE FROM log RETURNING n) SELECT count(*) FROM r, x",
    ),
    (0, "WITH x AS (UPDATE log SET n = 2 RETURNING n) TABLE x"),
    (0, "EXPLAIN ANALYZE WITH x AS (INSERT INTO log VALUES (1) RETURNING n) SELECT * FROM x"),
    (0, "MERGE INTO log l USING t ON l.n = t.id WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN DO NOTHING"),
    (1, "WITH x AS MATERIALIZED (SELECT id FROM t) SELECT * FROM x"),
    (1, "SELECT 'for update', v AS \"for share\" FROM t"),
    (1, "SELECT substring(v from 1 for 2) FROM t"),
];

/// Made first: what the schema is made of.
const BEFORE: &str =
    "CREATE FUNCTION pair_wr(int, int) RETURNS int VOLATILE LANGUAGE sql AS 'SELECT $1 + $2'";

fn prepared() -> Result<(Cluster, Pgweir)> {
    let conf = "max_prepared_transactions = 5\n".to_owned();
    let cluster = Cluster::new(ClusterOptions { standbys: 1, conf, ..ClusterOptions::default() })?;
    let weir = Pgweir::start(&cluster, "consistency: eventual")?;
    cluster.setup(&format!("{BEFORE};{SCHEMA}"))?;
    weir.wait_on_standby("SELECT * FROM v_security")?;
    Ok((cluster, weir))
}

/// RW-01, RW-03, RW-06: what hides a write, and what only looks as if it did.
#[test]
fn rw_01_rw_03_rw_06_whatever_hides_a_write() -> Result<()> {
    let (cluster, weir) = prepared()?;
    run_all(&cluster, &weir, ROWS)?;
    // Once each: what is there may not be made twice.
    let mut client = weir.client()?;
    for sql in [
        "SELECT id INTO made FROM t",
        "SELECT id INTO TEMP made_temp FROM t",
        "CREATE TABLE made_as AS SELECT id FROM t",
    ] {
        client.simple(sql)?;
        assert_eq!((cluster.count_logged(0, sql)?, cluster.count_logged(1, sql)?), (1, 0), "{sql}");
    }
    Ok(())
}

/// RW-14: a cursor is where its transaction is, and so is what stands behind it.
#[test]
fn rw_14_cursors_over_a_transaction() -> Result<()> {
    let (cluster, weir) = prepared()?;
    for (begin, node) in [("BEGIN READ ONLY", "n1"), ("BEGIN", "n0")] {
        let mut client = weir.client()?;
        client.simple(begin)?;
        client.simple(
            "DECLARE c SCROLL CURSOR FOR SELECT id, current_setting('cluster_name') FROM t ORDER BY id",
        )?;
        assert_eq!(client.talk(&msgs().Q("FETCH 2 FROM c"))?.values(), ["1", node, "2", node]);
        assert_eq!(client.talk(&msgs().Q("MOVE 3 IN c"))?.to_string(), "C(MOVE 3) Z(T)");
        assert_eq!(client.talk(&msgs().PBE("FETCH c").S())?.values(), ["6", node]);
        assert_eq!(client.scalar(WHERE)?, node);
        assert_eq!(client.talk(&msgs().Q("FETCH BACKWARD 1 FROM c"))?.values(), ["5", node]);
        client.simple("CLOSE c")?;
        client.simple("COMMIT")?;
        assert_eq!(client.sqlstate_of("FETCH c")?, "34000");
    }
    let mut client = weir.client()?;
    client.simple("BEGIN")?;
    client.simple("DECLARE c CURSOR FOR SELECT id FROM t WHERE id = 1 FOR UPDATE")?;
    client.simple("FETCH c")?;
    client.simple("UPDATE t SET v = 'x' WHERE CURRENT OF c")?;
    client.simple("COMMIT")?;
    assert_eq!(cluster.scalar(0, "SELECT v FROM t WHERE id = 1")?, "x");
    assert_eq!(cluster.count_logged(1, "FOR UPDATE")?, 0);
    Ok(())
}

/// RW-21: two-phase commits are the primary's from the first word to the last.
#[test]
fn rw_21_two_phase_commits() -> Result<()> {
    let (cluster, weir) = prepared()?;
    let mut client = weir.client()?;
    for (number, (end, extended, rows)) in
        [("COMMIT", false, "1"), ("ROLLBACK", false, "1"), ("COMMIT", true, "2"), ("ROLLBACK", true, "2")]
            .iter()
            .enumerate()
    {
        let sent = |sql: &str| if *extended { msgs().PBE(sql).S() } else { msgs().Q(sql) };
        for sql in ["BEGIN", "INSERT INTO log VALUES (77)", &format!("PREPARE TRANSACTION 'x{number}'")] {
            let replies = client.talk(&sent(sql))?;
            ensure!(replies.error().is_none(), "{sql}: {replies}");
        }
        assert_eq!(client.scalar(WHERE)?, "n1", "reads are spread in between");
        assert_eq!(client.scalar("SELECT count(*) FROM pg_prepared_xacts")?, "1");
        let sql = format!("{end} PREPARED 'x{number}'");
        let replies = client.talk(&sent(&sql))?;
        ensure!(replies.to_string().ends_with(&format!("C({end} PREPARED) Z(I)")), "{sql}: {replies}");
        assert_eq!(cluster.scalar(0, "SELECT count(*) FROM log WHERE n = 77")?, *rows);
        assert_eq!(client.sqlstate_of(&sql)?, "42704");
    }
    // Of a READ ONLY transaction there is nothing to prepare, as on one server.
    client.simple("BEGIN READ ONLY")?;
    assert_eq!(client.scalar(WHERE)?, "n1");
    let prepared = client.talk(&msgs().Q("PREPARE TRANSACTION 'y'"))?;
    client.simple("ROLLBACK")?;
    assert_eq!(cluster.count_logged(1, "PREPARE TRANSACTION")?, 0, "{prepared}");
    client.sqlstate_of("ROLLBACK PREPARED 'y'")?;
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM pg_prepared_xacts")?, "0");
    Ok(())
}

/// RW-05, SR-01: what stands behind a write in one string, or in one go, sees it.
#[test]
fn rw_05_sr_01_a_read_behind_a_write_in_one_go() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 1, ..ClusterOptions::default() })?;
    let weir = Pgweir::start(&cluster, "")?;
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    weir.wait_on_standby("TABLE t")?;
    // Nothing shows there what is written from now on.
    cluster.sql(1, "SELECT pg_wal_replay_pause()")?;
    let mut client = weir.client()?;
    let (write, read) = ("INSERT INTO t VALUES (1)", "SELECT count(*) FROM t");
    for round in 0..5 {
        let expected = |n: usize| (5 * round + n).to_string();
        let one = client.talk(&msgs().Q(&format!("{write}; {read}")))?;
        assert_eq!(one.values(), [expected(1)], "one string");
        let one = client.talk(&msgs().PBE(write).PBE(read).S())?;
        assert_eq!(one.values(), [expected(2)], "one batch");
        let one = client.talk(&msgs().PBE(write).S().PBE(read).S())?;
        assert_eq!(one.values(), [expected(3)], "two batches");
        let one = client.talk(&msgs().Q(write).Q(read).PBE(read).S())?;
        assert_eq!(one.values(), [expected(4), expected(4)], "a string and a batch");
        let one = client.talk(&msgs().Q("BEGIN").PBE(write).S().Q(read).Q("COMMIT").PBE(read).S())?;
        assert_eq!(one.values(), [expected(5), expected(5)], "a transaction");
    }
    cluster.sql(1, "SELECT pg_wal_replay_resume()")?;
    Ok(())
}

/// What tells a client which kind of server it has come to; `docs/routing.md` says what.
#[test]
fn what_a_client_asks_to_know_its_server() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 1, ..ClusterOptions::default() })?;
    let port = harness::procs::free_port()?;
    let weir = Pgweir::start(&cluster, &format!("consistency: eventual\nread_only_port: {port}"))?;
    weir.wait_on_standby(WHERE)?;
    let mut main = weir.client()?;
    let mut reading = harness::RawClient::bench(port)?;
    for (sql, here, there) in [
        ("SHOW transaction_read_only", "off", "on"),
        ("SELECT current_setting('transaction_read_only')", "off", "on"),
        ("SELECT pg_catalog.current_setting('transaction_read_only')", "off", "on"),
        ("SELECT setting FROM pg_settings WHERE name = 'transaction_read_only'", "off", "on"),
        ("SHOW in_hot_standby", "off", "on"),
        ("SELECT current_setting('in_hot_standby')", "off", "on"),
        ("SELECT pg_is_in_recovery()", "f", "t"),
        // Where a standby is with its replay is for each node to say: here a standby's answer, on both ports.
        ("SELECT pg_last_wal_replay_lsn() IS NULL", "f", "f"),
    ] {
        for extended in [false, true] {
            let sent = if extended { msgs().PBE(sql).S() } else { msgs().Q(sql) };
            assert_eq!(main.talk(&sent)?.values(), [here], "{sql} on the main port");
            assert_eq!(reading.talk(&sent)?.values(), [there], "{sql} on the read-only port");
        }
    }
    main.scalar("SELECT inet_server_port() IS NOT NULL AND inet_server_addr() IS NOT NULL")?;
    Ok(())
}

/// SL-01, RW-01: search paths of roles, databases and start-up packets, of two users with one pool of nodes.
#[test]
fn sl_01_rw_01_search_paths_that_nobody_sets_by_set() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 1, ..ClusterOptions::default() })?;
    cluster.setup(
        "CREATE SCHEMA mine; GRANT USAGE ON SCHEMA mine TO PUBLIC;
         CREATE TABLE log(n int); GRANT ALL ON log TO PUBLIC;
         CREATE FUNCTION mine.lower(text) RETURNS text VOLATILE LANGUAGE sql AS 'INSERT INTO public.log VALUES (1); SELECT ''mine''::text';
         CREATE FUNCTION mine.st() RETURNS text VOLATILE LANGUAGE sql AS 'INSERT INTO public.log VALUES (1); SELECT ''mine''::text';
         CREATE FUNCTION public.st() RETURNS text STABLE LANGUAGE sql AS 'SELECT ''public''::text'",
    )?;
    let weir = Pgweir::start_with(
        &cluster,
        &PgweirOptions::yaml("consistency: eventual\ndefault_pool_size: 1").trusting(),
    )?;
    weir.wait_on_standby(WHERE)?;
    let answers = |login: &Login, expected: &str, what: &str| -> Result<()> {
        let mut client = login.connect(weir.port())?;

        for sql in ["SELECT lower('A')", "SELECT st()"] {
            for sent in [msgs().Q(sql), msgs().PBE(sql).S()] {
                let replies = client.talk(&sent)?;
                let expected = if expected == "mine" || sql.contains("st()") { expected } else { "a" };
                assert_eq!(replies.values(), [expected], "{what}: {sql}: {replies}");
            }
        }
        Ok(())
    };
    let (bench, other) = (Login::new("bench", "bench"), Login::new("other", "bench"));
    answers(&bench, "public", "nothing set")?;
    cluster.sql(0, "ALTER ROLE bench SET search_path = mine, pg_catalog, public")?;
    cluster.wait_replay()?;
    weir.admin("RECONNECT")?;
    answers(&bench, "mine", "ALTER ROLE")?;
    answers(&other, "public", "another role")?;
    answers(&bench, "mine", "ALTER ROLE, again")?;
    cluster.sql(
        0,
        "ALTER ROLE bench RESET ALL; ALTER DATABASE bench SET search_path = mine, pg_catalog, public",
    )?;
    cluster.wait_replay()?;
    weir.admin("RECONNECT")?;
    answers(&bench, "mine", "ALTER DATABASE")?;
    answers(&other, "mine", "ALTER DATABASE, another role")?;
    cluster.sql(0, "ALTER DATABASE bench RESET ALL")?;
    cluster.wait_replay()?;
    weir.admin("RECONNECT")?;
    answers(&bench, "public", "nothing set any more")?;
    let mine = bench.clone().with("search_path", "mine, pg_catalog, public");
    answers(&mine, "mine", "start-up packet")?;
    answers(&bench, "public", "without it")?;
    Ok(())
}
