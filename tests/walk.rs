//! The documents, walked through: what a user is told to type is typed, in the order of the page, with names of the
//! test's servers for those of the page.
//!
//! Every block of README.md and docs/ is looked at: one that is neither typed here nor listed in [`ELSEWHERE`] is a failure.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::{Cluster, Login, RawClient, Reply, eventually, msgs, pgweir, procs, rig};

/// Only a hang takes longer.
const LIMIT: Duration = Duration::from_secs(60);
/// Every password that is asked for.
const PASSWORD: &str = "not to be guessed";

/// Blocks that are not typed here: the page, how the block begins, and who does it or why nobody can.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("README.md", "make run", "installs packages and takes fixed ports; the demo has tests of its own"),
    ("README.md", "make test", "is what runs this"),
    ("docs/first-steps.md", "make run", "as in README.md"),
    ("docs/first-steps.md", "node 0, db0:5432:", "output; doctor.rs compares what the doctor says"),
    (
        "docs/first-steps.md",
        "install -m 755 target/release/pgweir",
        "needs systemd; service.rs checks the unit",
    ),
    (
        "docs/first-steps.md",
        "install -m 644 etc/systemd/pgweir.socket",
        "needs systemd; service.rs takes sockets over",
    ),
    ("docs/failover.md", "stateDiagram-v2", "a picture"),
    ("docs/import.md", "pgweir import", "import.rs does it with the files of Debian's packages"),
    ("docs/monitoring.md", "scrape_configs:", "monitoring.rs runs Prometheus with it"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The fenced blocks of a page, without what they are indented by.
fn blocks(page: &str) -> Result<Vec<String>> {
    let text = fs::read_to_string(root().join(page)).with_context(|| page.to_owned())?;
    let (mut blocks, mut open): (Vec<String>, Option<(usize, String)>) = (Vec::new(), None);
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        match (line.trim_start().starts_with("```"), open.take()) {
            (true, None) => open = Some((indent, String::new())),
            (true, Some((_, block))) => blocks.push(block),
            (false, Some((indent, mut block))) => {
                block.push_str(line.get(indent..).unwrap_or_default());
                block.push('\n');
                open = Some((indent, block));
            }
            (false, None) => {}
        }
    }
    ensure!(open.is_none(), "{page}: a block has no end");
    Ok(blocks)
}

/// The block of the page that begins like that.
fn block(page: &str, beginning: &str) -> Result<String> {
    let found = blocks(page)?.into_iter().find(|block| block.starts_with(beginning));
    found.with_context(|| format!("{page}: no block begins with {beginning:?}"))
}

/// What this file types, by page and by how it begins.
const TYPED: &[(&str, &str)] = &[
    ("docs/first-steps.md", "CREATE ROLE pgweir"),
    ("docs/first-steps.md", "listen_addresses:"),
    ("docs/first-steps.md", "(umask 077;"),
    ("docs/first-steps.md", "psql -h db0"),
    ("docs/consistency.md", "SET pgweir.consistency"),
    ("docs/failover.md", "recovery_command:"),
    ("docs/monitoring.md", "app=> PGPOOL SET"),
    ("docs/security.md", "CREATE FUNCTION pgweir_secret"),
    ("docs/security.md", "auth_user:"),
];

#[test]
fn every_block_is_typed_by_somebody() -> Result<()> {
    let docs = fs::read_dir(root().join("docs"))?.collect::<std::io::Result<Vec<_>>>()?;
    let names = docs.iter().filter_map(|entry| entry.file_name().into_string().ok());
    let mut pages: BTreeSet<String> =
        names.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}")).collect();
    pages.insert("README.md".to_owned());
    let known = || ELSEWHERE.iter().map(|(page, begins, _)| (*page, *begins)).chain(TYPED.iter().copied());
    let mut met = BTreeSet::new();
    for page in &pages {
        for block in blocks(page)? {
            let by = known().find(|(of, begins)| of == page && block.starts_with(begins));
            ensure!(by.is_some(), "{page}: nobody types this:\n{block}");
            met.extend(by);
        }
    }
    for (page, begins) in known() {
        ensure!(met.contains(&(page, begins)), "{page} has no block that begins with {begins:?} any more");
    }
    Ok(())
}

