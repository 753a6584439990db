//! The cluster core's own thread: takes events, steps the core, carries out its actions.
//!
//! Invariants: only this thread steps the core; its channel is bounded, and what does not fit is dropped and
//! counted (checks repeat, observations may be lost); a violated invariant or a panic here ends the process, because
//! nothing that is decided after it can be trusted.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use cluster::{
    Action, Core, Event, Hint, Node, NodeId, NodeReport, NodeState, Observation, Progress, Record, Refusal,
    Topology, Violation,
};
use config::Config;
use proxy::tls::TlsSetup;
use telemetry::{Metrics, Published, Tasks};
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::events::Events;
use crate::evidence::{Evidence, Summary};
use crate::hands::Hands;
use crate::probes::Wakes;
use crate::recoveries::{News, Recoveries};

/// Events that wait for the core. A step takes microseconds; a full channel means that thousands of sessions see
/// the same death.
const CHANNEL: usize = 1024;
/// How long what must not be lost waits for room in that channel before it tries again.
const ROOM: Duration = Duration::from_millis(20);
/// How often the core is told that time passes.
const TICK: Duration = Duration::from_millis(250);
/// The process has a defect (`EX_SOFTWARE` of sysexits.h).
const EX_SOFTWARE: i32 = 70;

/// What the actor is sent.
enum Message {
    Event(Event),
    Command(Event, oneshot::Sender<Result<(), Refusal>>),
    /// Of the command of a recovery.
    News(u32, News),
}

/// Why an administrator's command was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// The core says why.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The channel is full or the actor is gone.
    #[error("the cluster's thread is busy; try again")]
    Busy,
}

/// The way to the core.
#[derive(Clone)]
pub(crate) struct Cluster {
    sender: SyncSender<Message>,
    metrics: Arc<Metrics>,
}

/// What the actor shows and whom it wakes.
pub(crate) struct Outlets {
    pub(crate) topology: Published<Topology>,
    pub(crate) reports: Published<Vec<NodeReport>>,
    pub(crate) wakes: Wakes,
    pub(crate) config: Published<Config>,
    pub(crate) tls: Published<TlsSetup>,
    pub(crate) tasks: Tasks,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
    pub(crate) events: Events,
    /// What the next start should know.
    pub(crate) hints: Published<Hint>,
    /// How far each recovery is.
    pub(crate) recoveries: Published<Recoveries>,
}

impl Cluster {
    /// Starts the actor's thread.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(core: Core, outlets: Outlets) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(CHANNEL);
        let metrics = Arc::clone(&outlets.metrics);
        let hands = Hands {
            tasks: outlets.tasks.clone(),
            config: outlets.config.clone(),
            tls: outlets.tls.clone(),
            cluster: Self { sender: sender.clone(), metrics: Arc::clone(&metrics) },
            turn: Arc::default(),
            recoveries: std::collections::BTreeMap::new(),
        };
        let hint = core.hint();
        let actor =
            Actor { core, outlets, hands, hint, without_primary: None, evidence: Evidence::default() };
        std::thread::Builder::new().name("cluster".to_owned()).spawn(move || {
            let guard = EndTheProcess;
            match actor.run(&receiver) {
                // Everybody who could send is gone: the process is ending anyway.
                Ok(()) => std::mem::forget(guard),
                Err(violation) => {
                    tracing::error!(%violation, "the cluster core is in a state that must not be");
                }
            }
        })?;
        Ok(Self { sender, metrics })
    }

    /// Tells what a session or a pool saw; may be lost.
    pub(crate) fn observe(&self, observation: Observation) {
        self.send(Event::Observed(observation));
    }

    /// Tells the core something; dropped and counted when it is behind.
    pub(crate) fn send(&self, event: Event) {
        if self.sender.try_send(Message::Event(event)).is_err() {
            self.metrics.observations_dropped.inc();
        }
    }

    /// Tells the core something that must not be lost.
    pub(crate) async fn deliver(&self, event: Event) {
        self.put(Message::Event(event)).await;
    }

    /// What whoever waits for a recovery must learn.
    pub(crate) async fn tell(&self, run: u32, news: News) {
        self.put(Message::News(run, news)).await;
    }

    /// What a recovery's command has said; the next line will do as well.
    pub(crate) fn mention(&self, run: u32, line: &str) {
        // May be lost, see above.
        let _ = self.sender.try_send(Message::News(run, News::Said(line.to_owned())));
    }

    async fn put(&self, mut message: Message) {
        while let Err(TrySendError::Full(returned)) = self.sender.try_send(message) {
            message = returned;
            tokio::time::sleep(ROOM).await;
        }
    }

    /// Gives an administrator's command, or a reload, and waits until it is carried out.
    ///
    /// # Errors
    /// The core refuses it, or does not take it.
    pub(crate) async fn command(&self, event: Event) -> Result<(), CommandError> {
        let (reply, answer) = oneshot::channel();
        match self.sender.try_send(Message::Command(event, reply)) {
            Ok(()) => Ok(answer.await.map_err(|_| CommandError::Busy)??),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => Err(CommandError::Busy),
        }
    }
}

