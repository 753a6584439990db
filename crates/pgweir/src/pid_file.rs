//! The pid file: which process runs this configuration.
//!
//! The process holds a lock on the file for as long as it lives, however it ends. So a file without a lock is
//! stale, whatever process has that number now.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};

/// No process id is longer than this.
const MAX_TEXT: u64 = 32;
/// How often a lock is tried again, and after which pause.
const LOCK_ATTEMPTS: u32 = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Our own pid file; removed when this is dropped.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
    /// Keeps the lock.
    _file: File,
}

impl PidFile {
    /// Writes our process id into the file, unless a living pgweir holds it.
    ///
    /// # Errors
    /// Another one runs, or the file cannot be written.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .with_context(|| format!("cannot open the pid file {}", path.display()))?;
        match lock(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let pid = read_pid(&mut file)?.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
                bail!("pgweir runs already with the pid file {} (process {pid})", path.display())
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock the pid file {}", path.display()));
            }
        }
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())?;
        Ok(Self { path: path.to_owned(), _file: file })
    }
}

/// Whoever just looks (`pgweir stop`) holds a lock for a moment, too.
fn lock(file: &File) -> Result<(), TryLockError> {
    for _ in 0..LOCK_ATTEMPTS {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            done => return done,
        }
    }
    file.try_lock()
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove the pid file");
        }
    }
}

/// What a pid file says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// That process lives and holds it.
    Running(i32),
    /// Left behind by a process that ended without removing it.
    Stale(Option<i32>),
    /// There is none.
    Missing,
}

/// Looks at the pid file of another process.
///
/// # Errors
/// The file is there and cannot be read.
pub(crate) fn find(path: &Path) -> anyhow::Result<Found> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Found::Missing),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read the pid file {}", path.display()));
        }
    };
    let pid = read_pid(&mut file)?;
    match (file.try_lock_shared(), pid) {
        (Ok(()), pid) => Ok(Found::Stale(pid)),
        (Err(TryLockError::WouldBlock), Some(pid)) => Ok(Found::Running(pid)),
        (Err(TryLockError::WouldBlock), None) => bail!("the pid file {} holds no process id", path.display()),
        (Err(TryLockError::Error(error)), _) => {
            Err(error).with_context(|| format!("cannot look at the lock of the pid file {}", path.display()))
        }
    }
}

fn read_pid(file: &mut File) -> anyhow::Result<Option<i32>> {
    let mut text = String::new();
    file.rewind()?;
    file.take(MAX_TEXT).read_to_string(&mut text)?;
    Ok(text.trim().parse().ok().filter(|pid| *pid > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_ours_stale_or_missing() {
        let path = std::env::temp_dir().join(format!("pgweir-pid-{}", std::process::id()));
        assert_eq!(find(&path).unwrap(), Found::Missing);
        let held = PidFile::create(&path).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(find(&path).unwrap(), Found::Running(own));
        let second = PidFile::create(&path).unwrap_err().to_string();
        assert!(second.contains(&format!("process {own}")), "{second}");
        drop(held);
        assert_eq!(find(&path).unwrap(), Found::Missing);
        // The number of a living process does not make it one of ours.
        std::fs::write(&path, "1\n").unwrap();
        assert_eq!(find(&path).unwrap(), Found::Stale(Some(1)));
        drop(PidFile::create(&path).unwrap());
        assert_eq!(find(&path).unwrap(), Found::Missing);
    }
}
