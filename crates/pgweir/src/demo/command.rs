//! Running other programs: as the user postgres when we are root, without our PG* environment, bounded in time.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// The longest any helper program may take; `initdb` on a slow disk is the slowest.
const LONGEST: Duration = Duration::from_secs(180);

/// Who a program runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunAs {
    /// The user of this process.
    Myself,
    /// Another user, because we are root and PostgreSQL refuses that.
    Other {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
    },
}

impl RunAs {
    /// Whom PostgreSQL can run as.
    ///
    /// # Errors
    /// We are root, and there is no user postgres.
    pub(super) fn for_postgres() -> anyhow::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self::Myself);
        }
        let none = "PostgreSQL refuses to run as root, and there is no user postgres to run it as: \
                    create one (useradd --system postgres) or start this as another user";
        Ok(Self::Other { uid: id_of("-u").context(none)?, gid: id_of("-g").context(none)? })
    }

    /// A command for that user, in a directory it can enter, with nothing of the caller's PG* environment.
    pub(super) fn command(self, program: impl AsRef<OsStr>, directory: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(directory).stdin(Stdio::null()).kill_on_drop(true);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"PG") {
                command.env_remove(name);
            }
        }
        if let Self::Other { uid, gid } = self {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Gives a path to that user.
    ///
    /// # Errors
    /// The path is not ours to give.
    pub(super) fn own(self, path: &Path) -> anyhow::Result<()> {
        match self {
            Self::Myself => Ok(()),
            Self::Other { uid, gid } => std::os::unix::fs::chown(path, Some(uid), Some(gid))
                .with_context(|| format!("cannot give {} to the user postgres", path.display())),
        }
    }
}

/// The number that `id` has for the user postgres: whatever directory service knows the user.
fn id_of(which: &str) -> anyhow::Result<u32> {
    let output = std::process::Command::new("id").args([which, "postgres"]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().parse()?)
}

/// Runs a command to its end, with `input` on its stdin, and returns what it printed.
///
/// # Errors
/// It cannot be started, takes too long, or fails; what it said is in the error.
pub(super) async fn finish(mut command: Command, input: &str) -> anyhow::Result<String> {
    let name = command.as_std().get_program().to_string_lossy().into_owned();
    if !input.is_empty() {
        command.stdin(Stdio::piped());
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    let stdin = child.stdin.take();
    let work = async {
        if let Some(mut stdin) = stdin {
            // A program that fails early closes its end: its own message says more than EPIPE would.
            match stdin.write_all(input.as_bytes()).await {
                Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => return Err(error),
                _ => drop(stdin),
            }
        }
        child.wait_with_output().await
    };
    let output = tokio::time::timeout(LONGEST, work)
        .await
        .with_context(|| format!("{name} has not finished after {} s", LONGEST.as_secs()))?
        .with_context(|| format!("{name} could not be waited for"))?;
    judge(&name, &output)
}

fn judge(name: &str, output: &Output) -> anyhow::Result<String> {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let said = format!("{stdout}{}", String::from_utf8_lossy(&output.stderr));
    bail!("{name} failed ({}): {}", output.status, said.trim())
}

/// A password that nobody has to type.
pub(super) fn secret() -> String {
    format!("{:032x}", rand::random::<u128>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    fn shell(script: &str) -> Command {
        let mut command = RunAs::Myself.command("sh", Path::new("/"));
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_a_program_prints_comes_back_and_what_it_says_failing_is_in_the_error() {
        block_on(async {
            assert_eq!(finish(shell("cat"), "in and out").await.unwrap(), "in and out");
            let error = finish(shell("echo 'no such thing' >&2; exit 3"), "").await.unwrap_err().to_string();
            assert!(error.contains("no such thing") && error.contains('3'), "{error}");
        });
    }

    #[test]
    fn a_program_that_reads_nothing_is_judged_by_its_exit_code() {
        let much = "x".repeat(1 << 20);
        assert!(block_on(finish(shell("exec 0<&-; exit 0"), &much)).is_ok());
    }

    #[test]
    fn secrets_differ_and_have_no_character_that_needs_quoting() {
        let (one, two) = (secret(), secret());
        assert_ne!(one, two);
        assert!(one.len() == 32 && one.bytes().all(|byte| byte.is_ascii_hexdigit()), "{one}");
    }
}
