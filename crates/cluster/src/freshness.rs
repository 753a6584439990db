//! How recent what each standby shows is: the moment up to which it is known to have replayed everything, and how far
//! it is behind.
//!
//! The yardstick is the primary's insert position, remembered with the moment at which it was asked for: a
//! standby that has replayed up to it shows everything that was acknowledged before that moment. It does not matter
//! what the standby thinks of itself: one that was cut off has replayed all that it has received.

use std::collections::VecDeque;
use std::time::Duration;

use crate::{Moment, NodeId};

/// Samples of the primary that are remembered.
const SAMPLES: usize = 64;
/// The size of a WAL page, and of the header at its front (`xlog_internal.h`): short, or long at the front
/// of a segment. A position just behind a header is the page's border to a standby.
const PAGE: u64 = 8192;
const HEADERS: [u64; 2] = [24, 40];

/// How far a standby was behind when it was asked last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lag {
    /// WAL that it had not replayed.
    pub bytes: u64,
    /// How long before that the primary had written what it was to replay next.
    pub time: Duration,
}

/// What is known of one standby.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shown {
    /// The moment up to which it shows everything.
    pub as_of: Option<Moment>,
    /// Since when it has been watched without a break: it never showed less since than it showed then.
    pub watched: Option<Moment>,
    /// How far it is behind.
    pub lag: Option<Lag>,
}

/// What is known of the standbys; nothing is known of a primary.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Freshness {
    /// Indexed by [`NodeId::index`].
    pub nodes: Vec<Shown>,
}

/// How far behind a standby may be and still be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LagLimits {
    /// By WAL (bytes).
    pub bytes: Option<u64>,
    /// By time.
    pub time: Option<Duration>,
}

impl LagLimits {
    /// How much of what is allowed the lag uses up: more than 1 is too much.
    #[must_use]
    pub fn used_up(&self, lag: Lag) -> f64 {
        let bytes = self.bytes.map_or(0.0, |limit| part(lag.bytes, limit));
        let time = self.time.map_or(0.0, |limit| lag.time.as_secs_f64() / limit.as_secs_f64());
        bytes.max(time)
    }
}

fn part(bytes: u64, limit: u64) -> f64 {
    // Where it matters both are far below 2^53.
    #[allow(clippy::cast_precision_loss, reason = "a ratio")]
    let part = bytes as f64 / limit as f64;
    part
}

impl Freshness {
    /// What is known of the node.
    #[must_use]
    pub fn of(&self, node: NodeId) -> Shown {
        self.nodes.get(node.index()).copied().unwrap_or_default()
    }

    /// Whether the node shows everything that was acknowledged up to `moment`.
    #[must_use]
    pub fn covers(&self, node: NodeId, moment: Moment) -> bool {
        self.of(node).as_of.is_some_and(|as_of| as_of >= moment)
    }

    /// Whether the node shows everything that it showed at `moment`.
    #[must_use]
    pub fn keeps(&self, node: NodeId, moment: Moment) -> bool {
        self.of(node).watched.is_some_and(|watched| watched <= moment)
    }

    /// How much of what is allowed the node's lag uses up; a lag that is not known is none.
    #[must_use]
    pub fn used_up(&self, node: NodeId, limits: &LagLimits) -> f64 {
        self.of(node).lag.map_or(0.0, |lag| limits.used_up(lag))
    }
}

/// What the primary said, and when it was asked.
#[derive(Debug, Clone, Default)]
pub struct Yardstick {
    samples: VecDeque<(Moment, u64)>,
}

impl Yardstick {
    /// Another primary, or none: what was said before is void.
    pub fn clear(&mut self) {
        self.samples.clear();
    }

