mod again;
mod failed;
mod local;
mod order;
mod refuse;
mod stand_in;
mod touched;

use std::cell::RefCell;
use std::sync::Arc;

use protocol::error::Severity;
use protocol::sqlstate::SqlState;
use router::{ParseOptions, Verdict};

use super::*;
use crate::buffer::Buf;
use crate::out::Out;

#[derive(Default)]
struct Seen(RefCell<Vec<String>>);

impl Watch for Seen {
    fn asked(&self, _: protocol::tracker::Push) {}
    fn answered(&self, _: protocol::tracker::Push, _: &[u8], _: u64) {}
    fn bound(&self, _: &[u8], _: usize) {}
    fn passed(&self, _: Passed) {}
    fn statement(&self, verdict: &Verdict, _: Option<&[u8]>) {
        self.0.borrow_mut().push(verdict.kind.as_str().to_owned());
    }
    fn server_error(&self, _: Severity, code: Option<SqlState>) {
        self.0.borrow_mut().push(String::from_utf8_lossy(&code.unwrap().0).into_owned());
    }
    fn transaction(&self) {
        self.0.borrow_mut().push("end".to_owned());
    }
    fn schema_changed(&self) {
        self.0.borrow_mut().push("schema".to_owned());
    }

    fn catalog_changed(&self, _: router::Changes) {}
    fn asked_of_sequences(&self, how: Habit) {
        self.0.borrow_mut().push(format!("{how:?}"));
    }
    fn held_in_vain(&self) {
        self.0.borrow_mut().push("in vain".to_owned());
    }
}

fn message(tag: char, body: &[u8]) -> Vec<u8> {
    let mut out = vec![u8::try_from(tag).unwrap()];
    out.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
    out.extend_from_slice(body);
    out
}

fn q(sql: &str) -> Vec<u8> {
    message('Q', format!("{sql}\0").as_bytes())
}

fn p(name: &str, sql: &str) -> Vec<u8> {
    message('P', format!("{name}\0{sql}\0\0\0").as_bytes())
}

fn b(name: &str) -> Vec<u8> {
    message('B', format!("\0{name}\0\0\0\0\0\0\0").as_bytes())
}

fn e() -> Vec<u8> {
    message('E', b"\0\0\0\0\0")
}

fn s() -> Vec<u8> {
    message('S', b"")
}

fn z(status: char) -> Vec<u8> {
    message('Z', &[u8::try_from(status).unwrap()])
}

/// One client and one backend, with bytes in between.
struct Pair {
    engine: Engine,
    books: Books,
    cache: StatementCache,
    seen: Seen,
    from_client: Buf,
    from_server: Buf,
    to_server: Out,
    to_client: Out,
    step: Option<ClientStep>,
    settled: bool,
    /// What of ours the server refused.
    refused: bool,
}

impl Pair {
    fn new(on_standby: bool, first: Verdict) -> Self {
        let mut pair = Self {
            engine: Engine::default(),
            books: Books::default(),
            cache: StatementCache::new(1 << 20),
            seen: Seen::default(),
            from_client: Buf::default(),
            from_server: Buf::default(),
            to_server: Out::default(),
            to_client: Out::default(),
            step: None,
            settled: false,
            refused: false,
        };
        let unit =
            Unit { len: 0, verdict: first, boundary: Boundary::Open, extended: true, leaves_portal: false };
        pair.engine.bind(on_standby, &unit, Vec::new());
        pair
    }

    fn primary() -> Self {
        Self::new(false, Verdict::empty())
    }

