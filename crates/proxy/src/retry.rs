//! When a pool may try to connect again after it could not.
//!
//! Invariants: without a failure nobody waits; after one, tries are at least a growing, jittered delay apart,
//! however many sessions want a connection; the first success lets everybody go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use telemetry::Backoff;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The delay after the first failure.
const FIRST: Duration = Duration::from_millis(50);
/// The longest delay.
const LAST: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Failing {
    backoff: Backoff,
    delay: Duration,
    /// Nobody tries before.
    not_before: Instant,
    /// When somebody last tried.
    last_turn: Option<Instant>,
}

impl Failing {
    fn next(&self) -> Instant {
        let behind = self.last_turn.map(|turn| turn + self.delay);
        behind.map_or(self.not_before, |behind| behind.max(self.not_before))
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Retry {
    failing: Mutex<Option<Failing>>,
    is_failing: AtomicBool,
    changed: Notify,
}

impl Retry {
    /// Whether who wants to connect has to wait.
    #[must_use]
    pub fn must_wait(&self, now: Instant) -> bool {
        self.is_failing.load(Ordering::Acquire)
            && self.failing.lock().as_ref().is_some_and(|failing| failing.next() > now)
    }

    /// The caller is about to connect. Turns are not given ahead: whoever has one may leave before.
    ///
    /// # Errors
    /// When to ask again: it is not its turn.
    pub fn turn(&self, now: Instant) -> Result<(), Instant> {
        if !self.is_failing.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut failing = self.failing.lock();
        let Some(failing) = failing.as_mut() else { return Ok(()) };
        let next = failing.next();
        if next > now {
            return Err(next);
        }
        failing.last_turn = Some(now);
        Ok(())
    }

    /// A connection could not be made. `random` is a uniform random number.
    pub fn failed(&self, now: Instant, random: u32) {
        let mut failing = self.failing.lock();
        let failing = failing.get_or_insert_with(|| Failing {
            backoff: Backoff::new(FIRST, LAST),
            delay: FIRST,
            not_before: now,
            last_turn: None,
        });
        // Tries that began together fail together, and count once.
        if now >= failing.not_before {
            failing.delay = failing.backoff.delay(random);
            failing.not_before = now + failing.delay;
        }
        self.is_failing.store(true, Ordering::Release);
    }

    /// A connection was made.
    pub fn succeeded(&self) {
        if self.is_failing.swap(false, Ordering::AcqRel) {
            *self.failing.lock() = None;
            self.changed.notify_waiters();
        }
    }

    /// A backend became free: one of those that wait for their turn may have it.
    pub fn freed(&self) {
        if self.is_failing.load(Ordering::Acquire) {
            self.changed.notify_one();
        }
    }

    /// Ends when it may be worth to look again before one's turn.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn tries_are_apart_however_many_want_one() {
        let (retry, start) = (Retry::default(), Instant::now());
        assert!(!retry.must_wait(start) && retry.turn(start).is_ok());
        for _ in 0..20 {
            retry.failed(start, u32::MAX);
        }
        assert!(retry.must_wait(start));
        let first = start + 50 * MS;
        assert_eq!(
            [retry.turn(start), retry.turn(start)],
            [Err(first), Err(first)],
            "who waits takes no turn"
        );
        assert_eq!(retry.turn(first), Ok(()));
        assert_eq!(retry.turn(first), Err(first + 50 * MS), "one at a time");
        retry.failed(first, u32::MAX);
        assert_eq!(retry.turn(first + MS), Err(first + 100 * MS));
        assert_eq!(retry.turn(start + 1000 * MS), Ok(()), "nobody was here for long");
        assert!(retry.must_wait(start + 1001 * MS), "the one that tries now");
    }

    #[test]
    fn a_success_ends_it_and_delays_are_bounded() {
        let (retry, mut now) = (Retry::default(), Instant::now());
        for _ in 0..20 {
            retry.failed(now, u32::MAX);
            let turn = retry.turn(now).unwrap_err();
            assert!(turn - now <= LAST, "{:?}", turn - now);
            assert_eq!(retry.turn(turn), Ok(()));
            now = turn;
        }
        retry.succeeded();
        assert!(!retry.must_wait(now) && retry.turn(now).is_ok());
    }

    #[tokio::test]
    async fn who_waits_hears_of_a_success() {
        let retry = Retry::default();
        retry.failed(Instant::now(), 0);
        let waits = retry.changed();
        retry.succeeded();
        tokio::time::timeout(1000 * MS, waits).await.unwrap();
    }
}
