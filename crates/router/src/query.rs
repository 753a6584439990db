//! Queries: SELECT, VALUES, TABLE, WITH. A read only when nothing speaks against it in the tokens
//! ([`crate::scan`]) *and* sqlparser understands the whole of it *and* its tree holds nothing that writes.
//!
//! sqlparser is given the normalised tokens, not the client's text ([`crate::handed`]): its own lexical rules
//! (escapes, dollar quotes, comments, encodings) cannot disagree with PostgreSQL's then.

use std::borrow::Cow;
use std::ops::ControlFlow;

use sqlparser::ast::{
    Expr, Function, FunctionArguments, Ident, ObjectName, ObjectNamePart, Query, Select, SetExpr, Statement,
    TableAlias, TableFactor, Visit, Visitor,
};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::Parser;

use crate::functions::{self, FunctionCatalog, Safety};
use crate::handed;
use crate::lexer::{Kind, Token};
use crate::reason::Reason;
use crate::scan::{Scan, names_what_is_the_primarys};
use crate::verdict::{Access, Misroute, StatementKind, Verdict};

/// Operators and their like in one statement; more of them could make a tree so deep that dropping it
/// overflows a thread's stack (`a OR b OR c ...` is a list to people and a chain to the parser).
const MAX_CHAIN: usize = 1000;

/// sqlparser's own guard against nesting.
const MAX_NESTING: usize = 50;

