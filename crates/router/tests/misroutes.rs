//! What a hot standby would accept and do wrongly, as opposed to what it refuses or does rightly.

use router::{Classifier, NoCatalog, ParseOptions, classify};

const SILENT: &[&str] = &[
    "SELECT pg_advisory_lock(1)",
    "SELECT pg_catalog.pg_try_advisory_xact_lock_shared(1, 2)",
    "SELECT pg_advisory_unlock_all()",
    "SELECT * FROM t WHERE pg_try_advisory_lock(id)",
    "SELECT 1; SELECT pg_advisory_xact_lock(1)",
    "EXPLAIN ANALYZE SELECT pg_advisory_lock(1)",
    "VALUES (pg_export_snapshot())",
    "SELECT \"pg_export_snapshot\" ()",
    "SELECT set_config('work_mem', '1MB', false)",
    "SELECT set_config('work_mem', '1MB', $1)",
    "SELECT setseed(0.5)",
    "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
    "DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT 1",
    "LOCK TABLE t IN ACCESS SHARE MODE",
    "LOCK t, ONLY s IN ROW SHARE MODE NOWAIT",
    "lock table in_ in row exclusive mode",
    "SELECT pg_stat_reset()",
    "SELECT pg_stat_reset_shared('wal')",
    "SELECT pg_reload_conf()",
    "SELECT pg_rotate_logfile()",
    "SELECT pg_cancel_backend(1)",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity",
    "SELECT pg_promote()",
    "SELECT pg_wal_replay_pause()",
    "SELECT pg_create_physical_replication_slot('s')",
    "SELECT pg_drop_replication_slot('s')",
    "CHECKPOINT",
    "LOAD 'auto_explain'",
    "DO 'BEGIN END'",
    "CALL p()",
    "ALTER SYSTEM SET work_mem = '1MB'",
    "COPY t TO '/tmp/t'",
    "COPY (SELECT 1) TO PROGRAM 'cat'",
    "COPY (SELECT pg_advisory_lock(1)) TO STDOUT",
    "PREPARE p AS INSERT INTO t VALUES (1)",
    "PREPARE p (int) AS SELECT nextval('s') + $1",
    "DECLARE c CURSOR FOR SELECT pg_advisory_xact_lock(1)",
];

const OTHERS: &[&str] = &[
    "",
    "SELECT 1",
    "SELECT 'pg_advisory_lock(1)', pg_advisory_lock FROM t",
    "SELECT my.pg_advisory_lock(1)",
    "SELECT my_function()",
    "SELECT set_config('work_mem', '1MB', true)",
    "SELECT nextval('s')",
    "SELECT lastval()",
    "SELECT txid_current()",
    "SELECT pg_notify('c', '')",
    "SELECT pg_switch_wal()",
    "SELECT pg_current_wal_lsn()",
    "SELECT lo_create(0)",
    "SELECT * FROM t FOR UPDATE",
    "INSERT INTO t VALUES (1)",
    "CREATE TABLE t ()",
    "ALTER TABLE system ADD a int",
    "NOTIFY c",
    "LISTEN c",
    "UNLISTEN *",
    "VACUUM t",
    "LOCK t",
    "LOCK TABLE t IN SHARE MODE",
    "LOCK TABLE t IN SHARE ROW EXCLUSIVE MODE",
    "LOCK TABLE t IN ACCESS EXCLUSIVE MODE NOWAIT",
    "DECLARE c CURSOR FOR SELECT 1",
    "DECLARE c CURSOR WITHOUT HOLD FOR SELECT 1",
    "FETCH c",
    "PREPARE p AS SELECT 1",
    "PREPARE TRANSACTION 'x'",
    "COPY t FROM STDIN",
    "COPY t TO STDOUT",
    "EXPLAIN INSERT INTO t VALUES (1)",
    "EXECUTE p",
    "SET work_mem = '1MB'",
    "SHOW work_mem",
    "BEGIN READ ONLY",
    "COMMIT",
];

#[test]
fn what_a_standby_does_wrongly() {
    let options = ParseOptions::default();
    let is_silent = |sql: &str| classify(sql.as_bytes(), &options).silently_wrong_on_standby();
    let missed: Vec<&&str> = SILENT.iter().filter(|sql| !is_silent(sql)).collect();
    let accused: Vec<&&str> = OTHERS.iter().filter(|sql| is_silent(sql)).collect();
    assert!(missed.is_empty() && accused.is_empty(), "missed {missed:#?}, accused {accused:#?}");
}

/// The cache gives what the classifier gave.
#[test]
fn the_cache_keeps_it() {
    let options = ParseOptions::default();
    let mut cache = Classifier::new(1 << 20);
    for _ in 0..2 {
        for (all, silent) in [(SILENT, true), (OTHERS, false)] {
            for sql in all {
                let verdict = cache.classify_with(sql.as_bytes(), &options, &NoCatalog);
                assert_eq!(verdict.silently_wrong_on_standby(), silent, "{sql}");
            }
        }
    }
}

/// In a text that is too long to be parsed the calls are still seen.
#[test]
fn in_long_texts() {
    let options = ParseOptions { max_parsed_statement: 10, ..ParseOptions::default() };
    let is_silent = |sql: &str| classify(sql.as_bytes(), &options).silently_wrong_on_standby();
    assert!(is_silent("SELECT 1, 2, 3, pg_advisory_lock(1)"));
    assert!(!is_silent("SELECT 1, 2, 3, lower('pg_advisory_lock(')"));
}
