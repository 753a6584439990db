//! When anybody last wrote to a database through this process: what `consistency: global` goes by.
//!
//! Only databases that were written to are remembered, so there are no more of them than the nodes have.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cluster::Moment;
use parking_lot::RwLock;

/// The last write to one database.
#[derive(Debug, Default)]
pub(crate) struct LastWrite {
    /// In nanoseconds.
    at: AtomicU64,
}

impl LastWrite {
    /// Somebody is told now that a write is done, or may find out.
    pub(crate) fn note(&self, at: Moment) {
        self.at.fetch_max(u64::try_from(at.0.as_nanos()).unwrap_or(u64::MAX), Ordering::AcqRel);
    }

    fn get(&self) -> Moment {
        Moment(Duration::from_nanos(self.at.load(Ordering::Acquire)))
    }
}

/// Those of all databases, by their names on the nodes.
#[derive(Debug, Default)]
pub(crate) struct LastWrites {
    databases: RwLock<HashMap<Arc<str>, Arc<LastWrite>>>,
}

impl LastWrites {
    /// That of a database which is written to.
    pub(crate) fn of(&self, database: &Arc<str>) -> Arc<LastWrite> {
        if let Some(known) = self.databases.read().get(database) {
            return Arc::clone(known);
        }
        Arc::clone(self.databases.write().entry(Arc::clone(database)).or_default())
    }

    /// When the database was written to last.
    pub(crate) fn last(&self, database: &str) -> Option<Moment> {
        self.databases.read().get(database).map(|known| known.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_counts_for_its_database() {
        let (writes, shop) = (LastWrites::default(), Arc::from("shop"));
        let at = |millis| Moment(Duration::from_millis(millis));
        assert_eq!(writes.last("shop"), None);
        let session = writes.of(&shop);
        session.note(at(7));
        writes.of(&shop).note(at(3));
        assert_eq!((writes.last("shop"), writes.last("other")), (Some(at(7)), None));
    }
}
