//! The one table of console commands: words, rights, columns, help and what they do.
//!
//! `SHOW HELP`, docs/admin.md and the tests are made from [`COMMANDS`]. Columns that Pgpool-II or PgBouncer
//! have too stand in their order and with their types: programs read them by position.

mod catalog;
mod control;
mod nodes;
mod old;
mod pools;
mod process;
mod processes;
mod progress;
mod sight;
mod sockets;
mod stats;
mod table;

use protocol::console::{Answer, Caller, Pending, SessionAsk};
use protocol::error::PgError;
use protocol::sqlstate::SqlState;
use protocol::table::{Cell, Column, Table, oid};

pub use table::COMMANDS;

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

/// What follows the words of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Argument {
    /// Nothing.
    None,
    /// Perhaps the name of something.
    MayName(&'static str),
    /// The name or the number of something.
    Name(&'static str),
    /// The number of a node, and perhaps FORCE.
    Forcible(&'static str),
    /// `key = value`; with another name it is a setting of drivers, and no command.
    Setting,
    /// `key = value`, of pgweir's only.
    OwnSetting,
}

impl Argument {
    /// As the help has it.
    #[must_use]
    pub fn usage(self) -> String {
        match self {
            Self::None => String::new(),
            Self::MayName(what) => format!(" [{what}]"),
            Self::Name(what) => format!(" {what}"),
            Self::Forcible(what) => format!(" {what} [FORCE]"),
            Self::Setting | Self::OwnSetting => " key = value".to_owned(),
        }
    }

    /// Whether `words` are such an argument.
    fn takes(self, words: &[Word]) -> bool {
        match (self, words) {
            (Self::None | Self::MayName(_), []) => true,
            (Self::MayName(_) | Self::Name(_) | Self::Forcible(_), [name]) => name.value().is_some(),
            (Self::Forcible(_), [name, force]) => name.value().is_some() && force.is("FORCE"),
            (Self::Setting | Self::OwnSetting, [name, sign, _, ..]) => {
                let known = || config::KEYS.iter().any(|key| name.is(key.name));
                (*sign == Word::Symbol('=') || sign.is("TO")) && (self == Self::OwnSetting || known())
            }
            _ => false,
        }
    }
}

/// What a handler may look at.
pub(crate) struct Scene<'a> {
    /// What followed the words of the command.
    pub(crate) argument: Vec<Word>,
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
    /// Asks something of the session that it is given in.
    Session(fn(&Scene<'_>) -> Result<SessionAsk, PgError>),
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
    /// What follows the words.
    pub argument: Argument,
    /// The columns of its result; none when it returns no rows.
    pub columns: &'static [ColumnSpec],
    /// What it does, in one sentence.
    pub help: &'static str,
    pub(crate) handler: Handler,
}

/// A command that sessions carry out themselves, because it is about what only they know.
pub struct OfSession {
    /// How it is written.
    pub usage: &'static str,
    /// What it does, in one sentence.
    pub help: &'static str,
}

/// The commands of sessions, for every user in every database but the admin database.
pub const OF_SESSIONS: &[OfSession] = &[OfSession {
    usage: "PGWEIR EXPLAIN statement",
    help: "Where this session would run the statement now, why, under which fingerprint, and what it would pin it for.",
}];

/// What a statement turned out to be.
pub(crate) enum Found {
    /// A command that the caller may use, and its argument.
    Command(&'static Command, Vec<Word>),
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
    let command = old::commands(caller)
        .iter()
        .chain(COMMANDS)
        .filter(|command| anywhere || command.place == Place::AnySession)
        .find_map(|command| command.is_called(rest).map(|argument| (command, argument)));
    match command {
        Some((command, argument)) if command.rights.allow(caller) => {
            Ok(Found::Command(command, argument.to_vec()))
        }
        Some((command, _)) => Err(command.denied()),
        None if prefixed => Err(unknown(caller, words)),
        None => Ok(Found::Other),
    }
}

/// The error for words that are no command.
pub(crate) fn unknown(caller: &Caller, words: &[Word]) -> PgError {
    let shown: Vec<&str> = words.iter().take(3).filter_map(Word::value).collect();
    let help = if caller.in_admin_database { "SHOW HELP" } else { "PGWEIR HELP" };
    PgError::error(SqlState::SYNTAX_ERROR, format!("unknown command \"{}\"", shown.join(" ").to_uppercase()))
        .with_hint(usage_of(words).unwrap_or_else(|| format!("{help} lists the commands.")))
}

/// How the command is used whose words these begin with.
fn usage_of(words: &[Word]) -> Option<String> {
    let words = words.split_first().filter(|(first, _)| first.is("PGWEIR")).map_or(words, |(_, rest)| rest);
    let begins = |command: &&Command| {
        let mut rest = words.iter();
        let takes_one = command.argument != Argument::None;
        takes_one && command.words.split(' ').all(|keyword| rest.next().is_some_and(|word| word.is(keyword)))
    };
    let command = COMMANDS.iter().filter(begins).max_by_key(|command| command.words.len())?;
    Some(format!("It is used as: {}", command.usage()))
}

impl Command {
    /// The argument, when `words` call this command.
    fn is_called<'w>(&self, words: &'w [Word]) -> Option<&'w [Word]> {
        let mut rest = words;
        for keyword in self.words.split(' ') {
            let (first, after) = rest.split_first()?;
            rest = first.is(keyword).then_some(after)?;
        }
        self.argument.takes(rest).then_some(rest)
    }

    /// A call of it that is right, for tests.
    #[cfg(test)]
    pub(crate) fn example(&self) -> String {
        let argument = match self.argument {
            Argument::None | Argument::MayName(_) => "",
            Argument::Name("id") => " 7",
            Argument::Name("node") | Argument::Forcible(_) => " 1",
            Argument::Name("key") => " load_balance",
            Argument::Name(_) => " app",
            Argument::Setting | Argument::OwnSetting => " load_balance = random",
        };
        format!("{}{argument}", self.words)
    }

    /// How it is written, for the help.
    #[must_use]
    pub fn usage(&self) -> String {
        format!("{}{}", self.words, self.argument.usage())
    }

    /// What it was called with, for the log. A value may be a secret; the lines of what changes mask those.
    fn told(&self, argument: &[Word]) -> String {
        let told = match self.argument {
            Argument::Setting | Argument::OwnSetting => argument.get(..1).unwrap_or_default(),
            _ => argument,
        };
        told.iter().filter_map(Word::value).collect::<Vec<_>>().join(" ")
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
            Handler::Session(_) if self.columns.is_empty() => None,
            Handler::Rows(_) | Handler::Session(_) => {
                Some(self.columns.iter().map(|(name, oid)| Column::new(*name, *oid)).collect())
            }
            Handler::Notice(_) | Handler::Act(_) => None,
        }
    }

    /// How far it is, for who waits.
    pub(crate) fn progress(&self, scene: &Scene<'_>) -> Option<String> {
        progress::of(self.words, scene)
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
            Handler::Session(ask) => {
                let ask = ask(scene);
                return Box::pin(async move { ask.map(Answer::Session) });
            }
            Handler::Act(begin) => (self.tag(), begin(scene)),
        };
        tracing::info!(
            command = self.words,
            argument = self.told(&scene.argument),
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
