//! Both sides against each other, for every method and every kind of secret, and broken messages.

use bytes::BytesMut;
use proptest::prelude::*;

use super::*;
use crate::error::ClientFacing;
use crate::scram::ScramError;
use crate::sqlstate::SqlState;
use crate::write;

fn challenge() -> Challenge {
    Challenge { md5_salt: *b"salt", nonce: "server-nonce".into(), process_secret: [7; 32], end_point: None }
}

fn verifier(password: &[u8]) -> ScramVerifier {
    ScramVerifier::derive(password, b"0123456789abcdef", 3)
}

#[derive(Debug, PartialEq)]
enum Outcome {
    In(Learned),
    NotLetIn(ClientAuthError),
    GaveUp(AuthError),
}

/// The bodies of the messages in `out`; all have a one-byte tag.
fn bodies(out: &[u8]) -> Vec<&[u8]> {
    let (mut rest, mut found) = (out, Vec::new());
    while let Some((_, after)) = rest.split_first() {
        let len = u32::from_be_bytes(after[..4].try_into().unwrap()) as usize;
        found.push(&after[4..len]);
        rest = &after[len..];
    }
    found
}

/// Lets our client log in to our server.
fn converse(method: Method, secret: Option<StoredSecret>, credentials: Credentials) -> Outcome {
    let mut client = ServerAuth::new(b"joe", credentials, "client-nonce".into());
    let mut server = ClientAuth::new(method, b"joe", secret, challenge());
    let mut wire = BytesMut::new();
    let mut step = server.begin(&mut wire);
    loop {
        let learned = match &step {
            ClientStep::Failed(error) => return Outcome::NotLetIn(error.clone()),
            ClientStep::Done(learned) => {
                write::authentication_ok(&mut wire);
                Some(learned.clone())
            }
            ClientStep::Wait => None,
        };
        let mut answer = BytesMut::new();
        for body in bodies(&wire) {
            match client.feed(body) {
                Ok(Step::Send(message)) => answer = message,
                Ok(Step::Ok) => {
                    return Outcome::In(learned.expect("AuthenticationOk is sent at the end only"));
                }
                Ok(Step::Continue) => {}
                Err(error) => return Outcome::GaveUp(error),
            }
        }
        wire.clear();
        let body = bodies(&answer).concat();
        step = server.feed(&body, &mut wire);
    }
}

#[test]
fn every_method_with_every_secret() {
    let password = || Credentials::Password(b"secret".to_vec());
    let plain = || Some(StoredSecret::Plain(b"secret".to_vec()));
    let hash = || Md5Hash::from_password(b"joe", b"secret");
    let md5 = || Some(StoredSecret::Md5(hash()));
    let scram = || Some(StoredSecret::Scram(verifier(b"secret")));
    let is_in = |outcome: &Outcome| matches!(outcome, Outcome::In(_));

    assert_eq!(converse(Method::Trust, None, Credentials::None), Outcome::In(Learned::Nothing));
    for secret in [plain(), md5(), scram()] {
        let learned = Outcome::In(Learned::Password(b"secret".to_vec()));
        assert_eq!(converse(Method::Password, secret.clone(), password()), learned, "{secret:?}");
        assert!(is_in(&converse(Method::Md5, secret, password())));
    }
    assert_eq!(converse(Method::Md5, md5(), Credentials::Md5Hash(hash())), Outcome::In(Learned::Nothing));
    assert!(is_in(&converse(Method::Scram, plain(), password())));
    assert!(is_in(&converse(Method::Scram, scram(), password())));
    // An md5 hash cannot do SCRAM on the server's side.
    let wrong = Outcome::NotLetIn(ClientAuthError::WrongPassword);
    assert_eq!(converse(Method::Scram, md5(), password()), wrong);
}

#[test]
fn wrong_passwords_and_unknown_users_look_the_same() {
    let wrong = Outcome::NotLetIn(ClientAuthError::WrongPassword);
    let guess = || Credentials::Password(b"guess".to_vec());
    let stored = [
        None,
        Some(StoredSecret::Plain(b"secret".to_vec())),
        Some(StoredSecret::Scram(verifier(b"secret"))),
        Some(StoredSecret::Md5(Md5Hash::from_password(b"joe", b"secret"))),
    ];
    for secret in stored {
        for method in [Method::Password, Method::Md5, Method::Scram] {
            assert_eq!(converse(method, secret.clone(), guess()), wrong, "{method:?} {secret:?}");
        }
    }
    let shown = ClientAuthError::WrongPassword.to_client("joe");
    assert_eq!(shown.code, SqlState::INVALID_PASSWORD);
    assert_eq!(shown.message, "password authentication failed for user \"joe\"");
    let empty = converse(Method::Password, None, Credentials::Password(Vec::new()));
    assert_eq!(empty, Outcome::NotLetIn(ClientAuthError::EmptyPassword));
}

