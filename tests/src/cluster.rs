//! A primary and its streaming standbys in a directory of their own.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::client::RawClient;
use crate::install::{BASE_CONF, Install, copy_dir};
use crate::login::Login;
use crate::procs::{self, Watcher};
use crate::rows::Rows;
use crate::server_log::{self, Logged};

/// How servers authenticate everybody but `postgres`, whom they trust.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerAuth {
    /// No password.
    Trust,
    /// SCRAM-SHA-256.
    #[default]
    Scram,
    /// md5 (SCRAM for roles whose secret is a SCRAM verifier, as PostgreSQL does).
    Md5,
    /// Cleartext.
    Password,
}

impl ServerAuth {
    fn word(self) -> &'static str {
        match self {
            Self::Trust => "trust",
            Self::Scram => "scram-sha-256",
            Self::Md5 => "md5",
            Self::Password => "password",
        }
    }
}

/// How to stop a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Waits for its clients.
    Smart,
    /// Disconnects them.
    Fast,
    /// Without a shutdown checkpoint.
    Immediate,
}

/// What a cluster is like.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// How many standbys, besides the primary `n0`.
    pub standbys: usize,
    /// `max_connections` of every node.
    pub max_connections: u32,
    /// How pgweir has to log in.
    pub server_auth: ServerAuth,
    /// Further lines for postgresql.conf.
    pub conf: String,
    /// `log_statement = all`; off for those that only measure.
    pub log_statements: bool,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            standbys: 2,
            max_connections: 120,
            server_auth: ServerAuth::default(),
            conf: String::new(),
            log_statements: true,
        }
    }
}

/// One server.
#[derive(Debug)]
struct Node {
    dir: PathBuf,
    port: u16,
    server: Option<Child>,
}

impl Node {
    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }
    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }
}

/// A running cluster; node 0 starts as the primary.
#[derive(Debug)]
pub struct Cluster {
    install: Install,
    root: PathBuf,
    nodes: Vec<Node>,
    // Dropped last: by then nothing is left for it to do.
    _watcher: Watcher,
}

