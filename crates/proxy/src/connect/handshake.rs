//! The login at a node: from the start-up packet to ReadyForQuery.

use bytes::{Buf, Bytes, BytesMut};
use protocol::auth::{Channel, ServerAuth, Step};
use protocol::frame::{HEADER_LEN, backend_header};
use protocol::{message, write};
use rand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{ConnectError, ConnectOptions, Connected, ServerError};
use crate::stream::Stream;

/// The longest message of a login, in bytes; libpq's limit for errors is 30,000.
const MAX_MESSAGE_LEN: usize = 64 * 1024;
/// The most bytes of a whole login: hundreds of ParameterStatus and notices fit.
const MAX_LOGIN_BYTES: usize = 1 << 20;
/// An ErrorResponse with a longer length is text of a server that could not fork (libpq:
/// `MAX_ERRLEN`).
const MAX_ERROR_LEN: usize = 30_000;
/// As much of such a text as is kept.
const MAX_TEXT_LEN: usize = 1024;
/// Bytes asked for at a time.
const READ_LEN: usize = 4096;

/// One message: its tag and its body.
pub(super) struct Message {
    pub(super) tag: u8,
    pub(super) whole: Bytes,
}

impl Message {
    /// What follows the length.
    pub(super) fn body(&self) -> Bytes {
        self.whole.slice(HEADER_LEN.min(self.whole.len())..)
    }
}

