//! The memory of a tracker goes on to the next backend: a session that uses one after the other allocates nothing.

use super::Tracker;

/// How many entries stay allocated: those of a pipeline of a dozen statements.
const KEPT: usize = 64;

impl Tracker {
    /// Begins anew, with another backend that is idle and outside of a transaction.
    pub fn renew(&mut self) {
        let Self { mut queue, mut events, .. } = std::mem::take(self);
        queue.clear();
        queue.shrink_to(KEPT);
        events.clear();
        events.shrink_to(KEPT);
        *self = Self { queue, events, ..Self::default() };
    }
}
