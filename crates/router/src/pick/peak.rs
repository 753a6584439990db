//! How long a node takes to answer, remembered so that trouble shows at once and is forgotten slowly.

/// A sample above what is remembered counts so much.
const RISE: f64 = 0.05;
/// One below it so much.
const FALL: f64 = 0.01;

/// A peak-sensitive moving average of latencies (seconds).
///
/// As in Finagle's and linkerd's load balancers, but counted by samples: a node that answers rarely does not
/// become fast by that.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct PeakEwma(pub f64);

impl PeakEwma {
    /// What is remembered after another answer.
    #[must_use]
    pub fn after(self, sample: f64) -> Self {
        if !sample.is_finite() || sample <= 0.0 {
            return self;
        }
        if self.0 <= 0.0 {
            return Self(sample);
        }
        let weight = if sample > self.0 { RISE } else { FALL };
        Self((sample - self.0).mul_add(weight, self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: PeakEwma, sample: f64, times: usize) -> f64 {
        (0..times).fold(start, |ewma, _| ewma.after(sample)).0
    }

    #[test]
    fn it_rises_fast_and_falls_slowly() {
        let calm = PeakEwma::default().after(0.001);
        assert_eq!(calm.0, 0.001, "the first answer is all that is known");
        let slow = after(calm, 0.005, 40);
        assert!(slow > 0.004, "{slow}");
        let fast = after(PeakEwma(0.005), 0.001, 40);
        assert!(fast > 0.003 && fast < 0.005, "{fast}");
        assert!(after(PeakEwma(0.005), 0.001, 500) < 0.0011);
    }

    #[test]
    fn nonsense_changes_nothing() {
        for sample in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(PeakEwma(0.002).after(sample), PeakEwma(0.002));
        }
    }
}