    fn on_env<T>(&mut self, work: impl FnOnce(&mut Self, &Env<'_>) -> T) -> T {
        let options = ParseOptions {
            max_parsed_statement: 65_536,
            standard_conforming_strings: true,
            allow_sql_comments: true,
        };
        let classify = |sql: &[u8]| router::classify(sql, &options);
        let cache = std::mem::replace(&mut self.cache, StatementCache::new(0));
        let seen = std::mem::take(&mut self.seen);
        let env = Env {
            generation: 0,
            classify: &classify,
            cache: &cache,
            schema: cache.schema(),
            standard_conforming: true,
            max_parsed: 65_536,
            max_prepared: 2,
            habit: Habit::default(),
            state: config::SessionState::default(),
            watch: &seen,
        };
        let result = work(self, &env);
        self.cache = cache;
        self.seen = seen;
        result
    }

    /// The client sends `bytes` in pieces of `chunk`; gives what the server gets.
    fn client(&mut self, bytes: &[u8], chunk: usize) -> Vec<u8> {
        let mut sent = Vec::new();
        for piece in bytes.chunks(chunk) {
            self.from_client.put(piece);
            let step = self.on_env(|pair, env| {
                let mut outs = ClientOuts { server: &mut pair.to_server, client: &mut pair.to_client };
                pair.engine.client(env, &mut pair.books, &mut pair.from_client, &mut outs)
            });
            self.step = Some(step.unwrap());
            sent.extend(self.to_server.bytes(&self.from_client));
            self.to_server.clear();
        }
        sent
    }

    /// What the server gets when the client's bytes are looked at again.
    fn poke(&mut self) -> Vec<u8> {
        let step = self.on_env(|pair, env| {
            let mut outs = ClientOuts { server: &mut pair.to_server, client: &mut pair.to_client };
            pair.engine.client(env, &mut pair.books, &mut pair.from_client, &mut outs)
        });
        self.step = Some(step.unwrap());
        let sent = self.to_server.bytes(&self.from_client);
        self.to_server.clear();
        sent
    }

    /// The server sends `bytes` in pieces of `chunk`; gives what the client gets.
    fn server(&mut self, bytes: &[u8], chunk: usize) -> Vec<u8> {
        let mut sent = self.to_client.bytes(&self.from_server);
        self.to_client.clear();
        for piece in bytes.chunks(chunk) {
            self.from_server.put(piece);
            loop {
                let books = &mut self.books;
                let step = self
                    .engine
                    .server(&self.seen, books, &mut self.from_server, &mut self.to_client)
                    .unwrap();
                self.settled = step == ServerStep::Settled;
                self.refused |= matches!(step, ServerStep::SetupFailed(_));
                if !self.settled || self.from_server.is_empty() {
                    break;
                }
            }
            sent.extend(self.to_client.bytes(&self.from_server));
            self.to_client.clear();
        }
        sent
    }
}

/// `client` and then `server` in every chunking; what reaches the other side is always the same.
fn exchange(client: &[Vec<u8>], to_server: &[Vec<u8>], server: &[Vec<u8>], to_client: &[Vec<u8>]) {
    let (client, server) = (client.concat(), server.concat());
    for chunk in (1..=client.len().max(server.len())).chain([8191, 8192, 16384]) {
        let mut pair = Pair::primary();
        let got = pair.client(&client, chunk);
        assert_eq!(
            String::from_utf8_lossy(&got),
            String::from_utf8_lossy(&to_server.concat()),
            "to server, {chunk}"
        );
        let got = pair.server(&server, chunk);
        assert_eq!(
            String::from_utf8_lossy(&got),
            String::from_utf8_lossy(&to_client.concat()),
            "to client, {chunk}"
        );
        assert!(pair.engine.is_free() && pair.settled, "{chunk}: {:?}", pair.engine);
    }
}

#[test]
fn a_simple_query_passes_untouched() {
    let answer = [message('T', b"\0\0"), message('D', b"\0\0"), message('C', b"SELECT 1\0"), z('I')];
    exchange(&[q("SELECT 1")], &[q("SELECT 1")], &answer, &answer);
}

#[test]
fn named_statements_get_the_name_of_everybody() {
    let answer = [message('1', b""), message('2', b""), message('C', b"SELECT 1\0"), z('I')];
    exchange(
        &[p("s1", "SELECT 1"), b("s1"), e(), s()],
        &[p("pgweir_1", "SELECT 1"), b("pgweir_1"), e(), s()],
        &answer,
        &answer,
    );
}

#[test]
fn a_statement_that_the_backend_holds_is_parsed_anew_only_when_the_client_parses_it() {
    for chunk in 1..200 {
        let mut pair = Pair::primary();
        pair.client(&[p("a", "SELECT 1"), s()].concat(), chunk);
        pair.server(&[message('1', b""), z('I')].concat(), chunk);
        let sent = pair.client(&[b("a"), e(), s()].concat(), chunk);
        assert_eq!(sent, [b("pgweir_1"), e(), s()].concat());
        let answer = [message('2', b""), message('C', b"SELECT 1\0"), z('I')].concat();
        assert_eq!(pair.server(&answer, chunk), answer);
        // The table may be another one by now: who parses is told of it as it is.
        let sent = pair.client(&[p("b", "SELECT 1"), b("b"), e(), s()].concat(), chunk);
        let anew = [message('C', b"Spgweir_1\0"), p("pgweir_1", "SELECT 1")].concat();
        assert_eq!(sent, [anew, b("pgweir_1"), e(), s()].concat());
        let parsed = [message('1', b""), answer].concat();
        assert_eq!(pair.server(&[message('3', b""), parsed.clone()].concat(), chunk), parsed);
        assert!(pair.engine.is_free());
    }
}

#[test]
fn a_statement_follows_the_client_to_another_backend() {
    let mut pair = Pair::primary();
    pair.client(&[p("a", "SELECT 1"), s()].concat(), 1000);
    pair.server(&[message('1', b""), z('I')].concat(), 1000);
    pair.books = Books::default();
    let sent = pair.client(&[b("a"), e(), s()].concat(), 1000);
    assert_eq!(sent, [p("pgweir_1", "SELECT 1"), b("pgweir_1"), e(), s()].concat());
    let got = pair
        .server(&[message('1', b""), message('2', b""), message('C', b"SELECT 1\0"), z('I')].concat(), 1000);
    assert_eq!(got, [message('2', b""), message('C', b"SELECT 1\0"), z('I')].concat());
}

#[test]
fn the_unnamed_statement_follows_too() {
    let mut pair = Pair::primary();
    pair.client(&[p("", "SELECT 1"), s()].concat(), 1000);
    pair.server(&[message('1', b""), z('I')].concat(), 1000);
    pair.books = Books::default();
    assert_eq!(pair.client(&[b(""), e(), s()].concat(), 1000), [p("", "SELECT 1"), b(""), e(), s()].concat());
}

#[test]
fn the_least_used_statement_is_closed_when_the_backend_is_full() {
    let mut pair = Pair::primary();
    let answer = [message('1', b""), z('I')].concat();
    for name in ["a", "b"] {
        pair.client(&[p(name, &format!("SELECT '{name}'")), s()].concat(), 1000);
        pair.server(&answer, 1000);
    }
    let sent = pair.client(&[p("c", "SELECT 'c'"), s()].concat(), 1000);
    assert_eq!(sent, [message('C', b"Spgweir_1\0"), p("pgweir_3", "SELECT 'c'"), s()].concat());
    let got = pair.server(&[message('3', b""), answer.clone()].concat(), 1000);
    assert_eq!(got, answer);
}

#[test]
fn errors_tell_the_clients_own_name() {
    let mut pair = Pair::primary();
    pair.client(&[p("mine", "SELECT 1"), s()].concat(), 1000);
    pair.server(&[message('1', b""), z('I')].concat(), 1000);
    let sent = pair.client(&[p("mine", "SELECT 2"), s()].concat(), 1000);
    assert_eq!(sent, [p("pgweir_1", "SELECT 2"), s()].concat());
    let error = |name: &str| {
        message('E', format!("SERROR\0C42P05\0Mprepared statement \"{name}\" already exists\0\0").as_bytes())
    };
    let got = pair.server(&[error("pgweir_1"), z('I')].concat(), 7);
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(&[error("mine"), z('I')].concat()));
    assert_eq!(*pair.seen.0.borrow(), ["end", "42P05", "end"]);
}

