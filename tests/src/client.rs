//! A client that speaks the protocol byte by byte, with a deadline on everything.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};

use crate::login::Login;
use crate::messages::{Msgs, cancel_request, msgs};
use crate::replies::{Replies, Reply};
use crate::rows::{PgError, Rows};
use crate::tls::{TlsOffer, TlsStream, handshake};

/// The request for TLS.
pub const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// A message longer than this is taken for a framing error.
const MAX_MESSAGE: usize = 1 << 30;

/// How long anything may take: 3 s, or `PGWEIR_TEST_DEADLINE` seconds on a slow machine.
#[must_use]
pub fn deadline() -> Duration {
    let given = std::env::var("PGWEIR_TEST_DEADLINE").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(given.unwrap_or(3))
}

/// What carries the messages.
#[derive(Debug)]
enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
    /// A handshake failed.
    Gone,
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
            Self::Gone => Err(ErrorKind::NotConnected.into()),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
            Self::Gone => Err(ErrorKind::NotConnected.into()),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
            Self::Gone => Err(ErrorKind::NotConnected.into()),
        }
    }
}

/// One connection.
#[derive(Debug)]
pub struct RawClient {
    stream: Wire,
    port: u16,
    unread: Vec<u8>,
    deadline: Duration,
    chunk: usize,
    /// The values of ParameterStatus, as last reported.
    pub parameters: BTreeMap<String, String>,
    /// Process id and secret of BackendKeyData.
    pub key: Option<(u32, Vec<u8>)>,
    /// Everything that came during the login.
    pub greeting: Replies,
}

impl RawClient {
    /// Logs in as `bench` to the database `bench`.
    ///
    /// # Errors
    /// As [`Login::connect`].
    pub fn bench(port: u16) -> Result<Self> {
        Login::bench().connect(port)
    }

