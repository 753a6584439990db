use std::sync::Arc;

use bytes::BytesMut;
use protocol::console::Console;
use protocol::table::{Format, Formats, data_row};

use super::*;
use crate::AdminConsole;
use crate::testing::{FakeControl, FakeView, admin, ordinary, stats};

fn console() -> (AdminConsole, Arc<FakeControl>) {
    let control = Arc::new(FakeControl::default());
    (AdminConsole::new(Arc::new(FakeView::new()), Arc::clone(&control) as Arc<dyn AdminControl>), control)
}

async fn run(caller: &Caller, sql: &str) -> Result<Answer, PgError> {
    console().0.run(caller, sql).await
}

async fn table(caller: &Caller, sql: &str) -> Table {
    match run(caller, sql).await {
        Ok(Answer::Table(table)) => table,
        other => panic!("{sql}: {other:?}"),
    }
}

/// A row as `psql -At` prints it.
fn line(row: &[Cell]) -> String {
    let text = |cell: &Cell| match cell {
        Cell::Null => String::new(),
        Cell::Text(text) => text.clone(),
        Cell::Int(number) => number.to_string(),
        Cell::Float(number) => number.to_string(),
        Cell::Bool(truth) => if *truth { "t" } else { "f" }.to_owned(),
    };
    row.iter().map(text).collect::<Vec<_>>().join("|")
}

async fn lines(caller: &Caller, sql: &str) -> Vec<String> {
    table(caller, sql).await.rows.iter().map(|row| line(row)).collect()
}

/// What programs read by position: the columns of Pgpool-II 4.7 and PgBouncer 1.25, types after the colon where
/// they are not text.
const EXPECTED: &[(&str, &str)] = &[
    (
        "SHOW POOL_NODES",
        "node_id:23 hostname port:23 status pg_status lb_weight role pg_role select_cnt:20 load_balance_node \
         replication_delay replication_state replication_sync_state last_status_change",
    ),
    (
        "SHOW POOL_BACKEND_STATS",
        "node_id:23 hostname port:23 status role select_cnt:20 insert_cnt:20 update_cnt:20 delete_cnt:20 ddl_cnt:20 \
         other_cnt:20 panic_cnt:20 fatal_cnt:20 error_cnt:20",
    ),
    ("SHOW POOL_VERSION", "pool_version"),
    ("SHOW POOL_STATUS", "item value description"),
    (
        "SHOW POOL_HEALTH_CHECK_STATS",
        "node_id:23 hostname port:23 status role last_status_change total_count:20 success_count:20 fail_count:20 \
         skip_count:20 retry_count:20 average_retry_count max_retry_count:20 max_duration min_duration \
         average_duration last_health_check last_successful_health_check last_skip_health_check \
         last_failed_health_check",
    ),
    (
        "SHOW POOL_PROCESSES",
        "pool_pid:23 start_time client_connection_count:23 database username backend_connection_time \
         pool_counter:23 status",
    ),
    (
        "SHOW POOL_POOLS",
        "pool_pid:23 start_time client_connection_count:23 pool_id:23 backend_id:23 database username \
         backend_connection_time client_connection_time client_disconnection_time client_idle_duration:23 \
         majorversion:23 minorversion:23 pool_counter:23 pool_backendpid:23 pool_connected:23 status \
         load_balance_node client_host client_port:23 statement",
    ),
    (
        "SHOW POOL_CACHE",
        "num_cache_hits:20 num_selects:20 cache_hit_ratio num_hash_entries:20 used_hash_entries:20 \
         num_cache_entries:20 used_cache_entries_size:20 free_cache_entries_size:20 \
         fragment_cache_entries_size:20",
    ),
    (
        "SHOW STATS",
        "database total_server_assignment_count:1700 total_xact_count:1700 total_query_count:1700 \
         total_received:1700 total_sent:1700 total_xact_time:1700 total_query_time:1700 total_wait_time:1700 \
         total_client_parse_count:1700 total_server_parse_count:1700 total_bind_count:1700 \
         avg_server_assignment_count:1700 avg_xact_count:1700 avg_query_count:1700 avg_recv:1700 avg_sent:1700 \
         avg_xact_time:1700 avg_query_time:1700 avg_wait_time:1700 avg_client_parse_count:1700 \
         avg_server_parse_count:1700 avg_bind_count:1700",
    ),
    ("SHOW STATS_TOTALS", STATS_TOTALS),
    ("SHOW STATS_AVERAGES", STATS_TOTALS),
    ("SHOW TOTALS", "name value:1700"),
    ("SHOW MEM", "name size:23 used:23 free:23 memtotal:20"),
    (
        "SHOW POOLS",
        "database user cl_active:23 cl_waiting:23 cl_active_cancel_req:23 cl_waiting_cancel_req:23 sv_active:23 \
         sv_active_cancel:23 sv_being_canceled:23 sv_idle:23 sv_used:23 sv_tested:23 sv_login:23 maxwait:23 \
         maxwait_us:23 pool_mode load_balance_hosts",
    ),
    (
        "SHOW DATABASES",
        "name host port:23 database force_user pool_size:23 min_pool_size:23 reserve_pool_size:23 \
         server_lifetime:23 pool_mode load_balance_hosts max_connections:23 current_connections:23 \
         max_client_connections:23 current_client_connections:23 paused:23 disabled:23",
    ),
    (
        "SHOW USERS",
        "name pool_size reserve_pool_size pool_mode max_user_connections:23 current_connections:23 \
         max_user_client_connections:23 current_client_connections:23",
    ),
    ("SHOW CLIENTS", SOCKETS),
    ("SHOW SERVERS", SOCKETS),
    ("SHOW LISTS", "list items:23"),
    ("SHOW CONFIG", "key value default changeable"),
    ("SHOW STATE", "key value"),
    ("SHOW VERSION", "version"),
];

