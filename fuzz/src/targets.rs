//! What is fed, and what must hold.

use protocol::frame::{HEADER_LEN, LARGE_MESSAGE_LIMIT, backend_header, frontend_header};
use protocol::startup::{MAX_STARTUP_PACKET_LEN, parse_startup};
use protocol::tracker::{Ask, Owner, Token, Tracker};
use router::{Classifier, ParseOptions};

/// One thing that reads bytes.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) corpus: &'static [&'static [u8]],
    pub(crate) run: fn(&[u8]),
}

pub(crate) const TARGETS: &[Target] = &[
    Target { name: "frames", corpus: MESSAGES, run: frames },
    Target { name: "messages", corpus: MESSAGES, run: messages },
    Target { name: "startup", corpus: STARTUPS, run: startup },
    Target { name: "scram", corpus: SCRAM, run: scram },
    Target { name: "tracker", corpus: MESSAGES, run: tracker },
    Target { name: "session", corpus: crate::session::DIALOGUES, run: crate::session::session },
    Target { name: "statements", corpus: STATEMENTS, run: statements },
    Target { name: "configuration", corpus: CONFIGURATIONS, run: configuration },
    Target { name: "hba", corpus: HBA, run: hba },
    Target { name: "ident", corpus: IDENTS, run: ident },
    Target { name: "passwords", corpus: PASSWORDS, run: passwords },
    Target { name: "sasl", corpus: SASL, run: sasl },
    Target { name: "server_auth", corpus: SERVER_AUTH, run: server_auth },
];

const MESSAGES: &[&[u8]] = &[
    b"Q\0\0\0\x0dselect 1\0",
    b"P\0\0\0\x12s1\0select $1\0\0\0",
    b"B\0\0\0\x17p\0s1\0\0\x01\0\0\0\x01\0\0\0\x0142\0\0",
    b"D\0\0\0\x08Ss1\0",
    b"E\0\0\0\x09\0\0\0\0\0",
    b"C\0\0\0\x08Ss1\0",
    b"S\0\0\0\x04H\0\0\0\x04X\0\0\0\x04",
    b"d\0\0\0\x08abcdc\0\0\0\x04f\0\0\0\x06no\0",
    b"Z\0\0\0\x05I",
    b"C\0\0\0\x0dSELECT 1\0Z\0\0\0\x05T",
    b"S\0\0\0\x19TimeZone\0Europe/Vienna\0",
    b"1\0\0\0\x042\0\0\0\x04T\0\0\0\x06\0\0D\0\0\0\x06\0\0",
];

const STARTUPS: &[&[u8]] = &[
    b"\0\0\0\x08\x04\xd2\x16\x2f",
    b"\0\0\0\x08\x04\xd2\x16\x30",
    b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x01\0\0\0\x02",
    b"\0\0\0\x22\0\x03\0\0user\0demo\0database\0demo\0\0",
    b"\0\0\0\x32\0\x03\0\x02user\0demo\0_pq_.x\0y\0options\0-c a=b\\ c\0\0",
    b"\0\0\0\x21\0\x03\0\0user\0a\0replication\0database\0\0",
];

const SCRAM: &[&[u8]] = &[
    b"n,,n=,r=fyko+d2lbbFgONRv9qkxdawL",
    b"y,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
    b"p=tls-server-end-point,,n=,r=abc",
    b"SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=",
    b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
];

/// Bodies of a client's messages, one after the other behind a byte of their length.
const SASL: &[&[u8]] = &[
    b"\x24SCRAM-SHA-256\0\0\0\0\x12n,,n=,r=abcdefghij",
    b"\x40SCRAM-SHA-256-PLUS\0\0\0\0\x29p=tls-server-end-point,,n=,r=abcdefghijk",
    b"\x12SCRAM-SHA-256\0\xff\xff\xff\xff\x10n,,n=,r=abcdefg",
    b"\x07secret\0",
    b"\x24md5900150983cd24fb0d6963f7d28e17f72\0",
];

/// Bodies of a node's messages, likewise.
const SERVER_AUTH: &[&[u8]] = &[
    b"\x13\0\0\0\x0aSCRAM-SHA-256\0\0\x1c\0\0\0\x0br=nonceX,s=QUFB,i=4096\x0c\0\0\0\x0cv=AAAA==",
    b"\x25\0\0\0\x0aSCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0",
    b"\x08\0\0\0\x05salt\x04\0\0\0\0",
    b"\x04\0\0\0\x03\x04\0\0\0\0",
];

const IDENTS: &[&[u8]] = &[
    b"# map outside user\nm joe bench\nm /^(.*)@example\\.com$ \\1\nn root all\n",
    b"m \"a b\" +team\nm /x /^(a|b)$\n",
];

