//! Malformed, oversized, slow and foreign input: closed or a clear FATAL, the process lives, memory
//! stays flat.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::messages::{cancel_request, startup};
use harness::{Login, Pgweir, RawClient, eventually, msgs, rig};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// Only a hang takes longer.
const LIMIT: Duration = Duration::from_secs(30);

const V3: u32 = 3 << 16;

/// What a startup packet may look like when somebody means ill.
fn bad_starts() -> Vec<(&'static str, Vec<u8>)> {
    let packet = |length: u32, body: &[u8]| [&length.to_be_bytes()[..], body].concat();
    let good = Login::bench().packet();
    vec![
        ("length 0", packet(0, &[0; 8])),
        ("length 3", packet(3, &[0; 8])),
        ("length 7", packet(7, &[0, 3, 0])),
        ("length 8, nothing else", packet(8, &V3.to_be_bytes())),
        ("length -1", packet(u32::MAX, &[0; 64])),
        ("length 0x7fffffff", packet(0x7fff_ffff, &[b'x'; 4096])),
        ("length 10001", packet(10_001, &[b'x'; 10_001])),
        ("no user", startup(V3, &[("database", "bench")])),
        ("empty user", startup(V3, &[("user", "")])),
        ("no terminator", good[..good.len() - 1].to_vec()),
        ("odd number of texts", {
            let body = [&V3.to_be_bytes()[..], b"user\0bench\0database\0\0"].concat();
            packet(u32::try_from(body.len() + 4).unwrap_or(0), &body)
        }),
        ("version 0", startup(0, &[("user", "bench")])),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
        ("TLS ClientHello", [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[7; 600]].concat()),
        ("zeros", vec![0; 4096]),
        ("0xff", vec![0xff; 4096]),
        (
            "cancel without key",
            12u32.to_be_bytes().into_iter().chain(80_877_102u32.to_be_bytes()).chain([0; 4]).collect(),
        ),
        ("cancel with a huge key", cancel_request(1, &[1; 4096])),
        ("SSLRequest of length 9", [&9u32.to_be_bytes()[..], &80_877_103u32.to_be_bytes(), &[0]].concat()),
    ]
}

/// Sends bytes as the first thing on a connection, then the end of the stream; everything must be over
/// within the deadline, with nothing or a FATAL as the answer.
fn closed_or_fatal(weir: &Pgweir, name: &str, bytes: &[u8]) -> Result<()> {
    let mut client = RawClient::tcp(weir.port())?;
    // It may be closed while we still send.
    let _reset = client.send_bytes(bytes);
    let _reset = client.half_close();
    match client.read_to_end() {
        Ok(replies) => {
            let text = replies.to_string();
            let fatal = replies.error().is_some_and(|fields| fields.get('S') == "FATAL");
            ensure!(text.is_empty() || (fatal && replies.0.len() == 1), "{name}: {text}");
            Ok(())
        }
        // Protocol 2 answers and the N of an SSLRequest are not messages of protocol 3.
        Err(error) if !format!("{error:#}").contains("no reply within") => Ok(()),
        Err(error) => Err(error.context(name.to_owned())),
    }
}

/// AU-10
#[test]
fn malformed_startup_packets_and_garbage() -> Result<()> {
    let (_cluster, mut weir) = rig(0, "")?;
    for (name, bytes) in bad_starts() {
        closed_or_fatal(&weir, name, &bytes)?;
        ensure!(weir.is_alive()?, "{name} killed it");
    }
    // Memory: warmed up by the first thousand, flat afterwards.
    for round in 0..5 {
        for n in 0..200u32 {
            let garbage: Vec<u8> =
                (0..500u32).map(|i| (i.wrapping_mul(n + round * 200).wrapping_add(n) >> 3) as u8).collect();
            closed_or_fatal(&weir, "garbage", &garbage)?;
        }
    }
    let before = weir.rss_kb()?;
    for _ in 0..20 {
        for (name, bytes) in bad_starts() {
            closed_or_fatal(&weir, name, &bytes)?;
        }
    }
    let after = weir.rss_kb()?;
    ensure!(after < before + 4096, "from {before} kB to {after} kB");
    assert_eq!(weir.client()?.scalar("SELECT 1")?, "1");
    Ok(())
}

