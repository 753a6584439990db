//! The files that an import reads: what each is, and `%include` in PgBouncer's.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::bouncer::Line;
use super::draft::{Draft, Place};

/// A file is at most so long.
const MAX_BYTES: u64 = 16 << 20;
/// Includes inside includes go this deep, as in PgBouncer.
const MAX_DEPTH: usize = 10;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Pgpool-II's main file.
    Pgpool,
    /// PgBouncer's main file.
    Bouncer,
    /// PgBouncer's users and secrets.
    Userlist,
    /// Pgpool-II's, and ours.
    PoolPasswd,
    /// pg_hba.conf's grammar.
    Hba,
    /// PCP's users.
    Pcp,
}

/// The name by which each is known; a longer one that begins so will do (`pgpool.conf.sample`).
const NAMES: &[(&str, Kind)] = &[
    ("pgpool.conf", Kind::Pgpool),
    ("pool_hba.conf", Kind::Hba),
    ("pg_hba.conf", Kind::Hba),
    ("pool_passwd", Kind::PoolPasswd),
    ("pcp.conf", Kind::Pcp),
    ("pgbouncer.ini", Kind::Bouncer),
    ("userlist.txt", Kind::Userlist),
];

/// A file that was read.
#[derive(Debug)]
pub(super) struct Source {
    /// What it is.
    pub(super) kind: Kind,
    /// As it was named.
    pub(super) name: String,
    /// All of it.
    pub(super) content: String,
    /// Where it is, absolute.
    pub(super) directory: PathBuf,
}

impl Source {
    /// Reads a file and finds out what it is, by its name or by its content.
    ///
    /// # Errors
    /// It cannot be read, or it is none that is known.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let content = text_of(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let by_name = NAMES.iter().find(|(usual, _)| name.starts_with(usual)).map(|(_, kind)| *kind);
        let Some(kind) = by_name.or_else(|| by_content(&content)) else {
            let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            bail!("{}: cannot tell what it is; name it as one of {}", path.display(), known.join(", "))
        };
        Self::new(path, kind, content)
    }

    /// Reads a file that is known to be of a kind.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn read_as(path: &Path, kind: Kind) -> Result<Self> {
        Self::new(path, kind, text_of(path)?)
    }

    fn new(path: &Path, kind: Kind, content: String) -> Result<Self> {
        let directory = std::path::absolute(path)?.parent().unwrap_or(Path::new("/")).to_owned();
        Ok(Self { kind, name: path.display().to_string(), content, directory })
    }
}

fn by_content(content: &str) -> Option<Kind> {
    let mut lines =
        content.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';']));
    let first = lines.next()?;
    let word = first.split_whitespace().next().unwrap_or_default();
    match () {
        () if first.starts_with('[') || first.starts_with("%include") => Some(Kind::Bouncer),
        () if matches!(word, "local" | "host" | "hostssl" | "hostnossl") => Some(Kind::Hba),
        () if first.starts_with('"') => Some(Kind::Userlist),
        () if std::iter::once(first).chain(lines).any(|line| line.starts_with("backend_")) => {
            Some(Kind::Pgpool)
        }
        () => None,
    }
}

fn text_of(path: &Path) -> Result<String> {
    let length = std::fs::metadata(path).with_context(|| path.display().to_string())?.len();
    ensure!(length <= MAX_BYTES, "{}: longer than {MAX_BYTES} bytes", path.display());
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(text.strip_prefix('\u{feff}').map_or_else(|| text.clone(), str::to_owned))
}

/// The lines of a pgbouncer.ini, those of the files that it includes in their place. One that cannot be read is noted.
pub(super) fn read_lines(draft: &mut Draft, name: &str, directory: &Path, content: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    add_lines(draft, &mut lines, name, directory, content, MAX_DEPTH);
    lines
}

fn add_lines(
    draft: &mut Draft,
    lines: &mut Vec<Line>,
    name: &str,
    directory: &Path,
    content: &str,
    depth: usize,
) {
    for (index, line) in content.lines().enumerate() {
        let place = Place { file: name.to_owned(), line: index + 1 };
        let Some(file) = line.trim().strip_prefix("%include") else {
            lines.push(Line { place, content: line.to_owned() });
            continue;
        };
        let path = directory.join(file.trim());
        match text_of(&path) {
            Ok(text) if depth > 0 => {
                add_lines(draft, lines, &path.display().to_string(), directory, &text, depth - 1);
            }
            Ok(_) => draft.note(&place, "%include", "too many includes inside includes"),
            Err(error) => draft.note(&place, "%include", &format!("{error:#}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_what_is_in_it() {
        for (content, kind) in [
            ("; x\n[databases]\n", Some(Kind::Bouncer)),
            ("# x\nlocal all all trust\n", Some(Kind::Hba)),
            ("\"bob\" \"x\"\n", Some(Kind::Userlist)),
            ("port = 1\nbackend_hostname0 = 'a'\n", Some(Kind::Pgpool)),
            ("hello\n", None),
            ("", None),
        ] {
            assert_eq!(by_content(content), kind, "{content}");
        }
    }
}
