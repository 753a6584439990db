//! Users who are not in pool_passwd: `auth_query`; and secrets that only a key opens.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::eventually;
use harness::messages::startup;
use harness::{
    ClientAuth, Cluster, ClusterOptions, Login, Pgweir, PgweirOptions, RawClient, Reply, ServerAuth,
};
use rustix::process::Signal;

/// The one of docs/security.md.
const QUERY: &str = "SELECT rolname, CASE WHEN rolcanlogin AND (rolvaliduntil IS NULL OR rolvaliduntil > now()) \
                     THEN rolpassword END FROM pg_authid WHERE rolname = $1";

fn one_node() -> Result<Cluster> {
    Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })
}

/// Only those who are needed for the lookup and the checks are in pool_passwd.
fn asking(cluster: &Cluster, query: &str, yaml: &str) -> Result<Pgweir> {
    cluster.sql(0, "ALTER ROLE other SUPERUSER")?;
    let yaml = format!(
        "auth_query: \"{}\"\nauth_user: other\nauth_dbname: bench\nauth_query_cache_period: 1s\n{yaml}",
        query.replace('"', "\\\"")
    );
    let passwords = Some("other:TEXTother\npgweir:TEXTpgweir\n".to_owned());
    let options = PgweirOptions { yaml, passwords, ..PgweirOptions::default() };
    // Nobody but those in the file may get in: readiness is not found out by a login.
    let mut weir = Pgweir::launch(cluster, &options)?;
    weir.wait_ready()?;
    Ok(weir)
}

fn becomes(weir: &Pgweir, who: &Login, wanted: &str, what: &str) -> Result<()> {
    let mut last = String::new();
    // A cache period of 1 s, and what doubts it has.
    let there = eventually(Duration::from_secs(30), || {
        std::thread::sleep(Duration::from_millis(200));
        last = weir.login(who).unwrap_or_else(|error| format!("{error:#}"));
        last == wanted
    });
    ensure!(there, "{what}: {last:?}, not {wanted:?}");
    Ok(())
}

/// AU-05: what changes on the node holds for new logins within a cache period, however warm the pool is; who is in
/// goes on.
#[test]
fn au_05_role_changes_are_noticed_by_the_lookup() -> Result<()> {
    let cluster = one_node()?;
    let weir = asking(&cluster, QUERY, "")?;
    let (old, new) = (Login::bench(), Login::bench().password("new"));
    let mut stays = old.connect(weir.port())?;
    assert_eq!(weir.login(&old)?, "");
    assert_eq!(weir.login(&old.clone().password("wrong"))?, "28P01");

    cluster.sql(0, "ALTER ROLE bench PASSWORD 'new'")?;
    becomes(&weir, &old, "28P01", "the old password")?;
    becomes(&weir, &new, "", "the new password")?;
    cluster.sql(0, "ALTER ROLE bench VALID UNTIL '2001-01-01'")?;
    becomes(&weir, &new, "28P01", "an expired role")?;
    cluster.sql(0, "ALTER ROLE bench VALID UNTIL 'infinity'")?;
    becomes(&weir, &new, "", "a role that is valid again")?;
    cluster.sql(0, "ALTER ROLE bench NOLOGIN")?;
    becomes(&weir, &new, "28P01", "NOLOGIN")?;
    assert_eq!(stays.scalar("SELECT current_user")?, "bench");
    cluster.sql(0, "ALTER ROLE bench LOGIN")?;
    becomes(&weir, &new, "", "LOGIN")?;

    let fresh = Login::new("fresh", "bench");
    assert_eq!(weir.login(&fresh)?, "28P01");
    cluster.sql(0, "CREATE ROLE fresh LOGIN PASSWORD 'fresh'")?;
    becomes(&weir, &fresh, "", "a new role")?;
    cluster.sql(0, "DROP ROLE fresh")?;
    becomes(&weir, &fresh, "28P01", "a dropped role")?;
    Ok(())
}

/// AU-05: with a static file what it says holds until it is read again.
#[test]
fn au_05_a_static_file_holds_until_it_is_read_again() -> Result<()> {
    let cluster = one_node()?;
    let weir = Pgweir::start(&cluster, "")?;
    assert_eq!(weir.login(&Login::bench())?, "");
    cluster.sql(0, "ALTER ROLE bench PASSWORD 'new'")?;
    let text =
        fs::read_to_string(weir.dir().join("pool_passwd"))?.replace("bench:TEXTbench", "bench:TEXTnew");
    fs::write(weir.dir().join("pool_passwd"), text)?;
    weir.signal(Signal::HUP);
    becomes(&weir, &Login::bench(), "28P01", "the old password")?;
    becomes(&weir, &Login::bench().password("new"), "", "the new password")
}

