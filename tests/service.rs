//! Under a service manager: what systemd is told, the watchdog, and sockets that it has opened (its socket
//! activation). The manager is played by a datagram socket and a few lines of Python.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use harness::{Cluster, ClusterOptions, Pgweir, PgweirOptions, eventually};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(20);

fn cluster() -> Result<Cluster> {
    Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })
}

/// The manager's end.
struct Manager {
    socket: UnixDatagram,
    heard: Vec<String>,
}

impl Manager {
    fn new(dir: &Path) -> Result<Self> {
        let socket = UnixDatagram::bind(dir.join("notify"))?;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        Ok(Self { socket, heard: Vec::new() })
    }

    /// The next message with that line; what comes before it is kept aside.
    fn next(&mut self, wanted: impl Fn(&str) -> bool) -> Result<String> {
        let end = Instant::now() + LIMIT;
        while Instant::now() < end {
            let mut buffer = [0; 4096];
            let Ok(read) = self.socket.recv(&mut buffer) else { continue };
            let message = String::from_utf8(buffer[..read].to_vec())?;
            self.heard.push(message.clone());
            if message.lines().any(&wanted) {
                return Ok(message);
            }
        }
        bail!("not told; what was: {:?}", self.heard)
    }
}

/// RL-01, RL-03: systemd is told when clients are served, when a reload begins and ends, and when the end begins; the
/// status follows what happens, and the watchdog is fed.
#[test]
fn the_service_manager_is_told() -> Result<()> {
    let cluster = cluster()?;
    let mut manager = Manager::new(cluster.root())?;
    let under = vec![
        "env".to_owned(),
        format!("NOTIFY_SOCKET={}", cluster.root().join("notify").display()),
        "WATCHDOG_USEC=400000".to_owned(),
    ];
    let options = PgweirOptions { under, ..PgweirOptions::default() };
    let mut weir = Pgweir::launch(&cluster, &options)?;
    manager.next(|line| line == "READY=1")?;
    ensure!(weir.client().is_ok(), "READY=1 before clients are served");
    for _ in 0..3 {
        manager.next(|line| line == "WATCHDOG=1")?;
    }
    let _client = weir.client()?;
    manager.next(|line| line.starts_with("STATUS=Serving 1 clients; 1 of 1 nodes up, primary 0"))?;
    weir.signal(Signal::HUP);
    manager.next(|line| line == "RELOADING=1")?;
    let ended = manager.next(|line| line == "READY=1")?;
    ensure!(ended.contains("STATUS=Serving clients"), "{ended}");
    weir.rewrite(&cluster, &PgweirOptions::yaml("port: nonsense"))?;
    weir.signal(Signal::HUP);
    manager.next(|line| line == "RELOADING=1")?;
    let ended = manager.next(|line| line == "READY=1")?;
    ensure!(ended.contains("STATUS=The reload was refused"), "{ended}");
    weir.signal(Signal::TERM);
    let stopping = manager.next(|line| line == "STOPPING=1")?;
    // shutdown_timeout is 60 s, and the stricter modes come after it.
    ensure!(stopping.contains("EXTEND_TIMEOUT_USEC=75000000\n"), "{stopping}");
    assert_eq!(weir.wait_exit(LIMIT)?, 0);
    Ok(())
}

/// A watchdog that is meant for another process (a wrapper's) is not fed, and a socket that is not there is an error at
/// the start rather than silence.
#[test]
fn notifications_for_others_and_to_nobody() -> Result<()> {
    let cluster = cluster()?;
    let mut manager = Manager::new(cluster.root())?;
    let socket = format!("NOTIFY_SOCKET={}", cluster.root().join("notify").display());
    let env = |more: &[&str]| -> Vec<String> {
        ["env"].iter().chain(more).map(|word| (*word).to_owned()).collect()
    };
    let under = env(&[&socket, "WATCHDOG_USEC=100000", "WATCHDOG_PID=1"]);
    let weir = Pgweir::launch(&cluster, &PgweirOptions { under, ..PgweirOptions::default() })?;
    manager.next(|line| line == "READY=1")?;
    manager.next(|line| line.starts_with("STATUS=Serving 0 clients"))?;
    ensure!(!manager.heard.iter().any(|message| message.contains("WATCHDOG")), "{:?}", manager.heard);
    drop(weir);
    let under = env(&["NOTIFY_SOCKET=/nonexistent/notify"]);
    let mut weir = Pgweir::launch(&cluster, &PgweirOptions { under, ..PgweirOptions::default() })?;
    assert_eq!(weir.wait_exit(LIMIT)?, 1);
    ensure!(weir.log().contains("cannot reach NOTIFY_SOCKET /nonexistent/notify"), "{}", weir.log());
    Ok(())
}

