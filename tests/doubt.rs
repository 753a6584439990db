//! What somebody else has just made at the node itself, in a transaction that is bound to a standby: it is looked up
//! before it runs, and what would go wrong there does not run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Cluster, Msgs, Pgweir, RawClient, WHERE, eventually, msgs, rig};

const LOCKS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
/// What the catalog is asked for.
const QUESTIONS: &str = "SELECT concat_ws(',', current_database(), count(*)";

/// How long a statement waits that names what is not known.
const LATER: Duration = Duration::from_millis(250);

/// One shows one snapshot, the other has a savepoint on the standby.
const BOUND: [&[&str]; 2] =
    [&["BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ"], &["BEGIN READ ONLY", WHERE, "SAVEPOINT a"]];

/// The catalog is not looked at unless something asks for it.
fn prepared() -> Result<(Cluster, Pgweir)> {
    let (cluster, weir) = rig(1, "consistency: eventual\ncatalog_check_period: 1h")?;
    cluster.setup(
        "CREATE TABLE t(id int); INSERT INTO t VALUES (1); GRANT ALL ON t TO bench;
         CREATE FUNCTION known() RETURNS int STABLE LANGUAGE sql AS 'SELECT 7'",
    )?;
    weir.wait_on_standby("SELECT known() FROM t")?;
    Ok((cluster, weir))
}

fn bound(weir: &Pgweir, how: &[&str]) -> Result<RawClient> {
    let mut client = weir.client()?;
    how.iter().try_for_each(|sql| client.simple(sql).map(drop))?;
    assert_eq!(client.scalar(WHERE)?, "n1");
    Ok(client)
}

fn sent(sql: &str, extended: bool) -> Msgs {
    if extended { msgs().PBE(sql).S() } else { msgs().Q(sql) }
}

/// RW-01, RW-08: nothing that takes a lock runs there, whatever it is and however it comes.
#[test]
fn rw_01_rw_08_what_was_made_elsewhere_does_not_run_on_the_wrong_node() -> Result<()> {
    let (cluster, weir) = prepared()?;
    let statements = [
        "SELECT f_NEW()",
        "SELECT id FROM t WHERE public.f_NEW() = 1",
        "TABLE v_NEW",
        "SELECT * FROM t, v_NEW",
        "COPY v_NEW TO STDOUT",
        "COPY (SELECT f_NEW()) TO STDOUT",
        "DECLARE c CURSOR FOR SELECT f_NEW()",
        "EXPLAIN ANALYZE SELECT * FROM v_NEW",
        "SELECT 1; SELECT f_NEW()",
        "SELECT 1 +++NEW 2",
    ];
    let mut pluses = String::new();
    for (number, template) in statements.into_iter().enumerate() {
        for (extended, how) in [(false, BOUND[0]), (true, BOUND[1]), (false, BOUND[1]), (true, BOUND[0])] {
            if extended && template.contains(';') {
                continue;
            }
            let mut client = bound(&weir, how)?;
            let name = format!("{number}_{}_{}", how.len(), u8::from(extended));
            // An operator has no digits in its name.
            pluses.push('+');
            cluster.setup(&format!(
                "CREATE FUNCTION f_{name}() RETURNS int LANGUAGE sql AS 'SELECT pg_advisory_lock(7); SELECT 1';
                 CREATE FUNCTION o_{name}(int, int) RETURNS int LANGUAGE sql AS 'SELECT pg_advisory_lock(7); SELECT 1';
                 CREATE OPERATOR {pluses}* (LEFTARG = int, RIGHTARG = int, FUNCTION = o_{name});
                 CREATE VIEW v_{name} AS SELECT f_{name}() AS a; GRANT ALL ON v_{name} TO bench"
            ))?;
            let sql = template.replace("+++NEW", &format!("{pluses}*")).replace("NEW", &name);
            let expected = if extended { "1 E(25006) Z(E)" } else { "E(25006) Z(E)" };
            assert_eq!(client.talk(&sent(&sql, extended))?.to_string(), expected, "{sql}");
            assert_eq!(cluster.scalar(1, LOCKS)?, "0", "a lock on the standby: {sql}");
            assert_eq!(client.sqlstate_of("SELECT 1")?, "25P02", "{sql}");
            client.simple("ROLLBACK")?;
        }
    }
    Ok(())
}

