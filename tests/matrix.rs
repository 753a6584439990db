//! AU-01: client method x server method x stored secret, every combination, with the right and a wrong password. And
//! AU-02: passwords that SASLprep changes, or refuses.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{ClientAuth, Cluster, ClusterOptions, Login, Pgweir, PgweirOptions, eventually, sqlstate};
use rustix::process::Signal;

/// How clients of a database `c_...` log in.
const CLIENTS: [&str; 4] = ["trust", "password", "md5", "scram"];
/// How the node asks roles `s_..._...`, and whether it stores an md5 hash of them.
const SERVERS: [&str; 4] = ["trust", "password", "md5", "scram"];
/// What pool_passwd has of them.
const STORED: [&str; 6] = ["plain", "aes", "md5", "verifier", "othersalt", "none"];

/// What must come of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    In,
    /// The client cannot prove itself to us.
    Unproven,
    /// We cannot prove it to the node.
    Unusable,
}

fn wanted(client: &str, server: &str, stored: &str) -> Wanted {
    let proven = match (client, stored) {
        ("trust", _) => true,
        (_, "none") | ("scram", "md5") => false,
        _ => true,
    };
    // md5 becomes SCRAM where a verifier is what is stored.
    let scram = client == "scram" || (client == "md5" && matches!(stored, "verifier" | "othersalt"));
    let knows_password = matches!(stored, "plain" | "aes") || client == "password";
    let usable = match server {
        "trust" => true,
        "password" => knows_password,
        "md5" => knows_password || stored == "md5",
        "scram" => knows_password || (scram && stored == "verifier"),
        _ => false,
    };
    match (proven, usable) {
        (false, _) => Wanted::Unproven,
        (true, false) => Wanted::Unusable,
        (true, true) => Wanted::In,
    }
}

fn login(weir: &Pgweir, who: &Login) -> Result<String> {
    match who.connect(weir.port()).and_then(|mut client| client.scalar("SELECT current_user")) {
        Ok(_user) => Ok(String::new()),
        Err(error) if sqlstate(&error).is_empty() => Err(error),
        Err(error) => Ok(sqlstate(&error).to_owned()),
    }
}

/// Roles on the node, pool_passwd and the rules on both sides.
fn setup(cluster: &Cluster) -> Result<(String, String)> {
    let (mut sql, mut server_hba, mut passwords) = (String::new(), String::new(), String::new());
    for server in SERVERS {
        let kept = if server == "md5" { "md5" } else { "scram-sha-256" };
        for stored in STORED {
            let role = format!("s_{server}_{stored}");
            writeln!(sql, "SET password_encryption = '{kept}'; CREATE ROLE {role} LOGIN PASSWORD 'right';")?;
            let method = if server == "scram" { "scram-sha-256" } else { server };
            writeln!(server_hba, "host all {role} 127.0.0.1/32 {method}")?;
        }
    }
    writeln!(server_hba, "host all all 127.0.0.1/32 scram-sha-256")?;
    cluster.sql(0, &sql)?;
    cluster.sql(0, "SET password_encryption = 'scram-sha-256'; CREATE ROLE salted LOGIN PASSWORD 'right'")?;
    let secret = |role: &str| {
        cluster.scalar(0, &format!("SELECT rolpassword FROM pg_authid WHERE rolname = '{role}'"))
    };
    for server in SERVERS {
        for stored in STORED {
            let role = format!("s_{server}_{stored}");
            let line = match stored {
                "plain" => "TEXTright".to_owned(),
                // openssl enc -aes-256-cbc -md sha1 -nosalt -k 'matrix key' -base64, of "right"
                "aes" => format!("AES{}", aes()?),
                "md5" => format!("md5{}", cluster.scalar(0, &format!("SELECT md5('right{role}')"))?),
                "verifier" if server == "md5" => secret("salted")?,
                "verifier" => secret(&role)?,
                "othersalt" => secret("salted")?,
                _ => continue,
            };
            writeln!(passwords, "{role}:{line}")?;
        }
    }
    for client in CLIENTS {
        cluster.sql(0, &format!("CREATE DATABASE c_{client}"))?;
    }
    cluster.set_hba(0, &server_hba)?;
    passwords.push_str("pgweir:TEXTpgweir\nbench:TEXTbench\n");
    let rules = CLIENTS.map(|client| {
        let method = if client == "scram" { "scram-sha-256" } else { client };
        format!("host c_{client} all 127.0.0.1/32 {method}\n")
    });
    Ok((passwords, format!("{}host all all 127.0.0.1/32 scram-sha-256\n", rules.concat())))
}

