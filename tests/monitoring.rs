//! Monitoring by other people's programs: PgBouncer's exporter, Prometheus, promtool; the dashboard and the alerts.

use std::fs::File;
use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::{
    Cluster, ClusterOptions, Pgweir, PgweirOptions, StopMode, eventually, http_get, msgs, outside, procs, rig,
};

const LIMIT: Duration = Duration::from_secs(20);

fn start(cluster: &Cluster, name: &str, command: &mut Command) -> Result<procs::Owned> {
    let log = File::create(cluster.root().join(format!("{name}.log")))?;
    procs::Owned::start(command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log))
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// PgBouncer's exporter (Debian's prometheus-pgbouncer-exporter), which wants the columns of PgBouncer 1.7 and says by
/// its application_name who it is.
#[test]
fn pgbouncer_exporter_reads_the_console() -> Result<()> {
    let Some(mut command) = outside::command("prometheus-pgbouncer-exporter")? else { return Ok(()) };
    let (cluster, weir) = rig(1, "")?;
    let mut client = weir.client()?;
    for _ in 0..3 {
        client.scalar("SELECT 1")?;
    }
    let port = procs::free_port()?;
    command
        .args(["--port", &port.to_string(), "--host", "127.0.0.1", "--pgbouncer-host", "127.0.0.1"])
        .args(["--pgbouncer-port", &weir.port().to_string(), "--pgbouncer-user", "stats"])
        .env("PGPASSWORD", "stats")
        .env("PGAPPNAME", "prometheus-pgbouncer-exporter");
    let _exporter = start(&cluster, "exporter", &mut command)?;
    let log = || std::fs::read_to_string(cluster.root().join("exporter.log")).unwrap_or_default();
    let mut body = String::new();
    let came = eventually(LIMIT, || {
        body = http_get(port, "/metrics").map(|answer| answer.body).unwrap_or_default();
        body.contains("database=\"bench\"")
    });
    ensure!(came, "{body}\n{}", log());
    let queries: Vec<&str> =
        body.lines().filter(|line| line.contains("requests") && line.contains("\"bench\"")).collect();
    ensure!(queries.iter().any(|line| line.ends_with(" 3.0")), "{queries:?}\n{body}");
    Ok(())
}

fn promtool(args: &[&str], input: &str) -> Result<()> {
    let Some(mut command) = outside::command("promtool")? else { return Ok(()) };
    let mut promtool =
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    promtool.stdin.take().context("no stdin")?.write_all(input.as_bytes())?;
    let out = promtool.wait_with_output()?;
    let said = [out.stdout, out.stderr].concat();
    ensure!(out.status.success(), "promtool {args:?}: {}\n{input}", String::from_utf8_lossy(&said));
    Ok(())
}

/// AD-06: the exposition is valid with strange names, under load, while the pool is exhausted and while nodes are down,
/// and it answers within a second.
/// PP-13
#[test]
fn ad_06_metrics_are_valid_in_every_state() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 1, ..ClusterOptions::default() })?;
    let strange = "we\"ird\\ \u{e9}";
    cluster.sql(0, &format!("CREATE DATABASE \"{}\"", strange.replace('"', "\"\"")))?;
    let weir =
        Pgweir::start_with(&cluster, &PgweirOptions::yaml("default_pool_size: 1\nfailover_hold_timeout: 0"))?;
    let check = |state: &str| -> Result<String> {
        let began = std::time::Instant::now();
        let answer = http_get(weir.metrics_port(), "/metrics")?;
        ensure!(
            answer.status == 200 && began.elapsed() < Duration::from_secs(2),
            "{state}: {}",
            answer.status
        );
        ensure!(!answer.body.contains("=\"\""), "{state}: an empty label");
        promtool(&["check", "metrics"], &answer.body).context(state.to_owned())?;
        Ok(answer.body)
    };
    check("no traffic")?;
    let mut odd = harness::Login::new("bench", strange).connect(weir.port())?;
    odd.simple("SELECT 1")?;
    let body = check("strange names")?;
    ensure!(body.contains("database=\"we\\\"ird\\\\ \u{e9}\""), "{body}");
    let mut first = weir.client()?;
    first.simple("BEGIN")?;
    first.simple("SELECT 1")?;
    let mut second = weir.client()?;
    second.send(&msgs().Q("CREATE TEMP TABLE x(a int)"))?;
    let waiting = |body: &str| {
        body.lines()
            .any(|line| line.starts_with("pgweir_pool_waiting_clients{node=\"0\"") && line.ends_with(" 1"))
    };
    ensure!(eventually(LIMIT, || check("pool exhausted").is_ok_and(|body| waiting(&body))));
    let mut cluster = cluster;
    cluster.stop(1, StopMode::Immediate)?;
    cluster.stop(0, StopMode::Immediate)?;
    weir.wait_pool_nodes(LIMIT, |nodes| nodes.iter().all(|node| node["status"] == "down"))?;
    let body = check("all nodes down")?;
    ensure!(body.contains("pgweir_node_up{node=\"0\"} 0\npgweir_node_up{node=\"1\"} 0"), "{body}");
    Ok(())
}

