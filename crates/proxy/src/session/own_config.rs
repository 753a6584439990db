//! The configuration as one session has it: the process's, with what the session has changed for itself.

use std::sync::Arc;

use config::{Config, ConfigErrors, Consistency};
use telemetry::Reader;

/// What a session has changed, and what came of it.
#[derive(Debug)]
struct Own {
    changes: Vec<(&'static str, String)>,
    base: Arc<Config>,
    config: Arc<Config>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct OwnConfig {
    reader: Reader<Config>,
    own: Option<Box<Own>>,
    /// What held when it was looked last.
    now: Arc<Config>,
    /// What that says of the session's consistency, once it was asked.
    level: Option<Consistency>,
}

impl OwnConfig {
    pub(super) fn new(mut reader: Reader<Config>) -> Self {
        let now = Arc::clone(reader.load());
        Self { reader, own: None, now, level: None }
    }

    /// What held when [`OwnConfig::load`] looked last: at the beginning of the unit of work, or of the last wait.
    pub(super) fn get(&self) -> &Arc<Config> {
        &self.now
    }

    /// The level of consistency of that database and user, which are the session's.
    pub(super) fn consistency(&mut self, database: &str, user: &str) -> Consistency {
        *self.level.get_or_insert_with(|| self.now.consistency(database, user))
    }

    /// What holds for the session now.
    pub(super) fn load(&mut self) -> &Arc<Config> {
        let mut now = self.reader.load();
        if let Some(own) = &mut self.own {
            if !Arc::ptr_eq(now, &own.base) {
                own.base = Arc::clone(now);
                // What does not go together with a new configuration is given up.
                own.config = changed(now, &own.changes).unwrap_or_else(|_| Arc::clone(now));
            }
            now = &own.config;
        }
        if !Arc::ptr_eq(now, &self.now) {
            (self.now, self.level) = (Arc::clone(now), None);
        }
        &self.now
    }

    /// Changes a key for the session.
    pub(super) fn set(&mut self, key: &'static str, value: String) -> Result<(), ConfigErrors> {
        let base = Arc::clone(self.reader.load());
        let mut changes = self.own.take().map_or_else(Vec::new, |own| own.changes);
        let before = changes.clone();
        changes.retain(|(name, _)| *name != key);
        changes.push((key, value));
        let refused = changed(&base, &changes).map(|config| self.keep(base.clone(), changes, config)).err();
        if let Some(errors) = refused {
            self.restore(base, before);
            return Err(errors);
        }
        self.load();
        Ok(())
    }

    /// Takes changes back: of one key, or of all.
    pub(super) fn reset(&mut self, key: Option<&'static str>) {
        let base = Arc::clone(self.reader.load());
        let mut changes = self.own.take().map_or_else(Vec::new, |own| own.changes);
        changes.retain(|(name, _)| key.is_some_and(|key| key != *name));
        self.restore(base, changes);
        self.load();
    }

    fn restore(&mut self, base: Arc<Config>, changes: Vec<(&'static str, String)>) {
        if let Ok(config) = changed(&base, &changes)
            && !changes.is_empty()
        {
            self.keep(base, changes, config);
        }
    }

    fn keep(&mut self, base: Arc<Config>, changes: Vec<(&'static str, String)>, config: Arc<Config>) {
        self.own = Some(Box::new(Own { changes, base, config }));
    }
}

fn changed(base: &Config, changes: &[(&'static str, String)]) -> Result<Arc<Config>, ConfigErrors> {
    let changes: Vec<(&str, &str)> = changes.iter().map(|(key, value)| (*key, value.as_str())).collect();
    base.with(&changes, "PGPOOL SET").map(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::Published;

    #[test]
    fn a_session_keeps_its_changes_over_a_reload() {
        let config =
            |yaml: &str| config::parse(&format!("backends: [{{hostname: db0}}]\n{yaml}"), "test").unwrap();
        let published = Published::new(config(""));
        let mut own = OwnConfig::new(published.reader());
        assert!(own.load().load_balance_mode);
        own.set("load_balance_mode", "off".into()).unwrap();
        assert!(!own.load().load_balance_mode);
        assert!(own.set("load_balance_mode", "perhaps".into()).is_err());
        assert!(!own.load().load_balance_mode, "a refused change changes nothing");
        published.publish(config("query_timeout: 7s"));
        assert!(!own.load().load_balance_mode && own.load().query_timeout.is_some());
        own.reset(None);
        assert!(own.load().load_balance_mode);
    }
}
