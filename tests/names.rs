//! Nodes by name: names that move, vanish, have dead addresses, or take long to be found (FO-13).
//!
//! pgweir runs with a resolver of our own in front of the C library's (names/resolver.c), which reads a file.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::{Cluster, ClusterOptions, Pgweir, PgweirOptions, RawClient, Relay, WHERE, eventually};

/// The file that the resolver reads.
struct Names {
    hosts: PathBuf,
    library: PathBuf,
}

impl Names {
    fn new(cluster: &Cluster) -> Result<Self> {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/names/resolver.c");
        let names = Self { hosts: cluster.root().join("hosts"), library: cluster.root().join("resolver.so") };
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(&names.library)
            .arg(source)
            .arg("-ldl")
            .output()?;
        ensure!(built.status.success(), "cc: {}", String::from_utf8_lossy(&built.stderr));
        Ok(names)
    }

    /// Replaced whole: a lookup sees the old lines or the new ones.
    fn say(&self, lines: &str) -> Result<()> {
        let new = self.hosts.with_extension("new");
        fs::write(&new, lines)?;
        Ok(fs::rename(new, &self.hosts)?)
    }

    fn start(&self, cluster: &Cluster, yaml: &str) -> Result<Pgweir> {
        let under = [
            "env".to_owned(),
            format!("LD_PRELOAD={}", self.library.display()),
            format!("PGWEIR_TEST_HOSTS={}", self.hosts.display()),
        ];
        let options = PgweirOptions { under: under.to_vec(), ..PgweirOptions::yaml(yaml).trusting() };
        let mut weir = Pgweir::launch(cluster, &options)?;
        weir.wait_answering()?;
        Ok(weir)
    }
}

fn patient(weir: &Pgweir) -> Result<RawClient> {
    let mut client = weir.client()?;
    client.set_deadline(Duration::from_secs(30));
    Ok(client)
}

/// FO-13: the name moves to another server while the old one goes on answering: the client's next transactions are there,
/// and nothing reaches the old one any more.
#[test]
fn fo_13_a_name_that_moves_is_followed() -> Result<()> {
    let cluster =
        Cluster::new(ClusterOptions { standbys: 1, log_statements: false, ..ClusterOptions::default() })?;
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    let port = cluster.port(0);
    // The other server has the same port, on another address.
    let _other = Relay::listen(("127.0.0.2", port), cluster.port(1))?;
    let names = Names::new(&cluster)?;
    names.say("db.test 127.0.0.1\n")?;
    let yaml = format!("failover_hold_timeout: 20s\nbackends:\n  - {{ hostname: db.test, port: {port} }}\n");
    let weir = names.start(&cluster, &yaml)?;
    weir.wait_nodes(1)?;
    let mut client = patient(&weir)?;
    client.simple("INSERT INTO t VALUES (1)")?;
    assert_eq!(client.scalar(WHERE)?, "n0");
    cluster.wait_replay()?;
    cluster.promote(1)?;
    names.say("db.test 127.0.0.2\n")?;
    let moved = || client.scalar(WHERE).is_ok_and(|node| node == "n1");
    ensure!(eventually(Duration::from_secs(15), moved), "the client stays with the old server");
    let mut new = patient(&weir)?;
    for id in 2..20 {
        client.simple(&format!("INSERT INTO t VALUES ({id})"))?;
        new.simple(&format!("INSERT INTO t VALUES ({id})"))?;
    }
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t")?, "1");
    assert_eq!(cluster.scalar(1, "SELECT count(*) FROM t")?, "37");
    let left = "SELECT count(*) FROM pg_stat_activity WHERE usename IN ('bench', 'pgweir')";
    cluster.wait_scalar(0, left, "0", Duration::from_secs(10))?;
    assert_eq!(weir.pool_nodes()?[0]["status"], "up");
    Ok(())
}

/// FO-13: a name that is gone for a while: what is connected goes on; what has to connect finds the node unreachable,
/// and finds it again afterwards.
#[test]
fn fo_13_a_name_that_vanishes_makes_the_node_unreachable() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    let names = Names::new(&cluster)?;
    names.say("db.test 127.0.0.1\n")?;
    let yaml = format!(
        "failover_hold_timeout: 30s\nbackends:\n  - {{ hostname: db.test, port: {} }}\n",
        cluster.port(0)
    );
    let mut weir = names.start(&cluster, &yaml)?;
    weir.wait_nodes(1)?;
    let mut client = patient(&weir)?;
    client.simple("INSERT INTO t VALUES (1)")?;
    names.say("")?;
    // Longer than between two lookups.
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        assert_eq!(client.scalar(WHERE)?, "n0", "a connection that is there needs no name");
        std::thread::sleep(Duration::from_millis(50));
    }
    let kill =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename IN ('bench', 'pgweir')";
    cluster.sql(0, kill)?;
    weir.wait_pool_nodes(Duration::from_secs(10), |nodes| nodes[0]["status"] == "down")?;
    ensure!(weir.is_alive()?, "pgweir has ended");
    client.send(&harness::msgs().Q("INSERT INTO t VALUES (2)"))?;
    names.say("db.test 127.0.0.1\n")?;
    let told = client.read_until(|reply| matches!(reply, harness::Reply::ReadyForQuery(_)))?.to_string();
    assert_eq!(told, "C(INSERT 0 1) Z(I)", "it waited for the node to be found again");
    weir.wait_nodes(1)
}

/// FO-13: of three addresses one drops packets (nothing answers there), one refuses, one is the node.
#[test]
fn fo_13_dead_addresses_of_a_name_are_skipped() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let port = cluster.port(0);
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    let deaf = std::net::SocketAddr::from(([127, 0, 0, 4], port));
    socket.bind(&deaf.into())?;
    socket.listen(0)?;
    let mut queued = Vec::new();
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&deaf, Duration::from_millis(300)) {
        queued.push(stream);
        ensure!(queued.len() < 100, "the queue has no end");
    }
    let names = Names::new(&cluster)?;
    names.say("db.test 127.0.0.4\ndb.test 127.0.0.3\ndb.test 127.0.0.1\n")?;
    let yaml = format!(
        "health_check_timeout: 3s\nconnect_timeout: 6s\nbackends:\n  - {{ hostname: db.test, port: {port} }}\n"
    );
    let weir = names.start(&cluster, &yaml)?;
    weir.wait_nodes(1)?;
    assert_eq!(patient(&weir)?.scalar(WHERE)?, "n0");
    Ok(())
}

/// FO-13: a lookup that takes long holds nobody up.
#[test]
fn fo_13_a_slow_resolver_stops_nobody_else() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let names = Names::new(&cluster)?;
    names.say("db.test 127.0.0.1\nslow.test slow\n")?;
    let yaml = format!(
        "workers: 1\nbackends:\n  - {{ hostname: db.test, port: {} }}\n  - {{ hostname: slow.test, port: 5432 }}\n",
        cluster.port(0)
    );
    let weir = names.start(&cluster, &yaml)?;
    weir.wait_pool_nodes(Duration::from_secs(15), |nodes| {
        nodes[0]["status"] == "up" && nodes[1]["status"] == "down"
    })?;
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        let began = Instant::now();
        assert_eq!(patient(&weir)?.scalar(WHERE)?, "n0");
        ensure!(began.elapsed() < Duration::from_secs(2), "a login and a read took {:?}", began.elapsed());
    }
    Ok(())
}
