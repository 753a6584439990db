//! State that cannot be moved: what holds a session to its backend, for how long, and what is told of it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Login, Pgweir, PgweirOptions, RawClient, Reply, eventually, msgs, procs, rig};

const SECONDS: Duration = Duration::from_secs(5);

/// The reasons of all that are held, as SHOW tells them.
fn held(weir: &Pgweir) -> Result<Vec<String>> {
    weir.admin("SHOW PINS")?
        .iter()
        .map(|row| row.get("reason").cloned().with_context(|| format!("no reason in {row:?}")))
        .collect()
}

fn wait_held(weir: &Pgweir, wanted: &[&str]) -> Result<()> {
    let fits = || held(weir).is_ok_and(|found| found == wanted);
    ensure!(eventually(SECONDS, fits), "held: {:?} instead of {wanted:?}", held(weir));
    Ok(())
}

/// SL-05: whatever holds a session is seen by its reason in SHOW, log and metrics, and a backend that is
/// undone goes back: with one backend only, the next client is served by it, and finds nothing.
#[test]
fn what_is_undone_gives_the_backend_back() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 1\nquery_wait_timeout: 10s\nlog_level: debug")?;
    cluster.setup(
        "CREATE TABLE t(id int); CREATE SEQUENCE sq; GRANT ALL ON t, sq TO bench;
         CREATE FUNCTION setseed_inside() RETURNS text LANGUAGE sql AS $$ SELECT setseed(0.5)::text $$",
    )?;
    let (mut one, mut other) = (weir.client()?, weir.client()?);
    for (reason, makes, undoes) in [
        ("temp_table", &["CREATE TEMP TABLE x(a int)"][..], &["DROP TABLE x"][..]),
        ("temp_table", &["CREATE TEMP TABLE x(a int)"], &["DISCARD TEMP"]),
        ("temp_table", &["SELECT 1 AS a INTO TEMP x"], &["DISCARD ALL"]),
        ("temp_table", &["CREATE TEMP VIEW x AS SELECT 1"], &["DISCARD TEMP"]),
        ("advisory_lock", &["SELECT pg_advisory_lock(1)"], &["SELECT pg_advisory_unlock(1)"]),
        ("advisory_lock", &["SELECT pg_try_advisory_lock(1)"], &["SELECT pg_advisory_unlock_all()"]),
        ("listen", &["LISTEN a", "LISTEN b"], &["UNLISTEN b", "UNLISTEN a"]),
        ("listen", &["LISTEN a", "LISTEN b"], &["UNLISTEN *"]),
        ("hold_cursor", &["BEGIN", "DECLARE c CURSOR WITH HOLD FOR SELECT 1", "COMMIT"], &["CLOSE c"]),
        ("hold_cursor", &["BEGIN", "DECLARE c CURSOR WITH HOLD FOR SELECT 1", "COMMIT"], &["CLOSE ALL"]),
        ("unknown", &["SELECT setseed_inside()"], &["DISCARD ALL"]),
        ("sequence", &["SELECT nextval('sq')"], &["DISCARD SEQUENCES"]),
        ("sequence", &["SELECT setval('sq', 7)"], &["DISCARD ALL"]),
    ] {
        for sql in makes {
            one.simple(sql).with_context(|| sql.to_string())?;
        }
        wait_held(&weir, &[reason]).with_context(|| format!("after {makes:?}"))?;
        let label = format!("pgweir_pinned_clients{{reason=\"{reason}\"}}");
        assert_eq!(weir.metrics()?.get(&label), Some(&1.0), "{label}");
        ensure!(weir.log().contains(&format!("reason=\"{reason}\"")), "{reason} is not in the log");
        other.send(&msgs().Q("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"))?;
        for sql in undoes {
            one.simple(sql).with_context(|| sql.to_string())?;
        }
        let served = other.read_ready(1).with_context(|| format!("after {undoes:?}"))?;
        assert_eq!(served.to_string(), "T D(0) C(SELECT 1) Z(I)", "after {undoes:?}");
        wait_held(&weir, &[])?;
        assert_eq!(other.scalar("SELECT to_regclass('x') IS NULL")?, "t", "after {undoes:?}");
    }
    Ok(())
}

/// A large object's descriptor lives in its transaction, and so does what it holds.
#[test]
fn a_descriptor_ends_with_its_transaction() -> Result<()> {
    let (_cluster, weir) = rig(0, "default_pool_size: 1\nquery_wait_timeout: 5s")?;
    let (mut one, mut other) = (weir.client()?, weir.client()?);
    one.simple("BEGIN")?;
    let object = one.scalar("SELECT lo_create(0)")?;
    one.scalar(&format!("SELECT lo_open({object}, 131072)"))?;
    one.simple("SELECT 1")?;
    one.simple("COMMIT")?;
    assert_eq!(other.scalar("SELECT 1")?, "1");
    wait_held(&weir, &[])
}

