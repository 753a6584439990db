//! Calls with nothing in the text that looks like one: by a dot, by types, by policies, by names that somebody else has
//! given to things of his own. What ran where is told by the servers' logs; the primary has weight 0.

use anyhow::{Result, ensure};
use harness::{RawClient, WHERE, msgs, rig, run_all};

const SCHEMA: &str = "
CREATE TABLE t(id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'one'), (2, 'two');
CREATE TABLE log(n int);
CREATE SEQUENCE sq;
CREATE SCHEMA mine;
CREATE FUNCTION wr(int) RETURNS int VOLATILE LANGUAGE sql AS 'INSERT INTO public.log VALUES (1); SELECT $1';
CREATE FUNCTION of_date(date) RETURNS int VOLATILE LANGUAGE sql AS 'INSERT INTO public.log VALUES (1); SELECT 1';
CREATE FUNCTION of_name(name) RETURNS int VOLATILE LANGUAGE sql AS 'INSERT INTO public.log VALUES (1); SELECT 1';
CREATE FUNCTION total(int) RETURNS int VOLATILE LANGUAGE sql AS 'INSERT INTO public.log VALUES (1); SELECT $1';
CREATE TABLE sums(total int);
CREATE FUNCTION check_wr(int) RETURNS boolean VOLATILE LANGUAGE sql AS 'INSERT INTO public.log VALUES (1); SELECT true';
CREATE DOMAIN checked AS int CHECK (check_wr(VALUE));
CREATE DOMAIN over_checked AS checked;
CREATE DOMAIN list AS checked[];
CREATE TYPE inner_pair AS (a checked, b int);
CREATE TYPE outer_pair AS (a inner_pair, b int);
CREATE TYPE with_list AS (a checked[]);
CREATE TYPE span AS RANGE (subtype = checked);
CREATE TABLE of_pairs(id int, p outer_pair);
CREATE TYPE harmless AS (a int);
CREATE FUNCTION takes(checked) RETURNS int STABLE LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION gives(int) RETURNS inner_pair STABLE LANGUAGE sql AS 'SELECT ROW($1, 1)::inner_pair';
CREATE FUNCTION takes_op(inner_pair, int) RETURNS int STABLE LANGUAGE sql AS 'SELECT 1';
CREATE OPERATOR <#> (LEFTARG = inner_pair, RIGHTARG = int, FUNCTION = takes_op);
CREATE VIEW v_field AS SELECT (id).wr FROM t;
CREATE VIEW v_locks AS SELECT locktype FROM pg_locks;
CREATE VIEW v_slots AS SELECT 1 FROM (SELECT slot_name FROM pg_catalog.pg_replication_slots) x;
CREATE VIEW v_activity AS SELECT pid FROM pg_stat_activity;
CREATE VIEW v_takes AS SELECT takes(1);
CREATE TABLE by_nextval(id int);
INSERT INTO by_nextval VALUES (1);
ALTER TABLE by_nextval ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON by_nextval FOR SELECT USING (nextval('sq') > 0);
CREATE TABLE by_xid(id int);
ALTER TABLE by_xid ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON by_xid USING (txid_current() > 0);
CREATE TABLE by_lock(id int);
INSERT INTO by_lock VALUES (1);
ALTER TABLE by_lock ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON by_lock USING (EXISTS (SELECT FROM t WHERE pg_try_advisory_xact_lock(t.id)));
CREATE VIEW v_policy AS SELECT * FROM by_lock;
CREATE TABLE by_setting(id int);
ALTER TABLE by_setting ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON by_setting USING (id = current_setting('app.id', true)::int);
CREATE TABLE by_write(id int);
ALTER TABLE by_write ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON by_write FOR INSERT WITH CHECK (wr(id) > 0);
CREATE POLICY q ON by_write FOR SELECT USING (true);
CREATE TABLE switched_off(id int);
CREATE POLICY p ON switched_off USING (wr(id) > 0);
CREATE FUNCTION mine.lower(text) RETURNS text VOLATILE LANGUAGE sql AS 'INSERT INTO public.log VALUES (1); SELECT $1';
CREATE FUNCTION mine.upper(int) RETURNS text STABLE LANGUAGE sql AS 'SELECT 1::text';
CREATE FUNCTION mine.plus(int, int) RETURNS int VOLATILE LANGUAGE sql AS 'INSERT INTO public.log VALUES (1); SELECT $1';
CREATE OPERATOR mine.+ (LEFTARG = int, RIGHTARG = int, FUNCTION = mine.plus);
CREATE UNLOGGED TABLE mine.pg_description(id int);
CREATE VIEW mine.pg_class AS SELECT public.wr(1);
GRANT USAGE ON SCHEMA mine TO bench;
GRANT ALL ON ALL TABLES IN SCHEMA public, mine TO bench;
GRANT ALL ON sq TO bench";

