//! What a lease of a backend adds to the counts, the times and the logs.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::Observation;
use config::Config;
use protocol::error::{PgError, Severity, write_notice};
use protocol::message;
use protocol::sqlstate::SqlState;
use protocol::tracker::Push;
use router::{Access, Changes, PinReason, Reason, Target, Verdict};
use telemetry::metrics::{Kind, NodeMetrics, Route};

use super::calls::{Calls, Ended};
use super::deadline::Ordinal;
use crate::catalog::Database;
use crate::engine::{Habit, Passed, Watch};
use crate::habits::Learned;
use crate::registry::{ClientEntry, ServerEntry};
use crate::shared::Worker;
use crate::stats::{Count, Tally};

/// What is shown of a statement that may set a password.
const PASSWORD: &str = "(a statement about a password)";
/// Longer statements are cut in logs and notices (bytes).
const SHOWN_STATEMENT: usize = 4096;

/// Which of its statements a session logs, and whom it tells.
#[derive(Debug)]
pub(super) struct Talk {
    /// `log_per_node_statement`.
    log: bool,
    /// `notice_per_node_statement`.
    notice: bool,
    /// `log_min_duration_statement`.
    slow: Option<Duration>,
    /// `log_parameter_max_length` (bytes).
    values: Option<usize>,
    /// What was bound to the statement that comes next, as the log has it.
    bound: String,
    /// What is being run, for the log of slow statements.
    running: Vec<u8>,
    /// What the client is to be told of where its statements run.
    notices: Vec<PgError>,
}

impl Talk {
    /// What the configuration wants said; nothing is the rule, and costs nothing.
    pub(super) fn of(config: &Config) -> Option<Box<RefCell<Self>>> {
        let (log, notice) = (config.log_per_node_statement, config.notice_per_node_statement);
        let slow = config.log_min_duration_statement;
        let silent = !log && !notice && slow.is_none();
        let values = config.log_parameter_max_length.and_then(|limit| usize::try_from(limit).ok());
        let (bound, running, notices) = (String::new(), Vec::new(), Vec::new());
        let talk = || Self { log, notice, slow, values, bound, running, notices };
        (!silent).then(|| Box::new(RefCell::new(talk())))
    }
}

/// Whose leases they are: the same for all of a session's.
#[derive(Clone)]
pub(super) struct Whose {
    pub(super) client: Arc<ClientEntry>,
    pub(super) worker: Arc<Worker>,
    pub(super) catalog: Arc<Database>,
    pub(super) tally: Arc<Tally>,
    pub(super) habits: Arc<Learned>,
}

/// Counts what passes.
pub(super) struct Counting {
    server: Arc<ServerEntry>,
    reason: Reason,
    route: Route,
    talk: Option<Box<RefCell<Talk>>>,
    wrote: Cell<bool>,
    read: Cell<bool>,
    /// It may be sent notifications: its silence means nothing.
    listens: Cell<bool>,
    running: Box<Running>,
}

/// What is under way. A session lends it to its leases one after the other: in a box, because what is held over waits
/// makes every session larger.
pub(super) struct Running {
    whose: Whose,
    /// When what the server owes an answer for was first sent; the answer before it came then at the latest.
    asked: Cell<Option<Instant>>,
    /// What the last answer was to was sent then.
    last_asked: Cell<Instant>,
    answered: Cell<Instant>,
    /// When the transaction got this backend.
    begun: Cell<Option<Instant>>,
    /// How long the answer took that has come last.
    took: Cell<Duration>,
    calls: RefCell<Calls>,
    /// Transactions that have ended on this lease.
    ended: Cell<Ordinal>,
    /// What is told of a node that turns out to be read-only.
    read_only: Option<Observation>,
}

impl Running {
    fn new(whose: Whose, now: Instant) -> Self {
        Self {
            whose,
            asked: Cell::new(None),
            last_asked: Cell::new(now),
            answered: Cell::new(now),
            begun: Cell::new(None),
            took: Cell::new(Duration::ZERO),
            calls: RefCell::default(),
            ended: Cell::new(0),
            read_only: None,
        }
    }