#[test]
fn settings_go_in_front_once_and_their_answers_nowhere() {
    let mut pair = Pair::primary();
    pair.engine.start_settings(Arc::new(Settings::new([("TimeZone".to_owned(), "UTC".to_owned())])));
    let set = q("SELECT pg_catalog.set_config('timezone',E'UTC',false);");
    assert_eq!(pair.client(&q("SELECT 1"), 1000), [set, q("SELECT 1")].concat());
    let ours = [
        message('T', b"\0\0"),
        message('D', b"\0\0"),
        message('C', b"SELECT 1\0"),
        message('S', b"TimeZone\0UTC\0"),
        z('I'),
    ];
    let theirs = [message('C', b"SELECT 1\0"), z('I')].concat();
    assert_eq!(pair.server(&[ours.concat(), theirs.clone()].concat(), 3), theirs);
    assert_eq!(pair.books.parameters.get("TimeZone"), Some("UTC"));
    assert_eq!(pair.client(&q("SELECT 1"), 1000), q("SELECT 1"));
}

#[test]
fn settings_that_are_refused_end_the_lease() {
    let mut pair = Pair::primary();
    pair.engine.start_settings(Arc::new(Settings::new([("TimeZone".to_owned(), "nowhere".to_owned())])));
    pair.client(&q("SELECT 1"), 1000);
    pair.from_server.put(&message('E', b"SERROR\0C22023\0Mno such zone\0\0"));
    let step = pair.engine.server(&pair.seen, &mut pair.books, &mut pair.from_server, &mut pair.to_client);
    assert!(
        matches!(step, Ok(ServerStep::SetupFailed(error)) if error.code == SqlState::INVALID_PARAMETER_VALUE)
    );
    assert!(pair.to_client.is_empty());
}

