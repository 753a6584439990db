//! Where statements ran, as the servers' logs have it.

use anyhow::{Result, ensure};

use crate::{Cluster, Pgweir, msgs};

/// Runs statements by both protocols; what the logs say of where is looked at once for all.
///
/// # Errors
/// Statements that failed, or ran elsewhere.
pub fn run_all(cluster: &Cluster, weir: &Pgweir, rows: &[(usize, &str)]) -> Result<()> {
    let mut client = weir.client()?;
    let id = client.key.as_ref().map(|(pid, _)| pid.to_string()).unwrap_or_default();
    let mut failed = Vec::new();
    for (row, (_, sql)) in rows.iter().enumerate() {
        for (protocol, extended) in [("q", false), ("x", true)] {
            let marked = format!("{sql} /*run {id}.{row}{protocol}.*/");
            let sent = if extended { msgs().PBE(&marked).S() } else { msgs().Q(&marked) };
            let replies = client.talk(&sent)?;
            if let Some(error) = replies.error() {
                failed.push(format!("{marked}: {} {}", error.get('C'), error.get('M')));
            }
        }
    }
    let logs: Vec<String> = (0..cluster.len()).map(|node| cluster.log(node)).collect::<Result<_>>()?;
    for (row, (node, sql)) in rows.iter().enumerate() {
        for protocol in ["q", "x"] {
            let marker = format!("/*run {id}.{row}{protocol}.*/");
            let ran: Vec<usize> = (0..logs.len()).filter(|node| logs[*node].contains(&marker)).collect();
            if ran != [*node] {
                failed.push(format!("{sql} ({protocol}): ran on {ran:?}, not on {node}"));
            }
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}
