//! Where the log goes: the standard error output, or a file.

use std::path::{Path, PathBuf};

use crate::error::Sink;
use crate::value::{Limits, Value, describe, is_clean, quote};
use crate::yaml::Node;

const STDERR: &str = "stderr";

/// Where the log goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LogDestination {
    /// To the standard error output.
    #[default]
    Stderr,
    /// To the end of this file, which is opened again on USR1.
    File(PathBuf),
}

impl Value for LogDestination {
    fn read(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Self> {
        match node {
            Node::Text(text) if text == STDERR => Some(Self::Stderr),
            // Without a slash it would be taken for one of Pgpool-II's words (syslog), or for a word that is misspelt.
            Node::Text(text) if text.contains('/') && !text.ends_with('/') && is_clean(text) => {
                Some(Self::File(PathBuf::from(text)))
            }
            other => sink.error(describe(other), Self::expects(limits)),
        }
    }

    fn text(&self, _: &Limits) -> String {
        match self {
            Self::Stderr => STDERR.to_owned(),
            Self::File(path) => quote(&path.to_string_lossy()),
        }
    }

    fn expects(_: &Limits) -> String {
        "stderr, or the path of a file, with a slash in it".to_owned()
    }

    fn anchor(&mut self, directory: &Path) {
        if let Self::File(path) = self {
            *path = directory.join(&*path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> Result<LogDestination, String> {
        let text = format!("backends: [{{hostname: db0}}]\nlog_destination: {value}\n");
        crate::parse(&text, "test").map(|config| config.log_destination).map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_word_or_a_path() {
        assert_eq!(read("stderr"), Ok(LogDestination::Stderr));
        assert_eq!(read("/var/log/weir.log"), Ok(LogDestination::File("/var/log/weir.log".into())));
        for bad in ["syslog", "file", "stdout", "/var/log/", "7", "on"] {
            let said = read(bad).unwrap_err();
            assert!(said.contains("log_destination") && said.contains("the path of a file"), "{bad}: {said}");
        }
    }
}