impl Cluster {
    /// Makes and starts a cluster; standbys are streaming when this returns.
    ///
    /// # Errors
    /// When a server does not come up.
    pub fn new(options: ClusterOptions) -> Result<Self> {
        let install = Install::find()?;
        let template = install.template()?;
        let root = tempfile::Builder::new().prefix("pgweir-test-").tempdir_in(procs::scratch_dir())?.keep();
        let watcher = Watcher::start(&root)?;
        fs::set_permissions(&root, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        install.give(&root)?;
        let mut cluster = Self { install, root, nodes: Vec::new(), _watcher: watcher };
        for node in 0..=options.standbys {
            cluster.create(node, &template, &options)?;
        }
        for node in 0..=options.standbys {
            cluster.launch(node)?;
        }
        for node in 0..=options.standbys {
            cluster.wait_ready(node)?;
        }
        cluster.wait_streaming(options.standbys)?;
        Ok(cluster)
    }

    fn create(&mut self, node: usize, template: &Path, options: &ClusterOptions) -> Result<()> {
        let dir = self.root.join(format!("n{node}"));
        fs::create_dir(&dir)?;
        self.install.give(&dir)?;
        let created = Node { port: procs::free_port()?, dir, server: None };
        copy_dir(template, &created.data())?;
        let mut conf = BASE_CONF.to_owned();
        writeln!(conf, "port = {}\ncluster_name = 'n{node}'", created.port)?;
        writeln!(conf, "max_connections = {}", options.max_connections)?;
        writeln!(conf, "log_line_prefix = '{}'\nlog_error_verbosity = default", server_log::PREFIX)?;
        if options.log_statements {
            writeln!(conf, "log_statement = all")?;
        }
        if node > 0 {
            writeln!(conf, "primary_conninfo = '{}'", conninfo(self.nodes[0].port, node))?;
            fs::write(created.data().join("standby.signal"), "")?;
            self.install.give(&created.data().join("standby.signal"))?;
        }
        conf.push_str(&options.conf);
        fs::write(created.data().join("postgresql.auto.conf"), conf)?;
        fs::write(created.data().join("pg_hba.conf"), hba(options.server_auth))?;
        self.nodes.push(created);
        Ok(())
    }

    fn launch(&mut self, node: usize) -> Result<()> {
        let at = self.node(node)?;
        let log = fs::OpenOptions::new().create(true).append(true).open(at.log())?;
        let server = self
            .install
            .server("postgres")
            .arg("-D")
            .arg(at.data())
            .current_dir(&at.dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting postgres")?;
        self.nodes[node].server = Some(server);
        Ok(())
    }

    /// Waits until a node answers a query; starts it again when its port was taken meanwhile.
    fn wait_ready(&mut self, node: usize) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            match self.admin(node).and_then(|mut admin| admin.simple("SELECT 1")) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > end => {
                    return Err(
                        error.context(format!("n{node} does not come up\n{}", self.log_tail(node, 50)))
                    );
                }
                Err(_not_yet) => std::thread::sleep(Duration::from_millis(10)),
            }
            let ended = match &mut self.nodes[node].server {
                Some(server) => server.try_wait()?.is_some(),
                None => bail!("n{node} is not started"),
            };
            if ended {
                let log = self.log_tail(node, 20);
                ensure!(log.contains("Address already in use"), "n{node} does not come up\n{log}");
                std::thread::sleep(Duration::from_millis(100));
                self.launch(node)?;
            }
        }
    }

    fn wait_streaming(&self, standbys: usize) -> Result<()> {
        if standbys == 0 {
            return Ok(());
        }
        let sql = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
        let mut admin = self.admin(0)?;
        let streaming = crate::eventually(Duration::from_secs(30), || {
            admin.scalar(sql).is_ok_and(|n| n == standbys.to_string())
        });
        ensure!(streaming, "standbys do not stream");
        Ok(())
    }

    fn node(&self, node: usize) -> Result<&Node> {
        self.nodes.get(node).with_context(|| format!("no node {node}"))
    }

    /// How many nodes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never: there is always a primary.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The installation that it runs on.
    #[must_use]
    pub fn install(&self) -> &Install {
        &self.install
    }

    /// The rig's directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Port of a node.
    #[must_use]
    pub fn port(&self, node: usize) -> u16 {
        self.nodes[node].port
    }

    /// Data directory of a node.
    #[must_use]
    pub fn data(&self, node: usize) -> PathBuf {
        self.nodes[node].data()
    }

    /// A superuser's direct connection to a node.
    ///
    /// # Errors
    /// When the node does not answer.
    pub fn admin(&self, node: usize) -> Result<RawClient> {
        Login::new("postgres", "bench").connect(self.node(node)?.port)
    }

    /// A direct connection to a node as `bench`.
    ///
    /// # Errors
    /// When the node does not answer.
    pub fn direct(&self, node: usize) -> Result<RawClient> {
        RawClient::bench(self.node(node)?.port)
    }

    /// Runs SQL directly on a node, as superuser, in the database `bench`.
    ///
    /// # Errors
    /// The server's error, or that it does not answer.
    pub fn sql(&self, node: usize, sql: &str) -> Result<Rows> {
        let mut admin = self.admin(node)?;
        admin.set_deadline(Duration::from_secs(30));
        admin.simple(sql).with_context(|| format!("on n{node}: {sql}"))
    }

    /// As [`Cluster::sql`], the first value only.
    ///
    /// # Errors
    /// As [`Cluster::sql`].
    pub fn scalar(&self, node: usize, sql: &str) -> Result<String> {
        Ok(self.sql(node, sql)?.first_column().into_iter().next().unwrap_or_default())
    }

    /// Runs SQL on the primary and waits until the standbys have it.
    ///
    /// # Errors
    /// As [`Cluster::sql`].
    pub fn setup(&self, sql: &str) -> Result<()> {
        self.sql(0, sql)?;
        self.wait_replay()
    }

    /// Waits until every running standby has replayed what the primary has written.
    ///
    /// # Errors
    /// When one has not after 30 s.
    pub fn wait_replay(&self) -> Result<()> {
        let written = self.scalar(0, "SELECT pg_current_wal_flush_lsn()")?;
        let sql = format!("SELECT pg_last_wal_replay_lsn() >= '{written}'");
        for node in (1..self.nodes.len()).filter(|node| self.nodes[*node].server.is_some()) {
            let mut admin = self.admin(node)?;
            let there =
                crate::eventually(Duration::from_secs(30), || admin.scalar(&sql).is_ok_and(|v| v == "t"));
            ensure!(there, "n{node} has not replayed {written}");
        }
        Ok(())
    }

    /// Stops a node and waits for its end.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop(&mut self, node: usize, mode: StopMode) -> Result<()> {
        let signal = match mode {
            StopMode::Smart => Signal::TERM,
            StopMode::Fast => Signal::INT,
            StopMode::Immediate => Signal::QUIT,
        };
        let mut server = self.nodes[node].server.take().with_context(|| format!("n{node} is not running"))?;
        procs::send(server.id(), signal);
        procs::wait(&mut server, Duration::from_secs(30))?;
        Ok(())
    }

    /// Kills (SIGKILL) a node's postmaster and all its children.
    ///
    /// # Errors
    /// When it is not running.
    pub fn kill9(&mut self, node: usize) -> Result<()> {
        let Some(mut server) = self.nodes[node].server.take() else {
            // A script has started it.
            ensure!(!procs::under(&self.nodes[node].dir).is_empty(), "n{node} is not running");
            procs::kill_all_under(&self.nodes[node].dir);
            return Ok(());
        };
        procs::send(server.id(), Signal::KILL);
        procs::kill_all_under(&self.nodes[node].dir);
        procs::wait(&mut server, Duration::from_secs(10))?;
        Ok(())
    }

    /// Starts a node again and waits until it answers.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn start(&mut self, node: usize) -> Result<()> {
        self.launch(node)?;
        self.wait_ready(node)
    }

    /// Promotes a standby; it is writable when this returns.
    ///
    /// # Errors
    /// When it is not after 30 s.
    pub fn promote(&self, node: usize) -> Result<()> {
        let done = self.scalar(node, "SELECT pg_promote(true, 30)")?;
        ensure!(done == "t", "n{node} is not promoted");
        Ok(())
    }

    /// Lets a stopped node begin again as a standby of `primary`. One that was killed, or was a primary of its own
    /// history, is rewound first, for which the cluster needs `full_page_writes` and `wal_log_hints`.
    ///
    /// # Errors
    /// When it cannot be rewound, or does not come up.
    pub fn rejoin(&mut self, node: usize, primary: usize) -> Result<()> {
        // Until its first checkpoint after the promotion the control file tells the old timeline, and pg_rewind of
        // PostgreSQL 15 and before finds nothing to do.
        self.sql(primary, "CHECKPOINT")?;
        let (at, source) = (self.node(node)?, self.node(primary)?.port);
        let conf = at.data().join("postgresql.auto.conf");
        // pg_rewind brings the other node's.
        let own = fs::read_to_string(&conf)?;
        let done = self
            .install
            .server("pg_rewind")
            .arg(format!("--source-server=host=127.0.0.1 port={source} user=postgres dbname=postgres"))
            .arg("--no-sync")
            .arg("-D")
            .arg(at.data())
            .current_dir(&at.dir)
            .output()?;
        ensure!(done.status.success(), "pg_rewind: {}", String::from_utf8_lossy(&done.stderr));
        let follow = conninfo(source, node);
        fs::write(
            &conf,
            format!("{own}\nprimary_conninfo = '{follow}'\nrecovery_target_timeline = 'latest'\n"),
        )?;
        let signal = at.data().join("standby.signal");
        fs::write(&signal, "")?;
        self.install.give(&signal)?;
        self.start(node)
    }

    /// Lets a running standby follow another primary.
    ///
    /// # Errors
    /// As [`Cluster::sql`].
    pub fn repoint(&self, node: usize, primary: usize) -> Result<()> {
        let follow = conninfo(self.port(primary), node);
        self.sql(node, &format!("ALTER SYSTEM SET primary_conninfo = '{follow}'"))?;
        self.sql(node, "SELECT pg_reload_conf()")?;
        Ok(())
    }

    /// Stops (SIGSTOP) every process of a node: it accepts connections and says nothing.
    pub fn freeze(&self, node: usize) {
        procs::under(&self.nodes[node].dir).into_iter().for_each(|pid| procs::send(pid, Signal::STOP));
    }

    /// Undoes [`Cluster::freeze`].
    pub fn thaw(&self, node: usize) {
        procs::under(&self.nodes[node].dir).into_iter().for_each(|pid| procs::send(pid, Signal::CONT));
    }

    /// Changes how a node authenticates everybody but `postgres`, for new connections.
    ///
    /// # Errors
    /// When it cannot be reloaded.
    pub fn set_auth(&self, node: usize, auth: ServerAuth) -> Result<()> {
        fs::write(self.node(node)?.data().join("pg_hba.conf"), hba(auth))?;
        self.reload(node)
    }

    /// Replaces a node's pg_hba.conf by lines for everybody but `postgres`, for new connections.
    ///
    /// # Errors
    /// When it cannot be reloaded.
    pub fn set_hba(&self, node: usize, lines: &str) -> Result<()> {
        let text = format!("host all,replication postgres 127.0.0.1/32 trust\n{lines}");
        fs::write(self.node(node)?.data().join("pg_hba.conf"), text)?;
        self.reload(node)
    }

    /// Has a node read its files again.
    ///
    /// # Errors
    /// When it does not.
    pub fn reload(&self, node: usize) -> Result<()> {
        let before = self.scalar(node, "SELECT pg_conf_load_time()")?;
        self.sql(node, "SELECT pg_reload_conf()")?;
        let loaded = crate::eventually(Duration::from_secs(5), || {
            self.scalar(node, "SELECT pg_conf_load_time()").is_ok_and(|time| time != before)
        });
        ensure!(loaded, "n{node} did not reload");
        Ok(())
    }

    /// Has a node use TLS with a certificate and its key in these files, for new connections.
    ///
    /// # Errors
    /// When it does not.
    pub fn set_tls(&self, node: usize, cert: &str, key: &str, ca: Option<&str>) -> Result<()> {
        let data = self.node(node)?.data();
        let mut conf = fs::read_to_string(data.join("postgresql.auto.conf"))?;
        for (from, to) in [(Some(cert), "tls.crt"), (Some(key), "tls.key"), (ca, "tls-ca.crt")] {
            let Some(from) = from else { continue };
            let _not_there_yet = fs::remove_file(data.join(to));
            fs::copy(from, data.join(to))?;
            self.install.give(&data.join(to))?;
        }
        conf.push_str("ssl = on\nssl_cert_file = 'tls.crt'\nssl_key_file = 'tls.key'\n");
        if ca.is_some() {
            conf.push_str("ssl_ca_file = 'tls-ca.crt'\n");
        }
        fs::write(data.join("postgresql.auto.conf"), conf)?;
        self.reload(node)?;
        let on = self.scalar(node, "SELECT setting FROM pg_settings WHERE name = 'ssl'")?;
        ensure!(on == "on", "n{node} has no TLS\n{}", self.log_tail(node, 20));
        Ok(())
    }

    /// Waits until `sql`, run as superuser on a node, answers `wanted`.
    ///
    /// # Errors
    /// With the last answer, when it does not within `limit`.
    pub fn wait_scalar(&self, node: usize, sql: &str, wanted: &str, limit: Duration) -> Result<()> {
        let mut last = String::new();
        let mut admin = self.admin(node)?;
        let seen = crate::eventually(limit, || {
            last = admin.scalar(sql).unwrap_or_else(|error| format!("{error:#}"));
            last == wanted
        });
        ensure!(seen, "on n{node} after {limit:?}: {sql}\nanswers {last:?} instead of {wanted:?}");
        Ok(())
    }

    /// The statements that a node has logged since its first start.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn statements_logged(&self, node: usize) -> Result<Vec<Logged>> {
        server_log::read(&self.node(node)?.log())
    }

    /// How many logged statements of `bench` on a node contain `text`.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn count_logged(&self, node: usize, text: &str) -> Result<usize> {
        let logged = self.statements_logged(node)?;
        Ok(logged.iter().filter(|s| s.user == "bench" && s.sql.contains(text)).count())
    }

    /// The whole server log of a node.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn log(&self, node: usize) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(self.node(node)?.log())?).into_owned())
    }

    /// The end of a node's log, without the many statements of the check user.
    fn log_tail(&self, node: usize, lines: usize) -> String {
        let text = self.log(node).unwrap_or_default();
        let kept: Vec<&str> =
            text.lines().filter(|line| !(line.contains("|pgweir|") && line.contains("statement:"))).collect();
        tail(&kept.join("\n"), lines)
    }
}

