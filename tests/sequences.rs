//! `currval` and `lastval` are the session's own: outside of transactions, on few backends, whoever else advances
//! sequences meanwhile.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::{Cluster, Login, Pgweir, RawClient, eventually, msgs, rig};

const SECONDS: Duration = Duration::from_secs(5);

fn start(yaml: &str) -> Result<(Cluster, Pgweir)> {
    let (cluster, weir) = rig(0, yaml)?;
    cluster.setup(
        "CREATE TABLE t(id serial, v text); CREATE SEQUENCE sq; GRANT ALL ON t, t_id_seq, sq TO bench",
    )?;
    Ok((cluster, weir))
}

fn held(weir: &Pgweir) -> Result<usize> {
    Ok(weir.admin("SHOW PINS")?.len())
}

/// Advances a sequence and asks for it, in statements of their own.
fn insert_and_ask(client: &mut RawClient, extended: bool) -> Result<()> {
    let mut ask = |sql: &str| if extended { client.scalar_extended(sql, &[]) } else { client.scalar(sql) };
    let id = ask("INSERT INTO t(v) VALUES ('x') RETURNING id")?;
    assert_eq!(ask("SELECT lastval()")?, id);
    assert_eq!(ask("SELECT currval('t_id_seq')")?, id);
    let next = ask("SELECT nextval('sq')")?;
    assert_eq!(ask("SELECT lastval()")?, next);
    assert_eq!(ask("SELECT currval(pg_get_serial_sequence('t', 'id'))")?, id);
    Ok(())
}

/// Eight clients on two backends, one session after the other, once one of their kind has asked.
#[test]
fn a_crowd_finds_its_own_values() -> Result<()> {
    let (_cluster, weir) = start("default_pool_size: 2\nquery_wait_timeout: 60s")?;
    ensure!(weir.client()?.scalar("SELECT lastval()").is_err(), "nothing was advanced yet");
    let weir = &weir;
    std::thread::scope(|scope| {
        let crowd: Vec<_> = (0..8)
            .map(|n| {
                scope.spawn(move || -> Result<()> {
                    for round in 0..12 {
                        let mut client = weir.client()?;
                        insert_and_ask(&mut client, (n + round) % 2 == 0)
                            .with_context(|| format!("client {n}, round {round}"))?;
                        client.terminate()?;
                    }
                    Ok(())
                })
            })
            .collect();
        crowd.into_iter().try_for_each(|client| client.join().expect("no panic"))
    })
}

/// Who calls `nextval` itself finds its value behind it, the first time too; and never another session's.
#[test]
fn values_of_others_are_not_seen() -> Result<()> {
    let (_cluster, weir) = start("default_pool_size: 1\nquery_wait_timeout: 20s")?;
    let (mut one, mut other) = (weir.client()?, weir.client()?);
    let value = one.scalar("SELECT nextval('sq')")?;
    assert_eq!(held(&weir)?, 1, "held for what it may ask");
    // It does nothing, and somebody waits: the backend is not kept from others.
    let taken = other.scalar("SELECT setval('sq', 100)")?;
    assert_eq!(taken, "100");
    other.terminate()?;
    assert_eq!(
        one.sqlstate_of("SELECT lastval()")?,
        "55000",
        "what is lost is an error, not another's value"
    );
    assert_eq!(one.sqlstate_of("SELECT currval('sq')")?, "55000");
    assert_eq!(value, "1");
    // From here on its kind is known to ask: it is held until it has everything forgotten.
    let value = one.scalar("SELECT nextval('sq')")?;
    let mut other = weir.client()?;
    other.send(&msgs().Q("SELECT currval('sq')"))?;
    for _ in 0..3 {
        assert_eq!(one.scalar("SELECT currval('sq')")?, value);
        assert_eq!(one.scalar("SELECT lastval()")?, value);
    }
    one.simple("DISCARD SEQUENCES")?;
    assert_eq!(other.read_ready(1)?.to_string(), "T E(55000) Z(I)");
    assert_eq!(one.sqlstate_of("SELECT lastval()")?, "55000");
    // In a transaction that has advanced nothing, in a batch, and by EXECUTE.
    one.simple("SELECT nextval('sq'); DISCARD SEQUENCES")?;
    other.simple("SELECT nextval('sq')")?;
    other.simple("DISCARD TEMP")?;
    other.terminate()?;
    one.simple("PREPARE asks AS SELECT lastval()")?;
    for sent in [
        msgs().Q("BEGIN").Q("SELECT 1").Q("SELECT lastval()").Q("ROLLBACK"),
        msgs().PBE("SELECT 1").PBE("SELECT lastval()").S(),
        msgs().Q("EXECUTE asks"),
    ] {
        let mut spoiler = Login::bench().with("application_name", "spoiler").connect(weir.port())?;
        spoiler.simple("INSERT INTO t(v) VALUES ('x')")?;
        spoiler.terminate()?;
        one.send(&sent)?;
        let replies = one.read_ready(sent.ready_due())?;
        assert_eq!(replies.error().map(|fields| fields.get('C')), Some("55000"), "{replies}");
    }
    Ok(())
}

/// Who asks within the transaction that advances is not held for it.
#[test]
fn within_a_transaction_nobody_is_held() -> Result<()> {
    let (_cluster, weir) = start("default_pool_size: 1\nquery_wait_timeout: 10s")?;
    let mut clients = [weir.client()?, weir.client()?, weir.client()?];
    for round in 0..12 {
        let client = &mut clients[round % 3];
        client.simple("BEGIN")?;
        let id = client.scalar("INSERT INTO t(v) VALUES ('x') RETURNING id")?;
        assert_eq!(client.scalar("SELECT lastval()")?, id);
        assert_eq!(client.scalar("SELECT currval('t_id_seq')")?, id);
        client.simple("COMMIT")?;
        ensure!(eventually(SECONDS, || held(&weir).is_ok_and(|held| held == 0)), "held in round {round}");
    }
    Ok(())
}

/// Sessions that advance sequences and never ask are not held for ever, nor are others of their kind.
#[test]
fn who_never_asks_is_let_go() -> Result<()> {
    let (_cluster, weir) = start("default_pool_size: 2\nquery_wait_timeout: 20s")?;
    let mut patient = weir.client()?;
    patient.simple("SELECT nextval('sq')")?;
    assert_eq!(held(&weir)?, 1);
    for _ in 0..16 {
        patient.simple("SELECT 1")?;
    }
    ensure!(eventually(SECONDS, || held(&weir).is_ok_and(|held| held == 0)), "still held");
    for _ in 0..20 {
        let mut client = weir.client()?;
        client.simple("SELECT nextval('sq')")?;
        client.terminate()?;
    }
    let mut many = (0..10).map(|_| weir.client()).collect::<Result<Vec<_>>>()?;
    for client in &mut many {
        client.simple("SELECT nextval('sq')")?;
    }
    assert_eq!(held(&weir)?, 0, "nobody of this kind asks");
    // Another kind is another matter.
    let mut stranger = Login::bench().with("application_name", "asks").connect(weir.port())?;
    let value = stranger.scalar("SELECT nextval('sq')")?;
    assert_eq!(stranger.scalar("SELECT lastval()")?, value);
    assert_eq!(held(&weir)?, 1);
    Ok(())
}
