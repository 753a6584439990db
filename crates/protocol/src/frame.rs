//! Finding message borders in a byte stream, without copying and without needing whole messages.
//!
//! After start-up every message is a type byte and a four-byte length that counts itself
//! (PostgreSQL manual, "Message Formats"). Limits are those of PostgreSQL's `SocketBackend()`.

use thiserror::Error;

/// Type byte plus length field.
pub const HEADER_LEN: usize = 5;
/// The largest message that may carry a statement, values or data (`PQ_LARGE_MESSAGE_LIMIT`).
pub const LARGE_MESSAGE_LIMIT: usize = 0x3fff_fffe;
/// The largest of all other frontend messages (`PQ_SMALL_MESSAGE_LIMIT`).
pub const SMALL_MESSAGE_LIMIT: usize = 10_000;

/// The border of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The type byte.
    pub tag: u8,
    /// Length in bytes of the whole message, type byte included.
    pub len: usize,
}

/// Bytes that are not the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// A type byte that the peer may not send.
    #[error("invalid message type {0}")]
    BadTag(u8),
    /// A length that is impossible or over the limit for its type.
    #[error("invalid message length {len} of message type {tag}")]
    BadLength {
        /// The type byte.
        tag: u8,
        /// The length field as sent.
        len: u32,
    },
}

fn raw(buf: &[u8]) -> Option<(u8, u32)> {
    let [tag, a, b, c, d] = *buf.first_chunk::<HEADER_LEN>()?;
    Some((tag, u32::from_be_bytes([a, b, c, d])))
}

fn checked(tag: u8, field: u32, limit: usize) -> Result<Option<Header>, FrameError> {
    let bad = FrameError::BadLength { tag, len: field };
    let field = usize::try_from(field).map_err(|_| bad)?;
    if field < 4 || field > limit { Err(bad) } else { Ok(Some(Header { tag, len: field + 1 })) }
}

/// The header at the start of `buf`, as sent by a client after start-up; `None` when it is incomplete.
///
/// # Errors
/// An unknown type byte is refused as soon as it is seen, a length out of bounds with the header.
pub fn frontend_header(buf: &[u8]) -> Result<Option<Header>, FrameError> {
    let Some(&tag) = buf.first() else { return Ok(None) };
    let limit = match tag {
        b'Q' | b'P' | b'B' | b'F' | b'd' => LARGE_MESSAGE_LIMIT,
        b'C' | b'D' | b'E' | b'H' | b'S' | b'X' | b'c' | b'f' => SMALL_MESSAGE_LIMIT,
        other => return Err(FrameError::BadTag(other)),
    };
    raw(buf).map_or(Ok(None), |(tag, field)| checked(tag, field, limit))
}

/// The header at the start of `buf`, as sent by a server after start-up; `None` when it is incomplete.
///
/// # Errors
/// A length below 4 or over [`LARGE_MESSAGE_LIMIT`], or a type byte that no server sends.
pub fn backend_header(buf: &[u8]) -> Result<Option<Header>, FrameError> {
    let Some((tag, field)) = raw(buf) else { return Ok(None) };
    if !tag.is_ascii_alphanumeric() {
        return Err(FrameError::BadTag(tag));
    }
    checked(tag, field, LARGE_MESSAGE_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_needs_its_five_bytes() {
        let message = b"Q\0\0\0\x0dSELECT 1\0";
        for cut in 0..HEADER_LEN {
            assert_eq!(frontend_header(&message[..cut]), Ok(None), "cut at {cut}");
        }
        assert_eq!(frontend_header(message), Ok(Some(Header { tag: b'Q', len: 14 })));
    }

    #[test]
    fn unknown_tags_are_refused_at_the_first_byte() {
        for tag in [0u8, b'p', b'R', b'Z', b'G', 0x16, 0xff] {
            assert_eq!(frontend_header(&[tag]), Err(FrameError::BadTag(tag)));
        }
    }

    #[test]
    fn lengths_are_bounded_by_type() {
        let bad = |tag, len: u32| {
            let mut buf = vec![tag];
            buf.extend_from_slice(&len.to_be_bytes());
            frontend_header(&buf)
        };
        assert_eq!(bad(b'Q', 3), Err(FrameError::BadLength { tag: b'Q', len: 3 }));
        assert!(bad(b'S', 4).is_ok());
        assert!(bad(b'S', 10_001).is_err());
        assert!(bad(b'B', 0x3fff_fffe).is_ok());
        assert!(bad(b'B', 0x3fff_ffff).is_err());
        assert!(bad(b'd', u32::MAX).is_err());
    }

    #[test]
    fn servers_may_send_any_letter() {
        assert_eq!(backend_header(b"Z\0\0\0\x05I"), Ok(Some(Header { tag: b'Z', len: 6 })));
        assert_eq!(backend_header(b"\0\0\0\0\x05I"), Err(FrameError::BadTag(0)));
        assert_eq!(backend_header(b"Z\0\0"), Ok(None));
    }
}
