//! The client's own names of the statements that messages on their way are about.
//!
//! On the server a statement has one name for everybody, and a client may have several names for it: an error is
//! told with the one that the message was sent with. Nothing is allocated once there was room for as many messages.

use std::collections::VecDeque;

use protocol::tracker::Push;

/// Longer names are not kept (bytes).
const MAX_NAME: u16 = 1024;
/// A session keeps no more room than this behind its lease (bytes).
const ROOM: usize = 1024;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// In the order of the messages, with the lengths of their names.
    messages: VecDeque<(Push, u16)>,
    names: VecDeque<u8>,
}

impl Asked {
    /// The message `push` names `name`; those before `owed` have been answered.
    pub(super) fn note(&mut self, push: Push, name: &[u8], owed: Push) {
        let answered = self.messages.iter().take_while(|(known, _)| *known < owed).count();
        let bytes = self.messages.drain(..answered).map(|(_, len)| usize::from(len)).sum::<usize>();
        self.names.drain(..bytes);
        if let Some(len) = u16::try_from(name.len()).ok().filter(|len| *len <= MAX_NAME) {
            self.messages.push_back((push, len));
            self.names.extend(name);
        }
    }

    /// The name that the message `push` was sent with.
    pub(super) fn name(&self, push: Push) -> Option<Vec<u8>> {
        let mut start = 0;
        for (known, len) in &self.messages {
            let end = start + usize::from(*len);
            if *known == push {
                return Some(self.names.range(start..end).copied().collect());
            }
            start = end;
        }
        None
    }

    /// Nothing is on its way any more.
    pub(super) fn clear(&mut self) {
        if self.names.capacity() + self.messages.capacity() > ROOM {
            *self = Self::default();
        }
        self.messages.clear();
        self.names.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_their_messages_until_they_are_answered() {
        let mut asked = Asked::default();
        for (push, name, owed) in [(1, "one", 1), (3, "", 1), (4, "four", 3), (6, "six", 4)] {
            asked.note(Push(push), name.as_bytes(), Push(owed));
        }
        assert_eq!(asked.name(Push(1)), None);
        assert_eq!(asked.name(Push(4)).as_deref(), Some(&b"four"[..]));
        assert_eq!(asked.name(Push(6)).as_deref(), Some(&b"six"[..]));
        asked.note(Push(7), &[b'n'; 2000], Push(7));
        assert_eq!((asked.name(Push(7)), asked.names.len()), (None, 0));
        asked.clear();
        assert_eq!(asked.name(Push(6)), None);
    }
}
