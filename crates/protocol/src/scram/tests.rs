//! RFC 7677's exchange, both sides against each other and against another client, and broken messages.

use super::server::stable_salt;
use super::*;
use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};
use proptest::prelude::*;

// RFC 7677, section 3: user "user", password "pencil".
const RFC_CLIENT_NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
const RFC_SERVER_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
const RFC_SALT: &str = "W22ZaJ0SNY7soEsUEjb6gQ==";
const RFC_SERVER_FIRST: &str =
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
const RFC_CLIENT_FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
    p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
const RFC_SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

fn rfc_verifier() -> ScramVerifier {
    ScramVerifier::derive(b"pencil", &STANDARD.decode(RFC_SALT).unwrap(), 4096)
}

#[test]
fn the_exchange_of_rfc_7677_on_the_servers_side() {
    let first = format!("n,,n=user,r={RFC_CLIENT_NONCE}");
    let target = Target::Real(rfc_verifier());
    let (server, server_first) =
        ScramServer::start(target, first.as_bytes(), RFC_SERVER_NONCE, Mechanism::Sha256, None).unwrap();
    assert_eq!(server_first, RFC_SERVER_FIRST.as_bytes());
    let accepted = server.finish(RFC_CLIENT_FINAL.as_bytes()).unwrap();
    assert_eq!(accepted.server_final, RFC_SERVER_FINAL.as_bytes());
    assert_eq!(hash(&accepted.client_key), rfc_verifier().stored_key);
}

/// Our client leaves the user name out, so the RFC's client-first-bare is put in by hand.
#[test]
fn the_keys_of_rfc_7677_make_its_proof_and_signature() {
    let salt = STANDARD.decode(RFC_SALT).unwrap();
    let keys = ScramKeys::derive(b"pencil", &salt, 4096);
    let without_proof = RFC_CLIENT_FINAL.split(",p=").next().unwrap();
    let auth = format!("n=user,r={RFC_CLIENT_NONCE},{RFC_SERVER_FIRST},{without_proof}");
    let proof = xor(&keys.client_key, &hmac(&hash(&keys.client_key), &[auth.as_bytes()]));
    assert!(RFC_CLIENT_FINAL.ends_with(&STANDARD.encode(proof)));
    let signature = hmac(&keys.server_key, &[auth.as_bytes()]);
    assert_eq!(RFC_SERVER_FINAL, format!("v={}", STANDARD.encode(signature)));
}

#[test]
fn verifiers_are_read_and_written_as_pg_authid_has_them() {
    let text = rfc_verifier().to_secret();
    assert_eq!(ScramVerifier::parse(&text), Some(rfc_verifier()));
    assert!(text.starts_with("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$"));
    let broken = [
        text.replace("SCRAM-SHA-256", "SCRAM-SHA-1"),
        text.replace("4096", "0"),
        text.replace("4096", "+4096"),
        text.replace("4096:W22ZaJ0SNY7soEsUEjb6gQ==", "4096:"),
        text.replace(':', ""),
        text[..text.len() - 4].to_owned(),
        String::new(),
    ];
    for text in broken {
        assert_eq!(ScramVerifier::parse(&text), None, "{text}");
    }
    assert!(rfc_verifier().matches_password(b"pencil"));
    assert!(!rfc_verifier().matches_password(b"pencils"));
}

#[test]
fn nothing_secret_is_shown() {
    let keys = ScramKeys::derive(b"pencil", b"salt", 1);
    let shown = format!("{:?} {:?} {:?}", rfc_verifier(), keys, ClientSecret::Password(b"pencil".to_vec()));
    assert_eq!(shown, "ScramVerifier { iterations: 4096, .. } ScramKeys(***) Password(***)");
}

