//! Asks the primary how far it has written and the standbys how far they have replayed, so that sessions
//! know which standby shows what they have written.
//!
//! A round asks the primary, and when it has answered, the standbys. Nobody waits for anybody: each node has a
//! task that asks it over a connection of its own, and what a node answers counts when it comes. What was learned
//! of a standby is worth as much as the connection it was learned over: a restarted standby may show less than it
//! did before.

mod asker;
mod pace;

use std::sync::Arc;

use cluster::{Epoch, Freshness, Lsn, Moment, Node, NodeId, Shown, Topology, Yardstick};
use config::Config;
use proxy::tls::TlsSetup;
use telemetry::{Metrics, Published, Tasks};
use tokio::sync::{Notify, mpsc, watch};

use crate::clock::Clock;
use crate::specs::{self, ProbeSpec};
use asker::{Answer, Asker, Reading, Said};
use pace::Pace;

/// Rung by sessions that wait for a standby to catch up.
pub(crate) type Wish = Arc<Notify>;

/// Answers that are on their way to the sampler; an asker waits when it is behind.
const ANSWERS: usize = 64;

/// What sessions ring.
pub(crate) fn wish(wish: &Wish) -> Arc<dyn Fn() + Send + Sync> {
    let wish = Arc::clone(wish);
    Arc::new(move || wish.notify_one())
}

/// What the sampler is given.
pub(crate) struct Inlets {
    pub(crate) clock: Clock,
    pub(crate) tasks: Tasks,
    pub(crate) config: Published<Config>,
    pub(crate) tls: Published<TlsSetup>,
    pub(crate) topology: Published<Topology>,
    pub(crate) freshness: Published<Freshness>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) wish: Wish,
}

/// Starts sampling; it goes on until the runtime ends.
pub(crate) fn start(inlets: Inlets) {
    let tasks = inlets.tasks.clone();
    // Nobody waits for its end.
    drop(tasks.spawn("sampler", Sampler::new(inlets).run()));
}

/// A node that is asked.
struct Member {
    node: NodeId,
    /// When its state or role changed last: another one is another server to us.
    since: Epoch,
    asker: Asker,
}

impl Member {
    fn is(&self, node: &Node, spec: &ProbeSpec) -> bool {
        self.node == node.id && self.since == node.changed_epoch && self.asker.spec() == spec
    }
}

/// The one who knows what was said.
struct Sampler {
    inlets: Inlets,
    pace: Pace,
    yardstick: Yardstick,
    /// The primary's timeline; set with the first sample of the yardstick.
    timeline: Option<u32>,
    primary: Option<Member>,
    standbys: Vec<Member>,
    /// What is published.
    freshness: Freshness,
    answers: mpsc::Receiver<Answer>,
    to_us: mpsc::Sender<Answer>,
    /// Tells the askers apart, so that none answers in another's place.
    serial: u64,
}

impl Sampler {
    fn new(inlets: Inlets) -> Self {
        let (to_us, answers) = mpsc::channel(ANSWERS);
        Self {
            pace: Pace::default(),
            yardstick: Yardstick::default(),
            timeline: None,
            primary: None,
            standbys: Vec::new(),
            freshness: Freshness::default(),
            inlets,
            answers,
            to_us,
            serial: 0,
        }
    }

    async fn run(mut self) {
        let (mut topology, mut config) = (self.inlets.topology.changes(), self.inlets.config.changes());
        let wish = Arc::clone(&self.inlets.wish);
        self.regroup();
        loop {
            let wait = self.pace.due().0.saturating_sub(self.inlets.clock.now().0);
            tokio::select! {
                Some(answer) = self.answers.recv() => self.answered(&answer),
                true = changed(&mut topology) => self.regroup(),
                true = changed(&mut config) => self.regroup(),
                // Sessions may ring at any rate; once is enough for a round.
                () = wish.notified(), if !self.pace.is_wished() => self.pace.wish(),
                () = tokio::time::sleep(wait) => self.begin(),
            }
        }
    }

    /// Takes over who is there and what is configured.
    fn regroup(&mut self) {
        let (topology, config) = (self.inlets.topology.load(), self.inlets.config.load());
        self.pace.set(config.sr_check_period, config.sr_check_min_period);
        let specs = specs::sampling(&config, &self.inlets.tls.load().nodes);
        let primary = topology.primary_node().and_then(|node| Some((node, spec_of(node, &specs)?)));
        let same = match (&self.primary, primary) {
            (Some(member), Some((node, spec))) => member.is(node, spec),
            (None, None) => true,
            _ => false,
        };
        if !same {
            self.forget_primary();
            if let Some((node, spec)) = primary {
                self.standbys.clear();
                self.primary = Some(self.member(node, spec, asker::PRIMARY));
            }
        }
        let mut known = std::mem::take(&mut self.standbys);
        let standbys = topology.usable_standbys();
        for (node, spec) in standbys.filter_map(|node| Some((node, spec_of(node, &specs)?))) {
            let kept = known.iter().position(|member| member.is(node, spec));
            match kept {
                Some(at) => self.standbys.push(known.swap_remove(at)),
                // Without a primary there is nothing to measure by.
                None if self.primary.is_none() => {}
                None => {
                    let member = self.member(node, spec, asker::STANDBY);
                    self.standbys.push(member);
                }
            }
        }
        let mut nodes = vec![Shown::default(); topology.nodes.len()];
        for member in &self.standbys {
            let before = self.freshness.of(member.node);
            // A new asker is a new server: nothing is known of it.
            if let Some(place) = nodes.get_mut(member.node.index()).filter(|_| member.asker.has_answered()) {
                *place = before;
            }
        }
        self.publish(Freshness { nodes });
    }

