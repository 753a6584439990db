//! TLS to clients and to nodes: who may, who must, whose certificate.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::client::SSL_REQUEST;
use harness::{
    ClientAuth, Cluster, ClusterOptions, Login, Output, Pgweir, PgweirOptions, Pki, RawClient, Replies,
    Signature, TlsOffer, eventually, msgs, pgbench, sqlstate,
};
use rustix::process::Signal;
use tokio_rustls::rustls::SupportedProtocolVersion;
use tokio_rustls::rustls::version::{TLS12, TLS13};

fn one_node() -> Result<Cluster> {
    Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })
}

/// An authority and a certificate `weir` for 127.0.0.1.
fn authority(cluster: &Cluster, name: &str, signature: Signature) -> Result<Pki> {
    let pki = Pki::new(cluster.root(), name, signature)?;
    pki.issue("weir", "/CN=weir", "IP:127.0.0.1,DNS:localhost", 10)?;
    Ok(pki)
}

fn server_yaml(pki: &Pki, ssl: &str) -> String {
    format!("ssl: {ssl}\nssl_cert: {}\nssl_key: {}\n", pki.path("weir.crt"), pki.path("weir.key"))
}

fn weir_with(cluster: &Cluster, yaml: &str, hba: &str) -> Result<Pgweir> {
    let auth = if hba.is_empty() { ClientAuth::Default } else { ClientAuth::Hba(hba.to_owned()) };
    Pgweir::start_with(cluster, &PgweirOptions { yaml: yaml.to_owned(), auth, ..PgweirOptions::default() })
}

/// psql with a connection string over 127.0.0.1.
fn psql(cluster: &Cluster, port: u16, more: &str, command: &str) -> Result<Output> {
    let mut psql = cluster.install().client("psql");
    let conninfo = format!("host=127.0.0.1 port={port} dbname=bench user=bench {more}");
    psql.args(["-X", "-At", "-d", &conninfo, "-c", command]);
    harness::tools::run(cluster, psql, Duration::from_secs(20))
}

/// The message of the error; empty when there is none.
fn last_words(replies: &Replies) -> String {
    replies.error().map(|fields| fields.get('M').to_owned()).unwrap_or_default()
}

/// How psql came in: `tls`, `plain`, or nothing.
fn came_in(out: &Output) -> &'static str {
    match (out.code, out.stdout.contains("SSL connection")) {
        (0, true) => "tls",
        (0, false) => "plain",
        _ => "",
    }
}

/// TL-04: client mode x `ssl` x rule, as libpq against PostgreSQL.
#[test]
fn tl_04_every_mode_of_clients() -> Result<()> {
    let cluster = one_node()?;
    let pki = authority(&cluster, "pki", Signature::Sha256)?;
    let root = format!("sslrootcert={}", pki.path("ca.crt"));
    for ssl in ["off", "allow", "require"] {
        for rule in ["host", "hostssl", "hostnossl"] {
            let hba = format!(
                "{rule} all all 127.0.0.1/32 scram-sha-256\nhost postgres,pgweir all all scram-sha-256\n"
            );
            // Readiness is asked for in the clear, which not all of these take.
            let auth = ClientAuth::Hba(hba);
            let yaml = server_yaml(&pki, ssl);
            let options = PgweirOptions { yaml, auth, ..PgweirOptions::default() };
            let mut weir = Pgweir::launch(&cluster, &options)?;
            weir.wait_ready()?;
            let plain = ssl != "require" && rule != "hostssl";
            let tls = ssl != "off" && rule != "hostnossl";
            for (mode, attempts) in [
                ("disable", &["plain"][..]),
                ("allow", &["plain", "tls"]),
                ("prefer", &["tls", "plain"]),
                ("require", &["tls"]),
                ("verify-ca", &["tls"]),
                ("verify-full", &["tls"]),
            ] {
                let verify = if mode.starts_with("verify") { root.as_str() } else { "" };
                let out = psql(&cluster, weir.port(), &format!("sslmode={mode} {verify}"), "\\conninfo")?;
                let open = |way: &&str| if **way == *"tls" { tls } else { plain };
                let wanted = attempts.iter().copied().find(open).unwrap_or_default();
                let what = format!("ssl {ssl}, {rule}, sslmode {mode}: {out:?}");
                assert_eq!(came_in(&out), wanted, "{what}");
                ensure!(wanted.is_empty() != out.stderr.is_empty(), "{what}");
            }
        }
    }
    Ok(())
}

/// TL-04: the client finds out that it does not speak with us.
#[test]
fn tl_04_clients_verify_our_certificate() -> Result<()> {
    let cluster = one_node()?;
    let pki = authority(&cluster, "pki", Signature::Sha256)?;
    let other = authority(&cluster, "other", Signature::Sha256)?;
    let weir = weir_with(&cluster, &server_yaml(&pki, "allow"), "")?;
    let with = |root: &Pki, more: &str| {
        let root = root.path("ca.crt");
        psql(&cluster, weir.port(), &format!("sslrootcert={root} {more}"), "\\conninfo")
    };
    assert_eq!(came_in(&with(&pki, "sslmode=verify-full")?), "tls");
    let out = with(&other, "sslmode=verify-ca")?;
    ensure!(out.code != 0 && out.stderr.contains("certificate verify failed"), "{out:?}");
    let out = with(&pki, "sslmode=verify-full host=nowhere.example hostaddr=127.0.0.1")?;
    ensure!(out.code != 0 && out.stderr.contains("does not match host name"), "{out:?}");
    Ok(())
}