/// What turns out to do no harm runs where it is, and what is nowhere gets the server's own words.
#[test]
fn what_does_no_harm_runs_and_what_is_nowhere_fails_as_on_a_server() -> Result<()> {
    let (cluster, weir) = prepared()?;
    for (number, how) in BOUND.into_iter().enumerate() {
        for extended in [false, true] {
            let name = format!("{number}_{}", u8::from(extended));
            let mut client = bound(&weir, how)?;
            cluster.setup(&format!(
                "CREATE FUNCTION g_{name}() RETURNS text STABLE LANGUAGE sql AS $$ {WHERE} $$;
                 CREATE VIEW w_{name} AS SELECT g_{name}() AS a; GRANT ALL ON w_{name} TO bench"
            ))?;
            for sql in [format!("SELECT g_{name}()"), format!("TABLE w_{name}")] {
                let replies = client.talk(&sent(&sql, extended))?;
                assert_eq!(replies.values(), ["n1"], "{sql}: {replies}");
            }
            for (sql, code, at) in [
                (format!("SELECT  nowhere_{name}()"), "42883", "9"),
                (format!("SELECT * FROM nothing_{name}"), "42P01", "15"),
                (format!("EXPLAIN SELECT nowhere_{name}()"), "42883", "16"),
                (format!("SELECT nowhere_{name}("), "42601", ""),
            ] {
                client.simple("SAVEPOINT b")?;
                let replies = client.talk(&sent(&sql, extended))?;
                assert_eq!(replies.to_string(), format!("E({code}) Z(E)"), "{sql}");
                let fields = replies.error().context("no error")?;
                ensure!(at.is_empty() || fields.get('P') == at, "{sql}: position {}", fields.get('P'));
                client.simple("ROLLBACK TO b")?;
            }
            client.simple("COMMIT")?;
        }
    }
    Ok(())
}

/// Statements that were prepared before, and calls without a text.
#[test]
fn rw_01_prepared_statements_and_function_calls() -> Result<()> {
    let (cluster, weir) = prepared()?;
    let mut client = bound(&weir, BOUND[0])?;
    cluster.setup(
        "CREATE FUNCTION late() RETURNS int LANGUAGE sql AS 'SELECT pg_advisory_lock(7); SELECT 1';
         CREATE FUNCTION later() RETURNS int LANGUAGE sql AS 'SELECT pg_advisory_lock(7); SELECT 1'",
    )?;
    // It is analysed on the standby, and does not run there.
    let prepared = client.talk(&msgs().P("s", "SELECT late()").D('S', "s").S())?.to_string();
    assert_eq!(prepared, "1 t T Z(T)");
    let run = client.talk(&msgs().B("", "s", &[]).E().PBE("SELECT 1").S())?.to_string();
    assert_eq!(run, "E(25006) Z(E)");
    client.simple("ROLLBACK")?;
    // Outside, and as the first of a transaction, it runs where it belongs.
    assert_eq!(client.talk(&msgs().B("", "s", &[]).E().S())?.values(), ["1"]);
    assert_eq!(cluster.scalar(0, LOCKS)?, "1");
    client.simple("SELECT pg_advisory_unlock_all()")?;

    let mut client = bound(&weir, BOUND[1])?;
    let oid = cluster.scalar(0, "SELECT 'later'::regproc::oid")?.parse()?;
    assert_eq!(client.talk(&msgs().F(oid))?.to_string(), "E(25006) Z(E)");
    client.simple("ROLLBACK")?;
    client.simple("PREPARE p AS SELECT later()")?;
    client.simple("DEALLOCATE p")?;
    // PREPARE itself leaves what later runs anywhere.
    let mut client = bound(&weir, BOUND[0])?;
    cluster
        .setup("CREATE FUNCTION last() RETURNS int LANGUAGE sql AS 'SELECT pg_advisory_lock(7); SELECT 1'")?;
    let made = client.talk(&msgs().Q("SAVEPOINT b").Q("PREPARE q AS SELECT last()").Q("ROLLBACK TO b"))?;
    // Refused as what it would run is, so that it is not there.
    assert_eq!(made.to_string(), "C(SAVEPOINT) Z(T) E(25006) Z(E) C(ROLLBACK) Z(T)");
    assert_eq!(client.talk(&msgs().Q("EXECUTE q"))?.to_string(), "E(26000) Z(E)");
    assert_eq!(cluster.scalar(1, LOCKS)?, "0");
    Ok(())
}

