//! Secrets of users who are not in `pool_passwd`: `auth_query`, asked of a node.
//!
//! Invariants: the user's name is a bound parameter, the connection is our own (as `auth_user`, with a fixed
//! `search_path`, before anything of a client's is known), one lookup has a deadline, few run at a time, and what is
//! remembered is bounded in number and time, "no such user" included.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cluster::{Node, NodeState, Role, Topology};
use config::Config;
use config::secrets::Secret;
use parking_lot::Mutex;
use protocol::auth::Learned;
use telemetry::Published;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::connect::{
    ConnectError, ConnectOptions, Connected, Keepalive, NodeAddress, QueryError, Rows, connect, credentials,
    query_with,
};
use crate::tls::{NodeTls, TlsSetup};

/// The roles that a role is a member of, itself included; every role may ask.
const GROUPS: &str = "WITH RECURSIVE mine (oid) AS ( \
       SELECT oid FROM pg_catalog.pg_roles WHERE rolname = $1 \
       UNION SELECT member.roleid FROM pg_catalog.pg_auth_members AS member JOIN mine ON member.member = mine.oid \
     ) SELECT role.rolname FROM pg_catalog.pg_roles AS role JOIN mine ON role.oid = mine.oid";
/// How long one lookup may take, connecting included.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for the server, a little less so that it says so itself.
const STATEMENT_TIMEOUT: &str = "4500";
/// How many lookups run at a time; as many connections are kept.
const TURNS: usize = 4;
/// How many answers are remembered.
const MAX_ANSWERS: usize = 10_000;
/// After a failed login an answer older than this is not believed any more: the password may be a new one.
const DOUBTFUL_AFTER: Duration = Duration::from_secs(1);

/// Why a lookup gave no answer. The client is told nothing of it.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// There is no node to ask.
    #[error("auth_query: no node is alive")]
    NoNode,
    /// No connection to a node.
    #[error("auth_query: cannot log in as auth_user to node {node}: {error}")]
    Connect {
        /// The last node that was tried.
        node: u16,
        /// Why.
        error: ConnectError,
    },
    /// The query failed.
    #[error("auth_query: {0}")]
    Query(#[from] QueryError),
    /// The answer is none.
    #[error("auth_query returned {0}")]
    Nonsense(&'static str),
    /// No answer in time.
    #[error("auth_query: no answer within {LOOKUP_TIMEOUT:?}")]
    TimedOut,
}

/// See the module's documentation.
pub struct Lookups {
    config: Published<Config>,
    topology: Published<Topology>,
    tls: Published<TlsSetup>,
    answers: Mutex<HashMap<String, Answer<Option<Secret>>>>,
    groups: Mutex<HashMap<String, Answer<Vec<String>>>>,
    idle: Mutex<Vec<Link>>,
    turns: Semaphore,
}

struct Answer<T> {
    at: Instant,
    value: T,
}

fn remembered<T: Clone>(
    answers: &Mutex<HashMap<String, Answer<T>>>,
    user: &str,
    period: Duration,
) -> Option<T> {
    let answers = answers.lock();
    answers.get(user).filter(|answer| answer.at.elapsed() < period).map(|answer| answer.value.clone())
}

fn remember<T>(answers: &Mutex<HashMap<String, Answer<T>>>, user: &str, value: T, period: Duration) {
    let mut answers = answers.lock();
    if answers.len() >= MAX_ANSWERS {
        answers.retain(|_, answer| answer.at.elapsed() < period);
    }
    if answers.len() >= MAX_ANSWERS {
        answers.clear();
    }
    answers.insert(user.to_owned(), Answer { at: Instant::now(), value });
}

/// Who asks.
#[derive(Clone, Copy)]
enum As {
    /// `auth_user`, for secrets.
    AuthUser,
    /// `sr_check_user`, for what everybody may know.
    CheckUser,
}

/// A connection, and what it was made with: others are of no use after a reload.
struct Link {
    connected: Connected,
    to: Target,
}

#[derive(Clone, PartialEq)]
struct Target {
    address: Arc<NodeAddress>,
    node: u16,
    user: String,
    database: String,
    secret: Option<Secret>,
    tls: Arc<NodeTls>,
}

impl fmt::Debug for Lookups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookups").field("answers", &self.answers.lock().len()).finish_non_exhaustive()
    }
}

