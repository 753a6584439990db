//! Commands that change something: PAUSE and its kin, SET, PGPOOL SET, and what they must not do.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Login, Pgweir, PgweirOptions, RawClient, Reply, eventually, msgs, psql, rig, sqlstate};

const LIMIT: Duration = Duration::from_secs(30);

fn console(weir: &Pgweir) -> Result<RawClient> {
    let mut console = Login::new("postgres", "pgweir").connect(weir.port())?;
    console.set_deadline(LIMIT);
    Ok(console)
}

fn waiting(weir: &Pgweir) -> Result<Vec<BTreeMap<String, String>>> {
    weir.admin("SHOW WAITING")
}

/// AD-07: PAUSE returns when the transactions have ended, others wait, and RESUME lets them go on.
#[test]
fn ad_07_pause_waits_for_transactions_and_holds_the_others() -> Result<()> {
    let (_cluster, weir) = rig(0, "")?;
    let mut inside = weir.client()?;
    inside.simple("BEGIN")?;
    inside.simple("SELECT 1")?;
    let mut idle = weir.client()?;
    idle.scalar("SELECT 1")?;
    let mut admin = console(&weir)?;
    admin.send(&msgs().Q("PAUSE bench"))?;
    ensure!(eventually(LIMIT, || weir
        .admin("SHOW DATABASES")
        .is_ok_and(|rows| { rows.iter().any(|row| row["name"] == "bench" && row["paused"] == "1") })));
    ensure!(admin.silent_for(Duration::from_millis(100))?, "PAUSE does not wait for the transaction");
    // A new query, and a new client with one, wait; a cancelled one gets its error.
    idle.send(&msgs().Q("SELECT 2"))?;
    let mut fresh = weir.client()?;
    fresh.send(&msgs().Q("SELECT 3"))?;
    ensure!(eventually(LIMIT, || waiting(&weir)
        .is_ok_and(|rows| { rows.len() == 2 && rows.iter().all(|row| row["waits_for"] == "RESUME") })));
    fresh.cancel()?;
    assert_eq!(fresh.read_ready(1)?.to_string(), "E(57014) Z(I)");
    // The transaction goes on to its end.
    assert_eq!(inside.scalar("SELECT 4")?, "4");
    inside.simple("COMMIT")?;
    // Before it, how far it is, where that took a second.
    let said = admin.read_ready(1)?.to_string();
    ensure!(said.ends_with("C(PAUSE) Z(I)"), "{said}");
    assert_eq!(weir.admin("SHOW SERVERS")?.len(), 0, "the backends are closed");
    ensure!(idle.silent_for(Duration::from_millis(50))?, "answered while paused");
    assert_eq!(admin.talk(&msgs().Q("RESUME bench"))?.to_string(), "C(RESUME) Z(I)");
    assert_eq!(idle.read_ready(1)?.to_string(), "T D(2) C(SELECT 1) Z(I)");
    assert_eq!(admin.sqlstate_of("RESUME bench")?, "55000", "nothing is paused");
    assert_eq!(admin.sqlstate_of("PAUSE nobody")?, "3D000");
    Ok(())
}

/// AD-07: who waits for RESUME waits as long as for any backend, and gets an error that says so.
#[test]
fn ad_07_a_pause_does_not_outlast_the_queue_limit() -> Result<()> {
    let (_cluster, weir) = rig(0, "query_wait_timeout: 300ms")?;
    let mut client = weir.client()?;
    console(&weir)?.simple("PAUSE")?;
    assert_eq!(weir.admin("SHOW STATE")?[1]["value"], "yes");
    let error = client.simple("SELECT 1").expect_err("paused");
    ensure!(sqlstate(&error) == "57P03" && format!("{error:#}").contains("paused"), "{error:#}");
    console(&weir)?.simple("RESUME")?;
    assert_eq!(client.scalar("SELECT 1")?, "1");
    Ok(())
}

