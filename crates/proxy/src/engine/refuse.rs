//! Statements that a standby would accept and do wrongly, in a transaction that is bound to one; and values of pgweir's
//! own parameters, which every server accepts.
//!
//! The server is given a statement that fails, in the same place: what follows, and the transaction, come out
//! as the server has it. Its error becomes one that says what to do.

use bytes::BufMut;
use config::SessionState;
use protocol::error::{ErrorView, PgError, write_error};
use protocol::frame::{HEADER_LEN, Header};
use protocol::message;
use protocol::sqlstate::SqlState;
use protocol::tracker::{Ask, Owner, Push};
use router::own::BadValue;
use router::{Effect, PinReason, SessionOp, Verdict};

use super::follow::may_concern_session;
use super::prepare::NO_TOKEN;
use super::{Books, Engine, Env, put_query};
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
        env: &Env<'_>,
        books: &mut Books,
        buf: &mut Buf,
        out: &mut Out,
        len: usize,
    ) -> bool {
        if buf.filled().len() < len {
            return false;
        }
        let sql = message::query_text(buf.at(buf.position(), len));
        let Some(why) = self.refusal(verdict, sql, env) else { return false };
        match sql.filter(|_| self.analyses_doubt(verdict)) {
            Some(sql) => self.fail_analysed(books, out, sql, why),
            None => self.fail_in_place(books, out, why),
        }
        buf.consume(len);
        true
    }

    /// Sends a Query that fails in place of the client's FunctionCall, which need not be whole; false when that may run here.
    pub(super) fn refuse_call(
        &mut self,
        verdict: &Verdict,
        env: &Env<'_>,
        books: &mut Books,
        buf: &mut Buf,
        out: &mut Out,
        len: usize,
    ) -> bool {
        let Some(why) = self.refusal(verdict, None, env) else { return false };
        self.drop_message(len);
        let dropped = self.drop_client_rest(buf.filled().len());
        buf.consume(dropped);
        self.fail_in_place(books, out, why);
        true
    }

    fn fail_in_place(&mut self, books: &mut Books, out: &mut Out, why: Box<PgError>) {
        out.own(|own| put_query(own, FAILING.as_bytes()));
        self.tracker.push(Ask::Query, Owner::Client);
        self.refused.push((self.tracker.last_push(), why));
        self.statements.drop_unnamed();
        books.prepared.set_unnamed(None);
        self.end_of_batch();
    }

    /// Why a statement of that verdict and text must not run here.
    pub(super) fn refusal(
        &self,
        verdict: &Verdict,
        sql: Option<&[u8]>,
        env: &Env<'_>,
    ) -> Option<Box<PgError>> {
        let refused = |verdict: &Verdict| self.gate.refuses(verdict);
        if refused(verdict) || self.run_by(verdict, sql, env).any(|executed| refused(&executed)) {
            return Some(Box::new(misplaced()));
        }
        if self.is_doubtful(verdict, sql, env) {
            return Some(Box::new(self.cancelled_or(misplaced())));
        }
        if let Some(pin) = verdict.pin.filter(|_| env.state == SessionState::Reject) {
            return Some(Box::new(unmovable(pin, sql)));
        }
        let sql = sql.filter(|_| may_concern_session(verdict))?;
        let ops = router::session_ops(sql, env.standard_conforming)?;
        ops.iter().find_map(router::own::bad_value).map(|bad| Box::new(bad_setting(&bad)))
    }

    /// The verdicts on the prepared statements that it runs on a standby.
    pub(super) fn run_by(
        &self,
        verdict: &Verdict,
        sql: Option<&[u8]>,
        env: &Env<'_>,
    ) -> impl Iterator<Item = Verdict> {
        let looks = self.gate.is_standby() && verdict.effect == Effect::Statements;
        let sql = sql.filter(|_| looks);
        let ops = sql.and_then(|sql| router::session_ops(sql, env.standard_conforming)).unwrap_or_default();
        let runs = ops.into_iter().filter(|op| matches!(op, SessionOp::Execute(_) | SessionOp::Explain(_)));
        runs.filter_map(|op| self.statements.any(op.statement()?)).map(|statement| env.verdict(statement))
    }

    /// Sends a Bind that fails in place of the client's, which need not be whole.
    pub(super) fn refuse_bind(&mut self, buf: &mut Buf, out: &mut Out, header: Header, why: Box<PgError>) {
        self.put_failing_bind(out, why);
        self.drop_message(header.len);
        let dropped = self.drop_client_rest(buf.filled().len());
        buf.consume(dropped);
    }

    /// Sends a Bind that fails, and with it whatever the client's would have been.
    pub(super) fn put_failing_bind(&mut self, out: &mut Out, why: Box<PgError>) {
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
        self.refused.push((self.tracker.last_push(), why));
    }

    /// Whether `message` is the failure that stands for a refusal; then the client is told why.
    pub(super) fn put_refusal(&mut self, push: Push, message: &[u8], out: &mut Out) -> bool {
        let Some(at) = self.refused.iter().position(|(refused, _)| *refused == push) else { return false };
        let (_, why) = self.refused.swap_remove(at);
        self.refused.retain(|(refused, _)| *refused > push);
        let code = ErrorView::parse(message.get(HEADER_LEN..).unwrap_or_default()).code();
        if code == Some(FAILURE) {
            out.own(|own| write_error(own, &why));
        }
        code == Some(FAILURE)
    }
}

/// More of a statement is not told (bytes).
const TOLD: usize = 100;

fn unmovable(pin: PinReason, sql: Option<&[u8]>) -> PgError {
    let text = "this statement leaves state in the session that cannot be moved to another backend";
    let sql = sql.unwrap_or_default().trim_ascii();
    let (told, more) = sql.split_at_checked(TOLD).map_or((sql, ""), |(told, _)| (told, " ..."));
    PgError::error(SqlState::FEATURE_NOT_SUPPORTED, text)
        .with_detail(format!("It is {} in: {}{more}", pin.as_str(), String::from_utf8_lossy(told)))
        .with_hint("session_state is reject here: set it to pin, or use pool_mode: session.")
}

fn misplaced() -> PgError {
    PgError::error(
        SqlState::READ_ONLY_SQL_TRANSACTION,
        "cannot execute this statement in a READ ONLY transaction on a standby",
    )
    .with_detail("A standby would accept it without doing what the primary does, or may: it calls what can do anything.")
    .with_hint(
        "Run it outside of the READ ONLY transaction, or begin the transaction READ WRITE. A function that only reads \
         is to be marked STABLE, or named in read_only_function_list.",
    )
}

/// PostgreSQL's words for an enum's value (`guc.c`).
fn bad_setting(bad: &BadValue) -> PgError {
    let text = format!("invalid value for parameter \"{}\": \"{}\"", bad.name, bad.value);
    PgError::error(SqlState::INVALID_PARAMETER_VALUE, text)
        .with_hint(format!("Available values: {}.", bad.allowed.join(", ")))
}