/// Notifications reach a listener that does nothing within a second, whoever sends them and wherever.
#[test]
fn an_idle_listener_hears_within_a_second() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 2")?;
    let mut listener = weir.client()?;
    listener.simple("LISTEN news")?;
    let mut slowest = Duration::ZERO;
    for round in 0..20 {
        let sent = Instant::now();
        match round % 2 {
            0 => cluster.sql(0, "NOTIFY news, 'x'").map(drop)?,
            _ => weir.client()?.simple("NOTIFY news, 'x'").map(drop)?,
        }
        ensure!(matches!(listener.next()?, Some(Reply::Notification { .. })), "round {round}");
        slowest = slowest.max(sent.elapsed());
    }
    println!("slowest: {slowest:?}");
    Ok(())
}

/// `session_state: reject`: an error that names statement and reason, inside of a transaction as the server's would
/// be; what can be moved is none of it.
#[test]
fn state_that_cannot_be_moved_may_be_refused() -> Result<()> {
    let (_cluster, weir) = rig(0, "default_pool_size: 1\nquery_wait_timeout: 5s\nsession_state: reject")?;
    let (mut one, mut other) = (weir.client()?, weir.client()?);
    for (sql, reason) in [
        ("CREATE TEMP TABLE x(a int)", "temp_table"),
        ("SELECT pg_advisory_lock(1)", "advisory_lock"),
        ("LISTEN news", "listen"),
        ("DECLARE c CURSOR WITH HOLD FOR SELECT 1", "hold_cursor"),
        ("DO $$ BEGIN END $$", "unknown"),
    ] {
        for (sent, wanted) in [
            (msgs().Q(sql), "E(0A000) Z(I)"),
            (msgs().PBE(sql).S(), "1 E(0A000) Z(I)"),
            (
                msgs().Q("BEGIN").Q(sql).Q("SELECT 1").Q("ROLLBACK"),
                "C(BEGIN) Z(T) E(0A000) Z(E) E(25P02) Z(E) C(ROLLBACK) Z(I)",
            ),
        ] {
            one.send(&sent)?;
            let replies = one.read_ready(sent.ready_due())?;
            assert_eq!(replies.to_string(), wanted, "{sql}");
            let fields = replies.error().context("no error")?;
            let detail = fields.get('D');
            ensure!(detail.contains(reason) && detail.contains(sql), "{detail}");
        }
        assert_eq!(other.scalar("SELECT 1")?, "1", "after {sql}");
    }
    for sql in ["SET work_mem = '3MB'", "PREPARE p AS SELECT 1", "SELECT pg_advisory_xact_lock(1)"] {
        one.simple(sql).with_context(|| sql.to_owned())?;
    }
    one.simple("BEGIN; CREATE TEMP TABLE x(a int) ON COMMIT DROP; COMMIT")?;
    assert_eq!(one.scalar("SHOW work_mem")?, "3MB");
    wait_held(&weir, &[])
}

/// `session_state: ignore`: nobody is held, the state is gone with the transaction, and nobody else finds it.
#[test]
fn state_that_cannot_be_moved_may_be_lost() -> Result<()> {
    let (_cluster, weir) = rig(0, "default_pool_size: 1\nquery_wait_timeout: 5s\nsession_state: ignore")?;
    let (mut one, mut other) = (weir.client()?, weir.client()?);
    for (makes, seen) in [
        ("CREATE TEMP TABLE x(a int)", "SELECT to_regclass('x') IS NULL"),
        ("SELECT pg_advisory_lock(1)", "SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory'"),
        ("LISTEN news", "SELECT count(*) = 0 FROM pg_listening_channels()"),
        ("DO $$ BEGIN CREATE TEMP TABLE x(a int); END $$", "SELECT to_regclass('x') IS NULL"),
    ] {
        one.simple("SET application_name = 'kept'")?;
        // Inside of its transaction it is there.
        one.simple("BEGIN")?;
        one.simple(makes)?;
        // One listens from the commit on.
        let inside = if makes.starts_with("LISTEN") { "t" } else { "f" };
        assert_eq!(one.scalar(seen)?, inside, "{makes}");
        one.simple("COMMIT")?;
        assert_eq!(other.scalar(seen)?, "t", "{makes}");
        assert_eq!(one.scalar(seen)?, "t", "{makes}");
        // What can be moved is not lost with it.
        assert_eq!(one.scalar("SHOW application_name")?, "kept");
        wait_held(&weir, &[])?;
    }
    Ok(())
}

