//! Kinds of statements that proxies send to the wrong node, or to another backend than the one before: sequences,
//! cursors, COPY, settings with row-level security, texts in other encodings, texts of any size. The primary has
//! weight 0; where something ran is told by WHERE or by the servers' logs.

use anyhow::{Result, ensure};
use harness::{Cluster, ClusterOptions, Login, Pgweir, RawClient, Reply, WHERE, msgs, rig};

const SCHEMA: &str = "
CREATE TABLE t(id int PRIMARY KEY, v text);
INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 9) n;
CREATE TABLE t2(id serial, v text);
CREATE SEQUENCE sq;
CREATE SEQUENCE \"My Seq\";
CREATE TABLE r(tenant int, v text);
INSERT INTO r VALUES (7, 'seven'), (8, 'eight');
ALTER TABLE r ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON r USING (tenant::text = current_setting('app.tenant', true));
GRANT ALL ON ALL TABLES IN SCHEMA public TO bench;
GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO bench";

/// A primary and a standby, whose tables are known.
fn prepared(yaml: &str) -> Result<(Cluster, Pgweir)> {
    let (cluster, weir) = rig(1, &format!("consistency: eventual\n{yaml}"))?;
    cluster.setup(SCHEMA)?;
    cluster.wait_replay()?;
    weir.wait_on_standby("SELECT * FROM t")?;
    Ok((cluster, weir))
}

/// RW-09: sequences are the primary's, and what a session asks of them is answered by the backend that gave them.
#[test]
fn rw_09_sequences_and_what_depends_on_the_session() -> Result<()> {
    let (cluster, weir) = prepared("default_pool_size: 3")?;
    let (mut a, mut b) = (weir.client()?, weir.client()?);
    for (n, sql) in ["SELECT nextval('sq')", "SELECT nextval('\"My Seq\"'::regclass)"].iter().enumerate() {
        let first: u64 = a.scalar(&format!("{sql} /*seq{n}*/"))?.parse()?;
        let second: u64 = a.scalar_extended(&format!("{sql} /*seq{n}*/"), &[])?.parse()?;
        ensure!(second == first + 1, "{sql}: {first}, {second}");
        assert_eq!(cluster.count_logged(1, &format!("/*seq{n}*/"))?, 0, "{sql}");
    }
    for round in 0..20 {
        for client in [&mut a, &mut b] {
            client.simple("BEGIN")?;
            client.simple("INSERT INTO t2 DEFAULT VALUES")?;
        }
        for client in [&mut b, &mut a] {
            let given = client.scalar("SELECT max(id) FROM t2 WHERE v IS NULL")?;
            let current = "SELECT currval(pg_get_serial_sequence('t2', 'id'))";
            let (current, last) = (client.scalar_extended(current, &[])?, client.scalar("SELECT lastval()")?);
            ensure!(current == last && current == given, "{round}: {given}, {current}, {last}");
            client.simple("UPDATE t2 SET v = 'seen' WHERE id = currval('t2_id_seq')")?;
            client.simple("COMMIT")?;
        }
    }
    assert_eq!(a.scalar("SELECT last_value FROM sq")?, "2");
    for word in ["currval", "lastval", "nextval"] {
        assert_eq!(cluster.count_logged(1, word)?, 0, "{word}");
    }
    Ok(())
}

