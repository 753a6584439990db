//! From an address to a socket: Unix or TCP, every address of a name, one deadline.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, timeout_at};

use super::{ConnectError, Keepalive, NodeAddress};
use crate::stream::Stream;

/// The most addresses of one name that are tried.
const MAX_ADDRESSES: usize = 16;
/// How long one address may keep the next from being tried.
const STAGGER: Duration = Duration::from_millis(250);

pub(super) async fn dial(
    address: &NodeAddress,
    keepalive: Option<&Keepalive>,
    deadline: Instant,
) -> Result<Stream, ConnectError> {
    if let Some(path) = address.socket_path() {
        let connecting = timeout_at(deadline, UnixStream::connect(path));
        let stream = connecting.await.map_err(|_| ConnectError::TimedOut)?;
        return stream.map(Stream::Unix).map_err(ConnectError::Unreachable);
    }
    let resolving = timeout_at(deadline, lookup_host((address.hostname.as_str(), address.port)));
    let resolved = resolving.await.map_err(|_| ConnectError::TimedOut)?.map_err(ConnectError::Resolve)?;
    let stream = first_of(resolved.take(MAX_ADDRESSES).collect(), deadline).await?;
    stream.set_nodelay(true).map_err(ConnectError::Unreachable)?;
    if let Some(keepalive) = keepalive {
        keepalive.watch(&stream).map_err(ConnectError::Unreachable)?;
    }
    Ok(Stream::Tcp(stream))
}

/// The first address that takes a connection. The next one is tried when one has failed, or has not answered for a
/// moment, so that one that swallows packets holds nobody up; whoever answers first is taken (RFC 8305, without its
/// sorting).
async fn first_of(addresses: Vec<SocketAddr>, deadline: Instant) -> Result<TcpStream, ConnectError> {
    let none = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let mut failure = ConnectError::Resolve(none);
    let mut next = addresses.into_iter();
    let mut trying: Vec<Attempt> = Vec::new();
    loop {
        trying.extend(next.next().map(|address| -> Attempt { Box::pin(TcpStream::connect(address)) }));
        if trying.is_empty() {
            return Err(failure);
        }
        let until = match next.len() {
            0 => deadline,
            _ => deadline.min(Instant::now() + STAGGER),
        };
        match timeout_at(until, any(&mut trying)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failure = ConnectError::Unreachable(error),
            Err(_) if Instant::now() >= deadline => return Err(ConnectError::TimedOut),
            Err(_) => {}
        }
    }
}

/// A connection that is being made.
type Attempt = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

/// Waits for the first that ends, and takes it out.
async fn any(trying: &mut Vec<Attempt>) -> io::Result<TcpStream> {
    std::future::poll_fn(|cx| {
        let done =
            trying.iter_mut().enumerate().find_map(|(index, attempt)| match attempt.as_mut().poll(cx) {
                Poll::Ready(outcome) => Some((index, outcome)),
                Poll::Pending => None,
            });
        let Some((index, outcome)) = done else { return Poll::Pending };
        drop(trying.swap_remove(index));
        Poll::Ready(outcome)
    })
    .await
}

impl Keepalive {
    /// Has the kernel watch `stream`.
    ///
    /// # Errors
    /// Those of the socket's options.
    pub fn watch(&self, socket: &impl AsFd) -> io::Result<()> {
        let socket = SockRef::from(socket);
        let probes =
            TcpKeepalive::new().with_time(self.idle).with_interval(self.interval).with_retries(self.count);
        socket.set_tcp_keepalive(&probes)?;
        socket.set_tcp_user_timeout(self.user_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_tried_and_the_last_failure_counts() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let live = listener.local_addr().unwrap();
        // Nobody listens any more: refused.
        let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let deadline = Instant::now() + Duration::from_secs(5);
            let stream = first_of(vec![dead, dead, live], deadline).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), live);
            assert!(matches!(first_of(vec![dead, dead], deadline).await, Err(ConnectError::Unreachable(_))));
            assert!(matches!(first_of(vec![], deadline).await, Err(ConnectError::Resolve(_))));
        });
    }

    #[test]
    fn sockets_are_watched_as_configured() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let address = NodeAddress { hostname: "localhost".to_owned(), port };
        let keepalive = Keepalive {
            idle: Duration::from_secs(61),
            interval: Duration::from_secs(11),
            count: 4,
            user_timeout: Some(Duration::from_secs(31)),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let deadline = Instant::now() + Duration::from_secs(5);
            let Stream::Tcp(stream) = dial(&address, Some(&keepalive), deadline).await.unwrap() else {
                panic!()
            };
            assert!(stream.nodelay().unwrap());
            let socket = SockRef::from(&stream);
            assert!(socket.keepalive().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), keepalive.idle);
            assert_eq!(socket.tcp_keepalive_interval().unwrap(), keepalive.interval);
            assert_eq!(socket.tcp_keepalive_retries().unwrap(), keepalive.count);
            assert_eq!(socket.tcp_user_timeout().unwrap(), keepalive.user_timeout);
        });
    }
}
