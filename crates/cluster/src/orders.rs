//! What a failover is made of, as data: who promotes, the commands, what is said about it.

use std::time::Duration;

use crate::event::Lsn;
use crate::topology::NodeId;

/// Who promotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Promoter {
    /// Somebody else; it is followed.
    #[default]
    Nobody,
    /// The core asks for `pg_promote()`.
    Core,
    /// `failover_command`.
    Command,
}

/// What becomes of a second node that takes writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FalsePrimary {
    /// It is not used, and shown as quarantined.
    #[default]
    Quarantine,
    /// It is not used, and shown as up.
    Leave,
}

/// What is done about a lost primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FailoverSettings {
    /// Who promotes.
    pub promoter: Promoter,
    /// What becomes of a second primary.
    pub false_primary: FalsePrimary,
    /// How long a promotion may take.
    pub promote_within: Duration,
    /// How long transactions may go on on a node that is detached.
    pub drain: Duration,
    /// How long a switchover may hold writes before it is called off.
    pub switch_within: Duration,
    /// How long a node that was rebuilt may take until it streams.
    pub join_within: Duration,
}

/// What a node said to `pg_promote()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromoteAnswer {
    /// It does it.
    Accepted,
    /// It does not; nothing has happened.
    Refused,
    /// Nobody knows.
    Unknown,
}

/// A command of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hook {
    /// `failover_command`: a node is lost.
    Failover,
    /// `failback_command`: a node is back.
    Failback,
    /// `follow_primary_command`: a node has another primary to follow.
    FollowPrimary,
    /// `recovery_command`: a node is to be rebuilt.
    Recovery,
}

impl Hook {
    /// The key of the configuration.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Failover => "failover_command",
            Self::Failback => "failback_command",
            Self::FollowPrimary => "follow_primary_command",
            Self::Recovery => "recovery_command",
        }
    }
}

/// One run of a command, and what its placeholders stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HookCall {
    /// Which.
    pub hook: Hook,
    /// `%d`: the node it is about.
    pub node: NodeId,
    /// `%m`: who is, or is to become, the primary.
    pub main: Option<NodeId>,
    /// `%P`, `%M`: who was the primary before.
    pub old_primary: Option<NodeId>,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookOutcome {
    /// Exit code 0, or there is no such command.
    Done,
    /// Anything else.
    Failed,
}

/// What a failover or switchover does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The primary counts as dead; the standbys are asked.
    Suspected {
        /// The primary.
        primary: NodeId,
        /// Its failed checks in a row.
        failures: u32,
    },
    /// A standby still receives from it: it is not dead.
    Vetoed {
        /// The primary.
        primary: NodeId,
        /// The standby.
        by: NodeId,
    },
    /// No standby may be promoted.
    NoCandidate {
        /// The primary.
        primary: NodeId,
    },
    /// A node is asked to promote itself.
    Promoting {
        /// The node.
        node: NodeId,
        /// Whom it replaces.
        old: Option<NodeId>,
        /// How far it has received.
        position: Option<Lsn>,
    },
    /// It has not, or it said no.
    PromotionFailed {
        /// The node.
        node: NodeId,
    },
    /// Nobody is promoted any more for this loss.
    GivenUp {
        /// The primary that was lost.
        primary: Option<NodeId>,
    },
    /// There is a new primary.
    Done {
        /// The new primary.
        primary: NodeId,
        /// How long after the loss, or after the command.
        took: Duration,
    },
    /// A switchover began: new transactions wait.
    Switching {
        /// From.
        from: NodeId,
        /// To.
        to: NodeId,
    },
    /// A switchover was called off; the old primary goes on.
    CalledOff {
        /// From.
        from: NodeId,
        /// To.
        to: NodeId,
        /// Why.
        why: CalledOff,
    },
}

/// Why a switchover was called off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalledOff {
    /// The standby did not catch up, or was not up, in time.
    Late,
    /// The standby is not up any more.
    StandbyLost,
    /// The primary is not up any more.
    PrimaryLost,
}

impl CalledOff {
    /// The word that logs use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::StandbyLost => "standby_lost",
            Self::PrimaryLost => "primary_lost",
        }
    }
}