/// AU-10
#[test]
fn a_clear_answer_where_there_is_one_to_give() -> Result<()> {
    let (_cluster, weir) = rig(0, "")?;
    let answer = |bytes: &[u8]| -> Result<String> {
        let mut client = RawClient::tcp(weir.port())?;
        client.send_bytes(bytes)?;
        Ok(client.read_to_end()?.to_string())
    };
    assert_eq!(answer(&startup(V3, &[("database", "bench")]))?, "E(28000)");
    assert_eq!(answer(&startup(4 << 16, &[("user", "bench")]))?, "E(0A000)");
    // Closed at once, not at the end of the authentication time: the length can never be right.
    assert!(["", "E(08P01)"].contains(&answer(&[0x7f, 0xff, 0xff, 0xff, 0, 3, 0, 0])?.as_str()));
    assert!(["", "E(08P01)"].contains(&answer(b"GET / HTTP/1.0\r\n\r\n")?.as_str()));
    Ok(())
}

/// What a client may send where the password is due.
fn bad_passwords() -> Vec<(&'static str, Vec<u8>)> {
    let sasl = |mechanism: &str, length: u32, data: &[u8]| {
        let body = [mechanism.as_bytes(), &[0], &length.to_be_bytes(), data].concat();
        msgs().message(b'p', &body).bytes().to_vec()
    };
    vec![
        ("query", msgs().Q("SELECT 1").bytes().to_vec()),
        ("parse and sync", msgs().PBE("SELECT 1").S().bytes().to_vec()),
        ("empty password", msgs().message(b'p', &[]).bytes().to_vec()),
        ("SASL length -2", sasl("SCRAM-SHA-256", u32::MAX - 1, b"n,,n=,r=abc")),
        ("SASL length 0x7fffffff", sasl("SCRAM-SHA-256", 0x7fff_ffff, b"n,,n=,r=abc")),
        ("SASL length -1", sasl("SCRAM-SHA-256", u32::MAX, &[])),
        ("unknown mechanism", sasl("SCRAM-MD5", 11, b"n,,n=,r=abc")),
        ("PLUS without TLS", sasl("SCRAM-SHA-256-PLUS", 11, b"n,,n=,r=abc")),
        ("no comma", sasl("SCRAM-SHA-256", 3, b"abc")),
        ("no nonce", sasl("SCRAM-SHA-256", 6, b"n,,n=,")),
        ("not UTF-8", sasl("SCRAM-SHA-256", 12, b"n,,n=,r=\xff\xfe\xfd\x00")),
        ("10 MB announced", [&b"p"[..], &(10u32 << 20).to_be_bytes(), &[b'x'; 65536]].concat()),
        ("2 GB announced", [&b"p"[..], &0x7fff_ffffu32.to_be_bytes(), &[b'x'; 64]].concat()),
        ("length 0", b"p\0\0\0\0".to_vec()),
        ("unknown type", msgs().message(0xfe, b"x").bytes().to_vec()),
        ("terminate", msgs().X().bytes().to_vec()),
    ]
}

#[test]
fn au_10_malformed_authentication_traffic() -> Result<()> {
    let (_cluster, mut weir) = rig(0, "")?;
    for round in 0..5 {
        for (name, bytes) in bad_passwords() {
            let mut client = RawClient::tcp(weir.port())?;
            client.send_bytes(&Login::bench().packet())?;
            assert_eq!(client.read_count(1)?.to_string(), "R(10)", "{name}");
            let _reset = client.send_bytes(&bytes);
            let _reset = client.half_close();
            let replies = client.read_to_end().with_context(|| format!("{name}, round {round}"))?;
            // Without an initial response (length -1) the server asks for it.
            let text = replies.to_string().trim_start_matches("R(11)").trim().to_owned();
            ensure!(["", "E(08P01)", "E(28P01)", "E(28000)"].contains(&text.as_str()), "{name}: {text}");
            ensure!(weir.is_alive()?, "{name} killed it");
        }
    }
    ensure!(weir.rss_kb()? < 100_000, "{} kB", weir.rss_kb()?);
    assert_eq!(weir.client()?.scalar("SELECT 1")?, "1");
    Ok(())
}

