//! Many clients on few backends, and nodes that take few connections: everybody is served in turn, nobody is
//! forgotten, and what is to be kept free stays free.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Cluster, ClusterOptions, Login, Pgweir, PgweirOptions, RawClient, eventually, msgs, sqlstate};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Resource, getrlimit, setrlimit};

const SECOND: Duration = Duration::from_secs(1);
/// Descriptors that a test and pgweir need beside those of the clients.
const OTHER_FILES: u64 = 300;

/// Raises the limit of open files, and gives how many of `wanted` clients there may be: a client costs this process
/// one descriptor and pgweir another one.
fn clients_possible(wanted: usize) -> Result<usize> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit })?;
    let files = limit.maximum.unwrap_or(u64::MAX).saturating_sub(OTHER_FILES);
    let possible = usize::try_from(files).unwrap_or(usize::MAX).min(wanted);
    ensure!(possible >= 200, "the limit of open files ({files}) is too low for this test");
    println!("{possible} clients");
    Ok(possible)
}

/// Backends of ordinary clients on the primary, pgweir's own ones left out.
const BACKENDS: &str = "SELECT count(*) FROM pg_stat_activity WHERE usename IN ('bench', 'other')";

fn small(max_connections: u32, yaml: &str) -> Result<(Cluster, Pgweir)> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, max_connections, ..ClusterOptions::default() })?;
    let weir = Pgweir::start_with(&cluster, &PgweirOptions::yaml(yaml).trusting())?;
    Ok((cluster, weir))
}

fn detail(client: &mut RawClient) -> Result<String> {
    let replies = client.talk(&msgs().Q("SELECT 1"))?;
    let fields = replies.error().with_context(|| format!("served: {replies}"))?;
    Ok(format!("{}: {}", fields.get('C'), fields.get('D')))
}

/// TO-08: the pools together leave `reserved_connections` of a node free, and the error says what is full.
#[test]
fn to_08_pools_leave_reserved_connections_free() -> Result<()> {
    let yaml = "reserved_connections: 8\ndefault_pool_size: 30\nquery_wait_timeout: 2s";
    let (cluster, weir) = small(20, yaml)?;
    let mut mine = (0..8).map(|_| weir.client()).collect::<Result<Vec<_>>>()?;
    let other = Login::new("other", "bench");
    let mut others = (0..6).map(|_| other.connect(weir.port())).collect::<Result<Vec<_>>>()?;
    // Whatever has been opened for their greetings, the limit is known by then.
    for client in mine.iter_mut().chain(&mut others[..4]) {
        client.simple("BEGIN; SELECT 1")?;
    }
    assert_eq!(detail(&mut others[4])?, "53300: All 12 backends of node 0 are in use.");
    // Beside those of the pools there may be the one that reads the catalog.
    ensure!(
        (12..=13).contains(&cluster.scalar(0, BACKENDS)?.parse::<u32>()?),
        "{}",
        cluster.scalar(0, BACKENDS)?
    );
    ensure!(weir.pool_nodes()?[0]["status"] == "up", "a full node is no dead node");
    // What is kept free is there, for ordinary roles too.
    let _direct = [cluster.direct(0)?, cluster.admin(0)?];
    // A backend that one pool does not need makes way for the other's waiter.
    others[4].send(&msgs().Q("SELECT 'served'"))?;
    mine[0].simple("COMMIT")?;
    assert_eq!(others[4].read_ready(1)?.to_string(), "T D(served) C(SELECT 1) Z(I)");
    Ok(())
}

/// TO-08: a node's row may say how many connections there are for us, and a reload changes that.
#[test]
fn to_08_a_nodes_row_limits_its_connections() -> Result<()> {
    let yaml = |most: u32, cluster: &Cluster| {
        format!(
            "reserved_connections: 2\ndefault_pool_size: 30\nquery_wait_timeout: 500ms\nbackends:\n  \
             - {{ hostname: 127.0.0.1, port: {}, max_connections: {most} }}",
            cluster.port(0)
        )
    };
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let weir = Pgweir::start_with(&cluster, &PgweirOptions::yaml(&yaml(6, &cluster)).trusting())?;
    let mut clients = (0..8).map(|_| weir.client()).collect::<Result<Vec<_>>>()?;
    for client in &mut clients[..4] {
        client.simple("BEGIN; SELECT 1")?;
    }
    assert_eq!(detail(&mut clients[4])?, "53300: All 4 backends of node 0 are in use.");
    weir.rewrite(&cluster, &PgweirOptions::yaml(&yaml(8, &cluster)).trusting())?;
    weir.signal(rustix::process::Signal::HUP);
    ensure!(eventually(3 * SECOND, || clients[4].simple("BEGIN; SELECT 1").is_ok()));
    clients[5].simple("BEGIN; SELECT 1")?;
    assert_eq!(detail(&mut clients[6])?, "53300: All 6 backends of node 0 are in use.");
    assert_eq!(cluster.scalar(0, BACKENDS)?, "6");
    Ok(())
}

