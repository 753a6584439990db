use std::collections::BTreeSet;
use std::time::Duration;

use super::*;

const WORDS: Vocabulary<'static> = Vocabulary {
    version: "0.1.0",
    route_reasons: &["read", "write"],
    pin_reasons: &["temp_table"],
    login_failures: &["password"],
    connect_failures: &["unreachable", "timed_out"],
    roles: &["unknown", "primary", "standby"],
};

fn metrics() -> Metrics {
    Metrics::new(&WORDS, UNIX_EPOCH + Duration::from_secs(1_700_000_000)).unwrap()
}

fn label(id: u16, hostname: &str) -> NodeLabel {
    NodeLabel { id, hostname: hostname.into(), port: 5432 }
}

/// The names after `# TYPE`, with how often each stands there.
fn families(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect()
}

#[test]
fn every_family_is_there_once_from_the_start() {
    let expected: BTreeSet<&str> = METRICS.iter().map(|row| row.name).collect();
    let metrics = metrics();
    for nodes in [&[][..], &[label(0, "db0")][..]] {
        metrics.set_nodes(nodes).unwrap();
        let text = metrics.encode().unwrap();
        let found = families(&text);
        assert_eq!(found.len(), METRICS.len());
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected);
    }
}

#[test]
fn types_and_labels_are_those_of_the_table() {
    let metrics = metrics();
    metrics.set_nodes(&[label(0, "db0")]).unwrap();
    let text = metrics.encode().unwrap();
    let begun =
        |row: &MetricRow| text.lines().any(|line| !line.starts_with('#') && line.starts_with(row.name));
    let made = METRICS.iter().filter(|row| !begun(row)).map(|row| {
        let labels = row.labels.iter().map(|_| "a\"b\n".to_owned()).collect();
        Sample { name: row.name, labels, value: 1.5 }
    });
    let text = metrics.encode_with(&made.collect::<Vec<_>>()).unwrap();
    for row in METRICS {
        assert!(text.contains(&format!("# TYPE {} {}\n", row.name, row.kind.as_str())), "{}", row.name);
        let mut series = text
            .lines()
            .filter(|line| line.strip_prefix(row.name).is_some_and(|rest| rest.starts_with([' ', '{', '_'])));
        assert!(series.next().is_some(), "{} has no series", row.name);
        for name in row.labels {
            assert!(text.contains(&format!("{name}=\"")), "{} lacks {name}", row.name);
        }
    }
    assert!(!text.contains("=\"\""), "an empty label value");
}

#[test]
fn a_node_counts_what_it_was_sent() {
    let metrics = metrics();
    let nodes = metrics.set_nodes(&[label(0, "db0"), label(1, "db1")]).unwrap();
    nodes[1].statement(Kind::Select, 0);
    nodes[1].statement(Kind::Ddl, 1);
    nodes[1].error(Severity::Fatal);
    nodes[1].set_role("standby");
    nodes[1].backend_moved(None, Some(BackendState::Connecting));
    nodes[1].backend_moved(Some(BackendState::Connecting), Some(BackendState::Active));
    assert_eq!(nodes[1].statements.get(Kind::Select.position()), 1);
    assert_eq!(nodes[1].errors(Severity::Fatal), 1);
    assert_eq!(nodes[1].backends(BackendState::Active), 1);
    let text = metrics.encode().unwrap();
    for line in [
        r#"pgweir_statements_total{kind="select",node="1"} 1"#,
        r#"pgweir_statements_total{kind="select",node="0"} 0"#,
        r#"pgweir_statements_routed_total{node="1",reason="write"} 1"#,
        r#"pgweir_backends{node="1",state="active"} 1"#,
        r#"pgweir_backends{node="1",state="connecting"} 0"#,
        r#"pgweir_node_role{node="1",role="standby"} 1"#,
        r#"pgweir_node_role{node="1",role="primary"} 0"#,
        r#"pgweir_start_time_seconds 1700000000"#,
        r#"pgweir_build_info{version="0.1.0"} 1"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn a_reload_keeps_counters_and_drops_the_gauges_of_what_is_gone() {
    let metrics = metrics();
    let before = metrics.set_nodes(&[label(0, "db0"), label(1, "db1")]).unwrap();
    before[0].connects.inc();
    before[1].connects.inc();
    let after = metrics.set_nodes(&[label(0, "moved")]).unwrap();
    after[0].connects.inc();
    let text = metrics.encode().unwrap();
    assert!(text.contains("pgweir_backend_connects_total{node=\"0\"} 2\n"));
    assert!(text.contains("pgweir_backend_connects_total{node=\"1\"} 1\n"), "counters stay");
    assert!(text.contains(r#"pgweir_node_info{hostname="moved",node="0",port="5432"} 1"#));
    assert!(!text.contains("db0") && !text.contains("db1"));
    assert!(!text.contains("pgweir_node_up{node=\"1\"}"));
    let again = metrics.set_nodes(&[label(0, "moved"), label(1, "db1")]).unwrap();
    assert!(Arc::ptr_eq(&after[0], &again[0]), "an unchanged node keeps its handles");
    assert_eq!(again[1].connects.get(), 1);
}

#[test]
fn errors_count_by_class() {
    let metrics = metrics();
    for code in ["23505", "23503", "XX000", "ZZ999", "4"] {
        metrics.errors.inc(code.as_bytes());
    }
    let text = metrics.encode().unwrap();
    assert!(text.contains("pgweir_errors_total{class=\"23\"} 2\n"));
    assert!(text.contains("pgweir_errors_total{class=\"XX\"} 1\n"));
    assert!(text.contains("pgweir_errors_total{class=\"other\"} 2\n"));
    assert_eq!(metrics.errors.total(), 5);
}

#[test]
fn odd_names_are_escaped_and_empty_ones_refused() {
    let metrics = metrics();
    metrics.set_nodes(&[label(0, "a\"b\\c\nd\u{e9}")]).unwrap();
    assert!(metrics.encode().unwrap().contains("hostname=\"a\\\"b\\\\c\\nd\u{e9}\""));
    assert!(matches!(metrics.set_nodes(&[label(1, "")]), Err(MetricsError::EmptyLabel(_))));
    let empty = Vocabulary { pin_reasons: &[""], ..WORDS };
    assert!(Metrics::new(&empty, UNIX_EPOCH).is_err());
}

/// Asks Prometheus' own checker, where it is installed (Debian's package `prometheus`).
#[test]
fn promtool_accepts_the_text() {
    use std::io::Write;
    use std::process::{Command, Stdio};

    let metrics = metrics();
    let nodes = metrics.set_nodes(&[label(0, "a\"b\\c\nd\u{e9}"), label(1, "/var/run")]).unwrap();
    nodes[0].statement(Kind::Select, 0);
    metrics.backend_wait.observe(0.02);
    let piped = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = piped else {
        println!("promtool is not installed: not checked");
        return;
    };
    promtool.stdin.take().unwrap().write_all(metrics.encode().unwrap().as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}
