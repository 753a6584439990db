//! `pgweir pam-helper`: one question to the system's authentication modules, for a login of a running pgweir.
//!
//! Standard input: service, user, the client's address and password, with a NUL between them; what is empty is not
//! given. Exit code 0: yes; 1: no; 2: they could not be asked. The reason is on standard output.

use std::io::Read;
use std::process::ExitCode;

use pam::{DEFAULT_SERVICE, PamError, Question};

use crate::cli::{Failure, say};

/// The longest question, in bytes: a start-up packet's names and a password message.
const MAX_QUESTION: u64 = 128 * 1024;
/// Exit codes, as the proxy reads them.
const REFUSED: u8 = 1;
const NOT_ASKED: u8 = 2;

/// Reads the question, asks, and says what came of it.
///
/// # Errors
/// The question cannot be read, or the answer not be said.
pub(crate) fn run() -> Result<ExitCode, Failure> {
    let mut bytes = Vec::new();
    std::io::stdin().take(MAX_QUESTION).read_to_end(&mut bytes)?;
    let Err(error) = answer(&bytes) else { return Ok(ExitCode::SUCCESS) };
    say(&error.to_string())?;
    Ok(ExitCode::from(if error.is_refusal() { REFUSED } else { NOT_ASKED }))
}

fn answer(bytes: &[u8]) -> Result<(), PamError> {
    let mut parts = bytes.splitn(4, |byte| *byte == 0);
    let mut part = || parts.next().unwrap_or_default();
    let (service, user, host, password) = (part(), part(), part(), part());
    let text =
        |bytes| std::str::from_utf8(bytes).map_err(|_| PamError::Refused("a name is not UTF-8".to_owned()));
    let (service, host) = (text(service)?, text(host)?);
    pam::ask(&Question {
        service: if service.is_empty() { DEFAULT_SERVICE } else { service },
        user: text(user)?,
        password,
        remote_host: (!host.is_empty()).then_some(host),
    })
}
