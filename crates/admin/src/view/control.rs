//! What the surfaces may ask for.

use std::future::Future;
use std::pin::Pin;

use protocol::error::PgError;

/// Which databases a command is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Databases {
    /// All.
    All,
    /// That one, by the name that clients ask for.
    One(String),
}

/// How the process is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shutdown {
    /// No new clients; it ends when those that are there have left by themselves.
    Patient,
    /// Transactions finish, then their sessions are told goodbye.
    Smart,
    /// Sessions are told goodbye now.
    Fast,
    /// The process ends now.
    Immediate,
}

/// What an administrator wants of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeOrder {
    /// Take it back.
    Attach,
    /// Give it no new work.
    Detach,
    /// Take it out at once, whatever it is.
    DetachNow,
    /// Make it the primary.
    Promote,
    /// Rebuild it.
    Recover,
}

/// Something that is being carried out.
pub type Outcome<'a, T> = Pin<Box<dyn Future<Output = Result<T, PgError>> + Send + 'a>>;

/// The commands that change something.
pub trait AdminControl: Send + Sync {
    /// Reads the configuration again and applies it; the answer is the plan: what changes, what needs a restart.
    ///
    /// # Errors
    /// The configuration is refused; nothing has changed.
    fn reload(&self) -> Outcome<'_, String>;

    /// Changes one key of the configuration until the next reload or restart; `value` is as in the file.
    ///
    /// # Errors
    /// The value is refused, or the key needs a restart; nothing has changed.
    fn set(&self, key: String, value: String) -> Outcome<'_, String>;

    /// Gives no client a backend, and waits until those that have one have given it back.
    ///
    /// # Errors
    /// Nobody knows the database; it was resumed meanwhile.
    fn pause(&self, databases: Databases) -> Outcome<'_, ()>;

    /// Ends a pause.
    ///
    /// # Errors
    /// Nothing is paused.
    fn resume(&self, databases: Databases) -> Outcome<'_, ()>;

    /// Replaces every backend as soon as nobody has it.
    ///
    /// # Errors
    /// Nobody knows the database.
    fn reconnect(&self, databases: Databases) -> Outcome<'_, ()>;

    /// Waits until every backend that was to be closed is.
    ///
    /// # Errors
    /// Nobody knows the database.
    fn wait_close(&self, databases: Databases) -> Outcome<'_, ()>;

    /// Ends all clients now, and pauses.
    ///
    /// # Errors
    /// Nobody knows the database.
    fn kill(&self, databases: Databases) -> Outcome<'_, ()>;

    /// Ends one client.
    ///
    /// # Errors
    /// There is none of that number.
    fn kill_client(&self, id: u32) -> Outcome<'_, ()>;

    /// Lets new clients of a database come in.
    ///
    /// # Errors
    /// They could already.
    fn enable(&self, database: String) -> Outcome<'_, ()>;

    /// Turns new clients of a database away.
    ///
    /// # Errors
    /// They are already.
    fn disable(&self, database: String) -> Outcome<'_, ()>;

    /// Attaches, detaches, promotes or recovers a node; the answer tells in words what was done or has begun. A
    /// promotion and a recovery are waited for.
    ///
    /// # Errors
    /// It is refused, with the reason; a promotion was called off or has failed; a recovery has failed.
    fn node(&self, order: NodeOrder, node: u16) -> Outcome<'_, String>;

    /// Forgets what was counted for each statement.
    fn reset_statements(&self) -> Outcome<'_, ()>;

    /// Opens the log file anew.
    ///
    /// # Errors
    /// It cannot be opened; the old one stays in use.
    fn reopen_logs(&self) -> Outcome<'_, ()>;

    /// Begins to end the process. The answer comes when that has begun, not when it is done.
    ///
    /// # Errors
    /// The process is ending already, in a mode at least as strict.
    fn shutdown(&self, mode: Shutdown) -> Outcome<'_, ()>;
}