#[test]
fn malformed_messages_after_the_login() -> Result<()> {
    let (cluster, mut weir) = rig(0, "default_pool_size: 2")?;
    let raw = |tag: u8, length: u32, body: &[u8]| [&[tag][..], &length.to_be_bytes(), body].concat();
    for (name, bytes) in [
        ("unknown type", raw(0xfe, 4, b"")),
        ("length 0", raw(b'Q', 0, b"")),
        ("length 3", raw(b'Q', 3, b"")),
        ("length -1", raw(b'Q', u32::MAX, b"SELECT 1\0")),
        ("Sync with 2 GB", raw(b'S', 0x7fff_ffff, b"")),
        ("server's message", raw(b'Z', 5, b"I")),
    ] {
        let mut client = weir.client()?;
        client.send_bytes(&bytes)?;
        let replies = client.read_to_end().with_context(|| name.to_owned())?;
        let fatal =
            replies.error().is_some_and(|fields| fields.get('S') == "FATAL" && fields.get('C') == "08P01");
        ensure!(replies.0.is_empty() || fatal, "{name}: {replies}");
        ensure!(weir.is_alive()?, "{name} killed it");
        assert_eq!(weir.client()?.scalar("SELECT 1")?, "1", "{name}");
    }
    // Malformed inside a well-formed frame: = direct, and the session may go on.
    for (name, messages) in [
        ("Q without NUL", msgs().message(b'Q', b"SELECT 1")),
        ("P cut short", msgs().message(b'P', b"name\0SELECT 1\0\0\x05").S()),
        ("B cut short", msgs().message(b'B', b"\0").S()),
        ("E cut short", msgs().message(b'E', b"\0\0").S()),
        ("D of nothing", msgs().message(b'D', b"X\0").S()),
    ] {
        let outcome = |mut client: RawClient| -> Result<String> {
            client.send(&messages)?;
            let replies = client.read_until(|reply| matches!(reply, harness::Reply::ReadyForQuery(_)))?;
            Ok(replies.to_string())
        };
        let (wanted, got) = (outcome(cluster.direct(0)?)?, outcome(weir.client()?)?);
        assert_eq!(got, wanted, "{name}");
        assert_eq!(weir.client()?.scalar("SELECT 1")?, "1", "{name}");
    }
    Ok(())
}

/// AU-10
#[test]
fn slow_starts_are_ended_and_hinder_nobody() -> Result<()> {
    let (_cluster, weir) = rig(0, "authentication_timeout: 1s")?;
    let fds = weir.open_fds()?;
    let mut slow = Vec::new();
    for n in 0..200 {
        let mut client = RawClient::tcp(weir.port())?;
        let packet = Login::bench().packet();
        // Nothing, part of the length, part of the packet, all of it and then no password.
        client.send_bytes(&packet[..[0, 2, 20, packet.len()][n % 4]])?;
        slow.push(client);
    }
    assert_eq!(weir.client()?.scalar("SELECT 1")?, "1");
    for client in &mut slow {
        client.set_deadline(Duration::from_secs(3));
        client.read_to_end().context("a slow start is kept open")?;
    }
    drop(slow);
    ensure!(
        eventually(Duration::from_secs(30), || weir.open_fds().is_ok_and(|n| n <= fds + 8)),
        "descriptors leak"
    );
    assert_eq!(weir.client()?.scalar("SELECT 1")?, "1");
    Ok(())
}

#[test]
fn to_02_connections_that_come_and_go_leave_nothing() -> Result<()> {
    let (_cluster, weir) = rig(0, "max_client_conn: 50")?;
    drop(weir.client()?);
    let fds = weir.open_fds()?;
    for n in 0..2000 {
        let client = RawClient::tcp(weir.port())?;
        match n % 3 {
            0 => drop(client),
            1 => client.reset()?,
            _ => client.half_close()?,
        }
    }
    ensure!(
        eventually(Duration::from_secs(30), || weir.client().and_then(|mut c| c.scalar("SELECT 1")).is_ok()),
        "slots of clients that are gone are not given back"
    );
    ensure!(
        eventually(Duration::from_secs(30), || weir.open_fds().is_ok_and(|n| n <= fds + 8)),
        "descriptors leak"
    );
    Ok(())
}

#[test]
fn to_02_the_client_limit_is_said_clearly() -> Result<()> {
    let (_cluster, weir) = rig(0, "max_client_conn: 10")?;
    let mut clients = Vec::new();
    let refused = loop {
        match weir.client() {
            Ok(client) => clients.push(client),
            Err(error) => break harness::sqlstate(&error).to_owned(),
        }
        ensure!(clients.len() <= 10, "more clients than the limit");
    };
    assert_eq!((refused.as_str(), clients.len()), ("53300", 10));
    clients.into_iter().try_for_each(RawClient::reset)?;
    ensure!(eventually(Duration::from_secs(30), || weir.client().is_ok()), "the count does not fall");
    Ok(())
}

