//! docs/cases.md: each kind of fault that it names has tests, and the tests that it names are those there are.
//!
//! A test carries the ids in its documentation (`/// PS-01`) or in its name (`fn ps_01_...`).
//! `PGWEIR_WRITE_DOCS=1` writes the last column of the table anew.

use std::collections::BTreeMap;
use std::fs;

use crate::tree::files;
use crate::{none, root};

const PAGE: &str = "docs/cases.md";
/// The first letters of the ids that the page has.
const KINDS: [&str; 15] =
    ["PS", "EP", "SL", "CN", "CP", "AU", "TL", "FO", "TO", "PN", "RW", "SR", "PP", "AD", "RL"];

/// Tests by the ids that they carry.
type Carried = BTreeMap<String, Vec<String>>;

/// The ids in a text, `PS-01` and the like.
fn ids(text: &str) -> Vec<String> {
    let id = |word: &&str| {
        let (kind, number) = word.split_once('-').unwrap_or_default();
        KINDS.contains(&kind) && number.len() == 2 && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').filter(id).map(str::to_owned).collect()
}

/// The ids in front of the name of a test: `ps_01_ps_02_what_it_shows`.
fn ids_of_name(name: &str) -> Vec<String> {
    let words: Vec<&str> = name.split('_').collect();
    let pairs = words.chunks_exact(2).map(|pair| format!("{}-{}", pair[0].to_uppercase(), pair[1]));
    pairs.map_while(|id| ids(&id).pop()).collect()
}

/// Adds the tests of one file.
fn collect(file: &str, text: &str, carried: &mut Carried) {
    let (mut said, mut is_test) = (Vec::new(), false);
    for line in text.lines().map(str::trim) {
        if let Some(doc) = line.strip_prefix("///") {
            said.extend(ids(doc));
        } else if line.starts_with("#[") {
            is_test |= line == "#[test]";
        } else {
            let name = line.strip_prefix("fn ").and_then(|rest| rest.split('(').next()).filter(|_| is_test);
            if let Some(name) = name {
                said.extend(ids_of_name(name));
                said.sort();
                said.dedup();
                for id in said.drain(..) {
                    carried.entry(id).or_default().push(format!("`{file}::{name}`"));
                }
            }
            (said, is_test) = (Vec::new(), false);
        }
    }
}

/// The page with the tests as they are, and complaints.
fn renewed(page: &str, carried: &Carried) -> (String, Vec<String>) {
    let (mut lines, mut complaints, mut listed) = (Vec::new(), Vec::new(), Vec::new());
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let id = cells.get(1).filter(|cell| ids(cell).len() == 1 && cell.len() == 5);
        let (Some(id), Some(what)) = (id, cells.get(2)) else {
            lines.push(line.to_owned());
            continue;
        };
        listed.push((*id).to_owned());
        let tests = carried.get(*id).map(|tests| tests.join(", ")).unwrap_or_default();
        if tests.is_empty() {
            complaints.push(format!("{PAGE}: no test carries {id}"));
        }
        let row = format!("| {id} | {what} | {tests} |");
        if row != line {
            complaints.push(format!("{PAGE}: {id} has the tests {tests} (PGWEIR_WRITE_DOCS=1 writes them)"));
        }
        lines.push(row);
    }
    let missing = carried.keys().filter(|id| !listed.contains(id));
    complaints.extend(missing.map(|id| format!("{PAGE}: {id} is carried by {:?}", carried[id])));
    (lines.join("\n") + "\n", complaints)
}

#[test]
fn every_case_has_its_tests() {
    let mut carried = Carried::new();
    for (path, text) in files("", &[".rs"]) {
        let module = path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
        collect(module, &text, &mut carried);
    }
    let path = root().join(PAGE);
    let page = fs::read_to_string(&path).unwrap_or_default();
    let (new, mut complaints) = renewed(&page, &carried);
    if std::env::var_os("PGWEIR_WRITE_DOCS").is_some() {
        fs::write(&path, &new).expect("docs can be written");
        complaints = renewed(&new, &carried).1;
    }
    none(&complaints);
}

#[test]
fn cases_without_tests_are_complained_of() {
    let mut carried = Carried::new();
    let text = "/// PS-01: so.\n/// And CN-02\n#[test]\nfn ep_03_ps_04_it() {}\n/// PS-09\nfn no_test() {}\n";
    collect("file", text, &mut carried);
    assert_eq!(carried.keys().collect::<Vec<_>>(), ["CN-02", "EP-03", "PS-01", "PS-04"]);
    let page = "| PS-01 | one | `file::ep_03_ps_04_it` |\n| CN-02 | two | `other` |\n| SL-01 | three |  |\n";
    let (new, complaints) = renewed(page, &carried);
    assert!(new.contains("| CN-02 | two | `file::ep_03_ps_04_it` |"), "{new}");
    // CN-02 is not up to date, SL-01 has none, EP-03 and PS-04 are not on the page.
    assert_eq!(complaints.len(), 4, "{complaints:?}");
}
