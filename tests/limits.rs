//! Limits: each ends or refuses what it is for, with PostgreSQL's words, and nothing else.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use harness::{Cluster, Login, PgError, Pgweir, RawClient, Reply, msgs, rig};

const MS: Duration = Duration::from_millis(1);

/// The FATAL that ends the session, as `code: text`, after whatever else comes before it.
fn farewell(client: &mut RawClient) -> Result<String> {
    let replies = client.read_to_end()?;
    let Some(Reply::Error(fields)) = replies.0.last() else { bail!("no farewell: [{replies}]") };
    ensure!(fields.get('V') == "FATAL", "{replies}");
    Ok(format!("{}: {}", fields.get('C'), fields.get('M')))
}

const IDLE: &str = "57P05: terminating connection due to idle-session timeout";
const IDLE_IN_TRANSACTION: &str = "25P03: terminating connection due to idle-in-transaction timeout";
const TRANSACTION: &str = "25P04: terminating connection due to transaction timeout";
const CANCELLED: &str = "canceling statement due to user request";

/// Nobody is left in a transaction on the primary.
fn rolled_back(cluster: &Cluster) -> Result<()> {
    let open = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench' AND xact_start IS NOT NULL";
    cluster.wait_scalar(0, open, "0", Duration::from_secs(3))
}

/// It came between `least` and a second later.
fn in_time(started: Instant, least: Duration) -> Result<()> {
    let took = started.elapsed();
    ensure!(took >= least && took < least + Duration::from_secs(1), "after {took:?}, not {least:?}");
    Ok(())
}

fn table(cluster: &Cluster) -> Result<()> {
    cluster.setup("CREATE TABLE t(id int primary key); INSERT INTO t VALUES (1); GRANT ALL ON t TO bench")
}

#[test]
fn to_05_idle_in_transaction_ends_with_25p03_and_is_rolled_back() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 1\nidle_transaction_timeout: 400ms")?;
    table(&cluster)?;
    for begun in ["BEGIN", "BEGIN; INSERT INTO t VALUES (2)", "BEGIN; SELECT 1/0"] {
        let mut client = weir.client()?;
        let started = Instant::now();
        client.send(&msgs().Q(begun))?;
        ensure!(farewell(&mut client)? == IDLE_IN_TRANSACTION, "{begun}");
        in_time(started, 400 * MS)?;
        rolled_back(&cluster)?;
        assert_eq!(weir.client()?.scalar("SELECT count(*) FROM t")?, "1");
    }
    // A batch that nobody ends.
    let mut client = weir.client()?;
    client.send(&msgs().PBE("INSERT INTO t VALUES (2)").H())?;
    ensure!(farewell(&mut client)? == IDLE_IN_TRANSACTION);
    rolled_back(&cluster)
}

#[test]
fn to_05_who_waits_for_a_lock_or_works_is_not_idle_in_transaction() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 3\nidle_transaction_timeout: 400ms")?;
    table(&cluster)?;
    let mut holder = cluster.direct(0)?;
    holder.simple("BEGIN; DELETE FROM t")?;
    let mut waiter = weir.client()?;
    waiter.simple("BEGIN")?;
    waiter.send(&msgs().Q("DELETE FROM t"))?;
    ensure!(waiter.silent_for(900 * MS)?, "cut while it waited for a lock");
    holder.simple("ROLLBACK")?;
    assert_eq!(waiter.read_ready(1)?.to_string(), "C(DELETE 1) Z(T)");
    // Always shorter than the limit, together longer; lazily begun, too.
    for _ in 0..4 {
        std::thread::sleep(150 * MS);
        waiter.simple("SELECT 1")?;
    }
    waiter.simple("ROLLBACK; BEGIN")?;
    let (mut lazy, mut copy) = (weir.client()?, weir.client()?);
    for _ in 0..3 {
        lazy.simple("BEGIN")?;
        std::thread::sleep(250 * MS);
        lazy.simple("COMMIT")?;
        std::thread::sleep(250 * MS);
    }
    // Outside of a transaction nothing is cut.
    lazy.simple("SELECT 1")?;
    // COPY in progress is work of the server's, however slow the client is.
    copy.send(&msgs().Q("COPY t FROM STDIN"))?;
    std::thread::sleep(900 * MS);
    copy.send(&msgs().d(b"7\n").c())?;
    assert_eq!(copy.read_ready(1)?.to_string(), "G C(COPY 1) Z(I)");
    ensure!(farewell(&mut waiter)? == IDLE_IN_TRANSACTION, "the guilty one");
    Ok(())
}

