//! `pgweir reload` and `pgweir stop`: finding the running pgweir, and signalling it.
//!
//! It is found by its pid file; without one, by the HTTP endpoint of the same configuration, which tells its
//! process id.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use config::Config;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

use crate::cli::{Failure, StopMode, load, say};
use crate::http_get::get;
use crate::pid_file::{self, Found};

/// How often we look whether something has happened.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a reload may take to show.
const RELOAD_WITHIN: Duration = Duration::from_secs(10);
/// How much longer than its own limit a stop may take.
const STOP_GRACE: Duration = Duration::from_secs(15);

/// A living pgweir.
pub(crate) struct Running {
    pid: Pid,
}

impl Running {
    /// Finds the one that runs this configuration.
    ///
    /// # Errors
    /// There is none, and what was looked at.
    pub(crate) fn find(config: &Config) -> anyhow::Result<Self> {
        let by_file =
            config.pid_file.as_deref().map(|path| Ok::<_, anyhow::Error>((path, pid_file::find(path)?)));
        let why_not = match by_file.transpose()? {
            Some((_, Found::Running(pid))) => return Self::new(pid),
            Some((path, Found::Stale(pid))) => {
                let pid = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
                format!("the pid file {} is stale: whoever wrote it{pid} has ended", path.display())
            }
            Some((path, Found::Missing)) => format!("there is no pid file {}", path.display()),
            None => "pid_file is not set".to_owned(),
        };
        match pid_by_http(config) {
            Ok(pid) => Self::new(pid),
            Err(error) => bail!("pgweir does not seem to run: {why_not}, and {error:#}"),
        }
    }

    fn new(pid: i32) -> anyhow::Result<Self> {
        let pid = Pid::from_raw(pid).context("0 is no process id")?;
        match test_kill_process(pid) {
            Ok(()) => Ok(Self { pid }),
            Err(Errno::PERM) => bail!("process {} belongs to another user", pid.as_raw_nonzero()),
            Err(Errno::SRCH) => bail!("process {} is not on this machine", pid.as_raw_nonzero()),
            Err(error) => Err(error).context("cannot signal pgweir"),
        }
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process(self.pid, signal)
            .with_context(|| format!("cannot signal process {}", self.pid.as_raw_nonzero()))
    }

    /// Whether it has ended; a process that its parent has not waited for yet has.
    fn has_ended(&self) -> bool {
        if test_kill_process(self.pid) == Err(Errno::SRCH) {
            return true;
        }
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero()));
        // The state follows the name, which is in parentheses and may hold anything.
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])))
    }

    /// The process id.
    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }
}

fn pid_by_http(config: &Config) -> anyhow::Result<i32> {
    let health: Value = serde_json::from_str(&get(config, "/health")?).context("/health is not JSON")?;
    let pid = health.get("pid").and_then(Value::as_i64).and_then(|pid| i32::try_from(pid).ok());
    pid.filter(|pid| *pid > 0).context("/health tells no process id")
}

/// Reloads that succeeded and failed so far, as `/metrics` says; none without metrics_listen.
fn reloads(config: &Config) -> Option<(u64, u64)> {
    let metrics = get(config, "/metrics").ok()?;
    let count = |result: &str| {
        let name = format!("pgweir_config_reloads_total{{result=\"{result}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok())
    };
    Some((count("ok")?, count("failed")?))
}

/// Why the last reload was refused, as `/status` says: what is valid here may be none for the process, whose working
/// directory and rights are others.
fn refusal(config: &Config) -> Option<String> {
    let status: Value = serde_json::from_str(&get(config, "/status").ok()?).ok()?;
    let events = status.get("events")?.as_array()?;
    let last = events.iter().find(|event| event["event"] == "reload" && event["to"] == "refused")?;
    Some(last.get("reason")?.as_str()?.to_owned())
}

/// `pgweir reload`: validates the file here first, then signals, then tells what became of it.
///
/// # Errors
/// The configuration is refused, pgweir does not run, or it refused the reload.
pub(crate) fn reload(file: &Path) -> Result<ExitCode, Failure> {
    let config = load(file)?;
    let running = Running::find(&config)?;
    let before = reloads(&config);
    running.signal(Signal::HUP)?;
    let Some((ok, failed)) = before else {
        say(&format!("process {} was told to reload; its log says what changed", running.pid()))?;
        return Ok(ExitCode::SUCCESS);
    };
    let end = Instant::now() + RELOAD_WITHIN;
    while Instant::now() < end {
        match reloads(&config) {
            Some((now, _)) if now > ok => {
                say(&format!("process {} has reloaded; its log says what changed", running.pid()))?;
                return Ok(ExitCode::SUCCESS);
            }
            Some((_, now)) if now > failed => {
                let why = refusal(&config).unwrap_or_else(|| "see its log".to_owned());
                return Err(anyhow::anyhow!("process {} has refused the reload: {why}", running.pid()).into());
            }
            _ => std::thread::sleep(LOOK_EVERY),
        }
    }
    Err(anyhow::anyhow!("process {} has not reloaded within {RELOAD_WITHIN:?}; see its log", running.pid())
        .into())
}

/// `pgweir stop`: signals and waits for the end.
///
/// # Errors
/// The configuration is refused, pgweir does not run, or it does not end in time.
pub(crate) fn stop(file: &Path, mode: StopMode) -> Result<ExitCode, Failure> {
    let config = load(file)?;
    let running = Running::find(&config)?;
    let (signal, limit) = match mode {
        StopMode::Smart => (Signal::TERM, config.shutdown_timeout.saturating_add(STOP_GRACE)),
        StopMode::Fast => (Signal::INT, STOP_GRACE),
        StopMode::Immediate => (Signal::QUIT, STOP_GRACE),
    };
    running.signal(signal)?;
    let started = Instant::now();
    while !running.has_ended() {
        if started.elapsed() > limit {
            return Err(anyhow::anyhow!("process {} has not ended within {limit:?}", running.pid()).into());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    say(&format!("process {} has ended", running.pid()))?;
    Ok(ExitCode::SUCCESS)
}
