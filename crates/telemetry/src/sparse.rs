//! Lines of the log about what may go on for days: the first, and then a few that say how many they stand for.

use std::time::{Duration, Instant};

/// At most one line in this time.
const PERIOD: Duration = Duration::from_secs(10);

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Sparse {
    written: Option<Instant>,
    left_out: u64,
}

impl Sparse {
    /// Whether to write a line at `now`, and how many were left out since the last one.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.written.is_some_and(|written| now.saturating_duration_since(written) < PERIOD) {
            self.left_out += 1;
            return None;
        }
        self.written = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stands_for_those_that_were_left_out() {
        let (mut lines, began) = (Sparse::default(), Instant::now());
        let said = [0, 1, 9, 10, 11, 60].map(|seconds| lines.admit(began + Duration::from_secs(seconds)));
        assert_eq!(said, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
