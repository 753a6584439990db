//! Which prepared statements a backend holds.

use std::collections::HashMap;

use crate::statements::{Schema, StatementId};

/// The statements that one backend holds, least recently used first out.
#[derive(Debug, Default)]
pub struct Prepared {
    held: HashMap<StatementId, Held>,
    clock: u64,
    unnamed: Option<(StatementId, Schema)>,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    used: u64,
    schema: Schema,
}

/// A statement that a backend is to drop.
#[derive(Debug, Clone, Copy)]
pub struct Dropped {
    /// Which one.
    pub id: StatementId,
    held: Held,
}

/// Whether a backend holds a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// No.
    Not,
    /// As it was parsed before the schema changed.
    Stale,
    /// Yes.
    Well,
}

impl Prepared {
    /// Whether it holds `id`, which is now the most recently used.
    pub fn touch(&mut self, id: StatementId, schema: Schema) -> Holds {
        self.clock += 1;
        match self.held.get_mut(&id) {
            None => Holds::Not,
            Some(held) => {
                held.used = self.clock;
                if held.schema == schema { Holds::Well } else { Holds::Stale }
            }
        }
    }

    /// It will hold `id`, which it does not now; gives the statement to close when there are more than `max`.
    pub fn insert(&mut self, id: StatementId, schema: Schema, max: usize) -> Option<Dropped> {
        let oldest = (self.held.len() >= max.max(1))
            .then(|| self.held.iter().min_by_key(|(_, held)| held.used).map(|(id, _)| *id))
            .flatten();
        let dropped = oldest.and_then(|oldest| self.take(oldest));
        self.clock += 1;
        self.held.insert(id, Held { used: self.clock, schema });
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

    /// Whether its unnamed statement is that one, as it would be parsed now.
    #[must_use]
    pub fn is_unnamed(&self, id: StatementId, schema: Schema) -> bool {
        self.unnamed == Some((id, schema))
    }

    /// Its unnamed statement is that one, or gone.
    pub fn set_unnamed(&mut self, unnamed: Option<(StatementId, Schema)>) {
        self.unnamed = unnamed;
    }

    /// It holds none.
    pub fn clear(&mut self) {
        self.held.clear();
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
        cache.intern(format!("{sql}\0\0\0").as_bytes(), Verdict::empty)
    }

    #[test]
    fn a_backend_closes_the_least_recently_used() {
        let cache = StatementCache::new(10_000);
        let ids: Vec<_> = (0..3).map(|n| statement(&cache, &format!("SELECT {n}")).id()).collect();
        let mut backend = Prepared::default();
        let now = cache.schema();
        assert!(backend.insert(ids[0], now, 2).is_none());
        assert!(backend.insert(ids[1], now, 2).is_none());
        backend.touch(ids[0], now);
        assert_eq!(backend.insert(ids[2], now, 2).map(|dropped| dropped.id), Some(ids[1]));
        assert_eq!(backend.len(), 2);
    }
}
