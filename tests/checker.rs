//! The levels of consistency, proved by random sessions: what each read shows is compared with what the session, and
//! everybody, had written and read before. Standbys are delayed and paused meanwhile.
//!
//! Every session has a row of its own that counts its writes, and reads all rows at once. A violation is a read that
//! shows less than the level promises; `eventual` is the control, in which there must be some.
//!
//! What is not acknowledged yet counts for nobody: PostgreSQL itself shows a commit on a standby before it does so on the
//! primary, where it becomes visible last of all, right before the acknowledgement.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Cluster, ClusterOptions, Pgweir, RawClient, msgs};

const SESSIONS: usize = 6;
const RUN: Duration = Duration::from_secs(6);
/// By then the sampler has told what was acknowledged before, with time to spare.
const SETTLED: Duration = Duration::from_millis(200);
/// The time-outs of the product: no node is to be lost here because the sessions keep the machine busy.
const PATIENT: &str = "health_check_timeout: 5s\nconnect_timeout: 10s";
const READ: &str =
    "SELECT current_setting('cluster_name') || ' ' || string_agg(v::text, ' ' ORDER BY k) FROM counters";

/// A number below `below` (xorshift).
fn random(state: &mut u64, below: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 32) % below
}

fn seed() -> u64 {
    std::env::var("PGWEIR_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_261_130)
}

/// What the sessions share: by session, the last write that was acknowledged, and when that of anybody was.
struct Shared {
    acknowledged: Vec<AtomicU64>,
    begun: Instant,
    last_write: AtomicU64,
    /// What was written before that time is on every standby, and has been for [`SETTLED`].
    covered: AtomicU64,
    done: AtomicBool,
}

impl Shared {
    fn new() -> Self {
        Self {
            acknowledged: (0..SESSIONS).map(|_| AtomicU64::new(0)).collect(),
            begun: Instant::now(),
            last_write: AtomicU64::new(0),
            covered: AtomicU64::new(0),
            done: AtomicBool::new(false),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// What the reads came to.
#[derive(Debug, Default, Clone)]
struct Counts {
    reads: u64,
    on_standbys: u64,
    /// Reads by those whose standbys all have what counts, and have had it for a while.
    settled: u64,
    settled_on_standbys: u64,
    own_missed: u64,
    went_back: u64,
    others_missed: u64,
    first: String,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.on_standbys += other.on_standbys;
        self.settled += other.settled;
        self.settled_on_standbys += other.settled_on_standbys;
        self.own_missed += other.own_missed;
        self.went_back += other.went_back;
        self.others_missed += other.others_missed;
        if self.first.is_empty() {
            self.first.clone_from(&other.first);
        }
    }
}

/// Which writes keep a session from the standbys.
#[derive(Clone, Copy, PartialEq)]
enum Whose {
    Own,
    Anybodys,
}

struct Session<'a> {
    id: usize,
    client: RawClient,
    state: u64,
    shared: &'a Shared,
    whose: Whose,
    written: u64,
    written_at: u64,
    seen: Vec<u64>,
    counts: Counts,
}

impl<'a> Session<'a> {
    fn new(id: usize, weir: &Pgweir, shared: &'a Shared, whose: Whose) -> Result<Self> {
        let state = (seed() ^ (id as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)) | 1;
        let (seen, counts) = (vec![0; SESSIONS], Counts::default());
        let client = weir.client()?;
        Ok(Self { id, client, state, shared, whose, written: 0, written_at: 0, seen, counts })
    }

    fn random(&mut self, below: u64) -> u64 {
        random(&mut self.state, below)
    }

    fn scalar(&mut self, sql: &str) -> Result<String> {
        if self.random(2) == 0 { self.client.scalar(sql) } else { self.client.scalar_extended(sql, &[]) }
    }

    /// One step of a random session.
    fn step(&mut self) -> Result<()> {
        // Who waits for the writes of all would hardly come to a standby.
        let kinds = if self.whose == Whose::Anybodys { 160 } else { 20 };
        match self.random(kinds) {
            0 | 1 => self.write_alone(),
            2 => self.write_in_transaction(),
            3 => self.undo(),
            4 => self.read_in_transaction(),
            5 => {
                std::thread::sleep(Duration::from_millis(self.state % 60));
                Ok(())
            }
            6 => self.pipelined(),
            _ => self.read(),
        }
    }

    fn update(&self) -> String {
        format!("UPDATE counters SET v = {} WHERE k = {}", self.written + 1, self.id)
    }

    fn acknowledged(&mut self) {
        self.written += 1;
        self.written_at = self.shared.now();
        self.shared.last_write.fetch_max(self.written_at, Ordering::SeqCst);
        self.shared.acknowledged[self.id].store(self.written, Ordering::SeqCst);
    }

    fn write_alone(&mut self) -> Result<()> {
        let update = self.update();
        match self.random(3) {
            0 => drop(self.client.simple(&update)?),
            1 => drop(self.client.scalar_extended(&format!("{update} RETURNING v"), &[])?),
            _ => drop(self.client.simple("SELECT bump(0)").and_then(|_| self.client.simple(&update))?),
        }
        self.acknowledged();
        Ok(())
    }

    fn write_in_transaction(&mut self) -> Result<()> {
        self.client.simple("BEGIN")?;
        // With `transaction_load_balance` a standby may answer it, as old as the level allows.
        self.read()?;
        let update = self.update();
        self.client.simple(&update)?;
        self.client.simple("COMMIT")?;
        self.acknowledged();
        Ok(())
    }

    fn undo(&mut self) -> Result<()> {
        self.client.simple("BEGIN")?;
        self.client.simple(&format!("UPDATE counters SET v = 1000000 WHERE k = {}", self.id))?;
        drop(self.client.simple("ROLLBACK")?);
        Ok(())
    }

    fn read_in_transaction(&mut self) -> Result<()> {
        self.client.simple("BEGIN READ ONLY")?;
        self.read()?;
        drop(self.client.simple("COMMIT")?);
        Ok(())
    }

    /// A write and a read behind it, sent at once.
    fn pipelined(&mut self) -> Result<()> {
        let bounds = self.bounds();
        let update = self.update();
        self.client.send(&msgs().Q(&update).Q(READ))?;
        let replies = self.client.read_ready(2)?;
        ensure!(replies.error().is_none(), "{replies}");
        self.acknowledged();
        let answer = replies.values().pop().context("no row")?;
        self.judge(&answer, &bounds);
        Ok(())
    }

    /// What everybody was told is done, before the read begins.
    fn bounds(&self) -> Vec<u64> {
        self.shared.acknowledged.iter().map(|one| one.load(Ordering::SeqCst)).collect()
    }

    fn read(&mut self) -> Result<()> {
        let bounds = self.bounds();
        let last = match self.whose {
            Whose::Own => self.written_at,
            Whose::Anybodys => self.shared.last_write.load(Ordering::SeqCst),
        };
        let settled = last < self.shared.covered.load(Ordering::SeqCst);
        let answer = self.scalar(READ)?;
        let on_standby = !answer.starts_with("n0 ");
        self.judge(&answer, &bounds);
        self.counts.reads += 1;
        self.counts.on_standbys += u64::from(on_standby);
        self.counts.settled += u64::from(settled);
        self.counts.settled_on_standbys += u64::from(settled && on_standby);
        Ok(())
    }

    fn judge(&mut self, answer: &str, bounds: &[u64]) {
        let values: Vec<u64> = answer.split(' ').skip(1).filter_map(|text| text.parse().ok()).collect();
        let own = values[self.id] < self.written;
        let back =
            values.iter().zip(&self.seen).zip(bounds).any(|((value, seen), bound)| value < seen.min(bound));
        let others = values.iter().zip(bounds).any(|(value, bound)| value < bound);
        self.counts.own_missed += u64::from(own);
        self.counts.went_back += u64::from(back);
        self.counts.others_missed += u64::from(others);
        if (own || back || others) && self.counts.first.is_empty() {
            let (id, written, seen) = (self.id, self.written, &self.seen);
            let _ = write!(
                self.counts.first,
                "session {id} had written {written}, seen {seen:?}, all had written {bounds:?}, and read {answer:?}"
            );
        }
        self.seen = values.into_iter().zip(&self.seen).map(|(value, seen)| value.max(*seen)).collect();
    }
}

/// Standbys are delayed, paused and let go, until the sessions are done.
fn disturb(cluster: &Cluster, shared: &Shared) -> Result<()> {
    let mut state = seed() | 1;
    while !shared.done.load(Ordering::SeqCst) {
        let node = 1 + usize::try_from(random(&mut state, 2))?;
        match random(&mut state, 5) {
            0 | 1 => drop(cluster.sql(node, "SELECT pg_wal_replay_pause()")?),
            2 => {
                let delay = ["20ms", "150ms", "600ms"][usize::try_from(random(&mut state, 3))?];
                set_delay(cluster, node, delay)?;
            }
            3 => set_delay(cluster, node, "0")?,
            _ => drop(cluster.sql(node, "SELECT pg_wal_replay_resume()")?),
        }
        std::thread::sleep(Duration::from_millis(20 + random(&mut state, 180)));
    }
    (1..cluster.len()).try_for_each(|node| {
        set_delay(cluster, node, "0")?;
        cluster.sql(node, "SELECT pg_wal_replay_resume()").map(drop)
    })
}

fn set_delay(cluster: &Cluster, node: usize, delay: &str) -> Result<()> {
    cluster.sql(node, &format!("ALTER SYSTEM SET recovery_min_apply_delay = '{delay}'"))?;
    cluster.sql(node, "SELECT pg_reload_conf()").map(drop)
}

fn cluster() -> Result<Cluster> {
    let options = ClusterOptions { standbys: 2, log_statements: false, ..ClusterOptions::default() };
    let cluster = Cluster::new(options)?;
    let sql = "CREATE TABLE counters (k int PRIMARY KEY, v bigint NOT NULL); \
               CREATE FUNCTION bump(n int) RETURNS int LANGUAGE sql VOLATILE AS 'SELECT n'; \
               GRANT ALL ON counters TO bench";
    cluster.setup(sql)?;
    Ok(cluster)
}

fn reset(cluster: &Cluster) -> Result<()> {
    let rows = SESSIONS - 1;
    cluster.setup(&format!(
        "TRUNCATE counters; INSERT INTO counters SELECT k, 0 FROM generate_series(0, {rows}) k"
    ))
}

fn whose(level: &str) -> Whose {
    if level == "global" { Whose::Anybodys } else { Whose::Own }
}

/// Random sessions at that level, with standbys that are disturbed meanwhile.
fn run(cluster: &Cluster, level: &str) -> Result<Counts> {
    reset(cluster)?;
    let weir =
        Pgweir::start(cluster, &format!("consistency: {level}\ntransaction_load_balance: on\n{PATIENT}"))?;
    let shared = Shared::new();
    let one = |id: usize| -> Result<Counts> {
        let mut session = Session::new(id, &weir, &shared, whose(level))?;
        while shared.begun.elapsed() < RUN {
            session.step().with_context(|| format!("session {id}"))?;
        }
        Ok(session.counts)
    };
    let (one, shared) = (&one, &shared);
    let mut counts = Counts::default();
    std::thread::scope(|scope| -> Result<()> {
        let disturber = scope.spawn(move || disturb(cluster, shared));
        let sessions: Vec<_> = (0..SESSIONS).map(|id| scope.spawn(move || one(id))).collect();
        let ended: Vec<_> =
            sessions.into_iter().map(|session| session.join().expect("a session panicked")).collect();
        shared.done.store(true, Ordering::SeqCst);
        disturber.join().expect("the disturber panicked")?;
        ended.into_iter().try_for_each(|one| one.map(|one| counts.add(&one)))
    })?;
    println!("{level}, seed {}: {counts:?}", seed());
    ensure!(counts.reads > 200 && counts.on_standbys > 20, "nothing was tried: {counts:?}");
    Ok(counts)
}

/// SR-01: nobody misses what they have written; what they do not promise, the lower levels do miss.
#[test]
fn sr_01_each_level_keeps_its_promise_and_not_more() -> Result<()> {
    let cluster = cluster()?;
    let control = run(&cluster, "eventual")?;
    ensure!(control.own_missed > 0 && control.went_back > 0 && control.others_missed > 0, "{control:?}");
    let own = run(&cluster, "read_your_writes")?;
    ensure!(own.own_missed == 0, "{own:?}");
    ensure!(own.others_missed > 0, "the control of the level above: {own:?}");
    let monotonic = run(&cluster, "monotonic")?;
    ensure!(monotonic.own_missed == 0 && monotonic.went_back == 0, "{monotonic:?}");
    ensure!(monotonic.others_missed > 0, "the control of the level above: {monotonic:?}");
    let global = run(&cluster, "global")?;
    ensure!(global.own_missed == 0 && global.went_back == 0 && global.others_missed == 0, "{global:?}");
    Ok(())
}

/// Sees what the standbys have, until all is done.
fn watch(cluster: &Cluster, shared: &Shared) -> Result<()> {
    while !shared.done.load(Ordering::SeqCst) {
        let now = shared.now();
        cluster.wait_replay()?;
        std::thread::sleep(SETTLED);
        shared.covered.store(now, Ordering::SeqCst);
    }
    Ok(())
}

/// Sessions at that level that read without a pause, with standbys that nobody disturbs. The level's promise holds.
fn undisturbed(cluster: &Cluster, level: &str) -> Result<Counts> {
    reset(cluster)?;
    let weir = Pgweir::start(cluster, &format!("consistency: {level}\n{PATIENT}"))?;
    let shared = Shared::new();
    let one = |id: usize| -> Result<Counts> {
        let mut session = Session::new(id, &weir, &shared, whose(level))?;
        for round in 1..=3 {
            // Only some write; all read what they wrote.
            if id < 2 {
                session.write_alone()?;
            }
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(1) || session.counts.settled < 50 * round {
                session.read()?;
                ensure!(begun.elapsed() < Duration::from_secs(30), "the standbys do not catch up");
            }
        }
        Ok(session.counts)
    };
    let (one, shared) = (&one, &shared);
    let mut counts = Counts::default();
    std::thread::scope(|scope| -> Result<()> {
        let watcher = scope.spawn(move || watch(cluster, shared));
        let sessions: Vec<_> = (0..SESSIONS).map(|id| scope.spawn(move || one(id))).collect();
        let ended: Vec<_> =
            sessions.into_iter().map(|session| session.join().expect("a session panicked")).collect();
        shared.done.store(true, Ordering::SeqCst);
        watcher.join().expect("the watcher panicked")?;
        ended.into_iter().try_for_each(|one| one.map(|one| counts.add(&one)))
    })?;
    println!("{level}: {counts:?}");
    ensure!(counts.settled > 200, "{level}: too few reads: {counts:?}");
    let violations = match level {
        "eventual" => 0,
        "read_your_writes" => counts.own_missed,
        "monotonic" => counts.own_missed + counts.went_back,
        _ => counts.own_missed + counts.went_back + counts.others_missed,
    };
    ensure!(violations == 0, "{level}: {counts:?}");
    Ok(counts)
}

/// With standbys that have what was written, consistency does not cost the balancing: nine of ten reads are on standbys,
/// also those of sessions that read without a pause.
#[test]
fn sr_02_healthy_standbys_serve_the_reads_at_every_level() -> Result<()> {
    let cluster = cluster()?;
    let mut shares = BTreeMap::new();
    for level in ["eventual", "read_your_writes", "monotonic", "global"] {
        let counts = undisturbed(&cluster, level)?;
        shares.insert(level, counts.settled_on_standbys as f64 / counts.settled as f64);
    }
    println!("{shares:?}");
    ensure!(shares.values().all(|share| *share >= 0.9), "{shares:?}");
    Ok(())
}
