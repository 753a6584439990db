//! Start, reload and stop: exit codes, what a bad file changes (nothing), and transactions that finish.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::pgweir::binary;
use harness::{
    Cluster, ClusterOptions, Login, PgError, Pgweir, PgweirOptions, RawClient, eventually, http_get, msgs,
    procs, rig, sqlstate,
};
use rustix::process::Signal;

fn one_node() -> Result<Cluster> {
    Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })
}

/// Runs the binary to its end; exit code and what it said.
fn run_to_end(args: &[&str]) -> Result<(i32, String)> {
    let out = tempfile::NamedTempFile::new()?;
    let file = out.reopen()?;
    let mut child = Command::new(binary()?).args(args).stdout(file.try_clone()?).stderr(file).spawn()?;
    let status = procs::wait(&mut child, Duration::from_secs(5));
    if status.is_err() {
        child.kill()?;
        child.wait()?;
    }
    Ok((status?.code().unwrap_or(-1), std::fs::read_to_string(out.path())?))
}

#[test]
fn exit_code_64_for_unusable_arguments() -> Result<()> {
    for args in [&["run"][..], &["frobnicate"], &["run", "-f"], &["run", "--nonsense", "-f", "x"]] {
        let (code, said) = run_to_end(args)?;
        assert_eq!(code, 64, "{args:?}: {said}");
        ensure!(!said.trim().is_empty(), "{args:?}: says nothing");
    }
    let (code, said) = run_to_end(&["--version"])?;
    ensure!(code == 0 && said.contains("pgweir"), "{code} {said}");
    assert_eq!(run_to_end(&["--help"])?.0, 0);
    Ok(())
}

#[test]
fn exit_code_78_for_a_refused_configuration() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("pgweir.yaml");
    let path = file.display().to_string();
    let backends = "backends:\n  - { hostname: 127.0.0.1, port: 1 }\n";
    for (yaml, culprit) in [
        (format!("{backends}defualt_pool_size: 3\n"), "defualt_pool_size"),
        (format!("{backends}default_pool_size: many\n"), "default_pool_size"),
        (format!("{backends}load_balance_mode: maybe\n"), "load_balance_mode"),
        (format!("{backends}pool_mode: sometimes\n"), "pool_mode"),
        (format!("{backends}connect_timeout: 5 parsecs\n"), "connect_timeout"),
        ("port: 9999\n".into(), "backends"),
        ("backends: []\n".into(), "backends"),
        (format!("{backends}: : nonsense [\n"), "pgweir.yaml"),
        ("backends:\n  - { hostname: 127.0.0.1, prot: 5432 }\n".into(), "prot"),
    ] {
        std::fs::write(&file, &yaml)?;
        for args in [&["run", "-f", &path][..], &["check", &path]] {
            let (code, said) = run_to_end(args)?;
            assert_eq!(code, 78, "{args:?} {yaml}: {said}");
            ensure!(said.contains(culprit), "{args:?} {yaml}: does not name {culprit}: {said}");
            ensure!(said.contains("pgweir.yaml"), "{args:?} {yaml}: does not name the file: {said}");
        }
    }
    let (code, said) = run_to_end(&["run", "-f", "/nonexistent/pgweir.yaml"])?;
    ensure!(code == 78 && said.contains("/nonexistent/pgweir.yaml"), "{code}: {said}");
    Ok(())
}

#[test]
fn a_taken_port_is_named() -> Result<()> {
    let cluster = one_node()?;
    let first = Pgweir::start(&cluster, "")?;
    let mut second = Pgweir::launch(&cluster, &PgweirOptions::yaml(&format!("port: {}", first.port())))?;
    let code = second.wait_exit(Duration::from_secs(5))?;
    ensure!(code != 0, "exit code 0");
    ensure!(second.log().contains(&first.port().to_string()), "{}", second.log());
    assert_eq!(first.client()?.scalar("SELECT 1")?, "1");
    Ok(())
}

