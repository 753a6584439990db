//! The health checks: one task per node that asks it, in time and whenever the core wants to know.
//!
//! A probe decides nothing; it reports. It keeps its connection between checks, so that a check costs one round
//! trip, and so that the end of that connection is evidence.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cluster::{ConnectFailure, Event, Evidence, Facts, NodeId};
use config::Backend;
use parking_lot::Mutex;
use proxy::capacity::Capacities;
use proxy::connect::NodeAddress;
use telemetry::Tasks;
use tokio::net::lookup_host;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::actor::Cluster;
use crate::clock::Clock;
use crate::health::Health;
use crate::probe_query::{Fault, Link, ProbeError};
use crate::senders::Senders;
use crate::specs::ProbeSpec;

/// How often it is looked whether a node's name has moved to another address.
const LOOK_UP_EVERY: Duration = Duration::from_secs(2);

/// Who can be woken: one bell per node.
#[derive(Clone, Default)]
pub(crate) struct Wakes(Arc<Mutex<Vec<Arc<Bell>>>>);

/// Asks one probe to check, at a time.
#[derive(Default)]
struct Bell {
    due: Mutex<Option<Instant>>,
    rung: Notify,
}

impl Wakes {
    /// Asks for a check of that node after that time, besides the regular ones.
    pub(crate) fn wake(&self, node: NodeId, after: Duration) {
        let Some(bell) = self.0.lock().get(node.index()).map(Arc::clone) else { return };
        let at = Instant::now() + after;
        {
            let mut due = bell.due.lock();
            *due = Some(due.map_or(at, |due| due.min(at)));
        }
        bell.rung.notify_one();
    }

    fn replace(&self, count: usize) -> Vec<Arc<Bell>> {
        let bells: Vec<Arc<Bell>> = (0..count).map(|_| Arc::default()).collect();
        self.0.lock().clone_from(&bells);
        bells
    }
}

/// Where what the probes learn is kept. Cloning shares it.
#[derive(Clone)]
pub(crate) struct Learned {
    pub(crate) health: Health,
    pub(crate) senders: Senders,
    pub(crate) capacities: Arc<Capacities>,
}

/// The probes of all nodes.
pub(crate) struct Probes {
    tasks: Tasks,
    wakes: Wakes,
    cluster: Cluster,
    clock: Clock,
    learned: Learned,
    specs: Vec<ProbeSpec>,
    running: Vec<JoinHandle<()>>,
}

impl Probes {
    /// No probe yet.
    pub(crate) fn new(tasks: Tasks, wakes: Wakes, cluster: Cluster, clock: Clock, learned: Learned) -> Self {
        Self { tasks, wakes, cluster, clock, learned, specs: Vec::new(), running: Vec::new() }
    }

    /// Whether these are the probes that run.
    pub(crate) fn are(&self, specs: &[ProbeSpec]) -> bool {
        self.specs == specs
    }

    /// Ends all probes. After this no report under the old ids is made any more.
    pub(crate) async fn stop(&mut self) {
        for task in self.running.drain(..) {
            task.abort();
            // It was cancelled, which is what the error says.
            let _ = task.await;
        }
    }

    /// Starts a probe for each node; call [`Probes::stop`] first.
    pub(crate) fn start(&mut self, specs: Vec<ProbeSpec>) {
        let addresses = |specs: &[ProbeSpec]| -> Vec<String> {
            specs.iter().map(|spec| spec.backend.to_string()).collect()
        };
        if addresses(&specs) != addresses(&self.specs) {
            self.learned.health.forget();
            self.learned.senders.forget_all();
        }
        let bells = self.wakes.replace(specs.len());
        for (spec, bell) in specs.iter().zip(bells) {
            let probe = Probe {
                spec: spec.clone(),
                bell,
                cluster: self.cluster.clone(),
                clock: self.clock,
                learned: self.learned.clone(),
                link: None,
                looked_up: Instant::now(),
                knows_capacity: false,
                said: None,
            };
            self.running.push(self.tasks.spawn("probe", probe.run()));
        }
        self.specs = specs;
    }
}

/// One node's probe.
struct Probe {
    spec: ProbeSpec,
    bell: Arc<Bell>,
    cluster: Cluster,
    clock: Clock,
    learned: Learned,
    link: Option<Link>,
    /// When it was last looked whether the name still means the server at the other end of the link.
    looked_up: Instant,
    /// The node has said over this link how many connections it takes.
    knows_capacity: bool,
    /// What was said last about its failures: the same is not said twice.
    said: Option<String>,
}

impl Probe {
    async fn run(mut self) {
        loop {
            let begun = Instant::now();
            self.follow_the_name().await;
            if let Some(event) = self.check().await {
                self.cluster.send(event);
            }
            self.learn_capacity().await;
            self.learn_senders().await;
            self.rest(begun + self.spec.period).await;
        }
    }

    /// Waits for the next regular check, or for the time that the core has asked for.
    async fn rest(&self, regular: Instant) {
        loop {
            let due = self.bell.due.lock().map_or(regular, |due| due.min(regular));
            tokio::select! {
                () = sleep_until(due) => break,
                () = self.bell.rung.notified() => {}
            }
        }
        *self.bell.due.lock() = None;
    }

