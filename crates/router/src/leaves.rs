//! What running a statement may leave in the session with nothing in its text to show for it: a function, a trigger or a
//! DO block may set parameters, make temporary tables, take locks and listen.
//!
//! Whoever carries it out asks the server afterwards; so this errs towards asking. A name that is also one of a thing
//! that leaves something counts, wherever it stands; what is not known may leave anything.

use crate::body;
use crate::functions::{self, FunctionCatalog};
use crate::lexer::{Kind, Token};
use crate::reason::Reason;
use crate::verdict::{Access, StatementKind, Verdict};

/// See the module's documentation. Ordered by care.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Leaves {
    /// Nothing.
    #[default]
    Nothing,
    /// Something that the server tells when it is asked; parameters of the user's own by names that are known.
    Perhaps,
    /// It may run any text, or is not known: parameters of whatever names, too.
    Anything,
    /// It sets parameters whose names nobody can tell, or what no question finds.
    Unasked,
}

/// Words in front of a parenthesis in what is no query, which could be names of functions as well.
const GRAMMAR: &[&str] = &[
    "analyse", "analyze", "conflict", "copy", "explain", "hash", "identity", "include", "insert", "key",
    "list", "options", "range", "set", "stdin", "stdout", "vacuum",
];

/// What one statement of that verdict may leave.
pub(crate) fn of(tokens: &[Token<'_>], verdict: &Verdict, catalog: &dyn FunctionCatalog) -> Leaves {
    /// What is said by the tokens, and followed.
    const SAID: &[Reason] =
        &[Reason::TransactionControl, Reason::SessionControl, Reason::Cursor, Reason::Console, Reason::Empty];
    let Some(first) = tokens.first().filter(|_| !SAID.contains(&verdict.reason)) else {
        return Leaves::Nothing;
    };
    let unreadable = tokens.iter().any(|token| token.kind == Kind::Bad);
    let unknown = matches!(verdict.reason, Reason::UnknownFunction | Reason::UnknownRelation);
    if first.is("load") {
        return Leaves::Unasked;
    }
    if unreadable || unknown || first.is("do") {
        return Leaves::Anything;
    }
    let unseen = match verdict.kind {
        StatementKind::Ddl => catalog.unseen().max(catalog.definitions()),
        _ => catalog.unseen(),
    };
    let reads = verdict.access == Access::Read;
    // What belongs to the primary for another reason may call what is not known as well.
    let calls = |at: usize| !reads && calls_unknown(tokens, at, catalog);
    let writes = |at: usize| !reads && writes_unknown(tokens, at, catalog);
    let names = |token: &Token<'_>| token.is_name() || token.kind == Kind::Operator;
    let named = tokens.iter().enumerate().filter(|(_, token)| names(token)).map(|(at, token)| {
        let name = functions::catalog_name(token);
        let Ok(name) = std::str::from_utf8(&name) else { return Leaves::Nothing };
        let known = catalog.named(name, verdict.access).max(called(tokens, at, name));
        if calls(at) || writes(at) { known.max(Leaves::Anything) } else { known }
    });
    named.fold(unseen, Leaves::max)
}

fn before<'t, 'a>(tokens: &'t [Token<'a>], at: usize, by: usize) -> Option<&'t Token<'a>> {
    at.checked_sub(by).and_then(|at| tokens.get(at))
}

