//! Who may depend on whom, on what from outside, and under which licence.
//!
//! The table of crates in docs/architecture.md is the rule for our own: this reads it there.

use std::collections::{BTreeMap, BTreeSet};

use crate::metadata::{Member, members};
use crate::{none, root};

/// Crates from outside that may be direct dependencies. A new one is a decision: say why in docs/decisions.
const KNOWN: [&str; 42] = [
    "anyhow",
    "arc-swap",
    "atomic-waker",
    "base64",
    "bytes",
    "clap",
    "dns-lookup",
    "hmac",
    "http-body-util",
    "hyper",
    "hyper-util",
    "md-5",
    "parking_lot",
    "postgres-protocol",
    "prometheus",
    "proptest",
    "rand",
    "regex",
    "rustix",
    "serde",
    "serde_json",
    "serde_yaml_ng",
    "sha2",
    "socket2",
    "sqlparser",
    "stringprep",
    "subtle",
    "tempfile",
    "thiserror",
    "tokio",
    "tokio-rustls",
    "rustls",
    "tracing",
    "tracing-subscriber",
    "x509-parser",
    "aes",
    "cbc",
    "ldap3",
    "nix",
    "sha1",
    "libc",
    "listenfd",
];

/// Crates of ours without I/O: nothing they are built on may do any either.
const PURE: [&str; 3] = ["protocol", "router", "cluster"];
/// What does I/O.
const INPUT_OUTPUT: [&str; 6] = ["tokio", "mio", "socket2", "hyper", "async-std", "smol"];
/// config reads files in one place, and has no runtime.
const NO_RUNTIME: [&str; 4] = ["protocol", "router", "cluster", "config"];
/// Where serde may be a direct dependency; `tests` reads JSON that others print.
const SERDE: [&str; 4] = ["config", "admin", "pgweir", "tests"];

const LICENSE: &str = "Apache-2.0 OR MIT";

/// The rows `| crate | may import | ... |` of the first table under "## Crates": crate, and what it may import.
/// `all` stands for every crate but the programs.
fn allowed(document: &str) -> BTreeMap<String, BTreeSet<String>> {
    let section = document.split("\n## ").find(|section| section.starts_with("Crates")).unwrap_or_default();
    let rows: Vec<Vec<String>> = section
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect())
        .collect();
    let names: BTreeSet<String> = rows.iter().filter_map(|row| row.first().cloned()).collect();
    let imports = |cell: &str| -> BTreeSet<String> {
        if cell == "all" {
            return names.clone();
        }
        cell.split(',').map(|word| word.trim().to_owned()).filter(|word| names.contains(word)).collect()
    };
    rows.iter()
        .map(|row| (row[0].clone(), row.get(1).map(|cell| imports(cell)).unwrap_or_default()))
        .collect()
}

fn forbidden_edges(members: &[Member], allowed: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let ours: BTreeMap<&str, &str> =
        members.iter().map(|member| (member.name.as_str(), member.directory.as_str())).collect();
    let mut found = Vec::new();
    for member in members {
        let Some(may) = allowed.get(&member.directory) else {
            found.push(format!("{} is not in the table of docs/architecture.md", member.directory));
            continue;
        };
        let imported = member.direct.iter().filter_map(|name| ours.get(name.as_str()));
        found.extend(
            imported
                .filter(|to| !may.contains(**to))
                .map(|to| format!("{} must not import {to}", member.directory)),
        );
    }
    found
}

fn foreign(members: &[Member]) -> Vec<String> {
    let ours: BTreeSet<&str> = members.iter().map(|member| member.name.as_str()).collect();
    let mut found = Vec::new();
    for member in members {
        let unknown = member
            .direct
            .iter()
            .filter(|name| !ours.contains(name.as_str()) && !KNOWN.contains(&name.as_str()));
        found.extend(
            unknown.map(|name| format!("{} depends on {name}, which is not on the list", member.directory)),
        );
        if member.direct.contains("serde") && !SERDE.contains(&member.directory.as_str()) {
            found.push(format!("{} depends on serde", member.directory));
        }
    }
    found
}

fn runtimes(members: &[Member]) -> Vec<String> {
    let mut found = Vec::new();
    for member in members {
        let banned = |name: &str| match name {
            "tokio" => NO_RUNTIME.contains(&member.directory.as_str()),
            _ => PURE.contains(&member.directory.as_str()),
        };
        let reached = INPUT_OUTPUT.iter().filter(|name| banned(name) && member.tree.contains(**name));
        found.extend(reached.map(|name| format!("{} is built on {name}", member.directory)));
    }
    found
}

fn licences(members: &[Member]) -> Vec<String> {
    let other = members.iter().filter(|member| member.license.as_deref() != Some(LICENSE));
    other.map(|member| format!("{}: licence {:?}, not {LICENSE}", member.directory, member.license)).collect()
}

/// The one crate with unsafe code: it has the workspace's lints, but for that one, written out.
const UNSAFE: &str = "pam";

/// The lints of the workspace's manifest that a crate's own has not.
fn lints_left_out(workspace: &str, manifest: &str) -> Vec<String> {
    let sections = workspace.split("\n[").filter(|section| section.starts_with("workspace.lints."));
    let lints = sections.flat_map(|section| section.lines().skip(1)).filter(|line| line.contains('='));
    let others = lints.filter(|line| !line.starts_with("unsafe_code"));
    others.filter(|line| !manifest.lines().any(|own| own == *line)).map(str::to_owned).collect()
}

