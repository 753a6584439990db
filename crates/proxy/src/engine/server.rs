//! Server to client: spans pass, what answers our own messages is left out.

use bytes::BufMut;
use protocol::error::{ErrorView, PgError, Severity};
use protocol::frame::{HEADER_LEN, Header, backend_header};
use protocol::message::{self, TxStatus};
use protocol::sqlstate::SqlState;
use protocol::tracker::{Fate, Owner, Push};
use router::Changes;

use super::follow::Chased;
use super::{Books, Engine, Moved, Passed, Rest, Violation, Watch, pins};
use crate::buffer::Buf;
use crate::out::Out;
use crate::settings::Parameters;
use crate::statements::{ClientStatements, NAME_PREFIX, StatementId, put_header};

/// PostgreSQL's words for a statement whose columns have changed since it was parsed (`plancache.c`). In
/// another language it is not recognised, and the statement stays as it is until it is closed.
pub(super) const CACHED_PLAN: &[u8] = b"cached plan must not change result type";
/// The largest error that is looked into; a larger one passes unread.
const ERROR_LIMIT: usize = 64 * 1024;

/// The tag of DISCARD SEQUENCES.
const FORGOTTEN: &[u8] = b"DISCARD SEQUENCES";

/// The largest row that is looked into: one of a truth value is smaller.
const ROW_LIMIT: usize = 64;

/// Where relaying stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerStep {
    /// So many bytes must be there to go on.
    More(usize),
    /// The server owes nothing.
    Settled,
    /// A statement that the backend kept is not what its text says any more: the unit is to be sent once more, see
    /// [`Engine::begin_anew`].
    Anew,
    /// Settings or BEGIN of ours were refused: the backend is not what the client needs.
    SetupFailed(PgError),
}

impl Engine {
    /// Relays what is in `buf`; stops when the server owes nothing.
    ///
    /// # Errors
    /// The server sent what is no message, or none that was asked for: the backend must be closed.
    pub fn server(
        &mut self,
        watch: &dyn Watch,
        books: &mut Books,
        buf: &mut Buf,
        out: &mut Out,
    ) -> Result<ServerStep, Violation> {
        loop {
            if !Rest::relay(&mut self.server_rest, buf, out) {
                return Ok(ServerStep::More(1));
            }
            let Some(header) = backend_header(buf.filled())? else { return Ok(ServerStep::More(HEADER_LEN)) };
            let whole = buf.filled().len() >= header.len;
            let row = header.tag == b'D' && self.wants_row(header.len);
            if !whole && (row || must_be_whole(header.tag, header.len)) {
                return Ok(ServerStep::More(header.len));
            }
            let message = buf.at(buf.position(), header.len);
            let push = self.tracker.next_push().unwrap_or_default();
            let status = if header.tag == b'Z' { message::ready_status(message) } else { None };
            let mut fate = self.tracker.on_server(header.tag, status)?;
            if fate == Fate::Pass && !row && self.is_nobodys(header.tag) {
                self.answer += header.len as u64;
                Rest::begin(&mut self.server_rest, (header.len, true), buf, out);
                continue;
            }
            if header.tag == b'S' && self.chase.is_none() {
                fate = self.told(fate, message);
            }
            self.begin_chase(push, books);
            if self.answers_splice(header.tag, push) {
                fate = Fate::Swallow;
            }
            if self.stand_in.is_pending() {
                fate = self.settle_stand_in((header.tag, fate), message, (books, watch), out);
            }
            if header.tag == b'S' {
                report(books, message, self.tracker.next_owner());
            }
            let failed = self.look_into((header.tag, push), message, books, watch);
            match self.chased(header.tag, push, books) {
                Chased::No => {}
                Chased::Hidden => fate = Fate::Swallow,
                Chased::Last(changes) => {
                    fate = Fate::Pass;
                    self.tell(&changes, out);
                }
            }
            if fate == Fate::Pass {
                self.count_passed((header, push, status), message, watch);
            }
            self.follow_settings((header.tag, fate, push), message, books);
            if header.tag == b'E' && self.moving.is_some() && self.tracker.ends_owed() == 1 {
                self.moving = Some(Moved::Failed);
            }
            if fate == Fate::Pass && whole && self.put_otherwise((header.tag, push), message, out) {
                buf.consume(header.len);
            } else {
                Rest::begin(&mut self.server_rest, (header.len, fate == Fate::Pass), buf, out);
            }
            self.follow_events(books);
            if let Some(error) = failed {
                return Ok(ServerStep::SetupFailed(error));
            }
            if header.tag == b'Z' && self.is_settled() {
                return Ok(if self.stand_in.is_stale() { ServerStep::Anew } else { ServerStep::Settled });
            }
        }
    }

