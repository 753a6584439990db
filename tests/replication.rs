//! Replication connections: passed one to one to the primary, for PostgreSQL's own programs and for subscriptions.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{
    Cluster, ClusterOptions, Login, PgError, Pgweir, PgweirOptions, RawClient, StopMode, msgs, tools,
};
use rustix::process::Signal;

const SECOND: Duration = Duration::from_secs(1);
const PASSWORDS: &str =
    "repl:TEXTrepl\nbench:TEXTbench\nother:TEXTother\npgweir:TEXTpgweir\npostgres:TEXTpostgres\n";

fn cluster(standbys: usize) -> Result<Cluster> {
    let conf = "wal_level = logical\nmax_replication_slots = 10\n".to_owned();
    let cluster = Cluster::new(ClusterOptions { standbys, conf, ..ClusterOptions::default() })?;
    cluster.setup(
        "CREATE ROLE repl LOGIN REPLICATION PASSWORD 'repl'; CREATE TABLE t(id int PRIMARY KEY, v text)",
    )?;
    cluster.setup("GRANT ALL ON t TO bench, repl")?;
    Ok(cluster)
}

fn rig(standbys: usize, yaml: &str) -> Result<(Cluster, Pgweir)> {
    let cluster = cluster(standbys)?;
    let weir = Pgweir::start_with(&cluster, &options(yaml))?;
    Ok((cluster, weir))
}

fn options(yaml: &str) -> PgweirOptions {
    PgweirOptions { passwords: Some(PASSWORDS.to_owned()), ..PgweirOptions::yaml(yaml) }
}

fn physical() -> Login {
    Login::new("repl", "bench").with("replication", "true")
}

fn logical() -> Login {
    Login::new("repl", "bench").with("replication", "database")
}

/// What `SHOW CLIENTS` or `SHOW SERVERS` says of replication.
fn shown(weir: &Pgweir, what: &str) -> Result<Vec<String>> {
    let rows = weir.admin(&format!("SHOW {what}"))?;
    let found = rows.iter().filter(|row| row["replication"] != "none");
    Ok(found.map(|row| format!("{} {} {}", row["replication"], row["user"], row["database"])).collect())
}

fn conninfo(weir: &Pgweir) -> String {
    format!("host=127.0.0.1 port={} user=repl password=repl", weir.port())
}

const SENDERS: &str = "SELECT count(*) FROM pg_stat_replication WHERE usename = 'repl'";

/// Streams from the present position; the reply is the beginning of it.
fn stream(client: &mut RawClient) -> Result<()> {
    let identity = client.simple("IDENTIFY_SYSTEM")?;
    let at = identity.rows[0][2].clone().context("no position")?;
    client.send(&msgs().Q(&format!("START_REPLICATION PHYSICAL {at}")))?;
    assert_eq!(client.read_count(1)?.to_string(), "W");
    Ok(())
}

#[test]
fn every_word_for_replication_is_taken_and_answered_by_the_primary() -> Result<()> {
    let (cluster, weir) = rig(1, "")?;
    for word in ["true", "on", "1", "yes", "database"] {
        let mut client = Login::new("repl", "bench").with("replication", word).connect(weir.port())?;
        let mut direct = Login::new("repl", "bench").with("replication", word).connect(cluster.port(0))?;
        assert_eq!(client.parameters, direct.parameters, "{word}");
        let identity = client.simple("IDENTIFY_SYSTEM")?.rows;
        let expected = direct.simple("IDENTIFY_SYSTEM")?.rows;
        assert_eq!((&identity[0][0], &identity[0][3]), (&expected[0][0], &expected[0][3]), "{word}");
        client.terminate()?;
    }
    // A walsender in a database takes SQL, too; start-up parameters are the client's.
    let mut client =
        logical().with("application_name", "walker").with("work_mem", "7MB").connect(weir.port())?;
    assert_eq!(client.scalar("SHOW work_mem")?, "7MB");
    assert_eq!(client.scalar(harness::WHERE)?, "n0");
    assert_eq!(
        client.scalar("SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()")?,
        "walker"
    );
    ensure!(client.sqlstate_of("SELECT 1/0")? == "22012");
    assert_eq!(client.scalar("SELECT 5")?, "5");
    Ok(())
}

