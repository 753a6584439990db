//! Protocol-level prepared statements that follow the client to any backend.
//!
//! A text with its parameter types is one [`Statement`] for everybody, with one name on every server.
//! A client's names are its own ([`ClientStatements`]); a backend knows which statements it holds
//! ([`Prepared`]). Books are written when a message is forwarded, in the order of forwarding, and
//! taken back when the server says that it did not carry it out.

mod asked;
mod client;

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{BufMut, BytesMut};
use parking_lot::Mutex;
use router::{Effect, Verdict};

use crate::hash::Seeded;
pub use client::ClientStatements;

/// The longest statement that is remembered; longer ones are refused with 54000.
pub const MAX_STATEMENT_LEN: usize = 256 * 1024 * 1024;
/// How many entries one insertion into a full cache looks at for one to drop.
const EVICTION_STEPS: usize = 16;
/// What an entry costs beside its text.
const ENTRY_COST: usize = 200;
/// Further bytes of a name do not matter (`NAMEDATALEN` less one; `prepare.c` keeps names in such a table).
const NAME_LEN: usize = 63;
/// What a name on the servers begins with.
pub const NAME_PREFIX: &str = "pgweir_";

/// Which statement, for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StatementId(u64);

/// How a client made a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// By Parse.
    Parse,
    /// By PREPARE: the text is that of the whole PREPARE.
    Prepare,
}

/// A statement text with its parameter types.
#[derive(Debug)]
pub struct Statement {
    id: StatementId,
    name: Box<str>,
    source: Source,
    verdict: Verdict,
    /// The last generation of a catalog under which it has that verdict.
    generation: AtomicU64,
    /// The Parse message behind its name.
    tail: Arc<[u8]>,
    /// The schema under which it was made. Whoever parses the text under another one gets another statement:
    /// those who were told of its columns before shall hear from the server that they changed.
    schema: Schema,
    /// The schema under which a server last accepted it, plus one; 0 when none has.
    accepted: AtomicU64,
    timeless: bool,
    /// How long the text in front of `tail` is.
    sql_len: usize,
}

impl Statement {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> StatementId {
        self.id
    }

    /// Its name on the servers.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it was made.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// What its text says about itself, whatever the catalog says: not to be routed by.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// What its text says about itself under a catalog of that generation; `classify` runs when that is not known.
    pub fn verdict_under(&self, generation: u64, classify: impl FnOnce(&[u8]) -> Verdict) -> Verdict {
        if self.generation.load(Ordering::Relaxed) == generation {
            return self.verdict;
        }
        let verdict = classify(self.sql());
        if verdict == self.verdict {
            self.generation.store(generation, Ordering::Relaxed);
        }
        verdict
    }

    /// A server accepted it under that schema.
    pub fn accept(&self, schema: Schema) {
        self.accepted.store(schema.0 + 1, Ordering::Relaxed);
    }

    /// Whether a server accepted it under that schema: another one will, too.
    #[must_use]
    pub fn is_accepted(&self, schema: Schema) -> bool {
        self.accepted.load(Ordering::Relaxed) == schema.0 + 1
    }

    /// Parsing it anew says the same as long as its names mean the same.
    #[must_use]
    pub fn is_timeless(&self) -> bool {
        self.timeless
    }

    /// Its text.
    #[must_use]
    pub fn sql(&self) -> &[u8] {
        self.tail.get(..self.sql_len).unwrap_or_default()
    }

    /// How many parameters it has, those that its Parse message gives types of included.
    #[must_use]
    pub fn parameters(&self) -> u16 {
        let declared = match (self.source, self.tail.get(self.sql_len + 1..)) {
            (Source::Parse, Some([high, low, ..])) => u16::from_be_bytes([*high, *low]),
            _ => 0,
        };
        declared.max(router::parameters(self.sql(), true))
    }

