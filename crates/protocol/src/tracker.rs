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

use std::collections::VecDeque;

use thiserror::Error;

use crate::message::TxStatus;

/// Who gets the replies of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The client: replies pass.
    Client,
    /// We injected it: replies are swallowed.
    Ours,
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
    /// Query: anything, then ReadyForQuery.
    Query,
    /// FunctionCall: FunctionCallResponse, then ReadyForQuery.
    FunctionCall,
}

/// A reply that we make ourselves, at its place among the server's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synth {
    /// ParseComplete for a statement that the backend already holds.
    ParseComplete(Token),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Ask(Ask, Owner),
    Synth(Synth),
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
    queue: VecDeque<Entry>,
    /// By entry of `queue`: which push it was.
    pushes: VecDeque<Push>,
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

    /// The server will answer something, or is asked to.
    #[must_use]
    pub fn owes(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The message that was pushed last.
    #[must_use]
    pub fn last_push(&self) -> Push {
        self.last_push
    }

    /// The message whose replies come next.
    #[must_use]
    pub fn next_push(&self) -> Option<Push> {
        self.pushes.front().copied()
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

    /// Inside COPY IN the server ignores Sync, and fails on anything else, which it consumes.
    fn push_in_copy(&mut self, ask: Ask) {
        self.unsynced |= self.front_is_extended();
        if ask != Ask::Sync {
            self.copy_in = false;
            self.skip(Entry::Ask(ask, Owner::Client));
        }
    }

    /// A reply of ours is due behind what has been forwarded so far.
    pub fn push_synth(&mut self, synth: Synth) {
        if self.skipping || self.copy_in {
            return self.skip(Entry::Synth(synth));
        }
        self.unsynced = true;
        self.enqueue(Entry::Synth(synth));
    }

    /// The client sent CopyData; says whether to forward it.
    #[must_use]
    pub fn forwards_copy_data(&self) -> bool {
        self.copy_in || (!self.queue.is_empty() && !self.skipping)
    }

    /// The client sent CopyDone or CopyFail; says whether to forward it. Late ones, after the COPY
    /// failed, are dropped: the server would ignore them, and the backend may be another's by then.
    pub fn push_copy_end(&mut self) -> bool {
        if self.copy_in {
            self.copy_in = false;
            return true;
        }
        let forward = self.forwards_copy_data();
        if forward {
            self.enqueue(Entry::CopyEnd);
        }
        forward
    }

    /// The reply of ours that is due now, if any. Call until `None` after each push and each reply.
    pub fn next_synth(&mut self) -> Option<Synth> {
        let Some(Entry::Synth(synth)) = self.queue.front().copied() else { return None };
        self.dequeue();
        self.drop_copy_ends();
        let Synth::ParseComplete(token) = synth;
        self.events.push(Event::Done(token));
        Some(synth)
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
        self.queue.push_back(entry);
        self.pushes.push_back(self.last_push);
    }

    fn dequeue(&mut self) {
        self.queue.pop_front();
        self.pushes.pop_front();
    }

    fn remove_second(&mut self) -> Option<Entry> {
        self.pushes.remove(1);
        self.queue.remove(1)
    }

    fn front(&self) -> Option<(Ask, Owner)> {
        match self.queue.front() {
            Some(Entry::Ask(ask, owner)) => Some((*ask, *owner)),
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
            (Ask::Query, b'T' | b'C' | b'I') | (Ask::FunctionCall, b'V') => {}
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
        let (Some((Ask::Sync | Ask::Query | Ask::FunctionCall, owner)), Some(status)) =
            (self.front(), status)
        else {
            return Err(self.desync(tag));
        };
        self.status = status;
        self.pop();
        Ok(fate(owner))
    }

    fn on_error(&mut self) -> Fate {
        self.copy_in = false;
        match self.front() {
            // Outside of any request: the server is about to hang up, or says so.
            None => Fate::Pass,
            Some((Ask::Query, Owner::Ours)) => {
                self.events.push(Event::OursFailed);
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

    fn skip_until_sync(&mut self) {
        self.described = false;
        while let Some(&entry) = self.queue.front() {
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
        while let Some(entry) = self.remove_second() {
            match entry {
                // Ignored by the server; one behind the end of the data must follow.
                Entry::Ask(Ask::Sync, _) => {}
                Entry::CopyEnd => return Ok(self.recount(owner)),
                // The server fails on it and consumes it.
                entry => {
                    self.skip(entry);
                    return Ok(self.recount(owner));
                }
            }
        }
        self.copy_in = true;
        Ok(self.recount(owner))
    }

    /// Syncs may have been taken back: look again whether one closes the batch.
    fn recount(&mut self, owner: Owner) -> Fate {
        if self.front_is_extended() {
            let last = self.queue.iter().rev().find(|entry| **entry != Entry::CopyEnd);
            let closed = matches!(last, Some(Entry::Ask(Ask::Sync | Ask::Query | Ask::FunctionCall, _)));
            self.unsynced = !closed;
        }
        fate(owner)
    }

    fn pop(&mut self) {
        self.dequeue();
        self.described = false;
        self.drop_copy_ends();
    }

    /// Ends of a COPY that never began are ignored by the server, without a reply.
    fn drop_copy_ends(&mut self) {
        while self.queue.front() == Some(&Entry::CopyEnd) {
            self.dequeue();
        }
    }

    fn skip(&mut self, entry: Entry) {
        if let Entry::Ask(Ask::Parse(token) | Ask::Close(token), _)
        | Entry::Synth(Synth::ParseComplete(token)) = entry
        {
            self.events.push(Event::Skipped(token));
        }
    }
}

fn fate(owner: Owner) -> Fate {
    match owner {
        Owner::Client => Fate::Pass,
        Owner::Ours => Fate::Swallow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes `asks` in the notation of the wire, then feeds `replies`; gives the fates, `.` swallowed.
    fn run(tracker: &mut Tracker, asks: &str, replies: &str) -> Result<String, Desync> {
        for (position, letter) in asks.chars().enumerate() {
            let token = Token(u32::try_from(position).unwrap());
            let (ask, owner) = match letter {
                'P' => (Ask::Parse(token), Owner::Client),
                'p' => (Ask::Parse(token), Owner::Ours),
                'B' => (Ask::Bind, Owner::Client),
                'D' => (Ask::DescribeStatement, Owner::Client),
                'd' => (Ask::DescribePortal, Owner::Client),
                'E' => (Ask::Execute, Owner::Client),
                'C' => (Ask::Close(token), Owner::Client),
                'S' => (Ask::Sync, Owner::Client),
                'Q' => (Ask::Query, Owner::Client),
                'q' => (Ask::Query, Owner::Ours),
                'F' => (Ask::FunctionCall, Owner::Client),
                'c' => {
                    tracker.push_copy_end();
                    continue;
                }
                '1' => {
                    tracker.push_synth(Synth::ParseComplete(token));
                    continue;
                }
                other => panic!("no ask {other}"),
            };
            tracker.push(ask, owner);
        }
        let mut out = String::new();
        let drain = |tracker: &mut Tracker, out: &mut String| {
            while tracker.next_synth().is_some() {
                out.push('+');
            }
        };
        drain(tracker, &mut out);
        let mut chars = replies.chars().peekable();
        while let Some(tag) = chars.next() {
            let status = (tag == 'Z')
                .then(|| TxStatus::from_byte(u8::try_from(chars.next().unwrap()).unwrap()).unwrap());
            match tracker.on_server(u8::try_from(tag).unwrap(), status)? {
                Fate::Pass => out.push(tag),
                Fate::Swallow => out.push('.'),
            }
            drain(tracker, &mut out);
        }
        Ok(out)
    }

    /// The replies without the status bytes.
    fn passed(replies: &str) -> String {
        let mut status = false;
        let keep = |letter: &char| {
            let is_status = status;
            status = *letter == 'Z' && !is_status;
            !is_status
        };
        replies.chars().filter(keep).collect()
    }

    /// Everything passes and the backend is clean at the end.
    fn clean(asks: &str, replies: &str) {
        let mut tracker = Tracker::new();
        let out = run(&mut tracker, asks, replies).unwrap();
        assert_eq!(out, passed(replies), "{asks}");
        assert!(tracker.is_clean(), "{asks} {replies}: {tracker:?}");
    }

    #[test]
    fn plain_sequences_end_clean() {
        clean("Q", "TDDCZI");
        clean("Q", "IZI");
        clean("QQ", "CZICZI");
        clean("PBdES", "12TDCZI");
        clean("PDS", "1tTZI");
        clean("PDS", "1tnZI");
        clean("SS", "ZIZI");
        clean("CS", "3ZI");
        clean("F", "VZI");
        clean("Q", "TDCTDCZI");
        clean("PBES", "12IZI");
        clean("Q", "NSATDCNZI");
    }

    #[test]
    fn an_error_skips_to_the_next_sync() {
        let mut tracker = Tracker::new();
        assert_eq!(run(&mut tracker, "PBEPBEPBESPBES", "12DC1EZI12DCZI").unwrap(), "12DC1EZ12DCZ");
        assert!(tracker.is_clean());
        let skipped: Vec<_> =
            tracker.take_events().into_iter().filter(|e| matches!(e, Event::Skipped(_))).collect();
        assert_eq!(skipped, [Event::Skipped(Token(6))]);
    }

    #[test]
    fn after_an_error_without_sync_everything_is_ignored_even_a_query() {
        let mut tracker = Tracker::new();
        run(&mut tracker, "PB", "1E").unwrap();
        assert!(!tracker.is_settled());
        assert_eq!(run(&mut tracker, "EQ", "").unwrap(), "");
        assert!(!tracker.is_settled());
        assert_eq!(run(&mut tracker, "S", "ZI").unwrap(), "Z");
        assert!(tracker.is_clean());
    }

    #[test]
    fn a_flush_leaves_the_batch_open() {
        let mut tracker = Tracker::new();
        run(&mut tracker, "PD", "1tT").unwrap();
        assert!(!tracker.owes() && !tracker.is_settled());
        run(&mut tracker, "S", "ZI").unwrap();
        assert!(tracker.is_clean());
    }

    #[test]
    fn a_query_inside_an_unfinished_batch_has_its_own_end() {
        clean("PBEQS", "12DCTDCZIZI");
    }

    #[test]
    fn a_suspended_portal_in_a_transaction() {
        clean("QPBESESES", "CZT12DsZTDsZTDCZI");
    }

    #[test]
    fn an_error_at_sync_is_the_commit_failing() {
        clean("PBES", "12CEZI");
    }

    #[test]
    fn replies_of_ours_are_swallowed() {
        let mut tracker = Tracker::new();
        assert_eq!(run(&mut tracker, "qpBES", "SDCZI12DCZI").unwrap(), ".....2DCZ");
        assert!(tracker.is_clean());
    }

    #[test]
    fn a_failed_query_of_ours_is_an_event() {
        let mut tracker = Tracker::new();
        assert_eq!(run(&mut tracker, "qQ", "EZITDCZI").unwrap(), "..TDCZ");
        assert_eq!(tracker.take_events(), [Event::OursFailed]);
    }

    #[test]
    fn a_failed_parse_of_ours_is_the_clients_error() {
        let mut tracker = Tracker::new();
        assert_eq!(run(&mut tracker, "pBES", "EZI").unwrap(), "EZ");
        assert_eq!(tracker.take_events(), [Event::Failed(Token(0))]);
    }

    #[test]
    fn made_replies_keep_their_place() {
        let mut tracker = Tracker::new();
        assert_eq!(run(&mut tracker, "1BES", "2DCZI").unwrap(), "+2DCZ");
        assert_eq!(run(&mut tracker, "PBE1BES", "12DC2DCZI").unwrap(), "12DC+2DCZ");
        assert_eq!(run(&mut tracker, "PBE1BES", "1EZI").unwrap(), "1EZ");
        assert!(tracker.is_clean());
    }

    #[test]
    fn copy_in_by_query() {
        let mut tracker = Tracker::new();
        run(&mut tracker, "Q", "G").unwrap();
        assert!(tracker.in_copy() && tracker.forwards_copy_data());
        run(&mut tracker, "c", "CZI").unwrap();
        assert!(tracker.is_clean());
        assert!(!tracker.forwards_copy_data() && !tracker.push_copy_end());
    }

    #[test]
    fn copy_in_sent_ahead_of_its_answer() {
        clean("Qc", "GCZI");
        clean("QcQ", "GCZITDCZI");
        clean("Qcc", "GCTDCGCZI");
        // The COPY fails before it begins: the end of the data is ignored.
        clean("QcQ", "EZITDCZI");
    }

    #[test]
    fn copy_in_by_extended_protocol_ignores_an_early_sync() {
        let mut tracker = Tracker::new();
        run(&mut tracker, "PBES", "12G").unwrap();
        run(&mut tracker, "c", "C").unwrap();
        assert!(!tracker.is_settled(), "the early Sync was ignored by the server");
        run(&mut tracker, "S", "ZI").unwrap();
        assert!(tracker.is_clean());
        clean("PBEScS", "12GCZI");
        clean("PBEcS", "12GCZI");
    }

    #[test]
    fn copy_in_that_fails_while_data_flows() {
        let mut tracker = Tracker::new();
        assert_eq!(run(&mut tracker, "Q", "GEZI").unwrap(), "GEZ");
        assert!(tracker.is_clean() && !tracker.push_copy_end());
        run(&mut tracker, "PBE", "12GE").unwrap();
        assert!(!tracker.is_settled() && !tracker.forwards_copy_data());
        run(&mut tracker, "S", "ZE").unwrap();
        assert!(tracker.is_settled() && !tracker.is_clean());
    }

    #[test]
    fn another_message_inside_copy_is_consumed_by_the_error() {
        let mut tracker = Tracker::new();
        run(&mut tracker, "Q", "G").unwrap();
        assert_eq!(run(&mut tracker, "Q", "EZI").unwrap(), "EZ");
        assert!(tracker.is_clean());
        clean("QQQ", "GEZITDCZI");
    }

    #[test]
    fn replies_out_of_place_are_a_desync() {
        for (asks, replies) in
            [("", "Z"), ("P", "2"), ("Q", "1"), ("D", "T"), ("B", "D"), ("S", "C"), ("E", "T"), ("Q", "K")]
        {
            let replies = replies.replace('Z', "ZI");
            assert!(run(&mut Tracker::new(), asks, &replies).is_err(), "{asks} {replies}");
        }
    }
}
