//! What the catalogs of the databases say about the things that statements name, kept up to date.
//!
//! Each database that has sessions is asked over a connection of its own: by the user of the replication check, or
//! as the session's user where that one may not come in. First a digest is asked for, and when it is another one,
//! everything. It is asked again after `catalog_check_period`, when a statement that changes it has passed, and when
//! a statement names what is not known.
//!
//! Invariant: between a change that has passed by pgweir and the answer to a question that was asked after it,
//! nothing is known of that database, and what depends on it goes to the primary.
//!
//! Left out: changes made elsewhere are seen a period later at most.

mod guess;
mod keeper;
mod knowledge;
mod rules;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use config::Config;
use parking_lot::Mutex;
use router::Changes;
use telemetry::{Published, Tasks};
use tokio::sync::{Notify, watch};

use crate::open::OpenAs;
use crate::shared::Shared;
pub use guess::{Relations, judge};
pub(crate) use knowledge::{Knowledge, State};
pub(crate) use rules::{Rules, SharedRules};

/// Between two questions for names that are not known: the first, and the longest after questions in vain.
const ASK_AGAIN: (u32, u32) = (10, 5000);

/// The databases.
#[derive(Debug)]
pub(crate) struct Catalogs {
    rules: Mutex<SharedRules>,
    databases: Mutex<HashMap<Arc<str>, Arc<Database>>>,
    /// Gives each set of rules and each catalog a number of its own.
    numbers: AtomicU64,
    tasks: Tasks,
}

/// One database.
#[derive(Debug)]
pub(crate) struct Database {
    name: Arc<str>,
    knowledge: Published<Knowledge>,
    /// Rung when it is to be asked.
    wake: Notify,
    /// Counts what has changed it, or may have.
    changes: AtomicU64,
    /// What came of the last question; wakes who waits for that.
    checked: watch::Sender<Checked>,
    /// Milliseconds until a name that is not known is worth another question: twice as many after each in vain.
    patience: AtomicU32,
    /// It was asked for a name that is not known.
    doubted: AtomicBool,
    /// Somebody has waited for an answer in vain, and none has come since: nobody else waits for it.
    is_late: AtomicBool,
    /// As whom it can be asked: the last session's user.
    who: Mutex<Arc<OpenAs>>,
}

/// What came of the questions to a database.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Checked {
    /// When one was answered.
    answered: Option<Instant>,
    /// Of the changes that were told, those up to here are known, or cannot be asked for.
    changes: u64,
}

impl Catalogs {
    pub(crate) fn new(config: &Config, tasks: Tasks) -> Self {
        let rules = Mutex::new(Arc::new(Rules::new(config, 1)));
        Self { rules, databases: Mutex::default(), numbers: AtomicU64::new(2), tasks }
    }

    /// A number that nothing else has.
    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// The database of a session; it is asked from now on.
    pub(crate) fn enter(&self, shared: &Arc<Shared>, who: OpenAs) -> Arc<Database> {
        let mut databases = self.databases.lock();
        let who = Arc::new(who);
        if let Some(database) = databases.get(&who.node_database) {
            *database.who.lock() = who;
            return Arc::clone(database);
        }
        let database = Arc::new(Database {
            name: Arc::clone(&who.node_database),
            knowledge: Published::new(Knowledge::careful(self.rules(), State::Loading)),
            wake: Notify::new(),
            changes: AtomicU64::new(0),
            checked: watch::Sender::default(),
            patience: AtomicU32::new(ASK_AGAIN.0),
            doubted: AtomicBool::new(false),
            is_late: AtomicBool::new(false),
            who: Mutex::new(who),
        });
        databases.insert(Arc::clone(&database.name), Arc::clone(&database));
        let keeper = keeper::Keeper::new(Arc::clone(shared), Arc::clone(&database));
        // Nobody waits for its end.
        drop(self.tasks.spawn("catalog of a database", keeper.run()));
        database
    }

    /// Nobody uses the database any more: it is forgotten, unless somebody has come meanwhile.
    fn leave(&self, database: &Arc<Database>) -> bool {
        let mut databases = self.databases.lock();
        // The map's, and its keeper's.
        let unused = Arc::strong_count(database) <= 2;
        if unused {
            databases.remove(&database.name);
        }
        unused
    }

