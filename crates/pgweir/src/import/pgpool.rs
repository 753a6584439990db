//! `pgpool.conf`: its grammar, and what becomes of each parameter of Pgpool-II 3.7 to 4.7.

use super::draft::{Draft, Place, text};
use super::form::Fate::{Elsewhere, Gone, Key};
use super::form::Form::{
    Flag, List, Number, Octal, Password, Path, Patterns, Size, Text, Time, TimeUnlessZero, Words,
};
use super::form::{Fates, convert, fate, take};

const CHILDREN: &str = "there are no child processes; max_client_conn and the pool sizes are the limits";
const LOGS: &str =
    "the log goes to log_destination as log_format says; a file is opened again by USR1 (logrotate)";
const CACHE: &str = "there is no query cache";
const REPLICATION: &str = "there is no native replication mode";
const WATCHDOG: &str = "there is no watchdog: several pgweir need no leader; a floating address is keepalived's or the load balancer's";
const RECOVERY: &str = "RECOVER NODE runs recovery_command, on pgweir's machine and as its user: see recovery_command in docs/import.md";
const CATALOG: &str =
    "tables, functions and views are known from the catalog, looked at every catalog_check_period";
const CIPHERS: &str = "TLS 1.2 and 1.3 with the library's own choice of ciphers";
const OFF_IS_NOT: &str =
    "0 turns it off there; here it stays on with its default, as nodes are always watched";

