//! What a session's settings say to pgweir itself: read once for each set of them, not for each statement.

use std::sync::Arc;

use config::Consistency;
use router::{Hint, Isolation, TxMode};

use crate::catalog::Knowledge;
use crate::settings::{Setting, Settings};

/// The parameter that says where a session's reads go.
pub(super) const ROUTE: &str = "pgweir.route";
/// The settings that a transaction begins with.
const DEFAULTS: [&str; 2] = ["default_transaction_read_only", "default_transaction_isolation"];

/// See the module's documentation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Says {
    /// Where its reads go.
    pub(super) route: Option<Hint>,
    /// What its reads must show.
    pub(super) level: Option<Consistency>,
    /// How its transactions begin.
    pub(super) mode: TxMode,
}

/// The last set of settings, and what it says.
#[derive(Debug, Default)]
pub(super) struct Declared {
    settings: Arc<Settings>,
    says: Says,
    /// How transactions begin by what is known of that generation, and by what they say.
    mode: Option<(u64, TxMode)>,
}

impl Declared {
    /// What they say.
    pub(super) fn of(&mut self, settings: &Arc<Settings>) -> Says {
        if !Arc::ptr_eq(&self.settings, settings) {
            (self.says, self.mode) = (said_by(settings), None);
            self.settings = Arc::clone(settings);
        }
        self.says
    }

    /// How the transactions of `user` begin: what the session asks for goes before what is known of the database.
    pub(super) fn mode(&mut self, settings: &Arc<Settings>, knowledge: &Knowledge, user: &str) -> TxMode {
        let says = self.of(settings);
        match self.mode {
            Some((generation, mode)) if generation == knowledge.generation => mode,
            _ => {
                let mode = knowledge.default_mode(user).overlaid(says.mode);
                self.mode = Some((knowledge.generation, mode));
                mode
            }
        }
    }
}

fn said_by(settings: &Settings) -> Says {
    Says { route: route_of(settings), level: level_of(settings), mode: default_mode(settings) }
}

/// `SET pgweir.route`; what is no route there is none.
fn route_of(settings: &Settings) -> Option<Hint> {
    Hint::parse(&value_of(settings.get(ROUTE)?)?)
}

/// The text of a setting's value.
pub(super) fn value_of(setting: &Setting) -> Option<String> {
    match setting {
        Setting::Value(value) => Some(value.clone()),
        Setting::Statement(statement) => router::setting_value(statement),
    }
}

/// The transaction modes that the client asked for, at start-up or by SET. One that is not understood is taken
/// for the one that needs the primary.
fn default_mode(settings: &Settings) -> TxMode {
    let careful = TxMode { isolation: Some(Isolation::Serializable), ..TxMode::default() };
    let asked = DEFAULTS.into_iter().filter_map(|name| settings.get(name).map(|setting| (name, setting)));
    let modes = asked.map(|(name, setting)| {
        value_of(setting).and_then(|value| TxMode::from_setting(name, &value)).unwrap_or(careful)
    });
    modes.fold(TxMode::default(), TxMode::overlaid)
}

fn level_of(settings: &Settings) -> Option<Consistency> {
    match settings.get(router::own::CONSISTENCY)? {
        Setting::Value(text) | Setting::Statement(text) => named(text),
    }
}

/// The level that a value of the parameter names.
fn named(text: &str) -> Option<Consistency> {
    use Consistency::{Eventual, Global, Monotonic, ReadYourWrites};
    let mut words = text.rsplit(|letter: char| !letter.is_ascii_alphabetic() && letter != '_');
    words.find_map(|word| {
        [Eventual, ReadYourWrites, Monotonic, Global]
            .into_iter()
            .find(|level| word.eq_ignore_ascii_case(level.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::NodeId;
    use router::Change;

    fn set(statements: &[&str]) -> Settings {
        let mut settings = Settings::default();
        for statement in statements {
            for op in router::session_ops(statement.as_bytes(), true).unwrap() {
                let router::SessionOp::Changes(changes) = op else { panic!("{statement} is not followed") };
                changes.iter().for_each(|change: &Change| settings.change(change, &Settings::default()));
            }
        }
        settings
    }

    #[test]
    fn a_route_is_read_from_what_was_set() {
        let route = |statement: &str| route_of(&set(&[statement]));
        assert_eq!(route("SET pgweir.route = 'primary'"), Some(Hint::Primary));
        assert_eq!(route("SET pgweir.route TO standby"), Some(Hint::Standby));
        assert_eq!(route("SET SESSION \"pgweir\".\"route\" = 'node=2'"), Some(Hint::Node(NodeId(2))));
        assert_eq!(route("SELECT set_config('pgweir.route', 'standby', false)"), Some(Hint::Standby));
        assert_eq!(route("SET pgweir.route = 'auto'"), None);
        assert_eq!(route_of(&set(&["SET pgweir.route = 'primary'", "RESET pgweir.route"])), None);
        let start = Settings::new([("pgweir.route".to_owned(), "standby".to_owned())]);
        assert_eq!(route_of(&start), Some(Hint::Standby));
    }

    #[test]
    fn default_modes_are_read_from_what_was_set() {
        let mode = |statement: &str| default_mode(&set(&[statement]));
        assert_eq!(mode("SET default_transaction_read_only = on").read_only, Some(true));
        assert_eq!(mode("SET default_transaction_read_only TO 'false'").read_only, Some(false));
        let serializable = Some(Isolation::Serializable);
        assert_eq!(mode("SET default_transaction_isolation = 'serializable'").isolation, serializable);
        let repeatable = Some(Isolation::RepeatableRead);
        assert_eq!(mode("SET default_transaction_isolation TO 'repeatable read'").isolation, repeatable);
        let characteristics =
            "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY";
        assert_eq!(mode(characteristics).isolation, serializable);
        assert_eq!(mode(characteristics).read_only, Some(true));
        // Nonsense, which the server has refused: careful.
        assert_eq!(mode("SET default_transaction_isolation = 'nonsense'").isolation, serializable);
        assert_eq!(default_mode(&Settings::default()), TxMode::default());
    }

    #[test]
    fn levels_are_read_from_what_the_client_said() {
        for (text, level) in [
            ("global", Some(Consistency::Global)),
            ("SET pgweir.consistency = 'monotonic'", Some(Consistency::Monotonic)),
            ("SET SESSION pgweir . consistency TO Eventual", Some(Consistency::Eventual)),
            (
                "SELECT pg_catalog.set_config('pgweir.consistency','read_your_writes',false)",
                Some(Consistency::ReadYourWrites),
            ),
            ("SET pgweir.consistency = 'strong'", None),
            ("", None),
        ] {
            assert_eq!(named(text), level, "{text}");
        }
    }

    #[test]
    fn a_new_set_is_read_anew() {
        let mut declared = Declared::default();
        let standby = Arc::new(set(&["SET pgweir.route = 'standby'"]));
        assert_eq!(declared.of(&standby).route, Some(Hint::Standby));
        assert_eq!(declared.of(&standby).route, Some(Hint::Standby));
        assert_eq!(declared.of(&Arc::default()), Says::default());
    }
}
