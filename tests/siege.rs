//! AU-10: a login on a hostile network, from the outside: broken off at every step, dripped byte by byte, in odd shapes,
//! and while the files that decide about it are swapped. Nothing of it stays, and nobody else notices.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::client::SSL_REQUEST;
use harness::messages::{cancel_request, startup};
use harness::{
    ClientAuth, Cluster, ClusterOptions, Login, Pgweir, PgweirOptions, Pki, RawClient, Signature, TlsOffer,
    eventually, msgs,
};
use rustix::process::Signal;

const V3: u32 = 3 << 16;
const GSS_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 48];
/// The beginning of a ClientHello: more is announced than comes.
const HALF_A_HELLO: [u8; 12] = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 7];

/// One node, and a pgweir that speaks TLS and asks for users whom it does not know.
fn besieged(yaml: &str, auth: ClientAuth) -> Result<(Cluster, Pgweir, Pki)> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let pki = Pki::new(cluster.root(), "pki", Signature::Sha256)?;
    pki.issue("weir", "/CN=weir", "IP:127.0.0.1", 10)?;
    let yaml = format!(
        "ssl: allow\nssl_cert: {}\nssl_key: {}\nauth_user: pgweir\nauth_dbname: bench\n\
         auth_query: \"SELECT rolname, NULL::text FROM pg_roles WHERE rolname = $1\"\n{yaml}",
        pki.path("weir.crt"),
        pki.path("weir.key")
    );
    let weir = Pgweir::start_with(&cluster, &PgweirOptions { yaml, auth, ..PgweirOptions::default() })?;
    Ok((cluster, weir, pki))
}

fn sasl_first() -> Vec<u8> {
    let first = b"n,,n=,r=abcdefghijklmnop";
    let length = u32::try_from(first.len()).unwrap_or(0).to_be_bytes();
    msgs().message(b'p', &[&b"SCRAM-SHA-256\0"[..], &length, first].concat()).bytes().to_vec()
}

/// What is said up to the point at which the client goes away; each part waits for an answer.
fn broken_off() -> Vec<(&'static str, bool, Vec<Vec<u8>>)> {
    let packet = Login::bench().packet();
    let stranger = Login::new("stranger", "bench").packet();
    let half = |bytes: &[u8]| bytes[..bytes.len() / 2].to_vec();
    vec![
        ("nothing", false, vec![]),
        ("half a packet", false, vec![half(&packet)]),
        ("an SSLRequest", false, vec![SSL_REQUEST.to_vec()]),
        ("half a ClientHello", false, vec![SSL_REQUEST.to_vec(), HALF_A_HELLO.to_vec()]),
        ("half a direct ClientHello", false, vec![HALF_A_HELLO.to_vec()]),
        ("TLS", true, vec![]),
        ("half a packet in TLS", true, vec![half(&packet)]),
        ("a GSSENCRequest", false, vec![GSS_REQUEST.to_vec()]),
        ("a packet", false, vec![packet.clone()]),
        ("a packet in TLS", true, vec![packet.clone()]),
        ("a stranger's packet", false, vec![stranger]),
        ("half a first message", false, vec![packet.clone(), half(&sasl_first())]),
        ("a first message", false, vec![packet.clone(), sasl_first()]),
        ("a first message in TLS", true, vec![packet.clone(), sasl_first()]),
        ("half a final one", false, vec![packet, sasl_first(), b"p\0\0\0\x60c=biws,r=".to_vec()]),
    ]
}

/// Says the parts, and goes.
fn break_off(weir: &Pgweir, (tls, parts): (bool, &[Vec<u8>]), reset: bool) -> Result<()> {
    let mut client = RawClient::tcp(weir.port())?;
    if tls {
        client.start_tls(&TlsOffer::default())?;
    }
    for (number, part) in parts.iter().enumerate() {
        client.send_bytes(part)?;
        let more = number + 1 < parts.len();
        if more && matches!(part.as_slice(), [.., 22, 47 | 48]) {
            client.read_byte()?;
        } else if more {
            client.read_count(1)?;
        }
    }
    if reset {
        client.reset()?;
    }
    Ok(())
}

