//! Borrowed views of the few messages the data path must look into.
//!
//! A view never needs more of a message than what it shows: a Bind of 64 MB is viewed by its two names.

use crate::frame::HEADER_LEN;

/// So many bytes at a time are looked at together.
const CHUNK: usize = 16;

/// The text up to the first zero byte, and what follows it.
#[inline]
fn cstr(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    // Most names are empty.
    if let Some((0, rest)) = bytes.split_first() {
        return Some((&[], rest));
    }
    let (text, rest) = bytes.split_at_checked(zero_at(bytes)?)?;
    Some((text, rest.get(1..)?))
}

/// Where the first zero stands. Several times cheaper than the standard library and `memchr` for texts of the usual
/// length: a chunk has no branches in it, so the compiler looks at all of it at once.
fn zero_at(bytes: &[u8]) -> Option<usize> {
    let (chunks, _) = bytes.as_chunks::<CHUNK>();
    let has_one = |chunk: &[u8; CHUNK]| chunk.iter().fold(false, |any, byte| any | (*byte == 0));
    let clear = CHUNK * chunks.iter().take_while(|chunk| !has_one(chunk)).count();
    let rest = bytes.get(clear..)?;
    let (words, last) = rest.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        if let Some(byte) = zero_byte(u64::from_le_bytes(*word)) {
            return Some(clear + 8 * at + byte);
        }
    }
    last.iter().position(|byte| *byte == 0).map(|at| clear + 8 * words.len() + at)
}

/// The lowest byte of a word that is zero (Warren, Hacker's Delight, 6-1).
fn zero_byte(word: u64) -> Option<usize> {
    const ONES: u64 = u64::MAX / 255;
    let zeros = word.wrapping_sub(ONES) & !word & (ONES << 7);
    usize::try_from(zeros.trailing_zeros() / 8).ok().filter(|_| zeros != 0)
}

/// What a view of a message that may be incomplete gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View<T> {
    /// It is all there.
    Ready(T),
    /// More bytes of the message are needed.
    Incomplete,
    /// The message is whole and malformed.
    Malformed,
}

fn view<T>(whole: bool, parsed: Option<T>) -> View<T> {
    match parsed {
        Some(parsed) => View::Ready(parsed),
        None if whole => View::Malformed,
        None => View::Incomplete,
    }
}

/// The statement text of a whole Query message, without the terminator.
#[must_use]
pub fn query_text(message: &[u8]) -> Option<&[u8]> {
    // A zero byte inside is the server's business to refuse; the text ends at the first one.
    cstr(message.get(HEADER_LEN..)?).map(|(text, _)| text)
}

/// The same, where the message has exactly one terminator, at its end.
#[must_use]
pub fn only_query_text(message: &[u8]) -> Option<&[u8]> {
    cstr(message.get(HEADER_LEN..)?).and_then(|(text, rest)| rest.is_empty().then_some(text))
}

/// A whole Parse message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parse<'a> {
    /// The name the client gives the statement; empty for the unnamed one.
    pub name: &'a [u8],
    /// The statement text.
    pub sql: &'a [u8],
    /// Everything behind the name: text, terminator, count and parameter types.
    pub tail: &'a [u8],
}

/// Views a whole Parse message; `None` when it is malformed.
#[must_use]
pub fn parse(message: &[u8]) -> Option<Parse<'_>> {
    let (name, tail) = cstr(message.get(HEADER_LEN..)?)?;
    let (sql, types) = cstr(tail)?;
    let (count, oids) = types.split_at_checked(2)?;
    let count = usize::from(u16::from_be_bytes(count.try_into().ok()?));
    (oids.len() == count * 4).then_some(Parse { name, sql, tail })
}

/// The names at the front of a Bind message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bind<'a> {
    /// The portal to make; empty for the unnamed one.
    pub portal: &'a [u8],
    /// The statement it is made from; empty for the unnamed one.
    pub statement: &'a [u8],
    /// Where in the message the part behind both names begins.
    pub rest: usize,
}

