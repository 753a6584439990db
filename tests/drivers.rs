//! Whole programs and real drivers through pgweir: what their users do, on very few backends.
//!
//! The programs are in `tests/drivers/`, one language a directory; each is a normal small program that takes where to
//! connect from its environment and ends with exit code 0 or says what went wrong. Each is first run against the
//! primary itself, so that a fault of the program is not taken for one of pgweir; then several copies at once through
//! pgweir in transaction mode with two backends a node, then in session mode. Drivers also look at the admin database
//! (AD-01).
//! What they need from outside is brought by `scripts/need.sh drivers`, what must be built by
//! `tests/drivers/build.sh`; `make drivers` does both and runs these tests alone.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::install::Install;
use harness::procs::target_dir;
use harness::tools::{Output, run};
use harness::{Cluster, ClusterOptions, Pgweir};

/// Backends of one node in transaction mode: fewer than the copies have connections.
const BACKENDS: usize = 2;
/// How long one copy of a program may take; a hang is a failure.
const LIMIT: Duration = Duration::from_secs(75);

/// What a program is to do.
#[derive(Clone, Copy)]
enum Parts {
    /// What needs no backend between transactions: many copies at once.
    Shared,
    /// What keeps a backend between transactions: one copy at once, or two would wait for each other's backend.
    Pinned,
    /// Everything of these two, where there are backends enough.
    All,
    /// The admin database.
    Console,
}

impl Parts {
    fn word(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Pinned => "pinned",
            Self::All => "all",
            Self::Console => "console",
        }
    }
}

/// A program and how it is started.
struct Driver {
    name: &'static str,
    command: Box<dyn Fn() -> Result<Command> + Sync>,
    /// What a superuser does on the primary before.
    setup: &'static str,
    /// Backends of one node in transaction mode.
    backends: usize,
    /// It prints the same wherever it is connected.
    compared: bool,
    /// It can also look at the admin database.
    console: bool,
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("drivers")
}

/// Something that `scripts/need.sh drivers` or `tests/drivers/build.sh` has put below `target/drivers`.
fn made(path: &str) -> Result<PathBuf> {
    let place = target_dir()?.join("drivers").join(path);
    ensure!(place.exists(), "{} is missing: `make drivers` makes it and runs these tests", place.display());
    Ok(place)
}

impl Driver {
    fn new(name: &'static str, command: impl Fn() -> Result<Command> + Sync + 'static) -> Self {
        Self {
            name,
            command: Box::new(command),
            setup: "",
            backends: BACKENDS,
            compared: false,
            console: false,
        }
    }

    fn script(name: &'static str, interpreter: &'static str, path: &'static str) -> Self {
        Self::new(name, move || {
            let mut command = Command::new(interpreter);
            command.arg(sources().join(path));
            Ok(command)
        })
    }

    fn shell(name: &'static str) -> Self {
        Self::new(name, move || {
            let mut command = Command::new("sh");
            command
                .arg(sources().join(format!("shell/check_{name}.sh")))
                .env("PATH", Install::find()?.path()?);
            Ok(command)
        })
    }

    fn python(name: &'static str) -> Self {
        Self::new(name, move || {
            let mut command = Command::new(made("python/bin/python")?);
            command
                .env("PYTHONDONTWRITEBYTECODE", "1")
                .arg(sources().join(format!("python/check_{name}.py")));
            Ok(command)
        })
    }

    fn node(name: &'static str) -> Self {
        Self::new(name, move || {
            let mut command = Command::new("node");
            command.env("NODE_PATH", made("node/node_modules")?).env("NODE_NO_WARNINGS", "1");
            command.arg(sources().join(format!("node/check_{name}.js")));
            Ok(command)
        })
    }

    fn setup(mut self, sql: &'static str) -> Self {
        self.setup = sql;
        self
    }

    fn backends(mut self, backends: usize) -> Self {
        self.backends = backends;
        self
    }

    fn compared(mut self) -> Self {
        self.compared = true;
        self
    }

    fn console(mut self) -> Self {
        self.console = true;
        self
    }

    /// Runs a copy; its output when it failed is the error.
    fn copy(&self, rig: &Rig, port: u16, tag: &str, parts: Parts) -> Result<Output> {
        let mut command = (self.command)()?;
        let (who, database) = match parts {
            Parts::Console => ("stats:stats", "pgweir"),
            _ => ("bench:bench", "bench"),
        };
        command
            .env("DSN", format!("postgresql://{who}@127.0.0.1:{port}/{database}"))
            .env("PGPORT", port.to_string())
            .env("TAG", tag)
            .env("PARTS", parts.word());
        let out = run(&rig.cluster, command, LIMIT).with_context(|| format!("{tag} ({})", parts.word()))?;
        ensure!(out.code == 0, "{tag}: exit code {}\n{}\n{}", out.code, out.stdout, out.stderr);
        Ok(out)
    }

