//! What cargo knows about the workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::root;

/// A member of the workspace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Member {
    /// The package's name.
    pub(crate) name: String,
    /// Its directory's name: the word that the documents use.
    pub(crate) directory: String,
    /// The licence field.
    pub(crate) license: Option<String>,
    /// Direct dependencies of every kind, by package name.
    pub(crate) direct: BTreeSet<String>,
    /// Every package it needs to run (no development and build dependencies), directly or not.
    pub(crate) tree: BTreeSet<String>,
}

/// The members of this workspace.
pub(crate) fn members() -> Vec<Member> {
    parse(&metadata())
}

/// A package that is not ours, of whatever kind of dependency.
#[derive(Debug, Clone)]
pub(crate) struct Foreign {
    /// The package's name.
    pub(crate) name: String,
    /// Its version.
    pub(crate) version: String,
    /// The licence field.
    pub(crate) license: String,
    /// Where it comes from; empty for a path.
    pub(crate) source: String,
}

/// Every package from outside that this machine builds.
pub(crate) fn foreign() -> Vec<Foreign> {
    let metadata = metadata();
    let members = metadata["workspace_members"].as_array().cloned().unwrap_or_default();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    let others = packages.iter().filter(|package| !members.contains(&package["id"]));
    let foreign = others.map(|package| Foreign {
        name: word(&package["name"]),
        version: word(&package["version"]),
        license: word(&package["license"]),
        source: word(&package["source"]),
    });
    foreign.collect()
}

/// `cargo metadata` for this machine's target: packages of other targets may not have been downloaded.
fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--offline", "--filter-platform", &host()])
        .current_dir(root())
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

fn host() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().expect("rustc can be run");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host").to_owned()
}

fn parse(metadata: &Value) -> Vec<Member> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let names: BTreeMap<String, String> = list(&metadata["packages"])
        .iter()
        .map(|package| (word(&package["id"]), word(&package["name"])))
        .collect();
    let needs: BTreeMap<String, Vec<String>> = list(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| {
            (
                word(&node["id"]),
                list(&node["deps"])
                    .iter()
                    .filter(|dep| is_normal(dep))
                    .map(|dep| word(&dep["pkg"]))
                    .collect(),
            )
        })
        .collect();
    let ids: BTreeSet<String> = list(&metadata["workspace_members"]).iter().map(word).collect();
    let packages = list(&metadata["packages"]);
    let own = packages.iter().filter(|package| ids.contains(&word(&package["id"])));
    own.map(|package| Member {
        name: word(&package["name"]),
        directory: directory(&word(&package["manifest_path"])),
        license: package["license"].as_str().map(str::to_owned),
        direct: list(&package["dependencies"]).iter().map(|dependency| word(&dependency["name"])).collect(),
        tree: reach(&word(&package["id"]), &needs).iter().filter_map(|id| names.get(id).cloned()).collect(),
    })
    .collect()
}

fn is_normal(dependency: &Value) -> bool {
    dependency["dep_kinds"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
}

fn directory(manifest: &str) -> String {
    manifest.rsplit('/').nth(1).unwrap_or_default().to_owned()
}

fn reach(from: &str, needs: &BTreeMap<String, Vec<String>>) -> BTreeSet<String> {
    let (mut found, mut todo) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(id) = todo.pop() {
        for next in needs.get(&id).into_iter().flatten() {
            if found.insert(next.clone()) {
                todo.push(next.clone());
            }
        }
    }
    found
}

#[test]
fn the_tree_follows_normal_dependencies_only() {
    let dep = |to: &str, kind: Value| serde_json::json!({ "pkg": to, "dep_kinds": [{ "kind": kind }] });
    let package = |name: &str| serde_json::json!({ "id": name, "name": name, "manifest_path": format!("/x/{name}/Cargo.toml") });
    let metadata = serde_json::json!({
        "packages": [package("a"), package("b"), package("c"), package("d")],
        "workspace_members": ["a"],
        "resolve": { "nodes": [
            { "id": "a", "deps": [dep("b", Value::Null), dep("d", "dev".into())] },
            { "id": "b", "deps": [dep("c", Value::Null)] },
        ] },
    });
    let members = parse(&metadata);
    assert_eq!(members.len(), 1);
    assert_eq!(members[0].directory, "a");
    assert_eq!(members[0].tree.iter().map(String::as_str).collect::<Vec<_>>(), ["b", "c"]);
}
