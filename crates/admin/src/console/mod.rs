//! The SQL console: statements in, tables out. Implements [`protocol::console::Console`]; the protocol itself
//! (simple, extended, transactions, several statements in one string) is spoken there.

use std::sync::Arc;

use protocol::console::{Answer, Caller, Console, Pending};
use protocol::error::PgError;
use protocol::table::Column;

use crate::commands::{self, Found, Scene};
use crate::probes::{self, Reply};
use crate::view::{AdminControl, AdminView};
use crate::words::{Word, words};

/// Answers the commands of the console from a view.
#[derive(Clone)]
pub struct AdminConsole {
    view: Arc<dyn AdminView>,
    control: Arc<dyn AdminControl>,
}

/// What a statement asks for.
enum Request {
    Empty,
    Command(&'static commands::Command, Vec<Word>),
    Probe(Reply),
}

impl AdminConsole {
    /// A console over `view`, whose commands are carried out by `control`.
    #[must_use]
    pub fn new(view: Arc<dyn AdminView>, control: Arc<dyn AdminControl>) -> Self {
        Self { view, control }
    }

    fn request(&self, caller: &Caller, sql: &str) -> Result<Request, PgError> {
        let words = words(sql)?;
        if words.is_empty() {
            return Ok(Request::Empty);
        }
        if let Found::Command(command, argument) = commands::find(caller, &words)? {
            return Ok(Request::Command(command, argument));
        }
        if caller.in_admin_database
            && let Some(reply) = probes::reply(&self.view.process().version, caller, &words)?
        {
            return Ok(Request::Probe(reply));
        }
        Err(commands::unknown(caller, &words))
    }

    fn scene<'a>(&'a self, caller: &'a Caller, argument: Vec<Word>) -> Scene<'a> {
        Scene { argument, view: &*self.view, control: &*self.control, caller }
    }
}

impl Console for AdminConsole {
    fn columns(&self, caller: &Caller, sql: &str) -> Result<Option<Vec<Column>>, PgError> {
        Ok(match self.request(caller, sql)? {
            Request::Empty => None,
            Request::Command(command, _) => command.described(),
            Request::Probe(reply) => reply.column().map(|column| vec![column]),
        })
    }

    fn run<'a>(&'a self, caller: &'a Caller, sql: &'a str) -> Pending<'a> {
        let answer = match self.request(caller, sql) {
            Ok(Request::Command(command, argument)) => {
                return command.run(&self.scene(caller, argument));
            }
            Ok(Request::Probe(reply)) => Ok(reply.answer()),
            Ok(Request::Empty) => Ok(Answer::Empty),
            Err(error) => Err(error),
        };
        Box::pin(async move { answer })
    }

    fn progress(&self, caller: &Caller, sql: &str) -> Option<String> {
        match self.request(caller, sql) {
            Ok(Request::Command(command, argument)) => command.progress(&self.scene(caller, argument)),
            _ => None,
        }
    }
}

impl std::fmt::Debug for AdminConsole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminConsole").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
