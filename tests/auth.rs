//! Who gets in: methods of clients, methods of servers, and what the secrets in pool_passwd can do.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{
    ClientAuth, Cluster, ClusterOptions, Login, Pgweir, PgweirOptions, RawClient, Reply, ServerAuth,
    eventually, msgs, sqlstate,
};

fn one_node() -> Result<Cluster> {
    Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })
}

/// The SQLSTATE with which a login (and a first statement) fails; empty when it works. Within 1 s.
fn login(port: u16, login: &Login) -> Result<String> {
    let started = Instant::now();
    let outcome = login.connect(port).and_then(|mut client| client.scalar("SELECT current_user"));
    ensure!(started.elapsed() < Duration::from_secs(1), "the login took {:?}", started.elapsed());
    match outcome {
        Ok(_user) => Ok(String::new()),
        Err(error) if sqlstate(&error).is_empty() => Err(error),
        Err(error) => Ok(sqlstate(&error).to_owned()),
    }
}

/// One client method against every server method.
fn matrix(auth: ClientAuth, asks_for: u32) -> Result<()> {
    let cluster = one_node()?;
    for (server, user) in [
        (ServerAuth::Scram, "bench"),
        (ServerAuth::Md5, "bench"),
        (ServerAuth::Md5, "bench_md5"),
        (ServerAuth::Password, "bench"),
        (ServerAuth::Password, "bench_md5"),
        (ServerAuth::Trust, "bench"),
    ] {
        let what = format!("client {auth:?}, server {server:?}, {user}");
        cluster.set_auth(0, server)?;
        let options = PgweirOptions { auth: auth.clone(), ..PgweirOptions::default() };
        let weir = Pgweir::start_with(&cluster, &options)?;
        let right = Login::new(user, "bench").password("bench");
        let mut client = right.connect(weir.port()).with_context(|| what.clone())?;
        let asked = client.greeting.0.first().cloned();
        ensure!(
            matches!(asked, Some(Reply::Authentication { code, .. }) if code == asks_for),
            "{what}: {asked:?}"
        );
        assert_eq!(client.scalar("SELECT current_user")?, user, "{what}");
        if asks_for != 0 {
            assert_eq!(login(weir.port(), &right.clone().password("wrong"))?, "28P01", "{what}");
            assert_eq!(login(weir.port(), &right.clone().password(""))?, "28P01", "{what}");
            assert_eq!(login(weir.port(), &Login::new("nobody", "bench"))?, "28P01", "{what}");
        }
        assert_eq!(login(weir.port(), &Login::new(user, "nowhere").password("bench"))?, "3D000", "{what}");
        assert_eq!(login(weir.port(), &right)?, "", "{what}: after the failures");
    }
    Ok(())
}

#[test]
fn au_01_clients_by_scram_by_default() -> Result<()> {
    matrix(ClientAuth::Default, 10)
}

#[test]
fn au_01_clients_by_scram_by_pool_hba() -> Result<()> {
    matrix(ClientAuth::Method("scram-sha-256"), 10)
}

#[test]
fn au_01_clients_by_md5() -> Result<()> {
    matrix(ClientAuth::Method("md5"), 5)
}

#[test]
fn au_01_clients_by_trust() -> Result<()> {
    matrix(ClientAuth::Method("trust"), 0)
}

/// The secret that a node stores for a role.
fn stored(cluster: &Cluster, role: &str) -> Result<String> {
    cluster.scalar(0, &format!("SELECT rolpassword FROM pg_authid WHERE rolname = '{role}'"))
}

fn with_secret(cluster: &Cluster, user: &str, secret: &str, auth: ClientAuth) -> Result<Pgweir> {
    let passwords = format!("{user}:{secret}\n\"pgweir\":TEXTpgweir\n");
    Pgweir::launch(cluster, &PgweirOptions { auth, passwords: Some(passwords), ..PgweirOptions::default() })
        .and_then(|mut weir| weir.wait_answering().map(|()| weir))
}

#[test]
fn au_01_a_scram_verifier_alone_suffices() -> Result<()> {
    let cluster = one_node()?;
    let weir = with_secret(&cluster, "bench", &stored(&cluster, "bench")?, ClientAuth::Default)?;
    assert_eq!(login(weir.port(), &Login::bench())?, "");
    assert_eq!(login(weir.port(), &Login::bench().password("wrong"))?, "28P01");
    assert_eq!(login(weir.port(), &Login::bench())?, "");
    Ok(())
}

