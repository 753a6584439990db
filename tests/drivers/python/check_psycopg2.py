"""psycopg 2: lazy BEGIN, server-side cursors with and without hold, COPY, LISTEN, cancel."""

import io
import select
import threading
import time

import psycopg2
import psycopg2.errors
import psycopg2.extensions as ext
import psycopg2.extras

from common import DSN, SHOWS, TAG, equal, main, part

TABLE = f"t_{TAG}"


def connect(**more):
    return psycopg2.connect(DSN, application_name=TAG, **more)


@part("shared")
def schema():
    with connect() as conn, conn.cursor() as cur:
        cur.execute(f"DROP TABLE IF EXISTS {TABLE}")
        cur.execute(f"CREATE TABLE {TABLE} (id int PRIMARY KEY, word text NOT NULL, at timestamptz DEFAULT now())")
        psycopg2.extras.execute_values(
            cur, f"INSERT INTO {TABLE} (id, word) VALUES %s", [(n, f"{TAG}-{n}") for n in range(500)], page_size=100
        )
        psycopg2.extras.execute_batch(
            cur, f"UPDATE {TABLE} SET word = %s WHERE id = %s", [(f"{TAG}/{n}", n) for n in range(100)], page_size=20
        )


@part("shared")
def autocommit_reads_its_writes():
    conn = connect()
    conn.autocommit = True
    with conn.cursor() as cur:
        cur.execute("SET synchronous_commit = local")
        for n in range(1000, 1030):
            cur.execute(f"INSERT INTO {TABLE} (id, word) VALUES (%s, %s)", (n, f"{TAG}+{n}"))
            cur.execute(f"SELECT word FROM {TABLE} WHERE id = %s", (n,))
            equal(cur.fetchone(), (f"{TAG}+{n}",))
        cur.execute("RESET synchronous_commit")
        cur.execute(f"DELETE FROM {TABLE} WHERE id >= 1000 RETURNING id")
        equal(len(cur.fetchall()), 30)
        cur.execute(f"SELECT count(*) FROM {TABLE}")
        equal(cur.fetchone(), (500,))
    conn.close()


@part("shared")
def statements_prepared_by_sql():
    conn = connect()
    with conn.cursor() as cur:
        cur.execute(f"PREPARE word (int) AS SELECT word || $1 FROM {TABLE} WHERE id = $1")
    conn.commit()
    for n in range(60):
        with conn.cursor() as cur:
            cur.execute("EXECUTE word (%s)", (n,))
            equal(cur.fetchone(), (f"{TAG}/{n}{n}",))
        conn.commit() if n % 2 else conn.rollback()
    with conn.cursor() as cur:
        cur.execute("DEALLOCATE word")
    conn.commit()
    try:
        with conn.cursor() as cur:
            cur.execute("EXECUTE gone_%s (1)" % TAG)
        raise AssertionError("a statement that nobody prepared is executed")
    except psycopg2.errors.InvalidSqlStatementName:
        conn.rollback()
    conn.close()


@part("shared")
def transactions_with_errors():
    conn = connect()
    for n in range(10):
        try:
            with conn, conn.cursor() as cur:
                cur.execute(f"INSERT INTO {TABLE} (id, word) VALUES (%s, 'x')", (2000 + n,))
                cur.execute(f"INSERT INTO {TABLE} (id, word) VALUES (%s, 'x')", (n,))
            raise AssertionError("a duplicate key is accepted")
        except psycopg2.errors.UniqueViolation as error:
            equal(error.diag.constraint_name, f"{TABLE}_pkey")
        equal(conn.get_transaction_status(), ext.TRANSACTION_STATUS_IDLE)
        with conn, conn.cursor() as cur:
            cur.execute("SAVEPOINT a")
            try:
                cur.execute("SELECT 1/0")
            except psycopg2.errors.DivisionByZero:
                equal(conn.get_transaction_status(), ext.TRANSACTION_STATUS_INERROR)
            cur.execute("ROLLBACK TO SAVEPOINT a")
            cur.execute(f"SELECT count(*) FROM {TABLE} WHERE id >= 2000")
            equal(cur.fetchone(), (0,))
    conn.close()


