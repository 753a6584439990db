//! `pgweir import FILE...`: the files of Pgpool-II and PgBouncer to `pgweir.yaml`, and what has no equivalent there.
//!
//! What would be unsafe to leave out stays in, and is refused by the validation that every result goes through.
//! Files that the main file names are read as well. Nothing is overwritten, and secrets go into files only that
//! nobody else can read.

mod bouncer;
mod bouncer_logins;
mod draft;
mod form;
mod pgpool;
mod sources;

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use config::hba::Rules;
use config::secrets::Passwords;

use crate::cli::{Failure, complain, say};
use draft::{Draft, Place};
use sources::{Kind, Source, read_lines};

/// Converts files; into a directory, or to the standard output.
///
/// # Errors
/// A file cannot be read or is none of those that are known, or a result cannot be written; [`Failure::Config`] when
/// what comes out is refused: it is written nevertheless, to be mended.
pub(crate) fn import(files: &[PathBuf], to: Option<&Path>) -> Result<ExitCode, Failure> {
    let sources: Vec<Source> = files.iter().map(|file| Source::read(file)).collect::<Result<_>>()?;
    let mut draft = Draft::default();
    let mut sides = Vec::new();
    for source in &sources {
        take_in(&mut draft, source, &mut sides);
    }
    // What was given goes before what a file only names.
    for source in sides {
        let is_given = sources.iter().any(|given| given.kind == source.kind);
        if !is_given {
            take_in(&mut draft, &source, &mut Vec::new());
        }
    }
    closing_notes(&mut draft);
    match to {
        Some(directory) => write_all(&draft, directory)?,
        None => print(&draft)?,
    }
    let origin = to.map_or_else(
        || "pgweir.yaml".to_owned(),
        |directory| directory.join("pgweir.yaml").display().to_string(),
    );
    config::parse(&draft.yaml(), &origin).map_err(Failure::Config)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads one file into the draft; files that it names are added to `sides`.
fn take_in(draft: &mut Draft, source: &Source, sides: &mut Vec<Source>) {
    let Source { kind, name, content, directory } = source;
    draft.directory.clone_from(directory);
    match kind {
        Kind::Pgpool => {
            let passwd = pgpool::read(draft, content, name);
            let passwd = passwd.unwrap_or_else(|| "pool_passwd".to_owned());
            let mut beside = vec![(Kind::PoolPasswd, passwd), (Kind::Pcp, "pcp.conf".to_owned())];
            if draft.is("enable_pool_hba", "on") {
                beside.push((Kind::Hba, "pool_hba.conf".to_owned()));
            }
            for (kind, file) in beside {
                named(draft, kind, &directory.join(file), name, false, sides);
            }
        }
        Kind::Bouncer => {
            let lines = read_lines(draft, name, directory, content);
            let files = bouncer::read(draft, &lines, name);
            for (kind, file) in [(Kind::Userlist, files.auth_file), (Kind::Hba, files.auth_hba_file)] {
                if let Some(file) = file {
                    named(draft, kind, &directory.join(file), name, true, sides);
                }
            }
        }
        Kind::Userlist => {
            let made = bouncer_logins::passwords(draft, content, name);
            draft.beside("pool_passwd", made);
        }
        Kind::PoolPasswd => {
            check(draft, name, "pool_passwd", Passwords::parse(content, name).err());
            draft.beside("pool_passwd", content.clone());
        }
        Kind::Hba => {
            check(draft, name, "pool_hba_file", Rules::parse(content, name).err());
            draft.beside("pool_hba.conf", content.clone());
        }
        Kind::Pcp => draft.beside("pcp.conf", content.clone()),
    }
}

/// A file that another names: read where there is one; one that is only there by habit may be missing.
fn named(draft: &mut Draft, kind: Kind, path: &Path, by: &str, must_be: bool, sides: &mut Vec<Source>) {
    if !must_be && !path.exists() {
        return;
    }
    match Source::read_as(path, kind) {
        Ok(source) => sides.push(source),
        Err(error) => draft.note(
            &Place::file(by),
            &path.display().to_string(),
            &format!("{error:#}: give it to this import"),
        ),
    }
}

/// Notes what pgweir will refuse in a file that is taken over as it is. No error holds a secret.
fn check(draft: &mut Draft, name: &str, key: &str, errors: Option<config::ConfigErrors>) {
    for error in errors.iter().flat_map(config::ConfigErrors::iter) {
        draft.note(&Place::file(name), key, &format!("pgweir refuses this until it is mended: {error}"));
    }
}

/// What is different whatever the files say.
fn closing_notes(draft: &mut Draft) {
    let whole = Place::file("everywhere");
    if !draft.has("sr_check_user") {
        draft.note(
            &whole,
            "sr_check_user",
            "nodes are watched by the role pgweir: make it, with pg_monitor, and give its password (docs/first-steps.md)",
        );
    }
    if !draft.is("enable_pool_hba", "on") {
        draft.note(
            &whole,
            "enable_pool_hba",
            "off here means scram-sha-256 for everybody: each user needs its secret in pool_passwd, or auth_query",
        );
    }
}

fn print(draft: &Draft) -> Result<(), Failure> {
    say(draft.yaml().trim_end())?;
    if !draft.made().is_empty() {
        complain(&format!(
            "Beside it: {}. `--to DIRECTORY` writes all of them.",
            draft.made().keys().copied().collect::<Vec<_>>().join(", ")
        ));
    }
    Ok(())
}

fn write_all(draft: &Draft, directory: &Path) -> Result<(), Failure> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .with_context(|| directory.display().to_string())?;
    let yaml = draft.yaml();
    let files = draft.made().iter().map(|(name, content)| (*name, content.as_str()));
    for (name, content) in files.chain([("pgweir.yaml", yaml.as_str())]) {
        let path = directory.join(name);
        write_new(&path, content).with_context(|| path.display().to_string())?;
        say(&format!("written: {}", path.display()))?;
    }
    if !draft.notes().is_empty() {
        say("\nWhat has no equivalent here, or another meaning (also at the end of pgweir.yaml):")?;
        for note in draft.notes() {
            say(&format!("- {note}"))?;
        }
    }
    say(&format!("\nNext: pgweir check --connect {}", directory.join("pgweir.yaml").display()))
}

/// Fails where there is a file already.
fn write_new(path: &Path, content: &str) -> Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content.as_bytes())?;
    Ok(file.sync_all()?)
}
