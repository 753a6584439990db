//! Looks whether anything of ours still runs on a node that takes no new work, and tells the core when it is over.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cluster::{Event, Node, NodeState, Topology};
use proxy::Proxy;
use proxy::registry::ServerState;
use telemetry::{Published, Tasks};

use crate::actor::Cluster;

/// How often it is looked.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Runs for ever; sleeps while no node drains.
pub(crate) fn start(
    tasks: &Tasks,
    topology: Published<Topology>,
    proxy: Arc<OnceLock<Arc<Proxy>>>,
    cluster: Cluster,
) {
    tasks.spawn("drain", async move {
        let mut changes = topology.changes();
        loop {
            let now = topology.load();
            let draining: Vec<&Node> =
                now.nodes.iter().filter(|node| node.state == NodeState::Draining).collect();
            for node in draining.iter().filter(|node| !is_used(&proxy, node)) {
                cluster.send(Event::Drained { node: node.id });
            }
            if draining.is_empty() {
                if changes.changed().await.is_err() {
                    return;
                }
            } else {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    });
}

/// Whether a session has a backend of that node.
fn is_used(proxy: &OnceLock<Arc<Proxy>>, node: &Node) -> bool {
    let Some(proxy) = proxy.get() else { return false };
    let servers = proxy.registry().servers();
    servers.iter().any(|server| {
        server.node == node.id && server.state() == ServerState::Active && server.client().is_some()
    })
}
