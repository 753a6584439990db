//! State of one client that no other client may ever see; and what a client keeps for itself.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Cluster, Login, Pgweir, RawClient, eventually, msgs, rig, sqlstate};

/// Both pooling modes on a pool of two backends, so that the next client gets a used one.
fn in_both_modes(test: impl Fn(&Cluster, &Pgweir, &str) -> Result<()>) -> Result<()> {
    for mode in ["transaction", "session"] {
        let (cluster, weir) = rig(1, &format!("pool_mode: {mode}\ndefault_pool_size: 2"))?;
        test(&cluster, &weir, mode).with_context(|| format!("{mode} pooling"))?;
    }
    Ok(())
}

/// How a client leaves.
fn leave(client: RawClient, how: usize) -> Result<()> {
    match how % 3 {
        0 => client.terminate(),
        1 => client.reset(),
        _ => {
            drop(client);
            Ok(())
        }
    }
}

/// As many clients at once as there are backends on the primary: each must find `wanted`.
fn every_backend_answers(weir: &Pgweir, sql: &str, wanted: &str) -> Result<()> {
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = weir.client()?;
        client.simple("BEGIN")?;
        let found = client.scalar(sql).with_context(|| sql.to_owned())?;
        ensure!(found == wanted, "{sql}: {found:?} instead of {wanted:?}");
        clients.push(client);
    }
    for client in &mut clients {
        client.simple("ROLLBACK")?;
    }
    clients.into_iter().try_for_each(RawClient::terminate)
}

#[test]
fn sl_01_set_does_not_leak() -> Result<()> {
    in_both_modes(|_cluster, weir, _mode| {
        for (n, (set, show, kept)) in [
            ("SET search_path = ''", "SELECT current_setting('search_path')", "\"\""),
            ("SET TimeZone = 'Asia/Tokyo'", "SELECT current_setting('TimeZone')", "Asia/Tokyo"),
            ("SET statement_timeout = '12345ms'", "SELECT current_setting('statement_timeout')", "12345ms"),
            ("SET app.x = 'a'", "SELECT coalesce(current_setting('app.x', true), '')", "a"),
            ("SELECT set_config('work_mem', '5MB', false)", "SELECT current_setting('work_mem')", "5MB"),
            (
                "SET SESSION default_transaction_isolation = 'serializable'",
                "SELECT current_setting('default_transaction_isolation')",
                "serializable",
            ),
        ]
        .into_iter()
        .enumerate()
        {
            for extended in [false, true] {
                let default = weir.client()?.scalar(show)?;
                let mut a = weir.client()?;
                let sent = if extended { msgs().PBE(set).S() } else { msgs().Q(set) };
                ensure!(a.talk(&sent)?.error().is_none(), "{set}");
                // Its own stays, also after a transaction and another client's work.
                ensure!(a.scalar(show)? == kept, "{set}: lost");
                ensure!(weir.client()?.scalar(show)? == default, "{set}: seen by another client");
                a.simple("BEGIN").and_then(|_| a.simple("COMMIT"))?;
                ensure!(a.scalar(show)? == kept, "{set}: lost after a transaction");
                leave(a, n)?;
                every_backend_answers(weir, show, &default)?;
            }
        }
        Ok(())
    })
}

#[test]
fn sl_02_set_role_does_not_leak() -> Result<()> {
    in_both_modes(|cluster, weir, _mode| {
        cluster.setup("CREATE ROLE boss; GRANT boss TO bench")?;
        for how in 0..3 {
            for script in [
                &["SET ROLE boss"][..],
                &["BEGIN", "SET ROLE boss"],
                &["BEGIN", "SET ROLE boss", "SELECT 1/0"],
            ] {
                let mut a = weir.client()?;
                for sql in script {
                    a.sqlstate_of(sql)?;
                }
                leave(a, how)?;
                every_backend_answers(weir, "SELECT current_user || ' ' || session_user", "bench bench")?;
            }
        }
        Ok(())
    })
}

#[test]
fn sl_05_what_a_session_made_is_gone_with_it() -> Result<()> {
    in_both_modes(|_cluster, weir, _mode| {
        for how in 0..3 {
            let mut a = weir.client()?;
            for sql in [
                "SELECT pg_advisory_lock(7)",
                "LISTEN ch",
                "CREATE TEMP TABLE q(a int)",
                "PREPARE p AS SELECT 1",
                "BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT 1; COMMIT",
            ] {
                a.simple(sql).with_context(|| sql.to_owned())?;
            }
            // All of it is still there for the one who made it.
            assert_eq!(a.simple("EXECUTE p")?.first_column(), ["1"]);
            assert_eq!(a.simple("FETCH c")?.first_column(), ["1"]);
            assert_eq!(a.scalar("SELECT count(*) FROM q")?, "0");
            leave(a, how)?;
            for (sql, wanted) in [
                ("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'", "0"),
                ("SELECT count(*) FROM pg_listening_channels()", "0"),
                ("SELECT to_regclass('q') IS NULL", "t"),
                ("SELECT count(*) FROM pg_prepared_statements WHERE from_sql", "0"),
                ("SELECT count(*) FROM pg_cursors WHERE is_holdable", "0"),
            ] {
                let gone = || every_backend_answers(weir, sql, wanted);
                ensure!(eventually(Duration::from_secs(30), || gone().is_ok()), "{:#}", gone().unwrap_err());
            }
        }
        Ok(())
    })
}