/// The setting is applied by a reload.
#[test]
fn what_becomes_of_state_changes_with_a_reload() -> Result<()> {
    let (cluster, weir) = rig(0, "session_state: reject")?;
    let mut client = weir.client()?;
    assert_eq!(client.sqlstate_of("LISTEN news")?, "0A000");
    weir.rewrite(&cluster, &PgweirOptions::yaml("session_state: pin"))?;
    weir.signal(rustix::process::Signal::HUP);
    ensure!(eventually(SECONDS, || client.simple("LISTEN news").is_ok()), "still refused");
    wait_held(&weir, &["listen"])
}

/// A BEGIN that a standby refuses is an error of its own, and the session goes on.
#[test]
fn a_transaction_that_cannot_begin_is_no_end() -> Result<()> {
    let port = procs::free_port()?;
    let (cluster, weir) = rig(1, &format!("consistency: eventual\nread_only_port: {port}"))?;
    weir.wait_on_standby("SELECT 1")?;
    let (mut direct, mut through) = (cluster.direct(1)?, RawClient::bench(port)?);
    for sql in ["BEGIN READ WRITE", "BEGIN ISOLATION LEVEL SERIALIZABLE", "START TRANSACTION READ WRITE"] {
        for sent in [
            msgs().Q(sql).Q("SELECT 1").Q("ROLLBACK"),
            msgs().PBE(sql).S().PBE("SELECT 1").S(),
            msgs()
                .Q("BEGIN READ ONLY")
                .Q(&sql.replace("BEGIN", "SET TRANSACTION").replace("START ", "SET "))
                .Q("SELECT 1")
                .Q("COMMIT"),
        ] {
            for client in [&mut direct, &mut through] {
                client.send(&sent)?;
            }
            let wanted = direct.read_ready(sent.ready_due())?.to_string();
            assert_eq!(through.read_ready(sent.ready_due())?.to_string(), wanted, "{sql}");
        }
    }
    let mut hinted = weir.client()?;
    hinted.simple("SET pgweir.route = 'standby'")?;
    for sql in ["BEGIN READ WRITE", "SELECT 1", "ROLLBACK"] {
        hinted.sqlstate_of(sql)?;
    }
    assert_eq!(hinted.scalar("SELECT 1")?, "1");
    Ok(())
}

/// SL-05: what a client of session pooling leaves is on none of its backends for who comes next, in either mode.
#[test]
fn sl_05_leftovers_of_session_pooling() -> Result<()> {
    let yaml = "default_pool_size: 1\nquery_wait_timeout: 10s\n\
                databases:\n  kept: { dbname: bench, pool_mode: session }";
    let (cluster, weir) = rig(0, yaml)?;
    cluster.setup("CREATE SEQUENCE sq; GRANT ALL ON sq TO bench; CREATE ROLE boss; GRANT boss TO bench")?;
    let kept = Login::new("bench", "kept");
    for round in 0..4 {
        let mut first = kept.connect(weir.port())?;
        for sql in [
            "SELECT pg_advisory_lock(7)",
            "LISTEN ch",
            "CREATE TEMP TABLE q()",
            "PREPARE p AS SELECT 1",
            "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
            "SELECT nextval('sq')",
            "SELECT lastval()",
            "SET work_mem = '7MB'",
            "SET ROLE boss",
        ] {
            first.simple(sql).with_context(|| sql.to_owned())?;
        }
        if round % 2 == 0 {
            first.terminate()?
        } else {
            first.reset()?
        }
        let mut next = if round < 2 { weir.client()? } else { kept.connect(weir.port())? };
        for (sql, wanted) in [
            // Its own: a backend that was closed instead may take a moment to end.
            ("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()", "0"),
            ("SELECT count(*) FROM pg_listening_channels()", "0"),
            ("SELECT to_regclass('q') IS NULL", "t"),
            ("SELECT count(*) FROM pg_prepared_statements WHERE from_sql", "0"),
            ("SELECT count(*) FROM pg_cursors WHERE is_holdable", "0"),
            ("SELECT current_user", "bench"),
            ("SELECT current_setting('work_mem') = '7MB'", "f"),
        ] {
            assert_eq!(next.scalar(sql)?, wanted, "round {round}: {sql}");
        }
        assert_eq!(next.sqlstate_of("SELECT lastval()")?, "55000", "round {round}");
        next.terminate()?;
    }
    Ok(())
}
