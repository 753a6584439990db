//! What a picker remembers of each node, and the choice among candidates that follows from it.
//!
//! Every choice is paid for: in each turn a candidate earns its share, and the one that serves pays a whole
//! turn (smooth weighted round robin, as nginx does it), so that shares come out at the weights at any
//! concurrency, also at one, where nothing is ever outstanding when a node is chosen. Two things overrule that:
//! - A node that holds clearly more than its share of the work in flight is passed over (bounded load). One on which
//!   work stays longer is soon at its bound, and serves less by that; what it was passed over for it may make up for,
//!   within limits, when it is fast again.
//! - By latency, a node that has been clearly slower than the fastest for long earns less, in proportion. Small and short
//!   differences are left alone: the weights would drift with every breath of the machine. (Work in flight is no
//!   measure for that. Little's law makes one of it, which on a busy machine took equal nodes for unequal ones.)
//!
//! Loads are read once per choice: other workers change them all the time. Nothing is allocated once the
//! picker has met the nodes.

use cluster::{Epoch, Moment, NodeId, Role};

use super::Loads;

/// A node may hold its share of the work in flight, and so many requests on top.
const SLACK: f64 = 1.0;
/// How many turns a node may be owed, or owe, after being passed over.
const CREDIT: f64 = 128.0;
/// A node that was slow for so many turns is slow, and one that was not for as many is not any more.
const PROOF: u32 = 512;
/// A node that takes less than so many times as long as the fastest is not slow: that much is chance.
const BAND: f64 = 2.0;
/// So much on top of each latency makes up for cold caches and wake-ups (seconds): a node that serves less is slower by
/// that alone, and would serve ever less.
const WAKE_UP: f64 = 0.001;
/// However slow a node is, it keeps this part of its share: else nobody would see that it is fast again.
const LEAST_PART: f64 = 0.1;

/// A node that may be chosen now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) id: NodeId,
    /// Its part of all the candidates' weight.
    pub(super) share: f64,
    pub(super) role: Role,
    /// When its state or role last changed: what was remembered of it before is forgotten.
    pub(super) changed: Epoch,
    pub(super) changed_at: Moment,
}

/// What a choice looks at beside what nodes are owed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measure {
    /// Work in flight.
    Outstanding,
    /// The same, and open connections; those without work are free to use.
    Connections,
    /// Work in flight, and how long answers take.
    Latency,
}

/// What is remembered of a node.
#[derive(Debug, Clone, Copy)]
struct Account {
    since: Epoch,
    /// Turns it is owed.
    credit: f64,
    /// In so many turns more than not, lately, it looked slow; up to twice [`PROOF`].
    suspicion: u32,
}

/// A candidate as it stands in this turn.
#[derive(Debug, Clone, Copy)]
struct Standing {
    id: NodeId,
    share: f64,
    outstanding: f64,
    /// Looked at by [`Measure::Connections`] only.
    connections: f64,
    /// How long it takes to answer; 0 when nothing is known, and where [`Measure::Latency`] does not ask.
    latency: f64,
    /// What it earns in a turn; all of them together 1.
    due: f64,
}

/// The accounts of all nodes, by id.
#[derive(Debug, Clone, Default)]
pub(super) struct Ledger {
    accounts: Vec<Option<Account>>,
    standings: Vec<Standing>,
}

impl Account {
    /// `phase` (0 to 1) keeps the pickers of several workers from beginning with the same node.
    fn new(since: Epoch, phase: f64) -> Self {
        Self { since, credit: phase - 0.5, suspicion: 0 }
    }

    /// Whether it is slow, now that it looks so or does not.
    fn is_slow(&mut self, looks_slow: bool) -> bool {
        self.suspicion = match looks_slow {
            true => (self.suspicion + 1).min(2 * PROOF),
            false => self.suspicion.saturating_sub(1),
        };
        self.suspicion >= PROOF
    }
}

impl Ledger {
    /// Opens the accounts of nodes not met before, or changed since.
    pub(super) fn meet(&mut self, candidates: &[Candidate], mut phase: impl FnMut() -> f64) {
        for candidate in candidates {
            let index = candidate.id.index();
            if self.accounts.len() <= index {
                self.accounts.resize(index + 1, None);
            }
            if let Some(account) = self.accounts.get_mut(index)
                && account.is_none_or(|account| account.since != candidate.changed)
            {
                *account = Some(Account::new(candidate.changed, phase()));
            }
        }
    }

