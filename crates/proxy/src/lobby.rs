//! Connections that have not logged in yet: so many at a time, and the oldest makes room.
//!
//! Whoever opens thousands of sockets and says nothing does not keep out those who log in at once. The bound is below
//! the number of clients that are let in, so that descriptors are left for these.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::registry::{ClientEntry, Flag};

/// The most connections without a login.
const MAX_WAITING: usize = 2048;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Lobby {
    waiting: Mutex<VecDeque<Weak<ClientEntry>>>,
}

impl Lobby {
    /// One more has connected; tells whether another was sent away for it.
    pub(crate) fn enter(&self, client: &Arc<ClientEntry>) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.push_back(Arc::downgrade(client));
        if waiting.len() <= MAX_WAITING {
            return false;
        }
        // Most have logged in or left since: nothing to do for them.
        waiting.retain(|client| client.upgrade().is_some_and(|client| client.is_new()));
        if waiting.len() <= MAX_WAITING {
            return false;
        }
        let oldest = waiting.pop_front().and_then(|client| client.upgrade());
        oldest.inspect(|client| client.raise(Flag::Kill)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{Names, Peer, Registry};

    #[test]
    fn the_oldest_without_a_login_makes_room() {
        let (registry, lobby) = (Arc::new(Registry::default()), Lobby::default());
        let enter = || registry.enter(Peer::Unix, Peer::Unix);
        let first = enter();
        assert!(!lobby.enter(&first.entry));
        first.entry.set_names(Names { user: "joe".into(), ..Names::default() });
        let waiting: Vec<_> = (0..MAX_WAITING).map(|_| enter()).collect();
        assert!(waiting.iter().all(|client| !lobby.enter(&client.entry)), "one has logged in");
        let one_more = enter();
        assert!(lobby.enter(&one_more.entry));
        let raised: Vec<bool> = waiting.iter().map(|client| client.entry.has(Flag::Kill)).collect();
        assert_eq!(raised.iter().filter(|raised| **raised).count(), 1);
        assert!(raised[0] && !first.entry.has(Flag::Kill));
    }

    #[test]
    fn those_who_left_are_not_counted() {
        let (registry, lobby) = (Arc::new(Registry::default()), Lobby::default());
        for _ in 0..MAX_WAITING * 2 {
            assert!(!lobby.enter(&registry.enter(Peer::Unix, Peer::Unix).entry));
        }
    }
}
