//! The memory of a tracker goes on to the next backend: a session that uses one after the other allocates nothing.

use super::{Push, Tracker, TxStatus};

/// How many entries stay allocated: those of a pipeline of a dozen statements.
const KEPT: usize = 64;

impl Tracker {
    /// Begins anew, with another backend that is idle and outside of a transaction.
    pub fn renew(&mut self) {
        self.queue.clear(KEPT);
        self.events.clear();
        if self.events.capacity() > KEPT {
            self.events.shrink_to(KEPT);
        }
        // By name, so that none is forgotten that is added.
        let Self {
            queue: _,
            events: _,
            last_push,
            status,
            described,
            skipping,
            copy_in,
            unsynced,
            copying,
            in_copy_asks,
            copy_sent,
            doubt,
        } = self;
        (*last_push, *status, *in_copy_asks) = (Push::default(), TxStatus::default(), 0);
        for fact in [described, skipping, copy_in, unsynced, copying, copy_sent, doubt] {
            *fact = false;
        }
    }
}