/// TL-03: direct TLS works with the right ALPN only.
#[test]
fn tl_03_direct_tls() -> Result<()> {
    let cluster = one_node()?;
    let pki = authority(&cluster, "pki", Signature::Sha256)?;
    let weir = weir_with(&cluster, &server_yaml(&pki, "allow"), "")?;
    static EACH: [&[&SupportedProtocolVersion]; 2] = [&[&TLS12], &[&TLS13]];
    for versions in EACH {
        let mut client = RawClient::tcp(weir.port())?;
        client.secure(&TlsOffer { versions, ..TlsOffer::default() })?;
        client.log_in(&Login::bench())?;
        assert_eq!(client.scalar("SELECT 7")?, "7");
        // TLS is there already: another request is a protocol version that does not exist.
        let mut client = RawClient::tcp(weir.port())?;
        client.secure(&TlsOffer { versions, ..TlsOffer::default() })?;
        client.send_bytes(&SSL_REQUEST)?;
        let said = last_words(&client.read_to_end()?);
        ensure!(said.contains("unsupported frontend protocol"), "{said}");
    }
    let mut client = RawClient::tcp(weir.port())?;
    client.secure(&TlsOffer { alpn: vec![], ..TlsOffer::default() })?;
    // The handshake is done; what comes then is the end.
    let _closed_already = client.send_bytes(&Login::bench().packet());
    let replies = client.read_to_end()?;
    ensure!(replies.0.is_empty(), "without ALPN: {replies}");
    let mut client = RawClient::tcp(weir.port())?;
    let wrong = client.secure(&TlsOffer { alpn: vec![b"http/1.1"], ..TlsOffer::default() });
    ensure!(wrong.is_err(), "ALPN http/1.1 was taken");
    assert_eq!(weir.client()?.scalar("SELECT 1")?, "1");

    let off = Pgweir::start(&cluster, "")?;
    let mut client = RawClient::tcp(off.port())?;
    ensure!(client.secure(&TlsOffer::default()).is_err(), "TLS is off");
    assert_eq!(off.client()?.scalar("SELECT 1")?, "1");
    Ok(())
}

/// TL-03: after a request for TLS everybody may leave ALPN out, and nobody may speak before TLS does.
#[test]
fn tl_03_requested_tls() -> Result<()> {
    let cluster = one_node()?;
    let pki = authority(&cluster, "pki", Signature::Sha256)?;
    let weir = weir_with(&cluster, &server_yaml(&pki, "allow"), "")?;
    for alpn in [vec![], vec![&b"postgresql"[..]], vec![&b"h2"[..], b"postgresql"]] {
        let mut client = RawClient::tcp(weir.port())?;
        client.start_tls(&TlsOffer { alpn, ..TlsOffer::default() })?;
        client.log_in(&Login::bench())?;
        assert_eq!(client.scalar("SELECT 7")?, "7");
    }
    for tail in [&Login::bench().packet()[..], b"\x16\x03\x01", &SSL_REQUEST] {
        let mut client = RawClient::tcp(weir.port())?;
        client.send_bytes(&[&SSL_REQUEST[..], tail].concat())?;
        let text = last_words(&client.read_to_end()?);
        ensure!(text.contains("received unencrypted data after SSL request"), "{text}");
    }
    // GSSAPI encryption is declined first, then TLS is given; not the other way round.
    let gss = [0, 0, 0, 8, 4, 210, 22, 48];
    let mut client = RawClient::tcp(weir.port())?;
    client.send_bytes(&gss)?;
    assert_eq!(client.read_byte()?, b'N');
    client.start_tls(&TlsOffer::default())?;
    client.log_in(&Login::bench())?;
    let mut client = RawClient::tcp(weir.port())?;
    client.start_tls(&TlsOffer::default())?;
    client.send_bytes(&gss)?;
    let said = last_words(&client.read_to_end()?);
    ensure!(said.contains("unsupported frontend protocol"), "GSS inside TLS: {said}");
    Ok(())
}

