//! What a client is told at login: the parameters that servers report to this user in this database,
//! with the client's own settings over them.
//!
//! The first client of a database and user waits for a backend; later ones are greeted from what is
//! known. A set of settings is tried on a backend once, and known from then on.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::BytesMut;
use parking_lot::Mutex;
use protocol::write::{WriteError, parameter_status};

use crate::hash::Seeded;
use crate::settings::{Parameters, Setting, Settings};

/// Sets of settings that are remembered for one database and user; beyond it all are forgotten.
const KNOWN_SETTINGS: usize = 512;
/// Databases and users that are remembered; beyond it all are forgotten.
const KNOWN_GREETINGS: usize = 10_000;

/// What clients of the same settings are told.
#[derive(Debug)]
pub struct Told {
    parameters: Parameters,
    /// Its messages, where pgweir stands for a primary and where for a standby: they are the same for every login.
    messages: [Result<Box<[u8]>, WriteError>; 2],
}

impl Told {
    /// These, as a primary has them.
    #[must_use]
    pub fn new(parameters: Parameters) -> Self {
        let messages = [messages(&parameters), messages(&as_a_standby_reports(parameters.clone()))];
        Self { parameters, messages }
    }

    /// The value of one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.parameters.get(name)
    }

    /// All of them, as ParameterStatus messages.
    ///
    /// # Errors
    /// One of them cannot be told.
    pub fn messages(&self, as_a_standby: bool) -> Result<&[u8], WriteError> {
        let [primary, standby] = &self.messages;
        let messages = if as_a_standby { standby } else { primary };
        messages.as_deref().map_err(|error| *error)
    }
}

fn messages(parameters: &Parameters) -> Result<Box<[u8]>, WriteError> {
    let mut out = BytesMut::new();
    parameters.iter().try_for_each(|(name, value)| parameter_status(&mut out, name, value))?;
    Ok(out.as_ref().into())
}

#[derive(Debug, Default)]
struct Greeting {
    parameters: Parameters,
    known: HashMap<Arc<Settings>, Arc<Told>, Seeded>,
}

/// Database and user.
type Key = (Arc<str>, Arc<str>);

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Greetings {
    by_key: Mutex<HashMap<Key, Greeting, Seeded>>,
}

impl Greetings {
    /// A new backend reported `parameters`, before any setting of a client.
    pub fn learn(&self, database: &Arc<str>, user: &Arc<str>, parameters: &Parameters) {
        let parameters = as_a_primary_reports(parameters.clone());
        let mut all = self.by_key.lock();
        if all.len() >= KNOWN_GREETINGS {
            all.clear();
        }
        let greeting = all.entry((Arc::clone(database), Arc::clone(user))).or_default();
        greeting.replace(parameters);
    }

    /// A backend reported other values than before, and no client's settings are behind them.
    pub fn learn_defaults(&self, database: &Arc<str>, user: &Arc<str>, news: &[(String, String)]) {
        let mut all = self.by_key.lock();
        let Some(greeting) = all.get_mut(&(Arc::clone(database), Arc::clone(user))) else { return };
        let mut parameters = greeting.parameters.clone();
        news.iter().for_each(|(name, value)| parameters.set(name, value));
        greeting.replace(as_a_primary_reports(parameters));
    }

    /// Those of `news` that are not what servers are known to have by default.
    #[must_use]
    pub fn unknown_of(
        &self,
        database: &Arc<str>,
        user: &Arc<str>,
        mut news: Vec<(String, String)>,
    ) -> Vec<(String, String)> {
        let all = self.by_key.lock();
        if let Some(greeting) = all.get(&(Arc::clone(database), Arc::clone(user))) {
            news.retain(|(name, value)| greeting.parameters.get(name) != Some(value));
        }
        news
    }

    /// What to tell a client with `settings`, and the shared copy of these; `None` when a backend must be asked.
    #[must_use]
    pub fn get(
        &self,
        database: &Arc<str>,
        user: &Arc<str>,
        settings: &Settings,
    ) -> Option<(Arc<Settings>, Arc<Told>)> {
        let mut all = self.by_key.lock();
        let greeting = all.get_mut(&(Arc::clone(database), Arc::clone(user)))?;
        if !greeting.known.contains_key(settings) {
            greeting.put(Arc::new(settings.clone()), &foreseeable(settings)?);
        }
        let (settings, told) = greeting.known.get_key_value(settings)?;
        Some((Arc::clone(settings), Arc::clone(told)))
    }

    /// With these settings a backend that reports `before` reports `after`.
    pub fn learn_settings(
        &self,
        database: &Arc<str>,
        user: &Arc<str>,
        settings: &Arc<Settings>,
        before: &Parameters,
        after: &Parameters,
    ) {
        let mut all = self.by_key.lock();
        if let Some(greeting) = all.get_mut(&(Arc::clone(database), Arc::clone(user))) {
            greeting.put(Arc::clone(settings), &before.changes_to(after));
        }
    }
}

impl Greeting {
    fn replace(&mut self, parameters: Parameters) {
        if self.parameters != parameters {
            // Other defaults: what settings lead to may have changed as well.
            self.known.clear();
            self.parameters = parameters;
        }
    }

    /// With these settings the defaults are told with `changes` over them.
    fn put(&mut self, settings: Arc<Settings>, changes: &Parameters) {
        if self.known.len() >= KNOWN_SETTINGS {
            self.known.clear();
        }
        self.known.insert(settings, Arc::new(Told::new(self.parameters.clone().with(changes))));
    }
}

