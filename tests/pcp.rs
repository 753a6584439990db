//! PCP: Debian's `pcp_*` programs (package pgpool2) against pgweir.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::promotion::script;
use harness::tools::{Output, run};
use harness::{Cluster, ClusterOptions, Pgweir, PgweirOptions, eventually, outside, procs};

const LIMIT: Duration = Duration::from_secs(30);

struct Rig {
    cluster: Cluster,
    weir: Pgweir,
    port: u16,
}

/// None where the programs are not installed.
fn rig(standbys: usize) -> Result<Option<Rig>> {
    rig_with(standbys, |_| String::new())
}

fn rig_with(standbys: usize, further: impl Fn(&Cluster) -> String) -> Result<Option<Rig>> {
    if outside::command("pcp_node_count")?.is_none() {
        return Ok(None);
    }
    let cluster = Cluster::new(ClusterOptions { standbys, ..ClusterOptions::default() })?;
    let port = procs::free_port()?;
    let file = cluster.root().join("pcp.conf");
    // pg_md5 secret
    std::fs::write(&file, "# user:md5(password)\npcp:5ebe2294ecd0e0f08eab7690d2a6ee69\n")?;
    std::fs::write(cluster.root().join("pcppass"), "*:*:pcp:secret\n*:*:nobody:secret\n")?;
    std::fs::write(cluster.root().join("wrongpass"), "*:*:pcp:wrong\n")?;
    for name in ["pcppass", "wrongpass"] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(cluster.root().join(name), mode)?;
    }
    let yaml = format!(
        "pcp_listen_addresses: [\"127.0.0.1\"]\npcp_port: {port}\npcp_conf_file: \"{}\"\n{}",
        file.display(),
        further(&cluster)
    );
    let weir = Pgweir::start_with(&cluster, &PgweirOptions::yaml(&yaml))?;
    Ok(Some(Rig { cluster, weir, port }))
}

impl Rig {
    fn as_user(&self, user: &str, passwords: &str, program: &str, args: &[&str]) -> Result<Output> {
        let mut command = outside::command(program)?.context("not all of pgpool2 is there")?;
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", user, "-w"]).args(args);
        command.env("PCPPASSFILE", self.cluster.root().join(passwords));
        run(&self.cluster, command, Duration::from_secs(20))
    }

    fn pcp(&self, program: &str, args: &[&str]) -> Result<Output> {
        self.as_user("pcp", "pcppass", program, args)
    }

    /// What it prints when it succeeds.
    fn said(&self, program: &str, args: &[&str]) -> Result<String> {
        let out = self.pcp(program, args)?;
        ensure!(out.code == 0, "{program} {args:?}: {out:?}");
        Ok(out.stdout)
    }
}

/// PP-11: what is right succeeds and tells the truth.
#[test]
fn pcp_programs_tell_what_show_tells() -> Result<()> {
    let Some(rig) = rig(1)? else { return Ok(()) };
    assert_eq!(rig.said("pcp_node_count", &[])?.trim(), "2");
    let all = rig.said("pcp_node_info", &["-a"])?;
    let lines: Vec<Vec<&str>> = all.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 2, "{all}");
    let ports = [rig.cluster.port(0).to_string(), rig.cluster.port(1).to_string()];
    assert_eq!(
        lines[0][..8],
        ["127.0.0.1", &ports[0], "2", "0.000000", "up", "up", "primary", "primary"],
        "{all}"
    );
    assert_eq!(
        lines[1][..8],
        ["127.0.0.1", &ports[1], "2", "1.000000", "up", "up", "standby", "standby"],
        "{all}"
    );
    let replicates =
        || rig.said("pcp_node_info", &["-n", "1"]).is_ok_and(|line| line.contains(" streaming async "));
    ensure!(eventually(LIMIT, replicates), "{:?}", rig.said("pcp_node_info", &["-n", "1"]));
    let time: Vec<&str> = lines[1].iter().rev().take(2).rev().copied().collect();
    ensure!(time[0].len() == 10 && time[1].len() == 8, "{all}");
    let one = rig.said("pcp_node_info", &["-n", "1"])?;
    let one: Vec<&str> = one.split_whitespace().collect();
    assert_eq!(one[..8], lines[1][..8]);
    let health = rig.said("pcp_health_check_stats", &["-n", "0"])?;
    let health: Vec<&str> = health.split_whitespace().collect();
    assert_eq!(health[..5], ["0", "127.0.0.1", &ports[0], "up", "primary"], "{health:?}");

    let mut client = rig.weir.client()?;
    client.simple("BEGIN")?;
    let pid = client.scalar("SELECT pg_backend_pid()")?;
    let sessions = rig.weir.admin("SHOW POOL_PROCESSES")?;
    let session = sessions.iter().find(|row| row["status"] == "Idle in transaction").context("no session")?;
    let count = rig.said("pcp_proc_count", &[])?;
    ensure!(count.split_whitespace().any(|id| id == session["pool_pid"]), "{count}");
    let info = rig.said("pcp_proc_info", &["-P", &session["pool_pid"]])?;
    ensure!(info.split_whitespace().any(|word| word == pid) && info.contains("bench"), "{info}");
    let status = rig.said("pcp_pool_status", &[])?;
    ensure!(status.contains("pcp_port") && status.contains(&rig.port.to_string()), "{status}");
    ensure!(!status.contains("value: pgweir\ndesc : That user's password"), "a secret is shown");
    Ok(())
}

