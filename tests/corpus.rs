//! The corpus of statements (tests/corpus/statements.txt) for real: through pgweir, by both protocols, the primary
//! with weight 0; the servers' logs tell what ran where. Where and why is checked against the classifier in
//! crates/router/tests/corpus.rs.

use anyhow::{Result, ensure};
use harness::{Cluster, Login, Pgweir, RawClient, msgs, rig};

const CORPUS: &str = include_str!("corpus/statements.txt");

const SCHEMA: &str = "
CREATE TABLE t(id int PRIMARY KEY, v text, n numeric DEFAULT 1, ts timestamptz DEFAULT now(), j jsonb DEFAULT '{}', a int[]);
INSERT INTO t VALUES (1, 'one'), (2, 'two');
CREATE TABLE log(n int);
CREATE SEQUENCE sq;
CREATE SCHEMA s;
CREATE FUNCTION wr() RETURNS int VOLATILE LANGUAGE sql AS 'INSERT INTO log VALUES (1); SELECT 1';
CREATE FUNCTION s.wr() RETURNS int VOLATILE LANGUAGE sql AS 'INSERT INTO log VALUES (1); SELECT 1';
CREATE FUNCTION \"Wr\"() RETURNS int VOLATILE LANGUAGE sql AS 'INSERT INTO log VALUES (1); SELECT 1';
CREATE FUNCTION wr_arg(int) RETURNS int VOLATILE LANGUAGE sql AS 'INSERT INTO log VALUES (1); SELECT $1';
CREATE FUNCTION rd(int) RETURNS int STABLE LANGUAGE sql AS 'SELECT $1 + 1';
CREATE FUNCTION im(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 + 1';
CREATE FUNCTION s.st(int) RETURNS int STABLE LANGUAGE sql AS 'SELECT $1 + 1';
CREATE PROCEDURE pr() LANGUAGE sql AS 'INSERT INTO log VALUES (2)';
CREATE VIEW v_plain AS SELECT id, upper(v) AS v FROM t;
CREATE VIEW v_wr AS SELECT wr() AS a;
CREATE VIEW v_nested AS SELECT * FROM v_wr;
CREATE VIEW v_lock AS SELECT * FROM t FOR UPDATE;
CREATE UNLOGGED TABLE u(id int);
GRANT USAGE ON SCHEMA s TO bench;
GRANT ALL ON ALL TABLES IN SCHEMA public TO bench;
GRANT ALL ON sq TO bench";

/// One statement of the corpus.
struct Line {
    sql: &'static str,
    on_primary: bool,
    fresh: bool,
}

fn corpus() -> Vec<Line> {
    let (mut lines, mut group) = (Vec::new(), ("", ""));
    for line in CORPUS.lines().filter(|line| !line.is_empty() && !line.starts_with("# ")) {
        match line.strip_prefix("== ") {
            Some(head) => {
                let words: Vec<&str> = head.split(' ').collect();
                group = (words[0], words[2]);
            }
            None if group.1 != "classify" => {
                lines.push(Line { sql: line, on_primary: group.0 == "p", fresh: group.1 == "fresh" });
            }
            None => {}
        }
    }
    lines
}

/// Sends a statement marked so that the logs can tell it; what it answers does not matter.
fn send(client: &mut RawClient, sql: &str, marker: &str, extended: bool) -> Result<()> {
    // In front of the statement's first word it could hide a hint or end up in what is not closed.
    let marked = match sql.strip_prefix("/*").and_then(|rest| rest.split_once("*/")) {
        Some((comment, rest)) if !comment.contains("/*") => format!("/*{comment}*/ {marker} {rest}"),
        _ => format!("{marker} {sql}"),
    };
    let sent = if extended { msgs().PBE(&marked).S() } else { msgs().Q(&marked) };
    client.talk(&sent).map(|_| ())
}

fn run_all(weir: &Pgweir, lines: &[Line]) -> Result<()> {
    let mut shared = weir.client()?;
    // A session that asks for its own values stays with the backend that has them, and so do those of its application.
    let mut asking = Login::bench().with("application_name", "sequences").connect(weir.port())?;
    // Until the catalog is known, also what was just changed in it, what it says decides nothing.
    let settle = || weir.wait_on_standby("SELECT rd(1), v FROM t");
    settle()?;
    let asks = |line: &Line| ["nextval", "setval", "currval", "lastval"].iter().any(|f| line.sql.contains(f));
    for (number, line) in lines.iter().enumerate() {
        for (extended, protocol) in [(false, "q"), (true, "x")] {
            let marker = format!("/*run {number}{protocol}.*/");
            if line.fresh {
                send(&mut weir.client()?, line.sql, &marker, extended)?;
            } else {
                let client = if asks(line) { &mut asking } else { &mut shared };
                send(client, line.sql, &marker, extended)?;
            }
            if line.on_primary {
                settle()?;
            }
        }
    }
    Ok(())
}

fn check(cluster: &Cluster, lines: &[Line]) -> Result<Vec<String>> {
    let logs: Vec<String> = (0..cluster.len()).map(|node| cluster.log(node)).collect::<Result<_>>()?;
    let mut wrong = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        for protocol in ["q", "x"] {
            let marker = format!("/*run {number}{protocol}.*/");
            let ran: Vec<usize> = (0..logs.len()).filter(|node| logs[*node].contains(&marker)).collect();
            let right = match ran.as_slice() {
                [0] => line.on_primary,
                [_] => !line.on_primary,
                // An empty query and what the server cannot read at all are not logged.
                [] => line.sql.contains("SELECT") && line.sql.len() < 10,
                _ => false,
            };
            if !right {
                wrong.push(format!("{} ({protocol}): ran on {ran:?}", line.sql));
            }
        }
    }
    Ok(wrong)
}

/// RW-01 to RW-21, PP-05, PP-07: each statement of the corpus runs where it belongs, and nothing that writes was even
/// tried on a standby.
#[test]
fn rw_01_every_statement_of_the_corpus_runs_where_it_belongs() -> Result<()> {
    let (cluster, weir) = rig(2, "consistency: eventual")?;
    cluster.setup(SCHEMA)?;
    let lines = corpus();
    ensure!(lines.len() >= 600, "{} statements", lines.len());
    run_all(&weir, &lines)?;
    let wrong = check(&cluster, &lines)?;
    ensure!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    for standby in [1, 2] {
        let refused = cluster.log(standby)?.matches("in a read-only transaction").count();
        ensure!(refused == 0, "n{standby} refused {refused} writes");
    }
    Ok(())
}
