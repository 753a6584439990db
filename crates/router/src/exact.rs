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

/// What a byte is, as far as a shape is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// It stands for itself.
    Plain,
    /// The same, and digits beside it are a part of something else than an integer.
    Joins,
    Digit,
    /// A digit of an integer, which is left out.
    Integer,
    /// What comments are made of.
    Slash,
    Star,
    Dash,
    /// A text with it has no shape.
    Bars,
}

/// By byte: a text is looked at once, and most of it is plain.
const CLASSES: [Class; 256] = {
    let mut classes = [Class::Plain; 256];
    let mut at = 0;
    while at < classes.len() {
        #[allow(
            clippy::indexing_slicing,
            clippy::cast_possible_truncation,
            reason = "at compile time, below 256"
        )]
        {
            classes[at] = match at as u8 {
                b'0'..=b'9' => Class::Digit,
                b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'$' | b'.' => Class::Joins,
                b'/' => Class::Slash,
                b'*' => Class::Star,
                b'-' => Class::Dash,
                b'\'' | b'"' | b'\\' | 0x80.. | 0..=0x08 | 0x0b..=0x0c | 0x0e..=0x1f => Class::Bars,
                _ => Class::Plain,
            };
        }
        at += 1;
    }
    classes
};

fn class(byte: u8) -> Class {
    CLASSES.get(usize::from(byte)).copied().unwrap_or(Class::Bars)
}

/// So many bytes at a time are looked at together.
const CHUNK: usize = 16;

/// Nothing but letters, spaces and signs, which stand for themselves. Without branches, so that the compiler looks at
/// all of them at once.
fn is_plain(chunk: &[u8; CHUNK]) -> bool {
    let special = |byte: u8| {
        let control = (byte < b' ') & (byte != b'\n') & (byte != b'\t');
        let digit = byte.wrapping_sub(b'0') < 10;
        let quote = (byte == b'\'') | (byte == b'"') | (byte == b'\\');
        control | digit | quote | (byte >= 0x80) | (byte == b'/') | (byte == b'-')
    };
    !chunk.iter().fold(false, |any, byte| any | special(*byte))
}

/// Whether there is a `$` in a text.
pub(crate) fn has_parameters(text: &[u8]) -> bool {
    let (chunks, rest) = text.as_chunks::<CHUNK>();
    let is_in = |bytes: &[u8]| bytes.iter().fold(false, |any, byte| any | (*byte == b'$'));
    chunks.iter().any(|chunk| is_in(chunk)) || is_in(rest)
}

impl Shape {
    /// The shape of a text that has one.
    pub(crate) fn of(text: &[u8]) -> Option<Self> {
        let mut shape = Self { bytes: [0; MAX_TEXT], len: 0 };
        let mut before = Class::Plain;
        let (chunks, rest) = text.as_chunks::<CHUNK>();
        for chunk in chunks {
            if matches!(before, Class::Integer | Class::Slash) || !is_plain(chunk) {
                shape.put(chunk, &mut before)?;
                continue;
            }
            shape.bytes.get_mut(shape.len..)?.first_chunk_mut::<CHUNK>()?.copy_from_slice(chunk);
            shape.len += CHUNK;
            before = chunk.last().map_or(before, |last| class(*last));
        }
        shape.put(rest, &mut before)?;
        Some(shape)
    }

    /// Adds the shape of `bytes`, which stand behind one of class `before`; `None` when the text has none.
    fn put(&mut self, bytes: &[u8], before: &mut Class) -> Option<()> {
        for &byte in bytes {
            let class = class(byte);
            let put = match (class, *before) {
                (Class::Digit, Class::Integer) => continue,
                (Class::Digit, Class::Joins | Class::Digit) => byte,
                (Class::Digit, _) => INTEGER,
                (Class::Bars, _)
                | (Class::Joins, Class::Integer)
                | (Class::Star, Class::Slash)
                | (Class::Dash, Class::Dash) => return None,
                _ => byte,
            };
            *self.bytes.get_mut(self.len)? = put;
            self.len += 1;
            *before = if put == INTEGER { Class::Integer } else { class };
        }
        Some(())
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

#[derive(Debug)]
struct Entry {
    shape: Box<[u8]>,
    /// No integer was left out of it: a text of that shape is the shape.
    literal: bool,
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

    fn place(&self, shape: &[u8]) -> usize {
        let (words, rest) = shape.as_chunks::<8>();
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
        self.entry(shape.bytes(), under).map(|entry| entry.verdict)
    }

    /// The same for a text that is its own shape, as those with parameters are: it need not be taken.
    pub(crate) fn get_text(&self, text: &[u8], under: Under) -> Option<Verdict> {
        self.entry(text, under).filter(|entry| entry.literal).map(|entry| entry.verdict)
    }

    fn entry(&self, shape: &[u8], under: Under) -> Option<&Entry> {
        let entry = self.places.get(self.place(shape))?.as_ref()?;
        (*entry.shape == *shape && entry.under == under).then_some(entry)
    }

    /// Remembers a verdict.
    pub(crate) fn put(&mut self, shape: &Shape, under: Under, verdict: Verdict) {
        if self.places.is_empty() {
            self.places.resize_with(PLACES, || None);
        }
        let place = self.place(shape.bytes());
        if let Some(entry) = self.places.get_mut(place) {
            let literal = !shape.bytes().contains(&INTEGER);
            *entry = Some(Entry { shape: shape.bytes().into(), literal, under, verdict });
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
    fn it_does_not_matter_where_in_a_text_something_stands() {
        for text in [
            "SELECT a FROM t1 WHERE b = 17 AND c<5",
            "12345678901234567890 x1",
            "1x",
            "a / * b",
            "/* c */",
            "- -1",
            "--",
            "a-1",
            "'",
            "\r\n\t 7",
            "\u{1}",
            "\u{80}",
        ] {
            let alone = shape(text);
            for before in 1..2 * CHUNK {
                let moved = shape(&format!("{}{text}", " ".repeat(before)));
                assert_eq!(moved.map(|moved| moved[before..].to_vec()), alone, "{text} behind {before}");
            }
        }
    }

    #[test]
    fn a_verdict_is_known_under_its_conditions_only() {
        let mut exact = Exact::new(7);
        let (options, text) = (ParseOptions::default(), Shape::of(b"SELECT a FROM t WHERE b = 1").unwrap());
        assert_eq!(exact.get(&text, (1, options)), None);
        exact.put(&text, (1, options), Verdict::empty());
        assert_eq!(exact.get(&text, (1, options)), Some(Verdict::empty()));
        assert_eq!(exact.get(&text, (2, options)), None);
        assert_eq!(
            exact.get_text(b"SELECT a FROM t WHERE b = \x01", (1, options)),
            None,
            "an integer is left out"
        );
        let own = Shape::of(b"SELECT a FROM t WHERE b = $1").unwrap();
        exact.put(&own, (1, options), Verdict::empty());
        assert_eq!(exact.get_text(b"SELECT a FROM t WHERE b = $1", (1, options)), Some(Verdict::empty()));
        assert_eq!(exact.get_text(b"SELECT a FROM t WHERE b = $1", (2, options)), None);
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
            .map(|shape| exact.place(shape.bytes()))
            .collect();
        assert!(places.len() > PLACES / 2, "{} of {PLACES}", places.len());
    }
}
