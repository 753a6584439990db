//! The process's metrics: one registry, no global, handles resolved once.
//!
//! Invariants: the data path touches atomics only (the handles in [`Metrics`] and [`NodeMetrics`]), never a
//! label lookup; every family of [`METRICS`] is in every answer, from the start; no label value is empty; a
//! counter never falls while the process lives, also when its node leaves the configuration.
//!
//! The words behind `reason` and `role` belong to other crates and are given at construction
//! ([`Vocabulary`]); a handle is then found by the word's position.

mod latency;
mod nodes;
mod samples;
mod sets;
mod table;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
};
use prometheus::{Opts, Registry, TextEncoder};

pub use latency::{Latency, Route};
use nodes::NodeFamilies;
pub use nodes::{BackendState, Kind, NodeLabel, NodeMetrics, Severity};
pub use samples::Sample;
pub use sets::{CounterSet, ErrorClasses, GaugeSet};
pub use table::{METRICS, MetricKind, MetricRow, markdown};

/// Content type of what [`Metrics::encode`] returns.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Bounds of `pgweir_backend_wait_seconds`: from a hand-over between tasks to query_wait_timeout's default.
const WAIT_BUCKETS: &[f64] = &[0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0];

/// Bounds of `pgweir_failover_seconds`.
const FAILOVER_BUCKETS: &[f64] = &[0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 300.0];

/// Why the metrics could not be set up; each is a fault in the table, not in the environment.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The name is not in [`METRICS`].
    #[error("no metric is called {0}")]
    Unknown(&'static str),
    /// A label value would be empty.
    #[error("empty label value for {0}")]
    EmptyLabel(&'static str),
    /// The client library refuses it.
    #[error("metrics: {0}")]
    Prometheus(#[from] prometheus::Error),
}

/// The words of other crates that become label values, each list in the order of the enum it comes from.
#[derive(Debug, Clone, Copy)]
pub struct Vocabulary<'a> {
    /// pgweir's version.
    pub version: &'a str,
    /// Why a statement went where it went (`router::Reason::ALL`).
    pub route_reasons: &'a [&'static str],
    /// Why a session was pinned.
    pub pin_reasons: &'a [&'static str],
    /// Why a client was not let in.
    pub login_failures: &'a [&'static str],
    /// Why a connection to a node could not be made (`cluster::ConnectFailure`).
    pub connect_failures: &'a [&'static str],
    /// What a node can be (`cluster::Role`).
    pub roles: &'a [&'static str],
}

/// All metrics of the process. Share it as `Arc<Metrics>`; the handles are atomics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    node_families: NodeFamilies,
    nodes: Mutex<Vec<Arc<NodeMetrics>>>,
    /// Clients now.
    pub clients: IntGauge,
    /// Clients accepted.
    pub client_connections: IntCounter,
    /// Clients not let in, by position in [`Vocabulary::login_failures`].
    pub login_failures: CounterSet,
    /// Bytes from clients.
    pub client_received_bytes: IntCounter,
    /// Bytes to clients.
    pub client_sent_bytes: IntCounter,
    /// Cancel requests.
    pub cancel_requests: IntCounter,
    /// Errors sent to clients.
    pub errors: ErrorClasses,
    /// Transactions ended.
    pub transactions: IntCounter,
    /// Sessions pinned, by position in [`Vocabulary::pin_reasons`].
    pub pins: CounterSet,
    /// Classifications remembered.
    pub verdict_cache_hits: IntCounter,
    /// Classifications made.
    pub verdict_cache_misses: IntCounter,
    /// Seconds that sessions which found no free backend waited.
    pub backend_wait: Histogram,
    /// Waits that ended with query_wait_timeout.
    pub query_wait_timeouts: IntCounter,
    /// Questions for what statements had left on a backend, by [`Told::position`].
    pub state_questions: CounterSet,
    /// Units of work that waited for a node because theirs was lost.
    pub failover_holds: IntCounter,
    /// The topology's epoch.
    pub topology_epoch: IntGauge,
    /// Observations that the cluster's channel did not take.
    pub observations_dropped: IntCounter,
    /// Times that writes went to another node, or found one again.
    pub primary_changes: IntCounter,
    /// Seconds without a primary, each time that there was one again.
    pub failover: Histogram,
    /// Workers that sessions are moved to as they get busy.
    pub workers_used: IntGauge,
    /// Sessions that went on with another worker.
    pub sessions_moved: IntCounter,
    /// Reloads that were applied.
    pub reloads_ok: IntCounter,
    /// Reloads that were refused.
    pub reloads_failed: IntCounter,
}

