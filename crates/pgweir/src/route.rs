//! `pgweir route 'SQL'`: where a statement would go, and why.

use std::path::Path;
use std::process::ExitCode;

use cluster::NodeId;
use config::Config;
use proxy::{Relations, judge};
use router::{Policy, Target, TxView, Verdict, decide, fingerprint};
use serde_json::Value;

use crate::cli::{Failure, load, say};
use crate::http_get::get;

/// Says where the statement would go in a new session, outside a transaction.
///
/// # Errors
/// The configuration is refused.
pub(crate) fn route(file: &Path, sql: &str) -> Result<ExitCode, Failure> {
    let config = load(file)?;
    let roles = get(&config, "/health").ok().and_then(|text| serde_json::from_str(&text).ok());
    say(&explain(&config, sql, roles.as_ref()))?;
    Ok(ExitCode::SUCCESS)
}

fn explain(config: &Config, sql: &str, health: Option<&Value>) -> String {
    let verdict = judge(config, sql.as_bytes(), Relations::Ordinary);
    let policy = Policy { load_balance: config.load_balance_mode, ..Policy::default() };
    let (target, reason) = decide(&verdict, &TxView::default(), &policy);
    let pin = verdict.pin.map_or("none", |pin| pin.as_str());
    let place = match target {
        Target::Primary => match health.and_then(primary) {
            Some(id) => format!("primary ({})", name(config, id)),
            None => "primary".to_owned(),
        },
        Target::Read => format!("read (a node by weight, {})", config.load_balance.as_str()),
        Target::Standby => "standby".to_owned(),
        Target::Node(id) | Target::Prefer(id) => name(config, id),
        Target::Anywhere => "anywhere (where the session is, or pgweir itself)".to_owned(),
    };
    let fingerprint = fingerprint(sql.as_bytes(), true);
    let assumed = assumption(config, sql, &verdict);
    format!(
        "node:        {place}\nreason:      {}\nkind:        {}\npin:         {pin}\nfingerprint: {fingerprint}{assumed}",
        reason.as_str(),
        verdict.kind.as_str()
    )
}

/// What the answer takes for granted because no database was asked; `PGWEIR EXPLAIN` in a session knows.
fn assumption(config: &Config, sql: &str, verdict: &Verdict) -> String {
    let careful = judge(config, sql.as_bytes(), Relations::Unknown);
    let assumed = if verdict.is_in_doubt() {
        "nothing is known of the functions that are not built in"
    } else if careful.access != verdict.access {
        "its tables and views are ordinary ones: logged, not foreign, over nothing that writes"
    } else {
        return String::new();
    };
    format!("\nassumed:     {assumed}; PGWEIR EXPLAIN in a session knows")
}

/// The node that is the primary now, as the running pgweir says.
fn primary(health: &Value) -> Option<NodeId> {
    let nodes = health.get("nodes")?.as_array()?;
    let is = |node: &&Value, field: &str, word: &str| node.get(field).and_then(Value::as_str) == Some(word);
    let node = nodes.iter().find(|node| is(node, "role", "primary") && is(node, "status", "up"))?;
    node.get("node_id")?.as_u64().and_then(|id| u16::try_from(id).ok()).map(NodeId)
}

fn name(config: &Config, id: NodeId) -> String {
    match config.backends.get(id.index()) {
        Some(backend) => format!("node {id}, {backend}"),
        None => format!("node {id}, which does not exist"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_where_and_why() {
        let config =
            config::parse("backends: [{hostname: db0}, {hostname: db1, port: 6000}]", "test").unwrap();
        let health = serde_json::json!({"nodes": [
            {"node_id": 0, "status": "up", "role": "standby"},
            {"node_id": 1, "status": "up", "role": "primary"},
        ]});
        let text = explain(&config, "insert into t values (1)", Some(&health));
        assert!(text.starts_with("node:        primary (node 1, db1:6000)\nreason:      dml\n"), "{text}");
        assert!(explain(&config, "insert into t values (1)", None).starts_with("node:        primary\n"));
        let text = explain(&config, "select 1", None);
        assert!(text.starts_with("node:        read (a node by weight, least_outstanding)\n"), "{text}");
        let text = explain(&config, "/* pgweir: node=5 */ select 1", None);
        assert!(text.starts_with("node:        node 5, which does not exist\nreason:      hint\n"), "{text}");
        let text = explain(&config, "select * from t", None);
        assert!(text.contains("\nassumed:     its tables and views are ordinary ones"), "{text}");
        let text = explain(&config, "select f(1)", None);
        assert!(
            text.contains("reason:      unknown_function")
                && text.contains("\nassumed:     nothing is known"),
            "{text}"
        );
        assert!(!explain(&config, "select lower('a') from pg_class", None).contains("assumed"));
        let lists = "backends: [{hostname: db0}]\nread_only_function_list: [f]\nprimary_routing_query_pattern_list: [now]";
        let lists = config::parse(lists, "test").unwrap();
        assert!(explain(&lists, "select f(1)", None).starts_with("node:        read"));
        assert!(explain(&lists, "select now()", None).contains("query_pattern"));
        let text = explain(&config, "create temp table t (a int)", None);
        assert!(text.contains("pin:         temp_table"), "{text}");
    }
}
