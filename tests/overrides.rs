//! What goes before what: hints, `SET pgweir.route`, pattern and redirect lists, writes before, the read-only port,
//! and what `PGWEIR EXPLAIN` says of it. WHERE tells the node; the primary has weight 0.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{Login, Pgweir, PgweirOptions, RawClient, WHERE, eventually, msgs, procs, rig};

fn at(client: &mut RawClient, prefix: &str) -> Result<String> {
    client.scalar(&format!("{prefix}{WHERE}"))
}

/// The value of `column` in the answer to `PGWEIR EXPLAIN sql`.
fn explained(client: &mut RawClient, sql: &str, column: &str) -> Result<String> {
    client.simple(&format!("PGWEIR EXPLAIN {sql}"))?.get(0, column)
}

/// Where a statement in whose text a literal is found by a pattern goes.
#[test]
fn hints_routes_and_patterns_in_their_order() -> Result<()> {
    let (_cluster, weir) =
        rig(2, "consistency: eventual\nprimary_routing_query_pattern_list: ['-- ?report', 'tenant=7']")?;
    let mut client = weir.client()?;
    let standby = |node: &str| node == "n1" || node == "n2";
    ensure!(standby(&at(&mut client, "")?));
    // Hints.
    assert_eq!(at(&mut client, "/*NO LOAD BALANCE*/ ")?, "n0");
    assert_eq!(at(&mut client, "/* pgweir: primary */ ")?, "n0");
    for node in ["n1", "n2", "n0"] {
        let hint = format!("/* pgweir: node={} */ ", &node[1..]);
        for _ in 0..3 {
            assert_eq!(at(&mut client, &hint)?, node);
            assert_eq!(client.scalar_extended(&format!("{hint}{WHERE}"), &[])?, node);
        }
    }
    // A hint does not move a write.
    let write = "/* pgweir: node=1 */ CREATE TABLE hinted(id int)";
    client.simple(write)?;
    // The session's route.
    client.simple("SET pgweir.route = 'primary'")?;
    assert_eq!(at(&mut client, "")?, "n0");
    ensure!(standby(&at(&mut client, "/* pgweir: standby */ ")?), "a hint goes before the route");
    client.simple("SET pgweir.route = 'node=2'")?;
    assert_eq!((0..4).map(|_| at(&mut client, "")).collect::<Result<Vec<_>>>()?, ["n2"; 4]);
    assert_eq!(at(&mut weir.client()?, "SET pgweir.route = 'node=1'; ")?, "n0", "one string is one unit");
    client.simple("RESET pgweir.route")?;
    ensure!(standby(&at(&mut client, "")?));
    for sql in ["BEGIN", "SET pgweir.route = 'primary'", "ROLLBACK"] {
        client.simple(sql)?;
    }
    ensure!(standby(&at(&mut client, "")?), "rolled back");
    // For a transaction.
    for (route, expected) in [("node=1", "n1"), ("node=2", "n2"), ("primary", "n0")] {
        client.simple("BEGIN READ ONLY")?;
        client.simple(&format!("SET LOCAL pgweir.route = '{route}'"))?;
        assert_eq!(at(&mut client, "")?, expected);
        client.simple("COMMIT")?;
        ensure!(standby(&at(&mut client, "")?));
    }
    // In one go.
    let replies =
        client.talk(&msgs().Q(WHERE).Q("SET pgweir.route = 'primary'").Q(WHERE).Q("RESET pgweir.route"))?;
    assert_eq!(replies.values().last().map(String::as_str), Some("n0"));
    // Patterns look at the text itself, literals and comments included.
    assert_eq!(client.scalar("SELECT current_setting('cluster_name') WHERE 'tenant=7' <> ''")?, "n0");
    ensure!(standby(&client.scalar("SELECT current_setting('cluster_name') WHERE 'tenant=8' <> ''")?));
    assert_eq!(client.scalar_extended("SELECT current_setting('cluster_name') -- REPORT", &[])?, "n0");
    client.simple("SET pgweir.route = 'node=1'")?;
    assert_eq!(
        client.scalar("SELECT current_setting('cluster_name') -- report")?,
        "n1",
        "the route goes before"
    );
    Ok(())
}

