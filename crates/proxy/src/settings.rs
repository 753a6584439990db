//! The settings a client asked for at start-up, and how a backend is brought to them.
//!
//! A backend remembers which set it carries; the difference is one simple Query in front of the
//! client's own message, in the same write.

use std::fmt::Write;
use std::sync::Arc;

/// Configuration parameters and their values, sorted by name, each name once.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Settings {
    pairs: Vec<(String, String)>,
}

impl Settings {
    /// The set of `pairs`; of two with the same name (in any case) the later wins, as in the server.
    #[must_use]
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut set: Vec<(String, String)> = Vec::new();
        for (name, value) in pairs {
            match set.binary_search_by(|(known, _)| lower(known).cmp(&lower(&name))) {
                Ok(at) => {
                    if let Some(pair) = set.get_mut(at) {
                        pair.1 = value;
                    }
                }
                Err(at) => set.insert(at, (name, value)),
            }
        }
        Self { pairs: set }
    }

    /// The pairs, sorted by name.
    #[must_use]
    pub fn pairs(&self) -> &[(String, String)] {
        &self.pairs
    }

    /// Asks for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The value of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The first name that no configuration parameter can have.
    #[must_use]
    pub fn bad_name(&self) -> Option<&str> {
        self.pairs.iter().map(|(name, _)| name.as_str()).find(|name| !is_parameter_name(name))
    }

    /// The statements that take a backend from `have` to this set; `None` when there is nothing to do.
    #[must_use]
    pub fn statements_from(&self, have: &Self) -> Option<String> {
        let mut sql = String::new();
        for (name, _) in have.pairs.iter().filter(|(name, _)| self.get(name).is_none()) {
            push(&mut sql, format_args!("RESET {name};"));
        }
        let mut lead = "SELECT ";
        for (name, value) in self.pairs.iter().filter(|(name, value)| have.get(name) != Some(value)) {
            push(&mut sql, format_args!("{lead}pg_catalog.set_config('{name}',{},false)", Literal(value)));
            lead = ",";
        }
        (!sql.is_empty()).then_some(sql)
    }
}

/// A text as an SQL literal that means the same whatever `standard_conforming_strings` is.
struct Literal<'a>(&'a str);

impl std::fmt::Display for Literal<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("E'")?;
        for letter in self.0.chars() {
            if matches!(letter, '\'' | '\\') {
                f.write_char(letter)?;
            }
            f.write_char(letter)?;
        }
        f.write_char('\'')
    }
}

fn push(sql: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = sql.write_fmt(text);
}

fn lower(name: &str) -> String {
    name.to_ascii_lowercase()
}

/// A letter or underscore, then letters, digits, `_`, `$`; parts joined by dots (`guc.c`,
/// `valid_custom_variable_name`). ASCII only.
fn is_parameter_name(name: &str) -> bool {
    name.split('.').all(|part| {
        part.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && part.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_' || letter == '$')
    })
}

/// Parameters that a server reports, with their values, in the order they were reported.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Parameters {
    pairs: Vec<(Arc<str>, Arc<str>)>,
}

impl Parameters {
    /// Sets one.
    pub fn set(&mut self, name: &str, value: &str) {
        match self.pairs.iter_mut().find(|(known, _)| **known == *name) {
            Some(pair) => pair.1 = value.into(),
            None => self.pairs.push((name.into(), value.into())),
        }
    }

    /// The value of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(known, _)| **known == *name).map(|(_, value)| &**value)
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(name, value)| (&**name, &**value))
    }

    /// What `later` reports otherwise than this one.
    #[must_use]
    pub fn changes_to(&self, later: &Self) -> Self {
        Self {
            pairs: later
                .pairs
                .iter()
                .filter(|(name, value)| self.get(name) != Some(value))
                .cloned()
                .collect(),
        }
    }

    /// These with `changes` over them.
    #[must_use]
    pub fn with(mut self, changes: &Self) -> Self {
        for (name, value) in changes.iter() {
            self.set(name, value);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: &[(&str, &str)]) -> Settings {
        Settings::new(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn the_later_of_two_wins_whatever_the_case() {
        let settings = set(&[("DateStyle", "ISO"), ("app.x", "1"), ("datestyle", "German")]);
        assert_eq!(settings.pairs().len(), 2);
        assert_eq!(settings.get("DATESTYLE"), Some("German"));
    }

    #[test]
    fn only_the_difference_is_sent() {
        let have = set(&[("a", "1"), ("b", "2")]);
        let want = set(&[("b", "2"), ("c", "it's \\ x"), ("d", "s1, s2")]);
        assert_eq!(
            want.statements_from(&have).unwrap(),
            "RESET a;SELECT pg_catalog.set_config('c',E'it''s \\\\ x',false),pg_catalog.set_config('d',E's1, s2',false)"
        );
        assert_eq!(want.statements_from(&want), None);
        assert_eq!(Settings::default().statements_from(&have).unwrap(), "RESET a;RESET b;");
    }

    #[test]
    fn names_that_are_no_names_are_found() {
        for bad in ["", "a b", "a'", "1a", "a.", ".a", "a;b", "ä"] {
            assert_eq!(set(&[(bad, "x")]).bad_name(), Some(bad));
        }
        assert_eq!(set(&[("_x.y$1", "x"), ("TimeZone", "UTC")]).bad_name(), None);
    }

    #[test]
    fn parameters_are_overlaid() {
        let mut first = Parameters::default();
        first.set("a", "1");
        first.set("b", "1");
        let mut later = first.clone();
        later.set("b", "2");
        let changes = first.changes_to(&later);
        assert_eq!(changes.iter().collect::<Vec<_>>(), [("b", "2")]);
        assert_eq!(first.with(&changes), later);
    }
}
