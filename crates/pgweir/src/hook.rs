//! `failover_command`, `failback_command`, `follow_primary_command`, `recovery_command`: Pgpool-II's placeholders, and how they are run.
//!
//! Invariants: what stands for a placeholder is one word of the shell, or part of one, whatever it contains, inside
//! and outside of quotes; a command ends in time, with everything it has started, and so it does when nobody waits for
//! it any more; its output is logged, up to a limit.

use std::process::Stdio;
use std::time::Duration;

use cluster::{Hook, HookCall, Node, NodeId, Recovery, Topology};
use config::Config;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};

/// Lines of output that are logged of one run; the rest is read and dropped.
const LOGGED_LINES: usize = 1000;
/// How long output is waited for when the command has ended.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Longer lines are cut (bytes).
const LINE_LIMIT: usize = 4096;

/// The template of that command.
pub(crate) fn command(config: &Config, hook: Hook) -> Option<&str> {
    let template = match hook {
        Hook::Failover => &config.failover_command,
        Hook::Failback => &config.failback_command,
        Hook::FollowPrimary => &config.follow_primary_command,
        Hook::Recovery => &config.recovery_command,
    };
    template.as_deref().filter(|text| !text.trim().is_empty())
}

/// What the placeholders stand for; empty where there is nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Values {
    node: Place,
    main: Place,
    old: Place,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Place {
    id: String,
    host: String,
    port: String,
    directory: String,
}

impl Values {
    /// As the nodes are now.
    pub(crate) fn of(call: HookCall, topology: &Topology, config: &Config) -> Self {
        let place = |id: Option<NodeId>| {
            id.and_then(|id| topology.node(id)).map(|node| Place::of(node, config)).unwrap_or_default()
        };
        Self { node: place(Some(call.node)), main: place(call.main), old: place(call.old_primary) }
    }

    /// Of a recovery: the primary is the one that there is, and was.
    pub(crate) fn of_recovery(recovery: Recovery, topology: &Topology, config: &Config) -> Self {
        let Recovery { node, primary, .. } = recovery;
        let (main, old_primary) = (Some(primary), Some(primary));
        Self::of(HookCall { hook: Hook::Recovery, node, main, old_primary }, topology, config)
    }

    fn get(&self, placeholder: char) -> Option<&str> {
        let Self { node, main, old } = self;
        Some(match placeholder {
            'd' => &node.id,
            'h' => &node.host,
            'p' => &node.port,
            'D' => &node.directory,
            'm' => &main.id,
            'H' => &main.host,
            'r' => &main.port,
            'R' => &main.directory,
            'M' | 'P' => &old.id,
            'N' => &old.host,
            'S' => &old.port,
            '%' => "%",
            _ => return None,
        })
    }
}

impl Place {
    fn of(node: &Node, config: &Config) -> Self {
        let backend = config.backends.get(node.id.index());
        let directory = backend.and_then(|backend| backend.data_directory.as_ref());
        Self {
            id: node.id.to_string(),
            host: node.hostname.to_string(),
            port: node.port.to_string(),
            directory: directory.map(|path| path.display().to_string()).unwrap_or_default(),
        }
    }
}

/// In which quotes a placeholder stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quotes {
    None,
    Single,
    Double,
}

/// The command for the shell. An unknown placeholder stays as it is.
pub(crate) fn expand(template: &str, values: &Values) -> String {
    let mut out = String::new();
    let mut quotes = Quotes::None;
    let mut rest = template.chars();
    while let Some(char) = rest.next() {
        match (char, quotes) {
            ('%', _) => {
                let mut ahead = rest.clone();
                match ahead.next().and_then(|letter| values.get(letter)) {
                    Some("%") => {
                        out.push('%');
                        rest = ahead;
                    }
                    Some(value) => {
                        out.push_str(&quoted(value, quotes));
                        rest = ahead;
                    }
                    None => out.push('%'),
                }
                continue;
            }
            ('\\', Quotes::None | Quotes::Double) => {
                out.push(char);
                out.extend(rest.next());
                continue;
            }
            ('\'', Quotes::None) => quotes = Quotes::Single,
            ('"', Quotes::None) => quotes = Quotes::Double,
            ('\'', Quotes::Single) | ('"', Quotes::Double) => quotes = Quotes::None,
            _ => {}
        }
        out.push(char);
    }
    out
}

fn quoted(value: &str, quotes: Quotes) -> String {
    match quotes {
        Quotes::None => format!("'{}'", value.replace('\'', r"'\''")),
        Quotes::Single => value.replace('\'', r"'\''"),
        Quotes::Double => {
            let special = |char: char| matches!(char, '\\' | '"' | '$' | '`');
            value.chars().flat_map(|char| special(char).then_some('\\').into_iter().chain([char])).collect()
        }
    }
}

/// Why a command has failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// There is no shell, or no process.
    #[error("it cannot be run: {0}")]
    NotRun(std::io::Error),
    /// It says so itself.
    #[error("it has failed with {0}")]
    Status(std::process::ExitStatus),
    /// The time is up.
    #[error("it took longer than {0:?} and was killed")]
    TooLong(Duration),
    /// The system does not tell.
    #[error("it cannot be waited for: {0}")]
    NotWaited(std::io::Error),
}

/// Takes each line of a command's output.
pub(crate) type Listener<'a> = &'a (dyn Fn(&str) + Sync);

