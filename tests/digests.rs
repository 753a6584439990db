//! SHOW POOL_STATEMENTS: what was counted for each statement, for administrators only.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use harness::{Login, Pgweir, RawClient, WHERE, deadline, eventually, msgs, rig};

const YAML: &str = "consistency: eventual\nload_balance: round_robin";

type Row = BTreeMap<String, String>;

/// The row of the statement whose text holds `text`, once it has been called that often.
fn row(client: &mut RawClient, text: &str, calls: &str) -> Result<Row> {
    let mut found = Row::new();
    let mut look = || -> Result<bool> {
        let shown = client.simple("SHOW POOL_STATEMENTS")?;
        let rows = shown.rows.iter().map(|row| {
            shown
                .columns
                .iter()
                .cloned()
                .zip(row.iter().map(|v| v.clone().unwrap_or_default()))
                .collect::<Row>()
        });
        found = rows.into_iter().find(|row| row["statement"].contains(text)).unwrap_or_default();
        Ok(found.get("calls").map(String::as_str) == Some(calls))
    };
    ensure!(eventually(deadline(), || look().unwrap_or(false)), "{text}: {found:?}");
    Ok(found)
}

fn admin(weir: &Pgweir) -> Result<RawClient> {
    Login::new("postgres", "bench").connect(weir.port())
}

fn weir(standbys: usize) -> Result<(harness::Cluster, Pgweir)> {
    rig(standbys, YAML)
}

#[test]
fn statements_are_counted_with_where_they_ran_and_why() -> Result<()> {
    let (cluster, weir) = weir(1)?;
    cluster.setup("CREATE TABLE d(id int); GRANT ALL ON d TO bench")?;
    let (mut client, mut admin) = (weir.client()?, admin(&weir)?);
    for n in 0..7 {
        client.simple(&format!("SELECT current_setting('cluster_name'), {n} AS few"))?;
        client.scalar_extended(&format!("SELECT current_setting('cluster_name'), {n} AS few"), &[])?;
    }
    let few = row(&mut admin, "few", "14")?;
    assert_eq!((few["routes"].as_str(), few["reasons"].as_str()), ("read=14", "read_only_select=14"));
    assert_eq!((few["rows"].as_str(), few["errors"].as_str()), ("14", "0"));
    let explained = client.simple("PGWEIR EXPLAIN SELECT current_setting('a'), 5 AS few")?;
    assert_eq!(explained.get(0, "fingerprint")?, few["fingerprint"]);
    assert_eq!(explained.get(0, "statement")?, few["statement"]);
    ensure!(few["bytes"].parse::<u64>()? > 14 * 20, "{few:?}");
    // Writes, rows of several, errors.
    client.simple("INSERT INTO d SELECT generate_series(1, 30)")?;
    let insert = row(&mut admin, "insert into d", "1")?;
    assert_eq!((insert["routes"].as_str(), insert["rows"].as_str()), ("primary=1", "30"));
    ensure!(client.simple("SELECT 1/0 AS wrong").is_err());
    assert_eq!(row(&mut admin, "as wrong", "1")?["errors"], "1");
    // Prepared once, run often, in one batch: each has its rows, and its time.
    let mut batch = msgs().P("s", "SELECT generate_series(1, $1::int) AS often");
    for rows in ["1", "2", "3"] {
        batch = batch.B("", "s", &[rows]).E();
    }
    client.talk(&batch.PBE("SELECT 1/(0*random())::int AS late").PBE("SELECT 2 AS never").S())?;
    assert_eq!(row(&mut admin, "as often", "3")?["rows"], "6");
    client.simple("SELECT pg_sleep(0.03) AS slow")?;
    let slow = row(&mut admin, "as slow", "1")?;
    for column in ["p50_us", "p95_us", "p99_us"] {
        ensure!(slow[column].parse::<u64>()? > 25_000, "{slow:?}");
    }
    ensure!(slow["total_us"].parse::<u64>()? >= 30_000, "{slow:?}");
    assert_eq!(row(&mut admin, "as late", "1")?["errors"], "1");
    let shown = admin.simple("SHOW POOL_STATEMENTS")?;
    let text = |text: &str| shown.rows.iter().flatten().flatten().any(|value| value.contains(text));
    let never = shown.rows.iter().find(|row| row[1].as_deref().is_some_and(|text| text.contains("never")));
    ensure!(never.is_none_or(|row| row[2].as_deref() == Some("0")), "it never ran: {never:?}");
    ensure!(!text("'x1'"), "{shown:?}");
    Ok(())
}

/// It shows what others do, so it is not for everybody; secrets in literals are not there.
#[test]
fn only_administrators_see_and_reset_statements() -> Result<()> {
    let (_cluster, weir) = weir(1)?;
    let mut other = Login::new("other", "bench").connect(weir.port())?;
    other.simple("SELECT 'secret-word' AS told")?;
    for sql in ["SHOW POOL_STATEMENTS", "PGWEIR SHOW STATEMENTS", "PGWEIR RESET STATEMENTS"] {
        assert_eq!(other.sqlstate_of(sql)?, "42501", "{sql}");
    }
    let mut admin = admin(&weir)?;
    row(&mut admin, "as told", "1")?;
    let secret = |rows: &harness::Rows| format!("{rows:?}").contains("secret-word");
    ensure!(!secret(&admin.simple("SHOW POOL_STATEMENTS")?));
    let rows = weir.admin("SHOW STATEMENTS")?;
    let told =
        rows.iter().find(|row| row["statement"].contains("as told")).context("not in the admin database")?;
    assert_eq!(told["calls"], "1");
    // By the extended protocol, too.
    let replies = admin.talk(&msgs().PBE("SHOW POOL_STATEMENTS").S())?;
    ensure!(replies.values().iter().any(|value| value.contains("as told")), "{replies}");
    admin.simple("PGWEIR RESET STATEMENTS")?;
    ensure!(!weir.admin("SHOW STATEMENTS")?.iter().any(|row| row["statement"].contains("as told")));
    admin.scalar(WHERE)?;
    row(&mut admin, "current_setting", "1")?;
    weir.admin("RESET STATEMENTS")?;
    Ok(())
}
