//! Cuts a query string into its statements, and knows the few that the mini server handles itself.
//!
//! Only what ends or hides a semicolon is understood: quotes, dollar quotes, comments.

/// The statements of a query string, without the semicolons; those of blanks and comments only are
/// left out.
pub(super) fn statements(sql: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut begin, mut at, mut content) = (0, 0, false);
    while let Some(token) = next(sql, at) {
        match token.kind {
            Kind::Semicolon => {
                push(&mut found, sql.get(begin..at), content);
                (begin, content) = (token.end, false);
            }
            Kind::Blank => {}
            Kind::Content => content = true,
        }
        at = token.end;
    }
    push(&mut found, sql.get(begin..), content);
    found
}

fn push<'a>(found: &mut Vec<&'a str>, statement: Option<&'a str>, content: bool) {
    if let Some(statement) = statement.filter(|_| content) {
        found.push(statement.trim());
    }
}

enum Kind {
    Semicolon,
    Blank,
    Content,
}

struct Token {
    kind: Kind,
    end: usize,
}

/// The token at a character border; `None` at the end.
fn next(sql: &str, at: usize) -> Option<Token> {
    let rest = sql.get(at..)?;
    let first = rest.chars().next()?;
    let (kind, len) = match first {
        ';' => (Kind::Semicolon, 1),
        '\'' => (Kind::Content, quoted(rest, '\'', escapes_before(sql, at))),
        '"' => (Kind::Content, quoted(rest, '"', false)),
        '$' if !word_before(sql, at) => (Kind::Content, dollar_quoted(rest)),
        '-' if rest.starts_with("--") => (Kind::Blank, rest.find('\n').unwrap_or(rest.len())),
        '/' if rest.starts_with("/*") => (Kind::Blank, comment(rest)),
        blank if blank.is_whitespace() => (Kind::Blank, blank.len_utf8()),
        other => (Kind::Content, other.len_utf8()),
    };
    Some(Token { kind, end: at + len })
}

/// Whether the quote at `at` belongs to an `E'...'` string.
fn escapes_before(sql: &str, at: usize) -> bool {
    let before = sql.get(..at).unwrap_or_default();
    before.ends_with(['e', 'E']) && !word_before(sql, at - 1)
}

/// Whether a word ends just before `at`.
fn word_before(sql: &str, at: usize) -> bool {
    let last = sql.get(..at).unwrap_or_default().chars().next_back();
    last.is_some_and(|last| last.is_alphanumeric() || last == '_' || last == '$')
}

