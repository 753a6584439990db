//! What holds for one database, user or node, and the rows of `SHOW CONFIG`.

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::NodeId;

use crate::hba::{ConnKind, Method};
use crate::key::Effect;
use crate::sections::{DatabaseOverrides, UserOverrides};
use crate::table::{Config, KEYS};
use crate::value::Masked;
use crate::words::{Consistency, PoolMode};

/// The name in `databases` and `users` that stands for all that are not named.
const ALL: &str = "*";

/// A row of `SHOW CONFIG`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The key.
    pub key: &'static str,
    /// Its value as YAML; a secret is masked.
    pub value: String,
    /// Its default as YAML; empty when it is required.
    pub default: &'static str,
    /// Does a reload apply a change?
    pub reloadable: bool,
    /// Is it a secret, so that `value` does not tell it?
    pub masked: bool,
}

/// The health check of one node: its own settings, else the general ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// Time between two checks.
    pub period: Duration,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// Further attempts before the node is taken for dead.
    pub max_retries: u32,
    /// Time between two attempts.
    pub retry_delay: Duration,
    /// Who asks.
    pub user: String,
    /// The password; `None` is the one in `pool_passwd`.
    pub password: Option<Masked>,
    /// Where.
    pub database: String,
}

/// The limit of `name`'s own entry, else that of all others, else the general one; 0 is no limit.
fn limit_of<T>(
    entries: &BTreeMap<String, T>,
    name: &str,
    own: impl Fn(&T) -> Option<u32>,
    general: Option<u32>,
) -> Option<u32> {
    let of = |name: &str| entries.get(name).and_then(&own);
    of(name).or_else(|| of(ALL)).or(general).filter(|limit| *limit > 0)
}

impl Config {
    /// The setting that holds for a database and a user. The more specific entry wins, and of two equally
    /// specific ones the user's: user, database, `users: "*"`, `databases: "*"`; `None` is the general key.
    fn override_for<T>(
        &self,
        database: &str,
        user: &str,
        of_database: impl Fn(&DatabaseOverrides) -> Option<T>,
        of_user: impl Fn(&UserOverrides) -> Option<T>,
    ) -> Option<T> {
        let of_user = |name: &str| self.users.get(name).and_then(&of_user);
        let of_database = |name: &str| self.databases.get(name).and_then(&of_database);
        of_user(user).or_else(|| of_database(database)).or_else(|| of_user(ALL)).or_else(|| of_database(ALL))
    }

    /// When this database's and user's backends go back to their pool.
    #[must_use]
    pub fn pool_mode(&self, database: &str, user: &str) -> PoolMode {
        self.override_for(database, user, |of| of.pool_mode, |of| of.pool_mode).unwrap_or(self.pool_mode)
    }

    /// Most backends for this database and user on each node.
    #[must_use]
    pub fn pool_size(&self, database: &str, user: &str) -> u32 {
        self.override_for(database, user, |of| of.pool_size, |of| of.pool_size)
            .unwrap_or(self.default_pool_size)
    }

    /// How old this database's and user's reads may be.
    #[must_use]
    pub fn consistency(&self, database: &str, user: &str) -> Consistency {
        self.override_for(database, user, |of| of.consistency, |of| of.consistency)
            .unwrap_or(self.consistency)
    }

    /// Backends that are kept open for this database and user on each node.
    #[must_use]
    pub fn min_pool_size(&self, database: &str, user: &str) -> u32 {
        self.override_for(database, user, |of| of.min_pool_size, |of| of.min_pool_size)
            .unwrap_or(self.min_pool_size)
    }

    /// Additional backends for this database's and user's clients that have waited long, on each node.
    #[must_use]
    pub fn reserve_pool_size(&self, database: &str, user: &str) -> u32 {
        self.override_for(database, user, |of| of.reserve_pool_size, |of| of.reserve_pool_size)
            .unwrap_or(self.reserve_pool_size)
    }

