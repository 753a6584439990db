//! From the configuration to what the cluster core, the probes, the log and the metrics need.

use std::sync::Arc;
use std::time::Duration;

use cluster::{
    CheckPolicy, Failback, FailoverSettings, FalsePrimary, NodeId, NodeSpec, OnFailure, Promoter, RoleSource,
    Settings,
};
use config::secrets::Secret;
use config::{Backend, BackendFlag, Config, FailoverMode, HealthCheck};
use proxy::connect::Keepalive;
use proxy::tls::NodeTls;
use telemetry::logging;
use telemetry::metrics::NodeLabel;

use crate::files::Need;

/// How long after the start a primary is not chosen while nodes have not reported.
const SETTLE: Duration = Duration::from_secs(1);
/// So many checks may go missing before that counts as one that timed out.
const MISSING_CHECKS: u32 = 3;

/// What one probe needs. Two equal ones need no restart of the probe.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ProbeSpec {
    pub(crate) node: NodeId,
    pub(crate) backend: Backend,
    pub(crate) check: HealthCheck,
    /// What to log in with; none when neither the configuration nor pool_passwd has it.
    pub(crate) secret: Option<Secret>,
    /// Where the nodes are, by id: a standby says by address whom it follows.
    pub(crate) peers: Arc<[(String, u16)]>,
    /// Time between two checks: roles are looked at as often as the faster of the two periods asks.
    pub(crate) period: Duration,
    /// How the kernel watches its connection.
    pub(crate) keepalive: Keepalive,
    /// Whether and how it is encrypted.
    pub(crate) tls: Arc<NodeTls>,
}

/// One for each node.
pub(crate) fn probes(config: &Config, tls: &Arc<NodeTls>) -> Vec<ProbeSpec> {
    let ids = (0..=u16::MAX).map(NodeId);
    let peers: Arc<[_]> =
        config.backends.iter().map(|backend| (backend.hostname.clone(), backend.port)).collect();
    let probe = |(node, backend)| probe(config, (tls, &peers), node, backend);
    ids.zip(&config.backends).filter_map(probe).collect()
}

/// Where the nodes are, by id.
type Peers = Arc<[(String, u16)]>;

fn probe(
    config: &Config,
    (tls, peers): (&Arc<NodeTls>, &Peers),
    node: NodeId,
    backend: &Backend,
) -> Option<ProbeSpec> {
    let check = config.health_check(node)?;
    let own = check.password.clone().map(Secret::Plain);
    Some(ProbeSpec {
        node,
        backend: backend.clone(),
        peers: Arc::clone(peers),
        secret: own.or_else(|| config.secrets.get(&check.user).cloned()),
        period: check.period.min(config.sr_check_period),
        keepalive: Keepalive::from(config),
        tls: Arc::clone(tls),
        check,
    })
}

/// How the sampler asks each node: as the health check, with the user and the database for replication.
pub(crate) fn sampling(config: &Config, tls: &Arc<NodeTls>) -> Vec<ProbeSpec> {
    let own = config.sr_check_password.clone().map(Secret::Plain);
    let secret = own.or_else(|| config.secrets.get(&config.sr_check_user).cloned());
    let of = |probe: ProbeSpec| ProbeSpec {
        secret: secret.clone(),
        check: HealthCheck {
            user: config.sr_check_user.clone(),
            password: config.sr_check_password.clone(),
            database: config.sr_check_database.clone(),
            ..probe.check
        },
        ..probe
    };
    probes(config, tls).into_iter().map(of).collect()
}

/// The nodes as the cluster core knows them.
pub(crate) fn nodes(config: &Config) -> Vec<NodeSpec> {
    let ids = (0..=u16::MAX).map(NodeId);
    let checks =
        ids.zip(&config.backends).filter_map(|(id, backend)| Some((backend, config.health_check(id)?)));
    checks.map(|(backend, check)| node(config, backend, &check)).collect()
}

fn node(config: &Config, backend: &Backend, check: &HealthCheck) -> NodeSpec {
    let (role_source, on_failure) = match backend.flag {
        BackendFlag::AllowToFailover => (RoleSource::Observed, OnFailure::TakeOut),
        BackendFlag::DisallowToFailover => (RoleSource::Observed, OnFailure::Keep),
        BackendFlag::AlwaysPrimary => (RoleSource::AlwaysPrimary, OnFailure::TakeOut),
    };
    NodeSpec {
        hostname: backend.hostname.as_str().into(),
        port: backend.port,
        weight: backend.weight,
        role_source,
        on_failure,
        priority: backend.promotion_priority,
        trust_sessions: config.failover_on_backend_error,
        checks: CheckPolicy {
            max_retries: check.max_retries,
            retry_delay: check.retry_delay,
            stale_after: check.period.saturating_add(check.timeout).saturating_mul(MISSING_CHECKS),
        },
    }
}

