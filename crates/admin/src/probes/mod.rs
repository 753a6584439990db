//! What drivers, pools and ORMs send before the first real statement, answered in the admin database so that
//! they can use it: `SELECT 1`, `SELECT version()`, `SHOW transaction_read_only`, `SET application_name = x`.
//!
//! The console has no settings: SHOW tells the values that describe it, SET of a driver's settings is accepted
//! when it changes nothing that the answers depend on.

use protocol::console::{Answer, Caller};
use protocol::error::PgError;
use protocol::sqlstate::SqlState;
use protocol::table::{Cell, Column, Table, oid};

use crate::words::Word;

mod settings;

/// What the console says it is compatible with: drivers read the number to learn what they may send.
const SERVER_VERSION: &str = "13.0";

/// The `server_version` of the admin database, for ParameterStatus and `SHOW server_version`.
#[must_use]
pub fn server_version(version: &str) -> String {
    format!("{SERVER_VERSION} (pgweir {version})")
}

/// The settings that SHOW answers, in PostgreSQL's spelling; all true of the console.
pub(crate) const SETTINGS: &[(&str, &str)] = &[
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO, MDY"),
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_read_only", "off"),
    ("in_hot_standby", "off"),
    ("integer_datetimes", "on"),
    ("IntervalStyle", "postgres"),
    ("max_identifier_length", "63"),
    ("search_path", ""),
    ("server_encoding", "UTF8"),
    ("standard_conforming_strings", "on"),
    ("TimeZone", "UTC"),
    ("transaction_isolation", "read committed"),
    ("transaction_read_only", "off"),
];

/// The answer to a probe.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reply {
    /// One row with one value.
    Value {
        /// The command tag.
        tag: &'static str,
        /// The column.
        column: Column,
        /// The value.
        value: Cell,
    },
    /// Nothing but a command tag.
    Done(&'static str),
}

impl Reply {
    fn value(tag: &'static str, name: impl Into<String>, oid: u32, value: impl Into<Cell>) -> Self {
        Self::Value { tag, column: Column::new(name.into(), oid), value: value.into() }
    }

    /// The column of the answer, when it has one.
    pub(crate) fn column(&self) -> Option<Column> {
        match self {
            Self::Value { column, .. } => Some(column.clone()),
            Self::Done(_) => None,
        }
    }

    /// The answer as the console gives it.
    pub(crate) fn answer(self) -> Answer {
        match self {
            Self::Value { tag, column, value } => {
                Answer::Table(Table { columns: vec![column], rows: vec![vec![value]], tag: tag.to_owned() })
            }
            Self::Done(tag) => Answer::Done { tag: tag.to_owned(), notices: Vec::new() },
        }
    }
}

/// Answers a probe; none when the words are none.
///
/// # Errors
/// A SET or RESET of a configuration key or of what nobody knows, or SET of an encoding that the console cannot write.
pub(crate) fn reply(version: &str, caller: &Caller, words: &[Word]) -> Result<Option<Reply>, PgError> {
    let Some((first, rest)) = words.split_first() else { return Ok(None) };
    if first.is("SHOW") {
        return Ok(show(version, rest));
    }
    if first.is("SELECT") {
        return Ok(select(version, caller, rest));
    }
    if first.is("SET") {
        return set(rest);
    }
    if let ([name], true) = (rest, first.is("RESET")) {
        return reset(name).map(Some);
    }
    Ok(clean_up(first, rest))
}

/// What a pool sends when it takes a connection back; the console keeps nothing of a session.
fn clean_up(first: &Word, rest: &[Word]) -> Option<Reply> {
    let tag = match rest {
        [all] if first.is("CLOSE") && all.is("ALL") => "CLOSE CURSOR ALL",
        [all] if first.is("UNLISTEN") && *all == Word::Symbol('*') => "UNLISTEN",
        [all] if first.is("DEALLOCATE") && all.is("ALL") => "DEALLOCATE ALL",
        _ => return None,
    };
    Some(Reply::Done(tag))
}

/// RESET of a driver's setting; of a key it would change nothing, and must not say that it did.
fn reset(name: &Word) -> Result<Reply, PgError> {
    let given = name.value().unwrap_or_default();
    if config::KEYS.iter().any(|key| key.name.eq_ignore_ascii_case(given)) {
        let text = format!("\"{given}\" cannot be changed with RESET");
        let hint = "RELOAD gives every key the value that it has in the configuration file.";
        return Err(PgError::error(SqlState::FEATURE_NOT_SUPPORTED, text).with_hint(hint));
    }
    if name.is("ALL") { Ok(Reply::Done("RESET")) } else { known(given).map(|()| Reply::Done("RESET")) }
}

/// A name that is nobody's is a typing error, and told: SET that changes nothing must not look as if it did.
fn known(name: &str) -> Result<(), PgError> {
    if settings::is_known(name) {
        return Ok(());
    }
    let hint = match config::nearest_key(name) {
        Some(key) => format!("Did you mean {key}?"),
        None => "SHOW CONFIG lists the keys that can be SET.".to_owned(),
    };
    let text = format!("unrecognized configuration parameter \"{name}\"");
    Err(PgError::error(SqlState::UNDEFINED_OBJECT, text).with_hint(hint))
}

