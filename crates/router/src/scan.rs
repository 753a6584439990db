//! What the tokens of one statement show without a parse.
//!
//! This is the net under the parser, and sound by PostgreSQL's grammar: a function call is always a name
//! before a parenthesis, a locking clause always begins FOR UPDATE / NO / SHARE / KEY, INTO and the verbs of
//! data-modifying CTEs are words. It errs towards the primary: a column named `delete` in parentheses
//! is taken for a write.

use crate::functions::{self, FunctionCatalog, Safety};
use crate::lexer::{Kind, Token};
use crate::reason::Reason;
use crate::sequences::Sequences;
use crate::verdict::{Misroute, PinReason, Verdict};

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Scan<'a> {
    /// Why the primary must run it, if anything seen says so.
    pub(crate) primary: Option<Reason>,
    /// What it would pin the session for.
    pub(crate) pin: Option<PinReason>,
    /// What comes of it on a standby.
    pub(crate) misroute: Misroute,
    /// What it calls of sequences.
    pub(crate) sequences: Sequences,
    /// Unqualified names before a parenthesis that are not built in: calls, or names with a column list.
    pub(crate) unknown: Vec<Token<'a>>,
}

/// Whether a token is the name of a relation or an operator that a standby may serve wrongly, wherever it stands: for
/// texts whose grammar is not understood.
pub(crate) fn names_what_is_the_primarys(token: &Token<'_>, catalog: &dyn FunctionCatalog) -> bool {
    let name = match token.kind {
        Kind::Word | Kind::Quoted => functions::catalog_name(token),
        Kind::Operator => token.text.to_vec(),
        _ => return false,
    };
    let Ok(name) = std::str::from_utf8(&name) else { return false };
    let known = match token.kind {
        Kind::Operator => catalog.operator(None, name),
        _ => catalog.relation(None, name),
    };
    known == Some(Safety::PrimaryOnly)
}