/// What becomes of each parameter; those of nodes are read by [`node`].
pub(super) const FATES: Fates = &[
    ("backend_clustering_mode", Key("clustering_mode", Text)),
    ("listen_addresses", Key("listen_addresses", List)),
    ("port", Key("port", Number)),
    ("socket_dir", Key("unix_socket_directories", List)),
    ("unix_socket_directories", Key("unix_socket_directories", List)),
    ("unix_socket_permissions", Key("unix_socket_permissions", Octal)),
    ("unix_socket_group", Gone("give the socket's directory to that group")),
    (
        "reserved_connections",
        Gone(
            "another meaning here (connections of a node that pools leave free); max_client_conn refuses clients",
        ),
    ),
    ("pcp_listen_addresses", Key("pcp_listen_addresses", List)),
    ("pcp_port", Key("pcp_port", Number)),
    ("pcp_socket_dir", Gone("PCP is served over TCP only")),
    ("listen_backlog_multiplier", Gone("listen_backlog is a number of its own")),
    ("serialize_accept", Gone(CHILDREN)),
    ("enable_pool_hba", Key("enable_pool_hba", Flag)),
    ("pool_passwd", Elsewhere),
    (
        "authentication_timeout",
        Key(
            "authentication_timeout",
            TimeUnlessZero("s", "0 is never there; here a login always has a limit"),
        ),
    ),
    (
        "allow_clear_text_frontend_auth",
        Gone("the method `password` in pool_hba.conf asks for a clear-text password"),
    ),
    ("ssl", Key("ssl", Flag)),
    ("ssl_key", Key("ssl_key", Path)),
    ("ssl_cert", Key("ssl_cert", Path)),
    ("ssl_ca_cert", Key("ssl_ca_cert", Path)),
    ("ssl_crl_file", Key("ssl_crl_file", Path)),
    ("ssl_ca_cert_dir", Gone("put the authorities into one file, ssl_ca_cert")),
    ("ssl_passphrase_command", Gone("the key has no passphrase; its file is readable by pgweir alone")),
    ("ssl_*", Gone(CIPHERS)),
    ("num_init_children", Key("default_pool_size", Number)),
    (
        "max_pool",
        Gone(
            "pools are by node, database and user, as many as there are; max_db_connections and max_user_connections limit them",
        ),
    ),
    ("child_life_time", Gone(CHILDREN)),
    ("child_max_connections", Gone(CHILDREN)),
    ("process_management_*", Gone(CHILDREN)),
    ("min_spare_children", Gone(CHILDREN)),
    ("max_spare_children", Gone(CHILDREN)),
    (
        "connection_life_time",
        Key(
            "server_idle_timeout",
            TimeUnlessZero(
                "s",
                "0 is never there; here an idle backend is closed after server_idle_timeout (10min)",
            ),
        ),
    ),
    ("client_idle_limit", Key("client_idle_limit", Time("s"))),
    ("log_destination", Elsewhere),
    ("log_connections", Key("log_connections", Flag)),
    ("log_disconnections", Key("log_disconnections", Flag)),
    ("log_statement", Elsewhere),
    ("log_per_node_statement", Key("log_per_node_statement", Flag)),
    ("notice_per_node_statement", Key("notice_per_node_statement", Flag)),
    ("log_min_messages", Key("log_level", Words(LEVELS))),
    (
        "log_standby_delay",
        Gone("the delay is in SHOW NODES and the metrics, and an alert watches it (etc/prometheus)"),
    ),
    ("client_min_messages", Gone("clients get the server's messages as the server sends them")),
    ("log_*", Gone(LOGS)),
    ("logging_collector", Gone(LOGS)),
    ("print_timestamp", Gone(LOGS)),
    ("print_user", Gone(LOGS)),
    ("debug_level", Gone("log_level")),
    ("syslog_*", Gone(LOGS)),
    ("pid_file_name", Key("pid_file", Path)),
    ("logdir", Gone("status_file is the file for what Pgpool-II keeps there in pgpool_status")),
    ("connection_cache", Gone("connections are always pooled; pool_mode: session is nearest to off")),
    ("reset_query_list", Gone("a session's state is tracked and taken back, not reset by a list")),
    ("replication_mode", Elsewhere),
    ("master_slave_mode", Elsewhere),
    ("master_slave_sub_mode", Elsewhere),
    ("replicate_select", Gone(REPLICATION)),
    ("insert_lock", Gone(REPLICATION)),
    ("lobj_lock_table", Gone(REPLICATION)),
    ("replication_stop_on_mismatch", Gone(REPLICATION)),
    ("failover_if_affected_tuples_mismatch", Gone(REPLICATION)),
    ("load_balance_mode", Key("load_balance_mode", Flag)),
    ("ignore_leading_white_space", Gone("white space never matters")),
    ("read_only_function_list", Key("read_only_function_list", List)),
    ("white_function_list", Key("read_only_function_list", List)),
    ("write_function_list", Key("write_function_list", List)),
    ("black_function_list", Key("write_function_list", List)),
    ("primary_routing_query_pattern_list", Key("primary_routing_query_pattern_list", Patterns)),
    ("black_query_pattern_list", Key("primary_routing_query_pattern_list", Patterns)),
    ("database_redirect_preference_list", Key("database_redirect_preference_list", List)),
    ("app_name_redirect_preference_list", Key("app_name_redirect_preference_list", List)),
    ("user_redirect_preference_list", Key("user_redirect_preference_list", List)),
    (
        "allow_sql_comments",
        Gone(
            "another meaning here (whether leading hints are read); a comment never keeps a read from a standby",
        ),
    ),
    ("disable_load_balance_on_write", Elsewhere),
    (
        "dml_adaptive_object_relationship_list",
        Gone("consistency: read_your_writes keeps a session's reads behind its writes"),
    ),
    ("statement_level_load_balance", Key("statement_level_load_balance", Flag)),
    ("sr_check_period", Key("sr_check_period", TimeUnlessZero("s", OFF_IS_NOT))),
    ("sr_check_user", Key("sr_check_user", Text)),
    ("sr_check_password", Key("sr_check_password", Password)),
    ("sr_check_database", Key("sr_check_database", Text)),
    ("delay_threshold", Key("delay_threshold", Size)),
    ("delay_threshold_by_time", Key("delay_threshold_by_time", Time("ms"))),
    ("prefer_lower_delay_standby", Key("prefer_lower_delay_standby", Flag)),
    ("follow_primary_command", Key("follow_primary_command", Text)),
    ("follow_master_command", Key("follow_primary_command", Text)),
    ("health_check_period", Key("health_check_period", TimeUnlessZero("s", OFF_IS_NOT))),
    (
        "health_check_timeout",
        Key(
            "health_check_timeout",
            TimeUnlessZero("s", "0 waits for ever there; here a check always has a limit"),
        ),
    ),
    ("health_check_user", Key("health_check_user", Text)),
    ("health_check_password", Key("health_check_password", Password)),
    ("health_check_database", Key("health_check_database", Text)),
    ("health_check_max_retries", Key("health_check_max_retries", Number)),
    ("health_check_retry_delay", Key("health_check_retry_delay", Time("s"))),
    (
        "connect_timeout",
        Key(
            "connect_timeout",
            TimeUnlessZero("ms", "0 waits for ever there; here a connection always has a limit"),
        ),
    ),
    ("failover_command", Key("failover_command", Text)),
    ("failback_command", Key("failback_command", Text)),
    ("failover_on_backend_error", Key("failover_on_backend_error", Flag)),
    ("fail_over_on_backend_error", Key("failover_on_backend_error", Flag)),
    (
        "failover_on_backend_shutdown",
        Gone(
            "a node that shuts down is left out at once and comes back by itself; the primary's end is failover_mode's matter",
        ),
    ),
    ("detach_false_primary", Key("detach_false_primary", Flag)),
    (
        "search_primary_node_timeout",
        Gone(
            "the new primary is looked for until it is there; failover_hold_timeout is how long clients wait",
        ),
    ),
    ("auto_failback", Key("auto_failback", Flag)),
    ("auto_failback_interval", Key("auto_failback_interval", Time("s"))),
    ("recovery_timeout", Key("recovery_timeout", Time("s"))),
    ("recovery_*", Gone(RECOVERY)),
    ("client_idle_limit_in_recovery", Gone(RECOVERY)),
    ("use_watchdog", Gone(WATCHDOG)),
    ("trusted_server*", Gone(WATCHDOG)),
    ("ping_path", Gone(WATCHDOG)),
    ("wd_*", Gone(WATCHDOG)),
    ("hostname*", Gone(WATCHDOG)),
    ("pgpool_port*", Gone(WATCHDOG)),
    ("other_pgpool_*", Gone(WATCHDOG)),
    ("other_wd_*", Gone(WATCHDOG)),
    ("delegate_*", Gone(WATCHDOG)),
    ("if_*", Gone(WATCHDOG)),
    ("arping_*", Gone(WATCHDOG)),
    ("heartbeat_*", Gone(WATCHDOG)),
    ("clear_memqcache_on_escalation", Gone(WATCHDOG)),
    ("failover_when_quorum_exists", Gone(WATCHDOG)),
    ("failover_require_consensus", Gone(WATCHDOG)),
    ("allow_multiple_failover_requests_from_node", Gone(WATCHDOG)),
    ("enable_consensus_with_half_votes", Gone(WATCHDOG)),
    ("relcache_*", Gone(CATALOG)),
    ("check_temp_table", Gone(CATALOG)),
    ("check_unlogged_table", Gone(CATALOG)),
    ("enable_shared_relcache", Gone(CATALOG)),
    ("memory_cache_enabled", Gone(CACHE)),
    ("memqcache_*", Gone(CACHE)),
    ("cache_safe_memqcache_table_list", Gone(CACHE)),
    ("cache_unsafe_memqcache_table_list", Gone(CACHE)),
    ("white_memqcache_table_list", Gone(CACHE)),
    ("black_memqcache_table_list", Gone(CACHE)),
];