fn opens(tokens: &[Token<'_>], at: usize) -> bool {
    tokens.get(at + 1).is_some_and(|open| open.is_punct("("))
}

/// What a function of that name leaves, wherever it comes from; where a statement that calls it itself is not followed.
fn called(tokens: &[Token<'_>], at: usize, name: &str) -> Leaves {
    let followed = || functions::pin_of(name.as_bytes()).is_some() || name.starts_with("pg_advisory_unlock");
    if opens(tokens, at) && !followed() { body::by_name(name) } else { Leaves::Nothing }
}

/// The schema in front of the name at `at`.
fn schema_of(tokens: &[Token<'_>], at: usize) -> Option<Vec<u8>> {
    before(tokens, at, 1).filter(|dot| dot.is_punct("."))?;
    before(tokens, at, 2).filter(|schema| schema.is_name()).map(functions::catalog_name)
}

fn is_relation(schema: Option<&[u8]>, name: &str, catalog: &dyn FunctionCatalog) -> bool {
    match schema.map(std::str::from_utf8).transpose() {
        Ok(schema) => catalog.relation(schema, name).is_some(),
        Err(_) => false,
    }
}

/// The name at `at` stands before a parenthesis, and nothing of that name is known.
fn calls_unknown(tokens: &[Token<'_>], at: usize, catalog: &dyn FunctionCatalog) -> bool {
    let Some(token) = tokens.get(at).filter(|_| opens(tokens, at)) else { return false };
    let schema = schema_of(tokens, at);
    let syntax = schema.is_none() && (functions::is_syntax(token) || token.is_any(GRAMMAR));
    if syntax || is_of_a_list(tokens, at, schema.is_some(), catalog) {
        return false;
    }
    let name = functions::catalog_name(token);
    let ours = schema.as_deref().is_none_or(|schema| schema == b"pg_catalog");
    if ours && functions::builtin(&name).is_some() {
        return false;
    }
    let Ok(name) = std::str::from_utf8(&name) else { return true };
    let Ok(within) = schema.as_deref().map(std::str::from_utf8).transpose() else { return true };
    catalog.function(within, name).is_none() && !is_relation(schema.as_deref(), name, catalog)
}

/// The name at `at` is one with a list of columns: an alias, or what is defined.
fn is_of_a_list(tokens: &[Token<'_>], at: usize, qualified: bool, catalog: &dyn FunctionCatalog) -> bool {
    /// What is defined stands behind one of these; of what it is made, behind the first parenthesis.
    const DEFINED: &[&str] = &[
        "aggregate",
        "exists",
        "function",
        "index",
        "on",
        "procedure",
        "references",
        "table",
        "type",
        "view",
    ];
    let start = if qualified { at.saturating_sub(2) } else { at };
    let Some(previous) = before(tokens, start, 1) else { return false };
    let defines =
        tokens.first().is_some_and(|verb| verb.is_any(&["create", "alter", "drop", "grant", "revoke"]));
    if qualified || previous.is_any(DEFINED) {
        return defines && previous.is_any(DEFINED);
    }
    // No operand follows another.
    let relation = || {
        let name = functions::catalog_name(previous);
        let schema = schema_of(tokens, at.saturating_sub(1));
        std::str::from_utf8(&name).is_ok_and(|name| is_relation(schema.as_deref(), name, catalog))
    };
    previous.is_any(&["as", "with", "recursive"])
        || previous.is_punct(")")
        || (previous.is_name() && relation())
}

/// The name at `at` is that of a relation which is written, and not known: it may have triggers.
fn writes_unknown(tokens: &[Token<'_>], at: usize, catalog: &dyn FunctionCatalog) -> bool {
    let Some(token) = tokens.get(at) else { return false };
    if tokens.get(at + 1).is_some_and(|dot| dot.is_punct(".")) {
        return false;
    }
    let schema = schema_of(tokens, at);
    let start = at - if schema.is_some() { 2 } else { 0 };
    let verb = match before(tokens, start, 1) {
        Some(only) if only.is_any(&["only", "table"]) => before(tokens, start, 2),
        verb => verb,
    };
    let is_target = verb.is_some_and(|verb| verb.is_any(&["into", "update", "copy", "truncate"]))
        || verb.is_some_and(|verb| verb.is("from")) && deletes(tokens, start);
    // FOR UPDATE OF, DO UPDATE SET.
    let word = !is_target || token.is_any(&["of", "set", "nowait", "skip", "table", "only"]);
    let name = functions::catalog_name(token);
    !word && !std::str::from_utf8(&name).is_ok_and(|name| is_relation(schema.as_deref(), name, catalog))
}

/// `DELETE FROM [ONLY]` stands in front of `start`.
fn deletes(tokens: &[Token<'_>], start: usize) -> bool {
    [2, 3].iter().any(|by| before(tokens, start, *by).is_some_and(|verb| verb.is("delete")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Builder, Catalog, Loaded, Object, Origin};
    use crate::functions::Safety;
    use crate::{ListedFunctions, ParseOptions, classify_with};

    #[derive(Debug)]
    struct NoList;

    impl ListedFunctions for NoList {
        fn listed(&self, _: Option<&str>, _: &str) -> Option<Safety> {
            None
        }
    }

    /// Functions (oid, name, text), and relations (oid, name).
    fn catalog(functions: &[(u32, &str, Option<&str>)], more: impl FnOnce(&mut Builder)) -> Catalog {
        let mut builder = Builder::default();
        for (oid, name, text) in functions {
            builder.function(*oid, ("public", name), Origin::User { volatile: true }, &|_, _| None);
            builder.text(*oid, *text);
        }
        more(&mut builder);
        builder.build()
    }

    fn leaves(catalog: Option<&Catalog>, sql: &str) -> Leaves {
        let loaded = Loaded { catalog, listed: &NoList, generation: 1 };
        classify_with(sql.as_bytes(), &ParseOptions::default(), &loaded).leaves
    }

    fn relation(builder: &mut Builder, oid: u32, name: &str) {
        builder.relation(oid, "public", name, Safety::AnyNode);
    }

    fn database() -> Catalog {
        let functions = [
            (1, "locks", Some("BEGIN PERFORM pg_advisory_lock(1); END")),
            (2, "over", Some("SELECT locks()")),
            (3, "over_over", Some("BEGIN PERFORM Over(); END")),
            (4, "quiet", Some("SELECT 1 FROM plain")),
            (5, "runs", Some("BEGIN EXECUTE a; END")),
            (6, "black", None),
            (7, "names", Some("SELECT set_config(a, b, false)")),
            (8, "uses_table", Some("INSERT INTO watched VALUES (1)")),
            (9, "Cased", Some("SELECT set_config('app.x', 'y', false)")),
            (10, "op", Some("LISTEN x")),
        ];
        catalog(&functions, |builder| {
            for (oid, name) in [(20, "plain"), (21, "watched"), (22, "over_view"), (23, "parent")] {
                relation(builder, oid, name);
            }
            builder.writes(Object::Relation(21), Object::Function(1));
            builder.uses(Object::Relation(22), Object::Function(2));
            builder.writes(Object::Relation(23), Object::Relation(21));
            builder.operator("public", "<#>", 10);
        })
    }

    #[test]
    fn what_a_statement_may_leave() {
        let catalog = database();
        assert_eq!(catalog.settings(), [Box::from("app.x")]);
        for (sql, wanted) in [
            ("SELECT 1", Leaves::Nothing),
            ("SELECT quiet(), lower('x'), count(*) FROM plain p(a, b)", Leaves::Nothing),
            (
                "INSERT INTO plain (a, b) VALUES (now(), 1) ON CONFLICT (a) DO UPDATE SET b = 2",
                Leaves::Nothing,
            ),
            ("UPDATE plain SET a = v.a FROM (VALUES (1)) AS v(a)", Leaves::Nothing),
            ("SELECT * FROM plain FOR UPDATE OF plain", Leaves::Nothing),
            ("DELETE FROM ONLY public.plain", Leaves::Nothing),
            ("SELECT * FROM watched", Leaves::Nothing),
            ("BEGIN", Leaves::Nothing),
            ("SET a.b = 1", Leaves::Nothing),
            ("LISTEN x", Leaves::Nothing),
            ("CREATE TABLE x(a int)", Leaves::Nothing),
            ("SELECT locks()", Leaves::Perhaps),
            ("SELECT public.over_over()", Leaves::Perhaps),
            ("SELECT (1).\"locks\"", Leaves::Perhaps),
            ("CALL over()", Leaves::Perhaps),
            ("SELECT 1 <#> 2", Leaves::Perhaps),
            ("INSERT INTO watched VALUES (1)", Leaves::Perhaps),
            ("WITH x AS (DELETE FROM watched RETURNING 1) SELECT * FROM x", Leaves::Perhaps),
            ("MERGE INTO parent USING plain ON true WHEN MATCHED THEN DELETE", Leaves::Perhaps),
            ("COPY watched FROM STDIN", Leaves::Perhaps),
            ("SELECT uses_table()", Leaves::Perhaps),
            ("TABLE over_view", Leaves::Perhaps),
            ("SELECT \"Cased\"()", Leaves::Perhaps),
            ("SELECT pg_advisory_lock(1), pg_advisory_unlock(1), setseed(0)", Leaves::Nothing),
            ("WITH x (a, b) AS (VALUES (1, 2)) UPDATE plain SET a = x.a FROM x", Leaves::Nothing),
            ("COPY plain (a) FROM STDIN (FORMAT csv)", Leaves::Nothing),
            ("NOTIFY plain, 'x'; VACUUM (ANALYZE) plain; LOCK TABLE plain", Leaves::Nothing),
            ("EXPLAIN ANALYZE SELECT locks()", Leaves::Perhaps),
            ("PREPARE p AS SELECT locks()", Leaves::Perhaps),
            ("SELECT runs()", Leaves::Anything),
            ("SELECT black()", Leaves::Anything),
            ("SELECT nobody()", Leaves::Anything),
            ("INSERT INTO plain VALUES (nobody(1))", Leaves::Anything),
            ("INSERT INTO nobody VALUES (1)", Leaves::Anything),
            ("UPDATE other.plain SET a = 1", Leaves::Anything),
            ("DELETE FROM nobody", Leaves::Anything),
            ("COPY nobody FROM STDIN", Leaves::Anything),
            ("DO $$ BEGIN END $$", Leaves::Anything),
            ("SELECT * FROM crosstab('SELECT 1') AS x(a int)", Leaves::Anything),
            ("SELECT names()", Leaves::Unasked),
            ("SELECT 1; SELECT locks(); SELECT 2", Leaves::Perhaps),
        ] {
            assert_eq!(leaves(Some(&catalog), sql), wanted, "{sql}");
        }
        assert_eq!(leaves(None, "CREATE TABLE x(a varchar(9))"), Leaves::Perhaps);
        for sql in ["INSERT INTO plain VALUES (1)", "SELECT quiet()", "TABLE over_view"] {
            assert_eq!(leaves(None, sql), Leaves::Anything, "nothing is known: {sql}");
        }
        assert_eq!(leaves(None, "SELECT 1, lower('x'), count(*) FROM pg_class"), Leaves::Nothing);
    }

    #[test]
    fn what_leaves_something_unseen() {
        let functions = [(1, "locks", Some("SELECT pg_advisory_lock(1)"))];
        let hidden = catalog(&functions, |builder| builder.hidden(Object::Function(1)));
        assert_eq!(leaves(Some(&hidden), "SELECT 1"), Leaves::Perhaps);
        let defining = catalog(&functions, |builder| builder.definition(1));
        assert_eq!(leaves(Some(&defining), "SELECT 1"), Leaves::Nothing);
        assert_eq!(leaves(Some(&defining), "CREATE TABLE x(a int)"), Leaves::Perhaps);
    }
}