/// A session over TLS carries what a session in the clear carries: large rows both ways, COPY, errors, cancels,
/// pipelines in small chunks.
#[test]
fn tl_04_a_session_over_tls_is_a_session() -> Result<()> {
    let cluster = one_node()?;
    let pki = authority(&cluster, "pki", Signature::Sha256)?;
    cluster.set_tls(0, &pki.path("weir.crt"), &pki.path("weir.key"), None)?;
    let yaml = format!("{}backend_sslmode: require\nworkers: 2\n", server_yaml(&pki, "require"));
    let mut weir = Pgweir::launch(&cluster, &PgweirOptions::yaml(&yaml))?;
    weir.wait_answering()?;
    let mut client = RawClient::tcp(weir.port())?;
    client.start_tls(&TlsOffer::default())?;
    client.log_in(&Login::bench())?;
    client.set_deadline(Duration::from_secs(20));
    assert_eq!(client.scalar("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")?, "t");
    let big = "x".repeat(3_000_000);
    assert_eq!(client.scalar(&format!("SELECT length('{big}')"))?, "3000000");
    assert_eq!(client.scalar("SELECT repeat('y', 5000000)")?.len(), 5_000_000);
    assert_eq!(client.sqlstate_of("SELECT 1/0")?, "22012");
    client.simple("CREATE TABLE over_tls (a text)")?;
    let rows = "some text of a row\n".repeat(50_000);
    let copy = msgs().Q("COPY over_tls FROM STDIN").d(rows.as_bytes()).c();
    client.send(&copy)?;
    client.read_ready(1)?;
    assert_eq!(client.scalar("SELECT count(*) FROM over_tls")?, "50000");
    client.set_chunk(7);
    assert_eq!(client.scalar_extended("SELECT $1::int + 1", &["41"])?, "42");
    client.set_chunk(usize::MAX);
    client.send(&msgs().Q("SELECT pg_sleep(60)"))?;
    let running = "SELECT count(*)::text FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' \
                   AND pid <> pg_backend_pid()";
    cluster.wait_scalar(0, running, "1", Duration::from_secs(5))?;
    client.cancel()?;
    let replies = client.read_ready(1)?;
    assert_eq!(replies.error().map(|fields| fields.get('C').to_owned()).unwrap_or_default(), "57014");
    client.terminate()?;
    Ok(())
}

/// TL-04: pgbench over TLS on both sides: every transaction is there, and backends move between workers.
#[test]
fn tl_04_pgbench_over_tls() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 1, ..ClusterOptions::default() })?;
    let pki = authority(&cluster, "pki", Signature::Sha256)?;
    for node in 0..2 {
        cluster.set_tls(node, &pki.path("weir.crt"), &pki.path("weir.key"), None)?;
    }
    let yaml = format!(
        "{}backend_sslmode: verify-full\nbackend_ssl_root_cert: {}\nworkers: 2\ndefault_pool_size: 3\n",
        server_yaml(&pki, "allow"),
        pki.path("ca.crt")
    );
    let weir = weir_with(&cluster, &yaml, "")?;
    pgbench(&cluster, cluster.port(0), &["-i", "-q", "-s", "1"])?;
    cluster.wait_replay()?;
    for args in [&["-S", "-M", "prepared"][..], &["-N"], &["-S", "-C"]] {
        let run = [args, &["-c", "8", "-t", if args.contains(&"-C") { "10" } else { "100" }]].concat();
        let report = pgbench(&cluster, weir.port(), &run)?;
        assert_eq!(report.failed, 0, "{run:?}");
    }
    Ok(())
}

/// AU-07: channel binding, by the hash of the certificate's signature.
#[test]
fn au_07_channel_binding_with_psql() -> Result<()> {
    let cluster = one_node()?;
    for (name, signature) in [
        ("p256", Signature::Sha256),
        ("r384", Signature::RsaSha384),
        ("r512", Signature::RsaSha512),
        ("ed25519", Signature::Ed25519),
    ] {
        let pki = authority(&cluster, name, signature)?;
        let weir = weir_with(&cluster, &server_yaml(&pki, "allow"), "")?;
        for (binding, ssl, works) in [
            ("disable", "require", true),
            ("prefer", "require", true),
            // Without a hash there is nothing to bind to: the client is not offered it.
            ("require", "require", signature != Signature::Ed25519),
            ("prefer", "disable", true),
            ("require", "disable", false),
        ] {
            let what = format!("channel_binding={binding} sslmode={ssl}");
            let out = psql(&cluster, weir.port(), &what, "SELECT 1")?;
            assert_eq!(out.code == 0, works, "{name} {what}: {out:?}");
            ensure!(works || out.stderr.contains("channel binding"), "{name} {what}: {out:?}");
        }
        let out = psql(&cluster, weir.port(), "sslmode=require password=wrong", "SELECT 1")?;
        ensure!(out.stderr.contains("password authentication failed"), "{out:?}");
    }
    Ok(())
}