/// EP-16: sent ahead, each answer keeps its place, and nothing behind a refusal runs.
#[test]
fn ep_16_answers_keep_their_order_around_a_doubt() -> Result<()> {
    let (cluster, weir) = prepared()?;
    let mut client = weir.client()?;
    for round in 0..6 {
        let name = format!("h_{round}");
        let volatility = if round % 2 == 0 { "STABLE" } else { "VOLATILE" };
        cluster.setup(&format!(
            "CREATE FUNCTION {name}() RETURNS int {volatility} LANGUAGE sql AS 'SELECT {round}'"
        ))?;
        let call = format!("SELECT {name}()");
        let all = msgs().Q(BOUND[0][0]).Q("SELECT 'a'").PBE("SELECT 'b'").PBE(&call).PBE("SELECT 'c'").S();
        let all = all.Q("SELECT 'd'").Q(&call).Q("ROLLBACK").Q("SELECT 'e'");
        let replies = client.talk(&all)?.to_string();
        let expected = if round % 2 == 0 {
            format!(
                "C(BEGIN) Z(T) T D(a) C(SELECT 1) Z(T) 1 2 D(b) C(SELECT 1) 1 2 D({round}) C(SELECT 1) 1 2 D(c) \
                 C(SELECT 1) Z(T) T D(d) C(SELECT 1) Z(T) T D({round}) C(SELECT 1) Z(T) C(ROLLBACK) Z(I) T D(e) \
                 C(SELECT 1) Z(I)"
            )
        } else {
            "C(BEGIN) Z(T) T D(a) C(SELECT 1) Z(T) 1 2 D(b) C(SELECT 1) 1 E(25006) Z(E) E(25P02) Z(E) E(25P02) Z(E) \
             C(ROLLBACK) Z(I) T D(e) C(SELECT 1) Z(I)"
                .to_owned()
        };
        assert_eq!(replies, expected, "round {round}");
    }
    Ok(())
}

/// What is known asks nobody: the catalog is not looked at for it.
#[test]
fn what_is_known_waits_for_nothing() -> Result<()> {
    let (cluster, weir) = prepared()?;
    let mut client = bound(&weir, BOUND[0])?;
    let questions = || -> Result<usize> {
        Ok(cluster.statements_logged(0)?.iter().filter(|logged| logged.sql.contains(QUESTIONS)).count())
    };
    let asked = questions()?;
    ensure!(asked > 0, "the catalog was never asked for");
    for extended in [false, true] {
        for sql in ["SELECT known()", "SELECT upper('a') FROM t", "TABLE t", "COPY t TO STDOUT"] {
            let replies = client.talk(&sent(sql, extended))?;
            ensure!(replies.error().is_none(), "{sql}: {replies}");
        }
    }
    assert_eq!(questions()?, asked);
    client.sqlstate_of("SELECT nowhere()")?;
    ensure!(questions()? > asked, "nobody was asked");
    Ok(())
}

