//! The memory of a tracker goes on to the next backend: a session that uses one after the other allocates nothing.

use super::Tracker;

/// How many entries of each queue stay allocated.
const KEPT: usize = 16;

impl Tracker {
    /// Begins anew, with another backend that is idle and outside of a transaction.
    pub fn renew(&mut self) {
        let Self { mut queue, mut pushes, mut events, .. } = std::mem::take(self);
        queue.clear();
        queue.shrink_to(KEPT);
        pushes.clear();
        pushes.shrink_to(KEPT);
        events.clear();
        events.shrink_to(KEPT);
        *self = Self { queue, pushes, events, ..Self::default() };
    }
}
