//! Where one side's stream stands: at a message border or inside of a message, and what the last one was.

use protocol::frame::{HEADER_LEN, backend_header};

/// See the module's documentation. It begins at a border, with the server at rest.
#[derive(Debug)]
pub(super) struct Walk {
    header: [u8; HEADER_LEN],
    /// Bytes of the header that have come.
    have: usize,
    /// Bytes of the message that are still to come behind its header.
    left: usize,
    /// The type of the last message that began.
    last: u8,
    phase: Phase,
}

/// What the server does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Waits for a command.
    Idle,
    /// Carries one out.
    Busy,
    /// Streams both ways, without an end of its own.
    Streaming,
    /// What passes is not the protocol: nothing is known any more.
    Lost,
}

impl Default for Walk {
    fn default() -> Self {
        Self { header: [0; HEADER_LEN], have: 0, left: 0, last: 0, phase: Phase::Idle }
    }
}

impl Walk {
    /// These bytes passed.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.phase != Phase::Lost {
            let count = if self.left > 0 { self.left.min(bytes.len()) } else { self.header_bytes(bytes) };
            self.left = self.left.saturating_sub(if self.have == 0 { count } else { 0 });
            bytes = bytes.get(count..).unwrap_or_default();
            if self.have == HEADER_LEN {
                self.have = 0;
                self.begin();
            }
        }
    }

    /// Takes what belongs to a header; gives how much.
    fn header_bytes(&mut self, bytes: &[u8]) -> usize {
        let room = self.header.get_mut(self.have..).unwrap_or_default();
        let count = room.len().min(bytes.len());
        room.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
        self.have += count;
        count
    }

    fn begin(&mut self) {
        let Ok(Some(header)) = backend_header(&self.header) else {
            self.phase = Phase::Lost;
            return;
        };
        self.last = header.tag;
        self.left = header.len.saturating_sub(HEADER_LEN);
        match header.tag {
            b'Z' => self.phase = Phase::Idle,
            b'W' => self.phase = Phase::Streaming,
            _ => {}
        }
    }

    /// The other side sent something: the server is at rest no more.
    pub(super) fn asked(&mut self) {
        if self.phase == Phase::Idle {
            self.phase = Phase::Busy;
        }
    }

    /// The server waits for a command.
    pub(super) fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// The server streams, and will not stop by itself.
    pub(super) fn is_streaming(&self) -> bool {
        self.phase == Phase::Streaming
    }

    /// How many bytes can be read for sure without passing the next border: 0 at a border, `None` when borders are
    /// not known any more.
    pub(super) fn missing(&self) -> Option<usize> {
        match (self.phase, self.left, self.have) {
            (Phase::Lost, ..) => None,
            (_, 0, 0) => Some(0),
            (_, 0, have) => Some(HEADER_LEN - have),
            (_, left, _) => Some(left),
        }
    }

    /// The last message is an error, and whole.
    pub(super) fn ends_with_error(&self) -> bool {
        self.last == b'E' && self.missing() == Some(0)
    }

    /// The last message is a Terminate, and whole.
    pub(super) fn said_goodbye(&self) -> bool {
        self.last == b'X' && self.missing() == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_are_found_in_every_chunking() {
        let stream = b"W\0\0\0\x07\0\0\0d\0\0\0\x08wxyzd\0\0\0\x04E\0\0\0\x06ab";
        let borders = [8, 17, 22, 29];
        for chunk in 1..=stream.len() {
            let (mut walk, mut passed) = (Walk::default(), 0);
            for part in stream.chunks(chunk) {
                walk.feed(part);
                passed += part.len();
                assert_eq!(walk.missing() == Some(0), borders.contains(&passed), "{passed} in {chunk}s");
            }
            assert!(walk.is_streaming() && walk.ends_with_error());
        }
    }

    #[test]
    fn reading_what_is_missing_ends_at_a_border() {
        let stream = b"d\0\0\0\x08wxyzd\0\0\0\x06ab";
        for cut in 1..stream.len() {
            let mut walk = Walk::default();
            walk.feed(&stream[..cut]);
            let mut at = cut;
            while let Some(missing @ 1..) = walk.missing() {
                walk.feed(&stream[at..at + missing]);
                at += missing;
            }
            assert!([9, 16].contains(&at), "{at} after {cut}");
        }
    }

    #[test]
    fn phases_follow_the_messages() {
        let mut walk = Walk::default();
        walk.asked();
        assert!(!walk.is_idle());
        walk.feed(b"H\0\0\0\x07\0\0\0Z\0\0\0\x05I");
        assert!(walk.is_idle());
        let mut client = Walk::default();
        client.feed(b"X\0\0\0\x04");
        assert!(client.said_goodbye());
        let mut nonsense = Walk::default();
        nonsense.feed(b"\0\0\0\0\0\0\0");
        assert_eq!(nonsense.missing(), None);
    }
}
