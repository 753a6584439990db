//! The session's protocol engine, sans-IO: bytes of both sides in, spans and injected messages out.
//!
//! [`scan`] reads ahead to know what a unit of work wants before a backend is taken; [`Engine::client`]
//! forwards it (names rewritten, settings, BEGIN and Parse messages injected in front);
//! [`Engine::server`] relays the answers and says when the backend is free.
//!
//! Invariants: a message is forwarded whole or not at all; on a standby nothing is forwarded that a
//! standby must not get; the books change in the order of forwarding. No sockets, no clock.

mod book;
mod books;
mod call;
mod client;
mod doubt;
mod early;
mod failed;
mod follow;
mod gate;
mod kept;
mod local;
mod names;
mod pins;
mod prepare;
mod refuse;
mod scan;
mod sequences;
mod server;
mod splice;
mod stand_in;
#[cfg(test)]
mod tests;
mod touched;
mod unseen;
mod watch;

use std::sync::Arc;

use bytes::BytesMut;
use config::SessionState;
use protocol::error::PgError;
use protocol::frame::FrameError;
use protocol::message::TxStatus;
use protocol::sqlstate::SqlState;
use protocol::tracker::{Push, Tracker};
use router::{Changes, PinReason, TxControl, Verdict};

pub use books::{Books, News};
pub use client::ClientOuts;
pub use early::{Left, is_early};
pub use kept::Kept;
pub use scan::{Boundary, HELD_LIMIT, Scan, Unit, scan};
pub use sequences::{Habit, Remembers};
pub use server::ServerStep;
pub use unseen::Found;
pub use watch::{Passed, Watch};

use crate::buffer::Buf;
use crate::out::Out;
use crate::settings::{Parameters, Settings};
use crate::statements::{ClientStatements, Schema, Statement, StatementCache};

/// What the engine works with but does not own.
pub struct Env<'a> {
    /// Says what a text is.
    pub classify: &'a dyn Fn(&[u8]) -> Verdict,
    /// Of the catalog under which it says so.
    pub generation: u64,
    /// The statements of all clients.
    pub cache: &'a StatementCache,
    /// Statements that were parsed under another one are parsed again.
    pub schema: Schema,
    /// The session's `standard_conforming_strings`.
    pub standard_conforming: bool,
    /// Longer statements are not classified (bytes).
    pub max_parsed: usize,
    /// How many statements a backend holds.
    pub max_prepared: usize,
    /// How sessions of the client's kind use sequences.
    pub habit: Habit,
    /// What becomes of state that cannot be moved.
    pub state: SessionState,
    /// Who is told.
    pub watch: &'a dyn Watch,
}

impl Env<'_> {
    /// What a statement's text says about itself.
    #[must_use]
    pub fn verdict(&self, statement: &Statement) -> Verdict {
        statement.verdict_under(self.generation, self.classify)
    }
}

/// Bytes that are no messages, or more than we take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Not the protocol.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A Parse that is too long to remember.
    #[error("statement of {0} bytes is too long")]
    StatementTooLong(usize),
    /// The server answered what was not asked.
    #[error(transparent)]
    Desync(#[from] protocol::tracker::Desync),
}

/// Where forwarding stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientStep {
    /// So many bytes must be there to go on.
    More(usize),
    /// What follows must wait until the backend has answered.
    Hold,
    /// The message at the front is for pgweir to answer, now.
    Local,
    /// The message at the front names what is not known: [`Engine::judge`] once that has been asked for.
    Doubt,
    /// The client says goodbye.
    Terminate,
}

/// Why forwarding stops at a whole message.
#[derive(Debug, Clone, Copy)]
enum Stop {
    Hold,
    Local,
    Doubt,
}

impl From<Stop> for ClientStep {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Hold => Self::Hold,
            Stop::Local => Self::Local,
            Stop::Doubt => Self::Doubt,
        }
    }
}

/// A message that is being relayed while it arrives.
#[derive(Debug, Clone, Copy)]
struct Rest {
    left: usize,
    pass: bool,
}

impl Rest {
    /// Passes on or drops what is there of a message of `len` bytes that begins in `buf`, and notes what is missing.
    fn begin(rest: &mut Option<Self>, (len, pass): (usize, bool), buf: &mut Buf, out: &mut Out) {
        let count = len.min(buf.filled().len());
        if pass && count > 0 {
            out.span(buf, count);
        }
        buf.consume(count);
        *rest = (count < len).then_some(Self { left: len - count, pass });
    }

