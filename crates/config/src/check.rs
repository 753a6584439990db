//! What cannot be true together: settings that are fine one by one.

use std::collections::BTreeMap;

use crate::pattern::Target;
use crate::sections::{ADMIN_DATABASES, Backend};
use crate::table::Config;
use crate::units::duration_text;
use crate::value::{quote, shorten};
use crate::words::{BackendFlag, BackendSslMode, FailoverMode, Ssl};
use crate::yaml::{Node, Step};

/// The kernel's `sun_path` holds this many bytes, the final zero included.
const MAX_SOCKET_PATH: usize = 108;

/// One step down to a culprit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The n-th item of a list.
    Item(usize),
    /// The entry of this name in a mapping.
    Name(String),
}

impl Turn {
    /// The step in this tree and what it leads to; `None` when the file does not have it.
    pub(crate) fn step<'n>(&self, node: &'n Node) -> Option<(Step, &'n Node)> {
        match (self, node) {
            (Self::Item(index), Node::List(items)) => {
                items.get(*index).map(|item| (Step::Item(*index), item))
            }
            (Self::Name(name), Node::Map(entries)) => {
                let found = entries.iter().enumerate().find(|(_, (key, _))| key == name);
                found.map(|(index, (_, value))| (Step::Value(index), value))
            }
            _ => None,
        }
    }
}

/// Settings that do not go together.
#[derive(Debug)]
pub(crate) struct Conflict {
    /// The keys at fault; it is told at the first of them that a file sets.
    pub(crate) keys: &'static [&'static str],
    /// From that key's value down to the culprit, as far as the file spells it out.
    pub(crate) path: Vec<Turn>,
    /// The key as it is told.
    pub(crate) key: String,
    pub(crate) found: String,
    pub(crate) expected: String,
}

impl Conflict {
    fn new(keys: &'static [&'static str], found: impl Into<String>, expected: impl Into<String>) -> Self {
        let key = keys.first().copied().unwrap_or_default().to_owned();
        Self { keys, path: Vec::new(), key, found: found.into(), expected: expected.into() }
    }

    /// At the n-th item of the list.
    fn at_item(mut self, index: usize) -> Self {
        self.path.push(Turn::Item(index));
        self.key.push_str(&format!("[{index}]"));
        self
    }

    /// At a name's entry of the mapping.
    fn at_name(mut self, name: &str) -> Self {
        self.path.push(Turn::Name(name.to_owned()));
        self.key.push_str(&format!(".{}", quote(name)));
        self
    }
}

/// Everything that does not go together.
pub(crate) fn conflicts(config: &Config) -> Vec<Conflict> {
    let mut all = Vec::new();
    backends(config, &mut all);
    own_addresses(config, &mut all);
    sockets(config, &mut all);
    pool_sizes(config, &mut all);
    connections(config, &mut all);
    admin_names(config, &mut all);
    redirects(config, &mut all);
    tls(config, &mut all);
    lookups(config, &mut all);
    promotion(config, &mut all);
    if config.sr_check_min_period > config.sr_check_period {
        let found = duration_text(config.sr_check_min_period);
        let most = duration_text(config.sr_check_period);
        all.push(Conflict::new(
            &["sr_check_min_period", "sr_check_period"],
            found,
            format!("at most sr_check_period ({most})"),
        ));
    }
    all
}

fn promotion(config: &Config, all: &mut Vec<Conflict>) {
    if config.failover_mode == FailoverMode::Command && config.failover_command.is_none() {
        let expected = "failover_command to be set as well: nothing would be promoted";
        all.push(Conflict::new(&["failover_mode"], "command", expected));
    }
}

const BACKENDS: &[&str] = &["backends"];

