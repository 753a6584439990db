//! The PostgreSQL installation that the tests use, the user its servers run as, and the cached
//! template data directory that every cluster is copied from.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::login::Login;
use crate::procs;

/// What every cluster contains, beyond a fresh `initdb`.
const SETUP: &[&str] = &[
    "ALTER ROLE postgres PASSWORD 'postgres'",
    "CREATE ROLE pgweir LOGIN PASSWORD 'pgweir' IN ROLE pg_monitor",
    "CREATE ROLE bench LOGIN PASSWORD 'bench'",
    "CREATE ROLE other LOGIN PASSWORD 'other'",
    "CREATE ROLE stats LOGIN PASSWORD 'stats'",
    "SET password_encryption = 'md5'",
    "CREATE ROLE bench_md5 LOGIN PASSWORD 'bench'",
    "CREATE DATABASE bench OWNER bench",
    "GRANT EXECUTE ON FUNCTION pg_promote TO pgweir",
];

/// Settings in force while the template is made and, with those of the cluster, ever after.
pub(crate) const BASE_CONF: &str = "\
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = off
full_page_writes = off
autovacuum = off
shared_buffers = 32MB
dynamic_shared_memory_type = mmap
wal_level = replica
hot_standby = on
hot_standby_feedback = on
max_wal_senders = 10
wal_keep_size = 512MB
wal_retrieve_retry_interval = 100ms
wal_receiver_status_interval = 1
timezone = 'UTC'
lc_messages = 'C'
";

/// Settings in force while the template is made only. A standby refuses limits below those that the
/// primary last ran with, and clusters choose their own.
const TEMPLATE_CONF: &str = "max_connections = 10\n";

/// Where PostgreSQL's programs are and whom to run them as.
#[derive(Clone, Debug)]
pub struct Install {
    bin: PathBuf,
    run_as: Option<(u32, u32)>,
}

impl Install {
    /// Finds PostgreSQL: `PGWEIR_PG_BIN`, else the newest `/usr/lib/postgresql/*/bin`, else
    /// `pg_config --bindir`. Run by root, servers run as the user `postgres` (they refuse root).
    ///
    /// # Errors
    /// When there is none, or no user `postgres` for root to use.
    pub fn find() -> Result<Self> {
        let bin = match std::env::var_os("PGWEIR_PG_BIN") {
            Some(dir) => PathBuf::from(dir),
            None => newest_packaged().map_or_else(from_pg_config, Ok)?,
        };
        ensure!(bin.join("postgres").exists(), "no PostgreSQL server in {}", bin.display());
        let run_as = if rustix::process::geteuid().is_root() { Some(postgres_user()?) } else { None };
        Ok(Self { bin, run_as })
    }

    /// A command for one of PostgreSQL's programs, as the invoking user.
    #[must_use]
    pub fn client(&self, program: &str) -> Command {
        Command::new(self.bin.join(program))
    }