impl Lookups {
    /// Nothing is known yet.
    pub(crate) fn new(
        config: Published<Config>,
        topology: Published<Topology>,
        tls: Published<TlsSetup>,
    ) -> Self {
        Self {
            config,
            topology,
            tls,
            answers: Mutex::default(),
            groups: Mutex::default(),
            idle: Mutex::default(),
            turns: Semaphore::new(TURNS),
        }
    }

    /// The secret of a user who is not in `pool_passwd`; `None` when nobody knows the user, when it may not log in, or
    /// when there is no `auth_query`.
    ///
    /// # Errors
    /// When nobody could be asked.
    pub async fn secret(&self, user: &str) -> Result<Option<Secret>, LookupError> {
        let config = self.config.load();
        let Some(query) = &config.auth_query else { return Ok(None) };
        if let Some(secret) = remembered(&self.answers, user, config.auth_query_cache_period) {
            return Ok(secret);
        }
        // It is never closed.
        let _turn = self.turns.acquire().await.map_err(|_| LookupError::NoNode)?;
        if let Some(secret) = remembered(&self.answers, user, config.auth_query_cache_period) {
            return Ok(secret);
        }
        let asking = Box::pin(self.ask(&config, As::AuthUser, query, user));
        let rows = timeout(LOOKUP_TIMEOUT, asking).await.unwrap_or(Err(LookupError::TimedOut))?;
        let secret = secret_in(&rows, user)?;
        remember(&self.answers, user, secret.clone(), config.auth_query_cache_period);
        Ok(secret)
    }

    /// The roles that the user is a member of, itself included; none of a user who does not exist.
    ///
    /// # Errors
    /// When nobody could be asked.
    pub async fn groups(&self, user: &str) -> Result<Vec<String>, LookupError> {
        let config = self.config.load();
        if let Some(groups) = remembered(&self.groups, user, config.auth_query_cache_period) {
            return Ok(groups);
        }
        // It is never closed.
        let _turn = self.turns.acquire().await.map_err(|_| LookupError::NoNode)?;
        let asking = Box::pin(self.ask(&config, As::CheckUser, GROUPS, user));
        let rows = timeout(LOOKUP_TIMEOUT, asking).await.unwrap_or(Err(LookupError::TimedOut))?;
        let groups: Vec<String> = rows.into_iter().flatten().flatten().collect();
        remember(&self.groups, user, groups.clone(), config.auth_query_cache_period);
        Ok(groups)
    }

    /// Everything is asked again.
    pub fn forget(&self) {
        self.answers.lock().clear();
        self.groups.lock().clear();
        self.idle.lock().clear();
    }

    /// The user could not prove itself by what is remembered.
    pub fn doubt(&self, user: &str) {
        let mut answers = self.answers.lock();
        if answers.get(user).is_some_and(|answer| answer.at.elapsed() > DOUBTFUL_AFTER) {
            answers.remove(user);
        }
    }

    async fn ask(&self, config: &Config, who: As, query: &str, user: &str) -> Result<Rows, LookupError> {
        let targets = self.targets(config, who);
        if let Some(mut link) = self.kept(&targets) {
            match query_with(&mut link.connected, query, &[user], LOOKUP_TIMEOUT).await {
                Err(error) if !error.is_connection_usable() => {
                    tracing::debug!(%error, "auth_query: connection lost");
                }
                answered => {
                    self.keep(link);
                    return Ok(answered?);
                }
            }
        }
        let mut link = open(targets, config).await?;
        let answered = query_with(&mut link.connected, query, &[user], LOOKUP_TIMEOUT).await;
        if answered.as_ref().err().is_none_or(QueryError::is_connection_usable) {
            self.keep(link);
        }
        Ok(answered?)
    }

