use super::*;
use crate::doctor::Severity;

fn config(more: &str) -> Config {
    config::parse(&format!("backends: [{{hostname: db0}}, {{hostname: db1}}]\n{more}"), "test").unwrap()
}

fn seen(in_recovery: bool, settings: &[(&str, &str)]) -> Seen {
    let upstream =
        if in_recovery { Upstream::Streaming { from: None, silent_for: None } } else { Upstream::None };
    let facts =
        Facts { in_recovery, timeline: Some(3), system_identifier: Some(7), upstream, ..Facts::default() };
    let mut setup = vec![
        ("server_version", "15.4"),
        ("wal_level", "replica"),
        ("max_wal_senders", "10"),
        ("max_connections", "100"),
        ("superuser_reserved_connections", "3"),
        ("hot_standby_feedback", "on"),
        ("is_monitor", "true"),
        ("may_promote", "true"),
    ];
    setup.retain(|(name, _)| !settings.iter().any(|(other, _)| other == name));
    setup.extend(settings);
    let setup = setup.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Seen { user: "pgweir".to_owned(), facts: Some(facts), setup, clock: Some((0.2, 0.01)), ..Seen::default() }
}

/// The findings that are not fine, and that all of them have a cure.
fn complaints(findings: &[Finding]) -> Vec<(Severity, String)> {
    let bad = findings.iter().filter(|finding| finding.severity != Severity::Fine);
    bad.map(|finding| {
        assert!(!finding.cure.is_empty(), "{finding:?}");
        (finding.severity, finding.what.clone())
    })
    .collect()
}

#[test]
fn a_healthy_cluster_has_no_complaints() {
    let nodes = [seen(false, &[]), seen(true, &[])];
    let config = config("failover_mode: promote");
    for node in &nodes {
        assert_eq!(complaints(&super::node(&config, node)), []);
    }
    assert_eq!(complaints(&together(&config, &nodes)), []);
}

#[test]
fn what_is_wrong_with_a_node_is_said() {
    let config = config("failover_mode: promote\ndefault_pool_size: 50");
    for (settings, severity, part) in [
        (&[("is_monitor", "false")][..], Severity::Warning, "no member of pg_monitor"),
        (&[("may_promote", "false")], Severity::Error, "may not promote"),
        (&[("wal_level", "minimal")], Severity::Error, "wal_level is minimal"),
        (&[("max_wal_senders", "0")], Severity::Error, "max_wal_senders is 0"),
        (&[("hot_standby_feedback", "off")], Severity::Warning, "may be cancelled"),
        (&[("max_connections", "40")], Severity::Error, "less than one pool of 50"),
    ] {
        let found = complaints(&node(&config, &seen(true, settings)));
        assert!(found.iter().any(|(s, what)| *s == severity && what.contains(part)), "{part}: {found:?}");
        assert_eq!(found.len(), 1, "{found:?}");
    }
    let late = Seen { clock: Some((-90.0, 0.5)), ..seen(true, &[]) };
    assert!(complaints(&node(&config, &late))[0].1.contains("90.0 s behind"));
}

#[test]
fn a_login_that_fails_has_its_own_cure() {
    let refused = |code: &str| {
        let body = format!("SFATAL\0C{code}\0Mno\0\0").into_bytes();
        ConnectError::Rejected(proxy::connect::ServerError::new(body.into()))
    };
    let login = |error| Login { user: "alice".to_owned(), outcome: Outcome::Refused(error) };
    let mut node = seen(false, &[]);
    node.logins = vec![login(refused("28P01")), login(refused("28000")), login(refused("3D000"))];
    node.logins.push(Login { user: "bob".to_owned(), outcome: Outcome::In });
    let findings = super::node(&config(""), &node);
    let bad: Vec<&Finding> = findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
    assert_eq!(bad.len(), 2, "a database that is missing is no fault of the secret: {bad:?}");
    assert!(bad[0].cure.contains("pgweir passwd --method text alice") && bad[1].cure.contains("pg_hba.conf"));
    assert!(findings.iter().any(|finding| finding.what == "1 users of pool_passwd log in"));
}

#[test]
fn what_is_wrong_with_the_nodes_together_is_said() {
    let config = config("");
    let other = |change: &dyn Fn(&mut Facts)| {
        let mut node = seen(true, &[]);
        change(node.facts.as_mut().unwrap());
        node
    };
    for (nodes, part) in [
        ([seen(true, &[]), seen(true, &[])], "no node is a primary"),
        ([seen(false, &[]), seen(false, &[])], "nodes 0, 1 all are primaries"),
        ([seen(false, &[]), other(&|facts| facts.system_identifier = Some(8))], "not of one cluster"),
        ([seen(false, &[]), other(&|facts| facts.timeline = Some(2))], "another timeline"),
        ([seen(false, &[]), other(&|facts| facts.upstream = Upstream::None)], "receives nothing"),
    ] {
        let found = complaints(&together(&config, &nodes));
        assert!(found.len() == 1 && found[0].1.contains(part), "{part}: {found:?}");
    }
}
