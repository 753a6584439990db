//! A plain query on a connection of our own: the health checker's and the sampler's questions.

use std::io;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use protocol::write::{self, WriteError};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::handshake::{Reader, set_parameter};
use super::{ConnectError, Connected, ServerError};

/// The most bytes one answer may have.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Rows of text values; `None` is null.
pub type Rows = Vec<Vec<Option<String>>>;

/// Why a query gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The server refused it; unless the error is FATAL the connection goes on.
    #[error("{0}")]
    Server(ServerError),
    /// No whole answer in time. The connection is of no use.
    #[error("no answer within the time allowed")]
    TimedOut,
    /// The connection is gone.
    #[error("connection lost: {0}")]
    Lost(#[source] io::Error),
    /// The server hung up. The connection is of no use.
    #[error("the server closed the connection unexpectedly")]
    Closed,
    /// What came is not the protocol, or too much. The connection is of no use.
    #[error("protocol violation of the server: {0}")]
    Protocol(&'static str),
    /// The text cannot be sent; nothing was.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl QueryError {
    /// Whether the connection may be used for the next query.
    #[must_use]
    pub fn is_connection_usable(&self) -> bool {
        match self {
            Self::Server(error) => !error.view().severity().is_some_and(|severity| severity.ends_session()),
            Self::Write(_) => true,
            Self::TimedOut | Self::Lost(_) | Self::Closed | Self::Protocol(_) => false,
        }
    }
}

impl From<ConnectError> for QueryError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Lost(error) | ConnectError::Unreachable(error) | ConnectError::Resolve(error) => {
                Self::Lost(error)
            }
            ConnectError::TimedOut => Self::TimedOut,
            ConnectError::Closed => Self::Closed,
            ConnectError::Rejected(error) => Self::Server(error),
            ConnectError::Protocol(text) => Self::Protocol(text),
            ConnectError::Write(error) => Self::Write(error),
            ConnectError::NoTls
            | ConnectError::Tls(_)
            | ConnectError::RejectedAsText(_)
            | ConnectError::Auth(_) => Self::Protocol("unexpected message"),
        }
    }
}

/// Runs `sql` and waits for the whole answer: the rows of all its statements.
///
/// # Errors
/// See [`QueryError`], and [`QueryError::is_connection_usable`] for what to do with the connection.
pub async fn query(connected: &mut Connected, sql: &str, within: Duration) -> Result<Rows, QueryError> {
    query_large(connected, sql, within, MAX_ANSWER_BYTES).await
}

/// As [`query`]; `told` gets each notice as it comes.
///
/// # Errors
/// As [`query`].
pub async fn query_telling(
    connected: &mut Connected,
    sql: &str,
    within: Duration,
    told: &mut (dyn FnMut(&ServerError) + Send),
) -> Result<Rows, QueryError> {
    let mut request = BytesMut::new();
    write::query(&mut request, sql)?;
    ask(connected, &request, within, MAX_ANSWER_BYTES, told).await
}

/// As [`query`], for an answer of at most `max_bytes`.
///
/// # Errors
/// As [`query`].
pub async fn query_large(
    connected: &mut Connected,
    sql: &str,
    within: Duration,
    max_bytes: usize,
) -> Result<Rows, QueryError> {
    let mut request = BytesMut::new();
    write::query(&mut request, sql)?;
    ask(connected, &request, within, max_bytes, &mut |_| {}).await
}

/// As [`query`], one statement with text parameters, by the extended protocol.
///
/// # Errors
/// As [`query`].
pub async fn query_with(
    connected: &mut Connected,
    sql: &str,
    values: &[&str],
    within: Duration,
) -> Result<Rows, QueryError> {
    let mut request = BytesMut::new();
    let values: Vec<Option<&[u8]>> = values.iter().map(|value| Some(value.as_bytes())).collect();
    write::parse(&mut request, "", sql, &[])?;
    write::bind(&mut request, "", "", &values)?;
    write::execute(&mut request, "", 0)?;
    write::sync(&mut request);
    ask(connected, &request, within, MAX_ANSWER_BYTES, &mut |_| {}).await
}

async fn ask(
    connected: &mut Connected,
    request: &[u8],
    within: Duration,
    max_bytes: usize,
    told: &mut (dyn FnMut(&ServerError) + Send),
) -> Result<Rows, QueryError> {
    let asking = Box::pin(async {
        connected.stream.write_all(request).await.map_err(QueryError::Lost)?;
        connected.stream.flush().await.map_err(QueryError::Lost)?;
        answer(connected, max_bytes, told).await
    });
    timeout(within, asking).await.unwrap_or(Err(QueryError::TimedOut))
}

/// Reads up to ReadyForQuery; the first error counts.
async fn answer(
    connected: &mut Connected,
    max_bytes: usize,
    told: &mut (dyn FnMut(&ServerError) + Send),
) -> Result<Rows, QueryError> {
    let Connected { stream, parameters, leftover, .. } = connected;
    let mut reader = Reader::new(stream, leftover, MAX_ANSWER_BYTES, max_bytes);
    let mut outcome = Ok(Rows::new());
    loop {
        let message = match reader.next().await {
            Ok(message) => message,
            // The server said why before it hung up.
            Err(_) if outcome.is_err() => return outcome,
            Err(error) => return Err(error.into()),
        };
        match message.tag {
            b'D' => {
                let row = row(message.body()).ok_or(QueryError::Protocol("malformed DataRow"))?;
                if let Ok(rows) = &mut outcome {
                    rows.push(row);
                }
            }
            b'E' if outcome.is_ok() => outcome = Err(QueryError::Server(ServerError::new(message.body()))),
            b'S' => set_parameter(parameters, &message.whole)?,
            b'Z' => return outcome,
            b'N' => told(&ServerError::new(message.body())),
            b'1' | b'2' | b'T' | b'C' | b'I' | b'A' | b'E' => {}
            _ => return Err(QueryError::Protocol("unexpected message in the answer to a query")),
        }
    }
}

/// The values of a DataRow's body; `None` when it is none.
pub(crate) fn row(mut body: Bytes) -> Option<Vec<Option<String>>> {
    let count = body.try_get_u16().ok()?;
    let mut values = Vec::new();
    for _ in 0..count {
        values.push(match body.try_get_i32().ok()? {
            -1 => None,
            len => {
                let len = usize::try_from(len).ok().filter(|len| *len <= body.len())?;
                Some(String::from_utf8_lossy(&body.split_to(len)).into_owned())
            }
        });
    }
    body.is_empty().then_some(values)
}