/// AD-06: connections that say nothing, half of something, or do not read what they asked for, stop no scraper.
#[test]
fn ad_06_stalled_scrapers_stop_nobody() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let weir = Pgweir::start(&cluster, "")?;
    let mut stalled = Vec::new();
    for said in ["", "GET /metr", "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"] {
        for _ in 0..150 {
            let mut stream = TcpStream::connect(("127.0.0.1", weir.metrics_port()))?;
            // Whose seat is taken may be told so while it writes.
            let _ = stream.write_all(said.as_bytes());
            stalled.push(stream);
        }
        let began = std::time::Instant::now();
        let answer = http_get(weir.metrics_port(), "/health")?;
        ensure!(
            answer.status == 200 && began.elapsed() < Duration::from_secs(2),
            "{said:?}: {}",
            answer.status
        );
    }
    Ok(())
}

/// AD-06: counters do not fall by a reload, nor by a failover.
#[test]
fn ad_06_counters_do_not_fall() -> Result<()> {
    let (mut cluster, weir) = rig(1, "")?;
    let mut client = weir.client()?;
    for _ in 0..20 {
        client.scalar("SELECT 1")?;
        client.simple("BEGIN; CREATE TEMP TABLE x(a int) ON COMMIT DROP; COMMIT")?;
    }
    let mut before = weir.metrics()?;
    let mut compare = |what: &str| -> Result<()> {
        let now = weir.metrics()?;
        let counts =
            |name: &str| name.contains("_total") || name.contains("_count") || name.contains("_bucket");
        for (name, value) in before.iter().filter(|(name, _)| counts(name)) {
            let now = now.get(name).with_context(|| format!("{what}: {name} is gone"))?;
            ensure!(now >= value, "{what}: {name} fell from {value} to {now}");
        }
        before = now;
        Ok(())
    };
    weir.rewrite(&cluster, &PgweirOptions::yaml("default_pool_size: 7").weights(&[1, 3]))?;
    weir.admin("RELOAD")?;
    compare("reload")?;
    cluster.stop(0, StopMode::Immediate)?;
    cluster.promote(1)?;
    weir.wait_pool_nodes(LIMIT, |nodes| nodes[1]["role"] == "primary" && nodes[0]["status"] == "down")?;
    weir.client()?.simple("CREATE TABLE after_it(a int)")?;
    compare("failover")?;
    Ok(())
}

/// The families that a PromQL text names.
fn families(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for part in text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
        if part.starts_with("pgweir_") {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| part.strip_suffix(end));
            found.push(base.filter(|base| base.ends_with("_seconds")).unwrap_or(part).to_owned());
        }
    }
    found
}

/// Every query of the dashboard and of the alerts names families that the exporter has.
#[test]
fn dashboard_and_alerts_ask_for_what_there_is() -> Result<()> {
    let (_cluster, weir) = rig(1, "")?;
    let metrics = http_get(weir.metrics_port(), "/metrics")?.body;
    let known: Vec<&str> =
        metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let dashboard = std::fs::read_to_string(repository().join("etc/grafana/pgweir.json"))?;
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard)?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    ensure!(panels.len() >= 15, "{}", panels.len());
    let rules = std::fs::read_to_string(repository().join("etc/prometheus/pgweir.rules.yml"))?;
    let rules = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).map(str::to_owned);
    let mut asked: Vec<String> = rules.collect();
    for panel in panels {
        let targets = panel["targets"].as_array().context("no targets")?;
        asked.extend(targets.iter().filter_map(|target| target["expr"].as_str()).map(str::to_owned));
    }
    ensure!(asked.len() > 25, "{}", asked.len());
    for query in asked {
        for family in families(&query) {
            ensure!(known.contains(&family.as_str()), "{family} of {query}");
        }
    }
    Ok(())
}