@part("shared")
def serializable_and_read_only():
    conn = connect()
    conn.set_session(isolation_level="SERIALIZABLE")
    with conn, conn.cursor() as cur:
        cur.execute("SHOW transaction_isolation")
        equal(cur.fetchone(), ("serializable",))
    conn.set_session(isolation_level="REPEATABLE READ", readonly=True)
    with conn, conn.cursor() as cur:
        cur.execute(f"SELECT count(*) FROM {TABLE}")
        equal(cur.fetchone(), (500,))
        try:
            cur.execute(f"DELETE FROM {TABLE}")
            raise AssertionError("a read-only transaction writes")
        except psycopg2.errors.ReadOnlySqlTransaction:
            pass
    conn.close()


@part("shared")
def server_side_cursors():
    conn = connect()
    for _ in range(3):
        with conn, conn.cursor(f"c_{TAG}") as cur:
            cur.itersize = 37
            cur.execute(f"SELECT id FROM {TABLE} ORDER BY id")
            equal([row[0] for row in cur], list(range(500)))
    with conn, conn.cursor("scrolls", scrollable=True) as cur:
        cur.execute(f"SELECT id FROM {TABLE} ORDER BY id")
        cur.scroll(499, mode="absolute")
        equal(cur.fetchone(), (499,))
        cur.scroll(-10)
        equal(cur.fetchone(), (490,))
    conn.close()


@part("shared")
def copy_in_and_out():
    conn = connect()
    text = "".join(f"{n}\t{TAG}~{n}\n" for n in range(5000, 8000))
    with conn, conn.cursor() as cur:
        cur.copy_expert(f"COPY {TABLE} (id, word) FROM STDIN", io.StringIO(text))
        equal(cur.rowcount, 3000)
        out = io.StringIO()
        cur.copy_expert(f"COPY (SELECT id, word FROM {TABLE} WHERE id >= 5000 ORDER BY id) TO STDOUT", out)
        equal(out.getvalue() == text, True, "what was copied out is what was copied in")
    try:
        with conn, conn.cursor() as cur:
            cur.copy_expert(f"COPY {TABLE} (id, word) FROM STDIN", io.StringIO("9000\tx\nnonsense\n"))
        raise AssertionError("a bad COPY is accepted")
    except psycopg2.errors.BadCopyFileFormat:
        pass
    except psycopg2.errors.InvalidTextRepresentation:
        pass
    with conn, conn.cursor() as cur:
        cur.execute(f"DELETE FROM {TABLE} WHERE id >= 5000")
        equal(cur.rowcount, 3000)
    conn.close()


@part("shared")
def settings():
    conn = connect(options="-c statement_timeout=25s -c search_path=pg_catalog,public")
    conn.set_client_encoding("LATIN1")
    with conn, conn.cursor() as cur:
        cur.execute("SET TIME ZONE 'Asia/Tokyo'")
    for _ in range(20):
        with conn, conn.cursor() as cur:
            cur.execute(
                "SELECT current_setting('TimeZone'), current_setting('statement_timeout'),"
                " current_setting('search_path'), current_setting('client_encoding'), 'é'"
            )
            equal(cur.fetchone(), ("Asia/Tokyo", "25s", "pg_catalog,public", "LATIN1", "é"))
    with conn, conn.cursor() as cur:
        cur.execute("SET LOCAL statement_timeout = 50")
        try:
            cur.execute("SELECT pg_sleep(10)")
            raise AssertionError("statement_timeout does not act")
        except psycopg2.errors.QueryCanceled:
            pass
    conn.reset()
    with conn, conn.cursor() as cur:
        cur.execute("SHOW TimeZone")
        equal(cur.fetchone() != ("Asia/Tokyo",), True, "reset() resets")
    conn.close()


