//! The process itself: version, state, help, its configuration and what a session makes of it.

use protocol::console::SessionAsk;
use protocol::error::PgError;
use protocol::sqlstate::SqlState;
use protocol::table::{Cell, Column};

use super::control::written;
use super::{COMMANDS, ColumnSpec, Rows, Scene, text};
use crate::view::ProcessState;
use crate::words::Word;

pub(super) const KEY_VALUE: &[ColumnSpec] = &[text("key"), text("value")];
pub(super) const SETTING: &[ColumnSpec] = &[text("item"), text("value"), text("description")];
pub(super) const VERSION: &[ColumnSpec] = &[text("version")];
pub(super) const HELP: &[ColumnSpec] = &[text("command"), text("rights"), text("description")];

pub(super) const CONFIG: &[ColumnSpec] = &[text("key"), text("value"), text("default"), text("changeable")];
pub(super) const POOL_STATUS: &[ColumnSpec] = &[text("item"), text("value"), text("description")];

/// Secrets are masked by the table of keys itself.
pub(super) fn config(scene: &Scene<'_>) -> Rows {
    let row = |row: config::Row| {
        vec![
            Cell::from(row.key),
            Cell::Text(row.value),
            Cell::from(row.default),
            Cell::from(if row.reloadable { "yes" } else { "no" }),
        ]
    };
    scene.view.config().rows().into_iter().map(row).collect()
}

pub(super) fn pool_status(scene: &Scene<'_>) -> Rows {
    let row = |(row, key): (config::Row, &config::Key)| {
        vec![Cell::from(row.key), Cell::Text(row.value), Cell::Text(key.description())]
    };
    scene.view.config().rows().into_iter().zip(config::KEYS).map(row).collect()
}

pub(super) fn state(scene: &Scene<'_>) -> Rows {
    let state = scene.view.state();
    let row = |key: &str, truth: bool| vec![Cell::from(key), Cell::from(if truth { "yes" } else { "no" })];
    vec![
        row("active", state == ProcessState::Active),
        row("paused", state == ProcessState::Paused),
        row("suspended", false),
    ]
}

pub(super) fn version(scene: &Scene<'_>) -> Rows {
    vec![vec![Cell::Text(format!("pgweir {}", scene.view.process().version))]]
}

pub(super) fn help(_scene: &Scene<'_>) -> Rows {
    let row = |command: &super::Command| {
        vec![Cell::Text(command.usage()), Cell::from(command.rights.as_str()), Cell::from(command.help)]
    };
    let elsewhere = |command: &super::OfSession| {
        vec![Cell::from(command.usage), Cell::from("anyone"), Cell::from(command.help)]
    };
    COMMANDS.iter().map(row).chain(super::OF_SESSIONS.iter().map(elsewhere)).collect()
}

/// As PgBouncer answers: the list is the detail of a notice.
pub(super) fn help_notice() -> PgError {
    let usages = COMMANDS.iter().map(super::Command::usage);
    let elsewhere = super::OF_SESSIONS.iter().map(|command| command.usage.to_owned());
    let lines: String = usages.chain(elsewhere).map(|usage| format!("\n\t{usage}")).collect();
    PgError::notice("Console usage").with_detail(lines)
}

/// The keys that a session may change for itself. None of them takes anything away from others.
pub(crate) const SESSION_KEYS: &[&str] = config::SESSION_KEYS;

fn key_of(scene: &Scene<'_>) -> Result<Option<&'static config::Key>, PgError> {
    let given = scene.argument.first().and_then(Word::value).unwrap_or_default();
    if given.eq_ignore_ascii_case("all") {
        return Ok(None);
    }
    let key = config::KEYS.iter().find(|key| key.name.eq_ignore_ascii_case(given));
    let unknown = || {
        let text = format!("unrecognized configuration parameter \"{given}\"");
        let hint = match config::nearest_key(given) {
            Some(key) => format!("Did you mean {key}?"),
            None => "SHOW CONFIG in the admin database lists the keys.".to_owned(),
        };
        PgError::error(SqlState::UNDEFINED_OBJECT, text).with_hint(hint)
    };
    key.map(Some).ok_or_else(unknown)
}

/// What a session may not change, it may not know either, unless it may see statistics.
pub(super) fn pgpool_show(scene: &Scene<'_>) -> Result<SessionAsk, PgError> {
    let key = key_of(scene)?;
    let may_see = scene.caller.admin || scene.caller.stats;
    let listed = |key: &config::Key| may_see || SESSION_KEYS.contains(&key.name);
    if let Some(key) = key.filter(|key| !listed(key)) {
        let text = format!("permission denied to examine \"{}\"", key.name);
        return Err(PgError::error(SqlState::INSUFFICIENT_PRIVILEGE, text)
            .with_hint("Add the user to stats_users or admin_users in the configuration."));
    }
    let keys = config::KEYS.iter().filter(|candidate| match key {
        Some(key) => key.name == candidate.name,
        None => listed(candidate),
    });
    let rows = keys.map(|key| (key.name, key.description())).collect();
    let columns = SETTING.iter().map(|(name, oid)| Column::new(*name, *oid)).collect();
    Ok(SessionAsk::Show { columns, rows })
}

fn changeable(key: Option<&'static config::Key>) -> Result<Option<&'static str>, PgError> {
    match key {
        Some(key) if !SESSION_KEYS.contains(&key.name) => {
            let text = format!("parameter \"{}\" cannot be changed for a session", key.name);
            let hint = format!("Those that can: {}.", SESSION_KEYS.join(", "));
            Err(PgError::error(SqlState::CANT_CHANGE_RUNTIME_PARAM, text).with_hint(hint))
        }
        key => Ok(key.map(|key| key.name)),
    }
}

pub(super) fn pgpool_set(scene: &Scene<'_>) -> Result<SessionAsk, PgError> {
    let Some(key) = changeable(key_of(scene)?)? else {
        return Err(PgError::error(SqlState::SYNTAX_ERROR, "PGPOOL SET changes one key at a time"));
    };
    let value = written(scene.argument.get(2..).unwrap_or_default());
    Ok(SessionAsk::Set { key, value })
}

pub(super) fn pgpool_reset(scene: &Scene<'_>) -> Result<SessionAsk, PgError> {
    Ok(SessionAsk::Reset(changeable(key_of(scene)?)?))
}
