//! What was counted for each statement, by fingerprint: every worker counts for itself, and whoever looks adds up.
//!
//! Invariants: counting a statement that is known allocates nothing and locks what only its own worker uses (and a
//! console that looks). All of it is bounded in bytes whatever clients send: when it is full, what was used least goes,
//! with its counts.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::time::Duration;

use parking_lot::Mutex;
use router::{Fingerprint, Reason};
use telemetry::metrics::Route;

mod times;

pub use times::Times;

use crate::digest::times::KeyHasher;

/// Bytes of statements that one worker remembers.
const MAX_BYTES: usize = 4 << 20;
/// A longer text is cut (bytes).
const MAX_TEXT: usize = 1000;
/// What an entry costs beside its text: itself, its place in the index, and its reasons.
const ENTRY_BYTES: usize = size_of::<Entry>() + 2 * size_of::<(u64, u32)>() + 8 * size_of::<(Reason, u64)>();

/// What was counted for a statement.
#[derive(Debug, Clone, Default)]
pub struct Digest {
    /// The text with its literals left out.
    pub text: String,
    /// Times it was executed.
    pub calls: u64,
    /// Those that ended in an error.
    pub errors: u64,
    /// Rows that it returned or changed.
    pub rows: u64,
    /// Bytes of its answers.
    pub bytes: u64,
    /// Times by route, as [`Route::WORDS`] has them.
    pub routes: [u64; Route::WORDS.len()],
    /// Times by what decided where it ran.
    pub reasons: Vec<(Reason, u64)>,
    /// How long it took.
    pub times: Times,
}

/// One execution, as it came out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) route: Route,
    pub(crate) reason: Reason,
    pub(crate) took: Duration,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    pub(crate) failed: bool,
    /// It goes on later: this was a part of it.
    pub(crate) partial: bool,
}

/// Where a statement stands in its worker's book.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    key: u64,
    at: u32,
}

#[derive(Debug)]
struct Entry {
    key: u64,
    print: Fingerprint,
    /// Executions lately.
    usage: u32,
    digest: Digest,
}

/// What one worker has counted.
#[derive(Debug, Default)]
pub(crate) struct DigestBook(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    index: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
    entries: Vec<Entry>,
    bytes: usize,
}

impl DigestBook {
    /// The place of the statement with that key; `text` is its text when it is not known yet.
    pub(crate) fn place(&self, key: u64, text: Option<&[u8]>) -> Option<Place> {
        let mut inner = self.0.lock();
        if let Some(at) = inner.index.get(&key) {
            return Some(Place { key, at: *at });
        }
        let normalized = router::normalized(text?, MAX_TEXT);
        inner.insert(key, normalized)
    }

    /// Counts an execution; one whose statement was forgotten meanwhile is not counted.
    pub(crate) fn count(&self, place: Place, outcome: &Outcome) {
        let mut inner = self.0.lock();
        let Place { key, at } = place;
        let moved = inner.entry(at).is_none_or(|entry| entry.key != key);
        let at = if moved { inner.index.get(&key).copied() } else { Some(at) };
        if let Some(entry) = at.and_then(|at| inner.entry(at)) {
            entry.count(outcome);
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        *self.0.lock() = Inner::default();
    }

    /// How many statements are known, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        let inner = self.0.lock();
        (inner.entries.len(), inner.bytes)
    }

    /// Adds what was counted here.
    pub(crate) fn add_to(&self, all: &mut HashMap<Fingerprint, Digest>) {
        for entry in &self.0.lock().entries {
            all.entry(entry.print).or_default().add(&entry.digest);
        }
    }
}

impl Inner {
    fn entry(&mut self, at: u32) -> Option<&mut Entry> {
        self.entries.get_mut(usize::try_from(at).ok()?)
    }

    fn insert(&mut self, key: u64, (print, text): (Fingerprint, String)) -> Option<Place> {
        let cost = ENTRY_BYTES + text.len();
        if self.bytes + cost > MAX_BYTES {
            self.drop_least_used();
        }
        let at = u32::try_from(self.entries.len()).ok()?;
        self.bytes += cost;
        self.entries.push(Entry { key, print, usage: 0, digest: Digest { text, ..Digest::default() } });
        self.index.insert(key, at);
        Some(Place { key, at })
    }

    /// A quarter goes. What stays must be used again to stay for long.
    fn drop_least_used(&mut self) {
        let mut usages: Vec<u32> = self.entries.iter().map(|entry| entry.usage).collect();
        let quarter = usages.len() / 4;
        if quarter == 0 {
            return self.entries.clear();
        }
        let (_, limit, _) = usages.select_nth_unstable(quarter);
        let limit = *limit;
        let mut left = quarter;
        self.entries.retain(|entry| {
            let goes = left > 0 && entry.usage <= limit;
            left -= usize::from(goes);
            !goes
        });
        self.index.clear();
        self.bytes = 0;
        for (entry, at) in self.entries.iter_mut().zip(0_u32..) {
            entry.usage /= 2;
            self.bytes += ENTRY_BYTES + entry.digest.text.len();
            self.index.insert(entry.key, at);
        }
    }
}

