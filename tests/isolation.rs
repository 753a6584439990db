//! Random state of sessions on few backends: what each client sees is what a direct session of its own shows.
//!
//! Two clients of one pool, and two direct sessions that are told the same; after each statement their answers are
//! compared, and what one of the clients sees of its state. `PGWEIR_SEED` and `PGWEIR_SEEDS` repeat and extend.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Cluster, Pgweir, RawClient, msgs, rig};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// How many statements a seed is.
const LENGTH: usize = 60;
/// How many seeds an ordinary run takes at most, and for how long.
const ORDINARY: (u64, Duration) = (40, Duration::from_secs(25));

/// `@` is a number of the client, `#` a small random one, `~` what tells the sequences of the two worlds apart.
const STATEMENTS: &[&str] = &[
    "BEGIN",
    "BEGIN",
    "BEGIN",
    "COMMIT",
    "COMMIT",
    "COMMIT",
    "ROLLBACK",
    "ROLLBACK",
    "SAVEPOINT s#",
    "ROLLBACK TO s#",
    "RELEASE s#",
    "SELECT 1/0",
    "SELECT 1",
    "SET work_mem = '#MB'",
    "SET LOCAL work_mem = '2#MB'",
    "RESET work_mem",
    "SET TimeZone = 'Etc/GMT+#'",
    "SELECT set_config('app.x', '@#', false)",
    "SELECT set_config('app.x', '@#', true)",
    "SET app.x TO 'mine @#'; SET LOCAL work_mem = '3#MB'",
    "SET app.x = DEFAULT",
    "RESET ALL",
    "SET ROLE boss",
    "SET LOCAL ROLE boss",
    "RESET ROLE",
    "SET SESSION AUTHORIZATION bench",
    "RESET SESSION AUTHORIZATION",
    "DISCARD ALL",
    "DISCARD TEMP",
    "DISCARD PLANS",
    "PREPARE p# AS SELECT '@#'",
    "EXECUTE p#",
    "DEALLOCATE p#",
    "DEALLOCATE ALL",
    "CREATE TEMP TABLE x#(a int)",
    "CREATE TEMP TABLE y# ON COMMIT DROP AS SELECT @ AS a",
    "DROP TABLE x#",
    "SELECT a FROM y#",
    "SELECT pg_advisory_lock(~@#)",
    "SELECT pg_advisory_unlock(~@#)",
    "SELECT pg_advisory_unlock_all()",
    "SELECT pg_advisory_xact_lock(~@#)",
    "LISTEN c#",
    "UNLISTEN c#",
    "UNLISTEN *",
    "DECLARE h# CURSOR WITH HOLD FOR SELECT generate_series(1, 3)",
    "FETCH h#",
    "CLOSE h#",
    "CLOSE ALL",
];

/// The same, of sequences: whose sessions are held more often.
const OF_SEQUENCES: &[&str] = &[
    "SELECT nextval('q~')",
    "SELECT currval('q~')",
    "SELECT lastval()",
    "SELECT lastval()",
    "INSERT INTO r~(v) VALUES ('@') RETURNING id",
    "SELECT currval('r~_id_seq')",
    "DISCARD SEQUENCES",
    "PREPARE p# AS SELECT lastval()",
];

/// What a client looks at. In a failed transaction it sees nothing, here and there.
const VIEWS: &[&str] = &[
    "SELECT current_setting('work_mem'), current_setting('TimeZone'), coalesce(current_setting('app.x', true), ''), \
     current_user, session_user",
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
    "SELECT string_agg(c, ',' ORDER BY c) FROM pg_listening_channels() AS c",
    "SELECT to_regclass('pg_temp.x1') IS NULL, to_regclass('pg_temp.x2') IS NULL, to_regclass('pg_temp.x3') IS NULL",
    "SELECT string_agg(name, ',' ORDER BY name) FROM pg_cursors WHERE is_holdable",
];

/// A session through pgweir, and its like on a direct connection.
struct Twins {
    direct: RawClient,
    through: RawClient,
    number: usize,
}