#[test]
fn fast_stop_disconnects_with_57p01_and_exits_0() -> Result<()> {
    let (cluster, mut weir) = rig(1, "")?;
    let (mut idle, mut busy) = (weir.client()?, weir.client()?);
    idle.scalar("SELECT 1")?;
    busy.simple("BEGIN")?;
    busy.simple("SELECT 1")?;
    weir.signal(Signal::INT);
    for client in [&mut idle, &mut busy] {
        assert_eq!(client.read_to_end()?.to_string(), "E(57P01)");
    }
    assert_eq!(weir.wait_exit(Duration::from_secs(5))?, 0);
    let left = "SELECT count(*) FROM pg_stat_activity WHERE usename IN ('bench', 'pgweir')";
    (0..2).try_for_each(|node| cluster.wait_scalar(node, left, "0", Duration::from_secs(2)))
}

#[test]
fn rl_03_smart_stop_lets_transactions_finish() -> Result<()> {
    let (cluster, mut weir) = rig(1, "")?;
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    let (mut idle, mut busy, mut long) = (weir.client()?, weir.client()?, weir.client()?);
    idle.scalar("SELECT 1")?;
    busy.simple("BEGIN")?;
    busy.simple("INSERT INTO t VALUES (1)")?;
    long.send(&msgs().Q("SELECT 'long', pg_sleep(1)"))?;
    let running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%long%' AND usename = 'bench' AND state = 'active'";
    cluster.wait_scalar(1, running, "1", Duration::from_secs(2))?;
    weir.signal(Signal::TERM);
    // The idle one goes at once, with a reason.
    assert_eq!(idle.read_to_end()?.to_string(), "E(57P01)");
    // Nobody new comes in.
    let newcomer = weir.client().map(|_| ());
    let state = newcomer.as_ref().err().map(|error| sqlstate(error).to_owned());
    ensure!(
        newcomer.is_err() && ["", "57P03", "57P01"].contains(&state.unwrap_or_default().as_str()),
        "let in"
    );
    // The others finish, and go after it.
    assert_eq!(long.read_to_end()?.to_string(), "T D(long,) C(SELECT 1) Z(I) E(57P01)");
    ensure!(weir.is_alive()?, "ended before the transaction did");
    assert_eq!(busy.scalar("SELECT count(*) FROM t")?, "1");
    busy.send(&msgs().Q("COMMIT"))?;
    assert_eq!(busy.read_to_end()?.to_string(), "C(COMMIT) Z(I) E(57P01)");
    assert_eq!(weir.wait_exit(Duration::from_secs(5))?, 0);
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM t")?, "1");
    Ok(())
}

#[test]
fn rl_03_a_second_sigterm_ends_it_now() -> Result<()> {
    let (cluster, mut weir) = rig(0, "")?;
    let mut busy = weir.client()?;
    busy.simple("BEGIN")?;
    busy.simple("CREATE TABLE never(id int)")?;
    weir.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(300));
    ensure!(weir.is_alive()?, "did not wait for the transaction");
    weir.signal(Signal::TERM);
    assert_eq!(weir.wait_exit(Duration::from_secs(3))?, 0);
    let there = cluster.scalar(0, "SELECT to_regclass('never') IS NULL")?;
    assert_eq!(there, "t", "the transaction was committed");
    Ok(())
}

/// PgBouncer resumes with USR2: who is used to that must not end everybody's session by it.
#[test]
fn rl_03_usr2_ends_nothing() -> Result<()> {
    let cluster = one_node()?;
    let mut weir = Pgweir::start(&cluster, "")?;
    let mut client = weir.client()?;
    weir.signal(Signal::USR2);
    ensure!(
        eventually(Duration::from_secs(10), || weir.log().contains("SIGUSR2 is ignored")),
        "{}",
        weir.log()
    );
    assert_eq!(client.scalar("SELECT 1")?, "1");
    ensure!(weir.is_alive()?, "it has ended");
    Ok(())
}