/// Ends the process when the actor's thread ends other than by plan.
struct EndTheProcess;

impl Drop for EndTheProcess {
    fn drop(&mut self) {
        tracing::error!("the cluster's thread has failed; pgweir ends and is to be started again");
        std::process::exit(EX_SOFTWARE);
    }
}

struct Actor {
    core: Core,
    outlets: Outlets,
    hands: Hands,
    /// As it was published last.
    hint: Hint,
    /// Since when there is no primary, after there was one.
    without_primary: Option<Instant>,
    /// Why it is another one now, for the line that says so.
    evidence: Evidence,
}

impl Actor {
    fn run(mut self, receiver: &Receiver<Message>) -> Result<(), Violation> {
        let mut ticked = Instant::now();
        loop {
            match receiver.recv_timeout(TICK.saturating_sub(ticked.elapsed())) {
                // Only commands are refused.
                Ok(Message::Event(event)) => {
                    let _ = self.step(event)?;
                }
                Ok(Message::Command(event, reply)) => {
                    let outcome = self.step(event)?;
                    // Whoever asked may be gone.
                    let _ = reply.send(outcome);
                }
                Ok(Message::News(run, news)) => self.note(|recoveries| recoveries.tell(run, news)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                let _ = self.step(Event::Tick)?;
            }
        }
    }

    fn step(&mut self, event: Event) -> Result<Result<(), Refusal>, Violation> {
        self.count(&event);
        let mut reports_change = !matches!(event, Event::Observed(_) | Event::Tick);
        let actions = self.core.step(self.outlets.clock.now(), event);
        self.core.check_invariants()?;
        let mut outcome = Ok(());
        let mut recoveries = Vec::new();
        for action in actions {
            match action {
                Action::Publish(topology) => self.publish(topology),
                Action::Probe { node, after } => self.outlets.wakes.wake(node, after),
                Action::Promote { node } => self.hands.promote(node, self.core.topology()),
                Action::RunHook(call) => self.hands.run_hook(call, self.core.topology()),
                Action::Recover(recovery) => self.hands.recover(recovery, self.core.topology()),
                Action::StopRecovery { run } => self.hands.stop_recovery(run),
                Action::Record(record) => {
                    if let Record::Recovery { run, node, step } = &record {
                        reports_change = true;
                        recoveries.push((*run, *node, *step));
                    }
                    self.measure(&record);
                    self.record(record);
                }
                Action::Refused(refusal) => outcome = Err(refusal),
            }
        }
        if reports_change {
            self.outlets.reports.publish(self.core.reports());
            self.remember();
        }
        // Last: who waits for a recovery looks at its node next.
        for (run, node, step) in recoveries {
            self.note(|recoveries| recoveries.step(run, node, step));
        }
        Ok(outcome)
    }

    fn note(&self, change: impl FnOnce(&mut Recoveries)) {
        let mut recoveries = (*self.outlets.recoveries.load()).clone();
        change(&mut recoveries);
        self.outlets.recoveries.publish(recoveries);
    }

    fn count(&self, event: &Event) {
        let (node, failure) = match event {
            Event::CheckOk { node, .. } => (node, None),
            Event::CheckFailed { node, failure, .. } => (node, Some(*failure as usize)),
            _ => return,
        };
        let nodes = self.outlets.metrics.nodes();
        if let Some(handles) = nodes.iter().find(|handles| handles.label().id == node.0) {
            handles.checked(failure);
        }
    }

    fn remember(&mut self) {
        let hint = self.core.hint();
        if hint != self.hint {
            self.hint = hint.clone();
            self.outlets.hints.publish(hint);
        }
    }

    fn publish(&self, topology: Topology) {
        let metrics = &self.outlets.metrics;
        metrics.topology_epoch.set(i64::try_from(topology.epoch.0).unwrap_or(i64::MAX));
        for handles in metrics.nodes() {
            let Some(node) = topology.node(NodeId(handles.label().id)) else { continue };
            handles.up.set(i64::from(node.state == NodeState::Up));
            handles.set_role(node.role.as_str());
        }
        self.outlets.topology.publish(topology);
    }

    /// How long there was no primary.
    fn measure(&mut self, record: &Record) {
        match record {
            Record::PrimaryChange { from: Some(_), to: None, .. } => {
                self.without_primary = Some(Instant::now())
            }
            Record::PrimaryChange { from, to: Some(_), .. } => {
                let since = self.without_primary.take();
                if from.is_some() || since.is_some() {
                    self.outlets.metrics.primary_changes.inc();
                }
                if let Some(since) = since {
                    self.outlets.metrics.failover.observe(since.elapsed().as_secs_f64());
                }
            }
            _ => {}
        }
    }

    fn record(&mut self, record: Record) {
        self.outlets.events.record(&record);
        let summary = self.evidence.note(&record);
        let topology = self.core.topology();
        let name = |id: NodeId| topology.node(id).map(address).unwrap_or_default();
        match record {
            Record::StateChange { node, from, to, reason } => {
                let (from, to, reason) = (from.as_str(), to.as_str(), reason.as_str());
                if to == NodeState::Up.as_str()
                    || to == NodeState::Draining.as_str()
                    || from == NodeState::Waiting.as_str() && to != "down"
                {
                    tracing::info!(node = node.0, address = name(node), from, to, reason, "node state");
                } else {
                    tracing::warn!(node = node.0, address = name(node), from, to, reason, "node state");
                }
            }
            Record::RoleChange { node, from, to } => {
                let (from, to) = (from.as_str(), to.as_str());
                tracing::info!(node = node.0, address = name(node), from, to, "node role");
            }
            Record::PrimaryChange { from, to: Some(to), timeline } => {
                let from = from.map(|id| id.0);
                match summary {
                    Some(summary) => tell_failover(to, &name(to), timeline, &summary),
                    None => tracing::info!(
                        node = to.0,
                        address = name(to),
                        from,
                        timeline,
                        "writes go to this primary"
                    ),
                }
            }
            Record::PrimaryChange { from, to: None, .. } => {
                let from = from.map(|id| id.0);
                tracing::warn!(from, "there is no primary: writes wait, or are refused");
            }
            Record::CheckTrouble { node, failure, in_a_row } => {
                // The probe has said it in the node's words.
                let failure = failure.as_str();
                tracing::debug!(
                    node = node.0,
                    address = name(node),
                    failure,
                    in_a_row,
                    "health check failed"
                );
            }
            Record::Failover(progress) => say(progress),
            Record::Recovery { run, node, step } => {
                let (address, step) = (name(node), step.as_str());
                tracing::warn!(node = node.0, address, run, step, "recovery");
            }
            Record::Reconfigured { nodes } => tracing::info!(nodes, "the nodes are configured anew"),
        }
    }
}

/// The one line of a failover, with its evidence.
fn tell_failover(to: NodeId, address: &str, timeline: Option<u32>, summary: &Summary) {
    let Summary { from, lost, failed_checks, position, how, without_primary_ms } = summary;
    tracing::warn!(
        node = to.0,
        address,
        timeline,
        from,
        lost,
        failed_checks,
        position,
        how,
        without_primary_ms,
        "failover: writes go to this primary"
    );
}

/// The steps of a failover or switchover.
fn say(progress: Progress) {
    match progress {
        Progress::Suspected { primary, failures } => {
            tracing::warn!(
                primary = primary.0,
                failures,
                "the primary counts as dead; its standbys are asked"
            );
        }
        Progress::Vetoed { primary, by } => tracing::warn!(
            primary = primary.0,
            standby = by.0,
            "no failover: the standby still receives from the primary"
        ),
        Progress::NoCandidate { primary } => {
            tracing::error!(primary = primary.0, "no failover: no standby that is up may be promoted");
        }
        Progress::Promoting { node, old, position } => {
            let (old, position) = (old.map(|old| old.0), position.map(|lsn| lsn.to_string()));
            tracing::warn!(node = node.0, old, position, "node is being promoted");
        }
        Progress::PromotionFailed { node } => tracing::error!(node = node.0, "the promotion has failed"),
        Progress::GivenUp { primary } => {
            let primary = primary.map(|id| id.0);
            tracing::error!(primary, "the failover is given up; PROMOTE NODE begins another one");
        }
        Progress::Done { primary, took } => {
            tracing::debug!(node = primary.0, took_ms = took.as_millis(), "the failover is done");
        }
        Progress::Switching { from, to } => {
            tracing::info!(from = from.0, to = to.0, "switchover: new transactions wait");
        }
        Progress::CalledOff { from, to, why } => {
            tracing::error!(from = from.0, to = to.0, why = why.as_str(), "switchover called off");
        }
    }
}

/// How the log names a node.
fn address(node: &Node) -> String {
    format!("{}:{}", node.hostname, node.port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::specs;
    use crate::vocabulary::Words;
    use cluster::{Facts, Insist};

    struct Running {
        cluster: Cluster,
        topology: Published<Topology>,
        reports: Published<Vec<NodeReport>>,
        metrics: Arc<Metrics>,
        clock: Clock,
    }

    fn start() -> Running {
        let config = config::parse("backends: [{hostname: db0}, {hostname: db1}]", "test").unwrap();
        let clock = Clock::start();
        let metrics = Arc::new(Metrics::new(&Words::new().vocabulary(), clock.started_at()).unwrap());
        metrics.set_nodes(&specs::labels(&config)).unwrap();
        let core = Core::new(specs::settings(&config), specs::nodes(&config), clock.now());
        let (topology, reports) = (Published::new(core.topology().clone()), Published::new(core.reports()));
        let outlets = Outlets {
            topology: topology.clone(),
            reports: reports.clone(),
            wakes: Wakes::default(),
            tls: Published::new(TlsSetup::build(&config).unwrap()),
            config: Published::new(config),
            tasks: Tasks::new(tokio::runtime::Handle::current()),
            metrics: Arc::clone(&metrics),
            clock,
            events: Events::default(),
            hints: Published::new(core.hint()),
            recoveries: Published::default(),
        };
        Running { cluster: Cluster::start(core, outlets).unwrap(), topology, reports, metrics, clock }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn reports_become_a_topology_and_commands_are_answered() {
        let running = start();
        for (id, in_recovery) in [(0, false), (1, true)] {
            let facts =
                Facts { in_recovery, timeline: Some(1), system_identifier: Some(1), ..Facts::default() };
            running.cluster.send(Event::CheckOk { node: NodeId(id), started: running.clock.now(), facts });
        }
        // A command is answered after everything that was sent before it.
        let refused =
            running.cluster.command(Event::AdminDetach { node: NodeId(0), insist: Insist::No }).await;
        assert!(matches!(refused, Err(CommandError::Refused(Refusal::IsPrimary(NodeId(0))))), "{refused:?}");
        assert_eq!(running.topology.load().primary, Some(NodeId(0)));
        assert_eq!(running.reports.load()[1].answers, Some(true));
        assert_eq!(running.metrics.nodes()[1].up.get(), 1);
        let text = running.metrics.encode().unwrap();
        assert!(text.contains("pgweir_health_checks_total{node=\"1\",result=\"ok\"} 1"), "{text}");
        assert!(
            running.metrics.encode().unwrap().contains("pgweir_node_role{node=\"0\",role=\"primary\"} 1")
        );
        running.cluster.command(Event::AdminDetach { node: NodeId(1), insist: Insist::No }).await.unwrap();
        assert_eq!(running.topology.load().node(NodeId(1)).map(|node| node.state), Some(NodeState::Draining));
        running.cluster.command(Event::Drained { node: NodeId(1) }).await.unwrap();
        assert_eq!(running.topology.load().node(NodeId(1)).map(|node| node.state), Some(NodeState::Down));
        assert_eq!(running.metrics.nodes()[1].up.get(), 0);
    }
}