    /// A name may move to another server while this link, and the backends of before, go on with the old one: then all of
    /// them are made anew. A name that cannot be resolved says nothing about what is connected already.
    async fn follow_the_name(&mut self) {
        let Backend { hostname, port, .. } = &self.spec.backend;
        let is_name = !hostname.starts_with(['/', '@']) && hostname.parse::<IpAddr>().is_err();
        let peer = self.link.as_ref().and_then(Link::peer);
        let Some(peer) = peer.filter(|_| is_name && self.looked_up.elapsed() >= LOOK_UP_EVERY) else {
            return;
        };
        self.looked_up = Instant::now();
        let looking = timeout(self.spec.check.timeout, lookup_host((hostname.as_str(), *port)));
        let Ok(Ok(found)) = looking.await else { return };
        let found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
        if found.is_empty() || found.contains(&peer) {
            return;
        }
        let node = self.spec.node;
        tracing::warn!(node = node.0, hostname, old = %peer, new = ?found, "the node's name has moved");
        self.link = None;
        self.cluster.send(Event::Moved { node });
    }

    /// One check, and what to report of it.
    async fn check(&mut self) -> Option<Event> {
        let (node, started) = (self.spec.node, self.clock.now());
        let had_link = self.link.is_some();
        // Dropping what is under way closes the connection.
        let outcome = timeout(self.spec.check.timeout, Box::pin(self.ask())).await;
        let took = self.clock.now().0.saturating_sub(started.0);
        let failure = match outcome {
            Ok(Ok(facts)) => {
                self.said = None;
                self.learned.health.checked(node, took, None);
                return Some(Event::CheckOk { node, started, facts });
            }
            Ok(Err(error)) => {
                self.learned.health.checked(node, took, Some(&error.to_string()));
                self.say(error.to_string());
                match error.fault() {
                    Fault::Node(failure) => failure,
                    Fault::Ours => return None,
                }
            }
            Err(_) => {
                self.learned.health.checked(node, took, Some("no answer within the time allowed"));
                self.say("no answer within the time allowed".to_owned());
                ConnectFailure::TimedOut
            }
        };
        let lost = had_link && failure == ConnectFailure::Unreachable;
        let evidence = if lost { Evidence::ConnectionLost } else { Evidence::ConnectOnly };
        Some(Event::CheckFailed { node, started, failure, evidence })
    }

    /// Asks over the connection that is there; when it turns out to be broken, over a new one.
    async fn ask(&mut self) -> Result<Facts, ProbeError> {
        if let Some(mut link) = self.link.take() {
            match link.ask().await {
                Ok(facts) => {
                    self.link = Some(link);
                    return Ok(facts);
                }
                Err(error) => tracing::debug!(node = self.spec.node.0, %error, "check connection lost"),
            }
        }
        self.knows_capacity = false;
        let mut link = Link::connect(&self.spec).await?;
        let facts = link.ask().await?;
        self.link = Some(link);
        Ok(facts)
    }

    /// Asks how many connections the node takes, after the check: it does not wait for that.
    async fn learn_capacity(&mut self) {
        let Some(link) = self.link.as_mut().filter(|_| !self.knows_capacity) else { return };
        match timeout(self.spec.check.timeout, Box::pin(link.capacity())).await {
            Ok(Ok(capacity)) => {
                let Backend { hostname, port, .. } = &self.spec.backend;
                self.learned
                    .capacities
                    .learn(NodeAddress { hostname: hostname.clone(), port: *port }, capacity);
                self.knows_capacity = true;
            }
            // The next check finds out what is wrong with the link.
            Ok(Err(error)) => tracing::debug!(node = self.spec.node.0, %error, "max_connections not known"),
            // Its answer would be taken for the next check's.
            Err(_) => self.link = None,
        }
    }

    /// Asks whom the node sends its WAL to, after the check.
    async fn learn_senders(&mut self) {
        let node = self.spec.node;
        let Some(link) = self.link.as_mut() else { return self.learned.senders.forget(node) };
        match timeout(self.spec.check.timeout, Box::pin(link.senders())).await {
            Ok(Ok(rows)) => self.learned.senders.told(node, &rows),
            Ok(Err(error)) => {
                self.learned.senders.forget(node);
                tracing::debug!(node = node.0, %error, "replication states not known");
            }
            Err(_) => {
                self.learned.senders.forget(node);
                // Its answer would be taken for the next check's.
                self.link = None;
            }
        }
    }

    /// Logs how checks fail, once for each way.
    fn say(&mut self, error: String) {
        if self.said.as_ref() == Some(&error) {
            return;
        }
        let ProbeSpec { node, backend, check, .. } = &self.spec;
        let (node, address) = (node.0, backend.to_string());
        let (user, database) = (&check.user, &check.database);
        tracing::warn!(node, address, user, database, error, "health check failed");
        self.said = Some(error);
    }
}
