//! An operator at night: every command in states that nobody has planned, files that are broken, disks that are full, and
//! how far it is what takes long.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::pgweir::binary;
use harness::{
    Cluster, ClusterOptions, Login, Pgweir, PgweirOptions, RawClient, Reply, StopMode, eventually, http_get,
    msgs, promotion, rig, sqlstate,
};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(30);

fn console(weir: &Pgweir) -> Result<RawClient> {
    let mut console = Login::new("postgres", "pgweir").connect(weir.port())?;
    console.set_deadline(LIMIT);
    Ok(console)
}

/// Every SHOW of the help by that console; the commands that it ran.
fn show_everything(admin: &mut RawClient) -> Result<usize> {
    let help = admin.simple("HELP")?;
    let usages: Vec<String> = help.rows.iter().filter_map(|row| row[0].clone()).collect();
    let shows: Vec<&String> = usages.iter().filter(|usage| usage.starts_with("SHOW ")).collect();
    for show in &shows {
        admin.simple(show).with_context(|| (*show).clone())?;
    }
    Ok(shows.len())
}

/// All nodes are down, and the console knows everything, refuses what makes no sense, and lives on.
#[test]
fn with_all_nodes_down_every_command_answers() -> Result<()> {
    let mut cluster = Cluster::new(ClusterOptions { standbys: 1, ..ClusterOptions::default() })?;
    let weir = Pgweir::start(&cluster, "failover_hold_timeout: 0")?;
    weir.client()?.scalar("SELECT 1")?;
    cluster.stop(1, StopMode::Immediate)?;
    cluster.stop(0, StopMode::Immediate)?;
    weir.wait_pool_nodes(LIMIT, |nodes| nodes.iter().all(|node| node["status"] == "down"))?;
    let mut admin = console(&weir)?;
    let shown = show_everything(&mut admin)?;
    ensure!(shown > 25, "{shown}");
    assert_eq!(http_get(weir.metrics_port(), "/health")?.status, 200);
    assert_eq!(http_get(weir.metrics_port(), "/ready")?.status, 503);
    assert_eq!(weir.client()?.sqlstate_of("SELECT 1")?, "57P03");
    // Twice is as good as once, and what cannot be done is an error with its reason.
    for sql in ["PAUSE", "PAUSE", "RESUME", "RECONNECT", "WAIT_CLOSE", "KILL", "KILL", "RESUME", "RELOAD"] {
        admin.simple(sql).with_context(|| sql.to_owned())?;
    }
    for (sql, code) in [
        ("RESUME", "55000"),
        ("RESUME nobody", "3D000"),
        ("KILL nobody", "3D000"),
        ("DISABLE nobody", "3D000"),
        ("ENABLE bench", "55000"),
        ("KILL_CLIENT 4000000000", "42704"),
        ("KILL_CLIENT 99999999999999999999", "22023"),
        ("KILL_CLIENT -1", "42601"),
        ("ATTACH NODE 65536", "22023"),
        ("ATTACH NODE 9", "55000"),
        ("PROMOTE NODE 1", "55000"),
        ("DETACH NODE", "42601"),
        ("DETACH NODE 1 GENTLY", "42601"),
        ("SHUTDOWN SOMEHOW", "42601"),
    ] {
        assert_eq!(admin.sqlstate_of(sql)?, code, "{sql}");
    }
    let (done, said) = weir.shell(&["promote", "1"])?;
    ensure!(!done && said.contains("PROMOTE NODE 1"), "{said}");
    let (done, said) = weir.shell(&["status"])?;
    ensure!(done && said.contains("down"), "{said}");
    cluster.start(0)?;
    weir.wait_pool_nodes(LIMIT, |nodes| nodes[0]["status"] == "up" && nodes[0]["role"] == "primary")?;
    assert_eq!(weir.client()?.scalar("SELECT 1")?, "1");
    Ok(())
}

