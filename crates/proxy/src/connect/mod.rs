//! Connections of ours to nodes: resolve, connect, log in; cancel requests; plain queries for the
//! health checker.
//!
//! Invariants: one deadline spans everything from the name to ReadyForQuery; a node's bytes are bounded
//! before and during login, and one that breaks the protocol is not used; the server's own error is kept
//! as it came, so that a client can be given it unchanged.

mod dial;
mod error;
mod handshake;
mod secure;
mod simple;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use config::secrets::Secret;
use protocol::auth::{Credentials, Learned};
use protocol::md5::Md5Hash;
use protocol::write;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

use crate::cancel::CancelKey;
use crate::stream::Stream;
use crate::tls::NodeTls;
pub use error::{ConnectError, ServerError};
pub(crate) use handshake::nonce;
pub(crate) use simple::row;
pub use simple::{QueryError, Rows, query, query_large, query_telling, query_with};

/// Where a node listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeAddress {
    /// A name or an address; one that begins with `/` is the directory of a Unix socket, with `@` the
    /// same in Linux's abstract namespace.
    pub hostname: String,
    /// The TCP port, or the number in the socket's name.
    pub port: u16,
}

impl NodeAddress {
    /// The path of the Unix socket, when the node has one: abstract ones begin with NUL.
    #[must_use]
    pub fn socket_path(&self) -> Option<String> {
        let name = |directory: &str| format!("{directory}/.s.PGSQL.{}", self.port);
        match self.hostname.strip_prefix('@') {
            Some(_) => Some(name(&self.hostname).replacen('@', "\0", 1)),
            None => self.hostname.starts_with('/').then(|| name(&self.hostname)),
        }
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.socket_path(), self.hostname.contains(':')) {
            (Some(path), _) => f.write_str(&path.replacen('\0', "@", 1)),
            (None, true) => write!(f, "[{}]:{}", self.hostname, self.port),
            (None, false) => write!(f, "{}:{}", self.hostname, self.port),
        }
    }
}

/// How the kernel watches a TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Idle time before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes after which the connection is dead.
    pub count: u32,
    /// How long sent data may stay unacknowledged; `None` is the kernel's choice.
    pub user_timeout: Option<Duration>,
}

impl From<&config::Config> for Keepalive {
    fn from(config: &config::Config) -> Self {
        Self {
            idle: config.tcp_keepalives_idle,
            interval: config.tcp_keepalives_interval,
            count: config.tcp_keepalives_count,
            user_timeout: config.tcp_user_timeout,
        }
    }
}

/// What a connection is made from.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// Where to.
    pub address: Arc<NodeAddress>,
    /// Whether and how it is encrypted, over TCP.
    pub tls: Arc<NodeTls>,
    /// As whom.
    pub user: String,
    /// To which database.
    pub database: String,
    /// Further parameters of the start-up packet: settings, `options`, `replication`.
    pub params: Vec<(String, String)>,
    /// What proves us.
    pub credentials: Credentials,
    /// From the name to ReadyForQuery.
    pub connect_timeout: Duration,
    /// For TCP.
    pub keepalive: Keepalive,
}

/// A connection that is logged in and idle.
#[derive(Debug)]
pub struct Connected {
    /// The connection.
    pub stream: Stream,
    /// What the server said of its parameters, each name once.
    pub parameters: Vec<(String, String)>,
    /// The server's process id; 0 when it gave none.
    pub backend_pid: u32,
    /// The secret for cancel requests, as long as the server sent it; empty when it gave none.
    pub secret: Vec<u8>,
    /// What came behind ReadyForQuery; empty with an honest server.
    pub leftover: BytesMut,
}

/// What we can prove to nodes on behalf of a user, from what is stored and what the login taught us. A
/// SCRAM verifier alone proves nothing: the client key that goes with it comes with a client's login.
#[must_use]
pub fn credentials(secret: Option<&Secret>, learned: &Learned) -> Credentials {
    match (secret, learned) {
        (Some(Secret::Plain(password)), _) => Credentials::Password(password.expose().as_bytes().to_vec()),
        (_, Learned::Password(password)) => Credentials::Password(password.clone()),
        (Some(Secret::Md5(digest)), _) => Credentials::Md5Hash(Md5Hash::from_digest(*digest)),
        (_, Learned::ScramKeys(keys)) => Credentials::ScramKeys(keys.clone()),
        (_, Learned::Nothing) => Credentials::None,
    }
}

/// Connects and logs in.
///
/// # Errors
/// See [`ConnectError`]; the connection is closed.
pub async fn connect(options: &ConnectOptions) -> Result<Connected, ConnectError> {
    let deadline = Instant::now() + options.connect_timeout;
    let connecting = Box::pin(secure::connect(options, deadline));
    timeout_at(deadline, connecting).await.unwrap_or(Err(ConnectError::TimedOut))
}

/// Asks a node to cancel what the backend with that key does, and waits until the server has taken note
/// (it closes the connection). The statement may have ended by itself before.
///
/// # Errors
/// When the request cannot be delivered.
pub async fn send_cancel(key: &CancelKey, timeout: Duration) -> Result<(), ConnectError> {
    let deadline = Instant::now() + timeout;
    let mut request = BytesMut::new();
    write::cancel_request(&mut request, key.pid, &key.secret)?;
    let sending = Box::pin(async {
        let mut stream = dial::dial(&key.address, None, deadline).await?;
        if let Some(tls) = &key.tls {
            stream = secure::encrypt(stream, &key.address, tls).await?.stream;
        }
        stream.write_all(&request).await.map_err(ConnectError::Lost)?;
        stream.flush().await.map_err(ConnectError::Lost)?;
        // The server answers with nothing but the end; a reset after it has read the request is one too.
        let mut byte = [0; 1];
        while matches!(stream.read(&mut byte).await, Ok(1..)) {}
        Ok(())
    });
    timeout_at(deadline, sending).await.unwrap_or(Err(ConnectError::TimedOut))
}

/// Says goodbye and closes. The connection is closed whether the server hears it or not.
pub async fn close(mut connected: Connected) {
    let mut goodbye = BytesMut::new();
    write::terminate(&mut goodbye);
    // A server that is gone cannot hear it, and need not.
    if connected.stream.write_all(&goodbye).await.is_ok() {
        let _ = connected.stream.flush().await;
    }
}