#[test]
fn saslprep_is_applied_and_falls_back_to_the_raw_bytes() {
    // RFC 4013: a soft hyphen vanishes, a Roman numeral is taken apart; a control is prohibited.
    assert_eq!(normalize("I\u{ad}X".as_bytes()), b"IX");
    assert_eq!(normalize("\u{2168}".as_bytes()), b"IX");
    assert_eq!(normalize(b"a\x07b"), b"a\x07b");
    assert_eq!(normalize(b"\xff\xfe"), b"\xff\xfe");
}

#[test]
fn an_unknown_user_gets_the_same_salt_every_time_and_never_in() {
    let salt_of = |user: &[u8]| match Target::mock(b"process", user) {
        Target::Mock(verifier) => verifier,
        Target::Real(_) => unreachable!(),
    };
    assert_eq!(salt_of(b"a"), salt_of(b"a"));
    assert_ne!(salt_of(b"a").salt, salt_of(b"b").salt);
    assert_eq!(salt_of(b"a").salt, stable_salt(b"process", b"a"));
    // Even with the keys that the mock verifier belongs to, the exchange fails.
    let verifier = ScramVerifier::derive(b"pencil", b"0123456789abcdef", 1);
    let (client, first) =
        ScramClient::start(ClientSecret::Password(b"pencil".to_vec()), "cn", ClientChannel::Unbound);
    let (server, server_first) =
        ScramServer::start(Target::Mock(verifier), &first, "sn", Mechanism::Sha256, None).unwrap();
    let (_, last) = client.server_first(&server_first).unwrap();
    assert_eq!(server.finish(&last), Err(ScramError::WrongPassword));
}

fn start_with(first: &str) -> Result<(ScramServer, Vec<u8>), ScramError> {
    ScramServer::start(Target::Real(rfc_verifier()), first.as_bytes(), "server", Mechanism::Sha256, None)
}

#[test]
fn broken_first_messages_are_refused() {
    for bad in [
        "",
        "n",
        "n,",
        "n,,",
        "x,,n=,r=a",
        "n,x,n=,r=a",
        "n,,r=a",
        "n,,n=",
        "n,,n=,r=",
        "n,,n=,r=a b",
        "n,,n=,r=a,1",
    ] {
        assert!(matches!(start_with(bad), Err(ScramError::Malformed(_))), "{bad}");
    }
    assert!(matches!(start_with("p=tls-server-end-point,,n=,r=a"), Err(ScramError::Malformed(_))));
    assert!(matches!(start_with("n,a=joe,n=,r=a"), Err(ScramError::Unsupported(_))));
    assert!(matches!(start_with("n,,m=x,n=,r=a"), Err(ScramError::Unsupported(_))));
    assert!(start_with("n,,n=,r=a,x=extension,y=").is_ok());
    assert!(start_with("y,,n=x=2Cy,r=a").is_ok());
    let long = format!("n,,n=,r={}", "a".repeat(MAX_MESSAGE_LEN));
    assert!(matches!(start_with(&long), Err(ScramError::Malformed(_))));
}

#[test]
fn broken_final_messages_are_refused() {
    let proof = STANDARD.encode([0; 32]);
    let finish = |flag: &str, last: &str| {
        let (server, _) = start_with(&format!("{flag},,n=,r=client")).unwrap();
        server.finish(last.replace("PROOF", &proof).as_bytes())
    };
    assert_eq!(finish("n", "c=biws,r=clientserver,p=PROOF"), Err(ScramError::WrongPassword));
    assert_eq!(finish("y", "c=eSws,r=clientserver,p=PROOF"), Err(ScramError::WrongPassword));
    assert_eq!(finish("n", "c=biws,r=clientserver,x=1,p=PROOF"), Err(ScramError::WrongPassword));
    assert_eq!(finish("n", "c=biws,r=clientserve,p=PROOF"), Err(ScramError::Nonce));
    let malformed = [
        ("n", "c=eSws,r=clientserver,p=PROOF"),
        ("y", "c=biws,r=clientserver,p=PROOF"),
        ("n", "r=clientserver,p=PROOF"),
        ("n", "c=biws,p=PROOF"),
        ("n", "c=biws,r=clientserver"),
        ("n", "c=biws,r=clientserver,p=AAAA"),
        ("n", "c=biws,r=clientserver,p=PROOF,x=1"),
        ("n", ""),
    ];
    for (flag, last) in malformed {
        assert!(matches!(finish(flag, last), Err(ScramError::Malformed(_))), "{last}");
    }
}

