//! A network that swallows what it is given: nothing is refused, nobody is told, nothing comes back.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{
    Cluster, ClusterOptions, Pgweir, PgweirOptions, RawClient, Relay, Reply, WHERE, msgs, promotion,
};

/// Nodes at these ports, of these weights.
fn backends(nodes: &[(u16, u32)]) -> String {
    let row = |(port, weight): &(u16, u32)| {
        format!("  - {{ hostname: 127.0.0.1, port: {port}, weight: {weight} }}\n")
    };
    format!("backends:\n{}", nodes.iter().map(row).collect::<String>())
}

fn start(cluster: &Cluster, yaml: &str, nodes: usize) -> Result<Pgweir> {
    let mut weir = Pgweir::launch(cluster, &PgweirOptions::yaml(yaml).trusting())?;
    weir.wait_answering()?;
    weir.wait_nodes(nodes)?;
    Ok(weir)
}

fn patient(weir: &Pgweir) -> Result<RawClient> {
    let mut client = weir.client()?;
    client.set_deadline(Duration::from_secs(30));
    Ok(client)
}

fn is_cut(told: &str) -> bool {
    told.contains("E(57P01)") || told.contains("E(08006)")
}

/// FO-01, PP-01: the way to a standby is lost without a word. It is down when its checks have timed out; whoever has
/// something in flight there is told, or served elsewhere when nothing of the answer was sent; nobody else notices.
#[test]
fn fo_01_a_standby_behind_a_dead_network_is_found_within_the_time_out() -> Result<()> {
    let cluster =
        Cluster::new(ClusterOptions { standbys: 1, log_statements: false, ..ClusterOptions::default() })?;
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    let relay = Relay::start(cluster.port(1))?;
    let weir = start(&cluster, &backends(&[(cluster.port(0), 0), (relay.port(), 1)]), 2)?;
    let (mut held, mut reader, mut writer) = (patient(&weir)?, patient(&weir)?, patient(&weir)?);
    assert_eq!(reader.scalar(WHERE)?, "n1");
    held.simple("BEGIN READ ONLY")?;
    assert_eq!(held.scalar(WHERE)?, "n1");
    writer.simple("INSERT INTO t VALUES (0)")?;
    relay.cut(true);
    held.send(&msgs().Q("SELECT 1"))?;
    reader.send(&msgs().Q(WHERE))?;
    let began = Instant::now();
    // Two checks of a second each, the period and the pause before the second: 2.4 s and slack.
    weir.wait_pool_nodes(Duration::from_secs(8), |nodes| nodes[1]["status"] == "down")?;
    println!("down after {:?}", began.elapsed());
    writer.simple("INSERT INTO t VALUES (1)").context("a write")?;
    let answer = reader.read_until(|reply| matches!(reply, Reply::ReadyForQuery(_)))?.to_string();
    assert_eq!(answer, "T D(n0) C(SELECT 1) Z(I)", "a read of which nothing was answered");
    let told = held.read_to_end()?.to_string();
    ensure!(is_cut(&told), "a transaction in flight: [{told}]");
    for _ in 0..5 {
        assert_eq!(patient(&weir).context("a login")?.scalar(WHERE)?, "n0");
    }
    relay.cut(false);
    weir.wait_nodes(2)?;
    let back = || patient(&weir).is_ok_and(|mut client| client.scalar(WHERE).is_ok_and(|node| node == "n1"));
    ensure!(harness::eventually(Duration::from_secs(10), back), "n1 is not used again");
    Ok(())
}

/// FO-01: logins and writes while the loss of the standby is not noticed yet.
#[test]
fn fo_01_a_dead_network_to_a_standby_stops_no_login_and_no_write() -> Result<()> {
    let cluster =
        Cluster::new(ClusterOptions { standbys: 1, log_statements: false, ..ClusterOptions::default() })?;
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    let relay = Relay::start(cluster.port(1))?;
    let yaml = format!("{}health_check_timeout: 3s\n", backends(&[(cluster.port(0), 0), (relay.port(), 1)]));
    let weir = start(&cluster, &yaml, 2)?;
    relay.cut(true);
    for id in 0..20 {
        let began = Instant::now();
        let mut client = weir.client().context("a login")?;
        client.simple(&format!("INSERT INTO t VALUES ({id})")).context("a write")?;
        ensure!(began.elapsed() < Duration::from_secs(2), "a login and a write took {:?}", began.elapsed());
    }
    relay.cut(false);
    Ok(())
}

