//! The statements of a lease whose answers are due: what each of them cost is known by the server's messages.
//!
//! A simple Query is one statement; an Execute is one, or is never run when the batch fails before it. All end with
//! ReadyForQuery. Of portals that are mixed, the statement that was bound last counts.

use std::collections::VecDeque;
use std::time::Duration;

use protocol::message;
use protocol::tracker::Push;
use router::Reason;
use telemetry::metrics::Route;

use crate::digest::{DigestBook, Outcome, Place};

/// More than so many statements of one lease at a time are not counted.
const MAX_CALLS: usize = 1000;

#[derive(Debug, Clone, Copy)]
struct Call {
    place: Place,
    push: Push,
    rows: u64,
    bytes: u64,
    failed: bool,
    partial: bool,
    /// The server has carried it out, or tried to.
    done: bool,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// The statement that was told last.
    told: Option<Place>,
    first: Option<Call>,
    more: VecDeque<Call>,
}

impl Calls {
    /// Nothing is due any more.
    pub(super) fn clear(&mut self) {
        (self.told, self.first) = (None, None);
        self.more.clear();
    }

    /// A statement is about to be sent.
    pub(super) fn told(&mut self, place: Option<Place>) {
        self.told = place;
    }

    /// It is sent; what the server says to `push` is its answer.
    pub(super) fn asked(&mut self, push: Push) {
        let Some(place) = self.told else { return };
        let (rows, bytes, failed, partial, done) = (0, 0, false, false, false);
        let call = Call { place, push, rows, bytes, failed, partial, done };
        if self.first.is_none() {
            self.first = Some(call);
        } else if self.more.len() < MAX_CALLS {
            self.more.push_back(call);
        }
    }

    /// The server has answered `push` so far with `bytes`, the last of which are `message`.
    pub(super) fn answered(&mut self, push: Push, message: &[u8], bytes: u64) {
        let call = match self.first.as_mut() {
            Some(first) if first.push == push => Some(first),
            _ => match self.more.binary_search_by_key(&push, |call| call.push) {
                Ok(at) => self.more.get_mut(at),
                Err(_) => None,
            },
        };
        let Some(call) = call else { return };
        call.bytes += bytes;
        call.done = true;
        match message.first() {
            Some(b'C') => call.rows += message::command_tag(message).map_or(0, rows_of),
            Some(b'E') => call.failed = true,
            Some(b's') => call.partial = true,
            _ => {}
        }
    }

    /// The server is ready after `push`: what was sent before has ended, and took so long together. The server answers
    /// a batch in one go, so nobody can tell how long each of it took: all have the same share.
    pub(super) fn ready(&mut self, push: Push, took: Duration, count: &mut dyn FnMut(Ended)) {
        let took = if self.more.is_empty() { took } else { took / self.ended(push).max(1) };
        while let Some(call) = self.first.filter(|call| call.push <= push) {
            self.first = self.more.pop_front();
            if call.done {
                count(Ended { call, took });
            }
        }
    }
}

impl Calls {
    /// How many of them have ended by `push`.
    fn ended(&self, push: Push) -> u32 {
        let ended = |call: &&Call| call.push <= push && call.done;
        u32::try_from(self.first.iter().chain(&self.more).filter(ended).count()).unwrap_or(u32::MAX)
    }
}

/// A call that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    call: Call,
    took: Duration,
}

impl Ended {
    /// Counts it.
    pub(super) fn count(self, book: &DigestBook, route: Route, reason: Reason) {
        let Call { place, rows, bytes, failed, partial, .. } = self.call;
        book.count(place, &Outcome { route, reason, took: self.took, rows, bytes, failed, partial });
    }
}

/// `SELECT 5`, `INSERT 0 5`: how many rows.
fn rows_of(tag: &[u8]) -> u64 {
    let number = tag.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    let rows = number.iter().try_fold(0_u64, |rows, byte| rows.checked_mul(10)?.checked_add(digit(byte)?));
    rows.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tag: u8, text: &str) -> Vec<u8> {
        let len = u32::try_from(text.len() + 5).unwrap();
        [&[tag][..], &len.to_be_bytes(), text.as_bytes(), b"\0"].concat()
    }

    /// What ends, with its rows, bytes and whether it failed.
    fn ends(calls: &mut Calls, push: u64) -> Vec<(u64, u64, bool)> {
        let mut all = Vec::new();
        calls.ready(Push(push), Duration::from_millis(1), &mut |ended| {
            all.push((ended.call.rows, ended.call.bytes, ended.call.failed));
        });
        all
    }

    fn place() -> Option<Place> {
        DigestBook::default().place(1, Some(b"SELECT 1"))
    }

    #[test]
    fn a_query_of_several_statements_is_one_call() {
        let mut calls = Calls::default();
        calls.told(place());
        calls.asked(Push(1));
        calls.answered(Push(1), &message(b'C', "SELECT 2"), 40);
        calls.answered(Push(1), &message(b'C', "INSERT 0 3"), 20);
        calls.answered(Push(1), &message(b'E', "SERROR"), 5);
        assert_eq!(ends(&mut calls, 1), [(5, 65, true)]);
        assert_eq!(ends(&mut calls, 2), []);
    }

    #[test]
    fn what_stands_behind_an_error_was_not_called() {
        let mut calls = Calls::default();
        calls.told(place());
        for push in [3, 5, 7] {
            calls.asked(Push(push));
        }
        calls.answered(Push(3), &message(b'C', "SELECT 1"), 10);
        calls.answered(Push(4), &message(b'E', "a Bind"), 10);
        assert_eq!(ends(&mut calls, 8), [(1, 10, false)]);
        // The next batch, sent ahead, is not ended by the first one's end.
        calls.asked(Push(10));
        assert_eq!(ends(&mut calls, 9), []);
        calls.answered(Push(10), &message(b's', ""), 10);
        assert_eq!(ends(&mut calls, 11), [(0, 10, false)]);
    }

    #[test]
    fn rows_stand_at_the_end_of_the_tag() {
        assert_eq!([rows_of(b"SELECT 7"), rows_of(b"INSERT 0 3"), rows_of(b"CREATE TABLE")], [7, 3, 0]);
    }
}
