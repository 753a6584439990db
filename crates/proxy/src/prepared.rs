//! Which prepared statements a backend holds.

use std::collections::HashMap;

use crate::hash::Seeded;
use crate::statements::{StatementId, key};

/// The statements that one backend holds, least recently used first out.
#[derive(Debug, Default)]
pub struct Prepared {
    held: HashMap<StatementId, Held, Seeded>,
    clock: u64,
    unnamed: Option<StatementId>,
    /// What it has under names of clients' own; `None` where that is not known.
    own: HashMap<Box<[u8]>, Option<StatementId>, Seeded>,
}

/// What is known of a statement that a backend holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    /// The clock of the last use.
    used: u64,
    /// Under which settings it was parsed, outside of any transaction, when a client's own Parse may be spared.
    under: Option<Environment>,
}

/// Settings that a statement was parsed under: equal where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Environment(pub u64);

/// A statement that a backend is to drop.
#[derive(Debug, Clone, Copy)]
pub struct Dropped {
    /// Which one.
    pub id: StatementId,
    held: Held,
}

impl Prepared {
    /// Whether it holds `id`.
    #[must_use]
    pub fn holds(&self, id: StatementId) -> bool {
        self.held.contains_key(&id)
    }

    /// Whether it holds `id`, which is now the most recently used.
    pub fn touch(&mut self, id: StatementId) -> bool {
        self.clock += 1;
        self.held.get_mut(&id).map(|held| held.used = self.clock).is_some()
    }

    /// Whether it holds `id`, parsed under these settings; it is the most recently used then.
    pub fn stands_in(&mut self, id: StatementId, under: Environment) -> bool {
        let stands = self.held.get(&id).is_some_and(|held| held.under == Some(under));
        stands && self.touch(id)
    }

    /// It holds `id`, parsed under these settings; or what it holds is not what the text says any more.
    pub fn set_environment(&mut self, id: StatementId, under: Option<Environment>) {
        if let Some(held) = self.held.get_mut(&id) {
            held.under = under;
        }
    }

    /// It will hold `id`, which it does not now; gives the statement to close when there are more than `max`.
    pub fn insert(&mut self, id: StatementId, max: usize) -> Option<Dropped> {
        let oldest = (self.held.len() >= max.max(1))
            .then(|| self.held.iter().min_by_key(|(_, held)| held.used).map(|(id, _)| *id))
            .flatten();
        let dropped = oldest.and_then(|oldest| self.take(oldest));
        self.clock += 1;
        self.held.insert(id, Held { used: self.clock, under: None });
        dropped
    }

    /// It will drop `id`, if it holds it.
    pub fn take(&mut self, id: StatementId) -> Option<Dropped> {
        self.held.remove(&id).map(|held| Dropped { id, held })
    }

    /// It has not dropped it.
    pub(crate) fn restore(&mut self, dropped: Dropped) {
        self.held.entry(dropped.id).or_insert(dropped.held);
    }

    /// It does not hold `id`.
    pub fn forget(&mut self, id: StatementId) {
        self.held.remove(&id);
    }

    /// Whether its unnamed statement is that one.
    #[must_use]
    pub fn is_unnamed(&self, id: StatementId) -> bool {
        self.unnamed == Some(id)
    }

    /// Its unnamed statement, as far as that is known.
    #[must_use]
    pub fn unnamed(&self) -> Option<StatementId> {
        self.unnamed
    }

    /// Its unnamed statement is that one, or gone.
    pub fn set_unnamed(&mut self, unnamed: Option<StatementId>) {
        self.unnamed = unnamed;
    }

    /// What it has under the name `own` of a client's; the inner `None` is something.
    #[must_use]
    pub fn own(&self, own: &[u8]) -> Option<Option<StatementId>> {
        self.own.get(key(own)).copied()
    }

    /// It has that under the name `own` of a client's, or something.
    pub fn set_own(&mut self, own: &[u8], id: Option<StatementId>) {
        self.own.insert(key(own).into(), id);
    }

    /// It has nothing of that name.
    pub fn drop_own(&mut self, own: &[u8]) {
        self.own.remove(key(own));
    }

    /// What it has of that name, if anything, is not known.
    pub fn forget_own(&mut self, own: &[u8]) {
        if let Some(id) = self.own.get_mut(key(own)) {
            *id = None;
        }
    }

    /// One more name is coming: gives one to close when there are `max`.
    pub fn make_room_for_own(&mut self, max: usize) -> Option<Box<[u8]>> {
        let full = self.own.len() >= max.max(1);
        let name = full.then(|| self.own.keys().next().cloned()).flatten();
        name.inspect(|name| self.drop_own(name))
    }

    /// It holds none.
    pub fn clear(&mut self) {
        self.held.clear();
        self.own.clear();
        self.unnamed = None;
    }

    /// How many it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// It holds no named one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use router::Verdict;

    use super::*;
    use crate::statements::{Statement, StatementCache};

    fn statement(cache: &StatementCache, sql: &str) -> Arc<Statement> {
        cache.intern(format!("{sql}\0\0\0").as_bytes(), 0, Verdict::empty)
    }

    #[test]
    fn a_backend_closes_the_least_recently_used() {
        let cache = StatementCache::new(10_000);
        let ids: Vec<_> = (0..3).map(|n| statement(&cache, &format!("SELECT {n}")).id()).collect();
        let mut backend = Prepared::default();
        assert!(backend.insert(ids[0], 2).is_none());
        assert!(backend.insert(ids[1], 2).is_none());
        backend.touch(ids[0]);
        assert_eq!(backend.insert(ids[2], 2).map(|dropped| dropped.id), Some(ids[1]));
        assert_eq!(backend.len(), 2);
    }
}
