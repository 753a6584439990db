//! Processes: who they belong to, what they use, and how they end.
//!
//! A process belongs to a rig when its working directory lies in the rig's directory: PostgreSQL's
//! children change to the data directory and everything else is started there. So orphans are found
//! too, and nothing that somebody else started can be hit.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// The processes whose working directory is `dir` or below it.
#[must_use]
pub fn under(dir: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(dir)))
        .collect()
}

/// Sends `signal` to one process; a process that is gone is no error.
pub fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _gone = kill_process(pid, signal);
    }
}

/// Kills (SIGKILL) every process under `dir`, until none is left.
pub fn kill_all_under(dir: &Path) {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let pids = under(dir);
        if pids.is_empty() || Instant::now() > end {
            return;
        }
        pids.into_iter().for_each(|pid| send(pid, Signal::KILL));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for a child up to `limit`.
///
/// # Errors
/// When it is still running then (it is left running), or cannot be waited for.
pub fn wait(child: &mut Child, limit: Duration) -> Result<ExitStatus> {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        anyhow::ensure!(Instant::now() < end, "process {} did not end within {limit:?}", child.id());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process that is killed when this is dropped.
#[derive(Debug)]
pub struct Owned(Child);

impl Owned {
    /// Starts it.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(command: &mut Command) -> Result<Self> {
        let child = command.spawn();
        Ok(Self(child.with_context(|| format!("{command:?}"))?))
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let _may_have_ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Resident memory of a process in kB (`VmRSS`).
///
/// # Errors
/// When the process is gone.
pub fn rss_kb(pid: u32) -> Result<u64> {
    status_kb(pid, "VmRSS:")
}

/// The most resident memory that a process ever had, in kB (`VmHWM`).
///
/// # Errors
/// When the process is gone.
pub fn peak_rss_kb(pid: u32) -> Result<u64> {
    status_kb(pid, "VmHWM:")
}

fn status_kb(pid: u32, name: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line =
        status.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}

/// CPU time of a process so far, user and system, in seconds.
///
/// # Errors
/// When the process is gone.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    const TICKS_PER_SECOND: f64 = 100.0; // USER_HZ, fixed on every Linux that Rust supports
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(')').context("odd stat")?.1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks / TICKS_PER_SECOND)
}

/// Number of open file descriptors of a process.
///
/// # Errors
/// When the process is gone.
pub fn open_fds(pid: u32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// A process outside the test's process group that cleans a rig's directory when the test dies.
///
/// It waits for the end of a pipe that only the test process holds. The servers get SIGQUIT first
/// (they then give their System V segment back), whatever is left gets SIGKILL.
#[derive(Debug)]
pub struct Watcher {
    child: Child,
}

const WATCHER: &str = r#"
trap '' HUP INT TERM
cat >/dev/null
signal() {
  found=1
  for p in /proc/[0-9]*; do
    case "$(readlink "$p/cwd" 2>/dev/null)" in
      "$root" | "$root"/*) kill -"$1" "${p#/proc/}" 2>/dev/null; found=0 ;;
    esac
  done
  return $found
}
root=$1
if [ -e "$root" ]; then orphaned=yes; fi
if signal QUIT; then sleep 1; signal KILL; signal KILL; fi
for f in "$root"/*/data/postmaster.pid; do
  id=$(awk 'NR==7{print $2}' "$f" 2>/dev/null)
  if [ -n "$id" ]; then ipcrm -m "$id" 2>/dev/null; fi
done
rm -rf "$root"
# Something may have been about to start when the test was killed.
if [ "$orphaned" ]; then sleep 2; signal KILL; rm -rf "$root"; fi
"#;

impl Watcher {
    /// Starts watching over `root`, which is removed in the end.
    ///
    /// # Errors
    /// When no shell can be started.
    pub fn start(root: &Path) -> io::Result<Self> {
        let child = Command::new("/bin/sh")
            .args(["-c", WATCHER, "watcher"])
            .arg(root)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self { child })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ended = wait(&mut self.child, Duration::from_secs(10));
    }
}

/// The directory of the build (`target`), found from the test's own executable.
///
/// # Errors
/// When the executable does not lie in one.
pub fn target_dir() -> Result<PathBuf> {
    Ok(profile_dir()?.parent().context("no target directory")?.to_owned())
}

/// The directory of the profile that built the test (`target/debug`).
///
/// # Errors
/// When the executable lies in no directory.
pub fn profile_dir() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let dir = exe.parent().context("no directory of the executable")?;
    let inside = dir.ends_with("deps") || dir.ends_with("examples");
    let dir = if inside { dir.parent().context("no profile directory")? } else { dir };
    Ok(dir.to_owned())
}

/// Where ports are taken from: below those that Linux gives to whoever connects.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// A free port that no other test gets while this process lives: many run at once, and each learns of its ports
/// long before it listens on them.
///
/// # Errors
/// When claims cannot be written, or no port can be bound.
pub fn free_port() -> io::Result<u16> {
    let uid = rustix::process::getuid().as_raw();
    let claims = std::env::temp_dir().join(format!("pgweir-test-ports-{uid}"));
    fs::create_dir_all(&claims)?;
    for _ in 0..1000 {
        let port = rand::random_range(PORTS);
        let claim = fs::File::create(claims.join(port.to_string()))?;
        if claim.try_lock().is_ok() && std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            // Claimed for as long as the process lives.
            std::mem::forget(claim);
            return Ok(port);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "no free port"))
}

/// Where rigs live: `TMPDIR` when it is set, else memory (`/dev/shm`) when it has room, else the
/// system's temporary directory. A cluster writes some 100 MB, which is slow on a busy disk.
#[must_use]
pub fn scratch_dir() -> PathBuf {
    const ROOM_KB: u64 = 6 << 20;
    let memory = Path::new("/dev/shm");
    let avail = || -> Option<u64> {
        let out = Command::new("df").args(["-k", "--output=avail"]).arg(memory).output().ok()?;
        String::from_utf8(out.stdout).ok()?.lines().last()?.trim().parse().ok()
    };
    if std::env::var_os("TMPDIR").is_none() && avail().is_some_and(|kb| kb >= ROOM_KB) {
        return memory.to_owned();
    }
    std::env::temp_dir()
}

/// A process that is killed when this is dropped.
#[derive(Debug)]
pub struct Killed(Child);

impl Killed {
    /// Of this child.
    #[must_use]
    pub fn new(child: Child) -> Self {
        Self(child)
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _may_have_ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}