/// `log` is written at every level but the two highest, and so is `info` here.
const LEVELS: &[(&str, &str)] = &[
    ("debug5", "trace"),
    ("debug4", "debug"),
    ("debug3", "debug"),
    ("debug2", "debug"),
    ("debug1", "debug"),
    ("info", "info"),
    ("notice", "info"),
    ("warning", "info"),
    ("error", "info"),
    ("log", "info"),
    ("fatal", "error"),
    ("panic", "error"),
];

/// What becomes of a parameter of one node, its number left out: the key in the node's row.
const OF_A_NODE: Fates = &[
    ("backend_hostname", Key("hostname", Text)),
    ("backend_port", Key("port", Number)),
    ("backend_weight", Key("weight", Number)),
    ("backend_flag", Key("flag", Words(FLAGS))),
    ("backend_data_directory", Key("data_directory", Text)),
    ("backend_application_name", Key("application_name", Text)),
    ("health_check_period", Key("health_check_period", TimeUnlessZero("s", OFF_IS_NOT))),
    (
        "health_check_timeout",
        Key(
            "health_check_timeout",
            TimeUnlessZero("s", "0 waits for ever there; here a check always has a limit"),
        ),
    ),
    ("health_check_user", Key("health_check_user", Text)),
    ("health_check_password", Key("health_check_password", Password)),
    ("health_check_database", Key("health_check_database", Text)),
    ("health_check_max_retries", Key("health_check_max_retries", Number)),
    ("health_check_retry_delay", Key("health_check_retry_delay", Time("s"))),
    ("connect_timeout", Gone("connect_timeout is one for all nodes")),
];

