//! pgbench through pgweir: no transaction fails, the sums agree, and everything ran where it should.

use anyhow::{Context, Result, ensure};
use harness::{Cluster, ClusterOptions, Pgweir, PgweirOptions, pgbench};

struct Bench {
    cluster: Cluster,
    weir: Pgweir,
}

impl Bench {
    /// A cluster whose tables were made through pgweir.
    fn new(scale: u32, yaml: &str) -> Result<Self> {
        let options = ClusterOptions { standbys: 2, max_connections: 60, ..ClusterOptions::default() };
        let cluster = Cluster::new(options)?;
        let weir = Pgweir::start_with(&cluster, &PgweirOptions::yaml(yaml).trusting())?;
        pgbench(&cluster, weir.port(), &["-i", "-q", "-s", &scale.to_string()]).context("initialising")?;
        let rows = cluster.scalar(0, "SELECT count(*) FROM pgbench_accounts")?;
        assert_eq!(rows, (u64::from(scale) * 100_000).to_string());
        cluster.wait_replay()?;
        Ok(Self { cluster, weir })
    }

    fn run(&self, script: &str, mode: &str, clients: u32, transactions: u32, more: &[&str]) -> Result<()> {
        let (c, t) = (clients.to_string(), transactions.to_string());
        let threads = clients.min(2).to_string();
        let mut args = vec!["-n", "-b", script, "-M", mode, "-c", &c, "-j", &threads, "-t", &t];
        args.extend(more);
        let report = pgbench(&self.cluster, self.weir.port(), &args)?;
        assert_eq!(report.failed, 0, "{args:?}");
        assert_eq!(report.processed, u64::from(clients) * u64::from(transactions), "{args:?}");
        Ok(())
    }

    /// The sums of tpcb-like agree on the primary, and the history has one row per transaction.
    fn sums_agree(&self, history: u64) -> Result<()> {
        let sum = |table: &str, column: &str| {
            self.cluster.scalar(0, &format!("SELECT coalesce(sum({column}), 0) FROM pgbench_{table}"))
        };
        let accounts = sum("accounts", "abalance")?;
        assert_eq!(accounts, sum("branches", "bbalance")?);
        assert_eq!(accounts, sum("tellers", "tbalance")?);
        assert_eq!(accounts, sum("history", "delta")?);
        assert_eq!(self.cluster.scalar(0, "SELECT count(*) FROM pgbench_history")?, history.to_string());
        Ok(())
    }

    /// Statements of pgbench's reads (outside transactions) and writes that a node has logged.
    fn logged(&self, node: usize) -> Result<(usize, usize)> {
        let all = self.cluster.statements_logged(node)?;
        let mine = || all.iter().filter(|s| s.user == "bench");
        let reads = mine().filter(|s| s.sql.starts_with("SELECT abalance")).count();
        let writes =
            ["UPDATE", "INSERT", "CREATE", "TRUNCATE", "ALTER", "VACUUM", "COPY", "copy", "vacuum", "DROP"];
        let writes =
            mine().filter(|s| writes.iter().any(|word| s.sql.trim_start().starts_with(word))).count();
        Ok((reads, writes))
    }
}

const MODES: [&str; 3] = ["simple", "extended", "prepared"];
/// Clients, and transactions of each.
const LOADS: [(u32, u32); 8] = [(2, 60), (4, 40), (8, 25), (16, 15), (32, 8), (64, 4), (104, 3), (300, 2)];

#[test]
fn pgbench_tpcb_like_at_scale_10() -> Result<()> {
    let bench = Bench::new(10, "")?;
    let mut history = 0;
    for mode in MODES {
        for (clients, transactions) in LOADS {
            bench.run("tpcb-like", mode, clients, transactions, &[])?;
            history += u64::from(clients * transactions);
        }
    }
    bench.sums_agree(history)?;
    for node in [1, 2] {
        assert_eq!(bench.logged(node)?.1, 0, "writes on n{node}");
        assert_eq!(bench.logged(node)?.0, 0, "reads of a read-write transaction on n{node}");
    }
    Ok(())
}

#[test]
fn pgbench_simple_update() -> Result<()> {
    let bench = Bench::new(1, "")?;
    for mode in MODES {
        for (clients, transactions) in LOADS {
            bench.run("simple-update", mode, clients, transactions, &[])?;
        }
    }
    for node in [1, 2] {
        assert_eq!(bench.logged(node)?, (0, 0), "on n{node}");
    }
    Ok(())
}

