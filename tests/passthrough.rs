//! Errors, notices, parameters and startup options arrive as the server sent them.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::messages::startup;
use harness::{Login, RawClient, Reply, msgs, rig, sqlstate};

#[test]
fn pn_01_error_fields_survive() -> Result<()> {
    let (cluster, weir) = rig(1, "")?;
    cluster.setup(
        "CREATE TABLE d(id int, CONSTRAINT d_key UNIQUE (id) DEFERRABLE INITIALLY DEFERRED);
         GRANT ALL ON d TO bench;
         CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 1/0; END'",
    )?;
    let (mut direct, mut through) = (cluster.direct(0)?, weir.client()?);
    let raise = "DO $$BEGIN RAISE EXCEPTION 'text ü' USING ERRCODE = 'P0099', DETAIL = 'det', HINT = 'hin', \
                 COLUMN = 'col', CONSTRAINT = 'con', DATATYPE = 'dat', TABLE = 'tab', SCHEMA = 'sch'; END$$";
    for sql in [
        raise,
        "SELECT nonsense FROM",
        "SELECT nonsense FROM nowhere",
        "SELECT f()",
        "INSERT INTO d VALUES ('x')",
        "SELECT 1/0",
        "BEGIN; INSERT INTO d VALUES (1), (1)",
        "COMMIT",
        "SELECT 1",
        "BEGIN; SELECT 1/0",
        "SELECT 2",
        "ROLLBACK",
    ] {
        let (wanted, got) = (direct.talk(&msgs().Q(sql))?, through.talk(&msgs().Q(sql))?);
        assert_eq!(got.to_string(), wanted.to_string(), "{sql}");
        assert_eq!(got.error(), wanted.error(), "{sql}");
    }
    for sql in [raise, "SELECT nonsense FROM nowhere", "SELECT f()", "SELECT $1::int / 0"] {
        let batch = msgs().P("st", sql).B("", "st", &["1"][..usize::from(sql.contains("$1"))]).E().S();
        let (wanted, got) = (direct.talk(&batch)?, through.talk(&batch)?);
        assert_eq!(got.to_string(), wanted.to_string(), "{sql}");
        assert_eq!(got.error(), wanted.error(), "{sql}");
        let close = msgs().C('S', "st").S();
        assert_eq!(through.talk(&close)?, direct.talk(&close)?, "{sql}");
    }
    Ok(())
}

#[test]
fn pn_02_notices_in_order_and_to_their_owner() -> Result<()> {
    let (_cluster, weir) = rig(1, "default_pool_size: 1")?;
    let (mut a, mut b) = (weir.client()?, weir.client()?);
    assert_eq!(a.talk(&msgs().Q("DROP TABLE IF EXISTS nope"))?.to_string(), "N(00000) C(DROP TABLE) Z(I)");
    assert_eq!(
        a.talk(&msgs().PBE("DROP TABLE IF EXISTS nope").S())?.to_string(),
        "1 2 N(00000) C(DROP TABLE) Z(I)"
    );
    let many = "DO $$BEGIN FOR i IN 1..10000 LOOP RAISE NOTICE 'n %', i; END LOOP; END$$";
    a.set_deadline(Duration::from_secs(20));
    let replies = a.talk(&msgs().Q(many))?;
    let notices =
        replies.0.iter().filter_map(|r| if let Reply::Notice(f) = r { Some(f.get('M')) } else { None });
    ensure!(notices.eq((1..=10000).map(|i| format!("n {i}"))), "notices lost or out of order");
    assert_eq!(b.talk(&msgs().Q("SELECT 1"))?.to_string(), "T D(1) C(SELECT 1) Z(I)");
    assert_eq!(a.talk(&msgs().Q("COMMIT"))?.to_string(), "N(25P01) C(COMMIT) Z(I)");
    Ok(())
}

#[test]
fn pn_04_parameters_are_the_servers() -> Result<()> {
    let (cluster, weir) = rig(1, "")?;
    let login = Login::bench().with("application_name", "app").with("TimeZone", "Asia/Tokyo");
    let direct = login.connect(cluster.port(0))?;
    let through = login.connect(weir.port())?;
    for (name, value) in &direct.parameters {
        // Which node will serve is not known yet.
        if name != "in_hot_standby" {
            assert_eq!(through.parameters.get(name), Some(value), "{name}");
        }
    }
    ensure!(through.key.is_some(), "no BackendKeyData");
    Ok(())
}

