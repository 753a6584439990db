//! Unnamed statements that the backend keeps.

use super::*;

/// The unit of the tests: an unnamed statement, bound and run.
fn unit() -> Vec<u8> {
    [p("", "SELECT 1"), b(""), e(), s()].concat()
}

fn answer() -> Vec<u8> {
    [message('2', b""), message('C', b"SELECT 1\0"), z('I')].concat()
}

fn told() -> Vec<u8> {
    [message('1', b""), answer()].concat()
}

fn error(code: &str, severity: &str) -> Vec<u8> {
    message('E', format!("S{severity}\0V{severity}\0C{code}\0Mno\0\0").as_bytes())
}

/// A unit that may begin with a stand-in, in pieces of `chunk`; what the server gets.
fn lease(pair: &mut Pair, chunk: usize) -> Vec<u8> {
    let read = Unit {
        len: unit().len(),
        verdict: Verdict::empty(),
        boundary: Boundary::Sync,
        extended: true,
        leaves_portal: false,
    };
    pair.engine.bind(false, &read, Vec::new());
    pair.engine.begin_journal();
    pair.engine.allow_stand_in();
    pair.client(&unit(), chunk)
}

/// A backend that keeps the statement, and a client that has run it twice.
fn kept() -> Pair {
    let mut pair = Pair::primary();
    assert_eq!(lease(&mut pair, 1000), unit(), "a text that comes once is not kept");
    assert_eq!(pair.server(&told(), 1000), told());
    let named = [p("pgweir_1", "SELECT 1"), b("pgweir_1"), e(), s()].concat();
    assert_eq!(lease(&mut pair, 1000), named);
    assert_eq!(pair.server(&told(), 1000), told());
    pair
}

#[test]
fn a_text_that_comes_again_is_parsed_no_more() {
    let mut pair = kept();
    for chunk in (1..60).chain([1000]) {
        let sent = lease(&mut pair, 1000);
        assert_eq!(sent, [b("pgweir_1"), e(), s()].concat());
        assert_eq!(pair.server(&answer(), chunk), told(), "{chunk}");
        assert!(pair.engine.is_free() && !pair.engine.has_stand_in());
        assert_eq!(pair.engine.statements().any(b"").unwrap().sql(), b"SELECT 1");
    }
}

#[test]
fn what_the_server_says_meanwhile_passes_first() {
    let mut pair = kept();
    lease(&mut pair, 1000);
    let notice = message('N', b"SNOTICE\0C00000\0Mx\0\0");
    assert_eq!(pair.server(&notice, 1000), notice);
    assert_eq!(pair.server(&answer(), 1000), told());
}

#[test]
fn a_failure_has_the_unit_sent_as_the_client_wrote_it() {
    let mut pair = kept();
    assert_eq!(lease(&mut pair, 1000), [b("pgweir_1"), e(), s()].concat());
    assert_eq!(pair.client(&q("SELECT 2"), 1000), b"", "nothing goes before it is known");
    assert_eq!(pair.step, Some(ClientStep::Hold));
    assert!(pair.engine.holds());
    assert_eq!(pair.server(&[error("42703", "ERROR"), z('I')].concat(), 1000), b"");
    pair.from_client.put_back(&unit());
    pair.engine.begin_anew(unit().len());
    assert_eq!(pair.poke(), [unit(), q("SELECT 2")].concat());
    let failed = [error("42703", "ERROR"), z('I')].concat();
    assert_eq!(pair.server(&failed, 1000), failed, "the server's own word is told");
    // The statement is made anew where it is asked for next.
    pair.server(&[message('C', b"SELECT 1\0"), z('I')].concat(), 1000);
    let again = [message('C', b"Spgweir_1\0"), p("pgweir_1", "SELECT 1"), b("pgweir_1"), e(), s()].concat();
    assert_eq!(lease(&mut pair, 1000), again);
}

#[test]
fn the_first_failure_is_told_in_the_servers_words_for_the_unnamed_statement() {
    let mut pair = Pair::primary();
    lease(&mut pair, 1000);
    pair.server(&told(), 1000);
    lease(&mut pair, 1000);
    // Its Parse is ours, and so is an error that names it.
    assert_eq!(pair.server(&[message('1', b""), error("08P01", "ERROR"), z('I')].concat(), 1000), b"");
    pair.from_client.put_back(&unit());
    pair.engine.begin_anew(unit().len());
    assert_eq!(pair.poke(), unit());
    let failed = [message('1', b""), error("08P01", "ERROR"), z('I')].concat();
    assert_eq!(pair.server(&failed, 1000), failed);
    assert!(pair.engine.is_free());
}

#[test]
fn who_is_cancelled_is_told_so() {
    for (code, severity) in [("57014", "ERROR"), ("57P01", "FATAL")] {
        let mut pair = kept();
        lease(&mut pair, 1000);
        let end = error(code, severity);
        assert_eq!(pair.server(&end, 1000), [message('1', b""), end].concat());
        assert!(!pair.engine.has_stand_in());
    }
}

#[test]
fn other_settings_need_another_parse() {
    let mut pair = kept();
    pair.engine.start_settings(Arc::new(Settings::new([("search_path".to_owned(), "a".to_owned())])));
    let sent = lease(&mut pair, 1000);
    assert!(sent.ends_with(&unit()), "settings of ours are on their way: {sent:?}");
    let ours = [message('T', b"\0\0"), message('C', b"SELECT 1\0"), z('I')].concat();
    assert_eq!(pair.server(&[ours, told()].concat(), 1000), told());
    let again = [message('C', b"Spgweir_1\0"), p("pgweir_1", "SELECT 1"), b("pgweir_1"), e(), s()].concat();
    assert_eq!(lease(&mut pair, 1000), again);
}

#[test]
fn what_is_not_alone_and_whole_is_sent_as_it_is() {
    let mut pair = kept();
    // Nobody said that it may be sent once more.
    assert_eq!(pair.client(&unit(), 1000), unit());
    pair.server(&told(), 1000);
    // It is described before it is bound: some of the answer could be on its way when it fails.
    let read = Unit {
        len: 0,
        verdict: Verdict::empty(),
        boundary: Boundary::Sync,
        extended: true,
        leaves_portal: false,
    };
    pair.engine.bind(false, &read, Vec::new());
    pair.engine.allow_stand_in();
    let described = [p("", "SELECT 1"), message('D', b"S\0"), b(""), e(), s()].concat();
    assert_eq!(pair.client(&described, 1000), described);
}

#[test]
fn a_second_parse_of_a_batch_is_the_servers() {
    let mut pair = kept();
    let read = Unit {
        len: 0,
        verdict: Verdict::empty(),
        boundary: Boundary::Sync,
        extended: true,
        leaves_portal: false,
    };
    pair.engine.bind(false, &read, Vec::new());
    pair.engine.allow_stand_in();
    let run = [p("", "SELECT 1"), b(""), e()].concat();
    let sent = pair.client(&[run.clone(), run.clone(), s()].concat(), 1000);
    assert_eq!(sent, [b("pgweir_1"), e(), run, s()].concat());
}
