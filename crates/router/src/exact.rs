//! Verdicts by the letters of a text: the same text comes again, but for its numbers, and comparing it is several
//! times cheaper than taking it apart for its fingerprint.
//!
//! A text's shape is the text with its integers left out, as its fingerprint leaves them out. Texts with anything in
//! them that digits could be a part of (strings, quoted names, comments, numbers of other kinds) have none. A table
//! of few places: a shape has one, and takes it from the one before. Bounded in bytes.

use crate::classify::ParseOptions;
use crate::verdict::Verdict;

/// How many shapes are remembered.
const PLACES: usize = 256;
/// Longer texts have none (bytes).
const MAX_TEXT: usize = 512;
/// Stands for an integer: no text that has a shape holds it.
const INTEGER: u8 = 1;

/// What a verdict is true under: the generation of a catalog, and how texts are read.
pub(crate) type Under = (u64, ParseOptions);

/// A text without its integers.
#[derive(Debug)]
pub(crate) struct Shape {
    bytes: [u8; MAX_TEXT],
    len: usize,
}

impl Shape {
    /// The shape of a text that has one.
    pub(crate) fn of(text: &[u8]) -> Option<Self> {
        let mut shape = Self { bytes: [0; MAX_TEXT], len: 0 };
        let mut before = b' ';
        let mut left = text.iter().copied().peekable();
        while let Some(byte) = left.next() {
            let put = match byte {
                b'0'..=b'9' if !joins(before) => {
                    while left.next_if(u8::is_ascii_digit).is_some() {}
                    if left.peek().is_some_and(|next| joins(*next)) {
                        return None;
                    }
                    INTEGER
                }
                b'*' if before == b'/' => return None,
                b'-' if before == b'-' => return None,
                b'\'' | b'"' | b'\\' | 0x80.. | 0..=0x08 | 0x0b..=0x0c | 0x0e..=0x1f => return None,
                _ => byte,
            };
            *shape.bytes.get_mut(shape.len)? = put;
            shape.len += 1;
            before = byte;
        }
        Some(shape)
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Whether digits beside that byte are a part of something else than an integer.
fn joins(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'.')
}

#[derive(Debug)]
struct Entry {
    shape: Box<[u8]>,
    under: Under,
    verdict: Verdict,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Exact {
    places: Vec<Option<Entry>>,
    seed: u64,
}

impl Exact {
    /// An empty one; with a secret `seed` no client can tell which texts share a place.
    pub(crate) fn new(seed: u64) -> Self {
        Self { places: Vec::new(), seed }
    }

    fn place(&self, shape: &Shape) -> usize {
        let (words, rest) = shape.bytes().as_chunks::<8>();
        let mut last = [0; 8];
        last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        let mix = |hash: u64, word: [u8; 8]| {
            (hash.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x517c_c1b7_2722_0a95)
        };
        let hash = words.iter().copied().chain([last]).fold(self.seed, mix);
        // The upper bits are the well mixed ones.
        usize::try_from(hash >> 32).unwrap_or_default() % PLACES
    }

    /// The verdict on texts of that shape, where it was last found under the same conditions.
    pub(crate) fn get(&self, shape: &Shape, under: Under) -> Option<Verdict> {
        let entry = self.places.get(self.place(shape))?.as_ref()?;
        (*entry.shape == *shape.bytes() && entry.under == under).then_some(entry.verdict)
    }

    /// Remembers a verdict.
    pub(crate) fn put(&mut self, shape: &Shape, under: Under, verdict: Verdict) {
        if self.places.is_empty() {
            self.places.resize_with(PLACES, || None);
        }
        let place = self.place(shape);
        if let Some(entry) = self.places.get_mut(place) {
            *entry = Some(Entry { shape: shape.bytes().into(), under, verdict });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> Option<Vec<u8>> {
        Shape::of(text.as_bytes()).map(|shape| shape.bytes().to_vec())
    }

    #[test]
    fn integers_are_left_out_and_nothing_else() {
        assert_eq!(shape("SELECT a FROM t1 WHERE b = 17").unwrap(), b"SELECT a FROM t1 WHERE b = \x01");
        assert_eq!(shape("SELECT $1, -5, a[3]"), shape("SELECT $1, -62, a[44]"));
        let print = |text: &str| crate::fingerprint(text.as_bytes(), true);
        assert_eq!(print("SELECT $1, -5, a[3]"), print("SELECT $1, -62, a[44]"));
        assert_ne!(shape("SELECT $1"), shape("SELECT $2"));
        assert_ne!(shape("SELECT a1"), shape("SELECT a2"));
        for other in [
            "SELECT '1'",
            "SELECT \"1\"",
            "SELECT 1.5",
            "SELECT 1e5",
            "SELECT 1_000",
            "SELECT 1a",
            "/*1*/ SELECT 1",
            "SELECT 1 -- 2",
            "SELECT E'\\1'",
            "SELECT 'ä'",
            "SELECT \u{1}",
        ] {
            assert_eq!(shape(other), None, "{other}");
        }
        assert_eq!(shape(&"x".repeat(MAX_TEXT + 1)), None);
        assert!(shape(&"x".repeat(MAX_TEXT)).is_some());
    }

    #[test]
    fn a_verdict_is_known_under_its_conditions_only() {
        let mut exact = Exact::new(7);
        let (options, text) = (ParseOptions::default(), Shape::of(b"SELECT a FROM t WHERE b = 1").unwrap());
        assert_eq!(exact.get(&text, (1, options)), None);
        exact.put(&text, (1, options), Verdict::empty());
        assert_eq!(exact.get(&text, (1, options)), Some(Verdict::empty()));
        assert_eq!(exact.get(&text, (2, options)), None);
        let other = ParseOptions { standard_conforming_strings: false, ..options };
        assert_eq!(exact.get(&text, (1, other)), None);
        assert_eq!(exact.get(&Shape::of(b"SELECT a FROM t WHERE b > 1").unwrap(), (1, options)), None);
    }

    #[test]
    fn shapes_are_spread() {
        let exact = Exact::new(1);
        let text = |n: usize| format!("SELECT a{n} FROM t WHERE b = $1");
        let places: std::collections::BTreeSet<usize> = (0..PLACES)
            .filter_map(|n| Shape::of(text(n).as_bytes()))
            .map(|shape| exact.place(&shape))
            .collect();
        assert!(places.len() > PLACES / 2, "{} of {PLACES}", places.len());
    }
}
