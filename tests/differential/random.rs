//! Random sequences of messages, mostly legal.

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::run::Way;
use crate::script::{Msg, Script, Step};

/// How many seeds an ordinary run takes at most; it stops before when its time is over.
pub(crate) const ORDINARY: usize = 500;

/// The first seed and how many: of `PGWEIR_SEED` and `PGWEIR_SEEDS`, or else always the same.
pub(crate) fn seeds() -> Result<(u64, usize)> {
    let given = |name: &str| std::env::var(name).ok();
    let first = given("PGWEIR_SEED").map(|text| text.parse().context("PGWEIR_SEED")).transpose()?;
    let n = given("PGWEIR_SEEDS").map(|text| text.parse().context("PGWEIR_SEEDS")).transpose()?;
    Ok((first.unwrap_or(1), n.unwrap_or(ORDINARY)))
}

const SQL: &[&str] = &[
    "SELECT 1",
    "SELECT 'two', NULL",
    "SELECT * FROM t ORDER BY id",
    "SELECT generate_series(1,4)",
    "SELECT v FROM t WHERE id = 2",
    "SELECT 1/0",
    "SELECT 10/(3-id) FROM t ORDER BY id",
    "SELEC",
    "",
    "-- none",
    "SELECT noisy(1)",
    "SELECT touch(2)",
    "SELECT quiet(3)",
    "INSERT INTO t SELECT max(id) + 1, 'new' FROM t RETURNING id",
    "INSERT INTO t VALUES (1)",
    "UPDATE t SET v = v || '+' WHERE id = 3",
    "DELETE FROM t WHERE id = 5",
    "INSERT INTO u VALUES (1, 99)",
    "SELECT count(*) FROM t",
    "BEGIN",
    "BEGIN",
    "BEGIN READ ONLY",
    "START TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "COMMIT",
    "COMMIT",
    "ROLLBACK",
    "ROLLBACK",
    "END",
    "COMMIT AND CHAIN",
    "SAVEPOINT a",
    "ROLLBACK TO a",
    "RELEASE a",
    "SET TRANSACTION READ ONLY",
    "SET work_mem = '3MB'",
    "SET LOCAL work_mem = '5MB'",
    "SHOW work_mem",
    "RESET work_mem",
    "SET application_name = 'rnd'",
    "SELECT set_config('work_mem', '7MB', false)",
    "SELECT set_config('application_name', 'loc', true)",
    "RESET ALL",
    "PREPARE q1 AS SELECT 11",
    "PREPARE q2(int) AS SELECT $1 + 1",
    "EXECUTE q1",
    "EXECUTE q2(4)",
    "DECLARE c CURSOR FOR SELECT id FROM t ORDER BY id",
    "FETCH 2 FROM c",
    "CLOSE c",
    "COPY t TO STDOUT",
    "LISTEN ch",
    "NOTIFY ch, 'n'",
    "UNLISTEN *",
    "CREATE TEMP TABLE x1(a int)",
    "INSERT INTO x1 VALUES (1)",
    "SELECT * FROM x1",
    "DISCARD TEMP",
    "SELECT pg_try_advisory_lock(5)",
    "SELECT pg_advisory_unlock(5)",
    "SELECT nextval('sq')",
    "PREPARE s1 AS SELECT 12",
    "EXECUTE s1",
    "EXECUTE s2",
    "EXPLAIN (COSTS off) EXECUTE s1",
    "DEALLOCATE s1",
    "DEALLOCATE q1",
    "DEALLOCATE ALL",
    "DISCARD ALL",
    "UNLISTEN ch",
    "DROP TABLE x1",
    "DECLARE h CURSOR WITH HOLD FOR SELECT id FROM t ORDER BY id",
    "FETCH h",
    "CLOSE h",
    "CLOSE ALL",
];

const STATEMENTS: [&str; 5] = ["", "", "s1", "s2", "q1"];
const PORTALS: [&str; 5] = ["", "", "", "p", "c"];

/// The script of a seed.
pub(crate) fn script(seed: u64) -> Script {
    let mut random = StdRng::seed_from_u64(seed);
    let n = random.random_range(1..9);
    let mut steps: Vec<Step> = Vec::new();
    for _ in 0..n {
        let mut step = Step::new();
        for _ in 0..random.random_range(1..4) {
            put_some(&mut random, &mut step);
        }
        steps.push(flushed(step));
    }
    steps.push(vec![Msg::Sync, Msg::Query(b"ROLLBACK".to_vec()), Msg::Query(b"SHOW work_mem".to_vec())]);
    Script { name: format!("seed {seed}"), steps }
}

/// What comes last has the server answer: the replies to what nobody asked to be flushed come at any time.
pub(crate) fn flushed(mut step: Step) -> Step {
    if !matches!(step.last(), None | Some(Msg::Sync | Msg::Flush | Msg::Query(_) | Msg::Call(_))) {
        step.push(Msg::Flush);
    }
    step
}