#[test]
fn a_false_server_is_found_out() {
    let begin = |server_first: &str| {
        let (client, _) =
            ScramClient::start(ClientSecret::Password(b"pencil".to_vec()), "client", ClientChannel::Unbound);
        client.server_first(server_first.as_bytes()).map(|(waiting, _)| waiting)
    };
    assert_eq!(begin("r=client,s=AAAA,i=1").unwrap_err(), ScramError::Nonce);
    assert_eq!(begin("r=clienX1,s=AAAA,i=1").unwrap_err(), ScramError::Nonce);
    assert_eq!(begin("r=client1,s=AAAA,i=0").unwrap_err(), ScramError::Iterations(0));
    assert_eq!(begin("r=client1,s=AAAA,i=1000001").unwrap_err(), ScramError::Iterations(1_000_001));
    let endless = begin(&format!("r=client1,s=AAAA,i={}", "9".repeat(99))).unwrap_err();
    assert_eq!(endless, ScramError::Iterations(u64::MAX));
    for bad in [
        "",
        "r=client1",
        "r=client1,s=,i=1",
        "r=client1,s=!,i=1",
        "r=client1,s=AAAA,i=-1",
        "s=AAAA,r=client1,i=1",
    ] {
        assert!(matches!(begin(bad), Err(ScramError::Malformed(_))), "{bad}");
    }
    assert!(matches!(begin("m=x,r=client1,s=AAAA,i=1"), Err(ScramError::Unsupported(_))));
    let finish = |last: &str| begin("r=client1,s=AAAA,i=1").unwrap().finish(last.as_bytes());
    assert_eq!(finish(RFC_SERVER_FINAL), Err(ScramError::ServerSignature));
    assert_eq!(finish("e=other-error"), Err(ScramError::Server("other-error".into())));
    assert!(matches!(finish("v=AAAA"), Err(ScramError::Malformed(_))));
    assert!(matches!(finish(""), Err(ScramError::Malformed(_))));
}