/// Views the names of a Bind message of which `seen` has arrived; `len` is the whole message's length.
#[must_use]
pub fn bind(seen: &[u8], len: usize) -> View<Bind<'_>> {
    let parsed = seen.get(HEADER_LEN..).and_then(|body| {
        let (portal, body) = cstr(body)?;
        let (statement, _) = cstr(body)?;
        Some(Bind { portal, statement, rest: HEADER_LEN + portal.len() + statement.len() + 2 })
    });
    view(seen.len() >= len, parsed)
}

/// How many values a whole Bind message has; `rest` is where the part behind its names begins.
#[must_use]
pub fn bound_values(message: &[u8], rest: usize) -> Option<u16> {
    let count = |at: usize| message.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
    let formats = usize::from(count(rest)?);
    count(rest + 2 + 2 * formats)
}

/// The values of a Bind message, as far as it has come: whether each is binary, and its bytes, none for null.
pub fn values(message: &[u8], rest: usize) -> impl Iterator<Item = (bool, Option<&[u8]>)> {
    let count = |at: usize| message.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
    let formats = count(rest).unwrap_or_default();
    let mut at = rest + 2 + 2 * usize::from(formats);
    let values = count(at).unwrap_or_default();
    at += 2;
    (0..values).map_while(move |index| {
        let len = i32::from_be_bytes(*message.get(at..)?.first_chunk()?);
        at += 4;
        // None is all text, one is for all.
        let format = match formats {
            0 => Some(0),
            1 => count(rest + 2),
            _ => count(rest + 2 + 2 * usize::from(index)),
        };
        let value = match usize::try_from(len) {
            Ok(len) => Some(message.get(at..at.checked_add(len)?)?),
            Err(_) => None,
        };
        at += value.map_or(0, <[u8]>::len);
        Some((format == Some(1), value))
    })
}

/// What a Describe or Close is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Object<'a> {
    /// A prepared statement.
    Statement(&'a [u8]),
    /// A portal.
    Portal(&'a [u8]),
}

/// Views a whole Describe or Close message; `None` when it is malformed.
#[must_use]
pub fn object(message: &[u8]) -> Option<Object<'_>> {
    let (kind, name) = message.get(HEADER_LEN..)?.split_first()?;
    let (name, rest) = cstr(name)?;
    match (kind, rest.is_empty()) {
        (b'S', true) => Some(Object::Statement(name)),
        (b'P', true) => Some(Object::Portal(name)),
        _ => None,
    }
}

/// The portal that a whole Execute message names; `None` when it is malformed.
#[must_use]
pub fn portal(message: &[u8]) -> Option<&[u8]> {
    cstr(message.get(HEADER_LEN..)?).map(|(portal, _)| portal)
}

/// Name and value of a whole ParameterStatus message; `None` when it is malformed.
#[must_use]
pub fn parameter_status(message: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, rest) = cstr(message.get(HEADER_LEN..)?)?;
    let (value, rest) = cstr(rest)?;
    rest.is_empty().then_some((name, value))
}

/// The tag of a whole CommandComplete message; `None` when it is malformed.
#[must_use]
pub fn command_tag(message: &[u8]) -> Option<&[u8]> {
    cstr(message.get(HEADER_LEN..)?).map(|(tag, _)| tag)
}

/// The transaction status of a ReadyForQuery message; `None` when it is malformed.
#[must_use]
pub fn ready_status(message: &[u8]) -> Option<TxStatus> {
    message.get(HEADER_LEN..).and_then(<[u8]>::first).and_then(|byte| TxStatus::from_byte(*byte))
}

/// The transaction status that ReadyForQuery reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TxStatus {
    /// No transaction block.
    #[default]
    Idle,
    /// In a transaction block.
    InTransaction,
    /// In a failed transaction block.
    Failed,
}

