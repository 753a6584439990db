//! PostgreSQL's own regression scripts as the classifier's input: nothing panics, what writes goes to the primary, and
//! how many queries sqlparser understands. `make regress-sql` fetches the scripts (Debian's source package of
//! PostgreSQL 15) and runs this; nothing of them is kept here.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a check that is run by hand"
)]

use router::{Access, ParseOptions, Reason, StatementKind, classify, fingerprint};

/// The statements of a psql script: meta-commands and the data of COPY left out, as psql divides it.
fn statements(script: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut current = String::new();
    let (mut depth, mut quote): (i32, Option<String>) = (0, None);
    let mut lines = script.lines();
    while let Some(line) = lines.next() {
        let mut rest = line;
        while let Some(first) = rest.chars().next() {
            if let Some(end) = &quote {
                let stop = rest.find(end.as_str()).map_or(rest.len(), |at| at + end.len());
                if stop < rest.len() || rest.ends_with(end.as_str()) {
                    quote = None;
                }
                current.push_str(&rest[..stop]);
                rest = &rest[stop..];
                continue;
            }
            if rest.starts_with("--") {
                break;
            }
            if first == '\\' {
                // \gset, \gexec and \; end or join statements; others stand between them.
                if rest.starts_with("\\;") {
                    current.push(';');
                    rest = &rest[2..];
                    continue;
                }
                if rest.starts_with("\\g") || rest.starts_with("\\crosstabview") {
                    found.push(std::mem::take(&mut current));
                }
                break;
            }
            let step = opened(rest, &current).map_or(first.len_utf8(), |(end, len)| {
                quote = Some(end);
                len
            });
            depth += i32::from(first == '(' && quote.is_none()) - i32::from(first == ')' && quote.is_none());
            if first == ';' && depth <= 0 && !in_body(&current) {
                depth = 0;
                let data = is_copy_in(&current);
                found.push(std::mem::take(&mut current));
                if data {
                    lines.by_ref().find(|line| *line == "\\.");
                    break;
                }
            } else {
                current.push_str(&rest[..step]);
            }
            rest = &rest[step..];
        }
        current.push('\n');
    }
    found.retain(|statement| !statement.trim().is_empty());
    found
}

/// What closes the quote that `rest` begins with, and the length of what opens it.
fn opened(rest: &str, before: &str) -> Option<(String, usize)> {
    let in_word = before.ends_with(|last: char| last.is_alphanumeric() || last == '_');
    match rest.chars().next()? {
        '\'' => Some(("'".to_owned(), 1)),
        '"' => Some(("\"".to_owned(), 1)),
        '/' if rest.starts_with("/*") => Some(("*/".to_owned(), 2)),
        '$' if !in_word => {
            let end = rest[1..].find('$')? + 2;
            let tag = &rest[1..end - 1];
            let named = tag.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
                && !tag.starts_with(|first: char| first.is_ascii_digit());
            named.then(|| (rest[..end].to_owned(), end))
        }
        _ => None,
    }
}

