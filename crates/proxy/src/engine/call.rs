//! FunctionCall: like a Query it ends in ReadyForQuery, and it has no text to follow.

use protocol::frame::Header;
use protocol::tracker::{Ask, Owner};

use super::names::Ahead;
use super::scan::call_verdict;
use super::{Books, Engine, Env};
use crate::buffer::Buf;
use crate::out::Out;

impl Engine {
    /// Forwards one; gives how many bytes of it must be there if there are too few.
    pub(super) fn function_call(
        &mut self,
        env: &Env<'_>,
        books: &mut Books,
        buf: &mut Buf,
        out: &mut Out,
        header: Header,
    ) -> Option<usize> {
        let there = buf.filled().len().min(header.len);
        let verdict = match call_verdict(header, buf.at(buf.position(), there)) {
            Ok(verdict) => verdict,
            Err(need) => return Some(need),
        };
        if self.tracker.is_skipping() {
            // Ignored, and the batch goes on.
            self.ask(Ask::FunctionCall, buf, out, header);
            return None;
        }
        if self.refuse_call(&verdict, env, books, buf, out, header.len) {
            return None;
        }
        env.watch.statement(&verdict, None);
        self.follow(&verdict, None, env);
        self.follow_sequences(&verdict, env, books, out, Ahead::OfQuery);
        self.end_of_batch();
        self.tracker.push(Ask::FunctionCall, Owner::Client);
        self.forward(buf, out, header.len);
        None
    }
}
