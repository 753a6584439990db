"""psycopg 3: automatic prepared statements, pipeline mode, server-side and client-side cursors, COPY, async, cancel."""

import asyncio
import contextlib
import threading
import time

import psycopg
from psycopg import errors, sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from common import DSN, SHOWS, TAG, equal, main, part

TABLE = f"t_{TAG}"


def connect(**more):
    return psycopg.connect(DSN, application_name=TAG, **more)


@part("shared")
def schema():
    with connect() as conn:
        conn.execute(f"DROP TABLE IF EXISTS {TABLE}")
        conn.execute(f"CREATE TABLE {TABLE} (id int PRIMARY KEY, word text NOT NULL, doc jsonb)")
        with conn.cursor() as cur:
            cur.executemany(
                f"INSERT INTO {TABLE} VALUES (%s, %s, %s)", [(n, f"{TAG}-{n}", Jsonb({"n": n})) for n in range(300)]
            )
            equal(cur.rowcount, 300)
            cur.executemany(f"SELECT word FROM {TABLE} WHERE id = %s", [(n,) for n in (1, 2, 3)], returning=True)
            words = []
            while True:
                words += cur.fetchall()
                if not cur.nextset():
                    break
            equal(words, [(f"{TAG}-{n}",) for n in (1, 2, 3)])


@part("shared")
def prepared_by_themselves():
    """A text is prepared at its fifth use; with room for four, each new one makes psycopg close another."""
    with connect(autocommit=True) as conn:
        conn.prepare_threshold = 2
        conn.prepared_max = 4
        for turn in range(8):
            for n in range(7):
                row = conn.execute(f"SELECT word, {n} FROM {TABLE} WHERE id = %s", (turn,)).fetchone()
                equal(row, (f"{TAG}-{turn}", n))
    with connect() as conn:
        for turn in range(30):
            row = conn.execute(f"SELECT doc FROM {TABLE} WHERE id = %s", (turn,), prepare=True, binary=turn % 2 == 0)
            equal(row.fetchone(), ({"n": turn},))
            conn.commit()
        conn.execute("DEALLOCATE ALL")
        conn.commit()
        equal(conn.execute("SELECT %s::text", (TAG,)).fetchone(), (TAG,))


@part("shared")
def autocommit_reads_its_writes():
    with connect(autocommit=True) as conn:
        conn.execute("SET synchronous_commit = local")
        for n in range(1000, 1025):
            conn.execute(f"INSERT INTO {TABLE} VALUES (%s, %s)", (n, f"{TAG}+{n}"))
            equal(conn.execute(f"SELECT word FROM {TABLE} WHERE id = %s", (n,)).fetchone(), (f"{TAG}+{n}",))
        conn.execute("RESET synchronous_commit")
        equal(conn.execute(f"DELETE FROM {TABLE} WHERE id >= 1000").rowcount, 25)


@part("shared")
def transactions_with_errors():
    with connect(autocommit=True) as conn:
        for n in range(10):
            try:
                with conn.transaction():
                    conn.execute(f"INSERT INTO {TABLE} VALUES (%s, 'x')", (2000 + n,))
                    with conn.transaction():
                        conn.execute(f"INSERT INTO {TABLE} VALUES (%s, 'y')", (3000 + n,))
                    try:
                        with conn.transaction():
                            conn.execute(f"INSERT INTO {TABLE} VALUES (%s, 'z')", (n,))
                        raise AssertionError("a duplicate key is accepted")
                    except errors.UniqueViolation as error:
                        equal(error.diag.constraint_name, f"{TABLE}_pkey")
                    count = conn.execute(f"SELECT count(*) FROM {TABLE} WHERE id >= 2000").fetchone()
                    equal(count, (2,))
                    raise psycopg.Rollback()
            finally:
                equal(conn.info.transaction_status.name, "IDLE")
        equal(conn.execute(f"SELECT count(*) FROM {TABLE}").fetchone(), (300,))


