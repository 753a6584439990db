//! What goes into the core and what comes out of it: events, actions, records.
//!
//! Everything here is data. `started` is when a check began: the core drops reports that are
//! older than one it has already used, so reports may be late, lost or out of order.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::observation::{ConnectFailure, Observation};
use crate::orders::{FailoverSettings, HookCall, HookOutcome, Progress, PromoteAnswer};
use crate::recovery::{Recovery, RecoveryStep};
use crate::topology::{Moment, NodeId, NodeState, Role, Topology};

/// A position in the write-ahead log, in bytes (`pg_lsn` as one number).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Reads PostgreSQL's `16/B374D848` form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (high, low) = text.split_once('/')?;
        let high = u32::from_str_radix(high, 16).ok()?;
        let low = u32::from_str_radix(low, 16).ok()?;
        Some(Self(u64::from(high) << 32 | u64::from(low)))
    }
}

/// `XLOG_BLCKSZ` as it is unless somebody built PostgreSQL otherwise.
const WAL_PAGE: u64 = 8192;
/// `SizeOfXLogShortPHD`, and `SizeOfXLogLongPHD` on the first page of a segment.
const PAGE_HEADERS: [u64; 2] = [24, 40];

impl Lsn {
    /// An insert position just behind a page's header has nothing written on that page yet; a standby that has
    /// replayed everything stands at the border before it.
    #[must_use]
    pub fn before_page_header(self) -> Self {
        let offset = self.0 % WAL_PAGE;
        if PAGE_HEADERS.contains(&offset) { Self(self.0 - offset) } else { self }
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// What a node said about itself in a check. `None`: the check user may not ask, or it makes no
/// sense for the role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    /// `pg_is_in_recovery()`.
    pub in_recovery: bool,
    /// The timeline it writes (primary) or replays (standby).
    pub timeline: Option<u32>,
    /// `pg_control_system().system_identifier`.
    pub system_identifier: Option<u64>,
    /// Insert position (primary) or replay position (standby).
    pub lsn: Option<Lsn>,
    /// The timeline that a standby receives (`pg_stat_wal_receiver.received_tli`), while it receives one.
    pub follows: Option<u32>,
    /// How far a standby has received (`pg_last_wal_receive_lsn()`); it may have yet to replay that.
    pub received: Option<Lsn>,
    /// Whom a standby receives from.
    pub upstream: Upstream,
}

/// What a standby says of its WAL receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Upstream {
    /// It receives from nobody, is no standby, or may not be asked.
    #[default]
    None,
    /// It is connected.
    Streaming {
        /// To which configured node; `None`: to another address.
        from: Option<NodeId>,
        /// How long ago it heard anything.
        silent_for: Option<Duration>,
    },
}

/// How a node's role is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RoleSource {
    /// By `pg_is_in_recovery()`.
    #[default]
    Observed,
    /// By the flag `ALWAYS_PRIMARY`: whatever it says, it takes the writes.
    AlwaysPrimary,
}

/// What failed checks do to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// It counts as down.
    #[default]
    TakeOut,
    /// Nothing, once it was seen alive (`DISALLOW_TO_FAILOVER`): somebody else manages it.
    Keep,
}

/// How patient the core is with one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckPolicy {
    /// Failed checks after the first one before the node counts as down.
    pub max_retries: u32,
    /// How long after a failed check the next one is asked for.
    pub retry_delay: Duration,
    /// No report at all for so long counts as one check that timed out.
    pub stale_after: Duration,
}

/// One configured node. Two specs are the same server when host name and port are.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeSpec {
    /// Host name, address, or socket directory.
    pub hostname: Arc<str>,
    /// TCP port, or the number in the socket's name.
    pub port: u16,
    /// Share of reads, not normalised.
    pub weight: f64,
    /// How its role is known.
    pub role_source: RoleSource,
    /// What failed checks do to it.
    pub on_failure: OnFailure,
    /// How patient to be with it.
    pub checks: CheckPolicy,
    /// Among equally advanced standbys the highest is promoted first; 0 is never promoted.
    pub priority: u32,
    /// A backend that a session lost and one failed check are enough (`failover_on_backend_error`).
    pub trust_sessions: bool,
}

impl NodeSpec {
    /// Whether both name the same server.
    #[must_use]
    pub fn same_server(&self, other: &Self) -> bool {
        self.hostname == other.hostname && self.port == other.port
    }
}

/// What becomes of a standby that failed and answers again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failback {
    /// Taken back at its first good check, but not twice within this time.
    Automatic {
        /// The least time between two returns of the same node.
        interval: Duration,
    },
    /// Stays down until an administrator attaches it.
    Manual,
}