const FLAGS: &[(&str, &str)] = &[
    ("allow_to_failover", "ALLOW_TO_FAILOVER"),
    ("disallow_to_failover", "DISALLOW_TO_FAILOVER"),
    ("always_primary", "ALWAYS_PRIMARY"),
    ("always_primary|disallow_to_failover", "ALWAYS_PRIMARY"),
    ("disallow_to_failover|always_primary", "ALWAYS_PRIMARY"),
    ("always_primary|allow_to_failover", "ALWAYS_PRIMARY"),
    ("allow_to_failover|always_primary", "ALWAYS_PRIMARY"),
];

/// A parameter as it stands in the file.
#[derive(Debug, PartialEq, Eq)]
struct Parameter {
    name: String,
    value: String,
}

/// Reads the file into the draft; what it says of `pool_passwd`, if anything, is returned.
pub(super) fn read(draft: &mut Draft, content: &str, file: &str) -> Option<String> {
    // As in Pgpool-II the last of several lines counts, in the place of the first.
    let mut found: Vec<(Parameter, Place)> = Vec::new();
    for (index, line) in content.lines().enumerate() {
        let place = Place { file: file.to_owned(), line: index + 1 };
        match parameter(line) {
            Ok(None) => {}
            Ok(Some(new)) => match found.iter_mut().find(|(old, _)| old.name == new.name) {
                Some(old) => *old = (new, place),
                None => found.push((new, place)),
            },
            Err(why) => draft.note(&place, "the line", why),
        }
    }
    for (Parameter { name, value }, place) in &found {
        if !node(draft, name, value, place) && !special(draft, name, value, place) {
            take(draft, FATES, name, value, place);
        }
    }
    settle(draft, file);
    let passwd = found.into_iter().find(|(parameter, _)| parameter.name == "pool_passwd");
    passwd.map(|(parameter, _)| parameter.value).filter(|value| !value.is_empty())
}

/// `name = value`, `name value`, `name = 'it''s'`, and a comment behind it.
fn parameter(line: &str) -> Result<Option<Parameter>, &'static str> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    let rest = rest.trim_start();
    let rest = rest.strip_prefix('=').unwrap_or(rest).trim_start();
    if name.is_empty() {
        return Err("not a parameter and its value");
    }
    let value = match rest.strip_prefix('\'') {
        Some(quoted) => unquote(quoted).ok_or("the quote is not closed")?,
        None => rest.split('#').next().unwrap_or_default().trim().to_owned(),
    };
    Ok(Some(Parameter { name: name.to_ascii_lowercase(), value }))
}

/// Up to the closing quote; `''` and `\'` are a quote.
fn unquote(quoted: &str) -> Option<String> {
    let (mut out, mut rest) = (String::new(), quoted.chars().peekable());
    while let Some(c) = rest.next() {
        match c {
            '\'' if rest.peek() == Some(&'\'') => out.extend(rest.next()),
            '\'' => return Some(out),
            '\\' if rest.peek() == Some(&'\'') => out.extend(rest.next()),
            _ => out.push(c),
        }
    }
    None
}