fn ask(port: u16, query: &str) -> Result<serde_json::Value> {
    let escaped: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let answer = http_get(port, &format!("/api/v1/query?query={escaped}"))?;
    ensure!(answer.status == 200, "{query}: {}", answer.body);
    let body = answer.body.find('{').map_or("", |at| &answer.body[at..]);
    Ok(serde_json::from_str::<serde_json::Value>(body.trim_end_matches(['0', '\r', '\n']))?["data"]["result"]
        .take())
}

/// A real Prometheus scrapes pgweir; the alerts of etc/prometheus fire for an exhausted pool, a standby that lags, a dead
/// node, a missing primary and a failover; every query of the dashboard runs.
#[test]
fn prometheus_scrapes_and_alerts_fire() -> Result<()> {
    let Some(mut command) = outside::command("prometheus")? else { return Ok(()) };
    let mut cluster = Cluster::new(ClusterOptions { standbys: 1, ..ClusterOptions::default() })?;
    let weir = Pgweir::start(&cluster, "default_pool_size: 1\nfailover_hold_timeout: 0")?;
    let rules = std::fs::read_to_string(repository().join("etc/prometheus/pgweir.rules.yml"))?;
    let file = repository().join("etc/prometheus/pgweir.rules.yml");
    promtool(&["check", "rules", &file.display().to_string()], "")?;
    // What takes minutes and megabytes in life takes a second and kilobytes here.
    let megabytes = "64 * 1024 * 1024";
    ensure!(rules.contains(megabytes), "{rules}");
    let quick: String =
        rules
            .replace(megabytes, "64 * 1024")
            .lines()
            .map(|line| {
                if line.trim().starts_with("for: ") {
                    "        for: 0s\n".into()
                } else {
                    format!("{line}\n")
                }
            })
            .collect();
    let root = cluster.root().to_owned();
    std::fs::write(root.join("rules.yml"), quick)?;
    let port = procs::free_port()?;
    std::fs::write(
        root.join("prometheus.yml"),
        format!(
            "global: {{ scrape_interval: 250ms, evaluation_interval: 250ms }}\nrule_files: [rules.yml]\n\
             scrape_configs:\n  - job_name: pgweir\n    static_configs: [{{ targets: [\"127.0.0.1:{}\"] }}]\n",
            weir.metrics_port()
        ),
    )?;
    command
        .arg(format!("--config.file={}", root.join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", root.join("tsdb").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"));
    let _prometheus = start(&cluster, "prometheus", &mut command)?;
    let log = || std::fs::read_to_string(root.join("prometheus.log")).unwrap_or_default();
    let up =
        || ask(port, "pgweir_node_up").is_ok_and(|rows| rows.as_array().is_some_and(|rows| rows.len() == 2));
    ensure!(eventually(LIMIT, up), "{}", log());
    let firing = |alert: &str| -> bool {
        let query = format!("ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}}");
        ask(port, &query).is_ok_and(|rows| rows.as_array().is_some_and(|rows| !rows.is_empty()))
    };
    ensure!(!firing("PgweirNodeDown") && !firing("PgweirPoolExhausted"), "alerts without a reason");
    let mut first = weir.client()?;
    first.simple("BEGIN")?;
    first.simple("CREATE TEMP TABLE x(a int)")?;
    let mut second = weir.client()?;
    second.send(&msgs().Q("CREATE TEMP TABLE x(a int)"))?;
    ensure!(eventually(LIMIT, || firing("PgweirPoolExhausted")), "{}", log());
    cluster.sql(1, "SELECT pg_wal_replay_pause()")?;
    cluster.sql(0, "CREATE TABLE lagged AS SELECT generate_series(1, 10000) AS a")?;
    ensure!(eventually(LIMIT, || firing("PgweirStandbyLags")), "{}", log());
    cluster.stop(1, StopMode::Immediate)?;
    ensure!(eventually(LIMIT, || firing("PgweirNodeDown")), "{}", log());
    cluster.stop(0, StopMode::Immediate)?;
    ensure!(eventually(LIMIT, || firing("PgweirNoPrimary")), "{}", log());
    cluster.start(0)?;
    ensure!(eventually(LIMIT, || firing("PgweirFailover")), "{}", log());
    dashboard_runs(port)
}

/// Every query of the dashboard is one that Prometheus understands.
fn dashboard_runs(port: u16) -> Result<()> {
    let dashboard = std::fs::read_to_string(repository().join("etc/grafana/pgweir.json"))?;
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard)?;
    for panel in dashboard["panels"].as_array().context("no panels")? {
        for target in panel["targets"].as_array().context("no targets")? {
            let query = target["expr"].as_str().context("no query")?;
            ask(port, &query.replace("$instance", ".*").replace("$__rate_interval", "5m"))?;
        }
    }
    Ok(())
}
