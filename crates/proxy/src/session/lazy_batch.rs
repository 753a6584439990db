//! BEGIN and its kin by the extended protocol, in a batch of their own: answered like the simple ones.

use std::sync::Arc;

use protocol::frame::{Header, frontend_header};
use protocol::message::{self, Object, View};
use protocol::write::{bind_complete, no_data, parameter_description, parse_complete};
use router::TxControl;

use super::Session;
use crate::catalog::Knowledge;
use crate::engine::Unit;
use crate::statements::Statement;
use crate::stats::Count;

/// What a batch of one statement says, message by message.
#[derive(Default)]
struct Batch {
    /// The statement that is bound, and how the client parses it, when it does.
    statement: Option<Arc<Statement>>,
    parsed_as: Option<Box<[u8]>>,
    /// Tags of the messages, in order; `d` for Describe of a portal.
    tags: Vec<u8>,
}

impl Session {
    /// Answers `Parse? Describe? Bind Describe? Execute Sync` of one statement without values.
    pub(super) fn answer_batch_lazily(&mut self, unit: &Unit) -> bool {
        let knowledge = Arc::clone(self.knowledge.load());
        let Some(batch) = self.read_batch(unit, &knowledge) else { return false };
        let runs = batch.tags.iter().filter(|tag| **tag == b'E').count() == 1;
        let Some(statement) = batch.statement.filter(|_| runs) else { return false };
        let Some(tag) = self.follow_lazily(statement.sql(), unit) else { return false };
        if let Some(name) = &batch.parsed_as {
            self.engine.define_now(name, &statement);
        }
        self.from_client.consume(unit.len);
        for message in batch.tags {
            match message {
                b'P' => {
                    self.tally.add(Count::ClientParses, 1);
                    self.to_client.own(parse_complete);
                }
                b'B' => {
                    self.tally.add(Count::Binds, 1);
                    self.to_client.own(bind_complete);
                }
                b'E' => self.put_complete(tag),
                b'D' => self.to_client.own(|own| {
                    // No parameters always fit.
                    let _ = parameter_description(own, &[]);
                    no_data(own);
                }),
                b'd' => self.to_client.own(no_data),
                _ => self.put_ready(),
            }
        }
        true
    }

    fn read_batch(&self, unit: &Unit, knowledge: &Knowledge) -> Option<Batch> {
        let mut batch = Batch::default();
        let mut bytes = self.from_client.filled().get(..unit.len)?;
        while !bytes.is_empty() {
            let Header { tag, len } = frontend_header(bytes).ok()??;
            let (message, rest) = bytes.split_at_checked(len)?;
            let read = match tag {
                b'P' => self.read_parse(&mut batch, message, knowledge),
                b'B' => self.read_bind(&mut batch, message),
                b'D' => read_describe(&mut batch, message),
                b'E' => message::portal(message)
                    .filter(|portal| portal.is_empty() && batch.tags.contains(&b'B'))
                    .map(|_| b'E'),
                b'S' => Some(b'S').filter(|_| rest.is_empty()),
                _ => None,
            };
            batch.tags.push(read?);
            bytes = rest;
        }
        Some(batch)
    }

    fn read_parse(&self, batch: &mut Batch, message: &[u8], knowledge: &Knowledge) -> Option<u8> {
        let parse = message::parse(message)?;
        let taken = !parse.name.is_empty() && self.engine.statements().any(parse.name).is_some();
        if taken || !batch.tags.is_empty() {
            return None;
        }
        let statement = self.intern(parse.tail, parse.sql, knowledge);
        batch.parsed_as = Some(parse.name.into());
        batch.statement = Some(statement).filter(|statement| statement.verdict().tx != TxControl::None);
        Some(b'P')
    }

    fn read_bind(&self, batch: &mut Batch, message: &[u8]) -> Option<u8> {
        let View::Ready(bind) = message::bind(message, message.len()) else { return None };
        // No values, and no formats for them.
        let formatless = message.get(bind.rest..)?.starts_with(&[0, 0]);
        let plain =
            bind.portal.is_empty() && formatless && message::bound_values(message, bind.rest) == Some(0);
        if !plain || batch.tags.contains(&b'B') {
            return None;
        }
        match &batch.parsed_as {
            Some(name) => (**name == *bind.statement).then_some(b'B'),
            None => {
                batch.statement = self.engine.statements().get(bind.statement).cloned();
                Some(b'B')
            }
        }
    }
}

fn read_describe(batch: &mut Batch, message: &[u8]) -> Option<u8> {
    match message::object(message)? {
        Object::Statement(name) => batch.parsed_as.as_deref().filter(|parsed| *parsed == name).map(|_| b'D'),
        Object::Portal(name) => (name.is_empty() && batch.tags.contains(&b'B')).then_some(b'd'),
    }
}