#[test]
fn to_05_idle_clients_end_with_57p05_and_nobody_else() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 5\nclient_idle_limit: 400ms")?;
    table(&cluster)?;
    let (mut listener, mut worker, mut reader) = (weir.client()?, weir.client()?, weir.client()?);
    listener.simple("CREATE TEMP TABLE mine(id int)")?;
    listener.simple("LISTEN news")?;
    reader.send(&msgs().Q("SELECT repeat('x', 1000) FROM generate_series(1, 50000)"))?;
    worker.send(&msgs().Q("SELECT pg_sleep(1.2)"))?;
    let (mut fresh, mut used, mut pinned) = (weir.client()?, weir.client()?, weir.client()?);
    pinned.simple("CREATE TEMP TABLE mine(id int)")?;
    used.simple("SELECT 1")?;
    let started = Instant::now();
    for client in [&mut fresh, &mut used, &mut pinned] {
        ensure!(farewell(client)? == IDLE);
    }
    in_time(started, 300 * MS)?;
    // What answers itself is no idleness, either; nor is an open transaction this limit's.
    let (mut local, mut open) = (weir.client()?, weir.client()?);
    open.simple("BEGIN")?;
    for _ in 0..3 {
        std::thread::sleep(250 * MS);
        local.simple("SHOW POOL_NODES")?;
    }
    assert_eq!(worker.read_ready(1)?.to_string(), "T D() C(SELECT 1) Z(I)");
    open.simple("SELECT 1; COMMIT")?;
    let rows = reader.read_ready(1)?.0.iter().filter(|reply| matches!(reply, Reply::DataRow(_))).count();
    assert_eq!(rows, 50_000, "a slow reader is not idle");
    cluster.sql(0, "NOTIFY news")?;
    weir.client()?.simple("NOTIFY news")?;
    ensure!(matches!(listener.next()?, Some(Reply::Notification { .. })), "the listener stays");
    Ok(())
}

#[test]
fn to_05_an_overdue_statement_is_cancelled_and_the_session_goes_on() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 1\nquery_timeout: 400ms\nconsistency: eventual")?;
    table(&cluster)?;
    let mut client = weir.client()?;
    let overdue = [
        (msgs().Q("SELECT pg_sleep(20)"), "T E(57014) Z(I)"),
        (msgs().Q("INSERT INTO t SELECT 5 FROM pg_sleep(20)"), "E(57014) Z(I)"),
        (
            msgs().PBE("SELECT pg_sleep(20)").S().Q("SELECT 'next'"),
            "1 2 E(57014) Z(I) T D(next) C(SELECT 1) Z(I)",
        ),
    ];
    for (messages, wanted) in overdue {
        let started = Instant::now();
        let replies = client.talk(&messages)?;
        let error = replies.error().with_context(|| replies.to_string())?;
        ensure!(error.get('M') == CANCELLED, "{replies}");
        ensure!(replies.to_string() == wanted, "{replies}");
        in_time(started, 400 * MS)?;
        assert_eq!(client.scalar("SELECT 'on'")?, "on");
    }
    // The server waits for the client: nothing is overdue.
    client.send(&msgs().Q("COPY t FROM STDIN"))?;
    std::thread::sleep(800 * MS);
    client.send(&msgs().d(b"1\n").c())?;
    assert_eq!(client.read_ready(1)?.to_string(), "G E(23505) Z(I)");
    // In a transaction it fails that, and no more.
    client.simple("BEGIN")?;
    ensure!(client.sqlstate_of("SELECT pg_sleep(20)")? == "57014");
    ensure!(client.sqlstate_of("SELECT 1")? == "25P02");
    client.simple("ROLLBACK")?;
    assert_eq!(client.scalar("SELECT count(*) FROM t")?, "1");
    Ok(())
}

