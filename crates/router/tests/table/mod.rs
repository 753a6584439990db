//! The table check that the verdict tests share.

use router::{ParseOptions, classify};

use crate::common::line;

/// Checks rows of (expected line, statement) and reports all that differ.
pub(crate) fn check(rows: &[(&str, &str)]) {
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|(expected, sql)| {
            let found = line(&classify(sql.as_bytes(), &ParseOptions::default()));
            (found != *expected).then(|| format!("{sql}\n  expected {expected}\n  found    {found}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}
