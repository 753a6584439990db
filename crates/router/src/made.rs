//! Texts that a function makes at run time and runs (EXECUTE), told apart: a query or change of rows in which nothing but
//! names and literals is filled in leaves what its words leave, and what the relation that is not known leaves.
//! Audit and partition triggers are made so.
//!
//! Quoted they cannot be anything else: `%I`, `%L`, `quote_ident`, `quote_literal`, `quote_nullable`, values behind USING.

use crate::body::inside;
use crate::lexer::{Kind, Token};
use crate::scan::closing;

/// Statements that a name filled in does not turn into others.
const ROWS: &[&str] = &["insert", "update", "delete", "select", "merge", "with", "values"];

/// Whether all texts that it runs are such ones; false as well when it runs none.
pub(crate) fn only_fills_in(tokens: &[Token<'_>]) -> bool {
    let mut runs = tokens.iter().enumerate().filter(|(_, token)| token.is("execute")).peekable();
    runs.peek().is_some()
        && runs
            .all(|(at, _)| shape(tokens.get(at + 1..).unwrap_or_default()).is_some_and(|text| is_rows(&text)))
}

/// The text that an expression makes, with `%I` for each name and `%L` for each literal; `None` when it may be any.
fn shape(tokens: &[Token<'_>]) -> Option<String> {
    let mut text = String::new();
    let mut rest = tokens;
    loop {
        let (part, after) = operand(rest)?;
        text.push_str(&part);
        rest = match after {
            [join, after @ ..] if join.kind == Kind::Operator && join.text == b"||" => after,
            [end, ..] if end.is_punct(";") || end.is_any(&["using", "into", "loop"]) => return Some(text),
            [] => return Some(text),
            _ => return None,
        };
    }
}

/// What stands between two `||`, and what follows it.
fn operand<'t, 'a>(tokens: &'t [Token<'a>]) -> Option<(String, &'t [Token<'a>])> {
    let (first, rest) = tokens.split_first()?;
    if first.kind == Kind::String {
        return Some((literal(first)?.replace('%', "%%"), rest));
    }
    let close = closing(rest, 0).filter(|_| rest.first().is_some_and(|open| open.is_punct("(")))?;
    let (inner, after) = (rest.get(1..close)?, rest.get(close + 1..)?);
    let part = match inner {
        [template] if first.is("format") => literal(template)?,
        [template, comma, ..] if first.is("format") && comma.is_punct(",") => literal(template)?,
        _ if first.is("quote_ident") => "%I".to_owned(),
        _ if first.is_any(&["quote_literal", "quote_nullable"]) => "%L".to_owned(),
        _ => return None,
    };
    Some((part, after))
}

/// A string that means what it says: backslashes are nobody's there.
fn literal(token: &Token<'_>) -> Option<String> {
    let plain = token.kind == Kind::String && matches!(token.text.first(), Some(b'\'' | b'$'));
    let text = String::from_utf8(inside(token.text)).ok().filter(|_| plain)?;
    Some(text)
}

/// Whether the text begins as a query or a change of rows, and all that is filled in is a name of a relation or column, or a
/// literal.
fn is_rows(text: &str) -> bool {
    let verb = text.trim_start().split_once(char::is_whitespace).map_or("", |(verb, _)| verb);
    ROWS.iter().any(|known| known.eq_ignore_ascii_case(verb)) && !text.contains(';') && conversions(text)
}

fn conversions(text: &str) -> bool {
    let mut before = String::new();
    let mut rest = text;
    while let Some((plain, spec)) = rest.split_once('%') {
        before.push_str(plain);
        // `%1$I`, `%-10L`: which argument, and how wide.
        let spec = spec
            .trim_start_matches(|letter: char| letter.is_ascii_digit() || matches!(letter, '$' | '-' | '*'));
        let mut letters = spec.chars();
        let kind = letters.next();
        rest = letters.as_str();
        match kind {
            Some('%' | 'L') => {}
            Some('I') if !is_called(&before, rest) => {}
            _ => return false,
        }
        before.push('x');
    }
    true
}

/// Whether a name between those may be one of a function: a parenthesis follows, and it is not that of INSERT's columns.
fn is_called(before: &str, after: &str) -> bool {
    let in_name = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.' | '"');
    let inserts = before.trim_end_matches(in_name).trim_end().to_ascii_lowercase().ends_with("into");
    after.trim_start().starts_with('(') && !inserts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lexer::Lexer;

    #[test]
    fn what_is_only_filled_in() {
        for (text, fills) in [
            ("EXECUTE 'INSERT INTO log VALUES ($1)' USING NEW;", true),
            ("EXECUTE format('INSERT INTO %I.%I (a, b) VALUES (%L, $1)', s, t, now()) USING b;", true),
            (
                "EXECUTE 'UPDATE ' || quote_ident(t) || ' SET a = ' || quote_literal(f(x)) || ' WHERE b';",
                true,
            ),
            ("FOR r IN EXECUTE format($q$ SELECT * FROM %1$I WHERE a LIKE '%%x' $q$, t) LOOP", true),
            ("EXECUTE format('select 1') INTO x;", true),
            ("EXECUTE 'SELECT 1'", true),
            ("RETURN 1", false),
            ("EXECUTE sql;", false),
            ("EXECUTE 'SELECT ' || expression;", false),
            ("EXECUTE format('SELECT %s', x);", false),
            ("EXECUTE format('SELECT %1$s', x);", false),
            ("EXECUTE format('SELECT %I(1)', x);", false),
            ("EXECUTE format('SELECT %I.%I (1)', x, y);", false),
            ("EXECUTE format('SELECT a.%I(1)', y);", false),
            ("EXECUTE 'SELECT ' || quote_ident(x) || '(1)';", false),
            ("EXECUTE format('SET %I = 1', x);", false),
            ("EXECUTE format('SELECT 1; SET %I = 1', x);", false),
            ("EXECUTE format(template, x);", false),
            ("EXECUTE format('SELECT ' || x, y);", false),
            ("EXECUTE E'SELECT \\x41';", false),
            ("EXECUTE 'INSERT INTO t VALUES (1)'; EXECUTE x;", false),
            ("EXECUTE 'CREATE TABLE ' || quote_ident(t) || '()';", false),
            ("CREATE TRIGGER x BEFORE INSERT ON t EXECUTE FUNCTION f();", false),
        ] {
            let tokens: Vec<Token<'_>> = Lexer::new(text.as_bytes(), true).collect();
            assert_eq!(only_fills_in(&tokens), fills, "{text}");
        }
    }
}