const STATS_TOTALS: &str = "database server_assignment_count:1700 xact_count:1700 query_count:1700 \
     bytes_received:1700 bytes_sent:1700 xact_time:1700 query_time:1700 wait_time:1700 client_parse_count:1700 \
     server_parse_count:1700 bind_count:1700";

const SOCKETS: &str = "type user database replication state addr port:23 local_addr local_port:23 connect_time \
     request_time wait:23 wait_us:23 close_needed:23 ptr link remote_pid:23 tls application_name \
     prepared_statements:23 id:20";

#[test]
fn columns_are_those_that_programs_expect() {
    for (words, expected) in EXPECTED {
        let command = COMMANDS.iter().find(|command| command.words == *words).unwrap();
        let expected: Vec<(&str, u32)> = expected
            .split_whitespace()
            .map(|column| {
                column.split_once(':').map_or((column, 25), |(name, oid)| (name, oid.parse().unwrap()))
            })
            .collect();
        assert_eq!(command.columns, expected, "{words}");
    }
}

#[tokio::test]
async fn every_command_runs_and_its_cells_fit_its_columns() {
    for command in COMMANDS {
        let described = console().0.columns(&admin(), &command.example()).unwrap();
        let answer = run(&admin(), &format!("{} ;", command.example().to_lowercase())).await.unwrap();
        match answer {
            Answer::Table(table) => {
                assert_eq!(described.as_ref(), Some(&table.columns), "{}", command.words);
                assert!(!table.rows.is_empty(), "{}", command.words);
                for (row, format) in
                    table.rows.iter().flat_map(|row| [(row, Format::Text), (row, Format::Binary)])
                {
                    let mut out = BytesMut::new();
                    data_row(&mut out, &table.columns, row, &Formats::All(format)).unwrap();
                }
            }
            Answer::Done { tag, .. } => {
                assert_eq!(described, None, "{}", command.words);
                assert!(command.words.starts_with(&tag), "{}", command.words);
            }
            Answer::Session(SessionAsk::Show { columns, .. }) => assert_eq!(described, Some(columns)),
            Answer::Session(_) => assert_eq!(described, None, "{}", command.words),
            Answer::Empty => panic!("{}", command.words),
        }
    }
}