@part("shared")
def pipelines():
    with connect(autocommit=True) as conn:
        with conn.pipeline() as pipe:
            cursors = [
                conn.execute("SELECT %s::int, word FROM " + TABLE + " WHERE id = %s", (n * n, n)) for n in range(40)
            ]
            pipe.sync()
            with conn.transaction():
                conn.execute(f"UPDATE {TABLE} SET word = word || '!' WHERE id = 0")
                read = conn.execute(f"SELECT word FROM {TABLE} WHERE id = 0")
            equal(read.fetchone(), (f"{TAG}-0!",))
        equal([cur.fetchone() for cur in cursors], [(n * n, f"{TAG}-{n}") for n in range(40)])
        try:
            with conn.pipeline() as pipe:
                first = conn.execute("SELECT 'first'")
                pipe.sync()
                conn.execute("SELECT 1/%s", (0,))
                conn.execute(f"DELETE FROM {TABLE}")
                pipe.sync()
            raise AssertionError("no error in a pipeline")
        except errors.DivisionByZero:
            equal(first.fetchone(), ("first",))
        equal(conn.execute(f"SELECT count(*) FROM {TABLE}").fetchone(), (300,), "what follows an error is not run")
        with conn.pipeline():
            for n in range(30):
                got = conn.execute("SELECT %s::int, %s::text", (n, TAG), prepare=True).fetchone()
                equal(got, (n, TAG))
        equal(conn.execute("SELECT %s::text", (TAG,)).fetchone(), (TAG,))


@part("shared")
def server_side_cursors():
    with connect() as conn:
        for binary in (False, True):
            with conn.cursor(name=f"c_{TAG}", binary=binary) as cur:
                cur.itersize = 41
                cur.execute(f"SELECT id FROM {TABLE} WHERE id >= %s ORDER BY id", (10,))
                equal([row[0] for row in cur], list(range(10, 300)))
            conn.commit()
        with conn.cursor(name="scrolls", scrollable=True) as cur:
            cur.execute("SELECT generate_series(1, 100)")
            cur.scroll(50)
            equal(cur.fetchone(), (51,))
        conn.rollback()
        with psycopg.ClientCursor(conn) as cur:
            equal(cur.execute("SELECT %s, %s; SELECT 3", (1, "two")).fetchone(), (1, "two"))
            cur.nextset()
            equal(cur.fetchone(), (3,))
        with conn.cursor() as cur:
            equal([row[0] for row in cur.stream("SELECT generate_series(1, 200)")], list(range(1, 201)))


@part("shared")
def copy_in_and_out():
    rows = [(n, f"{TAG}~{n}") for n in range(5000, 7000)]
    with connect() as conn, conn.cursor() as cur:
        with cur.copy(f"COPY {TABLE} (id, word) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int4", "text"])
            for row in rows:
                copy.write_row(row)
        conn.commit()
        with cur.copy(f"COPY (SELECT id, word FROM {TABLE} WHERE id >= 5000 ORDER BY id) TO STDOUT") as copy:
            copy.set_types(["int4", "text"])
            equal(list(copy.rows()) == rows, True, "what was copied out is what was copied in")
        conn.commit()
        try:
            with cur.copy(f"COPY {TABLE} (id, word) FROM STDIN") as copy:
                copy.write_row((8000, "x"))
                raise KeyError("given up by the program")
        except KeyError:
            conn.rollback()
        try:
            with cur.copy("COPY (SELECT generate_series(1, 1000000)) TO STDOUT") as copy:
                equal(bytes(copy.read()), b"1\n")
                raise KeyError("given up by the program")
        except KeyError:
            conn.rollback()
        equal(cur.execute(f"DELETE FROM {TABLE} WHERE id >= 5000").rowcount, 2000)


@part("shared")
def settings():
    with connect(options="-c TimeZone=Asia/Tokyo -c work_mem=5MB", row_factory=dict_row) as conn:
        conn.execute("SELECT set_config('my.word', %s, false)", (TAG,))
        conn.commit()
        for n in range(20):
            row = conn.execute("SELECT current_setting('my.word') AS a, current_setting('work_mem') AS b").fetchone()
            equal(row, {"a": TAG, "b": "5MB"})
            equal(conn.info.timezone.key, "Asia/Tokyo")
            conn.execute("SET LOCAL work_mem = '6MB'")
            if n % 2:
                conn.execute(sql.SQL("SET my.word = {}").format("undone"))
            conn.rollback()


