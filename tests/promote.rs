//! pgweir promotes: what 50 writers see of it, and what it takes for it to happen.

mod writers;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Cluster, ClusterOptions, Login, Pgweir, PgweirOptions, RawClient, eventually, msgs, sqlstate};
use writers::Writers;

/// What `pg_rewind` needs, and standbys that notice a silent primary soon.
const CONF: &str = "full_page_writes = on\nwal_log_hints = on\nwal_receiver_timeout = 1500\n";
const SYNCHRONOUS: &str = "synchronous_standby_names = 'ANY 1 (*)'\n";

fn cluster(conf: &str) -> Result<Cluster> {
    let conf = format!("{CONF}{conf}");
    let options = ClusterOptions { standbys: 2, log_statements: false, conf, ..ClusterOptions::default() };
    let cluster = Cluster::new(options)?;
    cluster.setup("CREATE TABLE t(id bigint PRIMARY KEY); GRANT ALL ON t TO PUBLIC")?;
    Ok(cluster)
}

/// The samples of etc/failover, which find out by themselves whom to run as.
fn script(cluster: &Cluster, name: &str, placeholders: &str) -> String {
    let etc = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../etc/failover").join(name);
    let bin = cluster.install().client("psql").get_program().to_owned();
    let bin = std::path::Path::new(&bin).parent().map(|bin| bin.display().to_string()).unwrap_or_default();
    format!("PGBIN={bin} PGLOG=restarted.log {} {placeholders}", etc.display())
}

fn promoting(cluster: &Cluster, yaml: &str) -> Result<Pgweir> {
    let follow = script(cluster, "follow_primary.sh", "%d %h %p %D %m %H %r");
    let base = format!(
        "failover_mode: promote\nfollow_primary_command: \"{follow}\"\nhealth_check_period: 1s\n\
         health_check_max_retries: 1\nhealth_check_retry_delay: 1s\nsr_check_period: 1s\nauto_failback_interval: 1s\n\
         users: {{other: {{pool_mode: session}}}}\n"
    );
    let given = |line: &&str| line.split(':').next().is_some_and(|key| yaml.contains(&format!("{key}:")));
    let kept: Vec<&str> = base.lines().filter(|line| !given(line)).collect();
    let yaml = format!("{}\n{yaml}", kept.join("\n"));
    Pgweir::start_with(cluster, &PgweirOptions::yaml(&yaml).trusting())
}

fn primary(weir: &Pgweir, not: usize, within: Duration) -> Result<usize> {
    let mut found = None;
    eventually(within, || {
        let nodes = weir.pool_nodes().unwrap_or_default();
        found = nodes.iter().position(|node| node["role"] == "primary" && node["status"] == "up");
        found.is_some_and(|node| node != not)
    });
    found.filter(|node| *node != not).context("no other primary")
}

fn states(weir: &Pgweir) -> Result<Vec<(String, String)>> {
    Ok(weir.pool_nodes()?.iter().map(|node| (node["status"].clone(), node["role"].clone())).collect())
}

/// Clients that do nothing while the primary dies, of both ways of pooling.
fn idle_clients(weir: &Pgweir) -> Result<Vec<RawClient>> {
    let mut clients = Vec::new();
    for user in ["bench", "other"] {
        for _ in 0..5 {
            let mut client = Login::new(user, "bench").connect(weir.port())?;
            client.set_deadline(Duration::from_secs(20));
            client.simple("SET work_mem = '7MB'")?;
            client.simple("SELECT count(*) FROM t")?;
            clients.push(client);
        }
    }
    Ok(clients)
}

