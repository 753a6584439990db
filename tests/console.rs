//! What operators look at: SHOW POOL_NODES in any session, the admin database, metrics and health.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use harness::{Cluster, Login, Pgweir, RawClient, Reply, http_get, msgs, psql, rig, sqlstate};

const POOL_NODES: &str = "node_id hostname port status pg_status lb_weight role pg_role select_cnt \
    load_balance_node replication_delay replication_state replication_sync_state last_status_change";
const POOLS: &str = "database user cl_active cl_waiting cl_active_cancel_req cl_waiting_cancel_req sv_active \
    sv_active_cancel sv_being_canceled sv_idle sv_used sv_tested sv_login maxwait maxwait_us pool_mode \
    load_balance_hosts";
const CLIENTS: &str = "type user database replication state addr port local_addr local_port connect_time \
    request_time wait wait_us close_needed ptr link remote_pid tls application_name prepared_statements id";

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

fn check_nodes(rows: &[Vec<String>], cluster: &Cluster) -> Result<()> {
    ensure!(rows.len() == cluster.len(), "{rows:?}");
    for (id, row) in rows.iter().enumerate() {
        let port = cluster.port(id).to_string();
        let (role, weight) = if id == 0 { ("primary", "0.000000") } else { ("standby", "0.500000") };
        assert_eq!(row[..4], [&id.to_string(), "127.0.0.1", &port, "up"], "{row:?}");
        assert_eq!(
            (row[4].as_str(), row[5].as_str(), row[6].as_str(), row[7].as_str()),
            ("up", weight, role, role)
        );
        ensure!(row[8].parse::<u64>().is_ok(), "select_cnt {:?}", row[8]);
        ensure!(["true", "false", "t", "f"].contains(&row[9].as_str()), "load_balance_node {:?}", row[9]);
        let time = &row[13];
        ensure!(time.len() == 19 && time.as_bytes()[10] == b' ' && time.as_bytes()[4] == b'-', "{time:?}");
    }
    Ok(())
}

#[test]
fn show_pool_nodes_by_psql() -> Result<()> {
    let (cluster, weir) = rig(2, "")?;
    let out = psql(&cluster, weir.port(), "bench", &["-c", "SHOW POOL_NODES"])?;
    ensure!(out.code == 0, "{out:?}");
    let rows: Vec<Vec<String>> =
        out.stdout.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect();
    check_nodes(&rows, &cluster)?;
    let header = psql(&cluster, weir.port(), "bench", &["-P", "tuples_only=off", "-c", "show pool_nodes;"])?;
    let names: Vec<&str> = header.stdout.lines().next().unwrap_or_default().split('|').collect();
    assert_eq!(names, words(POOL_NODES));
    Ok(())
}

#[test]
fn show_pool_nodes_by_both_protocols_anywhere() -> Result<()> {
    let (cluster, weir) = rig(2, "")?;
    let mut client = weir.client()?;
    let rows = |client: &mut RawClient, sql: &str| -> Result<Vec<Vec<String>>> {
        let rows = client.simple(sql)?;
        assert_eq!(rows.columns, words(POOL_NODES));
        assert_eq!(rows.tags, ["SHOW"]);
        Ok(rows
            .rows
            .into_iter()
            .map(|row| row.into_iter().map(Option::unwrap_or_default).collect())
            .collect())
    };
    for sql in ["SHOW POOL_NODES", "show pool_nodes;", "  Show  Pool_Nodes ;", "/* x */ SHOW POOL_NODES -- y"]
    {
        check_nodes(&rows(&mut client, sql)?, &cluster)?;
    }
    for begin in ["BEGIN", "BEGIN READ ONLY"] {
        client.simple(begin)?;
        check_nodes(&rows(&mut client, "SHOW POOL_NODES")?, &cluster)?;
        client.scalar("SELECT 1")?;
        let replies = client.talk(&msgs().Q("SHOW POOL_NODES"))?.to_string();
        ensure!(replies.starts_with("T D(0,") && replies.ends_with(" C(SHOW) Z(T)"), "{replies}");
        let replies = client.talk(&msgs().PBE("SHOW POOL_NODES").PBE("SELECT 5").S())?.to_string();
        ensure!(replies.ends_with("C(SHOW) 1 2 D(5) C(SELECT 1) Z(T)"), "{replies}");
        client.simple("COMMIT")?;
    }
    let batch = msgs().P("", "SHOW POOL_NODES").D('S', "").B("", "", &[]).D('P', "").E().S().Q("SELECT 1");
    let replies = client.talk(&batch)?;
    let text = replies.to_string();
    ensure!(
        text.starts_with("1 t T 2 T D(0,") && text.ends_with("C(SHOW) Z(I) T D(1) C(SELECT 1) Z(I)"),
        "{text}"
    );
    // A named one, used again after other work, between other statements of the batch.
    client.talk(&msgs().P("nodes", "SHOW POOL_NODES").S())?;
    for _ in 0..3 {
        let batch = msgs().PBE("SELECT 6").B("", "nodes", &[]).E().PBE("SELECT 7").S();
        let text = client.talk(&batch)?.to_string();
        ensure!(text.starts_with("1 2 D(6) C(SELECT 1) 2 D(0,"), "{text}");
        ensure!(text.ends_with("C(SHOW) 1 2 D(7) C(SELECT 1) Z(I)"), "{text}");
    }
    assert_eq!(client.talk(&msgs().C('S', "nodes").S())?.to_string(), "3 Z(I)");
    Ok(())
}

