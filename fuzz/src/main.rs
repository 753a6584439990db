//! Seeded random inputs for everything that reads bytes from a peer or a file, bounded in time.
//!
//! This is not coverage-guided fuzzing: inputs are mutations of small corpora, from a seed that each run prints, so
//! that a finding can be repeated with `make fuzz FUZZ_SEED=...`. A target fails by panicking; each one states what
//! must hold beyond that.

mod inputs;
mod session;
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use inputs::Inputs;
use targets::TARGETS;

/// Random inputs for the parsers.
#[derive(Debug, Parser)]
struct Cli {
    /// Seconds for each target
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// The seed, to repeat a run
    #[arg(long)]
    seed: Option<u64>,
    /// Stop after so many inputs of each target, however fast they are
    #[arg(long)]
    inputs: Option<u64>,
    /// Only targets whose name contains this
    #[arg(long, default_value = "")]
    only: String,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let seed = cli.seed.unwrap_or_else(rand::random);
    println!("seed {seed}");
    // Each target begins anew with the seed: leaving others out changes nothing for it.
    let chosen = TARGETS.iter().filter(|target| target.name.contains(&cli.only));
    let outcomes: Vec<bool> = chosen.map(|target| run(&cli, seed, target)).collect();
    if outcomes.is_empty() {
        println!("no target has '{}' in its name", cli.only);
        return ExitCode::FAILURE;
    }
    if outcomes.iter().all(|&fine| fine) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(cli: &Cli, seed: u64, target: &targets::Target) -> bool {
    let mut inputs = Inputs::new(seed, target.corpus);
    let deadline = Instant::now() + Duration::from_secs(cli.seconds);
    let mut count = 0_u64;
    while Instant::now() < deadline && cli.inputs.is_none_or(|most| count < most) {
        let input = inputs.next_input();
        if catch_unwind(AssertUnwindSafe(|| (target.run)(&input))).is_err() {
            println!("{}: FAILED with input {count} of seed {seed}:", target.name);
            println!("  {}", input.escape_ascii());
            return false;
        }
        count += 1;
    }
    println!("{}: {count} inputs", target.name);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use targets::Target;

    fn few(most: u64) -> Cli {
        Cli { seconds: 60, seed: None, inputs: Some(most), only: String::new() }
    }

    #[test]
    fn every_target_holds_for_some_inputs() {
        for target in TARGETS {
            assert!(run(&few(500), 1, target), "{}", target.name);
        }
    }

    #[test]
    fn a_target_that_panics_fails_the_run() {
        let target = Target { name: "bad", corpus: &[b"abc"], run: |input| assert!(input.len() < 4) };
        assert!(!run(&few(10_000), 1, &target));
    }

    #[test]
    fn a_seed_determines_the_inputs() {
        let stream = |seed| {
            let mut inputs = Inputs::new(seed, &[b"abc", b"def"]);
            (0..50).map(|_| inputs.next_input()).collect::<Vec<_>>()
        };
        assert_eq!(stream(7), stream(7));
        assert_ne!(stream(7), stream(8));
    }
}
