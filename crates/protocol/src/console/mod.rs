//! What answers statements without a server: the border between sessions and the console.
//!
//! [`Console`] is implemented outside (the admin crate); [`LocalServer`] speaks the simple and the
//! extended protocol for it, for the admin database and for `SHOW POOL_NODES` and its like in
//! ordinary sessions.

mod local;
mod portal;
mod split;

use std::future::Future;
use std::pin::Pin;

use crate::error::PgError;
use crate::table::{Column, Table};
pub use local::{Context, LocalServer, Next, Status};

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The user the session logged in as.
    pub user: String,
    /// The database the session is in.
    pub database: String,
    /// What its client calls itself.
    pub application_name: String,
    /// May change things and see everything.
    pub admin: bool,
    /// May see statistics.
    pub stats: bool,
    /// The session is in the admin database, not in one of a node.
    pub in_admin_database: bool,
    /// The session's number, as SHOW says it.
    pub session: u32,
}

/// What a statement came to.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Rows; the command tag is in the table.
    Table(Table),
    /// It was done.
    Done {
        /// The command tag.
        tag: String,
        /// What to tell the client before it.
        notices: Vec<PgError>,
    },
    /// There was nothing in it.
    Empty,
    /// It is about the session itself, which carries it out and answers.
    Session(SessionAsk),
}

/// What a statement asks of the session that it is given in.
#[derive(Debug, Clone, PartialEq)]
pub enum SessionAsk {
    /// To show keys of its configuration.
    Show {
        /// The columns: key, value, description.
        columns: Vec<Column>,
        /// The keys with their descriptions.
        rows: Vec<(&'static str, String)>,
    },
    /// To change a key.
    Set {
        /// The key.
        key: &'static str,
        /// The value as the configuration file has it.
        value: String,
    },
    /// To take changes back: of one key, or of all.
    Reset(Option<&'static str>),
}

/// An answer that is being worked on.
pub type Pending<'a> = Pin<Box<dyn Future<Output = Result<Answer, PgError>> + Send + 'a>>;

/// Runs the statements that pgweir answers itself.
pub trait Console: Send + Sync {
    /// The columns that `sql` will return, `None` when it returns no rows. Fails as the statement
    /// would when that is known without running it (unknown command, no privilege).
    fn columns(&self, caller: &Caller, sql: &str) -> Result<Option<Vec<Column>>, PgError>;

    /// Runs one statement.
    fn run<'a>(&'a self, caller: &'a Caller, sql: &'a str) -> Pending<'a>;

    /// How far a statement is that [`Console::run`] still works on, in a line; `None` where there is nothing to tell.
    fn progress(&self, _caller: &Caller, _sql: &str) -> Option<String> {
        None
    }
}
