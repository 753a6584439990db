//! The built binary, run as a user would: a configuration file, a port, signals, an exit code.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::client::RawClient;
use crate::cluster::{Cluster, tail};
use crate::login::Login;
use crate::procs;
use crate::rows::{Rows, sqlstate};
use crate::tools::http_get;

/// How clients authenticate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// No pool_hba: SCRAM-SHA-256 for everybody.
    #[default]
    Default,
    /// A pool_hba with one method for everybody from 127.0.0.1.
    Method(&'static str),
    /// A whole pool_hba.
    Hba(String),
}

/// What is set beyond the harness's base configuration.
#[derive(Clone, Debug, Default)]
pub struct PgweirOptions {
    /// Top-level YAML keys; each replaces the base's key of that name, `key: ~drop` removes it.
    pub yaml: String,
    /// How clients authenticate.
    pub auth: ClientAuth,
    /// Lines of pool_passwd in place of the base's.
    pub passwords: Option<String>,
    /// Weights of the nodes in place of 0, 1, 1 ...
    pub weights: Option<Vec<u32>>,
    /// A program that runs pgweir, with its arguments: `valgrind --tool=...`.
    pub under: Vec<String>,
}

impl PgweirOptions {
    /// Only YAML.
    #[must_use]
    pub fn yaml(yaml: &str) -> Self {
        Self { yaml: yaml.to_owned(), ..Self::default() }
    }

    /// Clients need no password, which makes many logins cheap.
    #[must_use]
    pub fn trusting(mut self) -> Self {
        self.auth = ClientAuth::Method("trust");
        self
    }

    /// Other weights.
    #[must_use]
    pub fn weights(mut self, weights: &[u32]) -> Self {
        self.weights = Some(weights.to_vec());
        self
    }
}

/// The base's pool_passwd.
pub const PASSWORDS: &str = "\
bench:TEXTbench
bench_md5:TEXTbench
other:TEXTother
stats:TEXTstats
pgweir:TEXTpgweir
postgres:TEXTpostgres
";

/// How long pgweir may take to come up; six times that under valgrind.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running pgweir.
#[derive(Debug)]
pub struct Pgweir {
    dir: PathBuf,
    port: u16,
    metrics_port: u16,
    process: Child,
    /// How long it may take to come up.
    patience: Duration,
}

/// Where the binary is: `PGWEIR_BIN`, else the profile directory of the test, else
/// `target/ci` and `target/debug`.
///
/// # Errors
/// When it is in none of them.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("PGWEIR_BIN") {
        return Ok(PathBuf::from(path));
    }
    let target = procs::target_dir()?;
    let places =
        [target.join("ci/pgweir"), target.join("debug/pgweir"), procs::profile_dir()?.join("pgweir")];
    let found = places.iter().find(|path| path.exists()).cloned();
    found.with_context(|| format!("no pgweir binary: set PGWEIR_BIN or build one of {places:?}"))
}

fn command(dir: &Path, under: &[String]) -> Result<Command> {
    if crate::direct_mode() {
        let mut sleep = Command::new("sleep");
        sleep.arg("600");
        return Ok(sleep);
    }
    let mut words = under.iter().map(OsString::from).chain([binary()?.into_os_string()]);
    let mut command = Command::new(words.next().context("no program")?);
    command.args(words).args(["run", "-f"]).arg(dir.join("pgweir.yaml"));
    Ok(command)
}

/// Whether [`binary`] was built with optimisation: by cargo's profile directory, which names it.
///
/// # Errors
/// When there is no binary.
pub fn is_optimised() -> Result<bool> {
    let path = binary()?;
    let profile = path.parent().and_then(Path::file_name);
    Ok(profile.is_some_and(|name| name == "ci" || name == "release"))
}

impl Pgweir {
    /// Starts pgweir in front of a cluster and waits until it answers and sees every node.
    ///
    /// # Errors
    /// When it does not.
    pub fn start(cluster: &Cluster, yaml: &str) -> Result<Self> {
        Self::start_with(cluster, &PgweirOptions::yaml(yaml))
    }

