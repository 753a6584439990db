//! How a value is read from the tree and written back as text: one trait, implemented by every field type.
//!
//! Strict: nothing is guessed or rounded to fit. [`Limits`] gives the unit and range of one key.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::Sink;
use crate::units::{self, Unit};
use crate::yaml::{Node, Step};

/// Text longer than this is cut where it is shown in an error.
const MAX_SHOWN: usize = 80;

/// The word that means "none" for an optional key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Off {
    /// `0`.
    Zero,
    /// `-1`.
    MinusOne,
    /// `null`, or nothing after the colon.
    Null,
    /// This word.
    Word(&'static str),
}

impl Off {
    fn text(self) -> &'static str {
        match self {
            Self::Zero => "0",
            Self::MinusOne => "-1",
            Self::Null => "null",
            Self::Word(word) => word,
        }
    }

    fn is(self, node: &Node) -> bool {
        match (self, node) {
            (Self::Zero, Node::Int(0)) | (Self::MinusOne, Node::Int(-1)) | (_, Node::Null) => true,
            (Self::Word("off"), Node::Bool(false)) => true,
            (Self::Word(word), Node::Text(text)) => text == word,
            _ => false,
        }
    }
}

/// Unit and range of a key's value. Durations are counted in milliseconds, sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub(crate) unit: Unit,
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) off: Off,
}

impl Limits {
    /// For types without unit and range; a missing optional value is `null`.
    pub(crate) const fn none() -> Self {
        Self { unit: Unit::Count, min: 0, max: u64::MAX, off: Off::Null }
    }

    /// A number from `min` to `max`.
    pub(crate) const fn count(min: u64, max: u64) -> Self {
        Self { min, max, ..Self::none() }
    }

    /// A number, size or duration of this unit, from `min` to `max` (milliseconds or bytes).
    pub(crate) const fn of(unit: Unit, min: u64, max: u64) -> Self {
        Self { unit, min, max, off: Off::Null }
    }

    /// The same with another word for "none".
    pub(crate) const fn off(self, off: Off) -> Self {
        Self { off, ..self }
    }
}

/// A type that a key can have.
pub(crate) trait Value: Sized + Default {
    /// Is it a secret, never to be shown?
    const MASKED: bool = false;

    /// The empty value, before defaults are read.
    fn blank() -> Self {
        Self::default()
    }

    /// Reads it; `None` after having told the sink why not.
    fn read(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Self>;

    /// As YAML text that reads back to the same value; secrets masked.
    fn text(&self, limits: &Limits) -> String;

    /// What is accepted, for errors and the reference.
    fn expects(limits: &Limits) -> String;

    /// Makes a relative path of this machine absolute; nothing for what is no path.
    fn anchor(&mut self, _directory: &Path) {}
}

/// Text that is never shown: passwords.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Masked(String);

impl Masked {
    /// Wraps a secret.
    #[must_use]
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// The secret itself, for authentication only.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Masked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl fmt::Display for Masked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

/// What stands in a secret's place, whatever its length.
pub(crate) const MASK: &str = "********";

/// A host and a port to listen on; IPv6 addresses are written in brackets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostPort {
    /// Name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl HostPort {
    fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']')?,
            None if host.contains(':') => return None,
            None => host,
        };
        if host.is_empty() { None } else { Some(Self { host: host.to_owned(), port }) }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// What stands in the file, for "found ...".
pub(crate) fn describe(node: &Node) -> String {
    match node {
        Node::Null => "nothing".to_owned(),
        Node::Bool(value) => value.to_string(),
        Node::Int(value) => value.to_string(),
        Node::Float(value) => value.to_string(),
        Node::Text(text) => shorten(text),
        Node::List(_) => "a list".to_owned(),
        Node::Map(_) => "a mapping".to_owned(),
    }
}

