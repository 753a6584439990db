//! `pgbouncer.ini`: its grammar, and what becomes of each setting of PgBouncer 1.7 to 1.25.

use super::bouncer_logins;
use super::draft::{Draft, Place, text};
use super::form::Fate::{Elsewhere, Gone, Key};
use super::form::Form::{
    Flag, List, Number, NumberUnlessZero, Octal, Path, Text, Time, TimeUnlessZero, Words,
};
use super::form::{Fates, convert, take};

const CLEAN: &str =
    "a session's state is tracked and taken back, so no query has to reset or check a backend";
const LOGS: &str =
    "the log goes to log_destination as log_format says; journald reads the standard error output";
const STATISTICS: &str = "sums are in the metrics and SHOW STATS, not in the log";
const BUFFERS: &str = "buffers and sockets need no tuning";
const DNS: &str = "names are resolved by the system for each new connection";
const CIPHERS: &str = "TLS 1.2 and 1.3 with the library's own choice of ciphers";
const PEERS: &str = "cancel requests find their way without peers when all clients use one pgweir";
const PROCESS: &str = "how the process runs is the service's matter (etc/systemd)";
const ALWAYS: &str = "there is always a limit here; the default stays";

/// What becomes of each setting in `[pgbouncer]`.
pub(super) const FATES: Fates = &[
    ("logfile", Key("log_destination", Path)),
    ("pidfile", Key("pid_file", Path)),
    ("listen_addr", Key("listen_addresses", List)),
    ("listen_port", Key("port", Number)),
    ("unix_socket_dir", Key("unix_socket_directories", List)),
    ("unix_socket_mode", Key("unix_socket_permissions", Octal)),
    ("unix_socket_group", Gone("give the socket's directory to that group")),
    ("client_tls_sslmode", Key("ssl", Words(CLIENT_TLS))),
    ("client_tls_ca_file", Key("ssl_ca_cert", Path)),
    ("client_tls_key_file", Key("ssl_key", Path)),
    ("client_tls_cert_file", Key("ssl_cert", Path)),
    ("client_tls_*", Gone(CIPHERS)),
    ("server_tls_sslmode", Key("backend_sslmode", Text)),
    ("server_tls_ca_file", Key("backend_ssl_root_cert", Path)),
    ("server_tls_key_file", Key("backend_ssl_key", Path)),
    ("server_tls_cert_file", Key("backend_ssl_cert", Path)),
    ("server_tls_*", Gone(CIPHERS)),
    ("auth_type", Elsewhere),
    ("auth_file", Elsewhere),
    ("auth_hba_file", Elsewhere),
    ("auth_ident_file", Key("pool_ident_file", Path)),
    ("auth_ldap_options", Gone("the options of `ldap` stand in the lines of pool_hba.conf")),
    ("auth_query", Key("auth_query", Text)),
    ("auth_user", Key("auth_user", Text)),
    ("auth_dbname", Key("auth_dbname", Text)),
    ("admin_users", Key("admin_users", List)),
    ("stats_users", Key("stats_users", List)),
    ("pool_mode", Elsewhere),
    ("server_reset_query", Gone(CLEAN)),
    ("server_reset_query_always", Gone(CLEAN)),
    ("server_check_query", Gone(CLEAN)),
    ("server_check_delay", Gone(CLEAN)),
    ("server_fast_close", Gone("RECONNECT and a reload renew backends at the next transaction or session")),
    ("server_round_robin", Gone("backends are taken last in, first out, which lets the surplus idle out")),
    ("load_balance_hosts", Gone("load_balance is how a node is chosen for a read")),
    ("ignore_startup_parameters", Gone("not needed: settings at the start follow the client to any backend")),
    ("track_extra_parameters", Gone("not needed: all settings are tracked")),
    (
        "application_name_add_host",
        Gone("the client's address is in SHOW CLIENTS, which SHOW SERVERS links to"),
    ),
    ("stats_period", Gone(STATISTICS)),
    ("log_stats", Gone(STATISTICS)),
    ("max_client_conn", Key("max_client_conn", Number)),
    ("default_pool_size", Key("default_pool_size", Number)),
    ("min_pool_size", Key("min_pool_size", Number)),
    ("reserve_pool_size", Key("reserve_pool_size", Number)),
    ("reserve_pool_timeout", Key("reserve_pool_timeout", Time("s"))),
    ("max_db_connections", Key("max_db_connections", Number)),
    ("max_user_connections", Key("max_user_connections", Number)),
    ("max_db_client_connections", Key("max_db_client_connections", Number)),
    ("max_user_client_connections", Key("max_user_client_connections", Number)),
    ("max_prepared_statements", Key("max_prepared_statements", NumberUnlessZero)),
    ("syslog*", Gone(LOGS)),
    ("log_connections", Key("log_connections", Flag)),
    ("log_disconnections", Key("log_disconnections", Flag)),
    (
        "log_pooler_errors",
        Gone("what clients are told is logged where it matters; errors are counted in the metrics"),
    ),
    ("verbose", Elsewhere),
    ("server_lifetime", Key("server_lifetime", TimeUnlessZero("s", ALWAYS))),
    ("server_idle_timeout", Key("server_idle_timeout", TimeUnlessZero("s", ALWAYS))),
    ("server_connect_timeout", Key("connect_timeout", TimeUnlessZero("s", ALWAYS))),
    ("server_login_retry", Gone("who cannot connect is tried again with growing pauses")),
    ("query_timeout", Key("query_timeout", Time("s"))),
    ("query_wait_timeout", Key("query_wait_timeout", TimeUnlessZero("s", ALWAYS))),
    ("cancel_wait_timeout", Gone("a cancel does not wait in a queue")),
    ("client_idle_timeout", Key("client_idle_limit", Time("s"))),
    ("client_login_timeout", Key("authentication_timeout", TimeUnlessZero("s", ALWAYS))),
    ("idle_transaction_timeout", Key("idle_transaction_timeout", Time("s"))),
    ("transaction_timeout", Key("transaction_timeout", Time("s"))),
    ("autodb_idle_timeout", Gone("a pool that nobody uses costs nothing")),
    (
        "suspend_timeout",
        Gone("there is no SUSPEND; sockets can be kept by the service manager (etc/systemd/pgweir.socket)"),
    ),
    ("pkt_buf", Gone(BUFFERS)),
    ("sbuf_loopcnt", Gone(BUFFERS)),
    ("max_packet_size", Gone(BUFFERS)),
    ("so_reuseport", Gone("one process uses all cores (workers)")),
    ("tcp_defer_accept", Gone(BUFFERS)),
    ("tcp_socket_buffer", Gone(BUFFERS)),
    ("listen_backlog", Key("listen_backlog", NumberUnlessZero)),
    ("tcp_keepalive", Elsewhere),
    ("tcp_keepcnt", Key("tcp_keepalives_count", NumberUnlessZero)),
    ("tcp_keepidle", Key("tcp_keepalives_idle", TimeUnlessZero("s", ALWAYS))),
    ("tcp_keepintvl", Key("tcp_keepalives_interval", TimeUnlessZero("s", ALWAYS))),
    ("tcp_user_timeout", Key("tcp_user_timeout", Time("ms"))),
    ("dns_*", Gone(DNS)),
    ("resolv_conf", Gone(DNS)),
    ("disable_pqexec", Gone("strings of several statements cannot be forbidden; use bound parameters")),
    ("scram_iterations", Gone("verifiers are made by PostgreSQL or `pgweir passwd`")),
    ("query_log*", Gone("log_min_duration_statement")),
    ("peer_id", Gone(PEERS)),
    ("conffile", Gone(PROCESS)),
    ("service_name", Gone(PROCESS)),
    ("job_name", Gone(PROCESS)),
    ("user", Gone(PROCESS)),
];

