//! Asking for a secret: without echo on a terminal, else a line of the standard input.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use anyhow::{Context, bail};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

/// No secret is longer than this.
const MAX_SECRET: u64 = 4096;

/// Asks twice on a terminal; else takes the first line of the standard input.
///
/// # Errors
/// The two entries differ, nothing was entered, or the terminal cannot be used.
pub(crate) fn ask_secret(prompt: &str, again: &str) -> anyhow::Result<String> {
    if !io::stdin().is_terminal() {
        return read_line();
    }
    let echo = Silence::new()?;
    let first = ask(prompt)?;
    let second = ask(again)?;
    drop(echo);
    if first != second {
        bail!("the two are not the same")
    }
    Ok(first)
}

fn ask(prompt: &str) -> anyhow::Result<String> {
    let mut err = io::stderr();
    write!(err, "{prompt}")?;
    err.flush()?;
    let answer = read_line();
    writeln!(err)?;
    answer
}

fn read_line() -> anyhow::Result<String> {
    let mut line = String::new();
    let read =
        io::stdin().lock().take(MAX_SECRET).read_line(&mut line).context("cannot read the password")?;
    if read == 0 {
        bail!("no password was given")
    }
    let line = line.strip_suffix('\n').unwrap_or(&line);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

/// The terminal does not echo while this lives.
struct Silence(Termios);

impl Silence {
    fn new() -> anyhow::Result<Self> {
        let before = tcgetattr(io::stdin()).context("cannot turn off the terminal's echo")?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(io::stdin(), OptionalActions::Flush, &silent)
            .context("cannot turn off the terminal's echo")?;
        Ok(Self(before))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        // The terminal is gone when this fails; so is whoever looked at it.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}
