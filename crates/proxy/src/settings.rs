//! The settings a client asked for at start-up, and how a backend is brought to them.
//!
//! A backend remembers which set it carries; the difference is one simple Query in front of the
//! client's own message, in the same write.

mod again;

use std::fmt::Write;
use std::sync::Arc;

use router::Change;

pub use again::Scope;

/// How a parameter gets its value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Setting {
    /// The value's text, as a start-up packet gives it.
    Value(String),
    /// The client's own SET, to be repeated.
    Statement(String),
}

/// Configuration parameters and how they get their values, sorted by name (in lower case), each once.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Settings {
    pairs: Vec<(String, Setting)>,
    /// A backend that carries it may have others besides, of whatever names.
    unlisted: bool,
}

/// Who the session is; SET SESSION AUTHORIZATION ends a SET ROLE.
const AUTHORIZATION: &str = "session_authorization";
const ROLE: &str = "role";

impl Settings {
    /// The set of `pairs`; of two with the same name (in any case) the later wins, as in the server.
    #[must_use]
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut set = Self::default();
        for (name, value) in pairs {
            set.put(name.to_ascii_lowercase(), Setting::Value(value));
        }
        set
    }

    /// The parameters, sorted by name.
    #[must_use]
    pub fn pairs(&self) -> &[(String, Setting)] {
        &self.pairs
    }

    /// Asks for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Nothing of it is behind the value of the parameter `name` (in lower case), who the session is included.
    #[must_use]
    pub fn is_silent_on(&self, name: &str) -> bool {
        let as_somebody = || self.get(ROLE).is_some() || self.get(AUTHORIZATION).is_some();
        self.get(name).is_none() && !(name == "is_superuser" && as_somebody())
    }

    /// How `name` (in lower case) gets its value.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Setting> {
        let at = self.pairs.binary_search_by(|(known, _)| known.as_str().cmp(name)).ok()?;
        self.pairs.get(at).map(|(_, setting)| setting)
    }

    /// This set, and others besides that nobody has told of.
    #[must_use]
    pub fn with_unlisted(&self) -> Self {
        Self { unlisted: true, ..self.clone() }
    }

    /// The first name that no configuration parameter can have.
    #[must_use]
    pub fn bad_name(&self) -> Option<&str> {
        self.pairs.iter().map(|(name, _)| name.as_str()).find(|name| !is_parameter_name(name))
    }

    /// `name`, in any case, gets that value.
    pub fn set(&mut self, name: &str, value: String) {
        self.put(name.to_ascii_lowercase(), Setting::Value(value));
    }

    fn put(&mut self, name: String, setting: Setting) {
        match self.pairs.binary_search_by(|(known, _)| known.cmp(&name)) {
            Ok(at) => {
                if let Some(pair) = self.pairs.get_mut(at) {
                    pair.1 = setting;
                }
            }
            Err(at) => self.pairs.insert(at, (name, setting)),
        }
    }

    fn remove(&mut self, name: &str) {
        self.pairs.retain(|(known, _)| known != name);
    }

    /// Follows what the client did; a reset goes back to what `defaults` says.
    pub fn change(&mut self, change: &Change, defaults: &Self) {
        match change {
            Change::Set { name, statement } => {
                if name == AUTHORIZATION {
                    self.remove(ROLE);
                }
                self.put(name.clone(), Setting::Statement(statement.clone()));
            }
            Change::Reset { name } => match defaults.get(name) {
                Some(setting) => self.put(name.clone(), setting.clone()),
                None => self.remove(name),
            },
            Change::ResetLocal { .. } => {}
            // RESET ALL leaves who the session is alone (`GUC_NO_RESET_ALL`).
            Change::ResetAll => {
                let who: Vec<_> =
                    self.pairs.extract_if(.., |(name, _)| name == ROLE || name == AUTHORIZATION).collect();
                self.pairs.clone_from(&defaults.pairs);
                who.into_iter().for_each(|(name, setting)| self.put(name, setting));
            }
        }
    }

    /// The statements that take a backend from `have` to this set; `None` when there is nothing to do.
    ///
    /// Who the session is comes first on the way back and last on the way there: other settings may need
    /// the rights of the user who logged in.
    #[must_use]
    pub fn statements_from(&self, have: &Self) -> Option<String> {
        let other_user = self.get(AUTHORIZATION) != have.get(AUTHORIZATION);
        let other_role = other_user || self.get(ROLE) != have.get(ROLE);
        let mut sql = String::new();
        if other_role && have.get(ROLE).is_some() {
            sql.push_str("RESET ROLE;");
        }
        if other_user && have.get(AUTHORIZATION).is_some() {
            sql.push_str("RESET SESSION AUTHORIZATION;");
        }
        if have.unlisted {
            sql.push_str("RESET ALL;");
        }
        for (name, _) in have.plain().filter(|(name, _)| !have.unlisted && self.get(name).is_none()) {
            push(&mut sql, format_args!("RESET {name};"));
        }
        let differs = |name: &str, setting: &Setting| have.unlisted || have.get(name) != Some(setting);
        for (name, setting) in self.plain().filter(|(name, setting)| differs(name, setting)) {
            push_setting(&mut sql, name, setting);
        }
        for (name, changed) in [(AUTHORIZATION, other_user), (ROLE, other_role)] {
            if let Some(setting) = self.get(name).filter(|_| changed) {
                push_setting(&mut sql, name, setting);
            }
        }
        (!sql.is_empty()).then_some(sql)
    }

    /// The names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.pairs.iter().map(|(name, _)| name.as_str())
    }

    /// Those that RESET ALL brings back.
    pub fn names_that_reset_all_resets(&self) -> impl Iterator<Item = &str> {
        self.plain().map(|(name, _)| name.as_str())
    }

    /// What gives `name` (in lower case) its value again, if it has one here.
    #[must_use]
    pub fn again(&self, name: &str, scope: Scope) -> Option<String> {
        match self.get(name)? {
            Setting::Value(value) => Some(again::statement(name, value, scope)),
            Setting::Statement(_) => None,
        }
    }

    fn plain(&self) -> impl Iterator<Item = &(String, Setting)> {
        self.pairs.iter().filter(|(name, _)| name != ROLE && name != AUTHORIZATION)
    }
}

