//! How many statements a text is, whatever stands in quotes, comments, bodies and encodings: what PostgreSQL finds,
//! told by its answers to a Query. The texts and the counts stand in tests/corpus/counts.txt, against which
//! crates/router/tests/counts.rs holds the classifier. `PGWEIR_WRITE_DOCS=1` writes them anew.

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use harness::{Cluster, ClusterOptions, Login, RawClient, Reply, msgs};

const PAGE: &str = include_str!("corpus/counts.txt");
const SEED: u64 = 20_261_130;
/// Texts made of whole statements, and of pieces that mostly are none.
const TEXTS: (usize, usize) = (500, 4000);

/// A number below `below` (xorshift).
fn random(state: &mut u64, below: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state >> 33).unwrap_or_default() % below
}

/// Whole statements, each with something in it that could be taken for the end of it.
const STATEMENTS: &[&[u8]] = &[
    b"SELECT 1",
    b"SELECT ';'",
    b"SELECT 'it''s; ', ';'",
    b"SELECT 'a'\n  ';b'",
    b"SELECT 'a' -- ; '\n ';b'",
    b"SELECT E'\\';', E'\\\\'",
    b"SELECT e'\\';\\'', ';'",
    b"SELECT 'a\\', ';'",
    b"SELECT 'a\\';' || ';'",
    b"SELECT U&'d\\0061t;\\+000061'",
    b"SELECT U&'!0061;' UESCAPE '!'",
    b"SELECT 1 AS U&\"d;\\0061\"",
    b"SELECT B'01', X'1F', N';'",
    b"SELECT $$;$$",
    b"SELECT $a$ ; $b$ ; $$ ; $a$",
    b"SELECT $_x1$;$_x$;$_x1$",
    b"SELECT $\xe9$;$\xe9$",
    b"SELECT a$1$b FROM (SELECT 1 AS a$1$b) x",
    b"SELECT 1 AS \";\", 2 AS \"a\"\";\"",
    b"SELECT /* ; /* ; */ ; */ 1",
    b"SELECT /* ' */ 1 /* \" */ + /* $$ */ 2 -- '\n",
    b"SELECT 1 -- ; /*\n + 1",
    b"SELECT 1 --;\r+ 1",
    b"SELECT 2 */* ; */ 3",
    b"SELECT 1 +-- ;\n 2",
    b"SELECT 5 - - 3 @ -4",
    b"SELECT '\xe9;\xff'",
    b"SELECT 1 AS \"\xe9;\"",
    b"SELECT CASE WHEN true THEN 1 END",
    b"SELECT 1 AS \"begin atomic\"",
    b"BEGIN",
    b"COMMIT",
    b"SAVEPOINT atomic",
    b"DO $x$ BEGIN PERFORM 1; PERFORM ';'; END $x$",
    b"CREATE OR REPLACE FUNCTION pg_temp.f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT CASE WHEN true THEN 2 END; END",
    b"CREATE OR REPLACE PROCEDURE pg_temp.p() BEGIN ATOMIC ; SELECT 1;; SELECT ';'; END",
    b"CREATE OR REPLACE FUNCTION pg_temp.g() RETURNS int LANGUAGE sql BEGIN ATOMIC END",
    b"create or replace function pg_temp.h(a int) returns int /* ; */ begin /* ; */ atomic select a; end",
    b"CREATE OR REPLACE FUNCTION pg_temp.k() RETURNS int BEGIN ATOMIC SELECT 1 AS end; SELECT x.case FROM (SELECT 2 AS case) x; END",
    b"CREATE OR REPLACE FUNCTION pg_temp.l() RETURNS int BEGIN ATOMIC SELECT CASE 1 WHEN 1 THEN 2 END AS case; SELECT 3 AS begin; END",
    b"CREATE OR REPLACE FUNCTION pg_temp.i() RETURNS text RETURN ';'",
    b"CREATE OR REPLACE FUNCTION pg_temp.j() RETURNS int LANGUAGE sql AS 'SELECT 1; SELECT 2'",
    b"CREATE OR REPLACE RULE r AS ON INSERT TO ruled DO ALSO (DELETE FROM ruled; UPDATE ruled SET a = 1;)",
    b"CREATE OR REPLACE RULE r AS ON INSERT TO ruled DO ALSO NOTHING",
    b"CREATE TEMP VIEW IF_END AS SELECT CASE 1 WHEN 1 THEN 2 END AS \"end\"",
    b"DROP VIEW IF EXISTS if_end",
    b"",
    b"",
    b" /* nothing ; */ ",
    b"-- nothing ;\n",
];

