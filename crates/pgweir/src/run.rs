//! `pgweir run`: the supervisor. Starts everything in order, then serves signals and the console's commands until
//! the end.
//!
//! The main thread is the control plane: probes, HTTP, signals, reloads. The cluster core has a thread of its own,
//! and so have the proxy's workers.

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use admin::view::{ProcessState, Shutdown};
use admin::{AdminConsole, AdminView};
use anyhow::Context;
use cluster::{Core, Freshness, Hint, NodeReport, NodeState, Topology};
use config::Config;
use proxy::capacity::Capacities;
use proxy::listener::Inherited;
use proxy::tls::TlsSetup;
use proxy::{Deps, Proxy, ShutdownMode};
use telemetry::logging::{self, Logging};
use telemetry::{Metrics, Published, Tasks};
use tokio::sync::mpsc;

use crate::actor::{Cluster, Outlets};
use crate::averages::Averages;
use crate::cli::{Failure, load};
use crate::clock::Clock;
use crate::control::{self, Already, Command};
use crate::events::Events;
use crate::health::Health;
use crate::notify::Notify;
use crate::pid_file::PidFile;
use crate::probes::{Learned, Probes, Wakes};
use crate::reading::{Begun, Files, Reading, Reply};
use crate::recoveries::Recoveries;
use crate::reload::{ReloadError, Reloader};
use crate::sampler;
use crate::senders::Senders;
use crate::signals::{Asked, Signals};
use crate::stopping::{Step, Stopping};
use crate::view::View;
use crate::vocabulary::Words;
use crate::{drain, files, http, inherited, mock_secret, pcp, specs, status_file};

/// How long the start waits for the nodes' first answers before clients are let in. With a node that does not answer
/// it takes that long.
const FIRST_ANSWERS: Duration = Duration::from_millis(1500);

/// How often the counts are looked at.
const LOOK_AT_COUNTS: Duration = Duration::from_secs(10);

/// Runs until a signal or the console ends it.
///
/// # Errors
/// The configuration is refused, another pgweir runs, or something cannot be started.
pub(crate) fn run(file: &Path) -> Result<ExitCode, Failure> {
    let clock = Clock::start();
    let inherited = inherited::take()?;
    let config = load(file)?;
    let logging = logging::init(&specs::logging(&config))?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let pid_file = config.pid_file.as_deref().map(PidFile::create).transpose()?;
    let file_limit = files::raise_limit();
    files::compare(specs::files(&config), file_limit);
    let notify = Notify::from_env()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let tasks = Tasks::new(tokio::runtime::Handle::current());
        let signals = Signals::new().context("cannot take over the signals")?;
        let start = Start { clock, file, file_limit, logging, tasks, notify };
        let mut supervisor = start.start(config, signals, inherited).await?;
        supervisor.serve().await;
        supervisor.proxy.stop();
        tracing::info!("pgweir has ended");
        Ok::<(), anyhow::Error>(())
    })?;
    drop(pid_file);
    // What the runtime still has (checks under way, HTTP connections) is not waited for.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

/// What the start has to begin with.
struct Start<'a> {
    clock: Clock,
    file: &'a Path,
    file_limit: Option<u64>,
    logging: Logging,
    tasks: Tasks,
    notify: Notify,
}

/// What the parts share.
struct Shared {
    config: Published<Config>,
    tls: Published<TlsSetup>,
    topology: Published<Topology>,
    reports: Published<Vec<NodeReport>>,
    state: Published<ProcessState>,
    metrics: Arc<Metrics>,
    proxy: Arc<OnceLock<Arc<Proxy>>>,
    freshness: Published<Freshness>,
    events: Events,
    health: Health,
    senders: Senders,
    wish: sampler::Wish,
    capacities: Arc<Capacities>,
    hints: Published<Hint>,
    recoveries: Published<Recoveries>,
}

