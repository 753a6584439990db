//! Binds `pcp_listen_addresses` and serves PCP there.

use std::path::PathBuf;
use std::sync::Arc;

use admin::pcp::{Pcp, SecretOf, secret_in};
use admin::{AdminConsole, AdminView};
use anyhow::Context;
use config::{Config, HostPort};
use telemetry::Tasks;

use crate::http::bind;

/// A pcp.conf is never larger (bytes).
const MAX_FILE: u64 = 1024 * 1024;

/// Serves on every address of `pcp_listen_addresses`, if `pcp_port` is set.
///
/// # Errors
/// An address cannot be bound.
pub(crate) async fn start(
    config: &Config,
    tasks: &Tasks,
    view: &Arc<dyn AdminView>,
    console: &AdminConsole,
) -> anyhow::Result<()> {
    let Some(port) = config.pcp_port else { return Ok(()) };
    let pcp =
        Pcp::new(Arc::clone(view), console.clone(), secrets(config.pcp_conf_file.clone()), rand::random);
    for host in &config.pcp_listen_addresses {
        let listen = HostPort { host: host.clone(), port };
        let listeners = bind(&listen)
            .await
            .with_context(|| format!("cannot listen on {listen} (pcp_listen_addresses)"))?;
        for listener in listeners {
            tracing::info!(address = %listener.local_addr()?, "serving PCP");
            tasks.spawn("pcp", pcp.clone().serve(listener, tasks.clone()));
        }
    }
    Ok(())
}

/// The file is read at each login, so that it can change without a reload.
fn secrets(file: PathBuf) -> SecretOf {
    Arc::new(move |user| {
        if std::fs::metadata(&file)?.len() > MAX_FILE {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        Ok(secret_in(&std::fs::read_to_string(&file)?, user))
    })
}
