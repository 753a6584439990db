//! How far a command is that takes long: a line for who waits for it.

use cluster::{NodeId, Role};

use super::Scene;
use crate::render;
use crate::view::{NodeRow, ServerRow, ServerState};
use crate::words::Word;

/// A line from what is to be seen now; none where there is nothing to tell.
type Line = fn(&Scene<'_>) -> Option<String>;

/// The commands that may take long.
const LINES: &[(&str, Line)] =
    &[("PAUSE", paused), ("WAIT_CLOSE", closing), ("PROMOTE NODE", promoted), ("RECOVER NODE", recovered)];

/// How far the command with these words is.
pub(crate) fn of(words: &str, scene: &Scene<'_>) -> Option<String> {
    let (_, line) = LINES.iter().find(|(of, _)| *of == words)?;
    line(scene)
}

/// Backends that sessions have.
pub(super) fn in_use(servers: &[ServerRow], is_meant: impl Fn(&ServerRow) -> bool) -> usize {
    let held = |server: &&ServerRow| server.state == ServerState::Active && server.session.is_some();
    servers.iter().filter(held).filter(|server| is_meant(server)).count()
}

fn plural(count: usize, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

fn is_of(scene: &Scene<'_>, server: &ServerRow) -> bool {
    scene.argument.first().and_then(Word::value).is_none_or(|name| server.database == name)
}

fn paused(scene: &Scene<'_>) -> Option<String> {
    let left = in_use(&scene.view.servers(), |server| is_of(scene, server));
    Some(format!(
        "{} still to come back",
        plural(left, "connection to a node is", "connections to nodes are")
    ))
}

fn closing(scene: &Scene<'_>) -> Option<String> {
    let left =
        scene.view.servers().iter().filter(|server| server.close_needed && is_of(scene, server)).count();
    Some(format!(
        "{} still to be closed",
        plural(left, "connection to a node is", "connections to nodes are")
    ))
}

fn promoted(scene: &Scene<'_>) -> Option<String> {
    let to: u16 = scene.argument.first().and_then(Word::value)?.parse().ok()?;
    let nodes = scene.view.nodes();
    let node = nodes.iter().find(|node| node.id == NodeId(to))?;
    let old = nodes.iter().find(|other| other.role == Role::Primary && other.id != node.id);
    let left = old.map(|old: &NodeRow| {
        let left = in_use(&scene.view.servers(), |server| server.node == old.id);
        format!(
            "{} to node {}",
            plural(left, "session has a connection", "sessions have a connection"),
            old.id
        )
    });
    let delay = match render::delay(node.delay) {
        delay if delay.is_empty() => "its delay unknown".to_owned(),
        delay => format!("{delay} behind"),
    };
    let waiting = scene.view.clients().iter().filter(|client| client.waits_for.is_some()).count();
    let waits = plural(waiting, "session waits", "sessions wait");
    let parts = [left, Some(format!("node {to} is {}, {delay}", node.seen_role.as_str())), Some(waits)];
    Some(parts.into_iter().flatten().collect::<Vec<_>>().join("; "))
}

fn recovered(scene: &Scene<'_>) -> Option<String> {
    let node: u16 = scene.argument.first().and_then(Word::value)?.parse().ok()?;
    scene.view.nodes().into_iter().find(|row| row.id == NodeId(node))?.recovery
}
