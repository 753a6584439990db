//! How long a node takes to answer, remembered so that trouble shows at once and is forgotten slowly.

/// A sample above what is remembered counts so much.
const RISE: f32 = 0.05;
/// One below it so much.
const FALL: f32 = 0.02;
/// One above so many times what is remembered counts as that: one hiccup is no trouble yet.
const MOST: f32 = 4.0;
/// The first samples are averaged: the very first are those of cold connections.
const FIRST: u32 = 64;

/// A peak-sensitive moving average of latencies.
///
/// As in Finagle's and linkerd's load balancers, but counted by samples: a node that answers rarely does not
/// become fast by that. Two words that fit into one, for those who share it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PeakEwma {
    seconds: f32,
    samples: u32,
}

impl PeakEwma {
    /// What is remembered (seconds); 0 before the first sample.
    #[must_use]
    pub fn seconds(self) -> f64 {
        f64::from(self.seconds)
    }

    /// What is remembered after another answer, which took so long (seconds).
    #[must_use]
    pub fn after(self, sample: f32) -> Self {
        if !sample.is_finite() || sample <= 0.0 {
            return self;
        }
        let samples = self.samples.saturating_add(1).min(FIRST);
        if self.samples == 0 {
            return Self { seconds: sample, samples };
        }
        let sample = sample.min(MOST * self.seconds);
        let weight = if sample > self.seconds { RISE } else { FALL };
        let weight =
            if samples < FIRST { 1.0 / f32::from(u8::try_from(samples).unwrap_or(1)) } else { weight };
        Self { seconds: (sample - self.seconds).mul_add(weight, self.seconds), samples }
    }

    /// As one word.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        u64::from(self.samples) << 32 | u64::from(self.seconds.to_bits())
    }

    /// From [`Self::to_bits`].
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = bits.to_be_bytes();
        let (samples, seconds) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        Self { seconds: f32::from_bits(seconds), samples }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: PeakEwma, sample: f32, times: usize) -> PeakEwma {
        (0..times).fold(start, |ewma, _| ewma.after(sample))
    }

    fn near(ewma: PeakEwma, seconds: f64) -> bool {
        (ewma.seconds() / seconds - 1.0).abs() < 0.05
    }

    #[test]
    fn it_rises_fast_and_falls_slowly() {
        let calm = after(PeakEwma::default(), 0.001, 100);
        assert!(near(calm, 0.001));
        let slow = after(calm, 0.005, 40);
        assert!(slow.seconds() > 0.004, "{slow:?}");
        let fast = after(slow, 0.001, 20);
        assert!(fast.seconds() > 0.003 && fast.seconds() < 0.005, "{fast:?}");
        assert!(near(after(slow, 0.001, 300), 0.001));
    }

    #[test]
    fn one_hiccup_is_no_trouble() {
        let calm = after(PeakEwma::default(), 0.001, 100);
        assert!(calm.after(1.0).seconds() < 0.0012);
        let begun_cold = after(PeakEwma::default().after(0.02), 0.001, 100);
        assert!(begun_cold.seconds() < 0.0015, "{begun_cold:?}");
    }

    #[test]
    fn it_fits_into_one_word() {
        let ewma = after(PeakEwma::default(), 0.0025, 7);
        assert_eq!(PeakEwma::from_bits(ewma.to_bits()), ewma);
        assert_eq!(PeakEwma::from_bits(0), PeakEwma::default());
    }

    #[test]
    fn nonsense_changes_nothing() {
        let some = PeakEwma::default().after(0.002);
        for sample in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert_eq!(some.after(sample), some);
        }
    }
}
