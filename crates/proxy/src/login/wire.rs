//! The bytes of a login: bounded reads, one write for all that is due, and a refusal that arrives.

use std::time::Duration;

use bytes::{Buf, BytesMut};
use protocol::startup::{MAX_STARTUP_PACKET_LEN, StartupPacket, parse_startup};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::LoginError;
use crate::stream::Stream;
use crate::tls::{Accepted, ServerTls};

/// The longest password or SASL message (PostgreSQL's `PG_MAX_AUTH_TOKEN_LENGTH`), in bytes with its length.
const MAX_AUTH_MESSAGE_LEN: usize = 65_535;
/// The first byte of a TLS handshake (RFC 8446, section 5.1).
const TLS_HANDSHAKE: u8 = 22;
/// Bytes asked for at a time.
const READ_LEN: usize = 2048;
/// How long a refused client may take to read its error and hang up.
const LINGER: Duration = Duration::from_millis(500);
/// As much of what a refused client still sends is read.
const MAX_LINGER_BYTES: usize = 64 * 1024;

pub(super) struct Wire {
    /// None only while TLS is being established, or when that failed.
    stream: Option<Stream>,
    input: BytesMut,
    output: BytesMut,
}

impl Wire {
    /// `early` was read already.
    pub(super) fn new(stream: Stream, early: BytesMut) -> Self {
        Self { stream: Some(stream), input: early, output: BytesMut::new() }
    }

    /// What is to be sent.
    pub(super) fn out(&mut self) -> &mut BytesMut {
        &mut self.output
    }

    /// Whether bytes have arrived that nobody has looked at.
    pub(super) fn has_input(&self) -> bool {
        !self.input.is_empty()
    }

    /// The connection, what was read ahead, and what is to be sent; `None` when TLS was not established.
    pub(super) fn into_parts(self) -> Option<(Stream, BytesMut, BytesMut)> {
        Some((self.stream?, self.input, self.output))
    }

    /// Whether the first byte is that of a TLS record. It is no start-up packet's: those are not that long.
    pub(super) async fn begins_with_tls(&mut self) -> Result<bool, LoginError> {
        while self.input.is_empty() {
            self.more().await?;
        }
        Ok(self.input.first() == Some(&TLS_HANDSHAKE))
    }

    /// Does the handshake, what was read included.
    pub(super) async fn secure(&mut self, offer: &ServerTls) -> Result<Accepted, LoginError> {
        let stream = self.stream.take().ok_or(LoginError::Closed)?;
        let prefix = self.input.split().freeze();
        let (stream, accepted) = offer.accept(stream, prefix).await.map_err(LoginError::Handshake)?;
        self.stream = Some(stream);
        Ok(accepted)
    }

    /// Who is at the other end of a Unix socket, as the operating system says.
    pub(super) fn peer_uid(&self) -> Option<u32> {
        match self.stream.as_ref()? {
            Stream::Unix(stream) => stream.peer_cred().ok().map(|credentials| credentials.uid()),
            Stream::Tcp(_) | Stream::Tls(_) => None,
        }
    }

    /// Sends all that is due.
    pub(super) async fn send(&mut self) -> Result<(), LoginError> {
        let stream = self.stream.as_mut().ok_or(LoginError::Closed)?;
        let sent = stream.write_early(&self.output).map_err(LoginError::Lost)?;
        self.output.advance(sent);
        stream.write_all_buf(&mut self.output).await.map_err(LoginError::Lost)?;
        stream.flush().await.map_err(LoginError::Lost)
    }

    async fn more(&mut self) -> Result<(), LoginError> {
        self.input.reserve(READ_LEN);
        let stream = self.stream.as_mut().ok_or(LoginError::Closed)?;
        match stream.read_buf(&mut self.input).await {
            Ok(0) => Err(LoginError::Closed),
            Ok(_) => Ok(()),
            Err(error) => Err(LoginError::Lost(error)),
        }
    }

    /// The next packet of the start-up phase. Of a packet that does not end, never more than one
    /// reading's worth above the limit is held.
    pub(super) async fn startup_packet(&mut self) -> Result<StartupPacket, LoginError> {
        loop {
            if let Some((packet, len)) = parse_startup(&self.input).map_err(LoginError::Startup)? {
                self.input.advance(len);
                return Ok(packet);
            }
            debug_assert!(self.input.len() < MAX_STARTUP_PACKET_LEN, "the parser decides by then");
            self.more().await?;
        }
    }

    /// The body of the next message, which must be a `p`.
    pub(super) async fn password_message(&mut self) -> Result<BytesMut, LoginError> {
        loop {
            match self.input.first() {
                Some(b'p') | None => {}
                Some(other) => return Err(LoginError::NotAPassword(*other)),
            }
            if let Some([_, a, b, c, d]) = self.input.first_chunk::<5>() {
                let length = u32::from_be_bytes([*a, *b, *c, *d]);
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                if !(4..=MAX_AUTH_MESSAGE_LEN).contains(&length) {
                    return Err(LoginError::TooLong(length));
                }
                if self.input.len() > length {
                    self.input.advance(5);
                    return Ok(self.input.split_to(length - 4));
                }
            }
            self.more().await?;
        }
    }

    /// Sends the last words and ends the connection so that they arrive: closing with bytes unread would
    /// reset it, and the client would see that instead of the error.
    pub(super) async fn refuse(self, words: &[u8]) {
        let Some(mut stream) = self.stream.filter(|_| !words.is_empty()) else { return };
        let lingering = async {
            stream.write_all(words).await?;
            stream.flush().await?;
            stream.shutdown().await?;
            let mut sink = [0; 1024];
            let mut left = MAX_LINGER_BYTES;
            while left > 0 {
                let read = stream.read(&mut sink).await?;
                if read == 0 {
                    break;
                }
                left = left.saturating_sub(read);
            }
            Ok::<(), std::io::Error>(())
        };
        // A client that does not listen need not hear it.
        let _ = timeout(LINGER, lingering).await;
    }
}