impl Entry {
    fn count(&mut self, outcome: &Outcome) {
        let digest = &mut self.digest;
        digest.rows += outcome.rows;
        digest.bytes += outcome.bytes;
        if outcome.partial {
            return digest.times.add_to_sum(outcome.took);
        }
        self.usage = self.usage.saturating_add(1);
        digest.calls += 1;
        digest.errors += u64::from(outcome.failed);
        digest.times.observe(outcome.took);
        if let Some(count) = digest.routes.get_mut(outcome.route as usize) {
            *count += 1;
        }
        match digest.reasons.iter_mut().find(|(reason, _)| *reason == outcome.reason) {
            Some((_, count)) => *count += 1,
            None => digest.reasons.push((outcome.reason, 1)),
        }
    }
}

impl Digest {
    fn add(&mut self, other: &Self) {
        if self.text.is_empty() {
            self.text.clone_from(&other.text);
        }
        self.calls += other.calls;
        self.errors += other.errors;
        self.rows += other.rows;
        self.bytes += other.bytes;
        self.times.add(&other.times);
        self.routes.iter_mut().zip(other.routes).for_each(|(count, more)| *count += more);
        for (reason, more) in &other.reasons {
            match self.reasons.iter_mut().find(|(known, _)| known == reason) {
                Some((_, count)) => *count += more,
                None => self.reasons.push((*reason, *more)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(reason: Reason, micros: u64) -> Outcome {
        let took = Duration::from_micros(micros);
        Outcome { route: Route::Read, reason, took, rows: 2, bytes: 100, failed: false, partial: false }
    }

    fn run(book: &DigestBook, key: u64, text: &str, outcome: &Outcome) {
        let place = book.place(key, Some(text.as_bytes())).unwrap();
        book.count(place, outcome);
    }

    #[test]
    fn workers_add_up() {
        let (one, two) = (DigestBook::default(), DigestBook::default());
        let read = outcome(Reason::ReadOnlySelect, 100);
        let failed = Outcome { failed: true, ..outcome(Reason::Hint, 200) };
        let text = "SELECT v FROM t WHERE id = 7";
        run(&one, 1, text, &read);
        run(&one, 1, text, &failed);
        run(&two, 1, text, &read);
        run(&two, 1, text, &Outcome { partial: true, ..read });
        let mut all = HashMap::new();
        one.add_to(&mut all);
        two.add_to(&mut all);
        let digest = &all[&router::fingerprint(text.as_bytes(), true)];
        assert_eq!((digest.calls, digest.errors, digest.rows, digest.bytes), (3, 1, 8, 400));
        assert_eq!(digest.text, "select v from t where id = 1");
        assert_eq!(digest.routes[Route::Read as usize], 3);
        assert_eq!(digest.reasons, [(Reason::ReadOnlySelect, 2), (Reason::Hint, 1)]);
        assert_eq!(digest.times.sum(), Duration::from_micros(500));
        one.clear();
        assert_eq!(one.size(), (0, 0));
        assert_eq!(one.place(1, None), None, "unknown, and no text");
    }

    #[test]
    fn many_texts_cost_no_more_than_the_bound_and_what_is_used_stays() {
        let book = DigestBook::default();
        let read = outcome(Reason::ReadOnlySelect, 10);
        let mut most = 0;
        for number in 0..100_000_u64 {
            if number % 100 == 0 {
                run(&book, u64::MAX, "SELECT kept", &read);
            }
            run(&book, number, &format!("SELECT c{} FROM t", number % 5000), &read);
            most = most.max(book.size().1);
        }
        assert!(most <= MAX_BYTES && most > MAX_BYTES / 2, "{most}");
        let mut all = HashMap::new();
        book.add_to(&mut all);
        assert_eq!(all[&router::fingerprint(b"SELECT kept", true)].calls, 1_000);
        let held: usize = all.len();
        assert!(held > 1000, "{held}");
    }

    #[test]
    fn a_place_outlives_what_is_dropped() {
        let book = DigestBook::default();
        let read = outcome(Reason::ReadOnlySelect, 10);
        let place = book.place(u64::MAX, Some(b"SELECT kept")).unwrap();
        (0..50).for_each(|_| book.count(place, &read));
        for number in 0..20_000 {
            book.place(number, Some(b"SELECT other"));
            if number % 100 == 0 {
                book.count(place, &read);
            }
        }
        book.count(place, &read);
        let mut all = HashMap::new();
        book.add_to(&mut all);
        assert_eq!(all[&router::fingerprint(b"SELECT kept", true)].calls, 251);
    }
}
