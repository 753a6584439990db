//! Cuts a console statement into words, as PostgreSQL's scanner would (manual, "Lexical Structure").
//!
//! Comments and trailing semicolons vanish, keywords are compared without case, quoted identifiers and string
//! literals keep theirs. Statements are short: more than [`MAX_WORDS`] words is no command of ours.

use protocol::error::PgError;
use protocol::sqlstate::SqlState;

/// More words than any command has.
pub(crate) const MAX_WORDS: usize = 64;

/// One word of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Word {
    /// A keyword or unquoted identifier, in lower case.
    Plain(String),
    /// A quoted identifier.
    Quoted(String),
    /// A string literal's value.
    Literal(String),
    /// A number as written.
    Number(String),
    /// Anything else, one character at a time.
    Symbol(char),
}

impl Word {
    /// Is it that keyword (given in capitals)?
    pub(crate) fn is(&self, keyword: &str) -> bool {
        matches!(self, Self::Plain(word) if word.eq_ignore_ascii_case(keyword))
    }

    /// The name, when it is one.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Plain(name) | Self::Quoted(name) => Some(name),
            _ => None,
        }
    }

    /// The value it stands for, without quotes.
    pub(crate) fn value(&self) -> Option<&str> {
        match self {
            Self::Plain(text) | Self::Quoted(text) | Self::Literal(text) | Self::Number(text) => Some(text),
            Self::Symbol(_) => None,
        }
    }
}

/// The words of one statement.
pub(crate) fn words(sql: &str) -> Result<Vec<Word>, PgError> {
    let mut scanner = Scanner { rest: sql };
    let mut words = Vec::new();
    while let Some(word) = scanner.next()? {
        if words.len() == MAX_WORDS {
            return Err(syntax("the command is too long"));
        }
        words.push(word);
    }
    while words.last() == Some(&Word::Symbol(';')) {
        words.pop();
    }
    Ok(words)
}

fn syntax(message: &str) -> PgError {
    PgError::error(SqlState::SYNTAX_ERROR, message)
}

struct Scanner<'a> {
    rest: &'a str,
}

impl Scanner<'_> {
    fn next(&mut self) -> Result<Option<Word>, PgError> {
        self.skip_blanks()?;
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        Ok(Some(match first {
            '\'' => Word::Literal(self.quoted('\'')?),
            '"' => Word::Quoted(self.quoted('"')?),
            _ if first.is_ascii_digit() => Word::Number(self.take(|c| c.is_ascii_alphanumeric() || c == '.')),
            _ if first.is_alphabetic() || first == '_' => {
                Word::Plain(self.take(|c| c.is_alphanumeric() || c == '_' || c == '$').to_lowercase())
            }
            _ => {
                self.advance(first.len_utf8());
                Word::Symbol(first)
            }
        }))
    }

    fn advance(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    fn take(&mut self, belongs: impl Fn(char) -> bool) -> String {
        let end = self.rest.find(|c| !belongs(c)).unwrap_or(self.rest.len());
        let word = self.rest.get(..end).unwrap_or_default().to_owned();
        self.advance(end);
        word
    }

    fn skip_blanks(&mut self) -> Result<(), PgError> {
        loop {
            self.rest = self.rest.trim_start();
            if self.rest.starts_with("--") {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                self.advance(end);
            } else if self.rest.starts_with("/*") {
                self.skip_comment()?;
            } else {
                return Ok(());
            }
        }
    }

    /// Block comments nest.
    fn skip_comment(&mut self) -> Result<(), PgError> {
        let mut depth = 0_usize;
        loop {
            let step = match (self.rest.starts_with("/*"), self.rest.starts_with("*/")) {
                (true, _) => {
                    depth += 1;
                    2
                }
                (_, true) => {
                    depth -= 1;
                    2
                }
                _ => self.rest.chars().next().map_or(0, char::len_utf8),
            };
            if step == 0 {
                return Err(syntax("unterminated /* comment"));
            }
            self.advance(step);
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// What stands between two quotes; a doubled one stands for itself.
    fn quoted(&mut self, quote: char) -> Result<String, PgError> {
        self.advance(quote.len_utf8());
        let mut text = String::new();
        loop {
            let Some(end) = self.rest.find(quote) else { return Err(syntax("unterminated quoted string")) };
            text.push_str(self.rest.get(..end).unwrap_or_default());
            self.advance(end + quote.len_utf8());
            if !self.rest.starts_with(quote) {
                return Ok(text);
            }
            text.push(quote);
            self.advance(quote.len_utf8());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> Word {
        Word::Plain(text.into())
    }

    #[test]
    fn case_blanks_comments_and_semicolons_do_not_matter() {
        let expected = vec![plain("show"), plain("pool_nodes")];
        for sql in [
            "SHOW POOL_NODES",
            "  show\tPool_Nodes ; ;",
            "/* a /* nested */ comment */ SHOW -- rest\n pool_nodes;",
            "SHOW pool_nodes -- ping",
        ] {
            assert_eq!(words(sql).unwrap(), expected, "{sql}");
        }
        for sql in ["", " ;; ", "-- ping", "/* x */;"] {
            assert_eq!(words(sql).unwrap(), vec![], "{sql}");
        }
    }

    #[test]
    fn quotes_keep_what_is_in_them() {
        let found = words(r#"KILL "My ""db""; --" 'it''s' 1.5 $1 a$b"#).unwrap();
        let expected = [
            plain("kill"),
            Word::Quoted("My \"db\"; --".into()),
            Word::Literal("it's".into()),
            Word::Number("1.5".into()),
            Word::Symbol('$'),
            Word::Number("1".into()),
            plain("a$b"),
        ];
        assert_eq!(found, expected);
        assert!(!Word::Quoted("show".into()).is("SHOW"));
    }

    #[test]
    fn what_does_not_end_is_an_error() {
        for sql in ["SHOW 'x", "SHOW \"x", "/* x", "/* /* x */"] {
            assert_eq!(words(sql).unwrap_err().code, SqlState::SYNTAX_ERROR, "{sql}");
        }
        assert!(words(&"x ".repeat(MAX_WORDS)).is_ok());
        assert!(words(&"x ".repeat(MAX_WORDS + 1)).is_err());
        assert_eq!(words("\u{e9}t\u{e9} \u{a0}\u{2603}").unwrap().len(), 2);
    }
}