#[test]
fn words_are_keywords_and_stand_once() {
    for command in COMMANDS {
        assert!(command.words.split(' ').all(|word| !word.is_empty() && word == word.to_uppercase()));
        assert!(command.help.ends_with('.') && !command.help.contains('|'), "{}", command.words);
        assert_eq!(
            COMMANDS.iter().filter(|other| other.words == command.words).count(),
            1,
            "{}",
            command.words
        );
        assert_eq!(command.columns.is_empty(), command.described().is_none(), "{}", command.words);
    }
}

#[tokio::test]
async fn pool_nodes_look_as_in_pgpool() {
    let expected = [
        "0|db0|5432|up|up|0.333333|primary|primary|10|false||||2024-02-29 12:34:56",
        "1|db1|5433|up|up|0.666667|standby|standby|11|true|4096|streaming|async|2024-02-29 12:34:56",
    ];
    assert_eq!(lines(&ordinary(), "show pool_nodes").await, expected);
    assert_eq!(lines(&ordinary(), "PGWEIR SHOW POOL_NODES").await, expected);
    let other = Caller { session: 99, ..ordinary() };
    assert!(lines(&other, "SHOW POOL_NODES").await.iter().all(|line| line.contains("|false|")));
    let nodes = lines(&ordinary(), "PGWEIR SHOW NODES").await;
    assert_eq!(
        nodes[1],
        format!("{}|127.0.0.1|3|16/B374D848||check_ok|0|node 0, silent for 1200 ms|1", expected[1])
    );
    assert_eq!(
        lines(&ordinary(), "SHOW POOL_BACKEND_STATS").await[0],
        "0|db0|5432|up|primary|10|1|2|3|4|5|6|7|8"
    );
}

#[tokio::test]
async fn pools_add_up_over_the_nodes() {
    assert_eq!(
        lines(&stats(), "SHOW POOLS").await,
        [
            "app|alice|1|1|0|0|2|0|0|4|0|0|2|1|500000|transaction|",
            "other|bob|1|0|0|0|0|0|0|0|0|0|0|0|0|transaction|"
        ]
    );
    assert_eq!(
        lines(&stats(), "SHOW DATABASES").await,
        [
            "app|db0,db1|5432|real||7|0|0|3600|||40|8|0|2|0|0",
            "other|db0,db1|5432|other||20|0|0|3600|||0|0|0|1|0|0",
            "spare|db0,db1|5432|spare||20|0|0|3600|session||0|0|0|0|1|1",
        ]
    );
    assert_eq!(lines(&stats(), "SHOW USERS").await, ["alice||||0|8|0|2", "bob|3|||0|0|0|1"]);
    let lists = lines(&stats(), "SHOW LISTS").await;
    for expected in
        ["databases|3", "users|2", "pools|2", "used_clients|5", "login_clients|1", "used_servers|1"]
    {
        assert!(lists.contains(&expected.to_owned()), "{expected}: {lists:?}");
    }
}

#[tokio::test]
async fn clients_and_servers_point_at_each_other() {
    assert_eq!(
        lines(&stats(), "SHOW CLIENTS").await[0],
        "C|alice|app|none|active|10.0.0.9|40000|unix|0|2024-02-29 12:34:56 UTC|2024-02-29 12:34:56 UTC|2|3|0|c7|s12|0||psql|2|7"
    );
    assert!(lines(&stats(), "SHOW CLIENTS").await[4].starts_with("C|(nouser)|(nodb)|none|login|"));
    assert_eq!(
        lines(&stats(), "SHOW SERVERS").await,
        [
            "S|alice|app|none|active|127.0.0.1|5433|127.0.0.1|40001|2024-02-29 12:34:56 UTC|2024-02-29 12:34:56 UTC|0|0|1|s12|c7|4711|TLSv1.3||0|12"
        ]
    );
}

#[tokio::test]
async fn state_version_and_configuration_are_true_and_keep_secrets() {
    assert_eq!(lines(&stats(), "SHOW STATE").await, ["active|yes", "paused|no", "suspended|no"]);
    assert_eq!(lines(&stats(), "SHOW VERSION").await, ["pgweir 9.8.7"]);
    assert_eq!(lines(&ordinary(), "SHOW POOL_VERSION").await, ["9.8.7 (pgweir)"]);
    for sql in ["SHOW CONFIG", "SHOW POOL_STATUS"] {
        let rows = lines(&stats(), sql).await;
        assert_eq!(rows.len(), config::KEYS.len());
        assert!(rows.iter().any(|row| row.starts_with("port|9999|")));
        assert!(!rows.iter().any(|row| row.contains("hush")), "{sql} tells a secret");
    }
    assert!(lines(&stats(), "SHOW CONFIG").await.contains(&"port|9999|9999|no".to_owned()));
}