    fn account_mut(&mut self, id: NodeId) -> Option<&mut Account> {
        self.accounts.get_mut(id.index())?.as_mut()
    }

    /// The candidate that is owed most, after all have earned their shares.
    pub(super) fn in_turn(&mut self, candidates: &[Candidate]) -> Option<NodeId> {
        let mut best: Option<(NodeId, f64)> = None;
        for candidate in candidates {
            let account = self.account_mut(candidate.id)?;
            account.credit += candidate.share;
            if best.is_none_or(|(_, most)| account.credit > most) {
                best = Some((candidate.id, account.credit));
            }
        }
        let (id, _) = best?;
        self.account_mut(id)?.credit -= 1.0;
        Some(id)
    }

    /// The candidate that is owed most among those that are not too busy.
    pub(super) fn least(
        &mut self,
        candidates: &[Candidate],
        measure: Measure,
        loads: &impl Loads,
    ) -> Option<NodeId> {
        let mut standings = std::mem::take(&mut self.standings);
        standings.clear();
        let connections = |id| match measure {
            Measure::Connections => f64::from(loads.connections(id)),
            Measure::Outstanding | Measure::Latency => 0.0,
        };
        let latency = |id| if measure == Measure::Latency { loads.latency(id) } else { 0.0 };
        standings.extend(candidates.iter().map(|&Candidate { id, share, .. }| Standing {
            id,
            share,
            outstanding: f64::from(loads.outstanding(id)),
            connections: connections(id),
            latency: latency(id),
            due: share,
        }));
        if measure == Measure::Latency {
            self.give_dues(&mut standings);
        }
        let chosen = self.choose(&standings, measure);
        if let Some(account) = chosen.and_then(|id| self.account_mut(id)) {
            account.credit = (account.credit - 1.0).max(-CREDIT);
        }
        self.standings = standings;
        chosen
    }

    /// What each earns: its share, or less of it when it has been clearly slower than the fastest for long.
    fn give_dues(&mut self, standings: &mut [Standing]) {
        let known = standings.iter().map(|standing| standing.latency).filter(|latency| *latency > 0.0);
        let Some(fastest) = known.min_by(f64::total_cmp) else { return };
        for standing in standings.iter_mut().filter(|standing| standing.latency > 0.0) {
            let slowness = (standing.latency + WAKE_UP) / (fastest + WAKE_UP);
            let Some(account) = self.account_mut(standing.id) else { continue };
            if account.is_slow(slowness > BAND) {
                standing.due = standing.share * part_of(slowness);
            }
        }
        let total: f64 = standings.iter().map(|standing| standing.due).sum();
        for standing in standings.iter_mut() {
            standing.due /= total;
        }
    }

    /// All earn what is due to them. Then those within the bound come before those beyond it, and of these who is owed
    /// most.
    fn choose(&mut self, standings: &[Standing], measure: Measure) -> Option<NodeId> {
        let outstanding: f64 = standings.iter().map(|standing| standing.outstanding).sum();
        let connections: f64 = standings.iter().map(|standing| standing.connections).sum();
        let mut best: Option<(NodeId, (u8, f64))> = None;
        for standing in standings {
            let Some(account) = self.account_mut(standing.id) else { continue };
            account.credit = (account.credit + standing.due).min(CREDIT);
            let has_room = standing.has_room(outstanding);
            let connects_fairly = measure != Measure::Connections || standing.connects_fairly(connections);
            let rank = (u8::from(has_room) << 1 | u8::from(connects_fairly), account.credit);
            if best.is_none_or(|(_, most)| rank > most) {
                best = Some((standing.id, rank));
            }
        }
        best.map(|(id, _)| id)
    }
}

/// The part of its share that a node earns that is so many times slower than the fastest: all of it up to
/// [`BAND`], in proportion to its speed from the square of that on, and no step between.
fn part_of(slowness: f64) -> f64 {
    let band = BAND / slowness;
    (band * band).max(slowness.recip()).clamp(LEAST_PART, 1.0)
}

impl Standing {
    /// Does not hold clearly more than its share of the work, the new request counted. Some node is always
    /// below its share.
    fn has_room(&self, total: f64) -> bool {
        self.outstanding < self.share * (total + 1.0) + SLACK
    }

    /// Has a connection without work, or less than its share of the connections.
    ///
    /// A connection outlives the work that it was opened for, so its number says nothing against using it
    /// again; it counts only where another would have to be opened.
    fn connects_fairly(&self, total: f64) -> bool {
        self.outstanding < self.connections || self.connections < self.share * (total + 1.0)
    }
}
