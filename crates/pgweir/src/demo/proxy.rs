//! pgweir itself in a demo: its configuration, its process, and when it is ready.

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use super::DemoArgs;
use super::nodes::{Nodes, private_file, tail};
use super::place::{MARKER, Place};
use crate::pid_file::{self, Found};

/// How long pgweir may take until it answers with every node up.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// How long it may take to stop before it is killed.
const STOPPED_WITHIN: Duration = Duration::from_secs(10);
/// How often we look.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The pgweir of a demo.
#[derive(Debug)]
pub(super) struct Proxy {
    config: PathBuf,
    passwords: PathBuf,
    log: PathBuf,
    pid_file: PathBuf,
    args: DemoArgs,
    child: Option<Child>,
}

impl Proxy {
    /// The pgweir of a place; nothing is started yet.
    pub(super) fn new(place: &Place, args: &DemoArgs) -> Self {
        Self {
            config: place.config(),
            passwords: place.passwords(),
            log: place.log(),
            pid_file: place.pid_file(),
            args: args.clone(),
            child: None,
        }
    }

    /// Stops the one that a demo left behind which was killed without a chance to clean up.
    ///
    /// # Errors
    /// It does not go away.
    pub(super) async fn stop_leftover(&self) -> anyhow::Result<()> {
        for signal in [Signal::INT, Signal::KILL] {
            let Some(pid) = self.running()? else { return Ok(()) };
            // It may end between the look and the signal: then there is nothing to do.
            let _ = kill_process(pid, signal);
            let deadline = Instant::now() + STOPPED_WITHIN;
            while self.running()? == Some(pid) && Instant::now() < deadline {
                sleep(LOOK_EVERY).await;
            }
        }
        match self.running()? {
            Some(pid) => bail!("process {} of an earlier demo does not end", pid.as_raw_nonzero()),
            None => Ok(()),
        }
    }

    fn running(&self) -> anyhow::Result<Option<Pid>> {
        Ok(match pid_file::find(&self.pid_file)? {
            Found::Running(pid) => Pid::from_raw(pid),
            Found::Stale(_) | Found::Missing => None,
        })
    }

    /// Writes the configuration and starts this same program with it. `primary` is the number of the node that is it.
    ///
    /// # Errors
    /// A file cannot be written, or the program cannot be started.
    pub(super) fn start(&mut self, check_secret: &str, primary: usize) -> anyhow::Result<()> {
        private_file(&self.passwords, &format!("{MARKER}\ndemo:TEXTdemo\npgweir:TEXT{check_secret}\n"))?;
        private_file(&self.config, &self.configuration(primary)?)?;
        let log = std::fs::File::create(&self.log)
            .with_context(|| format!("cannot write {}", self.log.display()))?;
        let program = std::env::current_exe().context("cannot tell where this program is")?;
        let mut command = Command::new(program);
        command.arg("run").arg("-f").arg(&self.config);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // Ctrl-C reaches the whole foreground group; in a group of its own it waits for our signal.
        command.process_group(0).kill_on_drop(true);
        self.child = Some(command.spawn().context("cannot start pgweir")?);
        Ok(())
    }

    /// Waits until a client gets through with every node up; returns what `SHOW POOL_NODES` answers.
    ///
    /// # Errors
    /// It ended, or is not ready in time; with the end of its log.
    pub(super) async fn ready(&mut self, nodes: &Nodes) -> anyhow::Result<String> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            if let Some(status) =
                self.child.as_mut().and_then(|child| child.try_wait().transpose()).transpose()?
            {
                bail!(
                    "pgweir ended at once ({status}); the end of {}:\n{}",
                    self.log.display(),
                    tail(&self.log)
                );
            }
            let asked = nodes.query(self.args.port, ("demo", "demo"), "demo", "SHOW POOL_NODES;").await;
            let why = match asked {
                Ok(shown) if all_up(&shown, self.args.node_ports().count()) => return Ok(shown),
                Ok(shown) => shown,
                Err(error) => format!("{error:#}"),
            };
            if Instant::now() >= deadline {
                bail!(
                    "pgweir is not ready after {} s: {why}\nthe end of {}:\n{}",
                    READY_WITHIN.as_secs(),
                    self.log.display(),
                    tail(&self.log)
                );
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until pgweir ends by itself, for example because of `pgweir stop`.
    ///
    /// # Errors
    /// It failed; with the end of its log.
    pub(super) async fn ended(&mut self) -> anyhow::Result<ExitCode> {
        let Some(child) = self.child.as_mut() else { bail!("pgweir was not started") };
        let status = child.wait().await?;
        if status.success() {
            return Ok(ExitCode::SUCCESS);
        }
        bail!("pgweir ended by itself ({status}); the end of {}:\n{}", self.log.display(), tail(&self.log))
    }

    /// Stops it: gracefully first, then by force.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub(super) async fn stop(&mut self) -> anyhow::Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
            kill_process(pid, Signal::INT).context("cannot stop pgweir")?;
        }
        if timeout(STOPPED_WITHIN, child.wait()).await.is_err() {
            child.kill().await.context("cannot kill pgweir")?;
        }
        Ok(())
    }

    fn configuration(&self, primary: usize) -> anyhow::Result<String> {
        let DemoArgs { port, metrics_port, .. } = &self.args;
        let backends: String = self
            .args
            .node_ports()
            .enumerate()
            .map(|(number, port)| {
                // Nobody reads from the primary while a standby can serve: so the split shows.
                let weight = u8::from(number != primary);
                format!("  - {{ hostname: 127.0.0.1, port: {port}, weight: {weight}, application_name: db{number} }}\n")
            })
            .collect();
        Ok(format!(
            "{MARKER}\n\
             listen_addresses: [\"localhost\"]\n\
             port: {port}\n\
             metrics_listen: localhost:{metrics_port}\n\
             clustering_mode: streaming_replication\n\
             backends:\n{backends}\
             pool_passwd: {passwords}\n\
             sr_check_user: pgweir\n\
             admin_users: [demo]\n\
             pid_file: {pid_file}\n",
            passwords = quoted(&self.passwords)?,
            pid_file = quoted(&self.pid_file)?,
        ))
    }
}

/// Every node is listed as up. A line of psql's table: cells between bars, the status in the fourth column.
fn all_up(shown: &str, nodes: usize) -> bool {
    let up = |line: &&str| line.split('|').nth(3).is_some_and(|status| status.trim() == "up");
    shown.lines().filter(up).count() == nodes
}

/// A path as a YAML string (JSON's strings are YAML's), so that no character in it means anything.
fn quoted(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(serde_json::to_string(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_means_that_every_node_is_up() {
        let shown = " node_id | hostname  | port | status | role\n---------+---\n \
            0       | 127.0.0.1 | 5441 | up     | primary\n 1       | 127.0.0.1 | 5442 | waiting | standby\n";
        assert!(!all_up(shown, 2));
        assert!(all_up(&shown.replace("waiting", "up"), 2));
        assert!(!all_up(&shown.replace("waiting", "up"), 3));
        assert!(!all_up("", 1));
    }

    #[test]
    fn paths_cannot_break_out_of_the_configuration() {
        assert_eq!(quoted(Path::new("/a b/\"c\"\n#")).unwrap(), r##""/a b/\"c\"\n#""##);
    }
}
