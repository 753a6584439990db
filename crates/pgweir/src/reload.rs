//! Taking over a changed configuration: by SIGHUP, `pgweir reload` and RELOAD alike.
//!
//! Everything that can fail comes first; after it nothing is refused. A bad file changes nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cluster::Event;
use config::{Config, ConfigErrors, Plan};
use proxy::Proxy;
use proxy::tls::{TlsError, TlsSetup};
use telemetry::logging::{Logging, LoggingError};
use telemetry::metrics::MetricsError;
use telemetry::{Metrics, Published};

use crate::actor::{Cluster, CommandError};
use crate::events::Events;
use crate::files;
use crate::probes::Probes;
use crate::reading::Files;
use crate::specs;

/// Pause before the cluster's thread is offered the new nodes again.
const OFFER_AGAIN: Duration = Duration::from_millis(10);

/// Why a reload changed nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReloadError {
    /// The file is refused.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// SET of a key that only a start reads.
    #[error("\"{0}\" needs a restart")]
    NeedsRestart(String),
    /// The log cannot be changed.
    #[error(transparent)]
    Logging(#[from] LoggingError),
    /// A certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The files do not open, or do not end.
    #[error("the configuration's files could not be read within {} s: is one of them a pipe, or on a file system that hangs?", .0.as_secs())]
    Slow(Duration),
    /// An earlier reading has not ended.
    #[error("an earlier reload is still blocked on a file that does not open or end")]
    Blocked,
    /// The thread that read them panicked.
    #[error("the configuration's files could not be read; the log says why")]
    Reader,
    /// The nodes' metrics cannot be made.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
}

/// What a reload reaches.
pub(crate) struct Reloader {
    pub(crate) file: PathBuf,
    pub(crate) config: Published<Config>,
    pub(crate) tls: Published<TlsSetup>,
    pub(crate) logging: Logging,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) events: Events,
    pub(crate) cluster: Cluster,
    pub(crate) probes: Probes,
    pub(crate) proxy: Arc<Proxy>,
    /// The limit of open files.
    pub(crate) file_limit: Option<u64>,
}

impl Reloader {
    /// Applies what was read of the files; the answer is the plan in words.
    ///
    /// # Errors
    /// Why nothing has changed.
    pub(crate) async fn reload(&mut self, read: Result<Files, ReloadError>) -> Result<String, ReloadError> {
        let plan = match read {
            Ok(Files { config, tls }) => self.apply(config, tls).await,
            Err(error) => Err(error),
        };
        match plan {
            Ok(plan) => {
                self.metrics.reloads_ok.inc();
                log_plan(&plan);
                let words = plan.to_string().replace('\n', "; ");
                self.events.process("reload", words, "");
                Ok(plan.to_string())
            }
            Err(error) => {
                self.metrics.reloads_failed.inc();
                tracing::error!(file = %self.file.display(), %error, "reload refused, nothing has changed");
                self.events.process("reload", "refused", error.to_string());
                Err(error)
            }
        }
    }

    /// Changes one key until the next reload.
    ///
    /// # Errors
    /// Why nothing has changed.
    pub(crate) async fn set(&mut self, key: String, value: String) -> Result<String, ReloadError> {
        let running = self.config.load();
        if config::KEYS.iter().any(|known| known.name == key && known.effect == config::Effect::Restart) {
            return Err(ReloadError::NeedsRestart(key));
        }
        let config = running.with(&[(&key, &value)], "SET")?;
        let tls = TlsSetup::build(&config)?;
        let plan = self.apply(config, tls).await?;
        log_plan(&plan);
        self.events.process("set", plan.to_string(), "");
        Ok(plan.to_string())
    }

    async fn apply(&mut self, mut config: Config, tls: TlsSetup) -> Result<Plan, ReloadError> {
        let running = self.config.load();
        let plan = Plan::between(&running, &config);
        config.keep_restart_keys(&running);
        self.metrics.set_nodes(&specs::labels(&config))?;
        self.logging.apply(&specs::logging(&config))?;
        // Nothing is refused from here on.
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        files::compare(specs::files(&config), self.file_limit);
        self.commit(config, tls, &running).await;
        Ok(plan)
    }

    /// The probes stop before the nodes change and start after: no report is about another node than it says.
    async fn commit(&mut self, config: Config, tls: TlsSetup, running: &Config) {
        let probes = specs::probes(&config, &tls.nodes);
        let (nodes, settings) = (specs::nodes(&config), specs::settings(&config));
        let nodes_change = nodes != specs::nodes(running) || settings != specs::settings(running);
        let probes_change = !self.probes.are(&probes);
        if probes_change || nodes_change {
            self.probes.stop().await;
        }
        self.tls.publish(tls);
        self.config.publish(config);
        if nodes_change {
            let event = Event::NodesChanged { nodes, settings };
            while let Err(CommandError::Busy) = self.cluster.command(event.clone()).await {
                tokio::time::sleep(OFFER_AGAIN).await;
            }
        }
        if probes_change || nodes_change {
            self.probes.start(probes);
        }
        self.proxy.config_changed();
    }
}

fn log_plan(plan: &Plan) {
    tracing::info!(changed = plan.changed.len(), nodes = plan.nodes.len(), "configuration reloaded");
    for change in &plan.changed {
        tracing::info!(key = change.key, old = %change.old, new = %change.new, "setting changed");
    }
    for change in &plan.nodes {
        tracing::info!("{change}");
    }
    for (what, changed) in [("pool_passwd", plan.secrets), ("pool_hba_file", plan.hba)] {
        if changed {
            tracing::info!(key = what, "file content changed");
        }
    }
    for change in &plan.refused {
        let key = change.key;
        tracing::warn!(key, old = %change.old, new = %change.new, "needs a restart; the old value is kept");
    }
}
