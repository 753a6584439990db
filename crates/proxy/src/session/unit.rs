//! Reading units of work from the client, and refusing those that cannot be served.

use std::task::{Context, Poll};

use config::SessionState;
use protocol::error::{ClientFacing, PgError, write_error};
use protocol::frame::{HEADER_LEN, frontend_header};
use protocol::message::TxStatus;

use super::{End, Means, Session, with_env};
use crate::engine::{Boundary, Habit, Passed, Scan, Unit, Violation, Watch, scan};
use crate::registry::Flag;
use crate::stats::Count;

/// Reading ahead tells nobody anything.
struct Silent;

impl Watch for Silent {
    fn statement(&self, _: &router::Verdict, _: Option<&[u8]>) {}
    fn asked(&self, _: protocol::tracker::Push) {}
    fn answered(&self, _: protocol::tracker::Push, _: &[u8], _: u64) {}
    fn bound(&self, _: &[u8], _: usize) {}
    fn passed(&self, _: Passed) {}
    fn server_error(&self, _: protocol::error::Severity, _: Option<protocol::sqlstate::SqlState>) {}
    fn transaction(&self) {}
    fn schema_changed(&self) {}
    fn catalog_changed(&self, _: router::Changes) {}
    fn asked_of_sequences(&self, _: Habit) {}
    fn held_in_vain(&self) {}
}

impl Session {
    /// Waits for the next unit of work; it is at the front of the client's buffer then.
    pub(super) async fn next_unit(&mut self) -> Result<Unit, End> {
        self.flush().await?;
        loop {
            let need = match self.look()? {
                Scan::Unit(unit) => return Ok(unit),
                Scan::More(need) => need,
            };
            self.flush().await?;
            self.read_more(need).await?;
        }
    }

    /// What is at the front of the client's buffer.
    fn look(&mut self) -> Result<Scan, End> {
        let dropped = self.engine.drop_client_rest(self.from_client.filled().len());
        self.from_client.consume(dropped);
        if self.engine.in_client_message() {
            return Ok(Scan::More(1));
        }
        if self.skip_to_sync
            && let Some(need) = self.skip()?
        {
            return Ok(Scan::More(need));
        }
        if self.from_client.is_empty() {
            return Ok(Scan::More(HEADER_LEN));
        }
        let (habit, state) = (Habit::default(), SessionState::default());
        let Self { worker, config, knowledge, engine, from_client, parse, .. } = self;
        let (bytes, known) = (from_client.filled(), engine.statements());
        let means = Means { worker, parse, config: config.load(), knowledge: knowledge.load(), habit, state };
        Ok(with_env(&means, &Silent, |env| scan(bytes, known, env))?)
    }

    /// Drops messages up to the Sync that ends a refused batch; gives how many bytes are missing for it.
    fn skip(&mut self) -> Result<Option<usize>, End> {
        loop {
            let header = frontend_header(self.from_client.filled()).map_err(Violation::from)?;
            let Some(header) = header else { return Ok(Some(HEADER_LEN)) };
            match header.tag {
                b'X' => return Err(End::Terminated),
                // It fails behind what was dropped: a server's business.
                b'S' if header.len > HEADER_LEN => {
                    self.skip_to_sync = false;
                    return Ok(None);
                }
                b'S' => {
                    self.from_client.consume(header.len);
                    self.skip_to_sync = false;
                    self.put_ready();
                    return Ok(None);
                }
                _ => self.drop_front_message(),
            }
            if self.engine.in_client_message() {
                return Ok(Some(1));
            }
        }
    }

    /// Drops the message at the front of the client's buffer, as far as it has come and what follows of it.
    pub(super) fn drop_front_message(&mut self) {
        if let Ok(Some(header)) = frontend_header(self.from_client.filled()) {
            self.engine.drop_message(header.len);
            let dropped = self.engine.drop_client_rest(self.from_client.filled().len());
            self.from_client.consume(dropped);
        }
    }

    async fn read_more(&mut self, need: usize) -> Result<(), End> {
        std::future::poll_fn(|cx| self.poll_read_more(cx, need)).await
    }

    fn poll_read_more(&mut self, cx: &mut Context<'_>, need: usize) -> Poll<Result<(), End>> {
        if self.client.entry.is_raised(Flag::Kill, cx) {
            return Poll::Ready(Err(End::Killed));
        }
        if self.client.entry.has(Flag::Fence) {
            self.client.entry.lower(Flag::Fence);
            self.drop_outdated();
        }
        if self.client.entry.has(Flag::Renew) {
            self.client.entry.lower(Flag::Renew);
            self.kept.drain(..).for_each(|backend| backend.close());
        }
        let at_border = self.from_client.is_empty() && self.status() == TxStatus::Idle && !self.skip_to_sync;
        if at_border && self.client.entry.has(Flag::Drain) {
            return Poll::Ready(Err(End::Drained));
        }
        match self.poll_read_client(cx, need) {
            Poll::Ready(Ok(true)) => Poll::Ready(Ok(())),
            Poll::Ready(Ok(false)) => Poll::Ready(Err(End::ClientLeft)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(End::ClientGone(error))),
            Poll::Pending if self.is_to_move() => Poll::Ready(Err(End::Moved)),
            Poll::Pending => self.idle_too_long(cx).map_or(Poll::Pending, |end| Poll::Ready(Err(end))),
        }
    }

    /// Answers a unit with an error, as a server would that failed at its first message.
    pub(super) fn refuse(&mut self, unit: &Unit, error: &PgError) {
        self.worker.shared.deps.metrics.errors.inc(&error.code.0);
        self.tally.add(Count::Errors, 1);
        self.lazy.fail();
        self.to_client.own(|own| write_error(own, error));
        let alone = !unit.extended && matches!(unit.boundary, Boundary::Query | Boundary::FunctionCall);
        if alone {
            self.drop_front_message();
            return self.put_ready();
        }
        self.drop_unit(unit);
        match unit.boundary {
            Boundary::Sync | Boundary::FailingSync => self.put_ready(),
            _ => self.skip_to_sync = true,
        }
    }

    fn drop_unit(&mut self, unit: &Unit) {
        let there = self.from_client.filled().len().min(unit.len);
        self.from_client.consume(there);
        if there < unit.len {
            self.engine.drop_message(unit.len - there);
        }
        self.engine.end_batch();
    }

    /// As [`Session::refuse`], of anything that may be shown.
    pub(super) fn refuse_for(&mut self, unit: &Unit, why: &impl ClientFacing) {
        self.refuse(unit, &why.to_client());
    }
}

/// Whether whole messages stand there, the last of which is Terminate.
pub(super) fn says_goodbye(mut bytes: &[u8]) -> bool {
    while let Ok(Some(header)) = frontend_header(bytes) {
        match bytes.get(header.len..) {
            Some(_) if header.tag == b'X' => return true,
            Some(rest) => bytes = rest,
            None => return false,
        }
    }
    false
}
