//! `pgweir attach`, `detach`, `promote` and `recover`: a command of the console, given to the running pgweir as an administrator.
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
    ConnectError, ConnectOptions, Connected, Keepalive, NodeAddress, ServerError, connect, credentials,
    query, query_telling,
};
use proxy::tls::NodeTls;

use crate::cli::{Failure, complain, load, say};

/// How long the console may take to answer beyond what the command itself may take.
const GRACE: Duration = Duration::from_secs(10);

/// How often it is looked how far a node is.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The column `status` of SHOW NODES.
const NODE_STATE: Option<usize> = Some(3);

/// Gives the command, and waits until it is carried out.
///
/// # Errors
/// The configuration is refused, pgweir does not answer, or it refuses the command.
pub(crate) fn order(file: &Path, user: Option<String>, command: &str) -> Result<ExitCode, Failure> {
    let config = load(file)?;
    let options = options(&config, user)?;
    let tls = NodeTls::towards_ourselves(&config).map_err(anyhow::Error::from)?;
    let longest = match command.starts_with("RECOVER") {
        true => [config.recovery_command_timeout, config.recovery_timeout],
        false => [config.switchover_timeout, config.promotion_timeout],
    };
    let within = longest.into_iter().fold(GRACE, Duration::saturating_add);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut console = log_in(&options, tls, config.ssl)
            .await
            .with_context(|| format!("cannot log in to pgweir as {} at {}", options.user, options.address))?;
        let mut told = |notice: &ServerError| tell(notice);
        query_telling(&mut console, command, within, &mut told).await.with_context(|| command.to_owned())?;
        match command.strip_prefix("DETACH NODE ").map(str::parse::<u16>) {
            // With FORCE nobody is waited for.
            Some(Ok(node)) => drained(&mut console, node, config.detach_drain_timeout).await,
            _ => Ok(()),
        }
    })?;
    say(&format!("{command}: done"))?;
    Ok(ExitCode::SUCCESS)
}

/// A notice of the console on the standard error output: how far it is.
fn tell(notice: &ServerError) {
    complain(&notice.view().message_lossy());
}

/// Waits until no session has a connection to the node any more, and tells how many have.
async fn drained(console: &mut Connected, node: u16, within: Duration) -> anyhow::Result<()> {
    let end = tokio::time::Instant::now() + within + GRACE;
    let mut told = String::new();
    loop {
        let rows = query(console, "SHOW NODES", GRACE).await.context("SHOW NODES")?;
        let of = |row: &&Vec<Option<String>>| {
            row.first().and_then(Option::as_deref) == Some(node.to_string().as_str())
        };
        let cell = |index: Option<usize>| {
            rows.iter()
                .find(of)
                .and_then(|row| row.get(index?))
                .and_then(Option::as_deref)
                .unwrap_or_default()
        };
        if cell(NODE_STATE) != "draining" {
            return Ok(());
        }
        let in_use = cell(rows.first().and_then(|row| row.len().checked_sub(1)));
        let line = format!("node {node} is draining: {in_use} sessions have a connection to it");
        if line != told {
            complain(&line);
            told = line;
        }
        if tokio::time::Instant::now() > end {
            bail!("node {node} is still draining; SHOW NODES tells when it is not");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
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