    /// Passes on or drops what is there of the current message; says whether that was all of it.
    fn relay(rest: &mut Option<Self>, buf: &mut Buf, out: &mut Out) -> bool {
        let Some(current) = rest else { return true };
        let count = current.left.min(buf.filled().len());
        if current.pass && count > 0 {
            out.span(buf, count);
        }
        buf.consume(count);
        current.left -= count;
        let done = current.left == 0;
        if done {
            *rest = None;
        }
        done
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Engine {
    tracker: Tracker,
    statements: ClientStatements,
    settings: Box<book::SettingsBook>,
    /// Changes of parameters that the client was told of since its login.
    told: Parameters,
    client_rest: Option<Rest>,
    server_rest: Option<Rest>,
    gate: gate::Gate,
    early: early::Early,
    local: local::Local,
    doubt: doubt::Doubt,
    /// Where forwarding stops for the message at the front. Said once.
    stop: Option<Stop>,
    /// Messages that fail in place of the client's.
    refused: Vec<(Push, Box<PgError>)>,
    /// Extended messages since the last Sync.
    in_batch: bool,
    /// The verdict on the Query that comes next, from the scan.
    known: Option<Verdict>,
    /// To inject in front of the next unit: BEGIN that was answered by us.
    begin: Vec<Kept>,
    /// The last message of ours without which the client's are worth nothing.
    setup: Push,
    /// Something on its way may change the schema.
    ddl: bool,
    /// What the transaction does to the catalog.
    changes: Changes,
    /// Bytes for the client since the last answer ended.
    answer: u64,
    /// The last error was FATAL: the server is about to hang up.
    fatal: Option<SqlState>,
    /// The server refused a statement because its columns are others than when it was parsed.
    stale_plan: bool,
    /// DEALLOCATE ALL or DISCARD ALL is on its way: what it empties is known by its answer only.
    resets: bool,
    /// The server was asked for what stands before what waits.
    hastened: bool,
    /// What the server has under names of the client's was made ready in front of a Query, and may fail.
    guarded: bool,
    /// Names that were made ready on this backend, and may turn out not to be.
    touched: touched::Touched,
    chase: Option<Box<follow::Chase>>,
    /// The client has used names like ours.
    disguises: bool,
    /// The name that the next message waits for.
    unsettled: Option<Box<[u8]>>,
    /// A batch that goes on elsewhere, until the server has ended it here.
    moving: Option<Moved>,
    said_goodbye: bool,
    /// Boxed: every idle session is larger by it.
    stand_in: Box<stand_in::StandIn>,
}

/// How a batch that moves came out where it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    Well,
    /// The server would have ignored the rest.
    Failed,
}

impl Engine {
    /// The client's statements.
    #[must_use]
    pub fn statements(&self) -> &ClientStatements {
        &self.statements
    }

    /// The session begins with these settings.
    pub fn start_settings(&mut self, settings: Arc<Settings>) {
        self.settings.start(settings);
    }

    /// The client's settings.
    #[must_use]
    pub fn settings(&self) -> &Arc<Settings> {
        self.settings.client()
    }

    /// The client has parsed `statement` as `name` without a backend.
    pub fn define_now(&mut self, name: &[u8], statement: &Arc<Statement>) {
        self.statements.define_now(name, statement);
    }

    /// The client has closed `name` without a backend.
    pub fn close_now(&mut self, name: &[u8]) {
        self.statements.close_now(name);
    }

    /// Like a simple Query that never reaches a backend: the unnamed statement is gone.
    pub fn drop_unnamed(&mut self) {
        self.statements.drop_unnamed();
    }

    /// What the backend has, or owes, is not known: it must not serve anybody else.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.tracker.is_in_doubt() || self.settings.is_in_doubt()
    }

    /// What holds the session to its backend.
    #[must_use]
    pub fn pin(&self) -> Option<PinReason> {
        self.settings.pins.reason().filter(|_| !self.settings.ignores_state)
    }

    /// The client has left state on the backend that would have held it, were that not switched off. Said once.
    pub fn take_ignored_state(&mut self) -> Option<PinReason> {
        let ignored = self.settings.pins.reason().filter(|_| self.settings.ignores_state);
        if ignored.is_some() {
            self.settings.pins.clear();
        }
        ignored
    }

    /// Values that the client's statements have given to parameters unseen are its settings, and the backend has them.
    pub fn adopt(&mut self, values: Vec<(String, String)>, books: &mut Books) {
        self.settings.adopt(values, &mut books.settings);
    }

    /// What `books` report of parameters that nothing followed is behind.
    pub fn take_news(&self, books: &mut Books) -> News {
        books.take_news(|name| self.settings.has_changed(name))
    }

    /// What becomes of state that cannot be moved from now on.
    pub fn set_session_state(&mut self, state: SessionState) {
        self.settings.ignores_state = state == SessionState::Ignore;
    }

    /// The backend's side of the conversation.
    #[must_use]
    pub fn tracker(&self) -> &Tracker {
        &self.tracker
    }

