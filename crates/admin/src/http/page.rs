//! The status page at `/`: nodes, pools, databases and the last events, for people. It renews itself.
//!
//! Made from the same rows as everything else, without scripts and without anything from elsewhere. Names come from
//! configurations and clients, so that every text is escaped. Statements are not on it: HTTP asks nobody who they are.

use std::fmt::Write;

use super::status::LAST_EVENTS;
use crate::render;
use crate::view::{AdminView, DatabaseStats, EventRow, NodeRow, PoolRow};

/// What browsers may do with the page: show it, with its own style.
pub(super) const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
/// Rows of a table; what is beyond is counted.
const MOST_ROWS: usize = 200;

const HEAD: &str = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
<meta http-equiv=\"refresh\" content=\"2\"><meta name=\"viewport\" content=\"width=device-width\"><title>pgweir</title>\
<style>body{font:15px/1.4 system-ui,sans-serif;margin:2em;color:#222;background:#fff}\
table{border-collapse:collapse;margin:.3em 0 1.5em}th,td{padding:.2em .9em .2em 0;text-align:left;vertical-align:top}\
th{border-bottom:1px solid #999}td{border-bottom:1px solid #ddd}.up{color:#060}.down,.quarantine{color:#b00;font-weight:bold}\
.waiting,.draining,.unused{color:#a60}@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}\
.up{color:#6c6}.down,.quarantine{color:#f66}td{border-color:#444}}</style></head><body>\n";

/// The page.
pub(super) fn page(view: &dyn AdminView) -> String {
    let mut out = String::from(HEAD);
    title(&mut out, view);
    nodes(&mut out, view);
    pools(&mut out, &view.pools());
    databases(&mut out, &view.stats());
    events(&mut out, &view.events());
    out.push_str("</body></html>\n");
    out
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

fn title(out: &mut String, view: &dyn AdminView) {
    let process = view.process();
    let uptime = view.now().duration_since(process.started_at).unwrap_or_default().as_secs();
    let clients = view.clients();
    let waiting = clients.iter().filter(|client| client.waits_for.is_some()).count();
    // Writing to a String does not fail, here and below.
    let _ = writeln!(
        out,
        "<h1>pgweir {}</h1><p id=\"state\">{}, process {}, up for {uptime} s; {} clients, {waiting} waiting; {} backends</p>",
        escaped(&process.version),
        view.state().as_str(),
        process.pid,
        clients.len(),
        view.servers().len()
    );
}

/// A table of cells that are HTML already.
fn table(out: &mut String, id: &str, heads: &[&str], rows: impl ExactSizeIterator<Item = Vec<String>>) {
    let beyond = rows.len().saturating_sub(MOST_ROWS);
    let _ = write!(out, "<h2>{id}</h2>\n<table id=\"{id}\"><tr>");
    heads.iter().for_each(|head| out.push_str(&format!("<th>{head}</th>")));
    out.push_str("</tr>\n");
    for row in rows.take(MOST_ROWS) {
        out.push_str("<tr>");
        row.iter().for_each(|cell| out.push_str(&format!("<td>{cell}</td>")));
        out.push_str("</tr>\n");
    }
    out.push_str("</table>\n");
    if beyond > 0 {
        let _ = writeln!(out, "<p>and {beyond} more</p>");
    }
}

fn nodes(out: &mut String, view: &dyn AdminView) {
    let heads = ["node", "address", "status", "role", "weight", "reads", "delay", "replication", "since"];
    let nodes = view.nodes();
    let shares = render::shares(&nodes);
    let row = |(node, share): (&NodeRow, f64)| {
        let state = node.state.as_str();
        vec![
            node.id.to_string(),
            escaped(&format!("{}:{}", node.hostname, node.port)),
            format!("<span class=\"{state}\">{state}</span>"),
            node.role.as_str().to_owned(),
            format!("{share:.3}"),
            node.statements.select.to_string(),
            render::delay(node.delay),
            escaped(format!("{} {}", node.replication_state, node.sync_state).trim()),
            render::time(node.changed_at),
        ]
    };
    let rows: Vec<_> = nodes.iter().zip(shares).map(row).collect();
    table(out, "nodes", &heads, rows.into_iter());
}

fn pools(out: &mut String, pools: &[PoolRow]) {
    let heads = ["node", "database", "user", "mode", "size", "active", "idle", "waiting", "longest wait"];
    let row = |pool: &PoolRow| {
        vec![
            pool.node.to_string(),
            escaped(&pool.database),
            escaped(&pool.user),
            pool.mode.to_owned(),
            pool.size.to_string(),
            pool.active.to_string(),
            pool.idle.to_string(),
            pool.waiting.to_string(),
            format!("{:.3} s", pool.max_wait.as_secs_f64()),
        ]
    };
    table(out, "pools", &heads, pools.iter().map(row));
}

fn databases(out: &mut String, stats: &[DatabaseStats]) {
    let heads = ["database", "transactions", "queries", "errors", "transactions/s", "mean transaction"];
    let row = |stats: &DatabaseStats| {
        let (now, before) = (&stats.totals, &stats.before);
        let count = now.transactions.saturating_sub(before.transactions);
        let spent = now.transaction_time.saturating_sub(before.transaction_time);
        vec![
            escaped(&stats.name),
            now.transactions.to_string(),
            now.queries.to_string(),
            now.errors.to_string(),
            format!("{:.1}", render::per_second(count, stats.window)),
            format!("{:.3} ms", render::mean(spent, count).as_secs_f64() * 1000.0),
        ]
    };
    table(out, "databases", &heads, stats.iter().map(row));
}

fn events(out: &mut String, events: &[EventRow]) {
    let heads = ["when", "what", "node", "from", "to", "why"];
    let last = events.iter().rev().take(LAST_EVENTS);
    let row = |event: &EventRow| {
        vec![
            render::time(event.at),
            event.kind.to_owned(),
            event.node.map(|node| node.to_string()).unwrap_or_default(),
            escaped(&event.from),
            escaped(&event.to),
            escaped(&event.reason),
        ]
    };
    let rows: Vec<_> = last.map(row).collect();
    table(out, "events", &heads, rows.into_iter());
}
