//! What sessions and pools tell the cluster core about nodes. It may be lost; it is never a verdict.

use crate::topology::{Epoch, NodeId, Role};

/// Why a connection to a node could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectFailure {
    /// Refused, reset, unreachable, name not resolved.
    Unreachable,
    /// Nothing came back in time.
    TimedOut,
    /// It answered with 57P03 or 57P02: alive, not ready.
    NotReady,
    /// It answered with another SQLSTATE: alive.
    Rejected,
    /// It answered with bytes that are not the protocol.
    Protocol,
}

impl ConnectFailure {
    /// The word that metrics and logs use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed_out",
            Self::NotReady => "not_ready",
            Self::Rejected => "rejected",
            Self::Protocol => "protocol",
        }
    }
}

/// Something a session or a pool saw happen with a node, under the topology it knew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observation {
    /// A new connection failed.
    ConnectFailed {
        /// The node.
        node: NodeId,
        /// The epoch of the topology by which it was chosen.
        epoch: Epoch,
        /// How it failed.
        failure: ConnectFailure,
    },
    /// A backend in use was lost without a word from the server.
    BackendLost {
        /// The node.
        node: NodeId,
        /// The epoch of the topology by which it was chosen.
        epoch: Epoch,
    },
    /// A statement failed with 25006: the node is a standby though we took it for the primary.
    ReadOnly {
        /// The node.
        node: NodeId,
        /// The epoch of the topology by which it was chosen.
        epoch: Epoch,
    },
    /// A new connection told what the node is (`in_hot_standby`). Counts only while the checks cannot tell.
    RoleSeen {
        /// The node.
        node: NodeId,
        /// The epoch of the topology by which it was chosen.
        epoch: Epoch,
        /// What it is.
        role: Role,
    },
}

impl Observation {
    /// The node it is about.
    #[must_use]
    pub fn node(&self) -> NodeId {
        match self {
            Self::ConnectFailed { node, .. }
            | Self::BackendLost { node, .. }
            | Self::ReadOnly { node, .. }
            | Self::RoleSeen { node, .. } => *node,
        }
    }

    /// The epoch of the topology under which it was made.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        match self {
            Self::ConnectFailed { epoch, .. }
            | Self::BackendLost { epoch, .. }
            | Self::ReadOnly { epoch, .. }
            | Self::RoleSeen { epoch, .. } => *epoch,
        }
    }
}
