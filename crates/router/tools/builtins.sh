#!/bin/sh
# Writes src/builtins.rs from the catalog of a PostgreSQL: which built-in functions a standby answers just
# as well, the built-in operators, and the keywords that cannot be function names.
#
# usage: tools/builtins.sh 'psql -h HOST -p PORT DATABASE' > src/builtins.rs     (a fresh initdb of 15 or newer)
#
# A name counts as primary only when one of its overloads does. Volatile functions are, but for those in
# `volatile_safe`; stable and immutable ones are not, but for those in `unsafe`. Functions that SQL cannot call
# (internal, trigger and handler types) are left out, as anything unknown they go to the primary.
set -eu
psql=${1:?usage: builtins.sh PSQL-COMMAND}

# Volatile, yet a standby answers them just as well. Sizes are not among them: unlogged tables have no files there.
volatile_safe="bernoulli system random clock_timestamp timeofday gen_random_uuid current_query
  pg_sleep pg_sleep_for pg_sleep_until pg_is_in_recovery pg_last_wal_receive_lsn pg_last_wal_replay_lsn
  pg_last_xact_replay_timestamp pg_is_wal_replay_paused pg_get_wal_replay_pause_state
  pg_partition_tree pg_partition_ancestors pg_collation_actual_version pg_database_collation_actual_version
  pg_jit_available lo_get"

# Stable or immutable in the catalog, yet they fail on a standby or answer for the wrong node or session.
unsafe="txid_current txid_current_if_assigned pg_current_xact_id pg_current_xact_id_if_assigned
  pg_walfile_name pg_walfile_name_offset pg_get_replication_slots pg_get_publication_tables"

# Stable, and read what a name in a value stands for: a view may call anything, a table may be unlogged.
unsafe="$unsafe table_to_xml table_to_xml_and_xmlschema schema_to_xml schema_to_xml_and_xmlschema
  database_to_xml database_to_xml_and_xmlschema"

# Of PostgreSQL 16 to 18, in case the catalog read is older. Names that users of older servers are likely to
# have given to functions of their own (array_sort, to_bin, crc32, date_add ...) are not here.
newer_safe="any_value array_sample array_shuffle json_scalar json_serialize json_array json_arrayagg json_exists
  json_objectagg json_query json_value pg_basetype pg_get_acl
  random_normal system_user to_regtypemod unicode_assigned unicode_version icu_unicode_version
  uuid_extract_timestamp uuid_extract_version uuidv4 uuidv7 xmltext"
# pg_input_*: a type that is named in a value may be a domain, whose check may call anything.
newer_primary="pg_input_error_info pg_input_is_valid pg_log_standby_snapshot pg_stat_reset_backend_stats pg_sync_replication_slots
  pg_restore_relation_stats pg_restore_attribute_stats pg_clear_relation_stats pg_clear_attribute_stats
  pg_replication_origin_session_setup pg_split_walfile_name pg_get_sequence_data pg_log_backend_memory_contexts"
newer_keywords="json json_array json_arrayagg json_exists json_object json_objectagg json_query json_scalar
  json_serialize json_table json_value merge_action system_user"

names() { for name in $*; do printf '%s\n' "$name"; done; }
list() { names "$@" | sed "s/.*/'&'/" | paste -sd, -; }
query() { $psql -X -A -t -q -c "$1"; }

functions() {
  query "
    SELECT p.proname, bool_or(CASE WHEN p.proname IN ($(list $unsafe)) THEN true
                                   WHEN p.proname IN ($(list $volatile_safe)) THEN false
                                   ELSE p.provolatile = 'v' END)
    FROM pg_proc p
    WHERE p.pronamespace = 'pg_catalog'::regnamespace
      AND (p.prorettype NOT IN ('internal'::regtype, 'trigger'::regtype, 'event_trigger'::regtype,
             'language_handler'::regtype, 'fdw_handler'::regtype, 'index_am_handler'::regtype,
             'table_am_handler'::regtype, 'cstring'::regtype)
           AND NOT 'internal'::regtype = ANY (p.proargtypes::oid[])
           AND NOT 'cstring'::regtype = ANY (p.proargtypes::oid[])
           OR p.proname IN ('bernoulli', 'system'))
    GROUP BY 1"
}

# One Rust slice, sorted by bytes, several names a line.
slice() {
  printf '\n/// %s\n#[rustfmt::skip]\npub(crate) static %s: &[&str] = &[\n' "$2" "$1"
  LC_ALL=C sort -u | sed 's/.*/"&",/' | paste -sd' ' - | fold -s -w 104 | sed 's/^/    /; s/ *$//'
  printf '];\n'
}

found=$(functions)
cat <<'HEAD'
//! Names that PostgreSQL has built in. Made by `tools/builtins.sh`; do not edit.
HEAD
{ printf '%s\n' "$found" | sed -n 's/|t$//p'; names $newer_primary; } |
  slice PRIMARY_ONLY 'Functions that write, or that only the primary answers rightly.'
{ printf '%s\n' "$found" | sed -n 's/|f$//p'; names $newer_safe; } |
  slice ANY_NODE 'Functions that a standby answers just as well.'
query 'SELECT DISTINCT oprname FROM pg_operator' | slice OPERATORS 'Operators; none of them writes.'
{ query "SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'C')"; names $newer_keywords; } |
  slice NOT_CALLABLE 'Keywords that cannot be the name of a function.'
