//! What the counts of the databases were a while ago, so that SHOW STATS can tell averages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use proxy::stats::Totals;

/// Averages are over at least this time (since the start: less), and less than twice of it.
const PERIOD: Duration = Duration::from_secs(60);

/// The counts by database.
pub(crate) type Counts = BTreeMap<Arc<str>, Totals>;

struct Snapshot {
    taken: Instant,
    counts: Counts,
}

/// The two snapshots before now.
pub(crate) struct Averages(Mutex<(Snapshot, Option<Snapshot>)>);

impl Averages {
    /// Everything begins at zero, `now`.
    pub(crate) fn new(now: Instant) -> Self {
        Self(Mutex::new((Snapshot { taken: now, counts: Counts::new() }, None)))
    }

    /// The counts that `now` is compared with, and how long ago they were. Keeps `counts` when it is time to.
    pub(crate) fn before(&self, now: Instant, counts: &Counts) -> (Counts, Duration) {
        let mut kept = self.0.lock();
        let (older, newer) = &mut *kept;
        let due = now.duration_since(newer.as_ref().unwrap_or(older).taken) >= PERIOD;
        if due {
            let next = Snapshot { taken: now, counts: counts.clone() };
            if let Some(newer) = newer.replace(next) {
                *older = newer;
            }
        }
        (older.counts.clone(), now.duration_since(older.taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_between_one_period_and_two() {
        let start = Instant::now();
        let averages = Averages::new(start);
        let at = |seconds| start + Duration::from_secs(seconds);
        let counts = Counts::from([(Arc::from("app"), Totals::default())]);
        for (seconds, window, known) in [(30, 30, 0), (61, 61, 0), (100, 100, 0), (122, 61, 1), (200, 78, 1)]
        {
            let (before, since) = averages.before(at(seconds), &counts);
            assert_eq!((since.as_secs(), before.len()), (window, known), "at {seconds}");
        }
    }
}
