//! The PostgreSQL servers of a demo: made once, started and stopped each time.
//!
//! Invariant: a data directory under its final name is complete. `initdb` and `pg_basebackup` write to another name
//! first, so that a run that was interrupted leaves nothing that looks usable.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use tokio::process::Command;

use super::command::{RunAs, finish, secret};
use super::install::Installation;
use super::place::Place;
use super::{DemoArgs, NODES};

/// Seconds that a server may take to start or stop.
const PATIENCE: &str = "60";

/// How much of a log goes into an error.
const LOG_LINES: usize = 12;

/// Every connection needs a password, also those from this machine: other users may be on it.
const HBA: &str =
    "host replication postgres 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 scram-sha-256\n";

/// The servers: number 0 is the primary.
#[derive(Debug)]
pub(super) struct Nodes {
    data: PathBuf,
    run_as: RunAs,
    installation: Installation,
    ports: Vec<u16>,
}

impl Nodes {
    /// The nodes of a place; nothing is started yet.
    pub(super) fn new(place: &Place, installation: Installation, args: &DemoArgs) -> Self {
        let ports = args.node_ports().collect();
        Self { data: place.data().to_path_buf(), run_as: place.run_as(), installation, ports }
    }

    /// The major version of the servers.
    pub(super) fn version(&self) -> &Installation {
        &self.installation
    }

