//! What holds a session to its backend, and whether it still does.
//!
//! What a statement's tokens say exactly is kept by name or counted, and goes when it is undone. Of the rest only
//! the reason is kept; that goes with what undoes all of its kind, or with DISCARD ALL. What the server has told of is
//! there until it tells otherwise.

use router::{PinReason, StateOp};

type Names = Vec<Vec<u8>>;

/// More names of one kind are not kept: the reason stays.
const MAX_NAMES: usize = 100;

/// See the module's documentation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Pins {
    temp: Names,
    channels: Names,
    cursors: Names,
    locks: u32,
    /// Not known exactly.
    vague: Vec<PinReason>,
    /// What the server told of when it was asked.
    found: Vec<PinReason>,
}

impl Pins {
    /// Why the session is held.
    pub(super) fn reason(&self) -> Option<PinReason> {
        self.followed().or_else(|| self.found.first().copied())
    }

    /// The server was asked, and told of that.
    pub(super) fn set_found(&mut self, found: Vec<PinReason>) {
        self.found = found;
    }

    /// Something is there that nobody follows.
    pub(super) fn has_found(&self) -> bool {
        !self.found.is_empty()
    }

    /// Why statements that were followed hold the session.
    pub(super) fn followed(&self) -> Option<PinReason> {
        let exact = [
            (!self.temp.is_empty(), PinReason::TempTable),
            (self.locks > 0, PinReason::AdvisoryLock),
            (!self.channels.is_empty(), PinReason::Listen),
            (!self.cursors.is_empty(), PinReason::HoldCursor),
        ];
        let exact = || exact.into_iter().find(|(held, _)| *held).map(|(_, reason)| reason);
        self.vague.first().copied().or_else(exact)
    }

    /// Something that is not known exactly holds it.
    pub(super) fn hold(&mut self, reason: PinReason) {
        if !self.vague.contains(&reason) {
            self.vague.push(reason);
        }
    }

    /// The session is not held for `reason` any more.
    pub(super) fn release(&mut self, reason: PinReason) {
        self.vague.retain(|held| *held != reason);
    }

    /// DISCARD ALL.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The transaction that made what was not `before` is rolled back. Locks are not, nor are closed cursors
    /// opened again.
    pub(super) fn roll_back(&mut self, before: &Self) {
        self.temp.clone_from(&before.temp);
        self.channels.clone_from(&before.channels);
        self.cursors.retain(|name| before.cursors.contains(name));
        before.vague.iter().for_each(|reason| self.hold(*reason));
    }

    /// A statement succeeded; `answer` is the truth value that it returned, if it did.
    pub(super) fn apply(&mut self, op: StateOp, answer: Option<bool>) {
        match op {
            StateOp::TempTable(name) => self.add(PinReason::TempTable, name),
            StateOp::RenamesTables if !self.temp.is_empty() => self.hold(PinReason::TempTable),
            StateOp::DropTables(names) => self.temp.retain(|name| !names.contains(name)),
            StateOp::DiscardTemp => {
                self.temp.clear();
                self.release(PinReason::TempTable);
            }
            StateOp::DiscardSequences => self.release(PinReason::Sequence),
            StateOp::Listen(name) => self.add(PinReason::Listen, name),
            StateOp::Unlisten(name) => self.channels.retain(|known| *known != name),
            StateOp::UnlistenAll => {
                self.channels.clear();
                self.release(PinReason::Listen);
            }
            StateOp::HoldCursor(name) => self.add(PinReason::HoldCursor, name),
            StateOp::Close(name) => self.cursors.retain(|known| *known != name),
            StateOp::CloseAll => {
                self.cursors.clear();
                self.release(PinReason::HoldCursor);
            }
            StateOp::Lock => self.locks = self.locks.saturating_add(1),
            StateOp::TryLock if answer != Some(false) => self.locks = self.locks.saturating_add(1),
            StateOp::Unlock if answer == Some(true) => self.locks = self.locks.saturating_sub(1),
            StateOp::UnlockAll => {
                self.locks = 0;
                self.release(PinReason::AdvisoryLock);
            }
            StateOp::RenamesTables | StateOp::TryLock | StateOp::Unlock => {}
        }
    }

    fn add(&mut self, reason: PinReason, name: Vec<u8>) {
        let names = match reason {
            PinReason::TempTable => &mut self.temp,
            PinReason::Listen => &mut self.channels,
            _ => &mut self.cursors,
        };
        if names.contains(&name) {
            return;
        }
        if names.len() >= MAX_NAMES {
            return self.hold(reason);
        }
        names.push(name);
    }
}