    /// Both sides stand between messages, the server owes nothing: [`Tracker::status`] is the truth.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.tracker.is_settled() && self.client_rest.is_none() && self.server_rest.is_none()
    }

    /// The backend may go to somebody else.
    #[must_use]
    pub fn is_free(&self) -> bool {
        let between = self.is_settled() && !self.is_skipping_locally();
        between && self.tracker.is_clean() && self.pin().is_none() && self.begin.is_empty()
    }

    /// Something is on its way from the server.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.tracker.owes() || self.server_rest.is_some()
    }

    /// The batch that moves had failed already: what is left of it is to be dropped. Said once.
    pub fn take_failed_move(&mut self) -> bool {
        self.moving.take() == Some(Moved::Failed)
    }

    /// The server said that it ends the session.
    #[must_use]
    pub fn saw_fatal(&self) -> bool {
        self.fatal.is_some()
    }

    /// The server ended the session because it shuts down or was told to, not for what the session did.
    #[must_use]
    pub fn was_shut_down(&self) -> bool {
        self.fatal.is_some_and(|code| code.0.starts_with(b"57P0"))
    }

    /// Settings of ours, or a BEGIN, have not been answered.
    #[must_use]
    pub fn sets_up(&self) -> bool {
        self.tracker.next_push().is_some_and(|next| next <= self.setup)
    }

    /// The server refused a statement because its columns are others than when it was parsed.
    #[must_use]
    pub fn saw_stale_plan(&self) -> bool {
        self.stale_plan
    }

    /// Whatever the client has prepared is parsed anew before it runs again.
    pub fn parse_all_anew(&mut self) {
        self.statements.unask_all();
    }

    /// The client has not been sent the whole of a message: nothing can be told to it any more.
    #[must_use]
    pub fn is_inside_answer(&self) -> bool {
        self.server_rest.is_some_and(|rest| rest.pass)
    }

    /// What the client's books learn from now on can be taken back.
    pub fn begin_journal(&mut self) {
        self.statements.begin_journal();
    }

    /// What the client's books have learned stays.
    pub fn end_journal(&mut self) {
        self.statements.end_journal();
    }

    /// The backend is lost, and with it what was asked of it since the journal began.
    pub fn roll_back(&mut self) {
        self.statements.roll_back();
        self.client_rest = None;
        self.in_batch = false;
    }

    /// A backend was taken for `unit`, which is at the front of the client's buffer.
    pub fn bind(&mut self, on_standby: bool, unit: &Unit, begin: Vec<Kept>) {
        self.tracker.renew();
        self.settings.bind();
        self.statements.forget_asked();
        self.bind_sequences();
        self.server_rest = None;
        self.fatal = None;
        (self.resets, self.stale_plan, self.setup) = (false, false, Push::default());
        (self.hastened, self.guarded) = (false, false);
        self.chase = None;
        self.touched.clear();
        (self.moving, self.said_goodbye) = (None, false);
        self.early = early::Early::No;
        self.answer = 0;
        self.in_batch = false;
        self.unsettled = None;
        self.stand_in.bind();
        self.refused.clear();
        self.end_doubt();
        self.gate =
            gate::Gate::new(on_standby, unit.len, !begin.is_empty() || unit.verdict.tx != TxControl::None);
        self.known = (unit.boundary == Boundary::Query && !unit.extended).then_some(unit.verdict);
        self.begin = begin;
    }

    /// What the client sends behind the unit is routed anew, also where it could stay.
    pub fn keep_to_unit(&mut self) {
        self.gate.keep_to_unit();
    }

    /// The session asks for a standby, also for what nothing is known of.
    pub fn believe(&mut self) {
        self.gate.believe();
    }

    /// Drops what is left of a message that the client is sending; says how many bytes to pass over.
    pub fn drop_client_rest(&mut self, available: usize) -> usize {
        let Some(rest) = &mut self.client_rest else { return 0 };
        let count = rest.left.min(available);
        rest.left -= count;
        if rest.left == 0 {
            self.client_rest = None;
        }
        count
    }

    /// The client is inside a message that is being dropped or passed.
    #[must_use]
    pub fn in_client_message(&self) -> bool {
        self.client_rest.is_some()
    }

    /// A message of `len` bytes, not all there, is to be dropped.
    pub fn drop_message(&mut self, len: usize) {
        self.client_rest = Some(Rest { left: len, pass: false });
    }

    /// The batch of the client ended without a backend (it was refused).
    pub fn end_batch(&mut self) {
        self.in_batch = false;
    }

    /// The transaction status to tell a client of which nothing else is known.
    #[must_use]
    pub fn status(&self) -> TxStatus {
        self.tracker.status()
    }

    fn follow_events(&mut self, books: &mut Books) {
        if self.tracker.has_events() {
            let events = self.tracker.take_events();
            self.statements.settle(&events, &mut books.prepared);
            self.tracker.reuse(events);
        }
    }
}

/// A whole Query message with that text.
pub fn put_query(out: &mut BytesMut, sql: &[u8]) {
    crate::statements::put_header(out, b'Q', sql.len() + 1);
    out.extend_from_slice(sql);
    out.extend_from_slice(&[0]);
}

/// The error of a client's message that we refuse to take.
impl protocol::error::ClientFacing for Violation {
    fn to_client(&self) -> PgError {
        let code = match self {
            Self::StatementTooLong(_) => SqlState::PROGRAM_LIMIT_EXCEEDED,
            Self::Frame(_) | Self::Desync(_) => SqlState::PROTOCOL_VIOLATION,
        };
        PgError::fatal(code, self.to_string())
    }
}
