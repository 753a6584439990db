//! The rows of the one table of commands.

use super::{
    Action, Argument, ColumnSpec, Command, Handler, Place, Rights, Rows, Scene, catalog, control, nodes,
    pools, process, processes, sight, sockets, stats,
};

pub(super) const fn rows(
    words: &'static str,
    rights: Rights,
    columns: &'static [ColumnSpec],
    help: &'static str,
    handler: fn(&Scene<'_>) -> Rows,
) -> Command {
    let place = match rights {
        Rights::Anyone => Place::AnySession,
        Rights::Stats | Rights::Admin => Place::AdminDatabase,
    };
    Command { words, rights, place, argument: Argument::None, columns, help, handler: Handler::Rows(handler) }
}

/// One of the nodes.
const NODE: Argument = Argument::Name("node");

/// Of a database, or of all.
const DATABASE: Argument = Argument::MayName("database");

const fn act(
    words: &'static str,
    argument: Argument,
    help: &'static str,
    handler: for<'a> fn(&Scene<'a>) -> Action<'a>,
) -> Command {
    let (rights, place) = (Rights::Admin, Place::AdminDatabase);
    Command { words, rights, place, argument, columns: &[], help, handler: Handler::Act(handler) }
}

/// Every command.
pub const COMMANDS: &[Command] = &[
    rows(
        "SHOW POOL_NODES",
        Rights::Anyone,
        nodes::POOL_NODES,
        "The nodes, their roles and states, as Pgpool-II shows them.",
        nodes::pool_nodes,
    ),
    rows(
        "SHOW POOL_BACKEND_STATS",
        Rights::Anyone,
        nodes::BACKEND_STATS,
        "Statements sent to and errors received from each node since the start.",
        nodes::backend_stats,
    ),
    rows(
        "SHOW POOL_HEALTH_CHECK_STATS",
        Rights::Anyone,
        processes::HEALTH_CHECK_STATS,
        "The health checks of each node since the start; times in milliseconds.",
        processes::health_check_stats,
    ),
    rows(
        "SHOW POOL_PROCESSES",
        Rights::Anyone,
        processes::PROCESSES,
        "The client sessions, each in place of a process of Pgpool-II.",
        processes::processes,
    ),
    rows(
        "SHOW POOL_POOLS",
        Rights::Anyone,
        processes::POOL_POOLS,
        "The connections to the nodes and who has them; statements of others are for administrators.",
        processes::pool_pools,
    ),
    rows(
        "SHOW POOL_CACHE",
        Rights::Anyone,
        processes::CACHE,
        "The query cache, which pgweir does not have.",
        processes::cache,
    ),
    Command {
        place: Place::AnySession,
        ..rows(
            "SHOW POOL_STATEMENTS",
            Rights::Admin,
            sight::STATEMENTS,
            "Statements by fingerprint: calls, where they ran and why, how long they took; microseconds.",
            sight::statements,
        )
    },
    rows("SHOW POOL_VERSION", Rights::Anyone, nodes::POOL_VERSION, "pgweir's version.", nodes::pool_version),
    Command {
        place: Place::AnySession,
        ..rows(
            "SHOW POOL_STATUS",
            Rights::Stats,
            process::POOL_STATUS,
            "The configuration in force and what each key is for; secrets are masked.",
            process::pool_status,
        )
    },
    Command {
        place: Place::AdminDatabase,
        ..rows(
            "SHOW NODES",
            Rights::Anyone,
            nodes::NODES,
            "SHOW POOL_NODES with the address, timeline, WAL position and freshness of each node, the evidence for its state, and how many sessions have a connection to it.",
            nodes::nodes,
        )
    },
    rows(
        "SHOW STATS",
        Rights::Stats,
        stats::STATS,
        "What was counted for each database since the start, and averages over the last minutes; microseconds.",
        stats::stats,
    ),
    rows(
        "SHOW STATS_TOTALS",
        Rights::Stats,
        stats::STATS_TOTALS,
        "What was counted for each database since the start; times in microseconds.",
        stats::stats_totals,
    ),
    rows(
        "SHOW STATS_AVERAGES",
        Rights::Stats,
        stats::STATS_TOTALS,
        "Averages over the last minutes: for a second, of times for one transaction, query or wait.",
        stats::stats_averages,
    ),
    rows(
        "SHOW TOTALS",
        Rights::Stats,
        stats::TOTALS,
        "SHOW STATS of all databases together, a count a row.",
        stats::totals_of_all,
    ),
    rows(
        "SHOW POOLS",
        Rights::Stats,
        pools::POOLS,
        "Clients and backends of each database and user, over all nodes.",
        pools::pools,
    ),
    rows("SHOW CLIENTS", Rights::Stats, sockets::SOCKETS, "The client connections.", sockets::clients),
    rows("SHOW SERVERS", Rights::Stats, sockets::SOCKETS, "The connections to the nodes.", sockets::servers),
    rows(
        "SHOW DATABASES",
        Rights::Stats,
        catalog::DATABASES,
        "The databases that are configured or in use, with their limits.",
        catalog::databases,
    ),
    rows(
        "SHOW USERS",
        Rights::Stats,
        catalog::USERS,
        "The users that are configured or in use, with their limits.",
        catalog::users,
    ),
    rows(
        "SHOW CONFIG",
        Rights::Stats,
        process::CONFIG,
        "The configuration in force; secrets are masked.",
        process::config,
    ),
    rows(
        "SHOW PINS",
        Rights::Stats,
        sight::PINS,
        "Sessions that are held to their backend, and why.",
        sight::pins,
    ),
    rows(
        "SHOW ROUTES",
        Rights::Stats,
        sight::ROUTES,
        "Statements sent to each node since the start, by the reason for which it was chosen.",
        sight::routes,
    ),
    rows(
        "SHOW STATEMENTS",
        Rights::Admin,
        sight::STATEMENTS,
        "The same as SHOW POOL_STATEMENTS.",
        sight::statements,
    ),
    act("RESET STATEMENTS", Argument::None, "Forgets what SHOW STATEMENTS shows.", control::reset_statements),
    rows(
        "SHOW HEALTH",
        Rights::Stats,
        processes::HEALTH,
        "The health checks in short, with why the last one failed.",
        processes::health,
    ),
    rows(
        "SHOW EVENTS",
        Rights::Stats,
        sight::EVENTS,
        "The last 1000 changes of nodes, primary and process, the newest first.",
        sight::events,
    ),
    rows(
        "SHOW WAITING",
        Rights::Stats,
        sight::WAITING,
        "Sessions that wait for a backend, and for what.",
        sight::waiting,
    ),
    rows("SHOW MEMORY", Rights::Stats, sight::MEMORY, "What the memory is used for.", sight::memory),
    rows("SHOW MEM", Rights::Stats, sight::MEM, "SHOW MEMORY in PgBouncer's columns.", sight::mem),
    rows("SHOW LISTS", Rights::Stats, pools::LISTS, "How many of each thing there are.", pools::lists),
    rows(
        "SHOW STATE",
        Rights::Stats,
        process::KEY_VALUE,
        "Whether pgweir serves or is paused.",
        process::state,
    ),
    rows("SHOW VERSION", Rights::Stats, process::VERSION, "pgweir's version.", process::version),
    Command {
        words: "SHOW HELP",
        rights: Rights::Anyone,
        place: Place::AdminDatabase,
        argument: Argument::None,
        columns: &[],
        help: "The commands, as a notice.",
        handler: Handler::Notice(process::help_notice),
    },
    Command {
        place: Place::AdminDatabase,
        ..rows("HELP", Rights::Anyone, process::HELP, "The commands, as rows.", process::help)
    },
    act("RELOAD", Argument::None, "Reads the configuration again and says what changes.", control::reload),
    act(
        "PAUSE",
        DATABASE,
        "Gives no client a backend any more, and waits until they are back.",
        control::pause,
    ),
    act("RESUME", DATABASE, "Ends PAUSE and KILL.", control::resume),
    act(
        "RECONNECT",
        DATABASE,
        "Replaces every connection to a node as soon as no client has it.",
        control::reconnect,
    ),
    act(
        "WAIT_CLOSE",
        DATABASE,
        "Waits until the connections that RECONNECT is to replace are closed.",
        control::wait_close,
    ),
    act("ATTACH NODE", NODE, "Takes a node back that was detached or has failed.", control::attach),
    act(
        "DETACH NODE",
        Argument::Forcible("node"),
        "Gives a node no new work; transactions may end. FORCE: at once, even the primary or the last node.",
        control::detach,
    ),
    act(
        "PROMOTE NODE",
        NODE,
        "Makes a standby the primary: new transactions wait, running ones end, it catches up.",
        control::promote,
    ),
    act(
        "RECOVER NODE",
        NODE,
        "Rebuilds a node that is out of service with recovery_command, and takes it back when it streams.",
        control::recover,
    ),
    act("KILL", DATABASE, "Ends all clients now; new ones wait until RESUME.", control::kill),
    act(
        "KILL_CLIENT",
        Argument::Name("id"),
        "Ends one client, by its id in SHOW CLIENTS.",
        control::kill_client,
    ),
    act("ENABLE", Argument::Name("database"), "Ends DISABLE.", control::enable),
    act("DISABLE", Argument::Name("database"), "Turns new clients of a database away.", control::disable),
    act(
        "SET",
        Argument::Setting,
        "Changes a key of the configuration until the next reload or restart.",
        control::set,
    ),
    act(
        "SHUTDOWN",
        Argument::None,
        "Ends pgweir: sessions are told goodbye at once.",
        control::shutdown_fast,
    ),
    act(
        "SHUTDOWN WAIT_FOR_SERVERS",
        Argument::None,
        "Ends pgweir when the transactions have ended.",
        control::shutdown_smart,
    ),
    act(
        "SHUTDOWN WAIT_FOR_CLIENTS",
        Argument::None,
        "Lets nobody in any more, and ends pgweir when the last client has left by itself.",
        control::shutdown_patient,
    ),
    Command {
        words: "PGPOOL SHOW",
        rights: Rights::Anyone,
        place: Place::AnySession,
        argument: Argument::Name("key"),
        columns: process::SETTING,
        help: "One key of the configuration, as this session has it, or ALL.",
        handler: Handler::Session(process::pgpool_show),
    },
    Command {
        words: "PGPOOL SET",
        rights: Rights::Anyone,
        place: Place::AnySession,
        argument: Argument::OwnSetting,
        columns: &[],
        help: "Changes a key for this session, of those that a session may change.",
        handler: Handler::Session(process::pgpool_set),
    },
    Command {
        words: "PGPOOL RESET",
        rights: Rights::Anyone,
        place: Place::AnySession,
        argument: Argument::Name("key"),
        columns: &[],
        help: "Ends PGPOOL SET of a key, or of ALL.",
        handler: Handler::Session(process::pgpool_reset),
    },
];