/// TO-08: the server refuses although the pool has room: whoever asks waits or hears so, the log of the server does
/// not fill, the node stays up.
#[test]
fn to_08_a_pool_larger_than_the_server_allows_is_no_failover() -> Result<()> {
    let yaml = "reserved_connections: 0\ndefault_pool_size: 40\nquery_wait_timeout: 2s\nbackends:\n  \
                - { hostname: 127.0.0.1, port: PORT, max_connections: 1000 }";
    let cluster =
        Cluster::new(ClusterOptions { standbys: 0, max_connections: 15, ..ClusterOptions::default() })?;
    let yaml = yaml.replace("PORT", &cluster.port(0).to_string());
    let weir = Pgweir::start_with(&cluster, &PgweirOptions::yaml(&yaml).trusting())?;
    let mut clients = (0..30).map(|_| weir.client()).collect::<Result<Vec<_>>>()?;
    // What it says while it starts is no refusal of ours.
    let refused =
        |log: &str| log.matches("too many clients").count() + log.matches("connection slots are").count();
    let started = Instant::now();
    for round in 0..3 {
        clients
            .iter_mut()
            .try_for_each(|client| client.send(&msgs().Q("SELECT 'served' FROM pg_sleep(0.1)")))?;
        let mut codes: BTreeMap<String, usize> = BTreeMap::new();
        for client in &mut clients {
            let replies = client.read_ready(1)?;
            let code = replies.error().map_or("served", |fields| fields.get('C'));
            *codes.entry(code.to_owned()).or_default() += 1;
        }
        ensure!(codes.keys().all(|code| ["served", "53300"].contains(&code.as_str())), "{codes:?}");
        ensure!(codes.get("served").is_some_and(|served| *served >= 8), "round {round}: {codes:?}");
    }
    // All of a round may ask before the first is refused; then the trying must not be dense, however long it takes.
    let (refusals, seconds) = (refused(&cluster.log(0)?), started.elapsed().as_secs());
    let few = 3 * clients.len() + usize::try_from(seconds)? * 8;
    ensure!(refusals < few, "{refusals} refusals in the server's log within {seconds} s");
    ensure!(weir.pool_nodes()?[0]["status"] == "up");
    Ok(())
}

/// TO-08: settings do not pin, what does is counted by its reason.
#[test]
fn to_08_plain_settings_pin_nobody() -> Result<()> {
    let (cluster, weir) = small(40, "default_pool_size: 3\nquery_wait_timeout: 2s")?;
    let mut clients = (0..50).map(|_| weir.client()).collect::<Result<Vec<_>>>()?;
    for (n, client) in clients.iter_mut().enumerate() {
        client.simple(&format!("SET work_mem = '{}kB'", 3001 + n))?;
    }
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.scalar("SHOW work_mem")?, format!("{}kB", 3001 + n));
    }
    ensure!(cluster.scalar(0, BACKENDS)?.parse::<u32>()? <= 3);
    let pins = |weir: &Pgweir| -> Result<Vec<String>> {
        let pinned = weir.metrics()?.into_iter().filter(|(name, value)| name.contains("pin") && *value > 0.0);
        Ok(pinned.map(|(name, _)| name).collect())
    };
    assert_eq!(pins(&weir)?, Vec::<String>::new());
    clients[0].simple("CREATE TEMP TABLE mine(id int)")?;
    let pinned = || pins(&weir).is_ok_and(|pins| pins.iter().any(|name| name.contains("temp")));
    ensure!(eventually(SECOND, pinned), "{:?}", pins(&weir)?);
    Ok(())
}

