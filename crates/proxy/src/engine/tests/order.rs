//! What must not overtake what: replies of ours, batches that move, statements that empty the books.

use super::*;

#[test]
fn a_batch_that_failed_is_not_carried_out_elsewhere() {
    let write = [p("w", "INSERT INTO t VALUES (1)"), b("w"), e(), s()].concat();
    let error = message('E', b"SERROR\0C42P01\0Mno such table\0\0");
    // The client knows of the error: the server ignores what follows.
    let mut pair = Pair::new(true, Verdict::empty());
    pair.client(&[p("", "SELECT * FROM nowhere"), message('H', b"")].concat(), 1000);
    pair.server(&error, 1000);
    pair.client(&write, 1000);
    assert!(pair.from_client.is_empty() && !pair.engine.take_failed_move());
    assert_eq!(pair.server(&z('I'), 1000), z('I'));
    assert!(pair.engine.is_free() && pair.engine.statements().get(b"w").is_none());
    // It does not know yet.
    let mut pair = Pair::new(true, Verdict::empty());
    pair.client(&[p("", "SELECT * FROM nowhere"), message('H', b"")].concat(), 1000);
    assert_eq!(pair.client(&write, 1000), s());
    assert_eq!(pair.server(&[error.clone(), z('I')].concat(), 1000), error);
    assert!(pair.engine.is_free() && pair.engine.take_failed_move() && !pair.engine.take_failed_move());
    assert_eq!(pair.from_client.filled(), write);
}

#[test]
fn a_read_only_transaction_goes_on_after_a_flush() {
    let begin = q("BEGIN READ ONLY");
    let first = [p("", "SELECT 1"), message('D', b"S\0"), message('H', b"")].concat();
    let rest = [b(""), e(), s()].concat();
    let unit = Unit {
        len: first.len(),
        verdict: Verdict::empty(),
        boundary: Boundary::Flush,
        extended: true,
        leaves_portal: false,
    };
    let mut pair = Pair::new(true, Verdict::empty());
    pair.engine.bind(true, &unit, vec![Kept::Simple((*b"BEGIN READ ONLY").into())]);
    assert_eq!(pair.client(&first, 1000), [begin, first].concat());
    let answer = [message('C', b"BEGIN\0"), z('T'), message('1', b""), message('t', b"\0\0")];
    pair.server(&[answer.concat(), message('T', b"\0\0")].concat(), 1000);
    assert_eq!(pair.client(&rest, 1000), rest, "{:?}", pair.step);
}

#[test]
fn what_stands_behind_discard_all_waits_for_it() {
    let mut pair = Pair::primary();
    assert_eq!(pair.client(&[q("DISCARD ALL"), q("LISTEN x")].concat(), 1000), q("DISCARD ALL"));
    assert_eq!(pair.step, Some(ClientStep::Hold));
    pair.server(&[message('C', b"DISCARD ALL\0"), z('I')].concat(), 1000);
    assert!(!pair.engine.is_waiting());
    assert_eq!(pair.client(b"X", 1000), q("LISTEN x"));
    pair.server(&[message('C', b"LISTEN\0"), z('I')].concat(), 1000);
    assert!(pair.engine.pin().is_some(), "it emptied what was before it only");
}

#[test]
fn statements_behind_deallocate_all_stay() {
    let mut pair = Pair::primary();
    let all = [p("d", "DEALLOCATE ALL"), b("d"), e(), s(), p("a", "SELECT 1"), s()].concat();
    assert_eq!(pair.client(&all, 1000), [p("pgweir_1", "DEALLOCATE ALL"), b("pgweir_1"), e(), s()].concat());
    let answer = [message('1', b""), message('2', b""), message('C', b"DEALLOCATE ALL\0"), z('I')];
    pair.server(&answer.concat(), 1000);
    assert_eq!(pair.client(b"X", 1000), [p("pgweir_2", "SELECT 1"), s()].concat());
    assert!(pair.engine.statements().get(b"a").is_some());
}