impl Twins {
    fn new(cluster: &Cluster, weir: &Pgweir, number: usize) -> Result<Self> {
        Ok(Self { direct: cluster.direct(0)?, through: weir.client()?, number })
    }

    /// Both are told the same and must answer the same.
    fn tell(&mut self, sql: &str, extended: bool) -> Result<()> {
        let answer = |client: &mut RawClient, world: &str| -> Result<String> {
            let sql = sql.replace('~', world).replace('@', &self.number.to_string());
            let sent = if extended { msgs().PBE(&sql).S() } else { msgs().Q(&sql) };
            Ok(client.talk(&sent)?.to_string())
        };
        let (wanted, got) = (answer(&mut self.direct, "1")?, answer(&mut self.through, "2")?);
        ensure!(got == wanted, "client {}: {sql}: {got} instead of {wanted}", self.number);
        Ok(())
    }
}

fn statement(rng: &mut StdRng, seed: u64) -> String {
    let sequences = seed.is_multiple_of(2) && rng.random_bool(0.3);
    let from = if sequences { OF_SEQUENCES } else { STATEMENTS };
    let sql = from.choose(rng).copied().unwrap_or("SELECT 1");
    sql.replace('#', &rng.random_range(1..4).to_string())
}

fn run(cluster: &Cluster, weir: &Pgweir, seed: u64) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut told = Vec::new();
    let mut both = [Twins::new(cluster, weir, 1)?, Twins::new(cluster, weir, 2)?];
    for _ in 0..LENGTH {
        let sql = statement(&mut rng, seed);
        let (who, extended) = (rng.random_range(0..2), rng.random_bool(0.4) && !sql.contains(';'));
        told.push(format!("{}: {sql}{}", who + 1, if extended { " (extended)" } else { "" }));
        let story = || format!("after\n  {}", told.join("\n  "));
        both[who].tell(&sql, extended).with_context(story)?;
        let (looks, view) = (rng.random_range(0..2), VIEWS[rng.random_range(0..VIEWS.len())]);
        both[looks].tell(view, rng.random_bool(0.5)).with_context(story)?;
    }
    Ok(())
}

/// SL-01, SL-02, SL-05: on two backends, so that a session that is held leaves one to the other.
fn seeds_show_nothing_of_others(yaml: &str) -> Result<()> {
    let given = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().context("a number"));
    let (first, some) = (given("PGWEIR_SEED").transpose()?, given("PGWEIR_SEEDS").transpose()?);
    let (first, count) = (first.unwrap_or(1), some.unwrap_or(ORDINARY.0));
    let (cluster, weir) = rig(0, yaml)?;
    cluster.setup("CREATE ROLE boss; GRANT boss TO bench")?;
    for world in 1..3 {
        cluster.setup(&format!(
            "CREATE SEQUENCE q{world}; CREATE TABLE r{world}(id serial, v text); \
             GRANT ALL ON q{world}, r{world}, r{world}_id_seq TO bench, boss"
        ))?;
    }
    // Sessions of this kind ask outside of transactions, which is known once one has.
    ensure!(weir.client()?.scalar("SELECT lastval()").is_err());
    let (started, mut done) = (Instant::now(), 0);
    for seed in first..first + count {
        if some.is_none() && started.elapsed() > ORDINARY.1 {
            break;
        }
        run(&cluster, &weir, seed).with_context(|| format!("PGWEIR_SEED={seed} PGWEIR_SEEDS=1"))?;
        done += 1;
    }
    println!("{done} seeds from {first} in {:?}", started.elapsed());
    ensure!(done > 0 || count == 0, "no seed was run");
    Ok(())
}

#[test]
fn random_state_stays_with_its_client() -> Result<()> {
    seeds_show_nothing_of_others("default_pool_size: 2\nquery_wait_timeout: 20s")
}

#[test]
fn random_state_stays_with_its_client_in_session_mode() -> Result<()> {
    seeds_show_nothing_of_others("default_pool_size: 2\nquery_wait_timeout: 20s\npool_mode: session")
}