/// 2,000 clients on a pool of 20: all are served, in the order in which they asked, and a client costs little.
#[test]
fn to_04_two_thousand_clients_on_a_pool_of_twenty() -> Result<()> {
    let wanted = clients_possible(2000)?;
    let (cluster, weir) = small(60, "default_pool_size: 20\nquery_wait_timeout: 60s")?;
    let before = weir.rss_kb()?;
    let mut clients = Vec::new();
    for _ in 0..wanted {
        let mut client = weir.client()?;
        client.set_deadline(60 * SECOND);
        clients.push(client);
    }
    for round in 0..3 {
        for (n, client) in clients.iter_mut().enumerate() {
            let messages = if n % 2 == 0 {
                msgs().Q(&format!("SELECT {}", n * 10 + round))
            } else {
                msgs()
                    .P("s", "SELECT $1::int")
                    .B("", "s", &[&(n * 10 + round).to_string()])
                    .E()
                    .C('S', "s")
                    .S()
            };
            client.send(&messages)?;
        }
        for (n, client) in clients.iter_mut().enumerate() {
            let replies = client.read_ready(1).with_context(|| format!("client {n}, round {round}"))?;
            let row = format!("D({}) C(SELECT 1)", n * 10 + round);
            ensure!(replies.to_string().contains(&row), "client {n}, round {round}: {replies}");
        }
        ensure!(cluster.scalar(0, BACKENDS)?.parse::<u32>()? <= 20);
    }
    let grown = weir.rss_kb()?.saturating_sub(before);
    ensure!(grown < 40 * wanted as u64, "{grown} kB for {wanted} clients");
    Ok(())
}

/// A storm of 2,000 logins at once, on a cold pool: all get in, the server sees few connections, and who was there
/// before goes on.
#[test]
fn to_04_a_storm_of_logins() -> Result<()> {
    let wanted = clients_possible(2000)?;
    let (cluster, weir) = small(60, "default_pool_size: 10\nlisten_backlog: 4096")?;
    let mut old = Login::new("other", "bench").connect(weir.port())?;
    old.set_deadline(20 * SECOND);
    let packet = Login::bench().packet();
    let mut storm = Vec::new();
    for _ in 0..wanted {
        let mut client = RawClient::tcp(weir.port())?;
        client.set_deadline(30 * SECOND);
        client.send_bytes(&packet)?;
        client.send(&msgs().Q("SELECT 'in'"))?;
        storm.push(client);
    }
    for _ in 0..20 {
        assert_eq!(old.scalar("SELECT 'goes on'")?, "goes on");
    }
    for (n, client) in storm.iter_mut().enumerate() {
        let replies = client.read_ready(2).with_context(|| format!("client {n}"))?.to_string();
        ensure!(replies.ends_with("Z(I) T D(in) C(SELECT 1) Z(I)"), "client {n}: {replies}");
    }
    let connects = cluster.scalar(0, "SELECT sessions FROM pg_stat_database WHERE datname = 'bench'")?;
    ensure!(connects.parse::<u32>()? < 100, "{connects} connections for {wanted} logins");
    Ok(())
}

/// TO-02: connections that come and go, 10,000 of them, leave nothing; at the limit there is one clear error at once,
/// and the console still answers.
#[test]
fn to_02_slots_of_those_who_left_are_given_back() -> Result<()> {
    let (_cluster, weir) = small(60, "max_client_conn: 100\ndefault_pool_size: 5")?;
    let mut clients = Vec::new();
    for _ in 0..100 {
        clients.push(weir.client()?);
    }
    for _ in 0..50 {
        let started = Instant::now();
        let refused = weir.client().err().context("a client beyond the limit")?;
        assert_eq!(sqlstate(&refused), "53300");
        ensure!(started.elapsed() < SECOND, "refused after {:?}", started.elapsed());
    }
    ensure!(!weir.admin("SHOW LISTS")?.is_empty(), "no console when it is needed");
    for (n, client) in clients.drain(..).enumerate() {
        match n % 3 {
            0 => client.reset()?,
            1 => drop(client),
            _ => client.terminate()?,
        }
    }
    for n in 0..10_000 {
        let client = RawClient::tcp(weir.port())?;
        if n % 2 == 0 {
            client.reset()?;
        }
    }
    let full = || (0..100).map(|_| weir.client()).collect::<Result<Vec<_>>>().is_ok();
    ensure!(eventually(5 * SECOND, full), "the count does not fall to 0");
    Ok(())
}

/// What one client of [`to_04_nobody_is_forgotten_in_a_crowd`] saw.
#[derive(Default)]
struct Seen {
    longest: AtomicUsize,
    served: AtomicUsize,
    cancelled: AtomicUsize,
    lost: AtomicUsize,
}

