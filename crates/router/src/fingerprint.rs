//! A hash of a text's tokens with literals left out, so that `aid = 1` and `aid = 2` are one statement.
//!
//! Invariant: two texts with one fingerprint get one verdict (under the same options). It holds because
//! the classifier sees nothing of a text that is not hashed here: the kinds of all tokens, the text of
//! words (without case), quoted names, operators and punctuation, which strings name a probe
//! ([`Token::names_a_probe`]), and the leading hint. White space, comments, the text of other literals and
//! the length of lists of them count for neither ([`crate::normal`]).
//!
//! The hash is two lanes of 64-bit multiply-and-fold (as in wyhash). It is not cryptographic; the verdict
//! cache puts a seed in, so that collisions cannot be prepared.

use std::fmt;

use crate::hint;
use crate::lexer::{Kind, Token};
use crate::normal::Normal;
use crate::verdict::Hint;

/// The hash of a text's tokens with literals left out; shown as 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub u128);

impl Fingerprint {
    /// Its first half, which is enough to tell apart what one process sees.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "the upper half fits")]
    pub const fn first_half(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The fingerprint of a text, the same in every process. One pass, no allocation.
#[must_use]
pub fn fingerprint(sql: &[u8], standard_conforming_strings: bool) -> Fingerprint {
    seeded(sql, standard_conforming_strings, 0)
}

/// The same under a seed: the key of the verdict cache.
pub(crate) fn seeded(sql: &[u8], standard_conforming_strings: bool, seed: u64) -> Fingerprint {
    let mut hash = Hash::new(seed);
    if sql.trim_ascii_start().first() == Some(&b'/') {
        hash.hint(hint::leading(sql));
    }
    for token in Normal::new(sql, standard_conforming_strings) {
        hash.token(&token);
    }
    hash.finish()
}

const K0: u64 = 0xA076_1D64_78BD_642F;
const K1: u64 = 0xE703_7ED1_A0B4_28DB;

struct Hash {
    a: u64,
    b: u64,
}

impl Hash {
    fn new(seed: u64) -> Self {
        Self { a: seed ^ 0x9E37_79B9_7F4A_7C15, b: seed.rotate_left(32) ^ 0x8EBC_6AF0_9C88_C6E3 }
    }

    fn mix(&mut self, value: u64) {
        self.a = fold(self.a ^ value, K0);
        self.b = fold(self.b.rotate_left(23) ^ value, K1);
    }

    fn hint(&mut self, hint: Option<Hint>) {
        match hint {
            None => {}
            Some(Hint::Primary) => self.mix(0x100),
            Some(Hint::Standby) => self.mix(0x200),
            Some(Hint::Node(node)) => self.mix(0x300 | u64::from(node.0) << 16),
        }
    }

    fn token(&mut self, token: &Token<'_>) {
        let kind = token.kind as u64 + 1;
        match token.kind {
            Kind::String if token.names_a_probe() => self.mix(kind | 0x400),
            Kind::String | Kind::Number | Kind::Bad => self.mix(kind),
            Kind::Word => self.text(kind, token.text, token.text.is_ascii()),
            Kind::Quoted | Kind::Param | Kind::Operator | Kind::Punct => self.text(kind, token.text, false),
        }
    }

    /// The length goes in with the kind, so that no two sequences of tokens read alike. The last eight bytes
    /// may overlap the ones before them.
    fn text(&mut self, kind: u64, text: &[u8], fold_case: bool) {
        let tag = kind | (text.len() as u64) << 8;
        let case = |word| if fold_case { lower(word) } else { word };
        let (chunks, rest) = text.as_chunks::<8>();
        let (last, chunks) = match (text.last_chunk::<8>(), rest) {
            (None, _) => (short(text), chunks),
            (Some(last), []) => {
                (u64::from_le_bytes(*last), chunks.split_last().map_or(chunks, |(_, before)| before))
            }
            (Some(last), _) => (u64::from_le_bytes(*last), chunks),
        };
        for chunk in chunks {
            self.mix(case(u64::from_le_bytes(*chunk)));
        }
        self.a = fold(self.a ^ case(last), K0 ^ tag.wrapping_mul(K1));
        self.b = fold(self.b.rotate_left(23) ^ case(last) ^ tag << 40, K1 ^ tag);
    }

    fn finish(mut self) -> Fingerprint {
        self.mix(K0 ^ K1);
        self.mix(self.a ^ self.b.rotate_left(32));
        Fingerprint(u128::from(self.a) << 64 | u128::from(self.b))
    }
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    let [low, high] = [product, product >> 64].map(low_half);
    low ^ high
}

#[allow(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
fn low_half(wide: u128) -> u64 {
    wide as u64
}

/// Up to seven bytes as a number, each length without loss.
fn short(text: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        return u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32;
    }
    text.iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Eight ASCII bytes at once, `A-Z` to `a-z`.
fn lower(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let at_least_a = word + ONES * u64::from(0x80 - b'A');
    let above_z = word + ONES * u64::from(0x7F - b'Z');
    let upper = (at_least_a & !above_z) & (ONES * 0x80);
    word | upper >> 2
}