    /// Runs several copies at once; what they printed, without their tags.
    fn copies(&self, rig: &Rig, port: u16, mode: &str, each: &[Parts]) -> Result<Vec<String>> {
        let results: Vec<Result<String>> = std::thread::scope(|scope| {
            let start = |(number, parts): (usize, &Parts)| {
                let (tag, parts) = (format!("{}_{mode}{number}", self.name), *parts);
                scope.spawn(move || Ok(self.copy(rig, port, &tag, parts)?.stdout.replace(&tag, "TAG")))
            };
            let running: Vec<_> = each.iter().enumerate().map(start).collect();
            running.into_iter().map(|copy| copy.join().expect("a copy's thread panicked")).collect()
        });
        let (printed, failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        let failed: Vec<String> =
            failed.into_iter().filter_map(|one| one.err().map(|error| format!("{error:#}"))).collect();
        ensure!(failed.is_empty(), "{} of {} copies failed\n{}", failed.len(), each.len(), failed.join("\n"));
        printed.into_iter().collect()
    }

    /// Direct, then in transaction mode, then in session mode; and looks at the servers after each.
    fn check(&self) -> Result<()> {
        let rig = Rig::new()?;
        if !self.setup.is_empty() {
            rig.cluster.setup(self.setup)?;
        }
        let direct =
            self.copies(&rig, rig.cluster.port(0), "d", &[Parts::All]).context("directly on the primary")?;
        let known = rig.complaints()?;
        let shared_and_pinned = [Parts::Shared, Parts::Pinned, Parts::Shared, Parts::Shared];
        let pooled = self.through(&rig, "t", self.backends, &shared_and_pinned)?;
        ensure!(harness::direct_mode() || rig.standbys_were_used()?, "no statement of it came to a standby");
        let session = self.through(&rig, "s", 40, &[Parts::All, Parts::Shared])?;
        // Those that do not do everything print a part of it.
        for printed in pooled.iter().chain(&session).filter(|_| self.compared) {
            ensure!(direct[0].contains(printed), "another output:\n{}", differences(&direct[0], printed));
        }
        // What the program provokes itself, it provokes on the direct connection too.
        let complaints = rig.complaints()?;
        let new = complaints.iter().filter(|(message, _)| !known.iter().any(|(seen, _)| seen == message));
        let new: Vec<&String> = new.map(|(_, line)| line).collect();
        ensure!(new.is_empty(), "the servers complain of the protocol:\n{new:#?}");
        Ok(())
    }

    fn through(&self, rig: &Rig, mode: &str, backends: usize, each: &[Parts]) -> Result<Vec<String>> {
        let pool_mode = if mode == "t" { "transaction" } else { "session" };
        let yaml = format!("pool_mode: {pool_mode}\ndefault_pool_size: {backends}");
        let mut weir = Pgweir::start(&rig.cluster, &yaml)?;
        let done = self.copies(rig, weir.port(), mode, each);
        let printed = done.and_then(|printed| rig.backends_at_rest(backends).map(|()| printed));
        let printed = printed.with_context(|| format!("in {pool_mode} mode"))?;
        if self.console && mode == "t" && !harness::direct_mode() {
            self.copies(rig, weir.port(), "c", &[Parts::Console]).context("the admin database")?;
        }
        ensure!(!weir.log().contains("panicked"), "a panic in pgweir");
        if !harness::direct_mode() {
            assert_eq!(weir.stop()?, 0, "pgweir's exit code");
        }
        Ok(printed)
    }
}

/// The lines that differ, by position.
fn differences(a: &str, b: &str) -> String {
    let pairs = a.lines().zip(b.lines()).enumerate();
    let different: Vec<String> = pairs
        .filter(|(_, (a, b))| a != b)
        .take(20)
        .map(|(n, (a, b))| format!("{n}: {a:?} | {b:?}"))
        .collect();
    format!("{} and {} lines\n{}", a.lines().count(), b.lines().count(), different.join("\n"))
}

/// The servers.
struct Rig {
    cluster: Cluster,
}

impl Rig {
    fn new() -> Result<Self> {
        // The SQLSTATE of each error is in the servers' logs. What one connection of a program has written the others
        // may read from any node: the standbys apply it first. Where a program reads what it wrote on the same
        // connection it turns that off (`synchronous_commit = local`), and pgweir is to see to it.
        let conf = "log_error_verbosity = verbose\nsynchronous_standby_names = 'FIRST 2 (n1, n2)'\n\
                    synchronous_commit = remote_apply\n";
        Ok(Self {
            cluster: Cluster::new(ClusterOptions { conf: conf.to_owned(), ..ClusterOptions::default() })?,
        })
    }

