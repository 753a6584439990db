//! The parameters of a StartupMessage.

use super::StartupError;
use super::options::{self, Setting};

/// The longest name of a role or a database, in bytes (`NAMEDATALEN` less its end); what is longer is clipped.
const MAX_NAME_LEN: usize = 63;

/// What kind of replication connection it is (protocol, "Streaming Replication Protocol").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Replication {
    /// An ordinary session.
    #[default]
    None,
    /// Physical replication: no database.
    Physical,
    /// Logical replication, in a database.
    Database,
}

impl Replication {
    /// The word that SHOW uses.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Physical => "physical",
            Self::Database => "logical",
        }
    }
}

/// A StartupMessage. Names and values are bytes: their encoding is not known yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartupMessage {
    /// The minor version asked for: 3.`minor`.
    pub minor: u16,
    /// The role that logs in; never empty.
    pub user: Vec<u8>,
    /// The database, when one is named; then never empty.
    pub database: Option<Vec<u8>>,
    /// The kind of connection.
    pub replication: Replication,
    /// `options` as it came.
    pub options: Option<Vec<u8>>,
    /// All other parameters but the `_pq_.` ones: settings, in order.
    pub params: Vec<Setting>,
    /// Names of `_pq_.` options; we know none.
    pub unknown_options: Vec<Vec<u8>>,
}

impl StartupMessage {
    /// The minor version that is spoken: what was asked for, or the newest one we know.
    #[must_use]
    pub fn spoken_minor(&self) -> u16 {
        self.minor.min(super::NEWEST_MINOR)
    }

    /// The database, by default that of the user's name.
    #[must_use]
    pub fn database_or_user(&self) -> &[u8] {
        self.database.as_deref().unwrap_or(&self.user)
    }

    /// All settings: those in `options` first, then the parameters, as PostgreSQL applies them; of two
    /// with the same name the later one counts.
    ///
    /// # Errors
    /// When `options` has something that is not a setting.
    pub fn settings(&self) -> Result<Vec<Setting>, StartupError> {
        let mut settings = options::parse(self.options.as_deref().unwrap_or_default())?;
        settings.extend(self.params.iter().cloned());
        Ok(settings)
    }

    /// The value of a parameter, the last one when it is repeated.
    #[must_use]
    pub fn param(&self, name: &[u8]) -> Option<&[u8]> {
        self.params.iter().rev().find(|(found, _)| found == name).map(|(_, value)| value.as_slice())
    }
}

/// Reads the pairs of a StartupMessage: what follows the version.
pub(super) fn parse(minor: u16, body: &[u8]) -> Result<StartupMessage, StartupError> {
    let mut message = StartupMessage {
        minor,
        user: Vec::new(),
        database: None,
        replication: Replication::None,
        options: None,
        params: Vec::new(),
        unknown_options: Vec::new(),
    };
    let mut rest = body;
    loop {
        let (name, after_name) = cstring(rest)?;
        if name.is_empty() {
            rest = after_name;
            break;
        }
        let (value, after_value) = cstring(after_name)?;
        set(&mut message, name, value)?;
        rest = after_value;
    }
    if !rest.is_empty() {
        return Err(StartupError::Layout);
    }
    if message.user.is_empty() {
        return Err(StartupError::NoUser);
    }
    Ok(message)
}

fn set(message: &mut StartupMessage, name: &[u8], value: &[u8]) -> Result<(), StartupError> {
    match name {
        b"user" => message.user = clip(value).to_vec(),
        b"database" => message.database = (!value.is_empty()).then(|| clip(value).to_vec()),
        b"options" => message.options = Some(value.to_vec()),
        b"replication" => message.replication = replication(value)?,
        _ if name.starts_with(b"_pq_.") => message.unknown_options.push(name.to_vec()),
        _ => message.params.push((name.to_vec(), value.to_vec())),
    }
    Ok(())
}

/// The name that a server takes it for: rules and secrets are for that one. As it clips names (`pg_mbcliplen()`), no
/// character of UTF-8 is cut in two.
fn clip(name: &[u8]) -> &[u8] {
    let continues = |at: usize| name.get(at).is_some_and(|byte| byte & 0xc0 == 0x80);
    let end = (0..=MAX_NAME_LEN).rev().find(|end| !continues(*end)).unwrap_or(MAX_NAME_LEN);
    name.get(..end).unwrap_or(name)
}

/// `database`, or whatever PostgreSQL's `parse_bool` takes.
fn replication(value: &[u8]) -> Result<Replication, StartupError> {
    if value == b"database" {
        return Ok(Replication::Database);
    }
    let word = value.to_ascii_lowercase();
    let begins = |full: &[u8], least: usize| word.len() >= least && full.starts_with(&word);
    if begins(b"true", 1) || begins(b"yes", 1) || begins(b"on", 2) || word == b"1" {
        return Ok(Replication::Physical);
    }
    if begins(b"false", 1) || begins(b"no", 1) || begins(b"off", 2) || word == b"0" {
        return Ok(Replication::None);
    }
    Err(StartupError::Replication(String::from_utf8_lossy(value).into_owned()))
}

fn cstring(bytes: &[u8]) -> Result<(&[u8], &[u8]), StartupError> {
    let end = bytes.iter().position(|&byte| byte == 0).ok_or(StartupError::Layout)?;
    let (text, rest) = bytes.split_at_checked(end).ok_or(StartupError::Layout)?;
    Ok((text, rest.get(1..).unwrap_or_default()))
}
