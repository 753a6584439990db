//! The harness against PostgreSQL alone: what it reports about pgweir must be trusted.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::{Cluster, ClusterOptions, Login, RawClient, ServerAuth, StopMode, msgs, sqlstate};
use harness::{pgbench, procs, psql};

#[test]
fn a_cluster_streams_is_killed_comes_back_and_promotes() -> Result<()> {
    let mut cluster = Cluster::new(ClusterOptions::default())?;
    cluster.setup("CREATE TABLE t(a int); INSERT INTO t VALUES (1)")?;
    for node in 0..3 {
        let mut client = cluster.direct(node)?;
        assert_eq!(client.scalar("SELECT current_setting('cluster_name')")?, format!("n{node}"));
        assert_eq!(client.scalar("SELECT pg_is_in_recovery()")?, if node == 0 { "f" } else { "t" });
        assert_eq!(cluster.scalar(node, "SELECT count(*) FROM t")?, "1");
    }
    cluster.kill9(1)?;
    assert!(cluster.direct(1).is_err());
    cluster.sql(0, "INSERT INTO t VALUES (2)")?;
    cluster.start(1)?;
    cluster.wait_replay()?;
    assert_eq!(cluster.scalar(1, "SELECT count(*) FROM t")?, "2");
    cluster.stop(0, StopMode::Fast)?;
    cluster.promote(2)?;
    cluster.sql(2, "INSERT INTO t VALUES (3)")?;
    let logged = cluster.statements_logged(2)?;
    assert!(logged.iter().any(|s| s.simple && s.user == "postgres" && s.sql == "INSERT INTO t VALUES (3)"));
    Ok(())
}

#[test]
fn the_raw_client_logs_in_by_every_method() -> Result<()> {
    for (auth, user) in [
        (ServerAuth::Trust, "bench"),
        (ServerAuth::Scram, "bench"),
        (ServerAuth::Md5, "bench_md5"),
        (ServerAuth::Password, "bench"),
    ] {
        let cluster =
            Cluster::new(ClusterOptions { standbys: 0, server_auth: auth, ..ClusterOptions::default() })?;
        let login = Login::new(user, "bench").password("bench");
        let mut client = login.connect(cluster.port(0))?;
        assert_eq!(client.scalar("SELECT current_user")?, user);
        client.terminate()?;
        if auth != ServerAuth::Trust {
            let refused = Login::new(user, "bench").password("wrong").connect(cluster.port(0));
            assert_eq!(sqlstate(&refused.expect_err("a wrong password")), "28P01");
        }
    }
    Ok(())
}

#[test]
fn replies_are_read_in_the_notation_of_the_cases() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let mut client = RawClient::bench(cluster.port(0))?;
    client.set_chunk(1);
    let batch = msgs()
        .P("s1", "SELECT $1::int + 1")
        .D('S', "s1")
        .B("", "s1", &["41"])
        .E()
        .C('S', "s1")
        .S()
        .Q("SELECT NULL; SELECT 1/0; SELECT 2");
    assert_eq!(
        client.talk(&batch)?.to_string(),
        "1 t T 2 D(42) C(SELECT 1) 3 Z(I) T D(NULL) C(SELECT 1) E(22012) Z(I)"
    );
    client.set_chunk(usize::MAX);
    client.send(&msgs().Q("COPY (VALUES (1),(2)) TO STDOUT"))?;
    assert_eq!(client.read_ready(1)?.to_string(), "H d(1) d(2) c C(COPY 2) Z(I)");
    client.send(&msgs().Q("SELECT pg_sleep(20)"))?;
    assert!(client.silent_for(Duration::from_millis(100))?);
    client.cancel()?;
    assert_eq!(client.read_ready(1)?.to_string(), "T E(57014) Z(I)");
    client.set_deadline(Duration::from_millis(200));
    client.send(&msgs().Q("SELECT pg_sleep(20)"))?;
    let started = Instant::now();
    ensure!(
        client.read_ready(1).is_err() && started.elapsed() < Duration::from_secs(2),
        "a hang not noticed"
    );
    Ok(())
}

#[test]
fn programs_run_and_nothing_outlives_the_rig() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 1, ..ClusterOptions::default() })?;
    pgbench(&cluster, cluster.port(0), &["-i", "-s", "1", "-q"])?;
    let report = pgbench(&cluster, cluster.port(0), &["-c", "4", "-t", "20"])?;
    assert_eq!((report.processed, report.failed), (80, 0));
    assert!(report.tps > 1.0);
    let out = psql(&cluster, cluster.port(0), "bench", &["-c", "SELECT 1 + 1"])?;
    assert_eq!((out.code, out.stdout.as_str()), (0, "2\n"));
    let root = cluster.root().to_owned();
    assert!(procs::under(&root).len() > 6);
    drop(cluster);
    assert!(procs::under(&root).is_empty() && !root.exists());
    Ok(())
}