fn show(version: &str, words: &[Word]) -> Option<Reply> {
    let asked = match words {
        [one] => one.value()?,
        [a, b, c] if a.is("TRANSACTION") && b.is("ISOLATION") && c.is("LEVEL") => "transaction_isolation",
        [a, b] if a.is("TIME") && b.is("ZONE") => "TimeZone",
        _ => return None,
    };
    if asked.eq_ignore_ascii_case("server_version") {
        return Some(Reply::value("SHOW", "server_version", oid::TEXT, server_version(version)));
    }
    let (name, value) = SETTINGS.iter().find(|(name, _)| name.eq_ignore_ascii_case(asked))?;
    Some(Reply::value("SHOW", *name, oid::TEXT, *value))
}

/// One constant or one of the functions that drivers ask, with or without an alias.
fn select(version: &str, caller: &Caller, words: &[Word]) -> Option<Reply> {
    let (words, alias) = match words {
        [rest @ .., marker, alias] if marker.is("AS") => (rest, Some(alias.name()?)),
        _ => (words, None),
    };
    let words = match words {
        [schema, Word::Symbol('.'), rest @ ..] if schema.is("PG_CATALOG") => rest,
        _ => words,
    };
    let (name, oid, value) = match words {
        [Word::Number(number)] => ("?column?", oid::INT4, Cell::from(i64::from(number.parse::<i32>().ok()?))),
        [Word::Literal(text)] => ("?column?", oid::TEXT, Cell::from(text.as_str())),
        [Word::Plain(name)] => variable(name, caller)?,
        [Word::Plain(name), Word::Symbol('('), Word::Symbol(')')] => function(name, version, caller)?,
        _ => return None,
    };
    Some(Reply::value("SELECT 1", alias.unwrap_or(name), oid, value))
}

fn variable(name: &str, caller: &Caller) -> Option<(&'static str, u32, Cell)> {
    let name = match name {
        "current_user" | "user" => "current_user",
        "session_user" => "session_user",
        "true" => return Some(("bool", oid::BOOL, Cell::Bool(true))),
        _ => return None,
    };
    Some((name, oid::TEXT, Cell::from(caller.user.as_str())))
}

fn function(name: &str, version: &str, caller: &Caller) -> Option<(&'static str, u32, Cell)> {
    Some(match name {
        "version" => ("version", oid::TEXT, Cell::Text(format!("PostgreSQL {}", server_version(version)))),
        "current_database" => ("current_database", oid::TEXT, Cell::from(caller.database.as_str())),
        "current_schema" => ("current_schema", oid::TEXT, Cell::Null),
        "pg_is_in_recovery" => ("pg_is_in_recovery", oid::BOOL, Cell::Bool(false)),
        // Nobody can have taken one here.
        "pg_advisory_unlock_all" => ("pg_advisory_unlock_all", oid::TEXT, Cell::from("")),
        "pg_backend_pid" => ("pg_backend_pid", oid::INT8, Cell::from(caller.session)),
        _ => return None,
    })
}

/// `SET [SESSION | LOCAL] name { = | TO } value`, `SET NAMES x`, `SET TIME ZONE x`, `SET TRANSACTION ...`.
fn set(words: &[Word]) -> Result<Option<Reply>, PgError> {
    let words = match words {
        [scope, rest @ ..] if scope.is("SESSION") || scope.is("LOCAL") => rest,
        _ => words,
    };
    let (name, value) = match words {
        [name, sign, value @ ..] if *sign == Word::Symbol('=') || sign.is("TO") => {
            if !value.is_empty() && !config::KEYS.iter().any(|key| name.is(key.name)) {
                known(name.value().unwrap_or_default())?;
            }
            (name, value)
        }
        [names, value @ ..] if names.is("NAMES") => (names, value),
        [a, b, value @ ..] if a.is("TIME") && b.is("ZONE") => (a, value),
        [a, value @ ..] if a.is("TRANSACTION") || a.is("CHARACTERISTICS") => (a, value),
        _ => return Ok(None),
    };
    let Some(value) = value.first() else { return Ok(None) };
    if let Some(key) = config::KEYS.iter().find(|key| name.is(key.name)) {
        let text = format!("\"{}\" cannot be changed with SET", key.name);
        let hint = "Change it in the configuration file, then RELOAD.";
        return Err(PgError::error(SqlState::FEATURE_NOT_SUPPORTED, text).with_hint(hint));
    }
    if name.is("CLIENT_ENCODING") || name.is("NAMES") {
        check_encoding(value.value().unwrap_or_default())?;
    }
    Ok(Some(Reply::Done("SET")))
}

/// The console writes UTF-8; a client that asks for something else would read rubbish.
fn check_encoding(name: &str) -> Result<(), PgError> {
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_uppercase();
    if ["UTF8", "UNICODE", "SQLASCII", "DEFAULT"].contains(&plain.as_str()) {
        return Ok(());
    }
    Err(PgError::error(
        SqlState::FEATURE_NOT_SUPPORTED,
        format!("the admin database has no client_encoding but UTF8, found \"{name}\""),
    ))
}

#[cfg(test)]
mod tests;
