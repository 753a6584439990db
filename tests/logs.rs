//! What is logged, and what never is: a file that is opened again, JSON, a session's sums, secrets and bound values.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::{Cluster, ClusterOptions, Login, Pgweir, PgweirOptions, eventually, msgs};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(30);

fn one_node() -> Result<Cluster> {
    Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// A client that names itself, comes and goes.
fn visit(weir: &Pgweir, name: &str) -> Result<()> {
    let mut client = Login::bench().with("application_name", name).connect(weir.port())?;
    client.scalar("SELECT 1")?;
    client.terminate()
}

/// USR1 opens the file again after it was moved away; nothing is lost, and nothing goes to the old one any more.
#[test]
fn usr1_opens_the_log_again() -> Result<()> {
    let cluster = one_node()?;
    let (file, moved) = (cluster.root().join("weir.log"), cluster.root().join("weir.log.1"));
    let yaml =
        format!("log_destination: \"{}\"\nlog_connections: on\nlog_disconnections: on", file.display());
    let weir = Pgweir::start(&cluster, &yaml)?;
    visit(&weir, "before")?;
    let left = |path: &Path| text(path).lines().filter(|line| line.contains("client disconnected")).count();
    ensure!(eventually(LIMIT, || left(&file) > 0), "{}", text(&file));
    std::fs::rename(&file, &moved)?;
    visit(&weir, "between")?;
    weir.signal(Signal::USR1);
    ensure!(eventually(LIMIT, || file.exists()), "not opened again");
    let old = text(&moved);
    visit(&weir, "after")?;
    ensure!(eventually(LIMIT, || left(&file) > 0), "{}", text(&file));
    assert_eq!(text(&moved), old, "the old file is still written to");
    ensure!(old.contains("pgweir is ready"), "{old}");
    // A place where no file can be opened keeps the one that is there.
    std::fs::remove_file(&file)?;
    std::fs::create_dir(&file)?;
    weir.signal(Signal::USR1);
    visit(&weir, "nowhere")?;
    assert_eq!(weir.client()?.scalar("SELECT 1")?, "1");
    // The log that nobody reads any more is no place to say so.
    let kept = || -> Result<bool> {
        let events = weir.admin("SHOW EVENTS")?;
        Ok(events.iter().any(|event| event["event"] == "log" && event["reason"].contains("weir.log")))
    };
    ensure!(eventually(LIMIT, || kept().unwrap_or(false)), "{:?}", weir.admin("SHOW EVENTS")?);
    Ok(())
}

/// A line that a full disk does not take is not lost: it goes to the standard error output, with the cause.
#[test]
fn a_full_disk_does_not_swallow_the_log() -> Result<()> {
    let cluster = one_node()?;
    let weir = Pgweir::start(&cluster, "log_destination: /dev/full\nlog_connections: on")?;
    visit(&weir, "unlucky")?;
    let told =
        |line: &str| line.starts_with("/dev/full: No space left on device") && line.contains("unlucky");
    ensure!(eventually(LIMIT, || weir.log().lines().any(told)), "{}", weir.log());
    Ok(())
}

/// As JSON each line is an object with time, level and message; the end of a session has its sums.
#[test]
fn json_lines_are_objects_and_a_session_ends_with_its_sums() -> Result<()> {
    let cluster = one_node()?;
    let weir = Pgweir::start(&cluster, "log_format: json\nlog_connections: on\nlog_disconnections: on")?;
    visit(&weir, "quoted \"name\"\\")?;
    let end = || -> Option<serde_json::Value> {
        let log = weir.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let of_bench = |line: &serde_json::Value| {
            line["message"] == "client disconnected" && line["user"] == "bench" && line["queries"] == 1
        };
        lines.into_iter().find(of_bench)
    };
    ensure!(eventually(LIMIT, || end().is_some()), "{}", weir.log());
    let end = end().context("no end")?;
    assert_eq!(
        (&end["database"], &end["transactions"], &end["errors"]),
        (&"bench".into(), &1.into(), &0.into())
    );
    for line in weir.log().lines() {
        let parsed: serde_json::Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        for field in ["timestamp", "level", "message"] {
            ensure!(parsed[field].is_string(), "{field}: {line}");
        }
    }
    Ok(())
}

/// Whatever is turned on, no password, no secret and no bound value gets into the log.
#[test]
fn no_secret_and_no_bound_value_is_logged() -> Result<()> {
    let cluster = one_node()?;
    cluster.sql(0, "ALTER ROLE other PASSWORD 'hush-word'")?;
    let passwords = harness::pgweir::PASSWORDS.replace("other:TEXTother", "other:TEXThush-word");
    let yaml = "log_level: debug\nlog_connections: on\nlog_disconnections: on\nlog_statement_routes: on\n\
        log_per_node_statement: on\nlog_min_duration_statement: 0\nsr_check_password: hush-check\nsr_check_user: hushed";
    cluster.sql(0, "CREATE ROLE hushed LOGIN PASSWORD 'hush-check' IN ROLE pg_monitor")?;
    let options = PgweirOptions { passwords: Some(passwords), ..PgweirOptions::yaml(yaml) };
    let weir = Pgweir::start_with(&cluster, &options)?;
    let mut client = Login::new("other", "bench").password("hush-word").connect(weir.port())?;
    for round in 0..3 {
        let name = format!("s{round}");
        client.talk(&msgs().P(&name, "SELECT $1::text, 'marked'").B("", &name, &["hush-bound"]).E().S())?;
    }
    let wrong = Login::new("other", "bench").password("hush-wrong").connect(weir.port());
    ensure!(wrong.is_err(), "a wrong password");
    client.sqlstate_of("ALTER ROLE other PASSWORD 'hush-next'")?;
    weir.signal(Signal::HUP);
    ensure!(eventually(LIMIT, || weir.log().contains("configuration reloaded")), "{}", weir.log());
    client.terminate()?;
    ensure!(eventually(LIMIT, || weir.log().contains("client disconnected")), "{}", weir.log());
    ensure!(weir.log().matches("'marked'").count() >= 3, "statements are logged: {}", weir.log());
    let log = weir.log();
    let told: Vec<&str> = log.lines().filter(|line| line.contains("hush-")).collect();
    ensure!(told.is_empty(), "{told:?}");
    Ok(())
}

/// Bound values are logged when that is asked for, cut, and never beside a statement about a password; the client is told
/// none.
#[test]
fn bound_values_are_logged_when_asked_for() -> Result<()> {
    let cluster = one_node()?;
    let yaml = "log_min_duration_statement: 0\nlog_per_node_statement: on\nnotice_per_node_statement: on\n\
        log_parameter_max_length: 8";
    let weir = Pgweir::start(&cluster, yaml)?;
    let mut client = weir.client()?;
    let said = client
        .talk(&msgs().P("s", "SELECT $1::text, $2::text").B("", "s", &["it's", "0123456789"]).E().S())?;
    ensure!(!said.to_string().contains("0123456789)") || !said.to_string().contains("parameters"), "{said}");
    client.talk(&msgs().B("", "s", &["again", "x"]).E().S())?;
    client.talk(&msgs().P("", "SELECT $1::text AS password").B("", "", &["hush-1"]).E().S())?;
    client.scalar("SELECT 'simple'")?;
    let logged = |text: &str| weir.log().lines().filter(|line| line.contains(text)).count();
    ensure!(eventually(LIMIT, || logged("simple") >= 2), "{}", weir.log());
    // Once as sent, once as slow.
    assert_eq!(logged("$2::text -- parameters: $1 = 'it''s', $2 = '01234567...'"), 2, "{}", weir.log());
    assert_eq!(logged("$2::text -- parameters: $1 = 'again', $2 = 'x'"), 2, "{}", weir.log());
    assert_eq!(logged("hush-1"), 0, "{}", weir.log());
    ensure!(!weir.log().contains("'simple' -- parameters"), "{}", weir.log());
    Ok(())
}

/// The end of a session is one line, with what it did.
#[test]
fn the_end_of_a_session_is_one_line_with_its_sums() -> Result<()> {
    let cluster = one_node()?;
    let weir = Pgweir::start(&cluster, "log_disconnections: on")?;
    let mut client = Login::bench().with("application_name", "summed").connect(weir.port())?;
    client.simple("BEGIN")?;
    client.scalar("SELECT 1")?;
    client.simple("COMMIT")?;
    client.sqlstate_of("SELECT 1/0")?;
    client.terminate()?;
    let lines = || -> Vec<String> {
        let log = weir.log();
        let of_it = |line: &&str| line.contains("client disconnected") && line.contains("errors=1");
        log.lines().filter(of_it).map(str::to_owned).collect()
    };
    ensure!(eventually(LIMIT, || !lines().is_empty()), "{}", weir.log());
    let lines = lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in ["user=\"bench\"", "database=\"bench\"", "transactions=2", "seconds="] {
        ensure!(lines[0].contains(part), "{part}: {}", lines[0]);
    }
    Ok(())
}
