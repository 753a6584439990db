//! How long something took, over many times: enough for percentiles, in little room.

use std::hash::Hasher;
use std::time::Duration;

/// Buckets: four for each doubling, from a microsecond to more than a minute.
const BUCKETS: usize = 108;

/// A histogram of times.
#[derive(Debug, Clone)]
pub struct Times {
    buckets: [u32; BUCKETS],
    nanos: u64,
}

impl Default for Times {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], nanos: 0 }
    }
}

impl Times {
    pub(super) fn observe(&mut self, took: Duration) {
        self.add_to_sum(took);
        if let Some(count) = self.buckets.get_mut(bucket(micros(took))) {
            *count = count.saturating_add(1);
        }
    }

    pub(super) fn add_to_sum(&mut self, took: Duration) {
        self.nanos = self.nanos.saturating_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.nanos = self.nanos.saturating_add(other.nanos);
        for (count, more) in self.buckets.iter_mut().zip(other.buckets) {
            *count = count.saturating_add(more);
        }
    }

    /// All of them together.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.nanos)
    }

    /// The time that `percent` of them did not exceed, to within an eighth; zero when there are none.
    #[must_use]
    pub fn percentile(&self, percent: u64) -> Duration {
        let total: u64 = self.buckets.iter().map(|count| u64::from(*count)).sum();
        let rank = (total * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (at, count) in self.buckets.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= rank {
                return Duration::from_micros(u64::midpoint(lower(at), lower(at + 1)));
            }
        }
        Duration::ZERO
    }
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

/// The bucket of so many microseconds.
fn bucket(micros: u64) -> usize {
    if micros < 4 {
        return usize::try_from(micros).unwrap_or(0);
    }
    let exponent = u64::from(63 - micros.leading_zeros());
    let within = (micros >> (exponent - 2)) & 3;
    usize::try_from((exponent - 1) * 4 + within).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

/// The fewest microseconds of a bucket.
fn lower(bucket: usize) -> u64 {
    let bucket = u64::try_from(bucket).unwrap_or(u64::MAX);
    if bucket < 4 {
        return bucket;
    }
    (4 + bucket % 4) << (bucket / 4 - 1)
}

/// The keys are hashes already.
#[derive(Debug, Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_one_another() {
        for at in 0..BUCKETS - 1 {
            assert_eq!(bucket(lower(at)), at);
            assert_eq!(bucket(lower(at + 1) - 1), at);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_close() {
        let mut times = Times::default();
        (1..=1000).for_each(|ms| times.observe(Duration::from_millis(ms)));
        for (percent, exact) in [(50, 500.0), (95, 950.0), (99, 990.0)] {
            let found = times.percentile(percent).as_secs_f64() * 1000.0;
            assert!((found / exact - 1.0).abs() < 0.13, "p{percent}: {found}");
        }
        assert_eq!(times.sum(), Duration::from_millis(500_500));
        assert_eq!(Times::default().percentile(99), Duration::ZERO);
    }
}
