//! The end of the login: the client's settings are tried, its parameters told.

use std::sync::Arc;

use protocol::error::{ClientFacing, PgError};
use protocol::message::TxStatus;
use protocol::sqlstate::SqlState;
use router::Target;

use super::acquire::Interrupt;
use super::settle::{ExchangeError, exchange};
use super::{End, Identity, Session};
use crate::backend::Backend;
use crate::engine::Books;
use crate::greeting::{Told, as_a_primary_reports};
use crate::settings::{Parameters, Settings};

/// Room for BackendKeyData with the secret of protocol 3.2 and for ReadyForQuery (bytes).
const KEY_AND_READY_LEN: usize = 64;

impl Session {
    /// Tells the client its parameters and its key. A login that a server would refuse is refused.
    pub(super) async fn greet(&mut self) -> Result<(), End> {
        let told = match self.identity.settings.bad_name() {
            Some(name) => return Err(End::refused(unrecognised(name))),
            None => self.told().await?,
        };
        self.put_greeting(&told)
            .map_err(|error| End::refused(PgError::fatal(SqlState::INTERNAL_ERROR, error.to_string())))?;
        self.parse.standard_conforming_strings = told.get("standard_conforming_strings") != Some("off");
        self.to_client.own(|own| protocol::write::ready_for_query(own, TxStatus::Idle.as_byte()));
        let sent = self.to_client.write_early(&mut self.stream, &self.from_server);
        self.count_sent(sent.map_err(End::ClientGone)?);
        self.flush().await
    }

    fn put_greeting(&mut self, told: &Told) -> Result<(), protocol::write::WriteError> {
        let messages = told.messages(self.is_read_only())?;
        let client = &self.client.entry;
        let mut written = Ok(());
        self.to_client.own(|own| {
            own.reserve(messages.len() + KEY_AND_READY_LEN);
            own.extend_from_slice(messages);
            written = protocol::write::backend_key_data(own, client.id, client.secret.bytes());
        });
        written
    }

    /// From here on they are the same memory for all sessions that asked for the same.
    fn start_settings(&mut self, settings: Arc<Settings>) {
        self.identity.settings = Arc::clone(&settings);
        self.engine.start_settings(settings);
    }

    async fn told(&mut self) -> Result<Arc<Told>, End> {
        let greetings = &self.worker.shared.greetings;
        let Identity { database, user, settings, .. } = &self.identity;
        if let Some((settings, told)) = greetings.get(database, user, settings) {
            self.start_settings(settings);
            return Ok(told);
        }
        let mut backend = self.acquire(Target::Anywhere).await.map_err(|interrupt| match interrupt {
            Interrupt::Refused(refusal) => End::refused(refusal.to_client().into_fatal()),
            Interrupt::End(end) => end,
        })?;
        let tried = self.try_settings(&mut backend).await;
        if !matches!(tried, Err(End::Refused(_) | End::NodeLost(_))) {
            self.client.entry.unbind();
        }
        match tried {
            Ok(parameters) => {
                self.give_back(backend).await;
                Ok(Arc::new(Told::new(parameters)))
            }
            Err(end) => Err(end),
        }
    }

    /// Brings the backend to the client's settings; what it reports then is what the client is told.
    async fn try_settings(&mut self, backend: &mut Backend) -> Result<Parameters, End> {
        let wanted = Arc::clone(&self.identity.settings);
        let (database, user) = (Arc::clone(&self.identity.database), Arc::clone(&self.identity.user));
        let plain = Arc::new(Settings::default());
        let before = bring_to(backend, &plain).await?;
        let parameters = bring_to(backend, &wanted).await?;
        let greetings = &self.worker.shared.greetings;
        greetings.learn(&database, &user, &before);
        greetings.learn_settings(&database, &user, &wanted, &before, &parameters);
        self.start_settings(wanted);
        Ok(parameters)
    }
}

async fn bring_to(backend: &mut Backend, wanted: &Arc<Settings>) -> Result<Parameters, End> {
    if let Some(sql) = wanted.statements_from(&backend.books.settings) {
        exchange(backend, sql.as_bytes()).await.map_err(|error| match error {
            ExchangeError::Server(error) => End::refused(error.into_fatal()),
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
