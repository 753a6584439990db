//! The surfaces for administrators: the SQL console, HTTP (metrics, health, status), and PCP.
//!
//! Invariants: everything shown is rendered from the rows of [`view`], which the supervisor fills; nothing here
//! knows pools or sessions. Every console command is a row of one table ([`COMMANDS`]), from which its
//! help, its rights and docs/admin.md come. serde is used for JSON only.

mod commands;
mod console;
mod docs;
pub mod http;
pub mod pcp;
mod probes;
mod render;
mod seats;
#[cfg(test)]
mod testing;
pub mod view;
mod words;

pub use commands::{Argument, COMMANDS, ColumnSpec, Command, OF_SESSIONS, OfSession, Place, Rights};
pub use console::AdminConsole;
pub use docs::markdown;
pub use http::serve;
pub use probes::server_version;
pub use view::{AdminControl, AdminView};
