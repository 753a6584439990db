//! Texts at the borders: encodings, quoting rules, hints, sizes, depths.

mod common;

use cluster::NodeId;
use common::line;
use router::{
    Access, Classifier, Hint, ParseOptions, PinReason, Reason, StatementKind, TxControl, Verdict, classify,
    explain, fingerprint,
};

const READ: &str = "read read_only_select select";

fn found(sql: &[u8]) -> String {
    line(&classify(sql, &ParseOptions::default()))
}

#[test]
fn bytes_that_are_not_utf_8() {
    assert_eq!(found(b"SELECT '\xe9'"), READ);
    assert_eq!(found(b"SELECT '\xff' FROM caf\xe9 WHERE \"\xe9t\xe9\" = 1"), READ);
    assert_eq!(found(b"SELECT '\x95\x5c' FROM t"), READ);
    assert_eq!(found(b"INSERT INTO t VALUES ('\xe9')"), "write dml insert");
    assert_eq!(found(b"SELECT caf\xe9(1)"), "write unknown_function select");
    // SJIS: 0x95 0x5C is one character, so the quote after it ends the string.
    assert_eq!(found(b"SELECT E'\x95\x5c', nextval('x') --'"), "write unparsed select");
    assert_eq!(found(b"SELECT \x95|(1) FROM t"), "write unparsed select");
    assert_eq!(found(b"SELECT 1\0SELECT 2"), "write unparsed select");
    assert_eq!(found(b"\0"), "write unparsed other");
    assert_eq!(found("SELECT * FROM größe WHERE ü = 'ä'".as_bytes()), READ);
}

#[test]
fn quoting_rules() {
    // What follows is inside the string or outside of it, depending on the rule.
    assert_eq!(found(br"SELECT '\', nextval('s') --'"), "write volatile_function select");
    let off = ParseOptions { standard_conforming_strings: false, ..ParseOptions::default() };
    assert_eq!(line(&classify(br"SELECT '\', nextval(', 1, '', '2'", &off)), READ);
    assert_eq!(line(&classify(br"SELECT '\\', nextval('s')", &off)), "write volatile_function select");
    assert_eq!(found(br"SELECT E'\', nextval(\'s\') --'"), READ);
    assert_eq!(found(br"SELECT E'\\', nextval('s')"), "write volatile_function select");
    assert_eq!(found(b"SELECT $a$ $b$ ' $a$, nextval('s') --$a$"), "write volatile_function select");
    assert_eq!(found(b"SELECT $a$ $b$; delete from t; $a$"), READ);
    assert_eq!(
        found(b"SELECT a$b$ FROM t; DELETE FROM t; SELECT x$b$"),
        "write multi_statement_write delete n:3"
    );
    assert_eq!(found(b"SELECT 'a'\n 'b' -- c\n 'd'"), READ);
    assert_eq!(found(b"SELECT 'a' -- c\n 'b', nextval('s')"), "write volatile_function select");
    assert_eq!(found(b"SELECT 1 /* /* */ ; DELETE FROM t */"), READ);
    assert_eq!(found(b"SELECT 1 /* /* */ */ ; DELETE FROM t"), "write multi_statement_write delete n:2");
    assert_eq!(found(b"SELECT 1 -- x\r; DELETE FROM t"), "write multi_statement_write delete n:2");
    assert_eq!(found(b"SELECT 1 +--x\n nextval('s')"), "write volatile_function select");
    assert_eq!(found(b"SELECT 1 +/*x*/ 2"), READ);
    assert_eq!(found(b"SELECT 1 <-> 2, a=-1, a<-1, 1.5e-3, .5, 1., 0x1F, 1_000"), READ);
    assert_eq!(found(b"SELECT \"a\"\"b\" FROM \"t\"\"; delete from t\""), READ);
}

