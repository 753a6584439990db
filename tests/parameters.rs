//! What a server says beside its answers: parameters, notices, odd errors, and what comes while nobody asks.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::fake::{FakeServer, message, row};
use harness::{
    Cluster, ClusterOptions, Login, Pgweir, PgweirOptions, RawClient, Reply, eventually, msgs, rig,
};

const SECOND: Duration = Duration::from_secs(1);

/// The fake server's answers, by the statement.
fn odd(sql: &str) -> Option<Vec<u8>> {
    match sql {
        "SELECT version" => Some(row(&[Some("fake")])),
        // No SQLSTATE, letters that nobody knows, a severity in the server's language, no message at all.
        "odd 1" => Some(message(b'E', b"SFEHLER\0VERROR\0MSyntaxfehler bei \xc3\xbc\0xunknown\0Zletter\0\0")),
        "odd 2" => Some(message(b'E', b"SERROR\0\0")),
        "odd 3" => {
            Some(message(b'E', b"SERROR\0CXX999\0Mtext\0Ddetail\nof two lines\0Ffile\0L1\0Rroutine\0\0"))
        }
        "notice" => {
            let notice = message(b'N', b"SHINWEIS\0VNOTICE\0C00000\0Mnot in English\0\0");
            Some([notice, row(&[Some("after")])].concat())
        }
        _ => None,
    }
}

fn before_fake(server: &FakeServer) -> Result<(Cluster, Pgweir)> {
    // The cluster is only a place for pgweir's files.
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let yaml = format!("backends:\n  - {{ hostname: 127.0.0.1, port: {}, weight: 1 }}", server.port());
    let weir = Pgweir::start_with(&cluster, &PgweirOptions::yaml(&yaml).trusting())?;
    Ok((cluster, weir))
}

/// PN-01, PN-02: fields pass as they are, whatever they are.
#[test]
fn pn_01_odd_errors_and_notices_pass_as_they_are() -> Result<()> {
    let server = FakeServer::start(odd)?;
    let (_cluster, weir) = before_fake(&server)?;
    let mut client = weir.client()?;
    for sql in ["odd 1", "odd 2", "odd 3", "notice"] {
        let mut wanted = odd(sql).unwrap_or_default();
        wanted.extend(message(b'Z', b"I"));
        client.send(&msgs().Q(sql))?;
        let mut got = Vec::new();
        while got.len() < wanted.len() {
            let (tag, body) = client.next_raw()?.context("closed")?;
            got.extend(message(tag, &body));
        }
        assert_eq!(got, wanted, "{sql}");
    }
    assert_eq!(client.scalar("SELECT version")?, "fake");
    Ok(())
}

/// PN-04: an upgrade of a node is no error, and its version is told from then on.
#[test]
fn pn_04_the_version_is_the_servers_also_after_an_upgrade() -> Result<()> {
    let server = FakeServer::start(odd)?;
    let (_cluster, weir) = before_fake(&server)?;
    let mut old = weir.client()?;
    assert_eq!(old.parameters["server_version"], "15.4");
    assert_eq!(old.scalar("SELECT version")?, "fake");
    server.set_parameter("server_version", "15.5");
    server.set_parameter("new_in_this_version", "on");
    server.hang_up();
    // The old client goes on over a new backend; new ones hear of the new version.
    ensure!(eventually(5 * SECOND, || old.scalar("SELECT version").is_ok_and(|text| text == "fake")));
    let told = || -> Result<(String, Option<String>)> {
        let client = weir.client()?;
        Ok((
            client.parameters["server_version"].clone(),
            client.parameters.get("new_in_this_version").cloned(),
        ))
    };
    let upgraded = || told().is_ok_and(|told| told == ("15.5".to_owned(), Some("on".to_owned())));
    ensure!(eventually(5 * SECOND, upgraded), "{:?}", told()?);
    Ok(())
}