    /// Most client connections to this database.
    #[must_use]
    pub fn max_db_client_connections(&self, database: &str) -> Option<u32> {
        limit_of(&self.databases, database, |of| of.max_db_client_connections, self.max_db_client_connections)
    }

    /// Most client connections of this user.
    #[must_use]
    pub fn max_user_client_connections(&self, user: &str) -> Option<u32> {
        limit_of(&self.users, user, |of| of.max_user_client_connections, self.max_user_client_connections)
    }

    /// Most backends of this database on each node.
    #[must_use]
    pub fn max_db_connections(&self, database: &str) -> Option<u32> {
        limit_of(&self.databases, database, |of| of.max_db_connections, self.max_db_connections)
    }

    /// Most backends of this user on each node.
    #[must_use]
    pub fn max_user_connections(&self, user: &str) -> Option<u32> {
        limit_of(&self.users, user, |of| of.max_user_connections, self.max_user_connections)
    }

    /// The name on the nodes of the database that clients call `database`.
    #[must_use]
    pub fn dbname<'a>(&'a self, database: &'a str) -> &'a str {
        let named = |name: &str| self.databases.get(name).and_then(|of| of.dbname.as_deref());
        named(database).or_else(|| named(ALL)).unwrap_or(database)
    }

    /// The health check of a node; `None` when there is no such node.
    #[must_use]
    pub fn health_check(&self, node: NodeId) -> Option<HealthCheck> {
        let own = self.backends.get(node.index())?;
        let user = own.health_check_user.as_ref().or(self.health_check_user.as_ref());
        let password = own.health_check_password.as_ref().or(self.health_check_password.as_ref());
        let database = own.health_check_database.as_ref().or(self.health_check_database.as_ref());
        // Another user's password is no use: sr_check_password serves only its own user.
        let inherits = user.is_none_or(|user| *user == self.sr_check_user);
        let inherited = self.sr_check_password.as_ref().filter(|_| inherits);
        Some(HealthCheck {
            period: own.health_check_period.unwrap_or(self.health_check_period),
            timeout: own.health_check_timeout.unwrap_or(self.health_check_timeout),
            max_retries: own.health_check_max_retries.unwrap_or(self.health_check_max_retries),
            retry_delay: own.health_check_retry_delay.unwrap_or(self.health_check_retry_delay),
            user: user.unwrap_or(&self.sr_check_user).clone(),
            password: password.or(inherited).cloned(),
            database: database.unwrap_or(&self.sr_check_database).clone(),
        })
    }

    /// How a client has to prove who it is; `None` is a refusal because no rule matches. With `enable_pool_hba`
    /// off everybody needs SCRAM-SHA-256. `replication` is physical replication, see [`crate::hba::Rules::find`].
    #[must_use]
    pub fn hba_method(
        &self,
        conn: &ConnKind,
        database: &str,
        user: &str,
        replication: bool,
    ) -> Option<Method> {
        match &self.hba {
            None => Some(Method::ScramSha256),
            Some(rules) => rules.find(conn, database, user, replication).map(|rule| rule.method),
        }
    }

    /// Does a file set this key?
    #[must_use]
    pub fn is_given(&self, key: &str) -> bool {
        self.given.contains(key)
    }

    /// Every key with its value, for `SHOW CONFIG`, in the order of [`KEYS`].
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let row = |key: &'static crate::Key| Row {
            key: key.name,
            value: key.text(self),
            default: key.default,
            reloadable: key.effect == Effect::Reload,
            masked: key.masked,
        };
        KEYS.iter().map(row).collect()
    }

    /// Takes the values of keys that need a restart from the running configuration, so that this one tells
    /// what is in force after a reload.
    pub fn keep_restart_keys(&mut self, running: &Self) {
        for key in KEYS.iter().filter(|key| key.effect == Effect::Restart) {
            (key.copy)(self, running);
            if running.given.contains(key.name) {
                self.given.insert(key.name);
            } else {
                self.given.remove(key.name);
            }
        }
    }
}
