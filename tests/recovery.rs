//! `RECOVER NODE`: a node is rebuilt by `recovery_command` and serves again; what fails is told as a failure.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::promotion::{self, primary, promoting, script};
use harness::{Cluster, Login, PgError, Pgweir, PgweirOptions, RawClient, Reply, eventually, msgs, sqlstate};

/// Only a hang takes longer.
const LIMIT: Duration = Duration::from_secs(60);

/// The sample, which waits until `go` is there when one is given.
fn rejoin(cluster: &Cluster, go: Option<&Path>) -> String {
    let sample = script(cluster, "rejoin.sh", "%h %p %D %H %r");
    match go {
        Some(go) => {
            format!("echo waiting; until [ -e {} ]; do sleep 0.05; done; {sample}", go.display())
        }
        None => sample,
    }
}

/// Checks are fast, nobody is promoted.
fn watching(cluster: &Cluster, yaml: &str) -> Result<Pgweir> {
    promoting(cluster, &format!("failover_mode: observe\n{yaml}"))
}

fn console(weir: &Pgweir) -> Result<RawClient> {
    let mut client = Login::new("postgres", "pgweir").connect(weir.port())?;
    client.set_deadline(LIMIT);
    Ok(client)
}

/// What a command is refused with: the SQLSTATE and all of its text.
fn refused(weir: &Pgweir, command: &str) -> Result<(String, String)> {
    let mut client = console(weir)?;
    let error = client.simple(command).map(|_| ()).expect_err(command);
    let text = error.downcast_ref::<PgError>().map(|error| format!("{:?}", error.0)).unwrap_or_default();
    Ok((sqlstate(&error).to_owned(), text))
}

fn reason(weir: &Pgweir, node: usize) -> String {
    weir.admin("SHOW NODES").map(|rows| rows[node]["reason"].clone()).unwrap_or_default()
}

fn lose(cluster: &mut Cluster, weir: &Pgweir, node: usize) -> Result<PathBuf> {
    let data = cluster.data(node);
    cluster.kill9(node)?;
    std::fs::remove_dir_all(&data)?;
    weir.wait_pool_nodes(LIMIT, |nodes| nodes[node]["status"] == "down")?;
    Ok(data)
}

/// Reads without a transaction go there. (A node that was copied has the primary's `cluster_name`.)
fn reads_reach(cluster: &Cluster, weir: &Pgweir, node: usize) -> Result<()> {
    let port = cluster.port(node).to_string();
    let ask = format!("/* pgweir: node={node} */ SELECT inet_server_port()");
    let mut client = weir.client()?;
    let reached = || -> bool { client.scalar(&ask).is_ok_and(|at| at == port) };
    ensure!(eventually(LIMIT, reached), "no read on {node}");
    Ok(())
}