/// A parameter of one node; false for any other.
fn node(draft: &mut Draft, name: &str, value: &str, place: &Place) -> bool {
    let base = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let Some(number) = name.strip_prefix(base).and_then(|digits| digits.parse::<u16>().ok()) else {
        return false;
    };
    let Some(fate) = fate(OF_A_NODE, base) else { return false };
    let Key(key, form) = fate else {
        if let Gone(why) = fate {
            draft.note(place, name, why);
        }
        return true;
    };
    let value = match key {
        // Its own default for a socket.
        "hostname" if value.is_empty() => Ok(Some(text("/tmp"))),
        "flag" => convert(form, &value.replace(' ', "")),
        _ => convert(form, value),
    };
    match value {
        Ok(Some(value)) => draft.nodes.entry(number).or_default().push((key, value)),
        Ok(None) => {}
        Err(why) => draft.note(place, name, why),
    }
    true
}

/// Parameters whose value decides what becomes of them; false for any other.
fn special(draft: &mut Draft, name: &str, value: &str, place: &Place) -> bool {
    let is_on = convert(Flag, value) == Ok(Some("on".to_owned()));
    match (name, value.to_ascii_lowercase().as_str()) {
        ("log_destination", "stderr" | "") => {}
        ("log_destination", _) => draft.note(place, name, LOGS),
        ("log_statement", _) if is_on => draft.set("log_min_duration_statement", "0".to_owned(), name, place),
        ("log_statement", _) => {}
        ("disable_load_balance_on_write", "dml_adaptive") => {
            draft.note(place, name, "dml_adaptive: consistency: read_your_writes (the default) does that by what was written, not by names");
        }
        ("disable_load_balance_on_write", _) => {
            take(
                draft,
                &[("disable_load_balance_on_write", Key("disable_load_balance_on_write", Text))],
                name,
                value,
                place,
            );
        }
        // Before 4.2; replication is what cannot be had, and refusing it is safer than leaving it out.
        ("replication_mode", _) if is_on => {
            draft.set("clustering_mode", text("native_replication"), name, place)
        }
        ("master_slave_mode", _) if is_on => {
            draft.set("clustering_mode", text("streaming_replication"), name, place)
        }
        ("replication_mode" | "master_slave_mode", _) => {}
        ("master_slave_sub_mode", "stream" | "") => {}
        ("master_slave_sub_mode", _) => draft.note(place, name, "streaming replication only"),
        _ => return false,
    }
    true
}

