//! Messages that pgweir answers itself, between those of a backend.

use super::*;

const NODES: &str = "SHOW POOL_NODES";

fn flush() -> Vec<u8> {
    message('H', b"")
}

/// The shell answers the message at the front: nothing of it reaches the server.
fn answer(pair: &mut Pair, tag: u8, len: usize) {
    assert_eq!(pair.step, Some(ClientStep::Local));
    pair.from_client.consume(len);
    pair.engine.passed_locally(tag, len);
}

#[test]
fn a_query_of_ours_waits_for_what_stands_before_it() {
    let mut pair = Pair::primary();
    pair.client(&q("BEGIN"), 1000);
    let sent = pair.client(&q(NODES), 1000);
    assert_eq!((sent, pair.step), (flush(), Some(ClientStep::Hold)));
    pair.server(&[message('C', b"BEGIN\0"), z('T')].concat(), 1000);
    pair.poke();
    answer(&mut pair, b'Q', q(NODES).len());
    assert_eq!(pair.engine.status(), TxStatus::InTransaction);
    assert_eq!(pair.client(&q("COMMIT"), 1000), q("COMMIT"));
}

#[test]
fn messages_of_ours_keep_their_place_in_a_batch() {
    let mut pair = Pair::primary();
    let ours = p("", NODES);
    let sent = pair.client(&[p("", "SELECT 1"), b(""), e(), ours.clone(), s()].concat(), 1000);
    assert_eq!(sent, [p("", "SELECT 1"), b(""), e(), flush()].concat());
    assert_eq!(pair.step, Some(ClientStep::Hold));
    let first = [message('1', b""), message('2', b""), message('C', b"SELECT 1\0")].concat();
    assert_eq!(pair.server(&first, 1000), first);
    pair.poke();
    answer(&mut pair, b'P', ours.len());
    assert_eq!(pair.poke(), s());
    assert_eq!(pair.server(&z('I'), 1000), z('I'));
    assert!(pair.engine.is_free());
}

#[test]
fn what_the_server_ignores_is_not_answered_by_us() {
    let mut pair = Pair::primary();
    pair.client(&[p("", "SELECT x"), b(""), e(), p("", NODES), s()].concat(), 1000);
    pair.server(&message('E', b"SERROR\0C42703\0Mno column\0\0"), 1000);
    assert_eq!(pair.poke(), [p("", NODES), s()].concat(), "for the server to ignore");
    pair.server(&z('I'), 1000);
    assert!(pair.engine.is_free() && pair.engine.statements().is_empty());
}

#[test]
fn a_failure_of_ours_ends_the_batch_and_not_the_transaction() {
    let mut pair = Pair::primary();
    pair.client(&q("BEGIN"), 1000);
    pair.server(&[message('C', b"BEGIN\0"), z('T')].concat(), 1000);
    pair.client(&[p("", NODES), p("", "INSERT INTO t VALUES (1)"), b(""), e(), s()].concat(), 1000);
    answer(&mut pair, b'P', p("", NODES).len());
    pair.engine.failed_locally();
    assert_eq!(pair.poke(), s());
    pair.server(&z('T'), 1000);
    assert_eq!(pair.client(&q("SELECT 1"), 1000), q("SELECT 1"));
}

#[test]
fn a_batch_that_failed_here_keeps_its_backend_to_its_end() {
    let mut pair = Pair::primary();
    pair.client(&p("", NODES), 1000);
    answer(&mut pair, b'P', p("", NODES).len());
    pair.engine.failed_locally();
    assert!(!pair.engine.is_free());
    assert_eq!(pair.client(&[e(), s()].concat(), 1000), s());
    pair.server(&z('I'), 1000);
    assert!(pair.engine.is_free());
}

#[test]
fn portals_of_ours_live_as_long_as_the_servers() {
    let mut pair = Pair::primary();
    pair.engine.bound_locally(b"", true);
    pair.client(&[e(), s()].concat(), 1000);
    answer(&mut pair, b'E', e().len());
    pair.poke();
    pair.server(&z('I'), 1000);
    assert!(!pair.engine.has_local_portals());
    assert_eq!(pair.client(&[e(), s()].concat(), 1000), [e(), s()].concat());
    // Bound anew to something of the server's.
    let mut pair = Pair::primary();
    pair.engine.bound_locally(b"", true);
    let batch = [p("", "SELECT 1"), b(""), e(), s()].concat();
    assert_eq!(pair.client(&batch, 1000), batch);
}
