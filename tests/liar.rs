//! AU-10: a node that lies. Nothing it says before, during or after a login may crash pgweir, fill its memory or be
//! taken for a success.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{Cluster, ClusterOptions, Login, Pgweir, PgweirOptions, eventually, sqlstate};

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX).to_be_bytes();
    [&[tag], &length[..], body].concat()
}

fn authentication(code: u32, data: &[u8]) -> Vec<u8> {
    message(b'R', &[&code.to_be_bytes()[..], data].concat())
}

/// What the liar says: at once after the start-up packet, and after each message that follows.
#[derive(Clone)]
struct Script {
    name: &'static str,
    answers: Vec<Vec<u8>>,
    /// The answer to an SSLRequest.
    to_ssl: &'static [u8],
}

/// Stands for the nonce that the client sent: as long as that is.
const NONCE: &str = "{the nonce that the client has sent}";

/// What the log must say of some of the lies: they are looked at, and not something before them.
const REASONS: [&str; 6] = [
    "SCRAM iteration count 0 is not between",
    "SCRAM iteration count 1000001 is not between",
    "SCRAM iteration count 4294967295 is not between",
    "invalid SCRAM server signature",
    "SCRAM error of the server: other-error",
    "AuthenticationOk before the server proved itself",
];

fn script(name: &'static str, answers: Vec<Vec<u8>>) -> Script {
    Script { name, answers, to_ssl: b"N" }
}

