//! `pam` with services of our own, and rules for host names with this machine's resolver.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::checkers::{Services, asks};
use harness::{ClientAuth, Cluster, ClusterOptions, Login, Pgweir, PgweirOptions, eventually};

fn one_node() -> Result<Cluster> {
    Cluster::new(ClusterOptions { standbys: 0, ..ClusterOptions::default() })
}

/// Processes of that parent which still run.
fn children(parent: u32) -> usize {
    let stat = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("stat")).ok();
    let is_child = |stat: &String| {
        let mut fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
        let state = fields.next();
        fields.next() == Some(&parent.to_string()) && state != Some("Z")
    };
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(stat).filter(is_child).count()
}

/// `pam`: the modules decide, on the password and on the account; the password serves for the node too; what hangs is
/// ended, and keeps nobody out.
#[test]
fn the_pam_method() -> Result<()> {
    let cluster = one_node()?;
    let Some(mut services) = Services::new() else { return Ok(()) };
    cluster.sql(0, "ALTER ROLE bench PASSWORD 'of the modules'")?;
    let right = "read -r password || true\n[ \"$PAM_USER\" = bench ] && [ \"$password\" = 'of the modules' ] && \
                 [ \"$PAM_RHOST\" = 127.0.0.1 ]";
    let named = right.replace("127.0.0.1", "localhost");
    let permit = "auth required pam_permit.so\n";
    let mut hba = String::new();
    for (database, lines, options) in [
        ("exec", asks(&cluster, "exec", right)?, ""),
        ("named", asks(&cluster, "named", &named)?, "pam_use_hostname=1"),
        ("hang", asks(&cluster, "hang", "exec sleep 60")?, ""),
        ("deny", "auth required pam_deny.so\naccount required pam_permit.so\n".to_owned(), ""),
        ("locked", format!("{permit}account required pam_deny.so\n"), ""),
        ("broken", format!("{permit}auth required no_such_module.so\n"), ""),
    ] {
        cluster.sql(0, &format!("CREATE DATABASE {database}"))?;
        let service = services.make(database, &lines)?;
        hba.push_str(&format!("host {database} all all pam pamservice={service} {options}\n"));
    }
    hba.push_str("host all all all scram-sha-256\n");
    let passwords = Some("pgweir:TEXTpgweir\nother:TEXTother\n".to_owned());
    let yaml = "authentication_timeout: 8s\n".to_owned();
    let options = PgweirOptions { yaml, auth: ClientAuth::Hba(hba), passwords, ..PgweirOptions::default() };
    let mut weir = Pgweir::launch(&cluster, &options)?;
    weir.wait_ready()?;
    let other = Login::new("other", "postgres");
    let ready = eventually(Duration::from_secs(30), || weir.login(&other).is_ok_and(|code| code.is_empty()));
    ensure!(ready, "the node is not there: {}", weir.log());
    let bench = |database: &str| Login::new("bench", database).password("of the modules");
    for database in ["exec", "named"] {
        assert_eq!(weir.login(&bench(database))?, "", "{database}: {}", weir.log());
        assert_eq!(weir.login(&bench(database).password("wrong"))?, "28000", "{database}");
        assert_eq!(weir.login(&bench(database).password(""))?, "28P01", "{database}: empty");
        assert_eq!(weir.login(&Login::new("nobody", database))?, "28000", "{database}");
    }
    for database in ["deny", "locked", "broken"] {
        assert_eq!(weir.login(&bench(database))?, "28000", "{database}");
    }
    let started = Instant::now();
    let hanging = std::thread::scope(|scope| {
        let hanging = scope.spawn(|| {
            let mut psql = cluster.install().client("psql");
            let way = format!("host=127.0.0.1 port={} user=bench dbname=hang password=x", weir.port());
            psql.args(["-X", "-d", &way, "-c", "SELECT 1"]);
            harness::tools::run(&cluster, psql, Duration::from_secs(60))
        });
        assert_eq!(weir.login(&other)?, "", "nobody waits for the modules");
        hanging.join().expect("no panic")
    })?;
    ensure!(hanging.stderr.contains("canceling authentication due to timeout"), "{hanging:?}");
    ensure!(started.elapsed() < Duration::from_secs(40), "the modules were waited for");
    ensure!(eventually(Duration::from_secs(20), || children(weir.pid()) == 0), "a helper is left behind");
    let told = eventually(Duration::from_secs(30), || {
        let log = weir.log();
        log.contains("PAM authentication by pool_hba line") && log.contains("Authentication failure")
    });
    ensure!(told, "the reason is not in the log: {}", weir.log());
    ensure!(!weir.log().contains("of the modules"), "a secret is logged");
    Ok(())
}

/// Rules for host names: the name of the client's address counts when it leads back, whole or by its end; others
/// are passed over.
#[test]
fn rules_for_host_names() -> Result<()> {
    let cluster = one_node()?;
    for database in ["whole", "suffix", "other", "mixed"] {
        cluster.sql(0, &format!("CREATE DATABASE {database}"))?;
    }
    let hba = "host whole all LocalHost scram-sha-256\n\
               host suffix all .localdomain trust\n\
               host suffix all .ocalhost trust\n\
               host other all db.example.com trust\n\
               host other all localhost.example.com trust\n\
               host mixed all db.example.com reject\n\
               host mixed all localhost scram-sha-256\n\
               host mixed all all trust\n\
               host postgres all all scram-sha-256\n\
               host bench all all scram-sha-256\n";
    let auth = ClientAuth::Hba(hba.to_owned());
    let mut weir = Pgweir::launch(&cluster, &PgweirOptions { auth, ..PgweirOptions::default() })?;
    weir.wait_ready()?;
    weir.wait_nodes(1)?;
    let login =
        |database: &str, password: &str| weir.login(&Login::new("bench", database).password(password));
    for database in ["whole", "mixed"] {
        assert_eq!(login(database, "bench")?, "", "{database}: {}", weir.log());
        assert_eq!(login(database, "wrong")?, "28P01", "{database}");
    }
    for database in ["suffix", "other"] {
        assert_eq!(login(database, "bench")?, "28000", "{database}");
    }
    Ok(())
}