/// AU-07: a client that could bind and was told that we cannot is refused: somebody is between us.
#[test]
fn au_07_a_downgrade_is_refused() -> Result<()> {
    let cluster = one_node()?;
    let pki = authority(&cluster, "pki", Signature::Sha256)?;
    let weir = weir_with(&cluster, &server_yaml(&pki, "allow"), "")?;
    let begin = |tls: bool, mechanism: &[u8], first: &[u8]| -> Result<String> {
        let mut client = RawClient::tcp(weir.port())?;
        if tls {
            client.start_tls(&TlsOffer::default())?;
        }
        client.send_bytes(&Login::bench().packet())?;
        client.read_count(1)?;
        let body = [mechanism, b"\0", &u32::try_from(first.len())?.to_be_bytes(), first].concat();
        client.send(&msgs().message(b'p', &body))?;
        Ok(last_words(&client.read_count(1)?))
    };
    let (plain, plus) = (&b"SCRAM-SHA-256"[..], &b"SCRAM-SHA-256-PLUS"[..]);
    for (tls, mechanism, first, wanted) in [
        (true, plain, &b"y,,n=,r=abcdefgh"[..], "channel binding negotiation error"),
        (true, plain, b"p=tls-server-end-point,,n=,r=abcdefgh", "malformed SCRAM message"),
        (true, plus, b"n,,n=,r=abcdefgh", "malformed SCRAM message"),
        (true, plus, b"p=tls-unique,,n=,r=abcdefgh", "unsupported SCRAM channel-binding type"),
        (false, plus, b"p=tls-server-end-point,,n=,r=abcdefgh", "invalid SASL authentication mechanism"),
    ] {
        let said = begin(tls, mechanism, first)?;
        ensure!(said.contains(wanted), "{tls} {mechanism:?}: {said}");
    }
    for (tls, first) in
        [(false, &b"y,,n=,r=abcdefgh"[..]), (false, b"n,,n=,r=abcdefgh"), (true, b"n,,n=,r=abc")]
    {
        let said = begin(tls, plain, first)?;
        assert_eq!(said, "");
    }
    Ok(())
}

/// TL-06: certificates of clients are verified in the handshake; whoever shows none may come in by password.
#[test]
fn tl_06_certificates_of_clients_are_verified() -> Result<()> {
    let cluster = one_node()?;
    let pki = authority(&cluster, "pki", Signature::Sha256)?;
    let other = Pki::new(cluster.root(), "other", Signature::Sha256)?;
    pki.issue("good", "/CN=bench", "", 10)?;
    pki.issue("bad", "/CN=bench", "", 10)?;
    pki.issue("old", "/CN=bench", "", -1)?;
    other.issue("good", "/CN=bench", "", 10)?;
    pki.revoke(&["bad"])?;
    pki.lock("good", "open sesame")?;
    let yaml = format!(
        "{}ssl_ca_cert: {}\nssl_crl_file: {}\n",
        server_yaml(&pki, "allow"),
        pki.path("ca.crt"),
        pki.path("crl.pem")
    );
    let weir = weir_with(&cluster, &yaml, "")?;
    let with = |pki: &Pki, name: &str, key: &str| {
        let (cert, key) = (pki.path(&format!("{name}.crt")), pki.path(key));
        let more = format!("sslmode=require sslcert={cert} sslkey={key} sslpassword='open sesame'");
        psql(&cluster, weir.port(), &more, "\\conninfo")
    };
    assert_eq!(came_in(&psql(&cluster, weir.port(), "sslmode=require", "\\conninfo")?), "tls");
    assert_eq!(came_in(&with(&pki, "good", "good.key")?), "tls");
    assert_eq!(came_in(&with(&pki, "good", "good.locked")?), "tls");
    for (pki, name, alert) in
        [(&pki, "bad", "revoked"), (&pki, "old", "expired"), (&other, "good", "unknown ca")]
    {
        let out = with(pki, name, &format!("{name}.key"))?;
        ensure!(out.code != 0 && out.stderr.contains(alert), "{name}: {out:?}");
    }
    Ok(())
}

/// TL-06: a list of revoked certificates counts when its issuer has signed it, be it an authority that the client shows.
#[test]
fn tl_06_lists_of_the_revoked_are_signed() -> Result<()> {
    let cluster = one_node()?;
    let pki = authority(&cluster, "pki", Signature::Sha256)?;
    let (below, elsewhere) = (pki.below(cluster.root(), "below")?, cluster.root().join("elsewhere"));
    fs::create_dir(&elsewhere)?;
    // The same names, other keys.
    let forged = Pki::new(&elsewhere, "pki", Signature::Sha256)?;
    let forged_below = forged.below(&elsewhere, "below")?;
    for name in ["good", "bad"] {
        below.issue(name, "/CN=bench", "", 10)?;
        fs::write(
            below.path(&format!("{name}.chain")),
            [below.read(&format!("{name}.crt"))?, below.read("ca.crt")?].concat(),
        )?;
    }
    below.revoke(&["bad"])?;
    for authority in [&pki, &forged, &forged_below] {
        authority.revoke(&[])?;
    }
    let lists = pki.path("lists.pem");
    let put = |first: &Pki, second: &Pki| -> Result<()> {
        Ok(fs::write(&lists, [first.read("crl.pem")?, second.read("crl.pem")?].concat())?)
    };
    put(&pki, &below)?;
    let ca = pki.path("ca.crt");
    let yaml = format!("{}ssl_ca_cert: {ca}\nssl_crl_file: {lists}\n", server_yaml(&pki, "allow"));
    let weir = weir_with(&cluster, &yaml, "")?;
    let with = |name: &str| {
        let (cert, key) = (below.path(&format!("{name}.chain")), below.path(&format!("{name}.key")));
        psql(&cluster, weir.port(), &format!("sslmode=require sslcert={cert} sslkey={key}"), "\\conninfo")
    };
    assert_eq!(came_in(&with("good")?), "tls");
    ensure!(with("bad")?.stderr.contains("revoked"), "revoked by an authority below ours");

    put(&forged, &below)?;
    weir.signal(Signal::HUP);
    let told = || {
        weir.log().contains("reload refused")
            && weir.log().contains("is not signed by the one in ssl_ca_cert")
    };
    ensure!(eventually(Duration::from_secs(30), told), "a forged list is taken: {}", weir.log());
    assert_eq!(came_in(&with("good")?), "tls", "the lists of before");

    put(&pki, &forged_below)?;
    weir.signal(Signal::HUP);
    let refused = || with("good").is_ok_and(|out| out.code != 0);
    ensure!(eventually(Duration::from_secs(30), refused), "a forged list below ours counts");
    Ok(())
}