impl Shared {
    /// At the start nothing is known but the configuration.
    fn new(config: Config, tls: TlsSetup, core: &Core, metrics: Arc<Metrics>) -> Self {
        Self {
            topology: Published::new(core.topology().clone()),
            reports: Published::new(core.reports()),
            state: Published::new(ProcessState::Active),
            proxy: Arc::default(),
            freshness: Published::new(Freshness::default()),
            wish: Arc::default(),
            events: Events::default(),
            health: Health::default(),
            senders: Senders::default(),
            capacities: Arc::default(),
            hints: Published::new(core.hint()),
            recoveries: Published::default(),
            config: Published::new(config),
            tls: Published::new(tls),
            metrics,
        }
    }

    fn snapshots(&self) -> control::Snapshots {
        control::Snapshots {
            topology: self.topology.clone(),
            config: self.config.clone(),
            recoveries: self.recoveries.clone(),
        }
    }

    fn learned(&self) -> Learned {
        Learned {
            health: self.health.clone(),
            senders: self.senders.clone(),
            capacities: Arc::clone(&self.capacities),
        }
    }
}

impl Start<'_> {
    async fn start(
        self,
        config: Config,
        signals: Signals,
        inherited: Vec<Inherited>,
    ) -> anyhow::Result<Supervisor> {
        tracing::info!(version = env!("CARGO_PKG_VERSION"), file = %self.file.display(), "pgweir starts");
        let metrics = Arc::new(Metrics::new(&Words::new().vocabulary(), self.clock.started_at())?);
        metrics.set_nodes(&specs::labels(&config))?;
        let hint = config.status_file.as_deref().map(status_file::read).unwrap_or_default();
        let core = Core::new(specs::settings(&config), specs::nodes(&config), self.clock.now());
        let core = core.with_hint(&hint);
        let tls = TlsSetup::build(&config)?;
        let probe_specs = specs::probes(&config, &tls.nodes);
        let shared = Shared::new(config, tls, &core, metrics);
        let wakes = Wakes::default();
        let cluster = self.start_cluster(core, &shared, wakes.clone())?;
        let mut probes =
            Probes::new(self.tasks.clone(), wakes, cluster.clone(), self.clock, shared.learned());
        probes.start(probe_specs);
        self.start_sampler(&shared);
        first_answers(&shared.topology).await;

        let (control, commands) =
            control::channel(Arc::clone(&shared.proxy), cluster.clone(), shared.snapshots());
        let view: Arc<dyn AdminView> = Arc::new(self.view(&shared));
        self.keep_averages(&view);
        http::start(&shared.config.load(), &self.tasks, &view, &shared.metrics).await?;
        let console = AdminConsole::new(Arc::clone(&view), Arc::new(control));
        pcp::start(&shared.config.load(), &self.tasks, &view, &console).await?;
        let proxy = self.start_proxy(&shared, (&cluster, console), inherited)?;
        self.notify.keep(&self.tasks, view, Arc::clone(&shared.proxy));
        drain::start(&self.tasks, shared.topology.clone(), Arc::clone(&shared.proxy), cluster.clone());
        let reloader = Reloader {
            file: self.file.to_owned(),
            config: shared.config.clone(),
            tls: shared.tls.clone(),
            logging: self.logging,
            metrics: shared.metrics,
            events: shared.events,
            cluster,
            probes,
            proxy: Arc::clone(&proxy),
            file_limit: self.file_limit,
        };
        let stopping = Stopping::default();
        tracing::info!("pgweir is ready");
        self.notify.ready();
        Ok(Supervisor {
            clock: self.clock,
            signals,
            commands,
            reloader,
            proxy,
            stopping,
            state: shared.state,
            notify: self.notify,
            reading: Reading::default(),
        })
    }

    fn start_cluster(&self, core: Core, shared: &Shared, wakes: Wakes) -> anyhow::Result<Cluster> {
        let outlets = Outlets {
            topology: shared.topology.clone(),
            reports: shared.reports.clone(),
            wakes,
            config: shared.config.clone(),
            tls: shared.tls.clone(),
            tasks: self.tasks.clone(),
            metrics: Arc::clone(&shared.metrics),
            clock: self.clock,
            events: shared.events.clone(),
            hints: shared.hints.clone(),
            recoveries: shared.recoveries.clone(),
        };
        if let Some(path) = shared.config.load().status_file.clone() {
            status_file::keep(&self.tasks, path, shared.hints.clone());
        }
        Cluster::start(core, outlets).context("cannot start the cluster's thread")
    }

    fn start_sampler(&self, shared: &Shared) {
        sampler::start(sampler::Inlets {
            clock: self.clock,
            tasks: self.tasks.clone(),
            config: shared.config.clone(),
            tls: shared.tls.clone(),
            topology: shared.topology.clone(),
            freshness: shared.freshness.clone(),
            metrics: Arc::clone(&shared.metrics),
            wish: Arc::clone(&shared.wish),
        });
    }

    /// Somebody looks at the counts often enough for the averages, even when nobody asks for them.
    fn keep_averages(&self, view: &Arc<dyn AdminView>) {
        let view = Arc::clone(view);
        self.tasks.spawn("averages", async move {
            loop {
                tokio::time::sleep(LOOK_AT_COUNTS).await;
                view.stats();
            }
        });
    }

    fn view(&self, shared: &Shared) -> View {
        View {
            clock: self.clock,
            config: shared.config.clone(),
            topology: shared.topology.clone(),
            freshness: shared.freshness.clone(),
            reports: shared.reports.clone(),
            state: shared.state.clone(),
            metrics: Arc::clone(&shared.metrics),
            proxy: Arc::clone(&shared.proxy),
            events: shared.events.clone(),
            health: shared.health.clone(),
            senders: shared.senders.clone(),
            recoveries: shared.recoveries.clone(),
            averages: Arc::new(Averages::new(self.clock.started())),
        }
    }

    fn start_proxy(
        &self,
        shared: &Shared,
        (cluster, console): (&Cluster, AdminConsole),
        inherited: Vec<Inherited>,
    ) -> anyhow::Result<Arc<Proxy>> {
        let cluster = cluster.clone();
        let deps = Deps {
            mock_secret: mock_secret::of_this_machine(),
            config: shared.config.clone(),
            tls: shared.tls.clone(),
            topology: shared.topology.clone(),
            console: Arc::new(console),
            observe: Arc::new(move |observation| cluster.observe(observation)),
            metrics: Arc::clone(&shared.metrics),
            capacities: Arc::clone(&shared.capacities),
            started: self.clock.started(),
            freshness: shared.freshness.clone(),
            want_fresh: sampler::wish(&shared.wish),
        };
        let proxy = Proxy::start(deps, &self.tasks, inherited)?;
        // Set once, here: the start happens once.
        let _ = shared.proxy.set(Arc::clone(&proxy));
        Ok(proxy)
    }
}

