//! What statements may have left on the backend with nothing in their texts to show for it, and what the server told of it.
//!
//! When everything is answered, and nothing else holds the session, the server is to be asked ([`Engine::is_to_be_asked`]);
//! what it tells ([`Found`]) is taken over, or holds the session. What was found holds it until it is not there any more,
//! which is asked for again behind whatever may have undone it.

use router::{Access, Body, Leaves, PinReason, Reason, StatementKind, Verdict};

use super::{Books, Engine};

/// More parameters of DO blocks are not remembered by name.
const MAX_NAMES: usize = 50;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Unseen {
    leaves: Leaves,
    /// Something was called, or written, that was not known.
    unknown: bool,
    /// What was found may have been undone.
    undone: bool,
    /// Parameters that DO blocks have set.
    names: Vec<String>,
}

impl Unseen {
    /// A statement of that verdict is sent; its text, where it is at hand.
    pub(super) fn note(&mut self, verdict: &Verdict, sql: Option<&[u8]>) {
        if verdict.access == Access::Read && verdict.leaves == Leaves::Nothing {
            return;
        }
        self.leaves = self.leaves.max(verdict.leaves);
        self.unknown |= verdict.leaves == Leaves::Anything && verdict.kind != StatementKind::Ddl;
        self.undone |= !matches!(verdict.reason, Reason::Dml | Reason::TransactionControl);
        if verdict.leaves == Leaves::Anything && verdict.pin == Some(PinReason::Unknown) {
            self.note_block(sql);
        }
    }

    /// What runs is not known.
    pub(super) fn note_unknown(&mut self) {
        self.unknown = true;
        self.leaves = self.leaves.max(Leaves::Anything);
    }

    fn note_block(&mut self, sql: Option<&[u8]>) {
        let Some(sql) = sql else { return };
        let Body { leaves, settings, .. } = Body::of_do(sql);
        self.leaves = self.leaves.max(leaves);
        for name in settings {
            if self.names.len() >= MAX_NAMES {
                return self.leaves = Leaves::Unasked;
            }
            self.names.push(name);
        }
    }
}

/// What the server told.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// State that cannot be moved.
    pub state: Vec<PinReason>,
    /// Settings that are the client's from now on.
    pub values: Vec<(String, String)>,
}

impl Engine {
    /// The backend is to be asked what is on it before anybody can tell whether it is free.
    #[must_use]
    pub fn is_to_be_asked(&self) -> bool {
        let (unseen, pins) = (&self.settings.unseen, &self.settings.pins);
        let due = unseen.leaves != Leaves::Nothing || (unseen.undone && pins.has_found());
        due && pins.followed().is_none()
            && self.is_settled()
            && !self.is_skipping_locally()
            && self.tracker.is_clean()
            && self.begin.is_empty()
    }

    /// Something may be on the backend that nobody has asked for.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.settings.unseen.leaves != Leaves::Nothing
    }

    /// A newer catalog may have more names of parameters to ask for. Behind definitions alone nobody waits for it: each
    /// makes it unknown again.
    #[must_use]
    pub fn may_learn_names(&self) -> bool {
        self.settings.unseen.unknown
    }

    /// Names of parameters to ask for that no catalog has.
    #[must_use]
    pub fn names_to_ask(&self) -> &[String] {
        &self.settings.unseen.names
    }

    /// The server was asked, and told that.
    pub fn take_found(&mut self, found: Found, books: &mut Books) {
        let Unseen { leaves, .. } = std::mem::take(&mut self.settings.unseen);
        books.unlisted |= leaves >= Leaves::Anything;
        if leaves == Leaves::Unasked {
            self.settings.pins.hold(PinReason::Unknown);
        }
        self.settings.pins.set_found(found.state);
        if !found.values.is_empty() {
            self.settings.adopt(found.values, &mut books.settings);
        }
    }

    /// It could not be asked: nobody else gets it, and nothing of it is kept.
    pub fn give_up_asking(&mut self) {
        self.forget_unseen();
        self.settings.doubt();
    }

    /// The backend has forgotten whatever was on it.
    pub fn forget_unseen(&mut self) {
        self.settings.unseen = Unseen::default();
        self.settings.pins.clear();
    }

    /// The backend is one of a standby.
    #[must_use]
    pub fn is_on_standby(&self) -> bool {
        self.gate.is_standby()
    }
}
