//! Transaction control, from the tokens alone: BEGIN, COMMIT, ROLLBACK, SAVEPOINT, SET TRANSACTION, 2PC.
//!
//! The grammar is PostgreSQL's `TransactionStmt` and `transaction_mode_list` (`gram.y`). What does not fit
//! is [`TxControl::Mixed`]: then only the server's status byte tells what it did.

use crate::lexer::{Kind, Token};
use crate::reason::Reason;
use crate::verdict::{Access, Isolation, StatementKind, TxControl, TxMode, Verdict};

/// Words that begin transaction control. PREPARE TRANSACTION and SET TRANSACTION are found by their own.
pub(crate) const VERBS: &[&str] =
    &["begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release"];

/// The verdict on a statement that begins with one of [`VERBS`].
pub(crate) fn classify(tokens: &[Token<'_>]) -> Verdict {
    control(tokens).map_or_else(misfit, verdict)
}

/// PREPARE TRANSACTION 'id'.
pub(crate) fn two_phase() -> Verdict {
    verdict(TxControl::TwoPhase)
}

/// Transaction control that is not understood.
fn misfit() -> Verdict {
    Verdict::unparsed(Reason::Unparsed).with_tx(TxControl::Mixed)
}

fn verdict(tx: TxControl) -> Verdict {
    match tx {
        TxControl::TwoPhase => Verdict::new(Access::Write, StatementKind::Other, Reason::Utility),
        _ => Verdict::new(Access::Neutral, StatementKind::Other, Reason::TransactionControl),
    }
    .with_tx(tx)
}

fn control(tokens: &[Token<'_>]) -> Option<TxControl> {
    let (verb, rest) = tokens.split_first()?;
    let noise = |words: &[&str]| rest.split_first().filter(|(token, _)| token.is_any(words));
    if verb.is("begin") {
        let rest = noise(&["work", "transaction"]).map_or(rest, |(_, rest)| rest);
        return modes(rest).map(TxControl::Begin);
    }
    if verb.is("start") {
        return noise(&["transaction"]).and_then(|(_, rest)| modes(rest)).map(TxControl::Begin);
    }
    if verb.is_any(&["savepoint", "release"]) {
        return is_savepoint_name(rest).then_some(TxControl::Savepoint);
    }
    if verb.is_any(&["commit", "rollback"]) && noise(&["prepared"]).is_some() {
        return Some(TxControl::TwoPhase);
    }
    let rest = noise(&["work", "transaction"]).map_or(rest, |(_, rest)| rest);
    if verb.is_any(&["commit", "end"]) {
        return chain(rest).map(|chain| TxControl::Commit { chain });
    }
    match rest.split_first() {
        Some((to, name)) if verb.is("rollback") && to.is("to") => {
            is_savepoint_name(name).then_some(TxControl::Savepoint)
        }
        _ => chain(rest).map(|chain| TxControl::Rollback { chain }),
    }
}

/// `[SAVEPOINT] name`
fn is_savepoint_name(tokens: &[Token<'_>]) -> bool {
    match tokens {
        [name] => name.is_name(),
        [word, name] => word.is("savepoint") && name.is_name(),
        _ => false,
    }
}

/// `[AND [NO] CHAIN]`
fn chain(tokens: &[Token<'_>]) -> Option<bool> {
    match tokens {
        [] => Some(false),
        [and, chain] if and.is("and") && chain.is("chain") => Some(true),
        [and, no, chain] if and.is("and") && no.is("no") && chain.is("chain") => Some(false),
        _ => None,
    }
}

/// A list of transaction modes, commas optional; the last of its kind counts.
pub(crate) fn modes(mut tokens: &[Token<'_>]) -> Option<TxMode> {
    let mut mode = TxMode::default();
    while let Some((first, rest)) = tokens.split_first() {
        tokens = rest;
        if first.is_punct(",") && !rest.is_empty() && mode != TxMode::default() {
            continue;
        }
        let (second, rest) = (rest.first(), rest.get(1..).unwrap_or_default());
        if first.is("deferrable") {
            mode.deferrable = Some(true);
            continue;
        }
        let second = second?;
        tokens = rest;
        if first.is("not") && second.is("deferrable") {
            mode.deferrable = Some(false);
        } else if first.is("read") && second.is("only") {
            mode.read_only = Some(true);
        } else if first.is("read") && second.is("write") {
            mode.read_only = Some(false);
        } else if first.is("isolation") && second.is("level") {
            let (level, rest) = isolation(rest)?;
            mode.isolation = Some(level);
            tokens = rest;
        } else {
            return None;
        }
    }
    Some(mode)
}

fn isolation<'t, 'a>(tokens: &'t [Token<'a>]) -> Option<(Isolation, &'t [Token<'a>])> {
    let (first, rest) = tokens.split_first()?;
    if first.is("serializable") {
        return Some((Isolation::Serializable, rest));
    }
    let (second, rest) = rest.split_first()?;
    let level = if first.is("repeatable") && second.is("read") {
        Isolation::RepeatableRead
    } else if first.is("read") && second.is("committed") {
        Isolation::ReadCommitted
    } else if first.is("read") && second.is("uncommitted") {
        Isolation::ReadUncommitted
    } else {
        return None;
    };
    Some((level, rest))
}

/// What stands after `SET [SESSION | LOCAL] TRANSACTION`.
pub(crate) fn set_transaction(rest: &[Token<'_>]) -> Verdict {
    match rest.split_first() {
        // The snapshot was exported on the primary (pg_export_snapshot goes there) and is known only there.
        Some((first, _)) if first.is("snapshot") => {
            Verdict::new(Access::Write, StatementKind::Other, Reason::TransactionControl)
                .with_tx(TxControl::SetTransaction(TxMode::default()))
        }
        Some(_) => modes(rest).map_or_else(misfit, |mode| verdict(TxControl::SetTransaction(mode))),
        None => misfit(),
    }
}

/// `SET transaction_isolation = ...` and its kin, which are SET TRANSACTION by another name. `None` when the
/// setting is none of them.
pub(crate) fn setting(name: &Token<'_>, value: &[Token<'_>]) -> Option<Verdict> {
    let name = MODES.iter().find(|known| name.is(known))?;
    let mode = value_text(value).and_then(|text| std::str::from_utf8(text).ok());
    let mode = mode.and_then(|text| mode_of(name, text));
    Some(mode.map_or_else(misfit, |mode| verdict(TxControl::SetTransaction(mode))))
}

/// Settings that are modes of the transaction.
const MODES: [&str; 3] = ["transaction_read_only", "transaction_deferrable", "transaction_isolation"];

/// What such a setting means.
pub(crate) fn mode_of(name: &str, value: &str) -> Option<TxMode> {
    let mode = TxMode::default();
    match name {
        "transaction_read_only" => boolean(value).map(|on| TxMode { read_only: Some(on), ..mode }),
        "transaction_deferrable" => boolean(value).map(|on| TxMode { deferrable: Some(on), ..mode }),
        "transaction_isolation" => {
            isolation_value(value).map(|level| TxMode { isolation: Some(level), ..mode })
        }
        _ => None,
    }
}

/// The text of a value: a word, a number, or what is between the quotes of a plain string.
fn value_text<'a>(tokens: &[Token<'a>]) -> Option<&'a [u8]> {
    let [token] = tokens else { return None };
    match token.kind {
        Kind::String => token.text.strip_prefix(b"'").and_then(|text| text.strip_suffix(b"'")),
        Kind::Word | Kind::Quoted | Kind::Number => Some(token.text),
        _ => None,
    }
}

/// PostgreSQL's `parse_bool`, which takes beginnings of words.
fn boolean(text: &str) -> Option<bool> {
    let text = text.to_ascii_lowercase();
    let begins = |word: &str, least: usize| text.len() >= least && word.starts_with(&text);
    if text == "1" || begins("on", 2) || begins("true", 1) || begins("yes", 1) {
        return Some(true);
    }
    (text == "0" || begins("off", 2) || begins("false", 1) || begins("no", 1)).then_some(false)
}

fn isolation_value(text: &str) -> Option<Isolation> {
    match text.to_ascii_lowercase().as_str() {
        "serializable" => Some(Isolation::Serializable),
        "repeatable read" => Some(Isolation::RepeatableRead),
        "read committed" => Some(Isolation::ReadCommitted),
        "read uncommitted" => Some(Isolation::ReadUncommitted),
        _ => None,
    }
}
