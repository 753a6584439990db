//! The PostgreSQL servers of a demo: made once, started and stopped each time.
//!
//! Invariants: nothing is removed before it is known which node has the newest data ([`super::history`]), and then only a
//! standby that holds nothing of its own; a data directory under its final name is complete. `initdb` and `pg_basebackup` write to another name
//! first, so that a run that was interrupted leaves nothing that looks usable.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use super::command::{RunAs, finish, secret};
use super::history::{Fate, Past, describe, fate, has_nothing_of_its_own, newest_primary};
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

/// How long a standby may take until the primary sends it changes: it tries every 5 s by itself.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(20);
/// How often we look.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What [`streams`] prints when it is so.
const STREAMS: &str = "it streams";

/// Who is the primary in this run, and how to log in there.
struct Cluster {
    primary: usize,
    /// The password of the role postgres.
    password: String,
}

/// The servers. Number 0 is the primary at first; later it is whichever was promoted last.
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

    /// Makes what is missing and starts all of it, the newest primary first; afterwards the role `demo` with a database
    /// of its own and the role `pgweir` with the given password exist. Returns the primary's number.
    ///
    /// # Errors
    /// It cannot be told which node is the primary, or a program failed: what it said, and the end of the server's log.
    pub(super) async fn start(
        &self,
        check_secret: &str,
        say: impl Fn(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<usize> {
        let found = self.look().await?;
        let primary = match newest_primary(&found).with_context(|| self.doubt(&found))? {
            Some(primary) => primary.number,
            None => {
                say("making the primary")?;
                self.make_primary().await?;
                0
            }
        };
        if primary != 0 {
            say(&format!("db{primary} was promoted: it is the primary now"))?;
        }
        let cluster = Cluster { primary, password: self.superuser_password()? };
        self.start_node(&cluster, primary).await?;
        self.sql(&cluster, &provision(check_secret)).await?;
        for number in (0..self.ports.len()).filter(|&number| number != primary) {
            self.bring_in(&cluster, number, &found, &say).await?;
        }
        Ok(primary)
    }

    /// What the data directories say that are there.
    async fn look(&self) -> anyhow::Result<Vec<Past>> {
        let mut found = Vec::new();
        for number in (0..self.ports.len()).filter(|&number| self.dir(number).exists()) {
            let dir = self.dir(number);
            let mut command = self.tool("pg_controldata");
            command.env("LC_ALL", "C").arg("-D").arg(&dir);
            let said = finish(command, "")
                .await
                .with_context(|| format!("cannot tell what is in {}; nothing was touched", dir.display()))?;
            found.push(Past::parse(number, dir.join("standby.signal").exists(), &said)?);
        }
        Ok(found)
    }

    /// What to say when the primary cannot be told.
    fn doubt(&self, found: &[Past]) -> String {
        format!(
            "it is not clear which node has the newest data, so nothing was touched. In {data}:\n  {nodes}\n\
             Move all but the one to keep out of {data}; if that one is a standby, remove its standby.signal, which \
             makes it the primary. To begin anew, remove {data}. The reason",
            data = self.data.display(),
            nodes = describe(found)
        )
    }

    /// Makes node `number` a standby of the primary, which runs.
    async fn bring_in(
        &self,
        cluster: &Cluster,
        number: usize,
        found: &[Past],
        say: &impl Fn(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match fate(number, found) {
            Fate::Make => {}
            Fate::Follow => match self.follow(cluster, number).await {
                Ok(()) => return Ok(()),
                Err(error) => {
                    let primary = cluster.primary;
                    // Nothing is given up unless there is a primary to copy.
                    self.sql(cluster, "SELECT 1;\n").await?;
                    say(&format!("db{number} cannot follow db{primary} and is made anew: {error:#}"))?;
                    self.stop_node(number).await?;
                    self.give_up(number, found, say)?;
                }
            },
            Fate::SetAside => {
                let primary = cluster.primary;
                say(&format!("db{number} was a primary before db{primary} was: it is made anew"))?;
                self.give_up(number, found, say)?;
            }
        }
        say(&format!("making standby db{number}"))?;
        self.make_standby(cluster, number).await?;
        self.start_node(cluster, number).await
    }

    /// Starts a standby on the data it has, and waits until it gets the primary's changes.
    async fn follow(&self, cluster: &Cluster, number: usize) -> anyhow::Result<()> {
        self.sql(cluster, &ensured_slot(number)).await?;
        self.start_node(cluster, number).await?;
        let deadline = Instant::now() + FOLLOWS_WITHIN;
        // A standby that asks for what is gone, or is past the point where the primary's timeline began, never streams.
        while !self.sql(cluster, &streams(number)).await?.contains(STREAMS) {
            if Instant::now() >= deadline {
                let log = self.log(number);
                bail!("it gets no changes; the end of {}:\n{}", log.display(), tail(&log));
            }
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Makes room for a new copy. Only a standby on the timeline that all are on has nothing of its own and is removed;
    /// any other directory is kept under another name.
    fn give_up(
        &self,
        number: usize,
        found: &[Past],
        say: &impl Fn(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let dir = self.dir(number);
        if has_nothing_of_its_own(number, found) {
            return clear(&dir);
        }
        let unused = |count: &u32| !self.data.join(format!("db{number}.old{count}")).exists();
        let count = (1..=u32::MAX).find(unused).context("too many old directories")?;
        let kept = self.data.join(format!("db{number}.old{count}"));
        std::fs::rename(&dir, &kept).with_context(|| format!("cannot move {}", dir.display()))?;
        say(&format!("its old data is kept in {} (remove it when you do not need it)", kept.display()))
    }

    /// Stops every node that runs, the standbys first.
    ///
    /// # Errors
    /// One did not stop; the others were stopped all the same.
    pub(super) async fn stop(&self) -> anyhow::Result<()> {
        let mut failed = Vec::new();
        for number in (0..usize::from(NODES)).rev() {
            if let Err(error) = self.stop_node(number).await {
                failed.push(format!("db{number}: {error:#}"));
            }
        }
        if failed.is_empty() { Ok(()) } else { bail!("not stopped: {}", failed.join("; ")) }
    }

    async fn stop_node(&self, number: usize) -> anyhow::Result<()> {
        if !self.dir(number).join("postmaster.pid").exists() {
            return Ok(());
        }
        let mut command = self.tool("pg_ctl");
        command.args(["stop", "-s", "-m", "fast", "-t", PATIENCE, "-D"]).arg(self.dir(number));
        match finish(command, "").await {
            Err(error) if self.runs(number).await => Err(error),
            _ => Ok(()),
        }
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

    async fn sql(&self, cluster: &Cluster, sql: &str) -> anyhow::Result<String> {
        self.query(self.port(cluster.primary), ("postgres", &cluster.password), "postgres", sql).await
    }

    fn port(&self, number: usize) -> u16 {
        self.ports.get(number).copied().unwrap_or_default()
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

    async fn make_standby(&self, cluster: &Cluster, number: usize) -> anyhow::Result<()> {
        let unfinished = self.data.join(format!("db{number}.new"));
        clear(&unfinished)?;
        self.sql(cluster, &fresh_slot(number)).await?;
        let primary = self.port(cluster.primary);
        let mut command = self.tool("pg_basebackup");
        command.env("PGPASSWORD", &cluster.password).arg("-D").arg(&unfinished);
        command.args(["-h", "127.0.0.1", "-p", &primary.to_string(), "-U", "postgres", "-X", "stream"]);
        command.args(["-c", "fast", "-S", &format!("db{number}")]);
        finish(command, "").await?;
        self.write(&unfinished.join("standby.signal"), "")?;
        Ok(std::fs::rename(&unfinished, self.dir(number))?)
    }

    async fn start_node(&self, cluster: &Cluster, number: usize) -> anyhow::Result<()> {
        self.write(&self.dir(number).join("pgweir-demo.conf"), &self.settings(cluster, number))?;
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

    /// Written before every start: the ports may have been chosen anew. Slots keep WAL on the primary only, so the rest is
    /// kept by size: else a standby could not follow another one that is promoted.
    fn settings(&self, cluster: &Cluster, number: usize) -> String {
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
             wal_keep_size = '128MB'\n\
             hot_standby = on\n",
            self.port(number)
        );
        if number != cluster.primary {
            text.push_str(&format!(
                "primary_conninfo = 'host=127.0.0.1 port={} user=postgres password={} application_name=db{number}'\n\
                 primary_slot_name = 'db{number}'\n",
                self.port(cluster.primary),
                cluster.password
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

/// A slot for a standby that has data: the new primary after a promotion has none.
fn ensured_slot(number: usize) -> String {
    format!(
        "SELECT pg_create_physical_replication_slot('db{number}') WHERE NOT EXISTS \
         (SELECT FROM pg_replication_slots WHERE slot_name = 'db{number}');\n"
    )
}

/// Asks whether the primary sends a standby its changes.
fn streams(number: usize) -> String {
    format!(
        "SELECT '{STREAMS}' FROM pg_stat_replication \
         WHERE application_name = 'db{number}' AND state IN ('catchup', 'streaming');\n"
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