#[test]
fn redirect_lists_by_application_user_and_database() -> Result<()> {
    let yaml = "consistency: eventual\n\
        app_name_redirect_preference_list: ['batch.*:1', 'half:primary(0.5)']\n\
        user_redirect_preference_list: ['other:primary']\n\
        database_redirect_preference_list: ['bench:2']";
    let (_cluster, weir) = rig(2, yaml)?;
    let mut client = weir.client()?;
    for _ in 0..4 {
        assert_eq!(at(&mut client, "")?, "n2", "by database");
    }
    client.simple("SET application_name = 'batch 7'")?;
    assert_eq!(at(&mut client, "")?, "n1", "by application");
    assert_eq!(at(&mut client, "/* pgweir: node=2 */ ")?, "n2", "a hint goes before");
    client.simple("SET application_name = 'half'")?;
    let on_primary = (0..200).map(|_| at(&mut client, "")).collect::<Result<Vec<_>>>()?;
    let share = on_primary.iter().filter(|node| *node == "n0").count();
    ensure!((50..=150).contains(&share), "{share} of 200 on the primary");
    let mut other = Login::new("other", "bench").connect(weir.port())?;
    assert_eq!(at(&mut other, "")?, "n0", "by user");
    client.simple("SET application_name = 'batch'")?;
    client.simple("BEGIN READ ONLY")?;
    assert_eq!(at(&mut client, "")?, "n1");
    client.simple("COMMIT")?;
    Ok(())
}

#[test]
fn writes_before_keep_reads_on_the_primary_as_configured() -> Result<()> {
    for (word, after_autocommit, after_transaction, read_only) in [
        ("off", "n1", "n1", "n1"),
        ("transaction", "n1", "n1", "n1"),
        ("trans_transaction", "n1", "n1", "n0"),
        ("always", "n0", "n0", "n0"),
    ] {
        let (cluster, weir) =
            rig(1, &format!("consistency: eventual\ndisable_load_balance_on_write: {word}"))?;
        cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
        let mut client = weir.client()?;
        assert_eq!(at(&mut client, "")?, "n1", "{word}");
        client.simple("INSERT INTO t VALUES (1)")?;
        assert_eq!(at(&mut client, "")?, after_autocommit, "{word}");
        client.simple("BEGIN")?;
        client.simple("INSERT INTO t VALUES (1)")?;
        assert_eq!(at(&mut client, "")?, "n0", "{word}");
        client.simple("COMMIT")?;
        assert_eq!(at(&mut client, "")?, after_transaction, "{word}");
        client.simple("BEGIN READ ONLY")?;
        assert_eq!(at(&mut client, "")?, read_only, "{word}");
        client.simple("COMMIT")?;
        assert_eq!(at(&mut weir.client()?, "")?, "n1", "{word}: another session");
    }
    Ok(())
}

/// A client that chose the read-only port gets a standby in every respect, and drivers that ask are told the truth.
#[test]
fn the_read_only_port_is_a_standby() -> Result<()> {
    let port = procs::free_port()?;
    let (cluster, weir) = rig(1, &format!("consistency: eventual\nread_only_port: {port}"))?;
    cluster.setup("CREATE TABLE t(id int); CREATE SEQUENCE sq; GRANT ALL ON t, sq TO bench")?;
    let mut reader = RawClient::bench(port)?;
    for sql in [WHERE, &format!("/*NO LOAD BALANCE*/ {WHERE}"), &format!("/* pgweir: node=0 */ {WHERE}")] {
        assert_eq!(reader.scalar(sql)?, "n1", "{sql}");
    }
    for sql in [
        "INSERT INTO t VALUES (1)",
        "SELECT nextval('sq')",
        "CREATE TABLE x(a int)",
        "SELECT * FROM t FOR UPDATE",
    ] {
        assert_eq!(reader.sqlstate_of(sql)?, "25006", "{sql}");
    }
    reader.simple("BEGIN")?;
    assert_eq!(reader.scalar(WHERE)?, "n1");
    assert_eq!(reader.sqlstate_of("DELETE FROM t")?, "25006");
    reader.simple("ROLLBACK")?;
    // What libpq (before 14) and pgjdbc ask.
    assert_eq!(reader.scalar("SHOW transaction_read_only")?, "on");
    assert_eq!(reader.scalar("SELECT pg_catalog.pg_is_in_recovery()")?, "t");
    let mut writer = weir.client()?;
    for _ in 0..3 {
        assert_eq!(writer.scalar("SHOW transaction_read_only")?, "off");
        assert_eq!(writer.scalar("SELECT pg_catalog.pg_is_in_recovery()")?, "f");
    }
    // What libpq since 14 is told.
    for (attrs, port, fits) in [
        ("read-write", weir.port(), true),
        ("primary", weir.port(), true),
        ("standby", weir.port(), false),
        ("read-only", weir.port(), false),
        ("standby", port, true),
        ("read-only", port, true),
        ("primary", port, false),
        ("read-write", port, false),
        ("prefer-standby", port, true),
    ] {
        let conninfo = format!(
            "host=127.0.0.1 port={port} user=bench password=bench dbname=bench target_session_attrs={attrs}"
        );
        let status = std::process::Command::new("psql").args(["-XAtq", "-c", WHERE, &conninfo]).output()?;
        ensure!(status.status.success() == fits, "{attrs} on {port}: {status:?}");
    }
    Ok(())
}

