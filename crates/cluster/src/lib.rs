//! What the nodes are and who decides it.
//!
//! [`topology`] has the types everybody reads; the state machine (`core`) is the only place that
//! decides that a node is up, down or primary. Everyone else sends it [`Observation`]s.
//!
//! Invariants: no clock, network, file or randomness here (`now` is an argument), no SQL, no tokio.

pub mod observation;
pub mod topology;

pub use observation::{ConnectFailure, Observation};
pub use topology::{Epoch, Moment, Node, NodeId, NodeState, Role, Topology};
