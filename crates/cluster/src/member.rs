//! The evidence about one node, and the verdict on whether it is alive.
//!
//! A member knows nothing of the other nodes; who is the primary is decided in [`crate::verdict`].

use std::time::Duration;

use crate::event::{Evidence, Facts, Failback, NodeSpec, OnFailure, Reason, RoleSource};
use crate::observation::{ConnectFailure, Observation};
use crate::topology::{Epoch, Moment, Role};

/// A probe that was asked for and never reported is asked for again after this time.
const PROBE_PATIENCE: Duration = Duration::from_secs(1);

/// Whether a node answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    /// No verdict yet.
    Unchecked,
    /// Answers.
    Alive,
    /// Answers that it cannot serve now. Never a failure: it comes back by itself.
    NotReady,
    /// Counts as dead, or waits to be taken back.
    Failed(Reason),
}

/// What sessions or checks saw that makes the next failed check decisive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Suspicion {
    None,
    /// A new connection was refused.
    Connect(Moment),
    /// An established connection broke.
    Lost(Moment),
}

/// Whether the member wants to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Nothing,
    Probe(Duration),
}

/// The evidence about one node.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) spec: NodeSpec,
    pub(crate) health: Health,
    /// What it said last; kept while it is down.
    pub(crate) facts: Option<Facts>,
    /// An administrator took it out.
    pub(crate) detached: bool,
    /// It was the primary, or claimed to be, and another took its place; it may not take writes
    /// again before it was seen as a standby.
    pub(crate) deposed: bool,
    /// It was seen in recovery since it was configured.
    pub(crate) was_standby: bool,
    /// How the last check ended; none before the first. A node that is not ready does not answer.
    pub(crate) answers: Option<bool>,
    failures: u32,
    suspicion: Suspicion,
    trouble: Option<ConnectFailure>,
    last_started: Option<Moment>,
    last_report: Moment,
    returned_at: Option<Moment>,
    probe_asked: Option<Moment>,
}

impl Member {
    pub(crate) fn new(spec: NodeSpec, now: Moment) -> Self {
        Self {
            spec,
            health: Health::Unchecked,
            facts: None,
            detached: false,
            deposed: false,
            was_standby: false,
            answers: None,
            failures: 0,
            suspicion: Suspicion::None,
            trouble: None,
            last_started: None,
            last_report: now,
            returned_at: None,
            probe_asked: None,
        }
    }

    /// The same server, configured anew.
    pub(crate) fn with_spec(self, spec: NodeSpec) -> Self {
        Self { spec, ..self }
    }

    /// Answers and says that it takes writes.
    pub(crate) fn claims_primary(&self) -> bool {
        match self.spec.role_source {
            RoleSource::AlwaysPrimary => self.facts.is_some(),
            RoleSource::Observed => self.facts.is_some_and(|facts| !facts.in_recovery),
        }
    }

    /// Failed checks in a row.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Takes a good check; `None` when it is older than what is known.
    pub(crate) fn check_ok(
        &mut self,
        now: Moment,
        started: Moment,
        facts: Facts,
        failback: Failback,
    ) -> Option<Wish> {
        self.take_report(now, started)?;
        self.answers = Some(true);
        self.failures = 0;
        self.trouble = None;
        self.suspicion = Suspicion::None;
        self.facts = Some(facts);
        if facts.in_recovery {
            self.was_standby = true;
            self.deposed = false;
        }
        let was_failed = matches!(self.health, Health::Failed(_));
        if !was_failed {
            self.health = Health::Alive;
            return Some(Wish::Nothing);
        }
        Some(self.come_back(now, failback))
    }

    /// A failed node answers again. Only standbys are ever made to wait: nobody else can stand in
    /// for a primary.
    fn come_back(&mut self, now: Moment, failback: Failback) -> Wish {
        if !self.claims_primary() {
            match failback {
                Failback::Manual => {
                    self.health = Health::Failed(Reason::WaitsForAttach);
                    return Wish::Nothing;
                }
                Failback::Automatic { interval } => {
                    let rested = self.returned_at.map(|at| now.0.saturating_sub(at.0));
                    if let Some(rested) = rested.filter(|rested| *rested < interval) {
                        self.health = Health::Failed(Reason::Flapping);
                        return Wish::Probe(interval.saturating_sub(rested));
                    }
                }
            }
        }
        self.returned_at = Some(now);
        self.health = Health::Alive;
        Wish::Nothing
    }

    /// Takes a failed check of a node that has `role` now; `None` when it is older than what is
    /// known. The flag says whether this kind of failure is news.
    pub(crate) fn check_failed(
        &mut self,
        now: Moment,
        report: FailedCheck,
        role: Role,
    ) -> Option<(Wish, bool)> {
        self.take_report(now, report.started)?;
        self.answers = Some(report.failure == ConnectFailure::Rejected);
        let news = self.trouble.replace(report.failure) != Some(report.failure);
        let wish = match report.failure {
            ConnectFailure::Rejected => {
                self.failures = 0;
                self.suspicion = Suspicion::None;
                Wish::Nothing
            }
            ConnectFailure::NotReady => {
                self.failures = 0;
                self.suspicion = Suspicion::None;
                if !self.is_kept() {
                    self.health = Health::NotReady;
                }
                Wish::Probe(self.spec.checks.retry_delay)
            }
            ConnectFailure::Unreachable | ConnectFailure::TimedOut | ConnectFailure::Protocol => {
                self.fail(now, report, role)
            }
        };
        Some((wish, news))
    }