fn one_of_the_crowd(port: u16, me: u64, rounds: usize, seen: &Seen) -> Result<()> {
    let mut random = StdRng::seed_from_u64(me);
    let connect = || -> Result<RawClient> {
        let mut client = RawClient::bench(port)?;
        client.set_deadline(30 * SECOND);
        Ok(client)
    };
    let mut client = connect()?;
    for round in 0..rounds {
        let nonce = me as usize * 1000 + round;
        let asked = Instant::now();
        client.send(&msgs().Q(&format!("SELECT {nonce} FROM pg_sleep(0.001)")))?;
        match random.random_range(0..10) {
            0 => client.cancel()?,
            1 => {
                std::mem::replace(&mut client, connect()?).reset()?;
                continue;
            }
            _ => {}
        }
        match client.read_ready(1) {
            Ok(replies) => {
                let text = replies.to_string();
                if text.ends_with("E(57014) Z(I)") {
                    seen.cancelled.fetch_add(1, Ordering::Relaxed);
                } else {
                    ensure!(text == format!("T D({nonce}) C(SELECT 1) Z(I)"), "{nonce}: {text}");
                }
            }
            // A backend was killed under it.
            Err(error) if ["57P01", "08006"].contains(&sqlstate(&error)) => {
                seen.lost.fetch_add(1, Ordering::Relaxed);
                client = connect()?;
            }
            Err(error) => return Err(error.context(format!("{nonce}"))),
        }
        let took = usize::try_from(asked.elapsed().as_millis())?;
        seen.longest.fetch_max(took, Ordering::Relaxed);
        seen.served.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// TO-04: under contention, with cancels, with waiters that leave, and with backends that are killed, everybody is
/// served and nobody waits for longer than the queue is.
#[test]
fn to_04_nobody_is_forgotten_in_a_crowd() -> Result<()> {
    const CLIENTS: u64 = 200;
    const ROUNDS: usize = 25;
    let (cluster, weir) = small(60, "default_pool_size: 5\nquery_wait_timeout: 30s")?;
    let (seen, done) = (Seen::default(), AtomicBool::new(false));
    let port = weir.port();
    std::thread::scope(|scope| -> Result<()> {
        let killer = scope.spawn(|| -> Result<()> {
            let mut admin = cluster.admin(0)?;
            while !done.load(Ordering::Relaxed) {
                admin.simple(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'bench' LIMIT 1",
                )?;
                std::thread::sleep(Duration::from_millis(300));
            }
            Ok(())
        });
        let crowd: Vec<_> = (0..CLIENTS)
            .map(|me| {
                scope.spawn({
                    let seen = &seen;
                    move || one_of_the_crowd(port, me, ROUNDS, seen)
                })
            })
            .collect();
        let outcome = crowd.into_iter().try_for_each(|one| one.join().expect("a client panicked"));
        done.store(true, Ordering::Relaxed);
        killer.join().expect("the killer panicked")?;
        outcome
    })?;
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    ensure!(count(&seen.served) > 4000, "only {} served", count(&seen.served));
    ensure!(count(&seen.cancelled) > 0, "no cancel hit");
    // The whole takes some seconds; somebody who was forgotten would have waited for all of it.
    ensure!(count(&seen.longest) < 10_000, "somebody waited for {} ms", count(&seen.longest));
    println!("longest wait {} ms, {} sessions lost", count(&seen.longest), count(&seen.lost));
    ensure!(eventually(3 * SECOND, || {
        weir.admin("SHOW POOLS")
            .is_ok_and(|pools| pools.iter().all(|pool| pool["cl_waiting"] == "0" && pool["sv_active"] == "0"))
    }));
    let open = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench' AND state <> 'idle'";
    cluster.wait_scalar(0, open, "0", 3 * SECOND)
}

/// TO-01: the error of a full pool comes in step: by every protocol, for pipelines, and in session pooling.
#[test]
fn to_01_a_busy_pool_answers_in_step() -> Result<()> {
    for mode in ["transaction", "session"] {
        let yaml = format!("default_pool_size: 1\nquery_wait_timeout: 300ms\npool_mode: {mode}");
        let (_cluster, weir) = small(40, &yaml)?;
        let (mut holder, mut a) = (weir.client()?, weir.client()?);
        holder.simple("BEGIN; SELECT 1")?;
        let three = msgs().Q("SELECT 1").PBE("SELECT 2").S().Q("SELECT 3");
        assert_eq!(a.talk(&three)?.to_string(), "E(53300) Z(I) E(53300) Z(I) E(53300) Z(I)", "{mode}");
        let replies = a.talk(&msgs().Q("SELECT 1"))?;
        let text = replies.error().map(|fields| fields.get('M').to_owned()).unwrap_or_default();
        ensure!(text.starts_with("pool is busy"), "{mode}: {text}");
        // Logging in is no use of the pool.
        let mut late = weir.client()?;
        assert_eq!(late.sqlstate_of("SELECT 1")?, "53300", "{mode}");
        holder.simple("COMMIT")?;
        if mode == "session" {
            holder.terminate()?;
        }
        assert_eq!(a.scalar("SELECT 'b'")?, "b", "{mode}");
    }
    Ok(())
}