#[test]
fn large_values_stream_in_both_directions() {
    let bind = |name: &str| message('B', &[format!("\0{name}\0").as_bytes(), &vec![b'x'; 100_000]].concat());
    let mut pair = Pair::primary();
    pair.client(&[p("a", "SELECT $1"), s()].concat(), 1000);
    pair.server(&[message('1', b""), z('I')].concat(), 1000);
    let sent = pair.client(&[bind("a"), e(), s()].concat(), 8192);
    assert_eq!(sent, [bind("pgweir_1"), e(), s()].concat());
    let answer =
        [message('2', b""), message('D', &vec![b'y'; 200_000]), message('C', b"SELECT 1\0"), z('I')].concat();
    assert_eq!(pair.server(&answer, 8191), answer);
    assert!(pair.engine.is_free());
}

#[test]
fn deallocate_all_empties_both_books() {
    let mut pair = Pair::primary();
    pair.client(&[p("a", "SELECT 1"), s()].concat(), 1000);
    pair.server(&[message('1', b""), z('I')].concat(), 1000);
    pair.client(&q("DEALLOCATE ALL"), 1000);
    pair.server(&[message('C', b"DEALLOCATE ALL\0"), z('I')].concat(), 1000);
    assert!(pair.engine.statements().is_empty() && pair.books.prepared.is_empty());
    // The server says that it does not exist, by the client's own name.
    assert_eq!(pair.client(&[b("a"), s()].concat(), 1000), [b("a"), s()].concat());
}

#[test]
fn a_standby_gets_no_write_of_a_pipeline() {
    let mut pair = Pair::new(true, Verdict::empty());
    let sent = pair.client(&[q("SELECT 1"), q("INSERT INTO t VALUES (1)"), q("SELECT 2")].concat(), 1000);
    assert_eq!(sent, q("SELECT 1"));
    assert_eq!(pair.step, Some(ClientStep::Hold));
    pair.server(&[message('C', b"SELECT 1\0"), z('I')].concat(), 1000);
    assert!(pair.engine.is_free());
    assert_eq!(pair.from_client.filled(), [q("INSERT INTO t VALUES (1)"), q("SELECT 2")].concat());
}

#[test]
fn a_standby_gets_pipelined_reads() {
    let mut pair = Pair::new(true, Verdict::empty());
    let reads = [q("SELECT 1"), p("", "SELECT 2"), b(""), e(), s(), q("SELECT 3")].concat();
    assert_eq!(pair.client(&reads, 1000), reads);
}

#[test]
fn a_batch_moves_when_nothing_of_it_has_run_on_the_standby() {
    let mut pair = Pair::new(true, Verdict::empty());
    let flush = message('H', b"");
    let describe = message('D', b"Sa\0");
    pair.client(&[p("a", "SELECT 1"), describe, flush.clone()].concat(), 1000);
    pair.server(&[message('1', b""), message('t', b"\0\0"), message('T', b"\0\0")].concat(), 1000);
    let write = [p("w", "INSERT INTO t VALUES (1)"), b("w"), e(), s()].concat();
    assert_eq!(pair.client(&write, 1000), s(), "the standby is left with a Sync of ours");
    assert_eq!(pair.server(&z('I'), 1000), b"", "whose answer is nobody's");
    assert!(pair.engine.is_free());
    assert_eq!(pair.from_client.filled(), write);
}

#[test]
fn late_copy_data_is_dropped() {
    let mut pair = Pair::primary();
    pair.client(&q("COPY t FROM STDIN"), 1000);
    pair.server(&[message('G', b"\0\0\0"), message('E', b"SERROR\0C22P02\0\0"), z('I')].concat(), 1000);
    assert!(pair.engine.is_free());
    assert_eq!(pair.client(&[message('d', b"1\n"), message('c', b"")].concat(), 1), b"");
}

#[test]
fn what_no_client_may_send_ends_the_session() {
    let mut pair = Pair::primary();
    for bytes in [&b"p\0\0\0\x04"[..], b"Q\0\0\0\x03", b"\x16\x03\x01\0\0", b"GET / HTTP/1.1"] {
        pair.from_client = Buf::with(bytes);
        let result = pair.on_env(|pair, env| {
            let mut outs = ClientOuts { server: &mut pair.to_server, client: &mut pair.to_client };
            pair.engine.client(env, &mut pair.books, &mut pair.from_client, &mut outs)
        });
        assert!(matches!(result, Err(Violation::Frame(_))), "{bytes:?}: {result:?}");
    }
}

#[test]
fn what_the_server_was_not_asked_for_closes_the_backend() {
    let mut pair = Pair::primary();
    pair.from_server.put(&z('I'));
    let result = pair.engine.server(&pair.seen, &mut pair.books, &mut pair.from_server, &mut pair.to_client);
    assert!(matches!(result, Err(Violation::Desync(_))));
}
