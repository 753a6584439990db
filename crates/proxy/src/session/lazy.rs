//! BEGIN is lazy: it is answered at once, and sent in front of the first statement that needs a backend.

use protocol::error::{PgError, write_error};
use protocol::message::{TxStatus, query_text};
use protocol::sqlstate::SqlState;
use router::{Access, Hint, Isolation, TxControl, TxMode, TxView, Verdict, local_value};

use super::Session;
use crate::engine::{Boundary, Kept, Unit};

/// A transaction that the client is in and no backend knows of.
#[derive(Debug, Default)]
pub(super) struct LazyTransaction {
    /// BEGIN, and SET TRANSACTION behind it.
    statements: Vec<Kept>,
    mode: TxMode,
    /// `SET LOCAL pgweir.route`: what it says, if it says anything that is understood.
    route: Option<Option<Hint>>,
    failed: bool,
    /// It has read on a standby, and goes on at the primary.
    moved: bool,
}

/// More than this in front of the first statement that needs a backend are not kept back.
const KEPT_STATEMENTS: usize = 8;
/// Longer ones are not kept back (bytes).
const KEPT_LEN: usize = 1024;

impl LazyTransaction {
    pub(super) fn is_open(&self) -> bool {
        !self.statements.is_empty()
    }

    pub(super) fn status(&self) -> TxStatus {
        match (self.is_open(), self.failed) {
            (false, _) => TxStatus::Idle,
            (true, false) => TxStatus::InTransaction,
            (true, true) => TxStatus::Failed,
        }
    }

    /// An error inside a transaction fails it.
    pub(super) fn fail(&mut self) {
        self.failed = self.is_open();
    }

    pub(super) fn view(&self) -> TxView {
        TxView { in_transaction: self.is_open(), mode: self.mode }
    }

    /// What the transaction says about where it goes.
    pub(super) fn route(&self) -> Option<Option<Hint>> {
        self.route
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// What is to be sent in front of the first statement that needs a backend.
    pub(super) fn statements(&self) -> &[Kept] {
        &self.statements
    }

    /// It has read on a standby, where it cannot go on.
    pub(super) fn moved(self) -> Self {
        Self { moved: true, ..self }
    }

    pub(super) fn has_moved(&self) -> bool {
        self.moved
    }

    /// One that has failed where it was.
    pub(super) fn failed() -> Self {
        Self { failed: true, ..Self::chained() }
    }

    /// What is chained to a transaction that has failed: it has the session's default modes.
    fn chained() -> Self {
        Self { statements: vec![Kept::Simple((*b"BEGIN").into())], ..Self::default() }
    }

    /// A backend has it now, or it is over.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn keep(&mut self, statement: Kept, mode: TxMode) {
        self.statements.push(statement);
        self.mode = self.mode.overlaid(mode);
    }

    fn has_room_for(&self, sql: &[u8]) -> bool {
        self.statements.len() < KEPT_STATEMENTS && sql.len() <= KEPT_LEN
    }
}

impl Session {
    /// Answers what needs no backend; false when the unit needs one.
    pub(super) fn answer_lazily(&mut self, unit: &Unit) -> bool {
        let single =
            unit.verdict.statements == 1 && matches!(unit.boundary, Boundary::Query | Boundary::Sync);
        let ends = unit.verdict.tx.ends() || unit.verdict.tx.chains();
        if self.lazy.has_failed() && !(single && ends) {
            self.refuse(unit, &in_failed_transaction());
            return true;
        }
        if !single || unit.verdict.pin.is_some() || unit.verdict.tx == TxControl::None {
            return false;
        }
        if unit.extended { self.answer_batch_lazily(unit) } else { self.answer_query_lazily(unit) }
    }

    fn answer_query_lazily(&mut self, unit: &Unit) -> bool {
        let message = self.from_client.filled().get(..unit.len).unwrap_or_default();
        let sql: Box<[u8]> = query_text(message).unwrap_or_default().into();
        let Some(tag) = self.follow_lazily(&sql, unit) else { return false };
        self.engine.drop_unnamed();
        self.from_client.consume(unit.len);
        self.put_complete(tag);
        self.put_ready();
        true
    }

