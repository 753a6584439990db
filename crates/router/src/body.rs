//! What the text of a function, or of a DO block, leaves in the session when it runs.
//!
//! Found by its words, wherever they stand but in comments; what stands in strings counts when the text runs strings.
//! Words say too much rather than too little: whoever is told "perhaps" asks the server.

use crate::functions::catalog_name;
use crate::leaves::Leaves;
use crate::lexer::{Kind, Lexer, Token};
use crate::made::only_fills_in;

/// Strings in strings are looked into so deep.
const DEPTH: u8 = 4;

/// See the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Body {
    /// What running it may leave, what it calls left aside.
    pub leaves: Leaves,
    /// Parameters of users' own (with a dot in their names) that it sets for the session.
    pub settings: Vec<String>,
    /// It runs queries and changes of rows on relations whose names are filled in.
    pub fills_in: bool,
}

impl Body {
    /// Of a text in SQL or PL/pgSQL.
    #[must_use]
    pub fn of(text: &[u8]) -> Self {
        let mut body = Self::default();
        let tokens: Vec<Token<'_>> = Lexer::new(text, true).collect();
        body.look(&tokens, 0);
        let made = || tokens.iter().any(|token| token.is("execute"));
        if tokens.iter().any(runs_its_text) || (made() && !only_fills_in(&tokens)) {
            body.leaves(Leaves::Anything);
            body.look_into_strings(&tokens, 1);
        } else if made() {
            body.fills_in = true;
            body.look_into_strings(&tokens, 1);
        }
        body
    }

    /// Of `sql` itself and of the DO blocks in it.
    #[must_use]
    pub fn of_do(sql: &[u8]) -> Self {
        let mut body = Self::default();
        let strings = Lexer::new(sql, true).filter(|token| token.kind == Kind::String);
        for token in strings {
            let inner = Self::of(&inside(token.text));
            body.leaves(if inner.fills_in { Leaves::Anything } else { inner.leaves });
            body.settings.extend(inner.settings);
        }
        body
    }

    fn leaves(&mut self, leaves: Leaves) {
        self.leaves = self.leaves.max(leaves);
    }

