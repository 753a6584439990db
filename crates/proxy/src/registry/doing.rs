//! What clients do, as SHOW tells it.

use cluster::NodeId;

/// What a client is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ClientState {
    /// Starting up or logging in.
    Login,
    /// Has no backend.
    Idle,
    /// Has one.
    Active,
    /// Waits for one.
    Waiting,
    /// Has its turn, inside of a transaction.
    InTransaction,
    /// Has its turn, and a backend that it is held to outside of transactions.
    Held,
}

/// What a client that waits waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// A backend of that node that another client has.
    Backend(NodeId),
    /// Its turn to connect to that node, which could not be connected to lately.
    Turn(NodeId),
    /// RESUME.
    Resume,
    /// A node that may be used.
    Node,
}
