//! Inputs: members of a corpus, mutated.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// The longest input: long enough for lengths to go wrong, short enough for many of them.
const LONGEST: usize = 4096;
/// At most so many mutations of one input.
const MOST_MUTATIONS: u32 = 6;
/// Bytes that borders are made of.
const SPECIAL: &[u8] = b"\0\xff\x7f\x80'\"$\\/*-;(){}[],:=\n\r\t Q SPBEDCHXdcfp0123456789";

/// A stream of inputs that a seed determines.
pub(crate) struct Inputs {
    random: StdRng,
    corpus: &'static [&'static [u8]],
}

impl Inputs {
    pub(crate) fn new(seed: u64, corpus: &'static [&'static [u8]]) -> Self {
        Self { random: StdRng::seed_from_u64(seed), corpus }
    }

    pub(crate) fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.member().to_vec();
        for _ in 0..self.random.random_range(0..=MOST_MUTATIONS) {
            self.mutate(&mut input);
        }
        input.truncate(LONGEST);
        input
    }

    fn member(&mut self) -> &'static [u8] {
        match self.corpus.len() {
            0 => &[],
            many => self.corpus[self.random.random_range(0..many)],
        }
    }

    fn mutate(&mut self, input: &mut Vec<u8>) {
        let at = self.random.random_range(0..=input.len());
        match self.random.random_range(0..7) {
            0 if at < input.len() => input[at] ^= 1 << self.random.random_range(0..8),
            1 if at < input.len() => input[at] = self.random.random(),
            2 => input.truncate(at),
            3 => input.insert(at, SPECIAL[self.random.random_range(0..SPECIAL.len())]),
            4 => self.splice(input, at),
            5 => self.repeat(input, at),
            _ if at < input.len() => drop(input.remove(at)),
            _ => {}
        }
    }

    /// A piece of another member.
    fn splice(&mut self, input: &mut Vec<u8>, at: usize) {
        let other = self.member();
        let from = self.random.random_range(0..=other.len());
        let to = self.random.random_range(from..=other.len());
        input.splice(at..at, other[from..to].iter().copied());
    }

    /// A piece of the input itself, several times: nesting and repetition are where recursion hides.
    fn repeat(&mut self, input: &mut Vec<u8>, at: usize) {
        let end = (at + self.random.random_range(1..=16)).min(input.len());
        let piece = input[at..end].to_vec();
        let times = self.random.random_range(1..=200);
        input.splice(at..at, piece.iter().copied().cycle().take(piece.len() * times));
    }
}
