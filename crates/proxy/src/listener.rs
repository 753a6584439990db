//! Listening sockets: bound at start, accepted on one worker, served on that or on another one.
//!
//! An accepted connection inherits its options from the listening socket, and meets no reactor before that of its
//! worker: a login is short, and each call of the system is a good part of it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use config::Config;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{SocketFlags, accept_with, acceptfrom_with};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use telemetry::Sparse;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpListener, UnixListener};

use crate::connect::Keepalive;
use crate::registry::Peer;
use crate::stream::Stream;

/// How long accepting pauses when the system gives no descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The most that is read of a connection before it has a reactor: a start-up packet (bytes).
const EARLY_LEN: usize = 2048;
/// How connections are accepted: with what they need, so that it takes no call of its own.
const ACCEPTED: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
/// The longest path of a Unix socket (`sun_path`, with its end).
const MAX_SOCKET_PATH: usize = 107;

/// A listener could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A TCP address.
    #[error("cannot listen on {address}: {source}")]
    Tcp {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// A socket that was opened for us.
    #[error("cannot use a socket of LISTEN_FDS: {0}")]
    Inherited(io::Error),
    /// A Unix socket.
    #[error("cannot listen on {}: {source}", .path.display())]
    Unix {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// One listening socket. Dropping it closes it, and removes the file of a Unix socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// Unix.
    Unix(UnixListener, SocketFile),
}

/// A socket's file, removed with it.
#[derive(Debug)]
pub struct SocketFile(Option<PathBuf>);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.as_ref().map(std::fs::remove_file) {
            tracing::debug!(path = ?self.0, error = %error, "cannot remove socket file");
        }
    }
}

/// A listening socket that somebody else has opened for us.
#[derive(Debug)]
pub enum Inherited {
    /// TCP.
    Tcp(std::net::TcpListener),
    /// Unix. Its file is not ours.
    Unix(std::os::unix::net::UnixListener),
}

/// Takes over sockets that somebody else has opened. Must be called inside a runtime.
///
/// # Errors
/// One of them cannot be used.
pub fn adopt(inherited: Vec<Inherited>) -> Result<Vec<Listener>, ListenError> {
    let adopted = inherited.into_iter().map(|socket| match socket {
        Inherited::Tcp(listener) => {
            listener.set_nonblocking(true)?;
            Ok(Listener::Tcp(TcpListener::from_std(listener)?))
        }
        Inherited::Unix(listener) => {
            listener.set_nonblocking(true)?;
            Ok(Listener::Unix(UnixListener::from_std(listener)?, SocketFile(None)))
        }
    });
    adopted.collect::<io::Result<_>>().map_err(ListenError::Inherited)
}

/// A connection that was accepted, not yet on a worker's reactor.
#[derive(Debug)]
pub enum Accepted {
    /// TCP: from where, and to where if the listener is bound to one address.
    Tcp(std::net::TcpStream, SocketAddr, Option<SocketAddr>),
    /// Unix.
    Unix(std::os::unix::net::UnixStream),
}

/// One that is on its worker's reactor.
#[derive(Debug)]
pub struct Arrived {
    /// The connection.
    pub stream: Stream,
    /// What had been sent by then.
    pub early: BytesMut,
    /// From where.
    pub peer: Peer,
    /// To where.
    pub local: Peer,
}

impl Accepted {
    /// Reads what is there, and brings it to the reactor of the calling task.
    ///
    /// # Errors
    /// Those of the reactor and of the socket.
    pub fn into_stream(self) -> io::Result<Arrived> {
        Ok(match self {
            Self::Tcp(mut stream, peer, local) => {
                let early = read_early(&mut stream);
                let local = Peer::Tcp(local.map_or_else(|| stream.local_addr(), Ok)?);
                let stream = Stream::Tcp(tokio::net::TcpStream::from_std(stream)?);
                Arrived { stream, early, peer: Peer::Tcp(peer), local }
            }
            Self::Unix(mut stream) => {
                let early = read_early(&mut stream);
                let stream = Stream::Unix(tokio::net::UnixStream::from_std(stream)?);
                Arrived { stream, early, peer: Peer::Unix, local: Peer::Unix }
            }
        })
    }
}

