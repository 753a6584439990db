//! What an import has found so far: keys with their values and where they come from, side files, and notes on
//! what has no equivalent. Turned into the text of `pgweir.yaml`.
//!
//! Invariant: a note never holds a value, which may be a secret.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use config::KEYS;

use super::form::Form;

/// Where something stands in what is imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The file as it was named.
    pub(super) file: String,
    /// From 1; 0 is the file as a whole.
    pub(super) line: usize,
}

impl Place {
    /// A place for what is about a whole file.
    pub(super) fn file(file: &str) -> Self {
        Self { file: file.to_owned(), line: 0 }
    }

    fn shown(&self) -> String {
        if self.line == 0 { self.file.clone() } else { format!("{}:{}", self.file, self.line) }
    }
}

/// A value, and what it was called where.
#[derive(Debug, Clone)]
struct Entry {
    /// As YAML.
    value: String,
    /// For the comment behind it.
    from: String,
}

/// A node, database or user: its keys as YAML, in the order they came.
pub(super) type Row = Vec<(&'static str, String)>;

/// The configuration that comes to be.
#[derive(Debug, Default)]
pub(super) struct Draft {
    keys: BTreeMap<&'static str, Entry>,
    /// Nodes by their number.
    pub(super) nodes: BTreeMap<u16, Row>,
    /// Entries of `databases`.
    pub(super) databases: BTreeMap<String, Row>,
    /// Entries of `users`.
    pub(super) users: BTreeMap<String, Row>,
    /// Files to stand beside `pgweir.yaml`, by name.
    beside: BTreeMap<&'static str, String>,
    /// What the paths of the file that is read now are relative to.
    pub(super) directory: PathBuf,
    notes: Vec<String>,
}

impl Draft {
    /// A path made absolute; any other value as it is.
    pub(super) fn anchored(&self, form: Form, value: &str) -> String {
        match form {
            Form::Path if !value.trim().is_empty() => self.directory.join(value.trim()).display().to_string(),
            _ => value.to_owned(),
        }
    }

    /// Sets a key to a YAML value; the second of two different ones is noted and left out.
    pub(super) fn set(&mut self, key: &'static str, value: String, name: &str, place: &Place) {
        let from = if name == key { place.shown() } else { format!("{name}, {}", place.shown()) };
        match self.keys.get(key) {
            Some(there) if there.value != value => {
                let why = format!("{key} is already set ({}); this one is left out", there.from);
                self.note(place, name, &why);
            }
            Some(_) => {}
            None => {
                self.keys.insert(key, Entry { value, from });
            }
        }
    }

    /// Is the key set to this value?
    pub(super) fn is(&self, key: &str, value: &str) -> bool {
        self.keys.get(key).is_some_and(|entry| entry.value == value)
    }

    /// A file to stand beside `pgweir.yaml`; more of one follow each other.
    pub(super) fn beside(&mut self, name: &'static str, content: String) {
        let file = self.beside.entry(name).or_default();
        if !file.is_empty() && !file.ends_with('\n') {
            file.push('\n');
        }
        file.push_str(&content);
    }

    /// The files beside `pgweir.yaml` by name.
    pub(super) fn made(&self) -> &BTreeMap<&'static str, String> {
        &self.beside
    }

    /// Is the key set?
    pub(super) fn has(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    /// Notes what has no equivalent, or another meaning, and why.
    pub(super) fn note(&mut self, place: &Place, name: &str, why: &str) {
        self.notes.push(format!("{}: {name}: {why}", place.shown()));
    }

    /// What has no equivalent, a line each.
    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The text of `pgweir.yaml`, with the notes as comments.
    pub(super) fn yaml(&self) -> String {
        let mut out = String::from(
            "# Made by pgweir import. What is not here has its default: see pgweir's etc/pgweir.yaml.\n",
        );
        for key in KEYS {
            match key.name {
                "backends" => self.write_nodes(&mut out),
                "databases" => write_map(&mut out, "databases", &self.databases),
                "users" => write_map(&mut out, "users", &self.users),
                name => {
                    if let Some(Entry { value, from }) = self.keys.get(name) {
                        let _ = writeln!(out, "{name}: {value}  # {}", one_line(from));
                    }
                }
            }
        }
        if !self.notes.is_empty() {
            out.push_str("\n# What has no equivalent here, or another meaning:\n");
            for note in &self.notes {
                let _ = writeln!(out, "# - {}", one_line(note));
            }
        }
        out
    }

    fn write_nodes(&self, out: &mut String) {
        if self.nodes.is_empty() {
            out.push_str("# No node was named. Name the primary and its standbys:\n# backends:\n#   - { hostname: db0, port: 5432 }\n");
            return;
        }
        out.push_str("backends:\n");
        for row in self.nodes.values() {
            let _ = writeln!(out, "  - {}", flow(row));
        }
    }
}

fn write_map(out: &mut String, name: &str, rows: &BTreeMap<String, Row>) {
    let rows: Vec<_> = rows.iter().filter(|(_, row)| !row.is_empty()).collect();
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(out, "{name}:");
    for (name, row) in rows {
        let _ = writeln!(out, "  {}: {}", text(name), flow(row));
    }
}

fn flow(row: &Row) -> String {
    let parts: Vec<String> = row.iter().map(|(key, value)| format!("{key}: {value}")).collect();
    format!("{{ {} }}", parts.join(", "))
}

fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// A text as YAML: JSON's strings are YAML's double-quoted ones.
pub(super) fn text(value: &str) -> String {
    serde_json::Value::from(value).to_string()
}

/// A list of texts as YAML.
pub(super) fn list<'a>(items: impl IntoIterator<Item = &'a str>) -> String {
    serde_json::Value::from_iter(items).to_string()
}