#[test]
fn rl_03_the_deadline_ends_a_smart_stop() -> Result<()> {
    let (_cluster, mut weir) = rig(0, "shutdown_timeout: 1s")?;
    let mut busy = weir.client()?;
    busy.simple("BEGIN")?;
    busy.simple("SELECT 1")?;
    let started = Instant::now();
    weir.signal(Signal::TERM);
    assert_eq!(weir.wait_exit(Duration::from_secs(4))?, 0);
    ensure!(started.elapsed() > Duration::from_millis(800), "after {:?}", started.elapsed());
    Ok(())
}

fn weights(weir: &Pgweir) -> Result<Vec<String>> {
    Ok(weir.pool_nodes()?.iter().map(|node| node["lb_weight"].clone()).collect())
}

#[test]
fn rl_01_sighup_applies_a_good_file() -> Result<()> {
    let (cluster, weir) = rig(1, "")?;
    let mut client = weir.client()?;
    let pid = client.scalar("SELECT pg_backend_pid()")?;
    assert_eq!(weights(&weir)?, ["0.000000", "1.000000"]);
    weir.rewrite(&cluster, &PgweirOptions::default().weights(&[1, 1]))?;
    weir.signal(Signal::HUP);
    let applied =
        eventually(Duration::from_secs(30), || weights(&weir).is_ok_and(|w| w == ["0.500000", "0.500000"]));
    ensure!(applied, "{:?}", weights(&weir)?);
    assert_eq!(client.scalar("SELECT 1")?, "1", "a session did not survive");
    weir.rewrite(&cluster, &PgweirOptions::default().weights(&[0, 1]))?;
    ensure!(weir.admin("RELOAD").is_ok(), "RELOAD");
    ensure!(
        eventually(Duration::from_secs(30), || weights(&weir).is_ok_and(|w| w == ["0.000000", "1.000000"]))
    );
    assert_eq!(client.scalar("SELECT pg_backend_pid()")?, pid, "the pool was recycled");
    Ok(())
}

#[test]
fn rl_01_a_bad_file_changes_nothing() -> Result<()> {
    let (cluster, mut weir) = rig(1, "")?;
    let mut client = weir.client()?;
    let bad = PgweirOptions::yaml("defualt_pool_size: 3").weights(&[1, 1]);
    weir.rewrite(&cluster, &bad)?;
    weir.signal(Signal::HUP);
    ensure!(eventually(Duration::from_secs(30), || weir.log().contains("defualt_pool_size")), "not logged");
    let refused = weir.admin("RELOAD").map(|_| ()).expect_err("a bad file was accepted");
    let said =
        refused.downcast_ref::<harness::PgError>().map(|error| format!("{:?}", error.0)).unwrap_or_default();
    ensure!(said.contains("defualt_pool_size"), "{said}");
    assert_eq!(weights(&weir)?, ["0.000000", "1.000000"]);
    ensure!(weir.is_alive()?);
    assert_eq!(client.scalar("SELECT 1")?, "1");
    // A good one afterwards is applied.
    weir.rewrite(&cluster, &PgweirOptions::default().weights(&[1, 1]))?;
    weir.signal(Signal::HUP);
    ensure!(
        eventually(Duration::from_secs(30), || weights(&weir).is_ok_and(|w| w == ["0.500000", "0.500000"]))
    );
    Ok(())
}

/// What is valid for who reads the file may be none for the process: the command tells its reason.
#[test]
fn rl_05_pgweir_reload_tells_why_it_is_refused() -> Result<()> {
    let (cluster, weir) = rig(0, "")?;
    weir.rewrite(&cluster, &PgweirOptions::yaml("log_destination: /nonexistent/dir/weir.log"))?;
    let (done, said) = weir.shell(&["reload"])?;
    ensure!(!done && said.contains("cannot open the log file /nonexistent/dir/weir.log"), "{said}");
    Ok(())
}

