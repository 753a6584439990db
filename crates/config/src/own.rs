//! Changes beside the file: a key that an administrator has SET, or that a session changes for itself.

use crate::check;
use crate::error::{ConfigError, ConfigErrors, Sink, Warning};
use crate::fill::fill;
use crate::table::{Config, KEYS};
use crate::yaml::{self, Node};

/// The keys that a session may change for itself (`PGPOOL SET`). None of them takes anything away from others,
/// lifts a limit, or writes to the log.
pub const SESSION_KEYS: &[&str] = &[
    "load_balance_mode",
    "load_balance",
    "statement_level_load_balance",
    "transaction_load_balance",
    "disable_load_balance_on_write",
    "consistency",
    "allow_sql_comments",
    "notice_per_node_statement",
];

impl Config {
    /// The same with other values of some keys, each as the file has it.
    ///
    /// # Errors
    /// A value that is refused, alone or with the others; `origin` stands for the file.
    pub fn with(&self, changes: &[(&str, &str)], origin: &str) -> Result<Self, ConfigErrors> {
        let mut config = self.clone();
        let entries: Vec<_> =
            changes.iter().map(|(key, value)| ((*key).to_owned(), self.read(key, value))).collect();
        let (mut errors, warnings) = config.take(&entries, origin);
        config.warnings = warnings;
        if errors.is_empty() {
            errors.extend(check::conflicts(&config).into_iter().map(|conflict| {
                let error = crate::files::error(origin, None, &conflict.found, &conflict.expected);
                ConfigError { key: conflict.key, ..error }
            }));
        }
        if errors.is_empty() { Ok(config) } else { Err(ConfigErrors::new(errors)) }
    }

    /// A value as the file has it; what a key takes as a text only (a command `true`, a user `007`) is one without quotes, too.
    fn read(&self, key: &str, value: &str) -> Node {
        let fits = |node: &Node| self.clone().take(&[(key.to_owned(), node.clone())], "").0.is_empty();
        let text = Node::Text(value.to_owned());
        match yaml::parse(value) {
            Ok(read) if fits(&read) || !fits(&text) => read,
            _ => text,
        }
    }

    /// Takes over what is set, and says what is wrong with it.
    fn take(&mut self, entries: &[(String, Node)], origin: &str) -> (Vec<ConfigError>, Vec<Warning>) {
        let mut sink = Sink::default();
        let numbered: Vec<_> = entries.iter().enumerate().collect();
        let none = std::collections::BTreeMap::<&'static str, ()>::new();
        let set = fill(KEYS, self, &numbered, &none, &mut sink);
        self.given.extend(set.into_iter().map(|(name, _)| name));
        sink.finish(origin, "")
    }

    /// The value of a key as the file would have it; a secret is masked.
    #[must_use]
    pub fn text_of(&self, key: &str) -> Option<String> {
        KEYS.iter().find(|known| known.name == key).map(|key| key.text(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_changes_and_nonsense_is_refused() {
        let config = crate::parse("backends: [{hostname: db0}]", "test").unwrap();
        let changed = config.with(&[("load_balance", "random"), ("query_timeout", "5s")], "SET").unwrap();
        assert_eq!(changed.text_of("load_balance").as_deref(), Some("random"));
        assert_eq!(changed.text_of("query_timeout").as_deref(), Some("5s"));
        assert_eq!(changed.text_of("nothing"), None);
        let error = config.with(&[("load_balance", "loudest")], "SET").unwrap_err().to_string();
        assert!(error.contains("load_balance") && error.contains("SET"), "{error}");
        assert!(config.with(&[("no_such_key", "1")], "SET").is_err());
        assert!(config.with(&[("server_lifetime", "[1, ")], "SET").is_err());
        // A text that YAML would take for something else.
        let yes = config.with(&[("recovery_command", "true"), ("sr_check_user", "007")], "SET").unwrap();
        assert_eq!(yes.text_of("sr_check_user").as_deref(), Some("\"007\""));
        assert!(yes.text_of("recovery_command").is_some_and(|text| text.contains("true")));
        assert!(SESSION_KEYS.iter().all(|key| config.text_of(key).is_some()));
    }
}