/// What a backend told that was asked what statements had left on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Told {
    /// Nothing.
    Nothing,
    /// Settings of the client's.
    Settings,
    /// State that cannot be moved.
    State,
    /// It did not tell, and was closed.
    NoAnswer,
}

impl Told {
    /// The words, by [`Told::position`].
    pub const WORDS: &[&str] = &["nothing", "settings", "state", "no_answer"];

    /// The position of its word in [`Told::WORDS`].
    #[must_use]
    pub fn position(self) -> usize {
        self as usize
    }
}

impl Metrics {
    /// Registers every family of [`METRICS`]. `started` is when the process started.
    ///
    /// # Errors
    /// A word of `words` is empty or stands twice (a fault of the caller's table).
    pub fn new(words: &Vocabulary<'_>, started: SystemTime) -> Result<Self, MetricsError> {
        let families = Families { registry: Registry::new() };
        let build_info = families.gauges("pgweir_build_info")?;
        build_info.get_metric_with_label_values(&[words.version])?.set(1);
        let since_epoch = started.duration_since(UNIX_EPOCH).unwrap_or_default();
        families.plain_gauge("pgweir_start_time_seconds")?.set(since_epoch.as_secs_f64());
        let reloads = families.counters("pgweir_config_reloads_total")?;
        Ok(Self {
            clients: families.gauge("pgweir_clients")?,
            client_connections: families.counter("pgweir_client_connections_total")?,
            login_failures: families.set("pgweir_login_failures_total", words.login_failures)?,
            client_received_bytes: families.counter("pgweir_client_received_bytes_total")?,
            client_sent_bytes: families.counter("pgweir_client_sent_bytes_total")?,
            cancel_requests: families.counter("pgweir_cancel_requests_total")?,
            errors: ErrorClasses::new(&families.counters("pgweir_errors_total")?)?,
            transactions: families.counter("pgweir_transactions_total")?,
            pins: families.set("pgweir_pins_total", words.pin_reasons)?,
            verdict_cache_hits: families.counter("pgweir_verdict_cache_hits_total")?,
            verdict_cache_misses: families.counter("pgweir_verdict_cache_misses_total")?,
            backend_wait: families.histogram("pgweir_backend_wait_seconds", WAIT_BUCKETS)?,
            query_wait_timeouts: families.counter("pgweir_query_wait_timeouts_total")?,
            state_questions: families.set("pgweir_session_state_questions_total", Told::WORDS)?,
            failover_holds: families.counter("pgweir_failover_holds_total")?,
            topology_epoch: families.gauge("pgweir_topology_epoch")?,
            observations_dropped: families.counter("pgweir_observations_dropped_total")?,
            primary_changes: families.counter("pgweir_primary_changes_total")?,
            failover: families.histogram("pgweir_failover_seconds", FAILOVER_BUCKETS)?,
            workers_used: families.gauge("pgweir_workers_used")?,
            sessions_moved: families.counter("pgweir_sessions_moved_total")?,
            reloads_ok: reloads.get_metric_with_label_values(&["ok"])?,
            reloads_failed: reloads.get_metric_with_label_values(&["failed"])?,
            node_families: NodeFamilies::new(&families, words)?,
            nodes: Mutex::new(Vec::new()),
            registry: families.registry,
        })
    }

    /// Makes the handles of the configured nodes, in their order; nodes known already keep theirs. The gauges of
    /// nodes that are gone disappear, their counters stay. Called at start and by each reload.
    ///
    /// # Errors
    /// A host name is empty.
    pub fn set_nodes(&self, labels: &[NodeLabel]) -> Result<Vec<Arc<NodeMetrics>>, MetricsError> {
        let mut known = self.nodes.lock();
        let mut next = Vec::with_capacity(labels.len());
        for label in labels {
            let node = match known.iter().find(|node| node.label().id == label.id) {
                Some(node) if node.label() == label => Arc::clone(node),
                Some(node) => Arc::new(self.node_families.moved(node, label)?),
                None => Arc::new(self.node_families.node(label)?),
            };
            next.push(node);
        }
        for node in known.iter().filter(|node| !labels.iter().any(|label| label.id == node.label().id)) {
            self.node_families.forget(node);
        }
        known.clone_from(&next);
        Ok(next)
    }

