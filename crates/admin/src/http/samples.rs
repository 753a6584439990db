//! What `/metrics` tells of pools, clients, databases and memory at this moment.
//!
//! Invariant: the number of series is bounded, whatever clients do; what is beyond it is told together.

use std::collections::BTreeMap;
use std::time::Duration;

use telemetry::metrics::Sample;

use crate::view::{AdminView, ClientState, DatabaseStats, Delay, PoolRow, ProcessState};

/// More pools than this are told together.
const MAX_POOLS: usize = 500;
/// What stands for the names of those.
const OTHERS: &str = "(other)";

/// All of them.
pub(super) fn samples(view: &dyn AdminView) -> Vec<Sample> {
    let mut out = Vec::new();
    nodes(view, &mut out);
    pools(view, &mut out);
    clients(view, &mut out);
    view.stats().iter().for_each(|of| database(of, &mut out));
    for use_ in view.memory() {
        out.push(sample("pgweir_memory_bytes", [use_.what], number(use_.bytes)));
    }
    let paused = f64::from(u8::from(view.state() == ProcessState::Paused));
    out.push(sample::<&str>("pgweir_paused", [], paused));
    out
}

fn sample<T: ToString>(name: &'static str, labels: impl IntoIterator<Item = T>, value: f64) -> Sample {
    Sample { name, labels: labels.into_iter().map(|label| label.to_string()).collect(), value }
}

#[allow(clippy::cast_precision_loss, reason = "the format has no other numbers")]
fn number(count: u64) -> f64 {
    count as f64
}

fn nodes(view: &dyn AdminView, out: &mut Vec<Sample>) {
    let now = view.now();
    for node in view.nodes() {
        if let Some(Delay::Bytes(bytes)) = node.delay {
            out.push(sample("pgweir_node_replay_lag_bytes", [node.id], number(bytes)));
        }
        if let Some(as_of) = node.fresh_as_of {
            let age = now.duration_since(as_of).unwrap_or_default();
            out.push(sample("pgweir_node_fresh_age_seconds", [node.id], age.as_secs_f64()));
        }
    }
}

#[derive(Default)]
struct Pools {
    size: u32,
    idle: u32,
    active: u32,
    connecting: u32,
    waiting: u32,
    longest: Duration,
}

impl Pools {
    fn add(&mut self, pool: &PoolRow) {
        self.size += pool.size;
        self.idle += pool.idle;
        self.active += pool.active;
        self.connecting += pool.connecting;
        self.waiting += pool.waiting;
        self.longest = self.longest.max(pool.max_wait);
    }
}

fn pools(view: &dyn AdminView, out: &mut Vec<Sample>) {
    let mut known: BTreeMap<(u16, String, String), Pools> = BTreeMap::new();
    for pool in view.pools() {
        let key = (pool.node.0, pool.database.clone(), pool.user.clone());
        let key = if known.len() < MAX_POOLS || known.contains_key(&key) {
            key
        } else {
            (pool.node.0, OTHERS.to_owned(), OTHERS.to_owned())
        };
        known.entry(key).or_default().add(&pool);
    }
    for ((node, database, user), pool) in known {
        let node = node.to_string();
        let of = [node.as_str(), &database, &user];
        out.push(sample("pgweir_pool_size", of, f64::from(pool.size)));
        out.push(sample("pgweir_pool_waiting_clients", of, f64::from(pool.waiting)));
        out.push(sample("pgweir_pool_longest_wait_seconds", of, pool.longest.as_secs_f64()));
        for (state, count) in [("idle", pool.idle), ("active", pool.active), ("connecting", pool.connecting)]
        {
            out.push(sample("pgweir_pool_backends", [of[0], of[1], of[2], state], f64::from(count)));
        }
    }
}

fn clients(view: &dyn AdminView, out: &mut Vec<Sample>) {
    let mut states: BTreeMap<&str, u32> = BTreeMap::new();
    let mut pins: BTreeMap<&str, u32> = BTreeMap::new();
    for word in ["login", "idle", "active", "in_transaction", "pinned", "waiting"] {
        states.insert(word, 0);
    }
    for client in view.clients() {
        let word = match client.state {
            ClientState::Login | ClientState::Cancel => "login",
            ClientState::Idle => "idle",
            ClientState::Active => "active",
            ClientState::InTransaction => "in_transaction",
            ClientState::Held => "pinned",
            ClientState::Waiting => "waiting",
        };
        *states.entry(word).or_default() += 1;
        if let Some(pin) = client.pin {
            *pins.entry(pin).or_default() += 1;
        }
    }
    for (state, count) in states {
        out.push(sample("pgweir_client_sessions", [state], f64::from(count)));
    }
    for (reason, count) in pins {
        out.push(sample("pgweir_pinned_clients", [reason], f64::from(count)));
    }
}

fn database(of: &DatabaseStats, out: &mut Vec<Sample>) {
    let totals = &of.totals;
    for (name, count) in [
        ("pgweir_database_transactions_total", totals.transactions),
        ("pgweir_database_queries_total", totals.queries),
        ("pgweir_database_errors_total", totals.errors),
        ("pgweir_database_received_bytes_total", totals.received),
        ("pgweir_database_sent_bytes_total", totals.sent),
        ("pgweir_database_assignments_total", totals.assignments),
    ] {
        out.push(sample(name, [&of.name], number(count)));
    }
    for (name, time) in [
        ("pgweir_database_transaction_seconds_total", totals.transaction_time),
        ("pgweir_database_query_seconds_total", totals.query_time),
        ("pgweir_database_wait_seconds_total", totals.wait_time),
    ] {
        out.push(sample(name, [&of.name], time.as_secs_f64()));
    }
}