    /// The lists in force.
    pub(crate) fn rules(&self) -> SharedRules {
        Arc::clone(&self.rules.lock())
    }

    /// The configuration was replaced. What is known stays so unless it was told by other lists.
    pub(crate) fn config_changed(&self, config: &Config) {
        let mut current = self.rules.lock();
        let changed = !current.are_of(config);
        if changed {
            *current = Arc::new(Rules::new(config, self.number()));
        }
        let rules = Arc::clone(&current);
        drop(current);
        for database in self.databases.lock().values() {
            match changed {
                true => database.suspect(&rules),
                // As whom it is asked, and how often, may be another thing.
                false => database.wake.notify_one(),
            }
        }
    }
}

impl Database {
    /// What is known, for a session.
    pub(crate) fn reader(&self) -> telemetry::Reader<Knowledge> {
        self.knowledge.reader()
    }

    /// Something has passed that changes it, or may have.
    pub(crate) fn changed(&self, changes: Changes) {
        if changes == Changes::Schema {
            let rules = Arc::clone(&self.knowledge.load().rules);
            return self.suspect(&rules);
        }
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.wake.notify_one();
    }

    /// What was known does not count any more.
    fn suspect(&self, rules: &SharedRules) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        let state = match self.knowledge.load().state {
            State::Known => State::Changed,
            other => other,
        };
        self.knowledge.publish(Knowledge::careful(Arc::clone(rules), state));
        self.wake.notify_one();
    }

    /// Something is named that is not known: when it is worth waiting for, what to wait on. It changes when the
    /// database was asked.
    pub(crate) fn ask(&self) -> Option<watch::Receiver<Checked>> {
        let patience = Duration::from_millis(self.patience.load(Ordering::Relaxed).into());
        let lately = self.checked.borrow().answered.is_some_and(|answered| answered.elapsed() < patience);
        let state = self.knowledge.load().state;
        let known_anew = state == State::Known && lately;
        if known_anew || state == State::Unknown || self.is_late.load(Ordering::Relaxed) {
            return None;
        }
        let answers = self.checked.subscribe();
        self.doubted.store(true, Ordering::Relaxed);
        self.wake.notify_one();
        Some(answers)
    }

    /// Something is named that is not known, and cannot be run where it would be: what ends when a question has been
    /// answered that was asked after this, or cannot be. `None` when nobody can be asked.
    pub(crate) fn ask_anew(&self) -> Option<impl Future<Output = ()> + Send + 'static> {
        if self.knowledge.load().state == State::Unknown {
            return None;
        }
        let mut answers = self.checked.subscribe();
        let asked = self.changes.fetch_add(1, Ordering::AcqRel) + 1;
        self.wake.notify_one();
        Some(async move {
            // Its end is one of the database: nobody answers any more.
            let _ = answers.wait_for(|checked| checked.changes >= asked).await;
        })
    }

    /// No answer has come for as long as a statement waits for one. While definitions follow each other faster than they
    /// can be read, or a catalog is large, each statement would wait as long for nothing.
    pub(crate) fn is_late(&self) {
        self.is_late.store(true, Ordering::Relaxed);
    }

    /// It was asked, after so many changes, and had something new to say or not.
    fn has_answered(&self, changes: u64, something_new: bool) {
        self.is_late.store(false, Ordering::Relaxed);
        if something_new {
            self.patience.store(ASK_AGAIN.0, Ordering::Relaxed);
        } else if self.doubted.swap(false, Ordering::Relaxed) {
            let patience = self.patience.load(Ordering::Relaxed);
            self.patience.store(patience.saturating_mul(2).min(ASK_AGAIN.1), Ordering::Relaxed);
        }
        self.checked.send_replace(Checked { answered: Some(Instant::now()), changes });
    }

    /// It could not be asked: whoever waits need not any longer.
    fn has_failed(&self) {
        self.is_late.store(false, Ordering::Relaxed);
        let changes = self.changes.load(Ordering::Acquire);
        self.checked.send_modify(|checked| checked.changes = changes);
    }
}
