//! The families that have a `node` label, and the handles of one node.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::core::{Atomic, GenericGaugeVec};
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
};

use super::latency::{Latency, LatencyFamily};
use super::{CounterSet, Families, GaugeSet, MetricsError, Vocabulary};

/// Bounds of `pgweir_backend_connect_seconds`.
const CONNECT_BUCKETS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// What a statement does; the columns of `SHOW POOL_BACKEND_STATS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// SELECT, TABLE, VALUES, WITH ... SELECT.
    Select,
    /// INSERT.
    Insert,
    /// UPDATE.
    Update,
    /// DELETE.
    Delete,
    /// CREATE, ALTER, DROP and the like.
    Ddl,
    /// Everything else.
    Other,
}

impl Kind {
    /// The words, by [`Kind::position`].
    pub const WORDS: &[&str] = &["select", "insert", "update", "delete", "ddl", "other"];

    /// The position of its word in [`Kind::WORDS`] and of its counter in [`NodeMetrics::statements`].
    #[must_use]
    pub fn position(self) -> usize {
        self as usize
    }
}

/// What a connection to a node is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BackendState {
    /// Connecting and logging in.
    Connecting,
    /// In the pool.
    Idle,
    /// On loan to a session.
    Active,
}

impl BackendState {
    /// The words, in the order of the variants.
    pub const WORDS: &[&str] = &["connecting", "idle", "active"];
}

/// How grave an error of a node is; FATAL and PANIC end the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// ERROR.
    Error,
    /// FATAL.
    Fatal,
    /// PANIC.
    Panic,
}

impl Severity {
    /// The words, in the order of the variants.
    pub const WORDS: &[&str] = &["error", "fatal", "panic"];
}

/// What identifies a node to the reader of the metrics.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeLabel {
    /// The node's id.
    pub id: u16,
    /// Host name, address or socket directory.
    pub hostname: String,
    /// TCP port.
    pub port: u16,
}

/// The handles of one node.
#[derive(Debug, Clone)]
pub struct NodeMetrics {
    label: NodeLabel,
    /// Statements sent, by [`Kind::position`].
    pub statements: CounterSet,
    /// Statements sent, by position in [`Vocabulary::route_reasons`].
    pub routed: CounterSet,
    /// Connections begun.
    pub connects: IntCounter,
    /// Connections failed, by position in [`Vocabulary::connect_failures`].
    pub connect_failures: CounterSet,
    /// Bytes from the node.
    pub received_bytes: IntCounter,
    /// Bytes to the node.
    pub sent_bytes: IntCounter,
    /// Seconds that connecting took, login included.
    pub connect_time: Histogram,
    /// How long its statements take.
    pub latency: Latency,
    /// 1 when it may be used.
    pub up: IntGauge,
    checks: CounterSet,
    errors: CounterSet,
    backends: GaugeSet,
    role: GaugeSet,
    fresh_as_of: Gauge,
    lag_bytes: IntGauge,
    lag_seconds: Gauge,
}

impl NodeMetrics {
    /// Whose handles these are.
    #[must_use]
    pub fn label(&self) -> &NodeLabel {
        &self.label
    }

    /// Counts a statement: what it does and why it came here.
    pub fn statement(&self, kind: Kind, reason: usize) {
        self.statements.inc(kind.position());
        self.routed.inc(reason);
    }

    /// Counts a health check: how it failed, by position in [`Vocabulary::connect_failures`], if it has.
    pub fn checked(&self, failure: Option<usize>) {
        self.checks.inc(failure.map_or(0, |position| position.saturating_add(1)));
    }

    /// Counts an error that the node answered with.
    pub fn error(&self, severity: Severity) {
        self.errors.inc(severity as usize);
    }

    /// How many errors of that severity the node answered with.
    #[must_use]
    pub fn errors(&self, severity: Severity) -> u64 {
        self.errors.get(severity as usize)
    }

    /// A connection has come into `to`, out of `from` when it is not new; `to` is none when it ended.
    pub fn backend_moved(&self, from: Option<BackendState>, to: Option<BackendState>) {
        if let Some(gauge) = from.and_then(|state| self.backends.get(state as usize)) {
            gauge.dec();
        }
        if let Some(gauge) = to.and_then(|state| self.backends.get(state as usize)) {
            gauge.inc();
        }
    }

    /// Connections in that state now.
    #[must_use]
    pub fn backends(&self, state: BackendState) -> i64 {
        self.backends.get(state as usize).map_or(0, IntGauge::get)
    }

