//! Against scripted servers: honest, failing and lying ones.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use cluster::ConnectFailure;
use protocol::auth::{Challenge, ClientAuth, ClientStep, Method, StoredSecret};
use protocol::error::{ClientFacing, PgError, write_error, write_notice};
use protocol::scram::ScramVerifier;
use protocol::sqlstate::SqlState;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(5);

/// A server of one connection on a port of its own.
fn serve<T: Send + 'static>(
    script: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (ConnectOptions, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || script(listener.accept().unwrap().0));
    (options("127.0.0.1", port), thread)
}

fn options(hostname: &str, port: u16) -> ConnectOptions {
    ConnectOptions {
        address: Arc::new(NodeAddress { hostname: hostname.to_owned(), port }),
        tls: Arc::default(),
        user: "joe".to_owned(),
        database: "shop".to_owned(),
        params: vec![("application_name".to_owned(), "pgweir".to_owned())],
        credentials: Credentials::Password(b"secret".to_vec()),
        connect_timeout: TIMEOUT,
        keepalive: Keepalive {
            idle: Duration::from_secs(60),
            interval: Duration::from_secs(10),
            count: 3,
            user_timeout: Some(Duration::from_secs(30)),
        },
    }
}

fn cancel_key(address: Arc<NodeAddress>, secret: &[u8]) -> CancelKey {
    CancelKey { node: cluster::NodeId(0), address, pid: 7, secret: secret.into(), tls: None }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Reads a packet without a tag.
fn read_startup(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut body = vec![0; u32::from_be_bytes(length) as usize - 4];
    stream.read_exact(&mut body).unwrap();
    body
}

/// Reads a message: tag and body.
fn read_message(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut tag = [0; 1];
    stream.read_exact(&mut tag).unwrap();
    (tag[0], read_startup(stream))
}

/// Authenticates the client as a PostgreSQL with that secret would.
fn let_in(stream: &mut TcpStream, method: Method, secret: Option<StoredSecret>) {
    let challenge =
        Challenge { md5_salt: *b"salt", nonce: "nonce".into(), process_secret: [1; 32], end_point: None };
    let mut auth = ClientAuth::new(method, b"joe", secret, challenge);
    let mut out = BytesMut::new();
    let mut step = auth.begin(&mut out);
    while step == ClientStep::Wait {
        stream.write_all(&out).unwrap();
        out.clear();
        let (tag, body) = read_message(stream);
        assert_eq!(tag, b'p');
        step = auth.feed(&body, &mut out);
    }
    assert!(matches!(step, ClientStep::Done(_)), "{step:?}");
    write::authentication_ok(&mut out);
    stream.write_all(&out).unwrap();
}

/// What follows AuthenticationOk.
fn greeting() -> BytesMut {
    let mut out = BytesMut::new();
    write::parameter_status(&mut out, "server_version", "18.1").unwrap();
    write::parameter_status(&mut out, "TimeZone", "UTC").unwrap();
    write_notice(&mut out, &PgError::warning("collation version mismatch"));
    write::parameter_status(&mut out, "TimeZone", "CET").unwrap();
    write::backend_key_data(&mut out, 4711, &[9; 32]).unwrap();
    write::ready_for_query(&mut out, b'I');
    out
}

#[test]
fn logs_in_by_every_method_and_in_every_chunking() {
    let scram = || StoredSecret::Scram(ScramVerifier::derive(b"secret", b"salt", 16));
    let cases = [
        (Method::Trust, None),
        (Method::Password, Some(StoredSecret::Plain(b"secret".to_vec()))),
        (Method::Md5, Some(StoredSecret::Plain(b"secret".to_vec()))),
        (Method::Scram, Some(scram())),
    ];
    for (method, secret) in cases {
        let (options, server) = serve(move |mut stream| {
            stream.set_nodelay(true).unwrap();
            let startup = read_startup(&mut stream);
            let_in(&mut stream, method, secret);
            for byte in greeting() {
                stream.write_all(&[byte]).unwrap();
            }
            assert_eq!(read_message(&mut stream), (b'X', vec![]));
            startup
        });
        run(async {
            let connected = connect(&options).await.unwrap();
            assert_eq!(connected.backend_pid, 4711);
            assert_eq!(connected.secret, [9; 32]);
            let parameters: Vec<_> =
                connected.parameters.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            assert_eq!(parameters, [("server_version", "18.1"), ("TimeZone", "CET")]);
            assert!(connected.leftover.is_empty());
            close(connected).await;
        });
        let startup = server.join().unwrap();
        assert_eq!(startup, b"\0\x03\0\0user\0joe\0database\0shop\0application_name\0pgweir\0\0");
    }
}

/// What a server that answers the start-up packet with `bytes`, and then hangs up, comes to.
fn failure(bytes: Vec<u8>) -> ConnectError {
    let (options, server) = serve(move |mut stream| {
        read_startup(&mut stream);
        // The client may have seen enough and hung up.
        let _ = stream.write_all(&bytes);
    });
    let error = run(connect(&options)).unwrap_err();
    server.join().unwrap();
    error
}

fn ok_then(message: impl FnOnce(&mut BytesMut)) -> Vec<u8> {
    let mut out = BytesMut::new();
    write::authentication_ok(&mut out);
    message(&mut out);
    out.to_vec()
}

#[test]
fn the_servers_own_error_is_kept_raw() {
    let body = b"SFATAL\0VFATAL\0C3D000\0Mdatabase \"\xe4\" does not exist\0Fpostinit.c\0\0";
    let message = [b"E".as_slice(), &u32::try_from(body.len() + 4).unwrap().to_be_bytes(), body].concat();
    for bytes in [message.clone(), ok_then(|out| out.extend_from_slice(&message))] {
        let error = failure(bytes);
        assert_eq!(error.kind(), ConnectFailure::Rejected);
        assert_eq!(error.server_error().unwrap().body().as_ref(), body);
        assert_eq!(error.to_client().code, SqlState::INVALID_CATALOG_NAME);
    }
}

#[test]
fn failures_say_what_they_mean_for_the_node() {
    let refusal = |code| {
        let mut out = BytesMut::new();
        write_error(&mut out, &PgError::fatal(code, "no"));
        out.to_vec()
    };
    let cases = [
        (refusal(SqlState::CANNOT_CONNECT_NOW), ConnectFailure::NotReady),
        (refusal(SqlState::CRASH_SHUTDOWN), ConnectFailure::NotReady),
        (refusal(SqlState::TOO_MANY_CONNECTIONS), ConnectFailure::Rejected),
        (b"Ecould not fork new process for connection: out of memory\n\0".to_vec(), ConnectFailure::Rejected),
        (vec![], ConnectFailure::Unreachable),
        (b"R\0\0\0".to_vec(), ConnectFailure::Unreachable),
        (b"R\0\0\0\x08\0\0\0\x07".to_vec(), ConnectFailure::Rejected),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), ConnectFailure::Protocol),
        (b"\x15\x03\x01\0\x02\x02\x0a".to_vec(), ConnectFailure::Protocol),
        (b"Z\0\0\0\x05I".to_vec(), ConnectFailure::Protocol),
        (b"R\0\0\0\x04".to_vec(), ConnectFailure::Protocol),
        (b"R\xff\xff\xff\xff".to_vec(), ConnectFailure::Protocol),
        (b"R\0\x02\0\0".to_vec(), ConnectFailure::Protocol),
        (ok_then(|out| out.extend_from_slice(b"R\0\0\0\x08\0\0\0\0")), ConnectFailure::Protocol),
        (ok_then(|out| out.extend_from_slice(b"K\0\0\0\x08\0\0\0\0")), ConnectFailure::Protocol),
        (ok_then(|out| out.extend_from_slice(b"S\0\0\0\x08TimZ")), ConnectFailure::Protocol),
        (ok_then(|out| write::ready_for_query(out, b'T')), ConnectFailure::Protocol),
    ];
    for (bytes, kind) in cases {
        let shown = format!("{:?}", String::from_utf8_lossy(&bytes));
        let error = failure(bytes);
        assert_eq!(error.kind(), kind, "{shown}: {error}");
        let told = error.to_client();
        assert!(!told.message.contains("127.0.0.1") && !told.message.is_empty(), "{told}");
    }
}