/// A directory in which a user works, with `pgweir` on the path.
struct Desk {
    dir: PathBuf,
    /// `db0` of the page.
    port: u16,
    psql: PathBuf,
}

impl Desk {
    fn new(cluster: &Cluster, name: &str) -> Result<Self> {
        let dir = cluster.root().join(name);
        fs::create_dir(&dir)?;
        std::os::unix::fs::symlink(pgweir::binary()?, dir.join("pgweir"))?;
        let psql = PathBuf::from(cluster.install().client("psql").get_program());
        Ok(Self { dir, port: cluster.port(0), psql })
    }

    /// Types lines into a shell. Passwords are asked for on standard input; `-h db0` is the test's primary.
    fn type_in(&self, lines: &str) -> Result<Output> {
        let script = format!(
            "set -eu\npgweir() {{ echo '{PASSWORD}' | command pgweir \"$@\"; }}\n\
             psql() {{ shift 2; '{}' -h 127.0.0.1 -p {} -d postgres \"$@\"; }}\n{lines}",
            self.psql.display(),
            self.port
        );
        let path = format!("{}:{}", self.dir.display(), std::env::var("PATH")?);
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &script]).current_dir(&self.dir).env("PATH", path).env("PGPASSWORD", "postgres");
        let out = shell.stdin(Stdio::null()).output()?;
        ensure!(
            out.status.success(),
            "{lines}\n{}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
        Ok(out)
    }

    /// Writes the configuration of the page, for the test's servers and a free port, which is given.
    fn configure(&self, cluster: &Cluster, yaml: &str) -> Result<u16> {
        let port = procs::free_port()?;
        let mut text = yaml.to_owned();
        for node in 0..cluster.len() {
            let name = format!("hostname: db{node}");
            ensure!(text.contains(&name), "no {name}: {yaml}");
            text = text.replace(&name, &format!("hostname: 127.0.0.1, port: {}", cluster.port(node)));
        }
        text.push_str(&format!("port: {port}\nmetrics_listen: \"off\"\nunix_socket_directories: []\n"));
        fs::write(self.dir.join("pgweir.yaml"), text)?;
        Ok(port)
    }

    /// `pgweir check`, `check --connect` and `run`, as the page has them; `alice` logs in through it.
    fn serve(&self, port: u16) -> Result<()> {
        let page = fs::read_to_string(root().join("docs/first-steps.md"))?;
        for told in ["pgweir check pgweir.yaml", "pgweir check --connect pgweir.yaml"] {
            ensure!(page.contains(&format!("`{told}`")), "the page does not say {told:?} any more");
            self.type_in(told)?;
        }
        ensure!(page.contains("`pgweir run -f pgweir.yaml`"), "the page runs it in another way");
        let mut run = Command::new(self.dir.join("pgweir"));
        run.args(["run", "-f", "pgweir.yaml"]).current_dir(&self.dir).stdin(Stdio::null());
        let log = fs::File::create(self.dir.join("log"))?;
        let mut process = run.stdout(log.try_clone()?).stderr(log).spawn()?;
        let alice = || Login::new("alice", "bench").password(PASSWORD).connect(port);
        let asked = eventually(LIMIT, || alice().is_ok_and(|mut client| client.scalar("SELECT 7").is_ok()));
        procs::send(process.id(), rustix::process::Signal::INT);
        let ended = procs::wait(&mut process, LIMIT)?;
        ensure!(asked && ended.success(), "{}", fs::read_to_string(self.dir.join("log"))?);
        Ok(())
    }
}

