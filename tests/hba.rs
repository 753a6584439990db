//! Rules whose answer is outside: certificates, the operating system, roles on the nodes, a directory.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::checkers::Directory;
use harness::procs::{self, Killed};
use harness::{
    ClientAuth, Cluster, ClusterOptions, Login, Output, Pgweir, PgweirOptions, Pki, Signature, eventually,
};
use rustix::process::Signal;

fn one_node() -> Result<Cluster> {
    Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })
}

fn launch(cluster: &Cluster, yaml: &str, hba: &str) -> Result<Pgweir> {
    let auth = ClientAuth::Hba(hba.to_owned());
    let options = PgweirOptions { yaml: yaml.to_owned(), auth, ..PgweirOptions::default() };
    let mut weir = Pgweir::launch(cluster, &options)?;
    weir.wait_ready()?;
    Ok(weir)
}

fn psql(cluster: &Cluster, conninfo: &str) -> Result<Output> {
    let mut psql = cluster.install().client("psql");
    psql.args(["-X", "-At", "-d", conninfo, "-c", "SELECT current_user"]);
    harness::tools::run(cluster, psql, Duration::from_secs(20))
}

/// TL-06: `cert`: the certificate is the password, for the user it names or a map says.
#[test]
fn tl_06_the_cert_method() -> Result<()> {
    let cluster = one_node()?;
    cluster.set_hba(0, "host all all 127.0.0.1/32 trust\n")?;
    let pki = Pki::new(cluster.root(), "pki", Signature::Sha256)?;
    pki.issue("weir", "/CN=weir", "IP:127.0.0.1", 10)?;
    pki.issue("bench", "/O=shop/CN=bench", "", 10)?;
    pki.issue("joe", "/O=shop/CN=joe", "", 10)?;
    pki.issue("noname", "/O=shop", "DNS:bench", 10)?;
    let yaml = format!(
        "ssl: allow\nssl_cert: {}\nssl_key: {}\nssl_ca_cert: {}\npool_ident_file: {}\n",
        pki.path("weir.crt"),
        pki.path("weir.key"),
        pki.path("ca.crt"),
        pki.path("ident")
    );
    fs::write(pki.path("ident"), "apps joe bench\napps /^(.*)$ \\1\ndn \"CN=joe,O=shop\" other\n")?;
    let hba = "hostssl mapped all all cert map=apps\n\
               hostssl named all all cert map=dn clientname=DN\n\
               hostssl both all all scram-sha-256 clientcert=verify-full\n\
               hostssl any all all scram-sha-256 clientcert=verify-ca\n\
               hostssl all all all cert\n";
    let weir = launch(&cluster, &yaml, hba)?;
    for database in ["mapped", "named", "both", "any"] {
        cluster.sql(0, &format!("CREATE DATABASE \"{database}\""))?;
    }
    let no_cert = "connection requires a valid client certificate";
    let not_hers = "certificate authentication failed for user";
    for (database, user, shown, told) in [
        ("bench", "bench", "bench", ""),
        ("bench", "bench", "joe", not_hers),
        ("bench", "other", "bench", not_hers),
        ("bench", "bench", "noname", not_hers),
        ("bench", "bench", "", no_cert),
        ("mapped", "bench", "joe", ""),
        ("mapped", "bench", "bench", ""),
        ("mapped", "other", "joe", not_hers),
        ("named", "other", "joe", ""),
        ("named", "bench", "joe", not_hers),
        ("both", "bench", "bench", ""),
        ("both", "bench", "joe", not_hers),
        ("both", "bench", "", no_cert),
        ("any", "bench", "joe", ""),
        ("any", "bench", "", no_cert),
    ] {
        let own = match shown {
            "" => "sslcert=/nowhere".to_owned(),
            name => format!(
                "sslcert={} sslkey={}",
                pki.path(&format!("{name}.crt")),
                pki.path(&format!("{name}.key"))
            ),
        };
        let conninfo = format!(
            "host=127.0.0.1 port={} dbname={database} user={user} sslmode=require {own}",
            weir.port()
        );
        let out = psql(&cluster, &conninfo)?;
        let what = format!("{shown:?} as {user} in {database}: {out:?}");
        ensure!((out.code == 0) == told.is_empty(), "{what}");
        ensure!(told.is_empty() || out.stderr.contains(told), "{what}");
    }
    Ok(())
}