/// RL-05: another certificate is used from the reload on, and who is in stays in; a broken one changes nothing.
#[test]
fn rl_05_certificates_are_read_again() -> Result<()> {
    let cluster = one_node()?;
    let (first, second) =
        (authority(&cluster, "first", Signature::Sha256)?, authority(&cluster, "second", Signature::Sha256)?);
    let weir = weir_with(&cluster, &server_yaml(&first, "allow"), "")?;
    let mut stays = RawClient::tcp(weir.port())?;
    stays.start_tls(&TlsOffer::default())?;
    stays.log_in(&Login::bench())?;
    let accepts = |pki: &Pki| -> Result<bool> {
        let more = format!("sslmode=verify-full sslrootcert={}", pki.path("ca.crt"));
        Ok(psql(&cluster, weir.port(), &more, "SELECT 1")?.code == 0)
    };
    ensure!(accepts(&first)? && !accepts(&second)?, "the first certificate");
    for file in ["weir.crt", "weir.key"] {
        fs::copy(second.path(file), first.path(file))?;
    }
    weir.signal(Signal::HUP);
    ensure!(
        eventually(Duration::from_secs(30), || accepts(&second).unwrap_or(false)),
        "the second certificate"
    );
    assert_eq!(stays.scalar("SELECT 1")?, "1");

    for (content, told) in [("", "ssl_key"), ("half of a ke", "ssl_key")] {
        fs::write(first.path("weir.key"), content)?;
        let before = weir.log().matches("reload refused").count();
        weir.signal(Signal::HUP);
        let refused =
            eventually(Duration::from_secs(30), || weir.log().matches("reload refused").count() > before);
        ensure!(refused && weir.log().contains(told), "{content:?}: not refused by name");
        ensure!(accepts(&second)?, "after a refused reload");
    }
    assert_eq!(stays.scalar("SELECT 1")?, "1");
    Ok(())
}

/// What a session through pgweir says of its backend's TLS: `t`, `f`, or how it failed.
fn node_tls(weir: &Pgweir) -> String {
    let asked = weir
        .client()
        .and_then(|mut client| client.scalar("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"));
    asked.unwrap_or_else(|error| sqlstate(&error).to_owned())
}

/// The node cannot be reached, or counts as one that is down.
fn is_out(code: &str) -> bool {
    code.starts_with("08") || code == "57P03"
}

fn node_yaml(mode: &str, root: Option<&Pki>) -> String {
    let root = root.map(|pki| format!("backend_ssl_root_cert: {}\n", pki.path("ca.crt"))).unwrap_or_default();
    format!("backend_sslmode: {mode}\n{root}query_wait_timeout: 1s\n")
}

fn launched(cluster: &Cluster, yaml: &str) -> Result<Pgweir> {
    let mut weir = Pgweir::launch(cluster, &PgweirOptions::yaml(yaml))?;
    weir.wait_ready()?;
    Ok(weir)
}

/// TL-04: the modes towards nodes, by what the node takes.
#[test]
fn tl_04_every_mode_towards_nodes() -> Result<()> {
    let cluster = one_node()?;
    let pki = authority(&cluster, "pki", Signature::Sha256)?;
    let other = authority(&cluster, "other", Signature::Sha256)?;
    let modes = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];
    let try_all = |what: &str, root: &Pki, wanted: [&str; 6]| -> Result<()> {
        for (mode, wanted) in modes.iter().zip(wanted) {
            let root = mode.starts_with("verify").then_some(root);
            let weir = launched(&cluster, &node_yaml(mode, root))?;
            let got = node_tls(&weir);
            let refused = matches!(wanted, "-" | "28000") && (is_out(&got) || got == "28000");
            ensure!(wanted == got || refused, "{what}, {mode}: {got}, not {wanted}");
            if wanted == "-" {
                ensure!(is_out(&got), "{what}, {mode}: {got}");
                let why = eventually(Duration::from_secs(30), || weir.log().contains("TLS"));
                ensure!(why, "{what}, {mode}: the log does not say why");
            }
        }
        Ok(())
    };
    try_all("a node without TLS", &pki, ["f", "f", "f", "-", "-", "-"])?;
    cluster.set_tls(0, &pki.path("weir.crt"), &pki.path("weir.key"), None)?;
    try_all("a node with TLS", &pki, ["f", "f", "t", "t", "t", "t"])?;
    try_all("another authority", &other, ["f", "f", "t", "t", "-", "-"])?;
    cluster.set_hba(0, "hostssl all all 127.0.0.1/32 scram-sha-256\n")?;
    try_all("a node that insists", &pki, ["28000", "t", "t", "t", "t", "t"])?;
    cluster.set_hba(0, "hostnossl all all 127.0.0.1/32 scram-sha-256\n")?;
    try_all("a node that refuses TLS", &pki, ["f", "f", "f", "28000", "28000", "28000"])?;
    Ok(())
}