fn backends(config: &Config, all: &mut Vec<Conflict>) {
    if config.backends.is_empty() {
        let expected = "backends: a list of nodes, each { hostname: ..., port: ..., weight: ..., ... }";
        all.push(Conflict::new(BACKENDS, "no backends", expected));
    }
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut primary = None;
    for (index, backend) in config.backends.iter().enumerate() {
        if let Some(first) = seen.get(&backend.to_string()) {
            let found = format!("{backend}, which is backends[{first}] already");
            all.push(Conflict::new(BACKENDS, found, "each server once").at_item(index));
        }
        seen.entry(backend.to_string()).or_insert(index);
        if backend.flag == BackendFlag::AlwaysPrimary {
            if let Some(first) = primary {
                let found = format!("a second ALWAYS_PRIMARY after backends[{first}]");
                all.push(Conflict::new(BACKENDS, found, "one at most").at_item(index).at_name("flag"));
            }
            primary.get_or_insert(index);
        }
        if is_ourselves(config, backend) {
            let found = format!("{backend}, where pgweir itself is to listen");
            all.push(Conflict::new(BACKENDS, found, "a PostgreSQL server").at_item(index));
        }
    }
}

/// Names of "this machine, any address".
fn is_any(host: &str) -> bool {
    matches!(host, "*" | "0.0.0.0" | "::")
}

fn is_loopback(host: &str) -> bool {
    matches!(host, "localhost" | "127.0.0.1" | "::1")
}

/// Do two names of this machine mean a common address, as far as one can tell without asking the resolver?
fn overlap(one: &str, other: &str) -> bool {
    one == other || is_any(one) || is_any(other) || (is_loopback(one) && is_loopback(other))
}

fn is_ourselves(config: &Config, backend: &Backend) -> bool {
    let host = backend.hostname.as_str();
    if backend.port != config.port {
        return false;
    }
    if host.starts_with('/') {
        // The default directory is used only where it exists, so it is no evidence.
        let given = config.is_given("unix_socket_directories");
        let same = |own: &String| own.trim_end_matches('/') == host.trim_end_matches('/');
        return given && config.unix_socket_directories.iter().any(same);
    }
    let listens = |own: &String| own == host || (is_loopback(host) && (is_loopback(own) || is_any(own)));
    config.listen_addresses.iter().any(listens)
}

fn own_addresses(config: &Config, all: &mut Vec<Conflict>) {
    if config.listen_addresses.is_empty()
        && config.is_given("unix_socket_directories")
        && config.unix_socket_directories.is_empty()
    {
        let keys = &["listen_addresses", "unix_socket_directories"];
        all.push(Conflict::new(keys, "an empty list", "an address or a Unix socket to listen on"));
    }
    let Some(metrics) = config.metrics_listen.as_ref().filter(|metrics| metrics.port == config.port) else {
        return;
    };
    if config.listen_addresses.iter().any(|own| overlap(own, &metrics.host)) {
        let keys = &["metrics_listen", "port"];
        let expected = format!("another port than {}, where clients are served", config.port);
        all.push(Conflict::new(keys, quote(&metrics.to_string()), expected));
    }
}

fn sockets(config: &Config, all: &mut Vec<Conflict>) {
    for (index, directory) in config.unix_socket_directories.iter().enumerate() {
        let path = format!("{}/.s.PGSQL.{}", directory.trim_end_matches('/'), config.port);
        if path.len() >= MAX_SOCKET_PATH {
            let found = shorten(directory);
            let expected = format!("a directory whose socket's path has less than {MAX_SOCKET_PATH} bytes");
            all.push(Conflict::new(&["unix_socket_directories"], found, expected).at_item(index));
        } else if !directory.starts_with(['/', '@']) {
            let expected = "a directory from the root, or @name for an abstract socket";
            let conflict = Conflict::new(&["unix_socket_directories"], shorten(directory), expected);
            all.push(conflict.at_item(index));
        }
    }
}

fn pool_sizes(config: &Config, all: &mut Vec<Conflict>) {
    let too_many = |min: u32, size: u32| (min.to_string(), format!("at most the pool's size ({size})"));
    if config.min_pool_size > config.default_pool_size {
        let (found, expected) = too_many(config.min_pool_size, config.default_pool_size);
        all.push(Conflict::new(&["min_pool_size", "default_pool_size"], found, expected));
    }
    let own = |min: Option<u32>, size: Option<u32>| {
        let (min, size) = (min.unwrap_or(config.min_pool_size), size.unwrap_or(config.default_pool_size));
        (min > size && config.min_pool_size <= config.default_pool_size).then(|| too_many(min, size))
    };
    for (name, of) in &config.databases {
        if let Some((found, expected)) = own(of.min_pool_size, of.pool_size) {
            let conflict = Conflict::new(&["databases"], found, expected);
            all.push(conflict.at_name(name).at_name("min_pool_size"));
        }
    }
    for (name, of) in &config.users {
        if let Some((found, expected)) = own(of.min_pool_size, of.pool_size) {
            let conflict = Conflict::new(&["users"], found, expected);
            all.push(conflict.at_name(name).at_name("min_pool_size"));
        }
    }
}

