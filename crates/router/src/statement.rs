//! One statement: by its first word to the code that knows it.

use crate::functions::{self, FunctionCatalog, Safety};
use crate::leaves;
use crate::lexer::{Kind, Token};
use crate::ops;
use crate::planned;
use crate::query;
use crate::reason::Reason;
use crate::scan::{self, Scan};
use crate::sequences::Sequences;
use crate::session;
use crate::transaction;
use crate::verdict::{Access, Changes, Effect, Misroute, PinReason, StatementKind, Verdict};

pub(crate) const QUERIES: &[&str] = &["select", "values", "table", "with"];
const DEFINITIONS: &[&str] = &[
    "alter", "cluster", "comment", "create", "drop", "grant", "import", "reassign", "refresh", "reindex",
    "revoke", "security", "truncate",
];
const UTILITIES: &[&str] =
    &["analyse", "analyze", "call", "checkpoint", "lock", "notify", "unlisten", "vacuum", "wait", "repack"];

/// First words that are judged by their tokens alone, literals included, and therefore never cached.
const DIRECT: &[&str] = &[
    "set",
    "reset",
    "show",
    "discard",
    "deallocate",
    "fetch",
    "move",
    "close",
    "listen",
    "unlisten",
    "pgpool",
    "pgweir",
];

/// Judged without a parser and without the cache?
pub(crate) fn is_direct(first: &Token<'_>) -> bool {
    first.is_any(transaction::VERBS) || first.is_any(DIRECT)
}