impl TxStatus {
    /// The status of the protocol's byte.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            b'I' => Some(Self::Idle),
            b'T' => Some(Self::InTransaction),
            b'E' => Some(Self::Failed),
            _ => None,
        }
    }

    /// The protocol's byte.
    #[must_use]
    pub fn as_byte(self) -> u8 {
        match self {
            Self::Idle => b'I',
            Self::InTransaction => b'T',
            Self::Failed => b'E',
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut out = vec![tag];
        out.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        out.extend_from_slice(body);
        out
    }

    #[test]
    fn parse_shows_name_text_and_tail() {
        let whole = message(b'P', b"s1\0SELECT $1\0\0\x01\0\0\0\x17");
        let seen = parse(&whole).unwrap();
        assert_eq!((seen.name, seen.sql), (&b"s1"[..], &b"SELECT $1"[..]));
        assert_eq!(seen.tail, b"SELECT $1\0\0\x01\0\0\0\x17");
        assert_eq!(parse(&message(b'P', b"s1\0SELECT $1\0\0\x02\0\0\0\x17")), None);
        assert_eq!(parse(&message(b'P', b"s1\0SELECT")), None);
    }

    #[test]
    fn values_of_a_bind() {
        let mut out = bytes::BytesMut::new();
        crate::write::bind(&mut out, "p", "st", &[Some(b"one"), None, Some(b"")]).unwrap();
        let rest = match bind(&out, out.len()) {
            View::Ready(bind) => bind.rest,
            other => panic!("{other:?}"),
        };
        let all: Vec<_> = values(&out, rest).collect();
        assert_eq!(all, [(false, Some(&b"one"[..])), (false, None), (false, Some(&b""[..]))]);
        // Whatever has not come is not there, and nothing is made up.
        for end in 0..out.len() {
            assert!(values(&out[..end], rest).count() <= 3);
        }
        assert_eq!(values(&out[..out.len() - 4], rest).count(), 2);
    }

    #[test]
    fn bind_needs_its_names_only() {
        let whole = message(b'B', b"p\0stmt\0\0\0\0\0\0\0");
        for cut in 0..HEADER_LEN + 7 {
            assert_eq!(bind(&whole[..cut], whole.len()), View::Incomplete, "cut at {cut}");
        }
        let View::Ready(names) = bind(&whole[..HEADER_LEN + 7], whole.len()) else { panic!("incomplete") };
        assert_eq!((names.portal, names.statement, names.rest), (&b"p"[..], &b"stmt"[..], HEADER_LEN + 7));
        assert_eq!(bound_values(&whole, names.rest), Some(0));
        let one = message(b'B', b"\0\0\0\x01\0\x01\0\x01\0\0\0\x01x\0\0");
        assert_eq!(bound_values(&one, HEADER_LEN + 2), Some(1));
        let bad = message(b'B', b"pstmt");
        assert_eq!(bind(&bad, bad.len()), View::Malformed);
    }

    #[test]
    fn describe_and_close_name_an_object() {
        assert_eq!(object(&message(b'D', b"Ss\0")), Some(Object::Statement(b"s")));
        assert_eq!(object(&message(b'C', b"P\0")), Some(Object::Portal(b"")));
        for bad in [&b"Xs\0"[..], b"Ss", b"Ss\0x", b""] {
            assert_eq!(object(&message(b'D', bad)), None);
        }
    }

    #[test]
    fn the_first_zero_is_found_wherever_it_stands() {
        for at in 0..5 * CHUNK {
            let mut bytes = vec![b'x'; 6 * CHUNK + 3];
            bytes[at] = 0;
            bytes[at + 7] = 0;
            assert_eq!(zero_at(&bytes), Some(at));
            assert_eq!(zero_at(&bytes[at + 1..at + 7]), None);
            assert_eq!(cstr(&bytes), Some((&bytes[..at], &bytes[at + 1..])));
        }
        assert_eq!(zero_at(b""), None);
    }

    #[test]
    fn server_views() {
        assert_eq!(parameter_status(&message(b'S', b"a\0b\0")), Some((&b"a"[..], &b"b"[..])));
        assert_eq!(parameter_status(&message(b'S', b"a\0b")), None);
        assert_eq!(command_tag(&message(b'C', b"SELECT 1\0")), Some(&b"SELECT 1"[..]));
        assert_eq!(ready_status(&message(b'Z', b"E")), Some(TxStatus::Failed));
        assert_eq!(ready_status(&message(b'Z', b"?")), None);
        assert_eq!(only_query_text(&message(b'Q', b"a\0")), Some(&b"a"[..]));
        assert_eq!(only_query_text(&message(b'Q', b"a\0b\0")), None);
        assert_eq!(query_text(&message(b'Q', b"a\0b\0")), Some(&b"a"[..]));
    }
}
