//! Real drivers log in by every method and every mode of TLS: psycopg with the libpq of its wheel, asyncpg,
//! node-postgres, pgjdbc. The programs are `tests/drivers/*/logins.*`; what they need is brought as in `drivers.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::procs::target_dir;
use harness::{ClientAuth, Cluster, ClusterOptions, Pgweir, PgweirOptions, Pki, Signature};

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("drivers")
}

fn made(path: &str) -> Result<PathBuf> {
    let place = target_dir()?.join("drivers").join(path);
    ensure!(place.exists(), "{} is missing: `make drivers` makes it and runs these tests", place.display());
    Ok(place)
}

/// Runs a program against pgweir and takes its lines: every way but those with a wrong password must be in.
fn check(command: Command, least: usize) -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let pki = Pki::new(cluster.root(), "pki", Signature::RsaSha384)?;
    pki.issue("weir", "/CN=weir", "IP:127.0.0.1,DNS:localhost", 10)?;
    for method in ["password", "md5", "scram"] {
        cluster.sql(0, &format!("CREATE DATABASE c_{method}"))?;
    }
    let hba = "host c_password all all password\nhost c_md5 all all md5\nhost all all all scram-sha-256\n";
    let yaml = format!("ssl: allow\nssl_cert: {}\nssl_key: {}\n", pki.path("weir.crt"), pki.path("weir.key"));
    let auth = ClientAuth::Hba(hba.to_owned());
    let weir = Pgweir::start_with(&cluster, &PgweirOptions { yaml, auth, ..PgweirOptions::default() })?;
    let mut command = command;
    command.args(["127.0.0.1", &weir.port().to_string(), &pki.path("ca.crt")]);
    let out = harness::tools::run(&cluster, command, Duration::from_secs(90))?;
    let ways: Vec<(&str, &str)> = out.stdout.lines().filter_map(|line| line.split_once('\t')).collect();
    let wrong = |(way, said): &&(&str, &str)| {
        if way.ends_with("wrong") { !said.contains("password authentication failed") } else { *said != "ok" }
    };
    let failed: Vec<_> = ways.iter().filter(wrong).collect();
    ensure!(failed.is_empty() && out.code == 0, "{failed:?}\n{}\n{}", out.stdout, out.stderr);
    ensure!(ways.len() >= least, "only {} ways: {}\n{}", ways.len(), out.stdout, out.stderr);
    Ok(())
}

fn python(driver: &str) -> Result<Command> {
    let mut command = Command::new(made("python/bin/python")?);
    command.env("PYTHONDONTWRITEBYTECODE", "1").arg(sources().join(format!("python/logins_{driver}.py")));
    Ok(command)
}

#[test]
fn psycopg_by_every_method_and_mode() -> Result<()> {
    check(python("psycopg")?, 20)
}

#[test]
fn asyncpg_by_every_method_and_mode() -> Result<()> {
    check(python("asyncpg")?, 15)
}

#[test]
fn node_postgres_by_every_method_and_mode() -> Result<()> {
    let mut command = Command::new("node");
    command.env("NODE_PATH", made("node/node_modules")?).env("NODE_NO_WARNINGS", "1");
    command.arg(sources().join("node/logins.js"));
    check(command, 13)
}

#[test]
fn pgjdbc_by_every_method_and_mode() -> Result<()> {
    let mut command = Command::new("java");
    command.args(["-XX:TieredStopAtLevel=1", "-cp", "/usr/share/java/postgresql.jar"]);
    command.arg(sources().join("java/Logins.java"));
    check(command, 24)
}
