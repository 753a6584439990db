//! The end of the login: the client's settings are tried, its parameters told.

use std::sync::Arc;

use protocol::error::{ClientFacing, PgError};
use protocol::message::TxStatus;
use protocol::sqlstate::SqlState;
use router::Target;

use super::acquire::Interrupt;
use super::settle::{ExchangeError, exchange};
use super::{End, Session};
use crate::backend::Backend;
use crate::engine::Books;
use crate::greeting::{as_a_primary_reports, as_a_standby_reports};
use crate::settings::{Parameters, Settings};

impl Session {
    /// Tells the client its parameters and its key. A login that a server would refuse is refused.
    pub(super) async fn greet(&mut self) -> Result<(), End> {
        let parameters = match self.identity.settings.bad_name() {
            Some(name) => return Err(End::Refused(unrecognised(name))),
            None => self.parameters().await?,
        };
        let parameters = if self.is_read_only() { as_a_standby_reports(parameters) } else { parameters };
        if let Err(error) = self.put_greeting(&parameters) {
            return Err(End::Refused(PgError::fatal(SqlState::INTERNAL_ERROR, error.to_string())));
        }
        self.parse.standard_conforming_strings = parameters.get("standard_conforming_strings") != Some("off");
        self.to_client.own(|own| protocol::write::ready_for_query(own, TxStatus::Idle.as_byte()));
        self.flush().await
    }

    fn put_greeting(&mut self, parameters: &Parameters) -> Result<(), protocol::write::WriteError> {
        let client = Arc::clone(&self.client.entry);
        let mut written = Ok(());
        self.to_client.own(|own| {
            written = parameters
                .iter()
                .try_for_each(|(name, value)| protocol::write::parameter_status(own, name, value))
                .and_then(|()| protocol::write::backend_key_data(own, client.id, client.secret.bytes()));
        });
        written
    }

    async fn parameters(&mut self) -> Result<Parameters, End> {
        let greetings = &self.worker.shared.greetings;
        let (database, user) = (Arc::clone(&self.identity.database), Arc::clone(&self.identity.user));
        if let Some((settings, parameters)) = greetings.get(&database, &user, &self.identity.settings) {
            self.engine.start_settings(settings);
            return Ok(parameters);
        }
        let mut backend = self.acquire(Target::Anywhere).await.map_err(|interrupt| match interrupt {
            Interrupt::Refused(refusal) => End::Refused(refusal.to_client().into_fatal()),
            Interrupt::End(end) => end,
        })?;
        let tried = self.try_settings(&mut backend).await;
        if !matches!(tried, Err(End::Refused(_) | End::NodeLost(_))) {
            self.client.entry.unbind();
        }
        match tried {
            Ok(parameters) => {
                self.give_back(backend).await;
                Ok(parameters)
            }
            Err(end) => Err(end),
        }
    }

    /// Brings the backend to the client's settings; what it reports then is what the client is told.
    async fn try_settings(&mut self, backend: &mut Backend) -> Result<Parameters, End> {
        let wanted = Arc::new(self.identity.settings.clone());
        let (database, user) = (Arc::clone(&self.identity.database), Arc::clone(&self.identity.user));
        let plain = Arc::new(Settings::default());
        let before = bring_to(backend, &plain).await?;
        let parameters = bring_to(backend, &wanted).await?;
        let greetings = &self.worker.shared.greetings;
        greetings.learn(&database, &user, &before);
        greetings.learn_settings(&database, &user, &wanted, &before, &parameters);
        self.engine.start_settings(wanted);
        Ok(parameters)
    }
}

async fn bring_to(backend: &mut Backend, wanted: &Arc<Settings>) -> Result<Parameters, End> {
    if let Some(sql) = wanted.statements_from(&backend.books.settings) {
        exchange(backend, sql.as_bytes()).await.map_err(|error| match error {
            ExchangeError::Server(error) => End::Refused(error.into_fatal()),
            ExchangeError::Lost(error) => End::NodeLost(error),
        })?;
        backend.books.settings = Arc::clone(wanted);
    }
    let Books { parameters, .. } = &backend.books;
    Ok(as_a_primary_reports(parameters.clone()))
}

fn unrecognised(name: &str) -> PgError {
    PgError::fatal(SqlState::UNDEFINED_OBJECT, format!("unrecognized configuration parameter \"{name}\""))
}
