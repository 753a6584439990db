//! From files to a validated [`Config`]: documents, settings, conflicts, side files. Taken whole or refused whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::check::{self, Conflict};
use crate::error::{ConfigError, ConfigErrors, MAX_ERRORS, Sink, Warning};
use crate::files;
use crate::fill::{fill, read_defaults};
use crate::hba::{IdentMaps, Rules};
use crate::pool_key::PoolKey;
use crate::secrets::Passwords;
use crate::table::{Config, KEYS};
use crate::value::{Limits, describe, read_list};
use crate::words::Ssl;
use crate::yaml::{self, Node, Step};

/// Includes inside includes go this deep.
const MAX_INCLUDE_DEPTH: usize = 8;

/// All files together are at most so many.
const MAX_FILES: usize = 256;

/// The key that names further files. It is no setting, so it is no row of the table.
pub(crate) const INCLUDE: &str = "include";

/// Reads and validates the configuration file, the files that it includes, and those that it names
/// (`pool_passwd`, `pool_hba_file`). Relative paths are relative to the directory of `path`; an included file
/// is looked for relative to the file that includes it.
///
/// # Errors
/// Everything that is wrong, with file, line and key.
pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
    let path = files::absolute(path)?;
    let mut loader = Loader::new(path.display().to_string());
    loader.read_file(&path, &mut Vec::new());
    let mut config = loader.settings();
    if loader.errors.is_empty() {
        let directory = path.parent().unwrap_or(Path::new("/"));
        KEYS.iter().for_each(|key| (key.anchor)(&mut config, directory));
        loader.read_side_files(&mut config);
    }
    loader.finish(config)
}

/// Reads and validates configuration text without touching files: `include` is refused, the password file is
/// taken as empty, and rules that would come from `pool_hba_file` let nobody in.
///
/// # Errors
/// Everything that is wrong, with `origin` as the file, line and key.
pub fn parse(text: &str, origin: &str) -> Result<Config, ConfigErrors> {
    let mut loader = Loader::new(origin.to_owned());
    if let Some(index) = loader.read_text(text.to_owned(), origin) {
        for (_, entry) in loader.includes(index) {
            loader.refuse_include(
                index,
                entry,
                "an include in text that is no file",
                "the settings themselves",
            );
        }
    }
    let mut config = loader.settings();
    config.hba = config.enable_pool_hba.then(Rules::default);
    loader.finish(config)
}

/// Rules, the names in files beside them, and this machine's addresses.
fn read_rules(path: &Path) -> Result<Rules, ConfigErrors> {
    let text = files::read(path, files::MAX_SIDE_BYTES)?;
    let beside = path.parent().unwrap_or(Path::new("/"));
    let read = |name: &str| {
        files::read(&beside.join(name), files::MAX_SIDE_BYTES).map_err(|errors| errors.to_string())
    };
    Ok(Rules::parse_with(&text, &path.display().to_string(), &read)?.at(files::interfaces()))
}

/// One file's text and the entries of its mapping.
struct Document {
    file: String,
    text: String,
    entries: Vec<(String, Node)>,
}

struct Loader {
    /// What errors are told about that belong to no place in a file.
    origin: String,
    documents: Vec<Document>,
    /// Where each key is set: document and entry.
    places: BTreeMap<&'static str, (usize, usize)>,
    errors: Vec<ConfigError>,
    warnings: Vec<Warning>,
}