/// Quotes, semicolons, comments and strange characters in the place of names are names, and nothing else.
#[test]
fn strange_names_are_names() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let names = ["a;b", "x\"y", "--", "/*", "Gro\u{df}\u{1F98A}", "with space", "it's"];
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    for name in names {
        cluster.sql(0, &format!("CREATE DATABASE {}", quoted(name)))?;
    }
    let weir = Pgweir::start(&cluster, "")?;
    let mut admin = console(&weir)?;
    for name in names {
        let mut client = Login::new("bench", name).connect(weir.port()).with_context(|| name.to_owned())?;
        assert_eq!(client.scalar("SELECT current_database()")?, name);
        for sql in ["PAUSE", "RESUME", "RECONNECT", "WAIT_CLOSE", "DISABLE", "ENABLE", "KILL", "RESUME"] {
            admin.simple(&format!("{sql} {}", quoted(name))).with_context(|| format!("{sql} {name}"))?;
        }
        ensure!(weir.admin("SHOW DATABASES")?.iter().any(|row| row["name"] == name), "{name}");
    }
    for sql in
        ["PAUSE \"a", "PAUSE 'a", "SET port = ", "KILL bench bench", "PAUSE bench;;RESUME bench; nonsense"]
    {
        ensure!(!admin.sqlstate_of(sql)?.is_empty(), "{sql}");
    }
    let (_, body) = (0, http_get(weir.metrics_port(), "/metrics")?.body);
    ensure!(body.contains("database=\"x\\\"y\""), "{body}");
    assert_eq!(admin.scalar("SHOW VERSION")?.split(' ').next(), Some("pgweir"));
    Ok(())
}

/// A file that cannot be used, SET of nonsense: refused with what is wrong, and what is in force stays.
#[test]
fn what_cannot_be_used_changes_nothing() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 7")?;
    let mut admin = console(&weir)?;
    let pool_size = |admin: &mut RawClient| -> Result<String> {
        let config = admin.simple("SHOW CONFIG")?;
        let row = config.rows.iter().find(|row| row[0].as_deref() == Some("default_pool_size"));
        Ok(row.context("no such key")?[1].clone().unwrap_or_default())
    };
    for sql in [
        "SET default_pool_size = 'many'",
        "SET default_pool_size = -1",
        "SET default_pool_size = '1; SHUTDOWN'",
        "SET default_pool_size = 99999999999999999999",
        "SET backends = '[]'",
        "SET pool_mode = 'x: {y'",
        "SET log_destination = '/no/such/place/log'",
        "SET log_destination = '/'",
    ] {
        let code = admin.sqlstate_of(sql)?;
        ensure!(code == "F0000" || code == "55P02" || code == "58000", "{sql}: {code}");
    }
    assert_eq!(admin.sqlstate_of("SET port = 1")?, "55P02");
    let file = weir.dir().join("pgweir.yaml");
    let good = std::fs::read_to_string(&file)?;
    for broken in ["", "{", "\u{0}", "default_pool_size: [", "backends: []\n", "x: y\n"] {
        std::fs::write(&file, broken)?;
        assert_eq!(admin.sqlstate_of("RELOAD")?, "F0000", "{broken:?}");
        let (done, said) = weir.shell(&["reload"])?;
        ensure!(!done && said.contains("pgweir.yaml"), "{broken:?}: {said}");
    }
    std::fs::remove_file(&file)?;
    assert_eq!(admin.sqlstate_of("RELOAD")?, "F0000");
    weir.signal(Signal::HUP);
    ensure!(eventually(LIMIT, || weir.log().contains("refused")), "{}", weir.log());
    assert_eq!(pool_size(&mut admin)?, "7");
    std::fs::write(&file, good)?;
    admin.simple("RELOAD")?;
    weir.rewrite(&cluster, &PgweirOptions::yaml("default_pool_size: 8"))?;
    admin.simple("RELOAD")?;
    assert_eq!(pool_size(&mut admin)?, "8");
    assert_eq!(weir.client()?.scalar("SELECT 1")?, "1");
    Ok(())
}

