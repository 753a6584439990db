//! The process itself: version, state, help, RELOAD, SHUTDOWN.

use protocol::error::PgError;
use protocol::table::Cell;

use super::{Action, COMMANDS, ColumnSpec, Rows, Scene, text};
use crate::view::{ProcessState, Shutdown};

pub(super) const KEY_VALUE: &[ColumnSpec] = &[text("key"), text("value")];
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
        vec![Cell::from(command.words), Cell::from(command.rights.as_str()), Cell::from(command.help)]
    };
    COMMANDS.iter().map(row).collect()
}

/// As PgBouncer answers: the list is the detail of a notice.
pub(super) fn help_notice() -> PgError {
    let lines: String = COMMANDS.iter().map(|command| format!("\n\t{}", command.words)).collect();
    PgError::notice("Console usage").with_detail(lines)
}

pub(super) fn reload<'a>(scene: &Scene<'a>) -> Action<'a> {
    let outcome = scene.control.reload();
    Box::pin(async move { Ok(Some(outcome.await?).filter(|plan| !plan.is_empty())) })
}

pub(super) fn shutdown_fast<'a>(scene: &Scene<'a>) -> Action<'a> {
    shutdown(scene, Shutdown::Fast)
}

pub(super) fn shutdown_smart<'a>(scene: &Scene<'a>) -> Action<'a> {
    shutdown(scene, Shutdown::Smart)
}

fn shutdown<'a>(scene: &Scene<'a>, mode: Shutdown) -> Action<'a> {
    let outcome = scene.control.shutdown(mode);
    Box::pin(async move { outcome.await.map(|()| None) })
}
