//! State that statements leave in a session with nothing in their texts to show for it: in functions, triggers, DO blocks.
//! Two clients share one backend: the owner keeps what it made, the other one never sees it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::{Cluster, Pgweir, RawClient, Reply, eventually, msgs, rig};

const SECONDS: Duration = Duration::from_secs(5);
const ONE: &str = "default_pool_size: 1\nquery_wait_timeout: 10s\nlog_level: debug";

const SCHEMA: &str = "
CREATE TABLE t(id int, v text);
CREATE TABLE watched(id int);
CREATE TABLE cascades(id int PRIMARY KEY);
INSERT INTO cascades VALUES (1);
CREATE FUNCTION hidden(sql text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN EXECUTE sql; RETURN 1; END $$;
CREATE FUNCTION temp_inside() RETURNS int LANGUAGE plpgsql AS
  $$ BEGIN CREATE TEMP TABLE IF NOT EXISTS inside(a int); INSERT INTO inside VALUES (7); RETURN 1; END $$;
CREATE FUNCTION no_temp_inside() RETURNS int LANGUAGE plpgsql AS $$ BEGIN DISCARD TEMP; RETURN 1; END $$;
CREATE FUNCTION over() RETURNS int LANGUAGE sql AS 'SELECT temp_inside()';
CREATE FUNCTION over_over() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT over()); END $$;
CREATE FUNCTION locks(k int) RETURNS text LANGUAGE sql AS $$ SELECT pg_advisory_lock(k)::text $$;
CREATE FUNCTION unlocks(k int) RETURNS bool LANGUAGE sql AS $$ SELECT pg_advisory_unlock(k) $$;
CREATE FUNCTION hears() RETURNS int LANGUAGE plpgsql AS $$ BEGIN LISTEN inside; RETURN 1; END $$;
CREATE FUNCTION sets(v text) RETURNS text LANGUAGE sql AS $$ SELECT set_config('work_mem', v, false) $$;
CREATE FUNCTION sets_own(v text) RETURNS text LANGUAGE sql AS $$ SELECT set_config('app.tenant', v, false) $$;
CREATE FUNCTION sets_any(n text, v text) RETURNS text LANGUAGE sql AS $$ SELECT set_config(n, v, false) $$;
CREATE FUNCTION sets_local(v text) RETURNS text LANGUAGE sql AS $$ SELECT set_config('work_mem', v, true) $$;
CREATE FUNCTION rises() RETURNS text LANGUAGE sql AS $$ SELECT set_config('role', 'boss', false) $$;
CREATE PROCEDURE keeps() LANGUAGE plpgsql AS $$ BEGIN CREATE TEMP TABLE inside AS SELECT 7 AS a; END $$;
CREATE FUNCTION quiet(n int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT count(*) FROM t); END $$;
CREATE FUNCTION on_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM temp_inside(); RETURN NULL; END $$;
CREATE TRIGGER x AFTER INSERT ON watched FOR EACH ROW EXECUTE FUNCTION on_write();
CREATE TABLE cascaded(id int REFERENCES cascades ON DELETE CASCADE);
INSERT INTO cascaded VALUES (1);
CREATE TRIGGER x AFTER DELETE ON cascaded FOR EACH ROW EXECUTE FUNCTION on_write();
CREATE VIEW seen AS SELECT over() AS a;
CREATE ROLE boss;
GRANT boss TO bench;
GRANT ALL ON ALL TABLES IN SCHEMA public TO bench;
GRANT SELECT ON seen TO bench;
GRANT CREATE ON SCHEMA public TO bench";

const TEMP: &str = "SELECT coalesce(to_regclass('pg_temp.inside')::text, 'none')";
const LOCKS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
const HELD: &str = "SELECT count(*) FROM pg_cursors WHERE is_holdable";
const HEARD: &str = "SELECT count(*) FROM pg_listening_channels()";
const MADE: &str = "SELECT count(*) FROM pg_prepared_statements WHERE from_sql";

fn two(yaml: &str) -> Result<(Cluster, Pgweir, RawClient, RawClient)> {
    let (cluster, weir) = rig(0, yaml)?;
    cluster.setup(SCHEMA)?;
    let (mut one, other) = (weir.client()?, weir.client()?);
    wait_known(&mut one, "quiet(1)")?;
    Ok((cluster, weir, one, other))
}

/// The catalog has been read behind the set-up: the database is not asked for what `call` leaves any more.
fn wait_known(client: &mut RawClient, call: &str) -> Result<()> {
    let explain = format!("PGWEIR EXPLAIN SELECT {call}");
    let mut reason = || client.simple(&explain)?.get(0, "reason");
    let known = || reason().is_ok_and(|reason| !reason.starts_with("unknown"));
    ensure!(eventually(SECONDS, known), "{call} is not known");
    Ok(())
}