const CLIENT_TLS: &[(&str, &str)] = &[
    ("disable", "off"),
    ("allow", "allow"),
    ("prefer", "allow"),
    ("require", "require"),
    ("verify-ca", "require"),
    ("verify-full", "require"),
];

/// What becomes of a parameter of a database's connection string; those not here are read by [`database`].
const OF_A_DATABASE: Fates = &[
    ("dbname", Key("dbname", Text)),
    ("pool_mode", Key("pool_mode", Words(MODES))),
    ("pool_size", Key("pool_size", Number)),
    ("min_pool_size", Key("min_pool_size", Number)),
    ("reserve_pool", Key("reserve_pool_size", Number)),
    ("reserve_pool_size", Key("reserve_pool_size", Number)),
    ("max_db_connections", Key("max_db_connections", Number)),
    ("max_db_client_connections", Key("max_db_client_connections", Number)),
    ("user", Gone("one user for all clients is not to be had: each logs in to the nodes as itself")),
    ("password", Gone("each user logs in to the nodes with its own secret (pool_passwd)")),
    ("auth_user", Gone("auth_user is one for all databases")),
    ("auth_query", Gone("auth_query is one for all databases")),
    ("auth_dbname", Gone("auth_dbname is one for all databases")),
    ("connect_query", Gone("ALTER DATABASE ... SET or ALTER ROLE ... SET does it on the nodes")),
    ("client_encoding", Gone("clients choose it, or ALTER DATABASE ... SET")),
    ("datestyle", Gone("clients choose it, or ALTER DATABASE ... SET")),
    ("timezone", Gone("clients choose it, or ALTER DATABASE ... SET")),
    ("application_name", Gone("clients choose it")),
    ("load_balance_hosts", Gone("load_balance is how a node is chosen for a read")),
    ("server_lifetime", Gone("server_lifetime is one for all databases")),
];

