//! How recent what each standby shows is: the moment up to which it is known to have replayed everything.
//!
//! The yardstick is the primary's insert position, remembered with the moment at which it was asked for: a
//! standby that has replayed up to it shows everything that was acknowledged before that moment.

use std::collections::VecDeque;

use crate::{Moment, NodeId};

/// Samples of the primary that are remembered.
const SAMPLES: usize = 64;
/// The size of a WAL page, and of the header at its front (`xlog_internal.h`): short, or long at the front
/// of a segment. A position just behind a header is the page's border to a standby.
const PAGE: u64 = 8192;
const HEADERS: [u64; 2] = [24, 40];

/// By node, the moment up to which it shows everything; `None` when that is not known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Freshness {
    /// Indexed by [`NodeId::index`].
    pub as_of: Vec<Option<Moment>>,
}

impl Freshness {
    /// Whether the node shows everything that was acknowledged up to `moment`.
    #[must_use]
    pub fn covers(&self, node: NodeId, moment: Moment) -> bool {
        self.as_of.get(node.index()).copied().flatten().is_some_and(|as_of| as_of >= moment)
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
        let freshness = Freshness { as_of: vec![None, Some(at(10))] };
        assert!(!freshness.covers(NodeId(0), at(0)) && !freshness.covers(NodeId(7), at(0)));
        assert!(freshness.covers(NodeId(1), at(10)) && !freshness.covers(NodeId(1), at(11)));
    }
}