/// RW-01, RW-02, RW-08, RW-09: what calls a function without its name in front of a parenthesis.
#[test]
fn rw_01_calls_that_do_not_look_like_one() -> Result<()> {
    let (cluster, weir) = rig(1, "consistency: eventual")?;
    cluster.setup(SCHEMA)?;
    weir.wait_on_standby("SELECT * FROM v_activity")?;
    let rows = [
        // value.function
        (0, "SELECT (7::bigint).pg_advisory_xact_lock"),
        (0, "SELECT (x.id)::bigint, (x.id::bigint).pg_try_advisory_xact_lock FROM t x"),
        (0, "SELECT x.pg_try_advisory_xact_lock FROM generate_series(7::bigint, 8) x"),
        (0, "SELECT (ARRAY[7::bigint])[1].pg_advisory_xact_lock"),
        (0, "SELECT 1 FROM t ORDER BY (id).wr"),
        (0, "SELECT (id).wr FROM t"),
        (0, "SELECT (id).\"wr\" FROM t"),
        (0, "SELECT x.wr FROM generate_series(1, 2) AS x"),
        (0, "SELECT generate_series.wr FROM generate_series(1, 2)"),
        (0, "SELECT x.of_date FROM current_date x"),
        (0, "SELECT \"current_user\".of_name FROM current_user"),
        (0, "SELECT x.total FROM ROWS FROM (generate_series(1, 2)) AS x"),
        (0, "TABLE v_field"),
        (1, "SELECT x.total FROM sums x"),
        (1, "SELECT sums.total FROM sums WHERE sums.total > 0"),
        (1, "SELECT ('ABC'::text).initcap"),
        (1, "SELECT (v).upper FROM t"),
        // Types.
        (0, "SELECT checked('1')"),
        (0, "SELECT '{1}'::checked[]"),
        (0, "SELECT '{1}'::_checked"),
        (0, "SELECT 1::over_checked"),
        (0, "SELECT '{1}'::list"),
        (0, "SELECT '(1,2)'::inner_pair"),
        (0, "SELECT '(\"(1,2)\",3)'::outer_pair"),
        (0, "SELECT '({1})'::with_list"),
        (0, "SELECT '[1,2]'::span"),
        (0, "SELECT '{[1,2]}'::span_multirange"),
        (0, "SELECT jsonb_populate_record(NULL::of_pairs, '{\"p\": {\"a\": {\"a\": 1}}}')"),
        (0, "SELECT * FROM json_to_record('{\"a\": 1}') AS x(a checked)"),
        (0, "SELECT ('1').checked"),
        (0, "SELECT takes('1')"),
        (0, "SELECT takes(1::int)"),
        (0, "SELECT gives(1)"),
        (0, "SELECT '(1,2)' <#> 1"),
        (0, "TABLE v_takes"),
        (1, "SELECT '(1)'::harmless"),
        // Policies.
        (0, "SELECT * FROM by_nextval"),
        (0, "SELECT count(*) FROM by_xid"),
        (0, "SELECT id FROM t WHERE EXISTS (SELECT FROM by_lock)"),
        (0, "TABLE v_policy"),
        (0, "COPY by_nextval TO STDOUT"),
        (1, "SELECT * FROM by_setting"),
        (1, "SELECT * FROM by_write"),
        (1, "SELECT * FROM switched_off"),
        // Views over views of the system.
        (0, "SELECT * FROM v_locks"),
        (0, "SELECT * FROM v_slots"),
        (1, "SELECT * FROM v_activity"),
        // The last: who advances a sequence keeps the backend for a while.
        (0, "SELECT ('sq'::regclass).nextval"),
    ];
    run_all(&cluster, &weir, &rows)
}

/// The node that runs it, by the simple and by the extended protocol.
fn places(client: &mut RawClient, what: &str) -> Result<Vec<String>> {
    let sql = format!("{WHERE} {what}");
    Ok(client.talk(&msgs().Q(&sql).PBE(&sql).S())?.values())
}

/// RW-01, SL-01: things of users' own that have the names of built-in ones, by every way to a search path.
#[test]
fn rw_01_names_that_shadow_built_in_ones() -> Result<()> {
    let (cluster, weir) = rig(1, "consistency: eventual")?;
    cluster.setup(SCHEMA)?;
    weir.wait_on_standby("SELECT * FROM v_activity")?;
    let paths = [
        "SET search_path = mine, pg_catalog",
        "SELECT set_config('search_path', 'mine, pg_catalog', false)",
        "BEGIN READ ONLY; SET LOCAL search_path = mine, pg_catalog",
        "BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ; SET LOCAL search_path = mine, pg_catalog",
        "SELECT 1",
    ];
    for path in paths {
        let mut client = weir.client()?;
        for statement in path.split("; ") {
            client.simple(statement)?;
        }
        for what in ["WHERE lower('x') = 'x'", "WHERE 1 + 1 > 0", "FROM pg_class LIMIT 1"] {
            // On the standby the unlogged table and the write would be errors; a transaction that is bound is refused.
            let answer = client.talk(&msgs().Q(&format!("{WHERE} {what}")))?;
            let code = answer.error().map(|error| error.get('C').to_owned());
            ensure!(code.is_none() || code.as_deref() == Some("25006"), "{path}: {what}: {answer}");
            if code.is_some() {
                client.simple("ROLLBACK; BEGIN READ ONLY; SET LOCAL search_path = mine, pg_catalog")?;
            }
        }
    }
    let mut client = weir.client()?;
    client.simple("SET search_path = mine, pg_catalog")?;
    for (what, node) in [
        ("WHERE lower('x') = 'x'", "n0"),
        ("WHERE 1 + 1 > 0", "n0"),
        ("FROM pg_class LIMIT 1", "n0"),
        ("FROM pg_catalog.pg_class LIMIT 1", "n1"),
        ("WHERE upper('x') = 'X'", "n1"),
        ("WHERE pg_catalog.lower('X') = 'x'", "n1"),
    ] {
        assert_eq!(places(&mut client, what)?, [node, node], "{what}");
    }
    Ok(())
}
