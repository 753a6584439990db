//! Hashing under a secret of each map: several times cheaper than the standard library's for short keys, and no client
//! can prepare names that share a place without knowing the secret. Not for anything that leaves the process.

use std::hash::{BuildHasher, Hasher};

/// Odd, with its bits well mixed (the golden ratio of 2^64).
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Makes hashers of one secret.
#[derive(Debug, Clone)]
pub(crate) struct Seeded(u64);

impl Default for Seeded {
    fn default() -> Self {
        Self(rand::random())
    }
}

impl BuildHasher for Seeded {
    type Hasher = Folding;

    fn build_hasher(&self) -> Folding {
        Folding { hash: self.0, secret: self.0 ^ MULTIPLIER | 1 }
    }
}

/// Folds each word into the hash by the upper and the lower half of a product, so that all of its bits count for all.
#[derive(Debug)]
pub(crate) struct Folding {
    hash: u64,
    secret: u64,
}

impl Folding {
    fn fold(&mut self, word: u64) {
        self.hash = folded(self.hash ^ word, self.secret);
    }
}

fn folded(one: u64, other: u64) -> u64 {
    let bytes = u128::from(one).wrapping_mul(u128::from(other)).to_le_bytes();
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().fold(0, |hash, word| hash ^ u64::from_le_bytes(*word))
}

impl Hasher for Folding {
    fn finish(&self) -> u64 {
        folded(self.hash, MULTIPLIER)
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.fold(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        // With the length, so that zeros at the end count.
        self.fold(
            u64::from_le_bytes(last).wrapping_add(u64::try_from(bytes.len()).unwrap_or_default() << 56),
        );
    }

    fn write_u64(&mut self, word: u64) {
        self.fold(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.fold(u64::try_from(word).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn hash(seeded: &Seeded, bytes: &[u8]) -> u64 {
        seeded.hash_one(bytes)
    }

    #[test]
    fn keys_are_told_apart_in_the_lower_and_in_the_upper_bits() {
        for seed in (0..100).map(|seed| folded(seed + 1, 0x2545_f491_4f6c_dd1d)) {
            let name = |n: u32| hash(&Seeded(seed), format!("statement_{n}").as_bytes());
            let all: Vec<u64> = (0..4096).map(name).collect();
            for shift in [0, 52] {
                let places: BTreeSet<u64> = all.iter().map(|hash| (hash >> shift) & 0xfff).collect();
                // By chance it is 63 of 100.
                assert!(places.len() > 2400, "{} of 4096 at {shift} under {seed}", places.len());
            }
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        }
    }

    #[test]
    fn lengths_and_secrets_count() {
        let seeded = Seeded(7);
        assert_ne!(hash(&seeded, b"a"), hash(&seeded, b"a\0"));
        assert_ne!(hash(&seeded, b""), hash(&seeded, b"\0"));
        assert_eq!(hash(&seeded, b"abc"), hash(&Seeded(7), b"abc"));
        assert_ne!(hash(&seeded, b"abc"), hash(&Seeded(8), b"abc"));
    }
}
