//! Packets whole, in every chunking, and malformed.

use super::*;
use proptest::prelude::*;

fn packet(code: u32, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len() + 8).unwrap();
    [&len.to_be_bytes()[..], &code.to_be_bytes(), body].concat()
}

fn startup(minor: u32, body: &[u8]) -> Result<StartupMessage, StartupError> {
    let bytes = packet(0x0003_0000 | minor, body);
    match parse_startup(&bytes)? {
        Some((StartupPacket::Startup(message), len)) if len == bytes.len() => Ok(message),
        other => panic!("{other:?}"),
    }
}

fn shown(error: &StartupError) -> Vec<u8> {
    let mut out = BytesMut::new();
    error.write(&mut out);
    out.to_vec()
}

#[test]
fn the_usual_packet_reads() {
    let body = b"user\0joe\0database\0shop\0options\0-c geqo=off --work-mem=1MB\0\
        application_name\0psql\0replication\0database\0_pq_.foo\0on\0\0";
    let message = startup(2, body).unwrap();
    assert_eq!(message.user, b"joe");
    assert_eq!(message.database_or_user(), b"shop");
    assert_eq!(message.replication, Replication::Database);
    assert_eq!(message.param(b"application_name"), Some(&b"psql"[..]));
    assert_eq!(message.unknown_options, [b"_pq_.foo"]);
    let settings = message.settings().unwrap();
    let expected = [("geqo", "off"), ("work_mem", "1MB"), ("application_name", "psql")];
    assert_eq!(settings, expected.map(|(name, value)| (name.into(), value.into())));
    let mut out = BytesMut::new();
    write_negotiation(&mut out, &message).unwrap();
    assert_eq!(&out[..], b"v\0\0\0\x15\0\x03\0\x02\0\0\0\x01_pq_.foo\0");
}

#[test]
fn the_version_spoken_is_the_older_of_both() {
    for (asked, options, told) in [
        (0, "", None),
        (1, "", None),
        (2, "", None),
        (3, "", Some(2)),
        (9999, "", Some(2)),
        (0, "_pq_.a\0on\0", Some(0)),
        (1, "_pq_.a\0on\0", Some(1)),
        (9999, "_pq_.a\0on\0", Some(2)),
    ] {
        let message = startup(asked, format!("user\0joe\0{options}\0").as_bytes()).unwrap();
        let mut out = BytesMut::new();
        write_negotiation(&mut out, &message).unwrap();
        let minor = out.get(7..9).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
        assert_eq!(minor, told, "3.{asked} {options:?}");
    }
}

#[test]
fn plain_3_0_is_not_negotiated_and_the_database_is_the_user() {
    let message = startup(0, b"user\0\xff\xfe\0database\0\0\0").unwrap();
    assert_eq!(message.database_or_user(), b"\xff\xfe");
    let mut out = BytesMut::new();
    write_negotiation(&mut out, &message).unwrap();
    assert!(out.is_empty());
}

#[test]
fn long_names_are_those_that_a_server_takes_them_for() {
    let [x62, x63] = [62, 63].map(|count| "x".repeat(count));
    for (given, taken) in [
        (x63.clone(), &x63),
        (format!("{x63}y"), &x63),
        (x63.repeat(20), &x63),
        (format!("{x62}\u{e4}"), &x62),
        (format!("{x62}\u{1f418}y"), &x62),
        (format!("{x62}x\u{e4}"), &x63),
    ] {
        let message = startup(0, format!("user\0{given}\0database\0{given}\0\0").as_bytes()).unwrap();
        assert_eq!(message.user, taken.as_bytes(), "{given}");
        assert_eq!(message.database_or_user(), taken.as_bytes(), "{given}");
    }
    let odd = startup(0, &[b"user\0", &[0x80; 70][..], b"\0\0"].concat()).unwrap();
    assert!(odd.user.len() <= 63 && !odd.user.is_empty(), "{odd:?}");
}