/// `peer`: the operating system's word, for the user it names or a map says.
#[test]
fn the_peer_method() -> Result<()> {
    let cluster = one_node()?;
    cluster.set_hba(0, "host all all 127.0.0.1/32 trust\n")?;
    let me = Command::new("id").arg("-un").output()?;
    let me = String::from_utf8(me.stdout)?.trim().to_owned();
    let dir = cluster.root().join("sockets");
    fs::create_dir(&dir)?;
    fs::write(dir.join("ident"), format!("os {me} bench\n"))?;
    cluster.sql(
        0,
        &format!("DO $$ BEGIN CREATE ROLE \"{me}\" LOGIN; EXCEPTION WHEN duplicate_object THEN END $$"),
    )?;
    let yaml = format!(
        "unix_socket_directories: [\"{}\"]\npool_ident_file: {}\n",
        dir.display(),
        dir.join("ident").display()
    );
    let weir = launch(&cluster, &yaml, "local bench bench,other peer map=os\nlocal all all peer\n")?;
    for (database, user, works) in [
        ("bench", "bench", true),
        ("bench", "other", false),
        ("postgres", me.as_str(), true),
        ("postgres", "bench", false),
    ] {
        let conninfo = format!("host={} port={} dbname={database} user={user}", dir.display(), weir.port());
        let out = psql(&cluster, &conninfo)?;
        assert_eq!(out.code == 0, works, "{user} in {database}: {out:?}");
        let told = format!("Peer authentication failed for user \"{user}\"");
        ensure!(works || out.stderr.contains(&told), "{out:?}");
    }
    Ok(())
}

/// `+group` and `samerole` by the roles on the nodes, `@file`, `samehost`, `samenet`.
#[test]
fn groups_files_and_own_addresses() -> Result<()> {
    let cluster = one_node()?;
    cluster.sql(
        0,
        "CREATE ROLE team; CREATE ROLE outer_team; GRANT team TO outer_team; GRANT outer_team TO bench; \
         ALTER ROLE other SUPERUSER",
    )?;
    let hba = "host all @refused all reject\n\
               host bench +team samehost scram-sha-256\n\
               host samerole all samenet trust\n";
    let auth = ClientAuth::Hba(hba.to_owned());
    let options =
        PgweirOptions { auth, yaml: "auth_query_cache_period: 1s\n".to_owned(), ..PgweirOptions::default() };
    // Before the start: a rule that names a file that is not there is refused.
    let weir = Pgweir::launch(&cluster, &options)?;
    let told = "user: found @refused";
    ensure!(eventually(Duration::from_secs(30), || weir.log().contains(told)), "{}", weir.log());
    fs::write(weir.dir().join("refused"), "stats, \"nobody\"\n")?;
    let mut command = Command::new(harness::pgweir::binary()?);
    let log = fs::File::create(weir.dir().join("second"))?;
    command.args(["run", "-f"]).arg(weir.dir().join("pgweir.yaml")).stdout(log.try_clone()?).stderr(log);
    let _second = Killed::new(command.stdin(Stdio::null()).spawn()?);
    let said = || fs::read_to_string(weir.dir().join("second")).unwrap_or_default();
    ensure!(eventually(Duration::from_secs(10), || said().contains("pgweir is ready")), "{}", said());

    assert_eq!(weir.login(&Login::bench())?, "", "a member, indirectly");
    assert_eq!(weir.login(&Login::new("other", "bench"))?, "28000", "a superuser is no member");
    assert_eq!(weir.login(&Login::new("stats", "bench"))?, "28000", "named in the file");
    assert_eq!(weir.login(&Login::new("bench", "team"))?, "3D000", "samerole, without a password");
    cluster.sql(0, "REVOKE outer_team FROM bench")?;
    let out = eventually(Duration::from_secs(30), || {
        // In the database of its own name it is still a member of itself, which samerole lets in.
        weir.login(&Login::new("bench", "team")).is_ok_and(|code| code == "28000")
    });
    ensure!(out, "a membership that was revoked");
    Ok(())
}

