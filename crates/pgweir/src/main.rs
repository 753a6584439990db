//! The `pgweir` program: the command line, and the supervisor that wires the crates together.
//!
//! `run` is the supervisor ([`run`]); the other commands either look at files (`check`, `route`, `passwd`) or talk
//! to a running one ([`remote`]). Nothing imports this crate.

mod actor;
mod averages;
mod check;
mod cli;
mod clock;
mod control;
mod demo;
mod doctor;
mod drain;
mod events;
mod evidence;
mod files;
mod hands;
mod health;
mod hook;
mod http;
mod http_get;
mod import;
mod inherited;
mod memory;
mod mock_secret;
mod notify;
mod orders;
mod pam_helper;
mod passwd;
mod pcp;
mod pid_file;
mod probe_query;
mod probes;
mod reading;
mod recoveries;
mod reload;
mod remote;
mod route;
mod run;
mod sampler;
mod senders;
mod signals;
mod specs;
mod statements;
mod status;
mod status_file;
mod stopping;
mod terminal;
mod top;
mod view;
mod vocabulary;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