/// What becomes of a parameter of `[users]`.
const OF_A_USER: Fates = &[
    ("pool_mode", Key("pool_mode", Words(MODES))),
    ("pool_size", Key("pool_size", Number)),
    ("reserve_pool_size", Gone("reserve_pool_size is one for all users, or by database")),
    ("max_user_connections", Key("max_user_connections", Number)),
    ("max_user_client_connections", Key("max_user_client_connections", Number)),
    ("query_timeout", Gone("ALTER ROLE ... SET statement_timeout does it on the nodes")),
    ("transaction_timeout", Gone("transaction_timeout is one for all users")),
    (
        "idle_transaction_timeout",
        Gone("idle_transaction_timeout is one for all users, or ALTER ROLE ... SET"),
    ),
    ("client_idle_timeout", Gone("client_idle_limit is one for all users")),
];

/// Statement pooling allows less than transaction pooling, which serves its clients as well.
const MODES: &[(&str, &str)] = &[("statement", "transaction")];

/// What PgBouncer does when the file says nothing, where pgweir does something else.
const DEFAULTS: &[(&str, &str, &str)] = &[
    ("listen_port", "port", "6432"),
    ("max_client_conn", "max_client_conn", "100"),
    ("query_wait_timeout", "query_wait_timeout", "120s"),
    ("pool_mode", "pool_mode", "session"),
];

/// A line of the file: where it stands, and what is in it.
#[derive(Debug, Clone)]
pub(super) struct Line {
    /// Where.
    pub(super) place: Place,
    /// Without its end.
    pub(super) content: String,
}

/// What the file says of files that it names.
#[derive(Debug, Default)]
pub(super) struct Named {
    /// `auth_file`, with users and secrets.
    pub(super) auth_file: Option<String>,
    /// `auth_hba_file`.
    pub(super) auth_hba_file: Option<String>,
}

