//! The differential test: a client cannot tell pgweir from PostgreSQL.
//!
//! Scripts in the notation of the behaviour cases go to a direct connection to the primary and through pgweir:
//! transaction and session pooling, alone and with eight clients on two backends, step by step and all in one
//! write, in packets of any size. What differs and is accepted stands in `differential/known.rs`.
//!
//! `PGWEIR_SCRIPT` runs one script only, `PGWEIR_SEED` and `PGWEIR_SEEDS` repeat and extend the random part.

#[path = "differential/known.rs"]
mod known;
#[path = "differential/random.rs"]
mod random;
#[path = "differential/run.rs"]
mod run;
#[path = "differential/script.rs"]
mod script;
#[path = "differential/shrink.rs"]
mod shrink;
#[path = "differential/table.rs"]
mod table;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Cluster, ClusterOptions, Login, Pgweir, PgweirOptions, ServerAuth};

use run::{Slot, Way};
use script::Script;

/// A primary and its standby, and a pgweir for each way of pooling.
struct Rig {
    transaction: Pgweir,
    session: Pgweir,
    crowded: Pgweir,
    crowded_sessions: Pgweir,
    // Dropped last: the others run in its directory.
    cluster: Cluster,
}

/// Slots of their own, each in a database, and those that share one.
const ALONE: usize = 3;
const CROWD: usize = 8;

impl Rig {
    fn new() -> Result<Self> {
        let options =
            ClusterOptions { standbys: 1, server_auth: ServerAuth::Trust, ..ClusterOptions::default() };
        let cluster = Cluster::new(options)?;
        for name in (0..ALONE).map(|n| format!("d{n}")).chain(["crowd".to_owned()]) {
            cluster.sql(0, &format!("CREATE DATABASE {name}"))?;
        }
        cluster.wait_replay()?;
        let start = |yaml: &str| Pgweir::start_with(&cluster, &PgweirOptions::yaml(yaml).trusting());
        Ok(Self {
            transaction: start("")?,
            session: start("pool_mode: session")?,
            crowded: start("default_pool_size: 2")?,
            // Whoever finds both taken waits for a session to end.
            crowded_sessions: start("default_pool_size: 2\npool_mode: session")?,
            cluster,
        })
    }

    fn alone(&self) -> Result<Vec<Slot>> {
        (0..ALONE).map(|n| Slot::new(&self.cluster, &format!("d{n}"), n, false)).collect()
    }

    fn crowd(&self) -> Result<Vec<Slot>> {
        (0..CROWD).map(|n| Slot::new(&self.cluster, "crowd", n, true)).collect()
    }

    fn direct(&self, whole: bool) -> Way {
        Way { name: "direct", port: self.cluster.port(0), chunk: usize::MAX, whole }
    }

    fn way(&self, name: &'static str, chunk: usize, whole: bool) -> Way {
        let weir = match name {
            "session" => &self.session,
            "crowd" => &self.crowded,
            "crowd of sessions" => &self.crowded_sessions,
            _ => &self.transaction,
        };
        Way { name, port: weir.port(), chunk, whole }
    }