#[test]
fn tl_01_newer_minor_versions_and_options_are_negotiated_down() -> Result<()> {
    let (_cluster, weir) = rig(0, "")?;
    let v = |minor: u32| (3 << 16) | minor;
    for (version, options, wanted) in [
        (v(0), &[][..], ""),
        // As PostgreSQL 18: 3.1 was never used, and is taken for what it is.
        (v(1), &[], ""),
        (v(2), &[], ""),
        (v(3), &[], "v(3.2;)"),
        (v(9999), &[], "v(3.2;)"),
        (v(0), &["_pq_.foo"], "v(3.0;_pq_.foo)"),
        (v(2), &["_pq_.foo", "_pq_.bar"], "v(3.2;_pq_.foo,_pq_.bar)"),
        (v(9999), &["_pq_.foo"], "v(3.2;_pq_.foo)"),
    ] {
        for _pool_cold_then_warm in 0..2 {
            let login = Login::bench().version(version);
            let login = options.iter().fold(login, |login, option| login.with(option, "1"));
            let mut client = login.connect(weir.port())?;
            let negotiated: Vec<String> = client
                .greeting
                .0
                .iter()
                .filter(|reply| matches!(reply, Reply::Negotiate { .. }))
                .map(ToString::to_string)
                .collect();
            assert_eq!(negotiated.join(" "), wanted);
            if !wanted.is_empty() {
                let first = client.greeting.0.first();
                ensure!(
                    matches!(first, Some(Reply::Negotiate { .. })),
                    "not before authentication: {first:?}"
                );
            }
            assert_eq!(client.scalar("SELECT 1")?, "1");
            let key = client.key.as_ref().map(|(_, secret)| secret.len());
            let long = version >= v(2);
            assert_eq!(key, Some(if long { 32 } else { 4 }), "3.{}", version & 0xffff);
        }
    }
    Ok(())
}

#[test]
fn tl_01_other_major_versions_are_refused() -> Result<()> {
    let (_cluster, weir) = rig(0, "")?;
    for version in [4 << 16, 5 << 16, 2 << 16, 1 << 16] {
        let mut client = RawClient::tcp(weir.port())?;
        client.send_bytes(&startup(version, &[("user", "bench"), ("database", "bench")]))?;
        // A 2.0 client could not read an answer of ours: closing is enough.
        let answer = client.read_to_end().map(|replies| replies.to_string()).unwrap_or_default();
        ensure!(answer == "E(0A000)" || (answer.is_empty() && version < 3 << 16), "{version:#x}: {answer}");
    }
    assert_eq!(weir.client()?.scalar("SELECT 1")?, "1");
    Ok(())
}

#[test]
fn tl_01_ssl_and_gss_requests_are_answered_n() -> Result<()> {
    const SSL: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
    const GSS: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 48];
    let (_cluster, weir) = rig(0, "")?;
    for requests in [&[SSL][..], &[GSS], &[GSS, SSL], &[SSL, GSS]] {
        let mut client = RawClient::tcp(weir.port())?;
        for request in requests {
            client.send_bytes(request)?;
            assert_eq!(client.read_byte()?, b'N');
        }
        client.log_in(&Login::bench())?;
        assert_eq!(client.scalar("SELECT 1")?, "1");
    }
    Ok(())
}

#[test]
fn tl_08_startup_options_take_effect_for_their_client_only() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 1")?;
    cluster.setup("CREATE SCHEMA s1; GRANT ALL ON SCHEMA s1 TO bench")?;
    for (name, value, setting, wanted) in [
        ("extra_float_digits", "2", "extra_float_digits", "2"),
        ("options", "-c search_path=s1 -c statement_timeout=5s", "search_path", "s1"),
        ("options", "-c search_path=s1 -c statement_timeout=5s", "statement_timeout", "5s"),
        ("options", "--client_encoding=latin1", "client_encoding", "LATIN1"),
        ("options", "-c application_name=two\\ words", "application_name", "two words"),
        ("geqo", "off", "geqo", "off"),
        ("statement_timeout", "1000", "statement_timeout", "1s"),
        ("IntervalStyle", "iso_8601", "IntervalStyle", "iso_8601"),
        ("DateStyle", "German", "DateStyle", "German, DMY"),
        ("TimeZone", "Asia/Tokyo", "TimeZone", "Asia/Tokyo"),
        ("client_encoding", "LATIN1", "client_encoding", "LATIN1"),
        ("application_name", "", "application_name", ""),
        ("application_name", "it's", "application_name", "it's"),
        ("replication", "0", "application_name", ""),
        ("replication", "false", "application_name", ""),
    ] {
        let show = format!("SELECT current_setting('{setting}')");
        let default = weir.client()?.scalar(&show)?;
        let mut client = Login::bench().with(name, value).connect(weir.port())?;
        for _ in 0..2 {
            assert_eq!(client.scalar(&show)?, wanted, "{name}={value}");
            assert_eq!(weir.client()?.scalar(&show)?, default, "{name}={value} seen by another client");
        }
        // On the primary as well, inside a transaction.
        client.simple("BEGIN")?;
        assert_eq!(client.scalar(&show)?, wanted, "{name}={value} on the primary");
        client.simple("COMMIT")?;
    }
    Ok(())
}

#[test]
fn tl_08_bad_startup_options_are_refused_as_by_the_server() -> Result<()> {
    let (cluster, weir) = rig(0, "")?;
    for (name, value, wanted) in [
        ("nope_guc", "1", "42704"),
        ("DateStyle", "garbage", "22023"),
        ("client_encoding", "nonsense", "22023"),
        ("options", "-c nope_guc=1", "42704"),
        ("statement_timeout", "many", "22023"),
    ] {
        let login = Login::bench().with(name, value);
        for port in [cluster.port(0), weir.port()] {
            let refused = login.connect(port).and_then(|mut client| client.scalar("SELECT 1"));
            let error = refused.err().map(|error| sqlstate(&error).to_owned());
            assert_eq!(error.as_deref(), Some(wanted), "{name}={value} on {port}");
        }
    }
    Ok(())
}