#[test]
fn who_may_not_replicate_hears_the_servers_words() -> Result<()> {
    let (cluster, weir) = rig(0, "")?;
    let refused = |login: &Login, port: u16| -> Result<(String, String)> {
        let error = login.connect(port).err().context("let in")?;
        let PgError(fields) = error.downcast::<PgError>()?;
        Ok((fields.get('C').to_owned(), fields.get('M').to_owned()))
    };
    for login in [
        Login::new("other", "bench").with("replication", "true"),
        Login::new("other", "bench").with("replication", "database"),
        logical().with("nope_guc", "1"),
    ] {
        assert_eq!(refused(&login, weir.port())?, refused(&login, cluster.port(0))?, "{login:?}");
    }
    assert_eq!(refused(&physical().password("wrong"), weir.port())?.0, "28P01");
    assert_eq!(refused(&physical().with("replication", "maybe"), weir.port())?.0, "22023");
    let console = Login::new("postgres", "pgweir").with("replication", "database");
    assert_eq!(refused(&console, weir.port())?.0, "0A000");
    Ok(())
}

#[test]
fn pool_hba_says_who_replicates() -> Result<()> {
    let cluster = cluster(0)?;
    let hba = "host all repl 127.0.0.1/32 scram-sha-256\nhost all postgres 127.0.0.1/32 scram-sha-256\n\
               host all pgweir,bench 127.0.0.1/32 scram-sha-256\n";
    let options = PgweirOptions { auth: harness::ClientAuth::Hba(hba.to_owned()), ..options("") };
    let weir = Pgweir::start_with(&cluster, &options)?;
    let error = physical().connect(weir.port()).err().context("let in")?;
    ensure!(format!("{error:#}").contains("replication connection from host"), "{error:#}");
    assert_eq!(logical().connect(weir.port())?.scalar("SELECT 1")?, "1");
    Ok(())
}

#[test]
fn it_is_counted_shown_cancelled_and_never_pooled() -> Result<()> {
    let (cluster, weir) =
        rig(0, "max_user_client_connections: 2\ndefault_pool_size: 1\nclient_idle_limit: 700ms")?;
    let (mut a, mut b) = (physical().connect(weir.port())?, logical().connect(weir.port())?);
    let refused = physical().connect(weir.port()).err().context("a third one")?;
    assert_eq!(harness::sqlstate(&refused), "53300");
    assert_eq!(shown(&weir, "CLIENTS")?, ["physical repl replication", "logical repl bench"]);
    assert_eq!(shown(&weir, "SERVERS")?, ["physical repl replication", "logical repl bench"]);
    ensure!(weir.admin("SHOW POOLS")?.iter().all(|pool| pool["user"] != "repl"), "pooled");
    // A cancel request for it reaches it.
    b.send(&msgs().Q("SELECT pg_sleep(20)"))?;
    let runs = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'repl' AND state = 'active' AND query LIKE '%sleep%'";
    cluster.wait_scalar(0, runs, "1", 3 * SECOND)?;
    b.cancel()?;
    ensure!(b.read_ready(1)?.to_string().ends_with("E(57014) Z(I)"));
    // Streams and pauses have no limit; keepalives come from the server.
    stream(&mut a)?;
    std::thread::sleep(SECOND);
    assert_eq!(b.scalar("SELECT 1")?, "1");
    cluster.sql(0, "INSERT INTO t SELECT g FROM generate_series(1, 1000) g")?;
    ensure!(matches!(a.next()?, Some(harness::Reply::CopyData(_))), "no WAL");
    // The stream is ended by the client, and commands follow.
    a.send(&msgs().c())?;
    let end = a.read_ready(1)?.to_string();
    ensure!(end.ends_with("C(START_REPLICATION) Z(I)"), "{}", &end[end.len().saturating_sub(80)..]);
    a.simple("IDENTIFY_SYSTEM")?;
    // Whoever leaves takes its connection along, however it leaves.
    a.reset()?;
    b.terminate()?;
    cluster.wait_scalar(
        0,
        "SELECT count(*) FROM pg_stat_activity WHERE usename = 'repl'",
        "0",
        3 * SECOND,
    )?;
    ensure!(harness::eventually(3 * SECOND, || shown(&weir, "SERVERS").is_ok_and(|rows| rows.is_empty())));
    Ok(())
}

