//! Other people's programs that look at pgweir: Prometheus, PgBouncer's exporter, Pgpool-II's `pcp_*`; and sample files.
//!
//! `scripts/tools.sh` unpacks Debian's packages of them into `target/tools`; those that are installed serve as well.
//! Their tests are left out only where there is no apt-get to bring them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::procs::target_dir;

/// Where packages put programs.
const PLACES: &[&str] = &["usr/bin", "usr/sbin"];

/// A command for one of them; none where it cannot be had.
///
/// # Errors
/// It is missing where `scripts/tools.sh` could have brought it.
pub fn command(program: &str) -> Result<Option<Command>> {
    let unpacked = target_dir()?.join("tools/unpacked");
    if let Some(path) = find(program, PLACES.iter().map(|place| unpacked.join(place))) {
        let mut command = with_interpreter(&path)?;
        command
            .env("LD_LIBRARY_PATH", unpacked.join("usr/lib"))
            .env("PYTHONPATH", unpacked.join("usr/lib/python3/dist-packages"))
            .env("PYTHONDONTWRITEBYTECODE", "1");
        return Ok(Some(command));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    if let Some(path) = find(program, installed) {
        return Ok(Some(Command::new(path)));
    }
    if Path::new("/usr/bin/apt-get").exists() {
        bail!("{program} is missing: `scripts/need.sh test` brings it")
    }
    println!("{program} is not installed: not tested");
    Ok(None)
}

/// The text of a file of theirs, such as `etc/pgpool2/pgpool.conf`; none where it cannot be had.
///
/// # Errors
/// It is missing, or not for us to read, where `scripts/tools.sh` could have brought it.
pub fn file(path: &str) -> Result<Option<String>> {
    let places = [target_dir()?.join("tools/unpacked").join(path), Path::new("/").join(path)];
    if let Some(text) = places.iter().find_map(|place| std::fs::read_to_string(place).ok()) {
        return Ok(Some(text));
    }
    if Path::new("/usr/bin/apt-get").exists() {
        bail!("/{path} is missing: `scripts/need.sh test` brings it")
    }
    println!("/{path} is not there: not tested");
    Ok(None)
}

fn find(program: &str, mut places: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    places.find_map(|place| Some(place.join(program)).filter(|path| path.exists()))
}

/// Debian's modules are made for Debian's Python, whatever else is on the path.
fn with_interpreter(path: &Path) -> Result<Command> {
    if !std::fs::read(path)?.starts_with(b"#!/usr/bin/python3") {
        return Ok(Command::new(path));
    }
    let mut command = Command::new("/usr/bin/python3");
    command.arg(path);
    Ok(command)
}