/// Reads the lines, includes already put in their place, into the draft.
pub(super) fn read(draft: &mut Draft, lines: &[Line], file: &str) -> Named {
    let (mut section, mut settings) = (String::new(), Vec::new());
    let mut sites = Sites::default();
    for Line { place, content } in lines {
        let line = content.trim();
        if line.is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.trim().to_ascii_lowercase();
            continue;
        }
        let Some((name, value)) = assignment(line) else {
            draft.note(place, "the line", "not a name and its value");
            continue;
        };
        match section.as_str() {
            "pgbouncer" => settings.push((name.to_ascii_lowercase(), value, place)),
            "databases" => database(draft, &mut sites, &name, &value, place),
            "users" => user(draft, &name, &value, place),
            "peers" => draft.note(place, &name, PEERS),
            other => draft.note(place, &name, &format!("[{other}] is no section that is known here")),
        }
    }
    sites.settle(draft, file);
    general(draft, &settings, file)
}

/// `[pgbouncer]`: the last of several lines with one name counts, as there.
fn general(draft: &mut Draft, settings: &[(String, String, &Place)], file: &str) -> Named {
    let last = |name: &str| settings.iter().rev().find(|(other, _, _)| other == name);
    for (index, (name, value, place)) in settings.iter().enumerate() {
        let is_last = settings.iter().skip(index + 1).all(|(other, _, _)| other != name);
        if is_last && !special(draft, name, value, place) {
            take(draft, FATES, name, value, place);
        }
    }
    let whole = Place::file(file);
    for (theirs, ours, value) in DEFAULTS {
        if last(theirs).is_none() {
            draft.set(ours, (*value).to_owned(), &format!("PgBouncer's default of {theirs}"), &whole);
        }
    }
    if last("listen_addr").is_none() {
        draft.set("listen_addresses", "[]".to_owned(), "PgBouncer's default of listen_addr", &whole);
    }
    let given = |name: &str| last(name).map(|(_, value, _)| value.clone()).filter(|value| !value.is_empty());
    let kind = given("auth_type").unwrap_or_else(|| "md5".to_owned());
    bouncer_logins::write(draft, &kind, last("auth_type").map_or(&whole, |(_, _, place)| place));
    Named { auth_file: given("auth_file"), auth_hba_file: given("auth_hba_file") }
}

/// Settings whose value decides what becomes of them; false for any other.
fn special(draft: &mut Draft, name: &str, value: &str, place: &Place) -> bool {
    match (name, value.to_ascii_lowercase().as_str()) {
        ("pool_mode", "statement") => {
            draft.set("pool_mode", "transaction".to_owned(), name, place);
            draft.note(place, name, "there is no statement pooling; transaction pooling serves these clients, and lets them begin transactions");
        }
        ("pool_mode", _) => take(draft, &[("pool_mode", Key("pool_mode", Text))], name, value, place),
        ("verbose", "0" | "") => {}
        ("verbose", _) => draft.set("log_level", "debug".to_owned(), name, place),
        ("tcp_keepalive", "0") => draft.note(place, name, "keepalives are always on"),
        ("tcp_keepalive", _) => {}
        ("unix_socket_dir", "") => draft.set("unix_socket_directories", "[]".to_owned(), name, place),
        ("max_prepared_statements", "0") => {
            draft.note(
                place,
                name,
                "0 turns their tracking off there; here it is always on, with at most 1000 on a backend",
            );
        }
        ("client_tls_sslmode", "verify-ca" | "verify-full") => {
            take(draft, FATES, name, value, place);
            draft.note(place, name, "clientcert=verify-ca or verify-full on the lines of pool_hba.conf asks clients for certificates");
        }
        _ => return false,
    }
    true
}

/// `name = value`; a name in double quotes may hold anything.
fn assignment(line: &str) -> Option<(String, String)> {
    let (name, rest) = match line.strip_prefix('"') {
        Some(quoted) => {
            let (name, rest) = until_quote(quoted, '"')?;
            (name, rest.trim_start().strip_prefix('=')?)
        }
        None => {
            let (name, rest) = line.split_once('=')?;
            (name.trim().to_owned(), rest)
        }
    };
    (!name.is_empty()).then(|| (name, rest.trim().to_owned()))
}