#[test]
fn to_05_many_short_statements_are_not_one_long_one() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 1\nquery_timeout: 400ms")?;
    table(&cluster)?;
    let (mut client, mut next) = (weir.client()?, weir.client()?);
    client.simple("BEGIN")?;
    next.send(&msgs().Q("SELECT 'waited'"))?;
    for _ in 0..6 {
        client.simple("SELECT pg_sleep(0.15)")?;
    }
    // A pipeline: of one batch, and of many.
    let (mut batch, mut pipeline) = (msgs(), msgs());
    for _ in 0..2 {
        batch = batch.PBE("SELECT pg_sleep(0.15)");
    }
    for _ in 0..6 {
        pipeline = pipeline.PBE("SELECT pg_sleep(0.15)").S();
    }
    for messages in [batch.S(), pipeline] {
        let replies = client.talk(&messages)?;
        ensure!(replies.error().is_none(), "{replies}");
    }
    // An idle transaction is not a statement, nor is waiting for a backend.
    std::thread::sleep(600 * MS);
    client.simple("COMMIT")?;
    assert_eq!(next.read_ready(1)?.to_string(), "T D(waited) C(SELECT 1) Z(I)");
    Ok(())
}

#[test]
fn to_05_a_long_transaction_ends_with_25p04() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 2\ntransaction_timeout: 500ms")?;
    table(&cluster)?;
    let scripts: [&[&str]; 4] = [
        &["BEGIN"],
        &["BEGIN", "INSERT INTO t VALUES (2)"],
        &["BEGIN", "SELECT pg_sleep(20)"],
        &["INSERT INTO t SELECT 3 FROM pg_sleep(20)"],
    ];
    for script in scripts {
        let mut client = weir.client()?;
        let started = Instant::now();
        for sql in script {
            client.send(&msgs().Q(sql))?;
        }
        ensure!(farewell(&mut client)? == TRANSACTION, "{script:?}");
        in_time(started, 500 * MS)?;
        rolled_back(&cluster)?;
    }
    // Statements all along do not save it.
    let mut client = weir.client()?;
    client.simple("BEGIN")?;
    for _ in 0..20 {
        client.send(&msgs().Q("SELECT pg_sleep(0.05)"))?;
    }
    ensure!(farewell(&mut client)? == TRANSACTION);
    assert_eq!(weir.client()?.scalar("SELECT count(*) FROM t")?, "1");
    Ok(())
}

#[test]
fn to_05_many_short_transactions_are_not_one_long_one() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 2\ntransaction_timeout: 500ms")?;
    table(&cluster)?;
    let (mut explicit, mut pinned) = (weir.client()?, weir.client()?);
    pinned.simple("CREATE TEMP TABLE mine(id int)")?;
    for client in [&mut explicit, &mut pinned] {
        let mut pipeline = msgs();
        for _ in 0..6 {
            pipeline = pipeline.Q("BEGIN").Q("SELECT pg_sleep(0.15)").Q("COMMIT");
        }
        for _ in 0..6 {
            pipeline = pipeline.PBE("SELECT pg_sleep(0.15)").S();
        }
        let replies = client.talk(&pipeline)?;
        ensure!(replies.error().is_none(), "{replies}");
        for _ in 0..3 {
            client.simple("BEGIN")?;
            std::thread::sleep(200 * MS);
            client.simple("COMMIT")?;
        }
        // Idle outside of a transaction.
        std::thread::sleep(700 * MS);
        client.simple("SELECT 1")?;
    }
    Ok(())
}