#[test]
fn explain_tells_where_and_why() -> Result<()> {
    let (cluster, weir) = rig(2, "consistency: eventual")?;
    cluster.setup("CREATE FUNCTION wr() RETURNS int VOLATILE LANGUAGE sql AS 'SELECT 1'; CREATE VIEW v AS SELECT wr(); GRANT ALL ON v TO bench")?;
    let mut client = weir.client()?;
    // Until the catalog has the function, it is an unknown one.
    let known = |client: &mut RawClient| explained(client, "SELECT wr()", "reason");
    let is_known = || known(&mut client).is_ok_and(|reason| reason == "volatile_function");
    ensure!(eventually(Duration::from_secs(30), is_known), "{:?}", known(&mut client));
    for (sql, node, reason) in [
        ("SELECT 1", "1,2", "read_only_select"),
        ("SELECT wr()", "0", "volatile_function"),
        ("SELECT * FROM v", "0", "primary_relation"),
        ("INSERT INTO t VALUES (1)", "0", "dml"),
        ("/* pgweir: node=2 */ SELECT 1", "2", "hint"),
        ("BEGIN READ ONLY", "1,2", "transaction_read_only"),
        ("CREATE TEMP TABLE x(a int)", "0", "ddl"),
        ("SELECT nothing_like(1)", "0", "unknown_function"),
    ] {
        let row = client.simple(&format!("PGWEIR EXPLAIN {sql}"))?;
        assert_eq!(
            (row.get(0, "node")?, row.get(0, "reason")?),
            (node.to_owned(), reason.to_owned()),
            "{sql}"
        );
    }
    assert_eq!(explained(&mut client, "CREATE TEMP TABLE x(a int)", "pin")?, "temp_table");
    assert_eq!(
        explained(&mut client, "SELECT upper('secret')", "statement")?,
        "select upper ( 'x' )",
        "no literals"
    );
    let one = explained(&mut client, "SELECT 1 WHERE 2 = 3", "fingerprint")?;
    assert_eq!(explained(&mut client, "select 4 where 5 = 6", "fingerprint")?, one);
    // By the extended protocol, and where the session is.
    let replies = client.talk(&msgs().PBE("PGWEIR EXPLAIN SELECT 1").S())?;
    ensure!(replies.to_string().contains("read_only_select"), "{replies}");
    client.simple("SET pgweir.route = 'node=1'")?;
    assert_eq!(explained(&mut client, "SELECT 1", "node")?, "1");
    client.simple("RESET pgweir.route")?;
    client.simple("BEGIN")?;
    assert_eq!(explained(&mut client, "SELECT 1", "reason")?, "transaction_read_write");
    client.scalar("SELECT 1")?;
    let row = client.simple("PGWEIR EXPLAIN SELECT 1")?;
    assert_eq!((row.get(0, "target")?, row.get(0, "node")?), ("bound".to_owned(), "0".to_owned()));
    client.simple("COMMIT")?;
    let options = PgweirOptions::yaml("load_balance_mode: off");
    weir.rewrite(&cluster, &options)?;
    weir.admin("RELOAD")?;
    assert_eq!(explained(&mut client, "SELECT 1", "reason")?, "primary_only");
    Ok(())
}

/// `log_statement_routes` tells of each unit where it went, why, and which statement of SHOW POOL_STATEMENTS it is.
#[test]
fn routes_are_logged() -> Result<()> {
    let (_cluster, weir) = rig(1, "consistency: eventual\nlog_statement_routes: on")?;
    let mut client = weir.client()?;
    client.scalar("SELECT 41 AS logged")?;
    client.simple("CREATE TABLE logged(id int)")?;
    let fingerprint = explained(&mut client, "SELECT 42 AS logged", "fingerprint")?;
    let log = weir.log();
    let line = log.lines().find(|line| line.contains(&fingerprint[..16]));
    let line = line.unwrap_or_else(|| panic!("{fingerprint}: {log}"));
    for part in ["statement routed", "node=1", "read_only_select", "select"] {
        ensure!(line.contains(part), "{part}: {line}");
    }
    ensure!(
        log.lines()
            .any(|line| line.contains("statement routed") && line.contains("node=0") && line.contains("ddl"))
    );
    Ok(())
}