    /// The handles of the configured nodes, in their order.
    #[must_use]
    pub fn nodes(&self) -> Vec<Arc<NodeMetrics>> {
        self.nodes.lock().clone()
    }

    /// As [`Metrics::encode_with`], with nothing beside the registered metrics.
    ///
    /// # Errors
    /// The same.
    pub fn encode(&self) -> Result<String, MetricsError> {
        self.encode_with(&[])
    }

    /// The text format, version 0.0.4, with `samples` in their families. Families that have no series now are there
    /// with their header.
    ///
    /// # Errors
    /// The client library cannot write a family; a fault in the table.
    pub fn encode_with(&self, samples: &[Sample]) -> Result<String, MetricsError> {
        let families = self.registry.gather();
        let mut text = String::new();
        TextEncoder::new().encode_utf8(&families, &mut text)?;
        let registered = |row: &&MetricRow| families.iter().any(|family| family.name() == row.name);
        for row in METRICS.iter().filter(|row| !registered(row)) {
            samples::write(&mut text, row, samples);
        }
        Ok(text)
    }
}

/// Makes families of the rows of the table and registers them.
struct Families {
    registry: Registry,
}

impl Families {
    fn row(name: &'static str) -> Result<&'static MetricRow, MetricsError> {
        METRICS.iter().find(|row| row.name == name).ok_or(MetricsError::Unknown(name))
    }

    fn registered<C: prometheus::core::Collector + Clone + 'static>(
        &self,
        made: C,
    ) -> Result<C, MetricsError> {
        self.registry.register(Box::new(made.clone()))?;
        Ok(made)
    }

    fn counter(&self, name: &'static str) -> Result<IntCounter, MetricsError> {
        let row = Self::row(name)?;
        self.registered(IntCounter::new(row.name, row.help)?)
    }

    fn counters(&self, name: &'static str) -> Result<IntCounterVec, MetricsError> {
        let row = Self::row(name)?;
        self.registered(IntCounterVec::new(Opts::new(row.name, row.help), row.labels)?)
    }

    fn set(&self, name: &'static str, words: &[&'static str]) -> Result<CounterSet, MetricsError> {
        CounterSet::new(name, &self.counters(name)?, &[], words)
    }

    fn gauge(&self, name: &'static str) -> Result<IntGauge, MetricsError> {
        let row = Self::row(name)?;
        self.registered(IntGauge::new(row.name, row.help)?)
    }

    fn plain_gauge(&self, name: &'static str) -> Result<Gauge, MetricsError> {
        let row = Self::row(name)?;
        self.registered(Gauge::new(row.name, row.help)?)
    }

    fn gauges(&self, name: &'static str) -> Result<IntGaugeVec, MetricsError> {
        let row = Self::row(name)?;
        self.registered(IntGaugeVec::new(Opts::new(row.name, row.help), row.labels)?)
    }

    fn plain_gauges(&self, name: &'static str) -> Result<GaugeVec, MetricsError> {
        let row = Self::row(name)?;
        self.registered(GaugeVec::new(Opts::new(row.name, row.help), row.labels)?)
    }

    fn histograms(&self, name: &'static str, buckets: &[f64]) -> Result<HistogramVec, MetricsError> {
        let row = Self::row(name)?;
        let opts = HistogramOpts::new(row.name, row.help).buckets(buckets.to_vec());
        self.registered(HistogramVec::new(opts, row.labels)?)
    }

    fn latency(&self, name: &'static str) -> Result<latency::LatencyFamily, MetricsError> {
        self.registered(latency::LatencyFamily::new(Self::row(name)?)?)
    }

    fn histogram(&self, name: &'static str, buckets: &[f64]) -> Result<Histogram, MetricsError> {
        let row = Self::row(name)?;
        let opts = HistogramOpts::new(row.name, row.help).buckets(buckets.to_vec());
        self.registered(Histogram::with_opts(opts)?)
    }
}

#[cfg(test)]
mod tests;