/// `replication_state` and `replication_sync_state` are the primary's `pg_stat_replication`, in SHOW POOL_NODES and the
/// status for programs.
#[test]
fn pool_nodes_tell_how_the_standbys_replicate() -> Result<()> {
    let (cluster, weir) = rig(2, "")?;
    let states = |nodes: &[BTreeMap<String, String>]| -> Vec<(String, String)> {
        let of = |node: &BTreeMap<String, String>| {
            (node["replication_state"].clone(), node["replication_sync_state"].clone())
        };
        nodes.iter().map(of).collect()
    };
    let pair = |state: &str, sync: &str| (state.to_owned(), sync.to_owned());
    let limit = std::time::Duration::from_secs(10);
    let asynchronous = [pair("", ""), pair("streaming", "async"), pair("streaming", "async")];
    weir.wait_pool_nodes(limit, |nodes| states(nodes) == asynchronous)?;
    cluster.sql(0, "ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (n2, n1)'")?;
    cluster.sql(0, "SELECT pg_reload_conf()")?;
    let synchronous = [pair("", ""), pair("streaming", "potential"), pair("streaming", "sync")];
    weir.wait_pool_nodes(limit, |nodes| states(nodes) == synchronous)?;
    let status: serde_json::Value =
        serde_json::from_str(&http_get(weir.metrics_port(), "/status")?.body).context("/status")?;
    assert_eq!(status["nodes"][2]["replication_sync_state"], "sync");
    Ok(())
}

#[test]
fn select_counts_add_up() -> Result<()> {
    let (_cluster, weir) = rig(2, "")?;
    let count = |nodes: Vec<BTreeMap<String, String>>| -> Result<Vec<u64>> {
        nodes.iter().map(|node| Ok(node["select_cnt"].parse()?)).collect()
    };
    let before = count(weir.pool_nodes()?)?;
    let mut client = weir.client()?;
    for _ in 0..50 {
        client.scalar("SELECT 1")?;
        client.scalar_extended("SELECT $1::int", &["1"])?;
    }
    let after = count(weir.pool_nodes()?)?;
    let grown: Vec<u64> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
    assert_eq!(grown.iter().sum::<u64>(), 100, "{grown:?}");
    assert_eq!(grown[0], 0, "{grown:?}");
    ensure!(grown[1] > 20 && grown[2] > 20, "{grown:?}");
    Ok(())
}

fn admin(weir: &Pgweir, user: &str, database: &str) -> Result<RawClient> {
    Login::new(user, database).connect(weir.port())
}

