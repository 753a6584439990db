//! EXPLAIN. With ANALYZE it is the statement in it. Without, that is planned and not run, which a standby does for what
//! writes, too - but not for what it cannot even open (unlogged tables), and planning calls functions that are not
//! VOLATILE to know what comes of them.

use crate::functions::{self, FunctionCatalog, Safety};
use crate::lexer::Token;
use crate::query;
use crate::reason::Reason;
use crate::scan;
use crate::statement::{self, QUERIES};
use crate::verdict::{Access, StatementKind, Verdict};

/// `EXPLAIN [ANALYZE] [VERBOSE] statement`, `EXPLAIN (option, ...) statement`: the verdict on what follows the word.
pub(crate) fn explain(rest: &[Token<'_>], catalog: &dyn FunctionCatalog) -> Option<Verdict> {
    let listed = rest.first().is_some_and(|token| token.is_punct("("));
    // `EXPLAIN (SELECT 1)` has a statement in the parentheses, not options.
    let is_query = rest.get(1).is_some_and(|token| token.is_punct("(") || token.is_any(QUERIES));
    let (analyze, inner) = if listed && !is_query {
        let close = scan::closing(rest, 0)?;
        (analyzes(rest.get(1..close)?), rest.get(close + 1..)?)
    } else {
        let words = rest.iter().take_while(|token| token.is_any(&["analyze", "analyse", "verbose"])).count();
        let (options, inner) = rest.split_at_checked(words)?;
        (options.iter().any(|token| !token.is("verbose")), inner)
    };
    if analyze { analyzed(inner, catalog) } else { planned(inner, catalog) }
}

/// Any ANALYZE in a list of options that is not plainly switched off counts.
fn analyzes(options: &[Token<'_>]) -> bool {
    options.split(|token| token.is_punct(",")).any(|option| match option {
        [name, value] => name.is_any(&["analyze", "analyse"]) && !value.is_any(&["false", "off"]),
        [name, ..] => name.is_any(&["analyze", "analyse"]),
        [] => false,
    })
}

fn analyzed(inner: &[Token<'_>], catalog: &dyn FunctionCatalog) -> Option<Verdict> {
    let verdict = match inner.split_first()? {
        (first, _) if first.is_any(&["create", "refresh"]) => Some(statement::definition(inner, catalog)),
        (first, rest) if first.is("declare") => statement::declare(rest, catalog),
        (first, _) if first.is("execute") => Some(statement::execute()),
        _ => statement::optimizable(inner, catalog),
    };
    verdict.map(|verdict| verdict.with_kind(StatementKind::Other))
}

fn planned(inner: &[Token<'_>], catalog: &dyn FunctionCatalog) -> Option<Verdict> {
    let plan = match inner.split_first()? {
        (first, _) if first.is("refresh") => &[],
        (first, _) if first.is("create") => created(inner)?,
        (first, rest) if first.is("declare") => statement::cursor(rest)?.query,
        _ => inner,
    };
    let verdict = |access, reason| Verdict::new(access, StatementKind::Other, reason);
    match plan.first() {
        Some(first) if first.is("execute") => return Some(statement::execute()),
        Some(first) if !statement::is_optimizable(first) => return None,
        _ => {}
    }
    Some(match on_primary(plan, catalog) {
        Some(reason) => verdict(Access::Write, reason),
        None => verdict(Access::Read, Reason::Explain),
    })
}

/// What stands behind AS in `CREATE [MATERIALIZED] TABLE ... AS query [WITH [NO] DATA]`.
fn created<'t, 'a>(tokens: &'t [Token<'a>]) -> Option<&'t [Token<'a>]> {
    let mut depth = 0_usize;
    let at = tokens.iter().position(|token| {
        if token.is_punct("(") {
            depth += 1;
        } else if token.is_punct(")") {
            depth = depth.saturating_sub(1);
        }
        depth == 0 && token.is("as")
    })?;
    let query = tokens.get(at + 1..)?;
    Some(match query {
        [query @ .., with, no, data] if with.is("with") && no.is("no") && data.is("data") => query,
        [query @ .., with, data] if with.is("with") && data.is("data") => query,
        query => query,
    })
}

/// Why a standby cannot plan it, or is not known to.
fn on_primary(tokens: &[Token<'_>], catalog: &dyn FunctionCatalog) -> Option<Reason> {
    let mut places = 0..tokens.len();
    if places.any(|at| statement::relation_at(tokens, at, catalog) == Some(Safety::PrimaryOnly)) {
        return Some(Reason::PrimaryRelation);
    }
    let opens = tokens.iter().zip(tokens.iter().skip(1)).filter(|(_, open)| open.is_punct("("));
    // `value.name` may be a call.
    let behind_dots = tokens.iter().zip(tokens.iter().skip(1)).filter(|(dot, _)| dot.is_punct("."));
    for name in opens.map(|(name, _)| name).chain(behind_dots.map(|(_, name)| name)) {
        let name = functions::catalog_name(name);
        if functions::runs_in_planning(&name) {
            return Some(Reason::VolatileFunction);
        }
        let listed = std::str::from_utf8(&name).ok().and_then(|name| catalog.listed(None, name));
        if listed == Some(Safety::PrimaryOnly) {
            return Some(Reason::FunctionList);
        }
    }
    query::relations_are_known(tokens, catalog).err()
}
