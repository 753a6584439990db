//! The files of the repository, without what is built or downloaded.

use std::path::Path;

use crate::root;
use crate::source::Source;

const SKIPPED: [&str; 5] = ["target", "var", ".git", "node_modules", "__pycache__"];

/// Every file below a directory of the repository with one of the endings, as (path from the top, text).
pub(crate) fn files(below: &str, endings: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    collect(&root().join(below), endings, &mut found);
    found.sort();
    found
}

fn collect(directory: &Path, endings: &[&str], found: &mut Vec<(String, String)>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if path.is_dir() {
            if !SKIPPED.contains(&&*name) {
                collect(&path, endings, found);
            }
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            let text =
                std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let relative = path.strip_prefix(root()).expect("below the top").to_string_lossy().into_owned();
            found.push((relative, text));
        }
    }
}

/// The Rust sources of the product's crates.
pub(crate) fn product() -> Vec<Source> {
    sources("crates")
}

/// The Rust sources of everything.
pub(crate) fn everything() -> Vec<Source> {
    ["crates", "tests", "fuzz"].into_iter().flat_map(sources).collect()
}

fn sources(below: &str) -> Vec<Source> {
    let found = Source::all(files(below, &[".rs"]));
    // A check over nothing would always pass.
    assert!(below == "fuzz" || !found.is_empty(), "no sources below {below}");
    found
}
