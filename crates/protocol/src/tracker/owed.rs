//! The queue of what is owed. Its front is asked for with every message of the server, and is often all there is: it has a
//! place of its own.

use std::collections::VecDeque;

use super::{Entry, Push};

type Item = (Entry, Push);

/// See the module's documentation. Without a front there is nothing.
#[derive(Debug, Default)]
pub(super) struct Owed {
    front: Option<Item>,
    rest: VecDeque<Item>,
}

impl Owed {
    pub(super) fn is_empty(&self) -> bool {
        self.front.is_none()
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.front.is_some()) + self.rest.len()
    }

    pub(super) fn front(&self) -> Option<&Item> {
        self.front.as_ref()
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Item> {
        self.front.iter().chain(&self.rest)
    }

    pub(super) fn push(&mut self, item: Item) {
        match self.front {
            None => self.front = Some(item),
            Some(_) => self.rest.push_back(item),
        }
    }

    pub(super) fn pop(&mut self) {
        self.front = if self.rest.is_empty() { None } else { self.rest.pop_front() };
    }

    /// Takes out what is behind the front.
    pub(super) fn pop_second(&mut self) -> Option<Item> {
        self.rest.pop_front()
    }

    /// Puts `item` behind the front; in its place if there is none.
    pub(super) fn push_second(&mut self, item: Item) {
        match self.front {
            None => self.front = Some(item),
            Some(_) => self.rest.push_front(item),
        }
    }

    /// Forgets everything, and keeps the memory of `kept` entries.
    pub(super) fn clear(&mut self, kept: usize) {
        self.front = None;
        self.rest.clear();
        if self.rest.capacity() > kept {
            self.rest.shrink_to(kept);
        }
    }

    /// How many entries have memory.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.rest.capacity()
    }
}