/// A disk that is full takes no log line, and costs nobody its session; a reload to a place that can be written works.
#[test]
fn a_full_disk_for_the_log_costs_nobody_anything() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let yaml =
        "log_destination: /dev/full\nlog_connections: on\nlog_min_duration_statement: 0\nmetrics_listen: off";
    let mut weir = Pgweir::launch(&cluster, &PgweirOptions::yaml(yaml))?;
    weir.wait_answering()?;
    for _ in 0..20 {
        assert_eq!(weir.client()?.scalar("SELECT 1")?, "1");
    }
    weir.signal(Signal::USR1);
    assert_eq!(weir.client()?.scalar("SELECT 2")?, "2");
    let log = cluster.root().join("weir.log");
    weir.rewrite(
        &cluster,
        &PgweirOptions::yaml(&format!("log_destination: {}\nmetrics_listen: off", log.display())),
    )?;
    weir.admin("RELOAD")?;
    weir.admin("PAUSE")?;
    ensure!(std::fs::read_to_string(&log)?.contains("paused"), "nothing is logged there");
    weir.admin("RESUME")?;
    assert_eq!(weir.stop()?, 0);
    Ok(())
}

/// SHUTDOWN while clients wait for a backend: who waits is told goodbye, not left hanging, and the exit code is 0.
#[test]
fn shutdown_tells_those_who_wait() -> Result<()> {
    let (_cluster, mut weir) = rig(0, "default_pool_size: 1")?;
    let mut first = weir.client()?;
    first.simple("BEGIN")?;
    first.simple("SELECT 1")?;
    let mut waits = weir.client()?;
    waits.set_deadline(LIMIT);
    waits.send(&msgs().Q("SELECT 2"))?;
    ensure!(eventually(LIMIT, || weir.admin("SHOW WAITING").is_ok_and(|rows| rows.len() == 1)));
    let mut paused = console(&weir)?;
    paused.send(&msgs().Q("PAUSE"))?;
    ensure!(eventually(LIMIT, || weir.admin("SHOW STATE").is_ok_and(|rows| rows[1]["value"] == "yes")));
    console(&weir)?.simple("SHUTDOWN")?;
    for (who, client) in [("in a transaction", &mut first), ("waiting", &mut waits), ("console", &mut paused)]
    {
        let said = client.read_to_end()?.to_string();
        ensure!(said.contains("E(57P01)"), "{who}: {said}");
    }
    assert_eq!(weir.wait_exit(LIMIT)?, 0);
    Ok(())
}

/// The notices among what came.
fn notices(said: &harness::Replies) -> Vec<String> {
    let notice = |reply: &Reply| match reply {
        Reply::Notice(fields) => Some(fields.get('M').to_owned()),
        _ => None,
    };
    said.0.iter().filter_map(notice).collect()
}

/// Who waits for PAUSE hears how much is left, and may cancel the wait; what it began stays.
#[test]
fn ad_07_pause_tells_how_far_it_is_and_can_be_cancelled() -> Result<()> {
    let (_cluster, weir) = rig(0, "")?;
    let mut inside = weir.client()?;
    inside.simple("BEGIN")?;
    inside.simple("SELECT 1")?;
    let mut admin = console(&weir)?;
    admin.send(&msgs().Q("PAUSE bench"))?;
    let said = admin.read_until(|reply| matches!(reply, Reply::Notice(_)))?;
    assert_eq!(notices(&said), ["1 connection to a node is still to come back"]);
    admin.cancel()?;
    assert_eq!(admin.read_ready(1)?.to_string(), "E(57014) Z(I)");
    let paused =
        |row: &std::collections::BTreeMap<String, String>| row["name"] == "bench" && row["paused"] == "1";
    ensure!(weir.admin("SHOW DATABASES")?.iter().any(paused), "not paused any more");
    // Who hangs up in the middle of waiting is gone, and pauses nobody for ever.
    let mut hasty = console(&weir)?;
    hasty.send(&msgs().Q("PAUSE bench"))?;
    let consoles = || {
        weir.admin("SHOW CLIENTS").map(|rows| rows.iter().filter(|row| row["database"] == "pgweir").count())
    };
    ensure!(eventually(LIMIT, || consoles().is_ok_and(|count| count == 3)), "{:?}", consoles());
    hasty.reset()?;
    ensure!(eventually(LIMIT, || consoles().is_ok_and(|count| count == 2)), "{:?}", consoles());
    admin.simple("RESUME bench")?;
    inside.simple("COMMIT")?;
    assert_eq!(admin.scalar("SHOW VERSION")?.split(' ').next(), Some("pgweir"));
    Ok(())
}