#[test]
fn a_server_that_could_not_fork_is_quoted() {
    let error = failure(b"Ecould not fork new process for connection: \x07no\n\0".to_vec());
    assert_eq!(error.to_string(), "the server said: could not fork new process for connection: no");
}

#[test]
fn endless_logins_are_cut_off() {
    let flood = ok_then(|out| {
        for _ in 0..40_000 {
            write::parameter_status(out, "name", "value of thirty or so characters").unwrap();
        }
    });
    assert!(matches!(failure(flood), ConnectError::Protocol("too many bytes")));
}

#[test]
fn an_impostor_without_the_verifier_is_found_out() {
    let (options, server) = serve(|mut stream| {
        read_startup(&mut stream);
        let mut out = BytesMut::new();
        write::authentication_sasl(&mut out, &["SCRAM-SHA-256"]).unwrap();
        stream.write_all(&out).unwrap();
        let (_, first) = read_message(&mut stream);
        let nonce = String::from_utf8_lossy(&first).split("r=").nth(1).unwrap().to_owned();
        out.clear();
        write::authentication_sasl_continue(&mut out, format!("r={nonce}X,s=AAAA,i=1").as_bytes()).unwrap();
        stream.write_all(&out).unwrap();
        read_message(&mut stream);
        out.clear();
        write::authentication_ok(&mut out);
        out.extend_from_slice(&greeting());
        let _ = stream.write_all(&out);
    });
    let error = run(connect(&options)).unwrap_err();
    server.join().unwrap();
    assert_eq!(error.kind(), ConnectFailure::Protocol);
    assert_eq!(
        error.to_string(),
        "protocol violation of the server during authentication: \
        AuthenticationOk before the server proved itself"
    );
}

