//! Settings that are fine one by one and cannot be together.

use crate::parse;

/// Text after the first line, and what is told.
const CASES: &[(&str, &str)] = &[
    ("min_pool_size: 30\n", "t.yaml:2: min_pool_size: found 30, expected at most the pool's size (20)"),
    (
        "default_pool_size: 5\nmin_pool_size: 6\n",
        "t.yaml:3: min_pool_size: found 6, expected at most the pool's size (5)",
    ),
    (
        "databases:\n  d:\n    pool_size: 2\n    min_pool_size: 3\n",
        "t.yaml:5: databases.d.min_pool_size: found 3, expected at most the pool's size (2)",
    ),
    (
        "min_pool_size: 3\nusers:\n  u: {pool_size: 2}\n",
        "t.yaml:4: users.u.min_pool_size: found 3, expected at most the pool's size (2)",
    ),
    (
        "metrics_listen: 'localhost:9999'\n",
        "t.yaml:2: metrics_listen: found \"localhost:9999\", expected another port than 9999, where clients are served",
    ),
    ("port: 9719\n", "t.yaml:2: metrics_listen: found \"localhost:9719\", expected another port than 9719"),
    ("listen_addresses: ['*']\nmetrics_listen: 'other:9999'\n", "t.yaml:3: metrics_listen: found"),
    ("metrics_listen: '0.0.0.0:9999'\n", "t.yaml:2: metrics_listen: found"),
    (
        "sr_check_period: 10ms\n",
        "t.yaml:2: sr_check_min_period: found 20ms, expected at most sr_check_period (10ms)",
    ),
    (
        "failover_mode: command\n",
        "t.yaml:2: failover_mode: found command, expected failover_command to be set as well",
    ),
    (
        "databases: {pgbouncer: {}}\n",
        "t.yaml:2: databases.pgbouncer: found pgbouncer, expected another name: this database is pgweir's own console",
    ),
    ("databases: {pgweir: {}}\n", "t.yaml:2: databases.pgweir: found pgweir, expected another name"),
    (
        "listen_addresses: []\nunix_socket_directories: []\n",
        "t.yaml:2: listen_addresses: found an empty list, expected an address or a Unix socket",
    ),
    (
        "user_redirect_preference_list:\n  - a:primary\n  - a:1\n",
        "t.yaml:4: user_redirect_preference_list[1]: found \"a:1\", expected the id of a node, less than 1",
    ),
];

#[test]
fn are_refused_at_the_culprit() {
    for (text, told) in CASES {
        let whole = parse(text).expect_err(text);
        assert!(whole.starts_with(told), "{text}: {whole}");
        assert_eq!(whole.lines().count(), 1, "{whole}");
    }
}

#[test]
fn nodes_that_cannot_be_together_are_refused() {
    for (text, told) in [
        (
            "backends:\n - {hostname: a}\n - {hostname: b}\n - {hostname: a, port: 5432}\n",
            "t.yaml:4: backends[2]: found a:5432, which is backends[0] already, expected each server once",
        ),
        (
            "backends:\n - {hostname: a, flag: ALWAYS_PRIMARY}\n - hostname: b\n   flag: ALWAYS_PRIMARY\n",
            "t.yaml:4: backends[1].flag: found a second ALWAYS_PRIMARY after backends[0], expected one at most",
        ),
        (
            "backends: [{hostname: localhost, port: 9999}]\n",
            "t.yaml:1: backends[0]: found localhost:9999, where pgweir itself is to listen, expected a PostgreSQL server",
        ),
        (
            "listen_addresses: '*'\nbackends: [{hostname: 127.0.0.1, port: 9999}]\n",
            "t.yaml:2: backends[0]: found 127.0.0.1:9999, where",
        ),
        (
            "unix_socket_directories: [/s]\nbackends: [{hostname: /s/, port: 9999}]\n",
            "t.yaml:2: backends[0]: found /s/.s.PGSQL.9999, where",
        ),
        (
            "reserved_connections: 10\nbackends:\n - {hostname: a, max_connections: 10}\n",
            "t.yaml:3: backends[0].max_connections: found 10, expected more than reserved_connections (10)",
        ),
    ] {
        let whole = config::parse(text, "t.yaml").unwrap_err().to_string();
        assert!(whole.starts_with(told), "{text}: {whole}");
        assert_eq!(whole.lines().count(), 1, "{whole}");
    }
}

#[test]
fn a_socket_path_has_to_fit_the_kernel() {
    // sun_path holds 108 bytes with the final zero: "/.s.PGSQL.9999" leaves 93 for the directory.
    let directory = |length: usize| format!("unix_socket_directories: ['/{}']\n", "d".repeat(length - 1));
    assert!(parse(&directory(93)).is_ok());
    assert!(parse(&directory(94)).unwrap_err().contains("less than 108 bytes"));
}

#[test]
fn what_only_looks_like_a_conflict_is_taken() {
    for text in [
        "listen_addresses: [10.0.0.1]\nmetrics_listen: 'localhost:9999'\n",
        "default_pool_size: 5\nmin_pool_size: 5\n",
        "port: 9719\nmetrics_listen: off\n",
        "users: {u: {pool_size: 2, min_pool_size: 2}}\n",
    ] {
        assert!(parse(text).is_ok(), "{text}");
    }
    assert!(
        config::parse(
            "backends: [{hostname: a}, {hostname: a, port: 5433}, {hostname: db, port: 9999}]",
            "t"
        )
        .is_ok()
    );
}