/// PN-04: the set that is told is the server's, no more and no less.
#[test]
fn pn_04_the_set_of_parameters_is_the_servers() -> Result<()> {
    let (cluster, weir) = rig(1, "")?;
    for login in [Login::bench(), Login::bench().with("TimeZone", "Asia/Tokyo").with("DateStyle", "German")] {
        let names = |client: RawClient| client.parameters.into_keys().collect::<Vec<_>>();
        let (direct, through) = (names(login.connect(cluster.port(0))?), names(login.connect(weir.port())?));
        assert_eq!(through, direct);
    }
    Ok(())
}

/// SL-08: a default that the administrator changes is everybody's from the next backend on, and nothing sets it back.
#[test]
fn sl_08_a_new_default_of_the_role_or_the_database_shows() -> Result<()> {
    let (cluster, weir) = rig(0, "")?;
    let zone = |client: &RawClient| client.parameters.get("TimeZone").cloned().unwrap_or_default();
    let mut old = weir.client()?;
    let before = old.scalar("SHOW TimeZone")?;
    for (change, zone_now) in [
        ("ALTER DATABASE bench SET TimeZone = 'Asia/Tokyo'", "Asia/Tokyo"),
        ("ALTER ROLE bench SET TimeZone = 'Europe/Lisbon'", "Europe/Lisbon"),
        ("ALTER ROLE bench RESET TimeZone", "Asia/Tokyo"),
        ("ALTER DATABASE bench RESET TimeZone", before.as_str()),
    ] {
        cluster.setup(change)?;
        weir.admin("RECONNECT")?;
        let mut first = weir.client()?;
        assert_eq!(first.scalar("SHOW TimeZone")?, zone_now, "{change}");
        let mut second = weir.client()?;
        assert_eq!(zone(&second), zone_now, "{change}: the greeting");
        assert_eq!(second.scalar("SHOW TimeZone")?, zone_now, "{change}");
        // Who has its own keeps it.
        let mut own = Login::bench().with("TimeZone", "America/Lima").connect(weir.port())?;
        assert_eq!(own.scalar("SHOW TimeZone")?, "America/Lima", "{change}");
        assert_eq!(old.scalar("SHOW TimeZone")?, zone_now, "{change}: its next backend is a new one");
    }
    Ok(())
}

/// PN-05: names of every kind are shown as the server shows them, for the client that uses the backend now.
#[test]
fn pn_05_application_names_are_the_clients() -> Result<()> {
    // More than one: a SET with a backslash in it is not read, and pins.
    let (cluster, weir) = rig(0, "default_pool_size: 4")?;
    let long = "n".repeat(200);
    let names = [
        "",
        "plain",
        long.as_str(),
        "it's \"quoted\"",
        "back\\slash",
        "ünïcödé",
        "'; DROP TABLE t; --",
        "tab\there",
        "$$dollar$$",
        " spaces ",
    ];
    let shown = "SELECT application_name || '|' || current_setting('application_name') FROM pg_stat_activity \
                 WHERE pid = pg_backend_pid()";
    let mut other = Login::bench().with("application_name", "other").connect(weir.port())?;
    for name in names {
        let login = Login::bench().with("application_name", name);
        let (mut direct, mut through) = (login.connect(cluster.port(0))?, login.connect(weir.port())?);
        for _ in 0..2 {
            assert_eq!(through.scalar(shown)?, direct.scalar(shown)?, "{name:?}");
            assert_eq!(other.scalar(shown)?, "other|other");
        }
        assert_eq!(through.parameters["application_name"], direct.parameters["application_name"], "{name:?}");
        // By SET in mid-session.
        let set = format!("SET application_name = '{}'", name.replace('\'', "''"));
        for client in [&mut direct, &mut through] {
            client.simple("SET application_name = 'between'")?;
            client.simple(&set)?;
        }
        assert_eq!(other.scalar(shown)?, "other|other");
        assert_eq!(through.scalar(shown)?, direct.scalar(shown)?, "{name:?} by SET");
        assert_eq!(
            through.parameters["application_name"], direct.parameters["application_name"],
            "{name:?} by SET"
        );
    }
    Ok(())
}

