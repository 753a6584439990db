//! Random sequences of messages, mostly legal. `%k` in a text is the number of the slot that it runs in.

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::run::Way;
use crate::script::{Msg, Script, Step};

/// How far random sequences go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// What every run of the tests takes.
    Ordinary,
    /// More kinds of everything, and crowds: a run that was asked for by `PGWEIR_SEEDS`.
    Wide,
}

impl Reach {
    pub(crate) fn asked_for() -> Self {
        if std::env::var_os("PGWEIR_SEEDS").is_some() { Self::Wide } else { Self::Ordinary }
    }
}

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
    // Of a table it would depend on the plan, and that on whether somebody analyzed it, whether rows come in front.
    "SELECT 10/(3-g) FROM generate_series(1,5) g",
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
    "LISTEN ch%k",
    "NOTIFY ch%k, 'n'",
    "UNLISTEN *",
    "CREATE TEMP TABLE x1(a int)",
    "INSERT INTO x1 VALUES (1)",
    "SELECT * FROM x1",
    "DISCARD TEMP",
    "SELECT pg_try_advisory_lock(5, %k)",
    "SELECT pg_advisory_unlock(5, %k)",
    "SELECT nextval('sq')",
    "PREPARE s1 AS SELECT 12",
    "EXECUTE s1",
    "EXECUTE s2",
    "EXPLAIN (COSTS off) EXECUTE s1",
    "DEALLOCATE s1",
    "DEALLOCATE q1",
    "DEALLOCATE ALL",
    "DISCARD ALL",
    "UNLISTEN ch%k",
    "DROP TABLE x1",
    "DECLARE h CURSOR WITH HOLD FOR SELECT id FROM t ORDER BY id",
    "FETCH h",
    "CLOSE h",
    "CLOSE ALL",
];

/// What a wide run has besides.
const WIDE_SQL: &[&str] = &[
    "SAVEPOINT b",
    "ROLLBACK TO SAVEPOINT b",
    "RELEASE SAVEPOINT b",
    "ROLLBACK AND CHAIN",
    "ABORT",
    "BEGIN ISOLATION LEVEL SERIALIZABLE",
    "BEGIN READ WRITE",
    "SET TRANSACTION READ WRITE",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "SET default_transaction_read_only = off",
    "SHOW transaction_read_only",
    "SHOW transaction_isolation",
    "SET TimeZone = 'Asia/Tokyo'",
    "SET LOCAL TimeZone = 'Europe/Lisbon'",
    "SELECT '2020-01-01 00:00:00+00'::timestamptz",
    "RESET TimeZone",
    "SET DateStyle = 'German'",
    "SET DateStyle = 'nonsense'",
    "SET SESSION statement_timeout = '20s'",
    "SHOW statement_timeout",
    "SHOW ALL_OF_IT",
    "SET ROLE bench",
    "RESET ROLE",
    "SELECT current_user, session_user",
    "SET search_path = pg_catalog",
    "RESET search_path",
    "SET extra_float_digits = 0; SELECT 0.1::float8 + 0.2",
    "SET bytea_output = 'escape'",
    "SELECT '\\x0001'::bytea",
    "SET standard_conforming_strings = off",
    "SELECT 'a\\tb'",
    "DO $$ BEGIN RAISE WARNING 'so'; END $$",
    "DO $$ BEGIN PERFORM 1/0; EXCEPTION WHEN division_by_zero THEN RAISE NOTICE 'caught'; END $$",
    "EXPLAIN (COSTS off) SELECT 1",
    "VALUES (1), (2)",
    "TABLE u",
    "SELECT FROM t WHERE id = 1",
    "SELECT id FROM t WHERE id = 1 FOR UPDATE",
    "SELECT txid_current_if_assigned() IS NULL",
    "MOVE 1 IN c",
    "FETCH BACKWARD 1 FROM c",
    "FETCH ALL FROM c",
    "DECLARE s SCROLL CURSOR FOR SELECT id FROM t ORDER BY id; FETCH LAST FROM s; FETCH FIRST FROM s",
    "UPDATE t SET v = 'cur' WHERE CURRENT OF c",
    "PREPARE s2(int) AS SELECT $1 * 2",
    "EXECUTE s2(21)",
    "EXECUTE nope",
    "DEALLOCATE PREPARE s2",
    "PREPARE q3 AS INSERT INTO t VALUES (77, 'q3')",
    "EXECUTE q3",
    "COPY (SELECT id FROM t ORDER BY id) TO STDOUT",
    "COPY nowhere TO STDOUT",
    "COPY t FROM STDIN WITH (FORMAT nonsense)",
    "CREATE TEMP TABLE x2 ON COMMIT DROP AS SELECT 1 AS a",
    "SELECT a FROM x2",
    "CREATE TABLE x3(a int)",
    "ALTER TABLE x3 ADD COLUMN IF NOT EXISTS b int",
    "INSERT INTO x3 VALUES (1)",
    "SELECT a FROM x3",
    "DROP TABLE IF EXISTS x3",
    "LOCK TABLE t IN ACCESS SHARE MODE",
    "ANALYZE t",
    "VACUUM t",
    "CHECKPOINT_NOT",
    "SELECT pg_advisory_xact_lock_shared(6, %k)",
    "SELECT lo_create(0) > 0",
    "SELECT 'open",
    "SELECT \"quoted\" FROM t",
    "/* c */ SELECT 1 -- d",
];