/// FO-04: a standby whose machine lost everything is made anew by `pg_basebackup`. Meanwhile it is out of service, once, and
/// nothing else can be done with it; who waits hears how far it is, and may leave.
#[test]
fn fo_04_a_standby_without_data_is_rebuilt_and_reads_go_there_again() -> Result<()> {
    let mut cluster = promotion::cluster(2, "")?;
    let go = cluster.root().join("go");
    let weir = watching(&cluster, &format!("recovery_command: \"{}\"", rejoin(&cluster, Some(&go))))?;
    weir.client()?.simple("INSERT INTO t VALUES (1)")?;
    lose(&mut cluster, &weir, 2)?;
    let mut admin = console(&weir)?;
    admin.send(&msgs().Q("RECOVER NODE 2"))?;
    let said = admin.read_until(|reply| matches!(reply, Reply::Notice(_)))?;
    ensure!(format!("{said:?}").contains("recovery_command runs for node 2: waiting"), "{said:?}");
    assert_eq!(reason(&weir, 2), "recovering");
    for (command, why) in [
        ("RECOVER NODE 2", "is being recovered"),
        ("ATTACH NODE 2", "is being recovered"),
        ("RECOVER NODE 1", "is in use"),
        ("RECOVER NODE 0", "is the primary"),
        ("RECOVER NODE 7", "does not exist"),
        ("RECOVER NODE x", "no node's number"),
    ] {
        let (code, text) = refused(&weir, command)?;
        ensure!(text.contains(why), "{command}: {code} {text}");
    }
    // A reload in the middle changes nothing; neither does it that whoever asked does not wait any longer.
    weir.signal(rustix::process::Signal::HUP);
    ensure!(eventually(LIMIT, || weir.log().contains("reload")), "no reload");
    admin.cancel()?;
    ensure!(admin.read_ready(1)?.to_string().contains("E(57014)"), "not cancelled");
    assert_eq!(reason(&weir, 2), "recovering");
    std::fs::write(&go, "")?;
    weir.wait_nodes(3)?;
    reads_reach(&cluster, &weir, 2)?;
    assert_eq!(cluster.scalar(2, "SELECT count(*) FROM t")?, "1");
    let log = weir.log();
    ensure!(log.contains("copying anew"), "not by pg_basebackup");
    let steps: Vec<String> = weir
        .admin("SHOW EVENTS")?
        .iter()
        .filter(|row| row["event"] == "recovery")
        .map(|row| row["now"].clone())
        .collect();
    assert_eq!(steps, ["joined", "joining", "command"]);
    Ok(())
}

/// FO-04: the old primary of a failover comes back by `pg_rewind`; from the shell, which waits and ends with 0.
#[test]
fn fo_04_an_old_primary_is_rewound() -> Result<()> {
    let mut cluster = promotion::cluster(1, "")?;
    let weir = promoting(&cluster, &format!("recovery_command: \"{}\"", rejoin(&cluster, None)))?;
    let mut client = weir.client()?;
    client.set_deadline(LIMIT);
    client.simple("INSERT INTO t VALUES (1)")?;
    cluster.wait_replay()?;
    cluster.kill9(0)?;
    client.simple("INSERT INTO t VALUES (2)").context("held until another is promoted")?;
    assert_eq!(primary(&weir, 0, LIMIT)?, 1);
    let (done, said) = weir.shell(&["recover", "0"])?;
    ensure!(done && said.contains("RECOVER NODE 0: done"), "{said}");
    let states = promotion::states(&weir)?;
    assert_eq!(states[0], ("up".to_owned(), "standby".to_owned()), "up when the command ends");
    reads_reach(&cluster, &weir, 0)?;
    ensure!(!weir.log().contains("copying anew"), "not by pg_rewind");
    let (done, said) = weir.shell(&["recover", "1"])?;
    ensure!(!done && said.contains("is the primary"), "{said}");
    Ok(())
}

/// A command that is missing, says no, hangs, or leaves nothing behind; a node that is detached in the middle.
#[test]
fn fo_04_a_recovery_that_fails_says_so_and_what_to_do() -> Result<()> {
    let mut cluster = promotion::cluster(1, "")?;
    let weir = watching(&cluster, "")?;
    lose(&mut cluster, &weir, 1)?;
    let (code, text) = refused(&weir, "RECOVER NODE 1")?;
    ensure!(code == "55000" && text.contains("recovery_command is not configured"), "{code} {text}");
    assert_eq!(reason(&weir, 1), "unreachable", "nothing has changed");
    let alive = cluster.root().join("alive");
    let hangs = format!("echo $$ > {}; sleep 600 & wait", alive.display());
    for (command, code, why) in [
        ("/nonexistent/recover.sh".to_owned(), "38000", "exit status: 127"),
        ("echo half; exit 1".to_owned(), "38000", "It said last: half"),
        (hangs.clone(), "38000", "took longer than 1s"),
        ("sleep 600 >/dev/null 2>&1 &".to_owned(), "55000", "no streaming standby"),
    ] {
        let yaml = format!(
            "SET recovery_command = '{command}'; SET recovery_command_timeout = '1s'; SET recovery_timeout = '1s'"
        );
        let mut admin = console(&weir)?;
        for set in yaml.split("; SET").map(|set| set.trim_start_matches("SET")) {
            admin.simple(&format!("SET{set}")).with_context(|| set.to_owned())?;
        }
        let (got, text) = refused(&weir, "RECOVER NODE 1")?;
        ensure!(got == code && text.contains(why), "{command}: {got} {text}");
        assert_eq!(reason(&weir, 1), "unreachable", "{command}");
    }
    stopped(&weir, &alive, &hangs)
}

