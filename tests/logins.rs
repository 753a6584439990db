//! Real drivers log in by every method and every mode of TLS: psycopg with the libpq of its wheel, asyncpg,
//! node-postgres, pgjdbc, psql; over the socket too where they can. The programs are `tests/drivers/*/logins.*`; what they need is brought as in `drivers.rs`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::checkers::{Directory, Services, asks};
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

/// The rules: a database for each method, over TCP and over the socket; `peer` for whoever runs the tests, and as nobody.
fn rules(methods: &[(&str, String)]) -> String {
    let mut hba = "hostssl c_cert all all cert\nhost c_cert all all reject\nlocal c_peer all peer map=os\n\
                   local c_others all peer map=others\n"
        .to_owned();
    for (name, method) in methods {
        hba.push_str(&format!("host c_{name} all all {method}\nlocal c_{name} all {method}\n"));
    }
    // For the harness.
    hba.push_str("host bench,postgres all all scram-sha-256\n");
    hba
}

/// What the programs are given, and what must outlive them.
struct Stage {
    _weir: Pgweir,
    arguments: Vec<String>,
    _directory: Directory,
    _services: Option<Services>,
}

fn stage(cluster: &Cluster) -> Result<Stage> {
    let pki = Pki::new(cluster.root(), "pki", Signature::RsaSha384)?;
    pki.issue("weir", "/CN=weir", "IP:127.0.0.1,DNS:localhost", 10)?;
    pki.issue("bench", "/CN=bench", "", 10)?;
    pki.to_der("bench")?;
    let directory = Directory::start(cluster.root(), "bench")?;
    let mut services = Services::new();
    let ldap = format!(
        "ldap ldapserver=127.0.0.1 ldapport={} ldapprefix=\"uid=\" ldapsuffix=\",dc=example\"",
        directory.port()
    );
    let mut methods: Vec<(&str, String)> = [
        ("trust", "trust"),
        ("password", "password"),
        ("md5", "md5"),
        ("scram", "scram-sha-256"),
        ("ldap", &ldap),
    ]
    .map(|(name, method)| (name, method.to_owned()))
    .into();
    if let Some(services) = &mut services {
        let script = "read -r password || true\n[ \"$PAM_USER\" = bench ] && [ \"$password\" = bench ]";
        let service = services.make("logins", &asks(cluster, "logins", script)?)?;
        methods.push(("pam", format!("pam pamservice={service}")));
    }
    for name in methods.iter().map(|(name, _)| *name).chain(["cert", "peer", "others"]) {
        cluster.sql(0, &format!("CREATE DATABASE c_{name}"))?;
    }
    let sockets = cluster.root().join("sockets");
    fs::create_dir(&sockets)?;
    fs::set_permissions(&sockets, fs::Permissions::from_mode(0o755))?;
    let me = Command::new("id").arg("-un").output()?;
    let me = String::from_utf8(me.stdout)?.trim().to_owned();
    let ident = sockets.join("ident");
    fs::write(&ident, format!("os {me} bench\nothers {me} other\n"))?;
    let [cert, key, ca] = ["weir.crt", "weir.key", "ca.crt"].map(|file| pki.path(file));
    let yaml = format!(
        "ssl: allow\nssl_cert: {cert}\nssl_key: {key}\nssl_ca_cert: {ca}\nunix_socket_directories: [\"{}\"]\n\
         pool_ident_file: {}\n",
        sockets.display(),
        ident.display()
    );
    let auth = ClientAuth::Hba(rules(&methods));
    let weir = Pgweir::start_with(cluster, &PgweirOptions { yaml, auth, ..PgweirOptions::default() })?;
    let with_password: Vec<&str> =
        methods.iter().map(|(name, _)| *name).filter(|name| *name != "trust").collect();
    let arguments = vec![
        "127.0.0.1".to_owned(),
        weir.port().to_string(),
        ca,
        pki.path("bench.crt"),
        pki.path("bench.key"),
        with_password.join(","),
        sockets.display().to_string(),
    ];
    Ok(Stage { _weir: weir, arguments, _directory: directory, _services: services })
}

/// Runs a program against pgweir and takes its lines: every way must be in but those whose names say otherwise.
fn check(mut command: Command, least: usize) -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let stage = stage(&cluster)?;
    command.args(&stage.arguments);
    let out = harness::tools::run(&cluster, command, Duration::from_secs(90))?;
    let ways: Vec<(&str, &str)> = out.stdout.lines().filter_map(|line| line.split_once('\t')).collect();
    let wrong = |(way, said): &&(&str, &str)| match way.rsplit(' ').next() {
        Some("wrong") => !said.contains("authentication failed for user"),
        Some("refused") => !said.starts_with("ERROR"),
        _ => *said != "ok",
    };
    let failed: Vec<_> = ways.iter().filter(wrong).collect();
    ensure!(failed.is_empty() && out.code == 0, "{failed:?}\n{}\n{}", out.stdout, out.stderr);
    ensure!(ways.len() >= least, "only {} ways: {}\n{}", ways.len(), out.stdout, out.stderr);
    drop(stage);
    Ok(())
}

fn python(driver: &str) -> Result<Command> {
    let mut command = Command::new(made("python/bin/python")?);
    command.env("PYTHONDONTWRITEBYTECODE", "1").arg(sources().join(format!("python/logins_{driver}.py")));
    Ok(command)
}

#[test]
fn psycopg_by_every_method_and_mode() -> Result<()> {
    check(python("psycopg")?, 88)
}

#[test]
fn asyncpg_by_every_method_and_mode() -> Result<()> {
    check(python("asyncpg")?, 42)
}

#[test]
fn node_postgres_by_every_method_and_mode() -> Result<()> {
    let mut command = Command::new("node");
    command.env("NODE_PATH", made("node/node_modules")?).env("NODE_NO_WARNINGS", "1");
    command.arg(sources().join("node/logins.js"));
    check(command, 38)
}

#[test]
fn pgjdbc_by_every_method_and_mode() -> Result<()> {
    let mut command = Command::new("java");
    command.args(["-XX:TieredStopAtLevel=1", "-cp", "/usr/share/java/postgresql.jar"]);
    command.arg(sources().join("java/Logins.java"));
    check(command, 41)
}

/// psql with the libpq of the servers' release.
#[test]
fn psql_by_every_method_and_mode() -> Result<()> {
    let script = sources().join("shell/logins_psql.sh");
    let mut command = Command::new("sh");
    command.arg(script).env("PSQL", harness::install::Install::find()?.client("psql").get_program());
    check(command, 56)
}
