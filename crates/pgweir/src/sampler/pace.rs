//! When the next round is due: now and then, and soon when somebody wishes it.

use std::time::Duration;

use cluster::Moment;

/// The rate of the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Pace {
    slow: Duration,
    fast: Duration,
    /// When the last round began.
    last: Option<Moment>,
    /// Somebody wished for a round since the last one began.
    wished: bool,
}

impl Pace {
    /// Time between two rounds when nobody wishes for one, and at least when somebody does.
    pub(super) fn set(&mut self, slow: Duration, fast: Duration) {
        (self.slow, self.fast) = (slow, fast);
    }

    /// Somebody wishes for a round that begins after this.
    pub(super) fn wish(&mut self) {
        self.wished = true;
    }

    /// Whether one more wish would change anything.
    pub(super) fn is_wished(&self) -> bool {
        self.wished
    }

    /// A round begins.
    pub(super) fn begin(&mut self, now: Moment) {
        self.last = Some(now);
        self.wished = false;
    }

    /// When the next round is to begin; the first one at once.
    pub(super) fn due(&self) -> Moment {
        let period = if self.wished { self.fast } else { self.slow };
        self.last.map_or_else(Moment::default, |last| Moment(last.0.saturating_add(period)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment(Duration::from_millis(millis))
    }

    fn pace() -> Pace {
        let mut pace = Pace::default();
        pace.set(Duration::from_secs(1), Duration::from_millis(20));
        pace
    }

    #[test]
    fn the_first_round_is_due_at_once_and_then_now_and_then() {
        let mut pace = pace();
        assert_eq!(pace.due(), at(0));
        pace.begin(at(300));
        assert_eq!(pace.due(), at(1300));
    }

    #[test]
    fn a_wish_is_for_one_round_soon() {
        let mut pace = pace();
        pace.begin(at(100));
        pace.wish();
        pace.wish();
        assert!(pace.is_wished());
        assert_eq!(pace.due(), at(120), "not more often than the least period");
        pace.begin(at(500));
        assert_eq!((pace.is_wished(), pace.due()), (false, at(1500)));
        pace.wish();
        assert_eq!(pace.due(), at(520), "wishes keep it going");
    }

    #[test]
    fn other_periods_hold_for_the_round_that_is_awaited() {
        let mut pace = pace();
        pace.begin(at(0));
        pace.set(Duration::from_secs(3), Duration::from_millis(5));
        assert_eq!(pace.due(), at(3000));
        pace.wish();
        assert_eq!(pace.due(), at(5));
    }
}
