//! Which standbys a session may read from: those that show what its level of consistency asks for, and those that are not
//! too far behind.
//!
//! No round trip is added: the session remembers when it was told that its write is done and when it read what, the
//! process when anybody wrote, and the sampler says up to when each standby shows everything.
//!
//! - `read_your_writes`: everything up to the session's last write.
//! - `monotonic`: also, everything that it has read. A standby shows what it showed before as long as it has been
//!   watched without a break, so a session goes on with the standby that it has read from; elsewhere it goes when
//!   another one is known to show everything up to its last read. What the primary shows may be newer than what is
//!   known of any standby.
//! - `global`: also, everything up to the last write of anybody.

use std::sync::Arc;
use std::time::Duration;

use cluster::{LagLimits, Moment, NodeId, Topology};
use config::Consistency;
use router::Target;

use super::Session;
use super::acquire::Interrupt;
use crate::last_write::LastWrite;

/// What is done by a backend whose end nobody has seen may be done so much later.
const IN_DOUBT: Duration = Duration::from_secs(5);
/// After so many reads in a row on the primary for no other reason than the reads before, one waits for a standby.
const PATIENCE: u32 = 8;
/// Standbys that never get there are waited for ever less often, down to once in so many reads.
const MOST_PATIENCE: u32 = 2048;
/// How long such a read may wait at least, whatever the sampler's rate.
const LEAST_WAIT: Duration = Duration::from_millis(100);
/// A standby is passed over that uses up so much more of the allowed lag than the best one.
const CLEARLY_BEHIND: f64 = 0.25;

/// What a session has written and read, as far as it binds where it may read next. Most idle sessions have none.
#[derive(Debug)]
pub(super) struct History {
    /// When the client was told that its last write is done.
    written: Option<Moment>,
    /// When it last read from the primary; followed for [`Consistency::Monotonic`] and above.
    seen: Option<Moment>,
    /// The standby that it read from since, and when; the same.
    stands: Option<(NodeId, Moment)>,
    /// The last write to the session's database, once it has written.
    last_write: Option<Arc<LastWrite>>,
    /// Reads in a row that were on the primary because of `seen` alone.
    blocked: u32,
    patience: u32,
}

impl Default for History {
    fn default() -> Self {
        let (written, seen, stands, last_write) = (None, None, None, None);
        Self { written, seen, stands, last_write, blocked: 0, patience: PATIENCE }
    }
}

/// What binds a read now.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// Everything written up to here must be shown.
    written: Option<Moment>,
    /// So must everything up to here.
    seen: Option<Moment>,
    /// And what that standby showed then.
    stands: Option<(NodeId, Moment)>,
}

fn follows_reads(level: Consistency) -> bool {
    matches!(level, Consistency::Monotonic | Consistency::Global)
}

impl Session {
    /// The level that holds now.
    pub(super) fn consistency(&mut self) -> Consistency {
        let chosen = self.declared.of(self.engine.settings()).level;
        let level =
            chosen.unwrap_or_else(|| self.config.consistency(&self.identity.database, &self.identity.user));
        let before = self.level.replace(level);
        if follows_reads(level) && before.is_some_and(|before| !follows_reads(before)) {
            // What it has read until now was not followed.
            let now = self.worker.shared.deps.now();
            self.history().seen = Some(now);
        }
        level
    }

    fn history(&mut self) -> &mut History {
        self.history.get_or_insert_default()
    }

    /// The client is told now that what it has written is done.
    pub(super) fn has_written(&mut self) {
        let now = self.worker.shared.deps.now();
        self.history().written = Some(now);
        self.wrote_at(now);
    }

    /// Something of what the session has written may be known to somebody now.
    pub(super) fn may_have_written(&mut self) {
        let now = self.worker.shared.deps.now();
        self.wrote_at(now);
    }

    /// The session has lost sight of a backend that may still be writing for it.
    pub(super) fn writes_in_doubt(&mut self) {
        let now = self.worker.shared.deps.now();
        self.wrote_at(Moment(now.0.saturating_add(IN_DOUBT)));
    }

    fn wrote_at(&mut self, at: Moment) {
        let (writes, database) = (&self.worker.shared.last_writes, &self.identity.node_database);
        let history = self.history.get_or_insert_default();
        history.last_write.get_or_insert_with(|| writes.of(database)).note(at);
    }

