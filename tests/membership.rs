//! Nodes that come and go: by reload, at the start, behind pgweir's back, and over a restart of pgweir.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::promotion::{self, primary, states};
use harness::{
    ClientAuth, Cluster, ClusterOptions, Pgweir, PgweirOptions, Pki, RawClient, Signature, StopMode, WHERE,
    eventually, http_get, sqlstate,
};

mod writers;
use writers::Writers;

fn nodes(standbys: usize) -> Result<Cluster> {
    let cluster =
        Cluster::new(ClusterOptions { standbys, log_statements: false, ..ClusterOptions::default() })?;
    cluster.setup("CREATE TABLE t(id bigint PRIMARY KEY); GRANT ALL ON t TO bench")?;
    Ok(cluster)
}

fn patient(weir: &Pgweir) -> Result<RawClient> {
    let mut client = weir.client()?;
    client.set_deadline(Duration::from_secs(30));
    Ok(client)
}

/// These nodes of the cluster, in this order; the primary takes no reads.
fn listed(cluster: &Cluster, list: &[usize], more: &str) -> PgweirOptions {
    let row = |node: &usize| {
        let weight = u32::from(*node > 0);
        format!("  - {{ hostname: 127.0.0.1, port: {}, weight: {weight} }}\n", cluster.port(*node))
    };
    let rows: String = list.iter().map(row).collect();
    PgweirOptions::yaml(&format!("{more}backends:\n{rows}")).trusting()
}

fn reload(weir: &Pgweir, cluster: &Cluster, list: &[usize], more: &str) -> Result<()> {
    weir.rewrite(cluster, &listed(cluster, list, more))?;
    weir.admin("RELOAD").context("RELOAD")?;
    weir.wait_pool_nodes(Duration::from_secs(10), |nodes| {
        nodes.len() == list.len()
            && nodes
                .iter()
                .zip(list)
                .all(|(node, id)| node["status"] == "up" && node["port"] == cluster.port(*id).to_string())
    })
}

/// Reads until one was answered by `node`.
fn reads_reach(weir: &Pgweir, node: &str) -> Result<()> {
    let mut client = patient(weir)?;
    let there = || client.scalar(WHERE).is_ok_and(|ran| ran == node);
    ensure!(eventually(Duration::from_secs(10), there), "no read reaches {node}");
    Ok(())
}

/// RL-01: nodes are added, removed and listed in another order under load: nobody is told anything, transactions on a
/// node that leaves end in peace, and it is left alone afterwards.
#[test]
fn rl_01_nodes_are_added_and_removed_while_running() -> Result<()> {
    let cluster = nodes(2)?;
    let more = "failover_hold_timeout: 30s\nauto_failback_interval: 0\n";
    let mut weir = Pgweir::launch(&cluster, &listed(&cluster, &[0, 1], more))?;
    weir.wait_answering()?;
    weir.wait_nodes(2)?;
    let writers = Writers::start(weir.port(), 5);
    let mut held = patient(&weir)?;
    held.simple("BEGIN READ ONLY")?;
    assert_eq!(held.scalar(WHERE)?, "n1");
    reload(&weir, &cluster, &[0, 1, 2], more).context("n2 is added")?;
    reads_reach(&weir, "n2")?;
    reload(&weir, &cluster, &[0, 2], more).context("n1 is removed")?;
    assert_eq!(held.scalar(WHERE)?, "n1", "the transaction goes on");
    held.simple("COMMIT")?;
    for _ in 0..10 {
        assert_eq!(held.scalar(WHERE)?, "n2", "new work");
    }
    let left = "SELECT count(*) FROM pg_stat_activity WHERE usename IN ('bench', 'pgweir')";
    cluster.wait_scalar(1, left, "0", Duration::from_secs(10))?;
    reload(&weir, &cluster, &[2, 1, 0], more).context("all of them in another order")?;
    reads_reach(&weir, "n1")?;
    assert_eq!(states(&weir)?[2].1, "primary");
    // Without the primary writes wait; reads go on.
    reload(&weir, &cluster, &[1, 2], more).context("the primary is removed")?;
    let before = writers.acked();
    reads_reach(&weir, "n2")?;
    reload(&weir, &cluster, &[0, 1, 2], more).context("the primary is back")?;
    let on = eventually(Duration::from_secs(20), || writers.acked() > before + 50);
    ensure!(on, "the writers do not go on");
    let written = writers.stop()?;
    ensure!(written.lost == 0 && written.refused.is_empty(), "{} lost, {:?}", written.lost, written.refused);
    written.are_all_on(&cluster, 0)
}

