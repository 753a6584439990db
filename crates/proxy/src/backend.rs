//! One connection of ours to a node, as it is handed from session to session.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::{Epoch, NodeId};
use protocol::frame::backend_header;
use protocol::message;
use protocol::tracker::Owner;

use crate::cancel::CancelKey;
use crate::engine::Books;
use crate::pool::Slot;
use crate::registry::ServerEntry;
use crate::stream::Stream;

/// More than this unasked from an idle backend, and it is not trusted any more (bytes).
const UNASKED_LIMIT: usize = 4096;
/// More reads than this that find something, and it is not idle.
const UNASKED_READS: usize = 4;

/// See the module's documentation. Dropping it closes the connection; giving it back is explicit.
#[derive(Debug)]
pub struct Backend {
    /// The connection.
    pub stream: Stream,
    /// What it carries.
    pub books: Books,
    /// How to cancel it.
    pub key: Arc<CancelKey>,
    /// Whose it is.
    pub node: NodeId,
    /// The epoch of the node when the connection was made.
    pub epoch: Epoch,
    /// The worker whose reactor watches it.
    pub worker: usize,
    /// When the connection was made.
    pub opened: Instant,
    /// Since when nobody has it.
    pub idle_since: Instant,
    /// What SHOW says of it.
    pub entry: Arc<ServerEntry>,
    /// Its place in the pool.
    pub slot: Slot,
}

impl Backend {
    /// Brings a backend of another worker to the calling one's reactor.
    ///
    /// # Errors
    /// Those of leaving one reactor and entering the other; the backend is closed then.
    pub(crate) fn rehome(self: Box<Self>, to: usize) -> io::Result<Box<Self>> {
        let Self { stream, books, key, node, epoch, worker: _, opened, idle_since, entry, slot } = *self;
        let stream = stream.rehome()?;
        Ok(Box::new(Self { stream, books, key, node, epoch, worker: to, opened, idle_since, entry, slot }))
    }

    /// Looks whether the server has hung up or said something while nobody listened.
    pub fn is_alive(&mut self) -> bool {
        // The reactor knows of nothing: the usual case, and no room has to be cleared for it.
        let asked = self.stream.try_read(&mut []);
        asked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) || self.survives_what_came()
    }

    fn survives_what_came(&mut self) -> bool {
        let mut bytes = [0; UNASKED_LIMIT];
        // A server that is stopped says so in a notice, and hangs up behind it: the end counts.
        for _ in 0..UNASKED_READS {
            match self.stream.try_read(&mut bytes) {
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
                Ok(0) => return false,
                Ok(count) if count == UNASKED_LIMIT => return false,
                Ok(count) if self.stays_idle_after(bytes.get(..count).unwrap_or_default()) => {}
                Ok(_) => return false,
            }
        }
        false
    }

    /// Whether `bytes` that it sent unasked leave it usable. Notices and changed parameters are fine; anything
    /// else, a message that is not whole included, means that it is not idle at all.
    pub fn stays_idle_after(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let Ok(Some(header)) = backend_header(bytes) else { return false };
            let Some((message, rest)) = bytes.split_at_checked(header.len) else { return false };
            match (header.tag, message::parameter_status(message)) {
                (b'S', Some((name, value))) => {
                    let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
                    self.books.report(&name, &value, Owner::Client);
                }
                (b'N', _) => {}
                _ => return false,
            }
            bytes = rest;
        }
        true
    }

    /// Older than `lifetime` (0 = any age).
    #[must_use]
    pub fn is_older_than(&self, lifetime: Duration, now: Instant) -> bool {
        !lifetime.is_zero() && now.duration_since(self.opened) >= lifetime
    }

    /// Says goodbye and closes; only for one that stands between messages.
    pub fn close(mut self) {
        // It is closed either way; the goodbye only saves the server a log line.
        let _ = self.stream.try_write(b"X\0\0\0\x04");
    }
}