/// Nothing, an end and a failure are met again when the connection is read.
fn read_early(stream: &mut impl io::Read) -> BytesMut {
    let mut early = [0; EARLY_LEN];
    let count = stream.read(&mut early).unwrap_or_default();
    BytesMut::from(early.get(..count).unwrap_or_default())
}

/// Binds everything that the configuration names. Must be called inside a runtime.
///
/// # Errors
/// The first address that cannot be bound.
pub fn bind(config: &Config) -> Result<Vec<Listener>, ListenError> {
    let mut listeners = Vec::new();
    let ports = [Some(config.port), config.read_only_port].into_iter().flatten();
    for (address, port) in ports.flat_map(|port| config.listen_addresses.iter().map(move |name| (name, port)))
    {
        for address in resolve(address, port)? {
            let listener = bind_tcp(address, config.listen_backlog)
                .map_err(|source| ListenError::Tcp { address: address.to_string(), source })?;
            listeners.push(Listener::Tcp(listener));
        }
    }
    for directory in socket_directories(config) {
        let path = Path::new(directory).join(format!(".s.PGSQL.{}", config.port));
        let listener = match directory.strip_prefix('@') {
            Some(_) => bind_abstract(&path).map(|listener| Listener::Unix(listener, SocketFile(None))),
            None => bind_unix(&path, config.unix_socket_permissions)
                .map(|listener| Listener::Unix(listener, SocketFile(Some(path.clone())))),
        };
        listeners.push(listener.map_err(|source| ListenError::Unix { path, source })?);
    }
    Ok(listeners)
}

/// The default directory is used where it is there; one that was asked for must be there.
fn socket_directories(config: &Config) -> impl Iterator<Item = &String> {
    let given = config.is_given("unix_socket_directories");
    config.unix_socket_directories.iter().filter(move |directory| given || Path::new(directory).is_dir())
}

/// A name in Linux's abstract namespace: no file, no permissions.
fn bind_abstract(path: &Path) -> io::Result<UnixListener> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    let name = path.as_os_str().as_bytes().strip_prefix(b"@").unwrap_or_default();
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
    let listener = std::os::unix::net::UnixListener::bind_addr(&address)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

fn resolve(name: &str, port: u16) -> Result<Vec<std::net::SocketAddr>, ListenError> {
    use std::net::ToSocketAddrs;
    if name == "*" {
        // One dual-stack socket where the system has IPv6.
        let any = std::net::SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, port));
        let has_ipv6 = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)).is_ok();
        return Ok(vec![if has_ipv6 { any } else { (std::net::Ipv4Addr::UNSPECIFIED, port).into() }]);
    }
    let resolved = (name, port).to_socket_addrs();
    let mut addresses: Vec<_> =
        resolved.map_err(|source| ListenError::Tcp { address: format!("{name}:{port}"), source })?.collect();
    addresses.dedup();
    Ok(addresses)
}

fn bind_tcp(address: std::net::SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    TcpListener::from_std(socket.into())
}

fn bind_unix(path: &Path, permissions: u32) -> io::Result<UnixListener> {
    if path.as_os_str().len() > MAX_SOCKET_PATH {
        let text = format!("the path is longer than {MAX_SOCKET_PATH} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    remove_stale(path)?;
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(permissions))?;
    Ok(listener)
}

/// Removes the socket of a process that is gone. One that answers is left alone.
fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file is there and is no socket"));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")),
        Err(_) => std::fs::remove_file(path),
    }
}

