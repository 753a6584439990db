//! The only shared-state type: a value that is replaced whole, read without locks, with a wake-up.

use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};
use tokio::sync::watch;

/// A value that one owner replaces and many read. Cloning shares it.
#[derive(Debug)]
pub struct Published<T> {
    value: Arc<ArcSwap<T>>,
    version: Arc<watch::Sender<u64>>,
}

impl<T> Clone for Published<T> {
    fn clone(&self) -> Self {
        Self { value: Arc::clone(&self.value), version: Arc::clone(&self.version) }
    }
}

impl<T: Default> Default for Published<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// A reader that keeps the value it saw last; [`Reader::load`] is a pointer compare when nothing changed.
#[derive(Debug, Clone)]
pub struct Reader<T> {
    cache: Cache<Arc<ArcSwap<T>>, Arc<T>>,
}

impl<T> Published<T> {
    /// Publishes the first value.
    pub fn new(value: T) -> Self {
        let (version, _) = watch::channel(0);
        Self { value: Arc::new(ArcSwap::from_pointee(value)), version: Arc::new(version) }
    }

    /// Replaces the value and wakes whoever waits for a change.
    pub fn publish(&self, value: T) {
        self.value.store(Arc::new(value));
        self.version.send_modify(|version| *version += 1);
    }

    /// The value now.
    #[must_use]
    pub fn load(&self) -> Arc<T> {
        self.value.load_full()
    }

    /// A cached reader, for those who load once per request.
    #[must_use]
    pub fn reader(&self) -> Reader<T> {
        Reader { cache: Cache::new(Arc::clone(&self.value)) }
    }

    /// Wakes at every change; the number is the count of changes.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}

impl<T> Reader<T> {
    /// The value now.
    pub fn load(&mut self) -> &Arc<T> {
        self.cache.load()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_the_new_value_and_a_change_wakes() {
        let published = Published::new(1);
        let mut reader = published.reader();
        let changes = published.changes();
        assert_eq!(**reader.load(), 1);
        published.publish(2);
        assert_eq!(**reader.load(), 2);
        assert_eq!(*published.load(), 2);
        assert!(changes.has_changed().unwrap());
    }
}