    /// As new.
    fn renew(&mut self, now: Instant) {
        self.asked.set(None);
        self.answered.set(now);
        self.begun.set(None);
        self.ended.set(0);
        self.calls.get_mut().clear();
    }
}

impl Counting {
    /// Of a lease of `server` that begins `now`; `running` is what [`Counting::into_running`] gave, or that of `whose`.
    pub(super) fn new(
        server: Arc<ServerEntry>,
        (target, reason): (Target, Reason),
        (talk, read_only): (Option<Box<RefCell<Talk>>>, Option<Observation>),
        (running, whose): (Option<Box<Running>>, impl FnOnce() -> Whose),
        now: Instant,
    ) -> Self {
        let mut running = running.unwrap_or_else(|| Box::new(Running::new(whose(), now)));
        running.renew(now);
        running.read_only = read_only;
        Self {
            server,
            reason,
            route: route(target),
            talk,
            wrote: Cell::new(false),
            read: Cell::new(false),
            listens: Cell::new(false),
            running,
        }
    }

    fn whose(&self) -> &Whose {
        &self.running.whose
    }

    /// The counters of the node.
    pub(super) fn node(&self) -> Option<&NodeMetrics> {
        self.server.metrics().map(|metrics| &**metrics)
    }

    /// When the server answered last; when the lease began before it did.
    pub(super) fn last_answer(&self) -> Instant {
        self.running.answered.get()
    }

    /// What the session's next lease is lent.
    pub(super) fn into_running(self) -> Box<Running> {
        self.running
    }

    /// Bytes of the client are on their way to the server.
    pub(super) fn forwarded(&self) {
        if self.running.asked.get().is_none() {
            // What the backend was taken for goes to it at once.
            let first = self.running.ended.get() == 0 && self.running.begun.get().is_none();
            let now = if first { self.running.answered.get() } else { Instant::now() };
            self.running.asked.set(Some(now));
            if self.running.begun.get().is_none() {
                self.running.begun.set(Some(now));
            }
        }
    }

    /// How long the server has owed its answer.
    pub(super) fn waited(&self) -> Option<Duration> {
        self.running.asked.get().map(|asked| asked.elapsed())
    }

    /// Something was written.
    pub(super) fn has_written(&self) -> bool {
        self.wrote.get()
    }

    /// Something was written, and it is told that it is done.
    pub(super) fn take_written(&self) -> bool {
        self.wrote.replace(false)
    }

    /// Something was read.
    pub(super) fn has_read(&self) -> bool {
        self.read.get()
    }

    /// Transactions that have ended on this lease.
    pub(super) fn ended(&self) -> Ordinal {
        self.running.ended.get()
    }

    /// It may be sent notifications.
    pub(super) fn listens(&self) -> bool {
        self.listens.get()
    }

    /// Writes the notices that are due. Only where a message may begin.
    pub(super) fn put_notices(&self, out: &mut bytes::BytesMut) {
        if let Some(talk) = &self.talk {
            talk.borrow_mut().notices.drain(..).for_each(|notice| write_notice(out, &notice));
        }
    }

    /// Whether notices are due.
    pub(super) fn has_notices(&self) -> bool {
        self.talk.as_ref().is_some_and(|talk| !talk.borrow().notices.is_empty())
    }

    fn speak(&self, sql: Option<&[u8]>) {
        let Some(talk) = &self.talk else { return };
        let talk = &mut *talk.borrow_mut();
        let mut text = shown(sql.unwrap_or_default());
        let bound = std::mem::take(&mut talk.bound);
        let (client, node, pid) = (self.whose().client.id, self.server.node, self.server.pid);
        if talk.notice {
            let words = format!("DB node id: {node} statement: {text}");
            talk.notices.push(PgError::notice(words));
        }
        if !bound.is_empty() && text != PASSWORD {
            text.push_str(&bound);
        }
        if talk.log {
            tracing::info!(client, node = node.0, pid, statement = text, "statement sent");
        }
        if talk.slow.is_some() {
            let running = &mut talk.running;
            if !running.is_empty() {
                running.extend_from_slice(b"; ");
            }
            running.extend_from_slice(text.as_bytes());
            running.truncate(SHOWN_STATEMENT);
        }
    }