#[test]
fn a_learned_key_opens_the_nodes_that_hold_the_same_verifier() {
    let stored = verifier(b"secret");
    let login = |credentials| converse(Method::Scram, Some(StoredSecret::Scram(stored.clone())), credentials);
    let Outcome::In(Learned::ScramKeys(keys)) = login(Credentials::Password(b"secret".to_vec())) else {
        panic!("not let in");
    };
    assert_eq!(Credentials::from_client_key(keys.client_key, &stored), Credentials::ScramKeys(keys.clone()));
    assert_eq!(login(Credentials::ScramKeys(keys.clone())), Outcome::In(Learned::ScramKeys(keys)));
}

#[test]
fn what_cannot_work_is_named() {
    let hash = Md5Hash::from_password(b"joe", b"secret");
    let keys = Credentials::ScramKeys(ScramKeys { client_key: [0; 32], server_key: [0; 32] });
    let cases = [
        (
            Method::Scram,
            Credentials::Md5Hash(hash.clone()),
            "SCRAM-SHA-256 authentication, which does not work with an md5 hash",
        ),
        (
            Method::Scram,
            Credentials::None,
            "SCRAM-SHA-256 authentication, which does not work with no secret",
        ),
        (Method::Md5, keys.clone(), "md5 authentication, which does not work with SCRAM keys"),
        (Method::Password, keys, "password authentication, which does not work with SCRAM keys"),
        (
            Method::Password,
            Credentials::Md5Hash(hash),
            "password authentication, which does not work with an md5 hash",
        ),
    ];
    for (method, credentials, text) in cases {
        let Outcome::GaveUp(error) = converse(method, None, credentials) else { panic!("{text}") };
        assert_eq!(error.to_string(), format!("the server asks for {text}"));
        assert!(!error.is_protocol());
        assert!(error.to_client().detail.unwrap().contains(text));
    }
}

fn fresh() -> ServerAuth {
    ServerAuth::new(b"joe", Credentials::Password(b"secret".to_vec()), "client-nonce".into())
}

fn request(code: u32, data: &[u8]) -> Vec<u8> {
    [&code.to_be_bytes()[..], data].concat()
}