#[test]
fn ad_01_admin_shows_by_both_protocols() -> Result<()> {
    let (_cluster, weir) = rig(1, "")?;
    let mut worker = Login::bench().with("application_name", "worker").connect(weir.port())?;
    worker.simple("BEGIN")?;
    worker.simple("SELECT 1")?;
    for database in ["pgweir", "pgbouncer"] {
        let mut console = admin(&weir, "postgres", database)?;
        for (command, columns) in
            [("SHOW POOLS", POOLS), ("SHOW CLIENTS", CLIENTS), ("SHOW SERVERS", CLIENTS)]
        {
            let rows = console.simple(command)?;
            assert_eq!(rows.columns, words(columns), "{command}");
            ensure!(!rows.rows.is_empty(), "{command} is empty");
            let lower = console.simple(&format!(" {} ; ", command.to_lowercase()))?;
            assert_eq!(lower.columns, rows.columns, "{command}");
            let replies = console.talk(&msgs().P("", command).D('S', "").B("", "", &[]).E().S())?;
            let text = replies.to_string();
            ensure!(text.starts_with("1 t T 2 D(") && text.ends_with("C(SHOW) Z(I)"), "{command}: {text}");
            let flushed = console.send(&msgs().P("", command).D('S', "").H());
            flushed.and_then(|()| console.read_count(3)).context(command)?;
            let text = console.talk(&msgs().B("", "", &[]).E().S())?.to_string();
            ensure!(text.starts_with("2 D("), "{command}: {text}");
        }
        let version = console.simple("SHOW VERSION")?;
        ensure!(version.first_column()[0].to_lowercase().contains("pgweir"), "{version:?}");
        for (sent, wanted) in [
            (msgs().Q("-- ping"), "I Z(I)"),
            (msgs().Q(";"), "I Z(I)"),
            (msgs().Q(""), "I Z(I)"),
            (msgs().Q("SELECT 1"), "T D(1) C(SELECT 1) Z(I)"),
            (msgs().S().S(), "Z(I) Z(I)"),
        ] {
            assert_eq!(console.talk(&sent)?.to_string(), wanted);
        }
        let unknown = console.talk(&msgs().Q("FROBNICATE"))?;
        let fields = unknown.error().context("no error for nonsense")?;
        ensure!(
            fields.get('C').len() == 5 && !fields.get('M').is_empty() && fields.get('S') == "ERROR",
            "{fields:?}"
        );
        ensure!(matches!(unknown.0.last(), Some(Reply::ReadyForQuery('I'))), "{unknown}");
    }
    worker.simple("COMMIT")?;
    Ok(())
}

#[test]
fn ad_01_pools_clients_and_servers_tell_the_truth() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 1")?;
    let mut worker = Login::bench().with("application_name", "worker").connect(weir.port())?;
    worker.simple("BEGIN")?;
    let pid = worker.scalar("SELECT pg_backend_pid()")?;
    let mut waiter = Login::bench().with("application_name", "waiter").connect(weir.port())?;
    waiter.send(&msgs().Q("INSERT INTO nowhere VALUES (1)"))?;
    ensure!(waiter.silent_for(std::time::Duration::from_millis(200))?, "not queued");

    let clients = weir.admin("SHOW CLIENTS")?;
    let named = |name: &str| clients.iter().find(|row| row["application_name"] == name).cloned();
    let (w, q) = (named("worker").context("no worker")?, named("waiter").context("no waiter")?);
    assert_eq!(
        (w["state"].as_str(), w["user"].as_str(), w["database"].as_str()),
        ("active", "bench", "bench")
    );
    assert_eq!(q["state"], "waiting");
    let servers = weir.admin("SHOW SERVERS")?;
    let server = servers.iter().find(|row| row["remote_pid"] == pid).context("no such server")?;
    assert_eq!(server["state"], "active");
    assert_eq!(server["port"], cluster.port(0).to_string());
    let pools = weir.admin("SHOW POOLS")?;
    let of_bench: Vec<_> =
        pools.iter().filter(|row| row["user"] == "bench" && row["database"] == "bench").collect();
    let sum = |column: &str| of_bench.iter().map(|row| row[column].parse::<u64>().unwrap_or(0)).sum::<u64>();
    assert_eq!((sum("cl_active"), sum("cl_waiting"), sum("sv_active")), (1, 1, 1), "{of_bench:?}");

    worker.simple("COMMIT")?;
    assert_eq!(waiter.read_ready(1)?.to_string(), "E(42P01) Z(I)");
    Ok(())
}