/// FO-04, FO-05: the primary vanishes from the network, for pgweir and for its standby. It is replaced; a COMMIT that was
/// in flight is in doubt and nothing else; when it is back it takes no writes.
#[test]
fn fo_04_a_primary_behind_a_dead_network_is_replaced() -> Result<()> {
    let cluster = promotion::cluster(1, "")?;
    let relay = Relay::start(cluster.port(0))?;
    let follow = format!("host=127.0.0.1 port={} user=postgres application_name=n1", relay.port());
    cluster.sql(1, &format!("ALTER SYSTEM SET primary_conninfo = '{follow}'"))?;
    cluster.sql(1, "SELECT pg_reload_conf()")?;
    let streams = "SELECT status || ' ' || sender_port FROM pg_stat_wal_receiver";
    let wanted = format!("streaming {}", relay.port());
    cluster.wait_scalar(1, streams, &wanted, Duration::from_secs(15))?;
    let yaml = format!(
        "{}workers: 1\nfailover_mode: promote\nfailover_hold_timeout: 30s\n",
        backends(&[(relay.port(), 0), (cluster.port(1), 1)])
    );
    let weir = start(&cluster, &yaml, 2)?;
    let (mut idle, mut busy, mut single, mut late) =
        (patient(&weir)?, patient(&weir)?, patient(&weir)?, patient(&weir)?);
    idle.simple("INSERT INTO t VALUES (0)")?;
    busy.simple("BEGIN")?;
    busy.simple("INSERT INTO t VALUES (1)")?;
    // A second backend, which waits in the pool.
    single.simple("INSERT INTO t VALUES (5)")?;
    let replayed = "SELECT count(*) FROM t WHERE id = 5";
    cluster.wait_scalar(1, replayed, "1", Duration::from_secs(10))?;
    relay.cut(true);
    busy.send(&msgs().Q("COMMIT"))?;
    single.send(&msgs().Q("INSERT INTO t VALUES (2)"))?;
    weir.wait_pool_nodes(Duration::from_secs(10), |nodes| nodes[0]["status"] != "up")?;
    late.simple("INSERT INTO t VALUES (3)").context("begun while there is no primary")?;
    for (what, client) in [("COMMIT", &mut busy), ("an INSERT", &mut single)] {
        let told = client.read_to_end()?.to_string();
        ensure!(is_cut(&told) && !told.contains("C("), "{what} in doubt is told [{told}]");
    }
    idle.simple("INSERT INTO t VALUES (4)").context("an idle client")?;
    relay.cut(false);
    weir.wait_pool_nodes(Duration::from_secs(10), |nodes| nodes[0]["status"] == "quarantine")?;
    for id in 10..20 {
        idle.simple(&format!("INSERT INTO t VALUES ({id})"))?;
    }
    let rows = "SELECT string_agg(id::text, ' ' ORDER BY id) FROM t WHERE id < 10";
    assert_eq!(cluster.scalar(1, rows)?, "0 3 4 5", "what was in doubt was not repeated");
    assert_eq!(cluster.scalar(1, "SELECT count(*) FROM t WHERE id >= 10")?, "10");
    assert_eq!(
        cluster.scalar(0, "SELECT count(*) FROM t WHERE id IN (3, 4) OR id >= 10")?,
        "0",
        "nothing on the old one"
    );
    Ok(())
}

/// A primary that pgweir alone cannot reach is not replaced: its standby hears from it.
#[test]
fn fo_08_a_dead_network_between_pgweir_and_the_primary_is_no_failover() -> Result<()> {
    let cluster = promotion::cluster(1, "")?;
    let relay = Relay::start(cluster.port(0))?;
    let yaml = format!(
        "{}failover_mode: promote\nfailover_hold_timeout: 30s\n",
        backends(&[(relay.port(), 0), (cluster.port(1), 1)])
    );
    let weir = start(&cluster, &yaml, 2)?;
    relay.cut(true);
    let vouched = || {
        let nodes = weir.admin("SHOW NODES").unwrap_or_default();
        nodes.first().is_some_and(|node| node["reason"] == "vouched" && node["status"] == "up")
    };
    ensure!(harness::eventually(Duration::from_secs(15), vouched), "{:?}", weir.admin("SHOW NODES")?);
    let evidence = &weir.admin("SHOW NODES")?[1]["upstream"];
    ensure!(evidence.contains("silent for"), "{evidence}");
    let mut client = patient(&weir)?;
    assert_eq!(client.scalar(WHERE)?, "n1", "reads go on");
    relay.cut(false);
    weir.wait_nodes(2)?;
    client.simple("INSERT INTO t VALUES (1)")?;
    assert_eq!(cluster.scalar(1, "SELECT pg_is_in_recovery()")?, "t");
    ensure!(!weir.log().contains("is being promoted"), "somebody was promoted");
    Ok(())
}

/// A port that drops what it is sent: a listener whose queue is full.
fn deaf() -> Result<(TcpListener, Vec<TcpStream>)> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    socket.listen(0)?;
    let listener = TcpListener::from(socket);
    let (at, mut queued) = (listener.local_addr()?, Vec::new());
    while let Ok(stream) = TcpStream::connect_timeout(&at, Duration::from_millis(300)) {
        queued.push(stream);
        ensure!(queued.len() < 100, "the queue has no end");
    }
    Ok((listener, queued))
}

/// FO-02: a port whose packets are dropped, so that not even a connection is refused.
#[test]
fn fo_02_a_port_that_drops_packets_is_down_and_nobody_waits_for_it() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let (listener, _queued) = deaf()?;
    let nodes = [(cluster.port(0), 1), (listener.local_addr()?.port(), 1)];
    let mut weir = Pgweir::launch(&cluster, &PgweirOptions::yaml(&backends(&nodes)))?;
    weir.wait_answering()?;
    weir.wait_pool_nodes(Duration::from_secs(10), |nodes| {
        nodes[0]["status"] == "up" && nodes[1]["status"] == "down"
    })?;
    let mut client = patient(&weir)?;
    for _ in 0..20 {
        let began = Instant::now();
        assert_eq!(client.scalar(WHERE)?, "n0");
        ensure!(began.elapsed() < Duration::from_secs(1), "a read waited {:?}", began.elapsed());
    }
    Ok(())
}