/// DETACH ends a recovery, and what its command has started; so does the end of pgweir.
fn stopped(weir: &Pgweir, alive: &Path, hangs: &str) -> Result<()> {
    let mut admin = console(weir)?;
    admin.simple(&format!("SET recovery_command = '{hangs}'"))?;
    admin.simple("SET recovery_command_timeout = '10min'")?;
    let begin = |client: &mut RawClient| -> Result<u32> {
        std::fs::remove_file(alive)?;
        client.send(&msgs().Q("RECOVER NODE 1"))?;
        let pid = || std::fs::read_to_string(alive).ok().and_then(|text| text.trim().parse().ok());
        ensure!(eventually(LIMIT, || pid().is_some()), "it does not begin");
        pid().context("no pid")
    };
    let gone = |pid: u32| eventually(LIMIT, || !Path::new(&format!("/proc/{pid}")).exists());
    let first = begin(&mut admin)?;
    weir.admin("DETACH NODE 1 FORCE")?;
    let said = admin.read_ready(1)?.to_string();
    ensure!(said.contains("E(57014)"), "{said}");
    ensure!(gone(first), "the command goes on");
    assert_eq!(reason(weir, 1), "detached");
    let second = begin(&mut admin)?;
    weir.signal(rustix::process::Signal::INT);
    let said = admin.read_to_end()?.to_string();
    ensure!(said.contains("E(57P01)"), "{said}");
    ensure!(gone(second), "the command goes on without pgweir");
    Ok(())
}

/// The primary dies while a standby is copied from it: the recovery is over, its command ends, and the next one copies from
/// the new primary. A second administrator is told that somebody else is at it; a smart stop does not wait for the command.
#[test]
fn fo_04_a_failover_and_a_stop_in_the_middle_of_a_recovery() -> Result<()> {
    let mut cluster = promotion::cluster(2, "")?;
    let (go, alive) = (cluster.root().join("go"), cluster.root().join("alive"));
    let command = format!("echo $$ > {}; {}", alive.display(), rejoin(&cluster, Some(&go)));
    let mut weir = promoting(&cluster, &format!("recovery_command: \"{command}\""))?;
    let pid = || std::fs::read_to_string(&alive).ok().and_then(|text| text.trim().parse::<u32>().ok());
    let gone = |pid: u32| eventually(LIMIT, || !Path::new(&format!("/proc/{pid}")).exists());
    weir.client()?.simple("INSERT INTO t VALUES (1)")?;
    cluster.wait_replay()?;
    lose(&mut cluster, &weir, 2)?;
    let (mut one, mut other) = (console(&weir)?, console(&weir)?);
    one.send(&msgs().Q("RECOVER NODE 2"))?;
    ensure!(eventually(LIMIT, || pid().is_some()), "it does not begin");
    let first = pid().context("no pid")?;
    assert_eq!(other.sqlstate_of("RECOVER NODE 2")?, "55000");
    // A file that is refused changes nothing, and stops nobody.
    let file = weir.dir().join("pgweir.yaml");
    let good = std::fs::read_to_string(&file)?;
    std::fs::write(&file, good.replace("recovery_command", "recover_command"))?;
    assert_eq!(other.sqlstate_of("RELOAD")?, "F0000");
    std::fs::write(&file, good)?;
    ensure!(
        reason(&weir, 2) == "recovering" && Path::new(&format!("/proc/{first}")).exists(),
        "stopped by it"
    );
    cluster.kill9(0)?;
    let said = one.read_ready(1)?.to_string();
    ensure!(said.contains("E(55000)"), "{said}");
    ensure!(gone(first), "the command goes on");
    assert_eq!(primary(&weir, 0, LIMIT)?, 1);
    // Anew, from the primary that there is now; and a stop meanwhile.
    std::fs::remove_file(&alive)?;
    one.send(&msgs().Q("RECOVER NODE 2"))?;
    ensure!(eventually(LIMIT, || pid().is_some()), "it does not begin anew");
    let second = pid().context("no pid")?;
    weir.signal(rustix::process::Signal::TERM);
    let said = one.read_to_end()?.to_string();
    ensure!(said.contains("E(57P01)"), "{said}");
    drop(other);
    assert_eq!(weir.wait_exit(LIMIT)?, 0);
    ensure!(gone(second), "the command goes on without pgweir");
    Ok(())
}

