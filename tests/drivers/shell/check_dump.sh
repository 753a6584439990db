#!/bin/sh
# pg_dump | psql, and pg_dump -Fc / -Fd -j2 with pg_restore -j4: what is restored dumps as what was there.
. "$(dirname "$0")/common.sh"
# Nothing here keeps a backend between transactions.
wants shared || exit 0

schema="s_$TAG"
export PGAPPNAME="$TAG"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

$PSQL -q <<SQL 2>/dev/null
DROP SCHEMA IF EXISTS $schema CASCADE;
CREATE SCHEMA $schema;
SET search_path = $schema;
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TABLE author (id serial PRIMARY KEY, name text NOT NULL UNIQUE, mood mood DEFAULT 'glad');
CREATE TABLE book (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, author int NOT NULL REFERENCES author, title text, bytes bytea,
  doc jsonb, at timestamptz DEFAULT '2020-01-01', CHECK (title <> ''));
CREATE TABLE sale (day date, amount numeric) PARTITION BY RANGE (day);
CREATE TABLE sale_2020 PARTITION OF sale FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
CREATE TABLE sale_2021 PARTITION OF sale FOR VALUES FROM ('2021-01-01') TO ('2022-01-01');
CREATE INDEX ON book USING gin (doc);
CREATE VIEW many AS SELECT author, count(*) AS n FROM book GROUP BY author;
CREATE MATERIALIZED VIEW totals AS SELECT day, sum(amount) AS sum FROM sale GROUP BY day;
CREATE FUNCTION twice(n int) RETURNS int LANGUAGE sql AS 'SELECT n * 2';
CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.title := NEW.title || ''!''; RETURN NEW; END';
INSERT INTO author (name) SELECT 'it''s ' || n || E' \\\\ \t tab' FROM generate_series(1, 200) n;
INSERT INTO book (author, title, bytes, doc)
  SELECT 1 + n % 200, 'title ' || n, decode(md5(n::text), 'hex'), jsonb_build_object('n', n) FROM generate_series(1, 4000) n;
CREATE TRIGGER stamped BEFORE INSERT ON book FOR EACH ROW EXECUTE FUNCTION stamp();
INSERT INTO sale SELECT date '2020-01-01' + n % 700, n FROM generate_series(1, 3000) n;
REFRESH MATERIALIZED VIEW totals;
SQL

dump() { pg_dump -n "$schema" "$@"; }
dump >"$work/first.sql"
[ "$(grep -c '^COPY' "$work/first.sql")" -ge 4 ] || fail "the dump is too short"

again() {
  dump >"$work/again.sql"
  # Newer releases begin and end a dump with a random word.
  grep -v restrict "$work/first.sql" >"$work/a"
  grep -v restrict "$work/again.sql" >"$work/b"
  same "$1: restored rows" "$($PSQL -At -c "SELECT count(*), count(DISTINCT author) FROM $schema.book")" "4000|200"
  cmp -s "$work/a" "$work/b" || { diff "$work/a" "$work/b" | head -20 >&2; fail "$1: another dump than before"; }
}

drop() { $PSQL -q -c "DROP SCHEMA $schema CASCADE" 2>/dev/null; }

drop
dump_text="$work/first.sql"
$PSQL -q -o /dev/null <"$dump_text"
again "pg_dump | psql"

dump --inserts --rows-per-insert=100 >"$work/inserts.sql"
drop
$PSQL -q -1 -o /dev/null -f "$work/inserts.sql"
again "pg_dump --inserts | psql -1"

dump -Fc -f "$work/custom"
drop
pg_restore -d "$PGDATABASE" -j 4 -e "$work/custom"
again "pg_dump -Fc, pg_restore -j4"

# Its workers share a snapshot that the leader exports: they have to be on one node.
dump -Fd -j 2 -f "$work/directory"
pg_restore -d "$PGDATABASE" -j 4 -e --clean "$work/directory"
again "pg_dump -Fd -j2, pg_restore -j4 --clean"

drop
same "a dump of nothing" "$(pg_dump -t "$schema.author" 2>&1 | grep -c 'no matching tables')" 1
echo "ok $TAG"
