//! The mappings inside the configuration: a node of `backends`, a database, a user. Tables like the main one.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::Sink;
use crate::fill::read_mapping;
use crate::key::{Key, table};
use crate::units::Unit::Seconds;
use crate::value::{Limits, Masked, Value, describe, is_clean, quote};
use crate::words::{BackendFlag, Consistency, PoolMode};
use crate::yaml::{Node, Step};

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;
const MANY: u64 = 1_000_000;

/// More nodes than this are refused: statistics and weights are kept per node and worker.
const MAX_BACKENDS: usize = 128;

/// The databases that pgweir answers itself.
pub const ADMIN_DATABASES: [&str; 2] = ["pgweir", "pgbouncer"];

table! {
    /// One PostgreSQL server; its position in the list is its node id.
    #[derive(Debug, Clone, PartialEq)]
    pub struct Backend {}

    /// The keys of a node of `backends`.
    pub static BACKEND_KEYS;

    section "A node of `backends`" {
        /// Name, address, or the directory of its Unix socket.
        hostname: String, Limits::none(), "", Reload, Active;
        /// TCP port, or the number in the socket's name.
        port: u16, Limits::count(1, 65535), "5432", Reload, Active;
        /// Share of the reads, in proportion to the other nodes' weights; 0 takes none.
        weight: f64, Limits::count(0, MANY), "1", Reload, Active;
        /// Whether a failed health check may take the node out, or the node is the primary by decree.
        flag: BackendFlag, Limits::none(), "ALLOW_TO_FAILOVER", Reload, Active;
        /// Among equally advanced standbys the highest is promoted first; 0 is never promoted.
        promotion_priority: u32, Limits::count(0, 1000), "1", Reload, Active;
        /// Its data directory, for commands.
        data_directory: Option<PathBuf>, Limits::none(), "null", Reload, Active;
        /// The application_name with which it connects to its primary.
        application_name: Option<String>, Limits::none(), "null", Reload, Active;
        /// How many connections pgweir may count on; unset, the node is asked for its `max_connections`.
        max_connections: Option<u32>, Limits::count(1, MANY), "null", Reload, Active;
        /// As the key of the same name, for this node only.
        health_check_period: Option<Duration>, Limits::of(Seconds, 10, DAY), "null", Reload, Active;
        /// As the key of the same name, for this node only.
        health_check_timeout: Option<Duration>, Limits::of(Seconds, 10, HOUR), "null", Reload, Active;
        /// As the key of the same name, for this node only.
        health_check_max_retries: Option<u32>, Limits::count(0, 1000), "null", Reload, Active;
        /// As the key of the same name, for this node only.
        health_check_retry_delay: Option<Duration>, Limits::of(Seconds, 0, HOUR), "null", Reload, Active;
        /// As the key of the same name, for this node only.
        health_check_user: Option<String>, Limits::none(), "null", Reload, Active;
        /// As the key of the same name, for this node only.
        health_check_password: Option<Masked>, Limits::none(), "null", Reload, Active;
        /// As the key of the same name, for this node only.
        health_check_database: Option<String>, Limits::none(), "null", Reload, Active;
    }
}

table! {
    /// Settings of one database; `None` is as the general key.
    #[derive(Debug, Clone, PartialEq)]
    pub struct DatabaseOverrides {}

    /// The keys of a database of `databases`.
    pub static DATABASE_KEYS;

    section "A database of `databases`" {
        /// The database's name on the nodes; unset, the name that the client asks for.
        dbname: Option<String>, Limits::none(), "null", Reload, Active;
        /// As the key of the same name, for this database.
        pool_mode: Option<PoolMode>, Limits::none(), "null", Reload, Active;
        /// As `default_pool_size`, for this database.
        pool_size: Option<u32>, Limits::count(1, MANY), "null", Reload, Active;
        /// As the key of the same name, for this database.
        min_pool_size: Option<u32>, Limits::count(0, MANY), "null", Reload, Active;
        /// As the key of the same name, for this database.
        reserve_pool_size: Option<u32>, Limits::count(0, MANY), "null", Reload, Active;
        /// As the key of the same name, for this database; 0 is no limit.
        max_db_connections: Option<u32>, Limits::count(0, MANY), "null", Reload, Active;
        /// As the key of the same name, for this database; 0 is no limit.
        max_db_client_connections: Option<u32>, Limits::count(0, MANY), "null", Reload, Active;
        /// As the key of the same name, for this database.
        consistency: Option<Consistency>, Limits::none(), "null", Reload, Active;
    }
}