fn pins(weir: &Pgweir) -> Result<Vec<String>> {
    weir.admin("SHOW PINS")?
        .iter()
        .map(|row| row.get("reason").cloned().with_context(|| format!("no reason in {row:?}")))
        .collect()
}

fn wait_pins(weir: &Pgweir, wanted: &[&str]) -> Result<()> {
    let fits = || pins(weir).is_ok_and(|found| found == wanted);
    ensure!(eventually(SECONDS, fits), "held: {:?} instead of {wanted:?}", pins(weir));
    Ok(())
}

/// What makes it, the reason of the pin, what shows it (a query, its answers while it is there and when it is not), and what
/// undoes it.
type Made<'a> = (&'a str, &'a str, (&'a str, &'a str, &'a str), &'a str);

/// SL-05: state that cannot be moved, made out of sight: it holds its owner, by the simple and by the extended protocol, and
/// goes back when it is undone, out of sight or not. Nobody else finds it.
#[test]
fn sl_05_state_that_is_made_out_of_sight_holds_its_owner() -> Result<()> {
    let (_cluster, weir, mut one, mut other) = two(ONE)?;
    let rows: &[Made<'_>] = &[
        ("SELECT temp_inside()", "temp_table", (TEMP, "inside", "none"), "DROP TABLE inside"),
        ("SELECT temp_inside()", "temp_table", (TEMP, "inside", "none"), "SELECT no_temp_inside()"),
        ("SELECT over_over()", "temp_table", (TEMP, "inside", "none"), "DISCARD TEMP"),
        ("SELECT * FROM seen", "temp_table", (TEMP, "inside", "none"), "DISCARD ALL"),
        ("CALL keeps()", "temp_table", (TEMP, "inside", "none"), "DROP TABLE inside"),
        ("INSERT INTO watched VALUES (1)", "temp_table", (TEMP, "inside", "none"), "DROP TABLE inside"),
        ("DELETE FROM cascades", "temp_table", (TEMP, "inside", "none"), "DROP TABLE inside"),
        (
            "DO $$BEGIN CREATE TEMP VIEW inside AS SELECT 1; END$$",
            "temp_table",
            (TEMP, "inside", "none"),
            "DISCARD TEMP",
        ),
        ("SELECT locks(7)", "advisory_lock", (LOCKS, "1", "0"), "SELECT unlocks(7)"),
        ("SELECT locks(7)", "advisory_lock", (LOCKS, "1", "0"), "SELECT pg_advisory_unlock(7)"),
        ("SELECT hears()", "listen", (HEARD, "1", "0"), "UNLISTEN *"),
        ("SELECT hidden('LISTEN x')", "listen", (HEARD, "1", "0"), "SELECT hidden('UNLISTEN x')"),
        (
            "SELECT hidden('PREPARE p AS SELECT 1')",
            "sql_prepare",
            (MADE, "1", "0"),
            "SELECT hidden('DEALLOCATE p')",
        ),
        (
            "SELECT hidden('DECLARE c CURSOR WITH HOLD FOR SELECT 1')",
            "hold_cursor",
            (HELD, "1", "0"),
            "CLOSE c",
        ),
    ];
    for (makes, reason, (seen, there, gone), undoes) in rows {
        for extended in [false, true] {
            let sent = if extended { msgs().PBE(makes).S() } else { msgs().Q(makes) };
            let said = one.talk(&sent)?;
            ensure!(said.error().is_none(), "{makes}: {said}");
            wait_pins(&weir, &[reason]).with_context(|| (*makes).to_owned())?;
            for _ in 0..2 {
                assert_eq!(one.scalar(seen)?, *there, "{makes}: lost");
            }
            other.send(&msgs().Q(seen))?;
            one.simple(undoes).with_context(|| format!("{makes}: {undoes}"))?;
            assert_eq!(other.read_ready(1)?.values(), [*gone], "{makes}: seen by another after {undoes}");
            wait_pins(&weir, &[])?;
            if makes.starts_with("DELETE") {
                one.simple("INSERT INTO cascades VALUES (1); INSERT INTO cascaded VALUES (1)")?;
            }
        }
    }
    Ok(())
}

