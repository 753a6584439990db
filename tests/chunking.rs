//! Messages split at any byte, in both directions; and replies that never shift.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Cluster, ClusterOptions, Login, Msgs, Pgweir, RawClient, Relay, msgs};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// A session of every kind of message. `bulk` is the size of its large values.
fn session(bulk: usize) -> (Msgs, usize) {
    let large = "y".repeat(bulk);
    let all = msgs()
        .Q("SELECT 1, NULL, 'text'; SELECT 2")
        .P("s1", "SELECT $1::text, length($2)")
        .D('S', "s1")
        .B("", "s1", &["one", &large])
        .D('P', "")
        .E()
        .S()
        .P("s2", "SELECT 1/0")
        .B("", "s2", &[])
        .E()
        .S()
        .B("", "s1", &["two", ""])
        .E()
        .C('S', "s1")
        .S()
        .Q("BEGIN")
        .Q("CREATE TEMP TABLE c(v text) ON COMMIT DROP")
        .Q("COPY c FROM STDIN")
        .d(b"row\n")
        .d(format!("{large}\n").as_bytes())
        .c()
        .Q("COPY c TO STDOUT")
        .PBE("SELECT count(*), max(length(v)) FROM c")
        .S()
        .Q("COMMIT")
        .PBE("SELECT repeat('z', 20000)")
        .S()
        .Q("SELECT g FROM generate_series(1, 200) g");
    let ready = all.ready_due();
    (all, ready)
}

/// Logs in and runs the session in chunks; all replies, compact.
fn replay(port: u16, chunk: usize, bulk: usize) -> Result<String> {
    let mut client = RawClient::tcp(port)?;
    client.set_deadline(Duration::from_secs(20));
    client.set_chunk(chunk);
    client.log_in(&Login::bench())?;
    let (all, ready) = session(bulk);
    client.send(&all)?;
    let replies = client.read_ready(ready).with_context(|| format!("chunks of {chunk}"))?;
    client.terminate()?;
    Ok(replies.to_string())
}

fn no_protocol_error_logged(cluster: &Cluster) -> Result<()> {
    for node in 0..cluster.len() {
        let log = cluster.log(node)?;
        for word in ["invalid frontend message", "protocol synchronization", "invalid message format"] {
            ensure!(!log.contains(word), "n{node} logged {word}");
        }
    }
    Ok(())
}

#[test]
fn ep_14_client_messages_split_at_any_byte() -> Result<()> {
    let (cluster, weir) = harness::rig(1, "")?;
    let small = replay(cluster.port(0), usize::MAX, 10)?;
    for chunk in 1..=64 {
        assert_eq!(replay(weir.port(), chunk, 10)?, small, "chunks of {chunk}");
    }
    let large = replay(cluster.port(0), usize::MAX, 40_000)?;
    for chunk in [97, 1000, 8191, 8192, 8193, 16383, 16384, 16385, 65536, usize::MAX] {
        assert_eq!(replay(weir.port(), chunk, 40_000)?, large, "chunks of {chunk}");
    }
    no_protocol_error_logged(&cluster)
}

#[test]
fn ep_14_server_messages_split_at_any_byte() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let relay = Relay::start(cluster.port(0))?;
    let yaml =
        format!("backends:\n  - {{ hostname: 127.0.0.1, port: {} }}\nserver_lifetime: 1s", relay.port());
    let weir = Pgweir::start(&cluster, &yaml)?;
    let small = replay(cluster.port(0), usize::MAX, 10)?;
    for chunk in (1..=16).chain([31, 64]) {
        relay.set_chunk(chunk);
        assert_eq!(replay(weir.port(), usize::MAX, 10)?, small, "chunks of {chunk}");
    }
    let large = replay(cluster.port(0), usize::MAX, 40_000)?;
    for chunk in [5, 8191, 8192, 8193, 16384] {
        relay.set_chunk(chunk);
        assert_eq!(replay(weir.port(), usize::MAX, 40_000)?, large, "chunks of {chunk}");
    }
    no_protocol_error_logged(&cluster)
}