/// Text in quotes, cut when it is long.
pub(crate) fn shorten(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{:?}...", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

/// Text as YAML: plain where it can be mistaken for nothing else, else in double quotes.
pub(crate) fn quote(text: &str) -> String {
    let plain = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/' || first == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
        && !matches!(
            text.to_ascii_lowercase().as_str(),
            "true" | "false" | "null" | "on" | "off" | "yes" | "no" | "y" | "n"
        );
    if plain {
        return text.to_owned();
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() || c == '\u{feff}' || c == '\u{2028}' || c == '\u{2029}' => {
                quoted.push_str(&format!("\\U{:08X}", u32::from(c)));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

impl<T: Value> Value for Option<T> {
    const MASKED: bool = T::MASKED;

    fn read(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Self> {
        match limits.off {
            off if off.is(node) => Some(None),
            Off::Null => T::read(limits, node, sink).map(Some),
            off => sink.or_word(off.text(), |sink| T::read(limits, node, sink)).map(Some),
        }
    }

    fn text(&self, limits: &Limits) -> String {
        self.as_ref().map_or_else(|| limits.off.text().to_owned(), |value| value.text(limits))
    }

    fn expects(limits: &Limits) -> String {
        let none = match limits.off {
            Off::Null => return T::expects(limits),
            off => off.text(),
        };
        format!("{}, or {none}", T::expects(limits))
    }

    fn anchor(&mut self, directory: &Path) {
        if let Some(value) = self {
            value.anchor(directory);
        }
    }
}

impl Value for bool {
    fn read(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Self> {
        match node {
            Node::Bool(value) => Some(*value),
            Node::Text(text) if matches!(text.as_str(), "on" | "yes") => Some(true),
            Node::Text(text) if matches!(text.as_str(), "off" | "no") => Some(false),
            other => sink.error(describe(other), Self::expects(limits)),
        }
    }

    fn text(&self, _: &Limits) -> String {
        if *self { "on" } else { "off" }.to_owned()
    }

    fn expects(_: &Limits) -> String {
        "on or off".to_owned()
    }
}

/// The integer types differ only in what they hold; the range is the key's.
macro_rules! integer {
    ($($ty:ty),+) => { $(
        impl Value for $ty {
            fn read(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Self> {
                let number = units::number(limits.unit, node)
                    .filter(|number| (limits.min..=limits.max).contains(number))
                    .and_then(|number| <$ty>::try_from(number).ok());
                number.or_else(|| sink.error(describe(node), Self::expects(limits)))
            }

            fn text(&self, limits: &Limits) -> String {
                units::number_text(limits.unit, u64::try_from(*self).unwrap_or(u64::MAX))
            }

            fn expects(limits: &Limits) -> String {
                units::expects(limits.unit, limits.min, limits.max.min(u64::try_from(<$ty>::MAX).unwrap_or(u64::MAX)))
            }
        }
    )+ };
}
integer!(u16, u32, u64, usize);

impl Value for Duration {
    fn read(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Self> {
        let Some(duration) = units::duration(limits.unit, node) else {
            return sink.error(describe(node), Self::expects(limits));
        };
        let range = Duration::from_millis(limits.min)..=Duration::from_millis(limits.max);
        if !range.contains(&duration) {
            return sink.error(units::found_duration(limits.unit, node), Self::expects(limits));
        }
        if matches!(node, Node::Int(1..) | Node::Float(_))
            && matches!(limits.unit, Unit::Minutes | Unit::Hours)
        {
            sink.warn(format!(
                "a bare number is in {} here: this is {}",
                limits.unit.plural(),
                units::duration_text(duration)
            ));
        }
        Some(duration)
    }

    fn text(&self, _: &Limits) -> String {
        units::duration_text(*self)
    }

    fn expects(limits: &Limits) -> String {
        units::expects(limits.unit, limits.min, limits.max)
    }
}

impl Value for f64 {
    fn read(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Self> {
        let number = match node {
            Node::Float(value) => Some(*value),
            #[allow(clippy::cast_precision_loss, reason = "beyond 2^53 it is out of range in any case")]
            Node::Int(value) => Some(*value as f64),
            _ => None,
        };
        #[allow(clippy::cast_precision_loss, reason = "limits of fractions are small numbers")]
        let range = limits.min as f64..=limits.max as f64;
        match number.filter(|number| range.contains(number)) {
            Some(number) => Some(number),
            None => sink.error(describe(node), Self::expects(limits)),
        }
    }

    fn text(&self, _: &Limits) -> String {
        self.to_string()
    }

    fn expects(limits: &Limits) -> String {
        units::expects(Unit::Count, limits.min, limits.max) + ", fractions allowed"
    }
}

/// Text that stands for something: not empty, no control characters.
pub(crate) fn is_clean(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(char::is_control)
}

impl Value for String {
    fn read(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Self> {
        match node {
            Node::Text(text) if is_clean(text) => Some(text.clone()),
            Node::Int(_) | Node::Float(_) | Node::Bool(_) => {
                sink.error(describe(node), format!("{}; put it in quotes", Self::expects(limits)))
            }
            other => sink.error(describe(other), Self::expects(limits)),
        }
    }

    fn text(&self, _: &Limits) -> String {
        quote(self)
    }

    fn expects(_: &Limits) -> String {
        "text".to_owned()
    }
}

impl Value for PathBuf {
    fn read(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Self> {
        match node {
            Node::Text(text) if is_clean(text) => Some(Self::from(text)),
            other => sink.error(describe(other), Self::expects(limits)),
        }
    }

    fn text(&self, _: &Limits) -> String {
        quote(&self.to_string_lossy())
    }

    fn expects(_: &Limits) -> String {
        "a path".to_owned()
    }

    fn anchor(&mut self, directory: &Path) {
        *self = directory.join(&*self);
    }
}

impl Value for Masked {
    const MASKED: bool = true;

    fn read(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Self> {
        match node {
            Node::Text(text) if is_clean(text) => Some(Self(text.clone())),
            Node::Int(_) | Node::Float(_) | Node::Bool(_) => {
                sink.error("a secret without quotes", format!("{} in quotes", Self::expects(limits)))
            }
            Node::Text(text) if text.is_empty() => sink.error("empty text", Self::expects(limits)),
            _ => sink.error("something else", Self::expects(limits)),
        }
    }

    fn text(&self, _: &Limits) -> String {
        MASK.to_owned()
    }

    fn expects(_: &Limits) -> String {
        "text".to_owned()
    }
}

impl Value for HostPort {
    fn read(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Self> {
        let parsed = match node {
            Node::Text(text) if is_clean(text) => Self::parse(text),
            _ => None,
        };
        parsed.or_else(|| sink.error(describe(node), Self::expects(limits)))
    }

    fn text(&self, limits: &Limits) -> String {
        self.to_string().text(limits)
    }

    fn expects(_: &Limits) -> String {
        "host:port".to_owned()
    }
}

/// Lists of text-like items; a single item may stand without the list.
pub(crate) fn read_list<T: Value>(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Vec<T>> {
    let items = match node {
        Node::List(items) => items,
        Node::Text(_) => return T::read(limits, node, sink).map(|item| vec![item]),
        other => return sink.error(describe(other), format!("a list: {}", T::expects(limits))),
    };
    let read = items.iter().enumerate().map(|(index, item)| {
        sink.within(&[Step::Item(index)], &format!("[{index}]"), |sink| T::read(limits, item, sink))
    });
    // Every item is read before the first failure counts, so that all errors are told.
    read.collect::<Vec<_>>().into_iter().collect()
}

/// A list as YAML text.
pub(crate) fn list_text<T: Value>(items: &[T], limits: &Limits) -> String {
    format!("[{}]", items.iter().map(|item| item.text(limits)).collect::<Vec<_>>().join(", "))
}

impl Value for Vec<String> {
    fn read(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Self> {
        read_list(limits, node, sink)
    }

    fn text(&self, limits: &Limits) -> String {
        list_text(self, limits)
    }

    fn expects(_: &Limits) -> String {
        "a list of texts".to_owned()
    }
}
