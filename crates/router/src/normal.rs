//! The token stream that both the fingerprint and the classifier see.
//!
//! It is the lexer's, with lists of literals and parameters made one: `IN (1, 2, 3)` and `IN ($1, $2)`
//! read `IN (1)` and `IN ($1)`, so that the length of a list does not make another statement. What is
//! dropped here is dropped for both, hence cannot make their opinions differ; no verdict depends on how
//! many literals stand in a row.

use crate::lexer::{Kind, Lexer, Token};

/// Iterates over the normalised tokens of a text.
#[derive(Debug, Clone)]
pub(crate) struct Normal<'a> {
    lexer: Lexer<'a>,
    held: Option<Token<'a>>,
    after_literal: bool,
}

impl<'a> Normal<'a> {
    pub(crate) fn new(sql: &'a [u8], standard_conforming_strings: bool) -> Self {
        Self { lexer: Lexer::new(sql, standard_conforming_strings), held: None, after_literal: false }
    }

    /// The token behind a literal, or behind the first of a list of them.
    fn after_literal(&mut self) -> Option<Token<'a>> {
        if let Some(held) = self.held.take() {
            // Never a literal.
            self.after_literal = false;
            return Some(held);
        }
        let mut token = self.lexer.next()?;
        if token.is_punct(",") {
            token = self.skip_list(token)?;
        }
        // What is held comes next, whatever this one is.
        self.after_literal = is_literal(&token) || self.held.is_some();
        Some(token)
    }

    /// After a comma that follows a literal: skips `literal , literal ...`; the first token that stands.
    fn skip_list(&mut self, comma: Token<'a>) -> Option<Token<'a>> {
        loop {
            match self.lexer.next() {
                Some(token) if is_literal(&token) => {}
                other => {
                    self.held = other;
                    return Some(comma);
                }
            }
            match self.lexer.next() {
                Some(token) if token.is_punct(",") => {}
                other => return other,
            }
        }
    }
}

impl<'a> Iterator for Normal<'a> {
    type Item = Token<'a>;

    #[inline]
    fn next(&mut self) -> Option<Token<'a>> {
        if self.after_literal {
            return self.after_literal();
        }
        // Only behind a literal is anything held.
        let token = self.lexer.next()?;
        self.after_literal = is_literal(&token);
        Some(token)
    }
}

fn is_literal(token: &Token<'_>) -> bool {
    matches!(token.kind, Kind::String | Kind::Number | Kind::Param)
}
