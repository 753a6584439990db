//! Whole logins over a socket pair: our own client state machine and raw bytes on the other end.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use config::hba::Rules;
use config::secrets::Passwords;
use protocol::auth::{Credentials, ServerAuth, Step};
use protocol::error::ErrorView;
use protocol::scram::ScramVerifier;
use protocol::write as messages;
use tokio::io::AsyncWriteExt;

use super::*;

/// A configuration of these users and rules (`None`: `enable_pool_hba` off).
fn config(secrets: &str, rules: Option<&str>) -> Config {
    let yaml = "backends: [{ hostname: db0 }]\nauthentication_timeout: 2s\n";
    let mut config = config::parse(yaml, "pgweir.yaml").unwrap();
    config.secrets = Passwords::parse(secrets, "pool_passwd").unwrap();
    config.hba = rules.map(|rules| Rules::parse(rules, "pool_hba.conf").unwrap());
    config
}

fn tcp() -> Peer {
    Peer::Tcp((IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)), 4000).into())
}

/// Runs a login with `client` on the other end of the connection.
fn meet<T: Send + 'static>(
    config: &Config,
    peer: Peer,
    client: impl FnOnce(UnixStream) -> T + Send + 'static,
) -> (Result<Outcome, LoginError>, T) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    ours.set_nonblocking(true).unwrap();
    let client: JoinHandle<T> = std::thread::spawn(move || client(theirs));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(async {
        let stream = Stream::Unix(tokio::net::UnixStream::from_std(ours).unwrap());
        let authenticator = Authenticator::new([7; 32]);
        let mut result = login(
            stream,
            BytesMut::new(),
            &LoginContext { config, authenticator: &authenticator, peer, tls: None, lookups: None },
        )
        .await;
        // The client sees the end of what it is sent.
        match &mut result {
            Ok(Outcome::LoggedIn(client)) => {
                client.stream.write_all(&client.due).await.unwrap();
                client.stream.shutdown().await.unwrap();
            }
            Ok(Outcome::Cancel { stream, .. }) => stream.shutdown().await.unwrap(),
            Err(_) => {}
        }
        result
    });
    (result, client.join().unwrap())
}

fn startup(params: &[(&str, &str)]) -> BytesMut {
    let mut out = BytesMut::new();
    messages::startup_message(&mut out, params).unwrap();
    out
}

fn read_message(stream: &mut UnixStream) -> Option<(u8, Vec<u8>)> {
    let mut header = [0; 5];
    stream.read_exact(&mut header).ok()?;
    let mut body = vec![0; u32::from_be_bytes(header[1..].try_into().unwrap()) as usize - 4];
    stream.read_exact(&mut body).ok()?;
    Some((header[0], body))
}

/// Logs in as our own connections do; `tail` follows right behind the last message. The error, when refused.
fn log_in(mut stream: UnixStream, user: &str, credentials: Credentials, tail: &[u8]) -> Result<(), String> {
    stream
        .write_all(&startup(&[("user", user), ("database", "shop"), ("application_name", "test")]))
        .unwrap();
    let mut auth = ServerAuth::new(user.as_bytes(), credentials, "client-nonce".into());
    loop {
        let (tag, body) = read_message(&mut stream).ok_or("closed")?;
        match tag {
            b'E' => {
                let view = ErrorView::parse(&body);
                assert!(view.severity().unwrap().ends_session());
                return Err(format!("{} {}", view.code().unwrap(), view.message_lossy()));
            }
            _ => match auth.feed(&body).map_err(|error| error.to_string())? {
                Step::Ok => return Ok(()),
                Step::Continue => {}
                Step::Send(answer) if body.first_chunk() == Some(&[0, 0, 0, 11]) => {
                    stream.write_all(&[&answer[..], tail].concat()).unwrap();
                }
                Step::Send(answer) => stream.write_all(&answer).unwrap(),
            },
        }
    }
}

fn password(text: &str) -> Credentials {
    Credentials::Password(text.as_bytes().to_vec())
}

fn users() -> String {
    let scram = ScramVerifier::derive(b"secret", b"0123456789abcdef", 64).to_secret();
    let md5 = protocol::md5::Md5Hash::from_password(b"hash", b"secret").to_secret();
    format!("plain:TEXTsecret\nhash:{md5}\nscram:{scram}\n")
}