/// Texts with parameters, and values for them: of the right number, and some not right.
const WITH_VALUES: [(&str, &[&str]); 7] = [
    ("SELECT $1::int + 1", &["41"]),
    ("SELECT $1::int, $2::text", &["1", "two"]),
    ("SELECT v FROM t WHERE id = $1", &["2"]),
    ("INSERT INTO t VALUES ($1, $2)", &["400", "four"]),
    ("SELECT $1::int", &["x"]),
    ("SELECT 10 / $1::int", &["0"]),
    ("SELECT $1::int, $2::int", &["1"]),
];

const STATEMENTS: [&str; 5] = ["", "", "s1", "s2", "q1"];
const PORTALS: [&str; 5] = ["", "", "", "p", "c"];

/// The script of a seed.
pub(crate) fn script(seed: u64, reach: Reach) -> Script {
    let mut random = StdRng::seed_from_u64(seed);
    let n = random.random_range(1..9);
    let mut steps: Vec<Step> = Vec::new();
    for _ in 0..n {
        let mut step = Step::new();
        for _ in 0..random.random_range(1..4) {
            put_some(&mut random, &mut step, reach);
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

/// The way of a seed's script, one of `names`.
pub(crate) fn way(
    seed: u64,
    names: [&'static str; 3],
    way: impl Fn(&'static str, usize, bool) -> Way,
) -> Way {
    let mut random = StdRng::seed_from_u64(seed ^ 0x5eed);
    let name = names.choose(&mut random).copied().unwrap_or(names[0]);
    let chunk = [usize::MAX, usize::MAX, 1, 3, 17, 100].choose(&mut random).copied().unwrap_or(1);
    way(name, chunk, random.random_bool(0.5))
}

fn sql(random: &mut StdRng, reach: Reach) -> Vec<u8> {
    let all: Vec<&str> = match reach {
        Reach::Ordinary => SQL.to_vec(),
        Reach::Wide => [SQL, WIDE_SQL].concat(),
    };
    let one = |random: &mut StdRng| all.choose(random).copied().unwrap_or_default();
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
fn put_some(random: &mut StdRng, step: &mut Step, reach: Reach) {
    let wide = reach == Reach::Wide;
    let kind = |random: &mut StdRng| if random.random_bool(0.5) { 'S' } else { 'P' };
    match random.random_range(0..100) {
        0..20 => step.extend([Msg::Sync, Msg::Query(sql(random, reach))]),
        // Inside of a batch that is not finished.
        20..28 => step.push(Msg::Query(sql(random, reach))),
        52..55 if wide => put_values(random, step),
        55..58 if wide => put_portal(random, step),
        28..58 => put_batch(random, step, reach),
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
        79..84 => {
            let (portal, most) = (name(random, &PORTALS), random.random_range(0..3));
            let portal = if may_have_died(step, &portal) { "p".to_owned() } else { portal };
            step.push(Msg::Execute(portal, most));
        }
        84..88 => step.push(bind(random)),
        88..95 => put_copy(random, step),
        95..97 if wide => step.push(Msg::Call(*[89, 89, 0, 2836].choose(random).unwrap_or(&89))),
        95..97 => step.push(Msg::Call(89)),
        97 => step.push(Msg::CopyData(b"7\tlate\n".to_vec())),
        98 => step.push(Msg::CopyDone),
        _ => {
            let tags: &[u8] = if wide { b"BDECPFSH" } else { b"BDECPF" };
            step.push(Msg::Raw(*tags.choose(random).unwrap_or(&b'B'), b"x".to_vec()));
        }
    }
}

fn bind(random: &mut StdRng) -> Msg {
    let values = if random.random_bool(0.15) { vec![Some(b"5".to_vec())] } else { Vec::new() };
    let results = if random.random_bool(0.1) { vec![1] } else { Vec::new() };
    let (portal, statement) = (name(random, &PORTALS), name(random, &STATEMENTS));
    Msg::Bind { portal, statement, values, formats: Vec::new(), results }
}

/// Whether a statement may come to execute itself. PostgreSQL (15 at least) dies of `EXPLAIN EXECUTE` of such a one, on a
/// direct connection as well: `ExplainExecuteQuery` and `ExplainOneUtility` call each other without end. Here a
/// statement executes only those before it.
fn runs_itself(statement: &str, sql: &[u8]) -> bool {
    const ORDER: [&str; 3] = ["q1", "s1", "s2"];
    let Some(at) = ORDER.iter().position(|name| *name == statement) else { return false };
    let text = String::from_utf8_lossy(sql);
    ORDER[at..].iter().any(|name| text.contains(&format!("EXECUTE {name}")))
}

/// Whether the portal may be one of a transaction that has failed since. PostgreSQL (15 at least) dies of an Execute of the
/// unnamed portal when it is of a utility statement (SHOW, SET), its transaction has failed and another message has failed
/// behind that, on a direct connection as well: it looks at statements that are freed (`exec_execute_message`). What was
/// bound in the same batch is skipped with the batch.
fn may_have_died(step: &Step, portal: &str) -> bool {
    let batch = step.iter().rev().take_while(|msg| !matches!(msg, Msg::Sync | Msg::Query(_) | Msg::Call(_)));
    portal.is_empty()
        && !batch.into_iter().any(|msg| matches!(msg, Msg::Bind { portal, .. } if portal.is_empty()))
}

/// `P D? B D? E` and mostly Sync.
fn put_batch(random: &mut StdRng, step: &mut Step, reach: Reach) {
    for _ in 0..random.random_range(1..3) {
        let (statement, portal) = (name(random, &STATEMENTS), name(random, &PORTALS));
        if !statement.is_empty() && random.random_bool(0.6) {
            step.push(Msg::Close('S', statement.clone()));
        }
        let text = Some(sql(random, reach)).filter(|text| !runs_itself(&statement, text));
        let sql = text.unwrap_or_else(|| b"SELECT 1".to_vec());
        step.push(Msg::Parse { name: statement.clone(), sql, types: Vec::new() });
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

/// A statement with parameters, named or not, run now or over Syncs.
fn put_values(random: &mut StdRng, step: &mut Step) {
    let Some((sql, values)) = WITH_VALUES.choose(random) else { return };
    let statement = name(random, &STATEMENTS);
    let types = if random.random_bool(0.3) { vec![23] } else { Vec::new() };
    step.push(Msg::Parse { name: statement.clone(), sql: sql.as_bytes().to_vec(), types });
    if random.random_bool(0.5) {
        step.extend([Msg::Describe('S', statement.clone()), Msg::Sync]);
    }
    for _ in 0..random.random_range(1..4) {
        let value = |text: &&str| Some(text.as_bytes().to_vec());
        let mut values: Vec<_> = values.iter().map(value).collect();
        if random.random_bool(0.2) {
            values[0] = None;
        }
        let results = if random.random_bool(0.3) { vec![1] } else { Vec::new() };
        let (portal, statement) = (String::new(), statement.clone());
        step.push(Msg::Bind { portal, statement, values, formats: Vec::new(), results });
        step.push(Msg::Execute(String::new(), 0));
        step.push(if random.random_bool(0.7) { Msg::Sync } else { Msg::Flush });
    }
}

/// A portal that is read bit by bit, over Flushes and Syncs, in a transaction or not.
fn put_portal(random: &mut StdRng, step: &mut Step) {
    if random.random_bool(0.7) {
        step.extend([Msg::Sync, Msg::Query(b"BEGIN".to_vec())]);
    }
    let (portal, sql) = (name(random, &PORTALS), b"SELECT generate_series(1,7)".to_vec());
    step.push(Msg::Parse { name: String::new(), sql, types: Vec::new() });
    let (values, formats, results) = (Vec::new(), Vec::new(), Vec::new());
    step.push(Msg::Bind { portal: portal.clone(), statement: String::new(), values, formats, results });
    for _ in 0..random.random_range(2..6) {
        step.push(Msg::Execute(portal.clone(), random.random_range(0..4)));
        match random.random_range(0..5) {
            0 | 1 => step.push(Msg::Sync),
            2 => step.push(Msg::Flush),
            3 => step
                .extend([Msg::Sync, Msg::Query(sql_of(random, &["SELECT 1", "SAVEPOINT a", "SELECT 1/0"]))]),
            _ => {}
        }
    }
    if random.random_bool(0.5) {
        step.push(Msg::Close('P', portal));
    }
    step.push(Msg::Sync);
}

fn sql_of(random: &mut StdRng, of: &[&str]) -> Vec<u8> {
    name(random, of).into_bytes()
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