#[tokio::test]
async fn help_lists_every_command() {
    let Answer::Done { tag, notices } = run(&stats(), "SHOW HELP").await.unwrap() else { panic!() };
    assert_eq!(tag, "SHOW");
    let detail = notices[0].detail.as_ref().unwrap();
    let rows = lines(&ordinary(), "PGWEIR HELP").await;
    for command in super::OF_SESSIONS {
        assert!(detail.lines().any(|line| line.trim() == command.usage), "{}", command.usage);
        assert!(rows.iter().any(|row| row.starts_with(&format!("{}|anyone|", command.usage))));
    }
    for command in COMMANDS {
        assert!(detail.lines().any(|line| line.trim() == command.usage()), "{}", command.words);
        assert!(rows.iter().any(|row| row.starts_with(&format!("{}|", command.usage()))));
    }
}

#[tokio::test]
async fn rights_hold_for_every_command() {
    let admin_elsewhere = Caller { in_admin_database: false, ..admin() };
    let nobody_there = Caller { stats: false, ..stats() };
    for command in COMMANDS {
        let (console, control) = console();
        let (plain, prefixed) = (command.example(), format!("PGWEIR {}", command.example()));
        for (caller, sql, allowed) in [
            (ordinary(), prefixed.as_str(), command.rights == Rights::Anyone),
            (nobody_there.clone(), plain.as_str(), command.rights == Rights::Anyone),
            (stats(), plain.as_str(), command.rights != Rights::Admin),
            (admin(), plain.as_str(), true),
            (admin_elsewhere.clone(), prefixed.as_str(), true),
        ] {
            let done = control.done.lock().len();
            let described = console.columns(&caller, sql).map(|_| ()).map_err(|error| error.code);
            let ran = console.run(&caller, sql).await.map(|_| ()).map_err(|error| error.code);
            let expected = if allowed { Ok(()) } else { Err(SqlState::INSUFFICIENT_PRIVILEGE) };
            assert_eq!((described, ran), (expected, expected), "{sql} {caller:?}");
            assert!(allowed || control.done.lock().len() == done, "{sql} was carried out");
        }
    }
}

#[tokio::test]
async fn bare_admin_commands_mean_nothing_in_an_ordinary_session() {
    let admin_elsewhere = Caller { in_admin_database: false, ..admin() };
    for command in COMMANDS.iter().filter(|command| command.place == Place::AdminDatabase) {
        let error = run(&admin_elsewhere, &command.example()).await.unwrap_err();
        assert_eq!(error.code, SqlState::SYNTAX_ERROR, "{}", command.words);
    }
}

#[tokio::test]
async fn unknown_commands_name_the_help() {
    for (caller, sql, help) in [
        (stats(), "SHOW NONSENSE", "SHOW HELP"),
        (stats(), "SHOW POOLS now", "SHOW HELP"),
        (stats(), "SHOW \"POOLS\"", "SHOW HELP"),
        (stats(), "RELOAD 'x'", "SHOW HELP"),
        (stats(), "PGWEIR", "SHOW HELP"),
        (ordinary(), "PGWEIR", "PGWEIR HELP"),
        (ordinary(), "SHOW POOL_NOTHING", "PGWEIR HELP"),
        (ordinary(), "SELECT 1", "PGWEIR HELP"),
    ] {
        let error = run(&caller, sql).await.unwrap_err();
        assert_eq!(error.code, SqlState::SYNTAX_ERROR, "{sql}");
        assert!(error.hint.unwrap().contains(help), "{sql}");
    }
    for sql in ["", " ; ", "-- ping", "/* x */"] {
        assert_eq!(run(&stats(), sql).await, Ok(Answer::Empty), "{sql}");
    }
}