/// Pieces of which most make no statement.
const PIECES: &[&[u8]] = &[
    b";",
    b"'",
    b"''",
    b"\"",
    b"$$",
    b"$a$",
    b"/*",
    b"*/",
    b"--",
    b"\n",
    b"\\",
    b"E'",
    b"U&'",
    b"U&\"",
    b"B'",
    b"(",
    b")",
    b"BEGIN ATOMIC",
    b"END",
    b"CASE",
    b"CREATE FUNCTION f() RETURNS int",
    b"SELECT 1",
    b"1",
    b"a",
    b"$1",
    b"@",
    b"-",
    b"\xe9",
    b" ",
    b"\t",
    b"\r",
    b"\x0c",
];

fn soup(state: &mut u64, pieces: &[&[u8]], most: usize, between: &[&[u8]]) -> Vec<u8> {
    let count = 1 + random(state, most);
    let mut text = Vec::new();
    for number in 0..count {
        if number > 0 {
            text.extend_from_slice(between[random(state, between.len())]);
        }
        text.extend_from_slice(pieces[random(state, pieces.len())]);
    }
    text
}

/// The texts, each with the value of `standard_conforming_strings` that it is read under.
fn texts() -> Vec<(bool, Vec<u8>)> {
    let mut state = SEED;
    let whole = STATEMENTS.iter().map(|text| text.to_vec()).collect::<Vec<_>>();
    let strings: Vec<_> =
        (0..TEXTS.0).map(|_| soup(&mut state, STATEMENTS, 6, &[b";", b" ; ", b";\n"])).collect();
    let pieces: Vec<_> = (0..TEXTS.1).map(|_| soup(&mut state, PIECES, 8, &[b"", b" "])).collect();
    let all = whole.into_iter().chain(strings).chain(pieces);
    all.flat_map(|text| [(true, text.clone()), (false, text)]).collect()
}

/// How many statements PostgreSQL finds; nothing when one of them fails, because those behind it do not answer.
fn counted(client: &mut RawClient, conforming: bool, text: &[u8]) -> Result<Option<usize>> {
    client.simple(&format!("SET standard_conforming_strings = {}", if conforming { "on" } else { "off" }))?;
    let replies = client.talk(&msgs().Q_bytes(text).Q("ROLLBACK"))?;
    let complete = |reply: &&Reply| matches!(reply, Reply::CommandComplete(_));
    // The ROLLBACK is ours.
    let count = replies.0.iter().filter(complete).count() - 1;
    Ok(replies.error().is_none().then_some(count))
}

/// RW-05, RW-18: what is told the classifier to find is what PostgreSQL finds.
#[test]
fn rw_05_rw_18_statements_are_counted_as_postgresql_does() -> Result<()> {
    let cluster =
        Cluster::new(ClusterOptions { standbys: 0, log_statements: false, ..ClusterOptions::default() })?;
    cluster.setup("CREATE TABLE ruled(a int); ALTER TABLE ruled OWNER TO bench")?;
    // Every byte is a letter in it.
    let mut client = Login::bench().with("client_encoding", "LATIN1").connect(cluster.port(0))?;
    let mut page = String::new();
    let mut several = 0;
    for (conforming, text) in texts() {
        let Some(count) = counted(&mut client, conforming, &text)? else { continue };
        several += usize::from(count > 1);
        let word = if conforming { "on" } else { "off" };
        writeln!(page, "{count} {word} {}", text.escape_ascii())?;
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/counts.txt");
    if std::env::var_os("PGWEIR_WRITE_DOCS").is_some() {
        std::fs::write(path, &page)?;
    } else {
        let differ = page.lines().zip(PAGE.lines()).find(|(found, written)| found != written);
        ensure!(page == PAGE, "PostgreSQL counts otherwise (PGWEIR_WRITE_DOCS=1 writes it): {differ:?}");
    }
    ensure!(several > 200, "{several} texts of several statements");
    Ok(())
}
