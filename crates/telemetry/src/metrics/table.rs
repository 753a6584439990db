//! The one table of metrics. The registry, docs/metrics.md and the tests are made from it.
//!
//! Names follow the Prometheus conventions: `pgweir_` prefix, base units, `_total` on counters. The nouns
//! are those of SHOW and the logs: client, backend, node, statement, pin, reason.

/// What a metric is to Prometheus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only rises while the process lives.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Counts of observations in buckets, with their sum.
    Histogram,
}

impl MetricKind {
    /// The word of the exposition format.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One metric family.
#[derive(Debug, Clone, Copy)]
pub struct MetricRow {
    /// The full name, with prefix and unit.
    pub name: &'static str,
    /// What it is.
    pub kind: MetricKind,
    /// One sentence for `# HELP` and docs/metrics.md.
    pub help: &'static str,
    /// Label names, in the order in which the values are given.
    pub labels: &'static [&'static str],
}

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> MetricRow {
    MetricRow { name, kind: MetricKind::Counter, help, labels }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> MetricRow {
    MetricRow { name, kind: MetricKind::Gauge, help, labels }
}

const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> MetricRow {
    MetricRow { name, kind: MetricKind::Histogram, help, labels }
}

/// Every metric of pgweir.
pub const METRICS: &[MetricRow] = &[
    gauge("pgweir_build_info", &["version"], "Always 1; the version is in the label."),
    gauge("pgweir_start_time_seconds", &[], "When the process started, in seconds since the Unix epoch."),
    gauge("pgweir_clients", &[], "Client connections now, those that still log in included."),
    counter("pgweir_client_connections_total", &[], "Client connections accepted."),
    counter(
        "pgweir_login_failures_total",
        &["reason"],
        "Client connections that ended before they were let in.",
    ),
    counter("pgweir_client_received_bytes_total", &[], "Bytes received from clients."),
    counter("pgweir_client_sent_bytes_total", &[], "Bytes sent to clients."),
    counter("pgweir_cancel_requests_total", &[], "Cancel requests received."),
    counter(
        "pgweir_errors_total",
        &["class"],
        "Errors sent to clients, by the first two characters of the SQLSTATE.",
    ),
    counter("pgweir_transactions_total", &[], "Transactions ended, statements outside of a block included."),
    counter("pgweir_statements_total", &["node", "kind"], "Statements sent to a node, by what they do."),
    counter(
        "pgweir_statements_routed_total",
        &["node", "reason"],
        "Statements sent to a node, by the reason for which it was chosen.",
    ),
    histogram(
        "pgweir_statement_seconds",
        &["node", "route"],
        "How long the node took from the statement, or batch, to its ReadyForQuery, by where it was to go.",
    ),
    counter("pgweir_pins_total", &["reason"], "Sessions pinned to their backend."),
    counter("pgweir_verdict_cache_hits_total", &[], "Statements whose classification was remembered."),
    counter("pgweir_verdict_cache_misses_total", &[], "Statements that had to be classified."),
    gauge("pgweir_backends", &["node", "state"], "Connections to a node now."),
    counter("pgweir_backend_connects_total", &["node"], "Connections to a node that were begun."),
    histogram(
        "pgweir_backend_connect_seconds",
        &["node"],
        "How long connecting to a node and logging in took.",
    ),
    counter(
        "pgweir_backend_connect_failures_total",
        &["node", "reason"],
        "Connections to a node that could not be made.",
    ),
    counter("pgweir_backend_received_bytes_total", &["node"], "Bytes received from a node."),
    counter("pgweir_backend_sent_bytes_total", &["node"], "Bytes sent to a node."),
    counter(
        "pgweir_node_errors_total",
        &["node", "severity"],
        "Errors that a node answered with: error, fatal or panic.",
    ),
    histogram("pgweir_backend_wait_seconds", &[], "How long a session waited for a backend."),
    counter(
        "pgweir_query_wait_timeouts_total",
        &[],
        "Sessions that were refused because no backend came free within query_wait_timeout.",
    ),
    counter(
        "pgweir_health_checks_total",
        &["node", "result"],
        "Health checks of a node by what came of them; rejected and not_ready are answers, and no failover.",
    ),
    gauge("pgweir_node_info", &["node", "hostname", "port"], "Always 1; where the node of that id is."),
    gauge("pgweir_node_up", &["node"], "1 when the node may be used, else 0."),
    gauge("pgweir_node_role", &["node", "role"], "1 for the role that the node has now, 0 for the others."),
    gauge(
        "pgweir_node_fresh_as_of_seconds",
        &["node"],
        "Up to when the standby is known to show everything, in seconds since the Unix epoch; 0 when not known.",
    ),
    gauge(
        "pgweir_node_replication_lag_bytes",
        &["node"],
        "WAL that the standby had not replayed when it was asked last, measured by the primary's position.",
    ),
    gauge(
        "pgweir_node_replication_lag_seconds",
        &["node"],
        "How long before that the primary had written what the standby was to replay next; 0 when there was nothing.",
    ),
    counter(
        "pgweir_failover_holds_total",
        &[],
        "Transactions that waited before their beginning because the node they need was lost.",
    ),
    gauge("pgweir_node_replay_lag_bytes", &["node"], "WAL that the standby has not replayed yet."),
    gauge("pgweir_node_fresh_age_seconds", &["node"], "How old what the standby is known to show is."),
    counter(
        "pgweir_primary_changes_total",
        &[],
        "Times that writes went to another node, or found a primary again.",
    ),
    histogram(
        "pgweir_failover_seconds",
        &[],
        "How long there was no primary, each time that there was one again.",
    ),
    gauge("pgweir_client_sessions", &["state"], "Client sessions now, by what they do."),
    counter(
        "pgweir_session_state_questions_total",
        &["found"],
        "Times that a backend was asked what statements had left on it unseen, by what it told.",
    ),
    gauge("pgweir_pinned_clients", &["reason"], "Sessions that are held to their backend now."),
    gauge("pgweir_pool_size", &["node", "database", "user"], "Most backends that the pool may have."),
    gauge("pgweir_pool_backends", &["node", "database", "user", "state"], "Backends of the pool now."),
    gauge(
        "pgweir_pool_waiting_clients",
        &["node", "database", "user"],
        "Clients that wait for a backend of the pool.",
    ),
    gauge(
        "pgweir_pool_longest_wait_seconds",
        &["node", "database", "user"],
        "How long the first of them has waited.",
    ),
    counter("pgweir_database_transactions_total", &["database"], "Transactions of the database's clients."),
    counter(
        "pgweir_database_queries_total",
        &["database"],
        "Queries of the database's clients, batches up to Sync.",
    ),
    counter("pgweir_database_errors_total", &["database"], "Errors that the database's clients were told."),
    counter("pgweir_database_received_bytes_total", &["database"], "Bytes from the database's clients."),
    counter("pgweir_database_sent_bytes_total", &["database"], "Bytes to the database's clients."),
    counter("pgweir_database_assignments_total", &["database"], "Backends given to the database's clients."),
    counter(
        "pgweir_database_transaction_seconds_total",
        &["database"],
        "Time that transactions had a backend.",
    ),
    counter("pgweir_database_query_seconds_total", &["database"], "Time that nodes worked on queries."),
    counter("pgweir_database_wait_seconds_total", &["database"], "Time that clients waited for a backend."),
    gauge("pgweir_memory_bytes", &["use"], "Memory of the process, and of its known parts."),
    gauge("pgweir_paused", &[], "1 while all databases are paused, else 0."),
    gauge("pgweir_topology_epoch", &[], "Counts the changes of the nodes' roles and states."),
    counter(
        "pgweir_observations_dropped_total",
        &[],
        "Reports about nodes that were dropped because the health checker was behind.",
    ),
    gauge("pgweir_workers_used", &[], "Workers that clients are served by; more are used as these get busy."),
    counter("pgweir_sessions_moved_total", &[], "Sessions that went on with another worker."),
    counter("pgweir_config_reloads_total", &["result"], "Reloads of the configuration: ok or failed."),
];

/// docs/metrics.md, made from [`METRICS`].
#[must_use]
pub fn markdown() -> String {
    let mut out = String::from(
        "# Metrics\n\n\
         Served at `/metrics` of `metrics_listen` (port 9719) in the Prometheus text format. This page is made from\n\
         the table in `crates/telemetry/src/metrics/table.rs`; a test keeps the two equal.\n\n\
         Every family is present from the start. `node` is the node's id, its position in `backends` as in\n\
         `SHOW POOL_NODES`; `pgweir_node_info` says where that node is. Counters never fall while the process lives.\n\n\
         | metric | type | labels | |\n|---|---|---|---|\n",
    );
    for row in METRICS {
        let labels = row.labels.join(", ");
        out.push_str(&format!("| `{}` | {} | {labels} | {} |\n", row.name, row.kind.as_str(), row.help));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        for row in METRICS {
            assert!(row.name.starts_with("pgweir_"), "{}", row.name);
            assert!(row.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{}", row.name);
            assert_eq!(row.kind == MetricKind::Counter, row.name.ends_with("_total"), "{}", row.name);
            assert!(row.help.ends_with('.') && !row.help.contains('|'), "{}", row.name);
            let same = METRICS.iter().filter(|other| other.name == row.name).count();
            assert_eq!(same, 1, "{} stands twice", row.name);
        }
    }

    #[test]
    fn docs_are_made_from_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        if std::env::var_os("PGWEIR_WRITE_DOCS").is_some() {
            std::fs::write(path, markdown()).unwrap();
        }
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text == markdown(), "docs/metrics.md differs: run this test with PGWEIR_WRITE_DOCS=1");
    }
}
