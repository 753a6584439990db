//! How long nobody can write when the primary is killed, and that nothing is lost by it.
//!
//! Two failovers, there and back; `PGWEIR_OUTAGE_ROUNDS` says how many, and `make bench-failover` writes what ten of them
//! took into docs/benchmarks.md.

mod writers;

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use harness::promotion::{self, idle_clients, primary, promoting};
use harness::{Cluster, Pgweir, RawClient, Reply, eventually, msgs};
use writers::Writers;

const DAY_MS: u64 = 86_400_000;

/// When things happened in one round, in milliseconds after the kill.
#[derive(Debug)]
struct Round {
    killed: Instant,
    noticed: u64,
    declared: u64,
    promoted: u64,
    accepted: u64,
}

/// Milliseconds since midnight, UTC.
fn time_of_day(time: SystemTime) -> Result<u64> {
    let millis = time.duration_since(SystemTime::UNIX_EPOCH)?.as_millis();
    Ok(u64::try_from(millis)? % DAY_MS)
}

/// The time of day of the first line of `log` that contains `text`; the lines begin with RFC 3339.
fn logged(log: &str, text: &str) -> Result<u64> {
    let line = log.lines().find(|line| line.contains(text)).with_context(|| format!("no line '{text}'"))?;
    let time = line.split_once('T').and_then(|(_, rest)| rest.get(..12)).with_context(|| line.to_owned())?;
    let number = |range: std::ops::Range<usize>| -> Result<u64> {
        time.get(range).unwrap_or_default().parse().with_context(|| line.to_owned())
    };
    Ok(((number(0..2)? * 60 + number(3..5)?) * 60 + number(6..8)?) * 1000 + number(9..12)?)
}

/// Kills the primary and waits until another one takes writes.
fn fail_over(
    cluster: &mut Cluster,
    weir: &Pgweir,
    old: usize,
    late: &mut [RawClient],
) -> Result<(usize, Round)> {
    let before = weir.log().len();
    let at = time_of_day(SystemTime::now())?;
    cluster.kill9(old)?;
    let killed = Instant::now();
    // They were between transactions: what they begin now waits.
    for (n, client) in late.iter_mut().enumerate() {
        let id = -1000 - i64::try_from(n)?;
        client.send(&msgs().Q(&format!("INSERT INTO t VALUES ({id}) ON CONFLICT DO NOTHING")))?;
    }
    let new = primary(weir, old, Duration::from_secs(15))?;
    for client in late {
        let told = client.read_until(|reply| matches!(reply, Reply::ReadyForQuery(_)))?.to_string();
        ensure!(told.starts_with("C(INSERT 0 "), "a client between transactions is told [{told}]");
    }
    let log = weir.log();
    let log = log.get(before..).unwrap_or_default();
    let after = |text: &str| Ok::<u64, anyhow::Error>((logged(log, text)? + DAY_MS - at) % DAY_MS);
    let round = Round {
        killed,
        noticed: after("there is no primary")?,
        declared: after("the primary counts as dead")?,
        promoted: after("node is being promoted")?,
        accepted: after("writes go to this primary")?,
    };
    Ok((new, round))
}

fn median(mut values: Vec<u128>) -> u128 {
    values.sort_unstable();
    values[values.len() / 2]
}

/// FO-04: kill -9 under 50 writers, promotion, and back again: no acknowledged row is lost, nobody who was idle or
/// between transactions hears anything, nobody is promoted twice.
#[test]
fn fo_04_fifty_writers_lose_nothing_in_two_failovers() -> Result<()> {
    let rounds = std::env::var("PGWEIR_OUTAGE_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    let mut cluster = promotion::cluster(2, promotion::SYNCHRONOUS)?;
    let weir = promoting(&cluster, "default_pool_size: 20\nfailover_hold_timeout: 30s")?;
    let (mut idle, mut late) = (idle_clients(&weir)?, idle_clients(&weir)?);
    let writers = Writers::start(weir.port(), 50);
    let (mut old, mut seen) = (0, Vec::new());
    for round in 1..=rounds {
        let before = writers.acked();
        let on = eventually(Duration::from_secs(10), || writers.acked() > before + 200);
        ensure!(on, "round {round}: the writers do not write");
        let (new, times) =
            fail_over(&mut cluster, &weir, old, &mut late).with_context(|| format!("round {round}"))?;
        let at = writers.acked();
        ensure!(eventually(Duration::from_secs(15), || writers.acked() > at + 200), "no writes on n{new}");
        seen.push(times);
        cluster.rejoin(old, new)?;
        weir.wait_pool_nodes(Duration::from_secs(15), |nodes| {
            nodes.iter().all(|node| node["status"] == "up") && nodes[old]["role"] == "standby"
        })?;
        old = new;
    }
    let written = writers.stop()?;
    for (n, client) in idle.iter_mut().chain(&mut late).enumerate() {
        assert_eq!(client.scalar("SHOW work_mem").with_context(|| format!("idle client {n}"))?, "7MB");
        client.simple(&format!("INSERT INTO t VALUES ({})", -1 - i64::try_from(n)?))?;
    }
    written.are_all_on(&cluster, old)?;
    ensure!(written.refused.is_empty(), "told other than of lost connections: {:?}", written.refused);
    assert_eq!(weir.log().matches("node is being promoted").count(), rounds, "exactly once each");
    let outages: Vec<u128> = seen.iter().map(|round| written.outage(round.killed).as_millis()).collect();
    for (round, outage) in seen.iter().zip(&outages) {
        let Round { noticed, declared, promoted, accepted, .. } = round;
        println!(
            "outage: {outage} ms; after the kill: noticed {noticed}, declared dead {declared}, asked to promote \
             {promoted}, takes writes {accepted}"
        );
    }
    println!(
        "outage: median {} ms of {rounds}; {} rows, {} writers cut",
        median(outages),
        written.acked.len(),
        written.lost
    );
    Ok(())
}