/// Reads messages of a server, each and all of them bounded.
pub(super) struct Reader<'a> {
    stream: &'a mut Stream,
    buffer: &'a mut BytesMut,
    max_message: usize,
    budget: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        stream: &'a mut Stream,
        buffer: &'a mut BytesMut,
        max_message: usize,
        budget: usize,
    ) -> Self {
        Self { stream, buffer, max_message, budget }
    }

    /// The next message.
    pub(super) async fn next(&mut self) -> Result<Message, ConnectError> {
        loop {
            let header =
                backend_header(self.buffer).map_err(|_| ConnectError::Protocol("invalid message"))?;
            if let Some(header) = header {
                if header.len > self.max_message {
                    return Err(ConnectError::Protocol("message too long"));
                }
                if header.len <= self.buffer.len() {
                    return Ok(Message { tag: header.tag, whole: self.buffer.split_to(header.len).freeze() });
                }
            }
            self.more().await?;
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), ConnectError> {
        self.stream.write_all(bytes).await.map_err(ConnectError::Lost)?;
        self.stream.flush().await.map_err(ConnectError::Lost)
    }

    async fn more(&mut self) -> Result<(), ConnectError> {
        self.buffer.reserve(READ_LEN);
        let read = self.stream.read_buf(self.buffer).await.map_err(ConnectError::Lost)?;
        if read == 0 {
            return Err(ConnectError::Closed);
        }
        self.budget = self.budget.checked_sub(read).ok_or(ConnectError::Protocol("too many bytes"))?;
        Ok(())
    }

    /// The text that stands in place of an ErrorResponse when the server could not start a process
    /// (`report_fork_failure_to_client` in PostgreSQL).
    async fn text_error(&mut self) -> Result<Option<String>, ConnectError> {
        while self.buffer.len() < HEADER_LEN {
            self.more().await?;
        }
        let mut header: &[u8] = self.buffer;
        let length = match header.get_u8() {
            b'E' => usize::try_from(header.get_u32()).unwrap_or(usize::MAX),
            _ => return Ok(None),
        };
        if (8..=MAX_ERROR_LEN).contains(&length) {
            return Ok(None);
        }
        while !self.buffer.contains(&0) && self.buffer.len() < MAX_TEXT_LEN {
            match self.more().await {
                Ok(()) => {}
                Err(ConnectError::Closed | ConnectError::Lost(_)) => break,
                Err(error) => return Err(error),
            }
        }
        let text = self.buffer.as_ref().split(|&byte| byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(text.get(1..MAX_TEXT_LEN.min(text.len())).unwrap_or_default());
        Ok(Some(text.chars().filter(|letter| !letter.is_control()).collect()))
    }
}

/// Logs in over a fresh connection.
pub(super) async fn handshake(
    mut stream: Stream,
    options: &ConnectOptions,
    channel: Channel,
) -> Result<Connected, ConnectError> {
    let mut params = vec![("user", options.user.as_str()), ("database", options.database.as_str())];
    params.extend(options.params.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let mut out = BytesMut::new();
    write::startup_message(&mut out, &params)?;
    let mut leftover = BytesMut::new();
    let mut reader = Reader::new(&mut stream, &mut leftover, MAX_MESSAGE_LEN, MAX_LOGIN_BYTES);
    reader.send(&out).await?;
    if let Some(text) = reader.text_error().await? {
        return Err(ConnectError::RejectedAsText(text));
    }
    authenticate(&mut reader, options, channel).await?;
    let Facts { parameters, backend_pid, secret } = settle(&mut reader).await?;
    Ok(Connected { stream, parameters, backend_pid, secret, leftover })
}

/// Up to AuthenticationOk.
async fn authenticate(
    reader: &mut Reader<'_>,
    options: &ConnectOptions,
    channel: Channel,
) -> Result<(), ConnectError> {
    let auth = ServerAuth::new(options.user.as_bytes(), options.credentials.clone(), nonce());
    let mut auth = auth.over(channel);
    loop {
        let message = reader.next().await?;
        match message.tag {
            b'R' => match auth.feed(&message.body())? {
                Step::Send(answer) => reader.send(&answer).await?,
                Step::Continue => {}
                Step::Ok => return Ok(()),
            },
            b'E' => return Err(ConnectError::Rejected(ServerError::new(message.body()))),
            b'N' => {}
            _ => return Err(ConnectError::Protocol("unexpected message before authentication")),
        }
    }
}

#[derive(Default)]
struct Facts {
    parameters: Vec<(String, String)>,
    backend_pid: u32,
    secret: Vec<u8>,
}

/// From AuthenticationOk to ReadyForQuery.
async fn settle(reader: &mut Reader<'_>) -> Result<Facts, ConnectError> {
    let mut facts = Facts::default();
    loop {
        let message = reader.next().await?;
        match message.tag {
            b'S' => set_parameter(&mut facts.parameters, &message.whole)?,
            b'K' => (facts.backend_pid, facts.secret) = key(&message.body())?,
            b'Z' if message.body().as_ref() == b"I" => return Ok(facts),
            b'E' => return Err(ConnectError::Rejected(ServerError::new(message.body()))),
            b'N' => {}
            _ => return Err(ConnectError::Protocol("unexpected message during start-up")),
        }
    }
}

/// Takes a whole ParameterStatus; the last value of a name counts.
pub(super) fn set_parameter(
    parameters: &mut Vec<(String, String)>,
    whole: &[u8],
) -> Result<(), ConnectError> {
    let (name, value) =
        message::parameter_status(whole).ok_or(ConnectError::Protocol("malformed ParameterStatus"))?;
    let (name, value) = (lossy(name), lossy(value));
    match parameters.iter_mut().find(|(known, _)| *known == name) {
        Some((_, known)) => *known = value,
        None => parameters.push((name, value)),
    }
    Ok(())
}

fn key(body: &[u8]) -> Result<(u32, Vec<u8>), ConnectError> {
    match body.split_first_chunk::<4>() {
        Some((pid, secret)) if (4..=256).contains(&secret.len()) => {
            Ok((u32::from_be_bytes(*pid), secret.to_vec()))
        }
        _ => Err(ConnectError::Protocol("malformed BackendKeyData")),
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// 18 random bytes as printable ASCII: RFC 5802 asks for freshness, PostgreSQL uses as many.
pub(crate) fn nonce() -> String {
    let bytes: [u8; 18] = rand::rng().random();
    let mut text = String::with_capacity(2 * bytes.len());
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    text.extend(digits.filter_map(|digit| char::from_digit(digit.into(), 16)));
    text
}