/// PP-11: a node of which nothing is left is there again when the program has ended, and how far it is is said nowhere
/// but in the log.
#[test]
fn pcp_recovery_node_brings_a_lost_node_back() -> Result<()> {
    let recovery = |cluster: &Cluster| {
        format!("recovery_command: \"{}\"", script(cluster, "rejoin.sh", "%h %p %D %H %r"))
    };
    let Some(mut rig) = rig_with(1, recovery)? else { return Ok(()) };
    rig.cluster.kill9(1)?;
    std::fs::remove_dir_all(rig.cluster.data(1))?;
    let status = |rig: &Rig| rig.said("pcp_node_info", &["-n", "1"]);
    let is_down = || status(&rig).is_ok_and(|info| info.split(' ').nth(4) == Some("down"));
    ensure!(eventually(LIMIT, is_down), "{:?}", status(&rig));
    let said = rig.said("pcp_recovery_node", &["-n", "1"])?;
    ensure!(said.contains("Command Successful"), "{said}");
    let info = status(&rig)?;
    assert_eq!(info.split(' ').nth(4), Some("up"), "{info}");
    assert_eq!(rig.cluster.scalar(1, "SELECT pg_is_in_recovery()")?, "t");
    Ok(())
}

/// PP-11: what fails is told as a failure.
#[test]
fn pcp_programs_fail_when_the_command_does() -> Result<()> {
    let Some(rig) = rig(0)? else { return Ok(()) };
    for (program, args) in [
        ("pcp_node_info", &["-n", "7"][..]),
        ("pcp_attach_node", &["-n", "7"]),
        ("pcp_detach_node", &["-n", "7"]),
        ("pcp_promote_node", &["-n", "7"]),
        ("pcp_health_check_stats", &["-n", "7"]),
        ("pcp_proc_info", &["-P", "99999"]),
        ("pcp_watchdog_info", &[]),
        ("pcp_recovery_node", &["-n", "0"]),
    ] {
        let out = rig.pcp(program, args)?;
        // Those of 4.3 exit with 0 all the same; what they say is the server's.
        ensure!(out.stderr.contains("ERROR:") && out.stdout.trim().is_empty(), "{program} {args:?}: {out:?}");
    }
    for (user, passwords) in [("pcp", "wrongpass"), ("nobody", "pcppass")] {
        let out = rig.as_user(user, passwords, "pcp_node_count", &[])?;
        ensure!(out.code != 0 && out.stderr.contains("password does not match"), "{out:?}");
    }
    std::fs::write(rig.weir.dir().join("pgweir.yaml"), "port: [\n")?;
    let out = rig.pcp("pcp_reload_config", &[])?;
    ensure!(out.stderr.contains("ERROR:") && out.stderr.contains("refused"), "a refused reload: {out:?}");
    Ok(())
}

/// Reload and stop work through PCP, and what connects without knowing the protocol is let go.
/// Who connects and says nothing keeps no administrator out.
#[test]
fn pcp_silent_connections_stop_nobody() -> Result<()> {
    let Some(rig) = rig(0)? else { return Ok(()) };
    let connect = |_| TcpStream::connect(("127.0.0.1", rig.port));
    let silent = (0..100).map(connect).collect::<std::io::Result<Vec<_>>>()?;
    let began = Instant::now();
    assert_eq!(rig.said("pcp_node_count", &[])?.trim(), "1");
    ensure!(began.elapsed() < Duration::from_secs(10), "it waited for the silent ones");
    drop(silent);
    Ok(())
}

#[test]
fn pcp_reload_and_stop() -> Result<()> {
    use std::io::{Read, Write};
    let Some(mut rig) = rig(0)? else { return Ok(()) };
    for bytes in [&b"GET / HTTP/1.0\r\n\r\n"[..], b"M\0\0\0\0", b"L\0\0\0\x04", b"R\0\0\0\x06a\0"] {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", rig.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(bytes)?;
        let mut answer = Vec::new();
        // Closed either way; a reset is one.
        let _ended = stream.read_to_end(&mut answer);
        ensure!(!answer.windows(15).any(|part| part == b"CommandComplete"), "let in by {bytes:?}");
    }
    let options = PgweirOptions::yaml("query_wait_timeout: 7s");
    let text = std::fs::read_to_string(rig.weir.dir().join("pgweir.yaml"))?;
    std::fs::write(rig.weir.dir().join("pgweir.yaml"), format!("{text}\n{}\n", options.yaml))?;
    rig.said("pcp_reload_config", &[])?;
    let value = || {
        let rows = rig.weir.admin("SHOW CONFIG").unwrap_or_default();
        rows.into_iter().find(|row| row["key"] == "query_wait_timeout").map(|row| row["value"].clone())
    };
    ensure!(eventually(LIMIT, || value().as_deref() == Some("7s")), "{:?}", value());
    rig.said("pcp_stop_pgpool", &["-m", "fast"])?;
    assert_eq!(rig.weir.wait_exit(LIMIT)?, 0);
    Ok(())
}