fn logged_in(result: Result<Outcome, LoginError>) -> LoggedIn {
    match result.unwrap() {
        Outcome::LoggedIn(client) => *client,
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_rules_everybody_proves_a_password_over_tcp_and_unix() {
    let config = config(&users(), None);
    for peer in [tcp(), Peer::Unix] {
        for user in ["plain", "hash", "scram"] {
            let (result, told) =
                meet(&config, peer, move |stream| log_in(stream, user, password("secret"), b""));
            assert_eq!(told, Ok(()), "{user}");
            let client = logged_in(result);
            assert_eq!((client.user.as_str(), client.database.as_str()), (user, "shop"));
            assert_eq!(client.application_name, "test");
            assert_eq!(client.peer, peer);
            assert!(client.leftover.is_empty());
            let scram = matches!(client.learned, Learned::ScramKeys(_));
            assert_eq!(scram, user != "hash", "{user}: md5 teaches nothing");
        }
    }
}

#[test]
fn wrong_passwords_and_unknown_users_are_told_the_same() {
    let config = config(&users(), None);
    for user in ["plain", "hash", "scram", "nobody"] {
        let (result, told) = meet(&config, tcp(), move |stream| log_in(stream, user, password("guess"), b""));
        let text = format!("28P01 password authentication failed for user \"{user}\"");
        assert_eq!(told, Err(text));
        assert_eq!(result.unwrap_err().kind(), "wrong_password");
    }
}

#[test]
fn rules_decide() {
    let rules = "host all plain 192.0.2.0/24 password\n\
        host all hash 192.0.2.7/32 md5\n\
        host all scram 192.0.2.0/24 scram-sha-256\n\
        host all nobody 192.0.2.0/24 trust\n\
        host all evil all reject\n\
        local all nobody md5\n";
    let config = config(&users(), Some(rules));
    for (user, credentials) in [
        ("plain", password("secret")),
        ("hash", password("secret")),
        ("scram", password("secret")),
        ("nobody", Credentials::None),
    ] {
        let (result, told) = meet(&config, tcp(), move |stream| log_in(stream, user, credentials, b""));
        assert_eq!(told, Ok(()), "{user}");
        let learned = logged_in(result).learned;
        assert_eq!(matches!(learned, Learned::Password(_)), user == "plain");
    }
    let refused = |user: &'static str, peer| {
        meet(&config, peer, move |stream| log_in(stream, user, password("x"), b""))
    };
    let (result, told) = refused("evil", tcp());
    assert_eq!(result.unwrap_err().kind(), "hba_reject");
    let text = "28000 pg_hba.conf rejects connection for host \"192.0.2.7\", user \"evil\", database \"shop\", no encryption";
    assert_eq!(told, Err(text.to_owned()));
    let (result, told) = refused("plain", Peer::Unix);
    assert_eq!(result.unwrap_err().kind(), "no_hba_rule");
    let text =
        "28000 no pg_hba.conf entry for host \"[local]\", user \"plain\", database \"shop\", no encryption";
    assert_eq!(told, Err(text.to_owned()));
    let (_, told) = refused("nobody", Peer::Unix);
    assert_eq!(told, Err("28P01 password authentication failed for user \"nobody\"".to_owned()));
}

#[test]
fn bytes_behind_the_login_are_handed_on() {
    let config = config(&users(), None);
    let tail = b"Q\0\0\0\x0dselect 1\0 and part of more";
    let (result, told) =
        meet(&config, tcp(), move |stream| log_in(stream, "scram", password("secret"), tail));
    assert_eq!(told, Ok(()));
    assert_eq!(&logged_in(result).leftover[..], tail);
}

/// Sends raw bytes, and reads what comes until the end.
fn raw(config: &Config, pieces: Vec<Vec<u8>>) -> (Result<Outcome, LoginError>, Vec<u8>) {
    meet(config, tcp(), move |mut stream| {
        for piece in pieces {
            // The other end may have had enough.
            let _ = stream.write_all(&piece);
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut answer = Vec::new();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut answer);
        answer
    })
}

const SSL: &[u8] = b"\0\0\0\x08\x04\xd2\x16\x2f";
const GSS: &[u8] = b"\0\0\0\x08\x04\xd2\x16\x30";

#[test]
fn encryption_is_declined_once_each() {
    let config = config(&users(), Some("host all all all trust\n"));
    let (result, mut told) = meet(&config, tcp(), |mut stream| {
        let mut told = Vec::new();
        for request in [GSS, SSL, &startup(&[("user", "joe"), ("options", "-c geqo=off")])] {
            for byte in request {
                stream.write_all(&[*byte]).unwrap();
            }
            let mut byte = [0; 1];
            stream.read_exact(&mut byte).unwrap();
            told.push(byte[0]);
        }
        told.push(read_message_rest(&mut stream));
        told
    });
    assert_eq!(told.pop(), Some(0));
    assert_eq!(told, b"NNR");
    let client = logged_in(result);
    assert_eq!((client.database.as_str(), client.learned), ("joe", Learned::Nothing));
    assert_eq!(client.settings, [("geqo".to_owned(), "off".to_owned())]);

    // The second once the first is answered: together they would be data behind a request.
    let (result, answer) = meet(&config, tcp(), |mut stream| {
        let (mut declined, mut answer) = ([0; 1], Vec::new());
        stream.write_all(SSL).unwrap();
        stream.read_exact(&mut declined).unwrap();
        stream.write_all(SSL).unwrap();
        let _may_be_reset = stream.read_to_end(&mut answer);
        answer
    });
    assert!(
        String::from_utf8_lossy(&answer).contains("unsupported frontend protocol 1234.5679"),
        "{answer:?}"
    );
    assert_eq!(result.unwrap_err().kind(), "protocol_version");
    let (_, answer) = raw(&config, vec![[SSL, &startup(&[("user", "joe")])].concat()]);
    assert!(String::from_utf8_lossy(&answer).contains("received unencrypted data after SSL request"));
}

/// The last byte of an AuthenticationOk whose tag was read.
fn read_message_rest(stream: &mut UnixStream) -> u8 {
    let mut rest = [0xff; 8];
    stream.read_exact(&mut rest).unwrap();
    rest[7]
}

#[test]
fn cancel_requests_are_handed_out() {
    let config = config("", None);
    let (result, answer) = raw(&config, vec![b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x07abcd".to_vec()]);
    let Ok(Outcome::Cancel { pid, secret, .. }) = result else { panic!() };
    assert_eq!((pid, secret.as_slice()), (7, &b"abcd"[..]));
    assert!(answer.is_empty());
}

#[test]
fn newer_minor_versions_are_negotiated_down() {
    let config = config(&users(), Some("host all all all trust\n"));
    let packet = b"\0\0\0\x1b\0\x03\0\x02user\0joe\0_pq_.x\0y\0\0".to_vec();
    let (result, answer) = raw(&config, vec![packet]);
    assert!(result.is_ok());
    assert!(answer.starts_with(b"v\0\0\0\x13\0\x03\0\x02\0\0\0\x01_pq_.x\0R\0\0\0\x08"), "{answer:?}");
}

#[test]
fn garbage_ends_the_login_and_is_told_what_postgresql_tells() {
    let config = config(&users(), None);
    let long = |len: u32| [&len.to_be_bytes()[..], b"\0\x03\0\0"].concat();
    let user = |user: &str| startup(&[("user", user)]).to_vec();
    let cases: Vec<(Vec<u8>, &str, &str)> = vec![
        (vec![], "client_closed", ""),
        (b"\0\0\0\x20\0\x03".to_vec(), "client_closed", ""),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "protocol", ""),
        (b"\x16\x03\x01\x02\0\x01".to_vec(), "tls", ""),
        (long(10_005), "protocol", ""),
        (long(u32::MAX), "protocol", ""),
        (b"\0\0\0\x08\0\x02\0\0".to_vec(), "protocol_version", "EFATAL:  unsupported frontend protocol 2.0"),
        (
            b"\0\0\0\x08\0\x04\0\0".to_vec(),
            "protocol_version",
            "unsupported frontend protocol 4.0: server supports 3.0 to 3.2",
        ),
        (
            b"\0\0\0\x09\0\x03\0\0\0".to_vec(),
            "protocol",
            "no PostgreSQL user name specified in startup packet",
        ),
        (b"\0\0\0\x0a\0\x03\0\0us".to_vec(), "protocol", "invalid startup packet layout"),
        (b"\0\0\0\x10\0\x03\0\0user\0\xff\0\0".to_vec(), "encoding", "invalid byte sequence"),
        (
            [user("plain"), b"Q\0\0\0\x05\0".to_vec()].concat(),
            "protocol",
            "expected password response, got message type 81",
        ),
        ([user("plain"), b"p\0\x01\0\0".to_vec()].concat(), "protocol", "invalid length"),
        ([user("plain"), b"p\0\0\0\x03".to_vec()].concat(), "protocol", "invalid length"),
        ([user("plain"), b"p\0\0\0\x06xx".to_vec()].concat(), "protocol", "invalid SASLInitialResponse"),
    ];
    for (bytes, kind, text) in cases {
        for pieces in [vec![bytes.clone()], bytes.chunks(3).map(<[u8]>::to_vec).collect()] {
            let (result, answer) = raw(&config, pieces);
            assert_eq!(result.unwrap_err().kind(), kind, "{bytes:?}");
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.contains(text) && (text.is_empty() == answer.is_empty()), "{bytes:?}: {answer}");
        }
    }
}

#[test]
fn bad_options_are_told_only_to_those_who_are_in() {
    let params: &[(&str, &str)] = &[("user", "joe"), ("options", "--geqo")];
    let trusted = config("", Some("host all all all trust\n"));
    let (result, answer) = raw(&trusted, vec![startup(params).to_vec()]);
    assert!(result.is_err());
    assert!(String::from_utf8_lossy(&answer).contains("--geqo requires a value"));
    let (result, answer) = raw(&config("", None), vec![startup(params).to_vec()]);
    assert_eq!(result.unwrap_err().kind(), "client_closed");
    assert!(!String::from_utf8_lossy(&answer).contains("geqo"));
}

#[test]
fn other_encodings_are_shown_with_question_marks() {
    let trusted = config("", Some("host all all all trust\n"));
    let mut out = BytesMut::new();
    messages::startup_message(&mut out, &[("user", &b"joe"[..]), ("application_name", b"caf\xe9")]).unwrap();
    let (result, _) = raw(&trusted, vec![out.to_vec()]);
    assert_eq!(logged_in(result).application_name, "caf?");
    out.clear();
    messages::startup_message(&mut out, &[("user", &b"joe"[..]), ("search_path", b"caf\xe9")]).unwrap();
    assert_eq!(raw(&trusted, vec![out.to_vec()]).0.unwrap_err().kind(), "encoding");
}

#[test]
fn replication_connections_are_known_and_need_a_rule_of_their_own() {
    let rules = "host replication joe all trust\nhost shop joe all trust\n";
    let trusted = config("", Some(rules));
    let ask = |replication: &str, database: &str| {
        let params = [("user", "joe"), ("database", database), ("replication", replication)];
        raw(&trusted, vec![startup(&params).to_vec()])
    };
    assert_eq!(logged_in(ask("true", "").0).replication, Replication::Physical);
    assert_eq!(logged_in(ask("database", "shop").0).replication, Replication::Database);
    let (result, answer) = ask("database", "other");
    assert_eq!(result.unwrap_err().kind(), "no_hba_rule");
    assert!(String::from_utf8_lossy(&answer).contains("database \"other\""));
    let no_rule = config("", Some("host all all all trust\n"));
    let params = [("user", "joe"), ("replication", "true")];
    let (_, answer) = raw(&no_rule, vec![startup(&params).to_vec()]);
    let text = "no pg_hba.conf entry for replication connection from host \"192.0.2.7\", user \"joe\", no encryption";
    assert!(String::from_utf8_lossy(&answer).contains(text));
}

#[test]
fn who_is_slow_is_cut_off() {
    let mut config = config(&users(), None);
    config.authentication_timeout = Duration::from_millis(100);
    let slow = |bytes: Vec<u8>| {
        meet(&config, tcp(), move |mut stream| {
            stream.write_all(&bytes).unwrap();
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            answer
        })
    };
    let (result, answer) = slow(b"\0\0\0\x20".to_vec());
    assert_eq!(result.unwrap_err().kind(), "timeout");
    assert!(answer.is_empty(), "who has not spoken the protocol is told nothing");
    let (result, answer) = slow(startup(&[("user", "plain")]).to_vec());
    assert_eq!(result.unwrap_err().kind(), "timeout");
    assert!(String::from_utf8_lossy(&answer).contains("canceling authentication due to timeout"));
}
