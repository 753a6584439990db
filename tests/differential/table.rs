//! The table of scripts: those of the file, and those of its sections that are combined with what went before.

use anyhow::{Context, Result, ensure};

use crate::known;
use crate::script::Script;

const TEXT: &str = include_str!("scripts.txt");

/// What a script of a section `[combined]` is put into, besides standing alone: name, before, after.
const AROUND: [(&str, &str, &str); 5] = [
    ("in a transaction", r#"Q("BEGIN") |"#, r#"| Q("COMMIT")"#),
    ("in an extended transaction", r#"PBE("BEGIN") S |"#, r#"| PBE("ROLLBACK") S"#),
    ("in a failed transaction", r#"Q("BEGIN") | Q("SELECT 1/0") |"#, r#"| Q("COMMIT") | Q("SELECT 1")"#),
    (
        "after a savepoint",
        r#"Q("BEGIN; INSERT INTO t VALUES (50); SAVEPOINT before") |"#,
        r#"| Q("ROLLBACK TO before") | Q("SELECT count(*) FROM t") | Q("COMMIT")"#,
    ),
    (
        "with state",
        r#"Q("SET application_name = 'me'; SET work_mem = '5MB'") | P("keep","SELECT $1::int") S |"#,
        r#"| B("","keep",["5"]) E S | Q("SHOW application_name") | Q("SHOW work_mem")"#,
    ),
];

/// Whether a script is one of the combined ones: they are many, and take fewer ways.
pub(crate) fn is_combined(script: &Script) -> bool {
    AROUND.iter().any(|(around, _, _)| script.name.ends_with(around))
}

/// All scripts: of `PGWEIR_SCRIPT`, or else of the table.
pub(crate) fn scripts() -> Result<Vec<Script>> {
    if let Ok(text) = std::env::var("PGWEIR_SCRIPT") {
        return Ok(vec![Script::parse("PGWEIR_SCRIPT", &text)?]);
    }
    let (mut all, mut combined) = (Vec::new(), false);
    for line in TEXT.replace("\\\n", "").lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.starts_with('[') {
            combined = line == "[combined]";
            continue;
        }
        let (name, text) = line.split_once(": ").with_context(|| format!("no name: {line}"))?;
        all.push(Script::parse(name, text)?);
        for (around, before, after) in AROUND.iter().filter(|_| combined) {
            all.push(Script::parse(&format!("{name}, {around}"), &format!("{before} {text} {after}"))?);
        }
    }
    for (name, _reason) in known::SCRIPTS {
        let before = all.len();
        let combined = format!("{name}, ");
        all.retain(|script| script.name != *name && !script.name.starts_with(&combined));
        ensure!(all.len() < before, "no script {name}");
    }
    Ok(all)
}

#[test]
fn there_are_many_scripts_and_no_two_of_a_name() -> Result<()> {
    let all = scripts()?;
    let mut names: Vec<&str> = all.iter().map(|script| script.name.as_str()).collect();
    let n = names.len();
    names.sort_unstable();
    names.dedup();
    ensure!(names.len() == n && (n >= 300 || std::env::var_os("PGWEIR_SCRIPT").is_some()), "{n} scripts");
    Ok(())
}