/// AD-07: after RECONNECT every backend is another, in transaction and in session pooling, and no client sees an error.
#[test]
fn ad_07_reconnect_renews_every_backend() -> Result<()> {
    for mode in ["transaction", "session"] {
        let (_cluster, weir) = rig(0, &format!("pool_mode: {mode}"))?;
        let mut clients = [weir.client()?, weir.client()?];
        let pids = |clients: &mut [RawClient; 2]| -> Result<Vec<String>> {
            clients.iter_mut().try_for_each(|client| client.simple("BEGIN").map(|_| ()))?;
            let pids = clients.iter_mut().map(|client| client.scalar("SELECT pg_backend_pid()")).collect();
            clients.iter_mut().try_for_each(|client| client.simple("COMMIT").map(|_| ()))?;
            pids
        };
        let before = pids(&mut clients)?;
        clients[0].simple("BEGIN")?;
        clients[0].simple("SELECT 1")?;
        let mut admin = console(&weir)?;
        admin.simple("RECONNECT")?;
        admin.send(&msgs().Q("WAIT_CLOSE bench"))?;
        ensure!(admin.silent_for(Duration::from_millis(50))?, "{mode}: a transaction still has an old one");
        assert_eq!(clients[0].scalar("SELECT 1")?, "1", "{mode}: the transaction goes on");
        clients[0].simple("COMMIT")?;
        let said = admin.read_ready(1)?.to_string();
        ensure!(said.ends_with("C(WAIT_CLOSE) Z(I)"), "{mode}: {said}");
        let after = pids(&mut clients)?;
        ensure!(after.iter().all(|pid| !before.contains(pid)), "{mode}: {before:?} {after:?}");
    }
    Ok(())
}

/// AD-07: KILL_CLIENT of one, of the same again, and of nobody; KILL of all of a database; DISABLE and ENABLE.
#[test]
fn ad_07_kill_and_disable() -> Result<()> {
    let (_cluster, weir) = rig(0, "")?;
    let mut victim = Login::bench().with("application_name", "victim").connect(weir.port())?;
    victim.send(&msgs().Q("SELECT pg_sleep(30)"))?;
    let id = || -> Result<String> {
        let clients = weir.admin("SHOW CLIENTS")?;
        let row = clients.iter().find(|row| row["application_name"] == "victim").context("no victim")?;
        ensure!(row["state"] == "active", "{row:?}");
        Ok(row["id"].clone())
    };
    ensure!(eventually(LIMIT, || id().is_ok()));
    let id = id()?;
    let mut admin = console(&weir)?;
    admin.simple(&format!("KILL_CLIENT {id}"))?;
    let said = victim.read_to_end()?.to_string();
    ensure!(said.contains("57P01"), "{said}");
    assert_eq!(admin.sqlstate_of(&format!("KILL_CLIENT {id}"))?, "42704");
    assert_eq!(admin.sqlstate_of("KILL_CLIENT 99999999")?, "42704");
    assert_eq!(admin.sqlstate_of("KILL_CLIENT abc")?, "22023");
    let mut others = [weir.client()?, weir.client()?];
    others[0].simple("BEGIN")?;
    others[0].simple("SELECT 1")?;
    admin.simple("KILL bench")?;
    for other in &mut others {
        ensure!(other.read_to_end()?.to_string().contains("57P01"));
    }
    let mut late = weir.client()?;
    late.send(&msgs().Q("SELECT 1"))?;
    ensure!(late.silent_for(Duration::from_millis(100))?, "KILL pauses");
    admin.simple("RESUME bench")?;
    assert_eq!(late.read_ready(1)?.to_string(), "T D(1) C(SELECT 1) Z(I)");
    admin.simple("DISABLE bench")?;
    let refused = weir.client().map(|_| ()).expect_err("disabled");
    assert_eq!(sqlstate(&refused), "55000", "{refused:#}");
    assert_eq!(late.scalar("SELECT 2")?, "2", "who is there stays");
    admin.simple("ENABLE bench")?;
    weir.client()?.scalar("SELECT 1")?;
    Ok(())
}

/// What was closed by its name can be opened, whoever has forgotten the name meanwhile.
#[test]
fn ad_07_a_database_that_nobody_names_any_more() -> Result<()> {
    let (cluster, weir) = rig(0, "databases: {app: {}}")?;
    let mut admin = console(&weir)?;
    for sql in ["PAUSE app", "DISABLE app"] {
        admin.simple(sql)?;
    }
    weir.rewrite(&cluster, &PgweirOptions::default())?;
    admin.simple("RELOAD")?;
    for sql in ["ENABLE app", "RESUME app"] {
        admin.simple(sql)?;
    }
    assert_eq!(admin.sqlstate_of("RESUME app")?, "3D000");
    Ok(())
}

