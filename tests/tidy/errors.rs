//! The page of errors: every text that the proxy tells clients has a row in it, and every row is such a text.

use std::collections::BTreeSet;

use regex::Regex;

use crate::tree::files;
use crate::{none, root};

/// What is put together of parts, so that the pattern does not find it whole: PostgreSQL's own words.
const IN_PARTS: &[&str] = &[
    "password authentication failed for user \"...\"",
    "terminating connection due to idle-session timeout",
    "terminating connection due to idle-in-transaction timeout",
    "terminating connection due to transaction timeout",
    "sorry, too many clients already",
    "too many connections for database \"...\"",
    "too many connections for role \"...\"",
];
/// Those parts.
const PARTS: &[&str] = &["idle-session timeout", "idle-in-transaction timeout"];
/// Where operators are told something, not clients.
const NOT_FOR_CLIENTS: &[&str] = &["crates/proxy/src/tls/", "crates/proxy/src/listener.rs"];

/// `{}` and `{name}` become `...`.
fn shape(text: &str) -> String {
    let text = Regex::new(r"\\\n\s*").map(|breaks| breaks.replace_all(text, "").into_owned());
    let text = text.unwrap_or_default().replace("\\\"", "\"");
    Regex::new(r"\{[^}]*\}").map(|holes| holes.replace_all(&text, "...").into_owned()).unwrap_or_default()
}

/// The texts of errors in a source file, its tests left out.
fn told(source: &str) -> BTreeSet<String> {
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let pattern =
        r#"(?:SqlState::[A-Z_]+,\s*|\btext\s*=\s*|ours\(|hba\()(?:format!\(\s*)?"((?:[^"\\]|\\.|\\\n)+)""#;
    let texts = Regex::new(pattern).expect("the pattern is sound");
    let found = texts.captures_iter(source).map(|found| shape(&found[1]));
    // What is one word is a word of a metric or a log.
    found.filter(|text| text.contains(' ') && !text.starts_with("max_")).collect()
}

/// The first cells of the page's rows.
fn explained(page: &str) -> BTreeSet<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| Some(row.split_once("` |")?.0.to_owned())).collect()
}

fn is_for_clients(path: &str) -> bool {
    let is_test = path.contains("/tests/") || path.ends_with("tests.rs");
    !is_test && !NOT_FOR_CLIENTS.iter().any(|no| path.starts_with(no))
}

#[test]
fn every_error_is_explained_and_every_explanation_is_of_one() {
    let page = std::fs::read_to_string(root().join("docs/troubleshooting.md")).expect("the page");
    let explained = explained(&page);
    assert!(explained.len() > 30, "{}", explained.len());
    let mut all = BTreeSet::new();
    for (path, text) in files("crates/proxy/src", &[".rs"]) {
        if is_for_clients(&path) {
            all.extend(told(&text));
        }
    }
    let whole = |text: &&String| !PARTS.contains(&text.as_str());
    let unexplained = all.iter().filter(whole).filter(|text| !explained.contains(*text));
    let mut found: Vec<String> =
        unexplained.map(|text| format!("not in troubleshooting.md: {text}")).collect();
    let invented = explained.iter().filter(|text| !all.contains(*text) && !IN_PARTS.contains(&text.as_str()));
    found.extend(invented.map(|text| format!("nobody says: {text}")));
    none(&found);
}

#[test]
fn the_pattern_finds_what_it_is_for() {
    let source = r#"
        PgError::error(SqlState::X, "no node is alive").with_hint("Not this.")
        let text = format!("node {node} went out \
            of \"use\"");
        #[cfg(test)] let text = "in a test";
    "#;
    let found: Vec<String> = told(source).into_iter().collect();
    assert_eq!(found, ["no node is alive", "node ... went out of \"use\""]);
    assert_eq!(explained("| `a b` | x |\n| c | d |"), BTreeSet::from(["a b".to_owned()]));
}
