//! Finding PostgreSQL's programs, wherever the distribution put them.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::bail;

/// The oldest major version that works: streaming standbys by `standby.signal`, slots with a size limit.
const OLDEST: u32 = 13;

/// A directory with a PostgreSQL server and its tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Installation {
    bin: PathBuf,
    major: u32,
}

impl Installation {
    /// The newest installation, or that of version `wanted` when data of that version exists already.
    ///
    /// # Errors
    /// There is none; says what to install.
    pub(super) fn find(wanted: Option<u32>) -> anyhow::Result<Self> {
        choose(candidates().into_iter().filter_map(|bin| inspect(&bin)).collect(), wanted)
    }

    /// The path of one of its programs.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }
}

impl fmt::Display for Installation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.major)
    }
}

fn choose(mut found: Vec<Installation>, wanted: Option<u32>) -> anyhow::Result<Installation> {
    found.sort_by_key(|installation| std::cmp::Reverse(installation.major));
    let newest = found.first().map(|installation| installation.major);
    let usable = |found: Installation| match wanted {
        Some(wanted) => (found.major == wanted).then_some(found),
        None => (found.major >= OLDEST).then_some(found),
    };
    if let Some(installation) = found.into_iter().find_map(usable) {
        return Ok(installation);
    }
    match (wanted, newest) {
        (Some(wanted), _) => bail!(
            "the data here is PostgreSQL {wanted}'s, which is not installed: install it, or remove the directory \
             so that it is made anew"
        ),
        (None, Some(newest)) => bail!("PostgreSQL {newest} is too old: install {OLDEST} or newer"),
        (None, None) => bail!(
            "no PostgreSQL server found: install {OLDEST} or newer (Debian, Ubuntu: apt-get install postgresql; \
             Fedora: dnf install postgresql-server; Arch: pacman -S postgresql), or put its programs on the PATH"
        ),
    }
}

/// Directories that may hold the server: the path, and where packages put it off the path.
fn candidates() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found: Vec<PathBuf> = std::env::split_paths(&path).collect();
    for (parent, prefix) in [("/usr/lib/postgresql", ""), ("/usr", "pgsql-"), ("/usr/local", "pgsql")] {
        let Ok(entries) = std::fs::read_dir(parent) else { continue };
        let of_postgres = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(prefix);
        found.extend(
            entries
                .flatten()
                .filter(|entry| of_postgres(&entry.file_name()))
                .map(|entry| entry.path().join("bin")),
        );
    }
    found
}

/// An installation, when the directory holds a server. What is on the path may be a link: its target's
/// directory has the other programs beside it.
fn inspect(directory: &Path) -> Option<Installation> {
    let server = std::fs::canonicalize(directory.join("postgres")).ok()?;
    let bin = server.parent()?.to_path_buf();
    if !["initdb", "pg_ctl", "pg_basebackup", "pg_controldata"].iter().all(|tool| bin.join(tool).exists()) {
        return None;
    }
    let output = std::process::Command::new(&server).arg("--version").output().ok()?;
    Some(Installation { bin, major: major_of(&String::from_utf8_lossy(&output.stdout))? })
}

/// 15 from `postgres (PostgreSQL) 15.18 (Debian ...)` and 17 from `postgres (PostgreSQL) 17beta1`.
fn major_of(version: &str) -> Option<u32> {
    let number = version.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installed(majors: &[u32]) -> Vec<Installation> {
        majors.iter().map(|&major| Installation { bin: PathBuf::from("/x"), major }).collect()
    }

    #[test]
    fn versions_are_read_as_servers_print_them() {
        assert_eq!(major_of("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"), Some(15));
        assert_eq!(major_of("postgres (PostgreSQL) 17beta1"), Some(17));
        assert_eq!(major_of("postgres (EnterpriseDB) "), None);
    }

    #[test]
    fn the_newest_is_taken_unless_data_wants_another() {
        assert_eq!(choose(installed(&[14, 16, 15]), None).unwrap().major, 16);
        assert_eq!(choose(installed(&[14, 16, 15]), Some(14)).unwrap().major, 14);
    }

    #[test]
    fn what_is_missing_is_said() {
        let error = |found: &[u32], wanted| choose(installed(found), wanted).unwrap_err().to_string();
        assert!(error(&[], None).contains("apt-get install postgresql"));
        assert!(error(&[12], None).contains("12 is too old"));
        assert!(error(&[16], Some(13)).contains("PostgreSQL 13's, which is not installed"));
    }
}