/// RL-05: reading a file that does not open holds up nobody but who asked for it, and is given up; the next reload is
/// refused until it has ended, and a stop does not wait for it.
#[test]
fn rl_05_a_file_that_blocks_holds_up_nothing() -> Result<()> {
    let (cluster, mut weir) = rig(0, "")?;
    let file = weir.config_file();
    let blocks = || -> Result<()> {
        std::fs::remove_file(&file)?;
        ensure!(Command::new("mkfifo").arg(&file).status()?.success());
        weir.signal(Signal::HUP);
        Ok(())
    };
    let refused = |why: &str| {
        eventually(Duration::from_secs(30), || {
            weir.admin("SHOW EVENTS").is_ok_and(|rows| rows.iter().any(|row| row["reason"].contains(why)))
        })
    };
    blocks()?;
    weir.client()?.simple("SELECT 1")?;
    assert_eq!(http_get(weir.metrics_port(), "/metrics")?.status, 200);
    ensure!(refused("could not be read within"), "it is not given up: {:?}", weir.admin("SHOW EVENTS")?);
    let error = weir.admin("RELOAD").expect_err("a reload while another one blocks");
    let PgError(fields) = error.downcast::<PgError>()?;
    ensure!(fields.get('D').contains("an earlier reload is still blocked"), "{fields:?}");
    // Somebody writes to it: what was read then is nobody's any more.
    std::fs::write(&file, "nonsense")?;
    std::fs::remove_file(&file)?;
    weir.rewrite(&cluster, &PgweirOptions::yaml("default_pool_size: 7"))?;
    ensure!(eventually(Duration::from_secs(5), || weir.admin("RELOAD").is_ok()), "it stays blocked");
    ensure!(
        weir.admin("SHOW CONFIG")?.iter().any(|row| row["key"] == "default_pool_size" && row["value"] == "7")
    );
    blocks()?;
    assert_eq!(weir.stop()?, 0);
    Ok(())
}

#[test]
fn rl_01_keys_that_need_a_restart_are_named() -> Result<()> {
    let (cluster, mut weir) = rig(0, "")?;
    weir.rewrite(&cluster, &PgweirOptions::yaml("listen_backlog: 77"))?;
    weir.signal(Signal::HUP);
    ensure!(eventually(Duration::from_secs(30), || weir.log().contains("listen_backlog")), "not named");
    ensure!(weir.is_alive()?);
    assert_eq!(weir.client()?.scalar("SELECT 1")?, "1");
    Ok(())
}

