//! Which failures to connect are worth a line: a node that dies fails for every session at once.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cluster::NodeId;
use parking_lot::Mutex;

/// At most one line for a node and kind of failure in this time.
const PERIOD: Duration = Duration::from_secs(1);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct ConnectLog {
    lines: Mutex<HashMap<(NodeId, &'static str), Line>>,
}

#[derive(Debug)]
struct Line {
    written: Instant,
    left_out: u64,
}

impl ConnectLog {
    /// Whether to write a line for a failure of that kind, and how many were left out since the last one.
    pub(crate) fn admit(&self, node: NodeId, kind: &'static str, now: Instant) -> Option<u64> {
        let mut lines = self.lines.lock();
        let Some(line) = lines.get_mut(&(node, kind)) else {
            lines.insert((node, kind), Line { written: now, left_out: 0 });
            return Some(0);
        };
        if now.saturating_duration_since(line.written) < PERIOD {
            line.left_out += 1;
            return None;
        }
        line.written = now;
        Some(std::mem::take(&mut line.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_says_how_many_it_stands_for() {
        let log = ConnectLog::default();
        let began = Instant::now();
        let at = |millis| log.admit(NodeId(1), "unreachable", began + Duration::from_millis(millis));
        assert_eq!((at(0), at(1), at(999)), (Some(0), None, None));
        assert_eq!(log.admit(NodeId(2), "unreachable", began), Some(0), "another node");
        assert_eq!(log.admit(NodeId(1), "rejected", began), Some(0), "another failure");
        assert_eq!((at(1000), at(1001), at(5000)), (Some(2), None, Some(1)));
    }
}
