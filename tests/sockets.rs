//! PN-07: Unix sockets, on the clients' side and on the nodes'.

use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::messages::cancel_request;
use harness::{ClientAuth, Cluster, ClusterOptions, Login, Pgweir, PgweirOptions, msgs, tools};

const SECOND: Duration = Duration::from_secs(1);
const HBA: &str = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n";

fn cluster() -> Result<Cluster> {
    Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })
}

fn options(directories: &[&str], further: &str) -> PgweirOptions {
    let yaml = format!("unix_socket_directories: {directories:?}\n{further}");
    PgweirOptions { auth: ClientAuth::Hba(HBA.to_owned()), ..PgweirOptions::yaml(&yaml) }
}

fn socket(directory: &Path, weir: &Pgweir) -> PathBuf {
    directory.join(format!(".s.PGSQL.{}", weir.port()))
}

fn directory(cluster: &Cluster, name: &str) -> Result<PathBuf> {
    let path = cluster.root().join(name);
    std::fs::create_dir(&path)?;
    Ok(path)
}

/// What psql prints for `sql` over the socket in `host`.
fn asked(cluster: &Cluster, weir: &Pgweir, host: &str, sql: &str) -> Result<String> {
    let mut command = cluster.install().client("psql");
    command.args([
        "-X",
        "-At",
        "-h",
        host,
        "-p",
        &weir.port().to_string(),
        "-U",
        "bench",
        "-d",
        "bench",
        "-c",
        sql,
    ]);
    let out = tools::run(cluster, command, 10 * SECOND)?;
    ensure!(out.code == 0, "{} {}", out.stdout, out.stderr);
    Ok(out.stdout.trim().to_owned())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("not UTF-8")
}

/// PN-07: two directories, their mode, and a rule of its own.
#[test]
fn pn_07_sockets_in_two_directories_with_their_mode() -> Result<()> {
    let cluster = cluster()?;
    let (a, b) = (directory(&cluster, "a")?, directory(&cluster, "b")?);
    let options = options(&[text(&a)?, text(&b)?], "unix_socket_permissions: 0750\n");
    let mut weir = Pgweir::start_with(&cluster, &options)?;
    for place in [&a, &b] {
        let metadata = std::fs::metadata(socket(place, &weir))?;
        ensure!(metadata.file_type().is_socket());
        assert_eq!(metadata.permissions().mode() & 0o777, 0o750);
        // `local` trusts; TCP asks for the password.
        assert_eq!(asked(&cluster, &weir, text(place)?, "SELECT 'over a socket'")?, "over a socket");
    }
    let error = Login::bench().password("wrong").connect(weir.port()).err().context("let in")?;
    assert_eq!(harness::sqlstate(&error), "28P01");
    let clients = asked(&cluster, &weir, text(&a)?, "SELECT inet_client_addr() IS NOT NULL")?;
    assert_eq!(clients, "t", "its backend is a TCP connection all the same");
    assert_eq!(weir.stop()?, 0);
    ensure!(!socket(&a, &weir).exists() && !socket(&b, &weir).exists(), "a socket is left behind");
    Ok(())
}

/// PN-07: what a dead process left is removed, what a living one listens on is not, and a file is not either.
#[test]
fn pn_07_only_stale_sockets_are_removed() -> Result<()> {
    let cluster = cluster()?;
    let place = directory(&cluster, "s")?;
    let options = options(&[text(&place)?], "");
    let first = Pgweir::start_with(&cluster, &options)?;
    let path = socket(&place, &first);
    let second = |port: u16| -> Result<Pgweir> {
        let yaml = format!("{}port: {port}\nlisten_addresses: []\n", options.yaml);
        Pgweir::launch(&cluster, &PgweirOptions { yaml, ..options.clone() })
    };
    // Another one listens there.
    let mut refused = second(first.port())?;
    ensure!(refused.wait_exit(10 * SECOND)? != 0, "it started");
    ensure!(refused.log().contains("another process listens there"), "{}", refused.log());
    assert_eq!(asked(&cluster, &first, text(&place)?, "SELECT 'still mine'")?, "still mine");
    // Killed: nobody removed it.
    first.signal(rustix::process::Signal::KILL);
    ensure!(harness::eventually(3 * SECOND, || UnixStream::connect(&path).is_err()));
    ensure!(path.exists());
    let port = first.port();
    drop(first);
    let mut next = second(port)?;
    ensure!(harness::eventually(10 * SECOND, || UnixStream::connect(&path).is_ok()), "{}", next.log());
    assert_eq!(next.stop()?, 0);
    // A file that is no socket.
    std::fs::write(&path, "precious")?;
    let mut refused = second(port)?;
    ensure!(refused.wait_exit(10 * SECOND)? != 0, "it started");
    assert_eq!(std::fs::read_to_string(&path)?, "precious");
    Ok(())
}

/// PN-07: an abstract socket has no file.
#[test]
fn pn_07_an_abstract_socket() -> Result<()> {
    let cluster = cluster()?;
    let name = format!("@pgweir-test-{}", std::process::id());
    let weir = Pgweir::start_with(&cluster, &options(&[&name], ""))?;
    assert_eq!(asked(&cluster, &weir, &name, "SELECT 'abstract'")?, "abstract");
    Ok(())
}