    /// Shows up to when the node is known to show everything.
    pub fn set_fresh_as_of(&self, as_of: Option<SystemTime>) {
        let since_epoch = as_of.and_then(|as_of| as_of.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        self.fresh_as_of.set(since_epoch.as_secs_f64());
    }

    /// Shows how far the node is behind the primary; nothing when that is not known.
    pub fn set_lag(&self, lag: Option<(u64, Duration)>) {
        let (bytes, time) = lag.unwrap_or_default();
        self.lag_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.lag_seconds.set(time.as_secs_f64());
    }

    /// Shows `word` (one of [`Vocabulary::roles`]) as the node's role.
    pub fn set_role(&self, word: &str) {
        self.role.select(word);
    }
}

/// The families with a `node` label.
#[derive(Debug)]
pub(super) struct NodeFamilies {
    statements: IntCounterVec,
    routed: IntCounterVec,
    connects: IntCounterVec,
    connect_failures: IntCounterVec,
    received_bytes: IntCounterVec,
    sent_bytes: IntCounterVec,
    checks: IntCounterVec,
    errors: IntCounterVec,
    backends: IntGaugeVec,
    info: IntGaugeVec,
    up: IntGaugeVec,
    role: IntGaugeVec,
    fresh_as_of: GaugeVec,
    connect_time: HistogramVec,
    latency: LatencyFamily,
    lag_bytes: IntGaugeVec,
    lag_seconds: GaugeVec,
    route_reasons: Vec<&'static str>,
    connect_reasons: Vec<&'static str>,
    check_results: Vec<&'static str>,
    roles: Vec<&'static str>,
}

impl NodeFamilies {
    pub(super) fn new(families: &Families, words: &Vocabulary<'_>) -> Result<Self, MetricsError> {
        Ok(Self {
            statements: families.counters("pgweir_statements_total")?,
            routed: families.counters("pgweir_statements_routed_total")?,
            connects: families.counters("pgweir_backend_connects_total")?,
            connect_failures: families.counters("pgweir_backend_connect_failures_total")?,
            received_bytes: families.counters("pgweir_backend_received_bytes_total")?,
            sent_bytes: families.counters("pgweir_backend_sent_bytes_total")?,
            checks: families.counters("pgweir_health_checks_total")?,
            errors: families.counters("pgweir_node_errors_total")?,
            backends: families.gauges("pgweir_backends")?,
            info: families.gauges("pgweir_node_info")?,
            up: families.gauges("pgweir_node_up")?,
            role: families.gauges("pgweir_node_role")?,
            fresh_as_of: families.plain_gauges("pgweir_node_fresh_as_of_seconds")?,
            connect_time: families.histograms("pgweir_backend_connect_seconds", CONNECT_BUCKETS)?,
            latency: families.latency("pgweir_statement_seconds")?,
            lag_bytes: families.gauges("pgweir_node_replication_lag_bytes")?,
            lag_seconds: families.plain_gauges("pgweir_node_replication_lag_seconds")?,
            route_reasons: words.route_reasons.to_vec(),
            connect_reasons: words.connect_failures.to_vec(),
            check_results: ["ok"].into_iter().chain(words.connect_failures.iter().copied()).collect(),
            roles: words.roles.to_vec(),
        })
    }

    /// Makes the handles of a node, each series at its start value.
    pub(super) fn node(&self, label: &NodeLabel) -> Result<NodeMetrics, MetricsError> {
        let id = label.id.to_string();
        let node = [id.as_str()];
        self.show(label)?;
        Ok(NodeMetrics {
            statements: CounterSet::new("pgweir_statements_total", &self.statements, &node, Kind::WORDS)?,
            routed: CounterSet::new(
                "pgweir_statements_routed_total",
                &self.routed,
                &node,
                &self.route_reasons,
            )?,
            connects: self.connects.get_metric_with_label_values(&node)?,
            connect_failures: CounterSet::new(
                "pgweir_backend_connect_failures_total",
                &self.connect_failures,
                &node,
                &self.connect_reasons,
            )?,
            received_bytes: self.received_bytes.get_metric_with_label_values(&node)?,
            sent_bytes: self.sent_bytes.get_metric_with_label_values(&node)?,
            connect_time: self.connect_time.get_metric_with_label_values(&node)?,
            latency: self.latency.node(&id),
            up: self.up.get_metric_with_label_values(&node)?,
            checks: CounterSet::new("pgweir_health_checks_total", &self.checks, &node, &self.check_results)?,
            errors: CounterSet::new("pgweir_node_errors_total", &self.errors, &node, Severity::WORDS)?,
            backends: GaugeSet::new("pgweir_backends", &self.backends, &node, BackendState::WORDS)?,
            role: GaugeSet::new("pgweir_node_role", &self.role, &node, &self.roles)?,
            fresh_as_of: self.fresh_as_of.get_metric_with_label_values(&node)?,
            lag_bytes: self.lag_bytes.get_metric_with_label_values(&node)?,
            lag_seconds: self.lag_seconds.get_metric_with_label_values(&node)?,
            label: label.clone(),
        })
    }

    /// The same handles under another address.
    pub(super) fn moved(&self, node: &NodeMetrics, label: &NodeLabel) -> Result<NodeMetrics, MetricsError> {
        self.show(label)?;
        self.hide(node.label());
        Ok(NodeMetrics { label: label.clone(), ..node.clone() })
    }

    /// Takes the gauges of a node away that is no longer configured. Its counters stay: they never fall.
    pub(super) fn forget(&self, node: &NodeMetrics) {
        let id = node.label().id.to_string();
        self.hide(node.label());
        remove(&self.up, &[&id]);
        remove(&self.fresh_as_of, &[&id]);
        remove(&self.lag_bytes, &[&id]);
        remove(&self.lag_seconds, &[&id]);
        for word in BackendState::WORDS {
            remove(&self.backends, &[&id, word]);
        }
        for word in &self.roles {
            remove(&self.role, &[&id, word]);
        }
    }

    fn show(&self, label: &NodeLabel) -> Result<(), MetricsError> {
        if label.hostname.is_empty() {
            return Err(MetricsError::EmptyLabel("pgweir_node_info"));
        }
        let (id, port) = (label.id.to_string(), label.port.to_string());
        self.info.get_metric_with_label_values(&[id.as_str(), &label.hostname, &port])?.set(1);
        Ok(())
    }

    fn hide(&self, label: &NodeLabel) {
        remove(&self.info, &[&label.id.to_string(), &label.hostname, &label.port.to_string()]);
    }
}

/// Removes a series. That it is not there is no fault: the aim is reached.
fn remove<P: Atomic>(family: &GenericGaugeVec<P>, values: &[&str]) {
    if let Err(error) = family.remove_label_values(values) {
        tracing::debug!(%error, "series was not there");
    }
}
