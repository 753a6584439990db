//! How many parameters a prepared statement has, from its text.

use crate::lexer::{Kind, Lexer, Token};

/// The number of the last parameter that `sql` names, or that it declares where it is a PREPARE (`PREPARE s(int, text)`).
/// Types that a Parse message declares are not in the text.
#[must_use]
pub fn parameters(sql: &[u8], standard_conforming: bool) -> u16 {
    let tokens: Vec<_> = Lexer::new(sql, standard_conforming).collect();
    let named = tokens.iter().filter_map(number).max().unwrap_or(0);
    named.max(declared(&tokens))
}

/// Of a `$1`.
fn number(token: &Token<'_>) -> Option<u16> {
    let digits = token.text.strip_prefix(b"$").filter(|_| token.kind == Kind::Param)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// How many types stand behind the name of a PREPARE.
fn declared(tokens: &[Token<'_>]) -> u16 {
    let [prepare, _name, open, types @ ..] = tokens else { return 0 };
    if !prepare.is("prepare") || !open.is_punct("(") {
        return 0;
    }
    // `numeric(8, 2)` is one.
    let (mut depth, mut count) = (0, 1);
    for token in types {
        match token {
            token if token.is_punct("(") => depth += 1,
            token if token.is_punct(")") && depth == 0 => return count,
            token if token.is_punct(")") => depth -= 1,
            token if token.is_punct(",") && depth == 0 => count += 1,
            _ => {}
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_counts_and_what_is_declared() {
        for (sql, wanted) in [
            ("SELECT 1", 0),
            ("SELECT $2::int, $1", 2),
            ("SELECT '$3', \"$4\", $$ $5 $$ -- $6", 0),
            ("PREPARE s AS SELECT $1", 1),
            ("PREPARE s(int, numeric(8, 2), text[]) AS SELECT $1", 3),
            ("PREPARE s (int) AS SELECT $1 + $2", 2),
            ("PREPARE s(int", 0),
            ("SELECT $99999", 0),
        ] {
            assert_eq!(parameters(sql.as_bytes(), true), wanted, "{sql}");
        }
    }
}