#[test]
fn pgbench_select_only_is_split_by_weight() -> Result<()> {
    let bench = Bench::new(1, "")?;
    let mut total = 0;
    for mode in MODES {
        for (clients, transactions) in LOADS.map(|(clients, transactions)| (clients, transactions * 8)) {
            bench.run("select-only", mode, clients, transactions, &[])?;
            total += (clients * transactions) as usize;
        }
    }
    let reads: Vec<usize> = (0..3).map(|node| Ok(bench.logged(node)?.0)).collect::<Result<_>>()?;
    assert_eq!(reads.iter().sum::<usize>(), total, "{reads:?}");
    assert_eq!(reads[0], 0, "reads on the primary of weight 0");
    let share = reads[1] as f64 / total as f64;
    ensure!((share - 0.5).abs() < 0.03, "{reads:?}");
    assert_eq!((bench.logged(1)?.1, bench.logged(2)?.1), (0, 0));
    Ok(())
}

#[test]
fn pgbench_with_more_clients_than_the_nodes_could_take() -> Result<()> {
    let bench = Bench::new(1, "default_pool_size: 10")?;
    let mut history = 0;
    for mode in MODES {
        for (clients, transactions) in [(104, 4), (300, 2)] {
            bench.run("select-only", mode, clients, transactions, &[])?;
            bench.run("tpcb-like", mode, clients, transactions, &[])?;
            bench.run("simple-update", mode, clients, transactions, &[])?;
            history += u64::from(clients * transactions);
        }
    }
    let accounts =
        "SELECT (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(tbalance) FROM pgbench_tellers)";
    assert_eq!(bench.cluster.scalar(0, accounts)?, "t");
    let rows: u64 = bench.cluster.scalar(0, "SELECT count(*) FROM pgbench_history")?.parse()?;
    assert_eq!(rows, history * 2);
    for node in 0..3 {
        let used = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench'";
        let used: usize = bench.cluster.scalar(node, used)?.parse()?;
        ensure!(used <= 10, "{used} backends on n{node}");
    }
    Ok(())
}

#[test]
fn pgbench_with_a_connection_per_transaction() -> Result<()> {
    let bench = Bench::new(1, "")?;
    let mut history = 0;
    for mode in MODES {
        for (clients, transactions) in [(2, 20), (16, 5), (64, 2)] {
            bench.run("tpcb-like", mode, clients, transactions, &["-C"])?;
            bench.run("select-only", mode, clients, transactions, &["-C"])?;
            history += u64::from(clients * transactions);
        }
    }
    bench.sums_agree(history)?;
    assert_eq!((bench.logged(1)?.1, bench.logged(2)?.1), (0, 0));
    Ok(())
}

#[test]
fn pgbench_in_session_pooling() -> Result<()> {
    let bench = Bench::new(1, "pool_mode: session\ndefault_pool_size: 40")?;
    let mut history = 0;
    for mode in MODES {
        for (clients, transactions) in [(2, 50), (16, 10), (32, 5)] {
            bench.run("tpcb-like", mode, clients, transactions, &[])?;
            bench.run("select-only", mode, clients, transactions, &[])?;
            history += u64::from(clients * transactions);
        }
    }
    bench.sums_agree(history)?;
    let reads: Vec<usize> = (0..3).map(|node| Ok(bench.logged(node)?.0)).collect::<Result<_>>()?;
    ensure!(reads[1] > 100 && reads[2] > 100, "select-only on the standbys: {reads:?}");
    Ok(())
}

#[test]
fn pgbench_with_scram_on_both_sides() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 1, ..ClusterOptions::default() })?;
    let weir = Pgweir::start(&cluster, "")?;
    pgbench(&cluster, weir.port(), &["-i", "-q"])?;
    cluster.wait_replay()?;
    for args in [&["-c", "8", "-t", "20"][..], &["-c", "8", "-t", "5", "-C"], &["-S", "-c", "8", "-t", "50"]]
    {
        assert_eq!(pgbench(&cluster, weir.port(), args)?.failed, 0, "{args:?}");
    }
    Ok(())
}
