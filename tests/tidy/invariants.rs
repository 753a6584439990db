//! The invariants of docs/architecture.md that can be read from the source.

use crate::none;
use crate::source::{Source, imports, occurrences};
use crate::tree::{everything, files, product};

/// Crates without clock, network, files, environment and randomness: `now` and `seed` are arguments.
const PURE: [&str; 3] = ["protocol", "router", "cluster"];

/// What a pure crate must not reach for.
const IMPURE: [&str; 14] = [
    "Instant::now",
    "SystemTime::now",
    "rand::",
    "getrandom",
    "OsRng",
    "thread_rng",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "fs::",
    "env::",
    "thread::",
    "process::Command",
];

/// The same by import.
const IMPURE_IMPORTS: [&str; 6] = ["std::fs", "std::env", "std::thread", "std::process", "std::os", "tokio"];

/// Crates where serde may appear: the configuration, and JSON for people and programs outside.
const SERDE: [&str; 3] = ["config", "admin", "pgweir"];

/// Types through which a static can change.
const MUTABLE: [&str; 10] = [
    "Mutex",
    "RwLock",
    "Cell",
    "RefCell",
    "OnceCell",
    "OnceLock",
    "ArcSwap",
    "Published",
    "UnsafeCell",
    "Atomic",
];

/// Ways to start a task past the one door.
const SPAWNERS: [&str; 6] =
    ["tokio::spawn", "task::spawn", "spawn_local", "spawn_blocking", "JoinSet", "LocalSet"];

/// The one door.
const DOOR: &str = "crates/telemetry/src/tasks.rs";

fn complain(source: &Source, at: usize, what: &str) -> String {
    format!("{}:{}: {what}", source.path, source.line(at))
}

fn purity(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| PURE.contains(&source.krate())) {
        for word in IMPURE {
            found.extend(
                occurrences(&source.product, word)
                    .map(|at| complain(source, at, &format!("{word} in a pure crate"))),
            );
        }
        for (at, path) in imports(&source.product) {
            let first = |banned: &&str| path == **banned || path.starts_with(&format!("{banned}::"));
            if IMPURE_IMPORTS.iter().any(first) {
                found.push(complain(source, at, &format!("imports {path} in a pure crate")));
            }
        }
    }
    found
}

fn serde_stays_home(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| !SERDE.contains(&source.krate())) {
        for word in ["serde", "Serialize", "Deserialize", "serde_json"] {
            found.extend(
                occurrences(&source.product, word)
                    .map(|at| complain(source, at, "serde outside config and admin")),
            );
        }
    }
    let yaml: Vec<&Source> =
        sources.iter().filter(|source| occurrences(&source.product, "serde_yaml").next().is_some()).collect();
    if let [_, second, ..] = yaml.as_slice() {
        found.push(format!("{}: a second file that touches serde_yaml", second.path));
    }
    found
}

fn statics(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| source.krate() != "telemetry") {
        for at in occurrences(&source.product, "static") {
            // `'static` is a lifetime.
            if source.product[..at].ends_with('\'') {
                continue;
            }
            let item = source.product[at..].split(['=', ';']).next().unwrap_or("");
            let mutable = MUTABLE.iter().any(|kind| item.contains(kind)) || item.starts_with("static mut ");
            if mutable {
                found.push(complain(source, at, "a static that can change, outside telemetry"));
            }
        }
        found.extend(
            occurrences(&source.product, "thread_local").map(|at| complain(source, at, "thread-local state")),
        );
    }
    found
}

fn spawning(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| source.path != DOOR) {
        for word in SPAWNERS {
            found.extend(
                occurrences(&source.product, word)
                    .map(|at| complain(source, at, "spawns past telemetry::Tasks")),
            );
        }
    }
    found
}