fn words(statement: &str) -> Vec<String> {
    let split = statement.split(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
    split.filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

fn in_body(statement: &str) -> bool {
    let words = words(statement);
    let count = |word: &str| words.iter().filter(|found| *found == word).count();
    words.windows(2).any(|pair| pair[0] == "begin" && pair[1] == "atomic") && count("end") < 1 + count("case")
}

fn is_copy_in(statement: &str) -> bool {
    let words = words(statement);
    words.first().is_some_and(|first| first == "copy")
        && words.windows(2).any(|pair| pair[0] == "from" && pair[1] == "stdin")
}

/// The statement without comments and what stands in quotes: what is left decides whether it can write.
fn bare(statement: &str) -> String {
    let (mut out, mut rest, mut quote): (String, &str, Option<String>) = (String::new(), statement, None);
    while let Some(first) = rest.chars().next() {
        let step = match &quote {
            Some(end) if rest.starts_with(end.as_str()) => {
                let len = end.len();
                quote = None;
                len
            }
            Some(_) => first.len_utf8(),
            None => match opened(rest, &out) {
                Some((end, len)) => {
                    quote = Some(end);
                    out.push_str(" q ");
                    len
                }
                None => {
                    out.push(first);
                    first.len_utf8()
                }
            },
        };
        rest = &rest[step..];
    }
    out
}

/// Told without the classifier: the first word, and words that only statements that write or lock have.
fn writes(statement: &str) -> bool {
    const FIRST: &[&str] = &[
        "insert",
        "update",
        "delete",
        "merge",
        "create",
        "alter",
        "drop",
        "truncate",
        "grant",
        "revoke",
        "vacuum",
        "analyze",
        "reindex",
        "cluster",
        "comment",
        "refresh",
        "lock",
        "call",
        "do",
        "notify",
        "listen",
        "unlisten",
        "checkpoint",
        "reassign",
        "import",
        "security",
        "load",
    ];
    const INSIDE: &[&str] = &[
        "nextval",
        "setval",
        "currval",
        "lastval",
        "txid_current",
        "pg_current_xact_id",
        "pg_notify",
        "lo_create",
        "lo_unlink",
        "lo_import",
        "lo_export",
        "pg_advisory_lock",
        "pg_advisory_xact_lock",
        "pg_export_snapshot",
        "pg_reload_conf",
        "pg_terminate_backend",
        "pg_cancel_backend",
        "pg_create_logical_replication_slot",
    ];
    let words = words(&bare(statement));
    let Some(first) = words.first() else { return false };
    let explains =
        first == "explain" && !words.iter().take(8).any(|word| word == "analyze" || word == "analyse");
    let pairs = |a: &str, list: &[&str]| {
        words.windows(2).any(|pair| pair[0] == a && list.contains(&pair[1].as_str()))
    };
    if FIRST.contains(&first.as_str()) {
        return true;
    }
    let query =
        ["select", "with", "table", "values"].contains(&first.as_str()) || (first == "explain" && !explains);
    query
        && (words.iter().any(|word| INSIDE.contains(&word.as_str()))
            || pairs("for", &["update", "share"])
            || pairs("insert", &["into"])
            || pairs("delete", &["from"]) && first != "explain")
}

fn main() {
    let directory = std::env::args().nth(1).expect("usage: regress DIRECTORY");
    let options = ParseOptions { max_parsed_statement: 1 << 20, ..ParseOptions::default() };
    let (mut all, mut queries, mut understood, mut writers) = (0, 0, 0, 0);
    let (mut wrong, mut not_understood) = (Vec::new(), Vec::new());
    let mut files: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "sql")) {
        let script = String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned();
        for statement in statements(&script) {
            let verdict = classify(statement.as_bytes(), &options);
            let _ = fingerprint(statement.as_bytes(), true);
            all += 1;
            if verdict.kind == StatementKind::Select {
                queries += 1;
                understood += u32::from(verdict.reason != Reason::Unparsed);
                if verdict.reason == Reason::Unparsed {
                    not_understood.push(statement.clone());
                }
            }
            if writes(&statement) {
                writers += 1;
                if verdict.access != Access::Write {
                    wrong.push(format!("{}: {statement}: {}", file.display(), verdict.reason.as_str()));
                }
            }
        }
    }
    let rate = f64::from(understood) * 100.0 / f64::from(queries.max(1));
    println!(
        "{} scripts, {all} statements, {writers} that write; {understood} of {queries} queries understood ({rate:.1} %)",
        files.len()
    );
    if std::env::var_os("PGWEIR_REGRESS_SHOW").is_some() {
        not_understood.iter().for_each(|statement| println!("not understood: {}", statement.trim()));
    }
    assert!(all > 30_000, "{all} statements");
    assert!(wrong.is_empty(), "{} writes not on the primary:\n{}", wrong.len(), wrong.join("\n"));
}