    /// Appends a Parse message that makes it, named or unnamed.
    pub fn put_parse(&self, out: &mut BytesMut, name: &[u8]) {
        put_header(out, b'P', name.len() + 1 + self.tail.len());
        out.put_slice(name);
        out.put_u8(0);
        out.put_slice(&self.tail);
    }
}

impl StatementId {
    /// Its name on the servers.
    #[must_use]
    pub fn name(self) -> String {
        format!("{NAME_PREFIX}{}", self.0)
    }

    /// The id behind a name on the servers.
    #[must_use]
    pub fn from_name(name: &[u8]) -> Option<Self> {
        let number = name.strip_prefix(NAME_PREFIX.as_bytes())?;
        std::str::from_utf8(number).ok()?.parse().ok().map(Self)
    }
}

/// Appends a type byte and the length of a message whose body has `body` bytes.
pub fn put_header(out: &mut BytesMut, tag: u8, body: usize) {
    out.put_u8(tag);
    // Bounded: bodies come from messages that were bounded when read.
    out.put_u32(u32::try_from(body + 4).unwrap_or(u32::MAX));
}

/// Counts the changes of schema that passed by: a text that is parsed after one is another statement than it
/// was before, or it would fail with "cached plan must not change result type".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Schema(u64);

#[derive(Debug, Default)]
struct Interned {
    by_tail: HashMap<Arc<[u8]>, Arc<Statement>, Seeded>,
    order: VecDeque<Arc<[u8]>>,
    bytes: usize,
    next: u64,
}

/// All statements of all clients, bounded in bytes as far as clients do not hold them.
#[derive(Debug)]
pub struct StatementCache {
    max_bytes: usize,
    interned: Mutex<Interned>,
    schema: AtomicU64,
}

impl StatementCache {
    /// A cache that drops unused statements when it holds more than `max_bytes`.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            interned: Mutex::new(Interned { next: 1, ..Interned::default() }),
            schema: AtomicU64::new(0),
        }
    }

    /// The statement of that Parse message's tail; `classify` runs when it is new.
    pub fn intern(&self, tail: &[u8], generation: u64, classify: impl FnOnce() -> Verdict) -> Arc<Statement> {
        self.intern_as(Source::Parse, tail, generation, classify)
    }

    /// The statement that this PREPARE makes; it runs as what is prepared does.
    pub fn intern_prepare(
        &self,
        text: &[u8],
        generation: u64,
        classify: impl FnOnce() -> Verdict,
    ) -> Arc<Statement> {
        let runs = || Verdict { effect: Effect::None, pin: None, ..classify() };
        // No Parse message ends like that: this is not the same as a Parse of the text.
        self.intern_as(Source::Prepare, &[text, b"\0PREPARE"].concat(), generation, runs)
    }

    fn intern_as(
        &self,
        source: Source,
        tail: &[u8],
        generation: u64,
        classify: impl FnOnce() -> Verdict,
    ) -> Arc<Statement> {
        let schema = self.schema();
        if let Some(known) = self.interned.lock().by_tail.get(tail).filter(|known| known.schema == schema) {
            return Arc::clone(known);
        }
        let verdict = classify();
        let mut interned = self.interned.lock();
        let tail: Arc<[u8]> = tail.into();
        let id = StatementId(interned.next);
        interned.next += 1;
        let accepted = AtomicU64::new(0);
        let generation = AtomicU64::new(generation);
        let (name, tail_too) = (id.name().into(), Arc::clone(&tail));
        let sql = sql_of(&tail);
        let (sql_len, timeless) = (sql.len(), source == Source::Parse && router::is_timeless(sql));
        let statement = Arc::new(Statement {
            id,
            source,
            name,
            verdict,
            generation,
            tail: tail_too,
            schema,
            accepted,
            timeless,
            sql_len,
        });
        if interned.by_tail.insert(Arc::clone(&tail), Arc::clone(&statement)).is_none() {
            interned.bytes += cost(&tail);
            interned.order.push_back(tail);
        }
        interned.evict(self.max_bytes);
        statement
    }

    /// The statement of that Parse message's tail, if there is one.
    #[must_use]
    pub fn find(&self, tail: &[u8]) -> Option<Arc<Statement>> {
        self.interned.lock().by_tail.get(tail).map(Arc::clone)
    }

    /// The schema now.
    #[must_use]
    pub fn schema(&self) -> Schema {
        Schema(self.schema.load(Ordering::Relaxed))
    }

    /// The schema may be another one from now on.
    pub fn schema_changed(&self) {
        self.schema.fetch_add(1, Ordering::Relaxed);
    }

    /// How many statements and bytes it holds.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        let interned = self.interned.lock();
        (interned.by_tail.len(), interned.bytes)
    }
}

