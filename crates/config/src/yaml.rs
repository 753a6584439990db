//! The only file that knows the YAML library: text to a plain tree, and where in the text a part of it stands.
//!
//! The library tells positions only with errors, so [`locate`] reads the text again and fails on purpose at
//! the wanted place. That costs a parse for each position that is printed and needs no scanner of our own.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

/// A parsed value. Keys keep their order and their duplicates; who reads the tree refuses the latter.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// One step down the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The n-th item of a list.
    Item(usize),
    /// The key of a mapping's n-th entry.
    Key(usize),
    /// The value of a mapping's n-th entry.
    Value(usize),
}

/// Line and column, both from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

/// Text that is not YAML, and where.
#[derive(Debug)]
pub(crate) struct NotYaml {
    pub(crate) message: String,
    pub(crate) at: Option<Position>,
}

/// The library's time grows with the square of the open brackets; it refuses deep nesting only afterwards.
const MAX_OPEN_BRACKETS: usize = 1000;

/// Does the text open many more brackets than it closes? (In quotes they are counted too, and do not matter.)
fn opens_too_much(text: &str) -> bool {
    let mut open = 0_usize;
    text.bytes().any(|byte| {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        open > MAX_OPEN_BRACKETS
    })
}

/// Parses one document; an empty one is [`Node::Null`].
pub(crate) fn parse(text: &str) -> Result<Node, NotYaml> {
    if opens_too_much(text) {
        let message = format!("more than {MAX_OPEN_BRACKETS} open brackets");
        return Err(NotYaml { message, at: Some(Position { line: 1, column: 1 }) });
    }
    if text.lines().all(|line| line.trim_start().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(Node::Null);
    }
    serde_yaml::from_str(text).map_err(|error| NotYaml { at: position(&error), message: error.to_string() })
}

/// Where the part of `text` stands to which `path` leads.
pub(crate) fn locate(text: &str, path: &[Step]) -> Option<Position> {
    let document = serde_yaml::Deserializer::from_str(text);
    match (Probe { path }).deserialize(document) {
        Ok(()) => None,
        Err(error) => position(&error),
    }
}

fn position(error: &serde_yaml::Error) -> Option<Position> {
    error.location().map(|at| Position { line: at.line(), column: at.column() })
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a plain value without a tag")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Int(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Int(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Node, E> {
        Ok(Node::Int(value))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Node, E> {
        Ok(Node::Int(i128::try_from(value).unwrap_or(i128::MAX)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut map = Vec::new();
        while let Some(Name(key)) = entries.next_key()? {
            map.push((key, entries.next_value()?));
        }
        Ok(Node::Map(map))
    }
}

/// A key: text, or a scalar that is taken as its text (a database called `2024`).
struct Name(String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NameVisitor)
    }
}

struct NameVisitor;

impl Visitor<'_> for NameVisitor {
    type Value = Name;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, value: &str) -> Result<Name, E> {
        Ok(Name(value.to_owned()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Name, E> {
        Ok(Name(value.to_string()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Name, E> {
        Ok(Name(value.to_string()))
    }
}

/// Walks down `path` and fails at its end, so that the library says where that is.
struct Probe<'p> {
    path: &'p [Step],
}

impl<'de> DeserializeSeed<'de> for Probe<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Probe<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing: the place that was looked for")
    }

    // Every scalar is left to the default methods, which fail: a scalar is the end of any path.

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Some((Step::Item(index), rest)) = self.path.split_first() else {
            return Err(A::Error::custom("here"));
        };
        for _ in 0..*index {
            items.next_element::<IgnoredAny>()?;
        }
        items.next_element_seed(Probe { path: rest })?;
        Err(A::Error::custom("no such item"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let (index, rest, want_key) = match self.path.split_first() {
            Some((Step::Key(index), rest)) => (*index, rest, true),
            Some((Step::Value(index), rest)) => (*index, rest, false),
            _ => return Err(A::Error::custom("here")),
        };
        for _ in 0..index {
            entries.next_entry::<IgnoredAny, IgnoredAny>()?;
        }
        if want_key {
            entries.next_key_seed(Probe { path: rest })?;
        } else if entries.next_key::<IgnoredAny>()?.is_some() {
            entries.next_value_seed(Probe { path: rest })?;
        }
        Err(A::Error::custom("no such entry"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# head\nport: 1\nbackends:\n  - { hostname: a, port: 5 }\n  - hostname: b\n    port: 6\nlist: [x,\n  y]\nempty:\n";

    fn line(path: &[Step]) -> Option<(usize, usize)> {
        locate(TEXT, path).map(|at| (at.line, at.column))
    }

    #[test]
    fn keeps_order_and_types() {
        let Ok(Node::Map(map)) =
            parse("a: 1\nb: -2\nc: 1.5\nd: true\ne: off\nf:\ng: [x]\nh: 0777\ni: 99999999999999999999\n")
        else {
            panic!("not a mapping");
        };
        let values: Vec<Node> = map.into_iter().map(|(_, value)| value).collect();
        let text = |text: &str| Node::Text(text.to_owned());
        assert_eq!(
            values,
            vec![
                Node::Int(1),
                Node::Int(-2),
                Node::Float(1.5),
                Node::Bool(true),
                text("off"),
                Node::Null,
                Node::List(vec![text("x")]),
                text("0777"),
                Node::Int(99_999_999_999_999_999_999),
            ]
        );
    }

    #[test]
    fn an_empty_document_is_null() {
        for text in ["", "\n\n", "# only a comment\n", "---\n", "~\n"] {
            assert_eq!(parse(text).unwrap(), Node::Null, "{text:?}");
        }
    }

    #[test]
    fn finds_keys_and_values() {
        assert_eq!(line(&[Step::Key(0)]), Some((2, 1)));
        assert_eq!(line(&[Step::Value(0)]), Some((2, 7)));
        assert_eq!(line(&[Step::Key(1)]), Some((3, 1)));
        assert_eq!(line(&[Step::Value(1), Step::Item(0), Step::Key(1)]), Some((4, 20)));
        assert_eq!(line(&[Step::Value(1), Step::Item(1), Step::Value(1)]), Some((6, 11)));
        assert_eq!(line(&[Step::Value(2), Step::Item(1)]), Some((8, 3)));
        assert_eq!(line(&[Step::Key(3)]), Some((9, 1)));
    }

    #[test]
    fn says_where_text_is_not_yaml() {
        let error = parse("port: 1\nx: [1, 2\ny: 3\n").unwrap_err();
        assert!(error.at.is_some_and(|at| at.line >= 2), "{error:?}");
        assert!(parse("a: !tag b\n").unwrap_err().at.is_some());
        assert!(parse("a: 1\n---\nb: 2\n").unwrap_err().message.contains("more than one document"));
    }
}