#[test]
fn rl_01_a_hundred_reloads_under_load() -> Result<()> {
    let (cluster, weir) = rig(1, "default_pool_size: 4")?;
    let done = std::sync::atomic::AtomicBool::new(false);
    let load = |me: usize| -> Result<usize> {
        let mut client = weir.client()?;
        let mut n = 0;
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            n += 1;
            let nonce = (me * 1_000_000 + n).to_string();
            ensure!(client.scalar(&format!("SELECT {nonce}"))? == nonce);
        }
        Ok(n)
    };
    std::thread::scope(|scope| -> Result<()> {
        let load = &load;
        let clients: Vec<_> = (0..20).map(|me| scope.spawn(move || load(me))).collect();
        for round in 0..100 {
            let yaml = format!("default_pool_size: {}", 2 + round % 4);
            weir.rewrite(&cluster, &PgweirOptions::yaml(&yaml).weights(&[u32::from(round % 2 == 0), 1]))?;
            if round % 2 == 0 {
                weir.signal(Signal::HUP);
            } else {
                weir.admin("RELOAD")?;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        for client in clients {
            let served = client.join().expect("a client panicked").context("a client failed")?;
            ensure!(served > 10, "served {served}");
        }
        Ok(())
    })
}

#[test]
fn rl_05_pool_passwd_is_read_again() -> Result<()> {
    let (cluster, weir) = rig(0, "")?;
    cluster.sql(0, "ALTER ROLE bench PASSWORD 'new'")?;
    let new = harness::pgweir::PASSWORDS.replace("bench:TEXTbench\n", "bench:TEXTnew\n");
    weir.rewrite(&cluster, &PgweirOptions { passwords: Some(new), ..PgweirOptions::default() })?;
    weir.signal(Signal::HUP);
    let login = |password: &str| -> Result<String> {
        Login::bench().password(password).connect(weir.port())?.scalar("SELECT 1")
    };
    ensure!(
        eventually(Duration::from_secs(30), || login("new").is_ok_and(|one| one == "1")),
        "{:?}",
        login("new")
    );
    let old = login("bench").expect_err("the old password still works");
    assert_eq!(sqlstate(&old), "28P01");
    Ok(())
}

#[test]
fn fo_11_starts_and_stops_with_all_nodes_down() -> Result<()> {
    let mut cluster = Cluster::new(ClusterOptions { standbys: 1, ..ClusterOptions::default() })?;
    cluster.stop(1, harness::StopMode::Fast)?;
    cluster.stop(0, harness::StopMode::Fast)?;
    let mut weir = Pgweir::launch(&cluster, &PgweirOptions::default())?;
    weir.wait_answering()?;
    assert_eq!(http_get(weir.metrics_port(), "/metrics")?.status, 200);
    ensure!(!weir.admin("SHOW POOLS").map(|_| "").unwrap_or("error").contains("error"), "the console fails");
    let mut client = RawClient::tcp(weir.port())?;
    client.set_deadline(Duration::from_secs(4));
    let refused = client.log_in(&Login::bench()).and_then(|()| client.scalar("SELECT 1")).map(|_| ());
    let refused = refused.expect_err("served without a node");
    let state = sqlstate(&refused);
    ensure!(state == "57P03" || state.starts_with("08"), "{refused:#}");
    cluster.start(0)?;
    cluster.start(1)?;
    let served =
        eventually(Duration::from_secs(30), || weir.client().and_then(|mut c| c.scalar("SELECT 1")).is_ok());
    ensure!(served, "not served after the nodes came");
    weir.wait_nodes(2)?;
    cluster.stop(1, harness::StopMode::Immediate)?;
    cluster.stop(0, harness::StopMode::Immediate)?;
    assert_eq!(weir.stop()?, 0);
    Ok(())
}

/// RL-03: a COPY finishes, a session of the console is told goodbye at once and one that waits for a backend when it was
/// served, and a transaction that failed is not told that it succeeded.
#[test]
fn rl_03_copy_console_and_who_waits() -> Result<()> {
    let (cluster, mut weir) = rig(0, "default_pool_size: 2")?;
    cluster.setup("CREATE TABLE copied(id int); GRANT ALL ON copied TO bench")?;
    let mut copy = weir.client()?;
    copy.send(&msgs().Q("COPY copied FROM STDIN"))?;
    copy.read_count(1)?;
    let mut failed = weir.client()?;
    failed.simple("BEGIN")?;
    failed.sqlstate_of("SELECT 1/0")?;
    let mut waiting = weir.client()?;
    waiting.send(&msgs().Q("SELECT 'waited'"))?;
    let mut console = Login::new("postgres", "pgweir").connect(weir.port())?;
    let queued = || weir.admin("SHOW WAITING").is_ok_and(|rows| rows.len() == 1);
    ensure!(eventually(Duration::from_secs(10), queued), "{:?}", weir.admin("SHOW WAITING"));
    console.scalar("SELECT 1")?;
    weir.signal(Signal::TERM);
    assert_eq!(console.read_to_end()?.to_string(), "E(57P01)");
    ensure!(weir.is_alive()?, "ended before the COPY did");
    copy.send(&msgs().d(b"1\n2\n").c())?;
    assert_eq!(copy.read_to_end()?.to_string(), "C(COPY 2) Z(I) E(57P01)");
    assert_eq!(waiting.read_to_end()?.to_string(), "T D(waited) C(SELECT 1) Z(I) E(57P01)");
    failed.send(&msgs().Q("COMMIT"))?;
    assert_eq!(failed.read_to_end()?.to_string(), "C(ROLLBACK) Z(I) E(57P01)");
    assert_eq!(weir.wait_exit(Duration::from_secs(10))?, 0);
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM copied")?, "2");
    Ok(())
}
