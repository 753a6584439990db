//! Batches that need no backend: Parse of statements that a server has accepted before, Close, and Sync.
//!
//! A client that prepares must not wait for a backend: those that have one may be waiting for it (pgbench
//! prepares for one client while its others are inside transactions).

use std::sync::Arc;

use protocol::frame::{Header, frontend_header};
use protocol::message::{self, Object};
use protocol::write::{close_complete, parse_complete};

use super::Session;
use crate::engine::{Boundary, Unit};
use crate::statements::Statement;
use crate::stats::Count;

impl Session {
    /// Answers a unit of nothing but known Parse messages, Close and Sync; false when it has others.
    pub(super) fn answer_parses(&mut self, unit: &Unit) -> bool {
        let known = (unit.boundary == Boundary::Sync).then(|| self.known_parses(unit)).flatten();
        let Some(known) = known else { return false };
        let mut known = known.into_iter();
        let mut left = unit.len;
        while left > 0 {
            let Ok(Some(header)) = frontend_header(self.from_client.filled()) else { break };
            let message = self.from_client.filled().get(..header.len).unwrap_or_default().to_vec();
            self.from_client.consume(header.len);
            left = left.saturating_sub(header.len);
            self.answer_one(header.tag, &message, &mut known);
        }
        self.put_ready();
        true
    }

    fn answer_one(&mut self, tag: u8, message: &[u8], known: &mut impl Iterator<Item = Arc<Statement>>) {
        match (tag, message::parse(message), message::object(message)) {
            (b'P', Some(parse), _) => {
                if let Some(statement) = known.next() {
                    self.tally.add(Count::ClientParses, 1);
                    self.engine.define_now(parse.name, &statement);
                    self.to_client.own(parse_complete);
                }
            }
            (b'C', _, Some(object)) => {
                if let Object::Statement(name) = object {
                    self.engine.close_now(name);
                }
                self.to_client.own(close_complete);
            }
            _ => {}
        }
    }

    /// The statements of a unit's Parse messages, in order; `None` when one is not known or there is more to
    /// do. They are held from here on: the cache may drop what nobody holds at any time.
    fn known_parses(&self, unit: &Unit) -> Option<Vec<Arc<Statement>>> {
        let mut bytes = self.from_client.filled().get(..unit.len).unwrap_or_default();
        if !only_prepares(bytes) {
            return None;
        }
        let cache = &self.worker.shared.statements;
        let schema = cache.schema();
        let mut names: Vec<&[u8]> = Vec::new();
        let mut statements = Vec::new();
        while !bytes.is_empty() {
            let Header { tag, len } = frontend_header(bytes).ok()??;
            let (message, rest) = bytes.split_at_checked(len)?;
            let fits = match (tag, message::parse(message)) {
                (b'S', _) => rest.is_empty(),
                (b'C', _) => message::object(message).is_some(),
                (b'P', Some(parse)) => {
                    // A name that is in use is for the server to refuse.
                    let known =
                        self.engine.statements().any(parse.name).is_some() || names.contains(&parse.name);
                    names.push(parse.name);
                    let found = cache.find(parse.tail).filter(|found| found.is_accepted(schema));
                    statements.extend(found.clone());
                    (parse.name.is_empty() || !known) && found.is_some()
                }
                _ => false,
            };
            if !fits {
                return None;
            }
            bytes = rest;
        }
        Some(statements)
    }
}

/// Whether a unit has nothing but Parse, Close and Sync. Most that parse also run: a look at the tags, up to the first
/// other, spares them the lists and the cache.
fn only_prepares(mut unit: &[u8]) -> bool {
    while let Ok(Some(Header { tag: b'P' | b'C' | b'S', len })) = frontend_header(unit) {
        unit = unit.get(len..).unwrap_or_default();
    }
    unit.is_empty()
}