/// FO-04: kill -9 under 50 writers, promotion, and back again: no acknowledged row is lost, nobody who was idle or
/// between transactions hears anything, nobody is promoted twice.
#[test]
fn fo_04_fifty_writers_lose_nothing_in_two_failovers() -> Result<()> {
    let mut cluster = cluster(SYNCHRONOUS)?;
    let weir = promoting(&cluster, "default_pool_size: 20\nfailover_hold_timeout: 30s")?;
    let mut idle = idle_clients(&weir)?;
    let writers = Writers::start(weir.port(), 50);
    let mut old = 0;
    for round in 1..=2 {
        let before = writers.acked();
        ensure!(
            eventually(Duration::from_secs(10), || writers.acked() > before + 200),
            "the writers do not write"
        );
        cluster.kill9(old)?;
        let killed = Instant::now();
        let new = primary(&weir, old, Duration::from_secs(15)).with_context(|| format!("round {round}"))?;
        let at = writers.acked();
        ensure!(eventually(Duration::from_secs(15), || writers.acked() > at + 200), "no writes on n{new}");
        println!("round {round}: n{old} to n{new}, watched for {:?}", killed.elapsed());
        cluster.rejoin(old, new)?;
        weir.wait_pool_nodes(Duration::from_secs(15), |nodes| {
            nodes.iter().all(|node| node["status"] == "up") && nodes[old]["role"] == "standby"
        })?;
        old = new;
    }
    let written = writers.stop()?;
    for (n, client) in idle.iter_mut().enumerate() {
        assert_eq!(client.scalar("SHOW work_mem").with_context(|| format!("idle client {n}"))?, "7MB");
        client.simple(&format!("INSERT INTO t VALUES ({})", -1 - i64::try_from(n)?))?;
    }
    written.are_all_on(&cluster, old)?;
    ensure!(written.refused.is_empty(), "told other than of lost connections: {:?}", written.refused);
    assert_eq!(weir.log().matches("node is being promoted").count(), 2, "exactly once each");
    Ok(())
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
    let follows = "SELECT status || ' ' || sender_port FROM pg_stat_wal_receiver";
    cluster.wait_scalar(
        other,
        follows,
        &format!("streaming {}", cluster.port(new)),
        Duration::from_secs(15),
    )?;
    // A hook's words are in the log when it has ended, which is after the standby streams.
    let followed = format!("standby {other} ");
    ensure!(eventually(Duration::from_secs(15), || weir.log().contains(&followed)), "{}", weir.log());
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
    ensure!(eventually(Duration::from_secs(3), || weir.log().matches(" back 0").count() >= 1), "no failback");
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
    let written = || weir.client().is_ok_and(|mut client| client.simple("INSERT INTO t VALUES (3)").is_ok());
    ensure!(eventually(Duration::from_secs(10), written), "no writes after the crash");
    let log = weir.log();
    ensure!(!log.contains("is being promoted"), "somebody was promoted");
    assert_eq!(cluster.scalar(1, "SELECT pg_is_in_recovery()")?, "t");
    assert_eq!(states(&weir)?[0], ("up".to_owned(), "primary".to_owned()));
    Ok(())
}

/// FO-08, FO-14: the check's password is wrong from the start: what the nodes are is learned from sessions.
#[test]
fn fo_08_a_wrong_check_password_at_the_start_does_not_stop_anybody() -> Result<()> {
    let cluster = cluster("")?;
    let yaml = "sr_check_password: wrong\nfailover_hold_timeout: 5s";
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

/// Runs `pgweir` with the configuration of the running one.
fn shell(weir: &Pgweir, words: &[&str]) -> Result<(bool, String)> {
    let file = weir.dir().join("pgweir.yaml");
    let mut command = std::process::Command::new(harness::pgweir::binary()?);
    let out = command.arg(words[0]).arg("-f").arg(file).args(&words[1..]).current_dir(weir.dir()).output()?;
    let said = [out.stdout, out.stderr].concat();
    Ok((out.status.success(), String::from_utf8_lossy(&said).into_owned()))
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
    weir.wait_nodes(3).context("the old primary and the other standby follow")?;
    let before = writers.acked();
    ensure!(eventually(Duration::from_secs(10), || writers.acked() > before + 200), "no writes on n1");
    let (done, said) = shell(&weir, &["promote", "0"])?;
    ensure!(done, "by the shell: {said}");
    assert_eq!(primary(&weir, 1, Duration::from_secs(1))?, 0);
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

/// What DETACH and ATTACH do, and what is refused.
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
            shell(&weir, &[&command.split(' ').next().unwrap_or_default().to_lowercase(), "7"])?;
        ensure!(!done && !said.is_empty(), "{command}: {said}");
    }
    let (done, said) = shell(&weir, &["attach", "1"])?;
    ensure!(done, "{said}");
    weir.wait_nodes(3)?;
    // FORCE cuts what is there.
    reader.simple("BEGIN READ ONLY")?;
    let at = reader.scalar(harness::WHERE)?;
    weir.admin(&format!("DETACH NODE {} FORCE", &at[1..]))?;
    ensure!(reader.read_to_end()?.to_string().contains("E(57P01)"), "not cut");
    Ok(())
}
