//! A string of several statements with some of ours in it: what a reset in the middle has taken away is given back right
//! behind it, so that the rest of the string sees the client's start-up values.
//!
//! The answers to ours are left out, and the positions that errors name are those in the client's own text.

use std::collections::VecDeque;

use bytes::BufMut;
use protocol::error::ErrorView;
use protocol::frame::HEADER_LEN;
use protocol::tracker::{Owner, Push};
use router::SessionOp;

use super::book::Step;
use super::{Engine, Env};
use crate::out::Out;
use crate::statements::put_header;

/// More of ours than this is not put into a string (bytes): what it resets is then the server's while the backend is held.
const MOST: usize = 64 * 1024;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Splice {
    push: Push,
    /// Where ours begin in the text that the server has, and how long they are (characters).
    insertions: Vec<(usize, usize)>,
}

/// A text with statements of ours in it.
#[derive(Debug, Default)]
pub(super) struct Spliced {
    text: Vec<u8>,
    /// How long that is (characters).
    characters: usize,
    splice: Splice,
}

impl Engine {
    /// `sql`, which does `ops`, with what gives back start-up values in it, and the steps of all of it; `None` when there
    /// is nothing to give back, or it can be done behind the whole.
    pub(super) fn splice(
        &self,
        sql: Option<&[u8]>,
        ops: &[SessionOp],
        steps: &mut VecDeque<Step>,
        env: &Env<'_>,
    ) -> Option<Spliced> {
        let sql = sql.filter(|_| ops.len() > 1 && self.settings.has_startup())?;
        let mut again = Vec::new();
        let mut ours = 0;
        for op in ops {
            let statements = self.settings.startup_again(op);
            ours += statements.iter().map(String::len).sum::<usize>();
            again.push(statements);
            if ours > MOST {
                return None;
            }
        }
        if ours == 0 {
            return None;
        }
        let ends = router::statement_ends(sql, env.standard_conforming);
        let mut spliced = Spliced::default();
        let (mut all, mut from) = (VecDeque::new(), 0);
        for ((end, again), step) in ends.into_iter().zip(&again).zip(std::mem::take(steps)) {
            spliced.add(sql.get(from..end).unwrap_or_default());
            from = end;
            all.push_back(step);
            spliced.put(again);
            all.extend(again.iter().map(|_| Step { op: SessionOp::Nothing, made: None, of: Owner::Ours }));
        }
        spliced.add(sql.get(from..).unwrap_or_default());
        *steps = all;
        Some(spliced)
    }

    /// The text that was pushed last is that one.
    pub(super) fn note_spliced(&mut self, spliced: Spliced) -> Vec<u8> {
        let splice = Splice { push: self.tracker.last_push(), ..spliced.splice };
        self.settings.spliced = Some(splice);
        // One at a time.
        self.resets = true;
        spliced.text
    }

    /// Whether a message of the server answers a statement of ours in a string of the client's.
    pub(super) fn answers_splice(&mut self, tag: u8, push: Push) -> bool {
        let Some(splice) = &self.settings.spliced else { return false };
        if splice.push != push {
            return false;
        }
        match tag {
            b'T' | b'D' => self.settings.is_at_ours(push),
            b'C' => self.settings.pass_ours(push),
            b'Z' => {
                self.settings.spliced = None;
                false
            }
            _ => false,
        }
    }

    /// Writes an error or a notice with the position that it names in the client's text; false when it names none, or
    /// the text is the client's.
    pub(super) fn put_moved(&self, push: Push, message: &[u8], out: &mut Out) -> bool {
        let Some(splice) = self.settings.spliced.as_ref().filter(|splice| splice.push == push) else {
            return false;
        };
        let view = ErrorView::parse(message.get(HEADER_LEN..).unwrap_or_default());
        // A position that is none is passed as it came.
        let position = view.field(b'P').and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        let Some(position) = position.and_then(|position| splice.original(position)) else {
            return false;
        };
        let position = position.to_string();
        let len = |(kind, text): (u8, &[u8])| 2 + if kind == b'P' { position.len() } else { text.len() };
        out.own(|own| {
            put_header(
                own,
                message.first().copied().unwrap_or(b'E'),
                view.fields().map(len).sum::<usize>() + 1,
            );
            for (kind, text) in view.fields() {
                own.put_u8(kind);
                own.put_slice(if kind == b'P' { position.as_bytes() } else { text });
                own.put_u8(0);
            }
            own.put_u8(0);
        });
        true
    }
}

impl Spliced {
    fn add(&mut self, text: &[u8]) {
        self.text.extend_from_slice(text);
        self.characters += characters(text);
    }

    fn put(&mut self, statements: &[String]) {
        if statements.is_empty() {
            return;
        }
        let begin = self.characters;
        // What stands in front may be a comment up to the end of the line.
        self.add(b"\n;");
        for statement in statements {
            self.add(statement.as_bytes());
            self.add(b";");
        }
        self.splice.insertions.push((begin, self.characters - begin));
    }
}

impl Splice {
    /// The position (from 1) in the client's text of one in the server's; `None` of 0, which no server means.
    fn original(&self, position: usize) -> Option<usize> {
        let before = position.checked_sub(1)?;
        let ours = self.insertions.iter().map(|(begin, len)| before.saturating_sub(*begin).min(*len));
        position.checked_sub(ours.sum())
    }
}

/// As the server counts them where the encoding is UTF-8, or has one byte for each.
fn characters(text: &[u8]) -> usize {
    match std::str::from_utf8(text) {
        Ok(text) => text.chars().count(),
        Err(_) => text.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_those_of_the_clients_text() {
        let mut spliced = Spliced::default();
        spliced.add("RÉSET;".as_bytes());
        spliced.put(&["SET a=1".to_owned(), "SET b=2".to_owned()]);
        assert_eq!(String::from_utf8(spliced.text.clone()).unwrap(), "RÉSET;\n;SET a=1;SET b=2;");
        spliced.add(b" x; y;");
        spliced.put(&["SET c=3".to_owned()]);
        let (splice, text) = (spliced.splice, String::from_utf8(spliced.text).unwrap());
        let at = |what: &str| splice.original(text[..text.find(what).unwrap()].chars().count() + 1).unwrap();
        assert_eq!((at("RÉ"), at("x"), at("y")), (1, 8, 11));
        assert_eq!(splice.original(text.chars().count() + 1), Some("RÉSET; x; y;".chars().count() + 1));
        assert_eq!(splice.original(0), None, "a server that lies");
        assert!(splice.original(usize::MAX).is_some());
        assert_eq!(at("a=1"), 7, "in ours: where it stands");
    }
}