/// A crate of the product takes the workspace's lints.
fn lints(name: &str, manifest: &str) -> Vec<String> {
    let section = manifest.split("\n[").find(|section| section.starts_with("lints]")).unwrap_or_default();
    let taken = section.lines().any(|line| line.replace(' ', "") == "workspace=true");
    if taken { Vec::new() } else { vec![format!("{name}: no [lints] workspace = true")] }
}

fn document() -> String {
    std::fs::read_to_string(root().join("docs/architecture.md")).expect("docs/architecture.md is there")
}

#[test]
fn crates_import_only_what_the_table_allows() {
    let allowed = allowed(&document());
    assert!(allowed.len() >= 8, "the table of crates was not found in docs/architecture.md: {allowed:?}");
    none(&forbidden_edges(&members(), &allowed));
}

#[test]
fn dependencies_from_outside_are_on_the_list() {
    none(&foreign(&members()));
}

#[test]
fn nothing_under_the_pure_crates_does_input_or_output() {
    none(&runtimes(&members()));
}

#[test]
fn every_crate_has_the_licence() {
    none(&licences(&members()));
    for file in ["LICENSE-APACHE", "LICENSE-MIT"] {
        assert!(root().join(file).is_file(), "{file} is missing");
    }
}

#[test]
fn every_crate_of_the_product_takes_the_workspaces_lints() {
    let workspace = std::fs::read_to_string(root().join("Cargo.toml")).expect("a manifest");
    for entry in std::fs::read_dir(root().join("crates")).expect("crates").flatten() {
        let manifest = std::fs::read_to_string(entry.path().join("Cargo.toml")).expect("a manifest");
        if entry.file_name() == UNSAFE {
            none(&lints_left_out(&workspace, &manifest));
        } else {
            none(&lints(&entry.file_name().to_string_lossy(), &manifest));
        }
    }
}

mod samples {
    use super::*;

    const TABLE: &str = "# X\n\n## Crates, and who may import whom\n\n| crate | may import | never |\n|---|---|---|\n\
        | `a` | - | b |\n| `b` | `a` | |\n| `top` | all | |\n\n## Other\n| `z` | `a` |\n";

    fn member(directory: &str, direct: &[&str], tree: &[&str]) -> Member {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Member {
            name: format!("pgweir-{directory}"),
            directory: directory.to_owned(),
            license: Some(LICENSE.to_owned()),
            direct: set(direct),
            tree: set(tree),
        }
    }

    #[test]
    fn the_table_is_read() {
        let allowed = allowed(TABLE);
        assert_eq!(allowed.keys().collect::<Vec<_>>(), ["a", "b", "top"]);
        assert!(allowed["a"].is_empty() && allowed["b"].contains("a") && allowed["top"].len() == 3);
    }

    #[test]
    fn a_forbidden_edge_is_seen() {
        let edges = |a: &[&str]| {
            let members =
                [member("a", a, &[]), member("b", &["pgweir-a"], &[]), member("top", &["pgweir-b"], &[])];
            forbidden_edges(&members, &allowed(TABLE))
        };
        none(&edges(&["bytes"]));
        assert_eq!(edges(&["pgweir-b"]), ["a must not import b"]);
        assert_eq!(forbidden_edges(&[member("new", &[], &[])], &allowed(TABLE)).len(), 1);
    }

    #[test]
    fn an_unknown_dependency_is_seen() {
        none(&foreign(&[member("router", &["bytes", "sqlparser"], &[])]));
        assert_eq!(foreign(&[member("router", &["left-pad"], &[])]).len(), 1);
        assert_eq!(foreign(&[member("router", &["serde"], &[])]).len(), 1);
    }

    #[test]
    fn a_runtime_below_a_pure_crate_is_seen() {
        assert_eq!(runtimes(&[member("router", &[], &["bytes", "tokio"])]), ["router is built on tokio"]);
        assert_eq!(runtimes(&[member("cluster", &[], &["mio"])]).len(), 1);
        assert_eq!(runtimes(&[member("config", &[], &["tokio"])]).len(), 1);
        none(&runtimes(&[member("proxy", &[], &["tokio", "mio"])]));
    }

    #[test]
    fn another_licence_is_seen() {
        let other = Member { license: Some("GPL-3.0".to_owned()), ..member("a", &[], &[]) };
        assert_eq!(licences(&[other, Member { license: None, ..member("b", &[], &[]) }]).len(), 2);
    }

    #[test]
    fn missing_lints_are_seen() {
        let workspace = "[x]\n[workspace.lints.rust]\nunsafe_code = \"forbid\"\na = \"warn\"\n\n[workspace.lints.clippy]\nb = \"warn\"\n\n[y]\nc = 1\n";
        assert_eq!(lints_left_out(workspace, "[lints.rust]\na = \"warn\"\n"), ["b = \"warn\""]);
        none(&lints("a", "[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n\n[dependencies]\n"));
        assert_eq!(
            lints("a", "[package]\nversion.workspace = true\n\n[dependencies]\nworkspace = true\n").len(),
            1
        );
    }
}
