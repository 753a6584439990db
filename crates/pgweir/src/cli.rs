//! The command line: what there is, and how a command's end becomes an exit code.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};
use config::{Config, ConfigErrors};
use proxy::tls::TlsError;

use crate::{check, demo, import, orders, pam_helper, passwd, remote, route, run, status, top};

/// The arguments cannot be used (`EX_USAGE` of sysexits.h).
const EX_USAGE: u8 = 64;
/// The configuration is refused (`EX_CONFIG` of sysexits.h).
const EX_CONFIG: u8 = 78;

/// Load balancing, pooling and high availability for PostgreSQL.
#[derive(Debug, Parser)]
#[command(name = "pgweir", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run in the foreground
    Run(ConfigFile),
    /// Validate a configuration file
    Check {
        /// The configuration file
        file: PathBuf,
        /// Go to every node as well, and say what is wrong there and what to do about it
        #[arg(long)]
        connect: bool,
    },
    /// Make the running pgweir read its configuration again
    Reload(ConfigFile),
    /// Stop the running pgweir
    Stop {
        #[command(flatten)]
        file: ConfigFile,
        /// How: let transactions finish, tell the sessions goodbye now, or just end
        #[arg(short, long, value_enum, default_value_t = StopMode::Smart)]
        mode: StopMode,
    },
    /// Show what the running pgweir is doing
    Status {
        #[command(flatten)]
        file: ConfigFile,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what the running pgweir is doing, again and again
    Top {
        #[command(flatten)]
        file: ConfigFile,
        /// Seconds between two readings
        #[arg(short, long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
        delay: u64,
        /// So many readings, then end; 0 is for ever
        #[arg(short = 'n', long, default_value_t = 0)]
        count: u32,
    },
    /// Take a node back that was detached or has failed
    Attach(NodeOrder),
    /// Give a node no new work; transactions may end
    Detach {
        #[command(flatten)]
        order: NodeOrder,
        /// At once, even the primary or the last node
        #[arg(long)]
        force: bool,
    },
    /// Make a standby the primary
    Promote(NodeOrder),
    /// Rebuild a node with recovery_command, and take it back
    Recover(NodeOrder),
    /// Tell where a statement would go, and why
    Route {
        #[command(flatten)]
        file: ConfigFile,
        /// The statement
        sql: String,
    },
    /// Make a line for pool_passwd
    Passwd {
        /// The user
        user: String,
        /// How the secret is kept
        #[arg(long, value_enum, default_value_t = passwd::Method::Scram)]
        method: passwd::Method,
        /// The key for aes: the configuration's pool_key_file
        #[arg(long)]
        key_file: Option<PathBuf>,
    },
    /// Make pgweir.yaml of the files of Pgpool-II or PgBouncer, and tell what has no equivalent
    Import {
        /// pgpool.conf, pool_hba.conf, pool_passwd, pcp.conf, pgbouncer.ini, userlist.txt; files that they name are read too
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Write pgweir.yaml and the files beside it into this directory; otherwise it is printed
        #[arg(long)]
        to: Option<PathBuf>,
    },
    /// Ask the system's authentication modules; used by a running pgweir
    #[command(hide = true)]
    PamHelper,
    /// Run a primary, two standbys and pgweir in a directory, to try things out
    Demo(demo::DemoArgs),
}

#[derive(Debug, Args)]
struct ConfigFile {
    /// The configuration file
    #[arg(short = 'f', long = "file")]
    file: PathBuf,
}

#[derive(Debug, Args)]
struct NodeOrder {
    #[command(flatten)]
    file: ConfigFile,
    /// The node's number
    node: u16,
    /// The admin user; by default the first of admin_users
    #[arg(short = 'U', long)]
    user: Option<String>,
}

impl NodeOrder {
    fn give(self, words: &str, insist: &str) -> Result<ExitCode, Failure> {
        orders::order(&self.file.file, self.user, &format!("{words} {}{insist}", self.node))
    }
}

/// How to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StopMode {
    /// Transactions finish first.
    Smart,
    /// Sessions are told goodbye now.
    Fast,
    /// The process ends at once.
    Immediate,
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The configuration is refused.
    Config(ConfigErrors),
    /// Anything else.
    Other(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

/// Runs the command of this process's arguments.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Where to print to is clap's knowledge; a closed pipe is nobody's fault.
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(EX_USAGE),
            };
        }
    };
    match execute(cli.command) {
        Ok(code) => code,
        Err(Failure::Config(errors)) => {
            complain(&errors.to_string());
            ExitCode::from(EX_CONFIG)
        }
        Err(Failure::Other(error)) => {
            complain(&format!("pgweir: {error:#}"));
            // What TLS is set up from is a part of the configuration: starting again would not help.
            if error.is::<TlsError>() { ExitCode::from(EX_CONFIG) } else { ExitCode::FAILURE }
        }
    }
}

fn execute(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Run(file) => run::run(&file.file),
        Command::Check { file, connect: false } => check::check(&file),
        Command::Check { file, connect: true } => check::check_nodes(&file),
        Command::Reload(file) => remote::reload(&file.file),
        Command::Stop { file, mode } => remote::stop(&file.file, mode),
        Command::Status { file, json } => status::status(&file.file, json),
        Command::Top { file, delay, count } => top::top(&file.file, Duration::from_secs(delay), count),
        Command::Attach(order) => order.give("ATTACH NODE", ""),
        Command::Detach { order, force } => order.give("DETACH NODE", if force { " FORCE" } else { "" }),
        Command::Promote(order) => order.give("PROMOTE NODE", ""),
        Command::Recover(order) => order.give("RECOVER NODE", ""),
        Command::Route { file, sql } => route::route(&file.file, &sql),
        Command::Passwd { user, method, key_file } => passwd::passwd(&user, method, key_file.as_deref()),
        Command::Import { files, to } => import::import(&files, to.as_deref()),
        Command::PamHelper => pam_helper::run(),
        Command::Demo(args) => Ok(demo::run(&args)?),
    }
}

/// Reads and validates the configuration.
pub(crate) fn load(file: &Path) -> Result<Config, Failure> {
    config::load(file).map_err(Failure::Config)
}

/// Writes to the standard output; a reader that went away is not an error.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written =
        out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Writes to the standard error output, where there is nobody to tell when that fails.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_command_line_is_the_documented_one() {
        for line in [
            "run -f pgweir.yaml",
            "check pgweir.yaml",
            "check --connect pgweir.yaml",
            "reload -f pgweir.yaml",
            "stop -f pgweir.yaml",
            "stop -m fast -f pgweir.yaml",
            "stop -m immediate -f pgweir.yaml",
            "status --json -f pgweir.yaml",
            "route -f pgweir.yaml select",
            "top -f pgweir.yaml",
            "top -f pgweir.yaml -d 1 -n 2",
            "attach -f pgweir.yaml 1",
            "detach -f pgweir.yaml 1 --force -U admin",
            "promote -f pgweir.yaml 2",
            "recover -f pgweir.yaml 2",
            "passwd bob --method md5",
            "passwd bob --method aes --key-file pool_key",
            "import pgpool.conf pool_hba.conf --to etc",
            "pam-helper",
            "demo",
        ] {
            let parsed = Cli::try_parse_from(["pgweir"].into_iter().chain(line.split(' ')));
            assert!(parsed.is_ok(), "{line}: {parsed:?}");
        }
        for line in ["run", "stop -m gently -f x", "check", "route -f x", "top", "status", "import"] {
            assert!(Cli::try_parse_from(["pgweir"].into_iter().chain(line.split(' '))).is_err(), "{line}");
        }
    }
}