    /// Another primary, or none. What a standby was known to show it still shows, until another primary makes another
    /// history: reads go on while there is none.
    fn forget_primary(&mut self) {
        self.yardstick.clear();
        self.timeline = None;
        self.primary = None;
    }

    fn member(&mut self, node: &Node, spec: &ProbeSpec, question: &'static str) -> Member {
        self.serial += 1;
        self.pace.wish();
        let asker = Asker::start(&self.inlets.tasks, spec.clone(), question, self.serial, self.to_us.clone());
        Member { node: node.id, since: node.changed_epoch, asker }
    }

    /// Begins a round; one that still waits for the primary goes on instead.
    fn begin(&mut self) {
        let now = self.inlets.clock.now();
        self.pace.begin(now);
        if let Some(primary) = self.primary.as_mut().filter(|_| !self.standbys.is_empty()) {
            primary.asker.ask(now);
        }
    }

    fn answered(&mut self, answer: &Answer) {
        if let Some(primary) = self.primary.as_mut().filter(|member| member.asker.is(answer.serial)) {
            primary.asker.answered(&answer.said);
            if let Said::Reading { asked, reading: Reading { lsn, timeline, .. } } = answer.said {
                self.measured(asked, lsn, timeline);
            }
            return;
        }
        let Some(standby) = self.standbys.iter_mut().find(|member| member.asker.is(answer.serial)) else {
            // Of one who is not asked any more.
            return;
        };
        standby.asker.answered(&answer.said);
        let node = standby.node;
        let shown = match answer.said {
            Said::Reading { reading, .. } => self.judged(node, &reading),
            Said::Nothing => {
                // It may be there again at once; a failed question is followed by a pause.
                self.pace.wish();
                Shown::default()
            }
        };
        self.set(node, shown);
    }

    /// The primary has told its position: the standbys' turn.
    fn measured(&mut self, asked: Moment, lsn: Lsn, timeline: Option<u32>) {
        if self.timeline != timeline {
            // It came back as another one before the health check saw that.
            self.yardstick.clear();
            self.timeline = timeline;
            let nothing = Freshness { nodes: vec![Shown::default(); self.freshness.nodes.len()] };
            self.publish(nothing);
        }
        self.yardstick.primary(asked, lsn.0);
        let now = self.inlets.clock.now();
        for standby in &mut self.standbys {
            standby.asker.ask(now);
        }
    }

    /// What a standby with that answer shows; not less than it showed already.
    fn judged(&self, node: NodeId, reading: &Reading) -> Shown {
        let before = self.freshness.of(node);
        let lsn = reading.lsn.0;
        // Positions compare within one history only. A standby that may not tell which it follows is believed.
        let elsewhere = reading.timeline.is_some() && reading.timeline != self.timeline;
        let as_of = if reading.receives && !elsewhere { self.yardstick.standby(lsn) } else { None };
        Shown {
            as_of: before.as_of.max(as_of),
            // Its connection is there by now.
            watched: before.watched.or(Some(self.inlets.clock.now())),
            lag: if elsewhere { self.yardstick.lag_elsewhere(lsn) } else { self.yardstick.lag(lsn) },
        }
    }

    fn set(&mut self, node: NodeId, shown: Shown) {
        let mut next = self.freshness.clone();
        if let Some(place) = next.nodes.get_mut(node.index()) {
            *place = shown;
        }
        self.publish(next);
    }

    fn publish(&mut self, freshness: Freshness) {
        if freshness == self.freshness {
            return;
        }
        for node in self.inlets.metrics.nodes() {
            let shown = freshness.of(NodeId(node.label().id));
            node.set_fresh_as_of(shown.as_of.map(|as_of| self.inlets.clock.wall(as_of)));
            node.set_lag(shown.lag.map(|lag| (lag.bytes, lag.time)));
        }
        self.inlets.freshness.publish(freshness.clone());
        self.freshness = freshness;
    }
}

/// Waits for a change; false when there will be none any more.
async fn changed(changes: &mut watch::Receiver<u64>) -> bool {
    changes.changed().await.is_ok()
}

/// How to ask the node. During a reload the configuration is ahead of the topology: an id may mean another server.
fn spec_of<'a>(node: &Node, specs: &'a [ProbeSpec]) -> Option<&'a ProbeSpec> {
    let spec = specs.get(node.id.index())?;
    let same = *spec.backend.hostname == *node.hostname && spec.backend.port == node.port;
    same.then_some(spec)
}
