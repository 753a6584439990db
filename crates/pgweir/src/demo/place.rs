//! Where a demo keeps what it needs, and who may write there.

use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::NODES;
use super::command::RunAs;
use crate::pid_file::PidFile;

/// Where data goes when the user postgres cannot reach the demo's own directory.
const ELSEWHERE: &str = "/var/tmp";

/// The first line of every file that a demo writes beside its data: a file without it is somebody's own.
pub(super) const MARKER: &str = "# Written by pgweir demo at every start.";

/// The name of pgweir's configuration.
const CONFIG: &str = "pgweir.yaml";
/// The name of the file with the secrets pgweir knows.
const PASSWORDS: &str = "pool_passwd";

/// The directories of one demo. Holds the lock that makes it the only one there.
#[derive(Debug)]
pub(super) struct Place {
    dir: PathBuf,
    data: PathBuf,
    run_as: RunAs,
    moved: Option<String>,
    _lock: PidFile,
}

impl Place {
    /// Makes the directories and takes the lock.
    ///
    /// # Errors
    /// They cannot be made, belong to somebody else, hold files of somebody's own where the demo's would go, or another
    /// demo runs there.
    pub(super) fn prepare(dir: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let dir = dir.canonicalize()?;
        // Before anything is made: a directory that is not a demo's stays as it is.
        for name in [CONFIG, PASSWORDS] {
            ensure_ours(&dir.join(name))?;
        }
        let lock = PidFile::create(&dir.join("demo.pid"))
            .with_context(|| format!("no demo can run in {}", dir.display()))?;
        let run_as = RunAs::for_postgres()?;
        let (data, moved) = place_data(&dir, run_as)?;
        Ok(Self { dir, data, run_as, moved, _lock: lock })
    }

    /// Where the nodes' data directories and logs are.
    pub(super) fn data(&self) -> &Path {
        &self.data
    }

    /// Who PostgreSQL runs as.
    pub(super) fn run_as(&self) -> RunAs {
        self.run_as
    }

    /// Why the data is not in the demo's directory, when it is not.
    pub(super) fn moved(&self) -> Option<&str> {
        self.moved.as_deref()
    }

    /// pgweir's configuration.
    pub(super) fn config(&self) -> PathBuf {
        self.dir.join(CONFIG)
    }

    /// The secrets pgweir knows.
    pub(super) fn passwords(&self) -> PathBuf {
        self.dir.join(PASSWORDS)
    }

    /// What pgweir prints.
    pub(super) fn log(&self) -> PathBuf {
        self.dir.join("pgweir.log")
    }

    /// pgweir's process id while it runs.
    pub(super) fn pid_file(&self) -> PathBuf {
        self.dir.join("pgweir.pid")
    }

    /// The major version of the data that is there already.
    ///
    /// # Errors
    /// It is there but cannot be read.
    pub(super) fn existing_version(&self) -> anyhow::Result<Option<u32>> {
        // Any node will do, they are copies of each other: db0 may have been removed after a failover.
        let mut files = (0..NODES).map(|number| self.data.join(format!("db{number}/PG_VERSION")));
        let Some(path) = files.find(|path| path.exists()) else { return Ok(None) };
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Some(text.trim().parse().with_context(|| format!("{} is no version number", path.display()))?))
    }
}

/// Fails when the file is there and no demo wrote it.
fn ensure_ours(path: &Path) -> anyhow::Result<()> {
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        read => read.with_context(|| format!("cannot read {}", path.display()))?,
    };
    // An empty one is what a run leaves that was killed while writing.
    if text.is_empty() || text.starts_with(MARKER.as_bytes()) {
        return Ok(());
    }
    bail!(
        "{} is not a demo's file (its first line is not \"{MARKER}\"), and the demo would overwrite it: \
         choose another directory, or move the file away",
        path.display()
    )
}