const STATEMENTS: &[&[u8]] = &[
    b"select abalance from pgbench_accounts where aid = 42",
    b"SELECT * FROM a JOIN b USING (x) WHERE y IN (1, 2.5, 'z') FOR UPDATE",
    b"with x as (insert into t values (1) returning *) select * from x",
    b"begin; update t set a = a + 1 where id = $1; commit",
    b"/* pgweir: standby */ select 1 -- tail",
    b"/*NO LOAD BALANCE*/ select E'a\\'b', $q$ ; $q$, U&'\\0041', B'01', \"Q\"\"q\"",
    b"select nextval('s'), pg_advisory_lock(1), random()",
    b"start transaction isolation level serializable read only deferrable",
    b"set local work_mem = '1MB'; reset all; show timezone",
    b"prepare p as select $1; execute p(1); deallocate p",
    b"explain (analyze, verbose) select ((((1))))",
    b"copy (select 1) to stdout; copy t from stdin",
    b"declare c cursor with hold for select 1",
];

const CONFIGURATIONS: &[&[u8]] = &[
    b"listen_addresses: [\"*\"]\nport: 9999\nbackends:\n  - { hostname: a, port: 5432, weight: 0 }\n  - { hostname: /s, weight: 1.5 }\n",
    b"backends: [{hostname: a, flag: ALWAYS_PRIMARY}]\nquery_wait_timeout: 30s\nmax_parsed_statement: 64kB\n",
    b"backends: &x [{hostname: a}]\ndatabases: {\"*\": {pool_mode: session}, d: {pool_size: 3}}\nusers: {}\n",
    b"database_redirect_preference_list: [\"^a.*:standby(0.3)\"]\nadmin_users: [a]\nmetrics_listen: off\n",
];

const HBA: &[&[u8]] = &[
    b"# TYPE DB USER ADDRESS METHOD\nlocal all all trust\nhost all +g 10.0.0.0/8 scram-sha-256\n",
    b"hostssl \"a b\",@f /^x$ 127.0.0.1 255.255.255.0 md5\nhostnossl samerole all ::1/128 reject\n",
    b"host all all samenet cert map=x clientcert=verify-full\n",
    b"host a,b joe .example.com pam pamservice=db pam_use_hostname=1\nhost all all db1.example.com ldap ldapurl=\"ldap://h/dc=x\"\n",
];

const PASSWORDS: &[&[u8]] = &[
    b"demo:TEXTdemo\n\"a:b\":md5aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n",
    b"u:SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=\n",
    b"u:AESabcdef==\n# comment\n\n",
];

/// A header is within its limits, and is the same however much of the stream behind it has arrived.
fn frames(input: &[u8]) {
    for header in [frontend_header, backend_header] {
        let whole = header(input);
        if let Ok(Some(found)) = &whole {
            assert!((HEADER_LEN..=LARGE_MESSAGE_LIMIT + 1).contains(&found.len), "length {}", found.len);
        }
        let first = header(&input[..input.len().min(HEADER_LEN)]);
        assert_eq!(first, whole, "more bytes changed a header");
        for cut in 0..input.len().min(HEADER_LEN) {
            let early = header(&input[..cut]);
            assert!(
                matches!(early, Ok(None)) || early == whole,
                "{cut} bytes said {early:?}, all say {whole:?}"
            );
        }
    }
}

/// Views of messages never reach outside of them.
fn messages(input: &[u8]) {
    use protocol::message;
    let _ = message::query_text(input);
    let _ = message::only_query_text(input);
    let _ = message::parse(input);
    let _ = message::object(input);
    let _ = message::parameter_status(input);
    let _ = message::command_tag(input);
    let _ = message::ready_status(input);
    for cut in [input.len(), input.len() / 2, input.len().min(8)] {
        let _ = message::bind(&input[..cut], input.len());
    }
}

/// A packet is no longer than what was read or than the limit, and an early answer is the final one.
fn startup(input: &[u8]) {
    let whole = parse_startup(input);
    if let Ok(Some((_, length))) = &whole {
        assert!(*length <= input.len() && *length <= MAX_STARTUP_PACKET_LEN, "length {length}");
        let exact = parse_startup(&input[..*length]);
        assert!(
            matches!(&exact, Ok(Some((_, again))) if again == length),
            "the packet alone reads otherwise"
        );
    }
    for cut in 0..input.len().min(16) {
        if parse_startup(&input[..cut]).is_err() {
            assert!(whole.is_err(), "refused after {cut} bytes, taken when whole");
        }
    }
}

/// The bodies in an input: each behind a byte that is its length.
fn bodies(mut input: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let Some((length, rest)) = input.split_first() {
        let (body, after) = rest.split_at(usize::from(*length).min(rest.len()));
        found.push(body);
        input = after;
    }
    found
}

