//! Exponential back-off with jitter; pure, the randomness is an argument.

use std::time::Duration;

/// Doubles from `first` to `last`; each delay is jittered to between half and all of its size.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    last: Duration,
    next: Duration,
}

impl Backoff {
    /// A back-off that begins with `first` and never exceeds `last`.
    #[must_use]
    pub fn new(first: Duration, last: Duration) -> Self {
        Self { first, last, next: first }
    }

    /// The next delay. `random` is a uniform random number.
    pub fn delay(&mut self, random: u32) -> Duration {
        let full = self.next;
        self.next = self.next.saturating_mul(2).min(self.last);
        let fraction = 0.5 + f64::from(random) / f64::from(u32::MAX) / 2.0;
        full.mul_f64(fraction)
    }

    /// After a success the next delay is the first one again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_the_bound_and_begins_again() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(300));
        assert_eq!(backoff.delay(u32::MAX), Duration::from_millis(100));
        assert_eq!(backoff.delay(u32::MAX), Duration::from_millis(200));
        assert_eq!(backoff.delay(u32::MAX), Duration::from_millis(300));
        assert_eq!(backoff.delay(0), Duration::from_millis(150));
        backoff.reset();
        assert_eq!(backoff.delay(u32::MAX), Duration::from_millis(100));
    }
}
