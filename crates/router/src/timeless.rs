//! Whether a text can be parsed once and run later: what else than its names is looked up when it is parsed.
//!
//! A literal is read when its statement is parsed: `'today'` becomes a day then, `'1/2/2026'` whichever day the
//! session's `DateStyle` says, and bytes beyond ASCII become letters of the client's encoding. Numbers, parameters
//! and words that mean themselves do not change.

use crate::lexer::{Kind, Lexer};

/// What PostgreSQL's date and time types read as a moment (`datetime.c`).
const MOMENTS: [&[u8]; 4] = [b"now", b"today", b"tomorrow", b"yesterday"];

/// Whether parsing `sql` says the same at any time and under any formats, as long as its names mean the same.
#[must_use]
pub fn is_timeless(sql: &[u8]) -> bool {
    // Without backslashes it does not matter whether they escape.
    let plain = sql.is_ascii() && !sql.contains(&b'\\');
    plain
        && Lexer::new(sql, true).all(|token| match token.kind {
            Kind::String => is_word(token.text),
            Kind::Bad => false,
            Kind::Word | Kind::Quoted | Kind::Number | Kind::Param | Kind::Operator | Kind::Punct => true,
        })
}

/// Whether it is a plain literal that no type reads in a manner of its own: letters, and what stands between them.
fn is_word(literal: &[u8]) -> bool {
    let Some(text) = literal.strip_prefix(b"'").and_then(|rest| rest.strip_suffix(b"'")) else {
        return false;
    };
    let quiet =
        |byte: &u8| byte.is_ascii_alphabetic() || matches!(byte, b' ' | b'_' | b'-' | b'.' | b'%' | b'/');
    let moment = |word: &[u8]| text.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word));
    text.iter().all(quiet) && !MOMENTS.into_iter().any(moment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_at_its_time_is_told_from_what_is_not() {
        for sql in [
            "SELECT abalance FROM pgbench_accounts WHERE aid = $1",
            "SELECT \"Odd Name\", 1.5e3, now() FROM a.b WHERE c::int4[] @> $2 -- 'today'",
            "SELECT * FROM t WHERE state = 'open' OR name LIKE 'a%' OR state = ''",
        ] {
            assert!(is_timeless(sql.as_bytes()), "{sql}");
        }
        for sql in [
            "SELECT * FROM t WHERE day = 'today'",
            "SELECT DATE 'Tomorrow'",
            "SELECT '1/2/2026'::date",
            "SELECT E'a'",
            "SELECT B'1', $$a$$",
            "SELECT U&'a'",
            "SELECT 'a\\b'",
            "SELECT 'known'",
            "SELECT 'ä'",
            "SELECT 'a",
            "SELECT 'open'\n'today'",
        ] {
            assert!(!is_timeless(sql.as_bytes()), "{sql}");
        }
    }
}
