# What the samples share. Nodes on this host are reached directly, others by ssh as the user of the servers.
#
#   PGBIN     where pg_ctl, pg_rewind and pg_basebackup are; the newest packaged ones by default
#   PGUSER    the superuser that standbys connect as; postgres by default
#   RUN_AS    the operating system's user of the servers; by default the owner of the data directory, or of the one above it

PGUSER=${PGUSER:-postgres}
PGDATABASE=${PGDATABASE:-postgres}
export PGUSER PGDATABASE
if [ -z "${PGBIN:-}" ]; then
    PGBIN=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
    PGBIN=${PGBIN:-$(pg_config --bindir)}
fi

say() { echo "$(basename "$0"): $*"; }
fail() { say "$*" >&2; exit 1; }

# is_local HOST
is_local() {
    case "$1" in
        '' | localhost | 127.* | ::1 | /*) return 0 ;;
    esac
    [ "$1" = "$(hostname)" ] || hostname -I 2>/dev/null | tr ' ' '\n' | grep -qxF -- "$1"
}

# on HOST DIRECTORY COMMAND...: runs the command on that host as the user of the servers.
on() {
    _host=$1 _directory=$2
    shift 2
    if ! is_local "$_host"; then
        _words=
        for _word in "$@"; do
            _words="$_words '$(printf %s "$_word" | sed "s/'/'\\\\''/g")'"
        done
        ssh -o BatchMode=yes -o ConnectTimeout=5 -- "${RUN_AS:-postgres}@$_host" "$_words"
        return
    fi
    [ -d "$_directory" ] || _directory=$(dirname "$_directory")
    _owner=${RUN_AS:-$(stat -c %U -- "$_directory")}
    if [ "$(id -un)" = "$_owner" ]; then
        (cd "$_directory" && "$@")
    else
        (cd "$_directory" && setpriv --reuid="$_owner" --regid="$(id -g "$_owner")" --init-groups -- "$@")
    fi
}

# sql HOST PORT STATEMENT: as the superuser; the first value.
sql() {
    "$PGBIN/psql" -X -At -q -v ON_ERROR_STOP=1 -h "$1" -p "$2" -c "$3"
}