impl Loader {
    fn new(origin: String) -> Self {
        Self {
            origin,
            documents: Vec::new(),
            places: BTreeMap::new(),
            errors: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Reads a file and, depth first, those that it includes. `open` are the files that led here.
    fn read_file(&mut self, path: &Path, open: &mut Vec<PathBuf>) {
        let text = match files::read(path, files::MAX_CONFIG_BYTES) {
            Ok(text) => text,
            Err(errors) => return self.errors.extend(errors.into_vec()),
        };
        let Some(index) = self.read_text(text, &path.display().to_string()) else { return };
        open.push(path.to_owned());
        for (name, entry) in self.includes(index) {
            if self.errors.len() >= MAX_ERRORS {
                break;
            }
            let target = path.parent().unwrap_or(Path::new("/")).join(&name);
            let refused = match () {
                () if open.contains(&target) => Some("a file that includes this one"),
                () if open.len() > MAX_INCLUDE_DEPTH => Some("too many includes inside includes"),
                () if self.documents.len() >= MAX_FILES => Some("too many files"),
                () if !target.is_file() => Some("no such file"),
                () => None,
            };
            match refused {
                Some(found) => {
                    let found = format!("{found} ({})", target.display());
                    self.refuse_include(index, entry, &found, "a file to include");
                }
                None => self.read_file(&target, open),
            }
        }
        open.pop();
    }

    /// Parses a document; returns its index.
    fn read_text(&mut self, text: String, file: &str) -> Option<usize> {
        let entries = match yaml::parse(&text) {
            Ok(Node::Map(entries)) => entries,
            Ok(Node::Null) => Vec::new(),
            Ok(other) => {
                let found = describe(&other);
                self.errors.push(files::error(file, Some(1), &found, "a mapping of keys to values"));
                return None;
            }
            Err(error) => {
                let line = error.at.map(|at| at.line);
                let mut told = files::error(file, line, &error.message, "YAML");
                told.column = error.at.map(|at| at.column);
                self.errors.push(told);
                return None;
            }
        };
        self.documents.push(Document { file: file.to_owned(), text, entries });
        Some(self.documents.len() - 1)
    }

    /// The names after `include`, each with its entry.
    fn includes(&mut self, index: usize) -> Vec<(String, usize)> {
        let Some(document) = self.documents.get(index) else { return Vec::new() };
        let (mut names, mut sink) = (Vec::new(), Sink::default());
        for (entry, (_, node)) in document.entries.iter().enumerate().filter(|(_, (key, _))| key == INCLUDE) {
            let read: Option<Vec<String>> =
                sink.within(&[Step::Value(entry)], INCLUDE, |sink| read_list(&Limits::none(), node, sink));
            names.extend(read.unwrap_or_default().into_iter().map(|name| (name, entry)));
        }
        self.errors.extend(sink.finish(&document.file, &document.text).0);
        names
    }

    fn refuse_include(&mut self, index: usize, entry: usize, found: &str, expected: &str) {
        self.complain(index, &[Step::Value(entry)], INCLUDE, found, expected);
    }

    /// An error at a place in a document.
    fn complain(&mut self, index: usize, path: &[Step], key: &str, found: &str, expected: &str) {
        let Some(document) = self.documents.get(index) else { return };
        let mut sink = Sink::default();
        sink.within(path, key, |sink| sink.error::<()>(found, expected));
        self.errors.extend(sink.finish(&document.file, &document.text).0);
    }

    /// Defaults, then every document, then what does not go together.
    fn settings(&mut self) -> Config {
        let mut config = Config::blank();
        let mut sink = Sink::default();
        read_defaults(KEYS, &mut config, &mut sink);
        self.errors.extend(sink.finish("built-in defaults", "").0);
        for (index, document) in self.documents.iter().enumerate() {
            let mut sink = Sink::default();
            let entries: Vec<_> =
                document.entries.iter().enumerate().filter(|(_, (name, _))| name != INCLUDE).collect();
            let set = fill(KEYS, &mut config, &entries, &self.places, &mut sink);
            self.places.extend(set.into_iter().map(|(name, entry)| (name, (index, entry))));
            let (errors, warnings) = sink.finish(&document.file, &document.text);
            self.errors.extend(errors);
            self.warnings.extend(warnings);
        }
        config.given = self.places.keys().copied().collect();
        if self.errors.is_empty() {
            check::conflicts(&config).into_iter().for_each(|conflict| self.tell(conflict));
        }
        config
    }

    /// Tells a conflict at the first of its keys that a file sets, as deep as that file goes.
    fn tell(&mut self, conflict: Conflict) {
        let Conflict { keys, path: turns, key, found, expected } = conflict;
        let Some((index, entry)) = keys.iter().find_map(|key| self.places.get(key).copied()) else {
            let error = files::error(&self.origin, None, &found, &expected);
            return self.errors.push(ConfigError { key, ..error });
        };
        let entries = self.documents.get(index).map(|document| document.entries.as_slice());
        let mut node = entries.and_then(|entries| entries.get(entry)).map(|(_, node)| node);
        let mut path = vec![Step::Value(entry)];
        for turn in turns {
            let Some((step, below)) = node.and_then(|node| turn.step(node)) else { break };
            path.push(step);
            node = Some(below);
        }
        self.complain(index, &path, &key, &found, &expected);
    }

    /// Reads what the configuration names; the paths are absolute by now.
    fn read_side_files(&mut self, config: &mut Config) {
        let given = |key: &str| config.given.contains(key);
        if !given("unix_socket_directories") {
            config.unix_socket_directories.retain(|directory| Path::new(directory).is_dir());
        }
        let key = config.pool_key_file.as_deref().map(PoolKey::read).transpose();
        let key = key.unwrap_or_else(|errors| {
            self.refuse_side("pool_key_file", errors);
            None
        });
        self.warnings.extend(
            config.pool_key_file.as_deref().and_then(|path| files::warn_if_public(path, "pool_key_file")),
        );
        if given("pool_passwd") || config.pool_passwd.exists() {
            let read = files::read(&config.pool_passwd, files::MAX_SIDE_BYTES).and_then(|text| {
                Passwords::parse_with(&text, &config.pool_passwd.display().to_string(), key.as_ref())
            });
            match read {
                Ok(secrets) => config.secrets = secrets,
                Err(errors) => self.refuse_side("pool_passwd", errors),
            }
            self.warnings.extend(files::warn_if_public(&config.pool_passwd, "pool_passwd"));
        }
        if config.enable_pool_hba {
            match read_rules(&config.pool_hba_file) {
                Ok(rules) => config.hba = Some(rules),
                Err(errors) => self.refuse_side("pool_hba_file", errors),
            }
        }
        if given("pool_ident_file") || config.pool_ident_file.exists() {
            let read = files::read(&config.pool_ident_file, files::MAX_SIDE_BYTES)
                .and_then(|text| IdentMaps::parse(&text, &config.pool_ident_file.display().to_string()));
            match read {
                Ok(idents) => config.idents = idents,
                Err(errors) => self.refuse_side("pool_ident_file", errors),
            }
        }
        self.warn(config);
    }

    /// Errors of a file that `key` names; those about no field of a line are about the key.
    fn refuse_side(&mut self, key: &str, errors: ConfigErrors) {
        self.errors.extend(errors.into_vec().into_iter().map(|mut error| {
            if error.key.is_empty() {
                key.clone_into(&mut error.key);
            }
            error
        }));
    }

    /// What is allowed and will not do what its author may think.
    fn warn(&mut self, config: &Config) {
        let file = config.pool_hba_file.display().to_string();
        let rules = config.hba.iter().flat_map(Rules::iter);
        for rule in rules.filter(|rule| rule.needs_tls() && config.ssl == Ssl::Off) {
            let message = "the rule matches nobody: ssl is off".to_owned();
            self.warnings.push(Warning {
                file: file.clone(),
                line: Some(rule.line),
                key: "type".to_owned(),
                message,
            });
        }
        let has_file = config.given.contains("pool_passwd") || config.pool_passwd.exists();
        if has_file && config.secrets.users().next().is_none() && config.auth_query.is_none() {
            self.warnings.push(Warning {
                file: config.pool_passwd.display().to_string(),
                line: None,
                key: "pool_passwd".to_owned(),
                message: "the file holds no secret: nobody can log in by password".to_owned(),
            });
        }
        let user = &config.sr_check_user;
        if config.sr_check_password.is_none() && config.secrets.get(user).is_none() {
            let message = format!(
                "no password for {user}: set sr_check_password or add it to pool_passwd, unless the nodes ask for none"
            );
            self.warnings.push(Warning {
                file: self.origin.clone(),
                line: None,
                key: "sr_check_user".to_owned(),
                message,
            });
        }
    }

    fn finish(self, mut config: Config) -> Result<Config, ConfigErrors> {
        if !self.errors.is_empty() {
            return Err(ConfigErrors::new(self.errors));
        }
        config.warnings = self.warnings;
        Ok(config)
    }
}