    /// What a statement does to the transaction that no backend knows of; gives its tag, or `None` when it
    /// needs a backend.
    pub(super) fn follow_lazily(&mut self, sql: &[u8], unit: &Unit) -> Option<&'static str> {
        let verdict = &unit.verdict;
        let kept = || match unit.extended {
            true => Kept::Extended(sql.into()),
            false => Kept::Simple(sql.into()),
        };
        // SET TRANSACTION SNAPSHOT may be refused, and means this moment: the server has to say.
        let fits =
            self.lazy.has_room_for(sql) && verdict.access == Access::Neutral && !self.may_be_refused(verdict);
        match verdict.tx {
            TxControl::Begin(mode) if !self.lazy.is_open() && fits => {
                self.lazy.keep(kept(), mode);
                Some(begin_tag(sql))
            }
            TxControl::SetTransaction(mode) if self.lazy.is_open() && fits => {
                self.lazy.keep(kept(), mode);
                Some("SET")
            }
            TxControl::Mixed if self.lazy.is_open() && fits => {
                let route = local_value(sql, super::declared::ROUTE)?;
                self.lazy.keep(kept(), TxMode::default());
                self.lazy.route = Some(Hint::parse(&route));
                Some("SET")
            }
            tx if self.lazy.is_open() && tx.ends() => {
                let undone = self.lazy.has_failed() || matches!(tx, TxControl::Rollback { .. });
                self.lazy.clear();
                Some(if undone { "ROLLBACK" } else { "COMMIT" })
            }
            tx if self.lazy.has_failed() && tx.chains() => {
                self.lazy = LazyTransaction::chained();
                Some("ROLLBACK")
            }
            _ => None,
        }
    }

    /// Whether the server that would get it may refuse to begin a transaction so: a standby is read only, and not
    /// serializable. Its error belongs to the statement, not to the one behind it.
    fn may_be_refused(&mut self, verdict: &Verdict) -> bool {
        let (TxControl::Begin(mode) | TxControl::SetTransaction(mode)) = verdict.tx else { return false };
        let strict = mode.read_only == Some(false) || mode.isolation == Some(Isolation::Serializable);
        strict && (self.is_read_only() || self.is_routed_to_standby())
    }

    pub(super) fn put_complete(&mut self, tag: &str) {
        self.to_client.own(|own| {
            if let Err(error) = protocol::write::command_complete(own, tag) {
                // Tags are short constants; a writer that refuses one is a fault of ours.
                write_error(own, &PgError::error(SqlState::INTERNAL_ERROR, error.to_string()));
            }
        });
    }
}

fn in_failed_transaction() -> PgError {
    PgError::error(
        SqlState::IN_FAILED_SQL_TRANSACTION,
        "current transaction is aborted, commands ignored until end of transaction block",
    )
}

/// PostgreSQL answers with the words that were used.
fn begin_tag(sql: &[u8]) -> &'static str {
    let first = skip_blanks(sql).get(..5).unwrap_or_default();
    if first.eq_ignore_ascii_case(b"start") { "START TRANSACTION" } else { "BEGIN" }
}

/// What follows the white space and comments at the front of `text`.
fn skip_blanks(mut text: &[u8]) -> &[u8] {
    loop {
        text = text.trim_ascii_start();
        text = match text {
            [b'-', b'-', rest @ ..] => rest
                .iter()
                .position(|byte| *byte == b'\n')
                .and_then(|end| rest.get(end..))
                .unwrap_or_default(),
            [b'/', b'*', rest @ ..] => skip_comment(rest),
            [b';', rest @ ..] => rest,
            _ => return text,
        };
    }
}

/// What follows a comment whose opening has been read; comments nest.
fn skip_comment(mut text: &[u8]) -> &[u8] {
    let mut depth = 1;
    while depth > 0 {
        text = match text {
            [b'*', b'/', rest @ ..] => {
                depth -= 1;
                rest
            }
            [b'/', b'*', rest @ ..] => {
                depth += 1;
                rest
            }
            [_, rest @ ..] => rest,
            [] => return text,
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(sql: &str) -> &'static str {
        begin_tag(sql.as_bytes())
    }

    #[test]
    fn the_tag_is_that_of_the_words_used() {
        assert_eq!(tag("begin"), "BEGIN");
        assert_eq!(tag(" -- start\n/* start /* */ */ ; BEGIN /* start */"), "BEGIN");
        assert_eq!(tag("/**/Start Transaction Read Only"), "START TRANSACTION");
    }

    #[test]
    fn a_transaction_is_open_from_its_first_message_to_its_end() {
        let mut lazy = LazyTransaction::default();
        lazy.fail();
        assert_eq!(lazy.status(), TxStatus::Idle);
        lazy.keep(Kept::Simple((*b"x").into()), TxMode::default());
        assert_eq!(lazy.status(), TxStatus::InTransaction);
        lazy.fail();
        assert_eq!(lazy.status(), TxStatus::Failed);
        lazy.clear();
        assert_eq!(lazy.status(), TxStatus::Idle);
    }
}
