//! When a session has gone on for too long with what it does: the one timer of a session, and what it is for.
//!
//! The timer is armed late and left alone: what the session does is noted when it has nothing to do for now,
//! and the timer, when it fires, is set again if what it was set for is over. Without limits there is none.
//!
//! Invariants: whoever waits for the server is not idle, nor is who sends or takes data; a statement's time
//! ends with the server's answers to it (which come at the end of a batch), so one of many in a pipeline has
//! its own.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::{Duration, Instant};

use config::Config;
use protocol::tracker::Push;
use tokio::time::Sleep;

/// How long a server may take to end a statement that was cancelled, before its connection is given up.
const GRACE: Duration = Duration::from_secs(5);

/// What a session does, as far as limits are concerned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Doing {
    /// The client has its turn, outside of a transaction.
    Idle,
    /// The client has its turn, and what it has begun is not at its end.
    IdleInTransaction,
    /// The server works at that message.
    Running(Push),
    /// What no limit but the transaction's is for: it waits for a backend, or for a client to take its answer.
    #[default]
    Other,
}

/// A limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// `client_idle_limit`.
    ClientIdle,
    /// `idle_transaction_timeout`.
    IdleTransaction,
    /// `query_timeout`.
    Query,
    /// The server did not end the statement that was cancelled for `query_timeout`.
    Cancel,
    /// `transaction_timeout`.
    Transaction,
}

impl Limit {
    /// The word that logs use: the key's name.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::ClientIdle => "client_idle_limit",
            Self::IdleTransaction => "idle_transaction_timeout",
            Self::Query | Self::Cancel => "query_timeout",
            Self::Transaction => "transaction_timeout",
        }
    }
}

/// The limits in force; `None` is none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limits {
    client_idle: Option<Duration>,
    idle_transaction: Option<Duration>,
    query: Option<Duration>,
    transaction: Option<Duration>,
}

impl From<&Config> for Limits {
    fn from(config: &Config) -> Self {
        Self {
            client_idle: config.client_idle_limit,
            idle_transaction: config.idle_transaction_timeout,
            query: config.query_timeout,
            transaction: config.transaction_timeout,
        }
    }
}

impl Limits {
    pub(super) fn are_off(&self) -> bool {
        let Self { client_idle, idle_transaction, query, transaction } = self;
        [client_idle, idle_transaction, query, transaction].into_iter().all(Option::is_none)
    }
}

/// Which transaction of a lease it is, from 0; one that no backend knows of is the first of the next lease.
pub(super) type Ordinal = u32;

/// Since when the session does what it does. The clock is the caller's.
#[derive(Debug, Default)]
struct Clocks {
    doing: Doing,
    since: Option<Instant>,
    transaction: Option<(Ordinal, Instant)>,
    cancelled: Option<Instant>,
}

impl Clocks {
    fn is_at(&self, doing: Doing, transaction: Option<Ordinal>) -> bool {
        self.doing == doing && self.transaction.map(|(ordinal, _)| ordinal) == transaction
    }

    fn follow(&mut self, doing: Doing, transaction: Option<Ordinal>, now: Instant) {
        if self.doing != doing {
            self.doing = doing;
            self.since = Some(now);
            self.cancelled = None;
        }
        if self.transaction.map(|(ordinal, _)| ordinal) != transaction {
            self.transaction = transaction.map(|ordinal| (ordinal, now));
        }
    }