/// RW-14: FETCH meets the backend of its DECLARE, in either mode of pooling.
#[test]
fn rw_14_cursors() -> Result<()> {
    for mode in ["transaction", "session"] {
        let (cluster, weir) = prepared(&format!("pool_mode: {mode}\ndefault_pool_size: 4"))?;
        let (mut a, mut b) = (weir.client()?, weir.client()?);
        a.simple("BEGIN")?;
        a.simple("DECLARE c CURSOR FOR SELECT id FROM t ORDER BY id")?;
        assert_eq!(a.simple("FETCH 2 FROM c")?.first_column(), ["1", "2"], "{mode}");
        a.simple("COMMIT")?;
        // Of a transaction that only reads: where that is.
        a.simple("BEGIN READ ONLY")?;
        a.simple("DECLARE c CURSOR FOR SELECT current_setting('cluster_name') FROM t")?;
        assert_eq!(a.scalar(WHERE)?, "n1", "{mode}");
        assert_eq!(a.simple("FETCH 2 FROM c")?.first_column(), ["n1", "n1"], "{mode}");
        a.simple("COMMIT")?;
        // Held over the transaction's end, with others in between.
        a.simple("DECLARE h CURSOR WITH HOLD FOR SELECT id FROM t ORDER BY id")?;
        for wanted in ["1", "2", "3"] {
            assert_eq!(a.scalar("FETCH h")?, wanted, "{mode}");
            b.simple("UPDATE t SET v = v WHERE id = 1")?;
            b.scalar(WHERE)?;
        }
        a.simple("MOVE 2 FROM h")?;
        assert_eq!(a.scalar("FETCH h")?, "6", "{mode}");
        a.simple("CLOSE h")?;
        assert_eq!(a.sqlstate_of("FETCH h")?, "34000", "{mode}");
        a.simple("BEGIN")?;
        a.simple("DECLARE u CURSOR FOR SELECT * FROM t WHERE id = 5 FOR UPDATE")?;
        a.simple("FETCH u")?;
        a.simple("UPDATE t SET v = 'current' WHERE CURRENT OF u")?;
        a.simple("COMMIT")?;
        assert_eq!(cluster.scalar(0, "SELECT v FROM t WHERE id = 5")?, "current", "{mode}");
        assert_eq!(cluster.count_logged(1, "FOR UPDATE")? + cluster.count_logged(1, "WITH HOLD")?, 0);
    }
    Ok(())
}

/// RW-15: each form of COPY, where it reads and where it writes.
#[test]
fn rw_15_copy() -> Result<()> {
    let (cluster, weir) = prepared("")?;
    let mut client = weir.client()?;
    let forms = [
        (1, "COPY (SELECT * FROM t) TO STDOUT"),
        (1, "COPY t TO STDOUT"),
        (1, "copy t (v, id) to stdout with (format csv, header)"),
        (1, "COPY BINARY t TO STDOUT"),
        (1, "COPY (TABLE t) TO STDOUT CSV"),
        (0, "COPY (INSERT INTO t2(v) VALUES ('c') RETURNING id) TO STDOUT"),
        (0, "COPY (WITH x AS (DELETE FROM t2 RETURNING *) SELECT * FROM x) TO STDOUT"),
        (0, "COPY (SELECT nextval('sq')) TO STDOUT"),
        (0, "COPY t FROM STDIN (FORMAT binary)"),
        (0, "copy t from stdin csv"),
        (0, "COPY BINARY t FROM STDIN"),
        (0, "COPY t FROM PROGRAM 'true'"),
        (0, "COPY t TO PROGRAM 'cat'"),
        (0, "COPY t TO '/nowhere/at/all'"),
        (0, "COPY t (id, v) FROM STDIN WHERE id > 0"),
    ];
    for (row, (node, sql)) in forms.iter().enumerate() {
        let marked = format!("{sql} /*copy{row}.*/");
        let asks = sql.to_lowercase().contains("stdin");
        let sent = if asks { msgs().Q(&marked).f("no data") } else { msgs().Q(&marked) };
        let error = client.talk(&sent)?.error().map(|fields| fields.get('C').to_owned());
        let expected = match sql {
            _ if asks => Some("57014"),
            _ if sql.contains("PROGRAM") || sql.contains('/') => Some("42501"),
            _ => None,
        };
        assert_eq!(error.as_deref(), expected, "{sql}");
        let there = |node| cluster.count_logged(node, &format!("/*copy{row}.*/"));
        assert_eq!((there(0)?, there(1)?), if *node == 0 { (1, 0) } else { (0, 1) }, "{sql}");
    }
    Ok(())
}