/// FO-02, FO-14: a standby that is down at the start is taken when it comes, without a word from anybody.
#[test]
fn fo_02_a_node_that_is_down_at_the_start_comes_in_by_itself() -> Result<()> {
    let mut cluster = nodes(2)?;
    cluster.stop(1, StopMode::Fast)?;
    let mut weir = Pgweir::launch(&cluster, &PgweirOptions::default())?;
    weir.wait_answering()?;
    weir.wait_pool_nodes(Duration::from_secs(10), |nodes| {
        nodes[0]["role"] == "primary" && nodes[1]["status"] == "down" && nodes[2]["status"] == "up"
    })?;
    let mut client = patient(&weir)?;
    client.simple("INSERT INTO t VALUES (1)")?;
    assert_eq!(client.scalar("SELECT current_setting('cluster_name') || now()::text < 'n3'")?, "t");
    cluster.start(1)?;
    weir.wait_nodes(3)?;
    reads_reach(&weir, "n1")
}

/// FO-11: everything is down at the start. Clients are told so at once, the console and the metrics answer, the stop ends
/// in time; and when the nodes come clients work.
#[test]
fn fo_11_a_start_with_all_nodes_down() -> Result<()> {
    let mut cluster = nodes(1)?;
    for node in [1, 0] {
        cluster.stop(node, StopMode::Immediate)?;
    }
    let yaml = "failover_hold_timeout: 20s";
    for round in 0..2 {
        let mut weir = Pgweir::launch(&cluster, &PgweirOptions::yaml(yaml))?;
        weir.wait_answering()?;
        let began = Instant::now();
        let refused = weir.client().and_then(|mut client| client.scalar("SELECT 1"));
        let refused = refused.map(|_| ()).expect_err("nobody is there");
        let code = sqlstate(&refused).to_owned();
        ensure!(code == "57P03" || code.starts_with("08"), "told {refused:#}");
        ensure!(began.elapsed() < Duration::from_secs(6), "told after {:?}", began.elapsed());
        let shown = weir.admin("SHOW NODES").context("the console")?;
        ensure!(shown.len() == 2, "{shown:?}");
        assert_eq!(http_get(weir.metrics_port(), "/metrics")?.status, 200);
        if round == 0 {
            weir.signal(rustix::process::Signal::INT);
            assert_eq!(weir.wait_exit(Duration::from_secs(5))?, 0, "a fast stop");
            continue;
        }
        for node in [0, 1] {
            cluster.start(node)?;
        }
        weir.wait_nodes(2)?;
        patient(&weir)?.simple("INSERT INTO t VALUES (1)")?;
        assert_eq!(states(&weir)?[0].1, "primary");
    }
    Ok(())
}

