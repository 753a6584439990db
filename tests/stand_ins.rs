//! Unnamed statements that come again are kept by the backends, and nobody can tell but by the server's log.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{Cluster, ClusterOptions, Msgs, Pgweir, RawClient, eventually, msgs, rig};

/// One node, as what happens to a backend's statements is to be seen: every unit goes to the same one.
fn one() -> Result<(Cluster, Pgweir)> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let weir = Pgweir::start(&cluster, "default_pool_size: 1")?;
    Ok((cluster, weir))
}

fn unit(sql: &str, values: &[&str]) -> Msgs {
    msgs().P("", sql).B("", "", values).D('P', "").E().S()
}

/// Runs it, so often that backends keep it; the last reply.
fn again(client: &mut RawClient, sql: &str, values: &[&str]) -> Result<String> {
    for _ in 0..7 {
        client.talk(&unit(sql, values))?;
    }
    Ok(client.talk(&unit(sql, values))?.to_string())
}

/// How many statements the backend of the next statement keeps with that text.
fn kept(client: &mut RawClient, sql: &str) -> Result<usize> {
    let text = sql.replace('\'', "''");
    Ok(client
        .scalar(&format!("SELECT count(*) FROM pg_prepared_statements WHERE statement = '{text}'"))?
        .parse()?)
}

#[test]
fn a_text_that_comes_again_is_kept_and_answered_alike() -> Result<()> {
    let (_cluster, weir) = one()?;
    let mut client = weir.client()?;
    let sql = "SELECT $1::int + 1 AS x";
    for n in 0..20 {
        let reply = client.talk(&unit(sql, &[&n.to_string()]))?.to_string();
        assert_eq!(reply, format!("1 2 T D({}) C(SELECT 1) Z(I)", n + 1));
    }
    ensure!(harness::direct_mode() || kept(&mut client, sql)? == 1, "it is not kept");
    let day = "SELECT 'today'::date";
    again(&mut client, day, &[])?;
    assert_eq!(kept(&mut client, day)?, 0, "what day it is must be asked each day");
    Ok(())
}

#[test]
fn the_errors_of_parse_and_bind_stay_what_they_are() -> Result<()> {
    let (cluster, weir) = one()?;
    cluster.setup("CREATE TABLE t(a int, b text); INSERT INTO t VALUES (1, 'x'); GRANT ALL ON t TO bench")?;
    let mut client = weir.client()?;
    let sql = "SELECT b FROM t WHERE a = $1";
    let good = "1 2 T D(x) C(SELECT 1) Z(I)";
    assert_eq!(again(&mut client, sql, &["1"])?, good);
    assert_eq!(client.talk(&unit(sql, &["x"]))?.to_string(), "1 E(22P02) Z(I)");
    assert_eq!(client.talk(&unit(sql, &[]))?.to_string(), "1 E(08P01) Z(I)");
    assert_eq!(client.talk(&unit(sql, &["1"]))?.to_string(), good);
    // The second time a text comes is the first that it is kept: its errors name no statement.
    let (once, few) =
        ("SELECT $1::int, 2", "bind message supplies 0 parameters, but prepared statement \"\" requires 1");
    client.talk(&unit(once, &["1"]))?;
    client.send(&unit(once, &[]))?;
    let told = client.read_ready(1)?;
    let message = told.error().map(|fields| fields.get('M').to_owned());
    assert_eq!((told.to_string().as_str(), message.as_deref()), ("1 E(08P01) Z(I)", Some(few)));
    // Behind pgweir's back: a column that is gone fails in Parse, and comes back as something else.
    assert_eq!(again(&mut client, sql, &["1"])?, good);
    cluster.setup("ALTER TABLE t DROP COLUMN b")?;
    assert_eq!(client.talk(&unit(sql, &["1"]))?.to_string(), "E(42703) Z(I)");
    cluster.setup("ALTER TABLE t ADD COLUMN b int DEFAULT 7")?;
    assert_eq!(client.talk(&unit(sql, &["1"]))?.to_string(), "1 2 T D(7) C(SELECT 1) Z(I)");
    Ok(())
}

