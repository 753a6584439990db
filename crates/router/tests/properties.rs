//! Properties over random texts: no panic, one fingerprint one verdict, cached as uncached, no write taken
//! for a read.

use std::collections::HashMap;

use proptest::prelude::*;
use router::{Access, Classifier, ParseOptions, TxControl, Verdict, classify, explain, fingerprint};

const WORDS: &[&str] = &[
    "SELECT",
    "select",
    "FROM",
    "t",
    "WHERE",
    "a",
    "=",
    "1",
    "2",
    "'x'",
    "'it''s'",
    "$1",
    "$2",
    "(",
    ")",
    ",",
    ";",
    ".",
    "*",
    "INSERT",
    "INTO",
    "VALUES",
    "UPDATE",
    "SET",
    "DELETE",
    "WITH",
    "AS",
    "x",
    "FOR",
    "SHARE",
    "BEGIN",
    "COMMIT",
    "READ",
    "ONLY",
    "ISOLATION",
    "LEVEL",
    "SERIALIZABLE",
    "ROLLBACK",
    "TO",
    "SAVEPOINT",
    "nextval",
    "lower",
    "wr",
    "set_config",
    "true",
    "false",
    "pg_advisory_lock",
    "EXPLAIN",
    "ANALYZE",
    "COPY",
    "STDOUT",
    "DECLARE",
    "CURSOR",
    "HOLD",
    "PREPARE",
    "EXECUTE",
    "\"a\"",
    "\"nextval\"",
    "$$x$$",
    "E'\\''",
    "--",
    "/*",
    "*/",
    "\n",
    "::",
    "int",
    "[",
    "]",
    "UNION",
    "ALL",
    "TABLE",
    "TEMP",
    "CREATE",
    "END",
    "CASE",
    "WHEN",
    "-",
    "+",
    "||",
    "<#>",
    "pg_catalog",
    "LOCAL",
    "RESET",
    "SHOW",
    "POOL_NODES",
    "DISCARD",
    "JOIN",
    "ON",
    "OVER",
    "/*NO LOAD BALANCE*/",
    "/* pgweir: node=3 */",
    "U&\"x\"",
    "\\",
    "'",
    "\"",
    "\u{e9}",
    "AND",
    "OR",
    "NOT",
    "NULL",
    "transaction_read_only",
    "off",
    "atomic",
    "begin",
];

/// Neither quotes nor comments, which would swallow what is put into the text.
fn plain_soup() -> impl Strategy<Value = String> {
    let plain = |word: &&&str| word.is_ascii() && !word.contains(['\'', '"', '/', '*', '-', '$', '\\']);
    let words: Vec<&str> = WORDS.iter().filter(plain).copied().collect();
    proptest::collection::vec(proptest::sample::select(words), 0..24).prop_map(|words| words.join(" "))
}

fn soup() -> impl Strategy<Value = String> {
    let word = proptest::sample::select(WORDS);
    let gap = proptest::sample::select(&["", " ", " ", " ", "\n", "/**/"]);
    proptest::collection::vec((word, gap), 0..24).prop_map(|parts| {
        parts.into_iter().fold(String::new(), |mut text, (word, gap)| {
            text.push_str(word);
            text.push_str(gap);
            text
        })
    })
}

/// Texts that mostly parse.
fn query() -> impl Strategy<Value = String> {
    let leaf = proptest::sample::select(&["1", "'x'", "a", "t.a", "$1", "now()", "lower('X')", "NULL"])
        .prop_map(str::to_owned);
    let expression = leaf.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a} + {b}")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("coalesce({a}, {b})")),
            inner.clone().prop_map(|a| format!("({a})")),
            inner.clone().prop_map(|a| format!("(SELECT {a} FROM t LIMIT 1)")),
            inner.clone().prop_map(|a| format!("CASE WHEN {a} IS NULL THEN 1 ELSE {a} END")),
            inner.clone().prop_map(|a| format!("EXISTS (SELECT 1 FROM t WHERE {a} = 1)")),
            inner.clone().prop_map(|a| format!("array_agg({a} ORDER BY {a}) FILTER (WHERE a > 1)")),
            inner.clone().prop_map(|a| format!("a IN ({a}, 2)")),
            inner.clone().prop_map(|a| format!("{a}::text COLLATE \"C\"")),
            inner.clone().prop_map(|a| format!("(WITH w(z) AS (VALUES ({a})) SELECT z FROM w)")),
            inner.prop_map(|a| format!(
                "(SELECT x FROM generate_series(1, {a}) AS g(x), LATERAL (TABLE u) v)"
            )),
        ]
    });
    (expression.clone(), expression)
        .prop_map(|(a, b)| format!("SELECT {a} FROM t AS t WHERE {b} = 1 ORDER BY 1"))
}

