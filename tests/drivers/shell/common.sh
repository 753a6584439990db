# What the shell programs share; see ../python/common.py for TAG and PARTS. The PG* variables say where to connect.
# shellcheck shell=sh
set -eu

PSQL="psql -X -v ON_ERROR_STOP=1"

# wants KIND: whether parts of that kind are to be done.
wants() { [ "$PARTS" = all ] || [ "$PARTS" = "$1" ]; }

fail() {
  echo "FAILED $TAG: $*" >&2
  exit 1
}

# same WHAT GOT WANTED
same() { [ "$2" = "$3" ] || fail "$1: got '$2' instead of '$3'"; }
