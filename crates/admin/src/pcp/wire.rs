//! PCP's frames: a type byte, a length that counts itself, and mostly texts that end with a zero byte.

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// A client's frame is never longer (bytes).
const MAX_FRAME: usize = 8 * 1024;
/// The type byte and the length.
const HEADER: usize = 5;

/// One frame of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) body: Bytes,
}

impl Frame {
    /// Its texts.
    pub(super) fn fields(&self) -> impl Iterator<Item = String> {
        let texts = self.body.split(|byte| *byte == 0);
        texts.map(|text| String::from_utf8_lossy(text).into_owned())
    }

    /// Its first text as a number.
    pub(super) fn number(&self) -> Option<u32> {
        self.fields().next()?.trim().parse().ok()
    }
}

/// Takes the frame at the front, when it is whole.
pub(super) fn take(bytes: &mut BytesMut) -> io::Result<Option<Frame>> {
    let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
    let [kind, length @ ..] = *header;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if !(4..=MAX_FRAME).contains(&length) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    if bytes.len() <= length {
        return Ok(None);
    }
    let mut frame = bytes.split_to(1 + length).freeze();
    frame.advance(HEADER);
    Ok(Some(Frame { kind, body: frame }))
}

/// A frame of that type; each part stands as it is.
pub(super) fn frame(kind: u8, parts: &[&[u8]]) -> Bytes {
    let length = 4 + parts.iter().map(|part| part.len()).sum::<usize>();
    let mut out = BytesMut::with_capacity(1 + length);
    out.put_u8(kind);
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    parts.iter().for_each(|part| out.put_slice(part));
    out.freeze()
}

/// A frame of that type that holds texts, each with its end.
pub(super) fn texts<T: AsRef<str>>(kind: u8, texts: impl IntoIterator<Item = T>) -> Bytes {
    let mut body = Vec::new();
    for text in texts {
        body.extend(text.as_ref().bytes().filter(|byte| *byte != 0));
        body.push(0);
    }
    frame(kind, &[&body])
}

/// Why a command is not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) message: String,
    pub(super) detail: String,
}

impl Refused {
    pub(super) fn new(message: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { message: message.into(), detail: detail.into() }
    }

    /// As Pgpool-II sends it: fields with a letter each. Its programs take a message that begins with one of
    /// the letters of the fields for another field, hence the small letter.
    pub(super) fn frame(&self, severity: &str) -> Bytes {
        let small = |text: &str| {
            let mut letters = text.chars();
            let first = letters.next().map(|first| first.to_lowercase().to_string()).unwrap_or_default();
            format!("{first}{}", letters.as_str())
        };
        let (message, detail) = (small(&self.message), small(&self.detail));
        texts(b'E', [format!("S{severity}"), format!("M{message}"), format!("D{detail}"), String::new()])
    }
}