/// Opens sockets as systemd does, from descriptor 3 on, and becomes the program: a TCP socket on the configured port,
/// which pgweir could not bind any more, and a Unix one.
const ACTIVATE: &str = "
import os, re, socket, sys
port = int(re.search(r'^port: (\\d+)', open(sys.argv[-1]).read(), re.M).group(1))
tcp = socket.socket()
tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
tcp.bind(('127.0.0.1', port))
tcp.listen(16)
unix = socket.socket(socket.AF_UNIX)
unix.bind(os.path.join(os.path.dirname(sys.argv[-1]), '.s.PGSQL.1'))
unix.listen(16)
copies = [os.dup(s.fileno()) for s in (tcp, unix)]
copies = [os.dup2(fd, 60 + i) for i, fd in enumerate(copies)]
for i, fd in enumerate(copies):
    os.dup2(fd, 3 + i, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='2')
os.execvp(sys.argv[1], sys.argv[1:])
";

/// Sockets that the manager has opened take the place of those of the configuration, keep serving after a reload, and
/// are left to the manager at the end.
#[test]
fn sockets_of_the_service_manager_are_served() -> Result<()> {
    let cluster = cluster()?;
    let under = vec!["python3".to_owned(), "-c".to_owned(), ACTIVATE.to_owned()];
    let mut weir = Pgweir::launch(&cluster, &PgweirOptions { under, ..PgweirOptions::default() })?;
    weir.wait_answering()?;
    weir.wait_nodes(1)?;
    assert_eq!(weir.client()?.scalar("SELECT 1")?, "1");
    let psql = || -> Result<String> {
        let mut command = harness::install::Install::find()?.client("psql");
        command.args(["-XAt", "-h"]).arg(weir.dir()).args(["-p", "1", "-U", "postgres", "-c", "SELECT 2"]);
        command.env("PGPASSWORD", "postgres").env("PGDATABASE", "postgres");
        let out = command.output()?;
        Ok(String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).trim().to_owned())
    };
    assert_eq!(psql()?, "2");
    weir.signal(Signal::HUP);
    ensure!(eventually(LIMIT, || weir.log().contains("configuration reloaded")), "{}", weir.log());
    assert_eq!(weir.client()?.scalar("SELECT 3")?, "3");
    assert_eq!(weir.stop()?, 0);
    ensure!(weir.dir().join(".s.PGSQL.1").exists(), "the manager's socket was removed");
    Ok(())
}

/// Something that is no listening socket is refused by its number.
#[test]
fn what_is_no_socket_is_refused() -> Result<()> {
    let cluster = cluster()?;
    let script = "import os, sys\nos.dup2(os.open('/dev/null', 0), 3, inheritable=True)\n\
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')\nos.execvp(sys.argv[1], sys.argv[1:])";
    let under = ["python3", "-c", script].map(str::to_owned).to_vec();
    let mut weir = Pgweir::launch(&cluster, &PgweirOptions { under, ..PgweirOptions::default() })?;
    assert_eq!(weir.wait_exit(LIMIT)?, 1);
    ensure!(weir.log().contains("socket 0 of LISTEN_FDS"), "{}", weir.log());
    Ok(())
}

/// The units of etc/systemd are what systemd understands, and keep what they must. Left out without systemd-analyze.
#[test]
fn the_units_are_sound() -> Result<()> {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../etc/systemd");
    let service = std::fs::read_to_string(units.join("pgweir.service"))?;
    for line in [
        "Type=notify",
        "WatchdogSec=30s",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "RestartPreventExitStatus=64 78",
        "SystemCallFilter=@system-service",
    ] {
        ensure!(service.lines().any(|there| there == line), "{line}");
    }
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        println!("systemd-analyze is not installed: not tested");
        return Ok(());
    }
    // The programs that the unit names need not be installed here.
    let dir = tempfile::tempdir()?;
    let local = service.replace("/usr/bin/pgweir", "/bin/true");
    std::fs::write(dir.path().join("pgweir.service"), local)?;
    std::fs::copy(units.join("pgweir.socket"), dir.path().join("pgweir.socket"))?;
    let analyze = |args: &[&str]| -> Result<(bool, String)> {
        let out = Command::new("systemd-analyze").args(args).current_dir(dir.path()).output()?;
        Ok((out.status.success(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned()))
    };
    let (is_fine, said) = analyze(&["verify", "--man=no", "./pgweir.service", "./pgweir.socket"])?;
    let about_ours: Vec<&str> = said.lines().filter(|line| line.contains("pgweir")).collect();
    ensure!(is_fine && about_ours.is_empty(), "{said}");
    let (_, said) = analyze(&["security", "--offline=true", "./pgweir.service"])?;
    let exposure = said.lines().find(|line| line.contains("Overall exposure level")).context(said.clone())?;
    let level: f64 =
        exposure.split_whitespace().find_map(|word| word.parse().ok()).context(exposure.to_owned())?;
    ensure!(level < 3.0, "{exposure}");
    Ok(())
}
