//! Binds of statements that the backend does not hold, in a transaction that has failed.

use super::*;

fn bind(name: &str, values: &[&str]) -> Vec<u8> {
    let mut body = format!("\0{name}\0\0\0").into_bytes();
    body.extend(u16::try_from(values.len()).unwrap().to_be_bytes());
    for value in values {
        body.extend(u32::try_from(value.len()).unwrap().to_be_bytes());
        body.extend(value.as_bytes());
    }
    body.extend([0, 0]);
    message('B', &body)
}

/// A pair whose client knows `sql` as `q`, and whose transaction has failed.
fn failed(sql: &str) -> Pair {
    let mut pair = Pair::primary();
    let tail = format!("{sql}\0\0\0");
    let statement =
        pair.on_env(|_, env| env.cache.intern(tail.as_bytes(), 0, || (env.classify)(sql.as_bytes())));
    pair.engine.define_now(b"q", &statement);
    pair.client(&[q("BEGIN"), q("SELECT 1/0")].concat(), 1000);
    let error = message('E', b"SERROR\0C22012\0\0");
    pair.server(&[message('C', b"BEGIN\0"), z('T'), error, z('E')].concat(), 1000);
    pair
}

#[test]
fn it_is_refused_by_a_statement_of_as_many_parameters() {
    let mut pair = failed("SELECT $2::int, $1::text");
    let sent = pair.client(&[bind("q", &["1"]), e(), s()].concat(), 1000);
    let close = message('C', b"Spgweir_0\0");
    let empty = message('P', b"pgweir_0\0\0\0\x02\0\0\0\x19\0\0\0\x19");
    assert_eq!(sent, [close, empty, bind("pgweir_0", &["1"]), e(), s()].concat());
    let error = |name: &str| {
        let text = format!("SERROR\0C08P01\0Mprepared statement \"{name}\" requires 2\0\0");
        message('E', text.as_bytes())
    };
    let answer = [message('3', b""), message('1', b""), error("pgweir_0"), z('E')].concat();
    assert_eq!(pair.server(&answer, 1000), [error("q"), z('E')].concat());
    pair.client(&q("ROLLBACK"), 1000);
    pair.server(&[message('C', b"ROLLBACK\0"), z('I')].concat(), 1000);
    assert!(pair.engine.is_free());
    // Nothing of it is taken for the statement.
    let sent = pair.client(&[bind("q", &["1", "2"]), e(), s()].concat(), 1000);
    let parse = p("pgweir_1", "SELECT $2::int, $1::text");
    assert_eq!(sent, [parse, bind("pgweir_1", &["1", "2"]), e(), s()].concat());
}

#[test]
fn what_ends_the_transaction_is_made_and_run() {
    let mut pair = failed("ROLLBACK");
    let sent = pair.client(&[bind("q", &[]), e(), s()].concat(), 1000);
    assert_eq!(sent, [p("pgweir_1", "ROLLBACK"), bind("pgweir_1", &[]), e(), s()].concat());
}