/// AU-10: whatever the step at which a client goes away, nothing of it stays: no session, no descriptor, no memory, no
/// debt of the address.
#[test]
fn au_10_logins_that_are_broken_off_leave_nothing() -> Result<()> {
    let (_cluster, weir, _pki) = besieged("", ClientAuth::Default)?;
    let all = broken_off();
    let round = || -> Result<()> {
        for (name, tls, parts) in &all {
            for reset in [false, true] {
                break_off(&weir, (*tls, parts), reset).with_context(|| (*name).to_owned())?;
            }
        }
        Ok(())
    };
    let sessions = || weir.admin("SHOW CLIENTS").map_or(usize::MAX, |rows| rows.len());
    drop(weir.client()?);
    let (clients, fds) = (sessions(), weir.open_fds()?);
    (0..10).try_for_each(|_| round())?;
    let settled = || sessions() <= clients && weir.open_fds().is_ok_and(|now| now <= fds + 8);
    ensure!(
        eventually(Duration::from_secs(30), settled),
        "{} sessions, {:?} files",
        sessions(),
        weir.open_fds()
    );
    let before = weir.rss_kb()?;
    (0..40).try_for_each(|_| round())?;
    ensure!(
        eventually(Duration::from_secs(30), settled),
        "{} sessions, {:?} files",
        sessions(),
        weir.open_fds()
    );
    let grown = weir.rss_kb()?.saturating_sub(before);
    ensure!(grown < 8192, "{grown} kB more after 1,200 logins that were broken off");
    // None of them was a guess: nobody has to wait, and the next wrong one is told at once.
    let started = Instant::now();
    assert_eq!(weir.login(&Login::bench().password("wrong"))?, "28P01");
    assert_eq!(weir.login(&Login::bench())?, "");
    ensure!(started.elapsed() < Duration::from_secs(4), "the address is in debt");
    Ok(())
}

/// AU-10: who sends a byte at a time has no more time than others, in the packet, in TLS and in the proof; and keeps
/// nobody out.
#[test]
fn au_10_dripping_clients_have_no_more_time() -> Result<()> {
    let (_cluster, weir, _pki) = besieged("authentication_timeout: 2s\n", ClientAuth::Default)?;
    let packet = Login::bench().packet();
    let starts: [(&[u8], Vec<u8>); 4] = [
        (b"", [&1_000u32.to_be_bytes()[..], &packet[4..packet.len() - 1], &[b'x'; 900]].concat()),
        (b"", [&HALF_A_HELLO[..], &[7; 400]].concat()),
        (&SSL_REQUEST, [&HALF_A_HELLO[..], &[7; 400]].concat()),
        (&packet, [&b"p\0\0\x0f\xff"[..], &[b'x'; 900]].concat()),
    ];
    let drips = |(at_once, slowly): &(&[u8], Vec<u8>)| -> Result<()> {
        let mut client = RawClient::tcp(weir.port())?;
        client.send_bytes(at_once)?;
        let end = Instant::now() + Duration::from_secs(30);
        // The end of the time is seen as a socket that takes no more.
        for byte in slowly {
            ensure!(Instant::now() < end, "still open after 30 s");
            if client.send_bytes(&[*byte]).is_err() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(40));
        }
        anyhow::bail!("{} bytes were taken, one at a time", slowly.len())
    };
    std::thread::scope(|scope| {
        let dripping: Vec<_> =
            starts.iter().cycle().take(80).map(|start| scope.spawn(|| drips(start))).collect();
        while dripping.iter().any(|one| !one.is_finished()) {
            assert_eq!(weir.login(&Login::bench())?, "");
        }
        dripping.into_iter().try_for_each(|one| one.join().expect("a client's thread panicked"))
    })
}