/// `ldap`: a simple bind, and a search with a bind, against Debian's slapd; the password serves for the node too.
#[test]
fn the_ldap_method() -> Result<()> {
    let cluster = one_node()?;
    let directory = Directory::start(cluster.root(), "of the directory")?;
    cluster.sql(0, "ALTER ROLE bench PASSWORD 'of the directory'")?;
    for database in ["prefix", "search", "filter", "url", "dead", "second"] {
        cluster.sql(0, &format!("CREATE DATABASE {database}"))?;
    }
    let (port, dead) = (directory.port(), procs::free_port()?);
    let binds = "ldapbinddn=\"cn=admin,dc=example\" ldapbindpasswd=admin";
    let hba = format!(
        "host prefix all all ldap ldapserver=127.0.0.1 ldapport={port} ldapprefix=\"uid=\" ldapsuffix=\",dc=example\"\n\
         host search all all ldap ldapserver=127.0.0.1 ldapport={port} ldapbasedn=\"dc=example\" {binds}\n\
         host filter all all ldap ldapserver=127.0.0.1 ldapport={port} ldapbasedn=\"dc=example\" {binds} \
         ldapsearchfilter=\"(|(mail=$username@example)(sn=$username))\"\n\
         host url all all ldap ldapurl=\"ldap://127.0.0.1:{port}/dc=example?cn?sub\" {binds}\n\
         host dead all all ldap ldapserver=127.0.0.1 ldapport={dead} ldapprefix=\"uid=\" ldapsuffix=\",dc=example\"\n\
         host second all all ldap ldapserver=\"127.0.0.9 127.0.0.1\" ldapport={port} ldapprefix=\"uid=\" ldapsuffix=\",dc=example\"\n"
    );
    let passwords = Some("pgweir:TEXTpgweir\n".to_owned());
    let options = PgweirOptions { auth: ClientAuth::Hba(hba), passwords, ..PgweirOptions::default() };
    let mut weir = Pgweir::launch(&cluster, &options)?;
    weir.wait_ready()?;
    let right = |database: &str| Login::new("bench", database).password("of the directory");
    for database in ["prefix", "search", "filter", "url", "second"] {
        assert_eq!(weir.login(&right(database))?, "", "{database}: {}", weir.log());
        assert_eq!(weir.login(&right(database).password("wrong"))?, "28000", "{database}");
        assert_eq!(weir.login(&right(database).password(""))?, "28P01", "{database}: empty");
        let nobody = Login::new("nobody", database);
        assert_eq!(weir.login(&nobody)?, "28000", "{database}");
    }
    // Two entries are one too many, and names are no filters.
    assert_eq!(weir.login(&Login::new("other", "filter").password("x"))?, "28000");
    // The line is written after the client was told.
    let told = eventually(Duration::from_secs(30), || weir.log().contains("more than one entry"));
    ensure!(told, "the reason is not in the log");
    for name in ["*", "bench)(uid=*", "b\\2a"] {
        assert_eq!(weir.login(&Login::new(name, "search").password("of the directory"))?, "28000", "{name}");
    }
    let started = Instant::now();
    assert_eq!(weir.login(&right("dead"))?, "28000");
    ensure!(started.elapsed() < Duration::from_secs(3), "a directory that is not there");
    ensure!(
        !weir.log().contains("of the directory") && !weir.log().contains("ldapbindpasswd"),
        "a secret is logged"
    );
    Ok(())
}

/// RL-05: side files that are broken are told by file and line, change nothing, and are taken when they are whole.
#[test]
fn rl_05_side_files() -> Result<()> {
    let cluster = one_node()?;
    let weir = launch(&cluster, "", "host all all 127.0.0.1/32 scram-sha-256\n")?;
    let (hba, passwd) = (weir.dir().join("pool_hba.conf"), weir.dir().join("pool_passwd"));
    let whole = (fs::read_to_string(&hba)?, fs::read_to_string(&passwd)?);
    let refused = |file: &Path, bytes: &[u8], told: &str| -> Result<()> {
        fs::write(file, bytes)?;
        let before = weir.log().matches("reload refused").count();
        weir.signal(Signal::HUP);
        let seen =
            eventually(Duration::from_secs(30), || weir.log().matches("reload refused").count() > before);
        ensure!(seen && weir.log().contains(told), "{told}: {}", weir.log());
        assert_eq!(weir.login(&Login::bench())?, "", "after {told}");
        Ok(())
    };
    refused(&hba, b"host all all 127.0.0.1/32 scram-sha-256\nhost all al", "pool_hba.conf:2: address:")?;
    refused(&hba, b"host all all all trust\xff\xfe\n", "bytes that are not UTF-8")?;
    fs::remove_file(&hba)?;
    fs::create_dir(&hba)?;
    let before = weir.log().matches("reload refused").count();
    weir.signal(Signal::HUP);
    ensure!(
        eventually(Duration::from_secs(30), || weir.log().matches("reload refused").count() > before),
        "a directory"
    );
    fs::remove_dir(&hba)?;
    fs::write(&hba, &whole.0)?;
    refused(&passwd, b"bench:TEXTbench\nother:TE", "pool_passwd:2: secret:")?;
    // Whole again, with what editors elsewhere leave in files.
    let crlf =
        format!("\u{feff}{}", whole.1.replace('\n', "\r\n").replace("bench:TEXTbench", "bench:TEXTnew"));
    cluster.sql(0, "ALTER ROLE bench PASSWORD 'new'")?;
    fs::write(&passwd, crlf)?;
    weir.signal(Signal::HUP);
    let taken = eventually(Duration::from_secs(30), || {
        weir.login(&Login::bench().password("new")).is_ok_and(|code| code.is_empty())
    });
    ensure!(taken, "{}", weir.log());
    // An empty file lets nobody in, and that is said.
    fs::write(&passwd, "")?;
    weir.signal(Signal::HUP);
    let out = eventually(Duration::from_secs(30), || {
        weir.login(&Login::bench().password("new")).is_ok_and(|code| code == "28P01")
    });
    ensure!(out && weir.log().contains("holds no secret"), "an empty file: {}", weir.log());
    Ok(())
}
