//! `pgweir import`: the files that Debian ships for Pgpool-II and PgBouncer, and a PgBouncer that is replaced.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::pgweir::binary;
use harness::{Cluster, ClusterOptions, Login, eventually, outside, procs};

const LIMIT: Duration = Duration::from_secs(20);

struct Said {
    code: i32,
    out: String,
    err: String,
}

fn pgweir(args: &[&str]) -> Result<Said> {
    let out = Command::new(binary()?).args(args).stdin(Stdio::null()).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Said { code: out.status.code().unwrap_or(-1), out: text(&out.stdout), err: text(&out.stderr) })
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("not UTF-8")
}

/// The sample with everything in it that it only shows: each `#name = value` is set, the first of each name.
fn set_all(sample: &str, comment: char) -> String {
    let mut seen = std::collections::BTreeSet::new();
    let mut out = String::new();
    for line in sample.lines() {
        let bare = line.trim_start_matches(comment);
        let name = bare.split('=').next().unwrap_or_default().trim();
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '*';
        let sets = bare.contains('=') && !name.is_empty() && name.chars().all(word) && !bare.contains('<');
        // A second comment sign, or a space behind the first, is prose.
        let shown = line.len() - bare.len() < 2 && !bare.starts_with(' ');
        if sets && shown && !seen.insert(name.to_owned()) {
            continue;
        }
        out.push_str(if sets && shown { bare } else { line });
        out.push('\n');
    }
    out
}

/// PP-10: every parameter that Debian's pgpool.conf knows is taken over or named with the reason why not, and what comes
/// out is a valid configuration.
#[test]
fn debians_pgpool_conf_is_imported() -> Result<()> {
    let Some(sample) = outside::file("etc/pgpool2/pgpool.conf")? else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let (file, to) = (dir.path().join("pgpool.conf"), dir.path().join("new"));
    // As it is shipped it names no node: that is told, and what was found is printed nevertheless.
    std::fs::write(&file, &sample)?;
    let said = pgweir(&["import", path(&file)?])?;
    ensure!(said.code == 78 && said.err.contains("backends"), "{} {}", said.code, said.err);
    ensure!(said.out.contains("clustering_mode: \"streaming_replication\""), "{}", said.out);
    let whole = set_all(&sample, '#');
    ensure!(whole.lines().filter(|line| !line.starts_with('#')).count() > 150, "{whole}");
    std::fs::write(&file, &whole)?;
    for side in ["pool_hba.conf", "pcp.conf"] {
        let text = outside::file(&format!("etc/pgpool2/{side}"))?.context("no sample")?;
        std::fs::write(dir.path().join(side), text)?;
    }
    let hba = dir.path().join("pool_hba.conf");
    let said = pgweir(&["import", path(&file)?, path(&hba)?, "--to", path(&to)?])?;
    ensure!(said.code == 0, "{}\n{}", said.out, said.err);
    let yaml = std::fs::read_to_string(to.join("pgweir.yaml"))?;
    ensure!(!said.out.contains("not known to this import"), "{}", said.out);
    for line in [
        "port: 5433  # ",
        "num_init_children",
        "{ hostname: \"host1\", port: 5432, weight: 1, flag: \"ALLOW_TO_FAILOVER\", data_directory: \"/data\"",
        "memqcache_total_size: there is no query cache",
        "use_watchdog: there is no watchdog",
        "connect_timeout: 10000ms",
    ] {
        ensure!(yaml.contains(line), "{line}: {yaml}");
    }
    // Each parameter stands in the result, be it as a key's origin or with the reason why it is none.
    for line in whole.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        let Some((name, value)) = line.split_once('=') else { continue };
        let (name, value) = (name.trim(), value.split('#').next().unwrap_or_default().trim());
        let is_of_a_node = name.starts_with("backend_") || name.starts_with("health_check_");
        // Empty is as good as not set.
        let silent = ["''", "", "off", "'stderr'"].contains(&value) || is_of_a_node;
        let of_ours = yaml.lines().any(|line| line.starts_with(&format!("{name}:")));
        ensure!(silent || of_ours || yaml.contains(name), "{name} = {value} is lost: {yaml}");
    }
    let checked = pgweir(&["check", path(&to.join("pgweir.yaml"))?])?;
    ensure!(checked.code == 0, "{}\n{}\n{yaml}", checked.out, checked.err);
    let again = pgweir(&["import", path(&file)?, "--to", path(&to)?])?;
    ensure!(again.code == 1 && again.err.contains("exists"), "{} {}", again.code, again.err);
    Ok(())
}