/// FO-05 (b), FO-14: two primaries. The one on the newer timeline takes all writes, the other is quarantined and stays so,
/// whatever happens to the first; also when pgweir starts with both. The others are not detached.
#[test]
fn fo_05_of_two_primaries_the_newer_one_is_used_and_they_never_alternate() -> Result<()> {
    let mut cluster = promotion::cluster(2, "")?;
    let options = PgweirOptions::yaml("failover_hold_timeout: 1s").trusting();
    let weir = Pgweir::start_with(&cluster, &options)?;
    let mut client = patient(&weir)?;
    client.simple("INSERT INTO t VALUES (0)")?;
    cluster.wait_replay()?;
    cluster.promote(1)?;
    assert_eq!(primary(&weir, 0, Duration::from_secs(5))?, 1);
    let check = |weir: &Pgweir, ids: std::ops::Range<u32>| -> Result<()> {
        let mut client = patient(weir)?;
        for id in ids {
            client.simple(&format!("INSERT INTO t VALUES ({id})"))?;
            let is = states(weir)?;
            ensure!(is[0].0 == "quarantine" && is[1] == ("up".into(), "primary".into()), "{is:?}");
        }
        Ok(())
    };
    check(&weir, 1..40)?;
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t")?, "1", "nothing on the old one");
    assert_eq!(weir.log().matches("writes go to this primary").count(), 2, "once each");
    drop(weir);
    let mut weir = Pgweir::launch(&cluster, &options)?;
    weir.wait_answering()?;
    assert_eq!(primary(&weir, 0, Duration::from_secs(5))?, 1);
    check(&weir, 40..60)?;
    // The new one is lost: the old one does not stand in for it.
    cluster.kill9(1)?;
    weir.wait_pool_nodes(Duration::from_secs(10), |nodes| nodes[1]["status"] == "down")?;
    let refused = patient(&weir)?.simple("INSERT INTO t VALUES (99)").map(|_| ()).expect_err("no primary");
    assert_eq!(sqlstate(&refused), "57P03");
    assert_eq!(states(&weir)?[0].0, "quarantine");
    assert_eq!(patient(&weir)?.scalar(WHERE)?, "n2", "reads go on");
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t")?, "1");
    Ok(())
}

/// FO-14: a standby of a standby is a standby, and no witness for the primary when that dies.
#[test]
fn fo_14_a_cascading_standby() -> Result<()> {
    let mut cluster = promotion::cluster(2, "")?;
    cluster.repoint(2, 1)?;
    let streams = "SELECT status || ' ' || sender_port FROM pg_stat_wal_receiver";
    let from_n1 = format!("streaming {}", cluster.port(1));
    cluster.wait_scalar(2, streams, &from_n1, Duration::from_secs(15))?;
    let yaml = "failover_mode: promote\nfailover_hold_timeout: 30s";
    let weir = Pgweir::start_with(&cluster, &PgweirOptions::yaml(yaml).trusting())?;
    let mut client = patient(&weir)?;
    client.simple("INSERT INTO t VALUES (1)")?;
    cluster.wait_replay()?;
    let roles: Vec<String> = states(&weir)?.into_iter().map(|(_, role)| role).collect();
    assert_eq!(roles, ["primary", "standby", "standby"]);
    cluster.kill9(0)?;
    client.simple("INSERT INTO t VALUES (2)").context("held over the promotion")?;
    let new = primary(&weir, 0, Duration::from_secs(5))?;
    assert_eq!(cluster.scalar(new, "SELECT count(*) FROM t")?, "2");
    Ok(())
}

