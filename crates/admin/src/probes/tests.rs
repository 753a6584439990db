use super::*;
use crate::testing::{admin, stats};
use crate::words::words;

fn ask(sql: &str) -> Result<Option<Reply>, PgError> {
    reply("9.8.7", &stats(), &words(sql).unwrap())
}

/// Column, type and value of an answer with one row.
fn value(sql: &str) -> (String, u32, Cell) {
    match ask(sql) {
        Ok(Some(Reply::Value { column, value, .. })) => (column.name.into_owned(), column.oid, value),
        other => panic!("{sql}: {other:?}"),
    }
}

#[test]
fn constants_and_functions_of_drivers_are_answered() {
    let text = |name: &str, value: &str| (name.to_owned(), oid::TEXT, Cell::from(value));
    assert_eq!(value("SELECT 1"), ("?column?".into(), oid::INT4, Cell::Int(1)));
    assert_eq!(value("select 'x' AS y;"), text("y", "x"));
    assert_eq!(value("SELECT pg_catalog.version()"), text("version", "PostgreSQL 13.0 (pgweir 9.8.7)"));
    assert_eq!(value("SELECT current_user"), text("current_user", "alice"));
    assert_eq!(value("SELECT current_database()"), text("current_database", "pgweir"));
    assert_eq!(
        value("SELECT pg_is_in_recovery()"),
        ("pg_is_in_recovery".into(), oid::BOOL, Cell::Bool(false))
    );
    for sql in [
        "SELECT",
        "SELECT 1, 2",
        "SELECT now()",
        "SELECT 1 FROM t",
        "SELECT 99999999999",
        "TABLE t",
        "LISTEN x",
    ] {
        assert_eq!(ask(sql), Ok(None), "{sql}");
    }
}

#[test]
fn settings_are_shown_in_their_own_spelling() {
    assert_eq!(
        value("SHOW transaction_read_only"),
        ("transaction_read_only".into(), oid::TEXT, Cell::from("off"))
    );
    assert_eq!(value("show STANDARD_CONFORMING_STRINGS").2, Cell::from("on"));
    assert_eq!(value("SHOW timezone").0, "TimeZone");
    assert_eq!(value("SHOW TIME ZONE").0, "TimeZone");
    assert_eq!(value("SHOW TRANSACTION ISOLATION LEVEL").2, Cell::from("read committed"));
    assert_eq!(value("SHOW server_version").2, Cell::from("13.0 (pgweir 9.8.7)"));
    assert_eq!(ask("SHOW work_mem"), Ok(None));
}

#[test]
fn harmless_settings_are_taken_and_others_refused() {
    for sql in [
        "SET extra_float_digits = 3",
        "SET SESSION application_name TO 'x'",
        "SET TIME ZONE 'UTC'",
        "SET NAMES 'utf-8'",
        "SET client_encoding = UNICODE",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    ] {
        assert_eq!(ask(sql), Ok(Some(Reply::Done("SET"))), "{sql}");
    }
    assert_eq!(ask("RESET ALL"), Ok(Some(Reply::Done("RESET"))));
    assert_eq!(ask("CLOSE ALL"), Ok(Some(Reply::Done("CLOSE CURSOR ALL"))));
    assert_eq!(ask("UNLISTEN *"), Ok(Some(Reply::Done("UNLISTEN"))));
    assert_eq!(ask("UNLISTEN x"), Ok(None));
    for sql in ["SET client_encoding = LATIN1", "SET NAMES 'win1252'", "SET default_pool_size = 5"] {
        let error = reply("9.8.7", &admin(), &words(sql).unwrap()).unwrap_err();
        assert_eq!(error.code, SqlState::FEATURE_NOT_SUPPORTED, "{sql}");
    }
    for sql in ["SET foo = 1", "SET SESSION default_pol_size TO 5", "RESET foo"] {
        let error = reply("9.8.7", &admin(), &words(sql).unwrap()).unwrap_err();
        assert_eq!(error.code, SqlState::UNDEFINED_OBJECT, "{sql}");
    }
    let reset = reply("9.8.7", &admin(), &words("RESET default_pool_size").unwrap()).unwrap_err();
    assert_eq!(reset.code, SqlState::FEATURE_NOT_SUPPORTED);
    for sql in ["SET", "SET x", "SET x =", "SET x TO", "RESET", "RESET a b"] {
        assert_eq!(ask(sql), Ok(None), "{sql}");
    }
}