#[test]
fn a_dead_clients_command_is_cancelled() -> Result<()> {
    let (cluster, weir) = rig(0, "")?;
    let mut client = logical().connect(weir.port())?;
    client.send(&msgs().Q("SELECT pg_sleep(60)"))?;
    let runs = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'repl' AND state = 'active'";
    cluster.wait_scalar(0, runs, "1", 3 * SECOND)?;
    client.reset()?;
    cluster.wait_scalar(0, runs, "0", 3 * SECOND)
}

/// The FATAL at the end of a stream of CopyData.
fn farewell(client: &mut RawClient) -> Result<String> {
    client.set_deadline(10 * SECOND);
    let replies = client.read_to_end()?;
    let fields = replies.error().context("no farewell")?;
    Ok(format!("{} {}: {}", fields.get('S'), fields.get('C'), fields.get('M')))
}

#[test]
fn a_shutdown_ends_streams_with_a_word_and_lets_backups_finish() -> Result<()> {
    let (_cluster, mut weir) = rig(0, "")?;
    let (mut streaming, mut idle, mut busy) =
        (physical().connect(weir.port())?, physical().connect(weir.port())?, logical().connect(weir.port())?);
    stream(&mut streaming)?;
    busy.send(&msgs().Q("SELECT 'finished' FROM pg_sleep(1)"))?;
    ensure!(busy.silent_for(Duration::from_millis(100))?);
    weir.signal(Signal::TERM);
    let told = "FATAL 57P01: terminating connection due to administrator command";
    assert_eq!(farewell(&mut streaming)?, told);
    assert_eq!(farewell(&mut idle)?, told);
    assert_eq!(busy.read_ready(1)?.to_string(), "T D(finished) C(SELECT 1) Z(I)");
    assert_eq!(farewell(&mut busy)?, told);
    assert_eq!(weir.wait_exit(5 * SECOND)?, 0);
    Ok(())
}

#[test]
fn a_fast_shutdown_cuts_a_copy_at_a_message_border() -> Result<()> {
    let (_cluster, mut weir) = rig(0, "")?;
    let mut client = logical().connect(weir.port())?;
    client.send(&msgs().Q("COPY (SELECT repeat('x', 50000) FROM generate_series(1, 1000000)) TO STDOUT"))?;
    assert_eq!(client.read_count(1)?.to_string(), "H");
    weir.signal(Signal::INT);
    assert_eq!(farewell(&mut client)?, "FATAL 57P01: terminating connection due to administrator command");
    assert_eq!(weir.wait_exit(5 * SECOND)?, 0);
    Ok(())
}

#[test]
fn the_loss_of_the_primary_ends_it_and_the_next_one_goes_to_the_new_primary() -> Result<()> {
    let (mut cluster, weir) = rig(1, "")?;
    let mut client = physical().connect(weir.port())?;
    stream(&mut client)?;
    cluster.stop(0, StopMode::Fast)?;
    client.set_deadline(5 * SECOND);
    client.read_to_end()?;
    let refused = physical().connect(weir.port()).err().context("no primary, and let in")?;
    ensure!(["57P03", "08006", "08001"].contains(&harness::sqlstate(&refused)), "{refused:#}");
    cluster.promote(1)?;
    let mut next = None;
    ensure!(harness::eventually(10 * SECOND, || {
        next = physical().connect(weir.port()).ok();
        next.is_some()
    }));
    stream(&mut next.context("no connection")?)?;
    Ok(())
}

#[test]
fn pg_basebackup_through_pgweir_is_a_whole_backup() -> Result<()> {
    let (cluster, weir) = rig(1, "")?;
    cluster.sql(0, "INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 5000) g")?;
    let place = cluster.root().join("backup");
    let mut command = cluster.install().client("pg_basebackup");
    command.args(["-X", "stream", "-c", "fast", "-d", &conninfo(&weir), "-D"]).arg(&place);
    let out = tools::run(&cluster, command, 60 * SECOND)?;
    ensure!(out.code == 0, "{} {}", out.stdout, out.stderr);
    let mut verify = cluster.install().client("pg_verifybackup");
    verify.arg(&place);
    let out = tools::run(&cluster, verify, 30 * SECOND)?;
    ensure!(out.code == 0, "{} {}", out.stdout, out.stderr);
    assert_eq!(shown(&weir, "SERVERS")?, Vec::<String>::new());
    Ok(())
}

