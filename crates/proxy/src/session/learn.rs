//! A backend has reported parameters that nothing followed is behind: whose they are is found out before anybody else
//! gets it.
//!
//! What a statement of the client has set out of sight, in a function, is the client's setting from then on. What an
//! administrator has changed is everybody's default. A backend that tells neither is closed.

use std::sync::Arc;

use super::Session;
use super::settle::{ExchangeError, ask};
use crate::backend::Backend;
use crate::settings::Literal;

type Values = Vec<(String, String)>;

/// Who the session is shows in these; who made it so is not told.
const WHO: [&str; 2] = ["is_superuser", "session_authorization"];

impl Session {
    /// Learns from what the backend has reported, which is idle.
    pub(super) async fn learn(&mut self, backend: &mut Backend) -> Result<(), ExchangeError> {
        if !backend.books.has_reported() {
            return Ok(());
        }
        let news = self.engine.take_news(&mut backend.books);
        let (database, user) = (&self.identity.database, &self.identity.user);
        let unset = self.worker.shared.greetings.unknown_of(database, user, news.unset);
        if !news.reset.is_empty() {
            self.engine.adopt(news.reset, &mut backend.books);
        }
        if unset.is_empty() {
            return Ok(());
        }
        // Boxed: what is rare must not make every session larger.
        Box::pin(self.tell_apart(backend, unset)).await
    }

    async fn tell_apart(&mut self, backend: &mut Backend, unset: Values) -> Result<(), ExchangeError> {
        if unset.iter().any(|(name, _)| WHO.contains(&name.as_str())) {
            return Err(ExchangeError::Lost(std::io::ErrorKind::InvalidData.into()));
        }
        let rows = ask(backend, sources(&unset).as_bytes()).await?;
        backend.books.prepared.set_unnamed(None);
        let from = |name: &str, source: &str| {
            rows.iter()
                .any(|row| matches!(row.as_slice(), [Some(known), Some(of)] if known == name && of == source))
        };
        let all = |source: &str| -> Values {
            unset.iter().filter(|(name, _)| from(name, source)).cloned().collect()
        };
        let (own, defaults) = (all("session"), all("default"));
        if !defaults.is_empty() {
            let (database, user) = (&self.identity.database, &self.identity.user);
            self.worker.shared.greetings.learn_defaults(database, user, &defaults);
        }
        if !own.is_empty() {
            if !Arc::ptr_eq(&backend.books.settings, self.engine.settings()) {
                return Err(ExchangeError::Lost(std::io::ErrorKind::InvalidData.into()));
            }
            tracing::debug!(client = self.client.entry.id, settings = ?own, "settings found by what was reported");
            self.engine.adopt(own, &mut backend.books);
        }
        Ok(())
    }
}

/// Asks where parameters have their values from. Those of the role and the database are told by new connections.
fn sources(values: &Values) -> String {
    let names: Vec<String> = values.iter().map(|(name, _)| Literal(name).to_string()).collect();
    format!(
        "SELECT name, CASE WHEN source = 'session' THEN source WHEN source IN ('default', 'environment variable', \
         'configuration file', 'command line', 'global') THEN 'default' END FROM pg_catalog.pg_settings \
         WHERE name IN ({})",
        names.join(",")
    )
}