/// TL-04: certificates that are not for the node, or not any more; and those that are.
#[test]
fn tl_04_certificates_of_nodes() -> Result<()> {
    let cluster = one_node()?;
    let pki = authority(&cluster, "pki", Signature::Sha256)?;
    pki.issue("name", "/CN=somewhere", "DNS:localhost", 10)?;
    pki.issue("common", "/CN=localhost", "", 10)?;
    pki.issue("wrong", "/CN=127.0.0.1", "DNS:elsewhere.example,IP:127.0.0.9", 10)?;
    pki.issue("expired", "/CN=x", "IP:127.0.0.1,DNS:localhost", -1)?;
    for (cert, host, ca, full) in [
        ("weir", "127.0.0.1", true, true),
        ("weir", "localhost", true, true),
        ("name", "localhost", true, true),
        ("name", "127.0.0.1", true, false),
        ("common", "localhost", true, true),
        ("wrong", "127.0.0.1", true, false),
        ("expired", "127.0.0.1", false, false),
    ] {
        cluster.set_tls(0, &pki.path(&format!("{cert}.crt")), &pki.path(&format!("{cert}.key")), None)?;
        for (mode, works) in [("verify-ca", ca), ("verify-full", full)] {
            let yaml = format!(
                "{}backends:\n  - {{ hostname: {host}, port: {} }}\n",
                node_yaml(mode, Some(&pki)),
                cluster.port(0)
            );
            let weir = launched(&cluster, &yaml)?;
            let got = node_tls(&weir);
            ensure!((got == "t") == works, "{cert} for {host}, {mode}: {got}");
            ensure!(works || is_out(&got), "{cert} for {host}, {mode}: {got}");
        }
    }
    // Self-signed, and trusted as it is.
    cluster.set_tls(0, &pki.path("ca.crt"), &pki.path("ca.key"), None)?;
    assert_eq!(node_tls(&launched(&cluster, &node_yaml("verify-ca", Some(&pki)))?), "t");
    assert_ne!(node_tls(&launched(&cluster, &node_yaml("verify-full", Some(&pki)))?), "t");
    Ok(())
}

/// TL-04: a node that wants our certificate gets it, from sessions and from checks.
#[test]
fn tl_04_a_certificate_of_ours() -> Result<()> {
    let cluster = one_node()?;
    let pki = authority(&cluster, "pki", Signature::Sha256)?;
    pki.issue("proxy", "/CN=proxy", "", 10)?;
    cluster.set_tls(0, &pki.path("weir.crt"), &pki.path("weir.key"), Some(&pki.path("ca.crt")))?;
    cluster.set_hba(0, "hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\n")?;
    let own = format!(
        "{}backend_ssl_cert: {}\nbackend_ssl_key: {}\n",
        node_yaml("verify-full", Some(&pki)),
        pki.path("proxy.crt"),
        pki.path("proxy.key")
    );
    let weir = weir_with(&cluster, &own, "")?;
    assert_eq!(node_tls(&weir), "t");
    let subject = "SELECT client_dn FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    assert_eq!(weir.client()?.scalar(subject)?, "/CN=proxy");
    let without = launched(&cluster, &node_yaml("verify-full", Some(&pki)))?;
    let got = node_tls(&without);
    ensure!(got == "28000" || got == "57P03", "{got}");
    Ok(())
}

