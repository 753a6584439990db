//! One direction: a buffer between two streams. It is read only when it is empty, so that a slow reader slows the
//! sender.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;

use crate::buffer::BUFFER_LEN;
use crate::stream::Stream;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    data: Vec<u8>,
    start: usize,
    end: usize,
}

/// What became of one step.
#[derive(Debug)]
pub(super) enum Moved<'a> {
    /// Nothing to do for now; the task will be woken.
    Nothing,
    /// These bytes came.
    Read(&'a [u8]),
    /// So many bytes went on.
    Written(usize),
    /// No more will come, and all that came has gone on.
    End,
    /// The reading side is broken.
    ReadFailed(io::Error),
    /// The writing side is broken.
    WriteFailed(io::Error),
}

impl Pipe {
    /// One that holds `bytes` already.
    pub(super) fn with(bytes: &[u8]) -> Self {
        Self { data: bytes.to_vec(), start: 0, end: bytes.len() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(super) fn clear(&mut self) {
        self.start = self.end;
    }

    /// One write of what there is, or one read of at most `most` bytes.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Stream,
        to: &mut Stream,
        most: Option<usize>,
    ) -> Moved<'_> {
        let rest = self.data.get(self.start..self.end).unwrap_or_default();
        if rest.is_empty() {
            // What TLS has not passed on yet is not written.
            return match Pin::new(to).poll_flush(cx) {
                Poll::Pending => Moved::Nothing,
                Poll::Ready(Ok(())) => self.poll_read(cx, from, most),
                Poll::Ready(Err(error)) => Moved::WriteFailed(error),
            };
        }
        match Pin::new(to).poll_write(cx, rest) {
            Poll::Pending => Moved::Nothing,
            Poll::Ready(Ok(0)) => Moved::WriteFailed(io::ErrorKind::WriteZero.into()),
            Poll::Ready(Ok(count)) => {
                self.start = self.start.saturating_add(count).min(self.end);
                Moved::Written(count)
            }
            Poll::Ready(Err(error)) => Moved::WriteFailed(error),
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, from: &mut Stream, most: Option<usize>) -> Moved<'_> {
        self.data.resize(BUFFER_LEN, 0);
        (self.start, self.end) = (0, 0);
        let most = most.unwrap_or(BUFFER_LEN).min(BUFFER_LEN);
        let room = self.data.get_mut(..most).unwrap_or_default();
        match from.poll_read_into(cx, room) {
            Poll::Pending => Moved::Nothing,
            Poll::Ready(Ok(0)) => Moved::End,
            Poll::Ready(Ok(count)) => {
                self.end = count.min(BUFFER_LEN);
                Moved::Read(self.data.get(..self.end).unwrap_or_default())
            }
            Poll::Ready(Err(error)) => Moved::ReadFailed(error),
        }
    }
}
