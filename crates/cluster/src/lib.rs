//! What the nodes are and who decides it.
//!
//! [`topology`] has the types everybody reads; the state machine ([`core`]) is the only place that
//! decides that a node is up, down or primary. Everyone else sends it [`Observation`]s.
//!
//! Invariants: no clock, network, file or randomness here (`now` is an argument), no SQL, no tokio.

pub mod core;
pub mod event;
pub mod freshness;
mod member;
pub mod observation;
#[cfg(test)]
mod scripts;
#[cfg(test)]
mod simulation;
pub mod topology;
mod verdict;

pub use crate::core::{Core, Violation};
pub use event::{
    Action, CheckPolicy, Event, Evidence, Facts, Failback, Insist, Lsn, NodeReport, NodeSpec, OnFailure,
    Reason, Record, Refusal, RoleSource, Settings,
};
pub use freshness::{Freshness, Yardstick};
pub use observation::{ConnectFailure, Observation};
pub use topology::{Epoch, Moment, Node, NodeId, NodeState, Role, Topology};
