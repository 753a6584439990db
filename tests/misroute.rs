//! What a standby would accept and do wrongly is refused in a transaction that is bound to one; what pgweir
//! answers itself keeps its place there.

use anyhow::{Result, ensure};
use harness::{WHERE, msgs, rig};

const SILENT: [&str; 5] = [
    "SELECT pg_advisory_lock(7)",
    "SELECT set_config('work_mem', '3MB', false)",
    "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
    "LOCK TABLE t IN ACCESS SHARE MODE",
    "PREPARE p AS INSERT INTO t VALUES (1)",
];

#[test]
fn rw_11_silent_misroutes_fail_in_a_read_only_transaction_on_a_standby() -> Result<()> {
    let (cluster, weir) = rig(1, "")?;
    cluster.setup("CREATE TABLE t(id int); GRANT ALL ON t TO bench")?;
    for sql in SILENT {
        let mut client = weir.client()?;
        for extended in [false, true] {
            client.simple("BEGIN READ ONLY")?;
            assert_eq!(client.scalar(WHERE)?, "n1");
            let message = if extended { msgs().PBE(sql).PBE("SELECT 1").S() } else { msgs().Q(sql) };
            let replies = client.talk(&message)?;
            let expected = if extended { "1 E(25006) Z(E)" } else { "E(25006) Z(E)" };
            assert_eq!(replies.to_string(), expected, "{sql}");
            assert_eq!(client.sqlstate_of("SELECT 1")?, "25P02", "{sql}");
            client.simple("ROLLBACK")?;
        }
        // As the first statement it goes to the primary, which knows what to do with it.
        client.simple("BEGIN READ ONLY")?;
        let refused = client.talk(&msgs().Q(sql))?.to_string();
        ensure!(!refused.contains("25006") || sql.contains("INSERT"), "{sql}: {refused}");
        client.simple("ROLLBACK")?;
    }
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(cluster.scalar(1, locks)?, "0", "a lock on the standby");
    let mut client = weir.client()?;
    client.simple("BEGIN READ ONLY")?;
    assert_eq!(client.scalar(WHERE)?, "n1");
    assert_eq!(client.scalar("SELECT 5")?, "5", "reads go on");
    client.simple("COMMIT")?;
    Ok(())
}

#[test]
fn show_pool_nodes_keeps_its_place_and_harms_nothing() -> Result<()> {
    let (_cluster, weir) = rig(1, "")?;
    let mut client = weir.client()?;
    // Pinned.
    client.simple("CREATE TEMP TABLE x(a int)")?;
    let pinned = client.talk(&msgs().Q("SHOW POOL_NODES").Q("SELECT count(*) FROM x"))?.to_string();
    ensure!(pinned.ends_with("C(SHOW) Z(I) T D(0) C(SELECT 1) Z(I)"), "{pinned}");
    // Behind an error it is ignored with the rest.
    let mut client = weir.client()?;
    let batch = msgs().PBE("SELECT nothing").PBE("SHOW POOL_NODES").S().Q("SELECT 1");
    assert_eq!(client.talk(&batch)?.to_string(), "E(42703) Z(I) T D(1) C(SELECT 1) Z(I)");
    // In a failed transaction the status is told as it is.
    client.simple("BEGIN")?;
    assert_eq!(client.sqlstate_of("SELECT nothing")?, "42703");
    let failed = client.talk(&msgs().Q("SHOW POOL_NODES"))?.to_string();
    ensure!(failed.ends_with("Z(E)"), "{failed}");
    client.simple("ROLLBACK")?;
    // A console command that is wrong ends its batch and nothing else.
    client.simple("BEGIN")?;
    assert_eq!(client.scalar("SELECT 1")?, "1");
    let wrong = client.talk(&msgs().PBE("SHOW POOL_NONSENSE").PBE("SELECT 2").S())?.to_string();
    ensure!(wrong.starts_with("E(") && wrong.ends_with(") Z(T)") && !wrong.contains("D("), "{wrong}");
    assert_eq!(client.scalar("SELECT 3")?, "3");
    client.simple("COMMIT")?;
    // A batch in pieces, the portal made before the others.
    client.send(&msgs().P("n", "SHOW POOL_NODES").B("", "n", &[]).D('P', "").H())?;
    assert_eq!(client.read_count(3)?.to_string(), "1 2 T");
    let rest = client.talk(&msgs().E().S())?.to_string();
    ensure!(rest.starts_with("D(0,") && rest.ends_with("C(SHOW) Z(I)"), "{rest}");
    // Its name is taken as any other.
    assert_eq!(client.talk(&msgs().P("n", "SELECT 1").S())?.to_string(), "E(42P05) Z(I)");
    assert_eq!(client.talk(&msgs().P("n", "SHOW POOL_NODES").S())?.to_string(), "E(42P05) Z(I)");
    // An unfinished batch is ended by a simple query.
    let mixed = client.talk(&msgs().PBE("SELECT 4").Q("SHOW POOL_NODES"))?.to_string();
    ensure!(mixed.starts_with("1 2 D(4) C(SELECT 1) T D(0,") && mixed.ends_with("C(SHOW) Z(I)"), "{mixed}");
    assert_eq!(client.scalar("SELECT 1")?, "1");
    Ok(())
}
