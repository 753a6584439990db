//! Giving backends back, and small conversations of our own with them.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use protocol::error::{ErrorView, PgError};
use protocol::frame::{HEADER_LEN, backend_header};
use protocol::message;
use protocol::sqlstate::SqlState;
use protocol::tracker::Owner;
use router::PinReason;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Session;
use crate::backend::Backend;
use crate::cancel::CANCEL_TIMEOUT;
use crate::connect::{Rows, row};
use crate::engine::{Remembers, put_query};
use crate::registry::{Flag, Unbound};
use config::PoolMode;

/// How long a backend may take to forget a client (DISCARD ALL), or to take its settings.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest answer to a statement of ours (bytes).
const ANSWER_LIMIT: usize = 1024 * 1024;

/// Why a conversation of ours failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    /// The server refused the statement; the backend is as it was.
    #[error("{}", .0.message)]
    Server(PgError),
    /// The backend must be closed.
    #[error("the connection to the node failed: {0}")]
    Lost(std::io::Error),
}

impl Session {
    /// The backend is free: it goes back to its pool, or stays with a client of session pooling.
    pub(super) async fn give_back(&mut self, mut backend: Box<Backend>) {
        // What it said behind its last answer is nothing to the client, nor to the next backend's answers.
        let unasked = self.from_server.filled();
        let usable = backend.stays_idle_after(unasked) && !self.engine.is_in_doubt();
        self.from_server.consume(self.from_server.filled().len());
        if !usable {
            self.client.entry.unbind();
            self.work = None;
            return backend.close();
        }
        // A cancel that arrives late must not hit the next client.
        let mut left = self.client.entry.unbind();
        if left == Unbound::Awaited {
            // Boxed: what is rare must not make every session larger.
            left = Box::pin(self.unbound()).await;
        }
        self.work = None;
        if left != Unbound::Free {
            return backend.close();
        }
        if self.mode == PoolMode::Session {
            self.kept.push(backend);
            return self.client.entry.set_keeps(true);
        }
        if self.engine.is_suspect() {
            // Its client has left before anybody could ask.
            self.engine.forget_unseen();
            return Box::pin(self.lose_state(backend, PinReason::Unknown)).await;
        }
        if let Some(ignored) = self.engine.take_ignored_state() {
            return Box::pin(self.lose_state(backend, ignored)).await;
        }
        match self.learn(&mut backend).await {
            Ok(()) => self.pass_back(backend),
            Err(error) => {
                tracing::debug!(node = %backend.node, error = %error, "backend closed: whose its settings are is not known");
                backend.close();
            }
        }
    }

    /// State that would have held the session stays on nobody's backend.
    async fn lose_state(&mut self, mut backend: Box<Backend>, ignored: PinReason) {
        tracing::debug!(client = self.client.entry.id, reason = ignored.as_str(), "session state ignored");
        match reset(&mut backend).await {
            Ok(()) => self.pass_back(backend),
            Err(error) => tracing::debug!(node = %backend.node, error = %error, "backend not reset, closed"),
        }
    }

    /// The client cancelled what it wanted the backend for before it had one: nothing was sent.
    pub(super) fn hand_back(&mut self, backend: Box<Backend>) {
        self.client.entry.lower(Flag::Cancel);
        self.work = None;
        match self.client.entry.unbind() {
            Unbound::Free if self.mode == PoolMode::Session => {
                self.kept.push(backend);
                self.client.entry.set_keeps(true);
            }
            Unbound::Free => self.pass_back(backend),
            Unbound::Awaited | Unbound::Doubtful => backend.close(),
        }
    }

    /// Waits for the cancel requests that are on their way; the client has its answer meanwhile.
    async fn unbound(&mut self) -> Unbound {
        let entry = Arc::clone(&self.client.entry);
        let mut waiting = pin!(tokio::time::timeout(CANCEL_TIMEOUT, entry.unbound()));
        let left = std::future::poll_fn(|cx| {
            // A client that is gone is noticed by whoever serves it next.
            let _ = self.poll_flush_client(cx);
            if entry.is_raised(Flag::Kill, cx) {
                return Poll::Ready(Ok(Unbound::Doubtful));
            }
            waiting.as_mut().poll(cx)
        });
        left.await.unwrap_or(Unbound::Doubtful)
    }

    fn pass_back(&mut self, mut backend: Box<Backend>) {
        if std::mem::take(&mut backend.books.unlisted) {
            backend.books.settings = Arc::new(backend.books.settings.with_unlisted());
        }
        let lifetime = self.config.get().server_lifetime;
        if backend.is_older_than(lifetime, self.clock) {
            return backend.close();
        }
        backend.idle_since = self.clock;
        backend.entry.returned(backend.books.prepared.len());
        if let Some(pool) = self.pools.iter().find(|pool| backend.slot.is_in(pool)) {
            return pool.release(backend);
        }
        match backend.slot.pool().cloned() {
            Some(pool) => pool.release(backend),
            None => backend.close(),
        }
    }

