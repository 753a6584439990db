//! A statement's tokens as sqlparser's own: what its tokenizer would make of [`crate::query::canonical`], without the
//! text, and without going through it letter by letter.
//!
//! Invariant: the tokens are those of the canonical text, but for white space that the parser passes over.

use std::borrow::Cow;

use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::tokenizer::{Token as Handed, TokenWithSpan, Tokenizer, TokenizerError, Whitespace};

use crate::lexer::{Kind, Token};

/// The tokens, as the parser takes them.
///
/// # Errors
/// An operator that sqlparser does not take for one.
pub(crate) fn tokens(tokens: &[Token<'_>]) -> Result<Vec<TokenWithSpan>, TokenizerError> {
    let mut handed = Vec::with_capacity(tokens.len());
    for token in tokens {
        match one(token) {
            Some(one) => handed.push(TokenWithSpan::wrap(one)),
            None => handed.extend(by_text(&String::from_utf8_lossy(token.text))?),
        }
        // Without a space behind it a name would be a parameter.
        if matches!(handed.last().map(|last| &last.token), Some(Handed::Colon | Handed::AtSign)) {
            handed.push(TokenWithSpan::wrap(Handed::Whitespace(Whitespace::Space)));
        }
    }
    Ok(handed)
}

/// `None` for what sqlparser is to say what it is.
fn one(token: &Token<'_>) -> Option<Handed> {
    Some(match token.kind {
        Kind::String => Handed::SingleQuotedString("x".to_owned()),
        Kind::Number => Handed::Number("1".to_owned(), false),
        Kind::Word if token.text.is_ascii() => {
            Handed::make_word(&String::from_utf8_lossy(token.text).to_ascii_lowercase(), None)
        }
        // A word with other letters is never a keyword.
        Kind::Word => quoted(&token.text.to_ascii_lowercase()),
        Kind::Quoted => quoted(token.text),
        Kind::Param => Handed::Placeholder(String::from_utf8_lossy(token.text).into_owned()),
        // It may be anything, a secret too; no parser gets it.
        Kind::Bad => return by_text("?").ok()?.pop().map(|token| token.token),
        Kind::Operator | Kind::Punct => return symbol(token.text),
    })
}

fn quoted(text: &[u8]) -> Handed {
    let name = String::from_utf8_lossy(text);
    // A quote inside is written twice.
    let name = if name.contains('"') { Cow::Owned(name.replace("\"\"", "\"")) } else { name };
    Handed::make_word(&name, Some('"'))
}

/// The symbols that most statements are made of.
fn symbol(text: &[u8]) -> Option<Handed> {
    Some(match text {
        b"(" => Handed::LParen,
        b")" => Handed::RParen,
        b"[" => Handed::LBracket,
        b"]" => Handed::RBracket,
        b"," => Handed::Comma,
        b";" => Handed::SemiColon,
        b"." => Handed::Period,
        b"::" => Handed::DoubleColon,
        b"=" => Handed::Eq,
        b"<" => Handed::Lt,
        b">" => Handed::Gt,
        b"<=" => Handed::LtEq,
        b">=" => Handed::GtEq,
        b"<>" | b"!=" => Handed::Neq,
        b"+" => Handed::Plus,
        b"-" => Handed::Minus,
        b"*" => Handed::Mul,
        b"/" => Handed::Div,
        b"%" => Handed::Mod,
        b"||" => Handed::StringConcat,
        _ => return None,
    })
}

fn by_text(text: &str) -> Result<Vec<TokenWithSpan>, TokenizerError> {
    let tokens = Tokenizer::new(&PostgreSqlDialect {}, text).tokenize()?;
    Ok(tokens
        .into_iter()
        .filter(|token| !matches!(token, Handed::Whitespace(_)))
        .map(TokenWithSpan::wrap)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::normal::Normal;
    use crate::query::canonical;

    fn plain(tokens: Vec<TokenWithSpan>) -> Vec<Handed> {
        let tokens = tokens.into_iter().map(|token| token.token);
        tokens.filter(|token| !matches!(token, Handed::Whitespace(_))).collect()
    }

    /// What sqlparser makes of the canonical text is what it is handed.
    #[test]
    fn it_is_handed_what_it_would_read() {
        let texts = [
            "SELECT a.b, \"C d\", \"e\"\"f\", 'str', E'x', $1, 1.5e3, count(*) FROM t AS x WHERE a <> 1 AND b != 2",
            "SELECT ARRAY[1, 2][1:2], a::int, x -> 'k' ->> 'v', y #> '{a}', z @> w, a <@ b, a ? 'k', a ?| b, a ?& b",
            "SELECT 1 + 2 - 3 * 4 / 5 % 6 ^ 7, |/ 25, @ -5, a & b | c # d << 1 >> 2, ~a, a || b, !! 5, a && b, a !~ b, a !~* b, a ~* b",
            "SELECT f(a => 1, b := 2), a ~~ b, a !~~ b, a <-> b, a @@ b, a ^@ b, a -|- b, a *<> b, a <=> b, a @@@ b, a <#> b",
            "SELECT été, \"Été\", SELECT, $tag$ body $tag$, U&'\\0041', B'01', X'1F', N'n' FROM \"s\".\"T\"",
            "(VALUES (1, 'x'), (2, 'y')) UNION ALL (SELECT DISTINCT ON (a) a FROM t ORDER BY a DESC NULLS LAST LIMIT 1)",
            "SELECT CASE WHEN a IS NOT NULL THEN 1 ELSE 2 END, current_date, interval '1 day', date '2020-01-01'",
            "SELECT a.*, (b).c, d..e FROM t; SELECT 1",
        ];
        let colon = Normal::new(b"SELECT :name, @ 5, a[1:2]", true).collect::<Vec<_>>();
        let spaces = super::tokens(&colon).unwrap();
        assert_eq!(spaces.iter().filter(|token| matches!(token.token, Handed::Whitespace(_))).count(), 3);
        for text in texts.into_iter().chain(include_str!("../../../tests/corpus/statements.txt").lines()) {
            let tokens: Vec<Token<'_>> = Normal::new(text.as_bytes(), true).collect();
            let read = by_text(&canonical(&tokens));
            let handed = super::tokens(&tokens);
            match (read, handed) {
                (Ok(read), Ok(handed)) => assert_eq!(plain(handed), plain(read), "{text}"),
                (Err(_), Err(_)) => {}
                (read, handed) => panic!("{text}: {read:?}, {handed:?}"),
            }
        }
    }
}
