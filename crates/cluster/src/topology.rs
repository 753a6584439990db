//! The immutable picture of the cluster that sessions, pools and the console read.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A node's id: its position in the `backends` list, 0-based.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

impl NodeId {
    /// The position in [`Topology::nodes`].
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Counts the changes of the topology; never falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

/// A point on the process's monotonic clock: time since the process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub Duration);

/// What a node is, as it says itself (`pg_is_in_recovery()`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Role {
    /// Never seen alive.
    #[default]
    Unknown,
    /// Not in recovery, and chosen as the one that takes writes.
    Primary,
    /// In recovery.
    Standby,
}

impl Role {
    /// The word that SHOW, metrics and logs use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Primary => "primary",
            Self::Standby => "standby",
        }
    }
}

/// Whether a node may be used; the words are Pgpool-II's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NodeState {
    /// Configured but taken out by an administrator.
    Unused,
    /// Not checked yet since the start.
    #[default]
    Waiting,
    /// Answers; may be used.
    Up,
    /// Takes no new work; what runs on it may end.
    Draining,
    /// Failed its checks, or detached.
    Down,
    /// Answers but must not be used (a second primary, a foreign system identifier).
    Quarantine,
}

impl NodeState {
    /// The word that SHOW, metrics and logs use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unused => "unused",
            Self::Waiting => "waiting",
            Self::Up => "up",
            Self::Draining => "draining",
            Self::Down => "down",
            Self::Quarantine => "quarantine",
        }
    }
}

/// One PostgreSQL server as the cluster core sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Its id, equal to its index in [`Topology::nodes`].
    pub id: NodeId,
    /// Host name, address, or socket directory (begins with `/`).
    pub hostname: Arc<str>,
    /// TCP port, or the number in the socket's name.
    pub port: u16,
    /// Share of reads as configured, not normalised; 0 takes none.
    pub weight: f64,
    /// Whether it may be used.
    pub state: NodeState,
    /// What it is.
    pub role: Role,
    /// The topology epoch at which its state or role last changed; a lease older than it is fenced.
    pub changed_epoch: Epoch,
    /// When its state or role last changed.
    pub changed_at: Moment,
    /// Bytes of WAL it has not replayed, when known (standbys).
    pub replay_lag: Option<u64>,
}

impl Node {
    /// May take new work.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.state == NodeState::Up
    }
}

/// The nodes, their roles and states, at one epoch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Topology {
    /// Which version of the picture this is.
    pub epoch: Epoch,
    /// The nodes, in the order of the `backends` list.
    pub nodes: Vec<Node>,
    /// The node that takes writes, when there is one and it is up.
    pub primary: Option<NodeId>,
    /// Since when there is none; `None` while there is one, and when there never was.
    pub primary_lost: Option<Moment>,
}

impl Topology {
    /// The node of that id.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.index())
    }

    /// The primary, when it is up.
    #[must_use]
    pub fn primary_node(&self) -> Option<&Node> {
        self.primary.and_then(|id| self.node(id)).filter(|node| node.is_usable())
    }

    /// The standbys that are up.
    pub fn usable_standbys(&self) -> impl Iterator<Item = &Node> + Clone {
        self.nodes.iter().filter(|node| node.is_usable() && node.role == Role::Standby)
    }
}
