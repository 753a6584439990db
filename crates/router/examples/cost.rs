//! What classifying costs: the known pgbench SELECT, statements never seen before, and the memory of a million
//! distinct texts. `cargo run --release -p pgweir-router --example cost`; the figures are in docs/benchmarks.md.
#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock; the library does not")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program for people")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use router::{Classifier, ParseOptions, classify, fingerprint};

const PGBENCH: &str = "SELECT abalance FROM pgbench_accounts WHERE aid = 4711;";
const JOIN: &str = "SELECT c.name, sum(o.total) FROM customers c JOIN orders o ON o.customer = c.id \
    WHERE o.placed > now() - interval '7 days' AND c.region IN ('a', 'b') GROUP BY c.name ORDER BY 2 DESC LIMIT 10";
const TEXTS: u32 = 1_000_000;
const BOUND: usize = 4 << 20;

/// The median of several rounds, per call.
fn median(rounds: usize, calls: u32, mut work: impl FnMut(u32)) -> Duration {
    let mut times: Vec<Duration> = (0..rounds)
        .map(|_| {
            let began = Instant::now();
            (0..calls).for_each(&mut work);
            began.elapsed() / calls
        })
        .collect();
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn main() {
    let options = ParseOptions::default();
    let mut classifier = Classifier::with_seed(BOUND, 7);
    classifier.classify(PGBENCH.as_bytes(), &options);
    let print = median(11, 200_000, |_| {
        black_box(fingerprint(black_box(PGBENCH.as_bytes()), true));
    });
    let known = median(11, 200_000, |_| {
        black_box(classifier.classify(black_box(PGBENCH.as_bytes()), &options));
    });
    let cold = |sql: &'static str| {
        median(11, 2_000, move |_| {
            black_box(classify(black_box(sql.as_bytes()), &options));
        })
    };
    println!("fingerprint of the pgbench SELECT:            {:>8.0} ns", print.as_secs_f64() * 1e9);
    println!("fingerprint and cached verdict of it:         {:>8.0} ns", known.as_secs_f64() * 1e9);
    println!("the same, parsed anew:                        {:>8.1} us", cold(PGBENCH).as_secs_f64() * 1e6);
    println!("a join with aggregates, parsed anew:          {:>8.1} us", cold(JOIN).as_secs_f64() * 1e6);

    let mut most = 0;
    let began = Instant::now();
    for number in 0..TEXTS {
        let sql = format!("SELECT c{number} FROM t WHERE id = 1");
        black_box(classifier.classify(sql.as_bytes(), &options));
        most = most.max(classifier.bytes());
    }
    let each = began.elapsed() / TEXTS;
    println!("{TEXTS} distinct texts, each:               {:>8.1} us", each.as_secs_f64() * 1e6);
    println!("most bytes of verdicts held meanwhile:        {most:>8} of {BOUND}");
}