#[test]
fn requests_and_cancel() {
    let ssl = packet(SSL_REQUEST_CODE, b"");
    assert_eq!(parse_startup(&ssl), Ok(Some((StartupPacket::SslRequest, 8))));
    let gss = packet(GSSENC_REQUEST_CODE, b"");
    assert_eq!(parse_startup(&gss), Ok(Some((StartupPacket::GssEncRequest, 8))));
    for len in [4, 32, 256] {
        let secret = vec![7; len];
        let cancel = packet(CANCEL_REQUEST_CODE, &[&9u32.to_be_bytes()[..], &secret].concat());
        let expected = StartupPacket::Cancel { pid: 9, secret };
        assert_eq!(parse_startup(&cancel), Ok(Some((expected, 12 + len))));
    }
    for len in [0, 3, 7, 261] {
        let cancel = packet(CANCEL_REQUEST_CODE, &vec![0; len]);
        assert_eq!(parse_startup(&cancel), Err(StartupError::CancelLength(len + 8)));
    }
    let debug = format!("{:?}", StartupPacket::Cancel { pid: 9, secret: b"hush".to_vec() });
    assert!(debug.contains('9') && !debug.contains("104"), "{debug}");
    let again = repeated(&StartupPacket::SslRequest).unwrap();
    assert_eq!(again.to_string(), "unsupported frontend protocol 1234.5679: server supports 3.0 to 3.2");
}

#[test]
fn lengths_out_of_bounds_are_refused_at_once_and_without_a_word() {
    for length in [0u32, 7, 10_005, 0x7fff_ffff, u32::MAX, u32::from_be_bytes(*b"GET ")] {
        let error = parse_startup(&length.to_be_bytes()).unwrap_err();
        assert_eq!(error, StartupError::Length(length));
        assert!(shown(&error).is_empty());
    }
    let longest = packet(0x0003_0000, &[b"user\0a\0b\0", &vec![b'x'; 9_985][..], b"\0\0"].concat());
    assert_eq!(longest.len(), MAX_STARTUP_PACKET_LEN);
    assert!(matches!(parse_startup(&longest), Ok(Some(_))));
}

#[test]
fn other_versions_are_refused_in_their_own_form() {
    let four = parse_startup(&packet(4 << 16, b"")).unwrap_err();
    assert_eq!(four.to_client().code, SqlState::FEATURE_NOT_SUPPORTED);
    let text = "unsupported frontend protocol 4.0: server supports 3.0 to 3.2";
    assert_eq!(four.to_client().message, text);
    let two = parse_startup(&packet(2 << 16, &[0; 200])).unwrap_err();
    assert!(shown(&two).starts_with(b"EFATAL:  unsupported frontend protocol 2.0"));
    assert_eq!(shown(&two).last(), Some(&0));
}

#[test]
fn malformed_parameters_have_postgresqls_texts() {
    let cases: &[(&[u8], SqlState, &str)] = &[
        (
            b"",
            SqlState::PROTOCOL_VIOLATION,
            "invalid startup packet layout: expected terminator as last byte",
        ),
        (b"user\0joe\0", SqlState::PROTOCOL_VIOLATION, "invalid startup packet layout"),
        (b"user\0joe", SqlState::PROTOCOL_VIOLATION, "invalid startup packet layout"),
        (b"user\0joe\0\0x", SqlState::PROTOCOL_VIOLATION, "invalid startup packet layout"),
        (
            b"\0",
            SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
            "no PostgreSQL user name specified in startup",
        ),
        (b"user\0\0\0", SqlState::INVALID_AUTHORIZATION_SPECIFICATION, "no PostgreSQL user name"),
        (b"user\0a\0replication\0x\0\0", SqlState::INVALID_PARAMETER_VALUE, "invalid value for parameter"),
    ];
    for (body, code, text) in cases {
        let error = startup(0, body).unwrap_err().to_client();
        assert_eq!(error.code, *code, "{body:?}");
        assert!(error.message.starts_with(text), "{body:?}: {error}");
        assert!(error.severity.ends_session());
    }
}

