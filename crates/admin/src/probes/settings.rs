//! The settings that a client of PostgreSQL 13 to 18 may SET (`pg_settings.context`): drivers set some at every connect.
//!
//! The console has none of them. It knows their names to tell a driver's habit from an administrator's typing error.

/// In alphabetical order and in lower case.
#[rustfmt::skip]
const NAMES: &[&str] = &[
    "allow_in_place_tablespaces", "allow_system_table_mods", "application_name", "array_nulls",
    "backend_flush_after", "backslash_quote", "backtrace_functions", "bytea_output",
    "check_function_bodies", "client_connection_check_interval", "client_encoding", "client_min_messages",
    "commit_delay", "commit_siblings", "compute_query_id", "constraint_exclusion", "cpu_index_tuple_cost",
    "cpu_operator_cost", "cpu_tuple_cost", "createrole_self_grant", "cursor_tuple_fraction", "datestyle",
    "deadlock_timeout", "debug_discard_caches", "debug_logical_replication_streaming",
    "debug_parallel_query", "debug_pretty_print", "debug_print_parse", "debug_print_plan",
    "debug_print_rewritten", "default_statistics_target", "default_table_access_method",
    "default_tablespace", "default_text_search_config", "default_toast_compression",
    "default_transaction_deferrable", "default_transaction_isolation", "default_transaction_read_only",
    "dynamic_library_path", "effective_cache_size", "effective_io_concurrency", "enable_async_append",
    "enable_bitmapscan", "enable_distinct_reordering", "enable_gathermerge", "enable_group_by_reordering",
    "enable_hashagg", "enable_hashjoin", "enable_incremental_sort", "enable_indexonlyscan",
    "enable_indexscan", "enable_material", "enable_memoize", "enable_mergejoin", "enable_nestloop",
    "enable_parallel_append", "enable_parallel_hash", "enable_partition_pruning",
    "enable_partitionwise_aggregate", "enable_partitionwise_join", "enable_presorted_aggregate",
    "enable_self_join_elimination", "enable_seqscan", "enable_sort", "enable_tidscan",
    "escape_string_warning", "event_triggers", "exit_on_error", "extension_control_path",
    "extension_destdir", "extra_float_digits", "file_copy_method", "force_parallel_mode",
    "from_collapse_limit", "geqo", "geqo_effort", "geqo_generations", "geqo_pool_size", "geqo_seed",
    "geqo_selection_bias", "geqo_threshold", "gin_fuzzy_search_limit", "gin_pending_list_limit",
    "gss_accept_delegation", "hash_mem_multiplier", "idle_in_transaction_session_timeout",
    "idle_session_timeout", "ignore_checksum_failure", "ignore_system_indexes", "intervalstyle",
    "io_combine_limit", "is_superuser", "jit", "jit_above_cost", "jit_debugging_support",
    "jit_dump_bitcode", "jit_expressions", "jit_inline_above_cost", "jit_optimize_above_cost",
    "jit_profiling_support", "jit_tuple_deforming", "join_collapse_limit", "lc_messages", "lc_monetary",
    "lc_numeric", "lc_time", "lo_compat_privileges", "local_preload_libraries", "lock_timeout",
    "log_connections", "log_disconnections", "log_duration", "log_error_verbosity", "log_executor_stats",
    "log_lock_failures", "log_lock_waits", "log_min_duration_sample", "log_min_duration_statement",
    "log_min_error_statement", "log_min_messages", "log_parameter_max_length",
    "log_parameter_max_length_on_error", "log_parser_stats", "log_planner_stats",
    "log_replication_commands", "log_statement", "log_statement_sample_rate", "log_statement_stats",
    "log_temp_files", "log_transaction_sample_rate", "logical_decoding_work_mem",
    "maintenance_io_concurrency", "maintenance_work_mem", "max_parallel_maintenance_workers",
    "max_parallel_workers", "max_parallel_workers_per_gather", "max_stack_depth",
    "min_parallel_index_scan_size", "min_parallel_table_scan_size", "operator_precedence_warning",
    "parallel_leader_participation", "parallel_setup_cost", "parallel_tuple_cost", "password_encryption",
    "plan_cache_mode", "post_auth_delay", "quote_all_identifiers", "random_page_cost",
    "recursive_worktable_factor", "restrict_nonsystem_relation_kind", "role", "row_security",
    "scram_iterations", "search_path", "seed", "send_abort_for_crash", "send_abort_for_kill",
    "seq_page_cost", "session_authorization", "session_preload_libraries", "session_replication_role",
    "standard_conforming_strings", "statement_timeout", "stats_fetch_consistency", "synchronize_seqscans",
    "synchronous_commit", "tcp_keepalives_count", "tcp_keepalives_idle", "tcp_keepalives_interval",
    "tcp_user_timeout", "temp_buffers", "temp_file_limit", "temp_tablespaces", "timezone",
    "timezone_abbreviations", "trace_notify", "trace_sort", "track_activities", "track_cost_delay_timing",
    "track_counts", "track_functions", "track_io_timing", "track_wal_io_timing", "transaction_deferrable",
    "transaction_isolation", "transaction_read_only", "transaction_timeout", "transform_null_equals",
    "update_process_title", "vacuum_buffer_usage_limit", "vacuum_cleanup_index_scale_factor",
    "vacuum_cost_delay", "vacuum_cost_limit", "vacuum_cost_page_dirty", "vacuum_cost_page_hit",
    "vacuum_cost_page_miss", "vacuum_failsafe_age", "vacuum_freeze_min_age", "vacuum_freeze_table_age",
    "vacuum_max_eager_freeze_failure_rate", "vacuum_multixact_failsafe_age",
    "vacuum_multixact_freeze_min_age", "vacuum_multixact_freeze_table_age", "vacuum_truncate",
    "wal_compression", "wal_consistency_checking", "wal_init_zero", "wal_recycle", "wal_sender_timeout",
    "wal_skip_threshold", "work_mem", "xmlbinary", "xmloption", "zero_damaged_pages",
];

/// Whether PostgreSQL has a setting of that name that a client may SET.
pub(super) fn is_known(name: &str) -> bool {
    NAMES.binary_search(&name.to_ascii_lowercase().as_str()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_found_in_any_case() {
        assert!(NAMES.is_sorted());
        assert!(is_known("DateStyle") && is_known("transaction_timeout") && !is_known("default_pol_size"));
    }
}
