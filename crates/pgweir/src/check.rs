//! `pgweir check FILE`: what is wrong with a configuration, by file, line and key.

use std::path::Path;
use std::process::ExitCode;

use crate::cli::{Failure, load, say};

/// Validates a configuration and says so.
///
/// # Errors
/// The configuration is refused.
pub(crate) fn check(file: &Path) -> Result<ExitCode, Failure> {
    let config = load(file)?;
    for warning in &config.warnings {
        say(&format!("warning: {warning}"))?;
    }
    proxy::tls::TlsSetup::build(&config)?;
    say(&format!("{}: the configuration is valid", file.display()))?;
    Ok(ExitCode::SUCCESS)
}