/// A program in the background, stopped by SIGINT.
struct Running(std::process::Child);

impl Running {
    fn start(mut command: Command) -> Result<Self> {
        Ok(Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?))
    }

    fn stop(mut self) -> Result<i32> {
        harness::procs::send(self.0.id(), Signal::INT);
        harness::procs::wait(&mut self.0, 10 * SECOND)?.code().context("killed by a signal")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _may_have_ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[test]
fn pg_receivewal_and_pg_recvlogical_stream_through_pgweir() -> Result<()> {
    let (cluster, weir) = rig(0, "")?;
    let place = cluster.root().join("wal");
    std::fs::create_dir(&place)?;
    let mut receivewal = cluster.install().client("pg_receivewal");
    receivewal.args(["-d", &conninfo(&weir), "--synchronous", "-D"]).arg(&place).current_dir(cluster.root());
    let receivewal = Running::start(receivewal)?;
    cluster.wait_scalar(0, SENDERS, "1", 5 * SECOND)?;
    let changes = cluster.root().join("changes");
    let recvlogical = || {
        let mut command = cluster.install().client("pg_recvlogical");
        command.args([
            "-d",
            &format!("{} dbname=bench", conninfo(&weir)),
            "--slot",
            "s",
            "-P",
            "test_decoding",
        ]);
        command.current_dir(cluster.root());
        command
    };
    let mut create = recvlogical();
    create.arg("--create-slot");
    let out = tools::run(&cluster, create, 10 * SECOND)?;
    ensure!(out.code == 0, "{}", out.stderr);
    let mut start = recvlogical();
    start.args(["--start", "-F", "0", "-f"]).arg(&changes);
    let start = Running::start(start)?;
    cluster.sql(
        0,
        "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 20000) g; SELECT pg_switch_wal()",
    )?;
    cluster.sql(0, "INSERT INTO t VALUES (0, 'last')")?;
    let written = || std::fs::read_to_string(&changes).unwrap_or_default();
    ensure!(harness::eventually(10 * SECOND, || written().contains("'last'")), "{}", written().len());
    assert_eq!(written().matches("INSERT:").count(), 20_001);
    let files = || std::fs::read_dir(&place).map(Iterator::count).unwrap_or_default();
    ensure!(harness::eventually(10 * SECOND, || files() >= 2), "{} files of WAL", files());
    assert_eq!(receivewal.stop()?, 0);
    assert_eq!(start.stop()?, 0);
    cluster.wait_scalar(0, SENDERS, "0", 5 * SECOND)
}

#[test]
fn a_subscription_through_pgweir_copies_streams_and_comes_back() -> Result<()> {
    let (cluster, mut weir) = rig(0, "")?;
    let subscriber = self::cluster(0)?;
    cluster.sql(
        0,
        "INSERT INTO t SELECT g, 'before' FROM generate_series(1, 1000) g; CREATE PUBLICATION p FOR TABLE t",
    )?;
    let create = format!("CREATE SUBSCRIPTION s CONNECTION '{} dbname=bench' PUBLICATION p", conninfo(&weir));
    subscriber.sql(0, &create)?;
    subscriber.wait_scalar(0, "SELECT count(*) FROM t", "1000", 15 * SECOND)?;
    cluster.sql(0, "UPDATE t SET v = 'after' WHERE id <= 10; DELETE FROM t WHERE id > 900")?;
    let state = "SELECT count(*) || ' ' || count(*) FILTER (WHERE v = 'after') FROM t";
    subscriber.wait_scalar(0, state, "900 10", 10 * SECOND)?;
    // Both restart: pgweir, and the publisher behind it.
    ensure!(shown(&weir, "CLIENTS")? == ["logical repl bench"], "{:?}", shown(&weir, "CLIENTS"));
    cluster.sql(0, "SELECT pg_terminate_backend(pid) FROM pg_stat_replication")?;
    cluster.sql(0, "INSERT INTO t VALUES (5000, 'after')")?;
    subscriber.wait_scalar(0, state, "901 11", 15 * SECOND)?;
    let started = Instant::now();
    assert_eq!(weir.stop()?, 0);
    ensure!(started.elapsed() < 5 * SECOND, "the stop waited for the stream");
    subscriber.sql(
        0,
        "ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s",
    )?;
    Ok(())
}