fn connections(config: &Config, all: &mut Vec<Conflict>) {
    for (index, backend) in config.backends.iter().enumerate() {
        if let Some(most) = backend.max_connections.filter(|most| *most <= config.reserved_connections) {
            let expected = format!("more than reserved_connections ({})", config.reserved_connections);
            let conflict = Conflict::new(BACKENDS, most.to_string(), expected);
            all.push(conflict.at_item(index).at_name("max_connections"));
        }
    }
}

/// A query without somebody to run it.
fn lookups(config: &Config, all: &mut Vec<Conflict>) {
    let keys: &[&str] = &["auth_query", "auth_user"];
    match (&config.auth_query, &config.auth_user) {
        (Some(_), None) => all.push(Conflict::new(keys, "a query", "auth_user as well")),
        (Some(query), Some(_)) if !query.contains("$1") => {
            all.push(Conflict::new(keys, shorten(query), "a query with $1 for the user's name"));
        }
        _ => {}
    }
}

/// A mode without the files that it cannot do without, or half of a pair of files.
fn tls(config: &Config, all: &mut Vec<Conflict>) {
    let mut need = |met: bool, keys: &'static [&'static str], found: &str, expected: &str| {
        if !met {
            all.push(Conflict::new(keys, found, expected));
        }
    };
    let mode = config.ssl.as_str();
    let off = config.ssl == Ssl::Off;
    need(off || config.ssl_cert.is_some(), &["ssl"], mode, "off, or ssl_cert as well");
    need(off || config.ssl_key.is_some(), &["ssl"], mode, "off, or ssl_key as well");
    let orphan = config.ssl_crl_file.is_some() && config.ssl_ca_cert.is_none();
    need(!orphan, &["ssl_crl_file"], "a list of revoked certificates", "ssl_ca_cert as well");
    let mode = config.backend_sslmode;
    let verifies = matches!(mode, BackendSslMode::VerifyCa | BackendSslMode::VerifyFull);
    let met = !verifies || config.backend_ssl_root_cert.is_some();
    need(met, &["backend_sslmode"], mode.as_str(), "backend_ssl_root_cert as well");
    let pair = config.backend_ssl_cert.is_some() == config.backend_ssl_key.is_some();
    need(pair, &["backend_ssl_cert", "backend_ssl_key"], "one of the two", "both or none");
}

fn admin_names(config: &Config, all: &mut Vec<Conflict>) {
    for name in ADMIN_DATABASES {
        if config.databases.contains_key(name) {
            let expected = "another name: this database is pgweir's own console";
            all.push(Conflict::new(&["databases"], quote(name), expected).at_name(name));
        }
    }
}

fn redirects(config: &Config, all: &mut Vec<Conflict>) {
    const DATABASE: &[&str] = &["database_redirect_preference_list"];
    const APPLICATION: &[&str] = &["app_name_redirect_preference_list"];
    const USER: &[&str] = &["user_redirect_preference_list"];
    let lists = [
        (DATABASE, &config.database_redirect_preference_list),
        (APPLICATION, &config.app_name_redirect_preference_list),
        (USER, &config.user_redirect_preference_list),
    ];
    for (keys, list) in lists {
        for (index, redirect) in list.iter().enumerate() {
            if let Target::Node(id) = redirect.target
                && usize::from(id) >= config.backends.len()
            {
                let found = quote(&redirect.to_string());
                let expected = format!("the id of a node, less than {}", config.backends.len());
                all.push(Conflict::new(keys, found, expected).at_item(index));
            }
        }
    }
}
