#!/bin/sh
# follow_primary_command: makes a node a standby of the new primary.
#
#   follow_primary_command: "/etc/pgweir/failover/follow_primary.sh %d %h %p %D %m %H %r"
#
# A running standby is told the new address, which needs no restart. A node that takes writes (the old primary of a
# switchover) or does not run is stopped, rewound, and started as a standby; where pg_rewind cannot do it, it is
# copied anew with pg_basebackup.
set -eu
. "$(dirname "$0")/common.sh"

node=$1 host=$2 port=$3 directory=$4 new=$5 new_host=$6 new_port=$7

conninfo="host=$new_host port=$new_port user=$PGUSER application_name=${APPLICATION_NAME:-n$node}"
quoted=$(printf %s "$conninfo" | sed "s/'/''/g")

if [ "$(sql "$host" "$port" 'SELECT pg_is_in_recovery()' 2>/dev/null)" = t ]; then
    sql "$host" "$port" "ALTER SYSTEM SET primary_conninfo = '$quoted'"
    sql "$host" "$port" "SELECT pg_reload_conf()" >/dev/null
    # It may have received what only the old primary had; then it has to be rewound as well.
    tries=0
    until [ "$(sql "$host" "$port" "SELECT status = 'streaming' AND sender_port = $new_port FROM pg_stat_wal_receiver")" = t ]; do
        tries=$((tries + 1))
        if [ "$tries" -gt 50 ]; then
            say "standby $node ($host:$port) cannot follow node $new as it is"
            exec "$(dirname "$0")/rejoin.sh" "$host" "$port" "$directory" "$new_host" "$new_port" "$conninfo"
        fi
        sleep 0.2
    done
    say "standby $node ($host:$port) follows node $new ($new_host:$new_port)"
    exit 0
fi

say "node $node ($host:$port) becomes a standby of node $new ($new_host:$new_port)"
"$(dirname "$0")/rejoin.sh" "$host" "$port" "$directory" "$new_host" "$new_port" "$conninfo"
