//! The columns of every SHOW, as Pgpool-II and PgBouncer have them: names, order and types, by both protocols.
//!
//! Written down a second time on purpose: programs read them by position, and the table in `crates/admin` may be wrong.

use anyhow::{Context, Result, ensure};
use harness::{Cluster, ClusterOptions, Login, Pgweir, RawClient, Reply, msgs};

/// `name` is text, `name:i` integer, `name:b` bigint, `name:n` numeric.
const SHOWS: &[(&str, &str)] = &[
    (
        "SHOW POOL_NODES",
        "node_id:i hostname port:i status pg_status lb_weight role pg_role select_cnt:b load_balance_node \
         replication_delay replication_state replication_sync_state last_status_change",
    ),
    (
        "SHOW POOL_HEALTH_CHECK_STATS",
        "node_id:i hostname port:i status role last_status_change total_count:b success_count:b fail_count:b \
         skip_count:b retry_count:b average_retry_count max_retry_count:b max_duration min_duration \
         average_duration last_health_check last_successful_health_check last_skip_health_check \
         last_failed_health_check",
    ),
    (
        "SHOW POOL_BACKEND_STATS",
        "node_id:i hostname port:i status role select_cnt:b insert_cnt:b update_cnt:b delete_cnt:b ddl_cnt:b \
         other_cnt:b panic_cnt:b fatal_cnt:b error_cnt:b",
    ),
    (
        "SHOW POOL_PROCESSES",
        "pool_pid:i start_time client_connection_count:i database username backend_connection_time \
         pool_counter:i status",
    ),
    (
        "SHOW POOL_POOLS",
        "pool_pid:i start_time client_connection_count:i pool_id:i backend_id:i database username \
         backend_connection_time client_connection_time client_disconnection_time client_idle_duration:i \
         majorversion:i minorversion:i pool_counter:i pool_backendpid:i pool_connected:i status \
         load_balance_node client_host client_port:i statement",
    ),
    (
        "SHOW POOL_CACHE",
        "num_cache_hits:b num_selects:b cache_hit_ratio num_hash_entries:b used_hash_entries:b \
         num_cache_entries:b used_cache_entries_size:b free_cache_entries_size:b fragment_cache_entries_size:b",
    ),
    ("SHOW POOL_STATUS", "item value description"),
    ("SHOW POOL_VERSION", "pool_version"),
    (
        "SHOW POOLS",
        "database user cl_active:i cl_waiting:i cl_active_cancel_req:i cl_waiting_cancel_req:i sv_active:i \
         sv_active_cancel:i sv_being_canceled:i sv_idle:i sv_used:i sv_tested:i sv_login:i maxwait:i \
         maxwait_us:i pool_mode load_balance_hosts",
    ),
    (
        "SHOW DATABASES",
        "name host port:i database force_user pool_size:i min_pool_size:i reserve_pool_size:i \
         server_lifetime:i pool_mode load_balance_hosts max_connections:i current_connections:i \
         max_client_connections:i current_client_connections:i paused:i disabled:i",
    ),
    (
        "SHOW USERS",
        "name pool_size reserve_pool_size pool_mode max_user_connections:i current_connections:i \
         max_user_client_connections:i current_client_connections:i",
    ),
    ("SHOW CLIENTS", SOCKETS),
    ("SHOW SERVERS", SOCKETS),
    (
        "SHOW STATS",
        "database total_server_assignment_count:n total_xact_count:n total_query_count:n total_received:n \
         total_sent:n total_xact_time:n total_query_time:n total_wait_time:n total_client_parse_count:n \
         total_server_parse_count:n total_bind_count:n avg_server_assignment_count:n avg_xact_count:n \
         avg_query_count:n avg_recv:n avg_sent:n avg_xact_time:n avg_query_time:n avg_wait_time:n \
         avg_client_parse_count:n avg_server_parse_count:n avg_bind_count:n",
    ),
    ("SHOW STATS_TOTALS", TOTALS),
    ("SHOW STATS_AVERAGES", TOTALS),
    ("SHOW TOTALS", "name value:n"),
    ("SHOW LISTS", "list items:i"),
    ("SHOW CONFIG", "key value default changeable"),
    ("SHOW STATE", "key value"),
    ("SHOW MEM", "name size:i used:i free:i memtotal:b"),
    ("SHOW VERSION", "version"),
    (
        "SHOW NODES",
        "node_id:i hostname port:i status pg_status lb_weight role pg_role select_cnt:b load_balance_node \
         replication_delay replication_state replication_sync_state last_status_change address timeline:b \
         replay fresh_as_of reason failed_checks:i upstream in_use:i",
    ),
    ("SHOW PINS", "id:b user database application_name reason node_id:i remote_pid:i request_time"),
    ("SHOW ROUTES", "node_id:i reason statements:b"),
    ("SHOW STATEMENTS", STATEMENTS),
    ("SHOW POOL_STATEMENTS", STATEMENTS),
    (
        "SHOW HEALTH",
        "node_id:i hostname port:i status answers total_count:b fail_count:b last_health_check \
         last_failed_health_check last_failure",
    ),
    ("SHOW EVENTS", "number:b time event node_id:i before now reason"),
    ("SHOW WAITING", "id:b user database application_name waits_for node_id:i wait_us:b"),
    ("SHOW MEMORY", "what items:b bytes:b"),
];

