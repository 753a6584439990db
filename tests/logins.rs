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

/// Runs a program against pgweir and takes its lines: every way must be in but those whose names say otherwise.
fn check(command: Command, least: usize) -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let pki = Pki::new(cluster.root(), "pki", Signature::RsaSha384)?;
    pki.issue("weir", "/CN=weir", "IP:127.0.0.1,DNS:localhost", 10)?;
    pki.issue("bench", "/CN=bench", "", 10)?;
    pki.to_der("bench")?;
    for method in ["trust", "cert", "password", "md5", "scram"] {
        cluster.sql(0, &format!("CREATE DATABASE c_{method}"))?;
    }
    let hba = "host c_trust all all trust\nhostssl c_cert all all cert\nhost c_cert all all reject\n\
               host c_password all all password\nhost c_md5 all all md5\nhost all all all scram-sha-256\n";
    let [cert, key, ca] = ["weir.crt", "weir.key", "ca.crt"].map(|file| pki.path(file));
    let yaml = format!("ssl: allow\nssl_cert: {cert}\nssl_key: {key}\nssl_ca_cert: {ca}\n");
    let auth = ClientAuth::Hba(hba.to_owned());
    let weir = Pgweir::start_with(&cluster, &PgweirOptions { yaml, auth, ..PgweirOptions::default() })?;
    let mut command = command;
    command.args([
        "127.0.0.1",
        &weir.port().to_string(),
        &ca,
        &pki.path("bench.crt"),
        &pki.path("bench.key"),
    ]);
    let out = harness::tools::run(&cluster, command, Duration::from_secs(90))?;
    let ways: Vec<(&str, &str)> = out.stdout.lines().filter_map(|line| line.split_once('\t')).collect();
    let wrong = |(way, said): &&(&str, &str)| match way.rsplit(' ').next() {
        Some("wrong") => !said.contains("password authentication failed"),
        Some("refused") => !said.starts_with("ERROR"),
        _ => *said != "ok",
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
    check(python("psycopg")?, 60)
}

#[test]
fn asyncpg_by_every_method_and_mode() -> Result<()> {
    check(python("asyncpg")?, 22)
}

#[test]
fn node_postgres_by_every_method_and_mode() -> Result<()> {
    let mut command = Command::new("node");
    command.env("NODE_PATH", made("node/node_modules")?).env("NODE_NO_WARNINGS", "1");
    command.arg(sources().join("node/logins.js"));
    check(command, 20)
}

#[test]
fn pgjdbc_by_every_method_and_mode() -> Result<()> {
    let mut command = Command::new("java");
    command.args(["-XX:TieredStopAtLevel=1", "-cp", "/usr/share/java/postgresql.jar"]);
    command.arg(sources().join("java/Logins.java"));
    check(command, 34)
}

/// psql with the libpq of the servers' release.
#[test]
fn psql_by_every_method_and_mode() -> Result<()> {
    let script = sources().join("shell/logins_psql.sh");
    let mut command = Command::new("sh");
    command.arg(script).env("PSQL", harness::install::Install::find()?.client("psql").get_program());
    check(command, 34)
}