#[test]
fn silence_ends_at_the_deadline() {
    let (mut options, server) = serve(|mut stream| {
        read_startup(&mut stream);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    });
    options.connect_timeout = Duration::from_millis(100);
    let error = run(connect(&options)).unwrap_err();
    assert_eq!(error.kind(), ConnectFailure::TimedOut);
    server.join().unwrap();
}

#[test]
fn nobody_there() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    assert_eq!(run(connect(&options("127.0.0.1", port))).unwrap_err().kind(), ConnectFailure::Unreachable);
    let error = run(connect(&options("/nonexistent", 5432))).unwrap_err();
    assert_eq!(error.kind(), ConnectFailure::Unreachable);
    let error = run(connect(&options("no..name", 5432))).unwrap_err();
    assert!(matches!(error, ConnectError::Resolve(_)), "{error}");
    let mut nul = options("127.0.0.1", port);
    nul.user = "a\0b".to_owned();
    assert!(run(connect(&nul)).is_err());
}

#[test]
fn sockets_are_found_by_directory() {
    let address = |hostname: &str| NodeAddress { hostname: hostname.to_owned(), port: 5433 };
    assert_eq!(address("/tmp").socket_path().as_deref(), Some("/tmp/.s.PGSQL.5433"));
    assert_eq!(address("@x").socket_path().as_deref(), Some("\0x/.s.PGSQL.5433"));
    assert_eq!(address("db0").socket_path(), None);
    assert_eq!(address("@x").to_string(), "@x/.s.PGSQL.5433");
    assert_eq!(address("db0").to_string(), "db0:5433");
    assert_eq!(address("::1").to_string(), "[::1]:5433");
}

#[test]
fn a_unix_socket_is_connected_to() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let name = format!("pgweir-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(format!("{name}/.s.PGSQL.1")).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    let thread = std::thread::spawn(move || {
        let mut request = Vec::new();
        listener
            .accept()
            .unwrap()
            .0
            .read_exact({
                request.resize(16, 0);
                &mut request
            })
            .unwrap();
        request
    });
    let address = NodeAddress { hostname: format!("@{name}"), port: 1 };
    run(send_cancel(&cancel_key(Arc::new(address), b"abcd"), TIMEOUT)).unwrap();
    assert_eq!(thread.join().unwrap(), b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x07abcd");
}

#[test]
fn a_cancel_request_has_the_secret_as_it_was_and_waits_for_the_end() {
    let (options, server) = serve(|mut stream| {
        let request = read_startup(&mut stream);
        std::thread::sleep(Duration::from_millis(50));
        (request, std::time::Instant::now())
    });
    let secret = [5; 32];
    run(send_cancel(&cancel_key(Arc::clone(&options.address), &secret), TIMEOUT)).unwrap();
    let after = std::time::Instant::now();
    let (request, closed) = server.join().unwrap();
    assert!(after >= closed);
    assert_eq!(request, [&b"\x04\xd2\x16\x2e\0\0\0\x07"[..], &secret].concat());
    let short = run(send_cancel(&cancel_key(options.address, b""), TIMEOUT));
    assert!(matches!(short, Err(ConnectError::Write(_))));
}