    fn look_into_strings(&mut self, tokens: &[Token<'_>], depth: u8) {
        for token in tokens.iter().filter(|token| token.kind == Kind::String && depth <= DEPTH) {
            let text = inside(token.text);
            let inner: Vec<Token<'_>> = Lexer::new(&text, true).collect();
            self.look(&inner, depth);
            self.look_into_strings(&inner, depth + 1);
        }
    }

    fn look(&mut self, tokens: &[Token<'_>], depth: u8) {
        for (at, token) in tokens.iter().enumerate() {
            match token.kind {
                Kind::Bad if depth == 0 => self.leaves(Leaves::Anything),
                Kind::Word | Kind::Quoted => self.name(tokens, at, depth),
                _ => {}
            }
        }
    }

    fn name(&mut self, tokens: &[Token<'_>], at: usize, depth: u8) {
        let (Some(token), previous) = (tokens.get(at), at.checked_sub(1).and_then(|at| tokens.get(at)))
        else {
            return;
        };
        let name = catalog_name(token);
        let after = |words: &[&str]| previous.is_some_and(|previous| previous.is_any(words));
        match name.as_slice() {
            b"temp" | b"temporary" if after(&["create", "replace", "local", "global", "into"]) => {
                self.leaves(Leaves::Perhaps);
            }
            b"hold" if after(&["with"]) => self.leaves(Leaves::Perhaps),
            b"pg_temp" | b"listen" | b"unlisten" | b"prepare" | b"deallocate" | b"discard" => {
                self.leaves(Leaves::Perhaps);
            }
            b"set_config" => self.set_config(tokens.get(at + 1..).unwrap_or_default(), depth),
            b"set" | b"reset" if begins_statement(previous) => {
                self.set(tokens.get(at + 1..).unwrap_or_default());
            }
            name => self.leaves(std::str::from_utf8(name).map_or(Leaves::Nothing, by_name)),
        }
    }

    /// What follows SET or RESET.
    fn set(&mut self, rest: &[Token<'_>]) {
        let rest = match rest.split_first() {
            Some((scope, rest)) if scope.is("session") => rest,
            _ => rest,
        };
        match rest {
            [scope, ..] if scope.is_any(&["local", "transaction", "constraints"]) => {}
            [class, dot, name, ..] if class.is_name() && dot.is_punct(".") && name.is_name() => {
                let part = |token: &Token<'_>| String::from_utf8_lossy(&catalog_name(token)).into_owned();
                self.custom(format!("{}.{}", part(class), part(name)));
            }
            [name, ..] if name.is_name() => self.leaves(Leaves::Perhaps),
            _ => self.leaves(Leaves::Anything),
        }
    }

    /// What follows the name `set_config`.
    fn set_config(&mut self, rest: &[Token<'_>], depth: u8) {
        // In a string it is a part of a text that is made.
        let untold = if depth == 0 { Leaves::Unasked } else { Leaves::Anything };
        let Some(arguments) = arguments(rest) else { return self.leaves(untold) };
        let local = arguments.last().is_some_and(|last| matches!(last, [word] if word.is("true")));
        match arguments.first() {
            _ if local => {}
            Some([name]) if name.kind == Kind::String => {
                let name = String::from_utf8_lossy(&inside(name.text)).to_ascii_lowercase();
                if name.contains('.') { self.custom(name) } else { self.leaves(Leaves::Perhaps) }
            }
            _ => self.leaves(untold),
        }
    }

    fn custom(&mut self, name: String) {
        self.leaves(Leaves::Perhaps);
        if !self.settings.contains(&name) {
            self.settings.push(name);
        }
    }
}

/// What a function of that name leaves, whoever has made it: of those that come with the server or its extensions and
/// have no text to look into.
pub(crate) fn by_name(name: &str) -> Leaves {
    match name {
        "pg_advisory_lock"
        | "pg_advisory_lock_shared"
        | "pg_try_advisory_lock"
        | "pg_try_advisory_lock_shared"
        | "pg_advisory_unlock"
        | "pg_advisory_unlock_shared"
        | "pg_advisory_unlock_all" => Leaves::Perhaps,
        // `pg_trgm`.
        "set_limit" => Leaves::Perhaps,
        "query_to_xml"
        | "query_to_xmlschema"
        | "query_to_xml_and_xmlschema"
        | "ts_stat"
        | "ts_rewrite"
        | "connectby" => Leaves::Anything,
        name if name.starts_with("crosstab") => Leaves::Anything,
        // No question finds them: a connection, an origin, a seed.
        "dblink_connect" | "dblink_connect_u" | "pg_replication_origin_session_setup" | "setseed" => {
            Leaves::Unasked
        }
        _ => Leaves::Nothing,
    }
}

/// The lower-case words of a text, names among them.
pub(crate) fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    let joins = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '$';
    text.split(move |letter| !joins(letter)).filter(|word| !word.is_empty()).map(str::to_lowercase)
}

/// Functions that take a text and run it.
fn runs_its_text(token: &Token<'_>) -> bool {
    let name = catalog_name(token);
    let by_name = || std::str::from_utf8(&name).is_ok_and(|name| by_name(name) == Leaves::Anything);
    token.is_name() && by_name()
}

/// Behind this token a statement begins.
fn begins_statement(previous: Option<&Token<'_>>) -> bool {
    previous.is_none_or(|previous| {
        previous.is_punct(";")
            || previous.is_any(&["begin", "then", "else", "loop", "atomic"])
            || (previous.kind == Kind::Operator && previous.text == b">>")
    })
}

/// What stands between a string's quotes, doubled ones undone.
pub(crate) fn inside(text: &[u8]) -> Vec<u8> {
    let start = text.iter().position(|byte| matches!(byte, b'\'' | b'$'));
    let Some(rest) = start.and_then(|start| text.get(start..)) else { return text.to_vec() };
    let quote = match rest {
        [b'$', rest @ ..] => rest.iter().position(|byte| *byte == b'$').map_or(1, |end| end + 2),
        _ => 1,
    };
    let inner = rest.get(quote..rest.len().saturating_sub(quote)).unwrap_or_default();
    if rest.first() == Some(&b'$') {
        return inner.to_vec();
    }
    let mut plain = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter().peekable();
    while let Some(byte) = bytes.next() {
        plain.push(*byte);
        bytes.next_if(|next| *byte == b'\'' && **next == b'\'');
    }
    plain
}

/// The arguments in the parentheses that open `tokens`.
fn arguments<'t, 'a>(tokens: &'t [Token<'a>]) -> Option<Vec<&'t [Token<'a>]>> {
    let close =
        crate::scan::closing(tokens, 0).filter(|_| tokens.first().is_some_and(|open| open.is_punct("(")))?;
    let inner = tokens.get(1..close)?;
    let mut depth = 0_i32;
    Some(
        inner
            .split(|token| {
                depth += i32::from(token.is_punct("(")) - i32::from(token.is_punct(")"));
                depth == 0 && token.is_punct(",")
            })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_body_leaves() {
        for (text, leaves, settings) in [
            ("BEGIN RETURN 1; END", Leaves::Nothing, &[][..]),
            ("UPDATE t SET a = 1; SELECT temp FROM t -- LISTEN x", Leaves::Nothing, &[]),
            ("INSERT INTO t VALUES (1) ON CONFLICT DO UPDATE SET a = 2", Leaves::Nothing, &[]),
            ("BEGIN RAISE NOTICE 'listen'; END", Leaves::Nothing, &[]),
            (
                "BEGIN SET LOCAL work_mem = '1MB'; PERFORM set_config('a.b', x, true); END",
                Leaves::Nothing,
                &[],
            ),
            ("SELECT pg_advisory_xact_lock(1)", Leaves::Nothing, &[]),
            ("BEGIN CREATE TEMP TABLE x(a int); END", Leaves::Perhaps, &[]),
            ("create or replace temporary view x as select 1", Leaves::Perhaps, &[]),
            ("CREATE TABLE pg_temp.x()", Leaves::Perhaps, &[]),
            ("SELECT * INTO TEMP x FROM y", Leaves::Perhaps, &[]),
            ("BEGIN LISTEN x; END", Leaves::Perhaps, &[]),
            ("DECLARE c CURSOR WITH HOLD FOR SELECT 1", Leaves::Perhaps, &[]),
            ("SELECT pg_try_advisory_lock(k)", Leaves::Perhaps, &[]),
            ("PERFORM pg_catalog.\"pg_advisory_unlock\"(k)", Leaves::Perhaps, &[]),
            ("BEGIN IF a THEN SET work_mem = '1MB'; END IF; END", Leaves::Perhaps, &[]),
            ("BEGIN <<here>> SET SESSION app.Who = '1'; END", Leaves::Perhaps, &["app.who"]),
            (
                "SELECT set_config('App.x', $1, false), set_config('work_mem', '1', f(a, true))",
                Leaves::Perhaps,
                &["app.x"],
            ),
            ("SELECT set_config('app.' || $1, $2, false)", Leaves::Unasked, &[]),
            ("SELECT set_config($1, $2, $3)", Leaves::Unasked, &[]),
            ("SELECT set_config($1, $2, true)", Leaves::Nothing, &[]),
            ("EXECUTE format('SELECT %s', a)", Leaves::Anything, &[]),
            ("EXECUTE format('SELECT %I', a)", Leaves::Nothing, &[]),
            ("EXECUTE 'SELECT pg_advisory_lock(1)'", Leaves::Perhaps, &[]),
            ("EXECUTE 'UPDATE ' || t || ' SET a = 1'", Leaves::Anything, &[]),
            ("EXECUTE 'SET app.y = ' || quote_literal(a)", Leaves::Anything, &["app.y"]),
            ("EXECUTE $q$SELECT set_config('app.z', 'a', false)$q$", Leaves::Perhaps, &["app.z"]),
            ("SELECT query_to_xml('SELECT 1', true, true, '')", Leaves::Anything, &[]),
            ("SELECT dblink_connect('a', 'b')", Leaves::Unasked, &[]),
        ] {
            let body = Body::of(text.as_bytes());
            let names: Vec<&str> = body.settings.iter().map(String::as_str).collect();
            assert_eq!((body.leaves, &*names), (leaves, settings), "{text}");
        }
    }

    #[test]
    fn the_body_of_a_block() {
        let body = Body::of_do(b"DO LANGUAGE plpgsql $x$ BEGIN SET app.a = 1; END $x$");
        assert_eq!((body.leaves, body.settings), (Leaves::Perhaps, vec!["app.a".to_owned()]));
        assert_eq!(Body::of_do(b"DO 'BEGIN END'").leaves, Leaves::Nothing);
    }

    #[test]
    fn words_are_names() {
        assert_eq!(words("a.\"Big\"(x_1$,'in a')").collect::<Vec<_>>(), ["a", "big", "x_1$", "in", "a"]);
    }
}
