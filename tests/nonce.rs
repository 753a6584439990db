//! EP-16, EP-13: every answer carries the nonce of its own question, whatever else goes on.
//!
//! 16 clients on few backends, each with a random mix of everything that could shift an answer to somebody else:
//! errors, cancels, time-outs, disconnects, pipelines, COPY, settings, prepared statements. Seconds:
//! `PGWEIR_NONCE_SECONDS` (120); seed: `PGWEIR_NONCE_SEED`, else the one printed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Cluster, Msgs, Pgweir, RawClient, msgs, rig};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const CLIENTS: u64 = 16;
/// Backends of each node.
const POOL: usize = 4;
/// What takes longer hangs.
const HANG: Duration = Duration::from_secs(20);

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// One client.
struct One {
    port: u16,
    random: StdRng,
    client: RawClient,
    /// The name it gave itself by SET.
    calls_itself: String,
    /// It holds the statement `kept`.
    prepared: bool,
}

/// What it does next.
const STEPS: [fn(&mut One, &str) -> Result<()>; 15] = [
    One::simple,
    One::simple,
    One::extended,
    One::error_in_a_string,
    One::error_in_a_batch,
    One::cancel,
    One::leave_without_sync,
    One::reset,
    One::time_out,
    One::pipeline,
    One::kept_statement,
    One::transaction,
    One::copy,
    One::settings,
    One::flush,
];

impl One {
    fn new(port: u16, me: u64, seed: u64) -> Result<Self> {
        let random = StdRng::seed_from_u64(seed.wrapping_add(me));
        let calls_itself = String::new();
        Ok(Self { port, random, client: connect(port)?, calls_itself, prepared: false })
    }

    fn run(mut self, end: Instant, answered: &AtomicUsize) -> Result<()> {
        while Instant::now() < end {
            let step = self.random.random_range(0..STEPS.len());
            let nonce = self.random.random_range(1..1_000_000_000u32).to_string();
            STEPS[step](&mut self, &nonce).with_context(|| format!("step {step}, nonce {nonce}"))?;
            answered.fetch_add(1, Ordering::Relaxed);
            // Cores are for the tests beside this one, too.
            std::thread::sleep(Duration::from_millis(self.random.random_range(0..6)));
        }
        self.client.terminate()
    }

    fn again(&mut self) -> Result<RawClient> {
        (self.calls_itself, self.prepared) = (String::new(), false);
        Ok(std::mem::replace(&mut self.client, connect(self.port)?))
    }

    /// The answer is one of those; one more is that a cancel, which was on its way still, hit it.
    fn expect(&mut self, sent: &Msgs, wanted: &[&str]) -> Result<()> {
        let replies = self.client.talk(sent)?.to_string();
        ensure!(wanted.contains(&replies.as_str()), "{replies} instead of {wanted:?}");
        Ok(())
    }

    fn simple(&mut self, nonce: &str) -> Result<()> {
        let rows = self.random.random_range(1..40);
        let sql = format!("SELECT {nonce} FROM generate_series(1, {rows})");
        let wanted = format!("T {}C(SELECT {rows}) Z(I)", format!("D({nonce}) ").repeat(rows));
        self.expect(&msgs().Q(&sql), &[&wanted])
    }

    fn extended(&mut self, nonce: &str) -> Result<()> {
        let sent = msgs().P("", "SELECT $1::int8").B("", "", &[nonce]).D('P', "").E().S();
        self.expect(&sent, &[&format!("1 2 T D({nonce}) C(SELECT 1) Z(I)")])
    }

    fn error_in_a_string(&mut self, nonce: &str) -> Result<()> {
        let sent = msgs().Q(&format!("SELECT {nonce}; SELECT 1/0; SELECT 3"));
        self.expect(&sent, &[&format!("T D({nonce}) C(SELECT 1) E(22012) Z(I)")])
    }

    fn error_in_a_batch(&mut self, nonce: &str) -> Result<()> {
        let sent = msgs().PBE(&format!("SELECT {nonce}")).PBE("SELECT 1/0").PBE("SELECT 3").S();
        self.expect(
            &sent,
            &[
                &format!("1 2 D({nonce}) C(SELECT 1) 1 2 E(22012) Z(I)"),
                &format!("1 2 D({nonce}) C(SELECT 1) 1 E(22012) Z(I)"),
            ],
        )
    }