/// `pgweir detach` waits until the node is empty and tells who is still there; SHOW NODES has it for everybody.
#[test]
fn detach_waits_and_tells_how_far_it_is() -> Result<()> {
    let (cluster, weir) = rig(1, "")?;
    weir.wait_on_standby("SELECT current_setting('cluster_name')")?;
    let mut reader = weir.client()?;
    reader.simple("BEGIN READ ONLY")?;
    assert_eq!(reader.scalar("SELECT current_setting('cluster_name')")?, "n1");
    let of_node = || -> Result<_> { weir.admin("SHOW NODES")?.into_iter().nth(1).context("no node 1") };
    assert_eq!(of_node()?["in_use"], "1");
    let out = cluster.root().join("detach.out");
    let file = std::fs::File::create(&out)?;
    let mut detach = Command::new(binary()?)
        .args(["detach", "-f"])
        .arg(weir.dir().join("pgweir.yaml"))
        .arg("1")
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()?;
    let said = || std::fs::read_to_string(&out).unwrap_or_default();
    ensure!(eventually(LIMIT, || said().contains("node 1 is draining: 1 sessions")), "{}", said());
    ensure!(detach.try_wait()?.is_none(), "it does not wait: {}", said());
    reader.simple("COMMIT")?;
    let status = harness::procs::wait(&mut detach, LIMIT)?;
    ensure!(status.success() && said().contains("DETACH NODE 1: done"), "{}", said());
    assert_eq!(of_node()?["in_use"], "0");
    Ok(())
}

/// A switchover tells how far it is while transactions of the old primary go on, and one line in the log says what it was.
#[test]
fn promote_tells_how_far_it_is_and_is_one_line_in_the_log() -> Result<()> {
    let cluster = promotion::cluster(1, "")?;
    let weir = promotion::promoting(&cluster, "switchover_timeout: 60s")?;
    let mut writer = weir.client()?;
    writer.simple("BEGIN")?;
    writer.simple("INSERT INTO t VALUES (1)")?;
    let mut admin = console(&weir)?;
    admin.set_deadline(Duration::from_secs(60));
    admin.send(&msgs().Q("PROMOTE NODE 1"))?;
    let said = admin.read_until(|reply| matches!(reply, Reply::Notice(_)))?;
    ensure!(notices(&said)[0].starts_with("1 session has a connection to node 0"), "{said}");
    writer.simple("COMMIT")?;
    let end = admin.read_ready(1)?;
    ensure!(end.to_string().contains("C(PROMOTE)"), "{end}");
    let log = weir.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("failover: ")).collect();
    ensure!(lines.len() == 1 && lines[0].contains("how=\"switchover\""), "{log}");
    assert_eq!(weir.client()?.scalar("SELECT count(*) FROM t")?, "1");
    Ok(())
}

