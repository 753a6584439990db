//! Unnamed statements that a backend keeps: a client that parses the same text again and again has it parsed once.
//!
//! The second time that a text comes, a Parse of ours goes to the backend under a name of ours; from the third time on
//! nothing goes but the Bind of that name. What the server would have said to the client's Parse shows in what it says
//! to the Bind, for which the client's ParseComplete waits: when that fails, nothing has run and nothing was told, and
//! the whole unit is sent once more as the client wrote it.
//!
//! Invariants: only a unit that reads and nothing else, outside of a transaction, begins with such a Parse; nothing
//! behind it is forwarded before it is known to stand; the settings are those under which the statement was
//! parsed, and nothing pins the session (a temporary table may hide the one that the statement means).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use protocol::error::ErrorView;
use protocol::frame::{HEADER_LEN, Header};
use protocol::message::{self, TxStatus};
use protocol::sqlstate::SqlState;
use protocol::tracker::{Fate, Owner};
use protocol::write::parse_complete;

use super::prepare::named_statement;
use super::server::CACHED_PLAN;
use super::{Books, Engine, Env, Watch};
use crate::buffer::Buf;
use crate::out::Out;
use crate::prepared::Environment;
use crate::settings::Settings;
use crate::statements::{Statement, StatementId};

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct StandIn {
    /// The unit at the front may begin with one.
    allowed: bool,
    /// The client's unnamed statement is the backend's of that id, up to the end of the batch.
    statement: Option<StatementId>,
    state: State,
    /// What comes next waits for it.
    holds_next: bool,
    environment: Option<(Arc<Settings>, Environment)>,
}

/// What is known of a Parse that was not forwarded.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// There is none, or the client was told that it is done.
    #[default]
    Told,
    /// The statement that stands in for it was asked for.
    Pending(StatementId),
    /// That failed: the unit is to be sent as it is.
    Stale,
}

impl StandIn {
    /// A backend is taken, or the unit comes once more.
    pub(super) fn bind(&mut self) {
        (self.allowed, self.statement, self.state, self.holds_next) = (false, None, State::Told, false);
    }

    pub(super) fn end_batch(&mut self) {
        (self.allowed, self.statement) = (false, None);
    }

    /// The client's unnamed statement is kept by the backend under the statement's own name.
    pub(super) fn is_for(&self, statement: &Statement) -> bool {
        self.statement == Some(statement.id())
    }

    /// The client was not told yet that its Parse is done.
    pub(super) fn is_pending(&self) -> bool {
        self.state != State::Told
    }

    pub(super) fn is_stale(&self) -> bool {
        self.state == State::Stale
    }

    pub(super) fn holds_next(&self) -> bool {
        self.holds_next
    }

    fn environment(&mut self, settings: &Arc<Settings>) -> Environment {
        if let Some((of, environment)) = &self.environment
            && Arc::ptr_eq(of, settings)
        {
            return *environment;
        }
        let environment = environment_of(settings);
        self.environment = Some((Arc::clone(settings), environment));
        environment
    }
}

/// All of them may matter but what the client calls itself.
fn environment_of(settings: &Settings) -> Environment {
    let mut hasher = DefaultHasher::new();
    for pair in settings.pairs().iter().filter(|(name, _)| name != "application_name") {
        pair.hash(&mut hasher);
    }
    Environment(hasher.finish())
}

impl Engine {
    /// The unit that the backend was taken for may begin with a Parse that is not forwarded: it stands whole in the
    /// buffer, does nothing but read, outside of a transaction, and can be sent once more.
    pub fn allow_stand_in(&mut self) {
        self.stand_in.allowed = true;
    }

    /// The client was not told yet that its Parse is done: its unit may have to be sent once more.
    #[must_use]
    pub fn has_stand_in(&self) -> bool {
        self.stand_in.is_pending()
    }

    /// The unit of `len` bytes comes once more, to the same backend, as if it had not come.
    pub fn begin_anew(&mut self, len: usize) {
        self.stand_in.bind();
        self.roll_back();
        self.gate.renew(len);
    }