impl<'a> Scan<'a> {
    /// Looks at the tokens of one statement.
    pub(crate) fn of(tokens: &[Token<'a>], catalog: &dyn FunctionCatalog) -> Self {
        let mut scan = Self::default();
        if catalog.hidden() == Safety::PrimaryOnly {
            scan.calls_a_writer();
        }
        for (at, token) in tokens.iter().enumerate() {
            match token.kind {
                Kind::Word | Kind::Quoted => {
                    let opens = tokens.get(at + 1).is_some_and(|next| next.is_punct("("));
                    if opens {
                        scan.call(tokens, at, catalog);
                    } else {
                        scan.name(tokens, at, catalog);
                    }
                    if token.kind == Kind::Word {
                        scan.clause(tokens, at);
                    }
                }
                Kind::Operator => scan.operator(token, catalog),
                Kind::Bad => scan.bad(tokens, at),
                // Who asks wants to know whether it may write here, and it may, as with `pg_is_in_recovery()`.
                Kind::String if token.names_a_probe() => scan.send_to_primary(Reason::VolatileFunction),
                Kind::String | Kind::Number | Kind::Param | Kind::Punct => {}
            }
        }
        scan
    }

    /// Earlier findings stay, but that something is merely unknown gives way to what is known.
    fn send_to_primary(&mut self, reason: Reason) {
        if reason == Reason::UnknownFunction {
            self.misroute = self.misroute.or(Misroute::Doubtful);
        }
        if self.primary.is_none_or(|found| found == Reason::UnknownFunction) {
            self.primary = Some(reason);
        }
    }

    /// A function that somebody made, and that may write - or take a lock that excludes nobody on a standby.
    fn calls_a_writer(&mut self) {
        self.misroute = Misroute::Silent;
        self.sequences = self.sequences.and(Sequences::Perhaps);
        self.send_to_primary(Reason::VolatileFunction);
    }

    /// A name before a parenthesis.
    fn call(&mut self, tokens: &[Token<'a>], at: usize, catalog: &dyn FunctionCatalog) {
        let Some(token) = tokens.get(at) else { return };
        let qualified = before(tokens, at, 1).is_some_and(|dot| dot.is_punct("."));
        if !qualified && functions::is_syntax(token) {
            self.operator_syntax(tokens, at, catalog);
            return;
        }
        let name = functions::catalog_name(token);
        let schema = before(tokens, at, 2).filter(|_| qualified);
        let longer = qualified && before(tokens, at, 3).is_some_and(|dot| dot.is_punct("."));
        let in_catalog = schema.is_none_or(|schema| functions::catalog_name(schema) == b"pg_catalog");
        let builtin = functions::builtin(&name).filter(|_| in_catalog && !longer);
        if builtin.is_some() {
            self.leaves(tokens, at, &name);
        }
        // `type(value)` converts.
        let converts = std::str::from_utf8(&name).map(|name| catalog.type_name(name));
        if converts == Ok(Safety::PrimaryOnly) {
            self.calls_a_writer();
        }
        let known = Known::of(catalog, schema, &name);
        match (known.listed.filter(|_| !longer), builtin) {
            (Some(Safety::AnyNode), _) => {}
            (Some(Safety::PrimaryOnly), _) => {
                self.misroute = Misroute::Silent;
                self.send_to_primary(Reason::FunctionList);
            }
            (None, Some(safety)) => {
                // A function of a user's may have the name of a built-in one, and fit the arguments better.
                let other = known.function.filter(|_| !qualified).unwrap_or(Safety::AnyNode);
                if other == Safety::PrimaryOnly {
                    self.calls_a_writer();
                }
                if safety.worse(other) == Safety::PrimaryOnly {
                    self.send_to_primary(Reason::VolatileFunction);
                }
            }
            (None, None) if longer => self.send_to_primary(Reason::UnknownFunction),
            (None, None) => self.not_built_in(schema, token, known.function),
        }
    }

    /// What a built-in leaves in the session or on the node it runs on.
    fn leaves(&mut self, tokens: &[Token<'a>], at: usize, name: &[u8]) {
        let (pin, misroute) = match name {
            b"set_config" if ends_in_true(tokens, at) => (None, Misroute::Refused),
            b"set_config" => (Some(PinReason::SessionSetting), Misroute::Silent),
            _ => (functions::pin_of(name), functions::misroute_of(name)),
        };
        self.pin = self.pin.or(pin);
        self.misroute = self.misroute.or(misroute);
        self.sequences = self.sequences.and(functions::sequences_of(name));
    }

    /// A verdict, with what was seen besides.
    pub(crate) fn add_to(&self, verdict: Verdict) -> Verdict {
        let pin = verdict.pin.or(self.pin);
        verdict.with_pin(pin).with_misroute(self.misroute).with_sequences(self.sequences)
    }

    /// A function that is not built in.
    fn not_built_in(&mut self, schema: Option<&Token<'a>>, token: &Token<'a>, known: Option<Safety>) {
        match known {
            Some(Safety::AnyNode) => {}
            Some(Safety::PrimaryOnly) => self.calls_a_writer(),
            None if schema.is_some() => self.send_to_primary(Reason::UnknownFunction),
            None => self.unknown.push(*token),
        }
    }

    /// A name that is not called: a type whose conversions call something, or a function behind a dot.
    fn name(&mut self, tokens: &[Token<'a>], at: usize, catalog: &dyn FunctionCatalog) {
        let Some(token) = tokens.get(at) else { return };
        let name = functions::catalog_name(token);
        let Ok(name) = std::str::from_utf8(&name) else { return };
        let after_dot = before(tokens, at, 1).is_some_and(|dot| dot.is_punct("."));
        if after_dot {
            self.field(tokens, at, name, catalog);
        }
        if catalog.type_name(name) == Safety::PrimaryOnly {
            self.calls_a_writer();
        }
    }

    /// `value.name` calls the function `name` where the value has no such column; values that are no rows have none.
    fn field(&mut self, tokens: &[Token<'a>], at: usize, name: &str, catalog: &dyn FunctionCatalog) {
        if functions::builtin(name.as_bytes()) == Some(Safety::PrimaryOnly) {
            self.leaves(tokens, at, name.as_bytes());
            self.send_to_primary(Reason::VolatileFunction);
        }
        let of_row = catalog.field(name) == Safety::PrimaryOnly;
        if of_row || (catalog.scalar_field(name) == Safety::PrimaryOnly && may_be_scalar(tokens, at)) {
            self.calls_a_writer();
        }
    }

    /// `OPERATOR(schema.op)`: only `pg_catalog`'s are built in.
    fn operator_syntax(&mut self, tokens: &[Token<'a>], at: usize, catalog: &dyn FunctionCatalog) {
        let is_operator = tokens.get(at).is_some_and(|token| token.is("operator"));
        let qualified = tokens.get(at + 3).is_some_and(|dot| dot.is_punct("."));
        let foreign =
            tokens.get(at + 2).is_some_and(|schema| functions::catalog_name(schema) != b"pg_catalog");
        // Those of other schemas are asked for by name alone, which counts the worst; what pg_catalog does not
        // have must be known.
        if is_operator && qualified && foreign {
            let name = tokens.get(at + 4).and_then(|operator| std::str::from_utf8(operator.text).ok());
            if name.and_then(|name| catalog.operator(None, name)) != Some(Safety::AnyNode) {
                self.send_to_primary(Reason::UnknownFunction);
            }
        }
    }

    fn operator(&mut self, token: &Token<'a>, catalog: &dyn FunctionCatalog) {
        // The server's name of `!=`.
        let name = if token.text == b"!=" { b"<>" } else { token.text };
        let known = std::str::from_utf8(name).ok().and_then(|name| catalog.operator(None, name));
        match known {
            Some(Safety::AnyNode) => {}
            None if functions::is_builtin_operator(token.text) => {}
            Some(Safety::PrimaryOnly) => self.calls_a_writer(),
            None => self.send_to_primary(Reason::UnknownFunction),
        }
    }

    /// Locking clauses, INTO, and the verbs of data-modifying CTEs.
    fn clause(&mut self, tokens: &[Token<'a>], at: usize) {
        let (Some(token), previous) = (tokens.get(at), before(tokens, at, 1)) else { return };
        let next = tokens.get(at + 1);
        if token.is("for") && next.is_some_and(|next| next.is_any(&["update", "share", "no", "key"])) {
            self.send_to_primary(Reason::LockingRead);
        }
        let after_dot = previous.is_some_and(|dot| dot.is_punct("."));
        if token.is("into") && !after_dot {
            self.send_to_primary(Reason::SelectInto);
            if is_temporary(tokens.get(at + 1..).unwrap_or_default()) {
                self.pin = self.pin.or(Some(PinReason::TempTable));
            }
        }
        let begins = previous.is_some_and(|paren| paren.is_punct("(") || paren.is_punct(")"));
        if begins && token.is_any(&["insert", "update", "delete", "merge"]) {
            self.send_to_primary(Reason::DataModifyingCte);
        }
    }

    /// A name written as `U&"..."` may be anybody's.
    fn bad(&mut self, tokens: &[Token<'a>], at: usize) {
        self.send_to_primary(Reason::Unparsed);
        if tokens.get(at + 1).is_some_and(|next| next.is_punct("(")) {
            self.pin = self.pin.or(Some(PinReason::Unknown));
        }
    }
}

/// What the catalog and the lists know about a function. Names that are not UTF-8 are nobody's but the server's.
struct Known {
    listed: Option<Safety>,
    function: Option<Safety>,
}

impl Known {
    fn of(catalog: &dyn FunctionCatalog, schema: Option<&Token<'_>>, name: &[u8]) -> Self {
        let schema = schema.map(functions::catalog_name);
        match (std::str::from_utf8(name), schema.as_deref().map(std::str::from_utf8).transpose()) {
            (Ok(name), Ok(schema)) => {
                Self { listed: catalog.listed(schema, name), function: catalog.function(schema, name) }
            }
            _ => Self { listed: None, function: None },
        }
    }
}

fn before<'t, 'a>(tokens: &'t [Token<'a>], at: usize, by: usize) -> Option<&'t Token<'a>> {
    at.checked_sub(by).and_then(|at| tokens.get(at))
}

/// What stands before the dot before `at` may be no row: a value in parentheses, an element, a parameter, or the name of a
/// function in FROM, which may be the name of what it gives.
fn may_be_scalar(tokens: &[Token<'_>], at: usize) -> bool {
    /// Functions that may stand in FROM without parentheses.
    const BARE: &[&str] = &[
        "current_catalog",
        "current_date",
        "current_role",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_user",
        "localtime",
        "localtimestamp",
        "session_user",
        "system_user",
        "user",
    ];
    /// In longer statements nobody looks, dot by dot, for what a name is.
    const LOOKED_AT: usize = 4000;
    let Some(value) = before(tokens, at, 2) else { return true };
    if !value.is_name() || tokens.len() > LOOKED_AT {
        return true;
    }
    let name = functions::catalog_name(value);
    let bare = |token: &Token<'_>| BARE.iter().any(|word| functions::catalog_name(token) == word.as_bytes());
    let names = tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| token.is_name() && functions::catalog_name(token) == name);
    bare(value)
        || names.into_iter().any(|(at, _)| {
            let called = tokens.get(at + 1).is_some_and(|open| open.is_punct("("));
            let previous = match before(tokens, at, 1) {
                Some(word) if word.is("as") => before(tokens, at, 2),
                other => other,
            };
            called || previous.is_some_and(|end| end.is_punct(")") || bare(end))
        })
}

/// The words after INTO or CREATE name something temporary.
pub(crate) fn is_temporary(tokens: &[Token<'_>]) -> bool {
    let scope = usize::from(tokens.first().is_some_and(|token| token.is_any(&["local", "global"])));
    let temporary = tokens.get(scope).is_some_and(|token| token.is_any(&["temp", "temporary"]));
    temporary || tokens.first().is_some_and(|token| functions::catalog_name(token) == b"pg_temp")
}

/// The position of the parenthesis that closes the one at `open`.
pub(crate) fn closing(tokens: &[Token<'_>], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        if token.is_punct("(") {
            depth += 1;
        } else if token.is_punct(")") {
            depth = depth.checked_sub(1)?;
            if depth == 0 {
                return Some(at);
            }
        }
    }
    None
}

/// The call at `name` has the keyword `true` as its last argument.
fn ends_in_true(tokens: &[Token<'_>], name: usize) -> bool {
    let Some(close) = closing(tokens, name + 1) else { return false };
    let is_true = before(tokens, close, 1).is_some_and(|last| last.is("true"));
    is_true && before(tokens, close, 2).is_some_and(|comma| comma.is_punct(","))
}
