//! Every key with a good and a bad value; a key without a row here fails the test.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use config::{Config, KEYS, Ssl, Status};

use crate::parse;

/// Key, good value, how SHOW tells it, bad value, what is told of it after "found ".
type Row = (&'static str, &'static str, &'static str, &'static str, &'static str);

const ROWS: &[Row] = &[
    ("listen_addresses", "['*', '::1']", r#"["*", "::1"]"#, "[1]", "1, expected text; put it in quotes"),
    ("listen_addresses", "'*'", r#"["*"]"#, "{a: b}", "a mapping, expected a list: text"),
    ("port", "5433", "5433", "70000", "70000, expected a number from 1 to 65535"),
    ("port", "1", "1", "0", "0, expected a number from 1 to 65535"),
    ("port", "65535", "65535", "'5433'", "\"5433\", expected a number from 1 to 65535"),
    ("port", "65535", "65535", "", "nothing, expected a number"),
    ("read_only_port", "9998", "9998", "0", "0, expected a number from 1 to 65535"),
    (
        "unix_socket_directories",
        "[/tmp, '@weir']",
        r#"[/tmp, "@weir"]"#,
        "[tmp]",
        "\"tmp\", expected a directory",
    ),
    ("unix_socket_directories", "[]", "[]", "5", "5, expected a list: text"),
    ("unix_socket_permissions", "0700", "0700", "777", "777, expected an octal number from 0 to 0777"),
    ("unix_socket_permissions", "0", "00", "07777", "\"07777\", expected an octal number"),
    ("workers", "4", "4", "0", "0, expected a number from 1 to 1024, or auto"),
    ("workers", "auto", "auto", "many", "\"many\", expected a number from 1 to 1024, or auto"),
    ("listen_backlog", "10", "10", "-1", "-1, expected a number from 1 to 65535"),
    (
        "clustering_mode",
        "raw",
        "raw",
        "multi_primary",
        "\"multi_primary\", expected streaming_replication or raw (multi_primary is not supported by this version)",
    ),
    (
        "backend_sslmode",
        "disable",
        "disable",
        "verify_full",
        "\"verify_full\", expected disable, allow, prefer, require, verify-ca or verify-full",
    ),
    (
        "backend_sslmode",
        "allow",
        "allow",
        "on",
        "\"on\", expected disable, allow, prefer, require, verify-ca or verify-full",
    ),
    ("backend_ssl_root_cert", "/a/root.crt", "/a/root.crt", "[]", "a list, expected a path"),
    ("backend_ssl_cert", "a.crt", "a.crt", "''", "\"\", expected a path"),
    ("backend_ssl_key", "a.key", "a.key", "3", "3, expected a path"),
    ("connect_timeout", "3", "3s", "0", "0 (seconds), expected a duration from 10ms to 1h"),
    (
        "connect_timeout",
        "500ms",
        "500ms",
        "5ms",
        "\"5ms\", expected a duration from 10ms to 1h with the unit us, ms, s, min, h or d; a bare number is in seconds",
    ),
    ("tcp_keepalives_idle", "2min", "2min", "2m", "\"2m\", expected a duration from 1s to 1d"),
    ("tcp_keepalives_interval", "5", "5s", "true", "true, expected a duration"),
    ("tcp_keepalives_count", "5", "5", "5s", "\"5s\", expected a number from 1 to 127"),
    ("tcp_user_timeout", "0", "0", "-1", "-1, expected a duration from 1ms to 1d"),
    ("tcp_user_timeout", "0.5", "500ms", "2d", "\"2d\", expected a duration from 1ms to 1d"),
    (
        "pool_mode",
        "session",
        "session",
        "statement",
        "\"statement\", expected session or transaction (statement is not supported by this version)",
    ),
    ("session_state", "ignore", "ignore", "refuse", "\"refuse\", expected pin, reject or ignore"),
    ("default_pool_size", "5", "5", "0", "0, expected a number from 1 to 1000000"),
    ("min_pool_size", "5", "5", "1.5", "1.5, expected a number from 0 to 1000000"),
    ("reserve_pool_size", "5", "5", "lots", "\"lots\", expected a number"),
    ("reserve_pool_timeout", "3s", "3s", "2d", "\"2d\", expected a duration from 0 to 1h"),
    ("max_client_conn", "100", "100", "0", "0, expected a number from 1 to 1000000"),
    ("max_db_connections", "10", "10", "-1", "-1, expected a number from 1 to 1000000, or 0"),
    ("max_user_connections", "0", "0", "none", "\"none\", expected a number from 1 to 1000000, or 0"),
    ("max_db_client_connections", "10", "10", "[]", "a list, expected a number"),
    ("max_user_client_connections", "10", "10", "{}", "a mapping, expected a number"),
    ("reserved_connections", "0", "0", "100001", "100001, expected a number from 0 to 100000"),
    ("query_wait_timeout", "1min", "1min", "0", "0 (seconds), expected a duration from 1ms to 1d"),
    ("server_lifetime", "30min", "30min", "3600", "3600 (hours), expected a duration from 1ms to 30d"),
    ("server_idle_timeout", "30s", "30s", "2d", "\"2d\", expected a duration from 1ms to 1d"),
    ("max_prepared_statements", "200", "200", "0", "0, expected a number from 1 to 1000000"),
    ("client_idle_limit", "5 min", "5min", "5 m", "\"5 m\", expected a duration from 1ms to 30d"),
    ("idle_transaction_timeout", "10s", "10s", "31d", "\"31d\", expected a duration"),
    ("query_timeout", "0", "0", "off", "\"off\", expected a duration"),
    ("transaction_timeout", "1h", "1h", "-1", "-1, expected a duration"),
    ("authentication_timeout", "5s", "5s", "1ms", "\"1ms\", expected a duration from 100ms to 1h"),
    (
        "databases",
        "{shop: {pool_size: 3}}",
        "{ shop: { pool_size: 3 } }",
        "[shop]",
        "a list, expected a mapping of database names",
    ),
    (
        "users",
        "{app: {pool_mode: session}}",
        "{ app: { pool_mode: session } }",
        "app",
        "\"app\", expected a mapping of user names",
    ),
    ("enable_pool_hba", "on", "on", "maybe", "\"maybe\", expected on or off"),
    ("pool_hba_file", "my.conf", "my.conf", "1", "1, expected a path"),
    ("pool_ident_file", "my.conf", "my.conf", "1", "1, expected a path"),
    ("pool_passwd", "my_passwd", "my_passwd", "", "nothing, expected a path"),
    ("pool_key_file", "k", "k", "false", "false, expected a path"),
    ("auth_query", "null", "null", "[SELECT 1]", "a list, expected text"),
    ("auth_user", "weir", "weir", "1", "1, expected text; put it in quotes"),
    ("auth_dbname", "weir", "weir", "[x]", "a list, expected text"),
    ("auth_query_cache_period", "1min", "1min", "-1s", "\"-1s\", expected a duration"),
    ("ssl", "off", "off", "prefer", "\"prefer\", expected off, allow or require"),
    ("ssl_cert", "a", "a", "{}", "a mapping, expected a path"),
    ("ssl_key", "a", "a", "{}", "a mapping, expected a path"),
    ("ssl_ca_cert", "a", "a", "{}", "a mapping, expected a path"),
    ("ssl_crl_file", "a", "a", "{}", "a mapping, expected a path"),
    ("admin_users", "[root, dba]", "[root, dba]", "[[a]]", "a list, expected text"),
    ("stats_users", "mon", "[mon]", "['']", "\"\", expected text"),
    ("load_balance_mode", "off", "off", "maybe", "\"maybe\", expected on or off"),
    (
        "load_balance",
        "random",
        "random",
        "fastest",
        "\"fastest\", expected random, round_robin, least_outstanding, least_connections or latency",
    ),
    ("load_balance", "latency", "latency", "1", "1, expected random,"),
    ("load_balance", "round_robin", "round_robin", "rnd", "\"rnd\", expected random, round_robin,"),
    ("load_balance", "least_connections", "least_connections", "RANDOM", "\"RANDOM\", expected random,"),
    ("slow_start", "0", "0", "2h", "\"2h\", expected a duration from 0 to 1h with"),
    ("statement_level_load_balance", "no", "off", "n", "\"n\", expected on or off"),
    ("transaction_load_balance", "yes", "on", "1", "1, expected on or off"),
    ("disable_load_balance_on_write", "off", "off", "on", "\"on\", expected off, transaction,"),
    ("disable_load_balance_on_write", "trans_transaction", "trans_transaction", "3", "3, expected off,"),
    ("consistency", "eventual", "eventual", "strong", "\"strong\", expected eventual, read_your_writes,"),
    (
        "consistency",
        "read_your_writes",
        "read_your_writes",
        "strict",
        "\"strict\", expected eventual, read_your_writes, monotonic or global",
    ),
    (
        "consistency",
        "eventual",
        "eventual",
        "serializable",
        "\"serializable\", expected eventual, read_your_writes, monotonic or global",
    ),
    ("consistency", "eventual", "eventual", "", "nothing, expected eventual, read_your_writes,"),
    (
        "delay_threshold",
        "64kB",
        "64kB",
        "64KB",
        "\"64KB\", expected a size from 1B to 1TB with the unit B, kB, MB, GB or TB; a bare number is in bytes, or 0",
    ),
    ("delay_threshold", "0", "0", "-1", "-1, expected a size"),
    ("delay_threshold_by_time", "300", "300ms", "x", "\"x\", expected a duration"),
    ("prefer_lower_delay_standby", "true", "on", "~", "nothing, expected on or off"),
    (
        "read_only_function_list",
        "['get_.*', app.f]",
        r#"["get_.*", app.f]"#,
        "['(']",
        "\"(\", expected a name or a regular expression",
    ),
    ("write_function_list", "f", "[f]", "[3]", "3, expected a name"),
    (
        "primary_routing_query_pattern_list",
        "['FOR AUDIT']",
        r#"["FOR AUDIT"]"#,
        "['a{9999999}']",
        "\"a{9999999}\", expected a name",
    ),
    (
        "database_redirect_preference_list",
        "['rep.*:standby(0.3)']",
        r#"["rep.*:standby(0.3)"]"#,
        "['a:7']",
        "\"a:7\", expected the id of a node, less than 1",
    ),
    (
        "app_name_redirect_preference_list",
        "['psql:primary', 'a:0']",
        r#"["psql:primary", "a:0"]"#,
        "['psql']",
        "\"psql\", expected pattern:primary",
    ),
    (
        "user_redirect_preference_list",
        "'a:b:standby'",
        r#"["a:b:standby"]"#,
        "['a:standby(2)']",
        "\"a:standby(2)\", expected pattern:primary",
    ),
    ("catalog_check_period", "250ms", "250ms", "0", "0 (seconds), expected a duration from 100ms to 1h"),
    ("allow_sql_comments", "off", "off", "2", "2, expected on or off"),
    ("max_parsed_statement", "1MB", "1MB", "1", "1, expected a size from 128B to 1GB"),
    ("sr_check_period", "3", "3s", "0", "0 (seconds), expected a duration from 10ms to 1h"),
    ("sr_check_min_period", "50", "50ms", "0", "0 (milliseconds), expected a duration from 1ms"),
    ("sr_check_user", "check", "check", "", "nothing, expected text"),
    ("sr_check_password", "hush", "********", "12345", "a secret without quotes, expected text in quotes"),
    ("sr_check_database", "db", "db", "7", "7, expected text; put it in quotes"),
    ("health_check_period", "1s", "1s", "soon", "\"soon\", expected a duration"),
    ("health_check_timeout", "1s", "1s", "0", "0 (seconds), expected a duration"),
    ("health_check_max_retries", "0", "0", "1001", "1001, expected a number from 0 to 1000"),
    ("health_check_retry_delay", "0", "0", "2h", "\"2h\", expected a duration from 0 to 1h"),
    ("health_check_user", "check", "check", "[]", "a list, expected text"),
    ("health_check_password", "hush", "********", "[hush]", "something else, expected text"),
    ("health_check_database", "db", "db", "{}", "a mapping, expected text"),
    ("failover_mode", "promote", "promote", "auto", "\"auto\", expected observe, promote or command"),
    ("failover_command", "'do %h'", r#""do %h""#, "[a]", "a list, expected text"),
    ("failback_command", "x", "x", "1", "1, expected text"),
    ("follow_primary_command", "x", "x", "1", "1, expected text"),
    ("failover_command_timeout", "1min", "1min", "0", "0 (seconds), expected a duration from 1s to 1d"),
    ("recovery_command", "x", "x", "1", "1, expected text"),
    ("recovery_command_timeout", "2d", "2d", "8d", "\"8d\", expected a duration from 1s to 7d"),
    ("recovery_timeout", "1min", "1min", "0", "0 (seconds), expected a duration from 1s to 1d"),
    ("promotion_timeout", "10", "10s", "2h", "\"2h\", expected a duration from 1s to 1h"),
    ("switchover_timeout", "5s", "5s", "0", "0 (seconds), expected a duration from 1s to 1h"),
    ("detach_drain_timeout", "0", "0", "2h", "\"2h\", expected a duration from 0 to 1h"),
    ("status_file", "s", "s", "3", "3, expected a path"),
    ("failover_hold_timeout", "10s", "10s", "2h", "\"2h\", expected a duration"),
    ("failover_on_backend_error", "on", "on", "2", "2, expected on or off"),
    ("detach_false_primary", "off", "off", "2", "2, expected on or off"),
    ("auto_failback", "off", "off", "2", "2, expected on or off"),
    ("auto_failback_interval", "1min", "1min", "2d", "\"2d\", expected a duration"),
    ("pcp_listen_addresses", "['*']", r#"["*"]"#, "3", "3, expected a list: text"),
    ("pcp_port", "9898", "9898", "70000", "70000, expected a number from 1 to 65535"),
    ("pcp_conf_file", "p", "p", "3", "3, expected a path"),
    (
        "metrics_listen",
        "'[::1]:9000'",
        r#""[::1]:9000""#,
        "localhost",
        "\"localhost\", expected host:port, or off",
    ),
    ("metrics_listen", "off", "off", "'::1:9000'", "\"::1:9000\", expected host:port, or off"),
    ("metrics_listen", "'*:9000'", r#""*:9000""#, "'h:0'", "\"h:0\", expected host:port, or off"),
    ("log_level", "debug", "debug", "loud", "\"loud\", expected trace, debug, info, warn or error"),
    ("log_format", "json", "json", "xml", "\"xml\", expected text or json"),
    (
        "log_destination",
        "stderr",
        "stderr",
        "syslog",
        "\"syslog\", expected stderr, or the path of a file, with a slash in it",
    ),
    (
        "log_destination",
        "/var/log/weir.log",
        "/var/log/weir.log",
        "/var/log/",
        "\"/var/log/\", expected stderr, or the path of a file, with a slash in it",
    ),
    ("log_connections", "on", "on", "all", "\"all\", expected on or off"),
    ("log_disconnections", "on", "on", "all", "\"all\", expected on or off"),
    ("log_statement_routes", "on", "on", "all", "\"all\", expected on or off"),
    ("log_per_node_statement", "on", "on", "all", "\"all\", expected on or off"),
    ("notice_per_node_statement", "on", "on", "all", "\"all\", expected on or off"),
    ("log_min_duration_statement", "250", "250ms", "-2", "-2, expected a duration from 0 to 1d"),
    ("log_min_duration_statement", "0", "0", "x", "\"x\", expected a duration"),
    ("log_min_duration_statement", "-1", "-1", "-1s", "\"-1s\", expected a duration"),
    ("log_parameter_max_length", "64", "64B", "5kB", "\"5kB\", expected a size from 1B to 4kB"),
    ("log_parameter_max_length", "0", "0", "some", "\"some\", expected a size"),
    ("pid_file", "/run/p.pid", "/run/p.pid", "9", "9, expected a path"),
    ("shutdown_timeout", "0", "0", "2d", "\"2d\", expected a duration from 0 to 1d"),
];

/// The lines of a key, with those that it cannot do without.
fn lines(key: &str, value: &str) -> String {
    let companion = match key {
        "backend_ssl_cert" => "backend_ssl_key: a\n",
        "backend_ssl_key" => "backend_ssl_cert: a\n",
        "ssl_crl_file" => "ssl_ca_cert: a\n",
        _ => "",
    };
    format!("{key}: {value}\n{companion}")
}

fn shown(config: &Config, key: &str) -> String {
    config.rows().into_iter().find(|row| row.key == key).unwrap().value
}

#[test]
fn good_values_are_taken_and_shown() {
    for (key, good, expected, ..) in ROWS {
        let config = parse(&lines(key, good)).unwrap_or_else(|errors| panic!("{key}: {good}: {errors}"));
        assert_eq!(shown(&config, key), *expected, "{key}: {good}");
        assert!(config.is_given(key));
    }
}

#[test]
fn what_is_shown_reads_back_to_the_same_value() {
    for (key, good, ..) in ROWS.iter().filter(|(.., shown, _, _)| !shown.contains("****")) {
        let config = parse(&lines(key, good)).unwrap();
        let again = parse(&lines(key, &shown(&config, key))).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(shown(&config, key), shown(&again, key));
        assert!(config::Plan::between(&config, &again).is_empty(), "{key}");
    }
}

#[test]
fn bad_values_are_refused_with_line_key_found_and_expected() {
    for (key, _, _, bad, told) in ROWS {
        let whole = parse(&lines(key, bad)).expect_err(&format!("{key}: {bad}"));
        let (place, rest) = whole.split_once(": found ").unwrap();
        assert!(place.starts_with(&format!("t.yaml:2: {key}")), "{key}: {bad}: {whole}");
        assert!(rest.starts_with(told), "{key}: {bad}: {whole}");
        assert!(!whole.contains("hush") && !whole.contains("12345"), "{whole}");
        assert_eq!(whole.lines().count(), 1, "{whole}");
    }
}

#[test]
fn every_key_is_tried() {
    let tried: BTreeSet<&str> = ROWS.iter().map(|(key, ..)| *key).collect();
    let known: BTreeSet<&str> = KEYS.iter().map(|key| key.name).filter(|key| *key != "backends").collect();
    assert_eq!(tried, known);
}

#[test]
fn reserved_keys_warn_and_others_do_not() {
    for (key, good, ..) in ROWS {
        let config = parse(&lines(key, good)).unwrap();
        let row = KEYS.iter().find(|row| row.name == *key).unwrap();
        let default = shown(&parse("").unwrap(), key);
        let warned =
            config.warnings.iter().any(|warning| warning.message.contains("no effect in this version"));
        let expected = match *key {
            "databases" | "users" => false,
            _ => row.status == Status::Reserved && shown(&config, key) != default,
        };
        assert_eq!(warned, expected, "{key}: {good}: {:?}", config.warnings);
        for warning in &config.warnings {
            assert!(warning.to_string().starts_with(&format!("t.yaml:2: {key}: ")), "{warning}");
        }
    }
}

#[test]
fn warnings_say_what_is_not_so() {
    let warned =
        |text: &str| parse(text).unwrap().warnings.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(warned("consistency: eventual\nauto_failback: off\n").is_empty());
    assert!(warned("min_pool_size: 0\nsession_state: pin\n").is_empty());
    assert!(warned("reserved_connections: 5\n").is_empty());
    let nested = config::parse("backends:\n  - hostname: a\n    max_connections: 50\n", "t.yaml").unwrap();
    assert!(nested.warnings.is_empty());
    assert!(warned("users:\n  app:\n    reserve_pool_size: 2\n").is_empty());
    assert!(warned("databases: {shop: {consistency: eventual}}\n").is_empty());
    assert_eq!(
        parse("databases:\n  shop:\n    consistency: total\n").unwrap_err(),
        "t.yaml:4: databases.shop.consistency: found \"total\", expected eventual, read_your_writes, monotonic or global"
    );
    assert_eq!(
        warned("server_idle_timeout: 5\n"),
        ["t.yaml:2: server_idle_timeout: a bare number is in minutes here: this is 5min"]
    );
    assert!(parse("").unwrap().warnings.is_empty());
}

#[test]
fn defaults_are_those_of_the_specification() {
    let config = parse("").unwrap();
    let s = Duration::from_secs;
    assert_eq!(config.listen_addresses, ["localhost"]);
    assert_eq!((config.port, config.read_only_port, config.pcp_port), (9999, None, None));
    assert_eq!(config.unix_socket_directories, ["/var/run/pgweir"]);
    assert_eq!((config.unix_socket_permissions, config.workers, config.listen_backlog), (0o777, None, 1024));
    assert_eq!((config.connect_timeout, config.tcp_keepalives_idle), (s(10), s(60)));
    assert_eq!((config.tcp_keepalives_interval, config.tcp_keepalives_count), (s(10), 3));
    assert_eq!(config.tcp_user_timeout, Some(s(30)));
    assert_eq!((config.default_pool_size, config.min_pool_size, config.reserve_pool_size), (20, 0, 0));
    assert_eq!((config.max_client_conn, config.reserved_connections), (10_000, 3));
    assert_eq!((config.max_db_connections, config.max_user_connections), (None, None));
    assert_eq!((config.query_wait_timeout, config.reserve_pool_timeout), (s(30), s(5)));
    assert_eq!((config.server_lifetime, config.server_idle_timeout), (s(3600), s(600)));
    assert_eq!((config.max_prepared_statements, config.max_parsed_statement), (1000, 65_536));
    assert_eq!((config.client_idle_limit, config.query_timeout), (None, None));
    assert_eq!(config.authentication_timeout, s(60));
    assert_eq!(
        (config.pool_passwd, config.pool_hba_file),
        (PathBuf::from("pool_passwd"), "pool_hba.conf".into())
    );
    assert_eq!((config.enable_pool_hba, config.hba, config.ssl), (false, None, Ssl::Off));
    assert_eq!((config.delay_threshold, config.delay_threshold_by_time), (Some(16 << 20), None));
    assert_eq!(config.consistency, config::Consistency::ReadYourWrites);
    assert_eq!(config.load_balance, config::LoadBalance::LeastOutstanding);
    assert_eq!((config.sr_check_period, config.sr_check_min_period), (s(1), Duration::from_millis(20)));
    assert_eq!((config.sr_check_user.as_str(), config.sr_check_database.as_str()), ("pgweir", "postgres"));
    assert_eq!((config.health_check_period, config.health_check_timeout), (s(2), s(5)));
    assert_eq!((config.health_check_max_retries, config.health_check_retry_delay), (3, s(1)));
    assert_eq!(config.metrics_listen.map(|at| at.to_string()).as_deref(), Some("localhost:9719"));
    assert_eq!((config.log_min_duration_statement, config.pid_file), (None, None));
    assert_eq!((config.shutdown_timeout, config.failover_hold_timeout), (s(60), s(30)));
}

#[test]
fn backends_have_their_own_table() {
    let config = config::parse(
        "backends:\n\
         \x20 - { hostname: db0, weight: 0, flag: ALWAYS_PRIMARY, data_directory: /d, application_name: db0 }\n\
         \x20 - hostname: /run/pg\n\
         \x20   port: 5433\n\
         \x20   weight: 0.5\n\
         \x20   health_check_max_retries: 0\n\
         \x20   health_check_password: hush\n\
         \x20 - hostname: '::1'\n",
        "t.yaml",
    )
    .unwrap();
    let [one, two, three] = config.backends.as_slice() else { panic!("three nodes") };
    assert_eq!((one.hostname.as_str(), one.port, one.weight), ("db0", 5432, 0.0));
    assert_eq!(one.flag, config::BackendFlag::AlwaysPrimary);
    assert_eq!(
        (one.data_directory.as_deref(), one.application_name.as_deref()),
        (Some("/d".as_ref()), Some("db0"))
    );
    assert_eq!((two.port, two.weight, two.health_check_max_retries), (5433, 0.5, Some(0)));
    assert_eq!(two.to_string(), "/run/pg/.s.PGSQL.5433");
    assert_eq!(three.to_string(), "[::1]:5432");
    let text = shown(&config, "backends");
    assert!(text.contains("health_check_password: ********") && !text.contains("hush"), "{text}");
    assert!(!format!("{config:?}").contains("hush"));
}