/// pgweir stands for the primary, whichever node was asked: drivers look at this when they want one that
/// takes writes (`target_session_attrs`).
pub(crate) fn as_a_primary_reports(mut parameters: Parameters) -> Parameters {
    if parameters.get("in_hot_standby").is_some() {
        parameters.set("in_hot_standby", "off");
    }
    parameters
}

/// On `read_only_port` it stands for a standby.
pub(crate) fn as_a_standby_reports(mut parameters: Parameters) -> Parameters {
    if parameters.get("in_hot_standby").is_some() {
        parameters.set("in_hot_standby", "on");
    }
    parameters
}

/// What needs no server to be known: no settings, or a plain application name.
fn foreseeable(settings: &Settings) -> Option<Parameters> {
    let mut changes = Parameters::default();
    match settings.pairs() {
        [] => {}
        [(name, Setting::Value(value))] if name == "application_name" && is_plain_name(value) => {
            changes.set(name, value);
        }
        _ => return None,
    }
    Some(changes)
}

/// One that the server takes as it stands: shorter than NAMEDATALEN, printable ASCII.
fn is_plain_name(value: &str) -> bool {
    value.len() < 64 && value.bytes().all(|byte| (32..127).contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        Settings::new(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    fn parameters(pairs: &[(&str, &str)]) -> Parameters {
        let mut parameters = Parameters::default();
        pairs.iter().for_each(|(name, value)| parameters.set(name, value));
        parameters
    }

    #[test]
    fn what_a_server_must_say_is_asked_once() {
        let (greetings, database, user) = (Greetings::default(), Arc::from("d"), Arc::from("u"));
        let zone = settings(&[("TimeZone", "utc")]);
        assert!(greetings.get(&database, &user, &settings(&[])).is_none());
        greetings.learn(&database, &user, &parameters(&[("TimeZone", "GMT"), ("application_name", "")]));
        let (_, told) = greetings.get(&database, &user, &settings(&[("application_name", "psql")])).unwrap();
        assert_eq!(told.get("application_name"), Some("psql"));
        assert!(greetings.get(&database, &user, &zone).is_none());
        let shared = Arc::new(zone.clone());
        let before = parameters(&[("TimeZone", "GMT"), ("application_name", "other")]);
        let after = parameters(&[("TimeZone", "UTC"), ("application_name", "other")]);
        greetings.learn_settings(&database, &user, &shared, &before, &after);
        let (same, told) = greetings.get(&database, &user, &zone).unwrap();
        assert!(Arc::ptr_eq(&same, &shared));
        assert_eq!((told.get("TimeZone"), told.get("application_name")), (Some("UTC"), Some("")));
    }

    #[test]
    fn a_standby_is_heard_as_a_primary() {
        let (greetings, database, user) = (Greetings::default(), Arc::from("d"), Arc::from("u"));
        let zone = Arc::new(settings(&[("TimeZone", "utc")]));
        let reported = |standby| parameters(&[("TimeZone", "GMT"), ("in_hot_standby", standby)]);
        greetings.learn(&database, &user, &reported("off"));
        greetings.learn_settings(&database, &user, &zone, &reported("off"), &reported("off"));
        greetings.learn(&database, &user, &reported("on"));
        let (_, told) = greetings.get(&database, &user, &settings(&[])).unwrap();
        assert_eq!(told.get("in_hot_standby"), Some("off"));
        assert!(greetings.get(&database, &user, &zone).is_some(), "it has no other defaults");
    }

    #[test]
    fn a_default_that_changed_is_told_from_then_on() {
        let (greetings, database, user) = (Greetings::default(), Arc::from("d"), Arc::from("u"));
        let mut books = crate::engine::Books {
            parameters: parameters(&[
                ("TimeZone", "GMT"),
                ("DateStyle", "ISO, MDY"),
                ("is_superuser", "off"),
            ]),
            settings: Arc::new(settings(&[("datestyle", "German"), ("role", "boss")])),
            ..crate::engine::Books::default()
        };
        greetings.learn(&database, &user, &books.parameters);
        for (name, value) in [
            ("TimeZone", "Asia/Tokyo"),
            ("DateStyle", "German, DMY"),
            ("is_superuser", "on"),
            ("TimeZone", "Asia/Tokyo"),
        ] {
            books.report(name, value, protocol::tracker::Owner::Client);
        }
        let news = crate::engine::Engine::default().take_news(&mut books);
        let pair = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        assert_eq!(news.unset, pair("TimeZone", "Asia/Tokyo"));
        assert_eq!(news.reset, pair("DateStyle", "German, DMY"), "set anew by nothing that is seen");
        assert!(!books.has_reported());
        assert_eq!(greetings.unknown_of(&database, &user, pair("TimeZone", "GMT")), []);
        assert_eq!(greetings.unknown_of(&database, &user, news.unset.clone()), news.unset);
        greetings.learn_defaults(&database, &user, &news.unset);
        let (_, told) = greetings.get(&database, &user, &settings(&[])).unwrap();
        assert_eq!((told.get("TimeZone"), told.get("DateStyle")), (Some("Asia/Tokyo"), Some("ISO, MDY")));
    }

    #[test]
    fn other_defaults_forget_what_was_tried() {
        let (greetings, database, user) = (Greetings::default(), Arc::from("d"), Arc::from("u"));
        let zone = Arc::new(settings(&[("TimeZone", "utc")]));
        let first = parameters(&[("TimeZone", "GMT")]);
        greetings.learn(&database, &user, &first);
        greetings.learn_settings(&database, &user, &zone, &first, &parameters(&[("TimeZone", "UTC")]));
        greetings.learn(&database, &user, &parameters(&[("TimeZone", "Europe/Paris")]));
        assert!(greetings.get(&database, &user, &zone).is_none());
    }
}