/// SL-07: settings that are made out of sight, and that no server reports, are their client's from then on.
#[test]
fn sl_07_settings_out_of_sight_stay_with_their_client() -> Result<()> {
    let (_cluster, weir, mut one, mut other) = two(ONE)?;
    let rows: &[(&str, &str, &str)] = &[
        ("SELECT sets('9MB')", "work_mem", "9MB"),
        ("DO $$BEGIN PERFORM set_config('work_mem', '11MB', false); END$$", "work_mem", "11MB"),
        ("SELECT sets_own('a')", "app.tenant", "a"),
        ("SELECT hidden('SET search_path = public, pg_catalog')", "search_path", "public, pg_catalog"),
        ("SELECT hidden('SET statement_timeout = ''1min''')", "statement_timeout", "1min"),
        ("DO $$BEGIN SET app.of_block = 'it''s'; END$$", "app.of_block", "it's"),
        ("SELECT rises()", "role", "boss"),
    ];
    for (sets, name, value) in rows {
        let show = format!("SELECT coalesce(current_setting('{name}', true), '')");
        let default = other.scalar(&show)?;
        one.simple(sets)?;
        for _ in 0..2 {
            assert_eq!(other.scalar(&show)?, default, "{sets}: seen by another");
            assert_eq!(one.scalar(&show)?, *value, "{sets}: lost");
        }
        wait_pins(&weir, &[])?;
        one.simple(&format!("RESET {name}"))?;
        assert_eq!(one.scalar(&show)?, default, "{sets}: not reset");
    }
    // Over the client's own, and undone with the transaction.
    one.simple("SET work_mem = '5MB'")?;
    one.simple("SELECT sets('6MB')")?;
    assert_eq!((other.scalar("SHOW work_mem")?, one.scalar("SHOW work_mem")?), ("4MB".into(), "6MB".into()));
    one.simple("BEGIN; SET work_mem = '5MB'; SELECT sets('7MB'); COMMIT")?;
    assert_eq!((other.scalar("SHOW work_mem")?, one.scalar("SHOW work_mem")?), ("4MB".into(), "7MB".into()));
    for sql in ["BEGIN", "SELECT sets('8MB')", "ROLLBACK", "SELECT sets_local('8MB')"] {
        one.simple(sql)?;
    }
    assert_eq!((other.scalar("SHOW work_mem")?, one.scalar("SHOW work_mem")?), ("4MB".into(), "7MB".into()));
    Ok(())
}

/// SL-07: where nobody can tell which parameters are set, their owner is held, or they are gone; nobody else sees them.
#[test]
fn sl_07_settings_of_unknown_names_are_nobody_elses() -> Result<()> {
    let (_cluster, weir, mut one, mut other) = two(ONE)?;
    let show = "SELECT coalesce(current_setting('app.x', true), '')";
    one.simple("SELECT sets_any('app.x', 'mine')")?;
    wait_pins(&weir, &["unknown"])?;
    assert_eq!(one.scalar(show)?, "mine");
    other.send(&msgs().Q(show))?;
    one.simple("DISCARD ALL")?;
    assert_eq!(other.read_ready(1)?.values(), [""]);
    one.simple("SELECT hidden(format('SET %s = %L', 'app.x', 'mine'))")?;
    assert_eq!(other.scalar(show)?, "");
    wait_pins(&weir, &[])
}

/// SL-07: a function that was made a moment ago, one with another body since, and a new trigger.
#[test]
fn sl_07_what_was_made_a_moment_ago() -> Result<()> {
    let (cluster, weir, mut one, mut other) = two(ONE)?;
    let show = "SELECT coalesce(current_setting('app.y', true), '')";
    for round in 0..3 {
        one.simple(
            "CREATE FUNCTION fresh() RETURNS text LANGUAGE sql AS $$ SELECT set_config('app.y', 'mine', false) $$",
        )?;
        one.simple("SELECT fresh()")?;
        assert_eq!((other.scalar(show)?, one.scalar(show)?), (String::new(), "mine".to_owned()), "{round}");
        one.simple("CREATE OR REPLACE FUNCTION fresh() RETURNS text LANGUAGE sql AS 'SELECT over()::text'")?;
        one.simple("SELECT fresh()")?;
        wait_pins(&weir, &["temp_table"])?;
        one.simple("DROP TABLE inside")?;
        assert_eq!(other.scalar(TEMP)?, "none");
        one.simple("DROP FUNCTION fresh(); RESET app.y")?;
    }
    one.simple("CREATE TABLE own(id int)")?;
    one.simple("CREATE TRIGGER x AFTER INSERT ON own FOR EACH ROW EXECUTE FUNCTION on_write()")?;
    one.simple("INSERT INTO own VALUES (1)")?;
    wait_pins(&weir, &["temp_table"])?;
    one.simple("DROP TABLE inside")?;
    // Made where nobody looked: a name that is not known may leave anything.
    cluster.setup("CREATE FUNCTION elsewhere() RETURNS int LANGUAGE sql AS 'SELECT temp_inside()'")?;
    one.simple("SELECT elsewhere()")?;
    wait_pins(&weir, &["temp_table"])?;
    drop(one);
    ensure!(eventually(SECONDS, || other.scalar(TEMP).is_ok_and(|found| found == "none")));
    Ok(())
}

