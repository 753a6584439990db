//! What the Rust programs share; see `../../python/common.py` for DSN, TAG and PARTS.

use std::time::Duration;

use anyhow::{Context, Result};

/// A variable of the environment.
pub fn variable(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| name.to_owned())
}

/// Whether parts of that kind are to be done.
pub fn wants(kind: &str) -> bool {
    let parts = std::env::var("PARTS").unwrap_or_else(|_| "all".to_owned());
    parts == "all" || parts == kind
}

/// Runs a part with a limit on its time; what fails is told with the part's name.
pub async fn part(name: &str, run: impl Future<Output = Result<()>>) -> Result<()> {
    let done = tokio::time::timeout(Duration::from_secs(30), run).await;
    done.with_context(|| format!("{name} hangs"))?.with_context(|| name.to_owned())
}
