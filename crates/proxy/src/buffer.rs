//! Read buffers: one a direction of a busy session, from a small store of each worker.
//!
//! Spans name bytes of a buffer by position, so nothing moves between a read and the write of its
//! spans: [`Buf::make_room`] is called only when no span is outstanding.

use parking_lot::Mutex;

/// The size of a buffer of a busy session.
pub const BUFFER_LEN: usize = 16 * 1024;
/// How many unused buffers a worker keeps.
const KEPT_BUFFERS: usize = 256;

/// Bytes `start..end` of `data` have been read and not been consumed.
#[derive(Debug, Default)]
pub struct Buf {
    data: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buf {
    /// What has been read and not been consumed.
    #[must_use]
    pub fn filled(&self) -> &[u8] {
        self.data.get(self.start..self.end).unwrap_or_default()
    }

    /// Bytes by position, as a span names them.
    #[must_use]
    pub fn at(&self, at: usize, len: usize) -> &[u8] {
        self.data.get(at..at.saturating_add(len)).unwrap_or_default()
    }

    /// The position of the first byte of [`Buf::filled`].
    #[must_use]
    pub fn position(&self) -> usize {
        self.start
    }

    /// Nothing is waiting to be consumed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Passes over `count` bytes.
    pub fn consume(&mut self, count: usize) {
        self.start = self.start.saturating_add(count).min(self.end);
    }

    /// Where the next read goes.
    pub fn spare(&mut self) -> &mut [u8] {
        self.data.get_mut(self.end..).unwrap_or_default()
    }

    /// `count` bytes were read into [`Buf::spare`].
    pub fn advance(&mut self, count: usize) {
        self.end = self.end.saturating_add(count).min(self.data.len());
    }

    /// Moves what is left to the front, and grows, so that `len` bytes fit and some can be read.
    pub fn make_room(&mut self, len: usize) {
        if self.is_empty() {
            self.start = 0;
            self.end = 0;
        } else if self.start > 0 && (self.end == self.data.len() || self.start + len > self.data.len()) {
            self.data.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.data.len() < len {
            self.data.resize(len.next_multiple_of(BUFFER_LEN), 0);
        }
    }

    /// Like [`Buf::make_room`], but grows no faster than bytes come: what a peer announces takes no memory.
    pub fn make_room_to_read(&mut self, len: usize) {
        let come = self.filled().len().saturating_mul(2).max(BUFFER_LEN);
        self.make_room(len.min(come));
    }

    /// Puts `bytes` in front of what has not been consumed. No span may be outstanding.
    pub fn put_back(&mut self, bytes: &[u8]) {
        let rest = self.filled().to_vec();
        self.consume(rest.len());
        self.put(bytes);
        self.put(&rest);
    }

    /// A buffer that holds `bytes`.
    #[must_use]
    pub fn with(bytes: &[u8]) -> Self {
        let mut buf = Self::default();
        buf.put(bytes);
        buf
    }

    /// Appends `bytes`.
    pub fn put(&mut self, bytes: &[u8]) {
        self.make_room(self.filled().len() + bytes.len());
        if let Some(room) = self.spare().get_mut(..bytes.len()) {
            room.copy_from_slice(bytes);
            self.advance(bytes.len());
        }
    }
}

/// A worker's unused buffers.
#[derive(Debug, Default)]
pub struct Buffers {
    kept: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    /// Gives `buf` memory if it has none.
    pub fn lend(&self, buf: &mut Buf) {
        if buf.data.is_empty() {
            buf.data = self.kept.lock().pop().unwrap_or_else(|| vec![0; BUFFER_LEN]);
        }
    }

    /// How many are kept unused.
    #[must_use]
    pub fn unused(&self) -> usize {
        self.kept.lock().len()
    }

    /// Takes the memory back when nothing is in it; one that has grown is freed.
    pub fn reclaim(&self, buf: &mut Buf) {
        if !buf.is_empty() || buf.data.is_empty() {
            return;
        }
        let data = std::mem::take(buf).data;
        let mut kept = self.kept.lock();
        if data.len() == BUFFER_LEN && kept.len() < KEPT_BUFFERS {
            kept.push(data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_moving_and_growing() {
        let mut buf = Buf::with(b"abcdef");
        buf.consume(2);
        assert_eq!((buf.filled(), buf.position()), (&b"cdef"[..], 2));
        buf.make_room(BUFFER_LEN * 2);
        assert_eq!(buf.filled(), b"cdef");
        assert!(buf.spare().len() >= BUFFER_LEN * 2 - 4);
        buf.put(b"gh");
        assert_eq!(buf.filled(), b"cdefgh");
        buf.put_back(b"ab");
        assert_eq!(buf.filled(), b"abcdefgh");
        buf.consume(100);
        assert!(buf.is_empty());
    }

    #[test]
    fn an_announced_length_takes_memory_only_as_bytes_come() {
        let mut buf = Buf::with(b"B\x3f\xff\xff\xfe");
        while buf.filled().len() < 10 * BUFFER_LEN {
            buf.make_room_to_read(0x3fff_ffff);
            assert!(!buf.spare().is_empty());
            assert!(buf.data.len() <= (2 * buf.filled().len()).next_multiple_of(BUFFER_LEN));
            buf.advance(1000);
        }
    }

    #[test]
    fn a_full_buffer_makes_room_for_one_more_read() {
        let mut buf = Buf::with(&vec![7; BUFFER_LEN]);
        buf.consume(1);
        assert!(buf.spare().is_empty());
        buf.make_room(10);
        assert_eq!(buf.spare().len(), 1);
    }

    #[test]
    fn buffers_are_lent_and_reclaimed_when_empty() {
        let buffers = Buffers::default();
        let mut buf = Buf::default();
        buffers.lend(&mut buf);
        assert_eq!(buf.spare().len(), BUFFER_LEN);
        buf.advance(3);
        buffers.reclaim(&mut buf);
        assert_eq!(buf.filled().len(), 3, "not empty, not taken");
        buf.consume(3);
        buffers.reclaim(&mut buf);
        assert!(buf.spare().is_empty());
        assert_eq!(buffers.kept.lock().len(), 1);
    }
}
