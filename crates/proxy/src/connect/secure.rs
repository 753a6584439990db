//! Which way to a node: in the clear or over TLS, and what is tried after the first (libpq's `sslmode`).
//!
//! Invariant: only `allow` and `prefer` have a second way, and neither verifies anything.

use bytes::BytesMut;
use protocol::auth::Channel;
use protocol::sqlstate::SqlState;
use protocol::write;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::dial::dial;
use super::handshake::handshake;
use super::{ConnectError, ConnectOptions, Connected, NodeAddress, ServerError};
use crate::stream::Stream;
use crate::tls::{Encrypted, NodeTls, Policy};

/// Dials and logs in, as the policy says.
pub(super) async fn connect(options: &ConnectOptions, deadline: Instant) -> Result<Connected, ConnectError> {
    // As with libpq a Unix socket is not encrypted, whatever the mode.
    let local = options.address.socket_path().is_some();
    match options.tls.policy() {
        _ if local => plain(options, deadline).await,
        Policy::Disable => plain(options, deadline).await,
        Policy::Require => encrypted(options, deadline).await,
        Policy::Allow => match plain(options, deadline).await {
            Err(refused) if is_rule(&refused) => match encrypted(options, deadline).await {
                // What it said at first is what it means, when there is no TLS to be had.
                Err(ConnectError::NoTls | ConnectError::Tls(_)) => Err(refused),
                done => done,
            },
            done => done,
        },
        Policy::Prefer => preferred(options, deadline).await,
    }
}

/// No rule of the node's pg_hba.conf lets us in this way; another may, the other way.
fn is_rule(error: &ConnectError) -> bool {
    let code = error.server_error().and_then(ServerError::code);
    code == Some(SqlState::INVALID_AUTHORIZATION_SPECIFICATION)
}

async fn plain(options: &ConnectOptions, deadline: Instant) -> Result<Connected, ConnectError> {
    let stream = dial(&options.address, Some(&options.keepalive), deadline).await?;
    handshake(stream, options, Channel::Plain).await
}

async fn encrypted(options: &ConnectOptions, deadline: Instant) -> Result<Connected, ConnectError> {
    let stream = dial(&options.address, Some(&options.keepalive), deadline).await?;
    let Encrypted { stream, end_point } = encrypt(stream, &options.address, &options.tls).await?;
    handshake(stream, options, Channel::Tls(end_point)).await
}

/// Over TLS when the node has it, and anew in the clear when that fails; in the clear over the same connection, and once,
/// when it has not.
async fn preferred(options: &ConnectOptions, deadline: Instant) -> Result<Connected, ConnectError> {
    let mut stream = dial(&options.address, Some(&options.keepalive), deadline).await?;
    match ask_for_tls(&mut stream).await {
        Ok(()) => match over_tls(stream, options).await {
            Err(ConnectError::Tls(_)) => plain(options, deadline).await,
            Err(refused) if is_rule(&refused) => plain(options, deadline).await,
            done => done,
        },
        Err(ConnectError::NoTls) => handshake(stream, options, Channel::Plain).await,
        Err(error) => Err(error),
    }
}

/// Logs in over TLS, to which the node has agreed.
async fn over_tls(stream: Stream, options: &ConnectOptions) -> Result<Connected, ConnectError> {
    let shaken = options.tls.connect(stream, &options.address.hostname).await;
    let Encrypted { stream, end_point } = shaken.map_err(ConnectError::Tls)?;
    handshake(stream, options, Channel::Tls(end_point)).await
}

/// Asks the node for TLS and does the handshake.
pub(super) async fn encrypt(
    mut stream: Stream,
    address: &NodeAddress,
    tls: &NodeTls,
) -> Result<Encrypted, ConnectError> {
    ask_for_tls(&mut stream).await?;
    tls.connect(stream, &address.hostname).await.map_err(ConnectError::Tls)
}

/// Asks; the node's agreement is the only success.
async fn ask_for_tls(stream: &mut Stream) -> Result<(), ConnectError> {
    let mut request = BytesMut::new();
    write::ssl_request(&mut request);
    stream.write_all(&request).await.map_err(ConnectError::Lost)?;
    // One byte and no more: what follows must come through TLS.
    let mut answer = [0; 1];
    if stream.read(&mut answer).await.map_err(ConnectError::Lost)? == 0 {
        return Err(ConnectError::Closed);
    }
    match answer {
        [b'S'] => Ok(()),
        [b'N'] => Err(ConnectError::NoTls),
        // An error told before TLS may be anybody's: it is not shown (CVE-2024-10977).
        [b'E'] => Err(ConnectError::Protocol("an error in reply to the request for TLS")),
        _ => Err(ConnectError::Protocol("a reply to the request for TLS that is none")),
    }
}