    /// Backends that stay with a client of session pooling leave it when their node has changed: another session
    /// may need their place, and nothing of the client's is on them.
    pub(super) fn drop_outdated(&mut self) {
        if self.kept.is_empty() {
            return;
        }
        let topology = std::sync::Arc::clone(self.topology.load());
        let serves = |backend: &Backend| {
            topology.node(backend.node).is_some_and(|node| backend.epoch >= node.changed_epoch)
        };
        let (kept, outdated): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.kept).into_iter().partition(|backend| serves(backend));
        self.kept = kept;
        outdated.into_iter().for_each(|backend| backend.close());
        self.client.entry.set_keeps(!self.kept.is_empty());
    }

    /// A client of session pooling leaves: its backends forget it.
    pub(super) async fn reset_kept(&mut self) {
        self.clock = Instant::now();
        for mut backend in std::mem::take(&mut self.kept) {
            let forgotten = match reset(&mut backend).await {
                Ok(()) => self.learn(&mut backend).await,
                failed => failed,
            };
            match forgotten {
                Ok(()) => self.pass_back(backend),
                Err(error) => {
                    tracing::debug!(node = %backend.node, error = %error, "backend not reset, closed")
                }
            }
        }
    }
}

/// A backend forgets whom it served.
pub(super) async fn reset(backend: &mut Backend) -> Result<(), ExchangeError> {
    exchange(backend, b"DISCARD ALL").await?;
    backend.books.prepared.clear();
    backend.books.settings = Arc::default();
    backend.books.remembers = Remembers::Nothing;
    backend.books.unlisted = false;
    Ok(())
}

/// Runs a statement of ours on a backend that is idle, outside of a transaction.
pub(super) async fn exchange(backend: &mut Backend, sql: &[u8]) -> Result<(), ExchangeError> {
    ask(backend, sql).await.map(|_rows| ())
}

/// As [`exchange`]; the rows of the answer.
pub(super) async fn ask(backend: &mut Backend, sql: &[u8]) -> Result<Rows, ExchangeError> {
    ask_amid(backend, sql, &mut Amid::default()).await
}

/// What a backend says unasked while it is asked something.
#[derive(Debug, Default)]
pub(super) struct Amid {
    /// What has come before the question.
    pub(super) before: BytesMut,
    /// Notifications, as they came.
    pub(super) notifications: BytesMut,
}

/// As [`ask`]; what comes unasked is in `amid`.
pub(super) async fn ask_amid(
    backend: &mut Backend,
    sql: &[u8],
    amid: &mut Amid,
) -> Result<Rows, ExchangeError> {
    let timed = tokio::time::timeout(EXCHANGE_TIMEOUT, converse(backend, sql, amid)).await;
    timed.unwrap_or_else(|_| Err(ExchangeError::Lost(std::io::ErrorKind::TimedOut.into())))
}

async fn converse(backend: &mut Backend, sql: &[u8], amid: &mut Amid) -> Result<Rows, ExchangeError> {
    let mut rows = Rows::new();
    let mut bytes = BytesMut::new();
    put_query(&mut bytes, sql);
    backend.stream.write_all(&bytes).await.map_err(ExchangeError::Lost)?;
    backend.stream.flush().await.map_err(ExchangeError::Lost)?;
    let mut bytes = std::mem::take(&mut amid.before);
    let mut refused = None;
    loop {
        while let Some(header) = next_header(&bytes)? {
            let message = bytes.split_to(header);
            match message.first() {
                Some(b'Z') => return refused.map_or(Ok(rows), |error| Err(ExchangeError::Server(error))),
                Some(b'A') => amid.notifications.extend_from_slice(&message),
                Some(b'D') => rows.extend(row(message.freeze().slice(HEADER_LEN..))),
                Some(b'E') => {
                    refused = Some(ErrorView::parse(message.get(HEADER_LEN..).unwrap_or_default()).to_error())
                }
                Some(b'S') => {
                    if let Some((name, value)) = message::parameter_status(&message) {
                        let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
                        backend.books.report(&name, &value, Owner::Ours);
                    }
                }
                _ => {}
            }
        }
        let count = backend.stream.read_buf(&mut bytes).await.map_err(ExchangeError::Lost)?;
        if count == 0 {
            return Err(match refused {
                Some(error) if error.code != SqlState::SUCCESSFUL_COMPLETION => ExchangeError::Server(error),
                _ => ExchangeError::Lost(std::io::ErrorKind::UnexpectedEof.into()),
            });
        }
    }
}

/// The length of the message at the front of `bytes`, when it is whole.
fn next_header(bytes: &[u8]) -> Result<Option<usize>, ExchangeError> {
    let invalid = || ExchangeError::Lost(std::io::ErrorKind::InvalidData.into());
    let header = backend_header(bytes).map_err(|_| invalid())?;
    let Some(header) = header else { return Ok(None) };
    if header.len > ANSWER_LIMIT {
        return Err(invalid());
    }
    Ok((bytes.len() >= header.len).then_some(header.len))
}