/// The status file: what was detached stays so over a restart; one that is nonsense is ignored; an old primary takes no
/// writes while the one that replaced it is down, until somebody says so.
#[test]
fn fo_11_the_status_file_is_a_hint() -> Result<()> {
    let mut cluster = promotion::cluster(1, "")?;
    let file = cluster.root().join("status.json");
    let yaml = format!("status_file: {}\nfailover_hold_timeout: 1s", file.display());
    let options = PgweirOptions::yaml(&yaml).trusting();
    let down = |nodes: &[std::collections::BTreeMap<String, String>]| nodes[1]["status"] == "down";
    let weir = Pgweir::start_with(&cluster, &options)?;
    patient(&weir)?.simple("INSERT INTO t VALUES (0)")?;
    weir.admin("DETACH NODE 1 FORCE")?;
    let written = || fs::read_to_string(&file).is_ok_and(|text| text.contains(&cluster.port(1).to_string()));
    ensure!(eventually(Duration::from_secs(30), written), "{:?}", fs::read_to_string(&file));
    drop(weir);
    let mut weir = Pgweir::launch(&cluster, &options)?;
    weir.wait_answering()?;
    weir.wait_pool_nodes(Duration::from_secs(10), |nodes| nodes[0]["status"] == "up" && down(nodes))?;
    // Alive as it is, it is not used.
    for _ in 0..10 {
        assert_eq!(patient(&weir)?.scalar(WHERE)?, "n0");
    }
    weir.admin("ATTACH NODE 1")?;
    weir.wait_nodes(2)?;
    ensure!(eventually(Duration::from_secs(30), || !written()), "{:?}", fs::read_to_string(&file));
    drop(weir);
    // The only primary is detached, says the file: there is no other, so it is used.
    let text = fs::read_to_string(&file)?;
    let port = cluster.port(0);
    fs::write(&file, text.replace("[]", &format!("[{{\"hostname\": \"127.0.0.1\", \"port\": {port}}}]")))?;
    drop(Pgweir::start_with(&cluster, &options).context("a file that detaches the primary")?);
    fs::write(&file, "{ nonsense")?;
    let weir = Pgweir::start_with(&cluster, &options).context("a file of nonsense")?;
    ensure!(weir.log().contains("the status file makes no sense"), "not said");
    cluster.wait_replay()?;
    cluster.promote(1)?;
    assert_eq!(primary(&weir, 0, Duration::from_secs(5))?, 1);
    let newest = || fs::read_to_string(&file).is_ok_and(|text| text.contains("\"newest_timeline\": 2"));
    ensure!(eventually(Duration::from_secs(30), newest), "{:?}", fs::read_to_string(&file));
    drop(weir);
    cluster.kill9(1)?;
    let mut weir = Pgweir::launch(&cluster, &options)?;
    weir.wait_answering()?;
    let nodes = || weir.admin("SHOW NODES").unwrap_or_default();
    let barred = || nodes().first().is_some_and(|node| node["status"] == "quarantine");
    ensure!(eventually(Duration::from_secs(10), barred), "{:?}", nodes());
    let written = weir.client().and_then(|mut client| client.simple("INSERT INTO t VALUES (1)").map(|_| ()));
    assert_eq!(sqlstate(&written.expect_err("an old primary")), "57P03");
    weir.admin("ATTACH NODE 0")?;
    patient(&weir)?.simple("INSERT INTO t VALUES (2)").context("at the administrator's word")?;
    Ok(())
}

/// PP-11: attach, detach and promote from the shell over TLS; a certificate that is not ours is not talked to.
#[test]
fn pp_11_commands_of_the_shell_go_over_tls() -> Result<()> {
    let cluster = promotion::cluster(1, "")?;
    let pki = Pki::new(cluster.root(), "pki", Signature::Sha256)?;
    for name in ["weir", "other"] {
        pki.issue(name, &format!("/CN={name}"), "IP:127.0.0.1", 10)?;
    }
    let yaml = format!(
        "failover_mode: promote\nssl: allow\nssl_cert: {}\nssl_key: {}\nlog_connections: on\n",
        pki.path("weir.crt"),
        pki.path("weir.key")
    );
    // An administrator gets in over TLS only; the harness looks at the nodes in the clear.
    let rules = "hostssl pgweir postgres 127.0.0.1/32 scram-sha-256\nhost bench all 127.0.0.1/32 trust\n";
    let auth = ClientAuth::Hba(rules.to_owned());
    let options = PgweirOptions { yaml: yaml.clone(), auth: auth.clone(), ..PgweirOptions::default() };
    let weir = Pgweir::start_with(&cluster, &options)?;
    for (words, status) in [(["detach", "1"], "down"), (["attach", "1"], "up")] {
        let (done, said) = weir.shell(&words)?;
        ensure!(done, "{words:?}: {said}");
        weir.wait_pool_nodes(Duration::from_secs(10), |nodes| nodes[1]["status"] == status)?;
    }
    let (done, said) = weir.shell(&["promote", "1"])?;
    ensure!(done, "promote: {said}");
    assert_eq!(primary(&weir, 0, Duration::from_secs(5))?, 1);
    // The file says another certificate than the running one shows.
    let other = yaml.replace("weir.crt", "other.crt").replace("weir.key", "other.key");
    weir.rewrite(&cluster, &PgweirOptions { yaml: other, auth, ..PgweirOptions::default() })?;
    let (done, said) = weir.shell(&["detach", "0"])?;
    ensure!(!done && said.contains("certificate"), "somebody else's certificate: {said}");
    Ok(())
}
