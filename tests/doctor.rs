//! `pgweir check --connect`: the doctor before real nodes, healthy and not; and `pgweir top`.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::pgweir::binary;
use harness::tools::{Output, run};
use harness::{Cluster, ClusterOptions, Pgweir, PgweirOptions, StopMode, eventually, rig};

const LIMIT: Duration = Duration::from_secs(60);

fn check(cluster: &Cluster, weir: &Pgweir) -> Result<Output> {
    let mut command = Command::new(binary()?);
    command.args(["check", "--connect"]).arg(weir.dir().join("pgweir.yaml"));
    run(cluster, command, LIMIT)
}

/// Every complaint is followed by its cure.
fn complaints(out: &Output) -> Result<Vec<(String, String)>> {
    let lines: Vec<&str> = out.stdout.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let line = line.trim_start();
        if line.starts_with("warning ") || line.starts_with("error ") {
            let cure = lines.get(at + 1).and_then(|next| next.trim_start().strip_prefix("-> "));
            ensure!(cure.is_some_and(|cure| !cure.is_empty()), "no cure: {line}\n{}", out.stdout);
            found.push((line.to_owned(), cure.unwrap_or_default().to_owned()));
        }
    }
    Ok(found)
}

fn has(found: &[(String, String)], begin: &str, what: &str, cure: &str) -> Result<()> {
    let is = |(said, helps): &(String, String)| {
        said.starts_with(begin) && said.contains(what) && helps.contains(cure)
    };
    ensure!(found.iter().any(is), "{begin} {what} {cure}: {found:#?}");
    Ok(())
}

/// PP-10: a cluster as it should be has no complaint; then each thing that is wrong is told with what helps.
#[test]
fn the_doctor_finds_what_is_wrong() -> Result<()> {
    let mut cluster = Cluster::new(ClusterOptions { standbys: 1, ..ClusterOptions::default() })?;
    let secrets = "bench:TEXTbench\npgweir:TEXTpgweir\n";
    let options = |passwords: &str, yaml: &str| PgweirOptions {
        passwords: Some(passwords.to_owned()),
        ..PgweirOptions::yaml(yaml)
    };
    let small = "default_pool_size: 5\nmax_client_conn: 100\nreserved_connections: 1";
    let weir = Pgweir::start_with(&cluster, &options(secrets, small))?;
    let out = check(&cluster, &weir)?;
    ensure!(out.code == 0 && complaints(&out)?.is_empty(), "{out:#?}");
    for part in
        ["node 0, 127.0.0.1:", "primary, timeline 1", "standby, timeline 1", "2 users of pool_passwd log in"]
    {
        ensure!(out.stdout.contains(part), "{part}: {}", out.stdout);
    }
    cluster.sql(0, "REVOKE pg_monitor FROM pgweir")?;
    cluster.sql(0, "CREATE ROLE sleeper NOLOGIN PASSWORD 'x'")?;
    let wrong = format!("{secrets}other:TEXTwrong\nsleeper:TEXTx\n");
    // What may be called is granted by database: the harness grants it in the usual one.
    let many = format!("{small}\nfailover_mode: promote\nsr_check_database: bench\ndefault_pool_size: 5000")
        .replacen("default_pool_size: 5\n", "", 1);
    weir.rewrite(&cluster, &options(&wrong, &many))?;
    let out = check(&cluster, &weir)?;
    let found = complaints(&out)?;
    assert_eq!(out.code, 1, "{out:#?}");
    has(&found, "warning", "pgweir is no member of pg_monitor", "GRANT pg_monitor")?;
    has(&found, "error", "may not promote", "GRANT EXECUTE ON FUNCTION")?;
    has(&found, "error", "other of pool_passwd cannot log in", "pgweir passwd --method text other")?;
    has(&found, "error", "sleeper of pool_passwd cannot log in", "LOGIN")?;
    has(&found, "error", "less than one pool of 5000", "lower default_pool_size")?;
    ensure!(!out.stdout.contains("wrong") && !out.stderr.contains("wrong"), "a secret is shown: {out:#?}");
    cluster.stop(0, StopMode::Immediate)?;
    weir.rewrite(&cluster, &options(secrets, small))?;
    let out = check(&cluster, &weir)?;
    let found = complaints(&out)?;
    assert_eq!(out.code, 1, "{out:#?}");
    has(&found, "error", "pgweir cannot log in", "is PostgreSQL running there")?;
    has(&found, "error", "no node is a primary", "promote one")?;
    Ok(())
}

/// A configuration that is refused is refused before anybody is asked.
#[test]
fn a_refused_configuration_stays_refused() -> Result<()> {
    let (cluster, weir) = rig(0, "")?;
    weir.rewrite(&cluster, &PgweirOptions::yaml("load_balance_mode: maybe"))?;
    let out = check(&cluster, &weir)?;
    ensure!(out.code == 78 && out.stderr.contains("load_balance_mode"), "{out:#?}");
    Ok(())
}

/// `pgweir top` shows rates of what is going on; `/` is the same for a browser.
#[test]
fn top_and_the_page_show_what_is_going_on() -> Result<()> {
    let (cluster, weir) = rig(1, "")?;
    let mut client = weir.client()?;
    client.scalar("SELECT 1")?;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let out = std::thread::scope(|scope| {
        let load = scope.spawn(|| -> Result<()> {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                client.scalar("SELECT 1")?;
            }
            Ok(())
        });
        let mut command = Command::new(binary()?);
        command.args(["top", "-d", "1", "-n", "2", "-f"]).arg(weir.dir().join("pgweir.yaml"));
        let out = run(&cluster, command, LIMIT);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        load.join().map_err(|_| anyhow::anyhow!("the load panicked"))??;
        out
    })?;
    ensure!(out.code == 0, "{out:#?}");
    let rows: Vec<Vec<&str>> = out.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    let of = |first: &str| rows.iter().rfind(|row| row.first() == Some(&first)).cloned().unwrap_or_default();
    // The last row that begins with the name of the database is of the second reading.
    let rate = |cell: Option<&&str>| cell.and_then(|cell| cell.parse::<f64>().ok()).unwrap_or(-1.0);
    ensure!(rate(of("bench").get(1)) > 0.0, "{}", out.stdout);
    ensure!(
        rows.iter().any(|row| row.len() > 5 && row[0] == "1" && rate(row.get(5)) > 0.0),
        "{}",
        out.stdout
    );
    ensure!(!out.stdout.contains('\u{1b}'), "control sequences without a terminal");
    let page = harness::http_get(weir.metrics_port(), "/")?;
    ensure!(
        page.status == 200 && page.head.to_lowercase().contains("content-type: text/html"),
        "{}",
        page.head
    );
    let there = || {
        harness::http_get(weir.metrics_port(), "/").is_ok_and(|page| {
            ["<td>bench</td>", "<span class=\"up\">up</span>", "streaming async"]
                .iter()
                .all(|part| page.body.contains(part))
        })
    };
    ensure!(eventually(Duration::from_secs(10), there), "{}", page.body);
    Ok(())
}
