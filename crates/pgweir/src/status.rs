//! `pgweir status`: what the running pgweir says of itself at `/status`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use serde_json::Value;

use crate::cli::{Failure, load, say};
use crate::http_get::get;
use crate::remote::Running;

/// Prints the state of the running pgweir.
///
/// # Errors
/// The configuration is refused, or nothing runs.
pub(crate) fn status(file: &Path, json: bool) -> Result<ExitCode, Failure> {
    let config = load(file)?;
    if config.metrics_listen.is_none() {
        let running = Running::find(&config)?;
        return Err(anyhow::anyhow!(
            "pgweir runs as process {}; metrics_listen is off, so it tells no more",
            running.pid()
        )
        .into());
    }
    let text = match get(&config, "/status") {
        Ok(text) => text,
        // Names a stale pid file, too.
        Err(error) => {
            let running = Running::find(&config)?;
            return Err(error.context(format!("pgweir runs as process {}", running.pid())).into());
        }
    };
    if json {
        say(text.trim_end())?;
    } else {
        let status: Value = serde_json::from_str(&text).context("/status is not JSON")?;
        say(&for_people(&status))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The columns of a table: heading, and the field of each row.
const NODES: &[(&str, &str)] = &[
    ("node", "node_id"),
    ("hostname", "hostname"),
    ("port", "port"),
    ("status", "status"),
    ("role", "role"),
    ("reason", "reason"),
    ("weight", "lb_weight"),
    ("delay", "replication_delay_bytes"),
    ("timeline", "timeline"),
    ("position", "replay"),
    ("since", "last_status_change"),
];
pub(crate) const POOLS: &[(&str, &str)] = &[
    ("node", "node_id"),
    ("database", "database"),
    ("user", "user"),
    ("mode", "pool_mode"),
    ("size", "size"),
    ("active", "active"),
    ("idle", "idle"),
    ("waiting", "waiting"),
];

fn for_people(status: &Value) -> String {
    let field = |name: &str| text(status.get(name));
    let mut out = format!(
        "pgweir {}, process {}, {} for {} s\n",
        field("version"),
        field("pid"),
        field("state"),
        field("uptime_seconds")
    );
    for part in ["clients", "servers"] {
        let Some(Value::Object(counts)) = status.get(part) else { continue };
        let counts: Vec<String> =
            counts.iter().map(|(name, count)| format!("{} {name}", text(Some(count)))).collect();
        out.push_str(&format!("{part}: {}\n", counts.join(", ")));
    }
    for (part, columns) in [("nodes", NODES), ("pools", POOLS)] {
        let rows = status.get(part).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if !rows.is_empty() {
            out.push('\n');
            out.push_str(&table(columns, rows));
        }
    }
    out.truncate(out.trim_end().len());
    out
}

fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) if text.is_empty() => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) if number.is_f64() => {
            format!("{:.3}", number.as_f64().unwrap_or_default())
        }
        Some(other) => other.to_string(),
    }
}

/// A table for people: headings, and the fields of each row.
pub(crate) fn table(columns: &[(&str, &str)], rows: &[Value]) -> String {
    let mut lines: Vec<Vec<String>> =
        vec![columns.iter().map(|(heading, _)| (*heading).to_owned()).collect()];
    lines.extend(rows.iter().map(|row| columns.iter().map(|(_, name)| text(row.get(*name))).collect()));
    let width = |column: usize| lines.iter().filter_map(|line| Some(line.get(column)?.chars().count())).max();
    let widths: Vec<usize> = (0..columns.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for line in &lines {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_get_a_table() {
        let status = serde_json::json!({
            "version": "0.1.0", "pid": 7, "state": "active", "uptime_seconds": 9,
            "clients": {"total": 2}, "servers": {"total": 1},
            "nodes": [{"node_id": 0, "hostname": "db0", "port": 5432, "status": "up", "role": "primary",
                       "lb_weight": 0.5, "replication_delay_bytes": null}],
            "pools": [],
        });
        let text = for_people(&status);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "pgweir 0.1.0, process 7, active for 9 s");
        assert_eq!(lines[1], "clients: 2 total");
        assert_eq!(
            lines[4],
            "node  hostname  port  status  role     reason  weight  delay  timeline  position  since"
        );
        assert_eq!(
            lines[5],
            "0     db0       5432  up      primary  -       0.500   -      -         -         -"
        );
    }
}