@part("shared")
def large_objects():
    conn = connect()
    big = lambda n: bytes([n]) * 100_000
    with conn:
        lob = conn.lobject(0, "wb")
        oid = lob.oid
        lob.write(big(7))
        lob.close()
    with conn:
        equal(conn.lobject(oid, "rb").read() == big(7), True, "the large object")
    with conn:
        conn.lobject(oid).unlink()
    conn.close()


@part("shared")
def cancel():
    conn = connect()
    for _ in range(3):
        timer = threading.Timer(0.15, conn.cancel)
        timer.start()
        began = time.monotonic()
        try:
            with conn, conn.cursor() as cur:
                cur.execute("SELECT pg_sleep(20)")
            raise AssertionError("a cancel does not arrive")
        except psycopg2.errors.QueryCanceled:
            equal(time.monotonic() - began < 15, True, "the cancel is in time")
        timer.join()
        with conn, conn.cursor() as cur:
            cur.execute("SELECT %s", (TAG,))
            equal(cur.fetchone(), (TAG,))
    conn.close()


@part("pinned")
def cursor_with_hold():
    conn = connect()
    cur = conn.cursor(f"h_{TAG}", withhold=True)
    cur.execute("SELECT generate_series(1, 100)")
    equal(cur.fetchmany(10)[-1], (10,))
    conn.commit()
    with conn.cursor() as other:
        other.execute("SELECT %s", (TAG,))
        equal(other.fetchone(), (TAG,))
    conn.commit()
    equal(cur.fetchmany(10)[-1], (20,))
    conn.rollback()
    equal(cur.fetchmany(10)[-1], (30,))
    cur.close()
    conn.commit()
    conn.close()


@part("pinned")
def listen():
    listener, speaker = connect(), connect()
    listener.autocommit = speaker.autocommit = True
    listener.cursor().execute(f"LISTEN ch_{TAG}")
    for n in range(5):
        speaker.cursor().execute(f"NOTIFY ch_{TAG}, '{n}'")
    seen = []
    while len(seen) < 5:
        equal(bool(select.select([listener], [], [], 10)[0]), True, "a notification arrives")
        listener.poll()
        seen += [notify.payload for notify in listener.notifies]
        listener.notifies.clear()
    equal(seen, list("01234"))
    listener.cursor().execute("UNLISTEN *")
    listener.close()
    speaker.close()


@part("pinned")
def temporary_tables_and_locks():
    conn = connect()
    conn.autocommit = True
    with conn.cursor() as cur:
        cur.execute("CREATE TEMP TABLE mine AS SELECT generate_series(1, 10) AS n")
        cur.execute("SELECT pg_advisory_lock(4711)")
        for _ in range(10):
            cur.execute("SELECT sum(n) FROM mine")
            equal(cur.fetchone(), (55,))
        cur.execute("SELECT pg_advisory_unlock(4711)")
        equal(cur.fetchone(), (True,))
        cur.execute("DROP TABLE mine")
    conn.close()


@part("shared")
def tidy_up():
    with connect() as conn, conn.cursor() as cur:
        cur.execute(f"DROP TABLE IF EXISTS {TABLE}")


@part("console")
def console():
    for autocommit in (True, False):
        conn = connect()
        conn.autocommit = autocommit
        with conn.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cur:
            for name in SHOWS:
                cur.execute(f"SHOW {name}")
                equal(len(cur.fetchall()) > 0, True, name)
            for bad, error in (("SHOW nonsense", psycopg2.errors.SyntaxError), ("RELOAD", psycopg2.errors.InsufficientPrivilege)):
                try:
                    cur.execute(bad)
                    raise AssertionError(f"{bad} is accepted")
                except error:
                    conn.rollback()
        conn.commit()
        conn.close()


main()
