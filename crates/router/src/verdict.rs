//! What a text says about itself, before anything is known about nodes and sessions.

use cluster::NodeId;

use crate::fingerprint::Fingerprint;
use crate::leaves::Leaves;
use crate::reason::Reason;
use crate::sequences::Sequences;

/// Which nodes may run a statement. Ordered by care: the greater wins when statements form one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Says nothing about the node: transaction control, SET, SHOW, the empty string.
    Neutral,
    /// A standby may serve it.
    Read,
    /// Primary only.
    Write,
}

/// What `SHOW POOL_BACKEND_STATS` counts a statement as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StatementKind {
    /// SELECT, VALUES, TABLE, WITH ... SELECT.
    Select,
    /// INSERT.
    Insert,
    /// UPDATE.
    Update,
    /// DELETE.
    Delete,
    /// CREATE, ALTER, DROP, TRUNCATE, GRANT and the like.
    Ddl,
    /// Everything else (MERGE and COPY too, as in Pgpool-II).
    Other,
}

impl StatementKind {
    /// The word that SHOW and metrics use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Select => "select",
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Ddl => "ddl",
            Self::Other => "other",
        }
    }
}

/// A transaction isolation level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// READ UNCOMMITTED (PostgreSQL treats it as READ COMMITTED).
    ReadUncommitted,
    /// READ COMMITTED.
    ReadCommitted,
    /// REPEATABLE READ.
    RepeatableRead,
    /// SERIALIZABLE: a hot standby refuses it.
    Serializable,
}

impl Isolation {
    /// As the server writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReadUncommitted => "read uncommitted",
            Self::ReadCommitted => "read committed",
            Self::RepeatableRead => "repeatable read",
            Self::Serializable => "serializable",
        }
    }
}

/// The modes a transaction was begun with; `None` means the session's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TxMode {
    /// READ ONLY or READ WRITE.
    pub read_only: Option<bool>,
    /// ISOLATION LEVEL.
    pub isolation: Option<Isolation>,
    /// DEFERRABLE or NOT DEFERRABLE.
    pub deferrable: Option<bool>,
}

impl TxMode {
    /// What a setting of that name (`default_transaction_isolation`, `transaction_read_only` ...) with that value
    /// means, as the server reads it; `None` when it is no such setting, or no such value.
    #[must_use]
    pub fn from_setting(name: &str, value: &str) -> Option<Self> {
        crate::transaction::mode_of(name.strip_prefix("default_").unwrap_or(name), value)
    }

    /// These modes with those that `later` names put over them (SET TRANSACTION after BEGIN).
    #[must_use]
    pub fn overlaid(self, later: Self) -> Self {
        Self {
            read_only: later.read_only.or(self.read_only),
            isolation: later.isolation.or(self.isolation),
            deferrable: later.deferrable.or(self.deferrable),
        }
    }
}

/// What a text does to the transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TxControl {
    /// Nothing.
    #[default]
    None,
    /// BEGIN or START TRANSACTION.
    Begin(TxMode),
    /// COMMIT or END.
    Commit {
        /// AND CHAIN: a new transaction begins at once.
        chain: bool,
    },
    /// ROLLBACK or ABORT.
    Rollback {
        /// AND CHAIN: a new transaction begins at once.
        chain: bool,
    },
    /// SAVEPOINT, RELEASE, ROLLBACK TO.
    Savepoint,
    /// SET TRANSACTION, or SET of `transaction_read_only` and its kin.
    SetTransaction(TxMode),
    /// PREPARE TRANSACTION, COMMIT PREPARED, ROLLBACK PREPARED.
    TwoPhase,
    /// Several statements with transaction control among them: only the server's status byte tells.
    Mixed,
}

impl TxControl {
    /// It ends the transaction, and none begins.
    #[must_use]
    pub fn ends(self) -> bool {
        matches!(self, Self::Commit { chain: false } | Self::Rollback { chain: false })
    }

    /// It ends the transaction, and another one begins at once.
    #[must_use]
    pub fn chains(self) -> bool {
        matches!(self, Self::Commit { chain: true } | Self::Rollback { chain: true })
    }
}

/// State that cannot be moved and holds a session to its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PinReason {
    /// A temporary table, view or sequence that outlives the transaction.
    TempTable,
    /// A session-level advisory lock.
    AdvisoryLock,
    /// LISTEN.
    Listen,
    /// DECLARE ... WITH HOLD.
    HoldCursor,
    /// A large-object descriptor.
    LargeObject,
    /// SET, `set_config(..., false)`, SET ROLE, SET SESSION AUTHORIZATION.
    SessionSetting,
    /// PREPARE.
    SqlPrepare,
    /// Something that pgweir cannot look into (DO, LOAD).
    Unknown,
    /// Sequences were advanced, and `currval` or `lastval` may be asked for what came of it.
    Sequence,
}