/// PN-02: notices of every level, on one backend for two clients.
#[test]
fn pn_02_debug_notices_stay_with_who_asked_for_them() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 1")?;
    cluster.setup(
        "CREATE FUNCTION shout() RETURNS void LANGUAGE plpgsql AS $$BEGIN RAISE DEBUG 'd'; RAISE LOG 'l'; \
         RAISE INFO 'i'; RAISE NOTICE 'n'; RAISE WARNING 'w'; END$$",
    )?;
    let (mut a, mut b) = (weir.client()?, weir.client()?);
    a.simple("SET client_min_messages = debug1")?;
    let raise = |client: &mut RawClient| -> Result<String> {
        let replies = client.talk(&msgs().Q("SELECT shout()"))?;
        let texts =
            replies.0.iter().filter_map(|r| if let Reply::Notice(f) = r { Some(f.get('M')) } else { None });
        Ok(texts.filter(|text| text.len() == 1).collect())
    };
    for _ in 0..3 {
        assert_eq!(raise(&mut a)?, "dlinw");
        assert_eq!(raise(&mut b)?, "inw");
    }
    Ok(())
}

/// What comes while nobody asks goes to the client that holds the backend, and to nobody where nobody does.
#[test]
fn pn_02_what_comes_while_the_client_is_idle() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 2")?;
    let (mut pinned, mut free) = (weir.client()?, weir.client()?);
    pinned.simple("CREATE TEMP TABLE mine(id int)")?;
    free.simple("SELECT 1")?;
    // A changed default is reported with the next answer, and a client without a backend hears of it as well.
    let mut direct = cluster.direct(0)?;
    cluster.sql(0, "ALTER SYSTEM SET TimeZone = 'Asia/Tokyo'")?;
    cluster.sql(0, "SELECT pg_reload_conf()")?;
    let shows = || direct.scalar("SHOW TimeZone").is_ok_and(|zone| zone == "Asia/Tokyo");
    ensure!(eventually(3 * SECOND, shows));
    ensure!(free.silent_for(Duration::from_millis(200))?, "a client without a backend was told something");
    for client in [&mut pinned, &mut free] {
        let replies =
            client.talk(&msgs().Q("SELECT 'in step'"))?.to_string().replace("S(TimeZone=Asia/Tokyo) ", "");
        assert_eq!(replies, "T D(in step) C(SELECT 1) Z(I)");
        let told =
            |client: &mut RawClient| client.scalar("SHOW TimeZone").is_ok_and(|zone| zone == "Asia/Tokyo");
        ensure!(eventually(3 * SECOND, || told(client)));
        assert_eq!(client.parameters["TimeZone"], "Asia/Tokyo", "not told of what holds");
    }
    assert_eq!(weir.client()?.parameters["TimeZone"], "Asia/Tokyo", "a new client is told what was");
    // Terminated while idle: who holds the backend hears the server's words, nobody else notices.
    cluster.sql(0, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'bench'")?;
    cluster.wait_scalar(
        0,
        "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench'",
        "0",
        3 * SECOND,
    )?;
    let farewell = pinned.read_to_end()?;
    let fields = farewell.error().context("no farewell")?;
    assert_eq!((fields.get('V'), fields.get('C')), ("FATAL", "57P01"));
    assert_eq!(free.scalar("SELECT 'unharmed'")?, "unharmed");
    Ok(())
}

/// PN-02: ten thousand notices to a client that does not read do not fill pgweir.
#[test]
fn pn_02_notices_to_a_client_that_does_not_read() -> Result<()> {
    let (_cluster, weir) = rig(0, "default_pool_size: 2")?;
    let mut client = weir.client()?;
    client.simple("SELECT 1")?;
    let before = weir.rss_kb()?;
    client.send(
        &msgs().Q("DO $$BEGIN FOR i IN 1..200000 LOOP RAISE NOTICE '%', repeat('n', 500); END LOOP; END$$"),
    )?;
    std::thread::sleep(SECOND);
    ensure!(weir.rss_kb()? < before + 4096, "{} kB after {before} kB", weir.rss_kb()?);
    assert_eq!(weir.client()?.scalar("SELECT 'served'")?, "served");
    client.set_deadline(60 * SECOND);
    let mut notices = 0;
    loop {
        match client.skip_message()?.context("closed")? {
            (b'N', _) => notices += 1,
            (b'Z', _) => break,
            _ => {}
        }
    }
    assert_eq!(notices, 200_000);
    Ok(())
}

