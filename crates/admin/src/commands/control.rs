//! PgBouncer's commands that change something: PAUSE and its kin, SET, SHUTDOWN, RELOAD.

use protocol::error::PgError;
use protocol::sqlstate::SqlState;

use super::{Action, Scene};
use crate::view::{Databases, NodeOrder, Outcome, Shutdown};
use crate::words::Word;

/// The first word of the argument.
fn name(scene: &Scene<'_>) -> Option<String> {
    scene.argument.first().and_then(Word::value).map(str::to_owned)
}

fn databases(scene: &Scene<'_>) -> Databases {
    name(scene).map_or(Databases::All, Databases::One)
}

fn quietly<'a>(outcome: Outcome<'a, ()>) -> Action<'a> {
    Box::pin(async move { outcome.await.map(|()| None) })
}

fn refused<'a>(error: PgError) -> Action<'a> {
    Box::pin(async move { Err(error) })
}

pub(super) fn reload<'a>(scene: &Scene<'a>) -> Action<'a> {
    let outcome = scene.control.reload();
    Box::pin(async move { Ok(Some(outcome.await?).filter(|plan| !plan.is_empty())) })
}

pub(super) fn reset_statements<'a>(scene: &Scene<'a>) -> Action<'a> {
    quietly(scene.control.reset_statements())
}

pub(super) fn pause<'a>(scene: &Scene<'a>) -> Action<'a> {
    quietly(scene.control.pause(databases(scene)))
}

pub(super) fn resume<'a>(scene: &Scene<'a>) -> Action<'a> {
    quietly(scene.control.resume(databases(scene)))
}

pub(super) fn reconnect<'a>(scene: &Scene<'a>) -> Action<'a> {
    quietly(scene.control.reconnect(databases(scene)))
}

pub(super) fn wait_close<'a>(scene: &Scene<'a>) -> Action<'a> {
    quietly(scene.control.wait_close(databases(scene)))
}

pub(super) fn kill<'a>(scene: &Scene<'a>) -> Action<'a> {
    quietly(scene.control.kill(databases(scene)))
}

/// The number is that of SHOW CLIENTS, with or without the letter of its `ptr`.
pub(super) fn kill_client<'a>(scene: &Scene<'a>) -> Action<'a> {
    let given = name(scene).unwrap_or_default();
    match given.strip_prefix('c').unwrap_or(&given).parse() {
        Ok(id) => quietly(scene.control.kill_client(id)),
        Err(_) => refused(
            PgError::error(SqlState::INVALID_PARAMETER_VALUE, format!("\"{given}\" is no client's number"))
                .with_hint("SHOW CLIENTS has it in the column id."),
        ),
    }
}

pub(super) fn enable<'a>(scene: &Scene<'a>) -> Action<'a> {
    quietly(scene.control.enable(name(scene).unwrap_or_default()))
}

pub(super) fn disable<'a>(scene: &Scene<'a>) -> Action<'a> {
    quietly(scene.control.disable(name(scene).unwrap_or_default()))
}

/// Of a key of the configuration; anything else is a driver's setting and changes nothing.
pub(super) fn set<'a>(scene: &Scene<'a>) -> Action<'a> {
    let key = name(scene).unwrap_or_default();
    let value = scene.argument.get(2..).unwrap_or_default();
    let outcome = scene.control.set(key, written(value));
    Box::pin(async move { outcome.await.map(Some) })
}

/// The words of a value as the file would have them.
pub(super) fn written(words: &[Word]) -> String {
    let word = |word: &Word| match word {
        Word::Symbol(symbol) => symbol.to_string(),
        other => other.value().unwrap_or_default().to_owned(),
    };
    match words {
        [one] => word(one),
        many => many.iter().map(word).collect::<Vec<_>>().join(""),
    }
}

pub(super) fn shutdown_fast<'a>(scene: &Scene<'a>) -> Action<'a> {
    quietly(scene.control.shutdown(Shutdown::Fast))
}

pub(super) fn shutdown_smart<'a>(scene: &Scene<'a>) -> Action<'a> {
    quietly(scene.control.shutdown(Shutdown::Smart))
}

pub(super) fn shutdown_patient<'a>(scene: &Scene<'a>) -> Action<'a> {
    quietly(scene.control.shutdown(Shutdown::Patient))
}

fn ordered<'a>(scene: &Scene<'a>, order: NodeOrder) -> Action<'a> {
    let given = name(scene).unwrap_or_default();
    let Ok(node) = given.parse() else {
        let error =
            PgError::error(SqlState::INVALID_PARAMETER_VALUE, format!("\"{given}\" is no node's number"));
        return refused(error.with_hint("SHOW NODES has it in the column node_id."));
    };
    let outcome = scene.control.node(order, node);
    Box::pin(async move { outcome.await.map(Some) })
}

pub(super) fn attach<'a>(scene: &Scene<'a>) -> Action<'a> {
    ordered(scene, NodeOrder::Attach)
}

pub(super) fn detach<'a>(scene: &Scene<'a>) -> Action<'a> {
    ordered(scene, if scene.argument.len() > 1 { NodeOrder::DetachNow } else { NodeOrder::Detach })
}

pub(super) fn recover<'a>(scene: &Scene<'a>) -> Action<'a> {
    ordered(scene, NodeOrder::Recover)
}

pub(super) fn promote<'a>(scene: &Scene<'a>) -> Action<'a> {
    ordered(scene, NodeOrder::Promote)
}