/// What leaves nothing holds nobody, and what is known to leave nothing is not asked for.
#[test]
fn innocent_functions_hold_nobody() -> Result<()> {
    let (cluster, weir, mut one, mut other) = two(ONE)?;
    for sql in [
        "SELECT hidden('INSERT INTO t VALUES (1)')",
        "DO $$ BEGIN PERFORM 1; END $$",
        "SELECT sets_local('9MB')",
        "SELECT quiet(1)",
        "INSERT INTO t VALUES (1)",
        "BEGIN; SELECT temp_inside(); ROLLBACK",
        "SET standard_conforming_strings = on",
        "DO $$ BEGIN PERFORM 2; END $$",
    ] {
        let pid = one.scalar("SELECT pg_backend_pid()")?;
        one.simple(sql)?;
        assert_eq!(other.scalar("SELECT pg_backend_pid()")?, pid, "{sql}");
        wait_pins(&weir, &[])?;
    }
    let asked = || Ok::<_, anyhow::Error>(cluster.log(0)?.matches("pg_listening_channels()").count());
    let before = asked()?;
    for _ in 0..5 {
        one.simple("SELECT quiet(1)")?;
        one.simple("INSERT INTO t VALUES (1); UPDATE t SET v = 'x'; DELETE FROM t")?;
        one.talk(&msgs().PBE("SELECT count(*) FROM t").S())?;
    }
    assert_eq!(asked()?, before, "asked for nothing");
    Ok(())
}

/// A trigger that fills the name of a table into a text (audits and partitions are made so) leaves what some table leaves to who
/// writes it: nothing, until one does.
#[test]
fn sl_05_texts_that_only_fill_in_names() -> Result<()> {
    let (cluster, weir) = rig(0, ONE)?;
    cluster.setup(
        "CREATE TABLE t(id int); CREATE TABLE log(id int);
         CREATE FUNCTION notes() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN EXECUTE format('INSERT INTO %I VALUES ($1)', TG_ARGV[0]) USING NEW.id; RETURN NEW; END $$;
         CREATE TRIGGER x BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION notes('log');
         CREATE FUNCTION hears() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN LISTEN inside; RETURN NEW; END $$;
         GRANT ALL ON t, log TO bench",
    )?;
    let (mut one, mut other) = (weir.client()?, weir.client()?);
    wait_known(&mut one, "count(*) FROM log")?;
    let asked = || Ok::<_, anyhow::Error>(cluster.log(0)?.matches("pg_listening_channels()").count());
    let before = asked()?;
    for n in 0..5 {
        one.simple(&format!("INSERT INTO t VALUES ({n})"))?;
    }
    assert_eq!(other.scalar("SELECT count(*) FROM log")?, "5");
    assert_eq!(asked()?, before, "asked for nothing");
    cluster.sql(0, "CREATE TRIGGER y BEFORE INSERT ON log FOR EACH ROW EXECUTE FUNCTION hears()")?;
    // What was made at the node itself is known after a while; a definition that passes makes it known at once.
    one.simple("CREATE TEMP TABLE makes_it_known(); DROP TABLE makes_it_known")?;
    let held = || {
        one.simple("INSERT INTO t VALUES (7)").is_ok() && pins(&weir).is_ok_and(|found| found == ["listen"])
    };
    ensure!(eventually(SECONDS, held), "not held: {:?}", pins(&weir));
    Ok(())
}

