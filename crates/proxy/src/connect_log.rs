//! Which failures to connect are worth a line: a node that dies fails for every session at once, and a login that it
//! refuses is about its user.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cluster::{ConnectFailure, NodeId};
use parking_lot::Mutex;

/// At most one line for a node and kind of failure (of a user, when it was refused) in this time.
const PERIOD: Duration = Duration::from_secs(1);
/// As many lines are remembered; beyond it those that are older than the period are forgotten.
const MAX_LINES: usize = 1000;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct ConnectLog {
    lines: Mutex<HashMap<(NodeId, &'static str, String), Line>>,
}

#[derive(Debug)]
struct Line {
    written: Instant,
    left_out: u64,
}

impl ConnectLog {
    /// Whether to write a line for a failure of that kind, and how many were left out since the last one.
    pub(crate) fn admit(
        &self,
        node: NodeId,
        failure: ConnectFailure,
        user: &str,
        now: Instant,
    ) -> Option<u64> {
        let about = if failure == ConnectFailure::Rejected { user } else { "" };
        let key = (node, failure.as_str(), about.to_owned());
        let mut lines = self.lines.lock();
        if lines.len() >= MAX_LINES {
            lines.retain(|_, line| now.saturating_duration_since(line.written) < PERIOD);
        }
        let Some(line) = lines.get_mut(&key) else {
            if lines.len() < MAX_LINES {
                lines.insert(key, Line { written: now, left_out: 0 });
            }
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
        let (unreachable, rejected) = (ConnectFailure::Unreachable, ConnectFailure::Rejected);
        let at = |millis| log.admit(NodeId(1), unreachable, "joe", began + Duration::from_millis(millis));
        assert_eq!((at(0), at(1), at(999)), (Some(0), None, None));
        assert_eq!(log.admit(NodeId(2), unreachable, "joe", began), Some(0), "another node");
        assert_eq!(
            log.admit(NodeId(1), unreachable, "jim", began),
            None,
            "whose session it is does not matter"
        );
        assert_eq!(log.admit(NodeId(1), rejected, "joe", began), Some(0), "another failure");
        assert_eq!(log.admit(NodeId(1), rejected, "joe", began), None);
        assert_eq!(log.admit(NodeId(1), rejected, "jim", began), Some(0), "another user");
        assert_eq!((at(1000), at(1001), at(5000)), (Some(3), None, Some(1)));
    }
}