    /// The client has been told what it read on that node.
    pub(super) fn has_read(&mut self, node: NodeId, on_standby: bool) {
        // A standby was chosen by the level of a moment ago.
        let level = self.level.filter(|_| on_standby);
        if !follows_reads(level.unwrap_or_else(|| self.consistency())) {
            return;
        }
        let now = self.worker.shared.deps.now();
        if on_standby {
            self.history().stands = Some((node, now));
        } else {
            let history = self.history();
            (history.seen, history.stands) = (Some(now), None);
            // The next read may be on a standby if the question is asked after this one.
            (self.worker.shared.deps.want_fresh)();
        }
    }

    /// The standby that a session whose reads are followed goes on with, as far as that is up to it.
    pub(super) fn followed_node(&self) -> Option<NodeId> {
        let history = self.level.filter(|level| follows_reads(*level)).and(self.history.as_ref())?;
        history.stands.map(|(node, _)| node)
    }

    fn bounds(&mut self, level: Consistency) -> Bounds {
        let known = |history: &History| (history.written, history.seen, history.stands);
        let (written, seen, stands) = self.history.as_deref().map_or((None, None, None), known);
        let all = match level {
            Consistency::Global => self.worker.shared.last_writes.last(&self.identity.node_database),
            _ => None,
        };
        let followed = follows_reads(level);
        Bounds {
            written: written.max(all),
            seen: seen.filter(|_| followed),
            stands: stands.filter(|_| followed),
        }
    }

    /// The standbys that do not show what the session must see.
    pub(super) fn stale_nodes(&mut self, topology: &Topology, target: Target) -> Vec<NodeId> {
        // A node that is named is meant as it is.
        if matches!(target, Target::Primary | Target::Anywhere | Target::Node(_)) {
            return Vec::new();
        }
        let level = self.consistency();
        if level == Consistency::Eventual {
            return Vec::new();
        }
        let bounds = self.bounds(level);
        if bounds.is_none() {
            return Vec::new();
        }
        let freshness = self.freshness.load();
        // What binds is remembered for good: a standby that comes back may show less than the others.
        let mut there = 0;
        let standbys = topology.usable_standbys().map(|node| node.id).inspect(|_| there += 1);
        let stale: Vec<NodeId> = standbys.filter(|id| !bounds.allow(freshness, *id)).collect();
        let behind = stale.iter().any(|id| !bounds.allow_but_for_stands(freshness, *id));
        if behind || (!stale.is_empty() && stale.len() == there) {
            (self.worker.shared.deps.want_fresh)();
        }
        stale
    }

    /// The standbys that are too far behind to be read, whatever the session has done: others are read instead.
    pub(super) fn lagging_nodes(&mut self, topology: &Topology, excluded: &[NodeId]) -> Vec<NodeId> {
        let config = self.config.get();
        let limits = LagLimits { bytes: config.delay_threshold, time: config.delay_threshold_by_time };
        if limits == LagLimits::default() {
            return Vec::new();
        }
        let freshness = self.freshness.load();
        let used_up = |id: NodeId| freshness.used_up(id, &limits);
        let standbys = topology.usable_standbys().map(|node| node.id).filter(|id| !excluded.contains(id));
        let mut most = 1.0_f64;
        if config.prefer_lower_delay_standby {
            let least = standbys.clone().map(used_up).min_by(f64::total_cmp).unwrap_or_default();
            most = most.min(least + CLEARLY_BEHIND);
        }
        standbys.filter(|id| used_up(*id) > most).collect()
    }

    /// A session that reads without a pause would be on the primary for ever: what it has read there is always newer
    /// than what is known of the standbys. Once in a while a read waits until one of them is known to show it.
    /// Gives what is to be waited for by [`Session::catch_up`].
    pub(super) fn waits_for(&mut self, topology: &Topology, target: Target) -> Option<Moment> {
        let seen = self.is_blocked(topology, target);
        let history = self.history.as_mut()?;
        history.blocked = if seen.is_some() { history.blocked + 1 } else { 0 };
        let seen = seen.filter(|_| history.blocked >= history.patience)?;
        history.blocked = 0;
        Some(seen)
    }

