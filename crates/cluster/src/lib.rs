//! What the nodes are and who decides it.
//!
//! [`topology`] has the types everybody reads; the state machine ([`core`]) is the only place that
//! decides that a node is up, down or primary. Everyone else sends it [`Observation`]s.
//!
//! Invariants: no clock, network, file or randomness here (`now` is an argument), no SQL, no tokio.

mod command;
pub mod core;
pub mod event;
mod failover;
pub mod freshness;
pub mod hint;
mod member;
pub mod observation;
pub mod orders;
pub mod recovery;
#[cfg(test)]
mod scripts;
#[cfg(test)]
mod simulation;
pub mod topology;
mod verdict;

pub use crate::core::{Core, Violation};
pub use event::{
    Action, CheckPolicy, Event, Evidence, Facts, Failback, Insist, Lsn, NodeReport, NodeSpec, OnFailure,
    Reason, Record, Refusal, RoleSource, Settings, Upstream,
};
pub use freshness::{Freshness, Lag, LagLimits, Shown, Yardstick};
pub use hint::Hint;
pub use observation::{ConnectFailure, Observation};
pub use orders::{
    CalledOff, FailoverSettings, FalsePrimary, Hook, HookCall, HookOutcome, Progress, PromoteAnswer, Promoter,
};
pub use recovery::{Recovery, RecoveryEnd, RecoveryStep};
pub use topology::{Epoch, Moment, Node, NodeId, NodeState, Role, Topology};
