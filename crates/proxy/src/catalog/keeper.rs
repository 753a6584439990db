//! The task that asks one database, and publishes what it says.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cluster::{Epoch, Node, NodeId};
use config::Config;
use config::secrets::Secret;
use protocol::auth::Learned;
use telemetry::Backoff;

use super::knowledge::{Facts, Knowledge, MAX_BYTES, Nonsense, State};
use super::{Database, SharedRules};
use crate::connect::{
    ConnectError, Connected, NodeAddress, QueryError, close, connect, credentials, query, query_large,
};
use crate::open::{OpenAs, connect_options};
use crate::shared::Shared;

const DIGEST: &str = include_str!("digest.sql");
const FACTS: &str = include_str!("facts.sql");
/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pauses after failures.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Between two questions, however often somebody rings.
const LEAST_PAUSE: Duration = Duration::from_millis(5);
/// A database without sessions is forgotten after so long.
const FORGET: Duration = Duration::from_secs(60);

/// Why a database could not be asked.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("no node is up")]
    NoNode,
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error(transparent)]
    Nonsense(#[from] Nonsense),
}

/// A connection, and what it was made to.
struct Link {
    connected: Connected,
    node: NodeId,
    since: Epoch,
}

/// What was read last.
struct Read {
    digest: String,
    facts: Arc<Facts>,
    rules: SharedRules,
}

/// See the module's documentation.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    database: Arc<Database>,
    link: Option<Link>,
    read: Option<Read>,
    /// The check user may not come in.
    as_session: bool,
    backoff: Backoff,
    /// What was said last about its failures: the same is not said twice.
    said: Option<String>,
    used: Instant,
}

impl Keeper {
    pub(super) fn new(shared: Arc<Shared>, database: Arc<Database>) -> Self {
        Self {
            shared,
            database,
            link: None,
            read: None,
            as_session: false,
            backoff: Backoff::new(PAUSE.0, PAUSE.1),
            said: None,
            used: Instant::now(),
        }
    }

    /// Asks again and again, until nobody uses the database.
    pub(super) async fn run(mut self) {
        loop {
            let pause = match Box::pin(self.check()).await {
                Ok(()) => {
                    self.backoff.reset();
                    self.said = None;
                    tokio::time::sleep(LEAST_PAUSE).await;
                    self.shared.deps.config.load().catalog_check_period
                }
                Err(failure) => {
                    self.failed(&failure);
                    self.backoff.delay(rand::random())
                }
            };
            if self.is_forgotten() {
                if let Some(link) = self.link.take() {
                    close(link.connected).await;
                }
                return;
            }
            // A failure is not repeated faster because many ask.
            let wake = self.database.wake.notified();
            if self.said.is_some() {
                tokio::time::sleep(pause).await;
            } else if tokio::time::timeout(pause, wake).await.is_ok() {
                tracing::trace!(database = &*self.database.name, "asked for the catalog");
            }
        }
    }

    fn is_forgotten(&mut self) -> bool {
        // The map's, the keeper's, and those of sessions.
        if Arc::strong_count(&self.database) > 2 {
            self.used = Instant::now();
        }
        self.used.elapsed() >= FORGET && self.shared.catalogs.leave(&self.database)
    }

    fn failed(&mut self, failure: &Failure) {
        // At best it stands in a transaction that has failed.
        self.link = None;
        let knowledge = self.database.knowledge.load();
        if matches!(knowledge.state, State::Loading | State::Changed) {
            let rules = Arc::clone(&knowledge.rules);
            self.database.knowledge.publish(Knowledge::careful(rules, State::Unknown));
        }
        self.database.has_failed();
        let error = failure.to_string();
        if self.said.as_ref() != Some(&error) {
            let database = &*self.database.name;
            tracing::warn!(
                database,
                error,
                "cannot read the catalog: what it would decide goes to the primary"
            );
            self.said = Some(error);
        }
    }

