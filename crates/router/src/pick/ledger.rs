//! What a picker remembers of each node, and the choice among candidates that follows from it.
//!
//! Every choice is paid for: in each turn a candidate earns its share, and the one that serves pays a whole
//! turn (smooth weighted round robin, as nginx does it), so that shares come out at the weights at any
//! concurrency, also at one, where nothing is ever outstanding when a node is chosen. The load
//! (of `least_outstanding` and `least_connections`) overrules that in two ways:
//! - at once: a node that holds clearly more than its share of the work is passed over (bounded load);
//! - in the long run: a node on which work stays clearly longer than on the fastest earns that much less.
//!
//! How long work stays is found without a clock: by Little's law it is the mean number of requests held,
//! over the rate of choices; both are counted at the moments of choice.
//!
//! Loads are read once per choice: other workers change them all the time. Nothing is allocated once the
//! picker has met the nodes.

use cluster::{Epoch, NodeId};

use super::Loads;

/// A node may hold this multiple of its share of the work, ...
const BOUND: f64 = 1.25;
/// ... and this many requests on top.
const SLACK: f64 = 1.0;
/// After so many choices it is judged how long work stayed on each node meanwhile, ...
const ROUND: u32 = 128;
/// ... with so many choices' worth of the average node's record added to each, ...
const PRIOR: f64 = 8.0;
/// ... and what is believed of a node changes by this factor at most: only what lasts makes a node slow, not
/// one request that hangs. (A node that hangs is passed over at once, by the bound.)
const STEP: f64 = 1.1;
/// Nodes that are believed to take less than this multiple of the fastest one's time are equally fast.
const SLOW: f64 = 2.0;
/// The slowest node still earns this part of its share, which is how its recovery is noticed.
const SLOWEST: f64 = 16.0;
/// How many turns a node may be owed, or owe, after being passed over.
const CREDIT: f64 = 8.0;
/// A node that may be chosen now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) id: NodeId,
    /// Its part of all the candidates' weight.
    pub(super) share: f64,
    /// When its state or role last changed: what was remembered of it before is forgotten.
    pub(super) changed: Epoch,
}

/// What least-loaded choices look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Least {
    /// Work in flight.
    Outstanding,
    /// Open connections; those without work are free to use.
    Connections,
}

/// What is remembered of a node.
#[derive(Debug, Clone, Copy)]
struct Account {
    since: Epoch,
    /// Turns it is owed.
    credit: f64,
    /// Requests it held at the choices of this round, summed.
    held: f64,
    /// How often it was chosen in this round.
    chosen: f64,
    /// How long its work is believed to take, as a multiple of the fastest node's; 1 or more.
    slowness: f64,
}

/// A candidate as it stands in this turn.
#[derive(Debug, Clone, Copy)]
struct Standing {
    candidate: Candidate,
    outstanding: f64,
    connections: f64,
    /// As in its account, but 1 when that is not clearly more.
    slowness: f64,
}

/// The accounts of all nodes, by id.
#[derive(Debug, Clone, Default)]
pub(super) struct Ledger {
    accounts: Vec<Option<Account>>,
    standings: Vec<Standing>,
    /// Choices of this round.
    choices: u32,
}

impl Account {
    /// `phase` (0 to 1) keeps the pickers of several workers from beginning with the same node.
    fn new(since: Epoch, phase: f64) -> Self {
        Self { since, credit: phase - 0.5, held: 0.0, chosen: 0.0, slowness: 1.0 }
    }

    /// How long work stayed in this round, in choices; `mean` stands in for what was not seen.
    fn stay(&self, mean: f64) -> f64 {
        PRIOR.mul_add(mean, self.held) / (self.chosen + PRIOR)
    }

    /// The node was so much slower in this round; a new one begins.
    fn believe(&mut self, seen: f64) {
        let change = (seen / self.slowness).clamp(1.0 / STEP, STEP);
        self.slowness = (self.slowness * change).clamp(1.0, SLOWEST);
        (self.held, self.chosen) = (0.0, 0.0);
    }