/// Whoever asked for a reload may be gone by the time of the answer.
fn answer(reply: Reply, outcome: Result<String, ReloadError>) {
    if let Some(reply) = reply {
        let _ = reply.send(outcome);
    }
}

/// Waits until there is a primary, or every node was heard of.
async fn first_answers(topology: &Published<Topology>) {
    let mut changes = topology.changes();
    let heard = |topology: &Topology| {
        topology.primary.is_some() || topology.nodes.iter().all(|node| node.state != NodeState::Waiting)
    };
    let settled = async {
        while !heard(&topology.load()) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    };
    if tokio::time::timeout(FIRST_ANSWERS, settled).await.is_err() {
        tracing::warn!(
            "not every node has answered yet, and there is no primary; clients are let in all the same"
        );
    }
}

/// The running pgweir.
struct Supervisor {
    clock: Clock,
    signals: Signals,
    commands: mpsc::Receiver<Command>,
    reloader: Reloader,
    proxy: Arc<Proxy>,
    stopping: Stopping,
    state: Published<ProcessState>,
    notify: Notify,
    reading: Reading,
}

/// What woke the supervisor.
enum Woken {
    Read(Reply, Box<Result<Files, ReloadError>>),
    Signal(Asked),
    Command(Command),
    Drained,
    Late,
}

impl Supervisor {
    /// Serves until the end has come.
    async fn serve(&mut self) {
        while self.stopping.mode() != Some(Shutdown::Immediate) {
            match self.wait().await {
                Woken::Signal(asked) => self.signal(asked).await,
                Woken::Command(command) => self.command(command).await,
                Woken::Read(reply, read) => self.reload(reply, *read).await,
                Woken::Drained => return,
                Woken::Late => {
                    let step = self.stopping.escalate(self.clock.now());
                    tracing::warn!("sessions are still there; the stop becomes stricter");
                    self.take(step);
                }
            }
        }
    }