#[test]
fn rw_08_advisory_locks() -> Result<()> {
    in_both_modes(|cluster, weir, _mode| {
        let lock = |client: &mut RawClient, call: &str| {
            client.scalar_extended(&format!("SELECT {call}($1)"), &["42"])
        };
        let (mut a, mut b) = (weir.client()?, weir.client()?);
        lock(&mut a, "pg_advisory_lock")?;
        a.scalar("SELECT 1")?;
        assert_eq!(lock(&mut b, "pg_try_advisory_lock")?, "f");
        assert_eq!(lock(&mut a, "pg_advisory_unlock")?, "t");
        assert_eq!(lock(&mut b, "pg_try_advisory_lock")?, "t");
        b.reset()?;
        let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        cluster.wait_scalar(0, held, "0", Duration::from_secs(2))?;
        assert_eq!(lock(&mut a, "pg_try_advisory_lock")?, "t");
        assert_eq!(cluster.scalar(1, held)?, "0", "a lock on the standby");
        Ok(())
    })
}

#[test]
fn sl_07_startup_values_belong_to_their_client() -> Result<()> {
    let (_cluster, weir) = rig(1, "default_pool_size: 1")?;
    let ask = "SELECT current_setting('client_encoding') || ' ' || '2024-02-01'::date::text || ' ' || \
               current_setting('application_name') || ' ' || current_setting('TimeZone')";
    let mut clients = Vec::new();
    for (encoding, style, name, zone, wanted) in [
        ("LATIN1", "German", "a", "UTC", "LATIN1 01.02.2024 a UTC"),
        ("UTF8", "SQL, DMY", "b b", "Asia/Tokyo", "UTF8 01/02/2024 b b Asia/Tokyo"),
    ] {
        let login = Login::bench().with("client_encoding", encoding).with("DateStyle", style);
        let client = login.with("application_name", name).with("TimeZone", zone).connect(weir.port())?;
        clients.push((client, wanted));
    }
    clients.push((weir.client()?, "UTF8 2024-02-01  UTC"));
    for round in 0..300 {
        let n = (round * 7 + round / 3) % clients.len();
        let (client, wanted) = &mut clients[n];
        let got = if round % 2 == 0 { client.scalar(ask)? } else { client.scalar_extended(ask, &[])? };
        assert_eq!(&got, wanted, "round {round}");
    }
    // The wire encoding is right: one byte in LATIN1.
    let replies = clients[0].0.talk(&msgs().Q_bytes(b"SELECT '\xe9', octet_length('\xe9')"))?;
    let raw =
        replies.0.iter().find_map(|r| if let harness::Reply::DataRow(v) = r { v[0].clone() } else { None });
    assert_eq!((raw.as_deref(), replies.values()[1].as_str()), (Some(&b"\xe9"[..]), "2"));
    Ok(())
}

#[test]
fn sl_10_set_in_a_transaction_that_rolls_back() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 2")?;
    let show = "SELECT current_setting('TimeZone')";
    for script in [
        &["BEGIN", "SET TimeZone='Asia/Tokyo'", "ROLLBACK"][..],
        &["BEGIN", "SET TimeZone='Asia/Tokyo'", "COMMIT"],
        &["BEGIN", "SAVEPOINT s", "SET TimeZone='Asia/Tokyo'", "ROLLBACK TO s", "COMMIT"],
        &["BEGIN", "SET LOCAL TimeZone='Asia/Tokyo'", "COMMIT"],
        &["SET TimeZone='Asia/Tokyo'", "BEGIN", "RESET TimeZone", "ROLLBACK"],
        &["SET DateStyle='garbage'"],
        &["SET TimeZone='Asia/Tokyo'", "DISCARD ALL"],
    ] {
        let (mut direct, mut through) = (cluster.direct(0)?, weir.client()?);
        for sql in script {
            assert_eq!(through.sqlstate_of(sql)?, direct.sqlstate_of(sql)?, "{script:?}");
        }
        for _ in 0..3 {
            assert_eq!(through.scalar(show)?, direct.scalar(show)?, "{script:?}");
        }
    }
    Ok(())
}

