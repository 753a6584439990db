//! Lines to fields, fields to items: the lexical part of pg_hba.conf.
//!
//! PostgreSQL's `next_token()` in src/backend/libpq/hba.c: blanks separate fields, commas the items of a field,
//! `#` outside quotes begins a comment, a backslash at the end joins the next line, and an item that begins
//! with a quote is no keyword.

/// One item of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(super) text: String,
    /// It began with a quote: a name, never a keyword.
    pub(super) quoted: bool,
}

impl Token {
    /// Is it this keyword?
    pub(super) fn is(&self, keyword: &str) -> bool {
        !self.quoted && self.text == keyword
    }
}

/// The items of one field, at least one.
pub(crate) type Field = Vec<Token>;

/// A line with something on it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Its number, from 1; the first one's for joined lines.
    pub(super) number: usize,
    /// Its fields, or that a quote is not closed.
    pub(super) fields: Result<Vec<Field>, Unclosed>,
}

/// A quote that is not closed on its line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unclosed;

/// The lines that are not empty, continued ones joined.
pub(super) fn lines(text: &str) -> Vec<Line> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (index, line) in text.lines().enumerate() {
        let (number, mut whole) = open.take().unwrap_or((index + 1, String::new()));
        match line.strip_suffix('\\') {
            Some(part) => {
                whole.push_str(part);
                open = Some((number, whole));
            }
            None => {
                whole.push_str(line);
                lines.push(Line { number, fields: fields(&whole) });
            }
        }
    }
    lines.extend(open.map(|(number, whole)| Line { number, fields: fields(&whole) }));
    lines.retain(|line| line.fields.as_ref().map_or(true, |fields| !fields.is_empty()));
    lines
}

/// What is being read of the current item.
#[derive(Default)]
struct Item {
    text: String,
    quoted: bool,
    begun: bool,
    in_quotes: bool,
}

impl Item {
    fn push(&mut self, c: char) {
        self.begun = true;
        self.text.push(c);
    }

    fn end(&mut self, field: &mut Field) {
        let item = std::mem::take(self);
        if item.begun {
            field.push(Token { text: item.text, quoted: item.quoted });
        }
    }
}

fn fields(line: &str) -> Result<Vec<Field>, Unclosed> {
    let (mut fields, mut field, mut item) = (Vec::new(), Field::new(), Item::default());
    let mut after_comma = false;
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' if item.in_quotes && rest.peek() == Some(&'"') => {
                rest.next();
                item.push('"');
            }
            '"' => {
                item.quoted |= !item.begun;
                item.begun = true;
                item.in_quotes = !item.in_quotes;
            }
            c if item.in_quotes => item.push(c),
            '#' => break,
            ',' => {
                item.end(&mut field);
                after_comma = true;
                continue;
            }
            c if c.is_whitespace() => {
                item.end(&mut field);
                // A comma joins what stands behind the blanks that follow it.
                if !after_comma && !field.is_empty() {
                    fields.push(std::mem::take(&mut field));
                }
                continue;
            }
            c => item.push(c),
        }
        after_comma = false;
    }
    if item.in_quotes {
        return Err(Unclosed);
    }
    item.end(&mut field);
    if !field.is_empty() {
        fields.push(field);
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Items joined by `|`, fields by a blank, quoted items in brackets.
    fn shown(text: &str) -> Vec<String> {
        let item =
            |token: &Token| if token.quoted { format!("[{}]", token.text) } else { token.text.clone() };
        lines(text)
            .iter()
            .map(|line| match &line.fields {
                Err(Unclosed) => format!("{}: unclosed", line.number),
                Ok(fields) => {
                    let fields: Vec<String> = fields
                        .iter()
                        .map(|field| field.iter().map(item).collect::<Vec<_>>().join("|"))
                        .collect();
                    format!("{}: {}", line.number, fields.join(" "))
                }
            })
            .collect()
    }

    #[test]
    fn splits_as_postgresql_does() {
        for (text, expected) in [
            ("", vec![]),
            ("  # nothing\n\n", vec![]),
            ("local all all trust", vec!["1: local all all trust"]),
            ("\n\thost  a,b \"all\",c\ttrust # why\n", vec!["2: host a|b [all]|c trust"]),
            ("host a, b trust", vec!["1: host a|b trust"]),
            ("host \"a b\" \"c,d\"", vec!["1: host [a b] [c,d]"]),
            ("host \"a\"\"b\" x\"y z\"", vec!["1: host [a\"b] xy z"]),
            ("host \"#a\" b#c", vec!["1: host [#a] b"]),
            ("host \"\" b", vec!["1: host [] b"]),
            (
                "local all \\\nall trust\nlocal x x reject",
                vec!["1: local all all trust", "3: local x x reject"],
            ),
            ("local all \\", vec!["1: local all"]),
            ("host \"a\nlocal all", vec!["1: unclosed", "2: local all"]),
            ("local all\r\nhost all\r\n", vec!["1: local all", "2: host all"]),
        ] {
            assert_eq!(shown(text), expected, "{text:?}");
        }
    }
}
