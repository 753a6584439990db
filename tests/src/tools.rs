//! Whole programs as clients: pgbench, psql, and a minimal HTTP request.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cluster::Cluster;
use crate::procs;

/// What a program said and how it ended.
#[derive(Clone, Debug)]
pub struct Output {
    /// Exit code; -1 when it was killed.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// What pgbench reported.
#[derive(Clone, Debug)]
pub struct PgbenchReport {
    /// Transactions actually processed.
    pub processed: u64,
    /// Failed transactions.
    pub failed: u64,
    /// Transactions per second, without the initial connections.
    pub tps: f64,
}

/// Runs a client program with a limit on its time, as the role `bench` (password in the environment).
///
/// # Errors
/// When it cannot be started, or does not end within `limit` (it is killed then).
pub fn run(cluster: &Cluster, mut command: Command, limit: Duration) -> Result<Output> {
    // Into files: a pipe that nobody reads would stop the program.
    let dir = tempfile::Builder::new().prefix("tool-").tempdir_in(cluster.root())?;
    let (out, err) = (dir.path().join("out"), dir.path().join("err"));
    let mut child = command
        .current_dir(dir.path())
        .envs([
            ("PGPASSWORD", "bench"),
            ("PGUSER", "bench"),
            ("PGDATABASE", "bench"),
            ("PGHOST", "127.0.0.1"),
        ])
        .env("PGCONNECT_TIMEOUT", "20")
        .stdin(Stdio::null())
        .stdout(fs::File::create(&out)?)
        .stderr(fs::File::create(&err)?)
        .spawn()
        .with_context(|| format!("{command:?}"))?;
    let status = procs::wait(&mut child, limit);
    if status.is_err() {
        child.kill()?;
        child.wait()?;
    }
    let (stdout, stderr) = (fs::read_to_string(&out)?, fs::read_to_string(&err)?);
    let status = status.with_context(|| format!("{command:?}\n{stdout}\n{stderr}"))?;
    Ok(Output { code: status.code().unwrap_or(-1), stdout, stderr })
}

/// Runs pgbench against a port in the database `bench`.
///
/// # Errors
/// When it fails, or its report cannot be read; with all that it said.
pub fn pgbench(cluster: &Cluster, port: u16, args: &[&str]) -> Result<PgbenchReport> {
    let mut command = cluster.install().client("pgbench");
    command.args(["-p", &port.to_string()]).args(args).arg("bench");
    let out = run(cluster, command, Duration::from_secs(60))?;
    let said = format!("pgbench {args:?}\n{}\n{}", out.stdout, out.stderr);
    ensure!(out.code == 0, "exit code {}: {said}", out.code);
    if args.contains(&"-i") {
        return Ok(PgbenchReport { processed: 0, failed: 0, tps: 0.0 });
    }
    let field = |name: &str| -> Result<String> {
        let line = out.stdout.lines().find_map(|line| line.strip_prefix(name));
        Ok(line.with_context(|| format!("no {name:?}: {said}"))?.trim().to_owned())
    };
    let number = |text: String| text.split(['/', ' ']).next().unwrap_or_default().to_owned();
    let processed = number(field("number of transactions actually processed:")?).parse()?;
    // Reported since PostgreSQL 15; before that a failed transaction ends the client and the run.
    let failed = field("number of failed transactions:").map_or(Ok(0), |text| number(text).parse())?;
    let tps = number(field("tps =")?).parse()?;
    ensure!(!out.stderr.contains("aborted"), "a client was aborted: {said}");
    Ok(PgbenchReport { processed, failed, tps })
}

/// Runs psql (`-X -At -v ON_ERROR_STOP=1`) against a port.
///
/// # Errors
/// When it cannot be run; a failing command is in the exit code.
pub fn psql(cluster: &Cluster, port: u16, database: &str, args: &[&str]) -> Result<Output> {
    let mut command = cluster.install().client("psql");
    command.args(["-X", "-At", "-v", "ON_ERROR_STOP=1", "-p", &port.to_string(), "-d", database]).args(args);
    run(cluster, command, Duration::from_secs(30))
}

/// An HTTP answer.
#[derive(Clone, Debug)]
pub struct Http {
    /// Status code.
    pub status: u16,
    /// Status line and headers.
    pub head: String,
    /// Body, not decoded.
    pub body: String,
}

/// GET with a deadline of 3 s.
///
/// # Errors
/// When there is no well-formed answer in time.
pub fn http_get(port: u16, path: &str) -> Result<Http> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(crate::client::deadline()))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let text = String::from_utf8(bytes)?;
    let (head, body) = text.split_once("\r\n\r\n").context("no end of the headers")?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok(Http { status, head: head.to_owned(), body: body.to_owned() })
}