/// RW-11: what a session sets is there for what it reads, and for nobody else, on whatever node and backend.
#[test]
fn rw_11_set_config_and_row_level_security() -> Result<()> {
    for mode in ["transaction", "session"] {
        let (_cluster, weir) = prepared(&format!("pool_mode: {mode}"))?;
        let (mut a, mut b) = (weir.client()?, weir.client()?);
        let rows = "SELECT v FROM r";
        let nobody = |b: &mut RawClient| -> Result<()> {
            for _ in 0..4 {
                assert_eq!(b.scalar("SELECT current_setting('app.tenant', true)")?, "", "{mode}");
                assert_eq!(b.simple(rows)?.first_column(), Vec::<String>::new(), "{mode}");
            }
            Ok(())
        };
        for begin in ["BEGIN", "BEGIN READ ONLY"] {
            a.simple(begin)?;
            a.simple("SELECT set_config('app.tenant', '7', true)")?;
            assert_eq!(a.simple(rows)?.first_column(), ["seven"], "{mode}, {begin}");
            a.simple("COMMIT")?;
            nobody(&mut b)?;
        }
        let at_once =
            "WITH c AS MATERIALIZED (SELECT set_config('app.tenant', '7', true)) SELECT r.v FROM c, r";
        assert_eq!(a.simple(at_once)?.first_column(), ["seven"], "{mode}");
        nobody(&mut b)?;
        a.simple("SET app.tenant = '8'")?;
        for _ in 0..4 {
            assert_eq!(a.simple(rows)?.first_column(), ["eight"], "{mode}");
            assert_eq!(a.scalar_extended(rows, &[])?, "eight", "{mode}");
            nobody(&mut b)?;
        }
        // It does not keep the session from the standby.
        assert_eq!(a.scalar("SELECT current_setting('cluster_name') FROM r")?, "n1", "{mode}");
    }
    Ok(())
}

/// The bytes of the only value.
fn bytes(client: &mut RawClient, sql: &[u8]) -> Result<Vec<u8>> {
    let replies = client.talk(&msgs().Q_bytes(sql))?;
    let value = replies.0.iter().find_map(|reply| match reply {
        Reply::DataRow(values) => values.first().cloned().flatten(),
        _ => None,
    });
    value.ok_or_else(|| anyhow::anyhow!("no value: {replies}"))
}

/// RW-18: text that is not UTF-8, invalid bytes, zero bytes.
#[test]
fn rw_18_text_in_other_encodings() -> Result<()> {
    let (cluster, weir) = prepared("")?;
    let with = |encoding: &str| Login::bench().with("client_encoding", encoding).connect(weir.port());
    let mut latin = with("LATIN1")?;
    assert_eq!(bytes(&mut latin, b"SELECT '\xe9'")?, b"\xe9");
    bytes(&mut latin, b"INSERT INTO t2(v) VALUES ('\xe9 latin') RETURNING v")?;
    assert_eq!(cluster.scalar(0, "SELECT v FROM t2 WHERE v LIKE '%latin'")?, "é latin");
    assert_eq!(cluster.count_logged(1, "INSERT INTO")?, 0);
    // The second byte of the letter is a backslash; of the name, a bracket.
    let mut sjis = with("SJIS")?;
    assert_eq!(bytes(&mut sjis, b"SELECT '\x83\x5c' AS so")?, b"\x83\x5c");
    assert_eq!(bytes(&mut sjis, b"SELECT '\x83\x5c' || nextval('sq')::text")?, b"\x83\x5c1");
    assert_eq!(bytes(&mut sjis, b"SELECT a.\x83\x5b FROM (SELECT 'x' AS \x83\x5b) a")?, b"x");
    assert_eq!(cluster.count_logged(1, "nextval")?, 0);
    let mut client = weir.client()?;
    for (sql, code) in [(&b"SELECT '\xff'"[..], "22021"), (b"SELECT 1\0SELECT 2", "08P01")] {
        let replies = client.talk(&msgs().Q_bytes(sql))?;
        assert_eq!(replies.error().map(|fields| fields.get('C')), Some(code));
        assert_eq!(replies.0.last(), Some(&Reply::ReadyForQuery('I')), "{replies}");
    }
    // Four bytes a letter, at every border of a chunk.
    for chunk in 1..=9 {
        client.set_chunk(chunk);
        assert_eq!(
            client.scalar("SELECT 'a😀b😀c' || ' ' || current_setting('cluster_name')")?,
            "a😀b😀c n1"
        );
    }
    Ok(())
}