/// CN-04: while nobody answers the question it is refused after a moment, the client may cancel it or leave, and nobody
/// else waits.
#[test]
fn cn_04_a_doubt_that_nobody_settles() -> Result<()> {
    let (cluster, weir) = prepared()?;
    let made = "CREATE FUNCTION made() RETURNS int LANGUAGE sql AS 'SELECT pg_advisory_lock(7); SELECT 1'";
    let mut client = bound(&weir, BOUND[0])?;
    let (mut other, mut leaving) = (bound(&weir, BOUND[1])?, bound(&weir, BOUND[0])?);
    cluster.setup(made)?;
    cluster.freeze(0);
    client.send(&msgs().Q("SELECT made()"))?;
    assert_eq!(other.scalar("SELECT known()")?, "7");
    assert_eq!(client.read_ready(1)?.to_string(), "E(25006) Z(E)");
    client.simple("ROLLBACK")?;
    // A cancel may come too late for one of them.
    let mut told = Vec::new();
    let cancelled = eventually(Duration::from_secs(20), || {
        let answer = cancelled(&mut other);
        told.push(answer.unwrap_or_else(|error| error.to_string()));
        told.last().is_some_and(|last| last == "E(57014) Z(E)")
    });
    ensure!(
        cancelled && told.iter().all(|told| told.starts_with("E(25006)") || told.starts_with("E(57014)")),
        "{told:?}"
    );
    assert_eq!(other.scalar("SELECT known()")?, "7", "the cancel was for nothing else");
    other.simple("ROLLBACK")?;
    leaving.send(&msgs().Q("SELECT made()"))?;
    leaving.reset()?;
    let open = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench' AND state LIKE 'idle in%'";
    cluster.wait_scalar(1, open, "0", Duration::from_secs(10))?;
    assert_eq!(cluster.scalar(1, LOCKS)?, "0");
    cluster.thaw(0);
    Ok(())
}

/// The answer to an unknown call that is cancelled as soon as it was sent; the transaction is as before then.
fn cancelled(client: &mut RawClient) -> Result<String> {
    client.simple("SAVEPOINT c")?;
    client.send(&msgs().Q("SELECT made()"))?;
    client.cancel()?;
    let answer = client.read_ready(1)?.to_string();
    client.simple("ROLLBACK TO c")?;
    Ok(answer)
}

/// A hint, and `SET pgweir.route`, for a standby are believed where something is merely not known.
#[test]
fn who_asks_for_a_standby_is_believed() -> Result<()> {
    let (cluster, weir) = prepared()?;
    let made = |name: &str| format!("CREATE FUNCTION {name}() RETURNS text LANGUAGE sql AS $$ {WHERE} $$");
    let mut client = bound(&weir, BOUND[0])?;
    cluster.setup(&made("hinted"))?;
    let mut routed = weir.client()?;
    routed.simple("SET pgweir.route = 'standby'")?;
    routed.simple(BOUND[0][0])?;
    assert_eq!(routed.scalar(WHERE)?, "n1");
    // Nobody can say what it is.
    cluster.freeze(0);
    assert_eq!(client.scalar("/* pgweir: standby */ SELECT hinted()")?, "n1");
    assert_eq!(routed.scalar("SELECT hinted()")?, "n1");
    assert_eq!(routed.scalar_extended("SELECT hinted()", &[])?, "n1");
    assert_eq!(client.sqlstate_of("SELECT hinted()")?, "25006");
    cluster.thaw(0);
    Ok(())
}

/// While definitions follow each other faster than the catalog can be read, one statement waits for it in vain, not each.
#[test]
fn definitions_without_end_hold_nobody_up() -> Result<()> {
    const STATEMENTS: u32 = 60;
    let (cluster, weir) = prepared()?;
    // So many that reading them takes longer than the pause between two definitions.
    cluster.setup(
        "DO $$ BEGIN FOR n IN 1..4000 LOOP
           EXECUTE format('CREATE FUNCTION many_%s() RETURNS int LANGUAGE sql AS $f$ SELECT 1 $f$', n);
         END LOOP; END $$; GRANT CREATE ON SCHEMA public TO bench",
    )?;
    let done = AtomicBool::new(false);
    let defines = || -> Result<()> {
        let mut client = weir.client()?;
        while !done.load(Ordering::Relaxed) {
            client.simple("CREATE OR REPLACE FUNCTION again() RETURNS int LANGUAGE sql AS 'SELECT 1'")?;
        }
        Ok(())
    };
    std::thread::scope(|scope| -> Result<()> {
        let definitions = scope.spawn(defines);
        let mut client = weir.client()?;
        let began = Instant::now();
        let asked = (0..STATEMENTS).try_for_each(|_| client.simple("SELECT known() FROM t").map(drop));
        let took = began.elapsed();
        done.store(true, Ordering::Relaxed);
        definitions.join().expect("it does not panic")?;
        asked?;
        ensure!(took < STATEMENTS * LATER / 2, "{took:?}");
        Ok(())
    })
}