fn push_setting(sql: &mut String, name: &str, setting: &Setting) {
    match setting {
        Setting::Statement(statement) => push(sql, format_args!("{statement};")),
        Setting::Value(value) => {
            push(sql, format_args!("SELECT pg_catalog.set_config('{name}',{},false);", Literal(value)));
        }
    }
}

/// A text as an SQL literal that means the same whatever `standard_conforming_strings` is.
pub(crate) struct Literal<'a>(pub(crate) &'a str);

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

    fn changed(settings: &Settings, sql: &str, defaults: &Settings) -> Settings {
        let mut settings = settings.clone();
        for op in router::session_ops(sql.as_bytes(), true).unwrap() {
            let router::SessionOp::Changes(changes) = op else { panic!("{sql} is no change") };
            changes.iter().for_each(|change| settings.change(change, defaults));
        }
        settings
    }

    #[test]
    fn the_later_of_two_wins_whatever_the_case() {
        let settings = set(&[("DateStyle", "ISO"), ("app.x", "1"), ("datestyle", "German")]);
        assert_eq!(settings.pairs().len(), 2);
        assert_eq!(settings.get("datestyle"), Some(&Setting::Value("German".to_owned())));
    }

    #[test]
    fn only_the_difference_is_sent() {
        let have = set(&[("a", "1"), ("b", "2")]);
        let want = set(&[("b", "2"), ("c", "it's \\ x"), ("d", "s1, s2")]);
        let set_c = "SELECT pg_catalog.set_config('c',E'it''s \\\\ x',false);";
        let set_d = "SELECT pg_catalog.set_config('d',E's1, s2',false);";
        assert_eq!(want.statements_from(&have).unwrap(), format!("RESET a;{set_c}{set_d}"));
        assert_eq!(want.statements_from(&want), None);
        assert_eq!(Settings::default().statements_from(&have).unwrap(), "RESET a;RESET b;");
    }

    #[test]
    fn what_nobody_has_told_of_goes_with_all_the_rest() {
        let have = set(&[("a", "1"), ("b", "2")]);
        let set_a = "SELECT pg_catalog.set_config('a',E'1',false);";
        let wanted = set(&[("a", "1")]);
        assert_eq!(wanted.statements_from(&have.with_unlisted()).unwrap(), format!("RESET ALL;{set_a}"));
        assert_eq!(
            Settings::default().statements_from(&Settings::default().with_unlisted()).unwrap(),
            "RESET ALL;"
        );
    }

    #[test]
    fn what_the_client_set_is_repeated_and_reset() {
        let start = set(&[("TimeZone", "UTC")]);
        let none = Settings::default();
        let settings = changed(&start, "SET timezone = 'Asia/Tokyo'; SET app.x TO a, b", &start);
        assert_eq!(
            settings.statements_from(&none).unwrap(),
            "SET app . x TO a , b;SET timezone = 'Asia/Tokyo';".replace(" . ", ".")
        );
        assert_eq!(changed(&settings, "RESET ALL", &start), start);
        assert_eq!(changed(&settings, "RESET timezone; RESET app.x", &start), start);
        assert_eq!(changed(&settings, "SET timezone TO DEFAULT; RESET app.x", &none), none);
    }

    #[test]
    fn who_the_session_is_comes_last_and_goes_first() {
        let none = Settings::default();
        let boss = changed(&none, "SET ROLE boss; SET work_mem = 1", &none);
        assert_eq!(boss.statements_from(&none).unwrap(), "SET work_mem = 1;SET ROLE boss;");
        assert_eq!(none.statements_from(&boss).unwrap(), "RESET ROLE;RESET work_mem;");
        let bob = changed(&boss, "SET SESSION AUTHORIZATION bob", &none);
        assert_eq!(bob.get("role"), None);
        assert_eq!(bob.statements_from(&boss).unwrap(), "RESET ROLE;SET SESSION AUTHORIZATION bob;");
        let role = changed(&bob, "SET ROLE boss", &none);
        assert_eq!(
            role.statements_from(&boss).unwrap(),
            "RESET ROLE;SET SESSION AUTHORIZATION bob;SET ROLE boss;"
        );
        assert_eq!(
            changed(&role, "RESET ALL", &none).statements_from(&role),
            Some("RESET work_mem;".to_owned())
        );
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
