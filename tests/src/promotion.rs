//! What tests of promotions share: clusters that can be rewound, pgweir in `failover_mode: promote` with the sample
//! scripts, clients that do nothing meanwhile.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::{Cluster, ClusterOptions, Login, Pgweir, PgweirOptions, RawClient, eventually};

/// What `pg_rewind` needs, and standbys that notice a silent primary soon.
const CONF: &str = "full_page_writes = on\nwal_log_hints = on\nwal_receiver_timeout = 1500\n";
/// Nothing acknowledged is on one node only.
pub const SYNCHRONOUS: &str = "synchronous_standby_names = 'ANY 1 (*)'\n";

/// A primary with so many standbys and a table `t(id bigint PRIMARY KEY)` for everybody.
///
/// # Errors
/// When it does not come up.
pub fn cluster(standbys: usize, conf: &str) -> Result<Cluster> {
    let conf = format!("{CONF}{conf}");
    let options = ClusterOptions { standbys, log_statements: false, conf, ..ClusterOptions::default() };
    let cluster = Cluster::new(options)?;
    cluster.setup("CREATE TABLE t(id bigint PRIMARY KEY); GRANT ALL ON t TO PUBLIC")?;
    Ok(cluster)
}

/// The samples of etc/failover, which find out by themselves whom to run as.
#[must_use]
pub fn script(cluster: &Cluster, name: &str, placeholders: &str) -> String {
    let etc = Path::new(env!("CARGO_MANIFEST_DIR")).join("../etc/failover").join(name);
    let bin = cluster.install().client("psql").get_program().to_owned();
    let bin = Path::new(&bin).parent().map(|bin| bin.display().to_string()).unwrap_or_default();
    format!("PGBIN={bin} PGLOG=restarted.log {} {placeholders}", etc.display())
}

/// pgweir that promotes, with checks once a second and one retry, and `yaml` over that.
///
/// # Errors
/// When it does not come up.
pub fn promoting(cluster: &Cluster, yaml: &str) -> Result<Pgweir> {
    let follow = script(cluster, "follow_primary.sh", "%d %h %p %D %m %H %r");
    let base = format!(
        "failover_mode: promote\nfollow_primary_command: \"{follow}\"\nhealth_check_period: 1s\n\
         health_check_max_retries: 1\nhealth_check_retry_delay: 1s\nsr_check_period: 1s\nauto_failback_interval: 1s\n\
         connect_timeout: 10s\nhealth_check_timeout: 5s\n\
         users: {{other: {{pool_mode: session}}}}\n"
    );
    let given = |line: &&str| line.split(':').next().is_some_and(|key| yaml.contains(&format!("{key}:")));
    let kept: Vec<&str> = base.lines().filter(|line| !given(line)).collect();
    let yaml = format!("{}\n{yaml}", kept.join("\n"));
    Pgweir::start_with(cluster, &PgweirOptions::yaml(&yaml).trusting())
}

/// Waits for another primary than `not`.
///
/// # Errors
/// When there is none in time.
pub fn primary(weir: &Pgweir, not: usize, within: Duration) -> Result<usize> {
    let mut found = None;
    eventually(within, || {
        let nodes = weir.pool_nodes().unwrap_or_default();
        found = nodes.iter().position(|node| node["role"] == "primary" && node["status"] == "up");
        found.is_some_and(|node| node != not)
    });
    found.filter(|node| *node != not).context("no other primary")
}

/// Status and role of each node.
///
/// # Errors
/// When pgweir does not tell.
pub fn states(weir: &Pgweir) -> Result<Vec<(String, String)>> {
    let state = |node: &BTreeMap<String, String>| (node["status"].clone(), node["role"].clone());
    Ok(weir.pool_nodes()?.iter().map(state).collect())
}

/// Clients that do nothing for now, of both ways of pooling; each has a setting and has read.
///
/// # Errors
/// When one does not get in.
pub fn idle_clients(weir: &Pgweir) -> Result<Vec<RawClient>> {
    let mut clients = Vec::new();
    for user in ["bench", "other"] {
        for _ in 0..5 {
            let mut client = Login::new(user, "bench").connect(weir.port())?;
            client.set_deadline(Duration::from_secs(40));
            client.simple("SET work_mem = '7MB'")?;
            client.simple("SELECT count(*) FROM t")?;
            clients.push(client);
        }
    }
    Ok(clients)
}

/// Waits until so many commands have ended: a node is stopped, rewound and started in one, which takes as long as the
/// machine lets it; only a hang takes longer than a minute.
///
/// # Errors
/// When one has failed, or does not end.
pub fn wait_commands(weir: &Pgweir, hook: &str, count: usize) -> Result<()> {
    let (done, failed) =
        (format!("command has ended hook=\"{hook}\""), format!("command has failed hook=\"{hook}\""));
    let ended = eventually(Duration::from_secs(60), || {
        let log = weir.log();
        log.contains(&failed) || log.matches(&done).count() >= count
    });
    ensure!(ended && !weir.log().contains(&failed), "{hook} has failed or goes on:\n{}", weir.log());
    Ok(())
}