#[test]
fn a_server_that_skips_its_proof_is_refused() {
    assert!(
        fresh().feed(&request(10, b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0")).is_err(),
        "PLUS without TLS"
    );
    let mut client = fresh().over(Channel::Tls(None));
    assert!(matches!(client.feed(&request(10, b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0")), Ok(Step::Send(_))));
    let early = client.feed(&request(0, b"")).unwrap_err();
    assert_eq!(early, AuthError::Protocol("AuthenticationOk before the server proved itself"));

    let mut client = fresh();
    let _ = client.feed(&request(10, b"SCRAM-SHA-256\0\0")).unwrap();
    let _ = client.feed(&request(11, b"r=client-nonceX,s=AAAA,i=1")).unwrap();
    assert!(client.feed(&request(0, b"")).is_err());

    let mut client = fresh();
    let _ = client.feed(&request(10, b"SCRAM-SHA-256\0\0")).unwrap();
    let _ = client.feed(&request(11, b"r=client-nonceX,s=AAAA,i=1")).unwrap();
    let forged = client.feed(&request(12, b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")).unwrap_err();
    assert_eq!(forged, AuthError::Scram(ScramError::ServerSignature));
    assert_eq!(forged.kind(), "server_not_verified");
    assert!(client.feed(&request(0, b"")).is_err());
}

#[test]
fn a_password_is_asked_for_once_only() {
    let mut client = fresh();
    assert!(matches!(client.feed(&request(5, b"salt")), Ok(Step::Send(_))));
    assert!(client.feed(&request(3, b"")).is_err(), "md5 first, then the clear text: refused");
    for (code, data) in [(5, &b"sal"[..]), (11, b""), (12, b""), (7, b""), (9, b""), (99, b"")] {
        assert!(fresh().feed(&request(code, data)).is_err(), "{code}");
    }
    assert!(fresh().feed(b"\0\0").is_err());
    let other = fresh()
        .over(Channel::Tls(None))
        .feed(&request(10, b"SCRAM-SHA-256-PLUS\0OAUTHBEARER\0\0"))
        .unwrap_err();
    assert_eq!(other, AuthError::Unsupported("SASL (SCRAM-SHA-256-PLUS OAUTHBEARER)".into()));
    assert_eq!(fresh().feed(&request(0, b"")), Ok(Step::Ok));
}

#[test]
fn broken_messages_of_a_client_are_refused() {
    let feed = |method, body: &[u8]| {
        let secret = Some(StoredSecret::Plain(b"secret".to_vec()));
        let mut auth = ClientAuth::new(method, b"joe", secret, challenge());
        let mut out = BytesMut::new();
        assert_eq!(auth.begin(&mut out), ClientStep::Wait);
        auth.feed(body, &mut out)
    };
    let protocol = |step: &ClientStep| match step {
        ClientStep::Failed(error) => error.kind() == "protocol",
        _ => false,
    };
    for body in [&b""[..], b"secret", b"sec\0ret\0"] {
        assert!(protocol(&feed(Method::Password, body)), "{body:?}");
        assert!(protocol(&feed(Method::Md5, body)), "{body:?}");
    }
    for body in [
        &b""[..],
        b"SCRAM-SHA-256",
        b"SCRAM-SHA-256\0",
        b"SCRAM-SHA-256\0\0\0\0\x08n,,n=,r=a",
        b"SCRAM-SHA-256\0\0\0\0\x0an,,n=,r=a",
        b"SCRAM-SHA-256\0\xff\xff\xff\xffx",
        b"SCRAM-SHA-256\0\xff\xff\xff\xfen,,n=,r=a",
        b"SCRAM-SHA-256-PLUS\0\0\0\0\x09n,,n=,r=a",
        b"PLAIN\0\0\0\0\x09n,,n=,r=a",
    ] {
        assert!(protocol(&feed(Method::Scram, body)), "{body:?}");
    }
    assert_eq!(feed(Method::Scram, b"SCRAM-SHA-256\0\0\0\0\x09n,,n=,r=a"), ClientStep::Wait);
}

#[test]
fn the_mechanism_may_be_chosen_before_the_data() {
    let secret = Some(StoredSecret::Scram(verifier(b"secret")));
    let mut auth = ClientAuth::new(Method::Scram, b"joe", secret, challenge());
    let mut out = BytesMut::new();
    assert_eq!(auth.begin(&mut out), ClientStep::Wait);
    out.clear();
    assert_eq!(auth.feed(b"SCRAM-SHA-256\0\xff\xff\xff\xff", &mut out), ClientStep::Wait);
    assert_eq!(&out[..], b"R\0\0\0\x08\0\0\0\x0b");
    out.clear();
    assert_eq!(auth.feed(b"n,,n=,r=cli", &mut out), ClientStep::Wait);
    assert!(out.windows(20).any(|part| part == b"r=cliserver-nonce,s="));
}

#[test]
fn nothing_secret_is_shown() {
    let shown = format!(
        "{:?} {:?} {:?} {:?}",
        Credentials::Password(b"secret".to_vec()),
        StoredSecret::Plain(b"secret".to_vec()),
        Learned::Password(b"secret".to_vec()),
        challenge(),
    );
    assert_eq!(shown, "Password(***) Plain(***) Password(***) Challenge(***)");
    let mut auth = fresh();
    let _ = auth.feed(&request(10, b"SCRAM-SHA-256\0\0")).unwrap();
    assert!(!format!("{auth:?}").contains("115"), "{auth:?}");
}

proptest! {
    #[test]
    fn random_messages_never_panic(
        messages in proptest::collection::vec((0u32..14, proptest::collection::vec(any::<u8>(), 0..60)), 0..5),
    ) {
        let mut client = fresh();
        for (code, data) in &messages {
            let _ = client.feed(&request(*code, data));
        }
        for method in [Method::Password, Method::Md5, Method::Scram] {
            let mut server = ClientAuth::new(method, b"joe", None, challenge());
            let mut out = BytesMut::new();
            let _ = server.begin(&mut out);
            for (_, data) in &messages {
                prop_assert!(!matches!(server.feed(data, &mut out), ClientStep::Done(_)));
            }
        }
    }
}
