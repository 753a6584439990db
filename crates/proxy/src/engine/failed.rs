//! Binds in a transaction that has failed, of statements that the backend does not hold.
//!
//! The server parses nothing there but what ends the transaction, so that the statement cannot be made. It looks at a
//! Bind's number of values first, and refuses it then (`postgres.c`, `exec_bind_message`): the client is told the
//! same by an empty statement of as many parameters, which the server takes at any time. A Describe is not served by it.

use bytes::BufMut;
use protocol::message::Bind;
use protocol::tracker::{Ask, Owner};
use router::TxControl;

use super::prepare::NO_TOKEN;
use super::{Books, Engine};
use crate::out::Out;
use crate::statements::{NAME_PREFIX, Source, Statement, put_header};

/// `text`: any type would do that the server may not have to find out.
const TYPE: u32 = 25;

impl Engine {
    /// Whether a Bind of that statement, the client's `name`, is refused although the backend does not hold it.
    pub(super) fn is_refused_unheld(&self, statement: &Statement, name: &[u8], books: &Books) -> bool {
        let verdict = statement.verdict();
        let may_run = verdict.tx != TxControl::None || verdict.statements == 0;
        if may_run || !self.has_failed() || self.stand_in.is_for(statement) {
            return false;
        }
        let id = statement.id();
        !match statement.source() {
            Source::Prepare => books.prepared.own(name) == Some(Some(id)),
            Source::Parse if name.is_empty() => books.prepared.is_unnamed(id),
            Source::Parse => books.prepared.holds(id) && !self.statements.is_unasked(id),
        }
    }

    /// Writes the front of a Bind of `len` bytes that the server refuses as it would one of `statement`; how many bytes
    /// of the client's it stands for.
    pub(super) fn bind_refused(
        &mut self,
        out: &mut Out,
        statement: &Statement,
        bind: &Bind<'_>,
        len: usize,
    ) -> usize {
        let name = format!("{NAME_PREFIX}0");
        self.inject_close(out, name.as_bytes(), NO_TOKEN, Owner::Ours);
        let count = statement.parameters();
        out.own(|own| {
            put_header(own, b'P', name.len() + 2 + size_of::<u16>() + usize::from(count) * size_of::<u32>());
            own.put_slice(name.as_bytes());
            own.put_slice(b"\0\0");
            own.put_u16(count);
            (0..count).for_each(|_| own.put_u32(TYPE));
        });
        self.tracker.push(Ask::Parse(NO_TOKEN), Owner::Ours);
        self.bind_as(out, bind, name.as_bytes(), len)
    }
}