/// The length of a quoted text; a doubled quote is two texts side by side, which ends the same.
fn quoted(rest: &str, quote: char, escapes: bool) -> usize {
    let mut escaped = false;
    for (at, found) in rest.char_indices().skip(1) {
        match found {
            _ if escaped => escaped = false,
            '\\' if escapes => escaped = true,
            found if found == quote => return at + found.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// The length of `$tag$...$tag$`, or 1 when it is none (a parameter).
fn dollar_quoted(rest: &str) -> usize {
    let Some(end) = rest.get(1..).and_then(|rest| rest.find('$')).map(|at| at + 2) else { return 1 };
    let tag = rest.get(..end).unwrap_or_default();
    let name = tag.trim_matches('$');
    let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_')
        && !name.starts_with(|first: char| first.is_ascii_digit());
    if !is_name {
        return 1;
    }
    let body = rest.get(end..).unwrap_or_default();
    body.find(tag).map_or(rest.len(), |at| end + at + tag.len())
}

/// The length of a comment; they nest.
fn comment(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let (mut depth, mut at) = (0usize, 0);
    while let Some(pair) = bytes.get(at..at + 2) {
        match pair {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// A statement that the mini server handles itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Control {
    /// `BEGIN`, `START TRANSACTION`.
    Begin,
    /// `COMMIT`, `END`.
    Commit,
    /// `ROLLBACK`, `ABORT`; not `ROLLBACK TO`.
    Rollback,
    /// `DISCARD ALL`.
    DiscardAll,
    /// `DEALLOCATE [PREPARE] name`, `None` for `ALL`.
    Deallocate(Option<String>),
}

impl Control {
    /// What the statement is, `None` when it is the console's.
    pub(super) fn parse(statement: &str) -> Option<Self> {
        let words: Vec<&str> = statement.split_whitespace().take(4).collect();
        let is = |at: usize, word: &str| words.get(at).is_some_and(|found| found.eq_ignore_ascii_case(word));
        let first = words.first()?.to_ascii_uppercase();
        match first.as_str() {
            "BEGIN" => Some(Self::Begin),
            "START" if is(1, "TRANSACTION") => Some(Self::Begin),
            "COMMIT" | "END" if !is(1, "PREPARED") => Some(Self::Commit),
            "ROLLBACK" | "ABORT" if !["TO", "PREPARED"].iter().any(|word| (1..3).any(|at| is(at, word))) => {
                Some(Self::Rollback)
            }
            "DISCARD" if is(1, "ALL") => Some(Self::DiscardAll),
            "DEALLOCATE" => {
                let name = words.get(if is(1, "PREPARE") { 2 } else { 1 })?;
                Some(Self::Deallocate((!name.eq_ignore_ascii_case("ALL")).then(|| folded(name))))
            }
            _ => None,
        }
    }
}

/// A name as PostgreSQL reads it: quoted as it stands, otherwise in lower case.
fn folded(name: &str) -> String {
    match name.strip_prefix('"').and_then(|name| name.strip_suffix('"')) {
        Some(quoted) => quoted.replace("\"\"", "\""),
        None => name.to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn semicolons_that_hide_do_not_cut() {
        let cases: &[(&str, &[&str])] = &[
            ("", &[]),
            (" ; ;; -- nothing; here\n /* nor; /* here; */ ; */", &[]),
            ("show pools", &["show pools"]),
            ("show pools; show lists;", &["show pools", "show lists"]),
            ("set a = 'x;''y'; b", &["set a = 'x;''y'", "b"]),
            (r"set a = E'x\';y'; b", &[r"set a = E'x\';y'", "b"]),
            (r"set a = 'x\'; b", &[r"set a = 'x\'", "b"]),
            (r"table'\'; b", &[r"table'\'", "b"]),
            ("kill \"a;b\"; c", &["kill \"a;b\"", "c"]),
            ("do $$ a; b $$; c", &["do $$ a; b $$", "c"]),
            ("do $x$ a; $y$ b; $x$; c", &["do $x$ a; $y$ b; $x$", "c"]),
            ("select $1; b$2$; c", &["select $1", "b$2$", "c"]),
            ("a -- b; c\n; d", &["a -- b; c", "d"]),
            ("a 'open; b", &["a 'open; b"]),
            ("é; ü", &["é", "ü"]),
        ];
        for (sql, expected) in cases {
            assert_eq!(statements(sql), *expected, "{sql}");
        }
    }

    #[test]
    fn the_statements_of_transactions_and_names_are_known() {
        let cases = [
            ("begin", Some(Control::Begin)),
            ("BEGIN READ ONLY", Some(Control::Begin)),
            ("start transaction", Some(Control::Begin)),
            ("start", None),
            ("Commit", Some(Control::Commit)),
            ("end work", Some(Control::Commit)),
            ("commit prepared 'x'", None),
            ("rollback", Some(Control::Rollback)),
            ("abort", Some(Control::Rollback)),
            ("rollback to s", None),
            ("rollback work to s", None),
            ("discard all", Some(Control::DiscardAll)),
            ("deallocate all", Some(Control::Deallocate(None))),
            ("deallocate prepare Foo", Some(Control::Deallocate(Some("foo".into())))),
            ("deallocate \"Foo\"", Some(Control::Deallocate(Some("Foo".into())))),
            ("show pools", None),
        ];
        for (sql, expected) in cases {
            assert_eq!(Control::parse(sql), expected, "{sql}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_cut_without_loss(sql in "[a-zE;'\"$\\\\/*é\n -]{0,60}") {
            let found = statements(&sql);
            prop_assert!(found.iter().all(|statement| !statement.is_empty() && sql.contains(statement)));
            let _ = Control::parse(&sql);
        }
    }
}
