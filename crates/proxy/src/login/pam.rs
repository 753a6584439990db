//! The system's modules check a password, in a process of its own: this program, as `pgweir pam-helper`.
//!
//! What the process is told comes over its standard input and not as arguments, which everybody on the machine can
//! read. It ends with the login that waits for it: modules that take longer than `authentication_timeout` are killed.

use std::process::Stdio;
use std::sync::Arc;

use config::hba::Pam;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::sync::Semaphore;

use super::LoginContext;
use super::outside::Answer;
use crate::registry::Peer;

/// This program, whatever has been put in its file's place since it was started.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Processes at a time; others wait. Modules often take seconds for a wrong password.
const AT_A_TIME: usize = 64;
/// The most that is read of a process's reason, in bytes.
const MAX_REASON: u64 = 1024;
/// Exit code of a helper: the modules say no.
const EXIT_REFUSED: i32 = 1;

/// Counts the processes.
pub(super) struct Helpers(Arc<Semaphore>);

impl Default for Helpers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_A_TIME)))
    }
}

/// Asks.
pub(super) async fn check(context: &LoginContext<'_>, pam: &Pam, user: &str, password: &[u8]) -> Answer {
    let host = match context.peer {
        Peer::Unix => String::new(),
        Peer::Tcp(address) => {
            let name = if pam.by_name { context.host_name().await } else { None };
            name.unwrap_or_else(|| address.ip().to_canonical().to_string())
        }
    };
    let service = pam.service.as_deref().unwrap_or_default();
    let question = [service.as_bytes(), user.as_bytes(), host.as_bytes(), password].join(&b'\0');
    let _turn = context.authenticator.helpers.0.acquire().await;
    match ask(&question).await {
        Ok(answer) => answer,
        Err(error) => Answer::Failed(format!("the helper process: {error}")),
    }
}

async fn ask(question: &[u8]) -> std::io::Result<Answer> {
    let mut command = Command::new(OWN_PROGRAM);
    command.arg("pam-helper").env_clear().current_dir("/").kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // One that has ended already says why by its code.
        let _ = input.write_all(question).await;
    }
    let mut reason = Vec::new();
    if let Some(output) = child.stdout.take() {
        output.take(MAX_REASON).read_to_end(&mut reason).await?;
    }
    let status = child.wait().await?;
    let reason = String::from_utf8_lossy(&reason).trim().to_owned();
    Ok(match status.code() {
        Some(0) => Answer::Right,
        Some(EXIT_REFUSED) => Answer::Wrong(reason),
        _ => Answer::Failed(format!("{reason} ({status})")),
    })
}