#[tokio::test]
async fn acting_commands_reach_the_control_and_tell_what_it_said() {
    let (console, control) = console();
    let admin = admin();
    let answer = console.run(&admin, "reload").await.unwrap();
    let notices = vec![PgError::notice("weight: 1 -> 2")];
    assert_eq!(answer, Answer::Done { tag: "RELOAD".into(), notices });
    console.run(&admin, "SHUTDOWN").await.unwrap();
    console.run(&admin, "SHUTDOWN WAIT_FOR_SERVERS").await.unwrap();
    assert_eq!(*control.done.lock(), ["reload", "fast", "smart"]);

    let broken = Arc::new(FakeControl { broken: true, ..FakeControl::default() });
    let console = AdminConsole::new(Arc::new(FakeView::new()), broken);
    let error = console.run(&admin, "RELOAD").await.unwrap_err();
    assert_eq!(error.code, SqlState::INVALID_PARAMETER_VALUE);
}

#[tokio::test]
async fn arguments_reach_their_commands_and_wrong_ones_tell_the_usage() {
    let (console, control) = console();
    for sql in
        ["PAUSE \"My Db\"", "RESUME", "kill_client 'c7';", "KILL_CLIENT 8", "SET load_balance = 'random'"]
    {
        console.run(&admin(), sql).await.unwrap();
    }
    assert_eq!(*control.named.lock(), ["My Db", "7", "8"]);
    assert_eq!(*control.done.lock(), ["pause", "resume", "kill_client", "kill_client", "set"]);
    for (sql, usage) in [("KILL_CLIENT", "KILL_CLIENT id"), ("ENABLE a b", "ENABLE database")] {
        let error = console.run(&admin(), sql).await.unwrap_err();
        assert_eq!(error.code, SqlState::SYNTAX_ERROR);
        assert!(error.hint.as_ref().unwrap().contains(usage), "{error:?}");
    }
    let error = console.run(&admin(), "KILL_CLIENT seven").await.unwrap_err();
    assert_eq!(error.code, SqlState::INVALID_PARAMETER_VALUE);
}

#[tokio::test]
async fn statements_of_others_are_for_administrators() {
    let statement = |lines: Vec<String>| lines[0].rsplit('|').next().unwrap().to_owned();
    assert_eq!(statement(lines(&admin(), "SHOW POOL_POOLS").await), "SELECT 1");
    assert_eq!(statement(lines(&ordinary(), "SHOW POOL_POOLS").await), "SELECT 1", "its own");
    let other = Caller { user: "bob".into(), ..ordinary() };
    assert_eq!(statement(lines(&other, "SHOW POOL_POOLS").await), "");
}

#[tokio::test]
async fn averages_are_of_the_window() {
    let row = lines(&stats(), "SHOW STATS").await.remove(0);
    assert_eq!(row, "app|20|10|12|1000|2000|100000|60000|40|5|2|7|10|2|5|500|1000|20000|6000|2|2|1|3");
}

#[tokio::test]
async fn sessions_may_change_only_what_harms_nobody() {
    let ask = |sql: &'static str| async move { run(&ordinary(), sql).await };
    let set = ask("PGPOOL SET load_balance_mode = off").await.unwrap();
    assert_eq!(set, Answer::Session(SessionAsk::Set { key: "load_balance_mode", value: "off".into() }));
    assert_eq!(ask("PGPOOL RESET ALL").await.unwrap(), Answer::Session(SessionAsk::Reset(None)));
    assert_eq!(
        ask("PGPOOL SET max_client_conn = 1").await.unwrap_err().code,
        SqlState::CANT_CHANGE_RUNTIME_PARAM
    );
    assert_eq!(ask("PGPOOL SHOW pool_passwd").await.unwrap_err().code, SqlState::INSUFFICIENT_PRIVILEGE);
    assert_eq!(ask("PGPOOL SHOW nonsense").await.unwrap_err().code, SqlState::UNDEFINED_OBJECT);
    let mistyped = ask("PGPOOL SET load_balanc = off").await.unwrap_err();
    assert_eq!(
        (mistyped.code, mistyped.hint.as_deref()),
        (SqlState::UNDEFINED_OBJECT, Some("Did you mean load_balance?"))
    );
}