#[test]
fn a_sync_is_never_held_back_by_a_reset() {
    let mut pair = Pair::primary();
    let (parse, rest) = (p("", "nonsense"), [q("DEALLOCATE ALL"), s()].concat());
    // The Query waits for what it stands behind, which the server is asked for.
    let sent = pair.client(&[parse.clone(), rest.clone()].concat(), 1000);
    assert_eq!(sent, [parse, message('H', b"")].concat());
    // The server ignores all of it up to the Sync.
    pair.server(&message('E', b"SERROR\0C42601\0\0"), 1000);
    assert_eq!(pair.poke(), rest);
    assert!(pair.from_client.is_empty());
    pair.server(&z('I'), 1000);
    assert!(pair.engine.is_free());
}

#[test]
fn a_function_call_ends_the_batch() {
    let mut pair = Pair::primary();
    // `lo_creat`; it waits for the batch, behind whose error it would be ignored.
    let call = message('F', b"\0\0\x03\xbd\0\0\0\0\0\0");
    let flush = message('H', b"");
    assert!(pair.client(&[p("", "SELECT 1"), call.clone()].concat(), 1000).ends_with(&flush));
    pair.server(&message('1', b""), 1000);
    assert_eq!(pair.poke(), call);
    pair.server(&[message('V', b"\xff\xff\xff\xff"), z('I')].concat(), 1000);
    assert!(pair.engine.is_free());
    pair.engine.start_settings(Arc::new(Settings::new([("TimeZone".to_owned(), "UTC".to_owned())])));
    assert!(pair.client(&q("SELECT 1"), 1000).len() > q("SELECT 1").len(), "settings go in front again");
}

#[test]
fn a_close_of_ours_that_the_server_ignored_has_closed_nothing() {
    let mut pair = Pair::primary();
    let (done, error) = (message('1', b""), message('E', b"SERROR\0C42601\0\0"));
    for name in ["a", "b"] {
        pair.client(&[p(name, &format!("SELECT '{name}'")), s()].concat(), 1000);
        pair.server(&[done.clone(), z('I')].concat(), 1000);
    }
    // The backend holds two and no more: the third drops the first, but the batch fails before that.
    let sent = pair.client(&[p("", "nonsense"), p("c", "SELECT 'c'"), s()].concat(), 1000);
    assert!(sent.ends_with(&[message('C', b"Spgweir_1\0"), p("pgweir_4", "SELECT 'c'"), s()].concat()));
    pair.server(&[error, z('I')].concat(), 1000);
    // Parsed again it would be refused: 42P05.
    assert_eq!(pair.client(&[b("a"), e(), s()].concat(), 1000), [b("pgweir_1"), e(), s()].concat());
}

#[test]
fn deallocate_of_a_parsed_statement_needs_nothing_that_can_fail() {
    let mut pair = Pair::primary();
    pair.client(&[p("a", "SELECT * FROM gone"), s()].concat(), 1000);
    pair.server(&[message('1', b""), z('I')].concat(), 1000);
    pair.books = Books::default();
    let stand_in = [message('C', b"Sa\0"), p("a", ""), q("DEALLOCATE a")].concat();
    assert_eq!(pair.client(&q("DEALLOCATE a"), 1000), stand_in);
    let answer = [message('C', b"DEALLOCATE\0"), z('I')].concat();
    let ours = [message('3', b""), message('1', b"")].concat();
    assert_eq!(pair.server(&[ours, answer.clone()].concat(), 1000), answer);
    assert!(pair.engine.is_free() && pair.engine.statements().is_empty());
}

