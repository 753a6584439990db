#!/bin/sh
# failover_command: promotes the standby that pgweir has chosen when the primary is lost.
#
#   failover_mode: command
#   failover_command: "/etc/pgweir/failover/failover.sh %d %h %p %D %m %H %r %R %P"
#
# Ends with 0 when the standby takes writes, or when the lost node was no primary.
set -eu
. "$(dirname "$0")/common.sh"

node=$1 host=$2 port=$3 directory=$4 new=$5 new_host=$6 new_port=$7 new_directory=$8 old_primary=$9

[ -n "$new" ] || fail "node $node ($host:$port, $directory) is lost and nobody can take its place"
if [ "$node" != "$old_primary" ] || [ "$new" = "$node" ]; then
    say "node $node ($host:$port) is lost; node $new stays the primary"
    exit 0
fi
say "node $node ($host:$port) is lost; promoting node $new ($new_host:$new_port)"
on "$new_host" "$new_directory" "$PGBIN/pg_ctl" promote -w -t 60 -D "$new_directory"
say "node $new takes writes"