/// How many statements were routed for that reason, wherever to.
fn routed(weir: &Pgweir, reason: &str) -> Result<f64> {
    let label = format!("reason=\"{reason}\"");
    let of_reason = |(name, _): &(&String, &f64)| {
        name.starts_with("pgweir_statements_routed_total{") && name.contains(&label)
    };
    Ok(weir.metrics()?.iter().filter(of_reason).map(|(_, count)| count).sum())
}

/// PGWEIR EXPLAIN, `pgweir route`, the metric and SHOW POOL_STATEMENTS give a statement one reason. The command line asks no
/// database: what only a catalog knows (`false`) it cannot say.
#[test]
fn a_reason_is_the_same_everywhere() -> Result<()> {
    let yaml = "consistency: eventual\nwrite_function_list: [lies]\n\
                primary_routing_query_pattern_list: ['AS report']";
    let (cluster, weir) = rig(1, yaml)?;
    cluster.setup(
        "CREATE TABLE t(id int); GRANT ALL ON t TO bench; CREATE UNLOGGED TABLE u(id int); GRANT ALL ON u TO bench;
         CREATE FUNCTION lies() RETURNS int STABLE LANGUAGE sql AS 'SELECT 1'; GRANT CREATE ON SCHEMA public TO bench",
    )?;
    let known = || explained(&mut weir.client()?, "SELECT * FROM u", "reason");
    ensure!(eventually(Duration::from_secs(30), || known().is_ok_and(|reason| reason == "primary_relation")));
    for (sql, reason, at_the_command_line) in [
        ("SELECT 1", "read_only_select", true),
        ("EXPLAIN SELECT 1", "explain", true),
        ("SELECT * FROM t FOR UPDATE", "locking_read", true),
        ("SELECT * INTO copied FROM t", "select_into", true),
        ("WITH w AS (INSERT INTO t VALUES (1) RETURNING *) SELECT * FROM w", "data_modifying_cte", true),
        ("INSERT INTO t VALUES (1)", "dml", true),
        ("CREATE TABLE made(a int)", "ddl", true),
        ("VACUUM t", "utility", true),
        ("SELECT txid_current()", "volatile_function", true),
        ("SELECT nothing_like(1)", "unknown_function", true),
        ("SELECT * FROM u", "primary_relation", false),
        ("SELECT lies()", "function_list", true),
        ("SELEC 1", "unparsed", true),
        ("SHOW work_mem", "session_control", true),
        ("/* pgweir: primary */ SELECT 2 AS hinted", "hint", true),
        ("SELECT 3 AS report", "query_pattern", true),
    ] {
        let mut client = weir.client()?;
        let row = client.simple(&format!("PGWEIR EXPLAIN {sql}"))?;
        assert_eq!(row.get(0, "reason")?, reason, "explained: {sql}");
        let before = routed(&weir, reason)?;
        // Some fail there: they were routed all the same.
        let _ = client.talk(&msgs().Q(sql))?;
        let counted = || routed(&weir, reason).is_ok_and(|after| (after - before - 1.0).abs() < f64::EPSILON);
        ensure!(eventually(Duration::from_secs(5), counted), "not counted for {reason}: {sql}");
        let statements = weir.admin("SHOW POOL_STATEMENTS")?;
        let fingerprint = row.get(0, "fingerprint")?;
        let of_it = statements.iter().find(|row| row["fingerprint"] == fingerprint);
        ensure!(of_it.is_some_and(|row| row["reasons"] == format!("{reason}=1")), "{of_it:?}: {sql}");
        let (done, said) = weir.shell(&["route", sql])?;
        let told = said.lines().any(|line| line.split_whitespace().eq(["reason:", reason]));
        ensure!(done && told == at_the_command_line, "{sql}: {said}");
    }
    let long = format!("SELECT '{}'", "x".repeat(70_000));
    let before = routed(&weir, "too_long")?;
    weir.client()?.simple(&long)?;
    ensure!(
        eventually(Duration::from_secs(5), || routed(&weir, "too_long").is_ok_and(|after| after > before))
    );
    ensure!(weir.shell(&["route", &long])?.1.contains("too_long"));
    Ok(())
}