#[test]
fn a_client_is_not_told_of_what_a_reset_gives_it_for_a_moment() {
    let report = |value: &str| message('S', format!("DateStyle\0{value}\0").as_bytes());
    let mut pair = Pair::primary();
    pair.engine.start_settings(Arc::new(Settings::new([("DateStyle".to_owned(), "German".to_owned())])));
    let set = [message('C', b"SELECT 1\0"), report("German, DMY"), z('I')].concat();
    let done = [message('C', b"SELECT 1\0"), z('I')].concat();
    pair.client(&q("SELECT 1"), 1000);
    assert_eq!(pair.server(&[set.clone(), done.clone()].concat(), 1000), done, "as it was told at its login");
    let again = q("SET \"datestyle\"=E'German'");
    for (reset, tag) in [("DISCARD ALL", "DISCARD ALL"), ("RESET ALL", "RESET"), ("RESET datestyle", "RESET")]
    {
        assert_eq!(pair.client(&q(reset), 1000), [q(reset), again.clone()].concat());
        let completed = message('C', format!("{tag}\0").as_bytes());
        let answer = [completed.clone(), report("ISO, MDY"), z('I'), set.clone()].concat();
        assert_eq!(pair.server(&answer, 1000), [completed, z('I')].concat(), "{reset}");
        assert_eq!(pair.client(&q("SELECT 1"), 1000), q("SELECT 1"));
        pair.server(&done, 1000);
    }
}

#[test]
fn what_a_string_resets_is_given_back_in_it() {
    let mut pair = Pair::primary();
    pair.engine.start_settings(Arc::new(Settings::new([("DateStyle".to_owned(), "German".to_owned())])));
    let completed = |tag: &str| message('C', format!("{tag}\0").as_bytes());
    let at = |position: usize| message('E', format!("SERROR\0C42601\0P{position}\0\0").as_bytes());
    pair.client(&q("SELECT 1"), 1000);
    pair.server(&[completed("SELECT 1"), z('I'), completed("SELECT 1"), z('I')].concat(), 1000);
    let (string, next) = ("RESET ALL; SELECT oops", q("SELECT 2"));
    let sent = q("RESET ALL;\n;SET \"datestyle\"=E'German'; SELECT oops");
    assert_eq!(pair.client(&[q(string), next.clone()].concat(), 1000), sent, "what follows waits");
    let ours = "\n;SET \"datestyle\"=E'German';".len();
    let answer = |position| [completed("RESET"), at(position), z('I')].concat();
    let seen = pair.server(&[completed("RESET"), completed("SET"), at(19 + ours), z('I')].concat(), 1000);
    assert_eq!(seen, answer(19));
    assert_eq!(pair.poke(), next);
}

/// Not every list can be given back by SET: what the server answers to a query of ours is not the client's.
#[test]
fn rows_of_what_is_given_back_in_a_string_are_left_out() {
    let mut pair = Pair::primary();
    pair.engine.start_settings(Arc::new(Settings::new([("search_path".to_owned(), "a,b".to_owned())])));
    let row = |value: &[u8]| {
        [message('T', b"\0\0"), message('D', &[b"\0\x01", value].concat()), message('C', b"SELECT 1\0")]
            .concat()
    };
    let (reset, ready) = (message('C', b"RESET\0"), z('I'));
    pair.client(&q("SELECT 1"), 1000);
    pair.server(&[row(b"ours"), ready.clone(), row(b"theirs"), ready.clone()].concat(), 1000);
    let sent = pair.client(&q("RESET ALL; SELECT 1"), 1000);
    assert_eq!(sent, q("RESET ALL;\n;SELECT pg_catalog.set_config('search_path',E'a,b',false); SELECT 1"));
    let seen = pair.server(&[reset.clone(), row(b"ours"), row(b"theirs"), ready.clone()].concat(), 1000);
    assert_eq!(
        String::from_utf8_lossy(&seen),
        String::from_utf8_lossy(&[reset, row(b"theirs"), ready].concat())
    );
}

/// A string of nothing but resets takes no memory that is many times its own.
#[test]
fn a_string_is_not_filled_without_end() {
    let mut pair = Pair::primary();
    pair.engine.start_settings(Arc::new(Settings::new([("app.x".to_owned(), "x".repeat(1000))])));
    let row = [message('T', b"\0\0"), message('D', b"\0\x01"), message('C', b"SELECT 1\0"), z('I')].concat();
    pair.client(&q("SELECT 1"), 1000);
    assert_eq!(
        pair.server(&[row.clone(), row.clone()].concat(), 1000),
        row,
        "the first is of what it begins with"
    );
    for (resets, is_filled) in [(60, true), (70, false)] {
        let text = "RESET ALL;".repeat(resets);
        let sent = pair.client(&q(&text), 1000);
        assert_eq!(sent.len() > q(&text).len(), is_filled, "{resets}");
        let done = message('C', b"RESET\0").repeat(resets);
        let ours = message('C', b"SET\0");
        let answer = match is_filled {
            true => [message('C', b"RESET\0"), ours].concat().repeat(resets),
            false => done.clone(),
        };
        let seen = pair.server(&[answer, z('I')].concat(), 10_000);
        assert_eq!(seen, [done, z('I')].concat());
    }
}

