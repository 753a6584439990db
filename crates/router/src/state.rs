//! State of a session that cannot be moved, where a statement's tokens say exactly what comes or goes.

use crate::functions::catalog_name;
use crate::lexer::{Kind, Token};
use crate::ops::{StateOp, leaves_more, name_of};

/// What one statement does to the session's state, when that is all that it does to it.
pub(crate) fn op(tokens: &[Token<'_>]) -> Option<StateOp> {
    let (first, rest) = tokens.split_first()?;
    match first.text.to_ascii_lowercase().as_slice() {
        b"create" => created(rest),
        b"drop" => dropped(rest),
        b"alter" => {
            rest.iter().any(|token| token.is_any(&["rename", "schema"])).then_some(StateOp::RenamesTables)
        }
        b"discard" => {
            let [what] = rest else { return None };
            let temp = what.is_any(&["temp", "temporary"]).then_some(StateOp::DiscardTemp);
            temp.or_else(|| what.is("sequences").then_some(StateOp::DiscardSequences))
        }
        b"listen" => one(rest).map(StateOp::Listen),
        b"unlisten" if matches!(rest, [all] if all.text == b"*") => Some(StateOp::UnlistenAll),
        b"unlisten" => one(rest).map(StateOp::Unlisten),
        b"declare" => declared(rest),
        b"close" if matches!(rest, [all] if all.is("all")) => Some(StateOp::CloseAll),
        b"close" => one(rest).map(StateOp::Close),
        b"select" => locked(rest),
        _ => None,
    }
}

fn one(tokens: &[Token<'_>]) -> Option<Vec<u8>> {
    match tokens {
        [name] => name_of(name),
        _ => None,
    }
}

/// `[LOCAL | GLOBAL] TEMP TABLE [IF NOT EXISTS] name ...`
fn created(rest: &[Token<'_>]) -> Option<StateOp> {
    let scope = usize::from(rest.first().is_some_and(|scope| scope.is_any(&["local", "global"])));
    let [temp, table, after @ ..] = rest.get(scope..)? else { return None };
    if !(temp.is_any(&["temp", "temporary"]) && table.is("table")) || leaves_more(rest) {
        return None;
    }
    let after = match after {
        [a, b, c, after @ ..] if a.is("if") && b.is("not") && c.is("exists") => after,
        after => after,
    };
    let (name, next) = after.split_first()?;
    let plain = next.first().is_some_and(|next| next.is_punct("(") || next.is_any(&["as", "on", "with"]));
    // One that goes with its transaction holds nobody.
    let until_commit = |words: &[Token<'_>]| matches!(words, [on, commit, drop] if on.is("on") && commit.is("commit") && drop.is("drop"));
    if rest.windows(3).any(until_commit) {
        return None;
    }
    // What EXECUTE runs is not visible.
    let visible = !rest.iter().any(|token| token.is("execute"));
    (plain && visible).then(|| name_of(name).map(StateOp::TempTable)).flatten()
}

/// `TABLE [IF EXISTS] name [, ...] [CASCADE | RESTRICT]`
fn dropped(rest: &[Token<'_>]) -> Option<StateOp> {
    let (_, names) = rest.split_first().filter(|(table, _)| table.is("table"))?;
    let names = match names {
        [a, b, names @ ..] if a.is("if") && b.is("exists") => names,
        names => names,
    };
    let names = match names.split_last() {
        Some((last, names)) if last.is_any(&["cascade", "restrict"]) => names,
        _ => names,
    };
    let last = |name: &[Token<'_>]| match name {
        [name] => name_of(name),
        [schema, dot, name] if catalog_name(schema) == b"pg_temp" && dot.is_punct(".") => name_of(name),
        _ => None,
    };
    // Those of other schemas are no temporary ones.
    Some(StateOp::DropTables(names.split(|token| token.is_punct(",")).filter_map(last).collect()))
}

/// `name ... CURSOR WITH HOLD FOR query`
fn declared(rest: &[Token<'_>]) -> Option<StateOp> {
    let holds = rest
        .windows(3)
        .any(|words| matches!(words, [a, b, c] if a.is("cursor") && b.is("with") && c.is("hold")));
    (holds && !leaves_more(rest)).then(|| name_of(rest.first()?).map(StateOp::HoldCursor)).flatten()
}

/// `SELECT pg_advisory_...(key [, key])` and nothing else: called exactly once.
fn locked(rest: &[Token<'_>]) -> Option<StateOp> {
    let call = match rest {
        [schema, dot, call @ ..] if schema.is("pg_catalog") && dot.is_punct(".") => call,
        call => call,
    };
    let [function, open, arguments @ ..] = call else { return None };
    let arguments = match arguments {
        [before @ .., as_, name] if as_.is("as") && name.is_name() => before,
        arguments => arguments,
    };
    let (close, arguments) = arguments.split_last()?;
    if !open.is_punct("(") || !close.is_punct(")") || !arguments.iter().enumerate().all(is_key(arguments)) {
        return None;
    }
    match catalog_name(function).as_slice() {
        b"pg_advisory_lock" | b"pg_advisory_lock_shared" => Some(StateOp::Lock),
        b"pg_try_advisory_lock" | b"pg_try_advisory_lock_shared" => Some(StateOp::TryLock),
        b"pg_advisory_unlock" | b"pg_advisory_unlock_shared" => Some(StateOp::Unlock),
        b"pg_advisory_unlock_all" if arguments.is_empty() => Some(StateOp::UnlockAll),
        _ => None,
    }
}

/// A part of a key that is one value: constants, parameters, casts, and hashes of them.
fn is_key<'t, 'a>(all: &'t [Token<'a>]) -> impl Fn((usize, &'t Token<'a>)) -> bool {
    const HASHES: [&str; 2] = ["hashtext", "hashtextextended"];
    const TYPES: [&str; 7] = ["int", "int4", "int8", "integer", "bigint", "text", "pg_catalog"];
    move |(at, token)| match token.kind {
        Kind::String | Kind::Number | Kind::Param => true,
        Kind::Punct => matches!(token.text, b"," | b"::" | b")" | b".") || token.is_punct("(") && at > 0,
        Kind::Operator => matches!(token.text, b"-" | b"+"),
        Kind::Word => {
            let calls = all.get(at + 1).is_some_and(|next| next.is_punct("("));
            if calls { token.is_any(&HASHES) } else { token.is_any(&TYPES) }
        }
        _ => false,
    }
}
