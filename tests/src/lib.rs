//! Black-box harness: the built `pgweir` binary against real PostgreSQL clusters in temporary
//! directories, spoken to byte by byte.
//!
//! Invariants:
//! - Every test has its own cluster, its own pgweir and its own ports, so that tests run in parallel.
//! - Readiness is found out by connecting, never by sleeping.
//! - Whatever can hang has a deadline ([`client::deadline`], 3 s); a hang is a failure.
//! - Nothing outlives a test, however it ends: [`Cluster`] and [`Pgweir`] kill what they started when
//!   dropped, and a watcher outside the test's process group does so when the test itself is killed.
//! - The logs of pgweir and of the servers are printed when a rig is dropped; the runners show them for
//!   failed tests only.

pub mod checkers;
pub mod client;
pub mod cluster;
pub mod fake;
pub mod install;
pub mod login;
pub mod messages;
pub mod outside;
pub mod pgweir;
pub mod pki;
pub mod placed;
pub mod procs;
pub mod promotion;
pub mod relay;
pub mod replies;
pub mod rows;
pub mod server_log;
pub mod tls;
pub mod tools;

pub use client::{RawClient, deadline};
pub use cluster::{Cluster, ClusterOptions, ServerAuth, StopMode};
pub use login::Login;
pub use messages::{Msgs, msgs};
pub use pgweir::{ClientAuth, Pgweir, PgweirOptions, is_optimised};
pub use pki::{Pki, Signature};
pub use placed::run_all;
pub use relay::Relay;
pub use replies::{Replies, Reply};
pub use rows::{PgError, Rows, sqlstate};
pub use server_log::Logged;
pub use tls::TlsOffer;
pub use tools::{Http, Output, PgbenchReport, http_get, pgbench, psql};

/// Answers the `cluster_name` of the node that runs it: STABLE, so a standby may.
pub const WHERE: &str = "SELECT current_setting('cluster_name')";

/// True with `PGWEIR_TEST_DIRECT=1`: clients are then put on the primary itself instead of pgweir, so
/// that the cases which say "as on a direct connection" can be checked against PostgreSQL.
#[must_use]
pub fn direct_mode() -> bool {
    std::env::var_os("PGWEIR_TEST_DIRECT").is_some_and(|value| value == "1")
}

/// A cluster with one primary and `standbys` standbys, and a pgweir in front of it whose
/// configuration is the harness's base with `yaml` over it.
///
/// # Errors
/// When a server or pgweir does not come up.
pub fn rig(standbys: usize, yaml: &str) -> anyhow::Result<(Cluster, Pgweir)> {
    let cluster = Cluster::new(ClusterOptions { standbys, ..ClusterOptions::default() })?;
    let weir = Pgweir::start(&cluster, yaml)?;
    Ok((cluster, weir))
}

/// Repeats `probe` every 20 ms until it answers true or `limit` has passed; the last answer.
pub fn eventually(limit: std::time::Duration, mut probe: impl FnMut() -> bool) -> bool {
    let end = std::time::Instant::now() + limit;
    loop {
        if probe() {
            return true;
        }
        if std::time::Instant::now() >= end {
            return false;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