#[test]
fn to_01_the_queue_timeout_has_its_own_clear_error() -> Result<()> {
    let (_cluster, weir) = rig(0, "default_pool_size: 1\nquery_wait_timeout: 1s")?;
    let (mut holder, mut a) = (weir.client()?, weir.client()?);
    holder.simple("BEGIN")?;
    holder.simple("SELECT 1")?;
    for (sent, wanted) in
        [(msgs().Q("SELECT 1"), "E(53300) Z(I)"), (msgs().PBE("SELECT 1").S(), "E(53300) Z(I)")]
    {
        let started = Instant::now();
        let replies = a.talk(&sent)?;
        assert_eq!(replies.to_string(), wanted);
        let took = started.elapsed();
        ensure!((800..1500).contains(&took.as_millis()), "after {took:?}");
        let text = format!("{:?}", replies.error());
        ensure!(text.contains("pool") && text.contains("bench"), "does not name the pool: {text}");
    }
    ensure!(weir.pool_nodes()?[0]["status"] == "up");
    holder.simple("COMMIT")?;
    assert_eq!(a.scalar("SELECT 5")?, "5");
    Ok(())
}

#[test]
fn pinned_clients_are_visible_and_leave_room() -> Result<()> {
    let (_cluster, weir) = rig(0, "default_pool_size: 2\nquery_wait_timeout: 1s")?;
    let mut pinned = weir.client()?;
    pinned.simple("CREATE TEMP TABLE x(a int)")?;
    let mut other = weir.client()?;
    for _ in 0..10 {
        assert_eq!(other.scalar("SELECT 1")?, "1");
    }
    let metrics = weir.metrics()?;
    ensure!(
        metrics.iter().any(|(name, value)| name.contains("pin") && *value > 0.0),
        "no pin in the metrics"
    );
    // With every backend pinned the queue says so, and a pin ends with its client.
    let mut second = weir.client()?;
    second.simple("CREATE TEMP TABLE x(a int)")?;
    let refused = other.simple("SELECT 1").map(|_| ()).expect_err("served on a pinned backend");
    assert_eq!(sqlstate(&refused), "53300");
    drop(second);
    ensure!(eventually(Duration::from_secs(30), || other.scalar("SELECT 1").is_ok_and(|one| one == "1")));
    Ok(())
}

/// A RESET among other statements of one string: asyncpg's pool ends each use of a connection so.
#[test]
fn sl_07_startup_values_come_back_after_a_reset_among_others() -> Result<()> {
    in_both_modes(|_cluster, weir, _mode| {
        let mut client = Login::new("bench", "bench")
            .with("TimeZone", "Asia/Tokyo")
            .with("app.x", "mine")
            .connect(weir.port())?;
        for reset in [
            "SELECT pg_advisory_unlock_all();\nCLOSE ALL;\nUNLISTEN *;\nRESET ALL;",
            "RESET TimeZone; SELECT 1; RESET app.x",
        ] {
            client.simple("SET TimeZone = 'Europe/Berlin'; SET app.x = 'other'")?;
            assert_eq!(client.scalar("SHOW TimeZone")?, "Europe/Berlin");
            client.simple(reset)?;
            assert_eq!(client.scalar("SHOW TimeZone")?, "Asia/Tokyo", "after {reset}");
            assert_eq!(client.scalar("SHOW app.x")?, "mine", "after {reset}");
            // Undone with the string that it stands in.
            client.simple("SET TimeZone = 'Europe/Berlin'")?;
            assert!(client.simple(&format!("{reset}; SELECT 1/0")).is_err());
            assert_eq!(client.scalar("SHOW TimeZone")?, "Europe/Berlin", "after the undone {reset}");
        }
        Ok(())
    })
}

/// Rails says it at each connect, and must not be held to a backend for it.
#[test]
fn sl_01_standard_strings_that_are_there_do_not_pin() -> Result<()> {
    let (_cluster, weir) = rig(0, "default_pool_size: 1\nquery_wait_timeout: 2s")?;
    let mut clients = [weir.client()?, weir.client()?];
    for client in &mut clients {
        client.simple("SET standard_conforming_strings = on")?;
        client.simple("SET SESSION standard_conforming_strings TO 'on'")?;
        assert_eq!(client.scalar("SHOW standard_conforming_strings")?, "on");
    }
    // Another value is the client's own: it keeps its backend, and strings mean to pgweir what they mean there.
    let [mut first, mut second] = clients;
    second.simple("SET standard_conforming_strings = off")?;
    assert_eq!(second.scalar("SELECT 'a\\';b'")?, "a';b");
    second.terminate()?;
    assert_eq!(first.scalar("SELECT 'a\\b'")?, "a\\b");
    Ok(())
}
