//! PAUSE, DISABLE and their kin: which databases' clients may have a backend, and which may come in.
//!
//! Invariants: who has a backend keeps it to the end of its transaction; who asks for one while its database
//! is paused waits; asking costs one load while nothing is paused.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Which databases a command is about: one, by the name that clients ask for, or all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All, those that nobody has asked for yet included.
    All,
    /// That one.
    Database(String),
}

impl Scope {
    /// Whether that database is one of them.
    #[must_use]
    pub fn covers(&self, database: &str) -> bool {
        match self {
            Self::All => true,
            Self::Database(name) => name == database,
        }
    }
}

#[derive(Debug, Default)]
struct Closed {
    all: bool,
    paused: BTreeSet<String>,
    disabled: BTreeSet<String>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Gates {
    closed: Mutex<Closed>,
    any_paused: AtomicBool,
    changed: Notify,
}

impl Gates {
    /// Nobody of `scope` gets a backend until it is resumed; false when that was so before.
    pub fn pause(&self, scope: &Scope) -> bool {
        let mut closed = self.closed.lock();
        let news = match scope {
            Scope::All => !std::mem::replace(&mut closed.all, true),
            Scope::Database(name) => closed.paused.insert(name.clone()),
        };
        self.any_paused.store(true, Ordering::Release);
        news
    }

    /// They get backends again; false when none was paused.
    pub fn resume(&self, scope: &Scope) -> bool {
        let mut closed = self.closed.lock();
        let news = match scope {
            Scope::All => {
                let some = closed.all || !closed.paused.is_empty();
                closed.all = false;
                closed.paused.clear();
                some
            }
            Scope::Database(name) => closed.paused.remove(name),
        };
        self.any_paused.store(closed.all || !closed.paused.is_empty(), Ordering::Release);
        drop(closed);
        self.changed.notify_waiters();
        news
    }

    /// New clients of the database are turned away; false when they were before.
    pub fn disable(&self, database: &str) -> bool {
        self.closed.lock().disabled.insert(database.to_owned())
    }

    /// New clients of the database may come in; false when they could before.
    pub fn enable(&self, database: &str) -> bool {
        self.closed.lock().disabled.remove(database)
    }

    /// Whether who asks for a backend has to wait.
    #[must_use]
    pub fn is_paused(&self, database: &str) -> bool {
        self.any_paused.load(Ordering::Acquire) && {
            let closed = self.closed.lock();
            closed.all || closed.paused.contains(database)
        }
    }

    /// Whether that database was paused or disabled by its name: that can be undone, whoever knows it otherwise.
    #[must_use]
    pub fn names(&self, database: &str) -> bool {
        let closed = self.closed.lock();
        closed.paused.contains(database) || closed.disabled.contains(database)
    }

    /// Whether all databases are paused.
    #[must_use]
    pub fn all_paused(&self) -> bool {
        self.closed.lock().all
    }

    /// Whether new clients of the database are turned away.
    #[must_use]
    pub fn is_disabled(&self, database: &str) -> bool {
        self.closed.lock().disabled.contains(database)
    }

    /// Wakes when something was resumed after this was called.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pausing_all_and_one_are_two_things_and_resuming_all_ends_both() {
        let gates = Gates::default();
        let app = Scope::Database("app".into());
        assert!(!gates.is_paused("app") && !gates.resume(&app));
        assert!(gates.pause(&app) && !gates.pause(&app));
        assert!(gates.is_paused("app") && !gates.is_paused("other") && !gates.all_paused());
        assert!(gates.pause(&Scope::All) && gates.is_paused("other"));
        assert!(gates.resume(&app) && gates.is_paused("app"));
        assert!(gates.resume(&Scope::All) && !gates.is_paused("app"));
        assert!(gates.disable("app") && gates.is_disabled("app") && !gates.is_disabled("other"));
        assert!(gates.enable("app") && !gates.enable("app"));
    }
}
