//! The statements that one client has made: its names, and what an undone transaction or a failed Parse takes back.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use protocol::tracker::{Event, Push, Token};

use super::asked::Asked;
use super::{Schema, Source, Statement, StatementId, key};
use crate::hash::Seeded;
use crate::prepared::{Dropped, Prepared};

fn has_id(statement: &Option<Arc<Statement>>, id: StatementId) -> bool {
    statement.as_ref().is_some_and(|statement| statement.id == id)
}

/// A name of the client, and what it stood for.
type Before = (Box<[u8]>, Option<Arc<Statement>>);

/// What the books said before a message was forwarded.
#[derive(Debug)]
struct Undo {
    token: Token,
    /// What a server is asked to accept, and under which schema.
    asked: Option<(Arc<Statement>, Schema)>,
    client: Option<Before>,
    unnamed: bool,
    /// What the backend held under no name.
    held: Option<StatementId>,
    /// What a backend is asked to drop.
    dropped: Option<Dropped>,
    /// The batch that it stands in.
    batch: u32,
}

/// The statements of one client, by the client's names.
#[derive(Debug, Default)]
pub struct ClientStatements {
    named: HashMap<Box<[u8]>, Arc<Statement>, Seeded>,
    unnamed: Option<Arc<Statement>>,
    undo: VecDeque<Undo>,
    next_token: u32,
    /// Counts what ends in ReadyForQuery.
    batch: u32,
    /// Parsed without a server's word: the first backend that is to run them parses them anew.
    unasked: Vec<StatementId>,
    journaling: bool,
    /// What the names stood for before each change since the journal began.
    journal: Vec<Before>,
    asked: Asked,
}

impl ClientStatements {
    /// The message `push` is about the statement that the client calls `name`; those before `owed` are answered.
    pub fn ask_by(&mut self, push: Push, name: &[u8], owed: Push) {
        self.asked.note(push, name, owed);
    }

    /// No message is on its way any more.
    pub fn forget_asked(&mut self) {
        self.asked.clear();
    }

    /// What the client called the statement of that id in the message `push`, or else calls it.
    #[must_use]
    pub fn told_name(&self, push: Push, id: StatementId) -> Option<Vec<u8>> {
        self.asked.name(push).or_else(|| self.name_of(id).map(<[u8]>::to_vec))
    }