    fn cancel(&mut self, nonce: &str) -> Result<()> {
        let millis = self.random.random_range(0..20);
        self.client.send(&msgs().Q(&format!("SELECT {nonce} FROM pg_sleep(0.01)")))?;
        std::thread::sleep(Duration::from_millis(millis));
        self.client.cancel()?;
        let replies = self.client.read_ready(1)?.to_string();
        let served = format!("T D({nonce}) C(SELECT 1) Z(I)");
        // The server looks for a cancel after each row, too.
        let behind_the_row = format!("T D({nonce}) E(57014) Z(I)");
        let right =
            ["E(57014) Z(I)", "T E(57014) Z(I)", &behind_the_row, &served].contains(&replies.as_str());
        ensure!(right, "{replies}");
        // On a direct connection, too, a cancel that comes late hits the client's own next statement.
        let next = self.client.talk(&msgs().Q("SELECT 'settled'"))?.to_string();
        ensure!(next == "T D(settled) C(SELECT 1) Z(I)" || next.ends_with("E(57014) Z(I)"), "{next}");
        Ok(())
    }

    fn leave_without_sync(&mut self, nonce: &str) -> Result<()> {
        self.client.send(&msgs().PBE(&format!("SELECT {nonce}")).H())?;
        drop(self.again()?);
        Ok(())
    }

    fn reset(&mut self, nonce: &str) -> Result<()> {
        let sql = ["SELECT {} FROM pg_sleep(0.005)", "BEGIN; INSERT INTO t VALUES (0, {})"];
        let sql = sql[self.random.random_range(0..2)].replace("{}", nonce);
        self.client.send(&msgs().Q(&sql))?;
        self.again()?.reset()
    }

    fn time_out(&mut self, nonce: &str) -> Result<()> {
        let sql = format!("BEGIN; SET LOCAL statement_timeout = 5; SELECT {nonce} FROM pg_sleep(1)");
        let replies = self.client.talk(&msgs().Q(&sql).Q("ROLLBACK"))?.to_string();
        let right = replies.ends_with("E(57014) Z(E) C(ROLLBACK) Z(I)") || replies.starts_with("E(57014)");
        ensure!(right, "{replies}");
        Ok(())
    }

    fn pipeline(&mut self, nonce: &str) -> Result<()> {
        let (mut sent, mut wanted) = (msgs(), String::new());
        for n in 0..self.random.random_range(2..12) {
            let (next, answer) = match self.random.random_range(0..4) {
                0 => {
                    (msgs().Q(&format!("SELECT '{nonce}_{n}'")), format!("T D({nonce}_{n}) C(SELECT 1) Z(I)"))
                }
                1 => (msgs().PBE("SELECT 1/0").S(), "1 2 E(22012) Z(I)".to_owned()),
                2 => (msgs().Q("BEGIN").Q("COMMIT"), "C(BEGIN) Z(T) C(COMMIT) Z(I)".to_owned()),
                _ => (
                    msgs().P("", "SELECT $1").B("", "", &[&format!("{nonce}_{n}")]).E().S(),
                    format!("1 2 D({nonce}_{n}) C(SELECT 1) Z(I)"),
                ),
            };
            sent = sent.then(&next);
            wanted.push_str(&format!("{answer} "));
        }
        let replies = self.client.talk(&sent)?.to_string().replace("1 E(22012)", "1 2 E(22012)");
        ensure!(replies == wanted.trim_end(), "{replies} instead of {wanted}");
        Ok(())
    }

    fn kept_statement(&mut self, nonce: &str) -> Result<()> {
        if !std::mem::replace(&mut self.prepared, true) {
            self.expect(&msgs().P("kept", "SELECT $1::text").S(), &["1 Z(I)"])?;
        }
        let sent = msgs().B("", "kept", &[nonce]).E().S();
        self.expect(&sent, &[&format!("2 D({nonce}) C(SELECT 1) Z(I)")])
    }

    fn transaction(&mut self, nonce: &str) -> Result<()> {
        self.expect(&msgs().Q("BEGIN"), &["C(BEGIN) Z(T)"])?;
        self.expect(&msgs().Q(&format!("INSERT INTO t VALUES (1, {nonce})")), &["C(INSERT 0 1) Z(T)"])?;
        std::thread::sleep(Duration::from_millis(self.random.random_range(0..5)));
        let count = format!("SELECT count(*) FROM t WHERE nonce = {nonce}");
        self.expect(&msgs().PBE(&count).S(), &["1 2 D(1) C(SELECT 1) Z(T)"])?;
        self.expect(&msgs().Q("ROLLBACK"), &["C(ROLLBACK) Z(I)"])
    }

    fn copy(&mut self, nonce: &str) -> Result<()> {
        let copy = || msgs().Q("BEGIN").Q("COPY t FROM STDIN").d(format!("2\t{nonce}\n").as_bytes());
        let (sent, wanted) = match self.random.random_range(0..3) {
            0 => (copy().d(b"wrong\n").c(), "C(BEGIN) Z(T) G E(22P02) Z(E) C(ROLLBACK) Z(I)"),
            1 => (copy().f("no"), "C(BEGIN) Z(T) G E(57014) Z(E) C(ROLLBACK) Z(I)"),
            _ => (copy().c(), "C(BEGIN) Z(T) G C(COPY 1) Z(T) C(ROLLBACK) Z(I)"),
        };
        self.expect(&sent.Q("ROLLBACK"), &[wanted])
    }

