//! Regular expressions and redirect preferences in the lists of the routing section.

use std::fmt;

use regex::{Regex, RegexBuilder};

use crate::error::Sink;
use crate::value::{Limits, Value, describe, is_clean, list_text, quote, read_list};
use crate::yaml::Node;

/// A compiled expression may take this much memory; larger ones are refused.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// Compiles an expression within bounds.
pub(crate) fn compile(text: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text).size_limit(MAX_REGEX_BYTES).dfa_size_limit(MAX_REGEX_BYTES).build()
}

/// A name or regular expression that is known to compile.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pattern(String);

impl Pattern {
    /// As written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Matches names: the whole of one, without regard to case. `None` only if it does not compile.
    #[must_use]
    pub fn whole(&self) -> Option<Matcher> {
        Matcher::new(&format!("^(?:{})$", self.0))
    }

    /// Matches texts that hold it anywhere, without regard to case, line breaks included.
    #[must_use]
    pub fn anywhere(&self) -> Option<Matcher> {
        Matcher::new(&self.0)
    }
}

/// A compiled [`Pattern`].
#[derive(Debug, Clone)]
pub struct Matcher(Regex);

impl Matcher {
    fn new(text: &str) -> Option<Self> {
        compile(&format!("(?is:{text})")).ok().map(Self)
    }

    /// Whether `text` fits.
    #[must_use]
    pub fn is_match(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

impl Value for Pattern {
    fn read(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Self> {
        match node {
            Node::Text(text) if is_clean(text) && compile(text).is_ok() => Some(Self(text.clone())),
            other => sink.error(describe(other), Self::expects(limits)),
        }
    }

    fn text(&self, _: &Limits) -> String {
        quote(&self.0)
    }

    fn expects(_: &Limits) -> String {
        "a name or a regular expression".to_owned()
    }
}

impl Value for Vec<Pattern> {
    fn read(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Self> {
        read_list(limits, node, sink)
    }

    fn text(&self, limits: &Limits) -> String {
        list_text(self, limits)
    }

    fn expects(_: &Limits) -> String {
        "a list of names or regular expressions".to_owned()
    }
}

/// Where a redirect sends reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Target {
    /// To the primary.
    #[default]
    Primary,
    /// To any standby.
    Standby,
    /// To the node of this id.
    Node(u16),
}

/// `pattern:target(share)`: reads of what matches go to the target, by this share.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Redirect {
    /// Matches a database, application or user.
    pub pattern: Pattern,
    /// Where to.
    pub target: Target,
    /// Which part of the reads, from 0 to 1.
    pub share: f64,
}

impl Redirect {
    fn parse(text: &str) -> Option<Self> {
        let (pattern, target) = text.rsplit_once(':')?;
        let (target, share) = match target.strip_suffix(')') {
            Some(rest) => {
                let (target, share) = rest.split_once('(')?;
                (target, share.parse().ok().filter(|share| (0.0..=1.0).contains(share))?)
            }
            None => (target, 1.0),
        };
        let target = match target {
            "primary" => Target::Primary,
            "standby" => Target::Standby,
            id => Target::Node(id.parse().ok()?),
        };
        if pattern.is_empty() || compile(pattern).is_err() {
            return None;
        }
        Some(Self { pattern: Pattern(pattern.to_owned()), target, share })
    }
}

impl fmt::Display for Redirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.pattern.as_str())?;
        match self.target {
            Target::Primary => f.write_str("primary")?,
            Target::Standby => f.write_str("standby")?,
            Target::Node(id) => write!(f, "{id}")?,
        }
        if self.share < 1.0 { write!(f, "({})", self.share) } else { Ok(()) }
    }
}

impl Value for Redirect {
    fn read(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Self> {
        let redirect = match node {
            Node::Text(text) if is_clean(text) => Self::parse(text),
            _ => None,
        };
        redirect.or_else(|| sink.error(describe(node), Self::expects(limits)))
    }

    fn text(&self, _: &Limits) -> String {
        quote(&self.to_string())
    }

    fn expects(_: &Limits) -> String {
        "pattern:primary, pattern:standby or pattern:<node id>, each with an optional share such as (0.3)"
            .to_owned()
    }
}

impl Value for Vec<Redirect> {
    fn read(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Self> {
        read_list(limits, node, sink)
    }

    fn text(&self, limits: &Limits) -> String {
        list_text(self, limits)
    }

    fn expects(limits: &Limits) -> String {
        format!("a list of {}", Redirect::expects(limits))
    }
}
