//! The mini server against scripts of messages; replies are read back and shown in a short form.

use bytes::BytesMut;
use proptest::prelude::*;

use super::*;
use crate::console::Pending;
use crate::error::ErrorView;
use crate::table::{Cell, Column};
use crate::write::Target;

/// Knows `show N` (N rows of an integer and a text), `do`, `empty`; everything else is an error.
struct Shop;

fn columns() -> Vec<Column> {
    vec![Column::int4("id"), Column::text("name")]
}

fn rows(sql: &str) -> Option<i64> {
    sql.strip_prefix("show ")?.parse().ok()
}

fn answer_to(sql: &str) -> Result<Answer, PgError> {
    if let Some(count) = rows(sql) {
        let rows = (0..count).map(|id| vec![Cell::Int(id), Cell::from("x")]).collect();
        return Ok(Answer::Table(Table { columns: columns(), rows, tag: "SHOW".into() }));
    }
    match sql {
        "do" => Ok(Answer::Done { tag: "DO".into(), notices: vec![PgError::notice("done")] }),
        "empty" => Ok(Answer::Empty),
        "lie" => Ok(Answer::Table(Table::show(vec![Column::text("other")]))),
        "broken" => Ok(Answer::Table(Table { rows: vec![vec![Cell::Null]], ..Table::show(columns()) })),
        _ => Err(PgError::error(SqlState::SYNTAX_ERROR, "what?")),
    }
}

impl Console for Shop {
    fn columns(&self, _: &Caller, sql: &str) -> Result<Option<Vec<Column>>, PgError> {
        match sql {
            "do" | "empty" | "late" => Ok(None),
            "lie" | "broken" => Ok(Some(columns())),
            _ if rows(sql).is_some() => Ok(Some(columns())),
            _ => Err(PgError::error(SqlState::SYNTAX_ERROR, "what?")),
        }
    }

    fn run<'a>(&'a self, _: &'a Caller, sql: &'a str) -> Pending<'a> {
        Box::pin(async move { answer_to(sql) })
    }
}

struct Session {
    server: LocalServer,
    status: Status,
    out: BytesMut,
    closed: bool,
}

impl Session {
    fn new(status: Status) -> Self {
        Self { server: LocalServer::new(), status, out: BytesMut::new(), closed: false }
    }

    /// Feeds the messages in `wire`, running what is to be run, and shows the replies.
    fn send(&mut self, write: impl FnOnce(&mut BytesMut)) -> String {
        let mut wire = BytesMut::new();
        write(&mut wire);
        let caller = Caller {
            application_name: String::new(),
            user: "joe".into(),
            database: "pgweir".into(),
            admin: true,
            stats: true,
            in_admin_database: true,
            session: 1,
        };
        let context = Context { console: &Shop, caller: &caller, status: self.status };
        for (tag, body) in messages(&wire) {
            let mut next = self.server.feed(&context, tag, body, &mut self.out);
            while let Next::Run(sql) = next {
                assert!(self.server.is_running());
                next = self.server.answer(&context, answer_to(&sql), &mut self.out);
            }
            self.closed |= next == Next::Close;
        }
        let out = self.out.split();
        messages(&out).map(|(tag, body)| shown(tag, body)).collect::<Vec<_>>().join(" ")
    }

    fn query(&mut self, sql: &str) -> String {
        self.send(|out| write::query(out, sql).unwrap())
    }
}

fn messages(bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (&tag, after) = rest.split_first()?;
        let len = u32::from_be_bytes(after[..4].try_into().unwrap()) as usize;
        rest = &after[len..];
        Some((tag, &after[4..len]))
    })
}

/// The tag, and what matters of the body.
fn shown(tag: u8, body: &[u8]) -> String {
    let text = match tag {
        b'E' => ErrorView::parse(body).code().unwrap().to_string(),
        b'N' => ErrorView::parse(body).message_lossy(),
        b'C' => String::from_utf8_lossy(body.strip_suffix(b"\0").unwrap()).into_owned(),
        b'Z' => (body[0] as char).to_string(),
        _ => return (tag as char).to_string(),
    };
    format!("{}({text})", tag as char)
}

fn prepare(out: &mut BytesMut, sql: &str) {
    write::parse(out, "", sql, &[]).unwrap();
    write::bind(out, "", "", &[]).unwrap();
}

