//! PostgreSQL's own regression scripts for real, through pgweir in front of a primary and a standby: whatever the standby
//! refuses because it is one was sent to the wrong node.
//!
//! `cargo run -p pgweir-tests --example regress_live -- DIRECTORY [NAME ...]`; `make regress-live` fetches the scripts
//! (Debian's source package of PostgreSQL 15) and runs all of them; nothing of them is kept here. They run in the order of
//! their names, each in a database of its own that `test_setup` has prepared, as far as they come: not what they answer
//! counts, but where their statements run. The standby shows what was committed, so that reads need not wait for it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::{Cluster, ClusterOptions, Pgweir, tools};

/// How a server says that it is a standby.
const REFUSALS: [&str; 6] = [
    "in a read-only transaction",
    "during recovery",
    "recovery is in progress",
    "Recovery is in progress",
    "while in recovery",
    "read-only SQL-transaction",
];

/// What comes first, and what changes more than its own database, or takes very long.
const LEFT_OUT: [&str; 4] = ["test_setup", "tablespace", "database", "infinite_recurse"];

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let directory = args.next().context("usage: regress_live DIRECTORY [NAME ...]")?;
    let wanted: Vec<String> = args.collect();
    let directory = std::fs::canonicalize(directory)?;
    let cluster =
        Cluster::new(ClusterOptions { standbys: 1, max_connections: 1000, ..ClusterOptions::default() })?;
    let yaml = "consistency: eventual\nquery_timeout: 20s\nidle_transaction_timeout: 20s";
    let weir = Pgweir::start(&cluster, yaml)?;
    for sql in [
        "ALTER ROLE bench SUPERUSER",
        "ALTER SYSTEM SET synchronous_standby_names = '*'",
        "ALTER SYSTEM SET synchronous_commit = 'remote_apply'",
        "SELECT pg_reload_conf()",
        "CREATE DATABASE prepared",
    ] {
        cluster.sql(0, sql)?;
    }
    let names = names(&directory, &wanted)?;
    provoke(&cluster)?;
    run(&cluster, cluster.port(0), &directory, "test_setup", "prepared")?;
    for name in &names {
        let database = format!("{}_db", name.replace('.', "_"));
        cluster.sql(0, &format!("CREATE DATABASE {database} TEMPLATE prepared"))?;
        run(&cluster, weir.port(), &directory, name, &database)?;
    }
    report(&cluster, names.len())
}

/// What is looked for is there to be seen: a write at the standby itself.
fn provoke(cluster: &Cluster) -> Result<()> {
    let refused = cluster.direct(1)?.sqlstate_of("CREATE TABLE provoked()")?;
    ensure!(refused == "25006", "the standby takes a write: {refused:?}");
    ensure!(refusals(&cluster.log(1)?).len() == 1, "a refusal is not seen in the log of the standby");
    Ok(())
}

/// The errors in a standby's log by which it says that it is one, with their statements.
fn refusals(log: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut refused: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut lines = log.lines();
    while let Some(line) = lines.next() {
        let error = line.contains("|bench|") && line.contains("ERROR:");
        if error && REFUSALS.iter().any(|refusal| line.contains(refusal)) {
            let what = line.split("ERROR:").nth(1).unwrap_or_default().trim();
            let statement = lines.by_ref().find(|line| line.contains("STATEMENT:")).unwrap_or_default();
            refused.entry(what).or_default().push(statement);
        }
    }
    refused
}

fn names(directory: &Path, wanted: &[String]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory.join("sql"))? {
        let name = entry?.file_name().into_string().unwrap_or_default();
        names.extend(name.strip_suffix(".sql").map(str::to_owned));
    }
    names.retain(|name| !LEFT_OUT.contains(&name.as_str()) && (wanted.is_empty() || wanted.contains(name)));
    names.sort();
    Ok(names)
}

fn run(cluster: &Cluster, port: u16, directory: &Path, name: &str, database: &str) -> Result<()> {
    let mut psql = cluster.install().client("psql");
    psql.args(["-X", "-q", "-p", &port.to_string(), "-d", database, "-f"]);
    psql.arg(directory.join("sql").join(format!("{name}.sql")));
    psql.envs([
        ("PG_ABS_SRCDIR", directory.as_os_str()),
        ("PG_LIBDIR", "".as_ref()),
        ("PG_DLSUFFIX", ".so".as_ref()),
    ]);
    // One that is ended leaves the others what they need.
    if let Err(error) = tools::run(cluster, psql, Duration::from_secs(120)) {
        println!("{name}: {error:#}");
    }
    Ok(())
}

/// The refusals in the standby's log, and how much ran where.
fn report(cluster: &Cluster, scripts: usize) -> Result<()> {
    let log = cluster.log(1)?;
    let mut refused = refusals(&log);
    refused.retain(|_, statements| {
        statements.retain(|statement| !statement.contains("provoked"));
        !statements.is_empty()
    });
    let ran = |node| -> Result<usize> {
        Ok(cluster.statements_logged(node)?.iter().filter(|logged| logged.user == "bench").count())
    };
    println!("{scripts} scripts: {} statements on the primary, {} on the standby", ran(0)?, ran(1)?);
    for (what, statements) in &refused {
        println!("{}x {what}", statements.len());
        statements.iter().take(5).for_each(|statement| println!("    {statement}"));
    }
    let errors = log.lines().filter(|line| line.contains("|bench|") && line.contains("ERROR:")).count();
    println!(
        "{} of {errors} errors of the standby say that it is one",
        refused.values().map(Vec::len).sum::<usize>()
    );
    let locks = cluster.scalar(1, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")?;
    ensure!(locks == "0", "{locks} advisory locks on the standby");
    Ok(())
}