/// AU-08: names are parameters, settings of clients come later, and answers that are none let nobody in.
#[test]
fn au_08_lookups_of_hostile_input() -> Result<()> {
    let cluster = one_node()?;
    cluster.sql(
        0,
        "CREATE TABLE victim (a int); CREATE SCHEMA evil; \
         CREATE FUNCTION evil.no(name, text) RETURNS bool LANGUAGE plpgsql AS \
         $$ BEGIN RAISE EXCEPTION 'evil was called'; END $$; \
         CREATE OPERATOR evil.= (leftarg = name, rightarg = text, function = evil.no)",
    )?;
    let weir = asking(&cluster, QUERY, "")?;
    for name in ["x'; DROP TABLE victim; --", "\"", "$1", "a\\b", "é'\u{1}", &"n".repeat(2000)] {
        assert_eq!(weir.login(&Login::new(name, "bench"))?, "28P01", "{name}");
    }
    let evil = Login::bench()
        .with("search_path", "evil, pg_catalog")
        .with("options", "-c search_path=evil,pg_catalog");
    assert_eq!(weir.login(&evil)?, "");
    assert_eq!(cluster.scalar(0, "SELECT count(*) FROM victim")?, "0");
    ensure!(
        !cluster.log(0)?.contains("ERROR:  evil was called"),
        "the client's search_path reached the lookup"
    );
    let path = "SELECT count(*)::text FROM pg_stat_activity WHERE application_name = 'pgweir auth_query'";
    ensure!(cluster.scalar(0, path)? != "0", "no connection of the lookup's own");
    Ok(())
}

/// AU-08: what a lookup may answer, and that the reason is in the log only.
#[test]
fn au_08_answers_of_lookups() -> Result<()> {
    let cluster = one_node()?;
    for (query, code, told) in [
        ("SELECT rolname, rolpassword FROM pg_authid WHERE rolname = $1 AND false", "28P01", ""),
        ("SELECT $1::text, NULL::text", "28P01", ""),
        ("SELECT rolname, rolpassword FROM pg_authid WHERE $1 <> ''", "08006", "more than one row"),
        ("SELECT 'other', rolpassword FROM pg_authid WHERE rolname = $1", "08006", "another user's row"),
        ("SELECT $1::text, '********'", "08006", "neither md5 nor SCRAM"),
        ("SELECT $1::text, rolpassword, 1 FROM pg_authid WHERE rolname = $1", "08006", "number of columns"),
        ("SELECT $1::text, 1/0", "08006", "division by zero"),
        ("SELECT $1 nonsense from", "08006", "syntax error"),
        ("CREATE TABLE a AS SELECT $1::text, 'x'", "08006", "read-only"),
    ] {
        let weir = asking(&cluster, query, "")?;
        assert_eq!(weir.login(&Login::bench())?, code, "{query}");
        let logged = eventually(Duration::from_secs(30), || weir.log().contains(told));
        ensure!(logged, "{query}: {told:?} is not in the log");
        assert_eq!(weir.login(&Login::new("other", "bench"))?, "", "{query}: who is in the file");
    }
    Ok(())
}

/// AU-08: a lookup that hangs ends, and keeps nobody else out.
#[test]
fn au_08_a_lookup_that_hangs() -> Result<()> {
    let cluster = one_node()?;
    let weir = asking(&cluster, "SELECT $1::text, pg_sleep(60)::text", "")?;
    let mut slow = RawClient::tcp(weir.port())?;
    slow.set_deadline(Duration::from_secs(8));
    slow.send_bytes(&Login::bench().packet())?;
    let started = Instant::now();
    assert_eq!(weir.login(&Login::new("other", "bench"))?, "");
    ensure!(started.elapsed() < Duration::from_secs(2), "who is in the file waits too");
    let end = slow.read_to_end()?;
    assert_eq!(end.error().map(|fields| fields.get('C').to_owned()).unwrap_or_default(), "08006");
    Ok(())
}