impl PinReason {
    /// Every reason, in the order of declaration.
    pub const ALL: &'static [Self] = &[
        Self::TempTable,
        Self::AdvisoryLock,
        Self::Listen,
        Self::HoldCursor,
        Self::LargeObject,
        Self::SessionSetting,
        Self::SqlPrepare,
        Self::Unknown,
        Self::Sequence,
    ];

    /// The word that SHOW, metrics and logs use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TempTable => "temp_table",
            Self::AdvisoryLock => "advisory_lock",
            Self::Listen => "listen",
            Self::HoldCursor => "hold_cursor",
            Self::LargeObject => "large_object",
            Self::SessionSetting => "session_setting",
            Self::SqlPrepare => "sql_prepare",
            Self::Unknown => "unknown",
            Self::Sequence => "sequence",
        }
    }
}

/// What a text does to pgweir's own books beside running on a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Effect {
    /// Nothing.
    #[default]
    None,
    /// PREPARE, EXECUTE, DEALLOCATE: it names prepared statements.
    Statements,
    /// DEALLOCATE ALL: the client's prepared statements are gone.
    DeallocateAll,
    /// DISCARD ALL: so are its settings, temp tables, locks, cursors and LISTENs.
    DiscardAll,
    /// `SHOW POOL_*`, `PGPOOL ...`, `PGWEIR ...`: answered by pgweir.
    Console,
}

/// What a leading comment asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hint {
    /// `/*NO LOAD BALANCE*/` or `/* pgweir: primary */`.
    Primary,
    /// `/* pgweir: standby */`.
    Standby,
    /// `/* pgweir: node=N */`.
    Node(NodeId),
}

/// What comes of a text that a standby runs although it belongs to the primary. Ordered by care.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Misroute {
    /// As far as is known, the standby refuses what it cannot do, or does no harm.
    #[default]
    Refused,
    /// It names what is not known (yet): it may be either.
    Doubtful,
    /// The standby accepts it, and its effect is in the wrong place: a lock that excludes nobody, a snapshot
    /// that no other node knows, counters reset or a configuration reloaded on the wrong server.
    Silent,
}

/// What a text does to what pgweir knows of the database's catalog. Ordered by care.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Changes {
    /// Nothing that matters.
    #[default]
    Nothing,
    /// It may do anything, or adds what is safe: look again soon.
    Perhaps,
    /// What a name means may be another thing from now on.
    Schema,
}

/// What one text (or several that form one unit) says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// Which nodes may run it.
    pub access: Access,
    /// What statistics count it as.
    pub kind: StatementKind,
    /// Why `access` is what it is.
    pub reason: Reason,
    /// What it does to the transaction.
    pub tx: TxControl,
    /// What it would pin the session for.
    pub pin: Option<PinReason>,
    /// What it does to pgweir's own books.
    pub effect: Effect,
    /// What comes of it on a standby.
    pub misroute: Misroute,
    /// What its tokens say of sequences; see [`Verdict::sequences`].
    pub named_sequences: Sequences,
    /// What it does to the catalog.
    pub changes: Changes,
    /// What it may leave in the session unseen.
    pub leaves: Leaves,
    /// What its leading comment asks for.
    pub hint: Option<Hint>,
    /// `primary_routing_query_pattern_list` has a pattern for its text; set by whoever has the list.
    pub by_pattern: bool,
    /// How many statements it is, empty ones not counted.
    pub statements: u32,
    /// The first half of its fingerprint; 0 when nobody has asked for it, or the text is too long.
    pub print: u64,
}

impl Verdict {
    /// One statement of that kind.
    #[must_use]
    pub(crate) const fn new(access: Access, kind: StatementKind, reason: Reason) -> Self {
        Self {
            access,
            kind,
            reason,
            tx: TxControl::None,
            pin: None,
            effect: Effect::None,
            misroute: match reason {
                Reason::UnknownFunction | Reason::UnknownRelation => Misroute::Doubtful,
                _ => Misroute::Refused,
            },
            named_sequences: Sequences::Nothing,
            changes: Changes::Nothing,
            leaves: Leaves::Nothing,
            hint: None,
            by_pattern: false,
            statements: 1,
            print: 0,
        }
    }

    /// A text that is not understood: primary.
    #[must_use]
    pub const fn unparsed(reason: Reason) -> Self {
        let mut verdict = Self::new(Access::Write, StatementKind::Other, reason);
        verdict.changes = Changes::Perhaps;
        verdict.leaves = Leaves::Anything;
        verdict
    }

    /// A text without a statement in it.
    #[must_use]
    pub const fn empty() -> Self {
        let mut verdict = Self::new(Access::Neutral, StatementKind::Other, Reason::Empty);
        verdict.statements = 0;
        verdict
    }