/// PP-10: the same for Debian's pgbouncer.ini.
#[test]
fn debians_pgbouncer_ini_is_imported() -> Result<()> {
    let Some(sample) = outside::file("etc/pgbouncer/pgbouncer.ini")? else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let (file, to) = (dir.path().join("pgbouncer.ini"), dir.path().join("new"));
    let whole = set_all(&sample, ';')
        .replace("auth_file = /etc/pgbouncer/userlist.txt", "auth_file = userlist.txt")
        .replace("%include /etc/pgbouncer/pgbouncer-other.ini", "%include other.ini");
    ensure!(whole.lines().filter(|line| !line.starts_with(';')).count() > 60, "{whole}");
    std::fs::write(&file, &whole)?;
    std::fs::write(dir.path().join("userlist.txt"), "\"bob\" \"hush\"\n")?;
    let said = pgweir(&["import", path(&file)?, "--to", path(&to)?])?;
    ensure!(said.code == 0, "{}\n{}", said.out, said.err);
    ensure!(!said.out.contains("not known to this import") && !said.out.contains("hush"), "{}", said.out);
    let yaml = std::fs::read_to_string(to.join("pgweir.yaml"))?;
    for line in
        ["port: 6432", "pool_mode: \"session\"", "server_reset_query: a session's state", "forcedb: user: "]
    {
        ensure!(yaml.contains(line), "{line}: {yaml}");
    }
    assert_eq!(std::fs::read_to_string(to.join("pool_passwd"))?, "bob:TEXThush\n");
    let checked = pgweir(&["check", path(&to.join("pgweir.yaml"))?])?;
    ensure!(checked.code == 0, "{}\n{}\n{yaml}", checked.out, checked.err);
    Ok(())
}

/// Clients of a PgBouncer are served by what its files become: by their passwords, by the database's other name.
#[test]
fn a_pgbouncer_is_replaced() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })?;
    let dir = tempfile::Builder::new().prefix("import-").tempdir_in(cluster.root())?;
    let port = procs::free_port()?;
    let ini = format!(
        "[databases]\nshop = host=127.0.0.1 port={} dbname=bench\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
         unix_socket_dir =\nauth_type = md5\nauth_file = userlist.txt\npool_mode = transaction\nadmin_users = bench\n",
        cluster.port(0)
    );
    std::fs::write(dir.path().join("pgbouncer.ini"), ini)?;
    std::fs::write(dir.path().join("userlist.txt"), "\"bench\" \"bench\"\n")?;
    let to = dir.path().join("new");
    let said = pgweir(&["import", path(&dir.path().join("pgbouncer.ini"))?, "--to", path(&to)?])?;
    ensure!(said.code == 0, "{}\n{}", said.out, said.err);
    ensure!(said.out.contains("sr_check_user: nodes are watched by the role pgweir"), "{}", said.out);
    // What the notes ask for, and nothing else.
    let file = to.join("pgweir.yaml");
    let yaml = std::fs::read_to_string(&file)?;
    std::fs::write(&file, format!("{yaml}sr_check_password: pgweir\nmetrics_listen: off\n"))?;
    let log = std::fs::File::create(to.join("log"))?;
    let mut command = Command::new(binary()?);
    command
        .current_dir(dir.path())
        .args(["run", "-f"])
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let _running = procs::Owned::start(&mut command)?;
    let ask = || -> Result<String> {
        Login::new("bench", "shop").connect(port)?.scalar("SELECT current_database()")
    };
    let served = eventually(LIMIT, || ask().is_ok_and(|name| name == "bench"));
    ensure!(served, "{:?}\n{}", ask(), std::fs::read_to_string(to.join("log"))?);
    ensure!(Login::new("bench", "shop").password("wrong").connect(port).is_err());
    let mut console = Login::new("bench", "pgbouncer").connect(port)?;
    ensure!(console.scalar("SHOW VERSION")?.contains("pgweir"), "the console");
    Ok(())
}