/// One exchange of our client and our server; the client key learned when it succeeds.
fn exchange(secret: ClientSecret, verifier: &ScramVerifier) -> Result<Key, ScramError> {
    let (client, first) = ScramClient::start(secret, "client-nonce", ClientChannel::Unbound);
    let (server, server_first) =
        ScramServer::start(Target::Real(verifier.clone()), &first, "server-nonce", Mechanism::Sha256, None)?;
    let (waiting, last) = client.server_first(&server_first)?;
    let accepted = server.finish(&last)?;
    waiting.finish(&accepted.server_final)?;
    Ok(accepted.client_key)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_right_secret_gets_in_and_no_other(
        password in proptest::collection::vec(1u8.., 1..80),
        other in proptest::collection::vec(1u8.., 1..80),
        salt in proptest::collection::vec(any::<u8>(), 1..30),
        iterations in 1u32..20,
    ) {
        let verifier = ScramVerifier::derive(&password, &salt, iterations);
        let client_key = exchange(ClientSecret::Password(password.clone()), &verifier).unwrap();
        // The verifier and the key learned suffice for the next login.
        let keys = ScramKeys { client_key, server_key: verifier.server_key };
        prop_assert_eq!(exchange(ClientSecret::Keys(keys.clone()), &verifier), Ok(client_key));
        prop_assert_eq!(&ScramKeys::derive(&password, &salt, iterations), &keys);
        if normalize(&other) != normalize(&password) {
            prop_assert_eq!(exchange(ClientSecret::Password(other), &verifier), Err(ScramError::WrongPassword));
        }
    }

    #[test]
    fn another_client_gets_in(password in "\\PC{1,40}", iterations in 1u32..20) {
        let verifier = ScramVerifier::derive(password.as_bytes(), b"0123456789abcdef", iterations);
        let mut client = ScramSha256::new(password.as_bytes(), ChannelBinding::unrequested());
        let (server, server_first) =
            ScramServer::start(Target::Real(verifier), client.message(), "server-nonce", Mechanism::Sha256, None).unwrap();
        client.update(&server_first).unwrap();
        let accepted = server.finish(client.message()).unwrap();
        client.finish(&accepted.server_final).unwrap();
    }

    #[test]
    fn random_messages_never_panic(message in "[a-zA-Z=,+/0-9 é]{0,80}", bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        for message in [message.as_bytes(), &bytes] {
            if let Ok((server, _)) = ScramServer::start(Target::Real(rfc_verifier()), message, "s", Mechanism::Sha256, None) {
                prop_assert!(server.finish(message).is_err());
            }
            let (server, _) = ScramServer::start(Target::Real(rfc_verifier()), b"n,,n=,r=c", "s", Mechanism::Sha256, None).unwrap();
            prop_assert!(server.finish(message).is_err());
            let _ = message::server_first(message);
            let _ = message::server_final(message);
        }
    }
}

/// One exchange: what the client says of the channel, what it selects, what the server offers.
fn over(channel: ClientChannel, mechanism: Mechanism, offered: Option<&[u8]>) -> Result<(), ScramError> {
    let (client, first) = ScramClient::start(ClientSecret::Password(b"pencil".to_vec()), "cn", channel);
    let (server, server_first) =
        ScramServer::start(Target::Real(rfc_verifier()), &first, "sn", mechanism, offered)?;
    let (client, last) = client.server_first(&server_first)?;
    client.finish(&server.finish(&last)?.server_final)
}

/// AU-07: bound to the certificate, and nobody can take the offer away.
#[test]
fn au_07_channels_are_bound_and_downgrades_noticed() {
    use Mechanism::{Sha256, Sha256Plus};
    let (hash, other) = (b"hash of the certificate".as_slice(), b"another".to_vec());
    let bound = || ClientChannel::EndPoint(hash.to_vec());
    assert_eq!(over(bound(), Sha256Plus, Some(hash)), Ok(()));
    assert_eq!(
        over(ClientChannel::EndPoint(other), Sha256Plus, Some(hash)),
        Err(ScramError::Channel),
        "another connection"
    );
    assert_eq!(over(ClientChannel::NotOffered, Sha256, None), Ok(()));
    assert_eq!(over(ClientChannel::NotOffered, Sha256, Some(hash)), Err(ScramError::Downgrade));
    assert_eq!(over(ClientChannel::Unbound, Sha256, Some(hash)), Ok(()));
    for (channel, mechanism) in [(bound(), Sha256), (ClientChannel::Unbound, Sha256Plus)] {
        let refused = over(channel, mechanism, Some(hash));
        assert!(matches!(refused, Err(ScramError::Malformed(_))), "{refused:?}");
    }
    let unique = ScramServer::start(
        Target::Real(rfc_verifier()),
        b"p=tls-unique,,n=,r=c",
        "sn",
        Sha256Plus,
        Some(hash),
    );
    assert!(matches!(unique, Err(ScramError::Unsupported(_))));
}

/// RFC 5929: the hash of the certificate's own signature.
#[test]
fn au_07_certificates_are_hashed() {
    assert_eq!(BindingHash::Sha256.of(b"").len(), 32);
    assert_eq!(BindingHash::Sha384.of(b"").len(), 48);
    assert_eq!(BindingHash::Sha512.of(b"").len(), 64);
}