#[test]
fn replication_takes_booleans() {
    for (value, expected) in [
        ("true", Replication::Physical),
        ("ON", Replication::Physical),
        ("y", Replication::Physical),
        ("1", Replication::Physical),
        ("of", Replication::None),
        ("0", Replication::None),
        ("database", Replication::Database),
    ] {
        let message = startup(0, format!("user\0a\0replication\0{value}\0\0").as_bytes()).unwrap();
        assert_eq!(message.replication, expected, "{value}");
    }
    assert!(startup(0, b"user\0a\0replication\0o\0\0").is_err());
}

#[test]
fn options_are_split_as_postgresql_does() {
    let cases: &[(&str, &[(&str, &str)])] = &[
        ("", &[]),
        ("  ", &[]),
        (r"-c search_path=a\ b\\c -cx=1", &[("search_path", r"a b\c"), ("x", "1")]),
        ("--a-b=c-d\t-c\nx.y-z=", &[("a_b", "c-d"), ("x.y_z", "")]),
        ("-c a=b=c", &[("a", "b=c")]),
    ];
    for (text, expected) in cases {
        let expected: Vec<_> =
            expected.iter().map(|(name, value)| (name.as_bytes().into(), value.as_bytes().into())).collect();
        assert_eq!(options::parse(text.as_bytes()), Ok(expected), "{text}");
    }
    assert_eq!(options::parse(b"-c"), Err(StartupError::Option("-c".into())));
    assert_eq!(options::parse(b"-F -c a=b"), Err(StartupError::Option("-F".into())));
    assert_eq!(options::parse(b"nonsense"), Err(StartupError::Option("nonsense".into())));
    assert_eq!(options::parse(b"--geqo"), Err(StartupError::OptionValue("--geqo".into())));
    assert_eq!(options::parse(b"-c geqo"), Err(StartupError::OptionValue("-c geqo".into())));
    assert_eq!(options::parse(b"--=x"), Err(StartupError::OptionValue("--=x".into())));
}

proptest! {
    #[test]
    fn every_cut_of_a_packet_waits_for_the_rest(
        params in proptest::collection::vec(("[a-z]{1,9}", "[^\0]{0,9}"), 0..6),
        tail in proptest::collection::vec(any::<u8>(), 0..9),
    ) {
        let mut body = b"user\0joe\0".to_vec();
        for (name, value) in params.iter().filter(|(name, _)| !["user", "replication"].contains(&name.as_str())) {
            body.extend([name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat());
        }
        body.push(0);
        let bytes = packet(0x0003_0000, &body);
        for cut in 0..bytes.len() {
            prop_assert_eq!(parse_startup(&bytes[..cut]), Ok(None), "{}", cut);
        }
        let whole = parse_startup(&bytes).unwrap().unwrap();
        prop_assert_eq!(whole.1, bytes.len());
        let followed = parse_startup(&[&bytes[..], &tail].concat()).unwrap().unwrap();
        prop_assert_eq!(followed, whole);
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), code in 0u32..5) {
        let _ = parse_startup(&bytes);
        let codes = [0x0003_0000, 0x0003_0002, CANCEL_REQUEST_CODE, SSL_REQUEST_CODE, 0];
        let bytes = packet(codes[code as usize], &bytes);
        if let Ok(Some((StartupPacket::Startup(message), len))) = parse_startup(&bytes) {
            prop_assert!(len <= bytes.len() && !message.user.is_empty());
            let _ = message.settings();
            let mut out = BytesMut::new();
            write_negotiation(&mut out, &message).unwrap();
        }
    }

    #[test]
    fn random_options_never_panic(options in proptest::collection::vec(any::<u8>(), 0..80)) {
        let _ = options::parse(&options);
    }
}