/// Packets of odd shapes that PostgreSQL answers: with an error, or by asking for the proof.
fn odd_starts() -> Vec<(&'static str, Vec<u8>)> {
    const USER: [(&str, &str); 2] = [("user", "bench"), ("database", "bench")];
    let with = |more: &[(&str, &str)]| startup(V3, &[&USER[..], more].concat());
    let many: Vec<(String, String)> = (0..1_000).map(|n| (format!("p{n}"), "1".to_owned())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let patched = |end: &[u8], cut: usize| {
        let packet = with(&[]);
        let body = [&packet[4..packet.len() - cut], end].concat();
        [&u32::try_from(body.len() + 4).unwrap_or(0).to_be_bytes()[..], &body].concat()
    };
    vec![
        ("the user twice", with(&[("user", "other")])),
        ("the database twice", with(&[("database", "nowhere")])),
        ("options twice", with(&[("options", "-c geqo=on"), ("options", "-c geqo=off")])),
        ("a thousand parameters", with(&many)),
        ("an empty name first", startup(V3, &[&[("", "")], &USER[..]].concat())),
        ("an empty database", with(&[("database", "")])),
        ("an empty user behind", with(&[("user", "")])),
        ("the user in capitals", startup(V3, &[("USER", "bench")])),
        ("replication of nonsense", with(&[("replication", "maybe")])),
        ("replication taken back", with(&[("replication", "maybe"), ("replication", "0")])),
        ("bytes behind the end", patched(b"\0\0\0", 0)),
        ("a packet behind the end", patched(b"user\0other\0\0", 0)),
        ("no end", patched(b"", 1)),
        ("a name without a value", patched(b"alone\0", 1)),
        ("protocol 5", startup(5 << 16, &USER)),
        ("protocol 1234", startup((1234 << 16) | 5678, &USER)),
        ("SSLRequest twice", [&SSL_REQUEST[..], &[0; 4]].concat()),
        ("a cancel request", cancel_request(1, &[1, 2, 3, 4])),
        (
            "a cancel request without a key",
            12u32.to_be_bytes().into_iter().chain(*b"\x04\xd2\x16\x2e\0\0\0\0").collect(),
        ),
    ]
}

/// AU-10: what is odd is answered as by the server, in its words; the versions apart that each can speak.
#[test]
fn au_10_odd_starts_are_answered_as_by_the_server() -> Result<()> {
    let (cluster, weir) = harness::rig(0, "")?;
    let answer = |port: u16, bytes: &[u8]| -> Result<String> {
        let mut client = RawClient::tcp(port)?;
        client.send_bytes(bytes)?;
        client.half_close()?;
        if bytes.starts_with(&SSL_REQUEST) {
            return Ok(format!("{:?}", client.read_byte().is_ok()));
        }
        let replies = client.read_to_end()?;
        let told = replies.error().map(|fields| fields.get('M').to_owned()).unwrap_or_default();
        let told = told.split(": server supports").next().unwrap_or_default().to_owned();
        Ok(format!("{replies} {told}"))
    };
    for (name, bytes) in odd_starts() {
        let (wanted, got) = (answer(cluster.port(0), &bytes)?, answer(weir.port(), &bytes)?);
        assert_eq!(got, wanted, "{name}");
    }
    Ok(())
}

/// AU-10: while rules, certificates and secrets are swapped and read again, who may come in by the old ones and by the
/// new ones comes in, by TLS and in the clear.
#[test]
fn au_10_logins_while_everything_is_read_again() -> Result<()> {
    let (_cluster, weir, pki) = besieged("", ClientAuth::Hba(RULES[0].to_owned()))?;
    let (done, let_in) = (AtomicBool::new(false), AtomicUsize::new(0));
    let logs_in = |tls: bool| -> Result<()> {
        while !done.load(Ordering::Relaxed) {
            let mut client = RawClient::tcp(weir.port())?;
            if tls {
                client.start_tls(&TlsOffer::default())?;
            }
            client.log_in(&Login::bench())?;
            assert_eq!(client.scalar("SELECT 1")?, "1");
            let_in.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = [false, true, true].map(|tls| scope.spawn(move || logs_in(tls))).into();
        let swapped = (0..20).try_for_each(|turn| swap(&weir, &pki, turn, &let_in));
        done.store(true, Ordering::Relaxed);
        clients.into_iter().try_for_each(|one| one.join().expect("a client's thread panicked"))?;
        swapped
    })?;
    ensure!(!weir.log().contains("reload refused"), "{}", weir.log());
    assert_eq!(weir.login(&Login::bench().password("wrong"))?, "28P01");
    Ok(())
}

/// Two sets of rules that ask `bench` for its password, each in its way.
const RULES: [&str; 2] = [
    "host all all all scram-sha-256\n",
    "host nowhere all all reject\nhostssl all all all password\nhostnossl all all all md5\n",
];

/// Puts the other files in place, has them read, and waits until clients have come in since.
fn swap(weir: &Pgweir, pki: &Pki, turn: usize, let_in: &AtomicUsize) -> Result<()> {
    let put = |name: &str, text: &str| -> Result<()> {
        let place = weir.dir().join(name);
        fs::write(place.with_extension("new"), text)?;
        fs::set_permissions(
            place.with_extension("new"),
            std::os::unix::fs::PermissionsExt::from_mode(0o600),
        )?;
        Ok(fs::rename(place.with_extension("new"), place)?)
    };
    put("pool_hba.conf", RULES[turn % 2])?;
    let more = ["", "stranger:TEXTstranger\n"][turn % 2];
    put("pool_passwd", &format!("{more}bench:TEXTbench\npgweir:TEXTpgweir\npostgres:TEXTpostgres\n"))?;
    pki.issue("weir", "/CN=weir", "IP:127.0.0.1", 10)?;
    let (seen, reloads) =
        (let_in.load(Ordering::Relaxed), weir.log().matches("configuration reloaded").count());
    weir.signal(Signal::HUP);
    let read = || {
        weir.log().matches("configuration reloaded").count() > reloads
            && let_in.load(Ordering::Relaxed) > seen + 5
    };
    ensure!(eventually(Duration::from_secs(30), read), "nobody comes in after reload {turn}: {}", weir.log());
    Ok(())
}
