//! What classifying costs, in nanoseconds per call: `cargo run --release -p pgweir-router --example nanoseconds`.

use std::hint::black_box;
use std::io::{self, Write};
use std::time::Instant;

use router::{Classifier, ParseOptions, classify, fingerprint};

const TEXTS: &[&str] = &[
    "SELECT abalance FROM pgbench_accounts WHERE aid = 12345;",
    "UPDATE pgbench_accounts SET abalance = abalance + -4711 WHERE aid = 12345;",
    "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (1, 2, 3, 4, CURRENT_TIMESTAMP);",
    "BEGIN;",
    "COMMIT",
    "SET search_path = public",
    "SELECT o.id, c.name, sum(l.price) FROM orders o JOIN customers c ON c.id = o.customer_id JOIN lines l ON l.order_id = o.id WHERE o.created > now() - interval '7 days' AND c.country IN ('AT', 'DE', 'CH') GROUP BY 1, 2 ORDER BY 3 DESC LIMIT 20",
];

/// The best of several rounds.
fn measure(calls: u32, mut call: impl FnMut()) -> f64 {
    let round = |call: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
    };
    (0..7).map(|_| round(&mut call)).fold(f64::INFINITY, f64::min)
}

fn main() -> io::Result<()> {
    let options = ParseOptions::default();
    let mut out = io::stdout().lock();
    writeln!(out, "{:>11} {:>8} {:>9}  statement", "fingerprint", "cached", "uncached")?;
    for text in TEXTS {
        let sql = text.as_bytes();
        let mut classifier = Classifier::with_seed(1 << 20, 1);
        let print = measure(100_000, || _ = black_box(fingerprint(black_box(sql), true)));
        let cached = measure(100_000, || _ = black_box(classifier.classify(black_box(sql), &options)));
        let uncached = measure(1_000, || _ = black_box(classify(black_box(sql), &options)));
        writeln!(out, "{print:>11.0} {cached:>8.0} {uncached:>9.0}  {text:.60}")?;
    }
    Ok(())
}