    /// What is due first, and when.
    fn due(&self, limits: &Limits) -> Option<(Instant, Limit)> {
        let (limit, length) = match (self.doing, self.cancelled) {
            (Doing::Idle, _) => (Limit::ClientIdle, limits.client_idle),
            (Doing::IdleInTransaction, _) => (Limit::IdleTransaction, limits.idle_transaction),
            (Doing::Running(_), None) => (Limit::Query, limits.query),
            (Doing::Running(_), Some(_)) => (Limit::Cancel, Some(GRACE)),
            (Doing::Other, _) => (Limit::Query, None),
        };
        let since = self.cancelled.or(self.since);
        let own = since.zip(length).map(|(since, length)| (since + length, limit));
        let begun = self.transaction.map(|(_, begun)| begun).zip(limits.transaction);
        let whole = begun.map(|(begun, length)| (begun + length, Limit::Transaction));
        own.into_iter().chain(whole).min_by_key(|(at, _)| *at)
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Deadline {
    clocks: Clocks,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Deadline {
    /// The timer is another reactor's from now on; what it is for is not forgotten.
    pub(super) fn disarm(&mut self) {
        self.timer = None;
    }

    /// The client did something: it is not idle any more, however soon it is again.
    pub(super) fn client_moved(&mut self) {
        if !matches!(self.clocks.doing, Doing::Running(_)) {
            self.clocks.doing = Doing::Other;
        }
    }

    /// A unit of work is done.
    pub(super) fn unit_done(&mut self, in_transaction: bool) {
        self.clocks.doing = Doing::Other;
        if !in_transaction {
            self.clocks.transaction = None;
        }
    }

    /// The session does that, and has nothing to do for now. Gives the limit that is reached; else the task is
    /// woken when one is.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        limits: &Limits,
        doing: Doing,
        transaction: Option<Ordinal>,
    ) -> Option<Limit> {
        if !self.clocks.is_at(doing, transaction) {
            self.clocks.follow(doing, transaction, Instant::now());
        }
        let (at, limit) = self.clocks.due(limits)?;
        let at = tokio::time::Instant::from_std(at);
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if timer.deadline() > at {
            timer.as_mut().reset(at);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if tokio::time::Instant::now() >= at {
                if limit == Limit::Query {
                    self.clocks.cancelled = Some(Instant::now());
                }
                return Some(limit);
            }
            timer.as_mut().reset(at);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits() -> Limits {
        Limits {
            client_idle: Some(4 * SECOND),
            idle_transaction: Some(3 * SECOND),
            query: Some(2 * SECOND),
            transaction: Some(10 * SECOND),
        }
    }

    #[test]
    fn each_thing_has_its_own_limit() {
        let (start, mut clocks) = (Instant::now(), Clocks::default());
        assert_eq!(clocks.due(&limits()), None);
        clocks.follow(Doing::Idle, None, start);
        assert_eq!(clocks.due(&limits()), Some((start + 4 * SECOND, Limit::ClientIdle)));
        assert_eq!(clocks.due(&Limits::default()), None);
        clocks.follow(Doing::Running(Push(1)), Some(0), start + SECOND);
        assert_eq!(clocks.due(&limits()), Some((start + 3 * SECOND, Limit::Query)));
        clocks.follow(Doing::IdleInTransaction, Some(0), start + 2 * SECOND);
        assert_eq!(clocks.due(&limits()), Some((start + 5 * SECOND, Limit::IdleTransaction)));
        clocks.follow(Doing::Other, Some(0), start + 3 * SECOND);
        assert_eq!(clocks.due(&limits()), Some((start + 11 * SECOND, Limit::Transaction)));
    }

    #[test]
    fn a_pipeline_of_short_statements_never_ends_the_time_of_one() {
        let (start, mut clocks) = (Instant::now(), Clocks::default());
        for second in 0..9 {
            let now = start + SECOND * second;
            clocks.follow(Doing::Running(Push(u64::from(second))), Some(0), now);
            let (at, limit) = clocks.due(&limits()).unwrap();
            assert!(at > now, "{limit:?}");
        }
        clocks.follow(Doing::Running(Push(9)), Some(0), start + 9 * SECOND);
        assert_eq!(clocks.due(&limits()), Some((start + 10 * SECOND, Limit::Transaction)));
        clocks.follow(Doing::Running(Push(10)), Some(1), start + 9 * SECOND);
        assert_eq!(clocks.due(&limits()), Some((start + 11 * SECOND, Limit::Query)), "the next transaction");
    }

    #[test]
    fn a_cancelled_statement_has_its_grace_and_the_next_one_none_of_it() {
        let (start, mut clocks) = (Instant::now(), Clocks::default());
        clocks.follow(Doing::Running(Push(1)), None, start);
        clocks.cancelled = Some(start + 2 * SECOND);
        assert_eq!(clocks.due(&limits()), Some((start + 2 * SECOND + GRACE, Limit::Cancel)));
        clocks.follow(Doing::Running(Push(2)), None, start + 3 * SECOND);
        assert_eq!(clocks.due(&limits()), Some((start + 5 * SECOND, Limit::Query)));
    }

    #[tokio::test]
    async fn the_timer_is_left_alone_until_it_fires() {
        let idle = Duration::from_millis(40);
        let (mut deadline, limits) =
            (Deadline::default(), Limits { client_idle: Some(idle), ..Limits::default() });
        let started = Instant::now();
        let mut rounds = 0;
        let reached = std::future::poll_fn(|cx| {
            rounds += 1;
            match deadline.poll(cx, &limits, Doing::Idle, None) {
                Some(limit) => std::task::Poll::Ready(limit),
                None => std::task::Poll::Pending,
            }
        });
        assert_eq!(reached.await, Limit::ClientIdle);
        assert!(rounds <= 3 && started.elapsed() >= idle, "{rounds} rounds, {:?}", started.elapsed());
    }
}