/// AD-04: who may only look, may only look; who is no admin cannot even do that, in an ordinary session neither.
#[test]
fn ad_04_rights_of_every_kind() -> Result<()> {
    let (_cluster, weir) = rig(0, "")?;
    let changes = [
        "RELOAD",
        "PAUSE",
        "RESUME",
        "RECONNECT",
        "KILL bench",
        "KILL_CLIENT 1",
        "DISABLE bench",
        "ENABLE bench",
        "WAIT_CLOSE",
        "SHUTDOWN",
        "SHUTDOWN WAIT_FOR_SERVERS",
        "SET log_level = debug",
    ];
    let mut stats = Login::new("stats", "pgweir").connect(weir.port())?;
    let mut bench = weir.client()?;
    for command in changes {
        assert_eq!(stats.sqlstate_of(command)?, "42501", "{command}");
        assert_eq!(bench.sqlstate_of(&format!("PGWEIR {command}"))?, "42501", "{command}");
    }
    assert_eq!(bench.sqlstate_of("PGWEIR SHOW CONFIG")?, "42501");
    let config = stats.simple("SHOW CONFIG")?;
    let all = format!("{config:?}");
    ensure!(all.contains("sr_check_password") && !all.contains("Some(\"pgweir\"), Some(\"null\")"), "masked");
    let mut postgres = Login::new("postgres", "bench").connect(weir.port())?;
    assert_eq!(postgres.simple("PGWEIR RECONNECT bench")?.tags, ["RECONNECT"]);
    assert_eq!(bench.scalar("SELECT 1")?, "1");
    Ok(())
}

/// AD-03: notices and errors of the console are messages that any driver can read.
#[test]
fn ad_03_notices_and_errors_are_well_formed() -> Result<()> {
    let (cluster, weir) = rig(0, "")?;
    let mut admin = console(&weir)?;
    let help = admin.talk(&msgs().Q("SHOW HELP"))?;
    let notice = help.0.iter().find_map(|reply| match reply {
        Reply::Notice(fields) => Some(fields.clone()),
        _ => None,
    });
    let notice = notice.context("no notice")?;
    assert_eq!((notice.get('S'), notice.get('V'), notice.get('C')), ("NOTICE", "NOTICE", "00000"));
    ensure!(notice.get('D').contains("\tSHOW POOLS") && notice.get('D').contains("\tPAUSE [database]"));
    for sql in ["FROBNICATE", "KILL_CLIENT", "KILL_CLIENT x", "SHOW 'unended", "SET log_level = shouting"] {
        let replies = admin.talk(&msgs().Q(sql))?;
        let fields = replies.error().with_context(|| sql.to_owned())?;
        assert_eq!((fields.get('S'), fields.get('V'), fields.get('C').len()), ("ERROR", "ERROR", 5), "{sql}");
        ensure!(!fields.get('M').is_empty(), "{sql}");
        ensure!(matches!(replies.0.last(), Some(Reply::ReadyForQuery('I'))), "{sql}: {replies}");
    }
    assert_eq!(admin.scalar("SELECT 1")?, "1", "the session lives");
    let out = psql(&cluster, weir.port(), "bench", &["-c", "PGWEIR HELP"])?;
    ensure!(out.code == 0 && out.stdout.contains("SHOW POOL_NODES|anyone|"), "{out:?}");
    Ok(())
}

/// SET holds until the next reload, refuses what it must, and changes nothing when it does.
#[test]
fn set_changes_a_key_until_the_next_reload() -> Result<()> {
    let (_cluster, weir) = rig(0, "")?;
    let mut admin = console(&weir)?;
    let value = |admin: &mut RawClient, key: &str| -> Result<String> {
        let rows = admin.simple("SHOW CONFIG")?;
        let row = rows.rows.iter().find(|row| row[0].as_deref() == Some(key)).context(key.to_owned())?;
        Ok(row[1].clone().unwrap_or_default())
    };
    admin.simple("SET query_wait_timeout = '250ms'")?;
    assert_eq!(value(&mut admin, "query_wait_timeout")?, "250ms");
    admin.simple("SET default_pool_size TO 1")?;
    let mut first = weir.client()?;
    first.simple("BEGIN")?;
    first.simple("SELECT 1")?;
    let mut second = weir.client()?;
    let began = Instant::now();
    let busy = second.simple("SELECT 1").expect_err("the only backend is taken");
    ensure!(sqlstate(&busy) == "53300" && began.elapsed() < Duration::from_secs(3), "{busy:#}");
    assert_eq!(admin.sqlstate_of("SET port = 1")?, "55P02");
    // A typing error must not look like success, and RESET does not do what RELOAD does.
    assert_eq!(admin.sqlstate_of("SET default_pol_size = 5")?, "42704");
    assert_eq!(admin.sqlstate_of("RESET default_pool_size")?, "0A000");
    // What asyncpg's pool sends when it takes a connection back.
    admin.simple("SELECT pg_advisory_unlock_all();\nCLOSE ALL;\nUNLISTEN *;\nRESET ALL;")?;
    assert_eq!(admin.sqlstate_of("SET load_balance = loudest")?, "F0000");
    assert_eq!(value(&mut admin, "load_balance")?, "least_outstanding");
    let reload = admin.talk(&msgs().Q("RELOAD"))?.to_string();
    ensure!(reload.contains("C(RELOAD)"), "{reload}");
    assert_eq!(value(&mut admin, "query_wait_timeout")?, "30s");
    Ok(())
}