impl Listener {
    /// Accepts for ever, and gives each connection to `serve`. `keepalive` is asked each time how the kernel is to
    /// watch connections.
    pub async fn run(
        self,
        keepalive: impl Fn() -> Keepalive + Send + Sync,
        serve: impl Fn(Accepted) + Send + Sync,
    ) {
        let done = match self {
            Self::Tcp(listener) => match listener.into_std().and_then(registered) {
                Ok(listener) => accept_tcp(listener, keepalive, serve).await,
                Err(error) => Err(error),
            },
            Self::Unix(listener, _file) => match listener.into_std().and_then(registered) {
                Ok(listener) => accept_unix(listener, serve).await,
                Err(error) => Err(error),
            },
        };
        if let Err(error) = done {
            tracing::error!(error = %error, "cannot accept connections on a listener");
        }
    }
}

/// With the reactor of this task.
#[expect(deprecated, reason = "the other way is unsafe; a listener is not replaced while it is registered")]
fn registered<L: std::os::fd::AsRawFd>(listener: L) -> io::Result<AsyncFd<L>> {
    AsyncFd::with_interest(listener, Interest::READABLE)
}

async fn accept_tcp(
    listener: AsyncFd<std::net::TcpListener>,
    keepalive: impl Fn() -> Keepalive,
    serve: impl Fn(Accepted),
) -> io::Result<()> {
    let mut inherited = keepalive();
    let local = listener.get_ref().local_addr().ok().filter(|local| !local.ip().is_unspecified());
    inherit(listener.get_ref(), &inherited)?;
    let mut lines = Sparse::default();
    loop {
        let Some((stream, peer)) = accept(&listener, &mut lines, accept_one).await else { continue };
        let wanted = keepalive();
        if wanted != inherited {
            // Those in the backlog have the old ones.
            inherit(listener.get_ref(), &wanted)?;
            inherited = wanted;
        }
        serve(Accepted::Tcp(stream, peer, local));
    }
}

async fn accept_unix(
    listener: AsyncFd<std::os::unix::net::UnixListener>,
    serve: impl Fn(Accepted),
) -> io::Result<()> {
    let mut lines = Sparse::default();
    loop {
        let accept_one = |listener: &std::os::unix::net::UnixListener| {
            Ok(retry_on_intr(|| accept_with(listener, ACCEPTED))?.into())
        };
        if let Some(stream) = accept(&listener, &mut lines, accept_one).await {
            serve(Accepted::Unix(stream));
        }
    }
}

/// The connection at the front, and from where.
fn accept_one(listener: &std::net::TcpListener) -> io::Result<(std::net::TcpStream, SocketAddr)> {
    let (socket, peer) = retry_on_intr(|| acceptfrom_with(listener, ACCEPTED))?;
    let peer = SocketAddr::try_from(peer.ok_or(Errno::AFNOSUPPORT)?)?;
    Ok((socket.into(), peer))
}

/// The next connection; none, after a pause, when the system gives none.
async fn accept<L: std::os::fd::AsRawFd, T>(
    listener: &AsyncFd<L>,
    lines: &mut Sparse,
    accept: impl Fn(&L) -> io::Result<T>,
) -> Option<T> {
    match listener.async_io(Interest::READABLE, accept).await {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            if let Some(left_out) = lines.admit(Instant::now()) {
                tracing::warn!(error = %error, left_out, "cannot accept a connection");
            }
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// What connections that are accepted from now on begin with: Linux copies these options.
fn inherit(listener: &impl AsFd, keepalive: &Keepalive) -> io::Result<()> {
    SockRef::from(listener).set_tcp_nodelay(true)?;
    keepalive.watch(listener)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn connections_inherit_their_options() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let keepalive = |seconds| Keepalive {
            idle: Duration::from_secs(seconds),
            interval: Duration::from_secs(7),
            count: 4,
            user_timeout: Some(Duration::from_secs(9)),
        };
        for seconds in [70, 80] {
            inherit(&listener, &keepalive(seconds)).unwrap();
            let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            let socket = SockRef::from(&accepted);
            assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(seconds));
            assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(7));
            assert_eq!(socket.tcp_keepalive_retries().unwrap(), 4);
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(9)));
        }
    }
}
