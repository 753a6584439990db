//! `pgweir demo`: a primary and two streaming standbys in a directory, and pgweir in front of them.
//!
//! Made for `make run`, for trying things out, and never for data that matters. A second run reuses the data.
//! Invariants: one demo a directory (a pid file that is locked); whatever was started here is stopped before the process ends,
//! however it ends, except by SIGKILL, and then the next run stops what is left over; every wait has a bound; files that a
//! demo did not write are never overwritten.
//! PostgreSQL runs as the user postgres when this process is root, because it refuses root.

mod command;
mod history;
mod install;
mod nodes;
mod place;
mod port;
mod proxy;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

use install::Installation;
use nodes::Nodes;
use place::Place;
use proxy::Proxy;

/// How many PostgreSQL servers there are: a primary and two standbys.
const NODES: u16 = 3;

/// The arguments of `pgweir demo`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DemoArgs {
    /// Where the data, the configuration and the logs are kept
    #[arg(default_value = "var/demo")]
    dir: PathBuf,
    /// The port pgweir listens on
    #[arg(long, default_value_t = 9999, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// The port of db0; db1 and db2 take the two that follow
    #[arg(long, default_value_t = 5441, value_parser = clap::value_parser!(u16).range(1..=65_533))]
    base_port: u16,
    /// The port of /metrics and /health
    #[arg(long, default_value_t = 9719, value_parser = clap::value_parser!(u16).range(1..))]
    metrics_port: u16,
}

impl DemoArgs {
    /// The ports of the nodes, db0's first.
    fn node_ports(&self) -> impl Iterator<Item = u16> + use<> {
        let first = self.base_port;
        (0..NODES).map(move |number| first.saturating_add(number))
    }
}

/// Runs the demo until Ctrl-C, SIGTERM, or the death of one of its parts.
///
/// # Errors
/// What is missing or in the way, and what to do about it.
pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(demo(args))
}

/// The signals that end a demo.
struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl StopSignals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

async fn demo(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let mut stop = StopSignals::new().context("cannot listen for signals")?;
    let place = Place::prepare(&args.dir)?;
    let installation = Installation::find(place.existing_version()?)?;
    let nodes = Nodes::new(&place, installation, args);
    let mut proxy = Proxy::new(&place, args);
    let outcome = tokio::select! {
        outcome = serve(args, &place, &nodes, &mut proxy) => outcome,
        () = stop.received() => {
            // Nobody may be reading any more (`| tee`, a closed terminal): the clean-up comes all the same.
            let _ = say("\nstopping pgweir and the nodes");
            Ok(ExitCode::SUCCESS)
        }
    };
    // Clients first, then standbys, then the primary; each is tried even if the one before failed.
    let stopped = [proxy.stop().await, nodes.stop().await];
    let code = outcome?;
    stopped.into_iter().collect::<anyhow::Result<Vec<()>>>()?;
    Ok(code)
}

/// Brings everything up, says so, and returns when pgweir ends by itself.
async fn serve(args: &DemoArgs, place: &Place, nodes: &Nodes, proxy: &mut Proxy) -> anyhow::Result<ExitCode> {
    proxy.stop_leftover().await?;
    nodes.stop().await?;
    port::ensure_free(args.port, "--port", "make run PORT=")?;
    port::ensure_free(args.metrics_port, "--metrics-port", "make run METRICS_PORT=")?;
    for port in args.node_ports() {
        port::ensure_free(port, "--base-port", "make run BASE_PORT=")?;
    }
    if let Some(why) = place.moved() {
        say(why)?;
    }
    say(&format!("PostgreSQL {} in {}", nodes.version(), place.data().display()))?;
    let check_secret = command::secret();
    let primary = nodes.start(&check_secret, say).await?;
    proxy.start(&check_secret, primary)?;
    let shown = proxy.ready(nodes).await?;
    say(&welcome(args, place, &shown))?;
    proxy.ended().await
}

/// What to type next. `nodes` is the answer of `SHOW POOL_NODES`.
fn welcome(args: &DemoArgs, place: &Place, nodes: &str) -> String {
    let DemoArgs { port, metrics_port, .. } = args;
    format!(
        "
{nodes}
pgweir is ready on port {port}. In another terminal:

  PGPASSWORD=demo psql -h localhost -p {port} -U demo demo

and there, for example (after a write of its own, a session reads from the primary until a standby shows the write):

  SHOW POOL_NODES;                                  the nodes, and how many reads each has served
  CREATE TABLE t AS SELECT generate_series(1, 9);   writes go to the primary
  SELECT count(*), inet_server_port() FROM t;       reads go to a standby: its port says which

or a load:

  export PGPASSWORD=demo
  pgbench -h localhost -p {port} -U demo -i -s 10 demo
  pgbench -h localhost -p {port} -U demo -S -c 32 -T 10 demo

metrics  http://localhost:{metrics_port}/metrics
config   {config}
logs     {log}, {data}/db*.log
Ctrl-C stops all of it; the data stays for the next run.",
        config = place.config().display(),
        log = place.log().display(),
        data = place.data().display(),
    )
}

/// A line for the person at the terminal.
fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        demo: DemoArgs,
    }

    #[test]
    fn the_defaults_are_those_of_the_makefile() {
        let makefile = include_str!("../../../Makefile");
        let args = Cli::try_parse_from(["demo"]).unwrap().demo;
        assert!(makefile.contains(&format!("\nDIR ?= {}\n", args.dir.display())));
        assert!(makefile.contains(&format!("\nPORT ?= {}\n", args.port)));
        assert!(makefile.contains(&format!("\nBASE_PORT ?= {}\n", args.base_port)));
        assert!(makefile.contains(&format!("\nMETRICS_PORT ?= {}\n", args.metrics_port)));
    }

    #[test]
    fn ports_that_do_not_exist_are_refused() {
        for bad in [["demo", "--port", "0"], ["demo", "--base-port", "65534"], ["demo", "--port", "70000"]] {
            assert!(Cli::try_parse_from(bad).is_err(), "{bad:?} was taken");
        }
        let args = Cli::try_parse_from(["demo", "--base-port", "65533"]).unwrap().demo;
        assert_eq!(args.node_ports().collect::<Vec<_>>(), [65_533, 65_534, 65_535]);
    }
}