/// AU-10: 2,000 sockets that are open and say nothing, or never end what they say, keep nobody out.
#[test]
fn half_open_sockets_keep_nobody_out() -> Result<()> {
    let (_cluster, weir) = rig(0, "")?;
    let mut silent = Vec::new();
    for index in 0..2_300 {
        let mut client = RawClient::tcp(weir.port()).with_context(|| format!("socket {index}"))?;
        match index % 3 {
            0 => {}
            1 => client.send_bytes(&[0, 0, 0, 40, 0, 3])?,
            _ => client.send_bytes(&Login::bench().packet())?,
        }
        silent.push(client);
        if index % 500 == 0 {
            assert_eq!(weir.client()?.scalar("SELECT 1")?, "1", "after {index} sockets");
        }
    }
    assert_eq!(weir.client()?.scalar("SELECT 1")?, "1");
    let made_room = eventually(Duration::from_secs(30), || weir.log().contains("the oldest was closed"));
    ensure!(made_room, "the number of those who do not log in is not bounded");
    Ok(())
}

/// Guessing is slowed down for who guesses, and for nobody else.
#[test]
fn au_10_guesses_are_rate_limited() -> Result<()> {
    let (_cluster, weir) = rig(0, "")?;
    let wrong = Login::bench().password("wrong");
    let mut refused = false;
    for _ in 0..40 {
        let Err(error) = wrong.connect(weir.port()) else { anyhow::bail!("a wrong password works") };
        refused |= format!("{error:#}").contains("too many failed logins");
        if refused {
            break;
        }
        // Those that have to wait are not waited for: the debt is what counts.
        for _ in 0..4 {
            let mut client = RawClient::tcp(weir.port())?;
            client.send_bytes(&wrong.packet())?;
        }
    }
    assert_eq!(Login::new("other", "bench").connect(weir.port())?.scalar("SELECT 1")?, "1");
    Ok(())
}

/// TO-02: this machine has no descriptor left. Who is connected shares the backends that there are, no node is taken for
/// lost because none can be connected to, the log is not filled, and with descriptors everything goes on by itself.
#[test]
fn to_02_without_descriptors_no_node_is_lost() -> Result<()> {
    let (_cluster, weir) =
        rig(1, "health_check_period: 100ms\nhealth_check_max_retries: 0\nquery_wait_timeout: 5s")?;
    let (mut one, mut others) = (weir.client()?, [weir.client()?, weir.client()?]);
    others.iter_mut().for_each(|client| client.set_deadline(LIMIT));
    one.simple("BEGIN; SELECT 7")?;
    let before = files(&weir)?;
    let few = Some(u64::try_from(weir.open_fds()?)? + 8);
    limit_files(&weir, Rlimit { current: few, ..before })?;
    let queued: Vec<RawClient> = (0..40).map(|_| RawClient::tcp(weir.port())).collect::<Result<_>>()?;
    ensure!(eventually(LIMIT, || weir.log().contains("cannot accept")), "there are enough");
    // Each needs the primary's only backend.
    others.iter_mut().try_for_each(|client| client.send(&msgs().Q("BEGIN; SELECT 7")))?;
    ensure!(eventually(LIMIT, || weir.log().contains("cannot connect to node")), "no need of one");
    one.simple("COMMIT")?;
    let mut said: Vec<String> =
        others.iter_mut().map(|client| Ok(client.read_ready(1)?.to_string())).collect::<Result<_>>()?;
    said.sort();
    assert_eq!(said, ["C(BEGIN) T D(7) C(SELECT 1) Z(T)", "E(53000) Z(I)"]);
    let lines = weir.log().matches("cannot accept").count();
    ensure!(lines <= 3, "{lines} lines in {LIMIT:?}");
    limit_files(&weir, before)?;
    drop(queued);
    for client in &mut others {
        client.simple("ROLLBACK")?;
        assert_eq!(client.scalar("SELECT 8")?, "8");
    }
    weir.client()?.scalar("SELECT 9")?;
    let changes: Vec<_> = weir.admin("SHOW EVENTS")?.into_iter().filter(|row| row["now"] == "down").collect();
    ensure!(changes.is_empty(), "{changes:?}");
    Ok(())
}

/// The limits of open files that pgweir has.
fn files(weir: &Pgweir) -> Result<Rlimit> {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", weir.pid()))?;
    let line = limits.lines().find(|line| line.starts_with("Max open files")).context("no such line")?;
    let mut numbers = line.split_whitespace().skip(3).map(|number| number.parse().ok());
    Ok(Rlimit { current: numbers.next().flatten(), maximum: numbers.next().flatten() })
}

fn limit_files(weir: &Pgweir, limit: Rlimit) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(weir.pid())?).context("no process")?;
    prlimit(Some(pid), Resource::Nofile, limit)?;
    Ok(())
}