    fn ready(&self) {
        let now = Instant::now();
        let asked = self.running.asked.take().unwrap_or_else(|| self.running.answered.get());
        self.running.answered.set(now);
        self.running.last_asked.set(asked);
        let took = now.duration_since(asked);
        self.running.took.set(took);
        self.whose().tally.add(Count::Queries, 1);
        self.whose().tally.add_time(Count::QueryNanos, took);
        if let Some(node) = self.node() {
            node.latency.observe(self.route, self.whose().worker.id, took);
        }
        if let Some(talk) = &self.talk {
            let talk = &mut *talk.borrow_mut();
            let text = std::mem::take(&mut talk.running);
            if talk.slow.is_some_and(|limit| took >= limit) {
                let (client, node, pid) = (self.whose().client.id, self.server.node, self.server.pid);
                let (text, reason) = (String::from_utf8_lossy(&text), self.reason.as_str());
                let duration_ms = took.as_secs_f64() * 1000.0;
                tracing::info!(client, node = node.0, pid, reason, duration_ms, statement = %text, "slow statement");
            }
        }
    }
}

impl Watch for Counting {
    fn statement(&self, verdict: &Verdict, sql: Option<&[u8]>) {
        self.wrote.set(self.wrote.get() | (verdict.access == Access::Write));
        self.read.set(self.read.get() | (verdict.access != Access::Neutral));
        self.listens.set(self.listens.get() | (verdict.pin == Some(PinReason::Listen)));
        if let Some(node) = self.node() {
            node.statement(kind(verdict), self.reason as usize);
        }
        if let Some(sql) = sql {
            self.whose().client.set_statement(sql);
        }
        let place =
            (verdict.print != 0).then(|| self.whose().worker.digests.place(verdict.print, sql)).flatten();
        self.running.calls.borrow_mut().told(place);
        self.speak(sql);
    }

    fn asked(&self, push: Push) {
        self.running.calls.borrow_mut().asked(push);
    }

    fn answered(&self, push: Push, message: &[u8], bytes: u64) {
        let mut calls = self.running.calls.borrow_mut();
        let mut count = |ended: Ended| ended.count(&self.whose().worker.digests, self.route, self.reason);
        if message.first() == Some(&b'Z') {
            return calls.ready(push, self.running.took.get(), &mut count);
        }
        calls.answered(push, message, bytes);
    }

    fn passed(&self, what: Passed) {
        match what {
            Passed::ClientParse => self.whose().tally.add(Count::ClientParses, 1),
            Passed::ServerParse => self.whose().tally.add(Count::ServerParses, 1),
            Passed::Bind => self.whose().tally.add(Count::Binds, 1),
            Passed::Ready => self.ready(),
        }
    }

    fn bound(&self, seen: &[u8], rest: usize) {
        self.passed(Passed::Bind);
        let Some(talk) = &self.talk else { return };
        let talk = &mut *talk.borrow_mut();
        if let Some(limit) = talk.values {
            talk.bound = bound(seen, rest, limit);
        }
    }

    fn server_error(&self, severity: Severity, code: Option<SqlState>) {
        let code = code.map_or([b'0'; 5], |code| code.0);
        self.whose().worker.shared.deps.metrics.errors.inc(&code);
        self.whose().tally.add(Count::Errors, 1);
        if let Some(node) = self.node() {
            node.error(grade(severity));
        }
        if let Some(observation) =
            self.running.read_only.filter(|_| code == SqlState::READ_ONLY_SQL_TRANSACTION.0)
        {
            self.whose().worker.shared.observe(observation);
        }
    }

