//! The session's settings and what pins it, as the client sees them, followed through transactions and savepoints.
//!
//! A change counts when the server has answered it, and is taken back when the transaction that made it
//! is rolled back. The client's settings and those that the backend carries change together: behind a reset,
//! which gives the server's default, the client's own start-up values are set again in the same write.

use std::collections::VecDeque;
use std::sync::Arc;

use protocol::message::TxStatus;
use protocol::tracker::{Owner, Push};
use router::{Change, PinReason, SessionOp};

use super::pins::Pins;
use super::sequences::Asker;
use super::splice::Splice;
use super::unseen::Unseen;
use crate::settings::{Scope, Settings};
use crate::statements::Statement;

/// More savepoints than this in one transaction are not followed: the session is pinned.
const MAX_SAVEPOINTS: usize = 1000;

/// What a statement on its way to the server will do.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) op: SessionOp,
    /// The statement that PREPARE makes.
    pub(super) made: Option<Arc<Statement>>,
    /// Whose statement it is.
    pub(super) of: Owner,
}

/// What a rollback goes back to.
#[derive(Debug, Clone, Default)]
struct Before {
    settings: Arc<Settings>,
    pins: Pins,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct SettingsBook {
    startup: Arc<Settings>,
    client: Arc<Settings>,
    pub(super) pins: Pins,
    pub(super) asker: Asker,
    pub(super) unseen: Unseen,
    /// State that cannot be moved does not hold the client.
    pub(super) ignores_state: bool,
    /// As they were when the transaction made its first change.
    at_begin: Option<Box<Before>>,
    savepoints: Vec<(Vec<u8>, Before)>,
    /// What statements on their way to the server will do, by message.
    pending: VecDeque<(Push, VecDeque<Step>)>,
    /// What the portals of this batch will do.
    portals: Vec<(Box<[u8]>, Step)>,
    /// The truth value in the last row of a statement that is followed.
    answer: Option<bool>,
    failed: bool,
    /// The string on its way that has statements of ours in it.
    pub(super) spliced: Option<Splice>,
    /// DISCARD ALL has run in this batch.
    discarded: bool,
    /// What the backend has is not known.
    in_doubt: bool,
    /// What the client has set on this backend; `None` stands for all.
    changed: Vec<Option<String>>,
}

impl SettingsBook {
    /// The session begins with these.
    pub(super) fn start(&mut self, settings: Arc<Settings>) {
        self.startup = Arc::clone(&settings);
        self.client = settings;
    }

    /// The client's settings.
    pub(super) fn client(&self) -> &Arc<Settings> {
        &self.client
    }

    /// A new backend: nothing is on its way.
    pub(super) fn bind(&mut self) {
        self.pending.clear();
        self.portals.clear();
        self.end_transaction();
        (self.failed, self.discarded, self.in_doubt) = (false, false, false);
        (self.answer, self.spliced) = (None, None);
        self.unseen = Unseen::default();
        self.changed.clear();
    }

    /// The client has set the parameter `name` (in lower case) since it has this backend.
    pub(super) fn has_changed(&self, name: &str) -> bool {
        self.changed.iter().any(|changed| changed.as_deref().is_none_or(|changed| changed == name))
    }

    /// Once each: a session that holds its backend may set the same parameter for days.
    fn note_changed(&mut self, change: &Change) {
        match change {
            Change::Set { name, .. } | Change::Reset { name } if self.has_changed(name) => {}
            Change::Set { name, .. } | Change::Reset { name } => self.changed.push(Some(name.clone())),
            // Gone with the transaction.
            Change::ResetLocal { .. } => {}
            Change::ResetAll => self.changed = vec![None],
        }
    }

    /// Values that statements of the client have set without a sign of it.
    pub(super) fn adopt(&mut self, values: Vec<(String, String)>, backend: &mut Arc<Settings>) {
        let mut client = (*self.client).clone();
        for (name, value) in values {
            client.set(&name, value);
        }
        self.client = Arc::new(client);
        *backend = Arc::clone(&self.client);
    }