/// PREPARE and EXECUTE, Parse and Bind, and several statements in one string run it as well.
#[test]
fn sl_05_every_way_to_run_it() -> Result<()> {
    let (_cluster, weir, mut one, mut other) = two(ONE)?;
    one.simple("PREPARE p AS SELECT temp_inside()")?;
    one.talk(&msgs().P("s", "SELECT temp_inside()").S())?;
    for sent in [
        msgs().Q("EXECUTE p"),
        msgs().Q("EXPLAIN (ANALYZE) EXECUTE p"),
        msgs().B("", "s", &[]).E().S(),
        msgs().Q("SELECT 1; SELECT temp_inside(); SELECT 2"),
        msgs().PBE("BEGIN").S().PBE("SELECT temp_inside()").S().PBE("COMMIT").S(),
        msgs().Q("BEGIN; SELECT 1 / 0").Q("ROLLBACK").Q("SELECT temp_inside()"),
        msgs().Q("DECLARE c CURSOR WITH HOLD FOR SELECT temp_inside()").Q("CLOSE c"),
    ] {
        one.talk(&sent)?;
        wait_pins(&weir, &["temp_table"]).with_context(|| format!("{sent:?}"))?;
        assert_eq!(one.scalar("SELECT a FROM inside LIMIT 1")?, "7");
        one.simple("DROP TABLE inside")?;
        assert_eq!(other.scalar(TEMP)?, "none");
    }
    Ok(())
}

/// A client that is held by LISTEN out of sight hears of it, and of what comes while its backend is asked.
#[test]
fn sl_05_a_listener_out_of_sight_hears() -> Result<()> {
    let (cluster, _weir, mut one, _other) = two(ONE)?;
    one.simple("SELECT hears()")?;
    cluster.sql(0, "NOTIFY inside, 'x'")?;
    let heard = one.next()?.context("closed")?;
    ensure!(matches!(heard, Reply::Notification { .. }), "{heard:?}");
    Ok(())
}

/// A `statement_timeout` of the client's own does not end the question; a cancel request that comes late does not either.
#[test]
fn a_question_is_not_cut_short() -> Result<()> {
    let (_cluster, weir, mut one, mut other) = two(ONE)?;
    one.simple("SET statement_timeout = '1ms'")?;
    let mut kept = 0;
    for _ in 0..20 {
        // The statement itself may take too long.
        if one.simple("SELECT sets_own('mine')").is_ok() {
            kept += 1;
            let mine = one.simple("SELECT current_setting('app.tenant', true)");
            ensure!(mine.is_err() || mine.is_ok_and(|rows| rows.first_column() == ["mine"]), "lost");
        }
        assert_eq!(other.scalar("SELECT coalesce(current_setting('app.tenant', true), '')")?, "");
    }
    ensure!(kept > 0, "never ran");
    assert_eq!(other.scalar("SHOW statement_timeout")?, "0");
    wait_pins(&weir, &[])
}

/// `session_state` says what becomes of it: dropped with a notice, or without one; settings are kept either way.
#[test]
fn session_state_holds_for_what_is_found() -> Result<()> {
    for (state, told) in [("reject", true), ("ignore", false)] {
        let (_cluster, weir, mut one, mut other) = two(&format!("{ONE}\nsession_state: {state}"))?;
        for (makes, seen, gone) in [
            ("SELECT temp_inside()", TEMP, "none"),
            ("SELECT locks(7)", LOCKS, "0"),
            ("SELECT hears()", HEARD, "0"),
            ("SELECT sets_any('app.x', 'mine')", "SELECT coalesce(current_setting('app.x', true), '')", ""),
        ] {
            one.simple("SET application_name = 'kept'")?;
            one.simple("SELECT sets('9MB')")?;
            one.send(&msgs().Q(makes))?;
            let mut said = one.read_ready(1)?.to_string();
            assert_eq!(other.scalar(seen)?, gone, "{state}: {makes}");
            let after = one.talk(&msgs().Q(seen))?;
            said.push_str(&after.to_string());
            assert_eq!(after.values(), [gone], "{state}: {makes}");
            assert_eq!(said.contains('N'), told, "{state}: {makes}: {said}");
            assert_eq!(
                (one.scalar("SHOW application_name")?, one.scalar("SHOW work_mem")?),
                ("kept".into(), "9MB".into())
            );
            wait_pins(&weir, &[])?;
        }
    }
    Ok(())
}

/// Who leaves at once takes it along.
#[test]
fn sl_05_what_a_client_leaves_behind_is_gone() -> Result<()> {
    let (_cluster, weir, mut one, mut other) = two(ONE)?;
    for round in 0..12 {
        one.send(&msgs().Q("SELECT temp_inside(), locks(7), sets_own('mine'), hears()").X())?;
        if round % 2 == 0 {
            one.reset()?;
        } else {
            drop(one);
        }
        let clean = |other: &mut RawClient| -> Result<bool> {
            Ok(other.scalar(TEMP)? == "none"
                && other.scalar(LOCKS)? == "0"
                && other.scalar(HEARD)? == "0"
                && other.scalar("SELECT coalesce(current_setting('app.tenant', true), '')")?.is_empty())
        };
        ensure!(clean(&mut other)?, "round {round}");
        one = weir.client()?;
    }
    Ok(())
}
