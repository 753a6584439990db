//! The files that are made from the tables. To write them anew:
//! `cargo run -p pgweir-config --example regenerate`.

use std::path::{Path, PathBuf};

use config::{Config, KEYS, Plan};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> String {
    std::fs::read_to_string(repository().join(file)).unwrap()
}

fn parse(text: &str) -> Config {
    config::parse(text, "sample").unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn the_sample_in_the_repository_is_that_of_the_table() {
    assert_eq!(read("etc/pgweir.yaml"), config::sample(), "cargo run -p pgweir-config --example regenerate");
}

#[test]
fn the_reference_in_the_repository_is_that_of_the_table() {
    assert_eq!(
        read("docs/configuration.md"),
        config::reference(),
        "cargo run -p pgweir-config --example regenerate"
    );
}

#[test]
fn the_sample_has_every_key_and_its_comments_are_the_defaults() {
    let sample = config::sample();
    let sets = |line: &&str| line.starts_with('#') && line[1..].starts_with(|c: char| c.is_ascii_lowercase());
    let keys: Vec<&str> =
        sample.lines().filter(sets).map(|line| line[1..].split(':').next().unwrap()).collect();
    let expected: Vec<&str> = KEYS.iter().map(|key| key.name).filter(|key| *key != "backends").collect();
    assert_eq!(keys, expected);
    let bare: String = sample
        .lines()
        .map(|line| if sets(&line) { &line[1..] } else { line })
        .map(|line| format!("{line}\n"))
        .collect();
    let (commented, set) = (parse(&sample), parse(&bare));
    assert!(Plan::between(&commented, &set).is_empty());
    assert!(set.is_given("shutdown_timeout") && !commented.is_given("shutdown_timeout"));
}

#[test]
fn the_sample_rules_are_taken() {
    let text = read("etc/pool_hba.conf.sample");
    assert!(config::hba::Rules::parse(&text, "sample").is_ok());
    // Those that are commented out too.
    let bare: String = text
        .lines()
        .map(|line| line.strip_prefix('#').filter(|rest| rest.starts_with("host ")).unwrap_or(line))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_ne!(bare, text);
    config::hba::Rules::parse(&bare, "sample").unwrap();
}

#[test]
fn the_reference_has_every_key_of_every_table() {
    let reference = config::reference();
    let names = KEYS
        .iter()
        .map(|key| key.name)
        .chain(config::BACKEND_KEYS.iter().map(|key| key.name))
        .chain(config::DATABASE_KEYS.iter().map(|key| key.name))
        .chain(config::USER_KEYS.iter().map(|key| key.name));
    for name in names {
        assert!(reference.contains(&format!("| `{name}` |")), "{name}");
    }
}

#[test]
fn names_are_unique_and_every_key_is_described() {
    let mut names: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), KEYS.len());
    for key in KEYS {
        assert!(key.description().ends_with('.') && !key.kind().is_empty(), "{}", key.name);
    }
}