/// The data directory: below `dir` when PostgreSQL's user can reach it there, else in a place of its own.
fn place_data(dir: &Path, run_as: RunAs) -> anyhow::Result<(PathBuf, Option<String>)> {
    let data = dir.join("nodes");
    make_private(&data, run_as)?;
    if reachable(&data, run_as)? {
        return Ok((data, None));
    }
    // The empty directory would only mislead. It is not empty when it was reachable once: then it stays.
    let _ = std::fs::remove_dir(&data);
    let elsewhere = Path::new(ELSEWHERE).join(format!("pgweir-demo-{:016x}", fingerprint(dir)));
    make_private(&elsewhere, run_as)?;
    if !reachable(&elsewhere, run_as)? {
        bail!(
            "the user postgres can reach neither {} nor {ELSEWHERE}: choose another directory",
            dir.display()
        );
    }
    let why = format!(
        "the user postgres cannot reach {}, so the data is in {} (remove it there when you are done)",
        dir.display(),
        elsewhere.display()
    );
    Ok((elsewhere, Some(why)))
}

/// Makes a directory that only PostgreSQL's user may enter. One that is there must be that user's already, because
/// in a place where everybody may write it could be a trap.
fn make_private(path: &Path, run_as: RunAs) -> anyhow::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => run_as.own(path),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let found = std::fs::symlink_metadata(path)?;
            let owner = match run_as {
                RunAs::Myself => rustix::process::geteuid().as_raw(),
                RunAs::Other { uid, .. } => uid,
            };
            if !found.is_dir() || found.uid() != owner {
                bail!("{} is not a directory of the user that PostgreSQL runs as: remove it", path.display());
            }
            Ok(())
        }
        Err(error) => Err(error).with_context(|| format!("cannot make {}", path.display())),
    }
}

/// Can that user write there, through all the directories above?
fn reachable(path: &Path, run_as: RunAs) -> anyhow::Result<bool> {
    let mut test = run_as.command("sh", Path::new("/")).into_std();
    test.args(["-c", r#"cd "$1" 2>/dev/null && test -w ."#, "sh"]).arg(path);
    Ok(test.status().context("cannot run sh")?.success())
}

/// The same for the same directory in every version of the program (FNV-1a), as a name must be.
fn fingerprint(dir: &Path) -> u64 {
    dir.as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of the test's own, removed at its end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("pgweir-place-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn one_demo_a_directory() {
        if RunAs::for_postgres().is_err() {
            return; // root without a user postgres: no demo at all
        }
        let scratch = Scratch::new("lock");
        let held = Place::prepare(&scratch.0).unwrap();
        let error = format!("{:#}", Place::prepare(&scratch.0).unwrap_err());
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(held);
        Place::prepare(&scratch.0).unwrap();
    }

    #[test]
    fn files_that_no_demo_wrote_stay_as_they_are() {
        for name in [CONFIG, PASSWORDS] {
            let scratch = Scratch::new(name);
            let path = scratch.0.join(name);
            std::fs::write(&path, "alice:TEXTsecret\n").unwrap();
            let error = format!("{:#}", Place::prepare(&scratch.0).unwrap_err());
            assert!(error.contains(name) && error.contains("another directory"), "{error}");
            assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 1, "something was made beside {name}");
            for ours in [String::new(), format!("{MARKER}\nport: 1\n")] {
                std::fs::write(&path, ours).unwrap();
                ensure_ours(&path).unwrap();
            }
        }
    }

    #[test]
    fn a_directory_that_is_somebody_elses_is_refused() {
        let scratch = Scratch::new("owner");
        let path = scratch.0.join("data");
        std::fs::write(&path, "in the way").unwrap();
        assert!(make_private(&path, RunAs::Myself).is_err());
        std::fs::remove_file(&path).unwrap();
        make_private(&path, RunAs::Myself).unwrap();
        make_private(&path, RunAs::Myself).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        assert!(make_private(&path, RunAs::Other { uid: u32::MAX - 7, gid: 0 }).is_err());
    }

    #[test]
    fn a_directory_that_cannot_be_reached_is_seen() {
        let scratch = Scratch::new("reach");
        assert!(reachable(&scratch.0, RunAs::Myself).unwrap());
        assert!(!reachable(&scratch.0.join("none"), RunAs::Myself).unwrap());
    }

    #[test]
    fn the_fingerprint_is_fnv_1a() {
        assert_eq!(fingerprint(Path::new("a")), 0xaf63_dc4c_8601_ec8c);
    }
}
