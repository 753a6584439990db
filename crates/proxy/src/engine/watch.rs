//! What passes through the engine, told to whoever counts and logs it.

use protocol::error::Severity;
use protocol::sqlstate::SqlState;
use protocol::tracker::Push;
use router::{Changes, Verdict};

use super::Habit;

/// What is counted as it passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passed {
    /// The client's Parse.
    ClientParse,
    /// A Parse to the server, the client's or ours.
    ServerParse,
    /// The client's Bind.
    Bind,
    /// The server's ReadyForQuery for the client.
    Ready,
}

/// Who is told what passes by.
pub trait Watch {
    /// A statement is sent to the backend; its text, where it is at hand.
    fn statement(&self, verdict: &Verdict, sql: Option<&[u8]>);
    /// What was told last is sent: the answer to `push` is its answer.
    fn asked(&self, push: Push);
    /// The server has answered `push` with `bytes`, the last of which are `message`: the last of a statement, an
    /// error, or ReadyForQuery.
    fn answered(&self, push: Push, message: &[u8], bytes: u64);
    /// Something that is counted passes.
    fn passed(&self, what: Passed);
    /// A Bind passes, of which `seen` has come; what stands behind its names begins at `rest`.
    fn bound(&self, seen: &[u8], rest: usize);
    /// The server answered with an error.
    fn server_error(&self, severity: Severity, code: Option<SqlState>);
    /// A transaction ended.
    fn transaction(&self);
    /// What statements return may be other columns from now on.
    fn schema_changed(&self);
    /// What names mean may be another thing from now on.
    fn catalog_changed(&self, changes: Changes);
    /// The client asks for what was remembered of sequences: so do others of its kind, from now on.
    fn asked_of_sequences(&self, how: Habit);
    /// The client was held for what it might ask of sequences, and did not ask.
    fn held_in_vain(&self);
}