/// AU-01: through the lookup every kind of secret logs in to the node too, md5 and SCRAM; and a standby answers as
/// well as the primary.
#[test]
fn au_01_secrets_of_the_lookup_serve_for_the_nodes() -> Result<()> {
    let cluster = one_node()?;
    cluster.set_auth(0, ServerAuth::Md5)?;
    let weir = asking(&cluster, QUERY, "")?;
    for user in ["bench", "bench_md5"] {
        assert_eq!(weir.login(&Login::new(user, "bench").password("bench"))?, "", "{user}");
        assert_eq!(weir.login(&Login::new(user, "bench").password("x"))?, "28P01", "{user}");
    }
    Ok(())
}

/// TL-01: with a lookup in the path the version is negotiated once.
#[test]
fn tl_01_one_negotiation_with_a_lookup() -> Result<()> {
    let cluster = one_node()?;
    let weir = asking(&cluster, QUERY, "")?;
    for _ in 0..2 {
        let mut client = RawClient::tcp(weir.port())?;
        let params = [("user", "bench"), ("database", "bench"), ("_pq_.foo", "1")];
        client.send_bytes(&startup((3 << 16) | 9999, &params))?;
        let first = client.read_count(2)?;
        let negotiations = first.0.iter().filter(|reply| matches!(reply, Reply::Negotiate { .. })).count();
        assert_eq!(negotiations, 1, "{first}");
    }
    Ok(())
}

/// AES secrets: made by `pgweir passwd`, opened with the key, and no other.
#[test]
fn aes_secrets_are_passwords() -> Result<()> {
    let cluster = one_node()?;
    let root = cluster.root().join("keys");
    fs::create_dir(&root)?;
    let private = |name: &str, text: &str| -> Result<String> {
        fs::write(root.join(name), text)?;
        fs::set_permissions(root.join(name), std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        Ok(root.join(name).display().to_string())
    };
    let key = private("key", "a key of many words\n")?;
    let line = passwd(&["bench", "--method", "aes", "--key-file", &key], "bench")?;
    ensure!(line.starts_with("bench:AES") && !line.contains("TEXT"), "{line}");
    let passwords = Some(format!("{line}\npgweir:TEXTpgweir\n"));
    let options =
        PgweirOptions { passwords, yaml: format!("pool_key_file: {key}\n"), ..PgweirOptions::default() };
    let weir = Pgweir::start_with(&cluster, &options)?;
    assert_eq!(weir.login(&Login::bench())?, "");
    assert_eq!(weir.login(&Login::bench().password("x"))?, "28P01");

    private("key", "another key\n")?;
    weir.signal(Signal::HUP);
    let told = "pool_passwd:1: secret: found an AES secret that the key does not open";
    ensure!(eventually(Duration::from_secs(30), || weir.log().contains(told)), "the wrong key is not told");
    assert_eq!(weir.login(&Login::bench())?, "", "a refused reload changes nothing");
    Ok(())
}

/// Every kind of line that `pgweir passwd` makes lets its user in.
#[test]
fn au_01_lines_of_pgweir_passwd() -> Result<()> {
    let cluster = one_node()?;
    for (method, auth) in [("scram", "scram-sha-256"), ("md5", "md5"), ("text", "md5")] {
        let line = passwd(&["bench", "--method", method], "bench")?;
        cluster.set_auth(0, ServerAuth::Trust)?;
        let options = PgweirOptions {
            passwords: Some(format!("{line}\npgweir:TEXTpgweir\n")),
            auth: ClientAuth::Method(auth),
            ..PgweirOptions::default()
        };
        let weir = Pgweir::start_with(&cluster, &options)?;
        assert_eq!(weir.login(&Login::bench())?, "", "{method}");
        assert_eq!(weir.login(&Login::bench().password("x"))?, "28P01", "{method}");
    }
    Ok(())
}

fn passwd(args: &[&str], password: &str) -> Result<String> {
    use std::io::Write as _;
    let mut child = Command::new(harness::pgweir::binary()?)
        .arg("passwd")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    child.stdin.take().context("stdin")?.write_all(format!("{password}\n").as_bytes())?;
    let out = child.wait_with_output()?;
    ensure!(out.status.success(), "pgweir passwd {args:?}: {}", out.status);
    Ok(String::from_utf8(out.stdout)?.trim_end().to_owned())
}
