//! The console behind the mini server: what a driver sees on the wire.

use bytes::BytesMut;
use protocol::console::{Context, LocalServer, Next, Status};

use super::*;
use crate::COMMANDS;
use crate::testing::{FakeControl, FakeView, stats};

fn console() -> AdminConsole {
    AdminConsole::new(Arc::new(FakeView::new()), Arc::new(FakeControl::default()))
}

/// Feeds messages (tag and body), runs what is to be run, and returns the replies' tags and bodies.
async fn talk(caller: &Caller, messages: &[(u8, Vec<u8>)]) -> Vec<(u8, Vec<u8>)> {
    let console = console();
    let context = Context { console: &console, caller, status: Status::Own };
    let (mut server, mut out) = (LocalServer::new(), BytesMut::new());
    for (tag, body) in messages {
        let mut next = server.feed(&context, *tag, body, &mut out);
        while let Next::Run(sql) = next {
            let answer = console.run(caller, &sql).await;
            next = server.answer(&context, answer, &mut out);
        }
        assert_eq!(next, Next::Wait);
    }
    replies(&out)
}

fn replies(mut out: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut replies = Vec::new();
    while !out.is_empty() {
        let length = u32::from_be_bytes(out[1..5].try_into().unwrap()) as usize;
        replies.push((out[0], out[5..1 + length].to_vec()));
        out = &out[1 + length..];
    }
    replies
}

fn tags(replies: &[(u8, Vec<u8>)]) -> String {
    let mut tags: Vec<char> = replies.iter().map(|(tag, _)| char::from(*tag)).collect();
    tags.dedup();
    tags.into_iter().collect()
}

fn query(sql: &str) -> Vec<(u8, Vec<u8>)> {
    vec![(b'Q', format!("{sql}\0").into_bytes())]
}

/// Parse, Describe the statement, Bind with results in `format`, Describe the portal, Execute, Sync.
fn extended(sql: &str, format: u8) -> Vec<(u8, Vec<u8>)> {
    vec![
        (b'P', format!("s\0{sql}\0\0\0").into_bytes()),
        (b'D', b"Ss\0".to_vec()),
        (b'B', [b"\0s\0\0\0\0\0\0\x01\0".as_slice(), &[format]].concat()),
        (b'D', b"P\0".to_vec()),
        (b'E', b"\0\0\0\0\0".to_vec()),
        (b'S', Vec::new()),
    ]
}

#[tokio::test]
async fn every_command_speaks_both_protocols() {
    let admin = Caller { admin: true, ..stats() };
    // Those that a session carries out are none of the admin database's.
    for command in COMMANDS.iter().filter(|command| !command.words.starts_with("PGPOOL")) {
        let rows = !command.columns.is_empty();
        let simple = talk(&admin, &query(&command.example())).await;
        let expected = if rows { "TDCZ" } else { "CZ" };
        assert_eq!(tags(&simple).trim_start_matches('N'), expected, "{}", command.words);
        for format in [0, 1] {
            let extended = talk(&admin, &extended(&command.example(), format)).await;
            let expected = if rows { "1tT2TDCZ" } else { "1tn2nCZ" };
            assert_eq!(tags(&extended).replace('N', ""), expected, "{} in format {format}", command.words);
            if format == 0 {
                let data = |replies: &[(u8, Vec<u8>)]| -> Vec<Vec<u8>> {
                    replies.iter().filter(|(tag, _)| *tag == b'D').map(|(_, body)| body.clone()).collect()
                };
                assert_eq!(data(&simple), data(&extended), "{}", command.words);
            }
        }
    }
}

#[tokio::test]
async fn several_statements_probes_and_errors_keep_the_session() {
    let several =
        talk(&stats(), &query("BEGIN; SHOW VERSION; SELECT 1 AS one; SET work_mem = 1; COMMIT;")).await;
    assert_eq!(tags(&several), "CTDCTDCZ");
    assert_eq!(talk(&stats(), &query("-- ping")).await, [(b'I', vec![]), (b'Z', b"I".to_vec())]);
    let failed = talk(&stats(), &query("SHOW VERSION; RELOAD; SHOW VERSION")).await;
    assert_eq!(tags(&failed), "TDCEZ");
    let error = String::from_utf8_lossy(&failed[3].1).into_owned();
    assert!(error.contains("C42501\0") && error.contains("VERROR\0") && error.ends_with("\0\0"), "{error:?}");
    assert_eq!(tags(&talk(&stats(), &extended("SHOW NONSENSE", 0)).await), "EZ");
}