/// What stands before the closing quote, a doubled one being one of it, and what follows.
pub(super) fn until_quote(quoted: &str, quote: char) -> Option<(String, &str)> {
    let (mut out, mut rest) = (String::new(), quoted);
    loop {
        let (before, behind) = rest.split_once(quote)?;
        out.push_str(before);
        match behind.strip_prefix(quote) {
            Some(more) => {
                out.push(quote);
                rest = more;
            }
            None => return Some((out, behind)),
        }
    }
}

/// The words of a connection string: `name=value`, values with spaces in single quotes.
fn words(mut rest: &str) -> Option<Vec<(String, String)>> {
    let mut found = Vec::new();
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return Some(found);
        }
        let (name, behind) = rest.split_once('=')?;
        let (value, behind) = match behind.trim_start().strip_prefix('\'') {
            Some(quoted) => until_quote(quoted, '\'')?,
            None => {
                let behind = behind.trim_start();
                let end = behind.find(char::is_whitespace).unwrap_or(behind.len());
                let (value, behind) = behind.split_at(end);
                (value.to_owned(), behind)
            }
        };
        found.push((name.trim().to_ascii_lowercase(), value));
        rest = behind;
    }
}

/// Servers that databases are on, in the order they come, and the first database that is on each.
#[derive(Debug, Default)]
struct Sites(Vec<(String, String, String)>);

impl Sites {
    fn add(&mut self, hosts: &str, port: &str, database: &str) {
        for host in hosts.split(',').map(str::trim).filter(|host| !host.is_empty()) {
            if !self.0.iter().any(|(other, at, _)| other == host && at == port) {
                self.0.push((host.to_owned(), port.to_owned(), database.to_owned()));
            }
        }
    }

    fn settle(self, draft: &mut Draft, file: &str) {
        if self.0.len() > 1 {
            let told: Vec<String> =
                self.0.iter().map(|(host, port, database)| format!("{host}:{port} ({database})")).collect();
            let why = format!(
                "several servers, {}: one pgweir serves one primary and its standbys, so all of them became its nodes; \
                 if they are independent, run a pgweir for each",
                told.join(", ")
            );
            draft.note(&Place::file(file), "[databases]", &why);
        }
        for (index, (host, port, _)) in self.0.into_iter().enumerate() {
            let Ok(id) = u16::try_from(index) else { break };
            let port = convert(Number, &port).ok().flatten().unwrap_or_else(|| "5432".to_owned());
            draft.nodes.insert(id, vec![("hostname", text(&host)), ("port", port)]);
        }
    }
}

fn database(draft: &mut Draft, sites: &mut Sites, name: &str, value: &str, place: &Place) {
    let Some(words) = words(value) else {
        return draft.note(place, name, "its connection string cannot be read");
    };
    let given = |key: &str| words.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
    let host = given("host").or_else(|| given("hostaddr")).unwrap_or("/var/run/postgresql");
    sites.add(host, given("port").unwrap_or("5432"), name);
    let others = words.iter().filter(|(key, value)| {
        !(matches!(key.as_str(), "host" | "hostaddr" | "port") || key == "dbname" && value == name)
    });
    let row = row(draft, OF_A_DATABASE, name, others, place);
    draft.databases.insert(name.to_owned(), row);
}

fn user(draft: &mut Draft, name: &str, value: &str, place: &Place) {
    let Some(words) = words(value) else {
        return draft.note(place, name, "its settings cannot be read");
    };
    let row = row(draft, OF_A_USER, name, words.iter(), place);
    draft.users.insert(name.to_owned(), row);
}