    fn transaction(&self) {
        self.running.ended.set(self.running.ended.get().wrapping_add(1));
        self.whose().worker.shared.deps.metrics.transactions.inc();
        self.whose().tally.add(Count::Transactions, 1);
        if let Some(begun) = self.running.begun.take() {
            // One statement, as a rule.
            let took = match begun == self.running.last_asked.get() {
                true => self.running.took.get(),
                false => self.running.answered.get().duration_since(begun),
            };
            self.whose().tally.add_time(Count::TransactionNanos, took);
        }
    }

    fn schema_changed(&self) {
        self.whose().worker.shared.statements.schema_changed();
    }

    fn catalog_changed(&self, changes: Changes) {
        self.whose().catalog.changed(changes);
    }

    fn asked_of_sequences(&self, how: Habit) {
        self.whose().habits.asked(how);
    }

    fn held_in_vain(&self) {
        self.whose().habits.held_in_vain();
    }
}

/// Bound values as the log has them, in PostgreSQL's words: each cut to `limit` bytes, binary ones in hexadecimal, as many
/// as a statement may be long.
fn bound(seen: &[u8], rest: usize, limit: usize) -> String {
    let mut out = String::new();
    for (index, (binary, value)) in message::values(seen, rest).enumerate() {
        if out.len() > SHOWN_STATEMENT {
            out.push_str(", ...");
            break;
        }
        out.push_str(if index == 0 { " -- parameters: " } else { ", " });
        let _ = write!(out, "${} = ", index + 1);
        let Some(value) = value else {
            out.push_str("NULL");
            continue;
        };
        let cut = value.get(..limit).unwrap_or(value);
        out.push('\'');
        if binary {
            out.push_str("\\x");
            cut.iter().for_each(|byte| {
                let _ = write!(out, "{byte:02x}");
            });
        } else {
            out.push_str(&String::from_utf8_lossy(cut).replace('\'', "''"));
        }
        out.push_str(if cut.len() < value.len() { "...'" } else { "'" });
    }
    out
}

/// A statement as logs and notices show it: cut, and without a password that is being set.
fn shown(sql: &[u8]) -> String {
    const WORD: &[u8] = b"password";
    if sql.windows(WORD.len()).any(|part| part.eq_ignore_ascii_case(WORD)) {
        return PASSWORD.to_owned();
    }
    let sql = sql.trim_ascii_end();
    let cut = sql.get(..SHOWN_STATEMENT).unwrap_or(sql);
    String::from_utf8_lossy(cut).into_owned()
}

fn route(target: Target) -> Route {
    match target {
        Target::Primary => Route::Primary,
        Target::Read => Route::Read,
        Target::Standby => Route::Standby,
        _ => Route::Any,
    }
}

fn kind(verdict: &Verdict) -> Kind {
    use router::StatementKind;
    match verdict.kind {
        StatementKind::Select => Kind::Select,
        StatementKind::Insert => Kind::Insert,
        StatementKind::Update => Kind::Update,
        StatementKind::Delete => Kind::Delete,
        StatementKind::Ddl => Kind::Ddl,
        StatementKind::Other => Kind::Other,
    }
}

fn grade(severity: Severity) -> telemetry::metrics::Severity {
    match severity {
        Severity::Panic => telemetry::metrics::Severity::Panic,
        Severity::Fatal => telemetry::metrics::Severity::Fatal,
        _ => telemetry::metrics::Severity::Error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_values_as_postgresql_logs_them() {
        let mut out = bytes::BytesMut::new();
        protocol::write::bind(&mut out, "", "", &[Some(b"it's long"), None]).unwrap();
        let rest = protocol::frame::HEADER_LEN + 2;
        assert_eq!(bound(&out, rest, 4096), " -- parameters: $1 = 'it''s long', $2 = NULL");
        assert_eq!(bound(&out, rest, 4), " -- parameters: $1 = 'it''s...', $2 = NULL");
        assert_eq!(bound(b"B\0\0", rest, 4), "");
    }
}