/// What follows from several parameters together.
fn settle(draft: &mut Draft, file: &str) {
    let whole = Place::file(file);
    // A node without a host is none: Debian's sample leaves numbers behind.
    let nameless: Vec<u16> = draft
        .nodes
        .iter()
        .filter(|(_, row)| !row.iter().any(|(key, _)| *key == "hostname"))
        .map(|(id, _)| *id)
        .collect();
    for id in nameless {
        draft.nodes.remove(&id);
        draft.note(&whole, &format!("backend_hostname{id}"), "not set, so there is no such node");
    }
    for row in draft.nodes.values_mut() {
        row.sort_by_key(|(key, _)| {
            OF_A_NODE.iter().position(|(_, fate)| matches!(fate, Key(name, _) if name == key))
        });
    }
    if draft.nodes.keys().enumerate().any(|(index, id)| index != usize::from(*id)) {
        draft.note(
            &whole,
            "backend_hostname",
            "the numbers have gaps; here nodes are counted from 0 in the order of the list",
        );
    }
    if draft.has("failover_command") || draft.has("failback_command") {
        draft.set("failover_mode", "command".to_owned(), "failover_command", &whole);
        draft.note(
            &whole,
            "failover_command",
            "kept, with its placeholders; `failover_mode: promote` would do without it",
        );
    }
    if draft.has("default_pool_size") {
        draft.note(&whole, "num_init_children", "became default_pool_size; in transaction pooling a fraction of it is enough (docs/pools.md), and clients have max_client_conn (10000)");
    }
    if !draft.has("port") {
        draft.note(&whole, "port", "not set, so 9999; Debian's Pgpool-II listens on 5433 then");
    }
    if !draft.has("pcp_port") {
        draft.set("pcp_port", "9898".to_owned(), "Pgpool-II's default", &whole);
    }
    if !draft.has("failover_on_backend_error") {
        draft.note(
            &whole,
            "failover_on_backend_error",
            "on by default there; here the health check alone fails a node over, unless it is set",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_pgpool_reads_them() {
        let read = |line: &str| parameter(line).map(|found| found.map(|found| (found.name, found.value)));
        let is = |name: &str, value: &str| Ok(Some((name.to_owned(), value.to_owned())));
        assert_eq!(read("port = 9999 # the port"), is("port", "9999"));
        assert_eq!(read("  Port=5433"), is("port", "5433"));
        assert_eq!(read("port 7"), is("port", "7"));
        assert_eq!(
            read("failover_command = 'echo ''%h'' # no comment' # one"),
            is("failover_command", "echo '%h' # no comment")
        );
        assert_eq!(read("sr_check_password = ''"), is("sr_check_password", ""));
        assert_eq!(read("# port = 1"), Ok(None));
        assert!(read("x = 'open").is_err());
        assert!(read("= 3").is_err());
    }

    #[test]
    fn a_file_becomes_a_configuration() {
        let mut draft = Draft::default();
        let content = "backend_clustering_mode = 'streaming_replication'\nlisten_addresses = '*'\nport = 9999\n\
            backend_hostname0 = 'db0'\nbackend_port0 = 5432\nbackend_weight0 = 0\nbackend_flag0 = 'ALWAYS_PRIMARY|DISALLOW_TO_FAILOVER'\n\
            backend_weight1 = 2\nbackend_hostname1 = 'db1'\nhealth_check_period1 = 3\nnum_init_children = 64\n\
            health_check_period = 0\nsr_check_password = 'TEXTs3cret'\nfailover_command = '/x.sh %d \"%h\"'\n\
            memory_cache_enabled = on\nno_such_parameter = 1\nport = 9998\nlog_statement = on\n\
            wd_authkey = 'hush'\nblack_query_pattern_list = 'a.*;b'\npool_passwd = 'pp'\n";
        assert_eq!(read(&mut draft, content, "pgpool.conf"), Some("pp".to_owned()));
        let yaml = draft.yaml();
        let config = config::parse(&yaml, "made").unwrap_or_else(|errors| panic!("{errors}\n{yaml}"));
        assert_eq!((config.port, config.backends.len(), config.default_pool_size), (9998, 2, 64), "{yaml}");
        assert_eq!(
            config.backends.iter().map(|backend| backend.hostname.as_str()).collect::<Vec<_>>(),
            ["db0", "db1"]
        );
        assert!(yaml.contains("{ hostname: \"db1\", weight: 2, health_check_period: 3s }"), "{yaml}");
        assert!(yaml.contains("failover_mode: command"), "{yaml}");
        assert!(yaml.contains("log_min_duration_statement: 0  # log_statement, pgpool.conf:18"), "{yaml}");
        for named in ["memory_cache_enabled", "no_such_parameter", "health_check_period", "wd_authkey"] {
            assert!(
                draft.notes().iter().any(|note| note.contains(&format!(": {named}: "))),
                "{named}: {yaml}"
            );
        }
        assert!(!yaml.contains("hush"), "{yaml}");
    }

    #[test]
    fn what_would_be_unsafe_to_leave_out_is_refused() {
        let mut draft = Draft::default();
        read(&mut draft, "replication_mode = on\nbackend_hostname0 = 'a'\n", "pgpool.conf");
        assert!(config::parse(&draft.yaml(), "made").is_err(), "{}", draft.yaml());
    }
}