fn row<'a>(
    draft: &mut Draft,
    table: Fates,
    of: &str,
    words: impl Iterator<Item = &'a (String, String)>,
    place: &Place,
) -> Vec<(&'static str, String)> {
    let mut row: Vec<(&'static str, String)> = Vec::new();
    for (name, value) in words {
        let named = format!("{of}: {name}");
        match super::form::fate(table, name) {
            Some(Key(key, form)) => match convert(form, value) {
                Ok(Some(value)) => {
                    row.retain(|(other, _)| *other != key);
                    row.push((key, value));
                }
                Ok(None) => {}
                Err(why) => draft.note(place, &named, why),
            },
            Some(Gone(why)) => draft.note(place, &named, why),
            Some(Elsewhere) | None => {
                draft.note(place, &named, "not known to this import: see docs/configuration.md")
            }
        }
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(content: &str) -> Vec<Line> {
        let place = |index: usize| Place { file: "pgbouncer.ini".to_owned(), line: index + 1 };
        content
            .lines()
            .enumerate()
            .map(|(index, line)| Line { place: place(index), content: line.to_owned() })
            .collect()
    }

    #[test]
    fn words_of_a_connection_string() {
        let is = |text: &str| {
            words(text).unwrap().into_iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join("|")
        };
        assert_eq!(is("host=a  port = 5"), "host=a|port=5");
        assert_eq!(is("connect_query='SELECT ''x''' user=b"), "connect_query=SELECT 'x'|user=b");
        assert_eq!(is(""), "");
        assert!(words("host='a").is_none());
        assert!(words("host").is_none());
        assert_eq!(assignment("\"a=\"\"b\" = host=x"), Some(("a=\"b".to_owned(), "host=x".to_owned())));
        assert_eq!(assignment("* = host=x"), Some(("*".to_owned(), "host=x".to_owned())));
        assert_eq!(assignment("nothing"), None);
    }

    #[test]
    fn a_file_becomes_a_configuration() {
        let mut draft = Draft::default();
        let content = "[databases]\nshop = host=db0 port=5433 pool_size=7 pool_mode=statement password=hush user=x\n\
            reports = host=db1 dbname=shop connect_query='SET a TO b'\n* = host=db0 port=5433\n[users]\n\
            batch = pool_mode=session max_user_connections=3\n[pgbouncer]\nlisten_addr = *\nlisten_port = 6432\n\
            auth_type = scram-sha-256\nauth_file = /etc/users\nadmin_users = root, me\npool_mode = transaction\n\
            server_idle_timeout = 0\nclient_tls_sslmode = disable\nmax_client_conn = 500\nquery_wait_timeout = 5\n\
            verbose = 1\nserver_reset_query = DISCARD ALL\nno_such = 1\ntcp_user_timeout = 5000\n[peers]\n1 = host=/tmp\n";
        let named = read(&mut draft, &lines(content), "pgbouncer.ini");
        assert_eq!(named.auth_file.as_deref(), Some("/etc/users"));
        let yaml = draft.yaml();
        let config = config::parse(&yaml, "made").unwrap_or_else(|errors| panic!("{errors}\n{yaml}"));
        assert_eq!((config.port, config.max_client_conn, config.backends.len()), (6432, 500, 2), "{yaml}");
        assert_eq!(config.pool_size("shop", "x"), 7, "{yaml}");
        assert_eq!(config.dbname("reports"), "shop", "{yaml}");
        assert_eq!(config.admin_users, ["root", "me"], "{yaml}");
        for named in [
            "server_reset_query",
            "no_such",
            "server_idle_timeout",
            "shop: user",
            "reports: connect_query",
            "[databases]",
        ] {
            assert!(
                draft.notes().iter().any(|note| note.contains(&format!(": {named}: "))),
                "{named}: {yaml}"
            );
        }
        assert!(!yaml.contains("hush"), "{yaml}");
        assert!(
            draft.made().get("pool_hba.conf").is_some_and(|hba| hba.contains("scram-sha-256")),
            "{:?}",
            draft.made()
        );
    }

    #[test]
    fn what_is_not_set_is_as_pgbouncer_has_it() {
        let mut draft = Draft::default();
        read(&mut draft, &lines("[databases]\na =\n"), "pgbouncer.ini");
        let config = config::parse(&draft.yaml(), "made").unwrap();
        assert_eq!(
            (config.port, config.pool_mode, config.max_client_conn),
            (6432, config::PoolMode::Session, 100)
        );
        assert_eq!(config.backends.first().map(|node| node.hostname.as_str()), Some("/var/run/postgresql"));
    }
}