    /// Writes what the client is told in place of an error or a notice; false when it is told that.
    fn put_otherwise(&mut self, (tag, push): (u8, Push), message: &[u8], out: &mut Out) -> bool {
        match tag {
            b'E' => {
                self.put_refusal(push, message, out)
                    || put_renamed(&self.statements, push, message, out)
                    || self.put_undisguised(message, out)
                    || self.put_moved(push, message, out)
            }
            b'N' => self.put_moved(push, message, out),
            _ => false,
        }
    }

    /// The client's rows, and what announces them: nothing is learned from them, and nothing is on its way for which
    /// every message counts.
    fn is_nobodys(&self, tag: u8) -> bool {
        matches!(tag, b'D' | b'T' | b'd' | b'2' | b'n' | b't')
            && self.chase.is_none()
            && self.settings.spliced.is_none()
            && !self.stand_in.is_pending()
    }

    /// What is counted of a message that is the client's.
    fn count_passed(
        &mut self,
        (header, push, status): (Header, Push, Option<TxStatus>),
        message: &[u8],
        watch: &dyn Watch,
    ) {
        self.answer += header.len as u64;
        if status.is_some() {
            watch.passed(Passed::Ready);
        }
        if matches!(header.tag, b'C' | b'E' | b'I' | b's' | b'Z') {
            watch.answered(push, message, std::mem::take(&mut self.answer));
        }
        if status == Some(TxStatus::Idle) {
            watch.transaction();
        }
    }

    /// A parameter's change that settings of ours made is the client's as well when it was told another value
    /// before: a reset passes by with the server's default, and its own start-up value is set behind it.
    fn told(&mut self, fate: Fate, message: &[u8]) -> Fate {
        let Some((name, value)) = message::parameter_status(message) else { return fate };
        let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
        let known = self.told.get(&name).is_some_and(|told| told != value);
        if (fate == Fate::Swallow && !known) || self.settings.passes_by(&name) {
            return Fate::Swallow;
        }
        self.told.set(&name, &value);
        Fate::Pass
    }

    /// Tells the client of parameters.
    fn tell(&mut self, changes: &Parameters, out: &mut Out) {
        for (name, value) in changes.iter() {
            self.told.set(name, value);
            out.own(|own| {
                put_header(own, b'S', name.len() + value.len() + 2);
                own.put_slice(name.as_bytes());
                own.put_u8(0);
                own.put_slice(value.as_bytes());
                own.put_u8(0);
            });
        }
    }

    /// What the books and the metrics learn from a message. An error of our own set-up is given back.
    fn look_into(
        &mut self,
        (tag, push): (u8, Push),
        message: &[u8],
        books: &mut Books,
        watch: &dyn Watch,
    ) -> Option<PgError> {
        match tag {
            b'D' if self.wants_row(message.len()) => self.settings.row(pins::truth(message)),
            b'C' => self.on_tag(message, books),
            b'Z' => self.on_ready(watch),
            b'N' => self.on_notice(message),
            b'E' if self.stand_in.is_stale() => {}
            b'E' => {
                self.doubt_names(books);
                let ours = self.on_error(message, watch);
                return ours.filter(|_| !self.is_second_of_chase(push));
            }
            _ => {}
        }
        None
    }

    /// Whether a DataRow of `len` bytes is one to look into.
    fn wants_row(&self, len: usize) -> bool {
        len <= ROW_LIMIT && self.tracker.next_push().is_some_and(|push| self.settings.wants_row(push))
    }

    fn on_ready(&mut self, watch: &dyn Watch) {
        self.local_ready();
        // Others see it at the commit, this session at once.
        if self.ddl {
            watch.schema_changed();
        }
        if self.tracker.is_clean() {
            self.ddl = false;
            let changes = std::mem::take(&mut self.changes);
            if changes != Changes::Nothing {
                watch.catalog_changed(changes);
            }
        }
    }