/// The truth value in a DataRow of one column, in text or binary.
pub(super) fn truth(message: &[u8]) -> Option<bool> {
    match message {
        [b'D', _, _, _, _, 0, 1, 0, 0, 0, 1, value] => Some(matches!(value, b't' | 1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(pins: &mut Pins, sql: &str, answer: Option<bool>) {
        for op in router::session_ops(sql.as_bytes(), true).unwrap() {
            match op {
                router::SessionOp::State(op) => pins.apply(op, answer),
                other => panic!("{sql}: {other:?}"),
            }
        }
    }

    fn reason_after(script: &[(&str, Option<bool>)]) -> Option<PinReason> {
        let mut pins = Pins::default();
        script.iter().for_each(|(sql, answer)| apply(&mut pins, sql, *answer));
        pins.reason()
    }

    #[test]
    fn what_is_undone_holds_no_more() {
        for (script, held) in [
            (&[("CREATE TEMP TABLE x(a int)", None)][..], Some(PinReason::TempTable)),
            (&[("CREATE TEMP TABLE x(a int)", None), ("DROP TABLE x", None)], None),
            (&[("CREATE TEMP TABLE x(a int)", None), ("DROP TABLE pg_temp.x, y", None)], None),
            (&[("CREATE TEMP TABLE x(a int)", None), ("DROP TABLE s.x", None)], Some(PinReason::TempTable)),
            (&[("CREATE TEMP TABLE x(a int)", None), ("DISCARD TEMP", None)], None),
            (
                &[
                    ("CREATE TEMP TABLE x(a int)", None),
                    ("ALTER TABLE x RENAME TO y", None),
                    ("DROP TABLE x", None),
                ],
                Some(PinReason::TempTable),
            ),
            (&[("LISTEN a; LISTEN b; UNLISTEN a", None)], Some(PinReason::Listen)),
            (&[("LISTEN a; LISTEN \"B\"", None), ("UNLISTEN A", None), ("UNLISTEN \"B\"", None)], None),
            (&[("LISTEN a", None), ("UNLISTEN *", None)], None),
            (&[("DECLARE c CURSOR WITH HOLD FOR SELECT 1", None)], Some(PinReason::HoldCursor)),
            (&[("DECLARE c CURSOR WITH HOLD FOR SELECT 1", None), ("CLOSE c", None)], None),
            (&[("SELECT pg_advisory_lock(1)", None)], Some(PinReason::AdvisoryLock)),
            (&[("SELECT pg_advisory_lock(1)", None), ("SELECT pg_advisory_unlock(1)", Some(true))], None),
            (
                &[
                    ("SELECT pg_advisory_lock(1)", None),
                    ("SELECT pg_try_advisory_lock(1)", Some(true)),
                    ("SELECT pg_advisory_unlock($1::bigint)", Some(true)),
                ],
                Some(PinReason::AdvisoryLock),
            ),
            (&[("SELECT pg_try_advisory_lock(1) AS got", Some(false))], None),
            (
                &[("SELECT pg_advisory_lock(1, 2)", None), ("SELECT pg_advisory_unlock(1)", Some(false))],
                Some(PinReason::AdvisoryLock),
            ),
            (
                &[
                    ("SELECT pg_advisory_lock(hashtext('a'))", None),
                    ("SELECT pg_advisory_unlock_all()", None),
                ],
                None,
            ),
        ] {
            assert_eq!(reason_after(script), held, "{script:?}");
        }
    }

    #[test]
    fn a_vague_reason_goes_with_all_of_its_kind() {
        let mut pins = Pins::default();
        pins.hold(PinReason::AdvisoryLock);
        apply(&mut pins, "SELECT pg_advisory_unlock(1)", Some(true));
        assert_eq!(pins.reason(), Some(PinReason::AdvisoryLock));
        apply(&mut pins, "SELECT pg_advisory_unlock_all()", None);
        assert_eq!(pins.reason(), None);
    }

    #[test]
    fn a_rollback_undoes_what_was_made_and_not_what_was_closed() {
        let mut pins = Pins::default();
        apply(&mut pins, "DECLARE c CURSOR WITH HOLD FOR SELECT 1", None);
        let before = pins.clone();
        apply(&mut pins, "LISTEN a; CREATE TEMP TABLE x(); CLOSE c; SELECT pg_advisory_lock(1)", None);
        pins.roll_back(&before);
        apply(&mut pins, "SELECT pg_advisory_unlock(1)", Some(true));
        assert_eq!(pins.reason(), None);
    }

    #[test]
    fn a_row_of_one_truth_value() {
        assert_eq!(truth(b"D\0\0\0\x0b\0\x01\0\0\0\x01t"), Some(true));
        assert_eq!(truth(b"D\0\0\0\x0b\0\x01\0\0\0\x01\0"), Some(false));
        assert_eq!(truth(b"D\0\0\0\x0a\0\x01\xff\xff\xff\xff"), None);
    }
}