#[test]
fn ad_04_rights_in_the_admin_database() -> Result<()> {
    let (_cluster, weir) = rig(0, "")?;
    for database in ["pgweir", "pgbouncer"] {
        let refused = admin(&weir, "bench", database).map(|_| ()).expect_err("bench is no admin");
        ensure!(["28000", "42501", "3D000"].contains(&sqlstate(&refused)), "{refused:#}");
        let mut stats = admin(&weir, "stats", database)?;
        ensure!(!stats.simple("SHOW POOLS")?.columns.is_empty(), "stats may read");
        assert_eq!(stats.sqlstate_of("RELOAD")?, "42501");
        assert_eq!(stats.scalar("SELECT 1")?, "1", "the session goes on");
    }
    let wrong = Login::new("postgres", "pgweir").password("x").connect(weir.port()).map(|_| ());
    assert_eq!(sqlstate(&wrong.expect_err("a wrong password")), "28P01");
    Ok(())
}

/// Strict enough to find what a scraper would refuse.
fn check_exposition(text: &str) -> Result<()> {
    let mut types: BTreeMap<&str, &str> = BTreeMap::new();
    let mut helped = std::collections::BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').context(line.to_owned())?;
            ensure!(types.insert(name, kind).is_none(), "TYPE twice: {name}");
        } else if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').context(line.to_owned())?;
            ensure!(helped.insert(name) && !help.is_empty(), "HELP twice or empty: {name}");
        } else {
            let (series, value) = line.rsplit_once(' ').context(line.to_owned())?;
            ensure!(value.parse::<f64>().is_ok(), "{line}");
            ensure!(!series.contains("=\"\""), "empty label: {line}");
            let name = series.split('{').next().unwrap_or_default();
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let kind = types.get(name).or_else(|| types.get(family.unwrap_or(name)));
            let kind = kind.with_context(|| format!("no TYPE: {line}"))?;
            ensure!(*kind != "counter" || name.ends_with("_total"), "counter without _total: {name}");
            ensure!(name.starts_with("pgweir_") || name.starts_with("process_"), "{name}");
        }
    }
    ensure!(types.keys().all(|name| helped.contains(name)), "TYPE without HELP");
    ensure!(!types.is_empty(), "no metrics");
    Ok(())
}

#[test]
fn ad_06_metrics_and_health() -> Result<()> {
    let (_cluster, weir) = rig(2, "")?;
    let first = http_get(weir.metrics_port(), "/metrics")?;
    ensure!(
        first.status == 200 && first.head.to_lowercase().contains("content-type: text/plain"),
        "{}",
        first.head
    );
    check_exposition(&first.body)?;
    let before = weir.metrics()?;
    let mut client = weir.client()?;
    for _ in 0..20 {
        client.scalar("SELECT 1")?;
        client.simple("BEGIN; CREATE TEMP TABLE x(a int) ON COMMIT DROP; COMMIT")?;
    }
    let after = weir.metrics()?;
    for (name, value) in &before {
        if name.contains("_total") {
            let now = after.get(name).with_context(|| format!("{name} is gone"))?;
            ensure!(now >= value, "{name} fell from {value} to {now}");
        }
    }
    let grown = after.iter().filter(|(name, value)| before.get(*name) != Some(*value)).count();
    ensure!(grown >= 3, "traffic shows in {grown} series only");
    for node in ["0", "1", "2"] {
        ensure!(
            after.keys().any(|name| name.contains(&format!("node=\"{node}\""))),
            "nothing about node {node}"
        );
    }
    assert_eq!(http_get(weir.metrics_port(), "/health")?.status, 200);
    assert_eq!(http_get(weir.metrics_port(), "/nothing-there")?.status, 404);
    check_exposition(&http_get(weir.metrics_port(), "/metrics")?.body)?;
    std::thread::scope(|scope| -> Result<()> {
        let scrapes: Vec<_> =
            (0..20).map(|_| scope.spawn(|| http_get(weir.metrics_port(), "/metrics"))).collect();
        scrapes.into_iter().try_for_each(|one| {
            let answer = one.join().expect("a scrape panicked")?;
            ensure!(answer.status == 200, "{}", answer.status);
            Ok(())
        })
    })
}