    /// `PATH` with PostgreSQL's programs in front, for scripts that call them.
    ///
    /// # Errors
    /// When one of the directories cannot stand in a `PATH`.
    pub fn path(&self) -> Result<std::ffi::OsString> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let dirs = std::iter::once(self.bin.clone()).chain(std::env::split_paths(&path));
        Ok(std::env::join_paths(dirs)?)
    }

    /// A command for one of PostgreSQL's programs, as the user that servers run as.
    #[must_use]
    pub fn server(&self, program: &str) -> Command {
        let mut command = self.client(program);
        if let Some((uid, gid)) = self.run_as {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Gives a path to the user that servers run as.
    ///
    /// # Errors
    /// When it cannot be given.
    pub fn give(&self, path: &Path) -> Result<()> {
        if let Some((uid, gid)) = self.run_as {
            std::os::unix::fs::chown(path, Some(uid), Some(gid))?;
        }
        Ok(())
    }

    /// The server's version text, for example `postgres (PostgreSQL) 15.4`.
    ///
    /// # Errors
    /// When the server cannot be run.
    pub fn version(&self) -> Result<String> {
        let out = self.client("postgres").arg("--version").output()?;
        Ok(String::from_utf8(out.stdout)?.trim().to_owned())
    }

    /// The template data directory, made when it is not there yet: once per machine and version,
    /// under a lock, moved into place when it is complete.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn template(&self) -> Result<PathBuf> {
        let cache = procs::target_dir()?.join("pgweir-harness");
        fs::create_dir_all(&cache)?;
        let mut hash = DefaultHasher::new();
        (self.version()?, SETUP, BASE_CONF, TEMPLATE_CONF, self.run_as).hash(&mut hash);
        let place = cache.join(format!("template-{:016x}", hash.finish()));
        if place.exists() {
            return Ok(place);
        }
        let lock = fs::File::create(cache.join("lock"))?;
        lock.lock()?;
        if !place.exists() {
            self.make_template(&place).context("making the template cluster")?;
        }
        Ok(place)
    }

    fn make_template(&self, place: &Path) -> Result<()> {
        // Made outside the target directory: the user postgres may be unable to get there.
        let dir = tempfile::Builder::new().prefix("pgweir-template-").tempdir_in(procs::scratch_dir())?;
        self.give(dir.path())?;
        let _watcher = procs::Watcher::start(dir.path())?;
        let data = dir.path().join("data");
        let done = self
            .server("initdb")
            .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C.UTF-8"])
            .args(["--wal-segsize=4", "-D"])
            .arg(&data)
            .current_dir(dir.path())
            .output()?;
        ensure!(done.status.success(), "initdb: {}", String::from_utf8_lossy(&done.stderr));
        let port = procs::free_port()?;
        fs::write(data.join("postgresql.auto.conf"), format!("{BASE_CONF}{TEMPLATE_CONF}port = {port}\n"))?;
        let mut server = self
            .server("postgres")
            .arg("-D")
            .arg(&data)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stderr(fs::File::create(dir.path().join("log"))?)
            .spawn()?;
        let prepared = run_setup(port);
        procs::send(server.id(), rustix::process::Signal::INT);
        procs::wait(&mut server, Duration::from_secs(30))?;
        prepared?;
        let part = place.with_extension("part");
        if part.exists() {
            fs::remove_dir_all(&part)?;
        }
        copy_dir(&data, &part)?;
        fs::rename(&part, place)?;
        Ok(())
    }
}

fn run_setup(port: u16) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    let mut admin = loop {
        match Login::new("postgres", "postgres").password("").connect(port) {
            Ok(client) => break client,
            Err(error) if Instant::now() > end => return Err(error),
            Err(_not_yet) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    admin.set_deadline(Duration::from_secs(60));
    for sql in SETUP {
        admin.simple(sql).with_context(|| (*sql).to_owned())?;
    }
    admin.simple("CHECKPOINT")?;
    Ok(())
}

/// Copies a directory with owners and modes, sharing blocks where the file system can.
///
/// # Errors
/// When `cp` fails.
pub fn copy_dir(from: &Path, to: &Path) -> Result<()> {
    // In the rig's directory, so that the watcher finds it.
    let place = to.parent().context("no place to copy to")?;
    let mut cp = Command::new("cp");
    let status = cp.args(["-a", "--reflink=auto"]).arg(from).arg(to).current_dir(place).status()?;
    ensure!(status.success(), "cp -a {} {}", from.display(), to.display());
    Ok(())
}

fn newest_packaged() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    versions
        .flatten()
        .filter_map(|entry| {
            let version: u32 = entry.file_name().to_str()?.parse().ok()?;
            let bin = entry.path().join("bin");
            bin.join("postgres").exists().then_some((version, bin))
        })
        .max()
        .map(|(_, bin)| bin)
}

fn from_pg_config() -> Result<PathBuf> {
    let out = Command::new("pg_config").arg("--bindir").output().context("no PostgreSQL: no pg_config")?;
    Ok(PathBuf::from(String::from_utf8(out.stdout)?.trim()))
}

fn postgres_user() -> Result<(u32, u32)> {
    let id = |flag: &str| -> Result<u32> {
        let out = Command::new("id").args([flag, "postgres"]).output()?;
        if !out.status.success() {
            bail!("run by root, but there is no user postgres to run the servers as");
        }
        Ok(String::from_utf8(out.stdout)?.trim().parse()?)
    };
    Ok((id("-u")?, id("-g")?))
}
