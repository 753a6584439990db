//! What is refused whatever the key: unknown names, duplicates, wrong shapes, text that is not YAML.

use crate::parse;

fn refusal(text: &str) -> String {
    config::parse(text, "t.yaml").unwrap_err().to_string()
}

/// PP-10: an unknown name.
#[test]
fn unknown_keys_get_a_suggestion() {
    for (text, told) in [
        (
            "prot: 1",
            "t.yaml:2: prot: found the unknown key \"prot\", expected a known key (did you mean port?)",
        ),
        (
            "listen-addresses: a",
            "t.yaml:2: listen-addresses: found the unknown key \"listen-addresses\", expected a known key (did you mean listen_addresses?)",
        ),
        (
            "Pool_Mode: session",
            "t.yaml:2: Pool_Mode: found the unknown key \"Pool_Mode\", expected a known key (did you mean pool_mode?)",
        ),
        (
            "num_init_children: 32",
            "t.yaml:2: num_init_children: found the unknown key \"num_init_children\", expected a known key",
        ),
        (
            "databases: {d: {poolsize: 1}}",
            "t.yaml:2: databases.d.poolsize: found the unknown key \"poolsize\", expected a known key (did you mean pool_size?)",
        ),
        ("1: 2", "t.yaml:2: 1: found the unknown key \"1\", expected a known key"),
        ("<<: {port: 1}", "t.yaml:2: <<: found the unknown key \"<<\", expected a known key"),
    ] {
        assert_eq!(parse(text).unwrap_err(), told);
    }
}

#[test]
fn a_key_may_be_set_once() {
    assert_eq!(
        parse("port: 1\nport: 2\n").unwrap_err(),
        "t.yaml:3: port: found a second port, expected each key once"
    );
    assert_eq!(
        parse("port: 1\nport: 1\n").unwrap_err(),
        "t.yaml:3: port: found a second port, expected each key once"
    );
    assert_eq!(
        refusal("backends:\n  - hostname: a\n    port: 1\n    port: 2\n"),
        "t.yaml:4: backends[0].port: found a second port, expected each key once"
    );
    assert_eq!(
        parse("users:\n  a: {}\n  a: {}\n").unwrap_err(),
        "t.yaml:4: users.a: found a second entry of this name, expected each name once"
    );
}

#[test]
fn nested_errors_have_their_own_line_and_key() {
    let told = refusal(
        "backends:\n\
         \x20 - hostname: a\n\
         \x20   weight: -1\n\
         \x20 - { port: 5432 }\n\
         \x20 - { hostname: c, port: x, hots: d }\n\
         \x20 - db4\n\
         users:\n\
         \x20 \"*\":\n\
         \x20   pool_mode: statement\n",
    );
    let lines: Vec<&str> = told.lines().collect();
    let expected = [
        "t.yaml:3: backends[0].weight: found -1, expected a number from 0 to 1000000, fractions allowed",
        "t.yaml:4: backends[1]: found no hostname, expected hostname: text",
        "t.yaml:5: backends[2].port: found \"x\", expected a number from 1 to 65535",
        "t.yaml:5: backends[2].hots: found the unknown key \"hots\", expected a known key (did you mean port?)",
        "t.yaml:6: backends[3]: found \"db4\", expected a mapping with keys out of hostname, port,",
        "t.yaml:9: users.\"*\".pool_mode: found \"statement\", expected session or transaction (statement is not",
    ];
    assert_eq!(lines.len(), expected.len(), "{told}");
    for (line, expected) in lines.iter().zip(expected) {
        let expected = expected.split(" (did").next().unwrap();
        assert!(line.starts_with(expected), "{line}\n{expected}");
    }
}

/// PP-10: a wrong value, told with its place.
#[test]
fn every_error_is_told_with_column() {
    let errors = config::parse("port: x\nworkers: x\n", "t.yaml").unwrap_err();
    let places: Vec<_> = errors.iter().map(|error| (error.key.as_str(), error.line, error.column)).collect();
    assert_eq!(places, [("port", Some(1), Some(7)), ("workers", Some(2), Some(10))]);
}

#[test]
fn backends_must_be_a_list_of_nodes() {
    assert_eq!(
        refusal(""),
        "t.yaml: backends: found no backends, expected backends: a list of nodes, each { hostname: ..., port: ..., weight: ..., ... }"
    );
    for (text, told) in [
        ("backends: []", "t.yaml:1: backends: found an empty list, expected a list of 1 to 128 nodes"),
        ("backends:", "t.yaml:1: backends: found nothing, expected a list of nodes"),
        ("backends: db0", "t.yaml:1: backends: found \"db0\", expected a list of nodes"),
        ("backends: {hostname: a}", "t.yaml:1: backends: found a mapping, expected a list of nodes"),
        ("backends: [{hostname: ''}]", "t.yaml:1: backends[0].hostname: found \"\", expected text"),
        ("backends: [{hostname: a, weight: .nan}]", "t.yaml:1: backends[0].weight: found NaN, expected"),
        ("backends: [{hostname: a, weight: .inf}]", "t.yaml:1: backends[0].weight: found inf, expected"),
        (
            "backends: [{hostname: a, flag: ALWAYS}]",
            "t.yaml:1: backends[0].flag: found \"ALWAYS\", expected ALLOW_TO_FAILOVER,",
        ),
    ] {
        let whole = refusal(text);
        assert!(whole.starts_with(told), "{whole}");
    }
    let many = format!("backends: [{}]", "{hostname: a},".repeat(129));
    assert!(refusal(&many).contains("found a longer list, expected a list of 1 to 128 nodes"));
}

#[test]
fn text_that_is_no_mapping_is_refused() {
    for (text, told) in [
        ("- a\n- b\n", "t.yaml:1: found a list, expected a mapping of keys to values"),
        ("just text\n", "t.yaml:1: found \"just text\", expected a mapping"),
        ("port: 1\n\tworkers: 2\n", "t.yaml:2: found "),
        ("port: [1\n", "t.yaml:2: found "),
        ("port: !secret x\n", "t.yaml:1: found "),
        ("? [a]\n: b\n", "t.yaml:1: found "),
        ("a: *nowhere\n", "t.yaml:1: found "),
        (
            "include: other.yaml\n",
            "t.yaml:1: include: found an include in text that is no file, expected the settings themselves",
        ),
    ] {
        let whole = refusal(text);
        assert!(whole.starts_with(told), "{text:?}: {whole}");
    }
    assert!(refusal("port: 1\n---\nport: 2\n").contains("more than one document"));
}

#[test]
fn hostile_text_is_bounded() {
    // Nesting, aliases that multiply, and more errors than anybody reads.
    assert!(refusal(&format!("port: {}", "[".repeat(100_000))).contains("t.yaml:1"));
    let mut laughs = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x]\n");
    for level in 1..30 {
        let below = format!("*a{},", level - 1).repeat(9);
        laughs.push_str(&format!("a{level}: &a{level} [{below}]\n"));
    }
    assert!(refusal(&laughs).contains("repetition limit"));
    let unknown: String = (0..500).map(|n| format!("unknown{n}: 1\n")).collect();
    assert_eq!(config::parse(&unknown, "t").unwrap_err().iter().count(), 100);
}

#[test]
fn aliases_work_within_a_file() {
    let config = config::parse("backends:\n - &a { hostname: a, weight: 2 }\npool_mode: &m session\nusers: { u: { pool_mode: *m } }\n", "t").unwrap();
    assert_eq!(config.users["u"].pool_mode, Some(config::PoolMode::Session));
}
