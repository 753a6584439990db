//! What a transaction costs, counted instead of timed: system calls, allocations and instructions of the whole
//! process under valgrind. Two runs differ by a number of transactions; the difference is theirs alone.
//!
//! The bounds are close to what was measured, so that a change that makes the hot path dearer has to say so.

use anyhow::{Context, Result, ensure};
use harness::{Cluster, ClusterOptions, Pgweir, PgweirOptions, pgbench};

/// Transactions of the shorter run, and of the longer one.
const SHORT: u32 = 300;
const LONG: u32 = 1300;

const MODES: [&str; 3] = ["simple", "extended", "prepared"];

/// Instructions of the process for one transaction of one client, in the profile `ci`, which checks overflows.
const INSTRUCTIONS: f64 = 21_500.0;
/// Of one by the extended protocol, which is five messages each way instead of one.
const EXTENDED: f64 = 24_100.0;

/// Of a connection without a password and one simple transaction in it, from its first byte to its last.
const CONNECTION: f64 = 74_000.0;

struct Rig {
    cluster: Cluster,
}

impl Rig {
    fn new() -> Result<Self> {
        let cluster = Cluster::new(ClusterOptions { standbys: 1, ..ClusterOptions::default() })?;
        pgbench(&cluster, cluster.port(0), &["-i", "-q", "-s", "1"]).context("initialising")?;
        cluster.wait_replay()?;
        Ok(Self { cluster })
    }

    /// What the tool printed about pgweir while it served that many transactions of one client of a pgbench with `options`.
    fn said(&self, tool: &[&str], options: &[&str], transactions: u32) -> Result<String> {
        let under = ["valgrind"].iter().chain(tool).map(|word| (*word).to_owned()).collect();
        // Nothing is to go on beside the transactions, and the first check may take its time.
        let yaml = "workers: 1\nhealth_check_period: 10min\nhealth_check_timeout: 1min\nconnect_timeout: 1min\nsr_check_period: 10min\n";
        let set = PgweirOptions { under, ..PgweirOptions::yaml(yaml).trusting() };
        let mut weir = Pgweir::start_with(&self.cluster, &set)?;
        let count = transactions.to_string();
        let all = [&["-n", "-S", "-c", "1", "-t", &count], options].concat();
        let report = pgbench(&self.cluster, weir.port(), &all)?;
        ensure!((report.processed, report.failed) == (u64::from(transactions), 0), "{report:?}");
        ensure!(weir.stop()? == 0, "{}", weir.log());
        Ok(weir.log())
    }

    /// What one transaction adds to what `count` finds in the tool's words.
    fn each(&self, tool: &[&str], options: &[&str], count: impl Fn(&str) -> Result<f64>) -> Result<f64> {
        let (short, long) = (self.said(tool, options, SHORT)?, self.said(tool, options, LONG)?);
        Ok((count(&long)? - count(&short)?) / f64::from(LONG - SHORT))
    }
}

/// The number behind `label` in a line of valgrind's.
fn number(said: &str, label: &str) -> Result<f64> {
    let line = said
        .lines()
        .find_map(|line| line.split_once(label))
        .with_context(|| format!("no {label:?}: {said}"))?;
    let digits: String = line.1.trim().chars().take_while(|c| c.is_ascii_digit() || *c == ',').collect();
    Ok(digits.replace(',', "").parse()?)
}

fn calls(said: &str, names: &[&str]) -> f64 {
    let is_one = |line: &&str| names.iter().any(|name| line.contains(&format!("sys_{name} ")));
    let count = said.lines().filter(|line| line.starts_with("SYSCALL[")).filter(is_one).count();
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// PP-09: prepared ones, too.
#[test]
fn a_transaction_is_two_reads_and_two_writes() -> Result<()> {
    let rig = Rig::new()?;
    for mode in MODES {
        let tool = ["--tool=none", "--trace-syscalls=yes"];
        let (short, long) = (rig.said(&tool, &["-M", mode], SHORT)?, rig.said(&tool, &["-M", mode], LONG)?);
        let each = |names: &[&str]| (calls(&long, names) - calls(&short, names)) / f64::from(LONG - SHORT);
        let reads = each(&["recvfrom", "recvmsg", "read", "readv"]);
        let writes = each(&["sendto", "sendmsg", "write", "writev"]);
        println!("{mode}: {reads} reads and {writes} writes a transaction");
        ensure!((1.98..2.02).contains(&reads), "{mode}: {reads} reads a transaction");
        ensure!((1.98..2.02).contains(&writes), "{mode}: {writes} writes a transaction");
        // One wait for the client and one for the node: with more clients they share them.
        let waits = each(&["epoll_wait", "epoll_pwait", "epoll_pwait2"]);
        println!("{mode}: {waits} waits a transaction");
        ensure!(waits < 2.2, "{mode}: {waits} waits a transaction");
        let others = each(&["epoll_ctl", "futex", "setsockopt", "timerfd_settime", "mmap", "brk"]);
        ensure!(others < 0.05, "{mode}: {others} other calls a transaction");
    }
    Ok(())
}

#[test]
fn a_transaction_allocates_nothing() -> Result<()> {
    let rig = Rig::new()?;
    for mode in MODES {
        let blocks = rig.each(&["--tool=dhat", "--dhat-out-file=/dev/null"], &["-M", mode], |said| {
            let total = said.lines().find(|line| line.contains("Total:")).context("no total")?;
            number(total, " in ").context("blocks")
        })?;
        println!("{mode}: {blocks} blocks a transaction");
        // One is one; what goes on beside is a fraction.
        ensure!(blocks < 0.5, "{mode}: {blocks} allocations a transaction");
    }
    Ok(())
}

/// Of a binary that is not optimised it says little; the bound is for the profiles `ci` and `release`.
#[test]
fn a_transaction_takes_few_instructions() -> Result<()> {
    let rig = Rig::new()?;
    let factor = if harness::is_optimised()? { 1.0 } else { 20.0 };
    for mode in MODES {
        let limit = factor * if mode == "extended" { EXTENDED } else { INSTRUCTIONS };
        let tool = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];
        let instructions = rig.each(&tool, &["-M", mode], |said| number(said, "Collected : "))?;
        println!("{mode}: {instructions} instructions a transaction");
        ensure!(instructions < limit, "{mode}: {instructions} instructions a transaction");
    }
    Ok(())
}

/// PP-09: a login is what clients without a pool of their own pay for each transaction.
#[test]
fn a_connection_takes_few_instructions_and_calls() -> Result<()> {
    let rig = Rig::new()?;
    let factor = if harness::is_optimised()? { 1.0 } else { 20.0 };
    let tool = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];
    let instructions = rig.each(&tool, &["-C"], |said| number(said, "Collected : "))?;
    println!("{instructions} instructions a connection");
    ensure!(instructions < factor * CONNECTION, "{instructions} instructions a connection");
    let tool = ["--tool=none", "--trace-syscalls=yes"];
    let (short, long) = (rig.said(&tool, &["-C"], SHORT)?, rig.said(&tool, &["-C"], LONG)?);
    let each = |names: &[&str]| (calls(&long, names) - calls(&short, names)) / f64::from(LONG - SHORT);
    // What a socket is to be it is from the start, and where it comes from is told with it. Not `fcntl`: where assertions
    // are on, as they are in the profile `ci`, a descriptor is looked at twice.
    let options = each(&["ioctl", "setsockopt", "getsockopt", "getsockname", "getpeername"]);
    println!("{options} calls about options a connection");
    ensure!(options < 0.05, "{options} calls about options a connection");
    Ok(())
}