#[test]
fn hints() {
    let hint = |sql: &str| classify(sql.as_bytes(), &ParseOptions::default()).hint;
    assert_eq!(hint("/*NO LOAD BALANCE*/ SELECT 1"), Some(Hint::Primary));
    assert_eq!(hint("/* pgweir: node=1 */ SELECT 1"), Some(Hint::Node(NodeId(1))));
    assert_eq!(hint("/* pgweir: standby */ BEGIN"), Some(Hint::Standby));
    assert_eq!(hint("SELECT /*NO LOAD BALANCE*/ 1"), None);
    let deaf = ParseOptions { allow_sql_comments: false, ..ParseOptions::default() };
    assert_eq!(classify(b"/*NO LOAD BALANCE*/ SELECT 1", &deaf).hint, None);

    let mut classifier = Classifier::new(1 << 20);
    for _ in 0..2 {
        for (sql, expected) in [
            ("SELECT 1", None),
            ("/*NO LOAD BALANCE*/ SELECT 1", Some(Hint::Primary)),
            ("/* pgweir: node=1 */ SELECT 1", Some(Hint::Node(NodeId(1)))),
            ("/* pgweir: node=2 */ SELECT 1", Some(Hint::Node(NodeId(2)))),
        ] {
            assert_eq!(classifier.classify(sql.as_bytes(), &ParseOptions::default()).hint, expected);
            assert_eq!(classifier.classify(sql.as_bytes(), &deaf).hint, None);
        }
    }
    assert_eq!((classifier.hits(), classifier.misses()), (12, 4));
    let off = explain(b"/*NO LOAD BALANCE*/ SELECT 1", &ParseOptions::default());
    assert_eq!((off.target, off.reason), (router::Target::Primary, Reason::Hint));
}

fn deep(sql: String) -> Verdict {
    let options = ParseOptions { max_parsed_statement: 1 << 20, ..ParseOptions::default() };
    classify(sql.as_bytes(), &options)
}