    fn settings(&mut self, nonce: &str) -> Result<()> {
        let shown = format!("T D({}) C(SHOW) Z(I)", self.calls_itself);
        self.expect(&msgs().Q("SHOW pgweir_test.name"), &[&shown, "E(42704) Z(I)"])?;
        let replies = self.client.talk(&msgs().Q(&format!("SET pgweir_test.name = 'c{nonce}'")))?.to_string();
        ensure!(replies == "C(SET) Z(I)", "{replies}");
        self.calls_itself = format!("c{nonce}");
        let shown = format!("T D({}) C(SHOW) Z(I)", self.calls_itself);
        self.expect(&msgs().Q("SHOW pgweir_test.name"), &[&shown])
    }

    fn flush(&mut self, nonce: &str) -> Result<()> {
        self.client.send(&msgs().P("", "SELECT $1::text").D('S', "").H())?;
        let described = self.client.read_count(3)?.to_string();
        ensure!(described == "1 t T", "{described}");
        self.client.send(&msgs().B("", "", &[nonce]).E().H())?;
        let served = self.client.read_count(3)?.to_string();
        ensure!(served == format!("2 D({nonce}) C(SELECT 1)"), "{served}");
        self.expect(&msgs().S(), &["Z(I)"])
    }
}

fn connect(port: u16) -> Result<RawClient> {
    let mut client = RawClient::bench(port)?;
    client.set_deadline(HANG);
    Ok(client)
}

/// Looks at the number of backends until `done`: never more of a node than its pool has places.
fn backends_are_bounded(weir: &Pgweir, done: &AtomicBool) -> Result<usize> {
    let mut looks = 0;
    while !done.load(Ordering::Relaxed) {
        let servers = weir.admin("SHOW SERVERS")?;
        let mut of_port = std::collections::BTreeMap::<&str, usize>::new();
        for row in servers.iter().filter(|row| row["user"] == "bench") {
            *of_port.entry(&row["port"]).or_default() += 1;
        }
        ensure!(of_port.values().all(|backends| *backends <= POOL), "{servers:?}");
        looks += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(looks)
}

/// Nothing is left behind on a node.
fn nothing_is_left(cluster: &Cluster, node: usize) -> Result<()> {
    let limit = Duration::from_secs(5);
    let open = "SELECT count(*) FROM pg_stat_activity \
                WHERE usename = 'bench' AND (state <> 'idle' OR xact_start IS NOT NULL)";
    cluster.wait_scalar(node, open, "0", limit)?;
    let backends = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench'";
    ensure!(cluster.scalar(node, backends)?.parse::<usize>()? <= POOL);
    let log = cluster.log(node)?;
    for word in ["invalid frontend message", "protocol synchronization", "invalid message format", "PANIC"] {
        ensure!(!log.contains(word), "n{node} logged {word}");
    }
    Ok(())
}

#[test]
fn ep_16_every_answer_carries_its_nonce_for_two_minutes() -> Result<()> {
    let (cluster, weir) = rig(1, &format!("default_pool_size: {POOL}"))?;
    cluster.setup("CREATE TABLE t(id int, nonce bigint); GRANT ALL ON t TO bench")?;
    let seed = from_env("PGWEIR_NONCE_SEED").unwrap_or_else(|| rand::rng().random::<u32>().into());
    let time = Duration::from_secs(from_env("PGWEIR_NONCE_SECONDS").unwrap_or(120));
    println!("seed {seed}");
    let (answered, done, port) = (AtomicUsize::new(0), AtomicBool::new(false), weir.port());
    let (count, end) = (&answered, Instant::now() + time);
    let looks = std::thread::scope(|scope| -> Result<usize> {
        let watcher = scope.spawn(|| backends_are_bounded(&weir, &done));
        let clients: Vec<_> =
            (0..CLIENTS).map(|me| scope.spawn(move || One::new(port, me, seed)?.run(end, count))).collect();
        let outcome = clients.into_iter().try_for_each(|one| one.join().expect("a client panicked"));
        done.store(true, Ordering::Relaxed);
        let looks = watcher.join().expect("the watcher panicked")?;
        outcome.map(|()| looks)
    })?;
    let answered = answered.into_inner() as u64;
    println!("{answered} answers, {looks} looks at the backends");
    ensure!(answered > 20 * time.as_secs(), "only {answered} answers in {time:?}");
    (0..2).try_for_each(|node| nothing_is_left(&cluster, node))?;
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t")?, "0");
    ensure!(weir.pool_nodes()?.iter().all(|node| node["status"] == "up"));
    Ok(())
}
