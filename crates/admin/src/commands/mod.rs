//! The one table of console commands: words, rights, columns, help and what they do.
//!
//! `SHOW HELP`, docs/admin.md and the tests are made from [`COMMANDS`]. Columns that Pgpool-II or PgBouncer
//! have too stand in their order and with their types: programs read them by position.

mod catalog;
mod nodes;
mod pools;
mod process;
mod sockets;

use protocol::console::{Answer, Caller, Pending};
use protocol::error::PgError;
use protocol::sqlstate::SqlState;
use protocol::table::{Cell, Column, Table, oid};

use crate::view::{AdminControl, AdminView};
use crate::words::Word;

/// Who may use a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rights {
    /// Every user that could log in.
    Anyone,
    /// `stats_users` and `admin_users`.
    Stats,
    /// `admin_users`.
    Admin,
}

impl Rights {
    /// The word of the help and of docs/admin.md.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Anyone => "anyone",
            Self::Stats => "stats",
            Self::Admin => "admin",
        }
    }

    fn allow(self, caller: &Caller) -> bool {
        match self {
            Self::Anyone => true,
            Self::Stats => caller.stats || caller.admin,
            Self::Admin => caller.admin,
        }
    }
}

/// Where a command is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// In every session.
    AnySession,
    /// In the admin database; in other sessions after the word `PGWEIR`.
    AdminDatabase,
}

/// A column: its name and type.
pub type ColumnSpec = (&'static str, u32);

/// Rows of a result.
pub(crate) type Rows = Vec<Vec<Cell>>;

/// What a handler may look at.
pub(crate) struct Scene<'a> {
    pub(crate) view: &'a dyn AdminView,
    pub(crate) control: &'a dyn AdminControl,
    pub(crate) caller: &'a Caller,
}