/// On a thread with the stack of a worker (tests have 2 MiB, too, but need not).
#[test]
fn depth_never_overflows_the_stack() {
    let work = || {
        for count in [10, 100, 900, 20_000] {
            for verdict in [
                deep(format!("SELECT {}", vec!["a"; count].join(" + "))),
                deep(format!("SELECT 1 WHERE {}", vec!["a = 1"; count].join(" OR "))),
                deep(format!("SELECT a{}", "::int".repeat(count))),
                deep(format!("SELECT a{}", "[1]".repeat(count))),
                deep(format!("SELECT a{}", " IS NOT NULL".repeat(count))),
                deep(format!("SELECT a{}", " COLLATE x".repeat(count))),
                deep(vec!["SELECT 1"; count].join(" UNION ALL ")),
                deep(format!("SELECT {}1{}", "(".repeat(count), ")".repeat(count))),
                deep(format!("SELECT {}1", "NOT ".repeat(count))),
                deep(format!("SELECT {}1", "- ".repeat(count))),
                deep(format!("{}SELECT 1{}", "SELECT * FROM (".repeat(count), ") x".repeat(count))),
                deep(format!("SELECT {}1{}", "CASE WHEN ".repeat(count), " THEN 1 END".repeat(count))),
                deep(format!("SELECT a{}", ".b".repeat(count))),
                deep(format!("SELECT * FROM t{}", " JOIN t ON a".repeat(count))),
                deep(format!("SELECT {}1{}", "lower(".repeat(count), ")".repeat(count))),
                deep(format!("EXPLAIN ANALYZE {}SELECT 1", "EXPLAIN ANALYZE ".repeat(count))),
                deep(format!("{}SELECT 1", "PREPARE a AS ".repeat(count))),
                deep(format!("{}SELECT 1{}", "COPY (".repeat(count), ") TO STDOUT".repeat(count))),
            ] {
                assert_ne!(verdict.access, Access::Neutral, "{count}");
            }
        }
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(work).unwrap().join().unwrap();
    assert_eq!(deep(format!("SELECT 1 WHERE {}", vec!["a = 1"; 300].join(" OR "))).access, Access::Read);
}

#[test]
fn long_texts_are_not_parsed() {
    let options = ParseOptions { max_parsed_statement: 100, ..ParseOptions::default() };
    let pad = "x".repeat(200);
    let long = |sql: &str| classify(sql.replace('@', &pad).as_bytes(), &options);
    let select = long("SELECT '@'");
    assert_eq!(
        (select.access, select.reason, select.kind),
        (Access::Write, Reason::TooLong, StatementKind::Select)
    );
    assert_eq!((select.statements, select.pin, select.tx), (1, None, TxControl::None));
    assert_eq!(long("SELECT '@', pg_advisory_lock(1)").pin, Some(PinReason::AdvisoryLock));
    assert_eq!(long("SELECT '@ pg_advisory_lock(1)'").pin, None);
    assert_eq!(long("CREATE TEMP TABLE t AS SELECT '@'").pin, Some(PinReason::TempTable));
    assert_eq!(long("SELECT 1; SET x = '@'").pin, Some(PinReason::SessionSetting));
    let batch = long("BEGIN; INSERT INTO t VALUES ('@'); COMMIT");
    assert_eq!((batch.tx, batch.statements), (TxControl::Mixed, 3));
    assert_eq!(long("/* @ */ ; ").statements, 0);
    let huge = format!("INSERT INTO t VALUES ('{}')", "x".repeat(2 << 20));
    let verdict = classify(huge.as_bytes(), &options);
    assert_eq!((verdict.kind, verdict.tx), (StatementKind::Insert, TxControl::None));
    let hinted = classify(format!("/*NO LOAD BALANCE*/ SELECT '{pad}'").as_bytes(), &options);
    assert_eq!(hinted.hint, Some(Hint::Primary));
}

#[test]
fn fingerprints_leave_out_what_does_not_matter() {
    let same = |a: &str, b: &str| fingerprint(a.as_bytes(), true) == fingerprint(b.as_bytes(), true);
    for (a, b) in [
        (
            "SELECT abalance FROM pgbench_accounts WHERE aid = 1",
            "select  ABALANCE from PgBench_accounts where aid=2",
        ),
        ("SELECT 'a'", "SELECT E'b\\'c' -- x"),
        ("SELECT $$a$$", "SELECT /* c */ 'b'"),
        ("SELECT 1 WHERE a IN (1, 2, 3)", "SELECT 1 WHERE a IN (4)"),
        ("INSERT INTO t VALUES ($1, $2)", "INSERT INTO t VALUES ($1)"),
    ] {
        assert!(same(a, b), "{a} | {b}");
    }
    for (a, b) in [
        ("SELECT a", "SELECT \"a\""),
        ("SELECT a", "SELECT b"),
        ("SELECT 1", "SELECT 1 FOR UPDATE"),
        ("SELECT 1", "SELECT 1; SELECT 1"),
        ("SELECT 1", "SELECT -1"),
        ("SELECT set_config('a', 'b', true)", "SELECT set_config('a', 'b', false)"),
        ("EXPLAIN (ANALYZE true) SELECT f()", "EXPLAIN (ANALYZE false) SELECT f()"),
        ("SELECT ab c", "SELECT a bc"),
        ("SELECT abcdefgh i", "SELECT abcdefghi"),
        ("SELECT abcdefgh", "SELECT abcdefghabcdefgh"),
        ("SELECT abcdefghabcdefgh", "SELECT zbcdefghabcdefgh"),
        ("SELECT abcdefghijk", "SELECT zbcdefghijk"),
        ("SELECT abcd", "SELECT abce"),
        ("SELECT abc", "SELECT bac"),
        ("SELECT a.b", "SELECT a b"),
        ("SELECT \"A\"", "SELECT \"a\""),
        ("/*NO LOAD BALANCE*/SELECT 1", "SELECT 1"),
        ("/*pgweir:node=1*/SELECT 1", "/*pgweir:node=2*/SELECT 1"),
    ] {
        assert!(!same(a, b), "{a} | {b}");
    }
}

#[test]
fn the_cache_is_bounded_under_a_million_texts() {
    let mut classifier = Classifier::with_seed(256 << 10, 7);
    let options = ParseOptions::default();
    for number in 0..1_000_000_u32 {
        let sql = format!("INSERT INTO t{number} VALUES (1)");
        classifier.classify(sql.as_bytes(), &options);
        if number % 1000 == 0 {
            assert_eq!(classifier.classify(b"SELECT 1", &options).access, Access::Read);
        }
        assert!(classifier.bytes() <= 256 << 10);
    }
    assert_eq!(classifier.hits(), 999, "what is used stays");
    let mut off = Classifier::new(0);
    off.classify(b"SELECT 1", &options);
    off.classify(b"SELECT 1", &options);
    assert_eq!((off.bytes(), off.hits()), (0, 0));
}

#[test]
fn a_semicolon_in_parentheses_is_not_understood() {
    for sql in ["SELECT SELECT END ( , ; DELETE FROM t", "SELECT (1; DELETE FROM t)"] {
        let verdict = classify(sql.as_bytes(), &ParseOptions::default());
        assert_eq!((verdict.access, verdict.reason), (Access::Write, Reason::Unparsed), "{sql}");
    }
}
