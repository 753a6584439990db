//! `pgweir check --connect`: goes to every node as pgweir will, and says what is wrong and what to do about it.
//!
//! It changes nothing on the nodes. [`visit`] asks, [`judge`] makes findings of the answers; the latter is pure.

mod judge;
mod visit;

use std::process::ExitCode;

use cluster::NodeId;
use config::Config;
use proxy::tls::TlsSetup;

use crate::cli::{Failure, say};
use crate::{files, specs};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// As it should be.
    Fine,
    /// It works, and something will go wrong or is worse than it need be.
    Warning,
    /// It does not work.
    Error,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// What is so.
    pub(crate) what: String,
    /// What to do about it; empty for what is fine.
    pub(crate) cure: String,
}

impl Finding {
    fn fine(what: impl Into<String>) -> Self {
        Self { severity: Severity::Fine, what: what.into(), cure: String::new() }
    }

    fn warning(what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, what: what.into(), cure: cure.into() }
    }

    fn error(what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { severity: Severity::Error, what: what.into(), cure: cure.into() }
    }
}

/// Looks at every node and prints what was found.
///
/// # Errors
/// The system gives no runtime, or nobody reads what is printed. Findings are no errors: they are the exit code.
pub(crate) fn examine(config: &Config, tls: &TlsSetup) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let seen = runtime.block_on(async {
        let mut seen = Vec::new();
        for spec in specs::probes(config, &tls.nodes) {
            seen.push(Box::pin(visit::visit(config, &spec)).await);
        }
        seen
    });
    let mut worst = Severity::Fine;
    let ids = (0..=u16::MAX).map(NodeId);
    for ((id, backend), node) in ids.zip(&config.backends).zip(&seen) {
        worst = worst.max(print(&format!("node {id}, {backend}"), &judge::node(config, node))?);
    }
    worst = worst.max(print("the nodes together", &judge::together(config, &seen))?);
    worst = worst.max(print("this machine", &machine(config))?);
    Ok(if worst == Severity::Error { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(title: &str, findings: &[Finding]) -> Result<Severity, Failure> {
    let mut text = format!("{title}:");
    for Finding { severity, what, cure } in findings {
        text.push_str(&format!("\n  {:<8} {what}", severity.as_str()));
        if !cure.is_empty() {
            text.push_str(&format!("\n           -> {cure}"));
        }
    }
    say(&text)?;
    Ok(findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Fine))
}

/// Open files, for clients and backends: as `pgweir run` would have them.
fn machine(config: &Config) -> Vec<Finding> {
    let limit = files::raise_limit();
    let need = specs::files(config);
    let missing = need.exceeds(limit);
    vec![if missing == 0 {
        Finding::fine("enough open files are allowed for max_client_conn and the pools")
    } else {
        Finding::warning(
            format!("max_client_conn and the pools may need {missing} more open files than are allowed"),
            "raise the limit (ulimit -n, LimitNOFILE= of the service), or lower max_client_conn",
        )
    }]
}
