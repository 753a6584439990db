//! What is counted for each database, as PgBouncer counts it: every worker counts for itself, and whoever looks
//! adds up.
//!
//! Invariants: counting is one addition to memory of the own worker; counts never fall while the process lives;
//! the number of names is bounded, those beyond it count under one name together.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// More databases than this are counted together.
const MAX_NAMES: usize = 1000;
/// The name of what is counted together; no database is called so.
pub const OTHERS: &str = "(other databases)";

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Count {
    /// Backends given to clients.
    Assignments,
    /// Transactions that ended, statements outside of a block included.
    Transactions,
    /// Queries: everything that a client was told ReadyForQuery for.
    Queries,
    /// Bytes from clients.
    Received,
    /// Bytes to clients.
    Sent,
    /// Nanoseconds that transactions had a backend.
    TransactionNanos,
    /// Nanoseconds that servers worked on queries.
    QueryNanos,
    /// Nanoseconds that clients waited for a backend, connecting included.
    WaitNanos,
    /// Parse messages from clients.
    ClientParses,
    /// Parse messages to servers.
    ServerParses,
    /// Bind messages from clients.
    Binds,
    /// Errors that clients were told.
    Errors,
}

/// How many kinds of [`Count`] there are.
const KINDS: usize = Count::Errors as usize + 1;

/// One set of counts that rise.
#[derive(Debug, Default)]
pub struct Counters([AtomicU64; KINDS]);

impl Counters {
    /// Adds.
    pub fn add(&self, what: Count, by: u64) {
        if let Some(count) = self.0.get(what as usize) {
            count.fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Adds where nobody else adds meanwhile: several times cheaper.
    fn add_alone(&self, what: Count, by: u64) {
        if let Some(count) = self.0.get(what as usize) {
            count.store(count.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
        }
    }

    /// The count so far.
    #[must_use]
    pub fn get(&self, what: Count) -> u64 {
        self.0.get(what as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

/// A set of counts at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals([u64; KINDS]);

impl Totals {
    /// The count.
    #[must_use]
    pub fn get(&self, what: Count) -> u64 {
        self.0.get(what as usize).copied().unwrap_or(0)
    }

    fn add(&mut self, counters: &Counters) {
        for (total, count) in self.0.iter_mut().zip(&counters.0) {
            *total += count.load(Ordering::Relaxed);
        }
    }
}

/// What one worker has counted, by database.
#[derive(Debug, Default)]
pub(crate) struct Book(Mutex<HashMap<Arc<str>, Arc<Counters>>>);

impl Book {
    /// The counters of a database. Looked up when a client has logged in, not when it does something.
    pub(crate) fn of(&self, database: &Arc<str>) -> Arc<Counters> {
        let mut known = self.0.lock();
        if let Some(counters) = known.get(database) {
            return Arc::clone(counters);
        }
        let name = if known.len() < MAX_NAMES { Arc::clone(database) } else { Arc::from(OTHERS) };
        Arc::clone(known.entry(name).or_default())
    }

    /// Adds to `totals` what was counted here.
    pub(crate) fn add_to(&self, totals: &mut BTreeMap<Arc<str>, Totals>) {
        for (name, counters) in &*self.0.lock() {
            totals.entry(Arc::clone(name)).or_default().add(counters);
        }
    }
}

/// What one session counts: for itself, and for its database.
#[derive(Debug)]
pub(crate) struct Tally {
    database: Arc<Counters>,
    own: Counters,
}

impl Tally {
    pub(crate) fn new(database: Arc<Counters>) -> Self {
        Self { database, own: Counters::default() }
    }

    pub(crate) fn add(&self, what: Count, by: u64) {
        self.database.add(what, by);
        // Its session's task only.
        self.own.add_alone(what, by);
    }

    pub(crate) fn add_time(&self, what: Count, time: Duration) {
        self.add(what, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The session's own count.
    pub(crate) fn own(&self, what: Count) -> u64 {
        self.own.get(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_add_up_and_names_are_bounded() {
        let (one, two) = (Book::default(), Book::default());
        let name: Arc<str> = "app".into();
        one.of(&name).add(Count::Queries, 2);
        let tally = Tally::new(two.of(&name));
        tally.add(Count::Queries, 3);
        assert_eq!(tally.own(Count::Queries), 3);
        for number in 0..MAX_NAMES + 5 {
            one.of(&format!("db{number}").into()).add(Count::Binds, 1);
        }
        let mut totals = BTreeMap::new();
        one.add_to(&mut totals);
        two.add_to(&mut totals);
        assert_eq!(totals[&name].get(Count::Queries), 5);
        assert_eq!(totals.len(), MAX_NAMES + 1);
        assert_eq!(totals[OTHERS].get(Count::Binds), 6);
    }
}
