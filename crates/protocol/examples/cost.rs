//! What a message costs on its way: finding its border, looking into it, and following what is owed for it.
//! `cargo run --release -p pgweir-protocol --example cost`; the figures are in docs/benchmarks.md.
#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock; the library does not")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program for people")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use protocol::frame::{backend_header, frontend_header};
use protocol::message::{self, TxStatus};
use protocol::tracker::{Ask, Owner, Token, Tracker};

const ROUNDS: usize = 11;
const CALLS: u32 = 100_000;
const SQL: &[u8] = b"SELECT abalance FROM pgbench_accounts WHERE aid = $1;";

/// The median of several rounds, per call.
fn median(mut work: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            (0..CALLS).for_each(|_| work());
            began.elapsed() / CALLS
        })
        .collect();
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn put(out: &mut Vec<u8>, tag: u8, body: &[u8]) {
    out.push(tag);
    out.extend(u32::try_from(body.len() + 4).unwrap().to_be_bytes());
    out.extend(body);
}

/// Walks over whole messages; how many there are.
fn walk(mut bytes: &[u8], header: impl Fn(&[u8]) -> Option<usize>) -> usize {
    let mut count = 0;
    while let Some(rest) = header(bytes).and_then(|len| bytes.get(len..)) {
        (bytes, count) = (rest, count + 1);
    }
    count
}

fn main() {
    let mut rows = Vec::new();
    for _ in 0..1000 {
        put(&mut rows, b'D', &[0, 1, 0, 0, 0, 4, b'1', b'2', b'3', b'4']);
    }
    let per_thousand = median(|| {
        black_box(walk(black_box(&rows), |bytes| backend_header(bytes).ok()?.map(|header| header.len)));
    });
    println!("border of a DataRow:                      {:>8.1} ns", per_thousand.as_secs_f64() * 1e6);
    let mut query = Vec::new();
    put(&mut query, b'Q', &[SQL, b"\0"].concat());
    let view = median(|| {
        let header = frontend_header(black_box(&query)).unwrap().unwrap();
        black_box(message::query_text(query.get(..header.len).unwrap()));
    });
    println!("border and text of a Query:               {:>8.1} ns", view.as_secs_f64() * 1e9);
    let mut parse = Vec::new();
    put(&mut parse, b'P', &[b"\0", SQL, b"\0\0\0"].concat());
    let view = median(|| {
        black_box(message::parse(black_box(&parse)));
    });
    println!("view of a Parse:                          {:>8.1} ns", view.as_secs_f64() * 1e9);
    let mut tracker = Tracker::new();
    let simple = median(|| {
        tracker.push(Ask::Query, Owner::Client);
        for tag in *b"TDC" {
            black_box(tracker.on_server(tag, None)).unwrap();
        }
        black_box(tracker.on_server(b'Z', Some(TxStatus::Idle))).unwrap();
    });
    println!("a simple query, followed:                 {:>8.1} ns", simple.as_secs_f64() * 1e9);
    let extended = median(|| {
        for ask in [Ask::Parse(Token(1)), Ask::Bind, Ask::DescribePortal, Ask::Execute, Ask::Sync] {
            tracker.push(ask, Owner::Client);
        }
        for tag in *b"12TDC" {
            black_box(tracker.on_server(tag, None)).unwrap();
        }
        black_box(tracker.on_server(b'Z', Some(TxStatus::Idle))).unwrap();
        let events = tracker.take_events();
        tracker.reuse(events);
    });
    println!("Parse to Sync and their answers, followed:{:>8.1} ns", extended.as_secs_f64() * 1e9);
    assert!(tracker.is_clean());
}
