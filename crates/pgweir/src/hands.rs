//! What the cluster core cannot do itself: ask a node for `pg_promote()`, run a command.
//!
//! Invariants: each is done once; what became of it goes back to the core as an event, and an answer that is lost
//! is told as one that nobody knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::{Event, Hook, HookCall, HookOutcome, NodeId, PromoteAnswer, Recovery, Topology};
use config::Config;
use proxy::connect::{QueryError, query};
use proxy::tls::TlsSetup;
use telemetry::{Published, Tasks};
use tokio::sync::{Mutex, oneshot};

use crate::actor::Cluster;
use crate::hook::{self, Values};
use crate::probe_query::connect_as;
use crate::recoveries::News;
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
    /// The recoveries under way; to drop one's end is to stop it.
    pub(crate) recoveries: BTreeMap<u32, oneshot::Sender<()>>,
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
                Hook::Failover | Hook::Failback | Hook::Recovery => None,
            };
            let outcome = match command {
                Some((command, limit)) => outcome(&hook::run(call.hook, &command, limit, &|_| {}).await),
                None => HookOutcome::Done,
            };
            cluster.send(Event::HookDone { call, outcome });
        });
    }
}

fn outcome(ended: &Result<(), hook::Failure>) -> HookOutcome {
    match ended {
        Ok(()) => HookOutcome::Done,
        Err(_) => HookOutcome::Failed,
    }
}

impl Hands {
    /// Runs `recovery_command`.
    pub(crate) fn recover(&mut self, recovery: Recovery, topology: &Topology) {
        let config = self.config.load();
        let command = hook::command(&config, Hook::Recovery)
            .map(|template| hook::expand(template, &Values::of_recovery(recovery, topology, &config)));
        let (limit, cluster, run) = (config.recovery_command_timeout, self.cluster.clone(), recovery.run);
        self.recoveries.retain(|_, stop| !stop.is_closed());
        let (stop, stopped) = oneshot::channel::<()>();
        self.recoveries.insert(run, stop);
        self.tasks.spawn("recovery", async move {
            let Some(command) = command else {
                cluster.tell(run, News::Failed("it is not configured any more".to_owned())).await;
                return cluster.deliver(Event::RecoveryDone { run, outcome: HookOutcome::Failed }).await;
            };
            let listener = |line: &str| cluster.mention(run, line);
            let ended = tokio::select! {
                ended = hook::run(Hook::Recovery, &command, limit, &listener) => ended,
                // The core has forgotten it.
                _ = stopped => return tracing::warn!(hook = Hook::Recovery.key(), "command was stopped; it is killed"),
            };
            if let Err(failure) = &ended {
                cluster.tell(run, News::Failed(failure.to_string())).await;
            }
            cluster.deliver(Event::RecoveryDone { run, outcome: outcome(&ended) }).await;
        });
    }

    /// Kills that run of it.
    pub(crate) fn stop_recovery(&mut self, run: u32) {
        drop(self.recoveries.remove(&run));
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