    async fn wait(&mut self) -> Woken {
        let timeout = self.reloader.config.load().shutdown_timeout;
        let deadline = self.stopping.deadline(timeout);
        let left = deadline.map(|deadline| deadline.0.saturating_sub(self.clock.now().0));
        let ending = self.stopping.mode().is_some();
        let limited = deadline.is_some();
        tokio::select! {
            asked = self.signals.next() => Woken::Signal(asked),
            Some(command) = self.commands.recv() => Woken::Command(command),
            (reply, read) = self.reading.done() => Woken::Read(reply, Box::new(read)),
            () = self.proxy.drained(), if ending => Woken::Drained,
            () = tokio::time::sleep(left.unwrap_or_default()), if limited => Woken::Late,
        }
    }

    async fn signal(&mut self, asked: Asked) {
        let now = self.clock.now();
        let step = match asked {
            Asked::Terminate => self.stopping.terminate(now),
            Asked::Fast => self.stopping.ask(Shutdown::Fast, now),
            Asked::Immediate => self.stopping.ask(Shutdown::Immediate, now),
            Asked::Reload => {
                // Told in the log and the metrics.
                self.ask_to_reload(None).await;
                Step::Nothing
            }
            Asked::ReopenLogs => {
                if let Err(error) = self.reloader.logging.reopen() {
                    tracing::error!(%error, "cannot reopen the log");
                    self.reloader.events.process("log", "kept", error.to_string());
                }
                Step::Nothing
            }
            Asked::Resume => {
                tracing::warn!("SIGUSR2 is ignored; RESUME in the console ends a pause");
                Step::Nothing
            }
        };
        self.take(step);
    }

    /// The files are read, now or behind those who asked before.
    async fn ask_to_reload(&mut self, reply: Reply) {
        self.reading.ask(reply);
        self.read_on().await;
    }

    /// Begins to read for whoever is next, and tells the service manager so.
    async fn read_on(&mut self) {
        loop {
            match self.reading.begin(&self.reloader.file) {
                Begun::Nothing => return,
                Begun::Reading => return self.notify.reloading(),
                Begun::Blocked(reply) => {
                    let refused = self.reloader.reload(Err(ReloadError::Blocked)).await;
                    answer(reply, refused);
                }
            }
        }
    }

    /// Reloads with what was read, and tells the service manager that this has ended.
    async fn reload(&mut self, reply: Reply, read: Result<Files, ReloadError>) {
        let outcome = self.reloader.reload(read).await;
        self.notify.reloaded(outcome.is_ok());
        answer(reply, outcome);
        self.read_on().await;
    }

    async fn command(&mut self, command: Command) {
        match command {
            // Whoever asked may be gone by the time of the answer, here and below.
            Command::Reload(reply) => self.ask_to_reload(Some(reply)).await,
            Command::Set { key, value, reply } => {
                let _ = reply.send(self.reloader.set(key, value).await);
            }
            Command::ReopenLogs(reply) => {
                let _ = reply.send(self.reloader.logging.reopen());
            }
            Command::Shutdown(mode, reply) => {
                let step = self.stopping.ask(mode, self.clock.now());
                let outcome = if step == Step::Nothing { Err(Already) } else { Ok(()) };
                let _ = reply.send(outcome);
                self.take(step);
            }
        }
    }

    fn take(&self, step: Step) {
        let Step::Begin(mode) = step else { return };
        let (mode, word) = match mode {
            Shutdown::Patient => (ShutdownMode::Patient, "patient"),
            Shutdown::Smart => (ShutdownMode::Smart, "smart"),
            Shutdown::Fast => (ShutdownMode::Fast, "fast"),
            Shutdown::Immediate => (ShutdownMode::Immediate, "immediate"),
        };
        tracing::info!(mode = word, "pgweir stops");
        self.reloader.events.process("stop", word, "");
        self.state.publish(ProcessState::Stopping);
        self.notify.stopping(word, self.reloader.config.load().shutdown_timeout);
        self.proxy.shutdown(mode);
    }
}