#[test]
fn a_result_of_other_columns_is_no_error() -> Result<()> {
    let (cluster, weir) = one()?;
    cluster.setup("CREATE TABLE t(a int); INSERT INTO t VALUES (1); GRANT ALL ON t TO bench")?;
    let mut client = weir.client()?;
    for columns in 1..6 {
        let reply = again(&mut client, "SELECT * FROM t", &[])?;
        let row = vec!["1"; columns].join(",");
        assert_eq!(reply, format!("1 2 T D({row}) C(SELECT 1) Z(I)"));
        cluster.setup(&format!("ALTER TABLE t ADD COLUMN c{columns} int DEFAULT 1"))?;
    }
    Ok(())
}

#[test]
fn names_mean_what_the_session_says() -> Result<()> {
    let (cluster, weir) = one()?;
    cluster.setup(
        "CREATE SCHEMA one; CREATE SCHEMA two; CREATE TABLE one.t AS SELECT 'one' AS x; \
         CREATE TABLE two.t AS SELECT 'two' AS x; GRANT ALL ON SCHEMA one, two TO bench; \
         GRANT ALL ON one.t, two.t TO bench",
    )?;
    let (mut a, mut b) = (weir.client()?, weir.client()?);
    a.simple("SET search_path = one")?;
    b.simple("SET search_path = two")?;
    let sql = "SELECT x FROM t";
    for _ in 0..5 {
        assert_eq!(again(&mut a, sql, &[])?, "1 2 T D(one) C(SELECT 1) Z(I)");
        assert_eq!(again(&mut b, sql, &[])?, "1 2 T D(two) C(SELECT 1) Z(I)");
    }
    // A temporary table hides the other one while it is there.
    a.simple("CREATE TEMP TABLE t AS SELECT 'mine' AS x")?;
    assert_eq!(again(&mut a, sql, &[])?, "1 2 T D(mine) C(SELECT 1) Z(I)");
    a.simple("DROP TABLE t")?;
    assert_eq!(again(&mut a, sql, &[])?, "1 2 T D(one) C(SELECT 1) Z(I)");
    Ok(())
}

#[test]
fn pipelined_units_and_half_closed_clients_get_their_answers() -> Result<()> {
    let (cluster, weir) = rig(1, "")?;
    cluster.setup("CREATE TABLE t(a int); INSERT INTO t VALUES (1); GRANT ALL ON t TO bench")?;
    cluster.wait_replay()?;
    weir.wait_on_standby("SELECT a FROM t")?;
    let mut client = weir.client()?;
    let sql = "SELECT * FROM t WHERE a = $1";
    again(&mut client, sql, &["1"])?;
    cluster.setup("ALTER TABLE t ADD COLUMN b int DEFAULT 2")?;
    cluster.wait_replay()?;
    let mut pipeline = msgs();
    for value in ["1", "0", "1"] {
        pipeline = pipeline.P("", sql).B("", "", &[value]).E().S();
    }
    client.send(&pipeline)?;
    client.half_close()?;
    let row = "1 2 D(1,2) C(SELECT 1) Z(I)";
    assert_eq!(client.read_ready(3)?.to_string(), format!("{row} 1 2 C(SELECT 0) Z(I) {row}"));
    Ok(())
}

#[test]
fn a_statement_that_is_cancelled_while_it_is_bound_is_not_run_again() -> Result<()> {
    let (cluster, weir) = one()?;
    cluster.setup("CREATE TABLE t(a int); GRANT ALL ON t TO bench")?;
    let mut client = weir.client()?;
    let sql = "SELECT a FROM t";
    // Until the catalog is known nothing is kept.
    let mut is_kept =
        || Ok::<_, anyhow::Error>(!again(&mut client, sql, &[])?.is_empty() && kept(&mut client, sql)? == 1);
    ensure!(eventually(Duration::from_secs(30), || is_kept().is_ok_and(|kept| kept)), "it is not kept");
    let mut holder = cluster.admin(0)?;
    holder.simple("BEGIN")?;
    holder.simple("LOCK TABLE t")?;
    client.send(&unit(sql, &[]))?;
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    cluster.wait_scalar(0, waiting, "1", Duration::from_secs(30))?;
    client.cancel()?;
    assert_eq!(client.read_ready(1)?.to_string(), "1 E(57014) Z(I)");
    holder.simple("COMMIT")?;
    assert_eq!(client.talk(&unit(sql, &[]))?.to_string(), "1 2 T C(SELECT 0) Z(I)");
    Ok(())
}