    /// Whether the backend may keep the statement of the unnamed Parse at the front, or may have kept it.
    pub(super) fn may_keep(
        &mut self,
        env: &Env<'_>,
        buf: &Buf,
        statement: &Statement,
        (parse, header): (&message::Parse<'_>, Header),
    ) -> bool {
        let allowed = std::mem::take(&mut self.stand_in.allowed);
        self.stand_in.statement = None;
        let first = self.tracker.is_settled() && self.tracker.status() == TxStatus::Idle;
        let known =
            statement.is_accepted(env.schema) && statement.is_timeless() && statement.sql() == parse.sql;
        let next = buf.filled().get(header.len..).unwrap_or_default();
        let bound = next.first() == Some(&b'B') && named_statement(b'B', next) == Some(b"");
        allowed && first && known && bound && self.pin().is_none()
    }

    /// Has the backend keep the statement of the client's unnamed Parse, or does without the Parse if it does.
    pub(super) fn keep(
        &mut self,
        env: &Env<'_>,
        books: &mut Books,
        out: &mut Out,
        statement: &Arc<Statement>,
    ) {
        let environment = self.stand_in.environment(&books.settings);
        self.stand_in.statement = Some(statement.id());
        self.stand_in.state = State::Pending(statement.id());
        self.statements.define_now(b"", statement);
        if !books.prepared.stands_in(statement.id(), environment) {
            self.make_place(env, books, out, statement);
            books.prepared.set_environment(statement.id(), Some(environment));
            // Ours, although the client's stands behind it: an error that names the statement must not reach the client.
            let token = self.statements.prepare_ours(statement, env.schema, false);
            self.inject_parse(env, out, (statement, statement.name()), token, Owner::Ours);
        }
    }

    /// Whether the batch at the front must wait until it is known that the one before it stands.
    pub(super) fn waits_for_stand_in(&mut self) -> bool {
        self.stand_in.holds_next = self.stand_in.is_pending() && !self.in_batch;
        self.stand_in.holds_next
    }

    /// What a message of the server says about a Parse that was not forwarded; its fate.
    pub(super) fn settle_stand_in(
        &mut self,
        (tag, fate): (u8, Fate),
        message: &[u8],
        (books, watch): (&mut Books, &dyn Watch),
        out: &mut Out,
    ) -> Fate {
        if matches!(tag, b'N' | b'S' | b'A') || fate == Fate::Swallow {
            return fate;
        }
        if self.stand_in.is_stale() {
            return Fate::Swallow;
        }
        if tag != b'E' || !self.goes_stale(message, books, watch) {
            out.own(parse_complete);
            self.stand_in.state = State::Told;
            return fate;
        }
        self.stand_in.state = State::Stale;
        Fate::Swallow
    }

    /// The server failed where the statement stands in for a Parse: whether sending the Parse may tell more.
    fn goes_stale(&self, message: &[u8], books: &mut Books, watch: &dyn Watch) -> bool {
        let view = ErrorView::parse(message.get(HEADER_LEN..).unwrap_or_default());
        let code = view.code().unwrap_or(SqlState::INTERNAL_ERROR);
        // Someone wanted it to end (class 57), or it has ended.
        if view.severity().is_some_and(|severity| severity.ends_session()) || code.0.starts_with(b"57") {
            return false;
        }
        if let State::Pending(id) = self.stand_in.state {
            books.prepared.set_environment(id, None);
        }
        if view.message().starts_with(CACHED_PLAN) {
            watch.schema_changed();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        environment_of(&Settings::new(
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        ))
    }

    #[test]
    fn what_the_client_calls_itself_changes_no_statement() {
        let plain = environment(&[]);
        assert_eq!(environment(&[("application_name", "psql")]), plain);
        assert_ne!(environment(&[("search_path", "a")]), plain);
        assert_ne!(environment(&[("search_path", "a")]), environment(&[("search_path", "b")]));
    }
}
