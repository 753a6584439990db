#!/bin/sh
# postgres_fdw with the pooler as its foreign server. It sets search_path, TimeZone and others when it connects, opens
# a REPEATABLE READ transaction for each of ours, reads by cursors and writes by prepared statements.
. "$(dirname "$0")/common.sh"
# Nothing here keeps a backend between transactions.
wants shared || exit 0

schema="s_$TAG"
export PGAPPNAME="$TAG"
psql_as_other() { PGUSER=other PGPASSWORD=other $PSQL "$@"; }

$PSQL -q <<SQL 2>/dev/null
DROP SCHEMA IF EXISTS $schema CASCADE;
DROP SERVER IF EXISTS srv_$TAG CASCADE;
CREATE SCHEMA $schema;
CREATE TABLE $schema.there (id int PRIMARY KEY, word text, at timestamptz);
INSERT INTO $schema.there SELECT n, '$TAG-' || n, '2020-01-01' FROM generate_series(1, 500) n;
GRANT USAGE ON SCHEMA $schema TO other;
GRANT ALL ON $schema.there TO other;
CREATE SERVER srv_$TAG FOREIGN DATA WRAPPER postgres_fdw
  OPTIONS (host '$PGHOST', port '$PGPORT', dbname '$PGDATABASE', fetch_size '37', batch_size '20');
CREATE USER MAPPING FOR bench SERVER srv_$TAG OPTIONS (user 'other', password 'other');
CREATE FOREIGN TABLE $schema.here (id int, word text, at timestamptz)
  SERVER srv_$TAG OPTIONS (schema_name '$schema', table_name 'there');
SQL

value() { $PSQL -At -q -c "BEGIN; $1; COMMIT"; }
same "rows" "$(value "SELECT count(*), min(word) FROM $schema.here")" "500|$TAG-1"
for n in 1 2 3; do
  $PSQL -q <<SQL
BEGIN;
INSERT INTO $schema.here SELECT 1000 + n, '$TAG+' || n, now() FROM generate_series(1, 100) n;
UPDATE $schema.here SET word = word || '!' WHERE id > 1050 AND length(word) > random();
DELETE FROM $schema.here WHERE id = 1001;
SAVEPOINT a;
DELETE FROM $schema.here;
ROLLBACK TO a;
COMMIT;
BEGIN;
DELETE FROM $schema.here;
ROLLBACK;
SQL
  same "rows in round $n" "$(value "SELECT count(*) FROM $schema.here")" 599
  same "changed rows" "$(value "SELECT count(*) FROM $schema.here WHERE word LIKE '%!'")" 50
  same "a join of both" "$(value "SELECT count(*) FROM $schema.here h JOIN $schema.there t USING (id, word)")" 599
  error=$($PSQL -q -c "INSERT INTO $schema.here VALUES (1, 'again')" 2>&1 || true)
  case $error in *there_pkey*) ;; *) fail "no duplicate key: $error" ;; esac
  $PSQL -q -c "DELETE FROM $schema.here WHERE id >= 1000"
done
for n in 1 2 3; do
  same "without the other server" "$($PSQL -At -c "SELECT count(*) FROM $schema.there WHERE id <= 500")" 500
done
same "as other" "$(psql_as_other -At -c "SELECT count(*) FROM $schema.there WHERE id <= 500")" 500
$PSQL -q -c "DROP SCHEMA $schema CASCADE" -c "DROP SERVER srv_$TAG CASCADE" 2>/dev/null
echo "ok $TAG"