/// PN-07: `sun_path` has 108 bytes with its NUL: 107 are possible, one more is an error at start.
#[test]
fn pn_07_a_path_may_have_107_bytes() -> Result<()> {
    let cluster = cluster()?;
    let probe = Pgweir::start_with(&cluster, &options(&[], ""))?;
    let fixed = cluster.root().join("x").as_os_str().len() - 1 + format!("/.s.PGSQL.{}", probe.port()).len();
    drop(probe);
    for (length, fits) in [(107, true), (108, false)] {
        // Ports have as many digits on one machine, as a rule; the length says which case it is.
        let place = directory(&cluster, &"x".repeat(length - fixed))?;
        let mut weir = Pgweir::launch(&cluster, &options(&[text(&place)?], ""))?;
        let path = socket(&place, &weir);
        if path.as_os_str().len() != length {
            continue;
        }
        if fits {
            weir.wait_answering()?;
            ensure!(UnixStream::connect(&path).is_ok());
        } else {
            assert_eq!(weir.wait_exit(10 * SECOND)?, 78, "{}", weir.log());
            ensure!(weir.log().contains("less than 108 bytes"), "{}", weir.log());
        }
    }
    Ok(())
}

/// A login by trust over a Unix socket; gives the stream after ReadyForQuery, and the key.
fn log_in(path: &Path) -> Result<(UnixStream, u32, Vec<u8>)> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(3 * SECOND))?;
    stream.write_all(&Login::bench().packet())?;
    let mut key = None;
    loop {
        let (tag, body) = message(&mut stream)?;
        match tag {
            b'K' => key = Some((u32::from_be_bytes(body[..4].try_into()?), body[4..].to_vec())),
            b'Z' => break,
            b'E' => anyhow::bail!("{}", String::from_utf8_lossy(&body)),
            _ => {}
        }
    }
    let (pid, secret) = key.context("no key")?;
    Ok((stream, pid, secret))
}

fn message(stream: &mut UnixStream) -> Result<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    stream.read_exact(&mut head)?;
    let mut body = vec![0; u32::from_be_bytes(head[1..].try_into()?) as usize - 4];
    stream.read_exact(&mut body)?;
    Ok((head[0], body))
}

/// PN-07, CN-01: a cancel request over the socket.
#[test]
fn pn_07_cancel_over_the_socket() -> Result<()> {
    let cluster = cluster()?;
    let place = directory(&cluster, "s")?;
    let weir = Pgweir::start_with(&cluster, &options(&[text(&place)?], ""))?;
    let (mut stream, pid, secret) = log_in(&socket(&place, &weir))?;
    stream.write_all(msgs().Q("SELECT 1, pg_sleep(30)").bytes())?;
    let runs = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(30)' AND state = 'active'";
    cluster.wait_scalar(0, runs, "1", 3 * SECOND)?;
    let mut canceller = UnixStream::connect(socket(&place, &weir))?;
    canceller.set_read_timeout(Some(3 * SECOND))?;
    canceller.write_all(&cancel_request(pid, &secret))?;
    let mut answer = Vec::new();
    canceller.read_to_end(&mut answer)?;
    ensure!(answer.is_empty(), "bytes in answer to a CancelRequest");
    let mut tags = String::new();
    loop {
        let (tag, body) = message(&mut stream)?;
        tags.push(char::from(tag));
        if tag == b'E' {
            ensure!(String::from_utf8_lossy(&body).contains("C57014"), "{}", String::from_utf8_lossy(&body));
        }
        if tag == b'Z' {
            break;
        }
    }
    assert_eq!(tags, "TEZ");
    Ok(())
}

/// PN-07: a node that is reached over a socket, on a port of its own; cancel requests go the same way.
#[test]
fn pn_07_a_backend_over_a_socket() -> Result<()> {
    // Relative to the data directory.
    let conf = "unix_socket_directories = '.'\n".to_owned();
    let cluster = Cluster::new(ClusterOptions { standbys: 0, conf, ..ClusterOptions::default() })?;
    let hba = cluster.data(0).join("pg_hba.conf");
    let rules = std::fs::read_to_string(&hba)?;
    std::fs::write(
        &hba,
        format!(
            "local all all scram-sha-256\n{}",
            rules.replace("host all,replication all", "host none all")
        ),
    )?;
    cluster.sql(0, "SELECT pg_reload_conf()")?;
    let data = cluster.data(0);
    let yaml =
        format!("backends:\n  - {{ hostname: \"{}\", port: {}, weight: 1 }}", text(&data)?, cluster.port(0));
    let weir = Pgweir::start(&cluster, &yaml)?;
    let mut client = weir.client()?;
    assert_eq!(client.scalar("SELECT inet_client_addr() IS NULL")?, "t");
    client.send(&msgs().Q("SELECT 1, pg_sleep(30)"))?;
    let runs = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(30)' AND state = 'active'";
    cluster.wait_scalar(0, runs, "1", 3 * SECOND)?;
    client.cancel()?;
    assert_eq!(client.read_ready(1)?.to_string(), "T E(57014) Z(I)");
    let servers = weir.admin("SHOW SERVERS")?;
    ensure!(servers.iter().all(|row| row["addr"] == "unix"), "{servers:?}");
    Ok(())
}

/// What is left of a listener that nobody serves is no reason to hang.
#[test]
fn pn_07_a_socket_that_nobody_serves_is_left_alone() -> Result<()> {
    let cluster = cluster()?;
    let place = directory(&cluster, "s")?;
    let first = Pgweir::start_with(&cluster, &options(&[], ""))?;
    let path = socket(&place, &first);
    let _deaf = UnixListener::bind(&path)?;
    let yaml =
        format!("{}port: {}\nlisten_addresses: []\n", options(&[text(&place)?], "").yaml, first.port());
    let mut refused = Pgweir::launch(&cluster, &PgweirOptions { yaml, ..options(&[], "") })?;
    ensure!(refused.wait_exit(10 * SECOND)? != 0, "it took the place of a listener");
    ensure!(path.exists());
    Ok(())
}