    /// What the backend has is not known any more.
    pub(super) fn doubt(&mut self) {
        self.in_doubt = true;
    }

    /// The backend is nobody else's any more.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// DISCARD ALL has run in a batch of which the end has not been answered.
    pub(super) fn has_discarded(&self) -> bool {
        self.discarded
    }

    /// The server's value of `name` shows for a moment only: it stands behind a DISCARD ALL whose batch has failed, with
    /// what gave the client its own again.
    pub(super) fn passes_by(&self, name: &str) -> bool {
        let undone = self.discarded && (self.failed || self.in_doubt);
        undone && self.startup.get(&name.to_ascii_lowercase()).is_some()
    }

    /// Statements that are followed have not been answered yet.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// A simple Query of those effects, one a statement, is forwarded as `push`.
    pub(super) fn query(&mut self, push: Push, steps: VecDeque<Step>) {
        if steps.iter().any(|step| !matches!(step.op, SessionOp::Nothing | SessionOp::Other)) {
            self.pending.push_back((push, steps));
        }
    }

    /// A portal is made from a statement of that effect.
    pub(super) fn portal(&mut self, portal: &[u8], step: Option<Step>) {
        self.portals.retain(|(known, _)| **known != *portal);
        self.portals.extend(step.map(|step| (portal.into(), step)));
    }

    /// That portal is executed as `push`; what it will do.
    pub(super) fn execute(&mut self, push: Push, portal: &[u8]) -> Option<SessionOp> {
        let step = self.portals.iter().find(|(known, _)| **known == *portal).map(|(_, step)| step.clone())?;
        let op = step.op.clone();
        if matches!(op, SessionOp::Changes(_)) {
            // Its first row has done it: the rest of the portal must not do it over what is set meanwhile.
            self.portals.retain(|(known, _)| **known != *portal);
        }
        self.query(push, VecDeque::from([step]));
        Some(op)
    }

    /// The session has values from its start-up packet.
    pub(super) fn has_startup(&self) -> bool {
        !self.startup.is_empty()
    }

