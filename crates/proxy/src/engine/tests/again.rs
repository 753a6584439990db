//! A unit whose backend is lost before it has answered is asked again of another one.

use super::*;

/// `unit` to a backend that says `answer` and is lost; what another one is sent for the same unit.
fn asked_again(pair: &mut Pair, unit: &[u8], answer: &[u8]) -> Vec<u8> {
    pair.engine.begin_journal();
    pair.client(unit, 1000);
    pair.server(answer, 1000);
    pair.engine.roll_back();
    pair.books = Books::default();
    let read = Unit {
        len: unit.len(),
        verdict: Verdict::empty(),
        boundary: Boundary::Open,
        extended: true,
        leaves_portal: false,
    };
    pair.engine.bind(true, &read, Vec::new());
    pair.client(unit, 1000)
}

#[test]
fn a_parse_is_asked_again_whether_it_was_answered_or_not() {
    for answered in [vec![], vec![message('1', b"")], vec![message('1', b""), message('2', b"")]] {
        for name in ["", "a"] {
            let mut pair = Pair::primary();
            let unit = [p(name, "SELECT 1"), b(name), e(), s()].concat();
            let again = asked_again(&mut pair, &unit, &answered.concat());
            let theirs = if name.is_empty() { "" } else { "pgweir_1" };
            assert_eq!(again, [p(theirs, "SELECT 1"), b(theirs), e(), s()].concat());
            let rest = [message('1', b""), message('2', b""), message('C', b"SELECT 1\0"), z('I')].concat();
            assert_eq!(pair.server(&rest, 1000), rest);
            assert!(pair.engine.is_free());
            assert_eq!(pair.engine.statements().len(), 1);
        }
    }
}

#[test]
fn a_close_is_taken_back_and_done_again() {
    let mut pair = Pair::primary();
    pair.client(&[p("a", "SELECT 1"), s()].concat(), 1000);
    pair.server(&[message('1', b""), z('I')].concat(), 1000);
    let unit = [b("a"), e(), message('C', b"Sa\0"), p("a", "SELECT 2"), s()].concat();
    let sent = asked_again(&mut pair, &unit, &message('2', b""));
    assert!(sent.starts_with(&[p("pgweir_1", "SELECT 1"), b("pgweir_1"), e()].concat()), "{sent:?}");
    assert_eq!(pair.engine.statements().get(b"a").unwrap().sql(), b"SELECT 2");
}

#[test]
fn only_a_server_that_goes_down_says_goodbye() {
    for (tag, severity, code, shut_down) in [
        ('E', "FATAL", "57P01", true),
        ('E', "FATAL", "57P02", true),
        ('E', "FATAL", "40001", false),
        ('E', "ERROR", "57014", false),
        ('N', "WARNING", "57P01", true),
        ('N', "WARNING", "57P02", true),
        ('N', "WARNING", "01000", false),
        ('N', "NOTICE", "57P01", false),
    ] {
        let mut pair = Pair::primary();
        pair.client(&q("SELECT 1"), 1000);
        pair.server(&message(tag, format!("S{severity}\0C{code}\0Mgone\0\0").as_bytes()), 1000);
        assert_eq!(pair.engine.was_shut_down(), shut_down, "{severity} {code}");
    }
}