    /// What a message of the server says about the client's settings.
    fn follow_settings(&mut self, (tag, fate, push): (u8, Fate, Push), message: &[u8], books: &mut Books) {
        match (tag, fate) {
            (b'C', Fate::Pass) => {
                let tag = message::command_tag(message).unwrap_or_default();
                if tag == FORGOTTEN {
                    self.sequences_forgotten(books, true);
                }
                if let Some(step) = self.settings.completed(push, tag, &mut books.settings) {
                    self.named(step.op, step.made, books);
                }
            }
            (b'C', Fate::Swallow) if message::command_tag(message) == Some(FORGOTTEN) => {
                self.sequences_forgotten(books, false);
            }
            (b's', Fate::Pass) => self.settings.suspended(push, &mut books.settings),
            (b'E', Fate::Pass) => self.settings.error(),
            (b'Z', _) => {
                self.settings.ready(push, self.tracker.status(), &mut books.settings);
                self.end_of_asking();
            }
            _ => {}
        }
    }

    /// The tags of the two commands that undo what the books hold.
    fn on_tag(&mut self, message: &[u8], books: &mut Books) {
        let discard = match message::command_tag(message) {
            Some(b"DEALLOCATE ALL") => false,
            Some(b"DISCARD ALL") => true,
            _ => return,
        };
        self.statements.clear();
        books.prepared.clear();
        if discard {
            self.settings.discard(&mut books.settings);
            self.sequences_forgotten(books, true);
        }
    }

    /// An immediate shutdown and a crash are told in a WARNING, and nothing follows (`postgres.c`, `quickdie`).
    fn on_notice(&mut self, message: &[u8]) {
        let view = ErrorView::parse(message.get(HEADER_LEN..).unwrap_or_default());
        let goodbye =
            view.code().filter(|code| *code == SqlState::ADMIN_SHUTDOWN || *code == SqlState::CRASH_SHUTDOWN);
        if view.severity() == Some(Severity::Warning) && goodbye.is_some() {
            self.fatal = goodbye;
        }
    }

    fn on_error(&mut self, message: &[u8], watch: &dyn Watch) -> Option<PgError> {
        let view = ErrorView::parse(message.get(HEADER_LEN..).unwrap_or_default());
        let severity = view.severity().unwrap_or(Severity::Error);
        if severity.ends_session() {
            self.fatal = Some(view.code().unwrap_or(SqlState::INTERNAL_ERROR));
        }
        watch.server_error(severity, view.code());
        if view.code() == Some(SqlState::FEATURE_NOT_SUPPORTED) && view.message().starts_with(CACHED_PLAN) {
            watch.schema_changed();
            self.stale_plan = true;
        }
        let ours = self.tracker.setup_failed();
        ours.then(|| view.to_error())
    }
}

/// The server reports a parameter, in answer to a message of `owner`.
fn report(books: &mut Books, message: &[u8], owner: Owner) {
    if let Some((name, value)) = message::parameter_status(message) {
        books.report(&String::from_utf8_lossy(name), &String::from_utf8_lossy(value), owner);
    }
}

/// Messages that are looked into, and small.
fn must_be_whole(tag: u8, len: usize) -> bool {
    match tag {
        b'Z' | b'C' | b'S' => true,
        b'E' | b'N' => len <= ERROR_LIMIT,
        _ => false,
    }
}

/// Errors name statements by their name on the server: the client gets its own. False when there is none.
fn put_renamed(statements: &ClientStatements, push: Push, message: &[u8], out: &mut Out) -> bool {
    let Some((at, id, end)) = find_name(message) else { return false };
    let Some(name) = statements.told_name(push, id) else { return false };
    let (Some(before), Some(after)) = (message.get(HEADER_LEN..at), message.get(end..)) else { return false };
    out.own(|own| {
        put_header(own, b'E', before.len() + name.len() + after.len());
        own.put_slice(before);
        own.put_slice(&name);
        own.put_slice(after);
    });
    true
}

/// Where a name of ours stands in `bytes`, which statement it is, and where it ends.
fn find_name(bytes: &[u8]) -> Option<(usize, StatementId, usize)> {
    let prefix = NAME_PREFIX.as_bytes();
    let at = bytes.windows(prefix.len()).position(|window| window == prefix)?;
    let digits = bytes.get(at + prefix.len()..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let end = at + prefix.len() + digits;
    StatementId::from_name(bytes.get(at..end)?).map(|id| (at, id, end))
}