/// What a function sets out of sight shows in what the server reports: it is the client's own from then on, and nobody
/// else's.
#[test]
fn sl_07_what_a_function_sets_out_of_sight_stays_with_its_client() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 1")?;
    cluster.setup(
        "CREATE FUNCTION hidden(zone text, local bool) RETURNS text LANGUAGE plpgsql AS
         $$ BEGIN RETURN set_config('TimeZone', zone, local); END $$",
    )?;
    let (mut one, mut other) = (weir.client()?, weir.client()?);
    let default = other.scalar("SHOW TimeZone")?;
    let show = |client: &mut RawClient| client.scalar("SHOW TimeZone");
    let told = |client: &RawClient| client.parameters["TimeZone"].clone();
    one.simple("SELECT hidden('Asia/Tokyo', false)")?;
    for _ in 0..2 {
        assert_eq!((show(&mut other)?, told(&other)), (default.clone(), default.clone()));
        assert_eq!((show(&mut one)?, told(&one)), ("Asia/Tokyo".to_owned(), "Asia/Tokyo".to_owned()));
    }
    assert_eq!(weir.client()?.parameters["TimeZone"], default, "a new client is told the default");
    // Over its own setting, by the extended protocol.
    other.simple("SET TimeZone = 'Europe/Lisbon'")?;
    assert_eq!(show(&mut one)?, "Asia/Tokyo");
    let m = msgs();
    let set = m.P("", "SELECT hidden('America/Lima', false)").B("", "", &[]).E().S();
    other.talk(&set)?;
    assert_eq!((show(&mut one)?, show(&mut other)?), ("Asia/Tokyo".to_owned(), "America/Lima".to_owned()));
    // For its transaction only, and undone with it: nothing of it stays.
    one.simple("BEGIN; SELECT hidden('Europe/Paris', true); COMMIT")?;
    assert_eq!(show(&mut other)?, "America/Lima");
    assert_eq!(show(&mut one)?, "Asia/Tokyo");
    one.simple("BEGIN")?;
    one.simple("SELECT hidden('Europe/Paris', false)")?;
    one.simple("ROLLBACK")?;
    assert_eq!((show(&mut other)?, show(&mut one)?), ("America/Lima".to_owned(), "Asia/Tokyo".to_owned()));
    one.simple("RESET TimeZone")?;
    other.simple("DISCARD ALL")?;
    assert_eq!((show(&mut one)?, show(&mut other)?), (default.clone(), default.clone()));
    Ok(())
}

/// Who the session is, when a function has changed it, is its client's as well, and nobody else's.
#[test]
fn sl_07_a_role_that_a_function_takes_is_its_clients() -> Result<()> {
    let (cluster, weir) = rig(0, "default_pool_size: 1")?;
    cluster.setup(
        "CREATE FUNCTION rise() RETURNS text LANGUAGE plpgsql AS
         $$ BEGIN RETURN set_config('role', 'postgres', false); END $$;
         GRANT postgres TO bench",
    )?;
    let (mut one, mut other) = (weir.client()?, weir.client()?);
    one.simple("SELECT rise()")?;
    for _ in 0..2 {
        assert_eq!(other.scalar("SELECT current_user")?, "bench");
        assert_eq!(one.scalar("SELECT current_user")?, "postgres");
    }
    one.simple("RESET ROLE")?;
    assert_eq!(one.scalar("SELECT current_user")?, "bench");
    Ok(())
}
