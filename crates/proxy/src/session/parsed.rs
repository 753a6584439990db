//! Batches that need no backend: Parse of statements that a server has accepted before, Close, and Sync.
//!
//! A client that prepares must not wait for a backend: those that have one may be waiting for it (pgbench
//! prepares for one client while its others are inside transactions).

use protocol::frame::{Header, frontend_header};
use protocol::message::{self, Object};
use protocol::write::{close_complete, parse_complete};

use super::Session;
use crate::engine::{Boundary, Unit};

impl Session {
    /// Answers a unit of nothing but known Parse messages, Close and Sync; false when it has others.
    pub(super) fn answer_parses(&mut self, unit: &Unit) -> bool {
        if unit.boundary != Boundary::Sync || !self.is_parses_only(unit) {
            return false;
        }
        let mut left = unit.len;
        while left > 0 {
            let Ok(Some(header)) = frontend_header(self.from_client.filled()) else { break };
            let message = self.from_client.filled().get(..header.len).unwrap_or_default().to_vec();
            self.from_client.consume(header.len);
            left = left.saturating_sub(header.len);
            self.answer_one(header.tag, &message);
        }
        self.put_ready();
        true
    }

    fn answer_one(&mut self, tag: u8, message: &[u8]) {
        match (tag, message::parse(message), message::object(message)) {
            (b'P', Some(parse), _) => {
                let statement = self.worker.shared.statements.find(parse.tail);
                if let Some(statement) = statement {
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

    fn is_parses_only(&self, unit: &Unit) -> bool {
        let cache = &self.worker.shared.statements;
        let schema = cache.schema();
        let mut names: Vec<&[u8]> = Vec::new();
        let mut bytes = self.from_client.filled().get(..unit.len).unwrap_or_default();
        while !bytes.is_empty() {
            let Ok(Some(Header { tag, len })) = frontend_header(bytes) else { return false };
            let Some((message, rest)) = bytes.split_at_checked(len) else { return false };
            let fits = match (tag, message::parse(message)) {
                (b'S', _) => rest.is_empty(),
                (b'C', _) => message::object(message).is_some(),
                (b'P', Some(parse)) => {
                    // A name that is in use is for the server to refuse.
                    let known =
                        self.engine.statements().get(parse.name).is_some() || names.contains(&parse.name);
                    names.push(parse.name);
                    (parse.name.is_empty() || !known)
                        && cache.find(parse.tail).is_some_and(|found| found.is_accepted(schema))
                }
                _ => false,
            };
            if !fits {
                return false;
            }
            bytes = rest;
        }
        true
    }
}