/// Runs one query against a server that answers it with `answer`.
fn asked(answer: impl FnOnce(&mut BytesMut) + Send + 'static) -> (Result<Rows, QueryError>, Vec<u8>) {
    let (options, server) = serve(move |mut stream| {
        read_startup(&mut stream);
        let mut out = BytesMut::new();
        write::authentication_ok(&mut out);
        out.extend_from_slice(&greeting());
        stream.write_all(&out).unwrap();
        let (_, body) = read_message(&mut stream);
        out.clear();
        answer(&mut out);
        let _ = stream.write_all(&out);
        body
    });
    let result = run(async {
        let mut connected = connect(&options).await.unwrap();
        query(&mut connected, "select 1", TIMEOUT).await
    });
    (result, server.join().unwrap())
}

#[test]
fn queries_are_answered() {
    let (rows, sql) = asked(|out| {
        out.extend_from_slice(b"T\0\0\0\x06\0\0D\0\0\0\x14\0\x03\0\0\0\x02hi\xff\xff\xff\xff\0\0\0\0");
        out.extend_from_slice(b"C\0\0\0\x0dSELECT 1\0");
        write::parameter_status(out, "a", "b").unwrap();
        write::ready_for_query(out, b'I');
    });
    assert_eq!(sql, b"select 1\0");
    assert_eq!(rows.unwrap(), [[Some("hi".to_owned()), None, Some(String::new())]]);
}

#[test]
fn queries_that_fail_say_whether_the_connection_can_be_kept() {
    let error = |error: PgError, ready: bool| {
        asked(move |out| {
            write_error(out, &error);
            if ready {
                write::ready_for_query(out, b'I');
            }
        })
        .0
        .unwrap_err()
    };
    let soft = error(PgError::error(SqlState::INSUFFICIENT_PRIVILEGE, "no"), true);
    assert!(soft.is_connection_usable());
    let fatal = error(PgError::fatal(SqlState::ADMIN_SHUTDOWN, "bye"), false);
    assert!(matches!(&fatal, QueryError::Server(error) if error.code() == Some(SqlState::ADMIN_SHUTDOWN)));
    assert!(!fatal.is_connection_usable());
    assert!(matches!(asked(|_| {}).0, Err(QueryError::Closed)));
    let malformed = asked(|out| out.extend_from_slice(b"D\0\0\0\x0a\0\x01\0\0\0\x09")).0.unwrap_err();
    assert!(matches!(malformed, QueryError::Protocol(_)) && !malformed.is_connection_usable());
    let copy = asked(|out| out.extend_from_slice(b"G\0\0\0\x07\0\0\0")).0.unwrap_err();
    assert!(matches!(copy, QueryError::Protocol(_)));
}

#[test]
fn credentials_come_from_what_is_stored_and_learned() {
    use protocol::scram::ScramKeys;
    let keys = || ScramKeys { client_key: [1; 32], server_key: [2; 32] };
    let verifier =
        Secret::ScramVerifier { iterations: 1, salt: vec![1], stored_key: [0; 32], server_key: [2; 32] };
    assert_eq!(credentials(Some(&verifier), &Learned::Nothing), Credentials::None);
    let learned = credentials(Some(&verifier), &Learned::ScramKeys(keys()));
    assert_eq!(learned, Credentials::ScramKeys(keys()));
    let plain = Secret::Plain(config::Masked::new("secret"));
    let password = Credentials::Password(b"secret".to_vec());
    assert_eq!(credentials(Some(&plain), &Learned::ScramKeys(keys())), password);
    let typed = Learned::Password(b"secret".to_vec());
    assert_eq!(credentials(Some(&Secret::Md5([0; 16])), &typed), password);
    let hash = Credentials::Md5Hash(Md5Hash::from_digest([0; 16]));
    assert_eq!(credentials(Some(&Secret::Md5([0; 16])), &Learned::Nothing), hash);
    assert_eq!(credentials(None, &Learned::Nothing), Credentials::None);
}