/// RW-19: statements larger than any buffer or limit are what they are on a direct connection.
#[test]
fn rw_19_huge_statements() -> Result<()> {
    let (cluster, weir) = prepared("")?;
    let list = |count: usize| (1..=count).map(|n| n.to_string()).collect::<Vec<_>>();
    let texts = [
        format!("SELECT count(*) FROM t WHERE id IN ({})", list(100_000).join(",")),
        format!("SELECT {}1{}", "(".repeat(500), ")".repeat(500)),
        format!("SELECT {}1{}", "(".repeat(2000), ")".repeat(2000)),
        format!("SELECT count(*) FROM ({}) x", vec!["SELECT 1 FROM t"; 1000].join(" UNION ALL ")),
        format!("SELECT {}", vec!["1"; 1500].join(" + ")),
        format!("SELECT {}", vec!["true"; 5000].join(" AND ")),
        format!(
            "INSERT INTO t2(id, v) VALUES {}",
            vec!["(0, 'a row of fifty thousand, of some length')"; 50_000].join(",")
        ),
    ];
    let (mut client, mut direct) = (weir.client()?, cluster.direct(0)?);
    for text in &texts {
        let start: String = text.chars().take(60).collect();
        let here = client.talk(&msgs().Q(text))?;
        let there = direct.talk(&msgs().Q(text))?;
        assert_eq!(here.to_string(), there.to_string(), "{start}");
        let extended = msgs().P("", text).B("", "", &[]).E().S();
        assert_eq!(client.talk(&extended)?.to_string(), direct.talk(&extended)?.to_string(), "{start}");
        assert_eq!(client.scalar("SELECT 1")?, "1", "{start}");
    }
    assert_eq!(cluster.count_logged(1, "INSERT INTO t2")?, 0);
    let name = "n".repeat(5000);
    let replies = client.talk(&msgs().P(&name, WHERE).B("", &name, &[]).E().S())?;
    assert_eq!(replies.values(), ["n1"]);
    assert_eq!(client.talk(&msgs().B("", &name, &[]).E().S())?.values(), ["n1"]);
    Ok(())
}