fn aes() -> Result<String> {
    use std::io::Write as _;
    let mut child = std::process::Command::new("openssl")
        .args(["enc", "-aes-256-cbc", "-md", "sha1", "-nosalt", "-k", "matrix key", "-base64"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(b"right")?;
    }
    let out = child.wait_with_output()?;
    ensure!(out.status.success(), "openssl enc");
    Ok(String::from_utf8(out.stdout)?.trim().to_owned())
}

/// AU-01
#[test]
fn au_01_the_matrix() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let (passwords, hba) = setup(&cluster)?;
    let key = cluster.root().join("key");
    std::fs::write(&key, "matrix key\n")?;
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let options = PgweirOptions {
        yaml: format!("pool_key_file: {}\n", key.display()),
        auth: ClientAuth::Hba(hba),
        passwords: Some(passwords),
        ..PgweirOptions::default()
    };
    let weir = Pgweir::start_with(&cluster, &options)?;
    for server in SERVERS {
        let wrong =
            Login::new(&format!("s_{server}_plain"), "bench").password("wrong").connect(cluster.port(0));
        assert_eq!(wrong.is_ok(), server == "trust", "the node's own rules");
    }
    let mut failures = Vec::new();
    for client in CLIENTS {
        for server in SERVERS {
            for stored in STORED {
                let what = format!("client {client}, server {server}, stored {stored}");
                let (role, database) = (format!("s_{server}_{stored}"), format!("c_{client}"));
                let right = Login::new(&role, &database).password("right");
                let code = login(&weir, &right)?;
                let wanted = wanted(client, server, stored);
                let fits = match wanted {
                    Wanted::In => code.is_empty(),
                    Wanted::Unproven => code == "28P01",
                    Wanted::Unusable => code.starts_with("28") || code.starts_with("08"),
                };
                if !fits {
                    failures.push(format!("{what}: {code:?}, not {wanted:?}"));
                }
                // The reason is in the log, with the user.
                if wanted == Wanted::Unusable {
                    let named =
                        || weir.log().lines().any(|line| line.contains(&role) && line.contains("WARN"));
                    if !eventually(Duration::from_secs(30), named) {
                        failures.push(format!("{what}: no line in the log names the user"));
                    }
                }
                if client != "trust" && login(&weir, &right.clone().password("wrong"))? != "28P01" {
                    failures.push(format!("{what}: a wrong password"));
                }
            }
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    // None of it did the node any harm.
    weir.wait_nodes(1)?;
    ensure!(!weir.log().contains("right"), "a password is in the log");
    Ok(())
}

/// What it is about, the password, how else it may be typed.
type Spelled = (&'static str, &'static [u8], &'static [&'static [u8]]);

/// AU-02
const PASSWORDS: [Spelled; 11] = [
    ("no-break space", "pass\u{a0}word".as_bytes(), &[b"pass word"]),
    ("soft hyphen", "so\u{ad}ft".as_bytes(), &[b"soft"]),
    ("ordinal", "\u{aa}".as_bytes(), &[b"a"]),
    ("decomposed", "e\u{301}".as_bytes(), &["\u{e9}".as_bytes()]),
    ("quarter", "\u{bc}".as_bytes(), &["1\u{2044}4".as_bytes()]),
    ("mixed directions", "\u{627}a".as_bytes(), &[]),
    ("control", b"a\x07b", &[]),
    ("not UTF-8", b"caf\xe9", &[]),
    ("spaces", b" a  b ", &[b"a b"]),
    ("plain", b"x", &[b"X", b"xx"]),
    ("emoji", "\u{1f511}key".as_bytes(), &[]),
];

/// AU-02: every password works as on a direct connection, and so does, or does not, every other spelling of it.
#[test]
fn au_02_passwords_that_need_preparing() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let long = "0123456789".repeat(90);
    let mut all: Vec<(String, Vec<u8>, Vec<Vec<u8>>)> = PASSWORDS
        .iter()
        .map(|(name, own, others)| {
            ((*name).to_owned(), own.to_vec(), others.iter().map(|other| other.to_vec()).collect())
        })
        .collect();
    all.push(("long".to_owned(), long.clone().into_bytes(), vec![long.as_bytes()[..899].to_vec()]));
    cluster
        .sql(0, "CREATE DATABASE raw ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")?;
    let mut passwords = "pgweir:TEXTpgweir\n".to_owned();
    for (index, (name, own, _)) in all.iter().enumerate() {
        // Through psql, which can send any byte; escapes keep the text as it is.
        let quoted: String = own.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        let sql = format!("SET client_encoding = sql_ascii; CREATE ROLE r{index} LOGIN PASSWORD E'{quoted}'");
        let mut command = cluster.install().client("psql");
        let target = format!("host=127.0.0.1 port={} dbname=raw user=postgres", cluster.port(0));
        command.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", &target, "-c", &sql]);
        let out = harness::tools::run(&cluster, command, Duration::from_secs(10))?;
        ensure!(out.code == 0, "{name}: {out:?}");
        let secret =
            cluster.scalar(0, &format!("SELECT rolpassword FROM pg_authid WHERE rolname = 'r{index}'"))?;
        writeln!(passwords, "r{index}:{secret}")?;
    }
    let options = PgweirOptions { passwords: Some(passwords), ..PgweirOptions::default() };
    let mut weir = Pgweir::launch(&cluster, &options)?;
    weir.wait_ready()?;
    let try_one = |port: u16, index: usize, password: &[u8]| -> Result<bool> {
        let mut command = cluster.install().client("psql");
        let target = format!("host=127.0.0.1 port={port} dbname=bench user=r{index}");
        command.args(["-X", "-At", "-d", &target, "-c", "SELECT 1"]);
        let out = with_password(&cluster, command, password)?;
        ensure!(out.0 || out.1.contains("password authentication failed"), "{}", out.1);
        Ok(out.0)
    };
    for (index, (name, own, others)) in all.iter().enumerate() {
        for (spelling, password) in std::iter::once(own).chain(others).enumerate() {
            let direct = try_one(cluster.port(0), index, password)?;
            let through = try_one(weir.port(), index, password)?;
            assert_eq!(through, direct, "{name}, spelling {spelling}");
            ensure!(
                direct || spelling > 0,
                "{name}: the password itself does not work on a direct connection"
            );
        }
    }
    weir.signal(Signal::HUP);
    Ok(())
}

/// psql with PGPASSWORD in any bytes; whether it worked, and what it said.
fn with_password(
    cluster: &Cluster,
    mut command: std::process::Command,
    password: &[u8],
) -> Result<(bool, String)> {
    let out = command
        .current_dir(cluster.root())
        .env("PGPASSWORD", OsStr::from_bytes(password))
        .env("PGCONNECT_TIMEOUT", "10")
        .stdin(std::process::Stdio::null())
        .output()?;
    Ok((out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned()))
}