/// From nothing to a service, with either form of secrets.
#[test]
fn first_steps() -> Result<()> {
    let cluster = Cluster::new(harness::ClusterOptions::default())?;
    let page = "docs/first-steps.md";
    let role = block(page, "CREATE ROLE pgweir")?.replace("'...'", &format!("'{PASSWORD}'"));
    // The harness has a role of that name.
    cluster.setup(&format!(
        "ALTER ROLE pgweir RENAME TO other_pgweir; {role}; CREATE ROLE alice LOGIN PASSWORD '{PASSWORD}'"
    ))?;
    let yaml = block(page, "listen_addresses:")?;
    let passwords = block(page, "(umask 077;")?;
    let plain = Desk::new(&cluster, "plain")?;
    plain.type_in(&passwords)?;
    let port = plain.configure(&cluster, &yaml)?;
    plain.serve(port)?;
    let copied = Desk::new(&cluster, "copied")?;
    copied
        .type_in(&passwords.lines().filter(|line| !line.contains("alice")).collect::<Vec<_>>().join("\n"))?;
    copied.type_in(&block(page, "psql -h db0")?)?;
    let secrets = fs::read_to_string(copied.dir.join("pool_passwd"))?;
    ensure!(secrets.contains("alice:SCRAM-SHA-256$"), "{secrets}");
    let port = copied.configure(&cluster, &yaml)?;
    copied.serve(port)
}

/// What pages show of SQL, in an ordinary session.
#[test]
fn sessions_of_the_pages() -> Result<()> {
    let (cluster, weir) = rig(1, "")?;
    let mut client = weir.client()?;
    client.set_deadline(LIMIT);
    for line in block("docs/consistency.md", "SET pgweir.consistency")?.lines() {
        client.simple(line).with_context(|| line.to_owned())?;
    }
    let shown = block("docs/monitoring.md", "app=> PGPOOL SET")?;
    let typed: Vec<&str> = shown.lines().filter_map(|line| line.strip_prefix("app=> ")).collect();
    let [set, select] = typed.as_slice() else { anyhow::bail!("{shown}") };
    client.simple(set)?;
    let node = told(&mut client, select)?;
    let wanted = shown.lines().find_map(|line| line.strip_prefix("NOTICE:  ")).context("no notice")?;
    // It was another node.
    let anywhere = |notice: &str| notice.replace("id: 0 ", "id: 1 ");
    ensure!(anywhere(wanted) == anywhere(&node), "{wanted} / {node}");
    cluster.setup("CREATE ROLE pgweir_auth LOGIN PASSWORD 'pgweir_auth'")?;
    cluster.setup(&block("docs/security.md", "CREATE FUNCTION pgweir_secret")?)?;
    let secret = "SELECT secret LIKE 'SCRAM-SHA-256$%' FROM public.pgweir_secret('bench')";
    assert_eq!(cluster.scalar(0, secret)?, "t");
    Ok(())
}

/// The notice that comes with the answer to `sql`.
fn told(client: &mut RawClient, sql: &str) -> Result<String> {
    let said = client.talk(&msgs().Q(sql))?;
    let notice = said.0.iter().find_map(|reply| match reply {
        Reply::Notice(fields) => Some(fields.get('M').to_owned()),
        _ => None,
    });
    notice.with_context(|| format!("{said}"))
}

/// Configurations of pages are whole: `pgweir check` takes them.
#[test]
fn configurations_of_the_pages() -> Result<()> {
    let cluster =
        Cluster::new(harness::ClusterOptions { standbys: 0, ..harness::ClusterOptions::default() })?;
    let desk = Desk::new(&cluster, "desk")?;
    let base = format!("backends: [{{ hostname: 127.0.0.1, port: {} }}]\n", cluster.port(0));
    for (page, beginning) in [("docs/failover.md", "recovery_command:"), ("docs/security.md", "auth_user:")] {
        fs::write(desk.dir.join("pool_passwd"), "pgweir_auth:TEXTpgweir_auth\npgweir:TEXTpgweir\n")?;
        fs::set_permissions(
            desk.dir.join("pool_passwd"),
            std::os::unix::fs::PermissionsExt::from_mode(0o600),
        )?;
        fs::write(desk.dir.join("pgweir.yaml"), format!("{base}{}", block(page, beginning)?))?;
        desk.type_in("pgweir check pgweir.yaml").context(page)?;
    }
    Ok(())
}
