//! Random faults, for two minutes by default: nothing acknowledged is lost, nothing is stuck, nothing leaks.
//!
//! `PGWEIR_CHAOS_SECONDS` says how long, `PGWEIR_CHAOS_SEED` repeats a run; both are printed.

mod writers;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Cluster, ClusterOptions, Pgweir, PgweirOptions, RawClient, StopMode, WHERE, eventually};
use writers::Writers;

const CONF: &str = "full_page_writes = on\nwal_log_hints = on\nwal_receiver_timeout = 2000\n\
                    synchronous_standby_names = 'ANY 1 (*)'\n";

/// splitmix64
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Reads in a loop; an answer within a minute, whatever it is, is what a client may count on.
fn read(port: u16, done: &AtomicBool, served: &AtomicUsize) -> Result<()> {
    let mut client: Option<RawClient> = None;
    while !done.load(Ordering::Relaxed) {
        let began = Instant::now();
        let answered = match client.as_mut() {
            Some(open) => open.scalar("SELECT count(*) FROM t WHERE id < 0").is_ok(),
            None => match RawClient::bench(port) {
                Ok(mut fresh) => {
                    fresh.set_deadline(Duration::from_secs(60));
                    client = Some(fresh);
                    true
                }
                Err(_) => false,
            },
        };
        ensure!(began.elapsed() < Duration::from_secs(55), "a reader was stuck");
        if answered {
            served.fetch_add(1, Ordering::Relaxed);
        } else {
            client = None;
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

fn primary(weir: &Pgweir) -> Option<usize> {
    let nodes = weir.pool_nodes().ok()?;
    nodes.iter().position(|node| node["role"] == "primary" && node["status"] == "up")
}

/// Waits until there is a primary that two standbys follow.
fn whole(cluster: &Cluster, weir: &Pgweir) -> Result<usize> {
    let mut last = String::new();
    let mut found = None;
    let healed = eventually(Duration::from_secs(60), || {
        let nodes = weir.pool_nodes().unwrap_or_default();
        last = format!("{nodes:?}");
        let up = nodes.iter().all(|node| node["status"] == "up");
        found = primary(weir).filter(|_| up && !nodes.is_empty());
        found.is_some_and(|node| {
            let sql = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
            cluster.scalar(node, sql).is_ok_and(|count| count == "2")
        })
    });
    ensure!(healed, "not whole again: {last}");
    found.context("no primary")
}

/// One fault, and its end.
fn trouble(cluster: &mut Cluster, weir: &Pgweir, dice: &mut Dice) -> Result<&'static str> {
    let primary = whole(cluster, weir)?;
    let standbys: Vec<usize> = (0..3).filter(|node| *node != primary).collect();
    let standby = standbys[usize::try_from(dice.below(2))?];
    let pause = Duration::from_millis(200 + dice.below(2500));
    Ok(match dice.below(7) {
        0 => {
            cluster.kill9(primary)?;
            let replaced = || self::primary(weir).is_some_and(|node| node != primary);
            ensure!(eventually(Duration::from_secs(60), replaced), "n{primary} was killed, nobody took over");
            let new = self::primary(weir).context("no primary")?;
            cluster.rejoin(primary, new)?;
            "the primary is killed"
        }
        1 => {
            cluster.kill9(standby)?;
            std::thread::sleep(pause);
            cluster.start(standby)?;
            "a standby is killed"
        }
        2 => {
            cluster.freeze(standby);
            std::thread::sleep(pause);
            cluster.thaw(standby);
            "a standby freezes"
        }
        3 => {
            // Shorter than what its standbys wait: it is not replaced.
            cluster.freeze(primary);
            std::thread::sleep(Duration::from_millis(dice.below(900)));
            cluster.thaw(primary);
            "the primary hesitates"
        }
        4 => {
            let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename IN ('bench', 'pgweir')";
            let _the_node_may_be_down = cluster.sql(usize::try_from(dice.below(3))?, sql);
            "backends are ended"
        }
        5 => {
            for node in &standbys {
                cluster.stop(*node, StopMode::Immediate)?;
            }
            std::thread::sleep(pause);
            for node in standbys {
                cluster.start(node)?;
            }
            "both standbys are lost"
        }
        _ => {
            let _the_file_is_as_it_was = weir.admin("RELOAD");
            cluster.stop(standby, StopMode::Fast)?;
            cluster.start(standby)?;
            "a standby restarts during a reload"
        }
    })
}

/// FO-01, FO-04, FO-05, FO-07, FO-11
#[test]
fn fo_04_two_minutes_of_random_faults() -> Result<()> {
    let (seconds, seed) = (number("PGWEIR_CHAOS_SECONDS", 120), number("PGWEIR_CHAOS_SEED", 20_261));
    println!("PGWEIR_CHAOS_SECONDS={seconds} PGWEIR_CHAOS_SEED={seed}");
    let options =
        ClusterOptions { log_statements: false, conf: CONF.to_owned(), ..ClusterOptions::default() };
    let mut cluster = Cluster::new(options)?;
    cluster.setup("CREATE TABLE t(id bigint PRIMARY KEY); GRANT ALL ON t TO bench")?;
    let etc = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../etc/failover/follow_primary.sh");
    let yaml = format!(
        "failover_mode: promote\nfollow_primary_command: \"{} %d %h %p %D %m %H %r\"\nauto_failback_interval: 200ms\n\
         default_pool_size: 8",
        etc.display()
    );
    let mut weir = Pgweir::start_with(&cluster, &PgweirOptions::yaml(&yaml).trusting())?;
    let writers = Writers::start(weir.port(), 10);
    let (done, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut dice = Dice(seed);
    let end = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| -> Result<()> {
        let (port, done, served) = (weir.port(), &done, &served);
        let readers: Vec<_> = (0..4).map(|_| scope.spawn(move || read(port, done, served))).collect();
        let outcome = (|| {
            while Instant::now() < end {
                let what = trouble(&mut cluster, &weir, &mut dice)?;
                println!("{:?} left: {what}", end.saturating_duration_since(Instant::now()));
                let (acked, read) = (writers.acked(), served.load(Ordering::Relaxed));
                let goes_on = || writers.acked() > acked + 20 && served.load(Ordering::Relaxed) > read + 20;
                ensure!(eventually(Duration::from_secs(60), goes_on), "stuck after: {what}");
            }
            Ok(())
        })();
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().ok().context("a reader panicked")??;
        }
        outcome
    })?;
    let primary = whole(&cluster, &weir)?;
    let written = writers.stop()?;
    written.are_all_on(&cluster, primary)?;
    println!(
        "{} rows, {} connections lost, {:?} refused",
        written.acked.len(),
        written.lost,
        written.refused
    );
    // A login or a statement may be refused while no node takes it; nothing else may be said.
    let odd: Vec<_> = written.refused.iter().filter(|text| !text.contains("57P03")).collect();
    ensure!(odd.is_empty(), "{odd:?}");
    nothing_leaks(&cluster, &weir)?;
    ensure!(weir.is_alive()?, "pgweir has ended");
    let mut client = weir.client()?;
    ensure!(["n0", "n1", "n2"].contains(&client.scalar(WHERE)?.as_str()));
    Ok(())
}

/// No session of ours is left on any node beyond the pools and the checks.
fn nothing_leaks(cluster: &Cluster, weir: &Pgweir) -> Result<()> {
    for node in 0..3 {
        let sql = "SELECT count(*) <= 8 FROM pg_stat_activity WHERE usename = 'bench'";
        cluster.wait_scalar(node, sql, "t", Duration::from_secs(10))?;
        let busy = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench' AND state <> 'idle'";
        cluster.wait_scalar(node, busy, "0", Duration::from_secs(10))?;
    }
    let waiting = || {
        let metrics = weir.metrics().unwrap_or_default();
        metrics.iter().any(|(name, value)| {
            name.contains("state=\"active\"") && name.starts_with("pgweir_backends{") && *value > 0.0
        })
    };
    ensure!(
        eventually(Duration::from_secs(10), || !waiting()),
        "backends on loan to nobody: {:?}",
        weir.metrics()?
    );
    Ok(())
}