#[test]
fn to_05_limits_hold_in_session_pooling_and_change_with_a_reload() -> Result<()> {
    let options = harness::PgweirOptions::yaml("pool_mode: session\nidle_transaction_timeout: 400ms");
    let cluster = Cluster::new(harness::ClusterOptions::default())?;
    let weir = Pgweir::start_with(&cluster, &options)?;
    let mut client = weir.client()?;
    client.simple("BEGIN; SELECT 1")?;
    ensure!(farewell(&mut client)? == IDLE_IN_TRANSACTION);
    weir.rewrite(&cluster, &harness::PgweirOptions::yaml("pool_mode: session"))?;
    weir.signal(rustix::process::Signal::HUP);
    ensure!(harness::eventually(Duration::from_secs(30), || {
        let mut open = match weir.client() {
            Ok(client) => client,
            Err(_) => return false,
        };
        open.simple("BEGIN").is_ok() && {
            std::thread::sleep(600 * MS);
            open.simple("COMMIT").is_ok()
        }
    }));
    Ok(())
}

/// What a login is refused with, as `code: text (detail)`; an error when it is not.
fn refusal(weir: &Pgweir, login: &Login) -> Result<String> {
    match login.connect(weir.port()) {
        Ok(_) => bail!("let in"),
        Err(error) => {
            let PgError(fields) = error.downcast::<PgError>()?;
            Ok(format!("{}: {} ({})", fields.get('C'), fields.get('M'), fields.get('D')))
        }
    }
}

/// Logs in as soon as there is room.
fn soon(weir: &Pgweir, login: &Login) -> Result<RawClient> {
    let mut client = None;
    harness::eventually(Duration::from_secs(30), || {
        client = login.connect(weir.port()).ok();
        client.is_some()
    });
    client.context("not let in")
}

#[test]
fn to_02_clients_of_a_database_and_of_a_user_are_limited() -> Result<()> {
    let yaml = "max_db_client_connections: 3\nmax_user_client_connections: 2\n\
                databases: {postgres: {max_db_client_connections: 1}}\n\
                users: {postgres: {max_user_client_connections: 0}}";
    let (_cluster, weir) = rig(0, yaml)?;
    let (bench, other) = (Login::bench(), Login::new("other", "bench").password("other"));
    let admin = |database| Login::new("postgres", database).password("postgres");
    let (first, second) = (bench.connect(weir.port())?, bench.connect(weir.port())?);
    let of_user = "53300: too many connections for role \"bench\" (max_user_client_connections is 2.)";
    assert_eq!(refusal(&weir, &bench)?, of_user);
    let third = other.connect(weir.port())?;
    let of_database = "53300: too many connections for database \"bench\" (max_db_client_connections is 3.)";
    assert_eq!(refusal(&weir, &other)?, of_database);
    let _own = admin("postgres").connect(weir.port())?;
    let own = "53300: too many connections for database \"postgres\" (max_db_client_connections is 1.)";
    assert_eq!(refusal(&weir, &admin("postgres"))?, own);
    // Whoever leaves makes room, however it leaves; who was refused takes none.
    first.reset()?;
    let first = soon(&weir, &bench)?;
    assert_eq!(refusal(&weir, &other)?, of_database, "both are full again");
    third.terminate()?;
    second.terminate()?;
    drop(first);
    let _all: Vec<_> = (0..2).map(|_| soon(&weir, &admin("bench"))).collect::<Result<_>>()?;
    soon(&weir, &bench)?.simple("SELECT 1")?;
    Ok(())
}

/// Backends of `bench` on the primary.
const BACKENDS: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench' AND backend_type = 'client backend'";

