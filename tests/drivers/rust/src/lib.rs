//! What the Rust programs share; see `../../python/common.py` for DSN, TAG and PARTS.

use std::time::Duration;

use anyhow::{Context, Result};

/// A variable of the environment.
pub fn variable(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| name.to_owned())
}

/// What those who look ask the console for; each answers with rows.
pub const SHOWS: [&str; 10] = [
    "POOLS",
    "CLIENTS",
    "SERVERS",
    "DATABASES",
    "USERS",
    "LISTS",
    "CONFIG",
    "VERSION",
    "STATE",
    "POOL_NODES",
];

/// Whether parts of that kind are to be done.
pub fn wants(kind: &str) -> bool {
    let parts = std::env::var("PARTS").unwrap_or_else(|_| "all".to_owned());
    parts == kind || (parts == "all" && kind != "console")
}

/// Runs a part with a limit on its time; what fails is told with the part's name.
pub async fn part(name: &str, run: impl Future<Output = Result<()>>) -> Result<()> {
    let done = tokio::time::timeout(Duration::from_secs(30), run).await;
    done.with_context(|| format!("{name} hangs"))?.with_context(|| name.to_owned())
}
