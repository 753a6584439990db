//! PostgreSQL's lexical rules (`src/backend/parser/scan.l`), over bytes, without allocation.
//!
//! Never assumes UTF-8: a byte above 0x7F is a letter, as in PostgreSQL. In the encodings whose second
//! bytes may be ASCII (SJIS, BIG5, GBK, UHC, GB18030, JOHAB) such a byte must not be taken for syntax, so
//! where it would matter the token is [`Kind::Bad`]. Comments and white space are skipped. Nothing fails:
//! what PostgreSQL would refuse, and what pgweir does not want to understand, is [`Kind::Bad`].

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A keyword or an unquoted identifier; compare without regard to ASCII case.
    Word,
    /// `"..."`; the text is what stands between the quotes, doubled quotes included.
    Quoted,
    /// A string, bit string or dollar-quoted string of any kind, continuation lines included.
    String,
    /// A number.
    Number,
    /// `$1`.
    Param,
    /// A run of operator characters.
    Operator,
    /// One of `( ) [ ] , ; . :`, or `::`, `:=`, `..`.
    Punct,
    /// Not valid, or not to be understood.
    Bad,
}

/// One token; `text` points into the statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a [u8],
}

impl Token<'_> {
    /// Is it that word (given in lower case), unquoted?
    pub(crate) fn is(&self, word: &str) -> bool {
        self.kind == Kind::Word && self.text.eq_ignore_ascii_case(word.as_bytes())
    }

    /// Is it one of those words?
    pub(crate) fn is_any(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.is(word))
    }

    /// Is it that punctuation?
    pub(crate) fn is_punct(&self, punct: &str) -> bool {
        self.kind == Kind::Punct && self.text == punct.as_bytes()
    }

    /// A string that names a setting which tells a client what kind of server it has come to.
    pub(crate) fn names_a_probe(&self) -> bool {
        const PROBES: [&[u8]; 2] = [b"'transaction_read_only'", b"'in_hot_standby'"];
        self.kind == Kind::String && PROBES.iter().any(|probe| self.text.eq_ignore_ascii_case(probe))
    }

    /// A keyword or a name, quoted or not.
    pub(crate) fn is_name(&self) -> bool {
        matches!(self.kind, Kind::Word | Kind::Quoted)
    }
}

const SPACE: u8 = 1;
const LETTER: u8 = 2;
const DIGIT: u8 = 4;
const OPERATOR: u8 = 8;
const PUNCT: u8 = 16;
/// Marks an operator that may end in `+` or `-`.
const STRONG: u8 = 32;
/// `$`, which may be inside a word.
const DOLLAR: u8 = 64;

static CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0_u8;
    loop {
        #[allow(clippy::indexing_slicing, reason = "a u8 is always inside 256 entries; const evaluation")]
        {
            table[byte as usize] = class_of(byte);
        }
        if byte == u8::MAX {
            return table;
        }
        byte += 1;
    }
}

const fn class_of(byte: u8) -> u8 {
    match byte {
        b' ' | b'\t' | b'\n' | b'\r' | 0x0B | 0x0C => SPACE,
        b'a'..=b'z' | b'A'..=b'Z' | b'_' | 0x80..=0xFF => LETTER,
        b'0'..=b'9' => DIGIT,
        b'~' | b'!' | b'@' | b'#' | b'%' | b'^' | b'&' | b'|' | b'`' | b'?' => OPERATOR | STRONG,
        b'+' | b'-' | b'*' | b'/' | b'<' | b'>' | b'=' => OPERATOR,
        b'$' => DOLLAR,
        b'(' | b')' | b'[' | b']' | b',' | b';' | b'.' | b':' => PUNCT,
        _ => 0,
    }
}

fn has(byte: u8, class: u8) -> bool {
    CLASSES.get(usize::from(byte)).is_some_and(|found| found & class != 0)
}

