//! What one direction is about to write: spans of the read buffer with our own bytes between them,
//! in one write.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::AsyncWrite;

use crate::buffer::Buf;
use crate::stream::Stream;

/// Up to this size a span beside bytes of ours is copied to them: cheaper than one more slice.
const COPY_LIMIT: usize = 512;
/// How many slices one write takes.
const SLICES: usize = 16;
/// What an idle session keeps for bytes of ours: the usual messages go in front of the next statement (bytes).
const KEPT: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seg {
    Span { at: usize, len: usize },
    Own { at: usize, len: usize },
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Out {
    own: BytesMut,
    segs: Vec<Seg>,
    /// The segments before this one are written.
    first: usize,
    /// So many bytes of the first one are written.
    written: usize,
}

impl Out {
    /// Everything has been written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segs.is_empty()
    }

    /// Passes `len` bytes of `buf`, from its position on, which the caller then consumes.
    pub fn span(&mut self, buf: &Buf, len: usize) {
        let at = buf.position();
        match self.segs.last_mut() {
            Some(Seg::Span { at: last, len: so_far }) if *last + *so_far == at => *so_far += len,
            Some(Seg::Own { len: own, .. }) if len <= COPY_LIMIT => {
                self.own.extend_from_slice(buf.at(at, len));
                *own += len;
            }
            _ => self.segs.push(Seg::Span { at, len }),
        }
    }

    /// Adds bytes of ours: `write` appends them.
    pub fn own(&mut self, write: impl FnOnce(&mut BytesMut)) {
        let at = self.own.len();
        write(&mut self.own);
        let len = self.own.len().saturating_sub(at);
        match self.segs.last_mut() {
            Some(Seg::Own { len: so_far, .. }) => *so_far += len,
            _ if len == 0 => {}
            _ => self.segs.push(Seg::Own { at, len }),
        }
    }

    /// The bytes that are still to be written, in order.
    #[must_use]
    pub fn bytes(&self, buf: &Buf) -> Vec<u8> {
        self.slices(buf).flatten().copied().collect()
    }

    fn slices<'a>(&'a self, buf: &'a Buf) -> impl Iterator<Item = &'a [u8]> {
        let mut skip = self.written;
        self.segs.iter().skip(self.first).map(move |seg| {
            let bytes = match *seg {
                Seg::Span { at, len } => buf.at(at, len),
                Seg::Own { at, len } => self.own.get(at..at + len).unwrap_or_default(),
            };
            bytes.get(std::mem::take(&mut skip)..).unwrap_or_default()
        })
    }

    /// Forgets what was to be written.
    pub fn clear(&mut self) {
        self.segs.clear();
        self.own.clear();
        self.first = 0;
        self.written = 0;
    }

    /// Gives back memory that only a long answer needed. Nothing may wait to be written.
    pub fn trim(&mut self) {
        if self.is_empty() && self.own.capacity() > KEPT {
            self.own = BytesMut::new();
        }
        if self.segs.capacity() > SLICES {
            self.segs.shrink_to(SLICES);
        }
    }

    /// Writes as much as the socket takes; ready when all is written.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
        buf: &Buf,
    ) -> Poll<io::Result<usize>> {
        let mut total = 0;
        while self.first < self.segs.len() {
            let count = ready!(self.poll_write(cx, stream, buf))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            total += count;
            self.advance(count);
        }
        // Ciphertext that the socket has not taken yet counts as not written.
        ready!(Pin::new(stream).poll_flush(cx))?;
        self.clear();
        Poll::Ready(Ok(total))
    }

    /// Writes what the socket takes of bytes of ours before anything was read or written there
    /// ([`Stream::write_early`]); how many.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn write_early(&mut self, stream: &mut Stream, buf: &Buf) -> io::Result<usize> {
        let count = self.slices(buf).next().map_or(Ok(0), |first| stream.write_early(first))?;
        self.advance(count);
        Ok(count)
    }

    fn poll_write(&self, cx: &mut Context<'_>, stream: &mut Stream, buf: &Buf) -> Poll<io::Result<usize>> {
        let mut slices = self.slices(buf);
        if self.first + 1 == self.segs.len() {
            return stream.poll_write_from(cx, slices.next().unwrap_or_default());
        }
        let mut vector = [IoSlice::new(&[]); SLICES];
        let mut used = 0;
        for (place, slice) in vector.iter_mut().zip(slices) {
            *place = IoSlice::new(slice);
            used += 1;
        }
        Pin::new(stream).poll_write_vectored(cx, vector.get(..used).unwrap_or_default())
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(Seg::Span { len, .. } | Seg::Own { len, .. }) = self.segs.get(self.first).copied() {
            let left = len.saturating_sub(self.written);
            if count < left {
                self.written += count;
                return;
            }
            count -= left;
            self.first += 1;
            self.written = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(out: &mut Out, buf: &mut Buf, len: usize) {
        out.span(buf, len);
        buf.consume(len);
    }

    #[test]
    fn neighbouring_spans_are_one_write() {
        let mut buf = Buf::with(&vec![b'x'; 4000]);
        let mut out = Out::default();
        pass(&mut out, &mut buf, 1000);
        pass(&mut out, &mut buf, 1000);
        assert_eq!(out.segs, [Seg::Span { at: 0, len: 2000 }]);
        buf.consume(10);
        pass(&mut out, &mut buf, 1000);
        assert_eq!(out.segs.len(), 2);
    }

    #[test]
    fn own_bytes_keep_their_place_and_short_spans_join_them() {
        let mut buf = Buf::with(b"abcdef");
        let mut out = Out::default();
        pass(&mut out, &mut buf, 2);
        out.own(|own| own.extend_from_slice(b"123"));
        pass(&mut out, &mut buf, 4);
        assert_eq!(out.bytes(&buf), b"ab123cdef");
        assert_eq!(out.segs.len(), 2);
    }

    #[test]
    fn a_long_answer_leaves_no_memory_behind() {
        let mut out = Out::default();
        out.own(|own| own.extend_from_slice(&[0; 2 * KEPT]));
        out.trim();
        assert_eq!(out.bytes(&Buf::default()).len(), 2 * KEPT, "not written yet, not taken");
        out.clear();
        out.trim();
        assert_eq!(out.own.capacity(), 0);
        out.own(|own| own.extend_from_slice(b"short"));
        out.clear();
        out.trim();
        assert!(out.own.capacity() > 0, "what is used all the time stays");
    }

    #[test]
    fn every_partial_write_goes_on_where_it_stopped() {
        let mut buf = Buf::with(&[vec![b'a'; 600], vec![b'b'; 600]].concat());
        for step in 1..50 {
            let mut out = Out::default();
            out.span(&buf, 600);
            out.own(|own| own.extend_from_slice(b"###"));
            let mut all = Vec::new();
            while !out.slices(&buf).all(<[u8]>::is_empty) {
                let bytes = out.bytes(&buf);
                let count = step.min(bytes.len());
                all.extend_from_slice(&bytes[..count]);
                out.advance(count);
            }
            assert_eq!(all, [vec![b'a'; 600], b"###".to_vec()].concat());
        }
        buf.consume(1200);
    }
}