/// What holds for the whole cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How long after the start a primary is not chosen while nodes have not reported yet. An old
    /// primary that answers first must not get writes that belong to the new one.
    pub settle: Duration,
    /// What becomes of a standby that answers again.
    pub failback: Failback,
    /// What is done about a lost primary.
    pub failover: FailoverSettings,
}

/// What a failed check lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// Only a new connection failed.
    ConnectOnly,
    /// The connection kept from the last check broke, and then a new one failed too: the server
    /// process is gone, or the network to it is.
    ConnectionLost,
}

/// Something the core must know.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A check succeeded.
    CheckOk {
        /// The node.
        node: NodeId,
        /// When the check began.
        started: Moment,
        /// What the node said.
        facts: Facts,
    },
    /// A check failed.
    CheckFailed {
        /// The node.
        node: NodeId,
        /// When the check began.
        started: Moment,
        /// How.
        failure: ConnectFailure,
        /// What it lost.
        evidence: Evidence,
    },
    /// A session or a pool saw something.
    Observed(Observation),
    /// `ATTACH NODE`.
    AdminAttach {
        /// The node.
        node: NodeId,
    },
    /// `DETACH NODE [FORCE]`.
    AdminDetach {
        /// The node.
        node: NodeId,
        /// Whether the primary or the last usable node may be taken out too, and at once.
        insist: Insist,
    },
    /// `PROMOTE NODE`.
    AdminPromote {
        /// The standby.
        node: NodeId,
    },
    /// `RECOVER NODE`.
    AdminRecover {
        /// The node to rebuild.
        node: NodeId,
    },
    /// The command that [`Action::Recover`] asked for has ended.
    RecoveryDone {
        /// Which.
        run: u32,
        /// How.
        outcome: HookOutcome,
    },
    /// Nothing of ours runs on a draining node any more.
    Drained {
        /// The node.
        node: NodeId,
    },
    /// What became of [`Action::Promote`].
    PromoteAnswer {
        /// The node.
        node: NodeId,
        /// What it said.
        answer: PromoteAnswer,
    },
    /// A command that [`Action::RunHook`] asked for has ended.
    HookDone {
        /// Which.
        call: HookCall,
        /// How.
        outcome: HookOutcome,
    },
    /// The node's name means another address now.
    Moved {
        /// The node.
        node: NodeId,
    },
    /// A reload: the nodes as they are configured now, and the settings.
    NodesChanged {
        /// The nodes, in the order of their ids.
        nodes: Vec<NodeSpec>,
        /// The settings.
        settings: Settings,
    },
    /// Time has passed.
    Tick,
}

/// Whether an administrator insists (`FORCE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insist {
    /// No.
    No,
    /// Yes.
    Force,
}

/// Something the actor must do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Let everybody see this topology.
    Publish(Topology),
    /// Check that node after that delay, besides the regular checks.
    Probe {
        /// The node.
        node: NodeId,
        /// Zero: now.
        after: Duration,
    },
    /// Ask that node for `pg_promote()`, once.
    Promote {
        /// The node.
        node: NodeId,
    },
    /// Run a command of the configuration, once.
    RunHook(HookCall),
    /// Run `recovery_command`, once.
    Recover(Recovery),
    /// Kill that run of it, with everything that it has started.
    StopRecovery {
        /// Which.
        run: u32,
    },
    /// Log it, count it.
    Record(Record),
    /// The administrator's command was not carried out.
    Refused(Refusal),
}

/// Why an administrator's command was not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such node.
    #[error("node {0} does not exist")]
    NoSuchNode(NodeId),
    /// Detaching the primary stops all writes.
    #[error("node {0} is the primary; detaching it stops all writes (FORCE to insist)")]
    IsPrimary(NodeId),
    /// Detaching the last usable node stops everything.
    #[error("node {0} is the last usable node (FORCE to insist)")]
    LastNode(NodeId),
    /// It belongs to another cluster.
    #[error("node {0} has another system identifier: it is not a copy of this cluster")]
    Foreign(NodeId),
    /// It takes writes itself while another node is the primary.
    #[error("node {node} is not in recovery while node {primary} is the primary")]
    SecondPrimary {
        /// The one to attach.
        node: NodeId,
        /// The primary.
        primary: NodeId,
    },
    /// It is the primary already.
    #[error("node {0} is the primary already")]
    AlreadyPrimary(NodeId),
    /// Somebody else promotes in this cluster.
    #[error("failover_mode is observe: whatever manages this cluster promotes, and pgweir follows")]
    ObserveMode,
    /// Only a standby that is up can be promoted.
    #[error("node {0} is not a standby that is up")]
    NotAStandby(NodeId),
    /// The configuration says that it is never promoted.
    #[error("node {0} may not be promoted: its flag or its promotion_priority says so")]
    NotACandidate(NodeId),
    /// Another failover or switchover is under way.
    #[error("a failover or switchover is under way")]
    UnderWay,
    /// A recovery of it is under way.
    #[error("node {0} is being recovered (DETACH NODE {0} FORCE stops that)")]
    Recovering(NodeId),
    /// The primary is what the others are made from.
    #[error("node {0} is the primary; another node must take its place before it can be recovered")]
    RecoverPrimary(NodeId),
    /// It may be at work.
    #[error(
        "node {0} is in use, or not checked yet; DETACH NODE {0} takes it out, and then it can be recovered"
    )]
    InUse(NodeId),
    /// There is nothing to make it from.
    #[error("there is no primary to recover the node from")]
    NoPrimary,
}

