//! PostgreSQL's wire protocol, version 3: frames, messages, start-up and authentication, and the
//! replies-owed tracker.
//!
//! Everything here is sans-IO: bytes and facts in, bytes and decisions out. No clock, network, file or
//! randomness (nonces and secrets are arguments), nothing of pools, nodes or SQL.

pub mod auth;
pub mod console;
pub mod error;
pub mod frame;
pub mod md5;
pub mod message;
pub mod scram;
pub mod sqlstate;
pub mod startup;
pub mod table;
pub mod tracker;
pub mod write;
