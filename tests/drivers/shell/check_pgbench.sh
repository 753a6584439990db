#!/bin/sh
# pgbench with its schema chosen at connect: every mode, with and without -C, pipelines, and sums that agree.
. "$(dirname "$0")/common.sh"
# Nothing here keeps a backend between transactions.
wants shared || exit 0

schema="s_$TAG"
export PGAPPNAME="$TAG"
$PSQL -q -c "DROP SCHEMA IF EXISTS $schema CASCADE" -c "CREATE SCHEMA $schema" 2>/dev/null
export PGOPTIONS="-c search_path=$schema"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pgbench -i -q -I dtgvp 2>/dev/null

run() {
  pgbench -n -c 4 -j 2 "$@" >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "pgbench $*"; }
  failed=$(sed -n 's/^number of failed transactions: \([0-9]*\).*/\1/p' "$work/out")
  same "failed transactions of pgbench $*" "${failed:-0}" 0
  if grep -q aborted "$work/out"; then cat "$work/out" >&2; fail "pgbench $*: a client was aborted"; fi
}

cat >"$work/pipeline" <<'SQL'
\set a random(1, 100000)
\startpipeline
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :a;
UPDATE pgbench_accounts SET abalance = abalance - 1 WHERE aid = :a;
END;
SELECT abalance FROM pgbench_accounts WHERE aid = :a;
\endpipeline
SQL
cat >"$work/several" <<'SQL'
\set a random(1, 100000)
SELECT abalance AS one FROM pgbench_accounts WHERE aid = :a \gset
SELECT 1 AS x \; SELECT :one + :a AS y \; SELECT 3 AS z \aset
\if :one = :one
SELECT :y - :a AS two \gset
\endif
SELECT 1 / (CASE WHEN :one = :two THEN 1 ELSE 0 END);
SQL

# Longer runs, and those without a schema of their own, are in tests/pgbench.rs.
history=0
for mode in simple extended prepared; do
  run -M $mode -t 15
  run -M $mode -t 2 -C
  run -M $mode -t 25 -S
  run -M $mode -t 2 -S -C
  history=$((history + 4 * (15 + 2)))
done
run -M extended -t 15 -f "$work/pipeline"
run -M prepared -t 15 -f "$work/pipeline"
run -M simple -t 15 -f "$work/several"

sum() { $PSQL -At -c "BEGIN" -c "SELECT coalesce(sum($2), 0) FROM pgbench_$1" -c "COMMIT" | sed -n 2p; }
same "tellers and branches" "$(sum tellers tbalance)" "$(sum branches bbalance)"
same "accounts and history" "$(sum accounts abalance)" "$(sum history delta)"
same "rows of the history" "$($PSQL -At -c BEGIN -c 'SELECT count(*) FROM pgbench_history' -c COMMIT | sed -n 2p)" $history
$PSQL -q -c "DROP SCHEMA $schema CASCADE" 2>/dev/null
echo "ok $TAG"