/// Why a node's state or role is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Not checked yet.
    NotChecked,
    /// It takes no primary's place before the other nodes have reported.
    Settling,
    /// Its check succeeded.
    CheckOk,
    /// Connections are refused or cannot be routed.
    Unreachable,
    /// Its checks timed out.
    TimedOut,
    /// It answers with something that is not the protocol.
    Protocol,
    /// It is starting up, shutting down or in crash recovery.
    NotReady,
    /// It answers again, but came back and failed a moment ago.
    Flapping,
    /// It answers again, and waits for an administrator.
    WaitsForAttach,
    /// An administrator took it out.
    Detached,
    /// Another node is the primary, or it is behind the last primary's timeline.
    FalsePrimary,
    /// It belongs to another cluster.
    ForeignSystem,
    /// It follows a node on an older timeline than the primary's: it shows another history.
    OlderTimeline,
    /// Its checks fail, and a standby has heard from it since: only our way to it is broken, or it is slow.
    Vouched,
    /// It answers, but refuses the checks; what it is, only sessions can find out.
    RoleUnknown,
    /// Another node is about to take its place.
    Switchover,
    /// It is being rebuilt.
    Recovering,
}

impl Reason {
    /// The word that SHOW, metrics and logs use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotChecked => "not_checked",
            Self::Settling => "settling",
            Self::CheckOk => "check_ok",
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed_out",
            Self::Protocol => "protocol",
            Self::NotReady => "not_ready",
            Self::Flapping => "flapping",
            Self::WaitsForAttach => "waits_for_attach",
            Self::Detached => "detached",
            Self::FalsePrimary => "false_primary",
            Self::ForeignSystem => "foreign_system",
            Self::OlderTimeline => "older_timeline",
            Self::Vouched => "vouched",
            Self::RoleUnknown => "role_unknown",
            Self::Switchover => "switchover",
            Self::Recovering => "recovering",
        }
    }
}

/// What is known of one node besides what the topology says; for people to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeReport {
    /// Whether PostgreSQL answered when it was asked last, were it with an error; none before the first check.
    pub answers: Option<bool>,
    /// What it said last.
    pub facts: Option<Facts>,
    /// Why its state is what it is.
    pub reason: Reason,
    /// Failed checks in a row.
    pub failures: u32,
}

/// Something worth a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// A node's state changed.
    StateChange {
        /// The node.
        node: NodeId,
        /// Before.
        from: NodeState,
        /// After.
        to: NodeState,
        /// Why.
        reason: Reason,
    },
    /// A node's role changed.
    RoleChange {
        /// The node.
        node: NodeId,
        /// Before.
        from: Role,
        /// After.
        to: Role,
    },
    /// Writes go elsewhere from now on, or nowhere.
    PrimaryChange {
        /// Before.
        from: Option<NodeId>,
        /// After.
        to: Option<NodeId>,
        /// The new primary's timeline.
        timeline: Option<u32>,
    },
    /// A check failed in a new way.
    CheckTrouble {
        /// The node.
        node: NodeId,
        /// How.
        failure: ConnectFailure,
        /// Failed checks in a row; 0 when the node is alive all the same.
        in_a_row: u32,
    },
    /// A failover or switchover goes on.
    Failover(Progress),
    /// A recovery goes on.
    Recovery {
        /// Which.
        run: u32,
        /// The node.
        node: NodeId,
        /// How far it is.
        step: RecoveryStep,
    },
    /// The nodes are those of a new configuration.
    Reconfigured {
        /// How many.
        nodes: usize,
    },
}
