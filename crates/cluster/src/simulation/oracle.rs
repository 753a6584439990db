//! What must hold whatever happens: judged from what was delivered, not from what the core thinks of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::PROMOTE_WITHIN;
use crate::*;

/// A report that is younger is not one that the core has stopped to wait for.
const FRESH: Duration = Duration::from_secs(8);

/// What the outside remembers to judge the core by. Servers, not ids: ids move.
#[derive(Default)]
pub(super) struct Oracle {
    pub(super) primary: Option<usize>,
    pub(super) barred: BTreeSet<usize>,
    pub(super) newest: u32,
    /// When the last report of each server that counts was begun.
    pub(super) heard: BTreeMap<usize, Moment>,
    /// What each server said last, as far as it was delivered in time.
    pub(super) said: BTreeMap<usize, Facts>,
    /// Failed checks in a row, as delivered.
    pub(super) failures: BTreeMap<usize, u32>,
    /// When the last good check of each server was begun.
    pub(super) told: BTreeMap<usize, Moment>,
    /// Who was asked to promote itself, and when, until it is known what became of it.
    pub(super) promoting: Option<(usize, Moment)>,
    /// An administrator has asked for the promotion.
    pub(super) at_word: bool,
    pub(super) renumbered: Moment,
    pub(super) epoch: Epoch,
    pub(super) pictures: BTreeMap<Epoch, Vec<(NodeState, Role)>>,
}

impl Oracle {
    pub(super) fn hear(
        &mut self,
        server: Option<&usize>,
        started: Moment,
        said: Result<Facts, ConnectFailure>,
    ) {
        let Some(server) = server.copied() else { return };
        let older = self.heard.get(&server).is_some_and(|last| started < *last);
        if older || started < self.renumbered {
            return;
        }
        self.heard.insert(server, started);
        let facts = match said {
            Ok(facts) => facts,
            Err(failure) => return self.hear_failure(server, failure),
        };
        self.failures.insert(server, 0);
        self.told.insert(server, started);
        self.said.insert(server, facts);
        let late = |asked: Moment| started.0 > asked.0 + PROMOTE_WITHIN;
        if facts.in_recovery && self.promoting.is_some_and(|(who, asked)| who == server && late(asked)) {
            self.promoting = None;
        }
        if facts.in_recovery {
            self.barred.remove(&server);
        }
    }

    pub(super) fn said(&self, server: usize) -> Facts {
        self.said[&server]
    }

    /// A check has failed in a way that counts.
    fn hear_failure(&mut self, server: usize, failure: ConnectFailure) {
        if failure == ConnectFailure::NotReady {
            self.told.remove(&server);
        }
        let count = self.failures.entry(server).or_default();
        *count = match failure {
            ConnectFailure::Rejected | ConnectFailure::NotReady => 0,
            _ => *count + 1,
        };
    }

    /// Somebody is about to be promoted in place of `old`.
    pub(super) fn promotion(
        &mut self,
        now: Moment,
        server: usize,
        old: Option<usize>,
        streams: impl Fn(Facts) -> bool,
    ) {
        assert_eq!(
            self.promoting, None,
            "db{server} is asked although nobody knows what became of another one"
        );
        assert!(self.said(server).in_recovery, "db{server} takes writes already");
        if !std::mem::take(&mut self.at_word) {
            let newest = self.said(server).timeline.is_none_or(|own| own >= self.newest);
            assert!(newest, "db{server} has nothing of timeline {}", self.newest);
            let old = old.expect("nobody was lost");
            assert!(
                self.failures.get(&old).is_some_and(|count| *count > 0),
                "db{old} has not failed a check"
            );
            for (other, facts) in &self.said {
                let fresh = self.told.get(other).is_some_and(|at| now.0.saturating_sub(at.0) < FRESH);
                let ours = facts.system_identifier == self.said(old).system_identifier;
                let alive = self.failures.get(other) == Some(&0) && fresh && ours && *other != old;
                assert!(
                    !alive || !facts.in_recovery || !streams(*facts),
                    "db{other} still receives from db{old}"
                );
            }
        }
        self.promoting = Some((server, now));
    }

    /// It is known that nothing came of a promotion.
    pub(super) fn promotion_failed(&mut self, server: Option<&usize>) {
        self.promoting = self.promoting.filter(|(who, _)| Some(who) != server);
    }
}