    /// The primary answered `insert_lsn` to a question sent at `asked`.
    pub fn primary(&mut self, asked: Moment, insert_lsn: u64) {
        let lsn = border(insert_lsn);
        match self.samples.back_mut() {
            // Nothing was written meanwhile: the later moment says more.
            Some(last) if last.1 == lsn => last.0 = asked,
            _ => {
                self.thin(asked);
                self.samples.push_back((asked, lsn));
            }
        }
    }

    /// Makes place: the sample goes whose neighbours are closest for its age, so that steps grow with age and
    /// far samples stay for standbys that are far behind.
    fn thin(&mut self, now: Moment) {
        if self.samples.len() < SAMPLES {
            return;
        }
        let gap = |place: usize| {
            let moment = |place: usize| self.samples.get(place).map_or(now.0, |(asked, _)| asked.0);
            let age = now.0.saturating_sub(moment(place)).as_secs_f64().max(f64::MIN_POSITIVE);
            moment(place + 1).saturating_sub(moment(place - 1)).as_secs_f64() / age
        };
        let closest = (1..self.samples.len() - 1).min_by(|a, b| gap(*a).total_cmp(&gap(*b)));
        self.samples.remove(closest.unwrap_or_default());
    }

    /// Up to when a standby that has replayed up to `replay_lsn` shows everything.
    #[must_use]
    pub fn standby(&self, replay_lsn: u64) -> Option<Moment> {
        self.samples.iter().rev().find(|(_, lsn)| *lsn <= replay_lsn).map(|(asked, _)| *asked)
    }

    /// How far a standby is behind that has replayed up to `replay_lsn`. What the primary wrote between two samples
    /// counts as written evenly; what it wrote before the first one, as written then.
    #[must_use]
    pub fn lag(&self, replay_lsn: u64) -> Option<Lag> {
        let (now, newest) = *self.samples.back()?;
        if newest <= replay_lsn {
            return Some(Lag::default());
        }
        let next = self.samples.iter().position(|(_, lsn)| *lsn > replay_lsn)?;
        let (after, after_lsn) = *self.samples.get(next)?;
        let before = next.checked_sub(1).and_then(|before| self.samples.get(before));
        let reached = before.map_or(after.0, |(before, before_lsn)| {
            let done = part(replay_lsn - before_lsn, after_lsn - before_lsn);
            before.0 + after.0.saturating_sub(before.0).mul_f64(done.clamp(0.0, 1.0))
        });
        Some(Lag { bytes: newest - replay_lsn, time: now.0.saturating_sub(reached) })
    }

    /// How far a standby is behind at least that follows another history: as long as this one is known.
    #[must_use]
    pub fn lag_elsewhere(&self, replay_lsn: u64) -> Option<Lag> {
        let ((first, _), (now, newest)) = (self.samples.front()?, self.samples.back()?);
        Some(Lag { bytes: newest.saturating_sub(replay_lsn), time: now.0.saturating_sub(first.0) })
    }
}

