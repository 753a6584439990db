//! pgweir promotes: what it takes for it to happen, and what clients see of it.

mod writers;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::promotion::{self, idle_clients, primary, promoting, script, states, wait_commands};
use harness::{Cluster, Pgweir, PgweirOptions, eventually, msgs, sqlstate};
use writers::Writers;

fn cluster(conf: &str) -> Result<Cluster> {
    promotion::cluster(2, conf)
}

/// FO-04: `failover_mode: command` with the sample scripts; each command runs once, with the right nodes.
#[test]
fn fo_04_the_sample_scripts_promote_follow_and_rejoin() -> Result<()> {
    let mut cluster = cluster("")?;
    let failover = script(&cluster, "failover.sh", "%d %h %p %D %m %H %r %R %P");
    let yaml = format!(
        "failover_mode: command\nfailover_command: \"{failover}\"\nfailback_command: \"echo back %d\""
    );
    let weir = promoting(&cluster, &yaml)?;
    let mut client = weir.client()?;
    client.set_deadline(Duration::from_secs(20));
    client.simple("INSERT INTO t VALUES (1)")?;
    cluster.wait_replay()?;
    cluster.kill9(0)?;
    client.simple("INSERT INTO t VALUES (2)").context("held until the command has promoted")?;
    let new = primary(&weir, 0, Duration::from_secs(5))?;
    assert_eq!(cluster.scalar(new, "SELECT count(*) FROM t")?, "2");
    let other = 3 - new;
    wait_commands(&weir, "follow_primary_command", 1)?;
    let follows = "SELECT status || ' ' || sender_port FROM pg_stat_wal_receiver";
    let streams = format!("streaming {}", cluster.port(new));
    cluster.wait_scalar(other, follows, &streams, Duration::from_secs(15))?;
    let followed = format!("standby {other} ");
    let log = weir.log();
    assert_eq!(log.matches("failover.sh: node 0").count(), 1, "{log}");
    assert_eq!(log.matches(&format!("promoting node {new}")).count(), 1);
    assert_eq!(log.matches(&followed).count(), 1);
    // By hand, with the sample for that.
    let rejoin = script(&cluster, "rejoin.sh", "");
    let data = cluster.data(0);
    let command =
        format!("{rejoin} 127.0.0.1 {} {} 127.0.0.1 {}", cluster.port(0), data.display(), cluster.port(new));
    let out = std::process::Command::new("/bin/sh").args(["-c", &command]).output()?;
    ensure!(
        out.status.success(),
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    weir.wait_pool_nodes(Duration::from_secs(10), |nodes| {
        nodes[0]["status"] == "up" && nodes[0]["role"] == "standby"
    })?;
    // Only a hang takes that long.
    ensure!(eventually(Duration::from_secs(60), || weir.log().contains(" back 0")), "no failback");
    Ok(())
}

/// PP-01, FO-05: the primary freezes. It is found within the time-out, replaced when its standbys do not hear from it
/// either, and when it thaws it takes no writes.
#[test]
fn fo_05_a_frozen_primary_is_replaced_and_never_used_again() -> Result<()> {
    let cluster = cluster("")?;
    let weir = promoting(&cluster, "failover_hold_timeout: 30s\nhealth_check_timeout: 1s")?;
    let mut busy = weir.client()?;
    busy.set_deadline(Duration::from_secs(20));
    busy.simple("INSERT INTO t VALUES (1)")?;
    cluster.wait_replay()?;
    busy.simple("BEGIN")?;
    busy.simple("INSERT INTO t VALUES (2)")?;
    let mut client = weir.client()?;
    client.set_deadline(Duration::from_secs(30));
    cluster.freeze(0);
    busy.send(&msgs().Q("COMMIT"))?;
    client.simple("INSERT INTO t VALUES (3)").context("held over the promotion")?;
    let new = primary(&weir, 0, Duration::from_secs(5))?;
    let told = busy.read_to_end()?.to_string();
    ensure!(told.contains("E(57P01)") || told.contains("E(08006)"), "a COMMIT in doubt: [{told}]");
    cluster.thaw(0);
    weir.wait_pool_nodes(Duration::from_secs(10), |nodes| nodes[0]["status"] == "quarantine")?;
    for id in 10..30 {
        client.simple(&format!("INSERT INTO t VALUES ({id})"))?;
    }
    assert_eq!(cluster.scalar(new, "SELECT count(*) FROM t WHERE id >= 3")?, "21");
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t WHERE id >= 3")?, "0", "nothing on the old one");
    Ok(())
}

/// FO-08: nothing of this is a failover: a full server, a wrong password, a missing database, a crash of one backend.
#[test]
fn fo_08_a_node_that_says_anything_is_not_replaced() -> Result<()> {
    let cluster = cluster("max_connections = 20\nsuperuser_reserved_connections = 3\n")?;
    cluster.sql(0, "CREATE DATABASE checks")?;
    cluster.wait_replay()?;
    let yaml = "health_check_period: 200ms\nhealth_check_retry_delay: 0\nhealth_check_max_retries: 0\n\
                health_check_database: checks\nsr_check_period: 200ms";
    let weir = promoting(&cluster, yaml)?;
    let mut client = weir.client()?;
    client.simple("INSERT INTO t VALUES (1)")?;
    // Full for everybody but the superuser; the check's connection is lost, too.
    cluster.sql(0, "ALTER ROLE pgweir PASSWORD 'other'")?;
    cluster.sql(0, "ALTER DATABASE checks ALLOW_CONNECTIONS false")?;
    let mut hogs = Vec::new();
    while let Ok(hog) = cluster.direct(0) {
        hogs.push(hog);
    }
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'pgweir'";
    for _ in 0..10 {
        cluster.sql(0, kill)?;
        std::thread::sleep(Duration::from_millis(100));
    }
    client.simple("INSERT INTO t VALUES (2)")?;
    drop(hogs);
    // A backend is killed: the server restarts by itself, which is not a loss either.
    let pid: i32 =
        cluster.scalar(0, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")?.parse()?;
    harness::procs::send(u32::try_from(pid)?, rustix::process::Signal::KILL);
    // The crash takes a moment to begin: a write may be through before it, and what the node is only sessions tell.
    let begun = "terminating any other active server processes";
    let crashed = || cluster.log(0).is_ok_and(|log| log.contains(begun));
    ensure!(eventually(Duration::from_secs(30), crashed), "no crash");
    let mut id = 3;
    let written = || {
        id += 1;
        let insert = format!("INSERT INTO t VALUES ({id})");
        weir.client().is_ok_and(|mut client| client.simple(&insert).is_ok())
            && states(&weir).is_ok_and(|nodes| nodes[0] == ("up".to_owned(), "primary".to_owned()))
    };
    ensure!(eventually(Duration::from_secs(30), written), "no writes after the crash");
    let log = weir.log();
    ensure!(!log.contains("is being promoted"), "somebody was promoted");
    ensure!(log.contains("health check failed"), "not said in the log");
    let rejected = weir.metrics()?["pgweir_health_checks_total{node=\"0\",result=\"rejected\"}"];
    ensure!(rejected > 0.0, "the metrics do not tell");
    assert_eq!(cluster.scalar(1, "SELECT pg_is_in_recovery()")?, "t");
    Ok(())
}

/// FO-08, FO-14: the check's password is wrong from the start: what the nodes are is learned from sessions.
#[test]
fn fo_08_a_wrong_check_password_at_the_start_does_not_stop_anybody() -> Result<()> {
    let cluster = cluster("")?;
    let yaml = "sr_check_password: wrong\nfailover_hold_timeout: 5s\nhealth_check_timeout: 5s";
    let mut weir = Pgweir::launch(&cluster, &PgweirOptions::yaml(yaml).trusting())?;
    weir.wait_answering()?;
    let mut client = weir.client()?;
    client.set_deadline(Duration::from_secs(10));
    client.simple("INSERT INTO t VALUES (1)").context("a write")?;
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t")?, "1");
    weir.wait_nodes(3)?;
    ensure!(weir.log().contains("password authentication failed"), "not said in the log");
    let by_name: BTreeMap<String, String> =
        states(&weir)?.into_iter().map(|(status, role)| (role, status)).collect();
    assert_eq!(by_name.len(), 2, "{by_name:?}");
    ensure!(weir.is_alive()?);
    let refused = client.simple("SELECT nonsense").map(|_| ()).expect_err("no such column");
    assert_eq!(sqlstate(&refused), "42703");
    Ok(())
}

/// FO-05: PROMOTE NODE under load, by SQL and by the shell, there and back: no error but for what was in flight too long.
#[test]
fn fo_05_a_controlled_switchover_loses_nothing_and_tells_nobody() -> Result<()> {
    let cluster = cluster("")?;
    let weir = promoting(&cluster, "failover_hold_timeout: 30s")?;
    let mut idle = idle_clients(&weir)?;
    let writers = Writers::start(weir.port(), 20);
    ensure!(eventually(Duration::from_secs(10), || writers.acked() > 200), "the writers do not write");
    weir.admin("PROMOTE NODE 1").context("by SQL")?;
    assert_eq!(primary(&weir, 0, Duration::from_secs(1))?, 1);
    wait_commands(&weir, "follow_primary_command", 2)?;
    weir.wait_nodes(3).context("the old primary and the other standby follow")?;
    let before = writers.acked();
    ensure!(eventually(Duration::from_secs(10), || writers.acked() > before + 200), "no writes on n1");
    let (done, said) = weir.shell(&["promote", "0"])?;
    ensure!(done, "by the shell: {said}");
    assert_eq!(primary(&weir, 1, Duration::from_secs(1))?, 0);
    wait_commands(&weir, "follow_primary_command", 4)?;
    weir.wait_nodes(3)?;
    let before = writers.acked();
    ensure!(eventually(Duration::from_secs(10), || writers.acked() > before + 200), "no writes on n0");
    let written = writers.stop()?;
    ensure!(written.lost == 0 && written.refused.is_empty(), "{} lost, {:?}", written.lost, written.refused);
    written.are_all_on(&cluster, 0)?;
    for client in &mut idle {
        assert_eq!(client.scalar("SHOW work_mem")?, "7MB");
    }
    Ok(())
}

/// PP-11: what DETACH and ATTACH do, and what is refused, with an error and an exit code.
#[test]
fn fo_01_a_node_is_detached_without_harm() -> Result<()> {
    let cluster = cluster("")?;
    let weir = promoting(&cluster, "failover_mode: observe")?;
    let mut reader = weir.client()?;
    let node = loop {
        reader.simple("BEGIN READ ONLY")?;
        if reader.scalar(harness::WHERE)? == "n1" {
            break 1;
        }
        reader.simple("COMMIT")?;
    };
    weir.admin(&format!("DETACH NODE {node}"))?;
    assert_eq!(states(&weir)?[1].0, "draining");
    for _ in 0..10 {
        assert_eq!(weir.client()?.scalar(harness::WHERE)?, "n2", "no new work");
    }
    assert_eq!(reader.scalar(harness::WHERE)?, "n1", "the transaction goes on");
    reader.simple("COMMIT")?;
    weir.wait_pool_nodes(Duration::from_secs(3), |nodes| nodes[1]["status"] == "down")?;
    assert_eq!(reader.scalar(harness::WHERE)?, "n2", "the session goes on");
    let left = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench'";
    cluster.wait_scalar(1, left, "0", Duration::from_secs(5))?;
    for (command, why) in [
        ("DETACH NODE 0", "is the primary"),
        ("DETACH NODE 7", "does not exist"),
        ("ATTACH NODE 7", "does not exist"),
        ("PROMOTE NODE 2", "observe"),
        ("DETACH NODE x", "no node's number"),
    ] {
        let refused = weir.admin(command).map(|_| ()).expect_err(command);
        let said = refused
            .downcast_ref::<harness::PgError>()
            .map(|error| format!("{:?}", error.0))
            .unwrap_or_default();
        ensure!(said.contains(why), "{command}: {said}");
        let (done, said) =
            weir.shell(&[&command.split(' ').next().unwrap_or_default().to_lowercase(), "7"])?;
        ensure!(!done && !said.is_empty(), "{command}: {said}");
    }
    let (done, said) = weir.shell(&["attach", "1"])?;
    ensure!(done, "{said}");
    weir.wait_nodes(3)?;
    // FORCE cuts what is there.
    reader.simple("BEGIN READ ONLY")?;
    let at = reader.scalar(harness::WHERE)?;
    weir.admin(&format!("DETACH NODE {} FORCE", &at[1..]))?;
    ensure!(reader.read_to_end()?.to_string().contains("E(57P01)"), "not cut");
    Ok(())
}

/// DETACH has a deadline: a transaction that goes on for longer than `detach_drain_timeout` is cut off.
#[test]
fn fo_01_a_detached_node_is_empty_after_its_deadline() -> Result<()> {
    let cluster = promotion::cluster(1, "")?;
    let weir = promoting(&cluster, "failover_mode: observe\ndetach_drain_timeout: 1s")?;
    let mut reader = weir.client()?;
    reader.set_deadline(Duration::from_secs(20));
    reader.simple("BEGIN READ ONLY")?;
    assert_eq!(reader.scalar(harness::WHERE)?, "n1");
    weir.admin("DETACH NODE 1")?;
    ensure!(reader.read_to_end()?.to_string().contains("E(57P01)"), "not cut");
    weir.wait_pool_nodes(Duration::from_secs(5), |nodes| nodes[1]["status"] == "down")?;
    assert_eq!(weir.admin("SHOW NODES")?[1]["reason"], "detached");
    Ok(())
}
