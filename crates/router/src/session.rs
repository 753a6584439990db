//! Statements about the session: SET, RESET, SHOW, DISCARD, DEALLOCATE, and pgweir's own commands.

use crate::lexer::Token;
use crate::own;
use crate::reason::Reason;
use crate::transaction;
use crate::verdict::{Access, Effect, PinReason, StatementKind, TxControl, Verdict};

fn neutral() -> Verdict {
    Verdict::new(Access::Neutral, StatementKind::Other, Reason::SessionControl)
}

/// Answered by pgweir.
pub(crate) fn console() -> Verdict {
    Verdict::new(Access::Neutral, StatementKind::Other, Reason::Console).with_effect(Effect::Console)
}

/// SHOW: `POOL_*` is ours, and so are parameters of ours.
pub(crate) fn show(rest: &[Token<'_>]) -> Verdict {
    const PREFIX: &[u8] = b"pool_";
    let ours = rest.first().filter(|name| name.is_name()).is_some_and(|name| {
        name.text.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
    });
    if ours || own::named_by(rest).is_some() {
        console()
    } else if rest.first().is_some_and(|name| name.is_any(&["transaction_read_only", "in_hot_standby"])) {
        // Who asks wants to know whether it may write here, and it may, as with `pg_is_in_recovery()`.
        Verdict::new(Access::Write, StatementKind::Other, Reason::SessionControl)
    } else {
        neutral()
    }
}

/// SET: of the transaction, for the transaction, or for the session.
pub(crate) fn set(rest: &[Token<'_>]) -> Verdict {
    let scope = rest.split_first().filter(|(scope, _)| scope.is_any(&["local", "session"]));
    let (local, rest) = match scope {
        // SET SESSION AUTHORIZATION and SET SESSION CHARACTERISTICS are the session's anyway.
        Some((scope, after)) => (scope.is("local"), after),
        None => (false, rest),
    };
    let Some((name, value)) = rest.split_first() else { return Verdict::unparsed(Reason::Unparsed) };
    if name.is("transaction") && !value.first().is_some_and(is_assignment) {
        return transaction::set_transaction(value);
    }
    if name.is("constraints") {
        return neutral();
    }
    let assigned = value.split_first().filter(|(sign, _)| is_assignment(sign)).map(|(_, value)| value);
    if let Some(verdict) = assigned.and_then(|value| transaction::setting(name, value)) {
        return verdict;
    }
    let verdict = neutral().with_pin((!local).then_some(PinReason::SessionSetting));
    // What follows goes by other rules, so it must wait for this.
    if decides(name, value) { verdict.with_tx(TxControl::Mixed) } else { verdict }
}

/// The setting is one that statements are routed by: `default_transaction_*`, `pgweir.*`, or
/// SET SESSION CHARACTERISTICS.
fn decides(name: &Token<'_>, value: &[Token<'_>]) -> bool {
    const OURS: &[u8] = b"pgweir";
    const DEFAULTS: &[u8] = b"default_transaction_";
    let begins =
        |start: &[u8]| name.text.get(..start.len()).is_some_and(|text| text.eq_ignore_ascii_case(start));
    let ours = name.text.len() == OURS.len() && begins(OURS);
    name.is_name()
        && (begins(DEFAULTS)
            || name.is("characteristics")
            || (ours && value.first().is_some_and(|dot| dot.is_punct("."))))
}

fn is_assignment(token: &Token<'_>) -> bool {
    token.is("to") || token.text == b"="
}

/// RESET: an unpinned session has no setting to lose, a pinned one runs it where its settings are.
pub(crate) fn reset() -> Verdict {
    neutral()
}

/// DISCARD ALL | PLANS | SEQUENCES | TEMP
pub(crate) fn discard(rest: &[Token<'_>]) -> Verdict {
    let all = rest.first().is_some_and(|what| what.is("all"));
    neutral().with_effect(if all { Effect::DiscardAll } else { Effect::None })
}

/// `DEALLOCATE [PREPARE] { name | ALL }`; a name in quotes is a name.
pub(crate) fn deallocate(rest: &[Token<'_>]) -> Verdict {
    let all = match rest {
        [what] => what.is("all"),
        [prepare, what] => prepare.is("prepare") && what.is("all"),
        _ => return Verdict::unparsed(Reason::Unparsed),
    };
    neutral().with_effect(if all { Effect::DeallocateAll } else { Effect::None })
}