#[test]
fn pools_are_kept_at_their_least_size_once_they_are_used() -> Result<()> {
    let yaml = "min_pool_size: 3\nserver_idle_timeout: 100ms\nusers: {other: {min_pool_size: 0}}";
    let (cluster, weir) = rig(0, yaml)?;
    Login::new("other", "bench").password("other").connect(weir.port())?.simple("SELECT 1")?;
    let mut clients = (0..5).map(|_| weir.client()).collect::<Result<Vec<_>>>()?;
    for client in &mut clients {
        client.send(&msgs().Q("SELECT pg_sleep(0.3)"))?;
    }
    cluster.wait_scalar(0, BACKENDS, "5", Duration::from_secs(3))?;
    for client in &mut clients {
        client.read_ready(1)?;
    }
    drop(clients);
    cluster.wait_scalar(0, BACKENDS, "3", Duration::from_secs(4))?;
    let kill = format!("SELECT pg_terminate_backend(pid) FROM ({}) a", BACKENDS.replace("count(*)", "pid"));
    cluster.sql(0, &kill)?;
    cluster.wait_scalar(0, BACKENDS, "3", Duration::from_secs(4))?;
    std::thread::sleep(1500 * MS);
    assert_eq!(cluster.scalar(0, BACKENDS)?, "3", "idle ones stay");
    let others = BACKENDS.replace("bench", "other");
    cluster.wait_scalar(0, &others, "0", Duration::from_secs(4))
}

