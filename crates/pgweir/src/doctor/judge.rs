//! From what the nodes have told to findings, each with its cure. Pure.

use std::collections::BTreeSet;

use cluster::{Facts, Upstream};
use config::{Config, FailoverMode};
use protocol::sqlstate::SqlState;
use proxy::connect::ConnectError;

use super::Finding;
use super::visit::{Login, MAX_LOGINS, Outcome, Seen};

/// Clocks may differ by this much (seconds) before it is said: logs are hard to read beside each other then.
const CLOCKS: f64 = 1.0;
/// Connections that pgweir itself keeps to a node: the health check, the sampler, and the reader of the catalog.
const OWN_CONNECTIONS: u32 = 3;

/// What there is to say of one node.
pub(super) fn node(config: &Config, seen: &Seen) -> Vec<Finding> {
    let mut findings = Vec::new();
    match &seen.failure {
        Some(error) => findings.push(unreachable(seen, error)),
        None => {
            let tls = seen.tls.as_deref().map_or("without TLS".to_owned(), |tls| format!("by {tls}"));
            findings.push(Finding::fine(format!("reachable as {}, {tls}", seen.user)));
        }
    }
    if let Some(silence) = &seen.silence {
        findings.push(Finding::error(
            format!("it does not answer the check's questions: {silence}"),
            format!("let {} call what pg_monitor may: GRANT pg_monitor TO {}", seen.user, quoted(&seen.user)),
        ));
    }
    if !seen.setup.is_empty() {
        findings.push(role(seen));
        findings.extend(privileges(config, seen));
        findings.extend(wal(config, seen));
        findings.extend(room(config, seen));
        findings.extend(clock(seen));
    }
    findings.extend(logins(seen));
    findings
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn unreachable(seen: &Seen, error: &ConnectError) -> Finding {
    Finding::error(format!("{} cannot log in: {error}", seen.user), cure(error, &seen.user))
}

/// What helps against a login that fails.
fn cure(error: &ConnectError, user: &str) -> String {
    match error {
        ConnectError::Resolve(_) => {
            "correct hostname, or the resolver of this machine: getent hosts NAME".to_owned()
        }
        ConnectError::Unreachable(_) => "is PostgreSQL running there, does listen_addresses name that address, is the \
             port right, does a firewall refuse it?"
            .to_owned(),
        ConnectError::TimedOut => {
            "a firewall drops the packets, or the machine is down; else raise health_check_timeout".to_owned()
        }
        ConnectError::NoTls => "set ssl = on at the node, or backend_sslmode: prefer here".to_owned(),
        ConnectError::Tls(_) => {
            "compare backend_sslmode and backend_ssl_root_cert with the node's certificate: its issuer, its names, its dates"
                .to_owned()
        }
        ConnectError::Rejected(rejected) => refusal(rejected.code(), user),
        ConnectError::Auth(_) => {
            format!("put the password of {user} into pool_passwd (pgweir passwd --method text {user}), or sr_check_password")
        }
        ConnectError::Lost(_) | ConnectError::Closed => "the node's log says why it hung up".to_owned(),
        ConnectError::RejectedAsText(_) | ConnectError::Protocol(_) => {
            "is that port PostgreSQL's? Something else answers there".to_owned()
        }
        ConnectError::Write(_) => "the name holds a character that the protocol cannot carry".to_owned(),
    }
}

fn refusal(code: Option<SqlState>, user: &str) -> String {
    match code.map(|code| code.to_string()).as_deref() {
        Some("28P01") => format!(
            "the role's password is another one than here: pgweir passwd --method text {user}, or ALTER ROLE {} PASSWORD '...'",
            quoted(user)
        ),
        Some("28000") => format!(
            "let the role in: a line for {user} and this machine's address in the node's pg_hba.conf, and LOGIN for the role"
        ),
        Some("3D000") => "name a database that is there: sr_check_database, health_check_database".to_owned(),
        Some("42501") => format!("GRANT CONNECT ON DATABASE ... TO {}", quoted(user)),
        Some("53300") => {
            "the node is full: raise its max_connections, or let others (default_pool_size here) take fewer"
                .to_owned()
        }
        Some("57P03") => "the node starts up or recovers; try again when it has".to_owned(),
        _ => "the node's log says more".to_owned(),
    }
}

fn role(seen: &Seen) -> Finding {
    let version = seen.setting("server_version").unwrap_or("unknown");
    let Some(facts) = &seen.facts else { return Finding::fine(format!("PostgreSQL {version}")) };
    let kind = if facts.in_recovery { "standby" } else { "primary" };
    let timeline = facts.timeline.map_or_else(|| "unknown".to_owned(), |timeline| timeline.to_string());
    Finding::fine(format!("PostgreSQL {version}, {kind}, timeline {timeline}"))
}

fn privileges(config: &Config, seen: &Seen) -> Vec<Finding> {
    let user = &seen.user;
    let mut findings = Vec::new();
    findings.push(if seen.setting("is_monitor") == Some("true") {
        Finding::fine(format!("{user} may see what it has to (pg_monitor)"))
    } else {
        Finding::warning(
            format!("{user} is no member of pg_monitor: replication states and timelines stay unknown"),
            format!("GRANT pg_monitor TO {}", quoted(user)),
        )
    });
    if config.failover_mode == FailoverMode::Promote && seen.setting("may_promote") != Some("true") {
        findings.push(Finding::error(
            format!("{user} may not promote, which failover_mode: promote asks for"),
            format!("GRANT EXECUTE ON FUNCTION pg_catalog.pg_promote TO {}", quoted(user)),
        ));
    }
    findings
}

fn wal(config: &Config, seen: &Seen) -> Vec<Finding> {
    let mut findings = Vec::new();
    let others = config.backends.len().saturating_sub(1);
    if others > 0 && seen.setting("wal_level") == Some("minimal") {
        findings.push(Finding::error(
            "wal_level is minimal: no standby can follow",
            "wal_level = replica in postgresql.conf, and a restart",
        ));
    }
    let senders = seen.number("max_wal_senders").and_then(|senders| usize::try_from(senders).ok());
    if let Some(senders) = senders.filter(|senders| *senders < others) {
        findings.push(Finding::error(
            format!("max_wal_senders is {senders}, and {others} other nodes would follow it as the primary"),
            "raise max_wal_senders on every node (base backups need some more), and restart",
        ));
    }
    let in_recovery = seen.facts.is_some_and(|facts| facts.in_recovery);
    if in_recovery && seen.setting("hot_standby_feedback") == Some("off") {
        findings.push(Finding::warning(
            "hot_standby_feedback is off: long reads may be cancelled by what the primary vacuums (40001)",
            "hot_standby_feedback = on at the standby, or a longer max_standby_streaming_delay",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::fine("WAL settings allow every node to be followed"));
    }
    findings
}

/// Whether the pools fit into the node: one pool at least, and one for each user that is known.
fn room(config: &Config, seen: &Seen) -> Option<Finding> {
    let most = seen.number("max_connections")?;
    let kept = seen.number("superuser_reserved_connections").unwrap_or(0)
        + seen.number("reserved_connections").unwrap_or(0);
    let free = most.saturating_sub(kept.max(config.reserved_connections)).saturating_sub(OWN_CONNECTIONS);
    let size = config.default_pool_size.saturating_add(config.reserve_pool_size);
    let users = u32::try_from(config.secrets.users().count().max(1)).unwrap_or(u32::MAX);
    let all = size.saturating_mul(users);
    Some(if size > free {
        Finding::error(
            format!("max_connections is {most}: {free} are left for pools, less than one pool of {size}"),
            "raise max_connections of the node, or lower default_pool_size",
        )
    } else if all > free {
        Finding::warning(
            format!(
                "{free} connections are left for pools; {users} users with a full pool each would want {all}"
            ),
            "that is right when not all are busy at once (pools make way for each other); else lower default_pool_size or \
             raise max_connections",
        )
    } else {
        Finding::fine(format!("{free} connections are left for pools, enough for all of them ({all})"))
    })
}

fn clock(seen: &Seen) -> Option<Finding> {
    let (ahead, unsure) = seen.clock?;
    Some(if ahead.abs() - unsure > CLOCKS {
        let way = if ahead > 0.0 { "ahead of" } else { "behind" };
        Finding::warning(
            format!("its clock is {:.1} s {way} this machine's", ahead.abs()),
            "run a time service (chrony, systemd-timesyncd) on both; pgweir's decisions do not depend on it, reading logs does",
        )
    } else {
        Finding::fine("its clock agrees with this machine's")
    })
}

fn logins(seen: &Seen) -> Vec<Finding> {
    let mut findings: Vec<Finding> = seen.logins.iter().filter_map(login).collect();
    let tried = seen.logins.iter().filter(|login| matches!(login.outcome, Outcome::In)).count();
    if tried > 0 {
        findings.insert(0, Finding::fine(format!("{tried} users of pool_passwd log in")));
    }
    let verifiers = seen.logins.iter().filter(|login| matches!(login.outcome, Outcome::Untried)).count();
    if verifiers > 0 {
        findings.push(Finding::fine(format!(
            "{verifiers} users have a SCRAM verifier, which cannot be tried from here; it must be the node's own"
        )));
    }
    if seen.not_tried > 0 {
        findings.push(Finding::fine(format!(
            "{} more users were not tried, after the first {MAX_LOGINS}",
            seen.not_tried
        )));
    }
    findings
}

fn login(login: &Login) -> Option<Finding> {
    let Outcome::Refused(error) = &login.outcome else { return None };
    let user = &login.user;
    // Authentication comes first: who is told that has passed it.
    let passed = error.server_error().and_then(proxy::connect::ServerError::code);
    if passed.is_some_and(|code| ["3D000", "42501"].contains(&code.to_string().as_str())) {
        return None;
    }
    Some(Finding::error(format!("{user} of pool_passwd cannot log in: {error}"), cure(error, user)))
}

/// What there is to say of the nodes together.
pub(super) fn together(config: &Config, seen: &[Seen]) -> Vec<Finding> {
    let facts: Vec<(usize, Facts)> =
        seen.iter().enumerate().filter_map(|(id, seen)| Some((id, seen.facts?))).collect();
    let mut findings = vec![primaries(&facts)];
    let systems: BTreeSet<u64> = facts.iter().filter_map(|(_, facts)| facts.system_identifier).collect();
    if systems.len() > 1 {
        findings.push(Finding::error(
            "the nodes are not of one cluster: their system identifiers differ",
            "remove the strangers from backends, or make them anew from the primary (pg_basebackup)",
        ));
    }
    findings.extend(standbys(&facts));
    findings.extend(readers(config, &facts));
    findings
}

fn primaries(facts: &[(usize, Facts)]) -> Finding {
    let primaries: Vec<String> =
        facts.iter().filter(|(_, facts)| !facts.in_recovery).map(|(id, _)| id.to_string()).collect();
    match primaries.as_slice() {
        [one] => Finding::fine(format!("node {one} is the primary")),
        [] => Finding::error(
            "no node is a primary: writes will wait and fail",
            "promote one (pg_ctl promote, or failover_mode: promote here)",
        ),
        many => Finding::error(
            format!("nodes {} all are primaries", many.join(", ")),
            "stop those that were left behind, and make them standbys again (pg_rewind or pg_basebackup)",
        ),
    }
}

fn standbys(facts: &[(usize, Facts)]) -> Vec<Finding> {
    let timeline = facts.iter().find(|(_, facts)| !facts.in_recovery).and_then(|(_, facts)| facts.timeline);
    let mut findings = Vec::new();
    for (id, facts) in facts.iter().filter(|(_, facts)| facts.in_recovery) {
        if facts.upstream == Upstream::None {
            findings.push(Finding::warning(
                format!("node {id} is a standby and receives nothing"),
                "look at primary_conninfo and the log of that node",
            ));
        } else if facts.timeline.is_some() && timeline.is_some() && facts.timeline != timeline {
            findings.push(Finding::warning(
                format!("node {id} is on another timeline than the primary"),
                "it has not followed the last promotion yet: recovery_target_timeline = 'latest', else pg_rewind",
            ));
        }
    }
    findings
}

/// Who may serve reads.
fn readers(config: &Config, facts: &[(usize, Facts)]) -> Option<Finding> {
    let weighs = |id: usize| config.backends.get(id).is_some_and(|backend| backend.weight > 0.0);
    let standbys = facts.iter().filter(|(_, facts)| facts.in_recovery).count();
    let reads = facts.iter().any(|(id, facts)| facts.in_recovery && weighs(*id));
    (standbys > 0 && !reads && config.load_balance_mode).then(|| {
        Finding::warning(
            "no standby has a weight: the primary serves every read",
            "give the standbys a weight above 0 in backends",
        )
    })
}

#[cfg(test)]
mod tests;