/// Runs the command to its end, or kills it when the time is up, or when the future is dropped.
pub(crate) async fn run(
    hook: Hook,
    command: &str,
    limit: Duration,
    listener: Listener<'_>,
) -> Result<(), Failure> {
    let hook = hook.key();
    tracing::info!(hook, command, "command begins");
    let started = std::time::Instant::now();
    let ended = run_within(hook, command, limit, listener).await;
    let took_ms = started.elapsed().as_millis();
    match &ended {
        Ok(()) => tracing::info!(hook, took_ms, "command has ended"),
        Err(Failure::NotRun(error)) => tracing::error!(hook, %error, "command cannot be run"),
        Err(Failure::Status(status)) => tracing::error!(hook, took_ms, %status, "command has failed"),
        Err(Failure::TooLong(_)) => tracing::error!(hook, took_ms, "command takes too long; it is killed"),
        Err(Failure::NotWaited(error)) => tracing::error!(hook, %error, "command cannot be waited for"),
    }
    ended
}

async fn run_within(
    hook: &'static str,
    command: &str,
    limit: Duration,
    listener: Listener<'_>,
) -> Result<(), Failure> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(Failure::NotRun)?;
    let mut group = Group(child.id());
    let status = tokio::time::timeout(limit, watched(hook, &mut child, listener))
        .await
        .map_err(|_| Failure::TooLong(limit))?
        .map_err(Failure::NotWaited)?;
    // What it has left in the background is meant to go on: it has ended by itself.
    group.0 = None;
    status.success().then_some(()).ok_or(Failure::Status(status))
}

/// A command and what it has started; killed when it is dropped.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        let group = self.0.and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
        if let Some(group) = group {
            // It may have ended in this moment.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

async fn watched(
    hook: &'static str,
    child: &mut Child,
    listener: Listener<'_>,
) -> std::io::Result<std::process::ExitStatus> {
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let output = async {
        tokio::join!(logged(hook, out, listener), logged(hook, err, listener));
    };
    let mut output = std::pin::pin!(output);
    let status = tokio::select! {
        () = &mut output => return child.wait().await,
        status = child.wait() => status?,
    };
    // What it leaves running in the background may keep the pipes open: its own end counts.
    let _ = tokio::time::timeout(LAST_WORDS, output).await;
    Ok(status)
}

async fn logged(hook: &'static str, stream: Option<impl AsyncRead + Unpin>, listener: Listener<'_>) {
    let Some(stream) = stream else { return };
    let mut lines = BufReader::new(stream);
    let (mut line, mut count) = (Vec::new(), 0);
    // A line that is no text is logged as far as it is.
    while matches!(lines.read_until(b'\n', &mut line).await, Ok(1..)) {
        count += 1;
        let text = String::from_utf8_lossy(line.get(..LINE_LIMIT).unwrap_or(&line)).trim_end().to_owned();
        if count <= LOGGED_LINES {
            tracing::info!(hook, "{text}");
        }
        // Programs that show how far they are overwrite a line with another one.
        if let Some(last) = text.rsplit('\r').find(|part| !part.trim().is_empty()) {
            listener(last);
        }
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Values {
        let place = |id: &str, host: &str| Place {
            id: id.to_owned(),
            host: host.to_owned(),
            port: "5432".to_owned(),
            directory: "/it's \"here\" $(id)".to_owned(),
        };
        Values { node: place("0", "a;b"), main: place("1", "db1"), old: place("0", "a;b") }
    }

    #[test]
    fn placeholders_are_pgpools() {
        let plain = expand("x %d %p %m %H %r %M %P %N %S %% %z %", &values());
        assert_eq!(plain, "x '0' '5432' '1' 'db1' '5432' '0' '0' 'a;b' '5432' % %z %");
        assert_eq!(expand("%m|%R", &Values::default()), "''|''");
    }

    /// Whatever a value contains, the shell sees it as it is.
    #[test]
    fn values_are_words_in_and_out_of_quotes() {
        for template in ["printf %%s %D", "printf %%s \"%D\"", "printf %%s '%D'", "printf %%s \\\"\"%D\"\\\""]
        {
            let out =
                std::process::Command::new("/bin/sh").args(["-c", &expand(template, &values())]).output();
            let out = String::from_utf8(out.unwrap().stdout).unwrap();
            assert_eq!(out.trim_matches('"'), "/it's \"here\" $(id)", "{template}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_command_ends_in_time_with_what_it_started() {
        let long = Duration::from_secs(20);
        let said = parking_lot::Mutex::new(Vec::new());
        let listener = |line: &str| said.lock().push(line.to_owned());
        let loud = "printf 'begun\\n1%%\\r2%%\\r\\n'; exit 0";
        assert!(run(Hook::Failover, loud, long, &listener).await.is_ok());
        assert_eq!(*said.lock(), ["begun", "2%"]);
        let failed = run(Hook::Recovery, "exit 3", long, &listener).await.unwrap_err();
        assert_eq!(failed.to_string(), "it has failed with exit status: 3");
        let started = std::time::Instant::now();
        let slow = run(Hook::Failover, "sleep 60 & sleep 60", Duration::from_millis(100), &listener).await;
        assert!(matches!(slow, Err(Failure::TooLong(_))), "{slow:?}");
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}