/// One client of EP-16 until `end`: it mixes good statements, errors, cancels, time-outs and
/// disconnects, and every answer must carry the nonce of its own question.
fn nonces(port: u16, me: usize, seed: u64, end: Instant, answered: &AtomicUsize) -> Result<()> {
    let mut random = StdRng::seed_from_u64(seed + me as u64);
    let mut client = connect(port)?;
    while Instant::now() < end {
        let nonce = random.random_range(1..1_000_000_000u32).to_string();
        let row = format!("D({nonce}) C(SELECT 1)");
        match random.random_range(0..9) {
            0 => {
                let replies = client.talk(&msgs().Q(&format!("SELECT {nonce}; SELECT 1/0")))?.to_string();
                ensure!(replies == format!("T {row} E(22012) Z(I)"), "{nonce}: {replies}");
            }
            1 => {
                let batch = msgs().PBE(&format!("SELECT {nonce}")).PBE("SELECT 1/0").PBE("SELECT 3").S();
                let replies = client.talk(&batch)?.to_string();
                ensure!(replies == format!("1 2 {row} 1 E(22012) Z(I)"), "{nonce}: {replies}");
            }
            2 => {
                client.send(&msgs().Q(&format!("SELECT {nonce} FROM pg_sleep(0.02)")))?;
                client.cancel()?;
                let replies = client.read_ready(1)?.to_string();
                let right = ["E(57014) Z(I)", "T E(57014) Z(I)"].contains(&replies.as_str())
                    || replies == format!("T {row} Z(I)");
                ensure!(right, "{nonce}: {replies}");
            }
            3 => {
                client.send(&msgs().PBE(&format!("SELECT {nonce}")).H())?;
                client = connect(port)?; // the old one is closed without Sync
            }
            4 => {
                client.send(&msgs().Q(&format!("SELECT {nonce} FROM pg_sleep(0.005)")))?;
                std::mem::replace(&mut client, connect(port)?).reset()?;
            }
            5 => {
                let sql = format!("BEGIN; SET LOCAL statement_timeout = 5; SELECT {nonce} FROM pg_sleep(1)");
                let replies = client.talk(&msgs().Q(&sql).Q("ROLLBACK"))?.to_string();
                let right =
                    replies.ends_with("E(57014) Z(E) C(ROLLBACK) Z(I)") || replies.starts_with("E(57014)");
                ensure!(right, "{nonce}: {replies}");
            }
            6 => {
                let replies = client.talk(&msgs().PBE(&format!("SELECT {nonce}")).S())?.to_string();
                ensure!(replies == format!("1 2 {row} Z(I)"), "{nonce}: {replies}");
            }
            _ => {
                // A cancel may have been on its way still.
                let replies = client.talk(&msgs().Q(&format!("SELECT {nonce}")))?.to_string();
                let right = replies == format!("T {row} Z(I)") || replies.ends_with("E(57014) Z(I)");
                ensure!(right, "{nonce}: {replies}");
            }
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn connect(port: u16) -> Result<RawClient> {
    let mut client = RawClient::bench(port)?;
    client.set_deadline(Duration::from_secs(10));
    Ok(client)
}

#[test]
fn ep_16_replies_never_shift() -> Result<()> {
    let (_cluster, weir) = harness::rig(1, "default_pool_size: 1")?;
    let seed = u64::from(rand::rng().random::<u32>());
    println!("seed {seed}");
    let (port, end) = (weir.port(), Instant::now() + Duration::from_secs(6));
    let answered = AtomicUsize::new(0);
    let count = &answered;
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|me| scope.spawn(move || nonces(port, me, seed, end, count))).collect();
        all.into_iter().try_for_each(|one| one.join().expect("a client panicked"))
    })?;
    let answered = answered.into_inner();
    ensure!(answered > 100, "only {answered} questions in 6 s");
    Ok(())
}