    /// Connects without saying anything.
    ///
    /// # Errors
    /// When the port does not answer.
    pub fn tcp(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: Wire::Plain(stream),
            port,
            unread: Vec::new(),
            deadline: deadline(),
            chunk: usize::MAX,
            parameters: BTreeMap::new(),
            key: None,
            greeting: Replies::default(),
        })
    }

    fn socket(&self) -> Result<&TcpStream> {
        match &self.stream {
            Wire::Plain(stream) => Ok(stream),
            Wire::Tls(stream) => Ok(stream.get_ref()),
            Wire::Gone => bail!("no connection: the handshake failed"),
        }
    }

    /// Does a TLS handshake on the connection as it is; ask for it first, or do not (direct TLS).
    ///
    /// # Errors
    /// When it fails; the connection is gone then.
    pub fn secure(&mut self, offer: &TlsOffer) -> Result<()> {
        self.socket()?.set_read_timeout(Some(self.deadline))?;
        match std::mem::replace(&mut self.stream, Wire::Gone) {
            Wire::Plain(stream) => self.stream = Wire::Tls(Box::new(handshake(stream, offer)?)),
            Wire::Tls(_) | Wire::Gone => bail!("TLS inside TLS"),
        }
        Ok(())
    }

    /// Asks for TLS, gets it, and does the handshake.
    ///
    /// # Errors
    /// When it is declined or fails.
    pub fn start_tls(&mut self, offer: &TlsOffer) -> Result<()> {
        self.send_bytes(&SSL_REQUEST)?;
        let answer = self.read_byte()?;
        ensure!(answer == b'S', "{:?} in answer to an SSLRequest", char::from(answer));
        self.secure(offer)
    }

    /// Changes how long each later call may take.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// Sends everything from now on in chunks of `bytes`.
    pub fn set_chunk(&mut self, bytes: usize) {
        self.chunk = bytes.max(1);
    }

    /// Starts up and authenticates on a fresh connection.
    ///
    /// # Errors
    /// As [`Login::connect`].
    pub fn log_in(&mut self, login: &Login) -> Result<()> {
        self.send_bytes(&login.packet())?;
        loop {
            let reply = self.next()?.context("connection closed during the login")?;
            self.greeting.0.push(reply.clone());
            match reply {
                Reply::Authentication { code, data } => self.authenticate(login, code, &data)?,
                Reply::BackendKey { pid, secret } => self.key = Some((pid, secret)),
                Reply::Error(fields) => bail!(PgError(fields)),
                Reply::ReadyForQuery(_) => return Ok(()),
                Reply::ParameterStatus(..) | Reply::Notice(_) | Reply::Negotiate { .. } => {}
                other => bail!("{other} during the login"),
            }
        }
    }

    fn authenticate(&mut self, login: &Login, code: u32, data: &[u8]) -> Result<()> {
        let password = login.password_bytes();
        match code {
            0 => Ok(()),
            3 => self.send_bytes(msgs().message(b'p', &[password, &[0]].concat()).bytes()),
            5 => {
                let hash = md5_hash(login.user().as_bytes(), password, data.try_into()?);
                self.send_bytes(msgs().message(b'p', &[hash.as_bytes(), &[0]].concat()).bytes())
            }
            10 => self.scram(password, data),
            _ => bail!("authentication method {code}"),
        }
    }

    fn scram(&mut self, password: &[u8], mechanisms: &[u8]) -> Result<()> {
        let offered = mechanisms.split(|byte| *byte == 0).any(|name| name == b"SCRAM-SHA-256");
        ensure!(offered, "SCRAM-SHA-256 not offered");
        let mut scram = ScramSha256::new(password, ChannelBinding::unsupported());
        let first = scram.message();
        let length = u32::try_from(first.len())?.to_be_bytes();
        let body = [&b"SCRAM-SHA-256\0"[..], &length, first].concat();
        self.send_bytes(msgs().message(b'p', &body).bytes())?;
        scram.update(&self.sasl(11)?)?;
        self.send_bytes(msgs().message(b'p', scram.message()).bytes())?;
        scram.finish(&self.sasl(12)?)?;
        Ok(())
    }

    fn sasl(&mut self, expected: u32) -> Result<Vec<u8>> {
        match self.next()? {
            Some(Reply::Authentication { code, data }) if code == expected => Ok(data),
            Some(Reply::Error(fields)) => bail!(PgError(fields)),
            Some(other) => bail!("{other} instead of SASL step {expected}"),
            None => bail!("connection closed in the middle of SASL"),
        }
    }

    /// Sends bytes, in the chunks that were asked for, each in a packet of its own.
    ///
    /// # Errors
    /// When they cannot be written within the deadline.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.socket()?.set_write_timeout(Some(self.deadline))?;
        for chunk in bytes.chunks(self.chunk) {
            self.stream.write_all(chunk).context("sending")?;
        }
        Ok(())
    }

    /// Sends messages.
    ///
    /// # Errors
    /// As [`RawClient::send_bytes`].
    pub fn send(&mut self, messages: &Msgs) -> Result<()> {
        self.send_bytes(messages.bytes())
    }

    /// The next message; `None` at the end of the stream.
    ///
    /// # Errors
    /// When nothing complete arrives within the deadline, or it is malformed.
    #[allow(clippy::should_implement_trait, reason = "fallible, and it waits: not an iterator")]
    pub fn next(&mut self) -> Result<Option<Reply>> {
        let end = Instant::now() + self.deadline;
        self.next_until(end)
    }

    fn next_until(&mut self, end: Instant) -> Result<Option<Reply>> {
        loop {
            if let Some(reply) = self.decode()? {
                if let Reply::ParameterStatus(name, value) = &reply {
                    self.parameters.insert(name.clone(), value.clone());
                }
                return Ok(Some(reply));
            }
            if !self.fill(end)? {
                ensure!(self.unread.is_empty(), "connection closed in the middle of a message");
                return Ok(None);
            }
        }
    }

    fn decode(&mut self) -> Result<Option<Reply>> {
        self.take_message()?.map(|(tag, body)| Reply::decode(tag, &body)).transpose()
    }

    /// The type byte and the body of the message at the front of what was read.
    fn take_message(&mut self) -> Result<Option<(u8, Vec<u8>)>> {
        let Some((head, rest)) = self.unread.split_at_checked(5) else { return Ok(None) };
        let tag = head[0];
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        ensure!((4..MAX_MESSAGE).contains(&length), "message {:?} of length {length}", char::from(tag));
        let Some(body) = rest.get(..length - 4) else { return Ok(None) };
        let body = body.to_vec();
        self.unread.drain(..=length);
        Ok(Some((tag, body)))
    }

    /// The next message as it is on the wire, type byte and body; `None` at the end of the stream, of which a
    /// reset is one.
    ///
    /// # Errors
    /// When nothing complete arrives within the deadline.
    pub fn next_raw(&mut self) -> Result<Option<(u8, Vec<u8>)>> {
        let end = Instant::now() + self.deadline;
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(Some(message));
            }
            match self.fill(end) {
                Ok(true) => {}
                Ok(false) => {
                    ensure!(self.unread.is_empty(), "connection closed in the middle of a message");
                    return Ok(None);
                }
                Err(error) if is_reset(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Passes over the next message without keeping it: its type and its length in all. The deadline is for each
    /// read.
    ///
    /// # Errors
    /// When nothing arrives within the deadline, or the stream ends inside of the message.
    pub fn skip_message(&mut self) -> Result<Option<(u8, u64)>> {
        while self.unread.len() < 5 {
            if !self.fill(Instant::now() + self.deadline)? {
                ensure!(self.unread.is_empty(), "connection closed in the middle of a message");
                return Ok(None);
            }
        }
        let tag = self.unread[0];
        let length = u32::from_be_bytes([self.unread[1], self.unread[2], self.unread[3], self.unread[4]]);
        let mut left = length as usize + 1;
        loop {
            let here = left.min(self.unread.len());
            self.unread.drain(..here);
            left -= here;
            if left == 0 {
                return Ok(Some((tag, u64::from(length) + 1)));
            }
            ensure!(
                self.fill(Instant::now() + self.deadline)?,
                "connection closed in the middle of a message"
            );
        }
    }

    /// Reads once; false at the end of the stream.
    fn fill(&mut self, end: Instant) -> Result<bool> {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.socket()?.set_read_timeout(Some(left))?;
        let mut buffer = [0u8; 65536];
        match self.stream.read(&mut buffer) {
            Ok(0) => Ok(false),
            Ok(n) => {
                self.unread.extend(&buffer[..n]);
                Ok(true)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                bail!(
                    "no reply within {:?}; {} bytes of an incomplete message",
                    self.deadline,
                    self.unread.len()
                )
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error).context("reading"),
        }
    }

    /// One byte, as in the answer to an SSLRequest.
    ///
    /// # Errors
    /// When none comes within the deadline.
    pub fn read_byte(&mut self) -> Result<u8> {
        let end = Instant::now() + self.deadline;
        while self.unread.is_empty() {
            ensure!(self.fill(end)?, "connection closed");
        }
        Ok(self.unread.remove(0))
    }

    /// Reads until `done` says so or the stream ends; the deadline is for all of it.
    ///
    /// # Errors
    /// As [`RawClient::next`]; the error names what had arrived.
    pub fn read_until(&mut self, mut done: impl FnMut(&Reply) -> bool) -> Result<Replies> {
        let end = Instant::now() + self.deadline;
        let mut replies = Replies::default();
        loop {
            match self.next_until(end).with_context(|| format!("after [{replies}]"))? {
                None => return Ok(replies),
                Some(reply) => {
                    let last = done(&reply);
                    replies.0.push(reply);
                    if last {
                        return Ok(replies);
                    }
                }
            }
        }
    }

    /// Reads until `n` ReadyForQuery have come.
    ///
    /// # Errors
    /// As [`RawClient::read_until`], and when the connection is closed before.
    pub fn read_ready(&mut self, n: usize) -> Result<Replies> {
        let mut left = n;
        let replies = self.read_until(|reply| {
            left -= usize::from(matches!(reply, Reply::ReadyForQuery(_)));
            left == 0
        })?;
        if left > 0 {
            let reason = replies.error().cloned().map(PgError);
            let closed = anyhow!("connection closed, {left} ReadyForQuery missing, after [{replies}]");
            return Err(reason.map_or(closed, anyhow::Error::new));
        }
        Ok(replies)
    }

    /// Reads exactly `n` messages.
    ///
    /// # Errors
    /// As [`RawClient::read_until`].
    pub fn read_count(&mut self, n: usize) -> Result<Replies> {
        let mut left = n;
        self.read_until(|_| {
            left -= 1;
            left == 0
        })
    }

    /// Reads to the end of the stream; a reset counts as the end.
    ///
    /// # Errors
    /// When the other side keeps the connection open.
    pub fn read_to_end(&mut self) -> Result<Replies> {
        let end = Instant::now() + self.deadline;
        let mut replies = Replies::default();
        loop {
            match self.next_until(end) {
                Ok(Some(reply)) => replies.0.push(reply),
                Ok(None) => return Ok(replies),
                Err(error) if is_reset(&error) => return Ok(replies),
                Err(error) => return Err(error.context(format!("not closed; got [{replies}]"))),
            }
        }
    }

    /// True when nothing arrives for `time`.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn silent_for(&mut self, time: Duration) -> Result<bool> {
        if !self.unread.is_empty() {
            return Ok(false);
        }
        let socket = self.socket()?;
        socket.set_read_timeout(Some(time))?;
        match socket.peek(&mut [0u8; 1]) {
            Ok(_) => Ok(false),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends messages and reads all that is due for them: as many ReadyForQuery as they ask for.
    ///
    /// # Errors
    /// As [`RawClient::read_ready`].
    pub fn talk(&mut self, messages: &Msgs) -> Result<Replies> {
        self.send(messages)?;
        self.read_ready(messages.ready_due())
    }

    /// Runs a simple query to its ReadyForQuery.
    ///
    /// # Errors
    /// The first ErrorResponse as [`PgError`], or what went wrong with the connection.
    pub fn simple(&mut self, sql: &str) -> Result<Rows> {
        let replies = self.talk(&msgs().Q(sql))?;
        if let Some(fields) = replies.error() {
            bail!(PgError(fields.clone()));
        }
        Ok(Rows::from(replies))
    }

    /// The first value that a simple query returns; NULL and nothing are an empty text.
    ///
    /// # Errors
    /// As [`RawClient::simple`].
    pub fn scalar(&mut self, sql: &str) -> Result<String> {
        Ok(self.simple(sql)?.first_column().into_iter().next().unwrap_or_default())
    }

    /// Runs one statement by `P B E S`; the first value.
    ///
    /// # Errors
    /// As [`RawClient::simple`].
    pub fn scalar_extended(&mut self, sql: &str, values: &[&str]) -> Result<String> {
        let replies = self.talk(&msgs().P("", sql).B("", "", values).E().S())?;
        match replies.error() {
            Some(fields) => bail!(PgError(fields.clone())),
            None => Ok(replies.values().into_iter().next().unwrap_or_default()),
        }
    }

    /// The SQLSTATE with which a simple query fails; empty when it does not.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn sqlstate_of(&mut self, sql: &str) -> Result<String> {
        let replies = self.talk(&msgs().Q(sql))?;
        Ok(replies.error().map(|fields| fields.get('C').to_owned()).unwrap_or_default())
    }

    /// Sends a CancelRequest for this connection on one of its own, and waits for that to be closed.
    ///
    /// # Errors
    /// When there is no key, or the other side answers or keeps the connection open.
    pub fn cancel(&self) -> Result<()> {
        let (pid, secret) = self.key.as_ref().context("no BackendKeyData")?;
        self.cancel_with(*pid, secret)
    }

    /// As [`RawClient::cancel`], with that key. The deadline is this client's.
    ///
    /// # Errors
    /// When the connection is not closed without a byte.
    pub fn cancel_with(&self, pid: u32, secret: &[u8]) -> Result<()> {
        let mut other = Self::tcp(self.port)?;
        other.set_deadline(self.deadline);
        other.send_bytes(&cancel_request(pid, secret))?;
        let answer = other.read_to_end()?;
        ensure!(answer.0.is_empty(), "bytes in answer to a CancelRequest: {answer}");
        Ok(())
    }

    /// Ends politely and waits for the other side to close.
    ///
    /// # Errors
    /// When it does not.
    pub fn terminate(mut self) -> Result<()> {
        self.send(&msgs().X())?;
        self.read_to_end()?;
        Ok(())
    }

    /// Ends with a TCP reset.
    ///
    /// # Errors
    /// When the socket refuses the option.
    pub fn reset(self) -> Result<()> {
        socket2::SockRef::from(self.socket()?).set_linger(Some(Duration::ZERO))?;
        Ok(())
    }

    /// Closes the sending half only.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn half_close(&self) -> Result<()> {
        Ok(self.socket()?.shutdown(Shutdown::Write)?)
    }
}

fn is_reset(error: &anyhow::Error) -> bool {
    let kinds = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::ConnectionAborted];
    error.chain().any(|e| e.downcast_ref::<std::io::Error>().is_some_and(|e| kinds.contains(&e.kind())))
}
