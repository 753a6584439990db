//! `pgweir check FILE`: what is wrong with a configuration, by file, line and key; with `--connect` also with the nodes.

use std::path::Path;
use std::process::ExitCode;

use config::Config;
use proxy::tls::TlsSetup;

use crate::cli::{Failure, load, say};
use crate::doctor;

/// Validates a configuration and says so.
///
/// # Errors
/// The configuration is refused.
pub(crate) fn check(file: &Path) -> Result<ExitCode, Failure> {
    validate(file)?;
    Ok(ExitCode::SUCCESS)
}

/// Validates a configuration, and looks at the nodes as pgweir will find them.
///
/// # Errors
/// The configuration is refused.
pub(crate) fn check_nodes(file: &Path) -> Result<ExitCode, Failure> {
    let (config, tls) = validate(file)?;
    doctor::examine(&config, &tls)
}

fn validate(file: &Path) -> Result<(Config, TlsSetup), Failure> {
    let config = load(file)?;
    for warning in &config.warnings {
        say(&format!("warning: {warning}"))?;
    }
    let tls = TlsSetup::build(&config)?;
    say(&format!("{}: the configuration is valid", file.display()))?;
    Ok((config, tls))
}