/// The verdict on a statement that begins like a query.
pub(crate) fn classify(tokens: &[Token<'_>], catalog: &dyn FunctionCatalog) -> Verdict {
    let scan = Scan::of(tokens, catalog);
    let kind = main_kind(tokens);
    let reason = scan.primary.or_else(|| parse(tokens, &scan, catalog).err());
    // A view may call anything, and a sequence is ahead on a standby.
    let silent = match reason {
        Some(Reason::PrimaryRelation) => true,
        Some(Reason::Unparsed) => tokens.iter().any(|token| names_what_is_the_primarys(token, catalog)),
        _ => false,
    };
    let verdict = match reason {
        None => Verdict::new(Access::Read, kind, Reason::ReadOnlySelect),
        Some(Reason::DataModifyingCte) if kind != StatementKind::Select => {
            Verdict::new(Access::Write, kind, Reason::Dml)
        }
        Some(reason) => Verdict::new(Access::Write, kind, reason),
    };
    scan.add_to(verdict).with_misroute(Misroute::silent_if(silent))
}

/// The verb of `WITH ... INSERT`: the one outside all parentheses that follows one.
fn main_kind(tokens: &[Token<'_>]) -> StatementKind {
    let mut depth = 0_i32;
    let mut previous_closes = false;
    for token in tokens {
        if depth == 0 && previous_closes {
            if token.is("insert") {
                return StatementKind::Insert;
            } else if token.is("update") {
                return StatementKind::Update;
            } else if token.is("delete") {
                return StatementKind::Delete;
            } else if token.is("merge") {
                return StatementKind::Other;
            }
        }
        previous_closes = token.is_punct(")");
        depth += i32::from(token.is_punct("(")) - i32::from(previous_closes);
    }
    StatementKind::Select
}

fn parse(tokens: &[Token<'_>], scan: &Scan<'_>, catalog: &dyn FunctionCatalog) -> Result<(), Reason> {
    let trees = trees(tokens)?;
    let [Statement::Query(query)] = trees.as_slice() else { return Err(Reason::Unparsed) };
    let mut walk = Walk { catalog, listed: Vec::new(), relations: Relations::of(catalog) };
    if let ControlFlow::Break(reason) = query.visit(&mut walk) {
        return Err(reason);
    }
    let is_list = |token: &Token<'_>| walk.listed.iter().any(|ident| names(ident, token));
    if !scan.unknown.iter().all(is_list) {
        return Err(Reason::UnknownFunction);
    }
    walk.relations.are_known()
}

/// Whether every relation that a query or a data change names is known, and none belongs to the primary. Where
/// sqlparser does not understand it, whether the tokens show that it names none.
pub(crate) fn relations_are_known(tokens: &[Token<'_>], catalog: &dyn FunctionCatalog) -> Result<(), Reason> {
    /// No relation is named without one of these in front of it, or of the list that it stands in.
    const BEFORE: &[&str] = &["from", "into", "update", "table", "join", "using"];
    if !tokens.iter().any(|token| token.is_any(BEFORE)) {
        return Ok(());
    }
    let mut relations = Relations::of(catalog);
    let trees = trees(tokens)?;
    let [tree] = trees.as_slice() else { return Err(Reason::Unparsed) };
    match tree.visit(&mut relations) {
        ControlFlow::Break(reason) => Err(reason),
        ControlFlow::Continue(()) => relations.are_known(),
    }
}

/// The tree of one statement, or of as many as the parser takes it for.
fn trees(tokens: &[Token<'_>]) -> Result<Vec<Statement>, Reason> {
    // A semicolon in parentheses is no part of a query, though sqlparser may stop before it.
    if tokens.iter().any(|token| token.is_punct(";")) {
        return Err(Reason::Unparsed);
    }
    if tokens.iter().filter(|token| chains(token)).count() > MAX_CHAIN {
        return Err(Reason::Unparsed);
    }
    let handed = handed::tokens(&without_table(tokens)).map_err(|_not_understood| Reason::Unparsed)?;
    let dialect = PostgreSqlDialect {};
    let parser = Parser::new(&dialect).with_recursion_limit(MAX_NESTING);
    let parsed = parser.with_tokens_with_locations(handed).parse_statements();
    parsed.map_err(|_not_understood| Reason::Unparsed)
}

/// May make the tree deeper by one.
fn chains(token: &Token<'_>) -> bool {
    const WORDS: &[&str] = &[
        "and",
        "or",
        "not",
        "is",
        "isnull",
        "notnull",
        "in",
        "like",
        "ilike",
        "similar",
        "between",
        "collate",
        "at",
        "union",
        "intersect",
        "except",
        "overlaps",
    ];
    match token.kind {
        Kind::Operator => true,
        Kind::Punct => matches!(token.text, b"::" | b"["),
        Kind::Word => token.is_any(WORDS),
        _ => false,
    }
}

/// `TABLE t` as the `SELECT * FROM t` that it is short for; sqlparser knows it in some places only.
fn without_table<'t, 'a>(tokens: &'t [Token<'a>]) -> Cow<'t, [Token<'a>]> {
    const OPENS: &[&str] = &["union", "except", "intersect", "all", "distinct"];
    let is_query = |at: usize, token: &Token<'_>| {
        let previous = at.checked_sub(1).and_then(|at| tokens.get(at));
        token.is("table") && previous.is_none_or(|p| p.is_punct("(") || p.is_punct(")") || p.is_any(OPENS))
    };
    if !tokens.iter().enumerate().any(|(at, token)| is_query(at, token)) {
        return Cow::Borrowed(tokens);
    }
    let mut written = Vec::with_capacity(tokens.len() + 8);
    for (at, token) in tokens.iter().enumerate() {
        if is_query(at, token) {
            let word = |text| Token { kind: Kind::Word, text };
            let star = Token { kind: Kind::Operator, text: b"*" };
            written.extend([word(b"select".as_slice()), star, word(b"from")]);
        } else {
            written.push(*token);
        }
    }
    Cow::Owned(written)
}

/// The tokens as text that reads the same under any lexical rules.
pub(crate) fn canonical(tokens: &[Token<'_>]) -> String {
    let mut text = String::with_capacity(tokens.iter().map(|token| token.text.len().min(64) + 3).sum());
    for token in tokens {
        if !text.is_empty() {
            text.push(' ');
        }
        match token.kind {
            Kind::String => text.push_str("'x'"),
            Kind::Number => text.push('1'),
            Kind::Word if token.text.is_ascii() => {
                text.extend(token.text.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
            }
            // A word with other letters is never a keyword.
            Kind::Word => {
                text.push('"');
                text.push_str(&String::from_utf8_lossy(&token.text.to_ascii_lowercase()));
                text.push('"');
            }
            Kind::Quoted => {
                text.push('"');
                text.push_str(&String::from_utf8_lossy(token.text));
                text.push('"');
            }
            // It may be anything, a secret too; no parser gets it.
            Kind::Bad => text.push('?'),
            _ => text.push_str(&String::from_utf8_lossy(token.text)),
        }
    }
    text
}

/// Walks all of a tree: stops at the first thing that belongs to the primary, and gathers the names that
/// have a column list (`WITH x(a, b)`, `AS x(a, b)`), which look like calls in the tokens.
struct Walk<'c> {
    catalog: &'c dyn FunctionCatalog,
    listed: Vec<Ident>,
    relations: Relations<'c>,
}

/// The relations that a statement names.
struct Relations<'c> {
    catalog: &'c dyn FunctionCatalog,
    /// What WITH names.
    ctes: Vec<String>,
    /// Relations without a schema that the catalog does not know.
    unknown: Vec<String>,
    /// The name that is called where a relation may stand.
    called: Option<ObjectName>,
}

impl Walk<'_> {
    fn alias(&mut self, alias: &TableAlias) {
        if !alias.columns.is_empty() {
            self.listed.push(alias.name.clone());
        }
    }

    /// A call that the tree knows as one. The tokens were asked already; this is for names that are also
    /// words of the grammar, and for names that are also a list's.
    fn call(&self, name: &ObjectName) -> ControlFlow<Reason> {
        let parts: Option<Vec<&Ident>> = name.0.iter().map(ObjectNamePart::as_ident).collect();
        let safety = match parts.as_deref() {
            Some([function]) => self.lookup(None, function),
            Some([schema, function]) => self.lookup(Some(schema), function),
            _ => None,
        };
        match safety {
            Some(Safety::AnyNode) => ControlFlow::Continue(()),
            Some(Safety::PrimaryOnly) => ControlFlow::Break(Reason::VolatileFunction),
            None => ControlFlow::Break(Reason::UnknownFunction),
        }
    }

    fn lookup(&self, schema: Option<&Ident>, function: &Ident) -> Option<Safety> {
        let in_catalog = schema.is_none_or(|schema| schema.value == "pg_catalog");
        let schema_name = schema.map(|schema| schema.value.as_str());
        self.catalog
            .listed(schema_name, &function.value)
            .or_else(|| functions::builtin(function.value.as_bytes()).filter(|_| in_catalog))
            .or_else(|| self.catalog.function(schema.map(|schema| schema.value.as_str()), &function.value))
            .or_else(|| (schema.is_none() && is_special(function)).then_some(Safety::AnyNode))
    }
}

impl<'c> Relations<'c> {
    fn of(catalog: &'c dyn FunctionCatalog) -> Self {
        Self { catalog, ctes: Vec::new(), unknown: Vec::new(), called: None }
    }

    /// A name that the catalog knows is taken for what it is there, even where a WITH hides it.
    fn are_known(&self) -> Result<(), Reason> {
        let is_cte = |name: &String| self.ctes.contains(name);
        if self.unknown.iter().all(is_cte) { Ok(()) } else { Err(Reason::UnknownRelation) }
    }

    /// A relation that is read.
    fn relation(&mut self, name: &ObjectName) -> ControlFlow<Reason> {
        let parts: Option<Vec<&Ident>> = name.0.iter().map(ObjectNamePart::as_ident).collect();
        let known = match parts.as_deref() {
            Some([table]) => self.catalog.relation(None, &table.value),
            Some([schema, table] | [_, schema, table]) => {
                self.catalog.relation(Some(&schema.value), &table.value)
            }
            _ => None,
        };
        match (known, parts.as_deref()) {
            (Some(Safety::AnyNode), _) => ControlFlow::Continue(()),
            (Some(Safety::PrimaryOnly), _) => ControlFlow::Break(Reason::PrimaryRelation),
            (None, Some([table])) => {
                self.unknown.push(table.value.clone());
                ControlFlow::Continue(())
            }
            (None, _) => ControlFlow::Break(Reason::UnknownRelation),
        }
    }
}

/// Keywords with a syntax of their own that sqlparser reads as calls (`coalesce`, `greatest`, `current_date`).
fn is_special(function: &Ident) -> bool {
    let token = Token { kind: Kind::Word, text: function.value.as_bytes() };
    function.quote_style.is_none() && functions::is_reserved(&token)
}

fn names(ident: &Ident, token: &Token<'_>) -> bool {
    ident.value.as_bytes() == functions::catalog_name(token)
}

impl Visitor for Walk<'_> {
    type Break = Reason;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Reason> {
        if !query.locks.is_empty() || query.for_clause.is_some() {
            return ControlFlow::Break(Reason::LockingRead);
        }
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            self.alias(&cte.alias);
            self.relations.ctes.push(cte.alias.name.value.clone());
        }
        match *query.body {
            SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_) => {
                ControlFlow::Break(Reason::DataModifyingCte)
            }
            _ => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<Reason> {
        if select.into.is_some() { ControlFlow::Break(Reason::SelectInto) } else { ControlFlow::Continue(()) }
    }

    fn pre_visit_statement(&mut self, _statement: &Statement) -> ControlFlow<Reason> {
        ControlFlow::Break(Reason::DataModifyingCte)
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<Reason> {
        let alias = match factor {
            TableFactor::Table { alias, .. }
            | TableFactor::Derived { alias, .. }
            | TableFactor::TableFunction { alias, .. }
            | TableFactor::Function { alias, .. }
            | TableFactor::UNNEST { alias, .. }
            | TableFactor::JsonTable { alias, .. }
            | TableFactor::XmlTable { alias, .. }
            | TableFactor::NestedJoin { alias, .. } => alias,
            _ => return ControlFlow::Break(Reason::Unparsed),
        };
        if let Some(alias) = alias {
            self.alias(alias);
        }
        match factor {
            TableFactor::Table { name, args: Some(_), .. } | TableFactor::Function { name, .. } => {
                self.call(name)
            }
            TableFactor::Table { name, .. } => self.relations.relation(name),
            _ => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Reason> {
        match expr {
            Expr::Function(Function { name, args, .. }) if !matches!(args, FunctionArguments::None) => {
                self.call(name)
            }
            _ => ControlFlow::Continue(()),
        }
    }
}

impl Visitor for Relations<'_> {
    type Break = Reason;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Reason> {
        let ctes = query.with.iter().flat_map(|with| &with.cte_tables);
        self.ctes.extend(ctes.map(|cte| cte.alias.name.value.clone()));
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<Reason> {
        if let TableFactor::Table { name, args: Some(_), .. } | TableFactor::Function { name, .. } = factor {
            self.called = Some(name.clone());
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, name: &ObjectName) -> ControlFlow<Reason> {
        if self.called.take_if(|called| called == name).is_some() {
            return ControlFlow::Continue(());
        }
        self.relation(name)
    }
}