#[test]
fn a_name_waits_for_the_batch_that_defines_it() {
    let mut pair = Pair::primary();
    let first = [p("a", "SELECT nothing"), s()].concat();
    let second = [p("", "SELECT 1"), b(""), e(), p("a", "SELECT 2"), s()].concat();
    // A statement of another text must not be made under the name of the one that fails.
    let sent = pair.client(&[first, second].concat(), 1000);
    let wanted = [p("pgweir_1", "SELECT nothing"), s(), p("", "SELECT 1"), b(""), e()].concat();
    assert_eq!(String::from_utf8_lossy(&sent), String::from_utf8_lossy(&wanted));
    assert!(pair.step == Some(ClientStep::Hold) && pair.engine.holds());
    pair.server(&[message('E', b"SERROR\0C42703\0\0"), z('I')].concat(), 1000);
    // The rest of its own batch is not yet asked for: it must not wait for that.
    assert!(pair.engine.is_waiting() && !pair.engine.holds());
    assert_eq!(pair.poke(), [p("pgweir_3", "SELECT 2"), s()].concat());
}

#[test]
fn a_name_does_not_wait_for_its_own_batch() {
    let mut pair = Pair::primary();
    pair.client(&[p("a", "SELECT 1"), b("a"), e(), s(), b(""), b("other"), s()].concat(), 1000);
    assert!(pair.from_client.is_empty(), "{:?}", pair.step);
}

#[test]
fn deallocate_by_bind_leaves_the_statement_to_others() {
    let mut pair = Pair::primary();
    let all = [p("a", "SELECT 1"), p("", "DEALLOCATE a"), b(""), e(), s()].concat();
    let close = message('C', b"Sa\0");
    let wanted =
        [p("pgweir_1", "SELECT 1"), p("", "DEALLOCATE a"), close, p("a", ""), b(""), e(), s()].concat();
    assert_eq!(String::from_utf8_lossy(&pair.client(&all, 1000)), String::from_utf8_lossy(&wanted));
    let [one, two, three] = [message('1', b""), message('2', b""), message('3', b"")];
    let tail = [message('C', b"DEALLOCATE\0"), z('I')].concat();
    let answer = [one.clone(), one.clone(), three, one.clone(), two.clone(), tail.clone()].concat();
    assert_eq!(pair.server(&answer, 1000), [one.clone(), one, two, tail].concat());
    assert!(pair.engine.is_free() && pair.engine.statements().get(b"a").is_none());
}

#[test]
fn the_unnamed_statement_of_another_client_is_not_bound() {
    let mut pair = Pair::primary();
    let close = message('C', b"S\0");
    let sent = pair.client(&[b(""), e(), s(), message('D', b"S\0"), s()].concat(), 1000);
    assert_eq!(sent, [close.clone(), b(""), e(), s(), close, message('D', b"S\0"), s()].concat());
    let error = message('E', b"SERROR\0C26000\0\0");
    let answer = [message('3', b""), error.clone(), z('I')].concat();
    assert_eq!(pair.server(&answer.repeat(2), 1000), [error, z('I')].concat().repeat(2));
    assert!(pair.engine.is_free());
}

