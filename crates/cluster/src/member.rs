//! The evidence about one node, and the verdict on whether it is alive.
//!
//! A member knows nothing of the other nodes; who is the primary is decided in [`crate::verdict`].

use std::time::Duration;

use crate::event::{Evidence, Facts, Failback, NodeSpec, OnFailure, Reason, RoleSource, Upstream};
use crate::observation::{ConnectFailure, Observation};
use crate::recovery::Recovering;
use crate::topology::{Epoch, Moment, Role};

/// Without retries a node is checked once more before another one takes its place.
const ONCE_MORE: Duration = Duration::from_millis(100);
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

/// Whether an administrator took a node out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detached {
    No,
    /// It takes nothing new, and what runs may end until then.
    Draining(Moment),
    Yes,
    /// Before the restart; see [`crate::hint`].
    Remembered,
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
    /// Whether an administrator took it out.
    pub(crate) detached: Detached,
    /// It is being rebuilt.
    pub(crate) recovery: Option<Recovering>,
    /// It was the primary, or claimed to be, and another took its place; it may not take writes
    /// again before it was seen as a standby.
    pub(crate) deposed: bool,
    /// It was seen in recovery since it was configured.
    pub(crate) was_standby: bool,
    /// How the last check ended; none before the first. A node that is not ready does not answer.
    pub(crate) answers: Option<bool>,
    failures: u32,
    /// When the first of them began.
    failing_since: Option<Moment>,
    suspicion: Suspicion,
    /// Sessions lost backends before the check failed.
    lost_by_sessions: bool,
    /// When the check began that told the facts.
    told_at: Option<Moment>,
    /// The newest timeline that it was ever seen on: a standby's own word for it lags behind.
    newest_timeline: u32,
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
            detached: Detached::No,
            recovery: None,
            deposed: false,
            was_standby: false,
            answers: None,
            failures: 0,
            failing_since: None,
            suspicion: Suspicion::None,
            lost_by_sessions: false,
            told_at: None,
            newest_timeline: 0,
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

    /// It has said that it is in recovery; one of which nothing is known has not.
    pub(crate) fn is_standby(&self) -> bool {
        self.facts.is_some_and(|facts| facts.in_recovery)
    }

    /// Failed checks in a row.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether an administrator wants it out, at once or soon, if only to rebuild it.
    pub(crate) fn is_detached(&self) -> bool {
        self.detached != Detached::No || self.recovery.is_some()
    }

    /// Whether it has failed all of its retries, and more than one check: a server that crashes and restarts by itself
    /// resets a connection or two that it has accepted.
    pub(crate) fn is_surely_failing(&self) -> bool {
        self.failures > self.spec.checks.max_retries.max(1)
    }

    /// When the check began that told the facts.
    pub(crate) fn told_at(&self) -> Option<Moment> {
        self.told_at
    }

    /// The newest timeline that it was ever seen on.
    pub(crate) fn newest_timeline(&self) -> u32 {
        self.newest_timeline
    }

    /// Sessions lost backends of it before its check failed.
    pub(crate) fn was_lost_by_sessions(&self) -> bool {
        self.lost_by_sessions
    }

    /// Since when its checks fail.
    pub(crate) fn failing_since(&self) -> Option<Moment> {
        self.failing_since.filter(|_| self.failures > 0)
    }

    /// The latest moment at which it is known to have heard from its primary.
    pub(crate) fn heard_at(&self) -> Option<Moment> {
        match self.facts.map(|facts| facts.upstream)? {
            Upstream::Streaming { silent_for: Some(silent), .. } => {
                Some(Moment(self.told_at?.0.checked_sub(silent)?))
            }
            Upstream::Streaming { silent_for: None, .. } | Upstream::None => None,
        }
    }

    /// Nothing of ours runs on it any more.
    pub(crate) fn drained(&mut self) {
        if matches!(self.detached, Detached::Draining(_)) {
            self.detached = Detached::Yes;
        }
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
        self.told_at = Some(started);
        self.lost_by_sessions = false;
        self.newest_timeline = self.newest_timeline.max(facts.timeline.max(facts.follows).unwrap_or(0));
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
                if matches!(self.health, Health::NotReady | Health::Failed(_)) {
                    // It lives again, and may be something else than it was.
                    self.health = Health::Unchecked;
                    self.facts = None;
                    self.told_at = None;
                }
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
        if self.failures == 0 {
            self.failing_since = Some(report.started);
        }
        self.failures = self.failures.saturating_add(1);
        self.lost_by_sessions |= self.sessions_lost_it();
        if self.is_kept() {
            return Wish::Probe(self.spec.checks.retry_delay);
        }
        if self.failures > self.spec.checks.max_retries || self.is_decisive(report, role) {
            self.health = Health::Failed(reason_of(report.failure));
            self.suspicion = Suspicion::None;
            // It is left out; that it is dead for good takes all of the retries.
            return match self.is_surely_failing() {
                true => Wish::Nothing,
                false if self.failures > self.spec.checks.max_retries => Wish::Probe(ONCE_MORE),
                false => Wish::Probe(self.spec.checks.retry_delay),
            };
        }
        if report.failure == ConnectFailure::Unreachable && role != Role::Primary {
            // A refused connection to a standby is asked about once more, at once: leaving a
            // standby out costs little, sending reads to a dead one costs an error each.
            self.suspicion = Suspicion::Connect(now);
            return Wish::Probe(Duration::ZERO);
        }
        Wish::Probe(self.spec.checks.retry_delay)
    }

    /// Whether sessions saw it die and said so.
    fn sessions_lost_it(&self) -> bool {
        self.spec.trust_sessions && matches!(self.suspicion, Suspicion::Lost(_))
    }

    /// Whether failures do not count.
    fn is_kept(&self) -> bool {
        self.spec.on_failure == OnFailure::Keep && self.health == Health::Alive
    }

    /// Whether this one failure is enough. A primary is given up at once only when established
    /// connections broke as well: a name that does not resolve for a moment is no reason.
    fn is_decisive(&self, report: FailedCheck, role: Role) -> bool {
        if self.sessions_lost_it() {
            return true;
        }
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
        if let Observation::RoleSeen { role, .. } = observation {
            return self.role_seen(role);
        }
        if observation.epoch() < changed || self.health != Health::Alive {
            return Wish::Nothing;
        }
        match observation {
            Observation::BackendLost { .. } => self.suspicion = Suspicion::Lost(now),
            Observation::ConnectFailed { failure: ConnectFailure::Unreachable, .. } => {
                if self.suspicion == Suspicion::None {
                    self.suspicion = Suspicion::Connect(now);
                }
            }
            Observation::ConnectFailed { .. }
            | Observation::ReadOnly { .. }
            | Observation::RoleSeen { .. } => {}
        }
        self.ask_once(now)
    }

    /// Only while the node refuses the checks: what it says itself is better.
    fn role_seen(&mut self, role: Role) -> Wish {
        if self.trouble == Some(ConnectFailure::Rejected) && role != Role::Unknown {
            let in_recovery = role == Role::Standby;
            self.was_standby |= in_recovery;
            self.facts = Some(Facts { in_recovery, ..Facts::default() });
            self.health = Health::Alive;
        }
        Wish::Nothing
    }

    /// Whether it answers, and refuses every check, so that nobody knows what it is.
    pub(crate) fn is_nameless(&self) -> bool {
        self.health == Health::Unchecked
            && self.facts.is_none()
            && self.trouble == Some(ConnectFailure::Rejected)
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
        if matches!(self.detached, Detached::Draining(until) if now >= until) {
            self.detached = Detached::Yes;
        }
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
        self.detached = Detached::No;
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
