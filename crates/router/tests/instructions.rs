//! What classifying costs, in instructions: a busy machine cannot disturb the count. The test runs itself under
//! valgrind, for more calls and for fewer; the difference is theirs alone.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test starts a process")]
#![allow(clippy::panic, clippy::print_stdout, reason = "it tells what it counted")]

use std::hint::black_box;
use std::process::Command;

use router::{Classifier, ParseOptions, classify};

const CALLS: &str = "PGWEIR_CALLS";
const PGBENCH: &[u8] = b"SELECT abalance FROM pgbench_accounts WHERE aid = 12345;";
const FEW: u32 = 100;

/// For optimised builds that check overflows; those of the profile `release` are in docs/benchmarks.md, with what they
/// are in nanoseconds.
const KNOWN: f64 = 4_000.0;
const NEW: f64 = 90_000.0;

fn work(kind: &str, calls: u32) {
    let options = ParseOptions::default();
    let mut classifier = Classifier::with_seed(1 << 20, 7);
    for _ in 0..calls {
        match kind {
            "known" => black_box(classifier.classify(black_box(PGBENCH), &options)),
            _ => black_box(classify(black_box(PGBENCH), &options)),
        };
    }
}

/// Instructions of this process with so many calls.
fn count(kind: &str, calls: u32) -> f64 {
    let program = std::env::current_exe().unwrap();
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["--exact", "classifying_takes_few_instructions"])
        .env(CALLS, format!("{kind} {calls}"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = said.lines().find_map(|line| line.split_once("Collected : "));
    line.unwrap_or_else(|| panic!("no count: {said}")).1.trim().parse().unwrap()
}

#[test]
fn classifying_takes_few_instructions() {
    if let Ok(asked) = std::env::var(CALLS) {
        let (kind, calls) = asked.split_once(' ').unwrap();
        return work(kind, calls.parse().unwrap());
    }
    // Not optimised, the count says little: only that it is not of another order.
    let slack = if cfg!(debug_assertions) && !is_optimised() { 40.0 } else { 1.0 };
    for (kind, many, limit) in [("known", 10 * FEW, KNOWN), ("new", 5 * FEW, NEW)] {
        let each = (count(kind, many) - count(kind, FEW)) / f64::from(many - FEW);
        println!("{kind}: {each:.0} instructions");
        assert!(each < limit * slack, "{kind}: {each} instructions, at most {limit} x {slack}");
    }
}

/// The profile `ci` checks overflows and asserts, and is optimised all the same: its programs stand in `ci`.
fn is_optimised() -> bool {
    std::env::current_exe().is_ok_and(|path| !path.components().any(|part| part.as_os_str() == "debug"))
}