    /// Asks once, and publishes what is known then.
    async fn check(&mut self) -> Result<(), Failure> {
        let mut something_new = false;
        loop {
            let began = self.database.changes.load(Ordering::Acquire);
            let rules = self.shared.catalogs.rules();
            let digest = self.digest().await?;
            let known = self.read.as_ref().filter(|read| read.digest == digest);
            let known = known.filter(|read| Arc::ptr_eq(&read.rules, &rules));
            let facts = match known {
                Some(read) => Arc::clone(&read.facts),
                None => {
                    something_new = true;
                    let facts = self.facts(digest.clone(), &rules).await?;
                    // What changed in between is read again the next time: a setting that is changed back by then would
                    // show in no digest.
                    if self.digest().await? != digest {
                        self.read = None;
                    }
                    facts
                }
            };
            if self.database.changes.load(Ordering::Acquire) != began {
                tokio::time::sleep(LEAST_PAUSE).await;
                continue;
            }
            let published = self.database.knowledge.load();
            let known = Knowledge::known(facts, rules);
            if published.state != State::Known || published.generation != known.generation {
                self.database.knowledge.publish(known);
                // A change may have been told between the look and the publication: it must not be undone.
                if self.database.changes.load(Ordering::Acquire) != began {
                    self.database.suspect(&self.shared.catalogs.rules());
                    continue;
                }
            }
            self.database.has_answered(began, something_new);
            return Ok(());
        }
    }

    async fn digest(&mut self) -> Result<String, Failure> {
        let connected = self.connected().await?;
        let rows = query(connected, DIGEST, PATIENCE).await?;
        rows.into_iter().flatten().next().flatten().ok_or(Failure::Nonsense(Nonsense::Row))
    }

    async fn facts(&mut self, digest: String, rules: &SharedRules) -> Result<Arc<Facts>, Failure> {
        let began = Instant::now();
        let connected = self.connected().await?;
        let rows = query_large(connected, FACTS, PATIENCE, MAX_BYTES).await?;
        let facts = Arc::new(Facts::read(&rows, rules, self.shared.catalogs.number())?);
        let (database, names, took) = (&*self.database.name, facts.catalog.len(), began.elapsed());
        tracing::debug!(database, names, took_ms = took.as_secs_f64() * 1e3, "catalog read");
        self.read = Some(Read { digest, facts: Arc::clone(&facts), rules: Arc::clone(rules) });
        Ok(facts)
    }

    /// The connection to the primary, or to a standby while there is none.
    async fn connected(&mut self) -> Result<&mut Connected, Failure> {
        let topology = self.shared.deps.topology.load();
        let primary = topology.primary_node().filter(|node| node.is_usable());
        let node = primary.or_else(|| topology.usable_standbys().next()).ok_or(Failure::NoNode)?;
        let fits = |link: &Link| link.node == node.id && link.since == node.changed_epoch;
        let link = match self.link.take().filter(fits) {
            Some(link) => link,
            None => {
                let connected = self.connect(node).await?;
                Link { connected, node: node.id, since: node.changed_epoch }
            }
        };
        Ok(&mut self.link.insert(link).connected)
    }

    async fn connect(&mut self, node: &Node) -> Result<Connected, ConnectError> {
        let config = self.shared.deps.config.load();
        if !self.as_session {
            match self.connect_as(node, &config, &check_user(&config, &self.database.name)).await {
                Ok(connected) => return Ok(connected),
                // It is the server that does not want this user: another may do.
                Err(ConnectError::Rejected(_) | ConnectError::Auth(_)) => self.as_session = true,
                Err(error) => return Err(error),
            }
        }
        let who = Arc::clone(&self.database.who.lock());
        let connected = self.connect_as(node, &config, &who).await;
        // What is wrong may have been put right for either.
        self.as_session = connected.is_ok();
        connected
    }

    async fn connect_as(
        &self,
        node: &Node,
        config: &Config,
        who: &OpenAs,
    ) -> Result<Connected, ConnectError> {
        let address = NodeAddress { hostname: node.hostname.to_string(), port: node.port };
        let tls = Arc::clone(&self.shared.deps.tls.load().nodes);
        let mut options = connect_options(who, config, Arc::new(address), tls);
        let params = [
            ("application_name", "pgweir catalog"),
            ("search_path", "pg_catalog"),
            ("client_encoding", "UTF8"),
            ("jit", "off"),
        ];
        options.params = params.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        connect(&options).await
    }
}

/// The user of the replication check.
fn check_user(config: &Config, database: &Arc<str>) -> OpenAs {
    let own = config.sr_check_password.clone().map(Secret::Plain);
    let secret = own.or_else(|| config.secrets.get(&config.sr_check_user).cloned());
    OpenAs {
        database: Arc::clone(database),
        node_database: Arc::clone(database),
        user: config.sr_check_user.as_str().into(),
        credentials: credentials(secret.as_ref(), &Learned::Nothing),
    }
}