/// TL-04: of several hosts each is verified for its own name: one that is another's is not used, not even in the clear,
/// and the others are.
#[test]
fn tl_04_each_node_is_verified_for_its_own_name() -> Result<()> {
    let conf = "log_connections = on\n".to_owned();
    let cluster = Cluster::new(ClusterOptions { standbys: 2, conf, ..ClusterOptions::default() })?;
    let pki = authority(&cluster, "pki", Signature::Sha256)?;
    pki.issue("address", "/CN=n0", "IP:127.0.0.1", 10)?;
    pki.issue("name", "/CN=n1", "DNS:localhost", 10)?;
    let mut yaml = node_yaml("verify-full", Some(&pki));
    yaml.push_str("backends:\n");
    // The last one has the certificate of the one before it, and another name.
    for (node, (host, cert)) in
        [("127.0.0.1", "address"), ("localhost", "name"), ("127.0.0.1", "name")].iter().enumerate()
    {
        cluster.set_tls(node, &pki.path(&format!("{cert}.crt")), &pki.path(&format!("{cert}.key")), None)?;
        let weight = u32::from(node > 0);
        yaml.push_str(&format!(
            "  - {{ hostname: {host}, port: {}, weight: {weight} }}\n",
            cluster.port(node)
        ));
    }
    let weir = launched(&cluster, &yaml)?;
    weir.wait_pool_nodes(Duration::from_secs(30), |nodes| {
        let status: Vec<&str> = nodes.iter().map(|node| node["status"].as_str()).collect();
        status == ["up", "up", "down"] && nodes[0]["role"] == "primary"
    })?;
    cluster.setup("CREATE TABLE verified (a int); GRANT ALL ON verified TO bench")?;
    weir.wait_on_standby("SELECT a FROM verified")?;
    let mut client = weir.client()?;
    let asked = "SELECT ssl::text || current_setting('port') FROM pg_stat_ssl, (SELECT count(a) FROM verified) \
                 AS x WHERE pid = pg_backend_pid()";
    for _ in 0..20 {
        assert_eq!(client.scalar(asked)?, format!("true{}", cluster.port(1)));
    }
    client.simple("INSERT INTO verified VALUES (1)")?;
    let why = || weir.log().contains("TLS with the server failed");
    ensure!(eventually(Duration::from_secs(30), why), "the log does not say why: {}", weir.log());
    for user in ["pgweir", "bench"] {
        let came = format!("connection authorized: user={user}");
        ensure!(cluster.log(0)?.contains(&came) && cluster.log(1)?.contains(&came), "{user} is not seen");
        ensure!(!cluster.log(2)?.contains(&came), "{user} came in where nobody was verified");
    }
    Ok(())
}

/// TL-04: clients with a list of hosts: as with servers, each is verified for the name that it was given.
#[test]
fn tl_04_clients_with_several_hosts_verify_each() -> Result<()> {
    let cluster = one_node()?;
    let pki = authority(&cluster, "pki", Signature::Sha256)?;
    pki.issue("elsewhere", "/CN=elsewhere", "DNS:elsewhere.example", 10)?;
    let good = weir_with(&cluster, &server_yaml(&pki, "allow"), "")?;
    let other = format!(
        "ssl: require\nssl_cert: {}\nssl_key: {}\n",
        pki.path("elsewhere.crt"),
        pki.path("elsewhere.key")
    );
    let mut bad = Pgweir::launch(&cluster, &PgweirOptions::yaml(&other))?;
    bad.wait_ready()?;
    let dead = harness::procs::free_port()?;
    let with = |ports: [u16; 2], hosts: &str| {
        let more = format!(
            "host={hosts} port={},{} sslmode=verify-full sslrootcert={}",
            ports[0],
            ports[1],
            pki.path("ca.crt")
        );
        psql(&cluster, good.port(), &more, "\\conninfo")
    };
    // One that is not there is passed over.
    assert_eq!(came_in(&with([dead, good.port()], "localhost,127.0.0.1")?), "tls");
    assert_eq!(came_in(&with([good.port(), bad.port()], "127.0.0.1,localhost")?), "tls");
    let out = with([dead, bad.port()], "127.0.0.1,localhost")?;
    ensure!(out.code != 0 && out.stderr.contains("does not match host name \"localhost\""), "{out:?}");
    Ok(())
}

/// TL-06: a key with a passphrase, ours towards clients or towards nodes, is refused by name: at the start, and by a
/// reload, which changes nothing.
#[test]
fn tl_06_keys_of_ours_with_a_passphrase_are_refused_by_name() -> Result<()> {
    let cluster = one_node()?;
    let pki = authority(&cluster, "pki", Signature::Sha256)?;
    pki.lock("weir", "open sesame")?;
    let (cert, key, locked) = (pki.path("weir.crt"), pki.path("weir.key"), pki.path("weir.locked"));
    let yaml = |name: &str, key: &str| match name {
        "ssl_key" => format!("ssl: allow\nssl_cert: {cert}\nssl_key: {key}\n"),
        _ => format!("backend_ssl_cert: {cert}\nbackend_ssl_key: {key}\n"),
    };
    for name in ["ssl_key", "backend_ssl_key"] {
        let refused = format!("{name} ({locked}): it is protected by a passphrase");
        let mut weir = Pgweir::launch(&cluster, &PgweirOptions::yaml(&yaml(name, &locked)))?;
        assert_eq!(weir.wait_exit(Duration::from_secs(30))?, 78, "{name}: {}", weir.log());
        ensure!(weir.log().contains(&refused), "{name}: {}", weir.log());

        let weir = weir_with(&cluster, &yaml(name, &key), "")?;
        weir.rewrite(&cluster, &PgweirOptions::yaml(&yaml(name, &locked)))?;
        weir.signal(Signal::HUP);
        let told = || weir.log().contains("reload refused") && weir.log().contains(&refused);
        ensure!(eventually(Duration::from_secs(30), told), "{name}: {}", weir.log());
        assert_eq!(weir.client()?.scalar("SELECT 1")?, "1");
    }
    Ok(())
}

