//! Links that lead somewhere, and commands that exist.

use std::collections::BTreeSet;

use crate::tree::files;
use crate::{none, root};

/// A link as it stands in a document.
#[derive(Debug, PartialEq, Eq)]
struct Link<'a> {
    line: usize,
    target: &'a str,
}

/// The targets of `[text](target)` outside code blocks and code spans.
fn links(text: &str) -> Vec<Link<'_>> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        for (at, _) in line.match_indices("](") {
            let in_code = line[..at].matches('`').count() % 2 == 1;
            let target = line[at + 2..].split([')', ' ']).next().unwrap_or_default();
            if !in_code {
                found.push(Link { line: number, target });
            }
        }
    }
    found
}

/// The lines outside fenced blocks, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            found.push((number + 1, line));
        }
    }
    found
}

/// The anchors that headings make: lower case, blanks to dashes, other punctuation gone.
fn anchors(text: &str) -> BTreeSet<String> {
    let heading = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        title.chars().filter(|c| c.is_alphanumeric() || *c == '-' || *c == '_').collect()
    };
    prose(text).into_iter().filter(|(_, line)| line.starts_with('#')).map(|(_, line)| heading(line)).collect()
}

/// Links that lead nowhere. `read` gives the text of a path from the top: an empty one for what is not a document,
/// none for what does not exist.
fn broken(path: &str, text: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let mut found = Vec::new();
    for Link { line, target } in links(text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (file, anchor) =
            target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
        let full = if file.is_empty() { path.to_owned() } else { resolve(path, file) };
        match read(&full) {
            None => found.push(format!("{path}:{line}: {target} does not exist")),
            Some(there) if anchor.is_some_and(|anchor| !anchors(&there).contains(anchor)) => {
                found.push(format!("{path}:{line}: no heading for {target}"));
            }
            Some(_) => {}
        }
    }
    found
}

/// A path relative to a document, from the top.
fn resolve(document: &str, relative: &str) -> String {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in relative.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The targets of a Makefile.
fn targets(makefile: &str) -> BTreeSet<&str> {
    makefile
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
        .filter_map(|line| line.split_once(':'))
        .filter(|(_, rest)| !rest.starts_with('='))
        .map(|(name, _)| name)
        .collect()
}

/// `make x` in code, where x is no target.
fn unknown_commands(path: &str, text: &str, targets: &BTreeSet<&str>) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for (at, _) in line.match_indices("make ") {
            let spaced =
                line[..at].trim().is_empty() || line[..at].ends_with('$') || line[..at].ends_with("$ ");
            let word = line[at + 5..]
                .split(|c: char| !(c.is_ascii_lowercase() || c == '-'))
                .next()
                .unwrap_or_default();
            if (line[..at].ends_with('`') || spaced) && !word.is_empty() && !targets.contains(word) {
                found.push(format!("{path}:{}: make {word} is no target", number + 1));
            }
        }
    }
    found
}

/// Targets that `make help` would not show.
fn unexplained(makefile: &str) -> Vec<String> {
    let phony = makefile.lines().find_map(|line| line.strip_prefix(".PHONY:")).unwrap_or_default();
    let explained = |name: &str| {
        makefile.lines().any(|line| line.starts_with(&format!("{name}:")) && line.contains("## "))
    };
    let hidden = phony.split_whitespace().filter(|name| !explained(name));
    hidden.map(|name| format!("Makefile: {name} has no help text")).collect()
}

fn makefile() -> String {
    std::fs::read_to_string(root().join("Makefile")).expect("a Makefile")
}

#[test]
fn links_lead_somewhere() {
    let read = |path: &str| {
        let full = root().join(path);
        full.exists().then(|| std::fs::read_to_string(full).unwrap_or_default())
    };
    let documents = files("", &[".md"]);
    assert!(documents.iter().any(|(path, _)| path == "README.md"), "no README.md");
    let complaints: Vec<String> =
        documents.iter().flat_map(|(path, text)| broken(path, text, &read)).collect();
    none(&complaints);
}

#[test]
fn commands_exist() {
    let makefile = makefile();
    let targets = targets(&makefile);
    let complaints: Vec<String> =
        files("", &[".md"]).iter().flat_map(|(path, text)| unknown_commands(path, text, &targets)).collect();
    none(&complaints);
    none(&unexplained(&makefile));
}

#[test]
fn the_readme_has_the_two_commands_and_ci_runs_the_second() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md");
    for command in ["make run", "make test"] {
        assert!(readme.lines().any(|line| line.trim() == command), "README.md does not give `{command}`");
    }
    let ci = std::fs::read_to_string(root().join(".ci/run")).expect(".ci/run");
    assert!(ci.lines().any(|line| line.trim() == "make test"), ".ci/run does not call make test");
}

#[test]
fn every_decision_is_listed() {
    let index =
        std::fs::read_to_string(root().join("docs/decisions/README.md")).expect("docs/decisions/README.md");
    for (path, _) in files("docs/decisions", &[".md"]) {
        let name = path.rsplit('/').next().unwrap_or_default();
        assert!(
            name == "README.md" || index.contains(&format!("({name})")),
            "{name} is not in the list of decisions"
        );
    }
}

mod samples {
    use super::*;

    #[test]
    fn a_broken_link_is_seen() {
        let read = |path: &str| match path {
            "docs/a.md" => Some("# One\n## Two words, here\n".to_owned()),
            "src" => Some(String::new()),
            _ => None,
        };
        let complaints = |text: &str| broken("docs/a.md", text, &read).len();
        assert_eq!(complaints("[x](b.md)"), 1);
        assert_eq!(complaints("[x](#three)"), 1);
        assert_eq!(complaints("[x](../docs/a.md#two-words-here) [y](../src/) [z](https://example.org/)"), 0);
        assert_eq!(complaints("`[x](b.md)`\n```\n[x](b.md)\n```\n"), 0);
    }

    #[test]
    fn an_unknown_command_is_seen() {
        let makefile = "X ?= 1\nrun: ## runs\n\t@true\nbench-quick: run\n";
        let targets = targets(makefile);
        assert_eq!(targets.iter().copied().collect::<Vec<_>>(), ["bench-quick", "run"]);
        let complaints = |text: &str| unknown_commands("x.md", text, &targets).len();
        assert_eq!(complaints("`make fly`"), 1);
        assert_eq!(complaints("    make fly"), 1);
        assert_eq!(complaints("`make run PORT=1`, and `make bench-quick`; to make sure"), 0);
    }

    #[test]
    fn a_target_without_help_is_seen() {
        assert_eq!(unexplained(".PHONY: a b\na: ## helps\nb:\n").len(), 1);
    }
}