@part("shared")
def two_phase_is_refused_as_by_the_server():
    with contextlib.closing(connect()) as conn:
        conn.tpc_begin(conn.xid(1, TAG, "x"))
        conn.execute("SELECT 1")
        try:
            conn.tpc_prepare()
            raise AssertionError("max_prepared_transactions is 0")
        except psycopg.NotSupportedError:
            pass


@part("shared")
def cancel():
    with connect(autocommit=True) as conn:
        for how in (conn.cancel, conn.cancel_safe, conn.cancel_safe):
            timer = threading.Timer(0.15, how)
            timer.start()
            began = time.monotonic()
            try:
                conn.execute("SELECT pg_sleep(20)")
                raise AssertionError("a cancel does not arrive")
            except errors.QueryCanceled:
                equal(time.monotonic() - began < 15, True, "the cancel is in time")
            timer.join()
            equal(conn.execute("SELECT %s::text", (TAG,)).fetchone(), (TAG,))


@part("shared")
def asynchronous():
    async def worker(number):
        conn = await psycopg.AsyncConnection.connect(DSN, application_name=TAG)
        async with conn:
            for n in range(10):
                cur = await conn.execute("SELECT %s::int, %s::text", (number * 100 + n, TAG), prepare=True)
                equal(await cur.fetchone(), (number * 100 + n, TAG))
                await conn.commit()
            async with conn.cursor(name="c") as cur:
                await cur.execute("SELECT generate_series(1, 50)")
                equal(len(await cur.fetchall()), 50)
            await conn.rollback()
            task = asyncio.create_task(conn.execute("SELECT pg_sleep(20)"))
            await asyncio.sleep(0.1)
            task.cancel()
            try:
                await task
                raise AssertionError("a cancelled task goes on")
            except (asyncio.CancelledError, errors.QueryCanceled):
                await conn.rollback()
            cur = await conn.execute("SELECT %s::text", (TAG,))
            equal(await cur.fetchone(), (TAG,))

    async def everybody():
        await asyncio.wait_for(asyncio.gather(*(worker(number) for number in range(3))), 40)

    asyncio.run(everybody())


@part("pinned")
def listen():
    with connect(autocommit=True) as listener, connect(autocommit=True) as speaker:
        listener.execute(f"LISTEN ch_{TAG}")
        for n in range(5):
            speaker.execute("SELECT pg_notify(%s, %s)", (f"ch_{TAG}", str(n)))
        seen = [notify.payload for notify in listener.notifies(timeout=10, stop_after=5)]
        equal(seen, list("01234"))
        listener.execute("UNLISTEN *")


@part("pinned")
def cursor_with_hold_and_temporary_table():
    with connect(autocommit=True) as conn:
        with conn.cursor(name="held", withhold=True) as cur:
            cur.execute("SELECT generate_series(1, 100)")
            equal(cur.fetchmany(10)[-1], (10,))
            equal(conn.execute("SELECT %s::text", (TAG,)).fetchone(), (TAG,))
            equal(cur.fetchmany(10)[-1], (20,))
        conn.execute("CREATE TEMP TABLE mine (n int)")
        conn.execute("INSERT INTO mine VALUES (1), (2)")
        equal(conn.execute("SELECT sum(n) FROM mine").fetchone(), (3,))
        conn.execute("DROP TABLE mine")


@part("shared")
def tidy_up():
    with connect() as conn:
        conn.execute(f"DROP TABLE IF EXISTS {TABLE}")


@part("console")
def console():
    for factory in (psycopg.Cursor, psycopg.ClientCursor, psycopg.RawCursor):
        for autocommit in (True, False):
            with connect(autocommit=autocommit, cursor_factory=factory, row_factory=dict_row) as conn:
                for name in SHOWS * 2:
                    equal(len(conn.execute(f"SHOW {name}").fetchall()) > 0, True, name)
                if factory is not psycopg.ClientCursor:
                    rows = conn.execute("SHOW LISTS", binary=True, prepare=True).fetchall()
                    equal({type(row["items"]) for row in rows}, {int}, "types")
                for bad, error in (("SHOW nonsense", errors.SyntaxError), ("RELOAD", errors.InsufficientPrivilege)):
                    try:
                        conn.execute(bad)
                        raise AssertionError(f"{bad} is accepted")
                    except error:
                        conn.rollback()


main()