    /// What gives back the start-up values that this operation resets, statement by statement.
    pub(super) fn startup_again(&self, op: &SessionOp) -> Vec<String> {
        if self.startup.is_empty() {
            return Vec::new();
        }
        let one = |name: &str, scope| self.startup.again(name, scope);
        match op {
            SessionOp::Changes(changes) => changes
                .iter()
                .flat_map(|change| match change {
                    Change::Set { .. } => Vec::new(),
                    Change::Reset { name } => one(name, Scope::Session).into_iter().collect(),
                    Change::ResetLocal { name } => one(name, Scope::Local).into_iter().collect(),
                    Change::ResetAll => {
                        let names = self.startup.names_that_reset_all_resets();
                        names.filter_map(|name| one(name, Scope::Session)).collect()
                    }
                })
                .collect(),
            SessionOp::DiscardAll => {
                self.startup.names().filter_map(|name| one(name, Scope::Session)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// What the server answers of the string `push` is about a statement of ours.
    pub(super) fn is_at_ours(&self, push: Push) -> bool {
        let steps = self.pending.front().filter(|(pending, _)| *pending == push).map(|(_, steps)| steps);
        steps.and_then(VecDeque::front).is_some_and(|step| step.of != Owner::Client)
    }

    /// The server completed a statement of the string `push`; whether it was one of ours.
    pub(super) fn pass_ours(&mut self, push: Push) -> bool {
        self.is_at_ours(push) && self.next_step(push).is_some()
    }

    /// Whether a row that answers `push` is one to look into.
    pub(super) fn wants_row(&self, push: Push) -> bool {
        self.pending.front().is_some_and(|(pending, steps)| {
            *pending == push && matches!(steps.front(), Some(Step { op: SessionOp::State(_), .. }))
        })
    }

    /// That row.
    pub(super) fn row(&mut self, answer: Option<bool>) {
        self.answer = answer;
    }

    /// The server completed a statement of the message `push` of the client with that tag. Gives back what it did
    /// when that is about prepared statements.
    pub(super) fn completed(&mut self, push: Push, tag: &[u8], backend: &mut Arc<Settings>) -> Option<Step> {
        match self.next_step(push) {
            Some(Step { op: SessionOp::Nothing | SessionOp::Other, .. }) | None => match tag {
                b"ROLLBACK" => self.roll_back(backend),
                // Committed; should a new transaction be open at once, it begins with what is now.
                b"COMMIT" | b"PREPARE TRANSACTION" => self.end_transaction(),
                _ => {}
            },
            Some(step) if step.op.statement().is_some() => return Some(step),
            Some(step) => self.apply(step.op, backend),
        }
        None
    }

    /// The server stopped in the portal that the message `push` executed: what its first rows have done is done.
    pub(super) fn suspended(&mut self, push: Push, backend: &mut Arc<Settings>) {
        if let Some(step) = self.next_step(push) {
            self.apply(step.op, backend);
        }
    }

    fn next_step(&mut self, push: Push) -> Option<Step> {
        let (pending, steps) = self.pending.front_mut()?;
        if *pending != push {
            return None;
        }
        let step = steps.pop_front();
        if steps.is_empty() {
            self.pending.pop_front();
        }
        step
    }

    /// The server failed in a statement of the client.
    pub(super) fn error(&mut self) {
        self.failed = true;
    }

    /// The server is ready after the message `push`.
    pub(super) fn ready(&mut self, push: Push, status: TxStatus, backend: &mut Arc<Settings>) {
        self.pending.retain(|(pending, _)| *pending > push);
        if self.failed && status == TxStatus::Idle {
            self.roll_back(backend);
        }
        if status == TxStatus::Idle {
            self.end_transaction();
            self.portals.clear();
            (self.failed, self.discarded) = (false, false);
            // Its descriptors end with the transaction (`be-fsstubs.c`).
            self.pins.release(PinReason::LargeObject);
        }
    }

    /// DISCARD ALL.
    pub(super) fn discard(&mut self, backend: &mut Arc<Settings>) {
        self.end_transaction();
        self.discarded = true;
        self.note_changed(&Change::ResetAll);
        self.pins.clear();
        self.client = Arc::clone(&self.startup);
        *backend = Arc::clone(&self.startup);
    }

    fn end_transaction(&mut self) {
        self.failed = false;
        self.at_begin = None;
        self.savepoints.clear();
    }

    fn roll_back(&mut self, backend: &mut Arc<Settings>) {
        if let Some(before) = self.at_begin.take() {
            self.restore(*before, backend);
        }
        if self.discarded {
            // What was set again behind it went with the batch. It commits at once on a server of today; on one that
            // rolls it back as well, there is again what was before.
            *backend = Arc::default();
            self.in_doubt = true;
        }
        self.end_transaction();
    }

    fn restore(&mut self, before: Before, backend: &mut Arc<Settings>) {
        self.client = before.settings;
        *backend = Arc::clone(&self.client);
        self.pins.roll_back(&before.pins);
    }

    fn now(&self) -> Before {
        Before { settings: Arc::clone(&self.client), pins: self.pins.clone() }
    }

    fn apply(&mut self, op: SessionOp, backend: &mut Arc<Settings>) {
        match op {
            SessionOp::Changes(changes) => self.change(&changes, backend),
            SessionOp::Savepoint(name) => {
                if self.savepoints.len() >= MAX_SAVEPOINTS {
                    return self.pins.hold(PinReason::SessionSetting);
                }
                let now = self.now();
                self.savepoints.push((name, now));
            }
            SessionOp::Release(name) => {
                if let Some(at) = self.savepoint(&name) {
                    self.savepoints.truncate(at);
                }
            }
            SessionOp::RollbackTo(name) => {
                self.failed = false;
                let found = self.savepoint(&name);
                self.savepoints.truncate(found.map_or(0, |at| at + 1));
                match self.savepoints.last().cloned() {
                    Some((_, before)) => self.restore(before, backend),
                    // Made where nobody looked: in a string that is not taken apart.
                    None if self.at_begin.is_some() => self.pins.hold(PinReason::SessionSetting),
                    None => {}
                }
            }
            SessionOp::State(op) => {
                let now = self.now();
                self.at_begin.get_or_insert_with(|| Box::new(now));
                let answer = self.answer.take();
                self.pins.apply(op, answer);
            }
            // The tags of the last two say so already; the others are the statements' books'.
            _ => {}
        }
    }

    fn savepoint(&self, name: &[u8]) -> Option<usize> {
        self.savepoints.iter().rposition(|(known, _)| known == name)
    }

    fn change(&mut self, changes: &[Change], backend: &mut Arc<Settings>) {
        if changes.is_empty() {
            return;
        }
        let now = self.now();
        self.at_begin.get_or_insert_with(|| Box::new(now));
        changes.iter().for_each(|change| self.note_changed(change));
        let mut client = (*self.client).clone();
        changes.iter().for_each(|change| client.change(change, &self.startup));
        self.client = Arc::new(client);
        *backend = Arc::clone(&self.client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(sql: &str) -> VecDeque<Step> {
        let ops = router::session_ops(sql.as_bytes(), true).unwrap();
        ops.into_iter().map(|op| Step { op, made: None, of: Owner::Client }).collect()
    }

    /// Runs statements that all succeed, with the status after each; gives the client's settings.
    struct Session {
        book: SettingsBook,
        backend: Arc<Settings>,
        push: Push,
    }

    impl Session {
        fn new(startup: &[(&str, &str)]) -> Self {
            let pairs = startup.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let settings = Arc::new(Settings::new(pairs));
            let mut book = SettingsBook::default();
            book.start(Arc::clone(&settings));
            Self { book, backend: settings, push: Push(0) }
        }

        fn run(&mut self, sql: &str, tag: &str, status: TxStatus) {
            self.push.0 += 1;
            self.book.query(self.push, steps(sql));
            self.book.completed(self.push, tag.as_bytes(), &mut self.backend);
            self.book.ready(self.push, status, &mut self.backend);
        }

        fn fail(&mut self, sql: &str, status: TxStatus) {
            self.push.0 += 1;
            self.book.query(self.push, steps(sql));
            self.book.error();
            self.book.ready(self.push, status, &mut self.backend);
        }

        fn has(&self, name: &str) -> bool {
            assert_eq!(*self.backend, **self.book.client(), "the backend carries the same");
            self.book.client().get(name).is_some()
        }
    }

    use TxStatus::{Failed, Idle, InTransaction};

    #[test]
    fn outside_of_a_transaction_a_change_stays() {
        let mut session = Session::new(&[]);
        session.run("SET a.b = 1", "SET", Idle);
        assert!(session.has("a.b"));
        session.fail("SET a.c = nonsense", Idle);
        assert!(session.has("a.b") && !session.has("a.c"));
        session.run("RESET a.b", "RESET", Idle);
        assert!(!session.has("a.b"));
    }

    #[test]
    fn a_rollback_takes_it_back_and_a_commit_keeps_it() {
        let mut session = Session::new(&[]);
        for (end, kept) in [("ROLLBACK", false), ("COMMIT", true)] {
            session.run("BEGIN", "BEGIN", InTransaction);
            session.run("SET a.b = 1", "SET", InTransaction);
            assert!(session.has("a.b"));
            session.run(end, end, Idle);
            assert_eq!(session.has("a.b"), kept, "{end}");
        }
    }

    #[test]
    fn commit_of_a_failed_transaction_is_a_rollback() {
        let mut session = Session::new(&[]);
        session.run("BEGIN", "BEGIN", InTransaction);
        session.run("SET a.b = 1", "SET", InTransaction);
        session.fail("SELECT 1/0", Failed);
        session.run("COMMIT", "ROLLBACK", Idle);
        assert!(!session.has("a.b"));
    }

    #[test]
    fn a_failing_commit_takes_it_back() {
        let mut session = Session::new(&[]);
        session.run("BEGIN", "BEGIN", InTransaction);
        session.run("SET a.b = 1", "SET", InTransaction);
        session.fail("COMMIT", Idle);
        assert!(!session.has("a.b"));
    }

    #[test]
    fn savepoints_nest() {
        let mut session = Session::new(&[]);
        session.run("BEGIN", "BEGIN", InTransaction);
        session.run("SET a.a = 1", "SET", InTransaction);
        session.run("SAVEPOINT s", "SAVEPOINT", InTransaction);
        session.run("SET a.b = 1", "SET", InTransaction);
        session.run("SAVEPOINT s", "SAVEPOINT", InTransaction);
        session.run("SET a.c = 1", "SET", InTransaction);
        session.fail("SELECT 1/0", Failed);
        session.run("ROLLBACK TO s", "ROLLBACK", InTransaction);
        assert!(session.has("a.b") && !session.has("a.c"));
        session.run("RELEASE s", "RELEASE", InTransaction);
        session.run("ROLLBACK TO SAVEPOINT s", "ROLLBACK", InTransaction);
        assert!(session.has("a.a") && !session.has("a.b"));
        session.run("COMMIT", "COMMIT", Idle);
        assert!(session.has("a.a"));
    }

    #[test]
    fn chained_transactions() {
        let mut session = Session::new(&[]);
        session.run("BEGIN", "BEGIN", InTransaction);
        session.run("SET a.a = 1", "SET", InTransaction);
        session.run("COMMIT AND CHAIN", "COMMIT", InTransaction);
        session.run("SET a.b = 1", "SET", InTransaction);
        session.run("ROLLBACK AND CHAIN", "ROLLBACK", InTransaction);
        assert!(session.has("a.a") && !session.has("a.b"));
        session.run("ROLLBACK", "ROLLBACK", Idle);
        assert!(session.has("a.a"));
    }

    #[test]
    fn a_reset_gives_the_client_its_startup_value() {
        let mut session = Session::new(&[("timezone", "UTC"), ("app.x", "it's")]);
        let again = |session: &Session, sql: &str| session.book.startup_again(&steps(sql)[0].op);
        session.run("SET timezone = 'Asia/Tokyo'", "SET", Idle);
        assert!(again(&session, "RESET work_mem").is_empty());
        let zone = "SET \"timezone\"=E'UTC'";
        assert_eq!(again(&session, "RESET timezone"), [zone]);
        assert_eq!(again(&session, "SET LOCAL timezone TO DEFAULT"), ["SET LOCAL \"timezone\"=E'UTC'"]);
        let both = ["SET \"app\".\"x\"=E'it''s'", zone];
        assert_eq!(again(&session, "RESET ALL"), both);
        assert_eq!(again(&session, "DISCARD ALL"), both);
        session.run("RESET ALL", "RESET", Idle);
        assert!(session.has("timezone"));
    }

    #[test]
    fn a_string_is_followed_statement_by_statement() {
        let mut session = Session::new(&[]);
        session.push.0 += 1;
        session
            .book
            .query(session.push, steps("SET a.a = 1; BEGIN; SET a.b = 1; ROLLBACK; SET a.c = 1; SELECT 1"));
        for tag in ["SET", "BEGIN", "SET", "ROLLBACK", "SET", "SELECT 1"] {
            session.book.completed(session.push, tag.as_bytes(), &mut session.backend);
        }
        session.book.ready(session.push, Idle, &mut session.backend);
        // BEGIN made the SET in front of it a part of the transaction.
        assert!(!session.has("a.a") && !session.has("a.b") && session.has("a.c"));
    }

    #[test]
    fn what_is_made_behind_a_rollback_in_one_batch_stays() {
        let mut session = Session::new(&[]);
        session.book.completed(Push(1), b"ROLLBACK", &mut session.backend);
        for (push, sql, tag) in [(2, "SET a.b = 1", "SET"), (3, "CREATE TEMP TABLE x()", "CREATE TABLE")] {
            session.book.query(Push(push), steps(sql));
            session.book.completed(Push(push), tag.as_bytes(), &mut session.backend);
        }
        session.book.ready(Push(4), Idle, &mut session.backend);
        assert!(session.has("a.b"));
        assert_eq!(session.book.pins.reason(), Some(PinReason::TempTable));
    }

    #[test]
    fn a_rolled_back_listen_does_not_hold() {
        let mut session = Session::new(&[]);
        session.run("BEGIN", "BEGIN", InTransaction);
        session.run("LISTEN a", "LISTEN", InTransaction);
        assert!(session.book.pins.reason().is_some());
        session.run("ROLLBACK", "ROLLBACK", Idle);
        assert_eq!(session.book.pins.reason(), None);
        session.run("SELECT lo_open(1, 2)", "SELECT 1", InTransaction);
    }

    #[test]
    fn a_failed_batch_takes_it_back() {
        let mut session = Session::new(&[]);
        session.book.portal(b"", steps("SET a.b = 1").pop_front());
        session.book.execute(Push(1), b"");
        session.book.completed(Push(1), b"SET", &mut session.backend);
        assert!(session.has("a.b"));
        session.book.error();
        session.book.ready(Push(5), Idle, &mut session.backend);
        assert!(!session.has("a.b"));
    }

    #[test]
    fn a_portal_that_is_suspended_has_done_what_it_does_and_once() {
        let mut session = Session::new(&[]);
        session.book.portal(b"p", steps("SELECT set_config('a.b', '1', false)").pop_front());
        session.book.portal(b"", steps("RESET a.b").pop_front());
        session.book.execute(Push(1), b"p");
        session.book.execute(Push(2), b"");
        session.book.execute(Push(3), b"p");
        session.book.suspended(Push(1), &mut session.backend);
        assert!(session.has("a.b"));
        session.book.completed(Push(2), b"RESET", &mut session.backend);
        assert!(!session.has("a.b"), "what stands behind the suspended one is followed");
        session.book.completed(Push(3), b"SELECT 0", &mut session.backend);
        session.book.ready(Push(4), Idle, &mut session.backend);
        assert!(!session.has("a.b"));
    }

    #[test]
    fn what_is_skipped_changes_nothing() {
        let mut session = Session::new(&[]);
        session.book.portal(b"p", steps("SET a.b = 1").pop_front());
        session.book.error();
        session.book.execute(Push(2), b"p");
        session.book.ready(Push(3), Idle, &mut session.backend);
        session.book.completed(Push(4), b"SET", &mut session.backend);
        assert!(!session.has("a.b"));
    }

    #[test]
    fn what_is_set_again_behind_discard_all_goes_with_a_batch_that_fails() {
        let mut session = Session::new(&[("work_mem", "5MB")]);
        let startup = Arc::clone(&session.backend);
        session.book.discard(&mut session.backend);
        session.book.ready(Push(1), TxStatus::Idle, &mut session.backend);
        assert!(session.backend == startup && !session.book.is_in_doubt());
        session.book.discard(&mut session.backend);
        session.book.error();
        session.book.ready(Push(2), TxStatus::Idle, &mut session.backend);
        assert!(session.backend.is_empty() && session.book.is_in_doubt());
        assert!(*session.book.client() == startup, "set again in front of what comes next");
        session.book.bind();
        session.book.discard(&mut session.backend);
        session.book.completed(Push(3), b"ROLLBACK", &mut session.backend);
        session.book.ready(Push(4), TxStatus::Idle, &mut session.backend);
        assert!(session.backend.is_empty() && session.book.is_in_doubt(), "a ROLLBACK in the batch");
    }

    #[test]
    fn what_has_changed_is_kept_once() {
        let mut session = Session::new(&[]);
        for round in 0..1000 {
            let set =
                |name: &str| Change::Set { name: name.into(), statement: format!("SET {name} = {round}") };
            session.book.change(&[set("a.b"), set("a.c")], &mut session.backend);
        }
        assert_eq!(session.book.changed.len(), 2);
        assert!(session.book.has_changed("a.b") && !session.book.has_changed("a.d"));
        session.book.change(&[Change::ResetAll], &mut session.backend);
        session.book.discard(&mut session.backend);
        assert_eq!(session.book.changed, [None]);
        assert!(session.book.has_changed("a.d"));
    }
}