/// The way of a seed's script.
pub(crate) fn way(seed: u64, way: impl Fn(&'static str, usize, bool) -> Way) -> Way {
    let mut random = StdRng::seed_from_u64(seed ^ 0x5eed);
    let name =
        ["transaction", "transaction", "session"].choose(&mut random).copied().unwrap_or("transaction");
    let chunk = [usize::MAX, usize::MAX, 1, 3, 17, 100].choose(&mut random).copied().unwrap_or(1);
    way(name, chunk, random.random_bool(0.5))
}

fn sql(random: &mut StdRng) -> Vec<u8> {
    let one = |random: &mut StdRng| SQL.choose(random).copied().unwrap_or_default();
    let mut text = one(random).to_owned();
    while random.random_bool(0.12) {
        text = format!("{text}; {}", one(random));
    }
    text.into_bytes()
}

fn name(random: &mut StdRng, of: &[&str]) -> String {
    of.choose(random).copied().unwrap_or_default().to_owned()
}

/// One message or a group that belongs together.
fn put_some(random: &mut StdRng, step: &mut Step) {
    let kind = |random: &mut StdRng| if random.random_bool(0.5) { 'S' } else { 'P' };
    match random.random_range(0..100) {
        0..20 => step.extend([Msg::Sync, Msg::Query(sql(random))]),
        // Inside of a batch that is not finished.
        20..28 => step.push(Msg::Query(sql(random))),
        28..58 => put_batch(random, step),
        58..66 => step.push(Msg::Sync),
        66..70 => step.push(Msg::Flush),
        70..75 => {
            let kind = kind(random);
            step.push(Msg::Describe(kind, name(random, &["", "s1", "p", "nope"])));
        }
        75..79 => {
            let kind = kind(random);
            step.push(Msg::Close(kind, name(random, &["", "s1", "s2", "p", "nope"])));
        }
        79..84 => step.push(Msg::Execute(name(random, &PORTALS), random.random_range(0..3))),
        84..88 => step.push(bind(random)),
        88..95 => put_copy(random, step),
        95..97 => step.push(Msg::Call(89)),
        97 => step.push(Msg::CopyData(b"7\tlate\n".to_vec())),
        98 => step.push(Msg::CopyDone),
        _ => step.push(Msg::Raw(*b"BDECPF".choose(random).unwrap_or(&b'B'), b"x".to_vec())),
    }
}

fn bind(random: &mut StdRng) -> Msg {
    let values = if random.random_bool(0.15) { vec![Some(b"5".to_vec())] } else { Vec::new() };
    let results = if random.random_bool(0.1) { vec![1] } else { Vec::new() };
    let (portal, statement) = (name(random, &PORTALS), name(random, &STATEMENTS));
    Msg::Bind { portal, statement, values, formats: Vec::new(), results }
}

/// `P D? B D? E` and mostly Sync.
fn put_batch(random: &mut StdRng, step: &mut Step) {
    for _ in 0..random.random_range(1..3) {
        let (statement, portal) = (name(random, &STATEMENTS), name(random, &PORTALS));
        if !statement.is_empty() && random.random_bool(0.6) {
            step.push(Msg::Close('S', statement.clone()));
        }
        step.push(Msg::Parse { name: statement.clone(), sql: sql(random), types: Vec::new() });
        if random.random_bool(0.3) {
            step.push(Msg::Describe('S', statement.clone()));
        }
        let (values, formats, results) = (Vec::new(), Vec::new(), Vec::new());
        step.push(Msg::Bind { portal: portal.clone(), statement, values, formats, results });
        if random.random_bool(0.3) {
            step.push(Msg::Describe('P', portal.clone()));
        }
        step.push(Msg::Execute(portal, if random.random_bool(0.2) { 2 } else { 0 }));
    }
    if random.random_bool(0.8) {
        step.push(Msg::Sync);
    }
}

/// A COPY IN by either protocol, and what may go wrong with it.
fn put_copy(random: &mut StdRng, step: &mut Step) {
    let sql = b"COPY t FROM STDIN".to_vec();
    let extended = random.random_bool(0.5);
    if extended {
        step.push(Msg::Parse { name: String::new(), sql, types: Vec::new() });
        let (portal, statement) = (String::new(), String::new());
        let (values, formats, results) = (Vec::new(), Vec::new(), Vec::new());
        step.push(Msg::Bind { portal, statement, values, formats, results });
        step.push(Msg::Execute(String::new(), 0));
        if random.random_bool(0.4) {
            step.push(Msg::Sync);
        }
    } else {
        step.push(Msg::Query(sql));
    }
    for n in 0..random.random_range(0..3) {
        let bad = random.random_bool(0.3);
        step.push(Msg::CopyData(if bad {
            b"bad\n".to_vec()
        } else {
            format!("{}\tc\n", 300 + n).into_bytes()
        }));
    }
    step.push(if random.random_bool(0.8) { Msg::CopyDone } else { Msg::CopyFail("no".to_owned()) });
    if extended {
        step.push(Msg::Sync);
    }
}
