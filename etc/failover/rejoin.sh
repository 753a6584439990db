#!/bin/sh
# Makes a stopped, deposed or lost node a standby of the primary: rewinds it, or copies it anew.
#
#   recovery_command: "/etc/pgweir/failover/rejoin.sh %h %p %D %H %r"
#   rejoin.sh HOST PORT DIRECTORY PRIMARY_HOST PRIMARY_PORT [CONNINFO]
#
# For RECOVER NODE, and by hand after a failover, when the old primary's machine is back. The directory may be empty or
# missing; the one above it belongs to the user of the servers then. pg_rewind needs wal_log_hints or data checksums,
# and full_page_writes. What only the old primary had is gone afterwards: that is the purpose.
set -eu
. "$(dirname "$0")/common.sh"

host=$1 port=$2 directory=$3 new_host=$4 new_port=$5
conninfo=${6:-"host=$new_host port=$new_port user=$PGUSER"}
source="host=$new_host port=$new_port user=$PGUSER dbname=$PGDATABASE"

# Until its first checkpoint after the promotion the primary's control file tells the old timeline, and pg_rewind of
# PostgreSQL 15 and before would find nothing to do.
sql "$new_host" "$new_port" CHECKPOINT

# rejoin_here runs on the node's host, as the user of the servers.
rejoin_here='
set -eu
bin=$1 directory=$2 source=$3 conninfo=$4 port=$5
"$bin/pg_ctl" stop -s -m fast -w -t 60 -D "$directory" 2>/dev/null || true
own="$directory/postgresql.auto.conf"
settings=$(cat "$own" 2>/dev/null || true)
if [ ! -f "$directory/global/pg_control" ] || ! "$bin/pg_rewind" --no-sync -D "$directory" --source-server="$source"; then
    echo "there is nothing that pg_rewind can use; copying anew"
    rm -rf "$directory.new"
    "$bin/pg_basebackup" -D "$directory.new" -d "$source" -X stream -c fast --no-sync
    [ -d "$directory" ] || mkdir -m 700 "$directory"
    find "$directory" -mindepth 1 -maxdepth 1 ! -name "*.conf" ! -name log -exec rm -rf {} +
    # Its own configuration stays; what it has none of comes with the copy: a standby needs what its primary has.
    [ -e "$own" ] || settings=$(cat "$directory.new/postgresql.auto.conf")
    for conf in "$directory.new"/*.conf; do
        [ -e "$directory/${conf##*/}" ] || mv "$conf" "$directory/"
    done
    find "$directory.new" -mindepth 1 -maxdepth 1 ! -name "*.conf" -exec mv {} "$directory/" \;
    rm -rf "$directory.new"
fi
quoted=$(printf %s "$conninfo" | sed "s/'"'"'/'"''"'/g")
{
    # The settings of the node itself, where it has some, not those that came with the copy.
    printf "%s\n" "$settings" | grep -v "^primary_conninfo *=" || true
    printf "primary_conninfo = '"'%s'"'\n" "$quoted"
} >"$own"
: >"$directory/standby.signal"
"$bin/pg_ctl" start -s -w -t 60 -D "$directory" -l "${PGLOG:-$directory/../log}" -o "-p $port" </dev/null
'
on "$host" "$directory" /bin/sh -c "$rejoin_here" rejoin "$PGBIN" "$directory" "$source" "$conninfo" "$port"
say "$host:$port is a standby of $new_host:$new_port"