/// PGPOOL SET changes a session alone, inside transactions too; PGPOOL RESET takes it back.
#[test]
fn pgpool_set_is_of_the_session() -> Result<()> {
    let (_cluster, weir) = rig(1, "")?;
    let (mut one, mut two) = (weir.client()?, weir.client()?);
    let show = |client: &mut RawClient| -> Result<String> {
        client.simple("PGPOOL SHOW load_balance_mode")?.get(0, "value")
    };
    let place = "SELECT current_setting('cluster_name')";
    assert_eq!(one.scalar(place)?, "n1");
    assert_eq!(one.simple("PGPOOL SET load_balance_mode = off")?.tags, ["SET"]);
    assert_eq!((show(&mut one)?.as_str(), show(&mut two)?.as_str()), ("off", "on"));
    assert_eq!(one.scalar(place)?, "n0");
    assert_eq!(two.scalar(place)?, "n1");
    one.simple("BEGIN")?;
    let replies = one.talk(&msgs().Q("PGPOOL RESET load_balance_mode"))?.to_string();
    assert_eq!(replies, "C(RESET) Z(T)");
    one.simple("COMMIT")?;
    assert_eq!(one.scalar(place)?, "n1");
    assert_eq!(one.sqlstate_of("PGPOOL SET load_balance_mode = perhaps")?, "22023");
    assert_eq!(one.sqlstate_of("PGPOOL SET default_pool_size = 1000")?, "55P02");
    assert_eq!(one.sqlstate_of("PGPOOL SHOW sr_check_user")?, "42501");
    let replies = one.talk(&msgs().PBE("PGPOOL SHOW consistency").S())?.to_string();
    ensure!(replies.starts_with("1 2 D(consistency,read_your_writes,"), "{replies}");
    Ok(())
}

/// The NOTICE of notice_per_node_statement is Pgpool-II's, and comes before the statement's answer.
#[test]
fn notice_per_node_statement_tells_the_node() -> Result<()> {
    let (_cluster, weir) = rig(1, "")?;
    let mut client = weir.client()?;
    client.simple("PGPOOL SET notice_per_node_statement = on")?;
    let notices = |replies: &harness::Replies| -> Vec<String> {
        let notice = |reply: &Reply| match reply {
            Reply::Notice(fields) => Some(fields.get('M').to_owned()),
            _ => None,
        };
        replies.0.iter().filter_map(notice).collect()
    };
    let read = client.talk(&msgs().Q("SELECT 1"))?;
    assert_eq!(notices(&read), ["DB node id: 1 statement: SELECT 1"]);
    ensure!(read.to_string().ends_with("T D(1) C(SELECT 1) Z(I)"), "{read}");
    let written = client.talk(&msgs().PBE("CREATE TABLE noticed(a int)").S())?;
    assert_eq!(notices(&written), ["DB node id: 0 statement: CREATE TABLE noticed(a int)"]);
    let secret = client.talk(&msgs().Q("SELECT 'Password: hush' AS x"))?;
    ensure!(notices(&secret)[0].ends_with(" statement: (a statement about a password)"), "{secret}");
    Ok(())
}

/// Slow statements and statements by node are logged, without what the configuration does not ask for.
#[test]
fn slow_statements_are_logged() -> Result<()> {
    let options = PgweirOptions::yaml(
        "log_min_duration_statement: 150ms\nlog_format: json\nlog_per_node_statement: on",
    );
    let cluster = harness::Cluster::new(harness::ClusterOptions { standbys: 0, ..Default::default() })?;
    let weir = Pgweir::start_with(&cluster, &options)?;
    let mut client = weir.client()?;
    client.simple("SELECT 'quick'")?;
    client.simple("SELECT 'slow', pg_sleep(0.2)")?;
    client.talk(&msgs().P("", "SELECT pg_sleep($1)").B("", "", &["0.2100000001"]).E().S())?;
    let lines = |text: &str| -> Vec<serde_json::Value> {
        weir.log()
            .lines()
            .filter(|line| line.contains(text))
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    };
    ensure!(eventually(LIMIT, || lines("slow statement").len() == 2), "{}", weir.log());
    let slow = lines("slow statement");
    assert_eq!(slow[0]["statement"], "SELECT 'slow', pg_sleep(0.2)");
    ensure!(slow[0]["duration_ms"].as_f64().is_some_and(|ms| (200.0..5000.0).contains(&ms)), "{slow:?}");
    assert_eq!((&slow[1]["statement"], &slow[1]["node"]), (&"SELECT pg_sleep($1)".into(), &0.into()));
    ensure!(!weir.log().contains("0.2100000001"), "a bound value is in the log");
    assert_eq!(lines("statement sent").len(), 3);
    Ok(())
}
