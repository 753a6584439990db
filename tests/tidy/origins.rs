//! What is built that is not ours: under which licence, from where, and how much of it twice. What `cargo deny check
//! licenses sources bans` looks at, without a tool that would have to be built first.

use std::collections::{BTreeMap, BTreeSet};

use crate::metadata::{Foreign, foreign};
use crate::none;

/// Licences that what is built may have. Of several to choose from one must be here; of several that hold together all.
const LICENCES: [&str; 8] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-3-Clause",
    "ISC",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// The one registry.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Packages that are there in two incompatible versions, because those who need them have not agreed yet.
const TWICE: [&str; 15] = [
    "block-buffer",
    "cpufeatures",
    "crypto-common",
    "digest",
    "getrandom",
    "hmac",
    "lock_api",
    "md-5",
    "parking_lot",
    "parking_lot_core",
    "rand",
    "rand_core",
    "sha2",
    "syn",
    "synstructure",
];

/// Whether an expression of SPDX (with the older `/` for OR) can be met by the list. AND binds more closely than OR.
fn is_allowed(expression: &str) -> bool {
    let flat = expression.replace('/', " OR ");
    if let Some(at) = flat.find('(') {
        let Some(end) = flat[at..].find(')').map(|end| at + end) else { return false };
        let inner = if is_allowed(&flat[at + 1..end]) { LICENCES[0] } else { "none" };
        return is_allowed(&format!("{}{inner}{}", &flat[..at], &flat[end + 1..]));
    }
    let all = |part: &str| part.split(" AND ").all(|name| LICENCES.contains(&name.trim()));
    flat.split(" OR ").any(all)
}

/// What distinguishes versions that cannot stand for each other.
fn line_of(version: &str) -> String {
    let mut numbers = version.split('.');
    match (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default()) {
        ("0", minor) => format!("0.{minor}"),
        (major, _) => major.to_owned(),
    }
}

fn complaints(packages: &[Foreign], twice: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for package in packages {
        let Foreign { name, version, license, source } = package;
        if !is_allowed(license) {
            found.push(format!("{name} {version}: licence {license:?} is not on the list"));
        }
        if source != REGISTRY {
            found.push(format!("{name} {version} comes from {source:?}"));
        }
        lines.entry(name).or_default().insert(line_of(version));
    }
    for (name, lines) in &lines {
        if lines.len() > 1 && !twice.contains(name) {
            found.push(format!("{name} is there in the versions {lines:?}"));
        }
    }
    let once = twice.iter().filter(|name| lines.get(**name).is_none_or(|lines| lines.len() < 2));
    found.extend(once.map(|name| format!("{name} is on the list of those that are there twice, and is not")));
    found
}

#[test]
fn what_is_built_has_a_licence_and_comes_from_the_registry() {
    let packages = foreign();
    assert!(packages.len() > 100, "only {} packages", packages.len());
    none(&complaints(&packages, &TWICE));
}

mod samples {
    use super::*;

    fn package(name: &str, version: &str, license: &str, source: &str) -> Foreign {
        let own = |text: &str| text.to_owned();
        Foreign { name: own(name), version: own(version), license: own(license), source: own(source) }
    }

    #[test]
    fn expressions_are_read() {
        for good in
            ["MIT", "GPL-3.0 OR MIT", "MIT/Apache-2.0", "(MIT OR GPL-3.0) AND Unicode-3.0", "MIT AND ISC"]
        {
            assert!(is_allowed(good), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 OR AGPL-3.0) AND MIT", "MIT AND (ISC"] {
            assert!(!is_allowed(bad), "{bad}");
        }
    }

    #[test]
    fn every_kind_is_seen() {
        let good = package("a", "1.2.3", "MIT", REGISTRY);
        none(&complaints(&[good.clone(), package("a", "1.9.0", "ISC", REGISTRY)], &[]));
        for (other, twice) in [
            (package("b", "1.0.0", "GPL-3.0", REGISTRY), &[][..]),
            (package("b", "1.0.0", "MIT", "git+https://example.com/b"), &[]),
            (package("b", "1.0.0", "MIT", ""), &[]),
            (package("a", "2.0.0", "MIT", REGISTRY), &[]),
            (package("b", "0.2.0", "MIT", REGISTRY), &["b"]),
        ] {
            assert_eq!(complaints(&[good.clone(), other], twice).len(), 1);
        }
        assert_ne!(line_of("0.9.1"), line_of("0.10.1"));
    }
}