impl Interned {
    fn evict(&mut self, max_bytes: usize) {
        for _ in 0..EVICTION_STEPS {
            if self.bytes <= max_bytes {
                return;
            }
            let Some(tail) = self.order.pop_front() else { return };
            // The map's own reference is the last one: no client has it.
            if self.by_tail.get(&tail).is_some_and(|statement| Arc::strong_count(statement) == 1) {
                self.bytes = self.bytes.saturating_sub(cost(&tail));
                self.by_tail.remove(&tail);
            } else {
                self.order.push_back(tail);
            }
        }
    }
}

/// As much of a name as tells it from others.
pub(crate) fn key(name: &[u8]) -> &[u8] {
    name.get(..NAME_LEN).unwrap_or(name)
}

/// The text in a Parse message behind its name.
fn sql_of(tail: &[u8]) -> &[u8] {
    tail.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn cost(tail: &[u8]) -> usize {
    tail.len() + ENTRY_COST
}

#[cfg(test)]
mod tests {
    use protocol::tracker::Event;

    use super::*;
    use crate::prepared::Prepared;

    fn statement(cache: &StatementCache, sql: &str) -> Arc<Statement> {
        cache.intern(format!("{sql}\0\0\0").as_bytes(), 0, Verdict::empty)
    }

    #[test]
    fn the_same_text_is_one_statement_and_another_type_is_another() {
        let cache = StatementCache::new(10_000);
        let one = statement(&cache, "SELECT 1");
        assert_eq!(one.id(), statement(&cache, "SELECT 1").id());
        assert_ne!(one.id(), cache.intern(b"SELECT 1\0\0\x01\0\0\0\x17", 0, Verdict::empty).id());
        assert_eq!(one.sql(), b"SELECT 1");
        assert_eq!(StatementId::from_name(one.id().name().as_bytes()), Some(one.id()));
    }

    #[test]
    fn the_cache_is_bounded_in_bytes_and_keeps_what_is_used() {
        let cache = StatementCache::new(2_000);
        let kept = statement(&cache, "SELECT kept");
        for number in 0..1_000 {
            statement(&cache, &format!("SELECT {number}"));
        }
        assert!(cache.size().1 <= 2_500, "{:?}", cache.size());
        assert_eq!(kept.id(), statement(&cache, "SELECT kept").id());
    }

    #[test]
    fn a_skipped_parse_is_taken_back_in_both_books() {
        let cache = StatementCache::new(10_000);
        let (mut client, mut backend) = (ClientStatements::default(), Prepared::default());
        let (one, two) = (statement(&cache, "SELECT 1"), statement(&cache, "SELECT 2"));
        let now = cache.schema();
        let first = client.define(b"a", &one, Some(now));
        backend.insert(one.id(), 10);
        client.settle(&[Event::Done(first)], &mut backend);
        let close = client.close(b"a");
        let again = client.define(b"a", &two, Some(now));
        backend.insert(two.id(), 10);
        assert_eq!(client.get(b"a").unwrap().id(), two.id());
        client.settle(&[Event::Skipped(close), Event::Skipped(again)], &mut backend);
        assert_eq!(client.get(b"a").unwrap().id(), one.id());
        assert!(backend.touch(one.id()) && !backend.touch(two.id()));
        assert!(one.is_accepted(now) && !two.is_accepted(now));
        cache.schema_changed();
        assert!(!one.is_accepted(cache.schema()));
        assert_ne!(one.id(), statement(&cache, "SELECT 1").id(), "parsed anew, it is another one");
    }

    #[test]
    fn what_a_later_batch_asks_a_backend_for_is_held() {
        let cache = StatementCache::new(10_000);
        let (mut client, mut backend) = (ClientStatements::default(), Prepared::default());
        let (one, now) = (statement(&cache, "SELECT 1"), cache.schema());
        let skipped = client.define(b"a", &one, Some(now));
        client.end_batch();
        let later = client.define(b"b", &one, Some(now));
        backend.insert(one.id(), 10);
        client.settle(&[Event::Skipped(skipped)], &mut backend);
        assert!(backend.touch(one.id()) && client.get(b"a").is_none());
        client.settle(&[Event::Failed(later)], &mut backend);
        assert!(!backend.touch(one.id()));
    }

    #[test]
    fn what_a_later_batch_made_of_a_name_stands() {
        let cache = StatementCache::new(10_000);
        let (mut client, mut backend) = (ClientStatements::default(), Prepared::default());
        let (one, two) = (statement(&cache, "SELECT 1"), statement(&cache, "SELECT 2"));
        let failed = client.define(b"", &two, Some(cache.schema()));
        client.end_batch();
        let later = client.define(b"", &one, Some(cache.schema()));
        client.settle(&[Event::Failed(failed)], &mut backend);
        assert_eq!(client.get(b"").unwrap().id(), one.id());
        client.settle(&[Event::Failed(later)], &mut backend);
        assert!(client.get(b"").is_none());
        client.define_now(b"", &one);
        let skipped = client.define(b"", &two, Some(cache.schema()));
        client.drop_unnamed();
        client.settle(&[Event::Skipped(skipped)], &mut backend);
        assert!(client.get(b"").is_none());
        let made = client.define(b"a", &one, Some(cache.schema()));
        client.settle(&[Event::Done(made)], &mut backend);
        client.close(b"a");
        assert_eq!(client.name_of(one.id()), Some(&b"a"[..]), "an error may still be about it");
    }

    #[test]
    fn names_are_told_apart_by_as_many_bytes_as_the_server_looks_at() {
        let cache = StatementCache::new(10_000);
        let mut client = ClientStatements::default();
        client.define_now(&[b'n'; 100], &statement(&cache, "SELECT 1"));
        assert!(client.get(&[b'n'; 63]).is_some() && client.get(&[b'n'; 62]).is_none());
        client.close_now(&[b'n'; 70]);
        assert!(client.is_empty());
    }

    #[test]
    fn a_failed_unnamed_parse_leaves_none_and_a_skipped_one_the_former() {
        let cache = StatementCache::new(10_000);
        let (mut client, mut backend) = (ClientStatements::default(), Prepared::default());
        let (one, two) = (statement(&cache, "SELECT 1"), statement(&cache, "SELECT 2"));
        let first = client.define(b"", &one, Some(cache.schema()));
        client.settle(&[Event::Done(first)], &mut backend);
        let failed = client.define(b"a", &one, Some(cache.schema()));
        let close = client.close(b"a");
        let skipped = client.define(b"a", &two, Some(cache.schema()));
        client.settle(&[Event::Failed(failed), Event::Skipped(close), Event::Skipped(skipped)], &mut backend);
        assert!(client.get(b"a").is_none(), "latest first");
        let skipped = client.define(b"", &two, Some(cache.schema()));
        client.settle(&[Event::Skipped(skipped)], &mut backend);
        assert_eq!(client.get(b"").unwrap().id(), one.id());
        let failed = client.define(b"", &two, Some(cache.schema()));
        client.settle(&[Event::Failed(failed)], &mut backend);
        assert!(client.get(b"").is_none());
    }
}