    /// Makes what is missing and starts all of it; afterwards the role `demo` with a database of its own and the role
    /// `pgweir` with the given password exist.
    ///
    /// # Errors
    /// A program failed; what it said, and the end of the server's log.
    pub(super) async fn start(
        &self,
        check_secret: &str,
        say: impl Fn(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if !self.dir(0).exists() {
            say("making the primary")?;
            self.make_primary().await?;
        }
        let password = self.superuser_password()?;
        self.start_node(0, &password).await?;
        self.sql("postgres", &password, "postgres", &provision(check_secret)).await?;
        for (number, _) in self.ports.iter().enumerate().skip(1) {
            // A standby that was promoted has a history of its own and cannot follow again.
            if !self.dir(number).join("standby.signal").exists() {
                say(&format!("making standby db{number}"))?;
                self.make_standby(number, &password).await?;
            }
            self.start_node(number, &password).await?;
        }
        Ok(())
    }

    /// Stops every node that runs, the standbys first.
    ///
    /// # Errors
    /// One did not stop; the others were stopped all the same.
    pub(super) async fn stop(&self) -> anyhow::Result<()> {
        let mut failed = Vec::new();
        for number in (0..usize::from(NODES)).rev() {
            if !self.dir(number).join("postmaster.pid").exists() {
                continue;
            }
            let mut command = self.tool("pg_ctl");
            command.args(["stop", "-s", "-m", "fast", "-t", PATIENCE, "-D"]).arg(self.dir(number));
            if let Err(error) = finish(command, "").await
                && self.runs(number).await
            {
                failed.push(format!("db{number}: {error:#}"));
            }
        }
        if failed.is_empty() { Ok(()) } else { bail!("not stopped: {}", failed.join("; ")) }
    }

    /// Runs SQL through psql on a local port and returns what it prints.
    ///
    /// # Errors
    /// No connection, or a statement failed.
    pub(super) async fn query(
        &self,
        port: u16,
        (user, password): (&str, &str),
        database: &str,
        sql: &str,
    ) -> anyhow::Result<String> {
        let mut command = self.tool("psql");
        command.env("PGPASSWORD", password).env("PGCONNECT_TIMEOUT", "5").env("PGSSLMODE", "disable");
        command.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-P", "footer=off", "-h", "127.0.0.1"]);
        command.args(["-p", &port.to_string(), "-U", user, "-d", database, "-f", "-"]);
        finish(command, sql).await
    }

    async fn sql(&self, user: &str, password: &str, database: &str, sql: &str) -> anyhow::Result<()> {
        let primary = self.ports.first().copied().unwrap_or_default();
        self.query(primary, (user, password), database, sql).await.map(drop)
    }

    fn dir(&self, number: usize) -> PathBuf {
        self.data.join(format!("db{number}"))
    }

    fn log(&self, number: usize) -> PathBuf {
        self.data.join(format!("db{number}.log"))
    }

    fn tool(&self, name: &str) -> Command {
        self.run_as.command(self.installation.program(name), &self.data)
    }

    async fn runs(&self, number: usize) -> bool {
        let mut command = self.tool("pg_ctl");
        command.arg("status").arg("-D").arg(self.dir(number));
        finish(command, "").await.is_ok()
    }

    fn superuser_password(&self) -> anyhow::Result<String> {
        let path = self.data.join("superuser");
        std::fs::read_to_string(&path).with_context(|| {
            format!("{} cannot be read: remove {}, it will be made anew", path.display(), self.data.display())
        })
    }

    async fn make_primary(&self) -> anyhow::Result<()> {
        let (unfinished, password) = (self.data.join("db0.new"), self.data.join("superuser"));
        clear(&unfinished)?;
        self.write(&password, &secret())?;
        let mut command = self.tool("initdb");
        command.args(["-U", "postgres", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--pwfile"]);
        command.arg(&password).arg("-D").arg(&unfinished);
        finish(command, "").await?;
        self.write(&unfinished.join("pg_hba.conf"), HBA)?;
        let settings = unfinished.join("postgresql.conf");
        let generated = std::fs::read_to_string(&settings)?;
        self.write(&settings, &format!("{generated}\ninclude 'pgweir-demo.conf'\n"))?;
        Ok(std::fs::rename(&unfinished, self.dir(0))?)
    }

    async fn make_standby(&self, number: usize, password: &str) -> anyhow::Result<()> {
        let unfinished = self.data.join(format!("db{number}.new"));
        clear(&unfinished)?;
        clear(&self.dir(number))?;
        self.sql("postgres", password, "postgres", &fresh_slot(number)).await?;
        let primary = self.ports.first().copied().unwrap_or_default();
        let mut command = self.tool("pg_basebackup");
        command.env("PGPASSWORD", password).arg("-D").arg(&unfinished);
        command.args(["-h", "127.0.0.1", "-p", &primary.to_string(), "-U", "postgres", "-X", "stream"]);
        command.args(["-c", "fast", "-S", &format!("db{number}")]);
        finish(command, "").await?;
        self.write(&unfinished.join("standby.signal"), "")?;
        Ok(std::fs::rename(&unfinished, self.dir(number))?)
    }

    async fn start_node(&self, number: usize, password: &str) -> anyhow::Result<()> {
        self.write(&self.dir(number).join("pgweir-demo.conf"), &self.settings(number, password))?;
        let mut command = self.tool("pg_ctl");
        command.args(["start", "-s", "-w", "-t", PATIENCE, "-D"]).arg(self.dir(number));
        command.arg("-l").arg(self.log(number));
        finish(command, "").await.map(drop).with_context(|| {
            format!(
                "db{number} did not start; the end of {}:\n{}",
                self.log(number).display(),
                tail(&self.log(number))
            )
        })
    }

    /// Written before every start: the ports may have been chosen anew.
    fn settings(&self, number: usize, password: &str) -> String {
        let port = |number: usize| self.ports.get(number).copied().unwrap_or_default();
        let mut text = format!(
            "# written by pgweir demo at every start\n\
             listen_addresses = '127.0.0.1'\n\
             port = {}\n\
             unix_socket_directories = ''\n\
             cluster_name = 'db{number}'\n\
             password_encryption = 'scram-sha-256'\n\
             max_connections = 100\n\
             wal_level = replica\n\
             max_wal_senders = 10\n\
             max_replication_slots = 10\n\
             max_slot_wal_keep_size = '1GB'\n\
             hot_standby = on\n",
            port(number)
        );
        if number > 0 {
            text.push_str(&format!(
                "primary_conninfo = 'host=127.0.0.1 port={} user=postgres password={password} application_name=db{number}'\n\
                 primary_slot_name = 'db{number}'\n",
                port(0)
            ));
        }
        text
    }

    /// Writes a file that only PostgreSQL's user may read.
    fn write(&self, path: &Path, text: &str) -> anyhow::Result<()> {
        private_file(path, text)?;
        self.run_as.own(path)
    }
}

/// Writes a file that only its owner may read, whatever it was before.
///
/// # Errors
/// It cannot be written.
pub(super) fn private_file(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
    let mut options = std::fs::OpenOptions::new();
    let context = || format!("cannot write {}", path.display());
    let mut file =
        options.write(true).create(true).truncate(true).mode(0o600).open(path).with_context(context)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600)).with_context(context)?;
    file.write_all(text.as_bytes()).with_context(context)
}

/// The last lines of a log, for an error.
pub(super) fn tail(path: &Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default().join("\n")
}

fn clear(path: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// The roles and the database, whether they are there or not.
fn provision(check_secret: &str) -> String {
    let role = |name: &str| {
        format!(
            "SELECT 'CREATE ROLE {name} LOGIN' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}') \\gexec\n"
        )
    };
    format!(
        "SET password_encryption = 'scram-sha-256';\n{}{}\
         ALTER ROLE demo PASSWORD 'demo';\n\
         ALTER ROLE pgweir PASSWORD '{check_secret}';\n\
         GRANT pg_monitor TO pgweir;\n\
         SELECT 'CREATE DATABASE demo OWNER demo' WHERE NOT EXISTS \
         (SELECT FROM pg_database WHERE datname = 'demo') \\gexec\n",
        role("demo"),
        role("pgweir")
    )
}

/// A slot keeps the WAL a standby needs while it is away; one that fell too far behind is replaced.
fn fresh_slot(number: usize) -> String {
    format!(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'db{number}';\n\
         SELECT pg_create_physical_replication_slot('db{number}');\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_its_last_lines() {
        let path = std::env::temp_dir().join(format!("pgweir-tail-{}", std::process::id()));
        let lines: Vec<String> = (0..40).map(|line| format!("line {line}")).collect();
        std::fs::write(&path, lines.join("\n")).unwrap();
        let shown = tail(&path);
        std::fs::remove_file(&path).unwrap();
        assert!(shown.starts_with("line 28") && shown.ends_with("line 39"), "{shown}");
        assert_eq!(tail(&path), "");
    }
}