    /// The statement of that name that was made by Parse.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&Arc<Statement>> {
        self.any(name).filter(|statement| statement.source == Source::Parse)
    }

    /// The statement of that name that was made by PREPARE.
    #[must_use]
    pub fn get_by_sql(&self, name: &[u8]) -> Option<&Arc<Statement>> {
        self.any(name).filter(|statement| statement.source == Source::Prepare)
    }

    /// The statement of that name, however it was made.
    #[must_use]
    pub fn any(&self, name: &[u8]) -> Option<&Arc<Statement>> {
        if name.is_empty() { self.unnamed.as_ref() } else { self.named.get(key(name)) }
    }

    /// The server has made `statement` as `name`, by PREPARE.
    pub fn define_by_sql(&mut self, name: &[u8], statement: &Arc<Statement>) {
        self.replace(name, Some(Arc::clone(statement)));
    }

    /// What was forwarded so far and what follows stand in different batches: one may fail and the other not.
    pub fn end_batch(&mut self) {
        self.batch = self.batch.wrapping_add(1);
    }

    /// Which batch it is, counted by what ends one.
    #[must_use]
    pub fn batch(&self) -> u32 {
        self.batch
    }

    /// The server has not said how an earlier batch comes out that says something about statements.
    #[must_use]
    pub fn has_unsettled(&self) -> bool {
        self.undo.iter().any(|undo| undo.batch != self.batch)
    }

    /// What `name` stands for, or whether the backend holds it, depends on how an earlier batch comes out, which the
    /// server has not said.
    #[must_use]
    pub fn is_unsettled(&self, name: &[u8]) -> bool {
        let id = self.any(name).map(|statement| statement.id);
        let changes =
            |undo: &&Undo| undo.client.as_ref().is_some_and(|(changed, _)| key(changed) == key(name));
        if name.is_empty() {
            // Whatever came before it, the last Parse of the batch itself is what counts, be it the client's or ours.
            let parses = |undo: &&Undo| changes(undo) || undo.unnamed;
            return self.undo.iter().rev().find(parses).is_some_and(|undo| undo.batch != self.batch);
        }
        let concerns = |undo: &Undo| {
            changes(&undo)
                || undo.asked.as_ref().is_some_and(|(asked, _)| !undo.unnamed && Some(asked.id) == id)
        };
        self.undo.iter().any(|undo| undo.batch != self.batch && concerns(undo))
    }

    /// The client's name of a statement.
    #[must_use]
    pub fn name_of(&self, id: StatementId) -> Option<&[u8]> {
        let now = self.named.iter().find(|(_, statement)| statement.id == id).map(|(name, _)| &**name);
        // Or its name up to a message that the server has not come to.
        let before = |undo: &'_ Undo| undo.client.as_ref().is_some_and(|(_, before)| has_id(before, id));
        now.or_else(|| {
            self.undo.iter().find(|undo| before(undo)).and_then(|undo| undo.client.as_ref()).map(|c| &*c.0)
        })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.named.len() + usize::from(self.unnamed.is_some())
    }

    /// There are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The client parses `statement` as `name`; a backend is asked to, when there is a schema.
    pub fn define(&mut self, name: &[u8], statement: &Arc<Statement>, asked: Option<Schema>) -> Token {
        let before = self.replace(name, Some(Arc::clone(statement)));
        let asked = asked.map(|schema| (Arc::clone(statement), schema));
        self.remember(Some((name.into(), before)), asked, name.is_empty())
    }

    /// The client parses `statement` as `name`, and that is done.
    pub fn define_now(&mut self, name: &[u8], statement: &Arc<Statement>) {
        if !name.is_empty() && !self.unasked.contains(&statement.id) {
            self.unasked.push(statement.id);
        }
        self.replace(name, Some(Arc::clone(statement)));
    }

    /// No server was asked about `id` since the client parsed it. Said once.
    pub fn take_unasked(&mut self, id: StatementId) -> bool {
        let at = self.unasked.iter().position(|unasked| *unasked == id);
        at.map(|at| self.unasked.swap_remove(at)).is_some()
    }

    /// No server was asked about `id` since the client parsed it.
    #[must_use]
    pub fn is_unasked(&self, id: StatementId) -> bool {
        self.unasked.contains(&id)
    }

    /// No server was asked about any of them.
    pub fn unask_all(&mut self) {
        let ids = self.named.values().filter(|statement| statement.source == Source::Parse);
        self.unasked = ids.map(|statement| statement.id).collect();
    }

    /// The client closes `name`, and that is done.
    pub fn close_now(&mut self, name: &[u8]) {
        if let Some(statement) = self.replace(name, None) {
            self.take_unasked(statement.id);
        }
    }

    /// The client closes `name`.
    pub fn close(&mut self, name: &[u8]) -> Token {
        let before = self.replace(name, None);
        self.remember(Some((name.into(), before)), None, false)
    }

    /// We parse `statement` on a backend, or as its unnamed statement.
    pub fn prepare_ours(&mut self, statement: &Arc<Statement>, schema: Schema, unnamed: bool) -> Token {
        self.remember(None, Some((Arc::clone(statement), schema)), unnamed)
    }

    /// We close a statement on a backend.
    pub fn close_ours(&mut self, dropped: Dropped) -> Token {
        let token = self.remember(None, None, false);
        if let Some(undo) = self.undo.back_mut() {
            undo.dropped = Some(dropped);
        }
        token
    }

    /// The unnamed statement is gone, as after every simple Query.
    pub fn drop_unnamed(&mut self) {
        self.unnamed = None;
        // Nor does it come back with what is taken back.
        let clients = self.undo.iter_mut().filter_map(|undo| undo.client.as_mut());
        clients.filter(|(name, _)| name.is_empty()).for_each(|(_, before)| *before = None);
    }

    /// All that have a name are gone (DEALLOCATE ALL, DISCARD ALL).
    pub fn clear(&mut self) {
        self.named.clear();
        self.unasked.clear();
    }

    /// Changes from now on can be taken back by [`ClientStatements::roll_back`].
    pub fn begin_journal(&mut self) {
        self.journal.clear();
        self.journaling = true;
    }

    /// Changes stay.
    pub fn end_journal(&mut self) {
        self.journal.clear();
        self.journaling = false;
    }

    /// As if nothing had been asked of the server, which is lost, since the journal began.
    pub fn roll_back(&mut self) {
        self.journaling = false;
        self.undo.clear();
        while let Some((name, before)) = self.journal.pop() {
            self.replace(&name, before);
        }
    }

    /// What a backend held under no name, before the Parse that was defined last.
    pub fn held_before(&mut self, held: Option<StatementId>) {
        if let Some(undo) = self.undo.back_mut() {
            undo.held = held;
        }
    }

    /// Follows what the server did, in the client's books and in those of the backend.
    pub fn settle(&mut self, events: &[Event], backend: &mut Prepared) {
        for event in events {
            if let Event::Done(token) = event {
                self.done(*token);
            }
        }
        // Latest first: each entry holds what was there before it.
        for event in events.iter().rev() {
            match event {
                Event::Failed(token) => self.take_back(*token, backend, true),
                Event::Skipped(token) => self.take_back(*token, backend, false),
                Event::Done(_) | Event::OursFailed => {}
            }
        }
    }

    fn done(&mut self, token: Token) {
        let Some((_, undo)) = self.forget(token) else { return };
        if let Some((statement, schema)) = undo.asked {
            statement.accept(schema);
        }
    }

    /// Where it stood, and what it was.
    fn forget(&mut self, token: Token) -> Option<(usize, Undo)> {
        // Answers come in the order of the messages: it is at the front, or near it.
        let at = self.undo.iter().position(|undo| undo.token == token)?;
        self.undo.remove(at).map(|undo| (at, undo))
    }

    fn take_back(&mut self, token: Token, backend: &mut Prepared, failed: bool) {
        let Some((at, undo)) = self.forget(token) else { return };
        if let Some(dropped) = undo.dropped {
            backend.restore(dropped);
        }
        if let Some((statement, _)) = undo.asked {
            // What a later message asks for stands.
            let asks = |later: &&mut Undo| {
                let asks = |asked: &(Arc<Statement>, Schema)| undo.unnamed || asked.0.id == statement.id;
                later.unnamed == undo.unnamed && later.asked.as_ref().is_some_and(asks)
            };
            // A Parse that fails drops the unnamed statement before it; one that is ignored does not.
            let held = undo.held.filter(|_| !failed);
            match self.undo.range_mut(at..).find(asks) {
                Some(later) => later.held = held,
                None if !undo.unnamed => backend.forget(statement.id),
                // Unless it was dropped since.
                None if backend.is_unnamed(statement.id) => backend.set_unnamed(held),
                None => {}
            }
        }
        if let Some((name, before)) = undo.client {
            // A Parse of the unnamed statement drops the one before it even when it fails.
            let before = before.filter(|_| !(failed && name.is_empty()));
            let same = |later: &&mut Undo| later.client.as_ref().is_some_and(|(other, _)| *other == name);
            // What a later batch made of the name stands.
            match self.undo.range_mut(at..).find(same) {
                Some(later) => later.client = Some((name, before)),
                None => drop(self.replace(&name, before)),
            }
        }
    }

    fn replace(&mut self, name: &[u8], statement: Option<Arc<Statement>>) -> Option<Arc<Statement>> {
        let name = key(name);
        let before = match statement {
            statement if name.is_empty() => std::mem::replace(&mut self.unnamed, statement),
            Some(statement) => self.named.insert(name.into(), statement),
            None => self.named.remove(name),
        };
        if self.journaling {
            self.journal.push((name.into(), before.clone()));
        }
        before
    }

    fn remember(
        &mut self,
        client: Option<Before>,
        asked: Option<(Arc<Statement>, Schema)>,
        unnamed: bool,
    ) -> Token {
        self.next_token = self.next_token.wrapping_add(1);
        let token = Token(self.next_token);
        self.undo.push_back(Undo {
            token,
            asked,
            client,
            unnamed,
            held: None,
            dropped: None,
            batch: self.batch,
        });
        token
    }
}