#[test]
fn to_08_a_server_without_connections_is_not_hammered() -> Result<()> {
    const CLIENTS: usize = 20;
    let cluster = Cluster::new(harness::ClusterOptions::default())?;
    let options = harness::PgweirOptions::yaml("default_pool_size: 20\nquery_wait_timeout: 10s").trusting();
    let weir = Pgweir::start_with(&cluster, &options)?;
    let mut clients = (0..CLIENTS).map(|_| weir.client()).collect::<Result<Vec<_>>>()?;
    cluster.sql(0, "ALTER ROLE bench CONNECTION LIMIT 0")?;
    cluster.sql(0, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'bench'")?;
    // Whoever is lent one that is about to end hears of that.
    cluster.wait_scalar(0, BACKENDS, "0", Duration::from_secs(30))?;
    let end = Instant::now() + Duration::from_secs(2);
    let asks = |client: &mut RawClient| -> Result<usize> {
        client.set_deadline(Duration::from_secs(15));
        let mut refused = 0;
        while Instant::now() < end {
            match client.sqlstate_of("SELECT 1")?.as_str() {
                "53300" => refused += 1,
                "" => break,
                other => bail!(other.to_owned()),
            }
        }
        Ok(refused)
    };
    let storm = std::thread::scope(|scope| -> Result<Vec<usize>> {
        let all: Vec<_> = clients.iter_mut().map(|client| scope.spawn(move || asks(client))).collect();
        std::thread::sleep(2500 * MS);
        let tried = cluster.log(0)?.matches("too many connections for role").count();
        ensure!((3..=2 * CLIENTS).contains(&tried), "{tried} tries in 2.5 s");
        let restored = Instant::now();
        cluster.sql(0, "ALTER ROLE bench CONNECTION LIMIT -1")?;
        let waited: Result<_> = all.into_iter().map(|one| one.join().expect("a client panicked")).collect();
        ensure!(restored.elapsed() < Duration::from_secs(2), "{:?}", restored.elapsed());
        waited
    })?;
    // Most of them waited, and were served then.
    ensure!(storm.iter().sum::<usize>() <= 2 * CLIENTS, "{storm:?}");
    for client in &mut clients {
        assert_eq!(client.scalar("SELECT 'served'")?, "served");
    }
    ensure!(weir.pool_nodes()?.iter().all(|node| node["status"] == "up"), "a full node is no dead node");
    Ok(())
}

/// Sends `sql` from each of `clients` at once.
fn all_ask(clients: &mut [RawClient], sql: &str) -> Result<()> {
    clients.iter_mut().try_for_each(|client| client.send(&msgs().Q(sql)))
}

/// What a statement is refused with, as `code: detail hint`.
fn busy(client: &mut RawClient) -> Result<String> {
    let replies = client.talk(&msgs().Q("SELECT 1"))?;
    let fields = replies.error().with_context(|| replies.to_string())?;
    Ok(format!("{}: {} {}", fields.get('C'), fields.get('D'), fields.get('H')))
}

#[test]
fn to_01_backends_of_a_database_and_of_a_user_are_limited_over_all_pools() -> Result<()> {
    let yaml = "default_pool_size: 5\nquery_wait_timeout: 1s\nmax_db_connections: 2\n\
                databases: {postgres: {max_db_connections: 0}}\n\
                users: {postgres: {max_user_connections: 3}}";
    let (cluster, weir) = rig(0, yaml)?;
    let other = Login::new("other", "bench").password("other");
    let mut mine = [weir.client()?, weir.client()?];
    let mut others = other.connect(weir.port())?;
    for client in &mut mine {
        client.simple("BEGIN; SELECT 1")?;
    }
    let started = Instant::now();
    assert_eq!(
        busy(&mut others)?,
        "53300: All 2 backends of node 0, database \"bench\" are in use. Raise max_db_connections, or \
         query_wait_timeout."
    );
    in_time(started, 1000 * MS)?;
    // Whoever waits is served when another user's backend is free: it makes way.
    others.send(&msgs().Q("SELECT 'served'"))?;
    std::thread::sleep(200 * MS);
    mine[0].simple("COMMIT")?;
    assert_eq!(others.read_ready(1)?.to_string(), "T D(served) C(SELECT 1) Z(I)");
    // An idle one makes way at once.
    mine[0].simple("SELECT 1")?;
    others.simple("SELECT 1")?;
    mine[1].simple("COMMIT")?;
    let sum =
        "SELECT count(*) FROM pg_stat_activity WHERE usename IN ('bench', 'other') AND datname = 'bench'";
    ensure!(cluster.scalar(0, sum)?.parse::<u32>()? <= 2);
    // Another database and user: its own limit.
    let admin = Login::new("postgres", "postgres").password("postgres");
    let mut admins = (0..4).map(|_| admin.connect(weir.port())).collect::<Result<Vec<_>>>()?;
    all_ask(&mut admins[..3], "BEGIN; SELECT 1")?;
    admins[..3].iter_mut().try_for_each(|client| client.read_ready(1).map(drop))?;
    let refused = busy(&mut admins[3])?;
    ensure!(refused.contains("All 3 backends of node 0, user \"postgres\" are in use"), "{refused}");
    Ok(())
}

#[test]
fn to_04_two_users_share_few_backends_of_a_database_and_nobody_is_forgotten() -> Result<()> {
    let cluster = Cluster::new(harness::ClusterOptions::default())?;
    let yaml = "default_pool_size: 5\nmax_db_connections: 3\nquery_wait_timeout: 20s";
    let weir = Pgweir::start_with(&cluster, &harness::PgweirOptions::yaml(yaml).trusting())?;
    let serve = |user: &'static str| -> Result<()> {
        let mut client = Login::new(user, "bench").connect(weir.port())?;
        client.set_deadline(Duration::from_secs(20));
        for round in 0..60 {
            let nonce = format!("{user}{round}");
            let served = client.scalar(&format!("SELECT '{nonce}' FROM pg_sleep(0.001)"))?;
            ensure!(served == nonce, "{served} for {nonce}");
            if round % 7 == 0 {
                std::thread::sleep(5 * MS);
            }
        }
        Ok(())
    };
    let most = std::thread::scope(|scope| -> Result<u32> {
        let users = ["bench", "other"].into_iter().cycle().take(16);
        let all: Vec<_> = users.map(|user| scope.spawn(move || serve(user))).collect();
        let count = "SELECT count(*) FROM pg_stat_activity WHERE usename IN ('bench', 'other')";
        let mut most = 0;
        while !all.iter().all(|one| one.is_finished()) {
            most = most.max(cluster.scalar(0, count)?.parse()?);
        }
        all.into_iter().try_for_each(|one| one.join().expect("a client panicked"))?;
        Ok(most)
    })?;
    // One more may be on its way out in the server's list.
    ensure!((2..=6).contains(&most), "{most} backends");
    Ok(())
}