    /// The nodes that may be asked, the primary first: nobody knows better who may log in.
    fn targets(&self, config: &Config, who: As) -> Vec<Target> {
        let (user, own) = match who {
            As::AuthUser => (config.auth_user.clone().unwrap_or_default(), None),
            As::CheckUser => {
                let own = config.sr_check_password.clone();
                (config.sr_check_user.clone(), own.map(Secret::Plain))
            }
        };
        let secret = own.or_else(|| config.secrets.get(&user).cloned());
        let target = |node: &Node| Target {
            address: Arc::new(NodeAddress { hostname: node.hostname.to_string(), port: node.port }),
            node: node.id.0,
            secret: secret.clone(),
            user: user.clone(),
            database: config.auth_dbname.clone().unwrap_or_else(|| config.sr_check_database.clone()),
            tls: Arc::clone(&self.tls.load().nodes),
        };
        let topology = self.topology.load();
        let mut alive: Vec<&Node> =
            topology.nodes.iter().filter(|node| node.state == NodeState::Up).collect();
        alive.sort_by_key(|node| node.role != Role::Primary);
        alive.into_iter().map(target).collect()
    }

    fn kept(&self, targets: &[Target]) -> Option<Link> {
        let mut idle = self.idle.lock();
        let place = idle.iter().position(|link| targets.contains(&link.to))?;
        let Link { connected, to } = idle.swap_remove(place);
        drop(idle);
        // It was watched by the reactor of whoever asked last.
        let stream = connected.stream.rehome().ok()?;
        Some(Link { connected: Connected { stream, ..connected }, to })
    }

    fn keep(&self, link: Link) {
        let mut idle = self.idle.lock();
        if idle.len() >= TURNS {
            // Of another node or user than are asked now, sooner or later.
            idle.remove(0);
        }
        idle.push(link);
    }
}

async fn open(targets: Vec<Target>, config: &Config) -> Result<Link, LookupError> {
    let mut failure = LookupError::NoNode;
    for to in targets {
        let options = ConnectOptions {
            address: Arc::clone(&to.address),
            tls: Arc::clone(&to.tls),
            user: to.user.clone(),
            database: to.database.clone(),
            params: [
                ("application_name", "pgweir auth_query"),
                ("search_path", "pg_catalog, pg_temp"),
                ("statement_timeout", STATEMENT_TIMEOUT),
                ("default_transaction_read_only", "on"),
                ("client_encoding", "UTF8"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
            credentials: credentials(to.secret.as_ref(), &Learned::Nothing),
            connect_timeout: config.connect_timeout,
            keepalive: Keepalive::from(config),
        };
        match connect(&options).await {
            Ok(connected) => return Ok(Link { connected, to }),
            Err(error) => failure = LookupError::Connect { node: to.node, error },
        }
    }
    Err(failure)
}

/// One row with the user and the secret; no row, or no secret, is nobody.
fn secret_in(rows: &Rows, user: &str) -> Result<Option<Secret>, LookupError> {
    let row = match rows.as_slice() {
        [] => return Ok(None),
        [row] => row,
        _ => return Err(LookupError::Nonsense("more than one row")),
    };
    match row.as_slice() {
        [Some(name), _] if name != user => Err(LookupError::Nonsense("another user's row")),
        [Some(_), Some(secret)] => match Secret::stored(secret) {
            Some(secret) => Ok(Some(secret)),
            None => Err(LookupError::Nonsense("a secret that is neither md5 nor SCRAM-SHA-256")),
        },
        [_, None] | [None, Some(_)] => Ok(None),
        _ => Err(LookupError::Nonsense("another number of columns than two")),
    }
}