#[test]
fn au_01_an_md5_hash_suffices_for_md5_on_both_sides() -> Result<()> {
    let cluster = one_node()?;
    cluster.set_auth(0, ServerAuth::Md5)?;
    let hash = stored(&cluster, "bench_md5")?;
    let weir = with_secret(&cluster, "bench_md5", &hash, ClientAuth::Method("md5"))?;
    let right = Login::new("bench_md5", "bench").password("bench");
    assert_eq!(login(weir.port(), &right)?, "");
    assert_eq!(login(weir.port(), &right.clone().password("wrong"))?, "28P01");
    Ok(())
}

#[test]
fn au_01_an_impossible_combination_fails_at_login_and_says_why_in_the_log() -> Result<()> {
    let cluster = one_node()?;
    // An md5 hash can never satisfy a server that asks for SCRAM.
    let hash = stored(&cluster, "bench_md5")?;
    let weir = with_secret(&cluster, "bench", &hash, ClientAuth::Method("md5"))?;
    let state = login(weir.port(), &Login::bench())?;
    ensure!(state.starts_with("28") || state.starts_with("08"), "{state:?}");
    // The line is written after the client was told.
    let named = eventually(Duration::from_secs(30), || weir.log().contains("bench"));
    ensure!(named, "the log does not name the user");
    ensure!(!weir.log().contains(&hash), "the secret is in the log");
    Ok(())
}

#[test]
fn au_04_unknown_users_look_like_wrong_passwords() -> Result<()> {
    let cluster = one_node()?;
    let weir = Pgweir::start(&cluster, "")?;
    let challenge_of = |weir: &Pgweir, user: &str| -> Result<(String, String)> {
        let mut client = RawClient::tcp(weir.port())?;
        client.send_bytes(&Login::new(user, "bench").packet())?;
        let offer = client.read_count(1)?;
        let first = b"n,,n=,r=rOprNGfwEbeRWgbNEkqO";
        let body = [&b"SCRAM-SHA-256\0"[..], &(u32::try_from(first.len())?).to_be_bytes(), first].concat();
        client.send(&msgs().message(b'p', &body))?;
        match client.next()? {
            Some(Reply::Authentication { code: 11, data }) => {
                let text = String::from_utf8(data)?;
                let salt = text.split(',').find(|part| part.starts_with("s=")).unwrap_or_default().to_owned();
                Ok((offer.to_string(), salt))
            }
            other => anyhow::bail!("{user}: {other:?} instead of a challenge"),
        }
    };
    let challenge = |user: &str| challenge_of(&weir, user);
    let (known, unknown) = (challenge("bench")?, challenge("nobody")?);
    assert_eq!(known.0, unknown.0);
    assert_eq!(known.1.len(), unknown.1.len(), "salts of different length");
    assert_eq!(unknown, challenge("nobody")?, "the salt of an unknown user changes");
    ensure!(unknown.1 != challenge("nobody2")?.1, "one salt for all unknown users");
    // After a restart too, as those of known users are whose verifier is stored; where the machine has an id.
    if std::fs::read_to_string("/etc/machine-id").is_ok_and(|id| id.trim_end().len() == 32) {
        let again = Pgweir::start(&cluster, "")?;
        assert_eq!(challenge_of(&again, "nobody")?, unknown, "the salt of an unknown user is another one");
        assert_eq!(challenge_of(&again, "bench")?, known, "the salt of a known user is another one");
    }

    let message =
        |login: &Login| login.connect(weir.port()).map(|_| ()).map_err(|error| format!("{error:#}"));
    let wrong = message(&Login::bench().password("x")).expect_err("a wrong password");
    let nobody = message(&Login::new("nobody", "bench")).expect_err("an unknown user");
    assert_eq!(wrong.replace("bench", "nobody"), nobody);
    // Even for a database that is not there the password comes first.
    assert_eq!(login(weir.port(), &Login::new("bench", "nowhere").password("x"))?, "28P01");
    assert_eq!(login(weir.port(), &Login::new("nobody", "nowhere"))?, "28P01");
    Ok(())
}

/// AU-04: by `md5`, where a verifier is stored of most, who is unknown is asked by SCRAM as they are; and where most are
/// asked by md5, by md5.
#[test]
fn au_04_unknown_users_are_asked_as_known_ones() -> Result<()> {
    let cluster = one_node()?;
    let offer = |weir: &Pgweir, user: &str| -> Result<u32> {
        let mut client = RawClient::tcp(weir.port())?;
        client.send_bytes(&Login::new(user, "bench").packet())?;
        match client.next()? {
            Some(Reply::Authentication { code, .. }) => Ok(code),
            other => anyhow::bail!("{user}: {other:?} instead of a request"),
        }
    };
    let hba = || ClientAuth::Hba("host all all all md5\n".into());
    for (secret, asked) in [(stored(&cluster, "bench")?, 10), ("TEXTbench".to_owned(), 5)] {
        let weir = with_secret(&cluster, "bench", &secret, hba())?;
        assert_eq!((offer(&weir, "bench")?, offer(&weir, "nobody")?), (asked, asked));
        assert_eq!(weir.login(&Login::new("nobody", "bench"))?, "28P01");
    }
    Ok(())
}

