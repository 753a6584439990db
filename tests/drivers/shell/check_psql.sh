#!/bin/sh
# psql: its describing commands, \copy, \gexec, \gset, \watch, FETCH_COUNT, ON_ERROR_ROLLBACK, large objects, \c.
# What it prints is the same directly and through a pooler: the test compares it.
. "$(dirname "$0")/common.sh"

schema="s_$TAG"
export PGOPTIONS="-c search_path=$schema -c TimeZone=Asia/Tokyo" PGAPPNAME="$TAG"

shared() {
  $PSQL -q <<SQL
DROP SCHEMA IF EXISTS $schema CASCADE;
CREATE SCHEMA $schema;
CREATE TABLE parent (id int PRIMARY KEY, name text NOT NULL DEFAULT 'x', at timestamptz);
COMMENT ON TABLE parent IS 'the parent';
COMMENT ON COLUMN parent.name IS 'its name';
CREATE TABLE child (id serial PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE, price numeric(10, 2) CHECK (price > 0));
CREATE INDEX child_price ON child (price) WHERE price > 5;
CREATE TABLE parts (id int, day date) PARTITION BY RANGE (day);
CREATE TABLE parts_2020 PARTITION OF parts FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
CREATE VIEW named AS SELECT id, name FROM parent;
CREATE MATERIALIZED VIEW counted AS SELECT count(*) FROM parent;
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE SEQUENCE steps;
CREATE FUNCTION twice(n int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT n * 2';
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE NOTICE ''inserted %'', NEW.id; RETURN NEW; END';
CREATE TRIGGER noted AFTER INSERT ON child FOR EACH ROW EXECUTE FUNCTION note();
SQL
  for command in '\d' '\d+' '\d+ parent' '\d+ child' '\d+ parts' '\d+ named' '\d+ counted' '\d steps' '\dt+ *arent' '\di' '\ds' '\dv+' \
    '\dm' '\df+ twice' '\sf twice' '\sv named' '\dT+' '\dD' "\\dn $schema" '\dp' '\dP+' '\dy' '\dx' '\du' '\drds' '\dconfig work_mem' \
    '\l template0' '\dc' '\dL' '\encoding' '\dF' '\dO'; do
    echo "== $command"
    $PSQL -c "$command"
  done

  echo "== copy, gset, gexec, gdesc, crosstabview"
  $PSQL <<SQL
\copy parent (id, name) FROM STDIN
1	one
2	two
3	three
\.
\copy parent (id, name) FROM PROGRAM 'seq -f "%.0f,n%.0f" 10 400 | sed "s/,n/,n/"' CSV
\copy (SELECT id, name FROM parent WHERE id < 12 ORDER BY id) TO STDOUT CSV HEADER
SELECT count(*) AS rows, max(id) AS most FROM parent \gset
\echo :rows :most
SELECT format('INSERT INTO child (parent, price) VALUES (%s, %s)', id, id + 1) FROM parent WHERE id < 4 ORDER BY id \gexec
SELECT id, price FROM child \gdesc
SELECT parent, price, 1 FROM child ORDER BY 1, 2 \crosstabview
SELECT 1 AS a \; SELECT 2 AS b;
\set FETCH_COUNT 50
SELECT id FROM parent ORDER BY id;
\unset FETCH_COUNT
\x on
SELECT * FROM parent WHERE id = 2;
\x off
SHOW TimeZone;
SET TimeZone = 'UTC';
SELECT timestamptz '2020-01-01 00:00:00+00';
\c
SHOW TimeZone;
SQL

  echo "== errors"
  psql -X 2>&1 <<SQL
\set ON_ERROR_ROLLBACK on
BEGIN;
INSERT INTO parent VALUES (1000, 'kept');
INSERT INTO parent VALUES (1, 'again');
SELECT 1/0;
INSERT INTO parent VALUES (1001, 'kept');
COMMIT;
SELECT id FROM parent WHERE id >= 1000 ORDER BY id;
\set AUTOCOMMIT off
DELETE FROM parent WHERE id >= 1000;
ROLLBACK;
SELECT count(*) FROM parent WHERE id >= 1000;
COMMIT;
\set AUTOCOMMIT on
SELECT nope;
\errverbose
COPY parent FROM STDIN;
no number	x
\.
SELECT 'still here';
DO 'BEGIN RAISE WARNING ''careful''; END';
SQL

  echo "== watch ends with the first error"
  $PSQL -c "SELECT nextval('steps') AS step, 1 / (4 - currval('steps'))" -c '\watch 0.05' 2>&1 | grep -v Asia | grep -v '^.*every 0' || true

  echo "== one transaction from a file"
  printf 'INSERT INTO parent VALUES (2000);\nSELECT 1/0;\n' | $PSQL -1 -q -f - 2>&1 | sed 's/^psql:[^ ]*//' || true
  $PSQL -At -c 'SELECT count(*) FROM parent WHERE id = 2000'

  echo "== large objects"
  echo "some bytes" >"$PWD/lo_$TAG"
  $PSQL -q <<SQL
\lo_import '$PWD/lo_$TAG' 'mine'
\lo_export :LASTOID '$PWD/lo_out_$TAG'
\lo_unlink :LASTOID
SQL
  cat "$PWD/lo_out_$TAG"
  rm -f "$PWD/lo_$TAG" "$PWD/lo_out_$TAG"

  echo "== cancelled by a time-out, and by Ctrl-C"
  $PSQL -c "SET statement_timeout = 50" -c "SELECT pg_sleep(20)" 2>&1 || true
  # As Ctrl-C does, psql sends a cancel and ends with the failed command.
  began=$(date +%s)
  # timeout sends the signal to the process and to its group: psql says once or twice that it has sent the cancel.
  timeout -k 15 -s INT 1 $PSQL -c "SELECT pg_sleep(20)" 2>&1 | uniq || true
  [ $(($(date +%s) - began)) -lt 12 ] || fail "Ctrl-C does not cancel"

  $PSQL -q -c "DROP SCHEMA $schema CASCADE" 2>/dev/null
}

pinned() {
  echo "== temporary table, listen, held cursor"
  $PSQL <<SQL | sed 's/ from server process with PID [0-9]*//'
CREATE TEMP TABLE mine AS SELECT generate_series(1, 5) AS n;
SELECT sum(n) FROM mine;
LISTEN ch;
NOTIFY ch, 'heard';
SELECT 1;
BEGIN;
DECLARE held CURSOR WITH HOLD FOR SELECT n FROM mine ORDER BY n;
COMMIT;
FETCH 2 FROM held;
FETCH 2 FROM held;
CLOSE held;
PREPARE p (int) AS SELECT \$1 + 1;
EXECUTE p (41);
DEALLOCATE p;
DISCARD ALL;
SELECT count(*) FROM pg_class WHERE relname = 'mine' AND relpersistence = 't';
SQL
}

if wants shared; then shared; fi
if wants pinned; then pinned; fi
