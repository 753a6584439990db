//! The replies-owed tracker: what PostgreSQL still owes for what was forwarded to it.
//!
//! One queue per backend, an entry per forwarded message that will be answered. Replies settle the
//! front entry; an error drops what the server will ignore (PostgreSQL manual, "Extended Query":
//! after an error the server discards messages until Sync; `postgres.c`, `ignore_till_sync`).
//! Messages of ours are entries as well, and their replies are swallowed.
//!
//! Invariants: replies go to their owner only; when a reply does not fit, [`Desync`] says so and the
//! backend must be closed; [`Tracker::is_settled`] is true only when the server owes nothing, waits
//! for nothing, and no implicit transaction of an unfinished extended batch is open.
//!
//! It knows nothing of sockets, names or pools.

mod owed;
mod renew;

use thiserror::Error;

use crate::message::TxStatus;
use owed::Owed;

/// Who gets the replies of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The client: replies pass.
    Client,
    /// We injected it: replies are swallowed.
    Ours,
    /// As [`Owner::Ours`], and the client's messages behind it are worth nothing if it fails.
    Setup,
}

/// Which message it was, counted from the lease's first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Push(pub u64);

/// Ties an entry to bookkeeping of the caller that depends on whether the server carried it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u32);

/// A forwarded message that the server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Parse: ParseComplete.
    Parse(Token),
    /// Bind: BindComplete.
    Bind,
    /// Describe of a statement: ParameterDescription, then RowDescription or NoData.
    DescribeStatement,
    /// Describe of a portal: RowDescription or NoData.
    DescribePortal,
    /// Execute: rows or COPY, then CommandComplete, EmptyQueryResponse or PortalSuspended.
    Execute,
    /// Close: CloseComplete.
    Close(Token),
    /// Sync: ReadyForQuery.
    Sync,
    /// Flush with a body: an error inside of a batch, but ignored inside of COPY IN.
    BadFlush,
    /// Query: anything, then ReadyForQuery.
    Query,
    /// FunctionCall: FunctionCallResponse, then ReadyForQuery.
    FunctionCall,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Ask(Ask, Owner),
    /// CopyDone or CopyFail, sent before it was known whether the server is in COPY.
    CopyEnd,
}

/// What becomes of a server message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is the client's.
    Pass,
    /// It answers a message of ours.
    Swallow,
}

/// What the caller's bookkeeping must follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The server carried out the message of that token.
    Done(Token),
    /// The server failed in it.
    Failed(Token),
    /// The server ignored it.
    Skipped(Token),
    /// A Query of ours failed: the backend is not in the state that we wanted.
    OursFailed,
}

/// A reply that nothing forwarded can have caused. The backend must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("unexpected server message {:?} while {owed} replies are owed", char::from(*.tag))]
pub struct Desync {
    /// The type byte of the reply.
    pub tag: u8,
    /// How many entries were queued.
    pub owed: usize,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Tracker {
    /// With each entry, which push it was.
    queue: Owed,
    last_push: Push,
    events: Vec<Event>,
    status: TxStatus,
    /// ParameterDescription of the front entry has been seen.
    described: bool,
    /// The server ignores everything until a Sync that has not been forwarded yet.
    skipping: bool,
    /// The server reads COPY data, and its end has not been forwarded yet.
    copy_in: bool,
    /// Extended messages were forwarded and no Sync behind them.
    unsynced: bool,
    /// The server has begun the front entry's COPY IN, and has not said how it ended.
    copying: bool,
    /// Messages that the server does not answer, if it came to read them before that COPY failed.
    in_copy_asks: u32,
    /// More than Syncs was forwarded since the queue was last empty that a COPY may have read.
    copy_sent: bool,
    /// A COPY failed, and what the server still answers of what was sent behind it is not known.
    doubt: bool,
}

impl Tracker {
    /// A tracker for a backend that is idle and outside of a transaction.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The status of the last ReadyForQuery.
    #[must_use]
    pub fn status(&self) -> TxStatus {
        self.status
    }

