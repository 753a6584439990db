//! Why a statement goes where it goes. The same noun stands in logs, metrics and SHOW.

macro_rules! reasons {
    ($($(#[$doc:meta])+ $name:ident => $word:literal,)+) => {
        /// Why a statement was routed as it was.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])+ $name,)+ }

        impl Reason {
            /// Every reason, in the order of declaration (metric label sets are made from it).
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The word that logs, metrics and SHOW use.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word),+ }
            }
        }
    };
}

reasons! {
    /// Nothing to execute: an empty query string.
    Empty => "empty",
    /// A query that only reads and calls only functions that a standby answers just as well.
    ReadOnlySelect => "read_only_select",
    /// EXPLAIN without ANALYZE: planned, not executed.
    Explain => "explain",
    /// `SELECT ... FOR UPDATE / NO KEY UPDATE / SHARE / KEY SHARE` at some depth.
    LockingRead => "locking_read",
    /// `SELECT ... INTO`.
    SelectInto => "select_into",
    /// INSERT, UPDATE, DELETE or MERGE inside a WITH.
    DataModifyingCte => "data_modifying_cte",
    /// INSERT, UPDATE, DELETE, MERGE, COPY FROM.
    Dml => "dml",
    /// CREATE, ALTER, DROP, TRUNCATE, GRANT and the like.
    Ddl => "ddl",
    /// Another command that belongs to the primary: VACUUM, LOCK, CALL, DO, LISTEN, a held cursor.
    Utility => "utility",
    /// EXECUTE: what it runs is not visible in the text.
    Execute => "execute",
    /// It calls a built-in function that writes, or that a standby answers differently.
    VolatileFunction => "volatile_function",
    /// It calls a function or operator that is not built in, and nothing is known about it.
    UnknownFunction => "unknown_function",
    /// It reads a view over a function that writes, an unlogged or a foreign table, or a view that locks rows.
    PrimaryRelation => "primary_relation",
    /// It reads a relation of which nothing is known yet.
    UnknownRelation => "unknown_relation",
    /// `write_function_list` names a function that it calls.
    FunctionList => "function_list",
    /// A string of several statements, at least one of which belongs to the primary.
    MultiStatementWrite => "multi_statement_write",
    /// A batch that is flushed and not ended: what it goes on with may be a write.
    OpenBatch => "open_batch",
    /// The text is not understood.
    Unparsed => "unparsed",
    /// The text is longer than `max_parsed_statement`.
    TooLong => "too_long",
    /// BEGIN, COMMIT, ROLLBACK, SAVEPOINT, SET TRANSACTION.
    TransactionControl => "transaction_control",
    /// SET, RESET, SHOW, DISCARD, DEALLOCATE: about the session, not about data.
    SessionControl => "session_control",
    /// FETCH, MOVE, CLOSE: goes where the cursor lives.
    Cursor => "cursor",
    /// Answered by pgweir itself.
    Console => "console",
    /// The transaction may write, so all of it belongs to the primary.
    TransactionReadWrite => "transaction_read_write",
    /// The transaction was begun READ ONLY.
    TransactionReadOnly => "transaction_read_only",
    /// The transaction may write and has not yet: `transaction_load_balance` lets it read elsewhere until then.
    TransactionLoadBalance => "transaction_load_balance",
    /// SERIALIZABLE, which a hot standby refuses.
    Serializable => "serializable",
    /// The session is, or is about to be, pinned to a backend.
    Pinned => "pinned",
    /// No standby qualifies, so the primary reads.
    NoStandby => "no_standby",
    /// A leading comment says so.
    Hint => "hint",
    /// `SET pgweir.route` says so.
    SessionRoute => "session_route",
    /// `primary_routing_query_pattern_list` has a pattern for it.
    QueryPattern => "query_pattern",
    /// A redirect list sends the database, the application or the user there.
    Redirect => "redirect",
    /// The session has written, and `disable_load_balance_on_write` keeps its reads on the primary.
    AfterWrite => "after_write",
    /// It came by `read_only_port`.
    ReadOnlyPort => "read_only_port",
    /// Load balancing is off.
    PrimaryOnly => "primary_only",
}