    /// No backend is left inside a transaction, and there are no more of them than allowed.
    fn backends_at_rest(&self, most: usize) -> Result<()> {
        let open = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench' AND state <> 'idle'";
        for node in 0..self.cluster.len() {
            self.cluster.wait_scalar(node, open, "0", Duration::from_secs(5))?;
            let all = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench'";
            let all: usize = self.cluster.scalar(node, all)?.parse()?;
            ensure!(all <= most, "{all} backends on n{node} instead of at most {most}");
        }
        Ok(())
    }

    /// Reads were spread: without that, half of what the programs are to show was not shown.
    fn standbys_were_used(&self) -> Result<bool> {
        let logs = [self.cluster.log(1)?, self.cluster.log(2)?];
        Ok(logs.iter().any(|log| log.contains("|bench|bench|")))
    }

    /// The errors in the servers' logs that say that somebody spoke the protocol wrongly or that a statement was not
    /// where it should be: (message without the backend it came from, whole line).
    fn complaints(&self) -> Result<Vec<(String, String)>> {
        const BAD: [&str; 6] = ["08P01:", "42P05:", "26000:", "34000:", "XX000:", "25001:"];
        let mut found = Vec::new();
        for node in 0..self.cluster.len() {
            for line in self.cluster.log(node)?.lines() {
                let error = line.split_once("ERROR:  ").or_else(|| line.split_once("FATAL:  "));
                let Some((_, message)) = error else { continue };
                if BAD.iter().any(|code| message.starts_with(code)) {
                    found.push((stable(message), format!("n{node}: {line}")));
                }
            }
        }
        Ok(found)
    }
}

/// A message without what differs from copy to copy: quoted names.
fn stable(message: &str) -> String {
    message.split('"').step_by(2).collect()
}

#[test]
fn psycopg2() -> Result<()> {
    Driver::python("psycopg2").console().check()
}

#[test]
fn psycopg3() -> Result<()> {
    Driver::python("psycopg3").console().check()
}

#[test]
fn asyncpg() -> Result<()> {
    Driver::python("asyncpg").console().check()
}

#[test]
fn sqlalchemy() -> Result<()> {
    Driver::python("sqlalchemy").check()
}

#[test]
fn django() -> Result<()> {
    Driver::python("django").check()
}

#[test]
fn node_postgres() -> Result<()> {
    Driver::node("pg").console().check()
}

#[test]
fn postgres_js() -> Result<()> {
    Driver::node("postgres").console().check()
}

#[test]
fn drizzle_and_knex() -> Result<()> {
    Driver::node("orm").check()
}

#[test]
fn pgjdbc_with_hikaricp() -> Result<()> {
    let command = || {
        let jars = ["postgresql.jar", "HikariCP.jar", "slf4j-api.jar", "slf4j-nop.jar"];
        let mut path = made("java")?.display().to_string();
        jars.iter().for_each(|jar| path.push_str(&format!(":/usr/share/java/{jar}")));
        let mut command = Command::new("java");
        // Short runs: what counts is the start.
        command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m", "-cp", &path, "Check"]);
        Ok(command)
    };
    Driver::new("pgjdbc", command).console().check()
}

#[test]
fn tokio_postgres() -> Result<()> {
    Driver::new("tokio_postgres", || Ok(Command::new(made("rust/debug/tokio_postgres")?))).console().check()
}

#[test]
fn sqlx() -> Result<()> {
    Driver::new("sqlx", || Ok(Command::new(made("rust/debug/sqlx")?))).console().check()
}

#[test]
fn go_lib_pq() -> Result<()> {
    Driver::new("go_pq", || Ok(Command::new(made("go/pq")?))).console().check()
}

#[test]
fn go_pgx() -> Result<()> {
    Driver::new("go_pgx", || Ok(Command::new(made("go/pgx")?))).console().check()
}

#[test]
fn perl_dbd_pg() -> Result<()> {
    Driver::script("dbd_pg", "perl", "perl/check_dbd_pg.pl").check()
}

#[test]
fn php_pdo_and_pgsql() -> Result<()> {
    Driver::script("pdo", "php", "php/check_pdo.php").check()
}

#[test]
fn ruby_pg_and_active_record() -> Result<()> {
    Driver::script("ruby", "ruby", "ruby/check_ruby.rb").check()
}

/// PN-09
#[test]
fn psql() -> Result<()> {
    Driver::shell("psql").compared().check()
}

/// PN-09: its workers want a connection each while others hold theirs.
#[test]
fn pg_dump_and_pg_restore() -> Result<()> {
    Driver::shell("dump").backends(12).check()
}

/// PN-09
#[test]
fn pgbench() -> Result<()> {
    Driver::shell("pgbench").check()
}

/// PN-09
#[test]
fn postgres_fdw() -> Result<()> {
    let setup = "CREATE EXTENSION postgres_fdw; GRANT USAGE ON FOREIGN DATA WRAPPER postgres_fdw TO bench";
    Driver::shell("fdw").setup(setup).check()
}