/// A failover is one line, with why the primary was lost, how often its checks failed, and what the new one had received.
#[test]
fn a_failover_is_one_line_with_its_evidence() -> Result<()> {
    let mut cluster = promotion::cluster(1, "")?;
    let weir = promotion::promoting(&cluster, "log_format: json")?;
    weir.client()?.simple("INSERT INTO t VALUES (1)")?;
    cluster.wait_replay()?;
    cluster.kill9(0)?;
    promotion::primary(&weir, 0, LIMIT)?;
    let told = || -> Vec<serde_json::Value> {
        let log = weir.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let is = |line: &serde_json::Value| {
            line["message"].as_str().is_some_and(|text| text.starts_with("failover: "))
        };
        lines.filter(is).collect()
    };
    ensure!(eventually(LIMIT, || !told().is_empty()), "{}", weir.log());
    weir.client()?.simple("INSERT INTO t VALUES (2)")?;
    let lines = told();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let line = &lines[0];
    assert_eq!(
        (&line["from"], &line["node"], &line["how"]),
        (&0.into(), &1.into(), &"promoted".into()),
        "{line}"
    );
    ensure!(line["lost"].as_str().is_some_and(|why| !why.is_empty()), "{line}");
    ensure!(line["failed_checks"].as_u64().is_some_and(|checks| checks > 0), "{line}");
    ensure!(line["position"].as_str().is_some_and(|at| at.contains('/')), "{line}");
    ensure!(line["without_primary_ms"].as_u64().is_some(), "{line}");
    Ok(())
}

/// AD-06: a thousand sessions wait for the only backend; the metrics are whole, and come at once.
#[test]
fn ad_06_metrics_while_a_thousand_wait() -> Result<()> {
    const WAITING: usize = 1000;
    let cluster =
        Cluster::new(ClusterOptions { standbys: 0, log_statements: false, ..ClusterOptions::default() })?;
    let options = PgweirOptions::yaml("default_pool_size: 1\nquery_wait_timeout: 10min").trusting();
    let weir = Pgweir::start_with(&cluster, &options)?;
    let mut holder = weir.client()?;
    holder.simple("BEGIN")?;
    holder.simple("SELECT 1")?;
    let mut clients = Vec::with_capacity(WAITING);
    for _ in 0..WAITING {
        let mut client = weir.client()?;
        client.send(&msgs().Q("SELECT 1"))?;
        clients.push(client);
    }
    let body = || http_get(weir.metrics_port(), "/metrics").map(|answer| answer.body).unwrap_or_default();
    let all = format!("}} {WAITING}");
    let wait = |body: &str| {
        body.lines()
            .any(|line| line.starts_with("pgweir_pool_waiting_clients{node=\"0\"") && line.ends_with(&all))
    };
    // Each scrape within the client's three seconds, or it is none.
    ensure!(eventually(LIMIT, || wait(&body())), "{}", body());
    for _ in 0..5 {
        let whole = http_get(weir.metrics_port(), "/metrics")?;
        ensure!(whole.status == 200 && wait(&whole.body), "{}", whole.body);
    }
    assert_eq!(weir.admin("SHOW WAITING")?.len(), WAITING);
    holder.simple("COMMIT")?;
    for client in &mut clients {
        client.set_deadline(LIMIT);
        assert_eq!(client.read_ready(1)?.to_string(), "T D(1) C(SELECT 1) Z(I)");
    }
    Ok(())
}

/// What is refused says so by its code, in an ordinary session as well.
#[test]
fn commands_in_an_ordinary_session_of_an_administrator() -> Result<()> {
    let (_cluster, weir) = rig(0, "")?;
    let mut session = Login::new("postgres", "bench").connect(weir.port())?;
    session.simple("BEGIN")?;
    for (sql, code) in
        [("PGWEIR KILL_CLIENT 4000000000", "42704"), ("PGWEIR NONSENSE", "42601"), ("PGWEIR", "42601")]
    {
        let error = session.simple(sql).expect_err(sql);
        assert_eq!(sqlstate(&error), code, "{sql}");
    }
    // The node's transaction goes on.
    assert_eq!(session.scalar("SELECT 1")?, "1");
    session.simple("COMMIT")?;
    Ok(())
}