    fn clear_slowness(&self) -> f64 {
        if self.slowness > SLOW { self.slowness } else { 1.0 }
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
        least: Least,
        loads: &impl Loads,
    ) -> Option<NodeId> {
        let mut standings = std::mem::take(&mut self.standings);
        standings.clear();
        standings.extend(candidates.iter().map(|candidate| Standing {
            candidate: *candidate,
            outstanding: f64::from(loads.outstanding(candidate.id)),
            connections: f64::from(loads.connections(candidate.id)),
            slowness: self.account(candidate.id).map_or(1.0, Account::clear_slowness),
        }));
        self.earn(&standings);
        let chosen = self.choose(&standings, least);
        if let Some(chosen) = chosen {
            self.record(&standings, chosen);
            self.choices += 1;
        }
        if self.choices >= ROUND {
            self.judge(candidates);
        }
        self.standings = standings;
        chosen
    }

    /// The end of a round: which nodes were slow in it.
    fn judge(&mut self, candidates: &[Candidate]) {
        self.choices = 0;
        let accounts = || candidates.iter().filter_map(|candidate| self.account(candidate.id));
        let held: f64 = accounts().map(|account| account.held).sum();
        let chosen: f64 = accounts().map(|account| account.chosen).sum();
        // The candidates may be others than those of the round.
        if chosen < 1.0 {
            return;
        }
        let mean = held / chosen;
        let fastest = accounts().map(|account| account.stay(mean)).fold(f64::INFINITY, f64::min);
        for candidate in candidates {
            if let Some(account) = self.account_mut(candidate.id) {
                account.believe(account.stay(mean) / fastest);
            }
        }
    }

    fn earn(&mut self, standings: &[Standing]) {
        let earned = |standing: &Standing| standing.candidate.share / standing.slowness;
        let total: f64 = standings.iter().map(earned).sum();
        for standing in standings {
            if let Some(account) = self.account_mut(standing.candidate.id) {
                account.credit = (account.credit + earned(standing) / total).min(CREDIT);
            }
        }
    }

    /// Within the bound before beyond it, then by what is owed.
    fn choose(&self, standings: &[Standing], least: Least) -> Option<NodeId> {
        let outstanding: f64 = standings.iter().map(|standing| standing.outstanding).sum();
        let connections: f64 = standings.iter().map(|standing| standing.connections).sum();
        let mut best: Option<(NodeId, (bool, bool, f64))> = None;
        for standing in standings {
            let Some(account) = self.account(standing.candidate.id) else { continue };
            let has_room = standing.has_room(outstanding);
            let connects_fairly = least == Least::Outstanding || standing.connects_fairly(connections);
            let rank = (has_room, connects_fairly, account.credit);
            if best.is_none_or(|(_, most)| rank > most) {
                best = Some((standing.candidate.id, rank));
            }
        }
        best.map(|(id, _)| id)
    }

    fn record(&mut self, standings: &[Standing], chosen: NodeId) {
        for standing in standings {
            let Some(account) = self.account_mut(standing.candidate.id) else { continue };
            let one = if standing.candidate.id == chosen { 1.0 } else { 0.0 };
            account.held += standing.outstanding + one;
            account.chosen += one;
            account.credit = (account.credit - one).max(-CREDIT);
        }
    }
}

impl Standing {
    /// Does not hold clearly more than its share of the work, the new request counted; of a slow node:
    /// not more than its share. Some node is always below its share.
    fn has_room(&self, total: f64) -> bool {
        let fair = self.candidate.share * (total + 1.0);
        let bound = if self.slowness > 1.0 { fair } else { BOUND.mul_add(fair, SLACK) };
        self.outstanding < bound
    }

    /// Has a connection without work, or less than its share of the connections.
    ///
    /// A connection outlives the work that it was opened for, so its number says nothing against using it
    /// again; it counts only where another would have to be opened.
    fn connects_fairly(&self, total: f64) -> bool {
        self.outstanding < self.connections || self.connections < self.candidate.share * (total + 1.0)
    }
}