    /// As [`Pgweir::start`], with more than YAML.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn start_with(cluster: &Cluster, options: &PgweirOptions) -> Result<Self> {
        let mut weir = Self::launch(cluster, options)?;
        weir.wait_answering()?;
        weir.wait_nodes(cluster.len())?;
        Ok(weir)
    }

    /// Starts pgweir without waiting for anything.
    ///
    /// # Errors
    /// When the binary or the files cannot be had.
    pub fn launch(cluster: &Cluster, options: &PgweirOptions) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("weir-").tempdir_in(cluster.root())?.keep();
        let (port, metrics_port) = (procs::free_port()?, procs::free_port()?);
        write_files(&dir, port, metrics_port, cluster, options)?;
        let log = fs::File::create(dir.join("log"))?;
        let process = command(&dir, &options.under)?
            .current_dir(&dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting pgweir")?;
        let port = if crate::direct_mode() { cluster.port(0) } else { port };
        let patience = if options.under.is_empty() { PATIENCE } else { PATIENCE * 6 };
        Ok(Self { dir, port, metrics_port, process, patience })
    }

    /// Waits until the port accepts connections.
    ///
    /// # Errors
    /// When pgweir ends, or the port is not there in time.
    pub fn wait_answering(&mut self) -> Result<()> {
        let end = Instant::now() + self.patience;
        while RawClient::tcp(self.port).is_err() {
            if let Some(status) = self.process.try_wait()? {
                bail!("pgweir ended: {status}\n{}", self.log());
            }
            ensure!(Instant::now() < end, "pgweir does not listen\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Waits until it says that it is ready; for who must not find out by a login.
    ///
    /// # Errors
    /// When it ends, does not listen, or does not say so in time.
    pub fn wait_ready(&mut self) -> Result<()> {
        self.wait_answering()?;
        let ready = crate::eventually(self.patience, || self.log().contains("pgweir is ready"));
        ensure!(ready, "pgweir is not ready\n{}", self.log());
        Ok(())
    }

    /// Waits until SHOW POOL_NODES has `n` nodes up, one of them the primary.
    ///
    /// # Errors
    /// With the last answer, when it does not in time.
    pub fn wait_nodes(&self, n: usize) -> Result<()> {
        if crate::direct_mode() {
            return Ok(());
        }
        self.wait_pool_nodes(self.patience, |nodes| {
            nodes.len() == n
                && nodes.iter().all(|node| node["status"] == "up")
                && nodes.iter().filter(|node| node["role"] == "primary").count() == 1
        })
    }

    /// Waits until SHOW POOL_NODES satisfies `wanted`.
    ///
    /// # Errors
    /// With the last answer, when it does not within `limit`.
    pub fn wait_pool_nodes(
        &self,
        limit: Duration,
        wanted: impl Fn(&[BTreeMap<String, String>]) -> bool,
    ) -> Result<()> {
        let mut last = String::new();
        let seen = crate::eventually(limit, || match self.pool_nodes() {
            Ok(nodes) => {
                last = format!("{nodes:?}");
                wanted(&nodes)
            }
            Err(error) => {
                last = format!("{error:#}");
                false
            }
        });
        ensure!(seen, "SHOW POOL_NODES is not as wanted after {limit:?}: {last}");
        Ok(())
    }

    /// Waits until a new session would run `sql` on a standby: until the catalog is known, a read of a table goes to the
    /// primary.
    ///
    /// # Errors
    /// When it would not in time.
    pub fn wait_on_standby(&self, sql: &str) -> Result<()> {
        let explained = || self.client()?.simple(&format!("PGWEIR EXPLAIN {sql}"))?.get(0, "node");
        let is_there = || explained().is_ok_and(|node| node != "0");
        ensure!(crate::eventually(self.patience, is_there), "{sql} goes to node {:?}", explained());
        Ok(())
    }

    /// The rows of SHOW POOL_NODES by column name.
    ///
    /// # Errors
    /// When it cannot be had.
    pub fn pool_nodes(&self) -> Result<Vec<BTreeMap<String, String>>> {
        Ok(named(self.client()?.simple("SHOW POOL_NODES")?))
    }

    /// A client of it, `bench` in the database `bench`.
    ///
    /// # Errors
    /// As [`Login::connect`].
    pub fn client(&self) -> Result<RawClient> {
        RawClient::bench(self.port)
    }

    /// The SQLSTATE with which a login or its first statement is refused; empty when both work.
    ///
    /// # Errors
    /// Anything else that goes wrong.
    pub fn login(&self, login: &Login) -> Result<String> {
        match login.connect(self.port).and_then(|mut client| client.scalar("SELECT current_user")) {
            Ok(_user) => Ok(String::new()),
            Err(error) if sqlstate(&error).is_empty() => Err(error),
            Err(error) => Ok(sqlstate(&error).to_owned()),
        }
    }

    /// Runs a command in the admin database as the admin `postgres`; rows by column name.
    ///
    /// # Errors
    /// The console's error.
    pub fn admin(&self, command: &str) -> Result<Vec<BTreeMap<String, String>>> {
        Ok(named(Login::new("postgres", "pgweir").connect(self.port)?.simple(command)?))
    }

    /// Runs `pgweir WORD -f FILE WORDS...` with the configuration of this one: whether it succeeded, and what it said.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn shell(&self, words: &[&str]) -> Result<(bool, String)> {
        let (word, more) = words.split_first().context("no command")?;
        let mut command = Command::new(binary()?);
        command.arg(word).arg("-f").arg(self.dir.join("pgweir.yaml")).args(more);
        let out = command.current_dir(&self.dir).output()?;
        let said = [out.stdout, out.stderr].concat();
        Ok((out.status.success(), String::from_utf8_lossy(&said).into_owned()))
    }

    /// The port that clients connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port of `/metrics` and `/health`.
    #[must_use]
    pub fn metrics_port(&self) -> u16 {
        self.metrics_port
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Its directory: pgweir.yaml, pool_passwd, pool_hba.conf, log.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        procs::send(self.pid(), signal);
    }

    /// Whether the process still runs.
    ///
    /// # Errors
    /// When that cannot be found out.
    pub fn is_alive(&mut self) -> Result<bool> {
        Ok(self.process.try_wait()?.is_none())
    }

    /// Resident memory in kB.
    ///
    /// # Errors
    /// When it is gone.
    pub fn rss_kb(&self) -> Result<u64> {
        procs::rss_kb(self.pid())
    }

    /// The most resident memory that it ever had, in kB.
    ///
    /// # Errors
    /// When it is gone.
    pub fn peak_rss_kb(&self) -> Result<u64> {
        procs::peak_rss_kb(self.pid())
    }

    /// CPU time so far.
    ///
    /// # Errors
    /// When it is gone.
    pub fn cpu_seconds(&self) -> Result<f64> {
        procs::cpu_seconds(self.pid())
    }

    /// Number of open file descriptors.
    ///
    /// # Errors
    /// When it is gone.
    pub fn open_fds(&self) -> Result<usize> {
        procs::open_fds(self.pid())
    }

    /// What it has logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read(self.dir.join("log")).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
    }

    /// `/metrics`: value by name with labels, as written.
    ///
    /// # Errors
    /// When it does not answer 200, or a line is malformed.
    pub fn metrics(&self) -> Result<BTreeMap<String, f64>> {
        let answer = http_get(self.metrics_port, "/metrics")?;
        ensure!(answer.status == 200, "/metrics: {}", answer.status);
        let samples = answer.body.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        samples
            .map(|line| {
                let (name, value) = line.rsplit_once(' ').with_context(|| line.to_owned())?;
                Ok((name.to_owned(), value.parse().with_context(|| line.to_owned())?))
            })
            .collect()
    }

    /// Rewrites the configuration file with other options; no signal is sent.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn rewrite(&self, cluster: &Cluster, options: &PgweirOptions) -> Result<()> {
        write_files(&self.dir, self.port, self.metrics_port, cluster, options)
    }

    /// The configuration file.
    #[must_use]
    pub fn config_file(&self) -> PathBuf {
        self.dir.join("pgweir.yaml")
    }

    /// Waits for its end; the exit code.
    ///
    /// # Errors
    /// When it still runs after `limit`, or died by a signal.
    pub fn wait_exit(&mut self, limit: Duration) -> Result<i32> {
        procs::wait(&mut self.process, limit)?.code().context("pgweir was killed by a signal")
    }

    /// Stops it (SIGINT, fast); the exit code.
    ///
    /// # Errors
    /// As [`Pgweir::wait_exit`], within 10 s.
    pub fn stop(&mut self) -> Result<i32> {
        self.signal(Signal::INT);
        self.wait_exit(Duration::from_secs(10))
    }
}