/// How a command is carried out.
#[derive(Clone, Copy)]
pub(crate) enum Handler {
    /// Returns the rows for the command's columns.
    Rows(fn(&Scene<'_>) -> Rows),
    /// Answers with a notice.
    Notice(fn() -> PgError),
    /// Does something, and may say something about it.
    Act(for<'a> fn(&Scene<'a>) -> Action<'a>),
}

/// What an acting command has done, in words; nothing when there is nothing to say.
pub(crate) type Action<'a> = crate::view::Outcome<'a, Option<String>>;

/// One command.
pub struct Command {
    /// The words, in capitals.
    pub words: &'static str,
    /// Who may use it.
    pub rights: Rights,
    /// Where it is understood.
    pub place: Place,
    /// The columns of its result; none when it returns no rows.
    pub columns: &'static [ColumnSpec],
    /// What it does, in one sentence.
    pub help: &'static str,
    pub(crate) handler: Handler,
}

const fn rows(
    words: &'static str,
    rights: Rights,
    columns: &'static [ColumnSpec],
    help: &'static str,
    handler: fn(&Scene<'_>) -> Rows,
) -> Command {
    let place = match rights {
        Rights::Anyone => Place::AnySession,
        Rights::Stats | Rights::Admin => Place::AdminDatabase,
    };
    Command { words, rights, place, columns, help, handler: Handler::Rows(handler) }
}

const fn act(
    words: &'static str,
    help: &'static str,
    handler: for<'a> fn(&Scene<'a>) -> Action<'a>,
) -> Command {
    let (rights, place) = (Rights::Admin, Place::AdminDatabase);
    Command { words, rights, place, columns: &[], help, handler: Handler::Act(handler) }
}

/// Every command.
pub const COMMANDS: &[Command] = &[
    rows(
        "SHOW POOL_NODES",
        Rights::Anyone,
        nodes::POOL_NODES,
        "The nodes, their roles and states, as Pgpool-II shows them.",
        nodes::pool_nodes,
    ),
    rows(
        "SHOW POOL_BACKEND_STATS",
        Rights::Anyone,
        nodes::BACKEND_STATS,
        "Statements sent to and errors received from each node since the start.",
        nodes::backend_stats,
    ),
    rows("SHOW POOL_VERSION", Rights::Anyone, nodes::POOL_VERSION, "pgweir's version.", nodes::pool_version),
    Command {
        place: Place::AnySession,
        ..rows(
            "SHOW POOL_STATUS",
            Rights::Stats,
            process::POOL_STATUS,
            "The configuration in force and what each key is for; secrets are masked.",
            process::pool_status,
        )
    },
    Command {
        place: Place::AdminDatabase,
        ..rows(
            "SHOW NODES",
            Rights::Anyone,
            nodes::NODES,
            "SHOW POOL_NODES with the address, timeline, WAL position and freshness of each node.",
            nodes::nodes,
        )
    },
    rows(
        "SHOW POOLS",
        Rights::Stats,
        pools::POOLS,
        "Clients and backends of each database and user, over all nodes.",
        pools::pools,
    ),
    rows("SHOW CLIENTS", Rights::Stats, sockets::SOCKETS, "The client connections.", sockets::clients),
    rows("SHOW SERVERS", Rights::Stats, sockets::SOCKETS, "The connections to the nodes.", sockets::servers),
    rows(
        "SHOW DATABASES",
        Rights::Stats,
        catalog::DATABASES,
        "The databases that are configured or in use, with their limits.",
        catalog::databases,
    ),
    rows(
        "SHOW USERS",
        Rights::Stats,
        catalog::USERS,
        "The users that are configured or in use, with their limits.",
        catalog::users,
    ),
    rows(
        "SHOW CONFIG",
        Rights::Stats,
        process::CONFIG,
        "The configuration in force; secrets are masked.",
        process::config,
    ),
    rows("SHOW LISTS", Rights::Stats, pools::LISTS, "How many of each thing there are.", pools::lists),
    rows(
        "SHOW STATE",
        Rights::Stats,
        process::KEY_VALUE,
        "Whether pgweir serves or is paused.",
        process::state,
    ),
    rows("SHOW VERSION", Rights::Stats, process::VERSION, "pgweir's version.", process::version),
    Command {
        words: "SHOW HELP",
        rights: Rights::Anyone,
        place: Place::AdminDatabase,
        columns: &[],
        help: "The commands, as a notice.",
        handler: Handler::Notice(process::help_notice),
    },
    Command {
        place: Place::AdminDatabase,
        ..rows("HELP", Rights::Anyone, process::HELP, "The commands, as rows.", process::help)
    },
    act("RELOAD", "Reads the configuration again and says what changes.", process::reload),
    act("SHUTDOWN", "Ends pgweir: sessions are told goodbye at once.", process::shutdown_fast),
    act(
        "SHUTDOWN WAIT_FOR_SERVERS",
        "Ends pgweir when the transactions have ended.",
        process::shutdown_smart,
    ),
];

/// What a statement turned out to be.
pub(crate) enum Found {
    /// A command that the caller may use.
    Command(&'static Command),
    /// No command. The words may still be a driver's probe when the session is in the admin database.
    Other,
}

/// Finds the command. `PGWEIR` before a command is understood in every session.
///
/// # Errors
/// 42501 when the caller lacks the rights; 42601 when nothing follows `PGWEIR`, or nothing that is known.
pub(crate) fn find(caller: &Caller, words: &[Word]) -> Result<Found, PgError> {
    let (prefixed, rest) = match words.split_first() {
        Some((first, rest)) if first.is("PGWEIR") => (true, rest),
        _ => (false, words),
    };
    let anywhere = prefixed || caller.in_admin_database;
    let command = COMMANDS
        .iter()
        .filter(|command| anywhere || command.place == Place::AnySession)
        .find(|command| command.is_called(rest));
    match command {
        Some(command) if command.rights.allow(caller) => Ok(Found::Command(command)),
        Some(command) => Err(command.denied()),
        None if prefixed => Err(unknown(caller, words)),
        None => Ok(Found::Other),
    }
}

/// The error for words that are no command.
pub(crate) fn unknown(caller: &Caller, words: &[Word]) -> PgError {
    let shown: Vec<&str> = words.iter().take(3).filter_map(Word::value).collect();
    let help = if caller.in_admin_database { "SHOW HELP" } else { "PGWEIR HELP" };
    PgError::error(SqlState::SYNTAX_ERROR, format!("unknown command \"{}\"", shown.join(" ").to_uppercase()))
        .with_hint(format!("{help} lists the commands."))
}

impl Command {
    fn is_called(&self, words: &[Word]) -> bool {
        let mut keywords = self.words.split(' ');
        words.iter().all(|word| keywords.next().is_some_and(|keyword| word.is(keyword)))
            && keywords.next().is_none()
    }

    fn denied(&self) -> PgError {
        let (list, message) = match self.rights {
            Rights::Admin => ("admin_users", "must be an admin user"),
            Rights::Stats | Rights::Anyone => ("stats_users or admin_users", "must be a stats or admin user"),
        };
        PgError::error(
            SqlState::INSUFFICIENT_PRIVILEGE,
            format!("permission denied for {}: {message}", self.words),
        )
        .with_hint(format!("Add the user to {list} in the configuration."))
    }

    /// The columns as the protocol has them; none when the command returns no rows.
    pub(crate) fn described(&self) -> Option<Vec<Column>> {
        match self.handler {
            Handler::Rows(_) => {
                Some(self.columns.iter().map(|(name, oid)| Column::new(*name, *oid)).collect())
            }
            Handler::Notice(_) | Handler::Act(_) => None,
        }
    }

    /// The command tag: the first word, as PgBouncer has it.
    fn tag(&self) -> String {
        self.words.split(' ').next().unwrap_or_default().to_owned()
    }

    /// Carries it out.
    pub(crate) fn run<'a>(&'static self, scene: &Scene<'a>) -> Pending<'a> {
        let (tag, answer) = match self.handler {
            Handler::Rows(make) => {
                let columns = self.described().unwrap_or_default();
                let table = Table { columns, rows: make(scene), tag: "SHOW".to_owned() };
                return Box::pin(async move { Ok(Answer::Table(table)) });
            }
            Handler::Notice(make) => {
                let answer = Answer::Done { tag: self.tag(), notices: vec![make()] };
                return Box::pin(async move { Ok(answer) });
            }
            Handler::Act(begin) => (self.tag(), begin(scene)),
        };
        tracing::info!(
            command = self.words,
            user = scene.caller.user,
            session = scene.caller.session,
            "admin command"
        );
        Box::pin(async move {
            let notices = answer.await?.map(PgError::notice).into_iter().collect();
            Ok(Answer::Done { tag, notices })
        })
    }
}

const fn text(name: &'static str) -> ColumnSpec {
    (name, oid::TEXT)
}

const fn int4(name: &'static str) -> ColumnSpec {
    (name, oid::INT4)
}

const fn int8(name: &'static str) -> ColumnSpec {
    (name, oid::INT8)
}

#[cfg(test)]
mod tests;