/// The verdict on the tokens of one statement (not empty, without its semicolon).
pub(crate) fn classify(tokens: &[Token<'_>], catalog: &dyn FunctionCatalog) -> Verdict {
    let verdict = without_names(tokens, catalog);
    let verdict = verdict.with_leaves(leaves::of(tokens, &verdict, catalog));
    if verdict.effect == Effect::None && ops::names_statements(tokens) {
        return verdict.with_effect(Effect::Statements);
    }
    verdict
}

fn without_names(tokens: &[Token<'_>], catalog: &dyn FunctionCatalog) -> Verdict {
    let Some((first, rest)) = tokens.split_first() else { return Verdict::empty() };
    if tokens.iter().any(|token| token.kind == Kind::Bad) {
        let query = first.is_any(QUERIES).then_some(StatementKind::Select);
        let kind = data_kind(first).or(query).unwrap_or(StatementKind::Other);
        return scanned(Verdict::unparsed(Reason::Unparsed).with_kind(kind), tokens, catalog);
    }
    if first.is_punct("(") || first.is_any(QUERIES) {
        return query::classify(tokens, catalog);
    }
    if let Some(kind) = data_kind(first) {
        return scanned(Verdict::new(Access::Write, kind, Reason::Dml), tokens, catalog);
    }
    if first.is_any(transaction::VERBS) {
        return transaction::classify(tokens);
    }
    if first.is_any(DEFINITIONS) {
        return definition(tokens, catalog);
    }
    if first.is_any(UTILITIES) {
        let silent = first.is_any(&["checkpoint", "call"]) || (first.is("lock") && is_weak_lock(rest));
        let changes = if first.is("call") { Changes::Perhaps } else { Changes::Nothing };
        let sequences = if first.is("call") { Sequences::Perhaps } else { Sequences::Nothing };
        let verdict = utility()
            .with_misroute(Misroute::silent_if(silent))
            .with_changes(changes)
            .with_sequences(sequences);
        return scanned(verdict, tokens, catalog);
    }
    about_session(first, rest).unwrap_or_else(|| with_statement_inside(tokens, catalog))
}

/// INSERT, UPDATE, DELETE, MERGE.
fn data_kind(first: &Token<'_>) -> Option<StatementKind> {
    if first.is("insert") {
        Some(StatementKind::Insert)
    } else if first.is("update") {
        Some(StatementKind::Update)
    } else if first.is("delete") {
        Some(StatementKind::Delete)
    } else if first.is("merge") {
        Some(StatementKind::Other)
    } else {
        None
    }
}

fn utility() -> Verdict {
    Verdict::new(Access::Write, StatementKind::Other, Reason::Utility)
}

/// A statement whose functions may still pin, or do the wrong thing on a standby.
fn scanned(verdict: Verdict, tokens: &[Token<'_>], catalog: &dyn FunctionCatalog) -> Verdict {
    Scan::of(tokens, catalog).add_to(verdict)
}

/// `LOCK [TABLE] ... IN mode MODE [NOWAIT]` with a mode that a standby grants: up to ROW EXCLUSIVE.
fn is_weak_lock(rest: &[Token<'_>]) -> bool {
    let rest = match rest.split_last() {
        Some((nowait, before)) if nowait.is("nowait") => before,
        _ => rest,
    };
    match rest {
        [.., within, one, two, mode] if within.is("in") && mode.is("mode") => {
            (one.is("access") && two.is("share"))
                || (one.is("row") && (two.is("share") || two.is("exclusive")))
        }
        _ => false,
    }
}

/// Statements that say something about the session or a cursor.
fn about_session(first: &Token<'_>, rest: &[Token<'_>]) -> Option<Verdict> {
    let text = first.text.to_ascii_lowercase();
    Some(match text.as_slice() {
        b"set" => session::set(rest),
        b"reset" => session::reset(),
        b"show" => session::show(rest),
        b"discard" => session::discard(rest),
        b"deallocate" => session::deallocate(rest),
        b"pgpool" | b"pgweir" => session::console(),
        b"fetch" | b"move" | b"close" => Verdict::new(Access::Neutral, StatementKind::Other, Reason::Cursor),
        b"listen" => utility().with_pin(Some(PinReason::Listen)),
        // What they load or run is not visible, and may leave anything in the session.
        b"do" => utility()
            .with_pin(Some(PinReason::Unknown))
            .with_misroute(Misroute::Silent)
            .with_changes(Changes::Perhaps)
            .with_sequences(Sequences::Perhaps),
        b"load" => utility().with_pin(Some(PinReason::Unknown)).with_misroute(Misroute::Silent),
        _ => return None,
    })
}

/// Statements that hold another.
fn with_statement_inside(tokens: &[Token<'_>], catalog: &dyn FunctionCatalog) -> Verdict {
    let found = match tokens.split_first() {
        Some((first, rest)) if first.is("explain") => planned::explain(rest, catalog),
        Some((first, rest)) if first.is("copy") => copy(rest, catalog),
        Some((first, rest)) if first.is("declare") => declare(rest, catalog),
        Some((first, rest)) if first.is("prepare") => prepare(rest, catalog),
        Some((first, _)) if first.is("execute") => Some(execute()),
        _ => None,
    };
    let verdict = found.unwrap_or_else(|| Verdict::unparsed(Reason::Unparsed));
    scanned(verdict, tokens, catalog)
}

/// CREATE, ALTER and the like; temporary things pin unless they go with the transaction.
pub(crate) fn definition(tokens: &[Token<'_>], catalog: &dyn FunctionCatalog) -> Verdict {
    let verdict = Verdict::new(Access::Write, StatementKind::Ddl, Reason::Ddl);
    let create = tokens.first().is_some_and(|token| token.is("create"));
    let rest = match tokens.get(1..3) {
        Some([or, replace]) if or.is("or") && replace.is("replace") => tokens.get(3..),
        _ => tokens.get(1..),
    };
    let named = tokens.windows(2).any(|pair| match pair {
        [schema, dot] => schema.is_name() && dot.is_punct(".") && is_pg_temp(schema),
        _ => false,
    });
    let until_commit = tokens.windows(3).any(|words| match words {
        [on, commit, drop] => on.is("on") && commit.is("commit") && drop.is("drop"),
        _ => false,
    });
    let temporary = create && (named || scan::is_temporary(rest.unwrap_or_default()));
    let changes = if temporary { Changes::Nothing } else { changes(tokens, rest.unwrap_or_default()) };
    let temporary = temporary && !until_commit;
    // A standby has a configuration of its own, and ALTER SYSTEM changes it.
    let system = tokens.first().is_some_and(|first| first.is("alter"))
        && tokens.get(1).is_some_and(|second| second.is("system"));
    let verdict = verdict.with_pin(temporary.then_some(PinReason::TempTable));
    scanned(verdict.with_misroute(Misroute::silent_if(system)).with_changes(changes), tokens, catalog)
}

/// What a definition does to what names mean. `object` is what stands behind the verb.
fn changes(tokens: &[Token<'_>], object: &[Token<'_>]) -> Changes {
    /// What no read is about.
    const APART: &[&str] = &[
        "index",
        "unique",
        "role",
        "user",
        "group",
        "database",
        "tablespace",
        "publication",
        "subscription",
        "statistics",
    ];
    let Some((first, next)) = tokens.first().zip(object.first()) else { return Changes::Nothing };
    if first.is("create") && next.is_any(APART) {
        return Changes::Nothing;
    }
    // A logged table is safe, and was not known before.
    if first.is("create") && next.is_any(&["table", "sequence"]) {
        return Changes::Perhaps;
    }
    if first.is_any(&["create", "alter", "drop", "import"]) { Changes::Schema } else { Changes::Nothing }
}

fn is_pg_temp(schema: &Token<'_>) -> bool {
    crate::functions::catalog_name(schema) == b"pg_temp"
}

pub(crate) fn execute() -> Verdict {
    Verdict::new(Access::Write, StatementKind::Other, Reason::Execute).with_changes(Changes::Perhaps)
}

/// The relation whose name ends at `at`, if there is a name.
pub(crate) fn relation_at(tokens: &[Token<'_>], at: usize, catalog: &dyn FunctionCatalog) -> Option<Safety> {
    let name = tokens.get(at).filter(|token| token.is_name())?;
    let dot = at.checked_sub(1).and_then(|at| tokens.get(at)).filter(|dot| dot.is_punct("."));
    let schema = dot.and_then(|_| tokens.get(at.checked_sub(2)?)).map(functions::catalog_name);
    let schema = schema.as_deref().map(std::str::from_utf8).transpose().ok()?;
    catalog.relation(schema, std::str::from_utf8(&functions::catalog_name(name)).ok()?)
}

/// A query or a data change: what may stand inside EXPLAIN, COPY, DECLARE and PREPARE. None of those may
/// stand inside another, which bounds the depth here as it does in PostgreSQL's grammar.
pub(crate) fn optimizable(tokens: &[Token<'_>], catalog: &dyn FunctionCatalog) -> Option<Verdict> {
    is_optimizable(tokens.first()?).then(|| classify(tokens, catalog))
}

/// Does a query or a data change begin so?
pub(crate) fn is_optimizable(first: &Token<'_>) -> bool {
    first.is_punct("(") || first.is_any(QUERIES) || data_kind(first).is_some()
}

/// COPY ... FROM writes; COPY ... TO STDOUT is as what it reads; TO a file or program is the primary's.
fn copy(rest: &[Token<'_>], catalog: &dyn FunctionCatalog) -> Option<Verdict> {
    let dml = Verdict::new(Access::Write, StatementKind::Other, Reason::Dml);
    let to_client = |after: &[Token<'_>]| after.first().is_some_and(|to| to.is_any(&["stdout", "stdin"]));
    if rest.first()?.is_punct("(") {
        let close = scan::closing(rest, 0)?;
        let (to, after) = rest.get(close + 1..)?.split_first()?;
        let verdict = optimizable(rest.get(1..close)?, catalog)?.with_kind(StatementKind::Other);
        return match (to.is("to"), to_client(after)) {
            (false, _) => None,
            (true, true) => Some(verdict),
            // The file is written where the statement runs.
            (true, false) => Some(utility().with_pin(verdict.pin).with_misroute(Misroute::Silent)),
        };
    }
    let mut depth = 0_usize;
    for (at, token) in rest.iter().enumerate().skip(1) {
        let after = rest.get(at + 1..).unwrap_or_default();
        if token.is_punct("(") {
            depth += 1;
        } else if token.is_punct(")") {
            depth = depth.checked_sub(1)?;
        } else if depth == 0 && token.is("from") {
            return Some(dml);
        } else if depth == 0 && token.is("to") {
            let file = utility().with_misroute(Misroute::Silent);
            return Some(if to_client(after) { copied(rest, catalog) } else { file });
        }
    }
    None
}

/// `COPY relation [(column, ...)] TO STDOUT`
fn copied(rest: &[Token<'_>], catalog: &dyn FunctionCatalog) -> Verdict {
    // COPY BINARY t is of before 7.3, and still understood.
    let name = match rest {
        [binary, name, ..] if binary.is("binary") && name.is_name() && !name.is("to") => rest.get(1..),
        _ => Some(rest),
    };
    let name = name.unwrap_or_default();
    let dots = name.iter().skip(1).step_by(2).take_while(|dot| dot.is_punct(".")).count();
    let (access, reason) = match relation_at(name, dots * 2, catalog) {
        Some(Safety::AnyNode) => (Access::Read, Reason::ReadOnlySelect),
        Some(Safety::PrimaryOnly) => (Access::Write, Reason::PrimaryRelation),
        None => (Access::Write, Reason::UnknownRelation),
    };
    let silent = reason == Reason::PrimaryRelation;
    Verdict::new(access, StatementKind::Other, reason).with_misroute(Misroute::silent_if(silent))
}

/// What DECLARE says.
pub(crate) struct Cursor<'t, 'a> {
    hold: bool,
    pub(crate) query: &'t [Token<'a>],
}

/// `DECLARE name [options] CURSOR [{ WITH | WITHOUT } HOLD] FOR query`, from the name on.
pub(crate) fn cursor<'t, 'a>(rest: &'t [Token<'a>]) -> Option<Cursor<'t, 'a>> {
    let cursor = rest.iter().skip(1).position(|token| token.is("cursor"))? + 1;
    match rest.get(cursor + 1..)? {
        [with, hold, after, query @ ..] if hold.is("hold") && after.is("for") => {
            (with.is_any(&["with", "without"])).then(|| Cursor { hold: with.is("with"), query })
        }
        [after, query @ ..] if after.is("for") => Some(Cursor { hold: false, query }),
        _ => None,
    }
}

pub(crate) fn declare(rest: &[Token<'_>], catalog: &dyn FunctionCatalog) -> Option<Verdict> {
    let Cursor { hold, query } = cursor(rest)?;
    if hold {
        let held = utility().with_pin(Some(PinReason::HoldCursor));
        return Some(held.with_misroute(Misroute::Silent));
    }
    Some(optimizable(query, catalog)?.with_kind(StatementKind::Other))
}

/// PREPARE TRANSACTION, or `PREPARE name [(types)] AS statement`: as the statement, and pins.
fn prepare(rest: &[Token<'_>], catalog: &dyn FunctionCatalog) -> Option<Verdict> {
    if let [transaction, id] = rest
        && transaction.is("transaction")
        && id.kind == Kind::String
    {
        return Some(transaction::two_phase());
    }
    let after = match rest.get(1) {
        Some(open) if open.is_punct("(") => rest.get(scan::closing(rest, 1)? + 1..)?,
        _ => rest.get(1..)?,
    };
    let (_, inner) = after.split_first().filter(|(keyword, _)| keyword.is("as"))?;
    let verdict = optimizable(inner, catalog)?;
    // A standby prepares it, and refuses to execute it.
    let writes = verdict.access == Access::Write
        && !matches!(verdict.reason, Reason::UnknownFunction | Reason::Unparsed);
    // What it leaves behind when it is executed counts from here on.
    let pin = verdict.pin.or(Some(PinReason::SqlPrepare));
    let prepared = verdict.with_kind(StatementKind::Other).with_pin(pin);
    Some(prepared.with_misroute(Misroute::silent_if(writes)))
}
