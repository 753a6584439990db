//! pgweir's own parameters: to a server they are placeholders that take any value, so what they may be is known here.

use crate::lexer::{Kind, Lexer, Token};
use crate::ops::SessionOp;
use crate::setting::Change;

/// How old a session's reads may be.
pub const CONSISTENCY: &str = "pgweir.consistency";

/// The parameters and the values that they take, in any case.
const PARAMETERS: &[(&str, &[&str])] =
    &[(CONSISTENCY, &["eventual", "read_your_writes", "monotonic", "global"])];

/// A value that a parameter of ours does not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadValue {
    /// The parameter.
    pub name: &'static str,
    /// What it was to be.
    pub value: String,
    /// What it can be.
    pub allowed: &'static [&'static str],
}

/// The parameter of ours that `SHOW` followed by those tokens asks for.
pub(crate) fn named_by(rest: &[Token<'_>]) -> Option<&'static str> {
    let [prefix, dot, name] = rest else { return None };
    let fits = |known: &str| {
        known.split_once('.').is_some_and(|(first, second)| {
            prefix.is_name()
                && dot.is_punct(".")
                && name.is_name()
                && prefix.text.eq_ignore_ascii_case(first.as_bytes())
                && name.text.eq_ignore_ascii_case(second.as_bytes())
        })
    };
    PARAMETERS.iter().map(|(known, _)| *known).find(|known| fits(known))
}

/// The parameter of ours that the statement shows.
#[must_use]
pub fn shown(sql: &[u8]) -> Option<&'static str> {
    let tokens: Vec<Token<'_>> = Lexer::new(sql, true).filter(|token| !token.is_punct(";")).take(5).collect();
    let (show, rest) = tokens.split_first()?;
    if show.is("show") { named_by(rest) } else { None }
}

/// The first value in it that a parameter of ours does not take.
#[must_use]
pub fn bad_value(op: &SessionOp) -> Option<BadValue> {
    let SessionOp::Changes(changes) = op else { return None };
    changes.iter().find_map(|change| {
        let Change::Set { name, statement } = change else { return None };
        let (name, allowed) = PARAMETERS.iter().find(|(known, _)| known == name)?;
        let value = value_of(statement);
        let fits = allowed.iter().any(|allowed| value.eq_ignore_ascii_case(allowed));
        (!fits).then_some(BadValue { name, value, allowed })
    })
}

/// The value that a SET, or the `set_config` that stands for one, gives; several words are one value that nothing takes.
fn value_of(statement: &str) -> String {
    let tokens: Vec<Token<'_>> = Lexer::new(statement.as_bytes(), true).collect();
    let called = tokens.first().is_some_and(|first| first.is("select"));
    if called {
        let strings = tokens.iter().filter(|token| token.kind == Kind::String);
        strings.map(text_of).nth(1).unwrap_or_default()
    } else {
        let sign = tokens.iter().position(|token| token.is("to") || token.text == b"=");
        let value = sign.and_then(|sign| tokens.get(sign + 1..)).unwrap_or_default();
        value.iter().map(text_of).collect::<Vec<_>>().join(" ")
    }
}

fn text_of(token: &Token<'_>) -> String {
    let text = String::from_utf8_lossy(token.text);
    let inside = (token.kind == Kind::String)
        .then(|| text.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')));
    inside.flatten().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session_ops;

    fn bad(sql: &str) -> Option<String> {
        session_ops(sql.as_bytes(), true)?.iter().find_map(bad_value).map(|bad| bad.value)
    }

    #[test]
    fn values_are_checked() {
        for good in [
            "SET pgweir.consistency = 'global'",
            "SET pgweir.consistency TO Monotonic",
            "SET SESSION \"pgweir\".consistency = eventual",
            "SELECT set_config('pgweir.consistency', 'READ_YOUR_WRITES', false)",
            "SET pgweir.consistency TO DEFAULT",
            "RESET pgweir.consistency",
            "SET pgweir.other = 'x'",
            "SET work_mem = '1MB'",
        ] {
            assert_eq!(bad(good), None, "{good}");
        }
        for (sql, value) in [
            ("SET pgweir.consistency = 'strong'", "strong"),
            ("SET pgweir.consistency = ''", ""),
            ("SET pgweir.consistency = global, eventual", "global , eventual"),
            ("SET work_mem = '1MB'; SET pgweir.consistency = 1", "1"),
            ("SELECT pg_catalog.set_config('pgweir.consistency', 'none', false)", "none"),
        ] {
            assert_eq!(bad(sql).as_deref(), Some(value), "{sql}");
        }
    }

    #[test]
    fn what_is_shown_is_recognised() {
        for sql in ["SHOW pgweir.consistency", "/* c */ show PGWEIR . \"consistency\" ;"] {
            assert_eq!(shown(sql.as_bytes()), Some(CONSISTENCY), "{sql}");
        }
        for sql in
            ["SHOW consistency", "SHOW pgweir.other", "SHOW ALL", "SELECT 1", "SHOW pgweir.consistency x"]
        {
            assert_eq!(shown(sql.as_bytes()), None, "{sql}");
        }
    }
}