/// Iterates over the tokens of a text.
#[derive(Debug, Clone)]
pub(crate) struct Lexer<'a> {
    bytes: &'a [u8],
    at: usize,
    /// `standard_conforming_strings` is off: a backslash escapes in plain strings, too.
    backslashes: bool,
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(bytes: &'a [u8], standard_conforming_strings: bool) -> Self {
        Self { bytes, at: 0, backslashes: !standard_conforming_strings }
    }

    /// What has not been read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.bytes.get(self.at + ahead).copied()
    }

    fn slice(&self, from: usize, to: usize) -> &'a [u8] {
        self.bytes.get(from..to).unwrap_or_default()
    }

    fn take_while(&mut self, class: u8) {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        self.at += rest.iter().position(|byte| !has(*byte, class)).unwrap_or(rest.len());
    }

    /// Skips white space and comments. False when a block comment does not end.
    fn skip_blank(&mut self) -> bool {
        loop {
            self.take_while(SPACE);
            match (self.peek(0), self.peek(1)) {
                (Some(b'-'), Some(b'-')) => self.skip_line(),
                (Some(b'/'), Some(b'*')) if !self.skip_block() => return false,
                (Some(b'/'), Some(b'*')) => {}
                _ => return true,
            }
        }
    }

    fn skip_line(&mut self) {
        while self.peek(0).is_some_and(|byte| byte != b'\n' && byte != b'\r') {
            self.at += 1;
        }
    }

    /// Block comments nest.
    fn skip_block(&mut self) -> bool {
        let mut depth = 0_usize;
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some(b'/'), Some(b'*')) => {
                    depth += 1;
                    self.at += 2;
                }
                (Some(b'*'), Some(b'/')) => {
                    depth = depth.saturating_sub(1);
                    self.at += 2;
                    if depth == 0 {
                        return true;
                    }
                }
                (Some(_), _) => self.at += 1,
                (None, _) => return false,
            }
        }
    }

    fn word(&mut self, start: usize) -> Token<'a> {
        self.take_while(LETTER | DIGIT | DOLLAR);
        let text = self.slice(start, self.at);
        // The second byte of a character in SJIS and its like may look like an operator.
        let torn = text.last().is_some_and(|byte| *byte >= 0x80) && self.peek(0).is_some_and(is_second_byte);
        Token { kind: if torn { Kind::Bad } else { Kind::Word }, text }
    }

    /// A string whose opening quote is at `self.at`; more lines may continue it.
    fn string(&mut self, start: usize, backslashes: bool) -> Token<'a> {
        self.at += 1;
        let mut kind = Kind::String;
        loop {
            match self.peek(0) {
                None => {
                    kind = Kind::Bad;
                    break;
                }
                Some(0) => {
                    kind = Kind::Bad;
                    self.at += 1;
                }
                Some(b'\'') if self.peek(1) == Some(b'\'') => self.at += 2,
                Some(b'\'') => {
                    self.at += 1;
                    if !self.continues() {
                        break;
                    }
                }
                Some(b'\\') if backslashes => {
                    let before = self.at.checked_sub(1).and_then(|at| self.bytes.get(at));
                    if before.is_some_and(|byte| *byte >= 0x80) {
                        kind = Kind::Bad;
                    }
                    self.at += 2;
                }
                Some(_) => self.at += 1,
            }
        }
        self.at = self.at.min(self.bytes.len());
        Token { kind, text: self.slice(start, self.at) }
    }

    /// After a closing quote: white space with a line break in it, then a quote, goes on with the string.
    fn continues(&mut self) -> bool {
        let mut ahead = self.clone();
        let mut newline = false;
        loop {
            match (ahead.peek(0), ahead.peek(1)) {
                (Some(byte), _) if has(byte, SPACE) => {
                    newline |= matches!(byte, b'\n' | b'\r');
                    ahead.at += 1;
                }
                (Some(b'-'), Some(b'-')) => ahead.skip_line(),
                (Some(b'\''), _) if newline => {
                    self.at = ahead.at + 1;
                    return true;
                }
                _ => return false,
            }
        }
    }

    fn quoted(&mut self, start: usize) -> Token<'a> {
        self.at += 1;
        let from = self.at;
        loop {
            match self.peek(0) {
                Some(b'"') if self.peek(1) == Some(b'"') => self.at += 2,
                Some(b'"') => break,
                Some(0) | None => return self.bad_to_end(start),
                Some(_) => self.at += 1,
            }
        }
        let text = self.slice(from, self.at);
        self.at += 1;
        Token { kind: if text.is_empty() { Kind::Bad } else { Kind::Quoted }, text }
    }

    /// `$1`, `$$...$$`, `$tag$...$tag$`.
    fn dollar(&mut self, start: usize) -> Token<'a> {
        self.at += 1;
        if self.peek(0).is_some_and(|byte| has(byte, DIGIT)) {
            self.take_while(DIGIT);
            return self.unless_junk(Kind::Param, start);
        }
        if self.peek(0).is_some_and(|byte| has(byte, LETTER)) {
            self.take_while(LETTER | DIGIT);
        }
        if self.peek(0) != Some(b'$') {
            return Token { kind: Kind::Bad, text: self.slice(start, self.at) };
        }
        self.at += 1;
        let tag = self.slice(start, self.at);
        while let Some(byte) = self.peek(0) {
            if byte == b'$' && self.bytes.get(self.at..).is_some_and(|rest| rest.starts_with(tag)) {
                self.at += tag.len();
                let text = self.slice(start, self.at);
                let kind = if text.contains(&0) { Kind::Bad } else { Kind::String };
                return Token { kind, text };
            }
            self.at += 1;
        }
        self.bad_to_end(start)
    }

    /// Digits, `_` between them, hexadecimal, octal and binary (PostgreSQL 16), fraction, exponent.
    fn number(&mut self, start: usize) -> Token<'a> {
        let radix = matches!(self.peek(1), Some(b'x' | b'X' | b'o' | b'O' | b'b' | b'B'));
        if self.peek(0) == Some(b'0') && radix {
            self.at += 2;
            while self.peek(0).is_some_and(|byte| byte.is_ascii_hexdigit() || byte == b'_') {
                self.at += 1;
            }
            return self.unless_junk(Kind::Number, start);
        }
        self.digits();
        if self.peek(0) == Some(b'.') && self.peek(1) != Some(b'.') {
            self.at += 1;
            self.digits();
        }
        let signed = matches!(self.peek(1), Some(b'+' | b'-'));
        let exponent = self.peek(1 + usize::from(signed)).is_some_and(|byte| has(byte, DIGIT));
        if matches!(self.peek(0), Some(b'e' | b'E')) && exponent {
            self.at += 1 + usize::from(signed);
            self.digits();
        }
        self.unless_junk(Kind::Number, start)
    }

    fn digits(&mut self) {
        while self.peek(0).is_some_and(|byte| has(byte, DIGIT))
            || (self.peek(0) == Some(b'_') && self.peek(1).is_some_and(|byte| has(byte, DIGIT)))
        {
            self.at += 1;
        }
    }

    /// Letters glued to a number: an error since PostgreSQL 15, two tokens before.
    fn unless_junk(&mut self, kind: Kind, start: usize) -> Token<'a> {
        let junk = self.peek(0).is_some_and(|byte| has(byte, LETTER) || byte == b'$');
        if junk {
            self.take_while(LETTER | DIGIT);
        }
        Token { kind: if junk { Kind::Bad } else { kind }, text: self.slice(start, self.at) }
    }

    fn operator(&mut self, start: usize) -> Token<'a> {
        let mut strong = false;
        while let Some(byte) = self.peek(0).filter(|byte| has(*byte, OPERATOR)) {
            if matches!((byte, self.peek(1)), (b'-', Some(b'-')) | (b'/', Some(b'*'))) {
                break;
            }
            strong |= has(byte, STRONG);
            self.at += 1;
        }
        // `a=-1` is `=` and `-`, unless one of ~ ! @ # % ^ & | ` ? is in the operator.
        while !strong && self.at > start + 1 && matches!(self.bytes.get(self.at - 1), Some(b'+' | b'-')) {
            self.at -= 1;
        }
        Token { kind: Kind::Operator, text: self.slice(start, self.at) }
    }

    fn punct(&mut self, start: usize) -> Token<'a> {
        let pair = self.slice(start, start + 2);
        self.at += if matches!(pair, b"::" | b":=" | b"..") { 2 } else { 1 };
        Token { kind: Kind::Punct, text: self.slice(start, self.at) }
    }

    fn bad_to_end(&mut self, start: usize) -> Token<'a> {
        self.at = self.bytes.len();
        Token { kind: Kind::Bad, text: self.slice(start, self.at) }
    }

    /// A letter: a word, or the prefix of a string.
    fn letter(&mut self, start: usize, first: u8) -> Token<'a> {
        match (first, self.peek(1), self.peek(2)) {
            (b'e' | b'E', Some(b'\''), _) => {
                self.at += 1;
                self.string(start, true)
            }
            (b'n' | b'N', Some(b'\''), _) => {
                self.at += 1;
                self.string(start, self.backslashes)
            }
            (b'b' | b'B' | b'x' | b'X', Some(b'\''), _) => {
                self.at += 1;
                self.string(start, false)
            }
            (b'u' | b'U', Some(b'&'), Some(b'\'')) => {
                self.at += 2;
                let token = self.string(start, false);
                // Refused by PostgreSQL when plain strings have backslashes.
                if self.backslashes { Token { kind: Kind::Bad, ..token } } else { token }
            }
            // What it names depends on escapes inside it.
            (b'u' | b'U', Some(b'&'), Some(b'"')) => {
                self.at += 2;
                let _ = self.quoted(start);
                Token { kind: Kind::Bad, text: self.slice(start, self.at) }
            }
            _ => self.word(start),
        }
    }
}

/// ASCII bytes that are syntax and may be the second byte of a character.
fn is_second_byte(byte: u8) -> bool {
    matches!(byte, b'\\' | b'|' | b'~' | b'^' | b'@' | b'`' | b'[' | b']' | b'{' | b'}')
}

impl<'a> Iterator for Lexer<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let start = self.at;
        if !self.skip_blank() {
            return Some(self.bad_to_end(start));
        }
        let start = self.at;
        let first = self.peek(0)?;
        Some(match first {
            _ if has(first, LETTER) => self.letter(start, first),
            _ if has(first, DIGIT) => self.number(start),
            b'\'' => self.string(start, self.backslashes),
            b'"' => self.quoted(start),
            b'$' => self.dollar(start),
            b'.' if self.peek(1).is_some_and(|byte| has(byte, DIGIT)) => self.number(start),
            _ if has(first, PUNCT) => self.punct(start),
            _ if has(first, OPERATOR) => self.operator(start),
            _ => {
                self.at += 1;
                Token { kind: Kind::Bad, text: self.slice(start, self.at) }
            }
        })
    }
}
