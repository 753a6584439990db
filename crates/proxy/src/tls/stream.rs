//! A TLS connection as the relay needs it: readiness before a buffer is taken, writes that are complete only when
//! the ciphertext is out, and a move from one worker's reactor to another.
//!
//! Invariant: what rustls holds for one connection is bounded by its own limits (64 kB of ciphertext to send, one
//! record received); nothing here adds to them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;
use tokio_rustls::rustls;

use crate::stream::Stream;

/// The socket below TLS, and bytes of it that were read before TLS began.
#[derive(Debug)]
pub(super) struct Socket {
    plain: Plain,
    prefix: Bytes,
}

#[derive(Debug)]
enum Plain {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// Between two reactors.
    Nowhere,
}

fn nowhere() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

impl Socket {
    /// Below TLS there is a socket, never TLS again.
    pub(super) fn new(stream: Stream, prefix: Bytes) -> io::Result<Self> {
        let plain = match stream {
            Stream::Tcp(stream) => Plain::Tcp(stream),
            Stream::Unix(stream) => Plain::Unix(stream),
            Stream::Tls(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(Self { plain, prefix })
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.plain {
            _ if !self.prefix.is_empty() => Poll::Ready(Ok(())),
            Plain::Tcp(stream) => stream.poll_read_ready(cx),
            Plain::Unix(stream) => stream.poll_read_ready(cx),
            Plain::Nowhere => Poll::Ready(Err(nowhere())),
        }
    }

    fn rehome(&mut self) -> io::Result<()> {
        self.plain = match std::mem::replace(&mut self.plain, Plain::Nowhere) {
            Plain::Tcp(stream) => Plain::Tcp(TcpStream::from_std(stream.into_std()?)?),
            Plain::Unix(stream) => Plain::Unix(UnixStream::from_std(stream.into_std()?)?),
            Plain::Nowhere => return Err(nowhere()),
        };
        Ok(())
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.prefix.is_empty() {
            let count = this.prefix.len().min(buf.remaining());
            buf.put_slice(this.prefix.get(..count).unwrap_or_default());
            this.prefix.advance(count);
            return Poll::Ready(Ok(()));
        }
        match &mut this.plain {
            Plain::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Plain::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Plain::Nowhere => Poll::Ready(Err(nowhere())),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().plain {
            Plain::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Plain::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Plain::Nowhere => Poll::Ready(Err(nowhere())),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().plain {
            Plain::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Plain::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Plain::Nowhere => Poll::Ready(Err(nowhere())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().plain {
            Plain::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Plain::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Plain::Nowhere => Poll::Ready(Err(nowhere())),
        }
    }
}

/// See the module's documentation. Dropping it says goodbye as TLS does, if the socket takes that at once.
#[derive(Debug)]
pub struct Tls {
    inner: TlsStream<Socket>,
}

impl Tls {
    pub(super) fn new(inner: TlsStream<Socket>) -> Self {
        Self { inner }
    }

    /// Version and cipher suite, as SHOW and logs tell them; empty before the handshake's end.
    #[must_use]
    pub fn describe(&self) -> String {
        let (_, session) = self.inner.get_ref();
        let version = session.protocol_version().and_then(|version| version.as_str());
        let suite = session.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str());
        let version = version.unwrap_or_default().replacen("TLSv1_", "TLSv1.", 1);
        format!("{version} {}", suite.unwrap_or_default()).trim().to_owned()
    }

    pub(crate) fn tcp(&self) -> Option<&TcpStream> {
        match &self.inner.get_ref().0.plain {
            Plain::Tcp(stream) => Some(stream),
            Plain::Unix(_) | Plain::Nowhere => None,
        }
    }

    pub(crate) fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (socket, state) = match &mut self.inner {
            TlsStream::Client(client) => {
                let (socket, session) = client.get_mut();
                (socket, session.process_new_packets())
            }
            TlsStream::Server(server) => {
                let (socket, session) = server.get_mut();
                (socket, session.process_new_packets())
            }
        };
        let state = state.map_err(invalid)?;
        if state.plaintext_bytes_to_read() > 0 || state.peer_has_closed() {
            return Poll::Ready(Ok(()));
        }
        socket.poll_read_ready(cx)
    }

    /// What has arrived, without waiting.
    pub(crate) fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut buf = ReadBuf::new(buf);
        let mut cx = Context::from_waker(Waker::noop());
        match Pin::new(self).poll_read(&mut cx, &mut buf) {
            Poll::Ready(read) => read.map(|()| buf.filled().len()),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Writes what is taken at once, ciphertext included.
    pub(crate) fn try_write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut cx = Context::from_waker(Waker::noop());
        match Pin::new(&mut self.inner).poll_write(&mut cx, buf) {
            Poll::Ready(written) => {
                let _ = Pin::new(&mut self.inner).poll_flush(&mut cx)?;
                written
            }
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    pub(crate) fn rehome(&mut self) -> io::Result<()> {
        self.inner.get_mut().0.rehome()
    }
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl Drop for Tls {
    fn drop(&mut self) {
        let (_, session) = self.inner.get_mut();
        session.send_close_notify();
        let mut cx = Context::from_waker(Waker::noop());
        // Whoever does not take it sees the end of the stream instead.
        let _ = Pin::new(&mut self.inner).poll_flush(&mut cx);
    }
}

impl AsyncRead for Tls {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match ready!(Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)) {
            // An end without a goodbye of TLS is an end: the messages above have lengths of their own.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            read => Poll::Ready(read),
        }
    }
}

impl AsyncWrite for Tls {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
