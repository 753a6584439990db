//! How clients of one kind (database, user, application) use sequences, learned from what passes.
//!
//! Invariants: what was learned of asking stays for the life of the process; bounded in number, beyond which all
//! kinds are one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::engine::Habit;

/// More kinds than this are not told apart.
const MAX_KINDS: usize = 1000;
/// After so many sessions of a kind that were held for nothing, no more are.
const ENOUGH: u32 = 16;

/// Database, user and application name.
type Kind = (Arc<str>, Arc<str>, String);

/// All kinds.
#[derive(Debug, Default)]
pub(crate) struct Habits {
    kinds: Mutex<HashMap<Kind, Arc<Learned>>>,
    others: Arc<Learned>,
}

/// What is known of one kind.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    within: AtomicBool,
    behind: AtomicBool,
    in_vain: AtomicU32,
}

impl Habits {
    /// What is known of clients of that database, user and application.
    pub(crate) fn of(&self, database: &Arc<str>, user: &Arc<str>, application: &str) -> Arc<Learned> {
        let mut kinds = self.kinds.lock();
        let kind = (Arc::clone(database), Arc::clone(user), application.to_owned());
        if kinds.len() >= MAX_KINDS && !kinds.contains_key(&kind) {
            return Arc::clone(&self.others);
        }
        Arc::clone(kinds.entry(kind).or_default())
    }
}

impl Learned {
    /// The habit.
    pub(crate) fn habit(&self) -> Habit {
        if self.behind.load(Ordering::Relaxed) {
            Habit::Behind
        } else if self.within.load(Ordering::Relaxed) {
            Habit::Within
        } else if self.in_vain.load(Ordering::Relaxed) >= ENOUGH {
            Habit::Silent
        } else {
            Habit::Unknown
        }
    }

    /// One of them asked like that.
    pub(crate) fn asked(&self, how: Habit) {
        let flag = if how == Habit::Behind { &self.behind } else { &self.within };
        if !flag.load(Ordering::Relaxed) {
            flag.store(true, Ordering::Relaxed);
        }
    }

    /// One of them was held for nothing.
    pub(crate) fn held_in_vain(&self) {
        self.in_vain.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(habits: &Habits, application: &str) -> Arc<Learned> {
        habits.of(&"d".into(), &"u".into(), application)
    }

    #[test]
    fn kinds_are_told_apart_and_remembered() {
        let habits = Habits::default();
        of(&habits, "a").asked(Habit::Within);
        of(&habits, "b").asked(Habit::Behind);
        of(&habits, "b").asked(Habit::Within);
        assert_eq!(of(&habits, "a").habit(), Habit::Within);
        assert_eq!(of(&habits, "b").habit(), Habit::Behind);
        assert_eq!(of(&habits, "c").habit(), Habit::Unknown);
    }

    #[test]
    fn who_never_asks_is_not_held_for_ever() {
        let learned = Learned::default();
        (0..ENOUGH).for_each(|_| learned.held_in_vain());
        assert_eq!(learned.habit(), Habit::Silent);
        learned.asked(Habit::Behind);
        assert_eq!(learned.habit(), Habit::Behind);
    }

    #[test]
    fn kinds_are_bounded() {
        let habits = Habits::default();
        (0..MAX_KINDS + 10).for_each(|n| of(&habits, &n.to_string()).asked(Habit::Behind));
        assert_eq!(habits.kinds.lock().len(), MAX_KINDS);
        assert_eq!(of(&habits, "one more").habit(), Habit::Behind);
    }
}