/// The proxy reads the topology; what decides it is none of its business.
fn proxy_and_the_core(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| source.krate() == "proxy") {
        for word in ["cluster::core", "cluster::Core"] {
            found.extend(
                occurrences(&source.product, word)
                    .map(|at| complain(source, at, "the cluster state machine in proxy")),
            );
        }
        for (at, path) in imports(&source.product) {
            if path == "cluster::Core"
                || path == "cluster::core"
                || path.starts_with("cluster::core::")
                || path == "cluster::*"
            {
                found.push(complain(source, at, "imports the cluster state machine"));
            }
        }
    }
    found
}

/// What a finished tree does not have, in product and tests alike.
fn unfinished(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        for word in ["todo!", "unimplemented!", "dbg!", "#[ignore"] {
            found.extend(occurrences(&source.code, word).map(|at| complain(source, at, word)));
        }
        let inner = (!source.product.is_empty() && source.path.starts_with("crates/"))
            .then(|| occurrences(&source.code, "#![allow("));
        found.extend(
            inner.into_iter().flatten().map(|at| complain(source, at, "an allow for a whole module")),
        );
        for at in ["#[allow(", "#![allow("].iter().flat_map(|word| occurrences(&source.code, word)) {
            let attribute = source.code[at..].split(']').next().unwrap_or("");
            if !attribute.contains("reason") {
                found.push(complain(source, at, "an allow without a reason"));
            }
        }
    }
    found
}

/// A module says what it is for before anything else; a file of tests is explained by its module.
fn headless(sources: &[Source]) -> Vec<String> {
    let bare = sources.iter().filter(|source| !source.product.is_empty() && !source.text.starts_with("//!"));
    bare.map(|source| format!("{}: does not begin with a //! module head", source.path)).collect()
}

/// Paths of the machine where something was written, and notes to oneself. The needles are put together so that this file is not one.
fn leftovers(files: &[(String, String)]) -> Vec<String> {
    let needles = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("FIX", "ME")];
    let mut found = Vec::new();
    for (path, text) in files {
        for (number, line) in text.lines().enumerate() {
            if let Some(needle) = needles.iter().find(|needle| line.contains(**needle)) {
                found.push(format!("{path}:{}: {needle}", number + 1));
            }
        }
    }
    found
}

#[test]
fn pure_crates_are_pure() {
    none(&purity(&product()));
}

#[test]
fn serde_is_in_config_and_admin_only() {
    none(&serde_stays_home(&product()));
}

#[test]
fn no_global_state_outside_telemetry() {
    none(&statics(&product()));
}

#[test]
fn spawning_has_one_door() {
    none(&spawning(&product()));
}

#[test]
fn the_proxy_does_not_know_the_cluster_core() {
    none(&proxy_and_the_core(&product()));
}

#[test]
fn nothing_is_left_unfinished() {
    none(&unfinished(&everything()));
}

#[test]
fn every_module_says_what_it_is_for() {
    none(&headless(&everything()));
}

#[test]
fn no_paths_of_a_machine_and_no_notes_to_oneself() {
    none(&leftovers(&files(
        "",
        &[".rs", ".md", ".py", ".sh", ".toml", ".yaml", ".service", "Makefile", "run"],
    )));
}

mod samples {
    use super::*;

    fn sample(path: &str, text: &str) -> Vec<Source> {
        Source::all(vec![(path.to_owned(), text.to_owned())])
    }

    #[test]
    fn impurity_is_seen() {
        for bad in [
            "fn f() { let now = std::time::Instant::now(); }",
            "fn f() -> u8 { rand::random() }",
            "use std::{fmt, fs};",
            "use std::net::TcpStream;",
            "use tokio::time::sleep;",
        ] {
            assert!(!purity(&sample("crates/router/src/x.rs", bad)).is_empty(), "not seen: {bad}");
            assert!(purity(&sample("crates/proxy/src/x.rs", bad)).is_empty(), "proxy may: {bad}");
        }
        let good = "use std::{fmt, net::IpAddr};\n// Instant::now\nconst A: &str = \"rand::\";\n#[cfg(test)]\nmod tests { use std::fs; }";
        none(&purity(&sample("crates/router/src/x.rs", good)));
    }

