//! Whom to log in as.

use anyhow::Result;

use crate::client::RawClient;
use crate::messages::startup;

/// Protocol 3.0.
pub const V3: u32 = 3 << 16;

/// Whom to log in as, and how.
#[derive(Clone, Debug)]
pub struct Login {
    user: String,
    database: String,
    password: String,
    version: u32,
    parameters: Vec<(String, String)>,
}

impl Login {
    /// A login whose password is the user's name, as for all roles of the harness.
    #[must_use]
    pub fn new(user: &str, database: &str) -> Self {
        let parameters = Vec::new();
        Self { user: user.into(), database: database.into(), password: user.into(), version: V3, parameters }
    }

    /// The role `bench` in the database `bench`.
    #[must_use]
    pub fn bench() -> Self {
        Self::new("bench", "bench")
    }

    /// Another password.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = password.into();
        self
    }

    /// A further startup parameter.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.parameters.push((name.into(), value.into()));
        self
    }

    /// Another protocol version.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    pub(crate) fn password_bytes(&self) -> &[u8] {
        self.password.as_bytes()
    }

    /// The startup packet.
    #[must_use]
    pub fn packet(&self) -> Vec<u8> {
        let own = [("user", self.user.as_str()), ("database", self.database.as_str())];
        let further = self.parameters.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        startup(self.version, &own.into_iter().chain(further).collect::<Vec<_>>())
    }

    /// Connects to a local port and logs in.
    ///
    /// # Errors
    /// The server's ErrorResponse as [`PgError`], or what went wrong with the connection.
    pub fn connect(&self, port: u16) -> Result<RawClient> {
        let mut client = RawClient::tcp(port)?;
        client.log_in(self)?;
        Ok(client)
    }
}