/// Whatever a client says, it is not let in, and a login that has ended stays ended.
fn sasl(input: &[u8]) {
    use protocol::auth::{Challenge, ClientAuth, ClientStep, Method, StoredSecret};
    use protocol::scram::ScramVerifier;
    let verifier = ScramVerifier { iterations: 1, salt: vec![1], stored_key: [1; 32], server_key: [2; 32] };
    for (method, secret) in [
        (Method::Scram, Some(StoredSecret::Scram(verifier.clone()))),
        (Method::Scram, None),
        (Method::Md5, None),
        (Method::Password, Some(StoredSecret::Plain(b"not in the corpus".to_vec()))),
    ] {
        for end_point in [None, Some(b"hash".as_slice().into())] {
            let challenge =
                Challenge { md5_salt: *b"salt", nonce: "nonce".into(), process_secret: [7; 32], end_point };
            let mut auth = ClientAuth::new(method, b"user", secret.clone(), challenge);
            let mut out = bytes::BytesMut::new();
            assert_eq!(auth.begin(&mut out), ClientStep::Wait);
            let mut over = false;
            for body in bodies(input) {
                let step = auth.feed(body, &mut out);
                assert!(!matches!(step, ClientStep::Done(_)), "let in without the secret");
                assert!(!over || matches!(step, ClientStep::Failed(_)), "goes on after its end");
                over |= matches!(step, ClientStep::Failed(_));
            }
        }
    }
}

/// Whatever a node says, a SCRAM login counts only with its proof.
fn server_auth(input: &[u8]) {
    use protocol::auth::{Channel, Credentials, ServerAuth, Step};
    for channel in [Channel::Plain, Channel::Tls(None), Channel::Tls(Some(b"hash".to_vec()))] {
        let mut auth =
            ServerAuth::new(b"user", Credentials::Password(b"secret".to_vec()), "nonce".into()).over(channel);
        let mut in_scram = false;
        for body in bodies(input) {
            match auth.feed(body) {
                Ok(Step::Send(sent)) => in_scram |= sent.windows(13).any(|part| part == b"SCRAM-SHA-256"),
                Ok(Step::Ok) => assert!(!in_scram, "logged in without the server's proof"),
                Ok(Step::Continue) => {}
                Err(_) => break,
            }
        }
    }
}

/// Maps that are read compare equal to themselves, and nobody is mapped by a map that is not there.
fn ident(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(maps) = config::hba::IdentMaps::parse(text, "fuzz") {
        assert!(maps == maps.clone());
        assert!(!maps.allows(Some("no such map"), "joe", "bench", &[]));
    }
}

/// A verifier that is read writes itself as something that reads the same.
fn scram(input: &[u8]) {
    use protocol::scram::{
        ClientChannel, ClientSecret, Mechanism, ScramClient, ScramServer, ScramVerifier, Target as Known,
    };
    let known = Known::mock(b"secret", b"user");
    if let Ok((server, _first)) =
        ScramServer::start(known, input, "nonce", Mechanism::Sha256Plus, Some(b"hash"))
    {
        assert!(server.finish(input).is_err(), "accepted without a proof");
    }
    let (client, _first) =
        ScramClient::start(ClientSecret::Password(b"x".to_vec()), "nonce", ClientChannel::Unbound);
    let _ = client.server_first(input);
    if let Some(verifier) = std::str::from_utf8(input).ok().and_then(ScramVerifier::parse) {
        let written = verifier.to_secret();
        let again = ScramVerifier::parse(&written).map(|verifier| verifier.to_secret());
        assert_eq!(again.as_deref(), Some(&*written));
    }
}

/// Whatever a client asks and a server answers: settled or desynchronised, never a panic, and never settled with
/// replies owed.
fn tracker(input: &[u8]) {
    let mut tracker = Tracker::new();
    for (number, pair) in input.chunks(2).enumerate() {
        let token = Token(u32::try_from(number).unwrap_or(u32::MAX));
        let ask = match pair[0] {
            b'P' => Some(Ask::Parse(token)),
            b'B' => Some(Ask::Bind),
            b'D' => Some(Ask::DescribeStatement),
            b'E' => Some(Ask::Execute),
            b'S' => Some(Ask::Sync),
            b'Q' => Some(Ask::Query),
            _ => None,
        };
        if let Some(ask) = ask {
            tracker.push(ask, Owner::Client);
            assert!(!tracker.is_clean(), "clean with a reply owed");
        }
        if let Some(&tag) = pair.get(1)
            && tracker.on_server(tag, Some(protocol::message::TxStatus::default())).is_err()
        {
            return;
        }
        let _ = tracker.take_events();
    }
}

/// The verdict from the cache is the verdict: first with an empty one, then with what it remembers of the same text
/// and of one that differs in its numbers only, which has the same fingerprint.
fn statements(input: &[u8]) {
    let options = ParseOptions::default();
    let mut cached = Classifier::new(1 << 16);
    let other: Vec<u8> = input.iter().map(|byte| if *byte == b'1' { b'2' } else { *byte }).collect();
    for text in [input, &other, input] {
        let verdict = router::classify(text, &options);
        assert_eq!(cached.classify(text, &options), verdict, "the cache says otherwise");
    }
    let _ = router::explain(input, &options);
}

fn configuration(input: &[u8]) {
    let _ = config::parse(&String::from_utf8_lossy(input), "fuzz.yaml");
}

fn hba(input: &[u8]) {
    let _ = config::hba::Rules::parse(&String::from_utf8_lossy(input), "pool_hba.conf");
}

fn passwords(input: &[u8]) {
    let _ = config::secrets::Passwords::parse(&String::from_utf8_lossy(input), "pool_passwd");
}
