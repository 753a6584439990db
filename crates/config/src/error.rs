//! What is wrong with a configuration, in data: file, line, key, what was found, what was expected.
//!
//! While a tree is read, complaints go to a [`Sink`] with their path; lines are looked up once, at the end.
//! Invariant: no secret ever gets into `found` or `expected`.

use std::fmt;

use crate::yaml::{self, Step};

/// More errors than this are not listed: the rest says nothing new and each costs a look-up.
pub(crate) const MAX_ERRORS: usize = 100;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file (or what the caller called the text).
    pub file: String,
    /// The line, from 1, where one is known.
    pub line: Option<usize>,
    /// The column, from 1, where one is known.
    pub column: Option<usize>,
    /// The key, such as `port` or `backends[1].weight`; or the field of a line-oriented file.
    pub key: String,
    /// What stands there; never a secret.
    pub found: String,
    /// What should stand there.
    pub expected: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": found {}, expected {}", self.found, self.expected)
    }
}

/// Everything that is wrong; a configuration is taken whole or refused whole. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// The first [`MAX_ERRORS`] of them.
    pub(crate) fn new(mut errors: Vec<ConfigError>) -> Self {
        errors.truncate(MAX_ERRORS);
        Self(errors)
    }

    /// The errors in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &ConfigError> {
        self.0.iter()
    }

    pub(crate) fn into_vec(self) -> Vec<ConfigError> {
        self.0
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

/// Something that was accepted and will not do what its author may think.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The file.
    pub file: String,
    /// The line, from 1, where one is known.
    pub line: Option<usize>,
    /// The key.
    pub key: String,
    /// What to know about it.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}: {}", self.key, self.message)
    }
}

/// What is said about a place in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Remark {
    Error { found: String, expected: String },
    Warning(String),
}

/// A remark and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Complaint {
    pub(crate) path: Vec<Step>,
    pub(crate) key: String,
    pub(crate) remark: Remark,
}

/// Collects complaints while one document is read; knows where the reader is.
#[derive(Debug, Default)]
pub(crate) struct Sink {
    path: Vec<Step>,
    key: String,
    complaints: Vec<Complaint>,
    failed: bool,
}

impl Sink {
    /// Goes down these steps for as long as `read` runs; `name` is appended to the key.
    pub(crate) fn within<T>(&mut self, steps: &[Step], name: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        let (depth, length) = (self.path.len(), self.key.len());
        self.path.extend_from_slice(steps);
        self.key.push_str(name);
        let result = read(self);
        self.path.truncate(depth);
        self.key.truncate(length);
        result
    }

    /// Is this the top of the document?
    pub(crate) fn at_top(&self) -> bool {
        self.key.is_empty()
    }

    /// An error here. Returns `None`, to be returned by whoever was to make a value.
    pub(crate) fn error<T>(&mut self, found: impl Into<String>, expected: impl Into<String>) -> Option<T> {
        self.failed = true;
        self.remark(Remark::Error { found: found.into(), expected: expected.into() });
        None
    }

    /// A warning here.
    pub(crate) fn warn(&mut self, message: impl Into<String>) {
        self.remark(Remark::Warning(message.into()));
    }

    fn remark(&mut self, remark: Remark) {
        if self.complaints.len() < MAX_ERRORS {
            self.complaints.push(Complaint { path: self.path.clone(), key: self.key.clone(), remark });
        }
    }

    /// Reads a value for which `word` may stand as well, so that errors about the value itself say so.
    pub(crate) fn or_word<T>(&mut self, word: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        let (before, depth) = (self.complaints.len(), self.path.len());
        let result = read(self);
        for complaint in self.complaints.iter_mut().skip(before).filter(|new| new.path.len() == depth) {
            if let Remark::Error { expected, .. } = &mut complaint.remark {
                expected.push_str(", or ");
                expected.push_str(word);
            }
        }
        result
    }

    /// Was there an error?
    pub(crate) fn failed(&self) -> bool {
        self.failed
    }

    /// Looks up the lines and hands over errors and warnings.
    pub(crate) fn finish(self, file: &str, text: &str) -> (Vec<ConfigError>, Vec<Warning>) {
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        for Complaint { path, key, remark } in self.complaints {
            let at = yaml::locate(text, &path);
            let (line, file) = (at.map(|at| at.line), file.to_owned());
            match remark {
                Remark::Error { found, expected } => errors.push(ConfigError {
                    file,
                    line,
                    column: at.map(|at| at.column),
                    key,
                    found,
                    expected,
                }),
                Remark::Warning(message) => warnings.push(Warning { file, line, key, message }),
            }
        }
        (errors, warnings)
    }
}