/// What TLS costs an idle session in memory is bounded.
#[test]
fn tl_04_idle_sessions_over_tls_are_cheap() -> Result<()> {
    let cluster = one_node()?;
    let pki = authority(&cluster, "pki", Signature::Sha256)?;
    let weir = weir_with(&cluster, &server_yaml(&pki, "allow"), "host all all all trust\n")?;
    let connect = || -> Result<RawClient> {
        let mut client = RawClient::tcp(weir.port())?;
        client.start_tls(&TlsOffer::default())?;
        client.log_in(&Login::bench())?;
        client.scalar("SELECT repeat('x', 100000)").context("a first statement")?;
        Ok(client)
    };
    let _first: Vec<RawClient> = (0..50).map(|_| connect()).collect::<Result<_>>()?;
    let before = weir.rss_kb()?;
    let _more: Vec<RawClient> = (0..200).map(|_| connect()).collect::<Result<_>>()?;
    let each = weir.rss_kb()?.saturating_sub(before) / 200;
    ensure!(each < 64, "{each} kB a session");
    Ok(())
}

/// SHOW CLIENTS and SHOW SERVERS tell how each connection is encrypted, as PgBouncer's do.
#[test]
fn tl_04_the_console_tells_how() -> Result<()> {
    let cluster = one_node()?;
    let pki = authority(&cluster, "pki", Signature::Sha256)?;
    cluster.set_tls(0, &pki.path("weir.crt"), &pki.path("weir.key"), None)?;
    let yaml = format!("{}backend_sslmode: require\n", server_yaml(&pki, "allow"));
    let weir = weir_with(&cluster, &yaml, "")?;
    let mut client = RawClient::tcp(weir.port())?;
    client.start_tls(&TlsOffer::default())?;
    client.log_in(&Login::bench())?;
    client.simple("BEGIN; SELECT 1")?;
    let tls = |command: &str, user: &str| -> Result<Vec<String>> {
        let rows = weir.admin(command)?;
        Ok(rows.iter().filter(|row| row["user"] == user).map(|row| row["tls"].clone()).collect())
    };
    ensure!(tls("SHOW CLIENTS", "bench")?.iter().any(|tls| tls.starts_with("TLSv1.3 TLS")), "clients");
    ensure!(tls("SHOW SERVERS", "bench")?.iter().all(|tls| tls.starts_with("TLSv1.3 TLS")), "servers");
    ensure!(tls("SHOW CLIENTS", "postgres")?.iter().all(String::is_empty), "a client in the clear");
    Ok(())
}

/// No command of the console, metric or log line shows a secret, whoever asks.
#[test]
fn secrets_are_shown_nowhere() -> Result<()> {
    let cluster = one_node()?;
    let pki = authority(&cluster, "pki", Signature::Sha256)?;
    cluster.sql(0, "ALTER ROLE pgweir PASSWORD 'hush-check'; ALTER ROLE bench PASSWORD 'hush-bench'")?;
    let yaml = format!("{}sr_check_password: hush-check\nlog_level: debug\n", server_yaml(&pki, "allow"));
    let passwords = Some("bench:TEXThush-bench\npostgres:TEXTpostgres\nstats:TEXTstats\n".to_owned());
    let mut weir = Pgweir::launch(&cluster, &PgweirOptions { yaml, passwords, ..PgweirOptions::default() })?;
    weir.wait_ready()?;
    let mut client = Login::bench().password("hush-bench").connect(weir.port())?;
    client.simple("SELECT 1")?;
    for user in ["postgres", "stats"] {
        let mut console = Login::new(user, "pgweir").connect(weir.port())?;
        let help = console.talk(&msgs().Q("SHOW HELP"))?.to_string();
        for what in ["CONFIG", "USERS", "DATABASES", "POOLS", "CLIENTS", "SERVERS", "LISTS", "VERSION"] {
            let shown = console.talk(&msgs().Q(&format!("SHOW {what}")))?.to_string();
            ensure!(!shown.contains("hush"), "SHOW {what} as {user}: {shown}");
        }
        ensure!(!help.contains("hush"), "{help}");
    }
    // Nobody else reaches the admin database.
    let outsider = Login::new("bench", "pgweir").password("hush-bench").connect(weir.port());
    assert_eq!(outsider.err().map(|error| sqlstate(&error).to_owned()), Some("42501".to_owned()));
    let metrics = harness::http_get(weir.metrics_port(), "/metrics")?.body;
    ensure!(!metrics.contains("hush") && !weir.log().contains("hush"), "a secret in metrics or log");
    // What every user of the machine sees of a process, and what its children inherit.
    for file in ["cmdline", "environ"] {
        let bytes = std::fs::read(format!("/proc/{}/{file}", weir.pid()))?;
        ensure!(!String::from_utf8_lossy(&bytes).contains("hush"), "a secret in {file}");
    }
    Ok(())
}