#[test]
fn the_reserve_is_for_those_who_have_waited() -> Result<()> {
    let yaml =
        "default_pool_size: 1\nreserve_pool_size: 1\nreserve_pool_timeout: 400ms\nquery_wait_timeout: 1s";
    let (cluster, weir) = rig(0, yaml)?;
    let mut clients = (0..3).map(|_| weir.client()).collect::<Result<Vec<_>>>()?;
    clients[0].simple("BEGIN; SELECT 1")?;
    let started = Instant::now();
    clients[1].simple("BEGIN; SELECT 1")?;
    in_time(started, 400 * MS)?;
    let refused = busy(&mut clients[2])?;
    ensure!(refused.starts_with("53300: All "), "{refused}");
    // The reserve goes when nobody waits.
    clients[1].simple("COMMIT")?;
    cluster.wait_scalar(0, BACKENDS, "1", Duration::from_secs(3))?;
    clients[0].simple("COMMIT")?;
    let started = Instant::now();
    clients[2].simple("SELECT 1")?;
    ensure!(started.elapsed() < 300 * MS, "a free pool needs no reserve");
    Ok(())
}

#[test]
fn to_08_reads_go_elsewhere_while_a_node_refuses_and_come_back() -> Result<()> {
    let (cluster, weir) = rig(2, "consistency: eventual\ndefault_pool_size: 4")?;
    let mut client = weir.client()?;
    let hba = cluster.data(1).join("pg_hba.conf");
    let rules = std::fs::read_to_string(&hba)?;
    std::fs::write(&hba, format!("host all bench all reject\n{rules}"))?;
    cluster.sql(1, "SELECT pg_reload_conf()")?;
    // The server takes its new rules in its own time.
    ensure!(harness::eventually(Duration::from_secs(30), || cluster.direct(1).is_err()));
    cluster.sql(1, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'bench'")?;
    let refused = |log: &str| log.matches("pg_hba.conf rejects connection").count();
    let (before, end) = (refused(&cluster.log(1)?), Instant::now() + Duration::from_secs(2));
    let mut served = 0;
    while Instant::now() < end {
        ensure!(client.scalar(harness::WHERE)? == "n2", "a read that another node could not serve");
        served += 1;
    }
    let tried = refused(&cluster.log(1)?) - before;
    ensure!(served > 100 && (2..=15).contains(&tried), "{tried} tries in {served} reads");
    ensure!(weir.pool_nodes()?.iter().all(|node| node["status"] == "up"), "who refuses is alive");
    std::fs::write(&hba, rules)?;
    cluster.sql(1, "SELECT pg_reload_conf()")?;
    let back = || client.scalar(harness::WHERE).is_ok_and(|node| node == "n1");
    ensure!(harness::eventually(Duration::from_secs(30), back), "it serves again");
    Ok(())
}

#[test]
fn to_05_a_server_that_does_not_cancel_is_given_up() -> Result<()> {
    let (cluster, weir) = rig(0, "query_timeout: 300ms\nhealth_check_timeout: 30s")?;
    let (mut client, mut other) = (weir.client()?, weir.client()?);
    other.simple("SELECT 1")?;
    client.set_deadline(Duration::from_secs(10));
    let started = Instant::now();
    client.send(&msgs().Q("SELECT pg_sleep(20)"))?;
    cluster.freeze(0);
    let told = farewell(&mut client);
    cluster.thaw(0);
    let wanted = "57014: terminating connection because the server did not cancel an overdue statement";
    ensure!(told? == wanted);
    in_time(started, 5300 * MS)?;
    other.set_deadline(Duration::from_secs(10));
    assert_eq!(other.scalar("SELECT 'lives'")?, "lives");
    let running = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench' AND state = 'active'";
    cluster.wait_scalar(0, running, "0", Duration::from_secs(3))
}