fn lies() -> Vec<Script> {
    let offer = || authentication(10, b"SCRAM-SHA-256\0\0");
    let first = |text: &str| vec![offer(), authentication(11, text.as_bytes())];
    let ready =
        || [message(b'S', b"server_version\x0015\0"), message(b'K', &[0; 8]), message(b'Z', b"I")].concat();
    // The proof of a client that knows the password is taken for right.
    let proven = |last: &[u8]| {
        let end = [authentication(12, last), authentication(0, b""), ready()].concat();
        vec![offer(), authentication(11, format!("r={NONCE}x,s=QUFB,i=1").as_bytes()), end]
    };
    let ok_then = |bytes: Vec<u8>| vec![[authentication(0, b""), bytes].concat()];
    vec![
        script("nothing, then the end", vec![]),
        script("zeros", vec![vec![0; 100_000]]),
        script("0xff", vec![vec![0xff; 100_000]]),
        script("HTTP", vec![b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()]),
        script("a huge length", vec![[&b"R"[..], &0x7fff_ffffu32.to_be_bytes(), &[0; 4096]].concat()]),
        script("a negative length", vec![[&b"R"[..], &u32::MAX.to_be_bytes(), &[0; 64]].concat()]),
        script("length 3", vec![b"R\0\0\0\x03".to_vec()]),
        script("an endless error", vec![[&b"E\0\x7f\xff\xff"[..], &vec![b'x'; 1 << 20]].concat()]),
        script("an error without a code", vec![message(b'E', b"SFATAL\0Mno code\0\0")]),
        script("an error without fields", vec![message(b'E', b"\0")]),
        script("an error without an end", vec![message(b'E', b"SFATAL")]),
        script("unknown method", vec![authentication(77, b"")]),
        script("no mechanism", vec![authentication(10, b"\0")]),
        script("mechanisms without an end", vec![authentication(10, b"SCRAM-SHA-256")]),
        script("PLUS without TLS", vec![authentication(10, b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0")]),
        script("SASL garbage", vec![offer(), authentication(11, &[0xff; 300])]),
        script("a nonce of 1 MB", first(&format!("r={},s=QUFB,i=4096", "n".repeat(1 << 20)))),
        script("another nonce", first("r=another,s=QUFB,i=4096")),
        script("i=0", first(&format!("r={NONCE}x,s=QUFB,i=0"))),
        script("i=1000001", first(&format!("r={NONCE}x,s=QUFB,i=1000001"))),
        script("i=4294967295", first(&format!("r={NONCE}x,s=QUFB,i=4294967295"))),
        script("i=-1", first(&format!("r={NONCE}x,s=QUFB,i=-1"))),
        script("no salt", first(&format!("r={NONCE}x,s=,i=1"))),
        script("the client's nonce and no more", first(&format!("r={NONCE},s=QUFB,i=1"))),
        script("a wrong signature", proven(&[b"v=", &[b'A'; 43][..], b"="].concat())),
        script("a signature cut short", proven(b"v=AAAA")),
        script("an error for a signature", proven(b"e=other-error")),
        script("no signature", proven(b"")),
        script("final before first", vec![offer(), authentication(12, b"v=AAAA")]),
        script("ok without a final", vec![offer(), authentication(0, b"")]),
        script("md5 with a short salt", vec![authentication(5, b"ab")]),
        script("password, then md5", vec![authentication(3, b""), authentication(5, b"abcd")]),
        script("rows instead of a login", vec![message(b'D', &[0; 6])]),
        script("a short key", ok_then(message(b'K', &[0; 6]))),
        script("a parameter without a value", ok_then(message(b'S', b"server_version\0"))),
        script("parameters without an end", ok_then(message(b'S', b"a\0b\0").repeat(400_000))),
        script("negotiation of nonsense", vec![message(b'v', &[0xff; 8])]),
        script("two logins in one", ok_then([ready(), authentication(0, b""), ready()].concat())),
        Script { name: "E to SSLRequest", answers: vec![], to_ssl: b"E" },
        Script { name: "bytes behind S", answers: vec![], to_ssl: b"SR\0\0\0\x08\0\0\0\0" },
        Script { name: "x to SSLRequest", answers: vec![], to_ssl: b"x" },
        Script { name: "garbage for a handshake", answers: vec![vec![0x15; 4096]], to_ssl: b"S" },
        Script {
            name: "half a handshake",
            answers: vec![b"\x16\x03\x03\x0f\xff\x02".to_vec()],
            to_ssl: b"S",
        },
    ]
}

/// With the nonce of `said`, the client's first message of SCRAM, in its place.
fn with_nonce(answer: &[u8], said: &[u8]) -> Vec<u8> {
    let find = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).position(|window| window == part);
    let mut answer = answer.to_vec();
    if let (Some(at), Some(from)) = (find(&answer, NONCE.as_bytes()), find(said, b",r=")) {
        let nonce = &said[from + 3..];
        assert_eq!(nonce.len(), NONCE.len(), "the nonces of pgweir have another length");
        answer[at..at + nonce.len()].copy_from_slice(nonce);
    }
    answer
}

fn serve(mut socket: TcpStream, script: &Script) -> std::io::Result<()> {
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut bytes = [0; 65_536];
    let mut heard = 0..0;
    loop {
        let count = socket.read(&mut bytes)?;
        if count == 8 && bytes[4..8] == [4, 210, 22, 47] {
            socket.write_all(script.to_ssl)?;
            continue;
        }
        break;
    }
    for answer in &script.answers {
        socket.write_all(&with_nonce(answer, &bytes[heard.clone()]))?;
        heard = 0..socket.read(&mut bytes)?;
        if heard.is_empty() {
            break;
        }
    }
    Ok(())
}

/// AU-10
#[test]
fn au_10_a_node_that_lies() -> Result<()> {
    // For its directory; nobody connects to it.
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let (all, current, asked, stop) = (
        lies(),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let scripts = all.clone();
    let (now, count, ended) = (Arc::clone(&current), Arc::clone(&asked), Arc::clone(&stop));
    let liar = std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            if ended.load(Ordering::Relaxed) {
                return;
            }
            let script = scripts[now.load(Ordering::Relaxed)].clone();
            let count = Arc::clone(&count);
            std::thread::spawn(move || {
                // It may hang up on us, and should.
                let _broken_off = serve(socket, &script);
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    let yaml = format!(
        "backends:\n  - {{ hostname: 127.0.0.1, port: {port} }}\nsr_check_period: 50ms\nhealth_check_period: 50ms\n\
         health_check_retry_delay: 10ms\nquery_wait_timeout: 500ms\nfailover_hold_timeout: 0\n"
    );
    let mut weir = Pgweir::launch(&cluster, &PgweirOptions::yaml(&yaml))?;
    weir.wait_answering()?;
    let before = weir.rss_kb()?;
    for (index, script) in all.iter().enumerate() {
        current.store(index, Ordering::Relaxed);
        let seen = asked.load(Ordering::Relaxed);
        let told = eventually(Duration::from_secs(30), || asked.load(Ordering::Relaxed) >= seen + 3);
        ensure!(told, "{}: the node is not asked any more", script.name);
        let outcome = Login::bench().connect(weir.port()).and_then(|mut client| client.scalar("SELECT 1"));
        let error = outcome.err();
        ensure!(error.is_some(), "{}: a login works", script.name);
        let code = error.map(|error| sqlstate(&error).to_owned()).unwrap_or_default();
        ensure!(!code.is_empty() && weir.is_alive()?, "{}: {code:?}\n{}", script.name, weir.log());
    }
    // Those who got as far as that were refused for that.
    for reason in REASONS {
        ensure!(weir.log().contains(reason), "{reason} is not in the log: {}", weir.log());
    }
    stop.store(true, Ordering::Relaxed);
    let _wakes_it = TcpStream::connect(("127.0.0.1", port));
    ensure!(liar.join().is_ok(), "the liar panicked");
    let grown = weir.rss_kb()?.saturating_sub(before);
    ensure!(grown < 32_768, "{grown} kB more memory");
    Ok(())
}
