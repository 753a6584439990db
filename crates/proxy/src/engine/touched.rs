//! Names that were made ready on the backend by messages that it has not answered.
//!
//! The books say from the forwarding on that a name is ready. Within its batch that is so: a message behind one that the
//! server ignored is ignored as well. Another batch may be carried out where the one before it was not.

use std::collections::HashMap;

use protocol::tracker::Push;

use crate::hash::Seeded;
use crate::statements::key;

/// So many answered ones may be kept beside those that are not.
const SLACK: usize = 64;

/// Where a name was made ready last.
#[derive(Debug, Clone, Copy)]
struct Place {
    push: Push,
    batch: u32,
}

/// See the module's documentation. Boxed: every idle session is larger by it, and most never have one.
#[derive(Debug, Default)]
pub(super) struct Touched(Option<Box<Names>>);

#[derive(Debug, Default)]
struct Names {
    places: HashMap<Box<[u8]>, Place, Seeded>,
    /// How many were left when the answered ones were last taken out.
    kept: usize,
}

impl Touched {
    /// `name` is made ready by messages of that batch up to `push`; those before `owed` are answered.
    pub(super) fn note(&mut self, name: &[u8], push: Push, batch: u32, owed: Push) {
        let names = self.0.get_or_insert_default();
        if names.places.len() > 2 * names.kept + SLACK {
            names.places.retain(|_, place| place.push >= owed);
            names.kept = names.places.len();
        }
        names.places.insert(key(name).into(), Place { push, batch });
    }

    /// Whether `name` is ready only if a batch before `batch` is carried out; messages before `owed`, all if there is
    /// none, are answered.
    pub(super) fn hangs_on_another(&self, name: &[u8], batch: u32, owed: Option<Push>) -> bool {
        let place = self.0.as_deref().and_then(|names| names.places.get(key(name)));
        place.is_some_and(|place| place.batch != batch && owed.is_some_and(|owed| owed <= place.push))
    }

    /// All of them. None is left.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Box<[u8]>> + use<> {
        self.0.take().into_iter().flat_map(|names| names.places.into_keys())
    }

    /// Another backend: nothing is on its way.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_hangs_on_an_earlier_batch_until_that_is_answered() {
        let mut touched = Touched::default();
        touched.note(b"q", Push(5), 1, Push(3));
        assert!(!touched.hangs_on_another(b"q", 1, Some(Push(3))), "its own batch");
        assert!(touched.hangs_on_another(b"q", 2, Some(Push(5))));
        assert!(
            !touched.hangs_on_another(b"q", 2, Some(Push(6))) && !touched.hangs_on_another(b"q", 2, None)
        );
        assert!(!touched.hangs_on_another(b"r", 2, Some(Push(5))));
        touched.note(b"q", Push(9), 2, Push(3));
        assert!(!touched.hangs_on_another(b"q", 2, Some(Push(5))), "made ready once more");
    }

    #[test]
    fn answered_ones_do_not_pile_up() {
        let mut touched = Touched::default();
        for n in 1..10_000 {
            touched.note(format!("q{n}").as_bytes(), Push(n), 0, Push(n));
        }
        let left = touched.take().count();
        assert!(left > 0 && left <= 2 * SLACK, "{left}");
    }
}
