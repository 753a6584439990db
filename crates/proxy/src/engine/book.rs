//! The session's settings as the client sees them, followed through transactions and savepoints.
//!
//! A change counts when the server has answered it, and is taken back when the transaction that made it
//! is rolled back. The client's settings and those that the backend carries change together: they differ
//! only where a reset gives the backend the server's default and the client its own start-up value.

use std::collections::VecDeque;
use std::sync::Arc;

use protocol::message::TxStatus;
use protocol::tracker::Push;
use router::{Change, SessionOp};

use crate::settings::Settings;

/// More savepoints than this in one transaction are not followed: the session is pinned.
const MAX_SAVEPOINTS: usize = 1000;

/// The client's settings and the backend's.
#[derive(Debug, Clone, Default)]
struct Pair {
    client: Arc<Settings>,
    backend: Arc<Settings>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct SettingsBook {
    startup: Arc<Settings>,
    client: Arc<Settings>,
    /// As they were when the transaction made its first change.
    at_begin: Option<Pair>,
    savepoints: Vec<(Vec<u8>, Pair)>,
    /// What statements on their way to the server will do.
    pending: VecDeque<(Push, SessionOp)>,
    /// What the portals of this batch will do.
    portals: Vec<(Box<[u8]>, SessionOp)>,
    failed: bool,
    rolled_back: bool,
    /// More savepoints than are followed.
    lost: bool,
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

    /// Something is beyond what is followed.
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    /// A new backend: nothing is on its way.
    pub(super) fn bind(&mut self) {
        self.pending.clear();
        self.portals.clear();
        self.savepoints.clear();
        self.at_begin = None;
        self.failed = false;
        self.rolled_back = false;
    }

    /// A simple Query of that effect is forwarded as `push`.
    pub(super) fn query(&mut self, push: Push, op: Option<SessionOp>) {
        self.pending.extend(op.map(|op| (push, op)));
    }

    /// A portal is made from a statement of that effect.
    pub(super) fn portal(&mut self, portal: &[u8], op: Option<SessionOp>) {
        self.portals.retain(|(known, _)| **known != *portal);
        self.portals.extend(op.map(|op| (portal.into(), op)));
    }

    /// That portal is executed as `push`.
    pub(super) fn execute(&mut self, push: Push, portal: &[u8]) {
        let op = self.portals.iter().find(|(known, _)| **known == *portal).map(|(_, op)| op.clone());
        self.query(push, op);
    }

    /// The server completed the statement `push` of the client with that tag.
    pub(super) fn completed(&mut self, push: Push, tag: &[u8], backend: &mut Arc<Settings>) {
        if self.pending.front().is_some_and(|(pending, _)| *pending == push)
            && let Some((_, op)) = self.pending.pop_front()
        {
            return self.apply(op, backend);
        }
        match tag {
            b"ROLLBACK" => self.rolled_back = true,
            // Committed; should a new transaction be open at once, it begins with what is now.
            b"COMMIT" | b"PREPARE TRANSACTION" if !self.failed => self.end_transaction(),
            _ => {}
        }
    }

    /// The server failed in a statement of the client.
    pub(super) fn error(&mut self) {
        self.failed = true;
    }

    /// The server is ready after the message `push`.
    pub(super) fn ready(&mut self, push: Push, status: TxStatus, backend: &mut Arc<Settings>) {
        self.pending.retain(|(pending, _)| *pending > push);
        let undone = self.rolled_back || (self.failed && status == TxStatus::Idle);
        if undone && let Some(pair) = self.at_begin.take() {
            self.restore(pair, backend);
        }
        self.rolled_back = false;
        if status == TxStatus::Idle {
            self.end_transaction();
            self.portals.clear();
            self.failed = false;
        } else if undone {
            self.savepoints.clear();
        }
    }

    /// DISCARD ALL.
    pub(super) fn discard(&mut self, backend: &mut Arc<Settings>) {
        self.end_transaction();
        self.lost = false;
        self.client = Arc::clone(&self.startup);
        *backend = Arc::default();
    }

    fn end_transaction(&mut self) {
        self.at_begin = None;
        self.savepoints.clear();
    }

    fn restore(&mut self, pair: Pair, backend: &mut Arc<Settings>) {
        self.client = pair.client;
        *backend = pair.backend;
    }

    fn pair(&self, backend: &Arc<Settings>) -> Pair {
        Pair { client: Arc::clone(&self.client), backend: Arc::clone(backend) }
    }

    fn apply(&mut self, op: SessionOp, backend: &mut Arc<Settings>) {
        match op {
            SessionOp::Changes(changes) => self.change(&changes, backend),
            SessionOp::Savepoint(name) => {
                self.lost |= self.savepoints.len() >= MAX_SAVEPOINTS;
                let pair = self.pair(backend);
                self.savepoints.push((name, pair));
            }
            SessionOp::Release(name) => {
                if let Some(at) = self.savepoint(&name) {
                    self.savepoints.truncate(at);
                }
            }
            // The statements' books follow that.
            SessionOp::Deallocate(_) => {}
            SessionOp::RollbackTo(name) => {
                self.failed = false;
                let found = self.savepoint(&name);
                self.savepoints.truncate(found.map_or(0, |at| at + 1));
                match self.savepoints.last().cloned() {
                    Some((_, pair)) => self.restore(pair, backend),
                    // Made where nobody looked: in a string of several statements.
                    None => self.lost |= self.at_begin.is_some(),
                }
            }
        }
    }

    fn savepoint(&self, name: &[u8]) -> Option<usize> {
        self.savepoints.iter().rposition(|(known, _)| known == name)
    }

    fn change(&mut self, changes: &[Change], backend: &mut Arc<Settings>) {
        if changes.is_empty() {
            return;
        }
        let before = self.pair(backend);
        self.at_begin.get_or_insert(before);
        let mut client = (*self.client).clone();
        let mut carried = (**backend).clone();
        let server_defaults = Settings::default();
        for change in changes {
            client.change(change, &self.startup);
            carried.change(change, &server_defaults);
        }
        self.client = Arc::new(client);
        *backend = if carried == *self.client { Arc::clone(&self.client) } else { Arc::new(carried) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            self.book.query(self.push, router::session_op(sql.as_bytes(), true));
            self.book.completed(self.push, tag.as_bytes(), &mut self.backend);
            self.book.ready(self.push, status, &mut self.backend);
        }

        fn fail(&mut self, sql: &str, status: TxStatus) {
            self.push.0 += 1;
            self.book.query(self.push, router::session_op(sql.as_bytes(), true));
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
        let mut session = Session::new(&[("timezone", "UTC")]);
        session.run("SET timezone = 'Asia/Tokyo'", "SET", Idle);
        session.run("RESET ALL", "RESET", Idle);
        assert_eq!(session.backend.get("timezone"), None, "the server's default");
        assert_eq!(**session.book.client(), Settings::new([("timezone".to_owned(), "UTC".to_owned())]));
        assert!(session.book.client().statements_from(&session.backend).is_some());
    }

    #[test]
    fn a_failed_batch_takes_it_back() {
        let mut session = Session::new(&[]);
        session.book.portal(b"", router::session_op(b"SET a.b = 1", true));
        session.book.execute(Push(1), b"");
        session.book.completed(Push(1), b"SET", &mut session.backend);
        assert!(session.has("a.b"));
        session.book.error();
        session.book.ready(Push(5), Idle, &mut session.backend);
        assert!(!session.has("a.b"));
    }

    #[test]
    fn what_is_skipped_changes_nothing() {
        let mut session = Session::new(&[]);
        session.book.portal(b"p", router::session_op(b"SET a.b = 1", true));
        session.book.error();
        session.book.execute(Push(2), b"p");
        session.book.ready(Push(3), Idle, &mut session.backend);
        session.book.completed(Push(4), b"SET", &mut session.backend);
        assert!(!session.has("a.b"));
    }
}