fn named(rows: Rows) -> Vec<BTreeMap<String, String>> {
    let one = |row: Vec<Option<String>>| {
        rows.columns.iter().cloned().zip(row.into_iter().map(Option::unwrap_or_default)).collect()
    };
    rows.rows.into_iter().map(one).collect()
}

fn write_files(
    dir: &Path,
    port: u16,
    metrics: u16,
    cluster: &Cluster,
    options: &PgweirOptions,
) -> Result<()> {
    let hba = match &options.auth {
        ClientAuth::Default => None,
        ClientAuth::Method(method) => Some(format!("host all all 127.0.0.1/32 {method}\n")),
        ClientAuth::Hba(text) => Some(text.clone()),
    };
    let mut base = base_yaml(port, metrics, cluster, options.weights.as_deref())?;
    if let Some(text) = hba {
        fs::write(dir.join("pool_hba.conf"), text)?;
        base.push(("enable_pool_hba".into(), "enable_pool_hba: on\n".into()));
    }
    fs::write(dir.join("pool_passwd"), options.passwords.as_deref().unwrap_or(PASSWORDS))?;
    fs::set_permissions(dir.join("pool_passwd"), std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let over = top_level(&options.yaml);
    let kept = base.into_iter().filter(|(key, _)| !over.iter().any(|(name, _)| name == key));
    let given = over.iter().filter(|(_, text)| !text.contains(": ~drop")).cloned();
    let yaml: String = kept.chain(given).map(|(_, text)| text).collect();
    // In place of a half-written file a reload sees the old one or the new one.
    fs::write(dir.join("pgweir.yaml.new"), yaml)?;
    fs::rename(dir.join("pgweir.yaml.new"), dir.join("pgweir.yaml"))?;
    Ok(())
}

type Keys = Vec<(String, String)>;

fn base_yaml(port: u16, metrics: u16, cluster: &Cluster, weights: Option<&[u32]>) -> Result<Keys> {
    let mut text = format!(
        "listen_addresses: [\"127.0.0.1\"]\nport: {port}\nunix_socket_directories: []\n\
         metrics_listen: \"127.0.0.1:{metrics}\"\nconnect_timeout: 2s\n\
         sr_check_user: pgweir\nsr_check_password: pgweir\nsr_check_period: 200ms\n\
         health_check_period: 300ms\nhealth_check_timeout: 1s\nhealth_check_max_retries: 1\n\
         health_check_retry_delay: 100ms\nadmin_users: [postgres]\nstats_users: [stats]\nbackends:\n"
    );
    for node in 0..cluster.len() {
        let weight = weights.and_then(|w| w.get(node).copied()).unwrap_or(u32::from(node > 0));
        writeln!(
            text,
            "  - {{ hostname: 127.0.0.1, port: {}, weight: {weight}, flag: ALLOW_TO_FAILOVER, \
             data_directory: \"{}\", application_name: n{node} }}",
            cluster.port(node),
            cluster.data(node).display()
        )?;
    }
    Ok(top_level(&text))
}

/// Splits YAML into its top-level keys, each with its text.
fn top_level(yaml: &str) -> Keys {
    let mut keys: Keys = Vec::new();
    for line in yaml.lines() {
        let nested = line.starts_with([' ', '-', '#', '\t']) || line.is_empty();
        match (nested, keys.last_mut(), line.split_once(':')) {
            (true, Some((_, text)), _) => text.push_str(&format!("{line}\n")),
            (false, _, Some((key, _))) => keys.push((key.to_owned(), format!("{line}\n"))),
            // Not a key: kept as it is, so that a test can write nonsense.
            (_, _, _) => keys.push((line.to_owned(), format!("{line}\n"))),
        }
    }
    keys
}

impl Drop for Pgweir {
    fn drop(&mut self) {
        let _may_have_ended = self.process.kill();
        let _reaped = self.process.wait();
        eprintln!("--- log of pgweir (end)\n{}", tail(&self.log(), 200));
    }
}