    /// Nothing is owed in either direction; [`Tracker::status`] is the truth.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.queue.is_empty() && !self.skipping && !self.copy_in && !self.unsynced
    }

    /// Settled and outside of a transaction: the backend may serve somebody else.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.is_settled() && self.status == TxStatus::Idle
    }

    /// The server waits for COPY data.
    #[must_use]
    pub fn in_copy(&self) -> bool {
        self.copy_in
    }

    /// The server ignores everything up to a Sync that has not been forwarded.
    #[must_use]
    pub fn is_skipping(&self) -> bool {
        self.skipping
    }

    /// How many replies are owed is a guess: the backend must not serve anybody else.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.doubt
    }

    /// The server will answer something, or is asked to.
    #[must_use]
    pub fn owes(&self) -> bool {
        !self.queue.is_empty()
    }

    /// How many ReadyForQuery are owed.
    #[must_use]
    pub fn ends_owed(&self) -> usize {
        let end = |entry: &&Entry| matches!(entry, Entry::Ask(Ask::Sync | Ask::Query | Ask::FunctionCall, _));
        self.queue.iter().map(|(entry, _)| entry).filter(end).count()
    }

    /// The message that was pushed last.
    #[must_use]
    pub fn last_push(&self) -> Push {
        self.last_push
    }

    /// The message whose replies come next.
    #[must_use]
    pub fn next_push(&self) -> Option<Push> {
        self.queue.front().map(|(_, push)| *push)
    }

    /// Whose message the next reply answers; what comes unasked is the client's.
    #[must_use]
    pub fn next_owner(&self) -> Owner {
        self.front().map_or(Owner::Client, |(_, owner)| owner)
    }

    /// A Query of ours failed; said once.
    pub fn setup_failed(&mut self) -> bool {
        let before = self.events.len();
        self.events.retain(|event| *event != Event::OursFailed);
        self.events.len() != before
    }

    /// What happened to tokens since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Gives back what [`Tracker::take_events`] gave: its memory is used again.
    pub fn reuse(&mut self, mut events: Vec<Event>) {
        if self.events.is_empty() {
            events.clear();
            self.events = events;
        }
    }

    /// Whether [`Tracker::take_events`] has something.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// A message is being forwarded.
    pub fn push(&mut self, ask: Ask, owner: Owner) {
        self.last_push.0 += 1;
        if self.copy_in {
            return self.push_in_copy(ask);
        }
        self.copy_sent &= !self.queue.is_empty();
        match ask {
            Ask::Sync => {
                self.skipping = false;
                self.unsynced = false;
            }
            _ if self.skipping => return self.skip(Entry::Ask(ask, owner)),
            Ask::Query | Ask::FunctionCall => self.unsynced = false,
            _ => self.unsynced = true,
        }
        self.enqueue(Entry::Ask(ask, owner));
    }

    /// Inside COPY IN the server ignores Sync and Flush, and fails on anything else, which it consumes.
    fn push_in_copy(&mut self, ask: Ask) {
        self.unsynced |= self.front_is_extended();
        self.in_copy_asks = self.in_copy_asks.saturating_add(1);
        self.copy_sent |= ask != Ask::Sync;
        if !matches!(ask, Ask::Sync | Ask::BadFlush) {
            self.copy_in = false;
            self.skip(Entry::Ask(ask, Owner::Client));
        }
    }

    /// The client sent CopyData; says whether to forward it.
    pub fn push_copy_data(&mut self) -> bool {
        let forward = self.copy_in || (!self.queue.is_empty() && !self.skipping);
        self.copy_sent |= forward;
        forward
    }

    /// The client sent CopyDone or CopyFail; says whether to forward it. Late ones, after the COPY
    /// failed, are dropped: the server would ignore them, and the backend may be another's by then.
    pub fn push_copy_end(&mut self) -> bool {
        let forward = self.push_copy_data();
        if self.copy_in {
            self.copy_in = false;
        } else if forward {
            self.enqueue(Entry::CopyEnd);
        }
        forward
    }

    /// A message came from the server. `status` is the body of a ReadyForQuery.
    ///
    /// # Errors
    /// [`Desync`] when nothing that was forwarded can have caused it.
    pub fn on_server(&mut self, tag: u8, status: Option<TxStatus>) -> Result<Fate, Desync> {
        match tag {
            b'D' | b'd' | b'c' | b'H' => self.on_data(tag),
            b'N' | b'S' => Ok(self.async_fate()),
            b'A' => Ok(Fate::Pass),
            b'E' => Ok(self.on_error()),
            b'Z' => self.on_ready(tag, status),
            b'G' | b'W' => self.on_copy_in(tag),
            _ => self.on_reply(tag),
        }
    }

    fn enqueue(&mut self, entry: Entry) {
        self.queue.push((entry, self.last_push));
    }

    fn dequeue(&mut self) {
        self.queue.pop();
    }

    fn remove_second(&mut self) -> Option<Entry> {
        self.queue.pop_second().map(|(entry, _)| entry)
    }

    fn front(&self) -> Option<(Ask, Owner)> {
        match self.queue.front() {
            Some((Entry::Ask(ask, owner), _)) => Some((*ask, *owner)),
            _ => None,
        }
    }

    fn front_is_extended(&self) -> bool {
        matches!(self.front(), Some((Ask::Execute, _)))
    }

    fn desync(&self, tag: u8) -> Desync {
        Desync { tag, owed: self.queue.len() }
    }

    fn async_fate(&self) -> Fate {
        self.front().map_or(Fate::Pass, |(_, owner)| fate(owner))
    }

    fn on_data(&self, tag: u8) -> Result<Fate, Desync> {
        match self.front() {
            Some((Ask::Execute | Ask::Query, owner)) => Ok(fate(owner)),
            _ => Err(self.desync(tag)),
        }
    }

    fn on_reply(&mut self, tag: u8) -> Result<Fate, Desync> {
        let Some((ask, owner)) = self.front() else { return Err(self.desync(tag)) };
        match (ask, tag) {
            (Ask::Query, b'C') => self.copying = false,
            (Ask::Query, b'T' | b'I') | (Ask::FunctionCall, b'V') => {}
            (Ask::DescribeStatement, b't') if !self.described => self.described = true,
            (Ask::DescribeStatement, b'T' | b'n') if self.described => self.pop(),
            (Ask::Parse(token), b'1') | (Ask::Close(token), b'3') => {
                self.events.push(Event::Done(token));
                self.pop();
            }
            (Ask::Bind, b'2') | (Ask::DescribePortal, b'T' | b'n') | (Ask::Execute, b'C' | b'I' | b's') => {
                self.pop()
            }
            _ => return Err(self.desync(tag)),
        }
        Ok(fate(owner))
    }

    fn on_ready(&mut self, tag: u8, status: Option<TxStatus>) -> Result<Fate, Desync> {
        let Some(status) = status else { return Err(self.desync(tag)) };
        let owner = match self.front() {
            Some((Ask::Sync | Ask::Query | Ask::FunctionCall, owner)) => owner,
            // One that was forwarded inside of a COPY that had failed by then.
            None if self.skipping && self.in_copy_asks > 0 => {
                (self.skipping, self.unsynced) = (false, false);
                Owner::Client
            }
            _ => return Err(self.desync(tag)),
        };
        self.status = status;
        self.pop();
        Ok(fate(owner))
    }

    fn on_error(&mut self) -> Fate {
        self.copy_in = false;
        self.copy_failed();
        match self.front() {
            // Outside of any request: the server is about to hang up, or says so.
            None => Fate::Pass,
            Some((Ask::Query, Owner::Ours | Owner::Setup)) => {
                self.events.push(Event::OursFailed);
                Fate::Swallow
            }
            Some((_, Owner::Setup)) => {
                self.events.push(Event::OursFailed);
                self.skip_until_sync();
                Fate::Swallow
            }
            Some((Ask::Query | Ask::FunctionCall | Ask::Sync, _)) => Fate::Pass,
            // A failed Parse of ours stands for the failure of the client's message behind it.
            Some((ask, _)) => {
                if let Ask::Parse(token) | Ask::Close(token) = ask {
                    self.events.push(Event::Failed(token));
                    self.dequeue();
                }
                self.skip_until_sync();
                Fate::Pass
            }
        }
    }

    /// Syncs that the server has not read inside of the COPY are answered after all.
    fn copy_failed(&mut self) {
        if !std::mem::take(&mut self.copying) || self.in_copy_asks == 0 {
            return;
        }
        if self.copy_sent {
            // It may have failed on what was sent or before it read anything (COPY FREEZE).
            self.doubt = true;
            return;
        }
        for _ in 0..std::mem::take(&mut self.in_copy_asks) {
            self.queue.push_second((Entry::Ask(Ask::Sync, Owner::Client), self.last_push));
        }
        self.recount();
    }

    fn skip_until_sync(&mut self) {
        self.described = false;
        while let Some(&(entry, _)) = self.queue.front() {
            if matches!(entry, Entry::Ask(Ask::Sync, _)) {
                return;
            }
            self.dequeue();
            self.skip(entry);
        }
        self.skipping = true;
    }

    fn on_copy_in(&mut self, tag: u8) -> Result<Fate, Desync> {
        let Some((Ask::Execute | Ask::Query, owner)) = self.front() else { return Err(self.desync(tag)) };
        self.copying = true;
        self.copy_in = true;
        self.in_copy_asks = 0;
        while let Some(entry) = self.remove_second() {
            match entry {
                // Ignored by the server; a Sync behind the end of the data must follow.
                Entry::Ask(ask @ (Ask::Sync | Ask::BadFlush), _) => {
                    self.in_copy_asks = self.in_copy_asks.saturating_add(1);
                    self.copy_sent |= ask == Ask::BadFlush;
                }
                Entry::CopyEnd => {
                    self.copy_in = false;
                    break;
                }
                // The server fails on it and consumes it.
                Entry::Ask(..) => {
                    self.skip(entry);
                    self.in_copy_asks = self.in_copy_asks.saturating_add(1);
                    (self.copy_in, self.copy_sent) = (false, true);
                    break;
                }
            }
        }
        self.recount();
        Ok(fate(owner))
    }

    /// Syncs may have been taken out or back: look again whether one closes the batch.
    fn recount(&mut self) {
        let last = self.queue.iter().map(|(entry, _)| entry).rfind(|entry| **entry != Entry::CopyEnd);
        let closed = matches!(last, Some(Entry::Ask(Ask::Sync | Ask::Query | Ask::FunctionCall, _)));
        self.unsynced = !closed;
    }

    fn pop(&mut self) {
        self.dequeue();
        self.described = false;
        self.copying = false;
        self.in_copy_asks = 0;
        self.drop_copy_ends();
    }

    /// Ends of a COPY that never began are ignored by the server, without a reply.
    fn drop_copy_ends(&mut self) {
        while matches!(self.queue.front(), Some((Entry::CopyEnd, _))) {
            self.dequeue();
        }
    }

    fn skip(&mut self, entry: Entry) {
        if let Entry::Ask(Ask::Parse(token) | Ask::Close(token), _) = entry {
            self.events.push(Event::Skipped(token));
        }
    }
}

fn fate(owner: Owner) -> Fate {
    match owner {
        Owner::Client => Fate::Pass,
        Owner::Ours | Owner::Setup => Fate::Swallow,
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
