//! A text of any number of statements to one verdict, without a cache.

use crate::fingerprint::fingerprint;
use crate::functions::{FunctionCatalog, NoCatalog};
use crate::hint;
use crate::lexer::Token;
use crate::normal::Normal;
use crate::oversize;
use crate::statement;
use crate::verdict::Verdict;

/// How texts are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseOptions {
    /// `max_parsed_statement`, in bytes: longer texts go to the primary unparsed.
    pub max_parsed_statement: usize,
    /// The session's `standard_conforming_strings`.
    pub standard_conforming_strings: bool,
    /// `allow_sql_comments`: leading hints are read.
    pub allow_sql_comments: bool,
}

impl Default for ParseOptions {
    fn default() -> Self {
        Self { max_parsed_statement: 64 << 10, standard_conforming_strings: true, allow_sql_comments: true }
    }
}

/// The verdict on a text, knowing the built-in functions only.
#[must_use]
pub fn classify(sql: &[u8], options: &ParseOptions) -> Verdict {
    classify_with(sql, options, &NoCatalog)
}

/// The verdict on a text, with what the catalog knows about functions.
#[must_use]
pub fn classify_with(sql: &[u8], options: &ParseOptions, catalog: &dyn FunctionCatalog) -> Verdict {
    let conforming = options.standard_conforming_strings;
    if sql.len() > options.max_parsed_statement {
        return oversize::classify(sql, conforming, catalog).with_hint(hint_of(sql, options));
    }
    let tokens: Vec<Token<'_>> = Normal::new(sql, conforming).collect();
    let verdict = Statements::new(&tokens)
        .map(|statement| statement::classify(statement, catalog))
        .fold(Verdict::empty(), Verdict::merge);
    verdict.with_hint(hint_of(sql, options)).with_print(fingerprint(sql, conforming))
}

/// The verdict when the text is one statement that its tokens alone decide (BEGIN, COMMIT, SET ...).
pub(crate) fn classify_direct(sql: &[u8], options: &ParseOptions) -> Option<Verdict> {
    let mut lexer = Normal::new(sql, options.standard_conforming_strings);
    let first = lexer.next().filter(statement::is_direct)?;
    let mut tokens = Vec::with_capacity(8);
    tokens.push(first);
    tokens.extend(lexer);
    let mut statements = Statements::new(&tokens);
    let (statement, more) = (statements.next()?, statements.next());
    let direct = more.is_none().then(|| statement::classify(statement, &NoCatalog));
    let print = || fingerprint(sql, options.standard_conforming_strings);
    direct.map(|verdict| verdict.with_hint(hint_of(sql, options)).with_print(print()))
}

pub(crate) fn hint_of(sql: &[u8], options: &ParseOptions) -> Option<crate::Hint> {
    if options.allow_sql_comments { hint::leading(sql) } else { None }
}

/// The statements of a text, empty ones left out.
///
/// A semicolon divides outside parentheses (CREATE RULE has them inside) and outside the body of a
/// `BEGIN ATOMIC ... END` function.
pub(crate) struct Statements<'t, 'a> {
    rest: &'t [Token<'a>],
    semicolon: Option<&'t Token<'a>>,
}

impl<'t, 'a> Statements<'t, 'a> {
    pub(crate) fn new(tokens: &'t [Token<'a>]) -> Self {
        Self { rest: tokens, semicolon: None }
    }

    /// What the statement that was given last ends with.
    pub(crate) fn semicolon(&self) -> Option<&'t Token<'a>> {
        self.semicolon
    }
}

impl<'t, 'a> Iterator for Statements<'t, 'a> {
    type Item = &'t [Token<'a>];

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.rest.is_empty() {
                return None;
            }
            let mut border = Border::default();
            let end = self.rest.iter().position(|token| border.ends_at(token)).unwrap_or(self.rest.len());
            let (statement, after) = self.rest.split_at_checked(end)?;
            self.semicolon = after.first();
            self.rest = after.get(1..).unwrap_or_default();
            if !statement.is_empty() {
                return Some(statement);
            }
        }
    }
}

/// Where a statement ends, token by token.
#[derive(Debug, Default)]
pub(crate) struct Border {
    parentheses: u32,
    /// Open BEGIN ATOMIC and CASE; counted from the first BEGIN ATOMIC of a CREATE.
    bodies: u32,
    creates: bool,
    begun: bool,
    after_begin: bool,
    /// Behind AS or a dot any word is a name.
    names_next: bool,
}

impl Border {
    /// Does the statement end at this token?
    pub(crate) fn ends_at(&mut self, token: &Token<'_>) -> bool {
        if token.is_punct(";") && self.parentheses == 0 && self.bodies == 0 {
            return true;
        }
        if !self.begun {
            self.begun = true;
            self.creates = token.is("create");
        }
        if token.is_punct("(") {
            self.parentheses += 1;
        } else if token.is_punct(")") {
            self.parentheses = self.parentheses.saturating_sub(1);
        }
        if self.creates {
            self.body(token);
        }
        false
    }

    /// Has any statement begun since the last border?
    pub(crate) fn is_empty(&self) -> bool {
        !self.begun
    }

    fn body(&mut self, token: &Token<'_>) {
        if self.after_begin && token.is("atomic") || self.bodies > 0 && token.is("case") && !self.names_next {
            self.bodies += 1;
        } else if token.is("end") && !self.names_next {
            self.bodies = self.bodies.saturating_sub(1);
        }
        self.after_begin = token.is("begin") && !self.names_next;
        self.names_next = token.is("as") || token.is_punct(".");
    }
}