#[test]
fn a_standby_that_refuses_listen_does_not_keep_the_session() {
    let mut pair = Pair::new(true, Verdict::empty());
    let listen = [p("", "LISTEN x"), b(""), e(), s()].concat();
    let unit = Unit {
        len: listen.len(),
        verdict: Verdict::empty(),
        boundary: Boundary::Sync,
        extended: true,
        leaves_portal: false,
    };
    pair.engine.bind(true, &unit, vec![Kept::Simple((*b"BEGIN READ ONLY").into())]);
    let [one, two] = [message('1', b""), message('2', b"")];
    pair.client(&listen, 1000);
    let begun = [message('C', b"BEGIN\0"), z('T')].concat();
    pair.server(&[begun, one, two, message('E', b"SERROR\0C25006\0\0"), z('E')].concat(), 1000);
    pair.client(&q("ROLLBACK"), 1000);
    pair.server(&[message('C', b"ROLLBACK\0"), z('I')].concat(), 1000);
    assert!(pair.engine.pin().is_none() && pair.engine.is_free(), "{:?}", pair.step);
}

#[test]
fn what_was_sent_by_the_extended_protocol_is_sent_on_by_it() {
    let mut pair = Pair::primary();
    let run = [p("", "SELECT 1"), b(""), e(), s()].concat();
    let unit = Unit {
        len: run.len(),
        verdict: Verdict::empty(),
        boundary: Boundary::Sync,
        extended: true,
        leaves_portal: false,
    };
    pair.engine.bind(false, &unit, vec![Kept::Extended((*b"BEGIN").into())]);
    assert_eq!(pair.client(&run, 1000), [p("", "BEGIN"), b(""), e(), s(), run.clone()].concat());
    assert!(pair.engine.sets_up(), "a cancel would hit what is ours");
    let [one, two] = [message('1', b""), message('2', b"")];
    let begun = [one.clone(), two.clone(), message('C', b"BEGIN\0"), z('T')].concat();
    let answer = [one, two, message('C', b"SELECT 1\0"), z('T')].concat();
    assert_eq!(pair.server(&begun, 1000), b"");
    assert!(!pair.engine.sets_up());
    assert_eq!(pair.server(&answer, 1000), answer);
    assert!(pair.engine.is_settled() && !pair.engine.is_free());
}

#[test]
fn a_transaction_that_cannot_begin_is_not_gone_on_with() {
    let mut pair = Pair::primary();
    let run = [b(""), e(), s()].concat();
    let unit = Unit {
        len: run.len(),
        verdict: Verdict::empty(),
        boundary: Boundary::Sync,
        extended: true,
        leaves_portal: false,
    };
    pair.engine.bind(false, &unit, vec![Kept::Extended((*b"BEGIN").into())]);
    pair.client(&run, 1000);
    let error = message('E', b"SERROR\0C57014\0\0");
    let said = [message('1', b""), message('2', b""), error, z('I')].concat();
    assert_eq!(pair.server(&said, 1000), b"");
    assert!(pair.refused);
}

#[test]
fn a_flush_with_a_body_fails_as_the_server_says() {
    let mut pair = Pair::primary();
    let sent = [message('H', b"x"), p("", "SELECT 1"), s()].concat();
    assert_eq!(pair.client(&sent, 3), sent);
    let answer = [message('E', b"SERROR\0C08P01\0\0"), z('I')].concat();
    assert_eq!(pair.server(&answer, 1000), answer);
    assert!(pair.engine.is_free());
}

#[test]
fn a_query_inside_of_a_batch_waits_for_the_batch() {
    let mut pair = Pair::primary();
    let batch = [p("", "SELECT 1"), p("x", "SELECT 1/0"), b("x"), e()].concat();
    pair.client(&batch, 1000);
    // The server is asked for the answers.
    assert_eq!(pair.client(&q("EXECUTE x"), 1000), message('H', b""));
    assert_eq!(pair.step, Some(ClientStep::Hold));
    let said = [message('1', b""), message('1', b""), message('E', b"SERROR\0C22012\0\0")].concat();
    pair.server(&said, 1000);
    // It ignores the Query, and the unnamed statement stays.
    assert_eq!(pair.poke(), q("EXECUTE x"));
    assert_eq!(pair.client(&s(), 1000), s());
    assert_eq!(pair.server(&z('I'), 1000), z('I'));
    assert!(pair.engine.is_free());
    let again = [b(""), e(), s()].concat();
    assert_eq!(pair.client(&again, 1000), again);
}