#[test]
fn simple_queries() {
    let mut session = Session::new(Status::Own);
    assert_eq!(session.query("show 2"), "T D D C(SHOW) Z(I)");
    assert_eq!(session.query("do; show 0; empty;"), "N(done) C(DO) T C(SHOW) I Z(I)");
    assert_eq!(session.query(" -- nothing\n;"), "I Z(I)");
    assert_eq!(session.query("show 1; nonsense; show 1"), "T D C(SHOW) E(42601) Z(I)");
    assert_eq!(session.query("broken"), "E(XX000) Z(I)", "no half of a result");
    let not_utf8 = session.send(|out| write::query(out, b"show \xff").unwrap());
    assert_eq!(not_utf8, "E(22021) Z(I)");
    assert!(!session.closed);
}

#[test]
fn transactions_of_its_own() {
    let mut session = Session::new(Status::Own);
    assert_eq!(session.query("begin"), "C(BEGIN) Z(T)");
    assert_eq!(session.query("BEGIN"), "N(there is already a transaction in progress) C(BEGIN) Z(T)");
    assert_eq!(session.query("show 1"), "T D C(SHOW) Z(T)");
    assert_eq!(session.query("discard all"), "E(25001) Z(E)");
    assert_eq!(session.query("show 1"), "E(25P02) Z(E)");
    let extended = session.send(|out| {
        prepare(out, "show 1");
        write::sync(out);
    });
    assert_eq!(extended, "E(25P02) Z(E)");
    assert_eq!(session.query("commit"), "C(ROLLBACK) Z(I)");
    assert_eq!(session.query("rollback"), "N(there is no transaction in progress) C(ROLLBACK) Z(I)");
    assert_eq!(session.query("begin; show 1; commit"), "C(BEGIN) T D C(SHOW) C(COMMIT) Z(I)");
    let extended = session.send(|out| {
        prepare(out, "begin");
        write::execute(out, "", 0).unwrap();
        write::sync(out);
        prepare(out, "commit");
        write::describe(out, Target::Portal, "").unwrap();
        write::execute(out, "", 0).unwrap();
        write::sync(out);
    });
    assert_eq!(extended, "1 2 C(BEGIN) Z(T) 1 2 n C(COMMIT) Z(I)");
}

#[test]
fn in_an_ordinary_session_the_status_is_the_sessions() {
    let mut session = Session::new(Status::Session(b'T'));
    assert_eq!(session.query("show 1"), "T D C(SHOW) Z(T)");
    assert_eq!(session.query("nonsense"), "E(42601) Z(T)");
    assert_eq!(session.query("begin"), "E(42601) Z(T)", "transactions are not its business there");
    session.status = Status::Session(b'I');
    assert_eq!(session.query("show 1"), "T D C(SHOW) Z(I)");
}

#[test]
fn the_extended_protocol() {
    let mut session = Session::new(Status::Own);
    let replies = session.send(|out| {
        write::parse(out, "s", "show 3;", &[]).unwrap();
        write::describe(out, Target::Statement, "s").unwrap();
        write::bind(out, "p", "s", &[]).unwrap();
        write::describe(out, Target::Portal, "p").unwrap();
        write::execute(out, "p", 2).unwrap();
        write::execute(out, "p", 2).unwrap();
        write::execute(out, "p", 0).unwrap();
        write::flush(out);
        write::close(out, Target::Portal, "p").unwrap();
        write::close(out, Target::Portal, "never").unwrap();
        write::sync(out);
    });
    assert_eq!(replies, "1 t T 2 T D D s D C(SHOW) C(SHOW) 3 3 Z(I)");
    let replies = session.send(|out| {
        write::bind(out, "", "s", &[]).unwrap();
        write::execute(out, "", 3).unwrap();
        write::execute(out, "", 3).unwrap();
        write::sync(out);
        write::execute(out, "", 0).unwrap();
        write::sync(out);
    });
    assert_eq!(replies, "2 D D D s C(SHOW) Z(I) E(34000) Z(I)", "the portal ends with Sync");
    let replies = session.send(|out| {
        prepare(out, "do");
        write::describe(out, Target::Portal, "").unwrap();
        write::execute(out, "", 0).unwrap();
        write::execute(out, "", 0).unwrap();
        write::sync(out);
        prepare(out, " ; ");
        write::execute(out, "", 0).unwrap();
        write::sync(out);
    });
    assert_eq!(replies, "1 2 n N(done) C(DO) E(55000) Z(I) 1 2 I Z(I)");
}

