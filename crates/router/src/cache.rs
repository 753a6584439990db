//! The verdict cache: letters, first word, fingerprint, then the parser.
//!
//! One per worker, no locks. Bounded in bytes whatever the clients send: two generations of fixed-size
//! entries; when the young one is full it becomes the old one and the old one is dropped, so that what is
//! used stays and a million distinct texts cost no more than the bound.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::classify::{ParseOptions, classify_direct, classify_with, hint_of};
use crate::exact::{self, Exact, Shape};
use crate::fingerprint;
use crate::functions::{FunctionCatalog, NoCatalog};
use crate::verdict::Verdict;

/// What an entry costs: key, verdict, control byte, and the slack of a table that has just doubled.
const ENTRY_BYTES: usize = (size_of::<u128>() + size_of::<Verdict>() + 1) * 16 / 7;

type Generation = HashMap<u128, Verdict, BuildHasherDefault<Folded>>;

/// Classifies texts, remembering verdicts by fingerprint.
#[derive(Debug)]
pub struct Classifier {
    young: Generation,
    old: Generation,
    per_generation: usize,
    exact: Exact,
    seed: u64,
    hits: u64,
    misses: u64,
}

impl Classifier {
    /// With at most that many bytes for verdicts; 0 switches the cache off.
    #[must_use]
    pub fn new(max_cache_bytes: usize) -> Self {
        Self::with_seed(max_cache_bytes, 0)
    }

    /// The same with a secret in the keys, so that no client can prepare texts that collide.
    #[must_use]
    pub fn with_seed(max_cache_bytes: usize, seed: u64) -> Self {
        Self {
            young: Generation::default(),
            old: Generation::default(),
            per_generation: max_cache_bytes / 2 / ENTRY_BYTES,
            exact: Exact::new(seed),
            seed,
            hits: 0,
            misses: 0,
        }
    }

    /// The verdict on a text, knowing the built-in functions only.
    pub fn classify(&mut self, sql: &[u8], options: &ParseOptions) -> Verdict {
        self.classify_with(sql, options, &NoCatalog)
    }

    /// The verdict on a text, with what the catalog knows about functions.
    pub fn classify_with(
        &mut self,
        sql: &[u8],
        options: &ParseOptions,
        catalog: &dyn FunctionCatalog,
    ) -> Verdict {
        if sql.len() > options.max_parsed_statement {
            return classify_with(sql, options, catalog);
        }
        let generation = catalog.generation();
        let under = (generation, *options);
        // With parameters it is likely to come again as it is.
        if exact::has_parameters(sql)
            && let Some(verdict) = self.exact.get_text(sql, under)
        {
            self.hits += 1;
            return verdict;
        }
        let shape = if self.per_generation > 0 { Shape::of(sql) } else { None };
        if let Some(verdict) = shape.as_ref().and_then(|shape| self.exact.get(shape, under)) {
            self.hits += 1;
            return verdict;
        }
        if let Some(verdict) = classify_direct(sql, options) {
            if let Some(shape) = &shape {
                self.exact.put(shape, under, verdict);
            }
            return verdict;
        }
        let seed = self.seed ^ generation.rotate_left(17);
        let key = fingerprint::seeded(sql, options.standard_conforming_strings, seed).0;
        if let Some(verdict) = self.recall(key) {
            // Whether hints are read is not in the key, the hint itself is.
            let verdict = verdict.with_hint(hint_of(sql, options));
            if let Some(shape) = &shape {
                self.exact.put(shape, under, verdict);
            }
            return verdict;
        }
        let verdict = classify_with(sql, options, catalog);
        self.remember(key, verdict);
        verdict
    }

    /// Answers taken from the cache.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// Answers that the cache did not have.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.misses
    }

    /// How many verdicts are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held by verdicts, at most what [`Classifier::new`] was given.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.len() * ENTRY_BYTES
    }

    fn recall(&mut self, key: u128) -> Option<Verdict> {
        let verdict = match self.young.get(&key) {
            Some(verdict) => Some(*verdict),
            None => self.old.remove(&key).inspect(|verdict| self.keep(key, *verdict)),
        };
        match verdict {
            Some(_) => self.hits += 1,
            None => self.misses += 1,
        }
        verdict
    }

    fn remember(&mut self, key: u128, verdict: Verdict) {
        if self.per_generation > 0 {
            self.keep(key, verdict);
        }
    }

    fn keep(&mut self, key: u128, verdict: Verdict) {
        if self.young.len() >= self.per_generation {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, verdict);
    }
}

/// The keys are hashes already.
#[derive(Debug, Default)]
struct Folded(u64);

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, key: u128) {
        let [a, b, c, d, e, f, g, h, ..] = key.to_le_bytes();
        self.0 = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    }
}
