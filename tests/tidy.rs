//! Holds the shape of the project: who may import whom, and the invariants of docs/architecture.md that a program can
//! check. Each check is a function from text to complaints, shown on a bad sample beside it that it can complain.

#[path = "tidy/cases.rs"]
mod cases;
#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/edges.rs"]
mod edges;
#[path = "tidy/errors.rs"]
mod errors;
#[path = "tidy/invariants.rs"]
mod invariants;
#[path = "tidy/metadata.rs"]
mod metadata;
#[path = "tidy/origins.rs"]
mod origins;
#[path = "tidy/size.rs"]
mod size;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/tree.rs"]
mod tree;

use std::path::{Path, PathBuf};

/// The top of the repository.
fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the tests crate has a parent directory").to_path_buf()
}

/// Fails with every complaint, one a line.
fn none(complaints: &[String]) {
    assert!(complaints.is_empty(), "{} complaint(s):\n  {}", complaints.len(), complaints.join("\n  "));
}
