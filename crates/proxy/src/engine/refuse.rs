//! Statements that a standby would accept and do wrongly, in a transaction that is bound to one.
//!
//! The server is given a statement that fails, in the same place: what follows, and the transaction, come out
//! as the server has it. Its error becomes one that says what to do.

use bytes::BufMut;
use protocol::error::{ErrorView, PgError, write_error};
use protocol::frame::{HEADER_LEN, Header};
use protocol::sqlstate::SqlState;
use protocol::tracker::{Ask, Owner, Push};
use router::Verdict;

use super::prepare::NO_TOKEN;
use super::{Books, Engine, put_query};
use crate::buffer::Buf;
use crate::out::Out;
use crate::statements::{NAME_PREFIX, put_header};

/// Fails wherever it is run and changes nothing: by the simple protocol when it runs, by the extended one when
/// it is bound.
const FAILING: &str = "SELECT 1/0";
/// How [`FAILING`] fails.
const FAILURE: SqlState = SqlState(*b"22012");

impl Engine {
    /// Sends a Query that fails in place of the client's; false when the client's may run here.
    pub(super) fn refuse_query(
        &mut self,
        verdict: &Verdict,
        books: &mut Books,
        buf: &mut Buf,
        out: &mut Out,
        len: usize,
    ) -> bool {
        if !self.gate.refuses(verdict) || buf.filled().len() < len {
            return false;
        }
        buf.consume(len);
        out.own(|own| put_query(own, FAILING.as_bytes()));
        self.tracker.push(Ask::Query, Owner::Client);
        self.refused.push(self.tracker.last_push());
        self.statements.drop_unnamed();
        books.prepared.set_unnamed(None);
        self.in_batch = false;
        self.gate.bound = false;
        true
    }

    /// Sends a Bind that fails in place of the client's, which need not be whole.
    pub(super) fn refuse_bind(&mut self, buf: &mut Buf, out: &mut Out, header: Header) {
        let name = format!("{NAME_PREFIX}0");
        self.prepare_stand_in(out, &name, FAILING, NO_TOKEN);
        out.own(|own| {
            put_header(own, b'B', 1 + name.len() + 7);
            own.put_u8(0);
            own.put_slice(name.as_bytes());
            // The end of the name, no formats, no values, no result formats.
            own.put_slice(&[0; 7]);
        });
        self.tracker.push(Ask::Bind, Owner::Client);
        self.refused.push(self.tracker.last_push());
        self.drop_message(header.len);
        let dropped = self.drop_client_rest(buf.filled().len());
        buf.consume(dropped);
    }

    /// Whether `message` is the failure that stands for a refusal; then the client is told why.
    pub(super) fn put_refusal(&mut self, push: Push, message: &[u8], out: &mut Out) -> bool {
        if !self.refused.contains(&push) {
            return false;
        }
        self.refused.retain(|refused| *refused > push);
        let code = ErrorView::parse(message.get(HEADER_LEN..).unwrap_or_default()).code();
        if code == Some(FAILURE) {
            out.own(|own| write_error(own, &refusal()));
        }
        code == Some(FAILURE)
    }
}

fn refusal() -> PgError {
    PgError::error(
        SqlState::READ_ONLY_SQL_TRANSACTION,
        "cannot execute this statement in a READ ONLY transaction on a standby",
    )
    .with_detail("A standby would accept it without doing what the primary does.")
    .with_hint("Run it outside of the READ ONLY transaction, or begin the transaction READ WRITE.")
}
