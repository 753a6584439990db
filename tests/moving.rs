//! Sessions that go on with another worker: their clients do not notice.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{
    Cluster, ClusterOptions, Login, Pgweir, PgweirOptions, Pki, RawClient, Signature, TlsOffer, msgs,
};

const CLIENTS: usize = 12;
/// A limit of a hang.
const LIMIT: Duration = Duration::from_secs(60);

fn moved(weir: &Pgweir) -> Result<f64> {
    weir.metrics()?.get("pgweir_sessions_moved_total").copied().context("no such metric")
}

/// Whether the system says how long a thread ran; where it does not, nobody is moved.
fn sessions_stay(weir: &Pgweir) -> Result<bool> {
    if std::fs::read_to_string("/proc/thread-self/schedstat").is_ok() {
        return Ok(false);
    }
    ensure!(weir.log().contains("sessions keep their workers"), "{}", weir.log());
    ensure!(moved(weir)? == 0.0);
    Ok(true)
}

/// One session, and what it has that nobody else has.
struct Own {
    client: RawClient,
    number: usize,
    in_transaction: bool,
}

impl Own {
    /// Each second one over TLS; each third one begins a transaction that no server knows of yet.
    fn new(weir: &Pgweir, number: usize) -> Result<Self> {
        let mut client = RawClient::tcp(weir.port())?;
        if number.is_multiple_of(2) {
            client.start_tls(&TlsOffer::default())?;
        }
        client.log_in(&Login::bench())?;
        client.set_deadline(Duration::from_secs(20));
        client.simple(&format!("SET extra_float_digits = {}", number % 4))?;
        client.simple(&format!("SET app.own = 'session {number}'"))?;
        let text = format!("SELECT current_setting('app.own') || ' says {number} and ' || $1");
        client.talk(&msgs().P("own", &text).S())?;
        Ok(Self { client, number, in_transaction: false })
    }

    fn check(&mut self) -> Result<()> {
        if self.number.is_multiple_of(3) {
            self.client.simple(if self.in_transaction { "COMMIT" } else { "BEGIN" })?;
            self.in_transaction = !self.in_transaction;
            return Ok(());
        }
        let number = self.number;
        let said = self.client.talk(&msgs().B("", "own", &["x"]).E().S())?;
        let wanted = format!("session {number} says {number} and x");
        ensure!(said.values() == [wanted.as_str()], "{number}: {said:?}");
        ensure!(self.client.scalar("SHOW app.own")? == format!("session {number}"));
        Ok(())
    }
}

fn rig(further: &str) -> Result<(Cluster, Pgweir)> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let pki = Pki::new(cluster.root(), "pki", Signature::Sha256)?;
    pki.issue("weir", "/CN=weir", "IP:127.0.0.1,DNS:localhost", 10)?;
    let yaml = format!(
        "ssl: allow\nssl_cert: {}\nssl_key: {}\nworkers: 4\ndefault_pool_size: 3\n{further}",
        pki.path("weir.crt"),
        pki.path("weir.key")
    );
    let weir = Pgweir::start_with(&cluster, &PgweirOptions::yaml(&yaml))?;
    Ok((cluster, weir))
}

#[test]
fn what_a_session_has_goes_with_it() -> Result<()> {
    let (_cluster, weir) = rig("")?;
    if sessions_stay(&weir)? {
        return Ok(());
    }
    let mut sessions = (0..CLIENTS).map(|number| Own::new(&weir, number)).collect::<Result<Vec<_>>>()?;
    let began = Instant::now();
    // They began on four workers; with so little to do one is enough.
    while moved(&weir)? < 8.0 {
        ensure!(began.elapsed() < LIMIT, "{} moved\n{}", moved(&weir)?, weir.log());
        sessions.iter_mut().try_for_each(Own::check)?;
    }
    for _ in 0..10 {
        sessions.iter_mut().try_for_each(Own::check)?;
    }
    for own in &mut sessions {
        own.client.simple("ROLLBACK")?;
        ensure!(own.client.scalar("SHOW app.own")? == format!("session {}", own.number));
    }
    Ok(())
}

/// The time that a session was idle before it was moved counts, and its timer is the new worker's.
#[test]
fn limits_and_cancel_keys_go_with_it() -> Result<()> {
    let (_cluster, weir) = rig("client_idle_limit: 20s\n")?;
    if sessions_stay(&weir)? {
        return Ok(());
    }
    let mut sessions = (0..CLIENTS).map(|number| Own::new(&weir, number)).collect::<Result<Vec<_>>>()?;
    let began = Instant::now();
    while moved(&weir)? < 8.0 {
        ensure!(began.elapsed() < LIMIT, "{} moved", moved(&weir)?);
        for own in &mut sessions {
            own.client.scalar("SELECT 1")?;
        }
    }
    for own in &mut sessions {
        own.client.send(&msgs().Q("SELECT pg_sleep(60)"))?;
        let mut cancelled = own.client.cancel();
        // It may come before the statement.
        while cancelled.is_ok() && own.client.silent_for(Duration::from_millis(100))? {
            ensure!(began.elapsed() < LIMIT, "not cancelled");
            cancelled = own.client.cancel();
        }
        let said = own.client.read_ready(1)?;
        // What rows it would have had may have been told, or not.
        ensure!(said.to_string().ends_with("E(57014) Z(I)"), "{said}");
    }
    for own in &mut sessions {
        own.client.set_deadline(LIMIT);
        assert_eq!(own.client.read_to_end()?.to_string(), "E(57P05)");
    }
    Ok(())
}
