//! What the cluster core cannot do itself: ask a node for `pg_promote()`, run a command.
//!
//! Invariants: each is done once; what became of it goes back to the core as an event, and an answer that is lost
//! is told as one that nobody knows.

use std::sync::Arc;

use cluster::{Event, Hook, HookCall, HookOutcome, NodeId, PromoteAnswer, Topology};
use config::Config;
use proxy::connect::{QueryError, query};
use proxy::tls::TlsSetup;
use telemetry::{Published, Tasks};
use tokio::sync::Mutex;

use crate::actor::Cluster;
use crate::hook::{self, Values};
use crate::probe_query::connect_as;
use crate::specs::{self, ProbeSpec};

/// It returns at once: the checks see when the node takes writes.
const PROMOTE: &str = "SELECT pg_catalog.pg_promote(false)";

/// See the module's documentation.
pub(crate) struct Hands {
    pub(crate) tasks: Tasks,
    pub(crate) config: Published<Config>,
    pub(crate) tls: Published<TlsSetup>,
    pub(crate) cluster: Cluster,
    /// Nodes follow a new primary one after the other, in the core's order.
    pub(crate) turn: Arc<Mutex<()>>,
}

impl Hands {
    /// Asks the node to promote itself.
    pub(crate) fn promote(&self, node: NodeId, topology: &Topology) {
        let spec = self.spec_of(node, topology);
        let cluster = self.cluster.clone();
        self.tasks.spawn("promote", async move {
            let answer = match spec {
                Some(spec) => Box::pin(ask(&spec)).await,
                // The configuration has changed under the core's feet; it will hear of it.
                None => PromoteAnswer::Refused,
            };
            cluster.send(Event::PromoteAnswer { node, answer });
        });
    }

    fn spec_of(&self, node: NodeId, topology: &Topology) -> Option<ProbeSpec> {
        let known = topology.node(node)?;
        let spec = specs::probes(&self.config.load(), &self.tls.load().nodes)
            .into_iter()
            .find(|spec| spec.node == node)?;
        (*known.hostname == *spec.backend.hostname && known.port == spec.backend.port).then_some(spec)
    }

    /// Runs a command of the configuration, if there is one.
    pub(crate) fn run_hook(&self, call: HookCall, topology: &Topology) {
        let config = self.config.load();
        let command = hook::command(&config, call.hook).map(|template| {
            let values = Values::of(call, topology, &config);
            (hook::expand(template, &values), config.failover_command_timeout)
        });
        let (cluster, turn) = (self.cluster.clone(), Arc::clone(&self.turn));
        self.tasks.spawn("hook", async move {
            // Waiters are served in the order in which they came.
            let _turn = match call.hook {
                Hook::FollowPrimary => Some(turn.lock().await),
                Hook::Failover | Hook::Failback => None,
            };
            let outcome = match command {
                Some((command, limit)) => hook::run(call.hook, &command, limit).await,
                None => HookOutcome::Done,
            };
            cluster.send(Event::HookDone { call, outcome });
        });
    }
}

async fn ask(spec: &ProbeSpec) -> PromoteAnswer {
    let (node, user) = (spec.node.0, &spec.check.user);
    let mut connected = match connect_as(spec, "pgweir").await {
        Ok(connected) => connected,
        Err(error) => {
            tracing::error!(node, user, %error, "cannot ask the node to promote itself");
            return PromoteAnswer::Refused;
        }
    };
    match query(&mut connected, PROMOTE, spec.check.timeout).await {
        Ok(rows) if rows.first().and_then(|row| row.first()?.as_deref()) == Some("t") => {
            PromoteAnswer::Accepted
        }
        Ok(_) => PromoteAnswer::Refused,
        Err(error @ QueryError::Server(_)) => {
            let hint = "the user of the health check needs EXECUTE on pg_promote";
            tracing::error!(node, user, %error, hint, "the node does not promote itself");
            PromoteAnswer::Refused
        }
        Err(error) => {
            tracing::error!(node, user, %error, "whether the node promotes itself is not known");
            PromoteAnswer::Unknown
        }
    }
}