/// Any number in the place of any other.
fn with_other_numbers(sql: &str) -> String {
    sql.replace('1', "77").replace("'x'", "'quite another'")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200), plain in any::<bool>()) {
        let options = ParseOptions { standard_conforming_strings: plain, ..ParseOptions::default() };
        let verdict = classify(&bytes, &options);
        prop_assert_eq!(Classifier::new(1 << 16).classify(&bytes, &options), verdict);
        let small = ParseOptions { max_parsed_statement: 10, ..options };
        prop_assert!(bytes.len() <= 10 || classify(&bytes, &small).access != Access::Read);
    }

    #[test]
    fn one_fingerprint_one_verdict(texts in proptest::collection::vec(soup(), 1..40), plain in any::<bool>()) {
        let options = ParseOptions { standard_conforming_strings: plain, ..ParseOptions::default() };
        let mut classifier = Classifier::new(1 << 20);
        let mut seen = HashMap::new();
        for text in &texts {
            let verdict = classify(text.as_bytes(), &options);
            prop_assert_eq!(classifier.classify(text.as_bytes(), &options), verdict, "{}", text);
            prop_assert_eq!(classifier.classify(text.as_bytes(), &options), verdict, "{}", text);
            // SET and its kin are judged by their literals, too, and never cached.
            if verdict.tx == TxControl::None && verdict.access != Access::Neutral {
                let print = fingerprint(text.as_bytes(), plain);
                prop_assert_eq!(*seen.entry(print).or_insert(verdict), verdict, "{}", text);
            }
            let explanation = explain(text.as_bytes(), &options);
            prop_assert_eq!(explanation.verdict, verdict);
        }
    }

    #[test]
    fn spaces_comments_and_case_do_not_matter(text in plain_soup()) {
        let print = fingerprint(text.as_bytes(), true);
        prop_assert_eq!(fingerprint(text.to_uppercase().as_bytes(), true), print);
        prop_assert_eq!(fingerprint(format!(" \n{text} -- end").as_bytes(), true), print);
        prop_assert_eq!(fingerprint(format!("/* a */{text}/* b */").as_bytes(), true), print);
        let spaced = text.replace(' ', "/* ; */ \t");
        prop_assert_eq!(fingerprint(spaced.as_bytes(), true), print);
    }

    #[test]
    fn queries_read_and_numbers_do_not_matter(sql in query()) {
        let options = ParseOptions::default();
        let verdict = classify(sql.as_bytes(), &options);
        prop_assert_eq!(verdict.access, Access::Read, "{} {:?}", sql, verdict);
        let other = with_other_numbers(&sql);
        let print = verdict.print;
        prop_assert_eq!(Verdict { print, ..classify(other.as_bytes(), &options) }, verdict);
        if !sql.contains("$1") && !sql.contains("::") {
            prop_assert_eq!(fingerprint(other.as_bytes(), true), fingerprint(sql.as_bytes(), true));
        }
    }

    /// Puts something that writes in the place of an expression, wherever that is.
    #[test]
    fn a_write_is_found_at_any_depth(
        sql in query(),
        at in any::<proptest::sample::Index>(),
        write in proptest::sample::select(&[
            "nextval('s')", "public.wr(1)", "pg_advisory_xact_lock(1)", "(SELECT 1 FROM t FOR UPDATE)",
            "(WITH q AS (DELETE FROM t RETURNING 1) SELECT 1)", "\"nextval\" /**/ ('s')", "txid_current()",
        ]),
    ) {
        let places: Vec<usize> = sql.match_indices(" a ").map(|(at, _)| at)
            .chain(sql.match_indices("now()").map(|(at, _)| at))
            .chain(sql.match_indices("NULL").filter(|(at, _)| !sql[..*at].ends_with("IS ")).map(|(at, _)| at))
            .collect();
        prop_assume!(!places.is_empty());
        let place = places[at.index(places.len())];
        let rest = &sql[place..];
        let length = if rest.starts_with(" a ") { 3 } else if rest.starts_with("now()") { 5 } else { 4 };
        let sql = format!("{} {write} {}", &sql[..place], &rest[length..]);
        let verdict = classify(sql.as_bytes(), &ParseOptions::default());
        prop_assert_eq!(verdict.access, Access::Write, "{}", sql);
    }

    /// Whatever is before and after it: the words alone keep a text from being a read.
    #[test]
    fn a_write_is_found_in_any_soup(before in plain_soup(), after in soup()) {
        for write in ["nextval ('s')", "FOR UPDATE", "; DELETE FROM t"] {
            // The comma: after a dot they would be names of something else.
            let sql = format!("SELECT {} , {write} {after}", before.replace(';', ""));
            let verdict = classify(sql.as_bytes(), &ParseOptions::default());
            prop_assert_eq!(verdict.access, Access::Write, "{} {:?}", sql, verdict);
        }
    }

    #[test]
    fn merging_is_careful(a in soup(), b in soup()) {
        let options = ParseOptions::default();
        let (a, b) = (classify(a.as_bytes(), &options), classify(b.as_bytes(), &options));
        let both = a.merge(b);
        prop_assert!(both.access >= a.access.max(b.access));
        prop_assert_eq!(both.pin.is_some(), a.pin.is_some() || b.pin.is_some());
        prop_assert_eq!(both.statements, a.statements + b.statements);
        prop_assert_eq!(both.tx == TxControl::None, a.tx == TxControl::None && b.tx == TxControl::None);
    }
}
