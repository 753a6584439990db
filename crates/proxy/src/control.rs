//! What an administrator may do to clients and backends: PAUSE, RESUME, RECONNECT, KILL, KILL_CLIENT, ENABLE,
//! DISABLE, WAIT_CLOSE.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Proxy;
use crate::gates::{Gates, Scope};
use crate::pool::Pool;
use crate::registry::{ClientEntry, Flag};

/// How often it is looked whether what is waited for has happened.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Proxy {
    /// Which databases are paused or disabled.
    #[must_use]
    pub fn gates(&self) -> &Gates {
        &self.shared.gates
    }

    /// Gives no client of `scope` a backend, and waits until those that have one have given it back; their backends
    /// are closed. False when it was resumed meanwhile.
    pub async fn pause(&self, scope: &Scope) -> bool {
        self.shared.gates.pause(scope);
        self.renew(scope);
        let is_paused = || match scope {
            Scope::All => self.shared.gates.all_paused(),
            Scope::Database(name) => self.shared.gates.is_paused(name),
        };
        while self.clients_of(scope).any(|client| client.server().is_some()) || self.has_old(scope) {
            if !is_paused() {
                return false;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        is_paused()
    }

    /// Gives backends again; false when nothing was paused.
    pub fn resume(&self, scope: &Scope) -> bool {
        self.shared.gates.resume(scope)
    }

    /// Closes every backend of `scope` as soon as nobody has it.
    pub fn renew(&self, scope: &Scope) {
        let now = Instant::now();
        for pool in self.pools_of(scope) {
            pool.renew(now);
        }
        for client in self.clients_of(scope) {
            client.raise(Flag::Renew);
        }
    }

    /// Waits until every backend that was to be closed is.
    pub async fn wait_closed(&self, scope: &Scope) {
        while self.has_old(scope) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Ends every client of `scope` at once, and pauses it: new ones wait until it is resumed.
    pub fn kill(&self, scope: &Scope) {
        self.shared.gates.pause(scope);
        for client in self.clients_of(scope) {
            client.raise(Flag::Kill);
        }
        self.renew(scope);
    }

    /// Ends one client; false when there is none of that number.
    pub fn kill_client(&self, id: u32) -> bool {
        let client = self.shared.registry.client(id);
        client.inspect(|client| client.raise(Flag::Kill)).is_some()
    }

    /// Whether a client, the configuration or an earlier command knows the database.
    #[must_use]
    pub fn knows(&self, database: &str) -> bool {
        let config = self.shared.deps.config.load();
        config.databases.contains_key(database)
            || self.shared.gates.names(database)
            || self.pools().iter().any(|pool| name_of(pool) == database)
            || self.clients_of(&Scope::Database(database.to_owned())).next().is_some()
    }

    fn pools_of(&self, scope: &Scope) -> impl Iterator<Item = Arc<Pool>> {
        self.pools().into_iter().filter(|pool| scope.covers(&name_of(pool)))
    }

    /// Those of the admin database are not meant.
    fn clients_of(&self, scope: &Scope) -> impl Iterator<Item = Arc<ClientEntry>> {
        let ours = |database: &str| config::ADMIN_DATABASES.contains(&database);
        self.shared.registry.clients().into_iter().filter(move |client| {
            let database = client.names().database;
            !database.is_empty() && !ours(&database) && scope.covers(&database)
        })
    }

    fn has_old(&self, scope: &Scope) -> bool {
        let renewed: Vec<_> = self.pools_of(scope).filter_map(|pool| Some((pool.renewed()?, pool))).collect();
        let servers = self.shared.registry.servers();
        servers.iter().any(|server| {
            renewed.iter().any(|(at, pool)| {
                let key = &pool.key;
                key.node == server.node
                    && key.database == server.database
                    && key.user == server.user
                    && server.opened() < *at
            })
        })
    }
}

/// What clients call the pool's database.
fn name_of(pool: &Pool) -> String {
    pool.opened_as().map_or_else(|| pool.key.database.to_string(), |who| who.database.to_string())
}