/// What holds for the whole cluster.
pub(crate) fn settings(config: &Config) -> Settings {
    let failback = if config.auto_failback {
        Failback::Automatic { interval: config.auto_failback_interval }
    } else {
        Failback::Manual
    };
    let failover = FailoverSettings {
        promoter: match config.failover_mode {
            FailoverMode::Observe => Promoter::Nobody,
            FailoverMode::Promote => Promoter::Core,
            FailoverMode::Command => Promoter::Command,
        },
        false_primary: if config.detach_false_primary {
            FalsePrimary::Quarantine
        } else {
            FalsePrimary::Leave
        },
        promote_within: config.promotion_timeout,
        drain: config.detach_drain_timeout,
        switch_within: config.switchover_timeout,
        join_within: config.recovery_timeout,
    };
    Settings { settle: SETTLE, failback, failover }
}

/// The nodes as the metrics label them.
pub(crate) fn labels(config: &Config) -> Vec<NodeLabel> {
    let label = |(id, backend): (u16, &Backend)| NodeLabel {
        id,
        hostname: backend.hostname.clone(),
        port: backend.port,
    };
    (0..=u16::MAX).zip(&config.backends).map(label).collect()
}

/// What the log is to look like.
pub(crate) fn logging(config: &Config) -> logging::Settings {
    let format = match config.log_format {
        config::LogFormat::Text => logging::LogFormat::Text,
        config::LogFormat::Json => logging::LogFormat::Json,
    };
    let destination = match &config.log_destination {
        config::LogDestination::Stderr => logging::Destination::Stderr,
        config::LogDestination::File(path) => logging::Destination::File(path.clone()),
    };
    logging::Settings { level: config.log_level.as_str().to_owned(), format, destination }
}

/// How many files may be open: one pool for each node, user and database that the configuration names (at least
/// one), at its size.
pub(crate) fn files(config: &Config) -> Need {
    let named = |count: usize| u64::try_from(count.max(1)).unwrap_or(u64::MAX);
    let pools = named(config.users.len()).saturating_mul(named(config.databases.len()));
    let nodes = u64::try_from(config.backends.len()).unwrap_or(u64::MAX);
    let size = u64::from(config.default_pool_size);
    Need {
        clients: u64::from(config.max_client_conn),
        backends: nodes.saturating_mul(pools).saturating_mul(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        config::parse(text, "test").unwrap()
    }

    #[test]
    fn a_node_has_its_own_patience_and_flag() {
        let config = config(
            "backends:\n\
             - { hostname: db0, flag: ALWAYS_PRIMARY, health_check_max_retries: 7 }\n\
             - { hostname: db1, port: 6000, weight: 2, flag: DISALLOW_TO_FAILOVER }\n\
             health_check_period: 10s\n\
             health_check_timeout: 2s\n\
             sr_check_period: 1s\n\
             sr_check_password: secret\n",
        );
        let nodes = nodes(&config);
        assert_eq!(nodes[0].role_source, RoleSource::AlwaysPrimary);
        assert_eq!(nodes[0].checks.max_retries, 7);
        assert_eq!((&*nodes[1].hostname, nodes[1].port, nodes[1].weight), ("db1", 6000, 2.0));
        assert_eq!(nodes[1].on_failure, OnFailure::Keep);
        assert_eq!(nodes[1].checks.stale_after, Duration::from_secs(36));
        let probes = probes(&config, &Arc::default());
        assert_eq!(probes[1].node, NodeId(1));
        assert_eq!(probes[1].period, Duration::from_secs(1));
        assert!(matches!(&probes[1].secret, Some(Secret::Plain(secret)) if secret.expose() == "secret"));
        assert_eq!(labels(&config)[1], NodeLabel { id: 1, hostname: "db1".to_owned(), port: 6000 });
    }

    #[test]
    fn the_sampler_has_its_own_user() {
        let config = config(
            "backends: [{ hostname: db0, health_check_timeout: 2s }]\n\
             health_check_user: check\nhealth_check_password: other\nhealth_check_database: d\n\
             sr_check_user: look\nsr_check_password: secret\n",
        );
        let [spec] = &*sampling(&config, &Arc::default()) else { panic!("one node") };
        assert_eq!((spec.check.user.as_str(), spec.check.database.as_str()), ("look", "postgres"));
        assert_eq!(spec.check.timeout, Duration::from_secs(2));
        assert!(matches!(&spec.secret, Some(Secret::Plain(secret)) if secret.expose() == "secret"));
    }

    #[test]
    fn files_are_counted_by_pools() {
        let config = config(
            "backends: [{hostname: a}, {hostname: b}]\n\
             max_client_conn: 100\ndefault_pool_size: 5\nusers: {u: {}, v: {}}\n",
        );
        assert_eq!(files(&config), Need { clients: 100, backends: 20 });
    }

    #[test]
    fn failback_follows_its_keys() {
        let with = |text: &str| settings(&config(&format!("backends: [{{hostname: a}}]\n{text}"))).failback;
        assert_eq!(with("auto_failback: off"), Failback::Manual);
        assert_eq!(
            with("auto_failback_interval: 3s"),
            Failback::Automatic { interval: Duration::from_secs(3) }
        );
    }
}
