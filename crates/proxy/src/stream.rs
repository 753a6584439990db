//! A byte stream to a client or a node, whatever carries it.
//!
//! The relay polls readiness before it takes a buffer, so an idle connection costs none.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::registry::Peer;
use crate::tls::Tls;

/// See the module's documentation.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
    /// TLS over TCP.
    Tls(Box<Tls>),
}

impl Stream {
    /// The other end and ours. Of a socket that is closed already nothing more is known than of a Unix one.
    #[must_use]
    pub fn ends(&self) -> (Peer, Peer) {
        match self {
            Self::Tcp(stream) => match (stream.peer_addr(), stream.local_addr()) {
                (Ok(peer), Ok(local)) => (Peer::Tcp(peer), Peer::Tcp(local)),
                _ => (Peer::Unix, Peer::Unix),
            },
            Self::Unix(_) => (Peer::Unix, Peer::Unix),
            Self::Tls(tls) => match tls.tcp().map(|stream| (stream.peer_addr(), stream.local_addr())) {
                Some((Ok(peer), Ok(local))) => (Peer::Tcp(peer), Peer::Tcp(local)),
                _ => (Peer::Unix, Peer::Unix),
            },
        }
    }

    /// Whether it is encrypted, and how, as SHOW tells it.
    #[must_use]
    pub fn tls(&self) -> Option<String> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => None,
            Self::Tls(tls) => Some(tls.describe()),
        }
    }

    /// Ready when a read would give bytes, the end, or an error; with TLS also when what arrived is part of a
    /// record only.
    ///
    /// # Errors
    /// Those of the runtime's reactor.
    pub fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx),
            Self::Tls(tls) => tls.poll_read_ready(cx),
        }
    }

    /// Reads into `buf`; 0 is the end of the stream.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn poll_read_into(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => poll_receive(stream, cx, buf),
            Self::Unix(stream) => poll_receive(stream, cx, buf),
            Self::Tls(tls) => {
                let mut buf = ReadBuf::new(buf);
                ready!(Pin::new(&mut **tls).poll_read(cx, &mut buf))?;
                Poll::Ready(Ok(buf.filled().len()))
            }
        }
    }

    /// Writes as much of `buf` as the socket takes.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn poll_write_from(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => poll_send(stream, cx, buf),
            Self::Unix(stream) => poll_send(stream, cx, buf),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_write(cx, buf),
        }
    }

    /// Reads what has arrived, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` when there is nothing; those of the socket.
    pub fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(buf),
            Self::Unix(stream) => stream.try_read(buf),
            Self::Tls(tls) => tls.try_read(buf),
        }
    }

    /// Writes what the socket takes at once.
    ///
    /// # Errors
    /// `WouldBlock` when it takes nothing; those of the socket.
    pub fn try_write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(buf),
            Self::Unix(stream) => stream.try_write(buf),
            Self::Tls(tls) => tls.try_write(buf),
        }
    }

    /// Writes what the socket takes at once, also before its reactor has said that it takes anything: that is heard a turn
    /// later. 0 of what is to be encrypted, and where it takes nothing now.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn write_early(&mut self, buf: &[u8]) -> io::Result<usize> {
        let sent = match self {
            Self::Tcp(stream) => SockRef::from(&*stream).send(buf),
            Self::Unix(stream) => SockRef::from(&*stream).send(buf),
            Self::Tls(_) => Ok(0),
        };
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            sent => sent,
        }
    }

    /// Moves the stream to the reactor of the calling thread's runtime.
    ///
    /// # Errors
    /// Those of leaving one reactor and entering the other.
    pub fn rehome(self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(TcpStream::from_std(stream.into_std()?)?),
            Self::Unix(stream) => Self::Unix(UnixStream::from_std(stream.into_std()?)?),
            Self::Tls(mut tls) => {
                tls.rehome()?;
                Self::Tls(tls)
            }
        })
    }
}

/// A socket that a reactor watches. It is called without the layers between, whose instructions are as many as all that
/// is done with what was read; when it is, and what the reactor is told, is as tokio has it.
trait Socket: AsFd {
    fn poll_ready(&self, cx: &mut Context<'_>, interest: Interest) -> Poll<io::Result<()>>;
    /// Runs `call` if the reactor has said that the socket is ready; [`io::ErrorKind::WouldBlock`] takes that back.
    fn if_ready<T>(&self, interest: Interest, call: impl FnOnce() -> io::Result<T>) -> io::Result<T>;
}

impl Socket for TcpStream {
    fn poll_ready(&self, cx: &mut Context<'_>, interest: Interest) -> Poll<io::Result<()>> {
        if interest.is_readable() { self.poll_read_ready(cx) } else { self.poll_write_ready(cx) }
    }

    fn if_ready<T>(&self, interest: Interest, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.try_io(interest, call)
    }
}

impl Socket for UnixStream {
    fn poll_ready(&self, cx: &mut Context<'_>, interest: Interest) -> Poll<io::Result<()>> {
        if interest.is_readable() { self.poll_read_ready(cx) } else { self.poll_write_ready(cx) }
    }

    fn if_ready<T>(&self, interest: Interest, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.try_io(interest, call)
    }
}

fn poll_receive(socket: &impl Socket, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
    let len = buf.len();
    let mut receive = || Ok(recv(socket.as_fd(), &mut *buf, RecvFlags::empty())?.0);
    poll_moved(socket, cx, Interest::READABLE, len, &mut receive)
}

fn poll_send(socket: &impl Socket, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
    let mut send = || Ok(send(socket.as_fd(), buf, SendFlags::NOSIGNAL)?);
    poll_moved(socket, cx, Interest::WRITABLE, buf.len(), &mut send)
}

/// Moves up to `len` bytes with `call`. Fewer mean that the socket is not ready any more (`epoll(7)`): it need not be
/// asked in vain for that to be known.
fn poll_moved(
    socket: &impl Socket,
    cx: &mut Context<'_>,
    interest: Interest,
    len: usize,
    mut call: impl FnMut() -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        let mut fewer = None;
        let moved = socket.if_ready(interest, || match call()? {
            count if 0 < count && count < len => {
                fewer = Some(count);
                Err(io::ErrorKind::WouldBlock.into())
            }
            count => Ok(count),
        });
        match fewer.map_or(moved, Ok) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                ready!(socket.poll_ready(cx, interest))?;
            }
            moved => return Poll::Ready(moved),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Ready when nothing of what was written waits here any more.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(_) | Self::Unix(_) => Poll::Ready(Ok(())),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_shutdown(cx),
        }
    }
}