#[test]
fn errors_skip_up_to_sync() {
    let mut session = Session::new(Status::Own);
    type Write = dyn Fn(&mut BytesMut);
    let cases: &[(&Write, &str)] = &[
        (&|out| write::parse(out, "s", "nonsense", &[]).unwrap(), "42601"),
        (&|out| write::parse(out, "s", "do; do", &[]).unwrap(), "42601"),
        (&|out| write::bind(out, "", "none", &[]).unwrap(), "26000"),
        (&|out| write::describe(out, Target::Statement, "none").unwrap(), "26000"),
        (&|out| write::describe(out, Target::Portal, "none").unwrap(), "34000"),
        (&|out| write::execute(out, "none", 0).unwrap(), "34000"),
        (&|out| out.extend_from_slice(b"P\0\0\0\x05x"), "08P01"),
        (&|out| out.extend_from_slice(b"B\0\0\0\x0e\0none\0\0\x02\0\0"), "08P01"),
        (&|out| out.extend_from_slice(b"D\0\0\0\x06x\0"), "08P01"),
        (&|out| out.extend_from_slice(b"C\0\0\0\x06x\0"), "08P01"),
    ];
    for (message, code) in cases {
        let replies = session.send(|out| {
            message(out);
            prepare(out, "do");
            write::query(out, "do").unwrap();
            write::sync(out);
            prepare(out, "do");
            write::sync(out);
        });
        assert_eq!(replies, format!("E({code}) Z(I) 1 2 Z(I)"));
    }
    for (sql, code) in [("lie", "0A000"), ("broken", "XX000"), ("late", "42601")] {
        let replies = session.send(|out| {
            prepare(out, sql);
            write::execute(out, "", 0).unwrap();
            write::flush(out);
            write::sync(out);
        });
        assert_eq!(replies, format!("1 2 E({code}) Z(I)"));
    }
}

#[test]
fn names_are_kept_once_and_dropped_by_statements() {
    let mut session = Session::new(Status::Own);
    let parse = |session: &mut Session, name: &str| {
        session.send(|out| {
            write::parse(out, name, "do", &[]).unwrap();
            write::sync(out);
        })
    };
    assert_eq!(parse(&mut session, "a"), "1 Z(I)");
    assert_eq!(parse(&mut session, "a"), "E(42P05) Z(I)");
    assert_eq!(session.query("deallocate a"), "C(DEALLOCATE) Z(I)");
    assert_eq!(session.query("deallocate a"), "E(26000) Z(I)");
    assert_eq!(parse(&mut session, "a"), "1 Z(I)");
    assert_eq!(session.query("discard all"), "C(DISCARD ALL) Z(I)");
    assert_eq!(parse(&mut session, "a"), "1 Z(I)");
    let twice = session.send(|out| {
        write::bind(out, "p", "a", &[]).unwrap();
        write::bind(out, "p", "a", &[]).unwrap();
        write::sync(out);
        write::bind(out, "", "a", &[Some(b"1")]).unwrap();
        write::sync(out);
    });
    assert_eq!(twice, "2 E(42P03) Z(I) E(08P01) Z(I)");
    for at in 1..1000 {
        assert_eq!(parse(&mut session, &format!("s{at}")), "1 Z(I)");
    }
    assert_eq!(parse(&mut session, "one more"), "E(54000) Z(I)");
}

#[test]
fn held_text_is_bounded() {
    let mut session = Session::new(Status::Own);
    let long = format!("show {}2", "0".repeat(1 << 20));
    let mut refused = 0;
    for at in 0..5 {
        let reply = session.send(|out| {
            write::parse(out, format!("s{at}"), &long, &[]).unwrap();
            write::sync(out);
        });
        refused += usize::from(reply == "E(54000) Z(I)");
    }
    assert_eq!(refused, 2);
    assert_eq!(session.query("deallocate all"), "C(DEALLOCATE ALL) Z(I)");
    let reply = session.send(|out| write::parse(out, "again", &long, &[]).unwrap());
    assert_eq!(reply, "1");
}