    /// Waits a little for a standby that shows everything up to `seen`.
    pub(super) async fn catch_up(&mut self, topology: &Topology, seen: Moment) -> Result<(), Interrupt> {
        let caught_up = self.wait_for_standby(topology, seen).await?;
        let history = self.history();
        history.patience = if caught_up { PATIENCE } else { (history.patience * 2).min(MOST_PATIENCE) };
        Ok(())
    }

    /// Since when, if what it has read from the primary is all that keeps it there.
    fn is_blocked(&mut self, topology: &Topology, target: Target) -> Option<Moment> {
        let seen = self.history.as_ref()?.seen?;
        let level = self.consistency();
        if !follows_reads(level) || matches!(target, Target::Primary | Target::Anywhere | Target::Node(_)) {
            return None;
        }
        let bounds = self.bounds(level);
        let freshness = self.freshness.load();
        let mut standbys = topology.usable_standbys().map(|node| node.id);
        if standbys.clone().any(|id| bounds.allow(freshness, id)) {
            return None;
        }
        let unseen = Bounds { seen: None, ..bounds };
        standbys.any(|id| unseen.allow(freshness, id)).then_some(seen)
    }

    /// Whether one came to show everything up to `seen`.
    async fn wait_for_standby(&mut self, topology: &Topology, seen: Moment) -> Result<bool, Interrupt> {
        let deps = &self.worker.shared.deps;
        let limit = self.config.get().sr_check_min_period.saturating_mul(3).max(LEAST_WAIT);
        let (mut changes, freshness) = (deps.freshness.changes(), deps.freshness.clone());
        (deps.want_fresh)();
        let standbys: Vec<NodeId> = topology.usable_standbys().map(|node| node.id).collect();
        let covered = async move {
            while !standbys.iter().any(|id| freshness.load().covers(*id, seen)) {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        Ok(self.watched_or_cancelled(tokio::time::timeout(limit, covered)).await?.is_ok())
    }
}

impl Bounds {
    fn is_none(&self) -> bool {
        self.written.is_none() && self.seen.is_none() && self.stands.is_none()
    }

    fn allow_but_for_stands(&self, freshness: &cluster::Freshness, node: NodeId) -> bool {
        self.written.max(self.seen).is_none_or(|moment| freshness.covers(node, moment))
    }

    fn allow(&self, freshness: &cluster::Freshness, node: NodeId) -> bool {
        let stands = self.stands.is_none_or(|(stood, at)| {
            (stood == node && freshness.keeps(node, at)) || freshness.covers(node, at)
        });
        stands && self.allow_but_for_stands(freshness, node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{Freshness, Shown};

    fn at(millis: u64) -> Moment {
        Moment(Duration::from_millis(millis))
    }

    #[test]
    fn a_standby_must_show_what_was_written_and_what_was_read() {
        let known = |as_of, watched| Shown { as_of: Some(at(as_of)), watched: Some(at(watched)), lag: None };
        let freshness = Freshness { nodes: vec![Shown::default(), known(100, 10), known(200, 180)] };
        let (one, two) = (NodeId(1), NodeId(2));
        let nothing = Bounds { written: None, seen: None, stands: None };
        assert!(nothing.is_none() && nothing.allow(&freshness, NodeId(0)));
        let written = Bounds { written: Some(at(150)), ..nothing };
        assert!(!written.allow(&freshness, one) && written.allow(&freshness, two));
        assert!(!written.allow(&freshness, NodeId(0)), "nothing is known of it");
        let seen = Bounds { seen: Some(at(201)), ..nothing };
        assert!(!seen.allow(&freshness, one) && !seen.allow(&freshness, two));
        // It goes on with the one that it stands on, unless that was out of sight.
        let stands = |node, moment| Bounds { stands: Some((node, at(moment))), ..nothing };
        assert!(stands(one, 150).allow(&freshness, one) && stands(one, 150).allow(&freshness, two));
        assert!(!stands(one, 5).allow(&Freshness { nodes: vec![Shown::default(); 3] }, one));
        assert!(!stands(one, 250).allow(&freshness, two) && stands(one, 250).allow(&freshness, one));
        assert!(stands(two, 170).allow(&freshness, two), "not watched since, but it shows that");
        let both = Bounds { written: Some(at(150)), ..stands(one, 120) };
        assert!(!both.allow(&freshness, one) && both.allow(&freshness, two));
    }
}
