//! What a picker remembers of each node, and the choice among candidates that follows from it.
//!
//! Every choice is paid for: in each turn a candidate earns its share, and the one that serves pays a whole
//! turn (smooth weighted round robin, as nginx does it), so that shares come out at the weights at any
//! concurrency, also at one, where nothing is ever outstanding when a node is chosen. Two things overrule that:
//! - A node that holds clearly more than its share of the work in flight is passed over (bounded load); what it was
//!   passed over for it may make up for, within limits. That answers a node that hangs, at once.
//! - A node that is clearly slower than the others earns less, in proportion. That answers a node that is slow for
//!   longer. Small differences are left alone, or the weights would drift with every breath of the machine.
//!
//! Loads are read once per choice: other workers change them all the time. Nothing is allocated once the
//! picker has met the nodes.

use cluster::{Epoch, Moment, NodeId, Role};

use super::Loads;

/// A node may hold its share of the work in flight, and so many requests on top.
const SLACK: f64 = 1.0;
/// How many turns a node may be owed, or owe, after being passed over.
const CREDIT: f64 = 8.0;
/// How much one turn counts in what is remembered of a node's work.
const MEMORY: f64 = 1.0 / 256.0;
/// After so many turns enough has been seen of a node to judge it.
const ACQUAINTED: u32 = 512;
/// What is remembered counts as if so much more work per turn had been seen, the same everywhere: where next to
/// nothing is in flight, nothing is known.
const DOUBT: f64 = 0.5;
/// A node is slower or faster than the others when it differs by more than this factor; less is chance.
const BAND: f64 = 1.6;
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

/// What tells how slow a node is, and what else is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measure {
    /// Work in flight.
    Outstanding,
    /// The same, and open connections; those without work are free to use.
    Connections,
    /// How long its answers take.
    Latency,
}

/// What is remembered of a node.
#[derive(Debug, Clone, Copy)]
struct Account {
    since: Epoch,
    /// Turns it is owed.
    credit: f64,
    /// Its work in flight per share, averaged over the last turns.
    work: f64,
    /// How often it served per share: 1 when it got just that.
    served: f64,
    /// Turns that it has been a candidate in, up to [`ACQUAINTED`].
    turns: u32,
}

/// A candidate as it stands in this turn.
#[derive(Debug, Clone, Copy)]
struct Standing {
    candidate: Candidate,
    outstanding: f64,
    connections: f64,
    /// How long work stays on it, in a unit that is the same for all; 0 when nothing is known.
    pace: f64,
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
        Self { since, credit: phase - 0.5, work: 0.0, served: 0.0, turns: 0 }
    }

    /// How long work stays on it, by Little's law: what is in flight is what comes in, times how long it stays.
    fn pace(&self) -> f64 {
        if self.turns < ACQUAINTED {
            return 0.0;
        }
        (self.work + DOUBT) / (self.served + DOUBT)
    }

    fn remember(&mut self, outstanding: f64, served: f64) {
        self.turns = ACQUAINTED.min(self.turns + 1);
        self.work = (outstanding - self.work).mul_add(MEMORY, self.work);
        self.served = (served - self.served).mul_add(MEMORY, self.served);
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

    fn account(&self, id: NodeId) -> Option<&Account> {
        self.accounts.get(id.index())?.as_ref()
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
        standings.extend(candidates.iter().map(|candidate| Standing {
            candidate: *candidate,
            outstanding: f64::from(loads.outstanding(candidate.id)),
            connections: f64::from(loads.connections(candidate.id)),
            pace: match measure {
                Measure::Latency => loads.latency(candidate.id),
                _ => self.account(candidate.id).map_or(0.0, Account::pace),
            },
            due: candidate.share,
        }));
        give_dues(&mut standings);
        self.earn(&standings);
        let chosen = self.choose(&standings, measure);
        self.pay(&standings, chosen);
        self.standings = standings;
        chosen
    }

    fn earn(&mut self, standings: &[Standing]) {
        for standing in standings {
            if let Some(account) = self.account_mut(standing.candidate.id) {
                account.credit = (account.credit + standing.due).min(CREDIT);
            }
        }
    }

    fn pay(&mut self, standings: &[Standing], chosen: Option<NodeId>) {
        for standing in standings {
            let served = chosen == Some(standing.candidate.id);
            let Some(account) = self.account_mut(standing.candidate.id) else { continue };
            let share = standing.candidate.share;
            account.remember(standing.outstanding / share, f64::from(u8::from(served)) / share);
            if served {
                account.credit = (account.credit - 1.0).max(-CREDIT);
            }
        }
    }

    /// Within the bound before beyond it, then by what is owed.
    fn choose(&self, standings: &[Standing], measure: Measure) -> Option<NodeId> {
        let outstanding: f64 = standings.iter().map(|standing| standing.outstanding).sum();
        let connections: f64 = standings.iter().map(|standing| standing.connections).sum();
        let mut best: Option<(NodeId, (bool, bool, f64))> = None;
        for standing in standings {
            let Some(account) = self.account(standing.candidate.id) else { continue };
            let has_room = standing.has_room(outstanding);
            let connects_fairly = measure != Measure::Connections || standing.connects_fairly(connections);
            let rank = (has_room, connects_fairly, account.credit);
            if best.is_none_or(|(_, most)| rank > most) {
                best = Some((standing.candidate.id, rank));
            }
        }
        best.map(|(id, _)| id)
    }
}

/// What each earns: its share, less or more of it when it is clearly slower or faster than the others.
fn give_dues(standings: &mut [Standing]) {
    let known = standings.iter().filter(|standing| standing.pace > 0.0);
    let (weight, sum) = known.fold((0.0, 0.0), |(weight, sum), standing| {
        let share = standing.candidate.share;
        (weight + share, share.mul_add(standing.pace, sum))
    });
    if weight <= 0.0 || sum <= 0.0 {
        return;
    }
    let usual = sum / weight;
    for standing in standings.iter_mut().filter(|standing| standing.pace > 0.0) {
        let slowness = standing.pace / usual;
        if !(1.0 / BAND..=BAND).contains(&slowness) {
            standing.due = standing.candidate.share * slowness.recip().max(LEAST_PART);
        }
    }
    let total: f64 = standings.iter().map(|standing| standing.due).sum();
    for standing in standings.iter_mut() {
        standing.due /= total;
    }
}

impl Standing {
    /// Does not hold clearly more than its share of the work, the new request counted. Some node is always
    /// below its share.
    fn has_room(&self, total: f64) -> bool {
        self.outstanding < self.candidate.share.mul_add(total + 1.0, SLACK)
    }

    /// Has a connection without work, or less than its share of the connections.
    ///
    /// A connection outlives the work that it was opened for, so its number says nothing against using it
    /// again; it counts only where another would have to be opened.
    fn connects_fairly(&self, total: f64) -> bool {
        self.outstanding < self.connections || self.connections < self.candidate.share * (total + 1.0)
    }
}