/// Bind of the unnamed statement with these result formats.
fn bind_formats(out: &mut BytesMut, formats: &[i16]) {
    let mut body = vec![0, 0, 0, 0, 0, 0];
    body.extend(i16::try_from(formats.len()).unwrap().to_be_bytes());
    formats.iter().for_each(|format| body.extend(format.to_be_bytes()));
    out.extend_from_slice(b"B");
    out.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
    out.extend_from_slice(&body);
}

#[test]
fn result_formats() {
    let mut session = Session::new(Status::Own);
    let mut bound = |formats: &[i16]| {
        session.send(|out| {
            write::parse(out, "", "show 1", &[]).unwrap();
            bind_formats(out, formats);
            write::execute(out, "", 0).unwrap();
            write::sync(out);
        })
    };
    for good in [&[][..], &[0], &[1], &[0, 1], &[1, 0]] {
        assert_eq!(bound(good), "1 2 D C(SHOW) Z(I)", "{good:?}");
    }
    assert_eq!(bound(&[0, 0, 0]), "1 E(08P01) Z(I)");
    assert_eq!(bound(&[2]), "1 E(22023) Z(I)");
    let caller = Caller {
        application_name: String::new(),
        user: String::new(),
        database: String::new(),
        admin: false,
        stats: false,
        in_admin_database: true,
        session: 0,
    };
    let context = Context { console: &Shop, caller: &caller, status: Status::Own };
    let mut wire = BytesMut::new();
    write::parse(&mut wire, "", "show 1", &[]).unwrap();
    bind_formats(&mut wire, &[1, 0]);
    write::execute(&mut wire, "", 0).unwrap();
    let (mut server, mut out) = (LocalServer::new(), BytesMut::new());
    for (tag, body) in messages(&wire) {
        if let Next::Run(sql) = server.feed(&context, tag, body, &mut out) {
            let _ = server.answer(&context, answer_to(&sql), &mut out);
        }
    }
    let row = messages(&out).find(|(tag, _)| *tag == b'D').unwrap().1;
    assert_eq!(row, b"\0\x02\0\0\0\x04\0\0\0\0\0\0\0\x01x");
}

#[test]
fn the_other_messages() {
    let mut session = Session::new(Status::Own);
    assert_eq!(session.send(|out| out.extend_from_slice(b"d\0\0\0\x05xc\0\0\0\x04f\0\0\0\x05\0")), "");
    assert_eq!(session.send(|out| out.extend_from_slice(b"F\0\0\0\x04")), "E(0A000) Z(I)");
    assert!(!session.closed);
    assert_eq!(session.send(write::terminate), "");
    assert!(session.closed);
    let mut session = Session::new(Status::Own);
    assert_eq!(session.send(|out| out.extend_from_slice(b"?\0\0\0\x04")), "E(08P01)");
    assert!(session.closed);
}

proptest! {
    /// Whatever comes, every Query that is not skipped and every Sync gets one ReadyForQuery.
    #[test]
    fn every_sync_is_answered_once(
        messages in proptest::collection::vec(("[PBDECHSQFdcf]", proptest::collection::vec(0u8..4, 0..12)), 0..40),
        texts in proptest::collection::vec("(show [0-3]|do|begin|commit|rollback|x|;|empty)", 0..40),
    ) {
        let mut session = Session::new(Status::Own);
        for (at, (tag, body)) in messages.iter().enumerate() {
            let tag = tag.as_bytes()[0];
            let skipping = session.server.is_skipping();
            let replies = session.send(|out| match (tag, texts.get(at)) {
                (b'Q', Some(text)) => write::query(out, text).unwrap(),
                (b'P', Some(text)) => prepare(out, text),
                (b'E', Some(_)) => write::execute(out, "", u32::try_from(at % 3).unwrap()).unwrap(),
                _ => {
                    out.extend_from_slice(&[tag]);
                    out.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
                    out.extend_from_slice(body);
                }
            });
            let expected = match tag {
                b'S' => 1,
                b'Q' | b'F' if !skipping => 1,
                _ => 0,
            };
            prop_assert_eq!(replies.matches("Z(").count(), expected, "{} {}", tag as char, replies);
        }
    }
}