/// An administrator's ordinary session hears how far it is as well, inside of a transaction too, and may cancel; others may not
/// do it at all.
#[test]
fn ad_04_an_ordinary_session_recovers_and_hears_how_far_it_is() -> Result<()> {
    let mut cluster = promotion::cluster(1, "")?;
    let go = cluster.root().join("go");
    let weir = watching(&cluster, &format!("recovery_command: \"{}\"", rejoin(&cluster, Some(&go))))?;
    lose(&mut cluster, &weir, 1)?;
    let mut other = Login::new("other", "bench").connect(weir.port())?;
    let error = other.simple("PGWEIR RECOVER NODE 1").map(|_| ()).expect_err("no admin");
    assert_eq!(sqlstate(&error), "42501");
    let mut admin = Login::new("postgres", "bench").connect(weir.port())?;
    admin.set_deadline(LIMIT);
    admin.simple("BEGIN")?;
    admin.simple("INSERT INTO t VALUES (1)")?;
    admin.send(&msgs().Q("PGWEIR RECOVER NODE 1"))?;
    let said = admin.read_until(|reply| matches!(reply, Reply::Notice(_)))?;
    ensure!(format!("{said:?}").contains("recovery_command runs for node 1"), "{said:?}");
    admin.cancel()?;
    assert_eq!(admin.read_ready(1)?.to_string(), "E(57014) Z(T)");
    admin.simple("COMMIT")?;
    std::fs::write(&go, "")?;
    weir.wait_nodes(2)?;
    // By the extended protocol, to its end.
    lose(&mut cluster, &weir, 1)?;
    admin.send(&msgs().P("", "PGWEIR RECOVER NODE 1").B("", "", &[]).E().S())?;
    let said = admin.read_ready(1)?.to_string();
    ensure!(said.contains("C(RECOVER)") && said.ends_with("Z(I)"), "{said}");
    reads_reach(&cluster, &weir, 1)
}

/// PROMOTE and DETACH in an ordinary session are told and cancelled in the same way; the wait goes, what was begun does not.
#[test]
fn ad_04_promote_in_an_ordinary_session_tells_how_far_it_is() -> Result<()> {
    let cluster = promotion::cluster(1, "")?;
    let options = "failover_mode: promote\nswitchover_timeout: 60s\nhealth_check_period: 1s";
    let weir = Pgweir::start_with(&cluster, &PgweirOptions::yaml(options).trusting())?;
    weir.wait_nodes(2)?;
    let mut writer = weir.client()?;
    writer.simple("BEGIN")?;
    writer.simple("INSERT INTO t VALUES (1)")?;
    let mut admin = Login::new("postgres", "bench").connect(weir.port())?;
    admin.set_deadline(LIMIT);
    admin.send(&msgs().Q("PGWEIR PROMOTE NODE 1"))?;
    let said = admin.read_until(|reply| matches!(reply, Reply::Notice(_)))?;
    ensure!(format!("{said:?}").contains("1 session has a connection to node 0"), "{said:?}");
    admin.cancel()?;
    assert_eq!(admin.read_ready(1)?.to_string(), "E(57014) Z(I)");
    writer.simple("COMMIT")?;
    assert_eq!(primary(&weir, 0, LIMIT)?, 1);
    Ok(())
}
