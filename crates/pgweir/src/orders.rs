//! `pgweir attach`, `detach` and `promote`: a command of the console, given to the running pgweir as an administrator.
//!
//! The user is the first of `admin_users` unless another is named; the password is the one in pool_passwd, or
//! PGPASSWORD.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use config::secrets::Secret;
use config::{Config, Masked, Ssl};
use protocol::auth::Learned;
use protocol::sqlstate::SqlState;
use proxy::connect::{
    ConnectError, ConnectOptions, Connected, Keepalive, NodeAddress, ServerError, connect, credentials, query,
};
use proxy::tls::NodeTls;

use crate::cli::{Failure, load, say};

/// How long the console may take to answer beyond what the command itself may take.
const GRACE: Duration = Duration::from_secs(10);

/// Gives the command, and waits until it is carried out.
///
/// # Errors
/// The configuration is refused, pgweir does not answer, or it refuses the command.
pub(crate) fn order(file: &Path, user: Option<String>, command: &str) -> Result<ExitCode, Failure> {
    let config = load(file)?;
    let options = options(&config, user)?;
    let tls = NodeTls::towards_ourselves(&config).map_err(anyhow::Error::from)?;
    let within = config.switchover_timeout.saturating_add(config.promotion_timeout).saturating_add(GRACE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut console = log_in(&options, tls, config.ssl)
            .await
            .with_context(|| format!("cannot log in to pgweir as {} at {}", options.user, options.address))?;
        query(&mut console, command, within).await.with_context(|| command.to_owned())
    })?;
    say(&format!("{command}: done"))?;
    Ok(ExitCode::SUCCESS)
}

/// Over TLS when there is TLS. In the clear only when the rules say so, which only the pgweir that we trust can tell, and
/// only where it takes that.
async fn log_in(options: &ConnectOptions, tls: Option<NodeTls>, ssl: Ssl) -> Result<Connected, ConnectError> {
    let Some(tls) = tls.filter(|_| options.address.socket_path().is_none()) else {
        return connect(options).await;
    };
    let encrypted = ConnectOptions { tls: Arc::new(tls), ..options.clone() };
    match connect(&encrypted).await {
        Err(refused) if ssl == Ssl::Allow && is_rule(&refused) => connect(options).await,
        done => done,
    }
}

/// No rule of pool_hba.conf lets us in this way.
fn is_rule(error: &ConnectError) -> bool {
    let code = error.server_error().and_then(ServerError::code);
    code == Some(SqlState::INVALID_AUTHORIZATION_SPECIFICATION)
}

fn options(config: &Config, user: Option<String>) -> anyhow::Result<ConnectOptions> {
    let Some(user) = user.or_else(|| config.admin_users.first().cloned()) else {
        bail!("nobody may do that: admin_users is empty");
    };
    let given = std::env::var("PGPASSWORD").ok().map(|password| Secret::Plain(Masked::new(password)));
    let secret = given.or_else(|| config.secrets.get(&user).cloned());
    Ok(ConnectOptions {
        address: Arc::new(address(config)?),
        tls: Arc::default(),
        database: "pgweir".to_owned(),
        params: vec![("application_name".to_owned(), "pgweir".to_owned())],
        credentials: credentials(secret.as_ref(), &Learned::Nothing),
        connect_timeout: GRACE,
        keepalive: Keepalive::from(config),
        user,
    })
}

/// Where the running one listens, seen from here.
fn address(config: &Config) -> anyhow::Result<NodeAddress> {
    let port = config.port;
    let here = config.listen_addresses.first().map(|address| match address.as_str() {
        "*" | "0.0.0.0" => "127.0.0.1",
        "::" => "::1",
        other => other,
    });
    let hostname = here.or(config.unix_socket_directories.first().map(String::as_str));
    let hostname = hostname.context("pgweir listens nowhere")?.to_owned();
    Ok(NodeAddress { hostname, port })
}