#[test]
fn pool_hba_decides_by_line() -> Result<()> {
    let cluster = one_node()?;
    let hba = "# type db user address method\n\
               host postgres all 127.0.0.1/32 reject\n\
               host all other 127.0.0.1 255.255.255.255 trust\n\
               host \"bench\" bench 127.0.0.0/8 scram-sha-256\n";
    let options = PgweirOptions { auth: ClientAuth::Hba(hba.into()), ..PgweirOptions::default() };
    let weir = Pgweir::start_with(&cluster, &options)?;
    assert_eq!(login(weir.port(), &Login::bench())?, "");
    assert_eq!(login(weir.port(), &Login::bench().password("x"))?, "28P01");
    assert_eq!(login(weir.port(), &Login::new("other", "bench").password("anything"))?, "");
    assert_eq!(login(weir.port(), &Login::new("bench", "postgres"))?, "28000");
    // No line: refused.
    assert_eq!(login(weir.port(), &Login::new("bench_md5", "bench"))?, "28000");
    Ok(())
}

/// A name that is too long is the one that a server clips it to: it passes by no rule, no secret and no limit.
#[test]
fn au_04_names_that_are_too_long_pass_by_no_rule() -> Result<()> {
    let cluster = one_node()?;
    let shut = "d".repeat(63);
    let named = format!("{}\u{e4}", "r".repeat(61));
    cluster.sql(0, &format!("CREATE DATABASE {shut}"))?;
    cluster.sql(0, &format!("CREATE ROLE \"{named}\" LOGIN PASSWORD 'role'"))?;
    let hba = format!("host {shut} all all reject\nhost all all all scram-sha-256\n");
    let passwords = Some(format!("bench:TEXTbench\npgweir:TEXTpgweir\n{named}:TEXTrole\n"));
    let options = PgweirOptions { auth: ClientAuth::Hba(hba), passwords, ..PgweirOptions::default() };
    let weir = Pgweir::start_with(&cluster, &options)?;
    for more in ["", "x", "xyz", "\u{e4}"] {
        let database = format!("{shut}{more}");
        assert_eq!(login(weir.port(), &Login::new("bench", &database))?, "28000", "{database}");
        let role = Login::new(&format!("{named}{more}"), "bench").password("role");
        let mut client = role.connect(weir.port())?;
        assert_eq!(client.scalar("SELECT current_user")?, named, "{more}");
    }
    Ok(())
}

/// What a client calls itself makes no line of the log, and no order to a terminal.
#[test]
fn names_do_not_write_the_log() -> Result<()> {
    let cluster = one_node()?;
    let auth = ClientAuth::Hba("host all bench all scram-sha-256\nhost all pgweir all trust\n".into());
    let yaml = "log_connections: on\nlog_disconnections: on\n".to_owned();
    let weir = Pgweir::start_with(&cluster, &PgweirOptions { yaml, auth, ..PgweirOptions::default() })?;
    let forged = "joe\n2026-01-01T00:00:00Z  INFO forged\u{1b}[2J";
    assert_eq!(weir.login(&Login::new(forged, "bench"))?, "28000");
    assert_eq!(weir.login(&Login::new("bench", forged))?, "3D000");
    assert_eq!(weir.login(&Login::bench().with("application_name", forged))?, "");
    ensure!(
        eventually(Duration::from_secs(30), || weir.log().contains("client disconnected")),
        "{}",
        weir.log()
    );
    let log = weir.log();
    ensure!(log.contains("forged") && !log.contains('\u{1b}'), "an escape sequence is in the log");
    let forged = log.lines().find(|line| line.starts_with("2026-01-01"));
    ensure!(forged.is_none(), "a line that a client made: {forged:?}");
    Ok(())
}

#[test]
fn secrets_are_not_logged() -> Result<()> {
    let cluster = one_node()?;
    let weir = Pgweir::start(&cluster, "log_level: debug\nlog_connections: on")?;
    assert_eq!(login(weir.port(), &Login::bench())?, "");
    assert_eq!(login(weir.port(), &Login::bench().password("wrong-secret-of-mine"))?, "28P01");
    let log = weir.log();
    for secret in ["TEXTbench", "wrong-secret-of-mine", "SCRAM-SHA-256$"] {
        ensure!(!log.contains(secret), "{secret} is in the log");
    }
    Ok(())
}
