//! Writers for the messages that pgweir makes itself, into a [`BytesMut`].
//!
//! [`backend`] has what a server says, [`frontend`] what a client says. Invariant: a message is
//! appended whole or not at all; a length, count or string that the protocol cannot carry is an
//! error, never a truncation.

mod backend;
mod frontend;

use bytes::{BufMut, BytesMut};

pub use backend::*;
pub use frontend::*;

/// The longest message PostgreSQL itself accepts (`PQ_LARGE_MESSAGE_LIMIT`, 1 GB - 1), in bytes
/// without the tag.
pub const MAX_MESSAGE_LEN: usize = 0x3fff_ffff;

/// Why a message cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The message would exceed [`MAX_MESSAGE_LEN`].
    #[error("message of {0} bytes exceeds the protocol's limit")]
    TooLong(usize),
    /// A string holds a NUL, which ends strings in the protocol.
    #[error("string contains a NUL byte")]
    NulInString,
    /// More items than the protocol's 16-bit count can say.
    #[error("{0} items exceed the protocol's limit of 32767")]
    TooManyItems(usize),
    /// A cancel secret outside 4 to 256 bytes.
    #[error("cancel secret of {0} bytes; 4 to 256 are possible")]
    SecretLength(usize),
}

/// Appends one message: the tag (none for start-up packets), the length, and what `body` writes.
/// When `body` fails, `out` is as it was.
pub(crate) fn message<E: From<WriteError>>(
    out: &mut BytesMut,
    tag: Option<u8>,
    body: impl FnOnce(&mut BytesMut) -> Result<(), E>,
) -> Result<(), E> {
    let begin = out.len();
    let written = framed(out, tag, body);
    if written.is_err() {
        out.truncate(begin);
    }
    written
}

fn framed<E: From<WriteError>>(
    out: &mut BytesMut,
    tag: Option<u8>,
    body: impl FnOnce(&mut BytesMut) -> Result<(), E>,
) -> Result<(), E> {
    if let Some(tag) = tag {
        out.put_u8(tag);
    }
    let length_at = out.len();
    out.put_u32(0);
    body(out)?;
    let len = out.len() - length_at;
    let length =
        u32::try_from(len).ok().filter(|_| len <= MAX_MESSAGE_LEN).ok_or(WriteError::TooLong(len))?;
    if let Some(slot) = out.get_mut(length_at..length_at + 4) {
        slot.copy_from_slice(&length.to_be_bytes());
    }
    Ok(())
}

/// A message whose body is short and cannot fail: at most a few hundred bytes.
pub(crate) fn short(out: &mut BytesMut, tag: Option<u8>, body: &[u8]) {
    debug_assert!(body.len() < 1024, "short messages only");
    if let Some(tag) = tag {
        out.put_u8(tag);
    }
    out.put_u32(u32::try_from(body.len() + 4).unwrap_or(u32::MAX));
    out.put_slice(body);
}

/// A NUL-terminated string.
pub(crate) fn cstring(out: &mut BytesMut, text: &[u8]) -> Result<(), WriteError> {
    if text.contains(&0) {
        return Err(WriteError::NulInString);
    }
    if text.len() > MAX_MESSAGE_LEN {
        return Err(WriteError::TooLong(text.len()));
    }
    out.put_slice(text);
    out.put_u8(0);
    Ok(())
}

/// A 16-bit count.
pub(crate) fn count16(out: &mut BytesMut, count: usize) -> Result<(), WriteError> {
    out.put_i16(i16::try_from(count).map_err(|_| WriteError::TooManyItems(count))?);
    Ok(())
}

/// A 32-bit length and the bytes.
pub(crate) fn sized(out: &mut BytesMut, bytes: &[u8]) -> Result<(), WriteError> {
    if bytes.len() > MAX_MESSAGE_LEN {
        return Err(WriteError::TooLong(bytes.len()));
    }
    out.put_i32(i32::try_from(bytes.len()).map_err(|_| WriteError::TooLong(bytes.len()))?);
    out.put_slice(bytes);
    Ok(())
}

/// A cancel secret: 4 bytes in protocol 3.0, up to 256 since 3.2.
pub(crate) fn check_secret(secret: &[u8]) -> Result<(), WriteError> {
    match secret.len() {
        4..=256 => Ok(()),
        len => Err(WriteError::SecretLength(len)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_fails_leaves_nothing_behind() {
        let mut out = BytesMut::from(&b"before"[..]);
        assert_eq!(query(&mut out, b"select\0 1"), Err(WriteError::NulInString));
        assert_eq!(&out[..], b"before");
        assert_eq!(
            parse(&mut out, b"s", b"select 1", &vec![0; 40_000]),
            Err(WriteError::TooManyItems(40_000))
        );
        assert_eq!(&out[..], b"before");
        assert_eq!(backend_key_data(&mut out, 1, b"abc"), Err(WriteError::SecretLength(3)));
        assert_eq!(backend_key_data(&mut out, 1, &[0; 257]), Err(WriteError::SecretLength(257)));
        assert_eq!(&out[..], b"before");
    }
}