    fn fail(&mut self, now: Moment, report: FailedCheck, role: Role) -> Wish {
        self.failures = self.failures.saturating_add(1);
        if self.is_kept() {
            return Wish::Probe(self.spec.checks.retry_delay);
        }
        if self.failures > self.spec.checks.max_retries || self.is_decisive(report, role) {
            self.health = Health::Failed(reason_of(report.failure));
            self.suspicion = Suspicion::None;
            return Wish::Nothing;
        }
        if report.failure == ConnectFailure::Unreachable && role != Role::Primary {
            // A refused connection to a standby is asked about once more, at once: leaving a
            // standby out costs little, sending reads to a dead one costs an error each.
            self.suspicion = Suspicion::Connect(now);
            return Wish::Probe(Duration::ZERO);
        }
        Wish::Probe(self.spec.checks.retry_delay)
    }

    /// Whether failures do not count.
    fn is_kept(&self) -> bool {
        self.spec.on_failure == OnFailure::Keep && self.health == Health::Alive
    }

    /// Whether this one failure is enough. A primary is given up at once only when established
    /// connections broke as well: a name that does not resolve for a moment is no reason.
    fn is_decisive(&self, report: FailedCheck, role: Role) -> bool {
        if report.failure != ConnectFailure::Unreachable {
            return false;
        }
        if report.evidence == Evidence::ConnectionLost || self.health != Health::Alive {
            return true;
        }
        match self.suspicion {
            Suspicion::None => false,
            Suspicion::Connect(at) => role != Role::Primary && report.started >= at,
            Suspicion::Lost(at) => report.started >= at,
        }
    }

    /// Takes what a session saw, under a topology no older than the node's last change.
    pub(crate) fn observed(&mut self, now: Moment, observation: Observation, changed: Epoch) -> Wish {
        let epoch = match observation {
            Observation::ConnectFailed { epoch, .. }
            | Observation::BackendLost { epoch, .. }
            | Observation::ReadOnly { epoch, .. } => epoch,
        };
        if epoch < changed || self.health != Health::Alive {
            return Wish::Nothing;
        }
        match observation {
            Observation::BackendLost { .. } => self.suspicion = Suspicion::Lost(now),
            Observation::ConnectFailed { failure: ConnectFailure::Unreachable, .. } => {
                if self.suspicion == Suspicion::None {
                    self.suspicion = Suspicion::Connect(now);
                }
            }
            Observation::ConnectFailed { .. } | Observation::ReadOnly { .. } => {}
        }
        self.ask_once(now)
    }

    /// Thousands of sessions see a death at once: one probe answers them all.
    fn ask_once(&mut self, now: Moment) -> Wish {
        let asked = self.probe_asked.is_some_and(|at| now.0.saturating_sub(at.0) < PROBE_PATIENCE);
        if asked {
            return Wish::Nothing;
        }
        self.probe_asked = Some(now);
        Wish::Probe(Duration::ZERO)
    }

    /// No report for too long is a check that timed out.
    pub(crate) fn tick(&mut self, now: Moment, role: Role) -> Option<(Wish, bool)> {
        if now.0.saturating_sub(self.last_report.0) < self.spec.checks.stale_after {
            return None;
        }
        let report =
            FailedCheck { started: now, failure: ConnectFailure::TimedOut, evidence: Evidence::ConnectOnly };
        // A real report that was under way all the time must still count.
        let last_started = self.last_started;
        let outcome = self.check_failed(now, report, role);
        self.last_started = last_started;
        outcome
    }

    /// An administrator takes it back: judged anew from its next check.
    pub(crate) fn attach(&mut self) {
        self.detached = false;
        self.returned_at = None;
        self.failures = 0;
        if matches!(self.health, Health::Failed(_)) {
            self.health = Health::Unchecked;
        }
    }

    fn take_report(&mut self, now: Moment, started: Moment) -> Option<()> {
        if self.last_started.is_some_and(|last| started < last) {
            return None;
        }
        self.last_started = Some(started);
        self.last_report = now;
        self.probe_asked = None;
        Some(())
    }
}

/// One failed check.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FailedCheck {
    pub(crate) started: Moment,
    pub(crate) failure: ConnectFailure,
    pub(crate) evidence: Evidence,
}

fn reason_of(failure: ConnectFailure) -> Reason {
    match failure {
        ConnectFailure::Unreachable => Reason::Unreachable,
        ConnectFailure::TimedOut => Reason::TimedOut,
        ConnectFailure::Protocol => Reason::Protocol,
        ConnectFailure::NotReady | ConnectFailure::Rejected => Reason::NotReady,
    }
}