    #[test]
    fn serde_abroad_is_seen() {
        assert!(
            !serde_stays_home(&sample("crates/cluster/src/x.rs", "#[derive(serde::Serialize)] struct X;"))
                .is_empty()
        );
        none(&serde_stays_home(&sample("crates/config/src/x.rs", "use serde::Deserialize;")));
        let twice = ["a", "b"]
            .map(|name| (format!("crates/config/src/{name}.rs"), "use serde_yaml::Value;".to_owned()));
        assert_eq!(serde_stays_home(&Source::all(twice.to_vec())).len(), 1);
    }

    #[test]
    fn global_state_is_seen() {
        for bad in [
            "static COUNT: AtomicU64 = AtomicU64::new(0);",
            "static mut X: u8 = 0;",
            "static NOW: OnceLock<Config> = OnceLock::new();",
            "static A: LazyLock<Mutex<u8>> = LazyLock::new(f);",
            "thread_local! { static A: u8 = 0; }",
        ] {
            assert!(!statics(&sample("crates/proxy/src/x.rs", bad)).is_empty(), "not seen: {bad}");
            none(&statics(&sample("crates/telemetry/src/x.rs", bad)));
        }
        let good = "static WORDS: [&str; 1] = [\"a\"];\nstatic TABLE: LazyLock<Table> = LazyLock::new(f);\nfn f(a: &'static Mutex<u8>) {}";
        none(&statics(&sample("crates/proxy/src/x.rs", good)));
    }

    #[test]
    fn a_second_door_is_seen() {
        assert!(!spawning(&sample("crates/proxy/src/x.rs", "fn f() { tokio::spawn(g()); }")).is_empty());
        assert!(!spawning(&sample("crates/pgweir/src/x.rs", "use tokio::task::JoinSet;")).is_empty());
        none(&spawning(&sample(DOOR, "fn f() { tokio::spawn(g()); }")));
        none(&spawning(&sample("crates/proxy/src/x.rs", "fn f() { self.tasks.spawn(\"session\", g()); }")));
    }

    #[test]
    fn the_core_in_the_proxy_is_seen() {
        for bad in ["use cluster::{Core, NodeId};", "fn f(c: &cluster::Core) {}", "use cluster::core::Event;"]
        {
            assert!(!proxy_and_the_core(&sample("crates/proxy/src/x.rs", bad)).is_empty(), "not seen: {bad}");
        }
        none(&proxy_and_the_core(&sample("crates/proxy/src/x.rs", "use cluster::{NodeId, Topology};")));
    }

    #[test]
    fn holes_are_seen() {
        let attribute = "#![allow(non_snake_case, reason = \"x\")]";
        for bad in [
            "fn f() { todo!() }",
            "#[test]\n#[ignore]\nfn t() {}",
            "#[allow(dead_code)]\nfn f() {}",
            "#![allow(unused)]",
        ] {
            assert!(!unfinished(&sample("tests/x.rs", bad)).is_empty(), "not seen: {bad}");
        }
        none(&unfinished(&sample("tests/x.rs", "// todo!\n#[allow(dead_code, reason = \"x\")]\nfn f() {}")));
        none(&unfinished(&sample("tests/x.rs", attribute)));
        assert_eq!(unfinished(&sample("crates/x/src/x.rs", attribute)).len(), 1);
    }

    #[test]
    fn a_module_without_a_head_is_seen() {
        assert_eq!(headless(&sample("crates/x/src/lib.rs", "fn f() {}")).len(), 1);
        none(&headless(&sample("crates/x/src/lib.rs", "//! Heads.\nfn f() {}")));
    }

    #[test]
    fn leftovers_are_seen() {
        let bad = |text: &str| leftovers(&[("x.md".to_owned(), text.to_owned())]).len();
        assert_eq!(bad(concat!("see /ro", "ot/notes")), 1);
        assert_eq!(bad(concat!("// FIX", "ME")), 1);
        assert_eq!(bad("see docs/running.md"), 0);
    }
}
