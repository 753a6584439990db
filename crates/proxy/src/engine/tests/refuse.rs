//! What a standby would do wrongly, inside of a transaction that is bound to it.

use super::*;

const LOCK: &str = "SELECT pg_advisory_lock(1)";

fn division_by_zero() -> Vec<u8> {
    message('E', b"SERROR\0VERROR\0C22012\0Mdivision by zero\0\0")
}

fn in_read_only_transaction() -> Pair {
    let mut pair = Pair::new(true, Verdict::empty());
    let begin = q("BEGIN READ ONLY");
    let verdict = router::classify(b"BEGIN READ ONLY", &ParseOptions::default());
    let unit =
        Unit { len: begin.len(), verdict, boundary: Boundary::Query, extended: false, leaves_portal: false };
    pair.engine.bind(true, &unit, Vec::new());
    assert_eq!(pair.client(&begin, 1000), begin);
    pair.server(&[message('C', b"BEGIN\0"), z('T')].concat(), 1000);
    pair
}

fn says_what_to_do(told: &[u8]) -> bool {
    let text = String::from_utf8_lossy(told);
    text.contains("C25006") && text.contains("READ ONLY transaction") && !text.contains("division")
}

#[test]
fn a_query_fails_in_its_place() {
    let mut pair = in_read_only_transaction();
    assert_eq!(
        pair.client(&[q(LOCK), q("SELECT 1")].concat(), 1000),
        [q("SELECT 1/0"), q("SELECT 1")].concat()
    );
    let told = pair.server(&[division_by_zero(), z('E')].concat(), 1000);
    assert!(says_what_to_do(&told) && told.ends_with(&z('E')), "{told:?}");
    assert_eq!(pair.engine.pin(), None);
    let next = [message('E', b"SERROR\0C25P02\0Maborted\0\0"), z('E')].concat();
    assert_eq!(pair.server(&next, 1000), next, "the server's own words");
}

#[test]
fn a_bind_fails_in_its_place_in_every_chunking() {
    let values =
        message('B', &[&b"\0lock\0"[..], &[0, 0, 0, 1, 0, 0, 0, 100], &[b'x'; 100], &[0, 0]].concat());
    for chunk in 1..300 {
        let mut pair = in_read_only_transaction();
        pair.client(&[p("lock", LOCK), s()].concat(), chunk);
        pair.server(&[message('1', b""), z('T')].concat(), 1000);
        let sent = pair.client(&[values.clone(), e(), s()].concat(), chunk);
        let bound = message('B', b"\0pgweir_0\0\0\0\0\0\0\0");
        let stand_in = [message('C', b"Spgweir_0\0"), p("pgweir_0", "SELECT 1/0")].concat();
        assert_eq!(sent, [stand_in, bound, e(), s()].concat(), "{chunk}");
        let answer = [message('3', b""), message('1', b""), division_by_zero(), z('E')].concat();
        let told = pair.server(&answer, 1000);
        assert!(says_what_to_do(&told) && told.ends_with(&z('E')), "{told:?}");
        assert_eq!(pair.client(&q("ROLLBACK"), 1000), q("ROLLBACK"));
        pair.server(&[message('C', b"ROLLBACK\0"), z('I')].concat(), 1000);
        assert!(pair.engine.is_free());
        assert!(pair.engine.statements().get(b"lock").is_some());
    }
}

#[test]
fn in_a_failed_transaction_the_server_refuses() {
    let mut pair = in_read_only_transaction();
    pair.client(&q(LOCK), 1000);
    let aborted = [message('E', b"SERROR\0C25P02\0Maborted\0\0"), z('E')].concat();
    assert_eq!(pair.server(&aborted, 1000), aborted);
}

#[test]
fn the_primary_does_it() {
    let mut pair = Pair::primary();
    assert_eq!(pair.client(&q(LOCK), 1000), q(LOCK));
}
