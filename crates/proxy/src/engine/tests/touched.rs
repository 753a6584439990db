//! Names that a batch makes ready, and what stands behind a batch that may fail.

use super::*;

/// A client that has parsed `SELECT 7` as `q`, somewhere else.
fn with_q() -> (Pair, Arc<Statement>) {
    let mut pair = Pair::primary();
    let tail = b"SELECT 7\0\0\0";
    let statement = pair.on_env(|_, env| env.cache.intern(tail, 0, || (env.classify)(b"SELECT 7")));
    pair.engine.define_now(b"q", &statement);
    (pair, statement)
}

fn close(name: &str) -> Vec<u8> {
    message('C', format!("S{name}\0").as_bytes())
}

fn run(sql: &str) -> Vec<u8> {
    [p("", sql), b(""), e(), s()].concat()
}

#[track_caller]
fn same(got: &[u8], wanted: &[Vec<u8>]) {
    assert_eq!(String::from_utf8_lossy(got), String::from_utf8_lossy(&wanted.concat()));
}

#[test]
fn a_name_is_made_ready_once_more_behind_a_batch_that_may_fail() {
    let (mut pair, _) = with_q();
    let sent = pair.client(&[e(), run("EXECUTE q"), run("EXPLAIN EXECUTE q")].concat(), 1000);
    let [one, two] = ["EXECUTE q", "EXPLAIN EXECUTE q"].map(run);
    let made = [close("q"), p("q", "SELECT 7")].concat();
    same(&sent, &[e(), made.clone(), one, made, two]);
    let error = message('E', b"SERROR\0C34000\0\0");
    same(&pair.server(&[error.clone(), z('I')].concat(), 1000), &[error, z('I')]);
    let [one, two, three] = ['1', '2', '3'].map(|tag| message(tag, b""));
    let tail = [one.clone(), two, message('C', b"EXPLAIN\0"), z('I')].concat();
    same(&pair.server(&[three, one, tail.clone()].concat(), 1000), &[tail]);
    assert!(pair.engine.is_free());
}

#[test]
fn a_name_is_made_ready_once_in_front_of_batches_that_are_answered() {
    let (mut pair, _) = with_q();
    let once = pair.client(&run("EXECUTE q"), 1000);
    same(&once, &[close("q"), p("q", "SELECT 7"), run("EXECUTE q")]);
    let [one, two, three] = ['1', '2', '3'].map(|tag| message(tag, b""));
    let answer = [one.clone(), two, message('C', b"SELECT 1\0"), z('I')].concat();
    same(&pair.server(&[three, one, answer.clone()].concat(), 1000), std::slice::from_ref(&answer));
    same(&pair.client(&run("EXECUTE q"), 1000), &[run("EXECUTE q")]);
    same(&pair.server(&answer, 1000), &[answer]);
}

#[test]
fn the_unnamed_statement_is_made_ready_once_more_behind_a_batch_that_fails() {
    let (mut pair, statement) = with_q();
    pair.engine.define_now(b"", &statement);
    let batch = [e(), b(""), e(), s()].concat();
    let sent = pair.client(&[batch.clone(), batch].concat(), 1000);
    same(&sent, &[e(), p("", "SELECT 7"), b(""), e(), s(), e()]);
    assert!(pair.step == Some(ClientStep::Hold) && pair.engine.holds());
    let error = message('E', b"SERROR\0C34000\0\0");
    pair.server(&[error, z('I')].concat(), 1000);
    assert!(!pair.engine.holds());
    same(&pair.poke(), &[p("", "SELECT 7"), b(""), e(), s()]);
}
