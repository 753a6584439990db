//! The one table of keys, and the [`Config`] that is made from it.
//!
//! A row: description, then `name: Type, limits, "default as YAML", effect, status;`. Nothing else declares a
//! key. Durations are limited in milliseconds, sizes in bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use crate::destination::LogDestination;
use crate::error::Warning;
use crate::hba::{IdentMaps, Rules};
use crate::key::table;
use crate::pattern::{Pattern, Redirect};
use crate::secrets::Passwords;
use crate::sections::{Backend, DatabaseOverrides, UserOverrides};
use crate::units::Unit::{Bytes, Hours, Milliseconds, Minutes, Octal, Seconds};
use crate::value::{HostPort, Limits, Masked, Off};
use crate::words::{
    BackendSslMode, ClusteringMode, Consistency, DisableLoadBalanceOnWrite, FailoverMode, LoadBalance,
    LogFormat, LogLevel, PoolMode, SessionState, Ssl,
};

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;
const MANY: u64 = 1_000_000;

table! {
    /// A validated configuration; every field is the key of the same name. Made by [`crate::load`] or
    /// [`crate::parse`] only. `Debug` shows no secret.
    #[derive(Debug, Clone, PartialEq)]
    pub struct Config {
        /// The rules of `pool_hba_file`; `None` exactly when `enable_pool_hba` is off. After [`crate::parse`],
        /// which reads no files, they are empty and so let nobody in.
        pub hba: Option<Rules> = None;
        /// What `pool_ident_file` holds; empty after [`crate::parse`].
        pub idents: IdentMaps = IdentMaps::default();
        /// What `pool_passwd` holds; empty after [`crate::parse`].
        pub secrets: Passwords = Passwords::default();
        /// What was accepted and will not do what its author may think.
        pub warnings: Vec<Warning> = Vec::new();
        /// The keys that a file sets.
        pub(crate) given: BTreeSet<&'static str> = BTreeSet::new();
    }

    /// Every key that the configuration file may set, in the order of the sample and the reference.
    pub static KEYS;

    section "Listening" {
        /// Names or addresses to listen on for TCP; `"*"` is every address, an empty list none.
        listen_addresses: Vec<String>, Limits::none(), r#"["localhost"]"#, Restart, Active;
        /// The TCP port, and the number in the socket's name.
        port: u16, Limits::count(1, 65535), "9999", Restart, Active;
        /// A second TCP port, on the same addresses, for clients that choose themselves: everything there goes to a
        /// standby (to the primary while there is none), and writes fail as they do on one.
        read_only_port: Option<u16>, Limits::count(1, 65535).off(Off::Word("off")), "off", Restart, Active;
        /// Directories for the Unix socket `.s.PGSQL.<port>`. The default applies only if that directory
        /// exists when the configuration is loaded; else there is no Unix socket.
        unix_socket_directories: Vec<String>, Limits::none(), r#"["/var/run/pgweir"]"#, Restart, Active;
        /// Permission bits of the Unix sockets.
        unix_socket_permissions: u32, Limits::of(Octal, 0, 0o777), "0777", Restart, Active;
        /// Worker threads at most; `auto` is one for each core. As many are used as the load needs.
        workers: Option<usize>, Limits::count(1, 1024).off(Off::Word("auto")), "auto", Restart, Active;
        /// Connections that the kernel keeps waiting for each listening socket.
        listen_backlog: u32, Limits::count(1, 65535), "1024", Restart, Active;
    }

    section "Nodes" {
        /// How the nodes relate to each other.
        clustering_mode: ClusteringMode, Limits::none(), "streaming_replication", Restart, Active;
        /// The PostgreSQL servers; the order in the list is the node id, from 0. Each is a mapping, see
        /// "A node of `backends`".
        backends: Vec<Backend>, Limits::none(), "", Reload, Active;
        /// TLS towards nodes that are reached over TCP: libpq's six modes. `require` with `backend_ssl_root_cert` is
        /// `verify-ca`, as there.
        backend_sslmode: BackendSslMode, Limits::none(), "prefer", Reload, Active;
        /// Certificates of the authorities that sign the nodes' certificates.
        backend_ssl_root_cert: Option<PathBuf>, Limits::none(), "null", Reload, Active;
        /// The certificate shown to the nodes.
        backend_ssl_cert: Option<PathBuf>, Limits::none(), "null", Reload, Active;
        /// The key of `backend_ssl_cert`.
        backend_ssl_key: Option<PathBuf>, Limits::none(), "null", Reload, Active;
        /// How long a connection to a node may take, login included.
        connect_timeout: Duration, Limits::of(Seconds, 10, HOUR), "10s", Reload, Active;
        /// Idle time before the kernel probes a TCP connection, of clients and of nodes.
        tcp_keepalives_idle: Duration, Limits::of(Seconds, 1000, DAY), "60s", Reload, Active;
        /// Time between two such probes.
        tcp_keepalives_interval: Duration, Limits::of(Seconds, 1000, HOUR), "10s", Reload, Active;
        /// Unanswered probes after which the connection is dead.
        tcp_keepalives_count: u32, Limits::count(1, 127), "3", Reload, Active;
        /// How long sent data may stay unacknowledged before the connection is dead; 0 is the kernel's choice.
        tcp_user_timeout: Option<Duration>, Limits::of(Seconds, 1, DAY).off(Off::Zero), "30s", Reload, Active;
    }

    section "Pools" {
        /// When a backend goes back to its pool: at the end of the session or of the transaction.
        pool_mode: PoolMode, Limits::none(), "transaction", Reload, Active;
        /// What becomes of session state that cannot be moved to another backend.
        session_state: SessionState, Limits::none(), "pin", Reload, Active;
        /// Most backends for one node, database and user.
        default_pool_size: u32, Limits::count(1, MANY), "20", Reload, Active;
        /// Backends that are kept open for one node, database and user even when idle, once there was one.
        min_pool_size: u32, Limits::count(0, MANY), "0", Reload, Active;
        /// Additional backends for a pool whose clients have waited for `reserve_pool_timeout`, while clients wait.
        reserve_pool_size: u32, Limits::count(0, MANY), "0", Reload, Active;
        /// How long a client waits before the reserve is used.
        reserve_pool_timeout: Duration, Limits::of(Seconds, 0, HOUR), "5s", Reload, Active;
        /// Most client connections.
        max_client_conn: u32, Limits::count(1, MANY), "10000", Reload, Active;
        /// Most backends of one database on each node, over all users; 0 is no limit.
        max_db_connections: Option<u32>, Limits::count(1, MANY).off(Off::Zero), "0", Reload, Active;
        /// Most backends of one user on each node, over all databases; 0 is no limit.
        max_user_connections: Option<u32>, Limits::count(1, MANY).off(Off::Zero), "0", Reload, Active;
        /// Most client connections to one database; 0 is no limit.
        max_db_client_connections: Option<u32>, Limits::count(1, MANY).off(Off::Zero), "0", Reload, Active;
        /// Most client connections of one user; 0 is no limit.
        max_user_client_connections: Option<u32>, Limits::count(1, MANY).off(Off::Zero), "0", Reload, Active;
        /// Connections of each node's `max_connections` that pools never use; more where the node keeps more for superusers.
        reserved_connections: u32, Limits::count(0, 100_000), "3", Reload, Active;
        /// How long a client waits for a backend before it gets an error.
        query_wait_timeout: Duration, Limits::of(Seconds, 1, DAY), "30s", Reload, Active;
        /// Age at which a backend is closed, once nobody uses it.
        server_lifetime: Duration, Limits::of(Hours, 1, 30 * DAY), "1h", Reload, Active;
        /// Idle time after which a backend is closed.
        server_idle_timeout: Duration, Limits::of(Minutes, 1, DAY), "10min", Reload, Active;
        /// Most prepared statements that are kept on one backend.
        max_prepared_statements: u32, Limits::count(1, MANY), "1000", Reload, Active;
        /// Idle time outside transactions after which a client is disconnected; 0 is never.
        client_idle_limit: Option<Duration>, Limits::of(Seconds, 1, 30 * DAY).off(Off::Zero), "0", Reload, Active;
        /// Idle time inside a transaction after which a client is disconnected; 0 is never.
        idle_transaction_timeout: Option<Duration>, Limits::of(Seconds, 1, 30 * DAY).off(Off::Zero), "0", Reload, Active;
        /// Longest run of a statement, or of a batch up to its Sync, the taking of its rows included; it is cancelled then. 0 is no limit.
        query_timeout: Option<Duration>, Limits::of(Seconds, 1, 30 * DAY).off(Off::Zero), "0", Reload, Active;
        /// Longest transaction; 0 is no limit.
        transaction_timeout: Option<Duration>, Limits::of(Seconds, 1, 30 * DAY).off(Off::Zero), "0", Reload, Active;
        /// How long a client may take to log in.
        authentication_timeout: Duration, Limits::of(Seconds, 100, HOUR), "60s", Reload, Active;
        /// Settings of single databases by the name that clients ask for; `"*"` is all others. See "A database
        /// of `databases`".
        databases: BTreeMap<String, DatabaseOverrides>, Limits::none(), "{}", Reload, Active;
        /// Settings of single users; `"*"` is all others. See "A user of `users`".
        users: BTreeMap<String, UserOverrides>, Limits::none(), "{}", Reload, Active;
    }

    section "Who may come in" {
        /// Whether `pool_hba_file` decides who may come in and how. Off: everybody needs scram-sha-256.
        enable_pool_hba: bool, Limits::none(), "off", Reload, Active;
        /// The file with the rules, in the grammar of pg_hba.conf; beside the configuration file unless absolute.
        pool_hba_file: PathBuf, Limits::none(), "pool_hba.conf", Reload, Active;
        /// The file with maps between outside names and users for `cert` and `peer`, in the grammar of pg_ident.conf;
        /// beside the configuration file unless absolute. The default file may be missing.
        pool_ident_file: PathBuf, Limits::none(), "pool_ident.conf", Reload, Active;
        /// The file with lines `user:secret`, secret being `TEXT...`, `md5...`, `SCRAM-SHA-256$...` or `AES...`;
        /// beside the configuration file unless absolute. The default file may be missing.
        pool_passwd: PathBuf, Limits::none(), "pool_passwd", Reload, Active;
        /// The file with the key for `AES...` secrets, on its first line.
        pool_key_file: Option<PathBuf>, Limits::none(), "null", Reload, Active;
        /// The query for users who are not in `pool_passwd`: takes `$1` = user, returns user and secret. See
        /// docs/security.md for one that honours expired and locked roles.
        auth_query: Option<String>, Limits::none(), "null", Reload, Active;
        /// The user who runs `auth_query`; its secret is in `pool_passwd`.
        auth_user: Option<String>, Limits::none(), "null", Reload, Active;
        /// The database in which `auth_query` runs; unset, `sr_check_database`.
        auth_dbname: Option<String>, Limits::none(), "null", Reload, Active;
        /// How long an answer of `auth_query` is used, "no such user" included; 0 asks at each login.
        auth_query_cache_period: Duration, Limits::of(Seconds, 0, DAY), "10s", Reload, Active;
        /// Whether clients that come over TCP may (`allow`, or `on`) or must (`require`) use TLS.
        ssl: Ssl, Limits::none(), "off", Reload, Active;
        /// The certificate shown to clients, and behind it in the file those between it and its authority.
        ssl_cert: Option<PathBuf>, Limits::none(), "null", Reload, Active;
        /// The key of `ssl_cert`, without a passphrase; nobody else may read it.
        ssl_key: Option<PathBuf>, Limits::none(), "null", Reload, Active;
        /// Certificates of the authorities that sign clients' certificates; without it clients are asked for none.
        ssl_ca_cert: Option<PathBuf>, Limits::none(), "null", Reload, Active;
        /// Client certificates that are no longer valid.
        ssl_crl_file: Option<PathBuf>, Limits::none(), "null", Reload, Active;
        /// Users who may use the admin database for everything.
        admin_users: Vec<String>, Limits::none(), "[]", Reload, Active;
        /// Users who may use the admin database for looking only.
        stats_users: Vec<String>, Limits::none(), "[]", Reload, Active;
    }

    section "Routing" {
        /// Whether reads are spread over the nodes; off sends everything to the primary.
        load_balance_mode: bool, Limits::none(), "on", Reload, Active;
        /// How a node is chosen for a read.
        load_balance: LoadBalance, Limits::none(), "least_outstanding", Reload, Active;
        /// How long a standby that comes back takes to get its whole weight; it begins with a tenth. 0 gives it at
        /// once.
        slow_start: Duration, Limits::of(Seconds, 0, HOUR), "10s", Reload, Active;
        /// Whether a node is chosen for each statement; off keeps one for the session.
        statement_level_load_balance: bool, Limits::none(), "on", Reload, Active;
        /// Whether reads before the first write of a READ COMMITTED transaction may go to a standby.
        transaction_load_balance: bool, Limits::none(), "off", Reload, Active;
        /// What a write does to the reads that follow it. `transaction` (and `off`, which is the same here): those
        /// of its transaction stay on the primary; `trans_transaction`: once an explicit transaction has written, so
        /// do those of all explicit transactions of the session that follow; `always`: so do all of the session.
        disable_load_balance_on_write: DisableLoadBalanceOnWrite, Limits::none(), "transaction", Reload, Active;
        /// How old a read may be. `eventual`: whatever the standby has; `read_your_writes`: not older than the
        /// session's own last write; `monotonic`: nor older than what it has read; `global`: nor older than the last
        /// write of anybody to that database through this pgweir. A session may choose with
        /// `SET pgweir.consistency`.
        consistency: Consistency, Limits::none(), "read_your_writes", Reload, Active;
        /// Bytes of WAL by which a standby may lag and still serve reads; 0 is no limit.
        delay_threshold: Option<u64>, Limits::of(Bytes, 1, 1 << 40).off(Off::Zero), "16MB", Reload, Active;
        /// Time by which a standby may lag and still serve reads; 0 is no limit.
        delay_threshold_by_time: Option<Duration>, Limits::of(Milliseconds, 1, DAY).off(Off::Zero), "0", Reload, Active;
        /// Whether a standby is passed over, as long as there is another, that is further behind than the least
        /// delayed one by a quarter of what is allowed. Off: all that are within the limits are alike.
        prefer_lower_delay_standby: bool, Limits::none(), "off", Reload, Active;
        /// Functions that only read, whatever the catalog says: names or regular expressions for the whole name,
        /// schema-qualified or not.
        read_only_function_list: Vec<Pattern>, Limits::none(), "[]", Reload, Active;
        /// Functions that write, whatever the catalog and the other list say: names or regular expressions for the
        /// whole name, schema-qualified or not.
        write_function_list: Vec<Pattern>, Limits::none(), "[]", Reload, Active;
        /// Regular expressions, without regard to case; statements in whose text one is found go to the primary.
        primary_routing_query_pattern_list: Vec<Pattern>, Limits::none(), "[]", Reload, Active;
        /// Where reads go by database: `"pattern:primary"`, `"pattern:standby"`, `"pattern:2"` (that node),
        /// `"pattern:standby(0.3)"` (three of ten). The pattern is for the whole name; the first that fits counts.
        database_redirect_preference_list: Vec<Redirect>, Limits::none(), "[]", Reload, Active;
        /// The same by the application name of the start; goes before the two other lists.
        app_name_redirect_preference_list: Vec<Redirect>, Limits::none(), "[]", Reload, Active;
        /// The same by user; goes before the list by database.
        user_redirect_preference_list: Vec<Redirect>, Limits::none(), "[]", Reload, Active;
        /// Time between two looks at what a database's catalog says of functions, views, operators and casts; what
        /// passes through pgweir is noticed at once, what is changed elsewhere this much later.
        catalog_check_period: Duration, Limits::of(Seconds, 100, HOUR), "5s", Reload, Active;
        /// Whether a routing hint in a leading comment is read.
        allow_sql_comments: bool, Limits::none(), "on", Reload, Active;
        /// Longer statements go to the primary unparsed.
        max_parsed_statement: usize, Limits::of(Bytes, 128, 1 << 30), "64kB", Reload, Active;
    }

    section "Watching the nodes" {
        /// Time between two looks at roles and replication.
        sr_check_period: Duration, Limits::of(Seconds, 10, HOUR), "1s", Reload, Active;
        /// Least time between two looks at replication while sessions want to know whether a standby has caught up.
        sr_check_min_period: Duration, Limits::of(Milliseconds, 1, HOUR), "20ms", Reload, Active;
        /// The user for these looks.
        sr_check_user: String, Limits::none(), "pgweir", Reload, Active;
        /// That user's password; unset, the one in `pool_passwd`.
        sr_check_password: Option<Masked>, Limits::none(), "null", Reload, Active;
        /// The database for these looks.
        sr_check_database: String, Limits::none(), "postgres", Reload, Active;
        /// Time between two health checks of a node.
        health_check_period: Duration, Limits::of(Seconds, 10, DAY), "2s", Reload, Active;
        /// How long one attempt of a health check may take.
        health_check_timeout: Duration, Limits::of(Seconds, 10, HOUR), "5s", Reload, Active;
        /// Further attempts before a node is taken for dead.
        health_check_max_retries: u32, Limits::count(0, 1000), "3", Reload, Active;
        /// Time between two attempts.
        health_check_retry_delay: Duration, Limits::of(Seconds, 0, HOUR), "1s", Reload, Active;
        /// The user for health checks; unset, `sr_check_user`.
        health_check_user: Option<String>, Limits::none(), "null", Reload, Active;
        /// That user's password; unset, `sr_check_password` or the one in `pool_passwd`.
        health_check_password: Option<Masked>, Limits::none(), "null", Reload, Active;
        /// The database for health checks; unset, `sr_check_database`.
        health_check_database: Option<String>, Limits::none(), "null", Reload, Active;
        /// Who promotes a standby.
        failover_mode: FailoverMode, Limits::none(), "observe", Reload, Active;
        /// With `failover_mode: command`, run when a node is lost; it promotes when that is the primary.
        failover_command: Option<String>, Limits::none(), "null", Reload, Active;
        /// With `failover_mode: command`, run when a node is back.
        failback_command: Option<String>, Limits::none(), "null", Reload, Active;
        /// Run for each node that is to follow a new primary that pgweir has made one.
        follow_primary_command: Option<String>, Limits::none(), "null", Reload, Active;
        /// How long one of these three commands may take.
        failover_command_timeout: Duration, Limits::of(Seconds, 1000, DAY), "10min", Reload, Active;
        /// Run by `RECOVER NODE`; it makes the node a standby of the primary again.
        recovery_command: Option<String>, Limits::none(), "null", Reload, Active;
        /// How long that command may take.
        recovery_command_timeout: Duration, Limits::of(Seconds, 1000, 7 * DAY), "6h", Reload, Active;
        /// How long after that command the node may take until it is seen as a streaming standby.
        recovery_timeout: Duration, Limits::of(Seconds, 1000, DAY), "5min", Reload, Active;
        /// How long a promotion may take until it counts as failed.
        promotion_timeout: Duration, Limits::of(Seconds, 1000, HOUR), "60s", Reload, Active;
        /// How long `PROMOTE NODE` may hold writes before it is called off.
        switchover_timeout: Duration, Limits::of(Seconds, 1000, HOUR), "10s", Reload, Active;
        /// How long transactions may go on on a node that is detached without FORCE.
        detach_drain_timeout: Duration, Limits::of(Seconds, 0, HOUR), "60s", Reload, Active;
        /// Where it is kept which nodes are detached and what the newest timeline is, as a hint for the next start.
        status_file: Option<PathBuf>, Limits::none(), "null", Restart, Active;
        /// How long after the loss of the primary transactions that have not begun wait for one; 0 refuses them at once.
        failover_hold_timeout: Duration, Limits::of(Seconds, 0, HOUR), "30s", Reload, Active;
        /// Whether a session's lost backend and one failed check fail a node over, whatever its standbys say; off
        /// leaves that to the health check and its retries.
        failover_on_backend_error: bool, Limits::none(), "off", Reload, Active;
        /// Whether the older of two primaries is shown as quarantined; it is not used in either case.
        detach_false_primary: bool, Limits::none(), "on", Reload, Active;
        /// Whether a node that is back is used again by itself.
        auto_failback: bool, Limits::none(), "on", Reload, Active;
        /// Least time between two such returns of one node.
        auto_failback_interval: Duration, Limits::of(Seconds, 0, DAY), "10s", Reload, Active;
    }

    section "Control and sight" {
        /// Names or addresses to listen on for PCP.
        pcp_listen_addresses: Vec<String>, Limits::none(), r#"["localhost"]"#, Restart, Active;
        /// The port for PCP, usually 9898.
        pcp_port: Option<u16>, Limits::count(1, 65535).off(Off::Word("off")), "off", Restart, Active;
        /// The file with lines `user:md5hash` for PCP, read at each login; the hash is that of the password (`pg_md5`).
        pcp_conf_file: PathBuf, Limits::none(), "pcp.conf", Restart, Active;
        /// Where `/metrics` and `/health` are served.
        metrics_listen: Option<HostPort>, Limits::none().off(Off::Word("off")), r#""localhost:9719""#, Restart, Active;
        /// How much is logged.
        log_level: LogLevel, Limits::none(), "info", Reload, Active;
        /// The shape of a log line.
        log_format: LogFormat, Limits::none(), "text", Reload, Active;
        /// Where the log goes; a file is opened again on USR1, after a rotation has moved it away.
        log_destination: LogDestination, Limits::none(), "stderr", Reload, Active;
        /// Whether each client that comes in is logged.
        log_connections: bool, Limits::none(), "off", Reload, Active;
        /// Whether each client that leaves is logged, with the sums of its session.
        log_disconnections: bool, Limits::none(), "off", Reload, Active;
        /// Whether each statement's route and its reason are logged.
        log_statement_routes: bool, Limits::none(), "off", Reload, Active;
        /// Whether each statement is logged with its node.
        log_per_node_statement: bool, Limits::none(), "off", Reload, Active;
        /// Whether a NOTICE tells the client which node ran what.
        notice_per_node_statement: bool, Limits::none(), "off", Reload, Active;
        /// Statements that take at least this long are logged; 0 logs all, -1 none.
        log_min_duration_statement: Option<Duration>, Limits::of(Milliseconds, 0, DAY).off(Off::MinusOne), "-1", Reload, Active;
        /// How much of each value that is bound to a statement is logged with it, by `log_min_duration_statement` and
        /// `log_per_node_statement`; 0 logs none. Values may be secrets. With a statement about a password none is.
        log_parameter_max_length: Option<u64>, Limits::of(Bytes, 1, 4096).off(Off::Zero), "0", Reload, Active;
        /// The file that holds the process id while pgweir runs.
        pid_file: Option<PathBuf>, Limits::none(), "null", Restart, Active;
        /// How long a stop waits for transactions to finish.
        shutdown_timeout: Duration, Limits::of(Seconds, 0, DAY), "60s", Reload, Active;
    }
}