const SOCKETS: &str = "type user database replication state addr port:i local_addr local_port:i connect_time \
     request_time wait:i wait_us:i close_needed:i ptr link remote_pid:i tls application_name \
     prepared_statements:i id:b";
const TOTALS: &str = "database server_assignment_count:n xact_count:n query_count:n bytes_received:n \
     bytes_sent:n xact_time:n query_time:n wait_time:n client_parse_count:n server_parse_count:n bind_count:n";
const STATEMENTS: &str = "fingerprint statement calls:b errors:b routes reasons p50_us:b p95_us:b p99_us:b \
     total_us:b rows:b bytes:b";

/// Names and type oids.
fn wanted(columns: &str) -> Vec<(String, u32)> {
    let column = |word: &str| {
        let (name, kind) = word.split_once(':').unwrap_or((word, "t"));
        let oid = match kind {
            "i" => 23,
            "b" => 20,
            "n" => 1700,
            _ => 25,
        };
        (name.to_owned(), oid)
    };
    columns.split_whitespace().map(column).collect()
}

/// PP-11, AD-01: as compat.md has them, in the admin database under both of its names, and after PGWEIR in an ordinary session,
/// inside of a transaction.
#[test]
fn ad_01_every_show_has_the_columns_that_programs_expect() -> Result<()> {
    let cluster = Cluster::new(ClusterOptions { standbys: 1, ..ClusterOptions::default() })?;
    let weir = Pgweir::start(&cluster, "")?;
    for database in ["pgweir", "pgbouncer", "bench"] {
        let mut client = Login::new("postgres", database).connect(weir.port())?;
        client.simple("BEGIN")?;
        let prefix = if database == "bench" { "PGWEIR " } else { "" };
        for (show, columns) in SHOWS {
            let wanted = wanted(columns);
            let sql = format!("{prefix}{show}");
            let status = told(&mut client, database, &sql, &wanted)?;
            ensure!(status.ends_with("Z(T)"), "{database}: {sql}: {status}");
        }
        client.simple("COMMIT")?;
    }
    Ok(())
}

/// By simple and by extended protocol; gives how the extended one ended.
fn told(client: &mut RawClient, database: &str, sql: &str, wanted: &[(String, u32)]) -> Result<String> {
    let mut last = String::new();
    for extended in [false, true] {
        let sent = match extended {
            false => msgs().Q(sql),
            true => msgs().P("", sql).D('S', "").B("", "", &[]).E().S(),
        };
        client.send(&sent)?;
        let replies = client.read_ready(1)?;
        last = replies.to_string();
        let described = |reply: &Reply| match reply {
            Reply::RowDescription(fields) => {
                Some(fields.iter().map(|field| (field.name.clone(), field.type_oid)).collect::<Vec<_>>())
            }
            _ => None,
        };
        let got =
            replies.0.iter().find_map(described).with_context(|| format!("{database}: {sql}: {last}"))?;
        ensure!(got == wanted, "{database}: {sql}, extended {extended}: {got:?} instead of {wanted:?}");
    }
    Ok(last)
}