table! {
    /// Settings of one user; `None` is as the general key.
    #[derive(Debug, Clone, PartialEq)]
    pub struct UserOverrides {}

    /// The keys of a user of `users`.
    pub static USER_KEYS;

    section "A user of `users`" {
        /// As the key of the same name, for this user.
        pool_mode: Option<PoolMode>, Limits::none(), "null", Reload, Active;
        /// As `default_pool_size`, for this user.
        pool_size: Option<u32>, Limits::count(1, MANY), "null", Reload, Active;
        /// As the key of the same name, for this user.
        min_pool_size: Option<u32>, Limits::count(0, MANY), "null", Reload, Active;
        /// As the key of the same name, for this user.
        reserve_pool_size: Option<u32>, Limits::count(0, MANY), "null", Reload, Active;
        /// As the key of the same name, for this user; 0 is no limit.
        max_user_connections: Option<u32>, Limits::count(0, MANY), "null", Reload, Active;
        /// As the key of the same name, for this user; 0 is no limit.
        max_user_client_connections: Option<u32>, Limits::count(0, MANY), "null", Reload, Active;
        /// As the key of the same name, for this user.
        consistency: Option<Consistency>, Limits::none(), "null", Reload, Active;
    }
}

impl fmt::Display for Backend {
    /// `host:port`, or the socket's path; IPv6 addresses in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.hostname.starts_with('/') {
            write!(f, "{}/.s.PGSQL.{}", self.hostname.trim_end_matches('/'), self.port)
        } else if self.hostname.contains(':') {
            write!(f, "[{}]:{}", self.hostname, self.port)
        } else {
            write!(f, "{}:{}", self.hostname, self.port)
        }
    }
}

/// `{ key: value, ... }` of everything that is not as by default; secrets masked.
fn mapping_text<C>(of: &C, keys: &[Key<C>]) -> String {
    let entries: Vec<String> = keys
        .iter()
        .map(|key| (key, key.text(of)))
        .filter(|(key, text)| text != key.default)
        .map(|(key, text)| format!("{}: {text}", key.name))
        .collect();
    if entries.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", entries.join(", ")) }
}

impl Value for Vec<Backend> {
    fn read(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Self> {
        let items = match node {
            Node::List(items) if (1..=MAX_BACKENDS).contains(&items.len()) => items,
            Node::List(items) => {
                let found = if items.is_empty() { "an empty list" } else { "a longer list" };
                return sink.error(found, format!("a list of 1 to {MAX_BACKENDS} nodes"));
            }
            other => return sink.error(describe(other), Self::expects(limits)),
        };
        let read = items.iter().enumerate().map(|(index, item)| {
            sink.within(&[Step::Item(index)], &format!("[{index}]"), |sink| {
                read_mapping(BACKEND_KEYS, Backend::blank(), item, sink)
            })
        });
        // Every row is read before the first failure counts, so that all errors are told.
        read.collect::<Vec<_>>().into_iter().collect()
    }

    fn text(&self, _: &Limits) -> String {
        format!(
            "[{}]",
            self.iter().map(|node| mapping_text(node, BACKEND_KEYS)).collect::<Vec<_>>().join(", ")
        )
    }

    fn expects(_: &Limits) -> String {
        "a list of nodes, each { hostname: ..., port: ..., weight: ..., ... }".to_owned()
    }
}

/// A mapping from names to mappings.
fn read_named<C>(
    keys: &'static [Key<C>],
    blank: fn() -> C,
    node: &Node,
    expects: String,
    sink: &mut Sink,
) -> Option<BTreeMap<String, C>> {
    let Node::Map(entries) = node else {
        return sink.error(describe(node), expects);
    };
    let mut named = BTreeMap::new();
    for (index, (name, value)) in entries.iter().enumerate() {
        let label = format!(".{}", quote(name));
        if !is_clean(name) || named.contains_key(name) {
            let found = if is_clean(name) { "a second entry of this name" } else { "an unusable name" };
            sink.within(&[Step::Key(index)], &label, |sink| sink.error::<()>(found, "each name once"));
            continue;
        }
        let read =
            sink.within(&[Step::Value(index)], &label, |sink| read_mapping(keys, blank(), value, sink));
        if let Some(read) = read {
            named.insert(name.clone(), read);
        }
    }
    if sink.failed() { None } else { Some(named) }
}

fn named_text<C>(named: &BTreeMap<String, C>, keys: &[Key<C>]) -> String {
    let entries: Vec<String> =
        named.iter().map(|(name, of)| format!("{}: {}", quote(name), mapping_text(of, keys))).collect();
    if entries.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", entries.join(", ")) }
}

impl Value for BTreeMap<String, DatabaseOverrides> {
    fn read(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Self> {
        read_named(DATABASE_KEYS, DatabaseOverrides::blank, node, Self::expects(limits), sink)
    }

    fn text(&self, _: &Limits) -> String {
        named_text(self, DATABASE_KEYS)
    }

    fn expects(_: &Limits) -> String {
        "a mapping of database names, each to { pool_mode: ..., pool_size: ..., ... }".to_owned()
    }
}

impl Value for BTreeMap<String, UserOverrides> {
    fn read(limits: &Limits, node: &Node, sink: &mut Sink) -> Option<Self> {
        read_named(USER_KEYS, UserOverrides::blank, node, Self::expects(limits), sink)
    }

    fn text(&self, _: &Limits) -> String {
        named_text(self, USER_KEYS)
    }

    fn expects(_: &Limits) -> String {
        "a mapping of user names, each to { pool_mode: ..., pool_size: ..., ... }".to_owned()
    }
}