    /// Runs a script every way when it has the slot's database for itself.
    fn alone_in(&self, slot: &mut Slot, script: &Script, turn: usize) -> Result<Vec<String>> {
        const CHUNKS: [usize; 8] = [1, 5, 2, 64, 3, 11, 4, 1000];
        let chunk = |n: usize| CHUNKS[(turn + n) % CHUNKS.len()];
        let mut found = Vec::new();
        for whole in [false, true] {
            if table::is_combined(script) && whole == (turn % 4 < 2) {
                continue;
            }
            let wanted = slot.direct(self.direct(whole), script)?;
            let turned = turn.is_multiple_of(2) == whole;
            for (name, chunk) in [
                ("transaction", if turned { usize::MAX } else { chunk(0) }),
                ("session", if turned { chunk(3) } else { usize::MAX }),
            ] {
                found.extend(slot.compare(self.way(name, chunk, whole), script, &wanted)?);
                if !found.is_empty() {
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }
}

/// Runs `work` on every slot at once, each taking the next of `n` turns until none is left or `limit` has passed;
/// what was found, and how many turns were taken.
fn in_turns<'a>(
    slots: &mut [Slot],
    n: usize,
    limit: Duration,
    work: &(impl Fn(&mut Slot, usize) -> Result<Vec<String>> + Sync + 'a),
) -> Result<(Vec<String>, usize)> {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let end = Instant::now() + limit;
    let found = std::thread::scope(|scope| {
        let all: Vec<_> = slots
            .iter_mut()
            .map(|slot| {
                scope.spawn(|| -> Result<Vec<String>> {
                    let mut found = Vec::new();
                    while Instant::now() < end {
                        let turn = next.fetch_add(1, Ordering::Relaxed);
                        if turn >= n {
                            break;
                        }
                        found.extend(work(slot, turn)?);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(found)
                })
            })
            .collect();
        all.into_iter().map(|one| one.join().expect("no panic")).collect::<Result<Vec<_>>>()
    })?;
    Ok((found.concat(), done.into_inner()))
}

fn none(found: &[String]) -> Result<()> {
    const SHOWN: usize = 600;
    ensure!(
        found.is_empty(),
        "{} differences\n{}",
        found.len(),
        found.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("\n")
    );
    Ok(())
}

#[test]
fn logins_are_those_of_the_server() -> Result<()> {
    let rig = Rig::new()?;
    for login in [
        Login::bench(),
        Login::bench()
            .with("application_name", "some one")
            .with("options", "-c work_mem=5MB -c DateStyle=German"),
        Login::bench().with("client_encoding", "LATIN1").with("TimeZone", "Asia/Tokyo"),
    ] {
        let wanted = run::greeting(&login, rig.cluster.port(0))?;
        for name in ["transaction", "session", "transaction"] {
            assert_eq!(run::greeting(&login, rig.way(name, 1, false).port)?, wanted, "{name}");
        }
    }
    Ok(())
}

#[test]
fn scripts_are_answered_as_by_the_server() -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(120);
    let scripts = table::scripts()?;
    let rig = Rig::new()?;
    let started = Instant::now();
    let (mut found, done) = in_turns(&mut rig.alone()?, scripts.len(), LIMIT, &|slot, turn| {
        let script = scripts[turn].in_slot(slot.number())?;
        rig.alone_in(slot, &script, turn)
    })?;
    println!("{done} scripts alone in {:?}", started.elapsed());
    let (crowded, also) = in_turns(&mut rig.crowd()?, scripts.len(), LIMIT, &|slot, turn| {
        let script = scripts[turn].in_slot(slot.number())?;
        if table::is_combined(&script) && !turn.is_multiple_of(2) {
            return Ok(Vec::new());
        }
        let whole = turn.is_multiple_of(3);
        let wanted = slot.direct(rig.direct(whole), &script)?;
        let name = if turn % 4 < 3 { "crowd" } else { "crowd of sessions" };
        let chunk = [usize::MAX, 7, usize::MAX, 90][turn / 4 % 4];
        Ok(slot.compare(rig.way(name, chunk, whole), &script, &wanted)?.into_iter().collect())
    })?;
    println!("{also} scripts in a crowd after {:?}", started.elapsed());
    found.extend(crowded);
    none(&found)?;
    ensure!(done == scripts.len() && also == done, "only {done} and {also} of {} scripts", scripts.len());
    Ok(())
}

#[test]
fn random_sequences_are_answered_as_by_the_server() -> Result<()> {
    let (first, seeds) = random::seeds()?;
    let rig = Rig::new()?;
    println!("PGWEIR_SEED={first} PGWEIR_SEEDS={seeds}");
    let reach = random::Reach::asked_for();
    let limit = Duration::from_secs(if seeds > random::ORDINARY { 3600 } else { 25 });
    let alone = ["transaction", "transaction", "session"];
    let crowded = ["crowd", "crowd", "crowd of sessions"];
    let one = |slot: &mut Slot, seed: u64, names| {
        let script = random::script(seed, reach).in_slot(slot.number())?;
        // Should the server die of it, that is the last thing said.
        let context = format!("PGWEIR_SEED={seed} PGWEIR_SEEDS=1 {script}");
        if reach == random::Reach::Wide {
            // What another one leaves behind in a crowd is found among those that ran just before.
            println!("slot {} {context}", slot.number());
        }
        let way = random::way(seed, names, |name, chunk, whole| rig.way(name, chunk, whole));
        let direct = rig.direct(way.whole);
        let wanted = slot.direct(direct, &script).with_context(|| context.clone())?;
        let difference = slot.compare(way, &script, &wanted).context(context)?;
        let Some(difference) = difference else { return Ok(Vec::new()) };
        let small = shrink::shrink(slot, direct, way, &script)?;
        Ok(vec![format!("PGWEIR_SEED={seed} PGWEIR_SEEDS=1\n{difference}\nshrunken: {small}")])
    };
    let (mut found, done) =
        in_turns(&mut rig.alone()?, seeds, limit, &|slot, turn| one(slot, first + turn as u64, alone))?;
    println!("{done} of {seeds} seeds");
    if reach == random::Reach::Wide {
        let turns = |slot: &mut Slot, turn: usize| one(slot, first + turn as u64, crowded);
        let (more, also) = in_turns(&mut rig.crowd()?, seeds, limit, &turns)?;
        found.extend(more);
        println!("{also} of {seeds} seeds in a crowd");
    }
    none(&found)
}