/// How a node connects to the primary at `port`.
fn conninfo(port: u16, node: usize) -> String {
    format!("host=127.0.0.1 port={port} user=postgres application_name=n{node}")
}

/// The last lines of a text.
#[must_use]
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

fn hba(auth: ServerAuth) -> String {
    format!(
        "host all,replication postgres 127.0.0.1/32 trust\n\
         host replication postgres 127.0.0.1/32 trust\n\
         host all,replication all 127.0.0.1/32 {}\n",
        auth.word()
    )
}

/// The System V segment that a killed server leaves behind is removed by hand: they are few per machine.
fn remove_segment(data: &Path) {
    let Ok(text) = fs::read_to_string(data.join("postmaster.pid")) else { return };
    if let Some(id) = text.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)) {
        let _may_be_gone =
            std::process::Command::new("ipcrm").args(["-m", id]).stderr(Stdio::null()).status();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in 0..self.nodes.len() {
            eprintln!("--- log of n{node} (end)\n{}", self.log_tail(node, 40));
        }
        for node in &self.nodes {
            procs::under(&node.dir).into_iter().for_each(|pid| procs::send(pid, Signal::CONT));
            if let Some(server) = &node.server {
                procs::send(server.id(), Signal::QUIT);
            }
        }
        for node in &mut self.nodes {
            if let Some(mut server) = node.server.take() {
                let ended = procs::wait(&mut server, Duration::from_secs(3));
                procs::kill_all_under(&node.dir);
                if ended.is_err() {
                    let _killed = procs::wait(&mut server, Duration::from_secs(3));
                }
            }
            remove_segment(&node.data());
        }
        procs::kill_all_under(&self.root);
        let _watcher_does_the_rest = fs::remove_dir_all(&self.root);
    }
}