/// PP-08: a session opens and holds what it uses, while it uses it.
#[test]
fn pp_08_a_session_opens_no_backend_that_it_does_not_use() -> Result<()> {
    let (cluster, weir) = prepared("")?;
    let backends =
        |node: usize| cluster.scalar(node, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench'");
    let mut clients = (0..20).map(|_| weir.client()).collect::<Result<Vec<_>>>()?;
    for client in &mut clients {
        assert_eq!(client.scalar(WHERE)?, "n1");
        client.simple("BEGIN")?;
        client.simple("SET LOCAL work_mem = '2MB'")?;
        client.simple("COMMIT")?;
    }
    assert_eq!(backends(1)?, "1", "one after the other, they share one");
    ensure!(backends(0)?.parse::<u32>()? <= 1, "what says nothing is not sent everywhere");
    Ok(())
}

/// Kinds of writes, each a session of its own.
const WRITES: &[&[&str]] = &[
    &["INSERT INTO t2(v) VALUES ('x')"],
    &["UPDATE t SET v = v WHERE id = 1"],
    &["DELETE FROM t2 WHERE false"],
    &["MERGE INTO t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 'm'"],
    &["WITH i AS (INSERT INTO t2(v) VALUES ('x') RETURNING id) SELECT * FROM i"],
    &["SELECT wr()"],
    &["SELECT 1 FROM t WHERE wr() = 1"],
    &["CALL pr()"],
    &["DO $$BEGIN PERFORM wr(); END$$"],
    &["EXPLAIN ANALYZE INSERT INTO t2(v) VALUES ('x')"],
    &["COPY (INSERT INTO t2(v) VALUES ('x') RETURNING id) TO STDOUT"],
    &["SELECT nextval('sq')"],
    &["SELECT setval('sq', 100)"],
    &["TRUNCATE t2"],
    &["SELECT 1 AS a INTO made_by_select"],
    &["CREATE TABLE made_as AS SELECT 1 AS a"],
    &["REFRESH MATERIALIZED VIEW m"],
    &["SELECT lo_from_bytea(0, 'x')"],
    &["SELECT 1; INSERT INTO t2(v) VALUES ('x')"],
    &["BEGIN", "SELECT 1", "INSERT INTO t2(v) VALUES ('x')", "SAVEPOINT a", "ROLLBACK TO a", "COMMIT"],
    &["BEGIN", "INSERT INTO t2(v) VALUES ('x')", "COMMIT AND CHAIN", "COMMIT"],
    &["BEGIN", "INSERT INTO t2(v) VALUES ('x')", "PREPARE TRANSACTION 'two'", "COMMIT PREPARED 'two'"],
    &["PREPARE w AS INSERT INTO t2(v) VALUES ('x')", "EXECUTE w", "DEALLOCATE w"],
    &["SET synchronous_commit = off", "INSERT INTO t2(v) VALUES ('x')"],
];

/// SR-01: whatever kind of statement has written, the session's next read is not older.
#[test]
fn sr_01_every_kind_of_write_is_seen_by_the_next_read() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions {
        standbys: 1,
        conf: "max_prepared_transactions = 5\n".to_owned(),
        ..ClusterOptions::default()
    })?;
    cluster.setup(SCHEMA)?;
    cluster.setup(
        "CREATE FUNCTION wr() RETURNS int VOLATILE LANGUAGE sql AS 'INSERT INTO t2(v) VALUES (1); SELECT 1';
         CREATE PROCEDURE pr() LANGUAGE sql AS 'INSERT INTO t2(v) VALUES (1)';
         CREATE MATERIALIZED VIEW m AS SELECT count(*) FROM t2; ALTER MATERIALIZED VIEW m OWNER TO bench;
         GRANT CREATE ON SCHEMA public TO bench",
    )?;
    cluster.wait_replay()?;
    let weir = Pgweir::start(&cluster, "")?;
    weir.wait_on_standby("SELECT * FROM t")?;
    cluster.sql(1, "SELECT pg_wal_replay_pause()")?;
    for &write in WRITES {
        for extended in [false, true] {
            let mut client = weir.client()?;
            assert_eq!(client.scalar(WHERE)?, "n1", "{write:?}");
            for sql in write {
                let made = sql.contains("made_");
                match extended && !made && !sql.contains("; ") {
                    true => drop(client.scalar_extended(sql, &[])?),
                    false if made && extended => {}
                    false => drop(client.simple(sql)?),
                }
            }
            if !(extended && write[0].contains("made_")) {
                assert_eq!(client.scalar(WHERE)?, "n0", "{write:?}, extended: {extended}");
            }
        }
    }
    // By COPY, by the function-call message, and sent with the read behind it in one go.
    let mut client = weir.client()?;
    client.talk(&msgs().Q("COPY t2(v) FROM STDIN").d(b"x\n").c())?;
    assert_eq!(client.scalar(WHERE)?, "n0", "COPY");
    let mut client = weir.client()?;
    let replies = client.talk(&msgs().PBE("INSERT INTO t2(v) VALUES ('x')").S().Q(WHERE))?;
    assert_eq!(replies.values(), ["n0"], "pipelined");
    cluster.sql(1, "SELECT pg_wal_replay_resume()").map(drop)
}

/// RW-18: where a string ends depends on a setting that the server has, by whatever way it was given.
#[test]
fn rw_18_backslashes_in_plain_strings() -> Result<()> {
    let (cluster, weir) = prepared("")?;
    // One string and a lock for who takes the backslash for an escape; a string and a comment for others.
    let hidden = |mark: &str| format!("SELECT '\\'; -- ', pg_try_advisory_lock(5) /*{mark}*/");
    let off = "standard_conforming_strings = off";
    for (at, begin) in ["", "BEGIN", "BEGIN READ ONLY"].iter().enumerate() {
        let mut client = weir.client()?;
        client.simple(&format!("SET {off}"))?;
        if !begin.is_empty() {
            client.simple(begin)?;
        }
        drop(client.simple(&hidden(&format!("scs_set{at}")))?);
    }
    let mut client =
        Login::bench().with("options", "-c standard_conforming_strings=off").connect(weir.port())?;
    client.simple(&hidden("scs_startup"))?;
    cluster.sql(0, &format!("ALTER ROLE other SET {off}"))?;
    let mut client = Login::new("other", "bench").connect(weir.port())?;
    client.simple(&hidden("scs_role"))?;
    for mark in ["scs_set0", "scs_set1", "scs_set2", "scs_startup", "scs_role"] {
        let there: Vec<usize> = (0..2)
            .map(|node| Ok(cluster.statements_logged(node)?.iter().filter(|s| s.sql.contains(mark)).count()))
            .collect::<Result<_>>()?;
        assert_eq!(there, [1, 0], "{mark}");
    }
    Ok(())
}
