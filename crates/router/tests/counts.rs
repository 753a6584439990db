//! How many statements a text is: as many as PostgreSQL finds. Texts and counts are in tests/corpus/counts.txt, which
//! tests/counted.rs makes and holds against a server.

use router::{ParseOptions, classify};

const PAGE: &str = include_str!("../../../tests/corpus/counts.txt");

/// What `escape_ascii` was made of.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = text.bytes();
    let mut plain = Vec::new();
    while let Some(byte) = bytes.next() {
        plain.push(match (byte, if byte == b'\\' { bytes.next() } else { None }) {
            (b'\\', Some(b'n')) => b'\n',
            (b'\\', Some(b'r')) => b'\r',
            (b'\\', Some(b't')) => b'\t',
            (b'\\', Some(b'x')) => {
                let digits: Vec<u8> = bytes.by_ref().take(2).collect();
                std::str::from_utf8(&digits)
                    .ok()
                    .and_then(|text| u8::from_str_radix(text, 16).ok())
                    .unwrap_or(0)
            }
            (b'\\', Some(quoted)) => quoted,
            (byte, _) => byte,
        });
    }
    plain
}

#[test]
fn as_many_statements_as_postgresql_finds() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for line in PAGE.lines() {
        let mut parts = line.splitn(3, ' ');
        let (found, conforming) = (parts.next().unwrap(), parts.next().unwrap() == "on");
        let text = unescaped(parts.next().unwrap_or_default());
        let options = ParseOptions { standard_conforming_strings: conforming, ..ParseOptions::default() };
        let ours = classify(&text, &options).statements;
        if ours.to_string() != found {
            wrong.push(format!("{ours} instead of {line}"));
        }
        count += 1;
    }
    assert!(count >= 1000, "{count} texts");
    assert!(wrong.is_empty(), "{} of {count} differ:\n{}", wrong.len(), wrong.join("\n"));
}