/// A position just behind a page's header is that page's border.
fn border(lsn: u64) -> u64 {
    let inside = lsn % PAGE;
    if HEADERS.contains(&inside) { lsn - inside } else { lsn }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(millis: u64) -> Moment {
        Moment(Duration::from_millis(millis))
    }

    #[test]
    fn a_standby_is_as_fresh_as_the_last_position_it_has_passed() {
        let mut yardstick = Yardstick::default();
        assert_eq!(yardstick.standby(1 << 40), None);
        yardstick.primary(at(10), 1_000);
        yardstick.primary(at(20), 2_000);
        yardstick.primary(at(30), 2_000);
        assert_eq!(yardstick.standby(999), None);
        assert_eq!(yardstick.standby(1_999), Some(at(10)));
        assert_eq!(yardstick.standby(2_000), Some(at(30)), "an idle primary is not lag");
        yardstick.clear();
        assert_eq!(yardstick.standby(2_000), None);
    }

    #[test]
    fn a_position_behind_a_page_header_is_the_border() {
        for header in HEADERS {
            let mut yardstick = Yardstick::default();
            yardstick.primary(at(1), 5 * PAGE + header);
            assert_eq!(yardstick.standby(5 * PAGE), Some(at(1)));
            assert_eq!(yardstick.standby(5 * PAGE - 1), None);
        }
        let mut yardstick = Yardstick::default();
        yardstick.primary(at(1), 5 * PAGE + 32);
        assert_eq!(yardstick.standby(5 * PAGE), None);
    }

    #[test]
    fn old_samples_grow_sparse_but_stay() {
        let mut yardstick = Yardstick::default();
        for sample in 1..10_000 {
            yardstick.primary(at(sample), sample * 100);
            assert!(yardstick.samples.len() <= SAMPLES);
        }
        assert_eq!(yardstick.standby(100), Some(at(1)));
        assert_eq!(yardstick.standby(9_999 * 100), Some(at(9_999)));
        let far = yardstick.standby(5_000 * 100).unwrap();
        assert!(far > at(2_000) && far <= at(5_000), "{far:?}");
    }

    #[test]
    fn what_is_not_known_covers_nothing() {
        let known = Shown { as_of: Some(at(10)), watched: Some(at(5)), lag: None };
        let freshness = Freshness { nodes: vec![Shown::default(), known] };
        assert!(!freshness.covers(NodeId(0), at(0)) && !freshness.covers(NodeId(7), at(0)));
        assert!(freshness.covers(NodeId(1), at(10)) && !freshness.covers(NodeId(1), at(11)));
        assert!(!freshness.keeps(NodeId(0), at(9)) && !freshness.keeps(NodeId(7), at(9)));
        assert!(freshness.keeps(NodeId(1), at(5)) && !freshness.keeps(NodeId(1), at(4)));
    }

    #[test]
    fn lag_is_what_the_primary_has_more_and_since_when() {
        let mut yardstick = Yardstick::default();
        assert_eq!(yardstick.lag(0), None);
        yardstick.primary(at(1000), 1_000);
        yardstick.primary(at(2000), 1_000);
        let lag = |bytes, millis| Some(Lag { bytes, time: Duration::from_millis(millis) });
        assert_eq!(yardstick.lag(1_000), lag(0, 0), "an idle primary is not lag");
        assert_eq!(yardstick.lag(900), lag(100, 0), "how long is not known yet");
        yardstick.primary(at(3000), 2_000);
        yardstick.primary(at(4000), 3_000);
        assert_eq!(yardstick.lag(3_000), lag(0, 0));
        assert_eq!(yardstick.lag(9_000), lag(0, 0), "it was asked later");
        assert_eq!(yardstick.lag(2_990), lag(10, 10), "written a moment ago");
        assert_eq!(yardstick.lag(2_000), lag(1_000, 1000));
        assert_eq!(yardstick.lag(1_500), lag(1_500, 1500));
        assert_eq!(yardstick.lag(900), lag(2_100, 2000));
        assert_eq!(yardstick.lag_elsewhere(2_500), lag(500, 2000));
        assert_eq!(yardstick.lag_elsewhere(5_000), lag(0, 2000));
    }

    #[test]
    fn lag_uses_up_what_is_allowed() {
        let lag = Lag { bytes: 50, time: Duration::from_secs(3) };
        let limits = |bytes, time: Option<u64>| LagLimits { bytes, time: time.map(Duration::from_secs) };
        assert_eq!(limits(None, None).used_up(lag), 0.0);
        assert_eq!(limits(Some(100), None).used_up(lag), 0.5);
        assert_eq!(limits(Some(100), Some(2)).used_up(lag), 1.5);
        let freshness = Freshness { nodes: vec![Shown { lag: Some(lag), ..Shown::default() }] };
        assert_eq!(freshness.used_up(NodeId(0), &limits(Some(25), None)), 2.0);
        assert_eq!(freshness.used_up(NodeId(1), &limits(Some(25), None)), 0.0);
    }
}