    /// Several statements or messages that form one unit: the more careful wins.
    ///
    /// Transaction control among several becomes [`TxControl::Mixed`], which belongs to the primary.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        if self.statements == 0 {
            return Self { hint: merge_hints(self.hint, other.hint), ..other };
        }
        if other.statements == 0 {
            return Self { hint: merge_hints(self.hint, other.hint), ..self };
        }
        let careful = if other.access > self.access { other } else { self };
        let mixed = self.tx != TxControl::None || other.tx != TxControl::None;
        let access = if mixed { Access::Write } else { careful.access };
        Self {
            access,
            kind: careful.kind,
            reason: if access == Access::Write { Reason::MultiStatementWrite } else { careful.reason },
            tx: if mixed { TxControl::Mixed } else { TxControl::None },
            pin: self.pin.or(other.pin),
            effect: merge_effects(self.effect, other.effect),
            misroute: self.misroute.or(other.misroute),
            named_sequences: self.sequences().and(other.sequences()),
            changes: self.changes.max(other.changes),
            leaves: self.leaves.max(other.leaves),
            by_pattern: self.by_pattern || other.by_pattern,
            hint: merge_hints(self.hint, other.hint),
            statements: self.statements.saturating_add(other.statements),
            print: 0,
        }
    }

    /// A standby would accept it and do the wrong thing, with no error to tell anybody.
    ///
    /// So are functions of users' own that may do anything (VOLATILE ones, what calls them, DO, CALL). What is not known
    /// is not called so ([`Verdict::may_be_silently_wrong`] for names that the catalog does not have; EXECUTE, texts that
    /// are not understood), nor are functions whose answer merely differs from node to node.
    #[must_use]
    pub fn silently_wrong_on_standby(&self) -> bool {
        self.misroute == Misroute::Silent
    }

    /// Whether a standby would do the wrong thing is not known (yet), because of what it names.
    #[must_use]
    pub fn may_be_silently_wrong(&self) -> bool {
        self.misroute == Misroute::Doubtful
    }

    /// What it does with what a server remembers of sequences. What writes, or calls what is not known, may advance
    /// some: by a default, a trigger, or in a function.
    #[must_use]
    pub fn sequences(&self) -> Sequences {
        let silent = matches!(
            self.reason,
            Reason::LockingRead
                | Reason::TransactionControl
                | Reason::SessionControl
                | Reason::Cursor
                | Reason::Console
                | Reason::Utility
                | Reason::UnknownRelation
                // Built in, or said by the tokens.
                | Reason::VolatileFunction
        );
        match self.named_sequences {
            Sequences::Nothing if self.access == Access::Write && !silent => Sequences::Perhaps,
            named => named,
        }
    }

    /// Something it names is not known (yet): a newer catalog might say that it only reads.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        matches!(self.reason, Reason::UnknownFunction | Reason::UnknownRelation)
    }

    pub(crate) fn with_leaves(mut self, leaves: Leaves) -> Self {
        self.leaves = self.leaves.max(leaves);
        self
    }

    pub(crate) const fn with_changes(mut self, changes: Changes) -> Self {
        self.changes = changes;
        self
    }

    /// With what its tokens show besides.
    pub(crate) fn with_misroute(mut self, misroute: Misroute) -> Self {
        self.misroute = self.misroute.or(misroute);
        self
    }

    /// With what its tokens say of sequences.
    pub(crate) fn with_sequences(mut self, named: Sequences) -> Self {
        self.named_sequences = self.named_sequences.and(named);
        self
    }

    pub(crate) const fn with_tx(mut self, tx: TxControl) -> Self {
        self.tx = tx;
        self
    }

    pub(crate) const fn with_pin(mut self, pin: Option<PinReason>) -> Self {
        self.pin = pin;
        self
    }

    pub(crate) const fn with_effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    pub(crate) const fn with_hint(mut self, hint: Option<Hint>) -> Self {
        self.hint = hint;
        self
    }

    pub(crate) const fn with_print(mut self, print: Fingerprint) -> Self {
        self.print = print.first_half();
        self
    }

    pub(crate) const fn with_kind(mut self, kind: StatementKind) -> Self {
        self.kind = kind;
        self
    }
}

impl Misroute {
    pub(crate) const fn silent_if(silent: bool) -> Self {
        if silent { Self::Silent } else { Self::Refused }
    }

    /// Silence anywhere is silence, and doubt is doubt.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        self.max(other)
    }
}

/// A console command among other statements goes to the server with them, which refuses it.
fn merge_effects(a: Effect, b: Effect) -> Effect {
    match (a, b) {
        (Effect::DiscardAll, _) | (_, Effect::DiscardAll) => Effect::DiscardAll,
        (Effect::DeallocateAll, _) | (_, Effect::DeallocateAll) => Effect::DeallocateAll,
        (Effect::Statements, _) | (_, Effect::Statements) => Effect::Statements,
        _ => Effect::None,
    }
}

fn merge_hints(a: Option<Hint>, b: Option<Hint>) -> Option<Hint> {
    if b == Some(Hint::Primary) { b } else { a.or(b) }
}
