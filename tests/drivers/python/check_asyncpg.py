"""asyncpg: Flush instead of Sync, the statement cache, executemany, cursors, COPY, listeners, cancel by time-out."""

import asyncio
import datetime
import io

import asyncpg

from common import DSN, SHOWS, TAG, equal, main_async, part

TABLE = f"t_{TAG}"


async def connect(**more):
    return await asyncpg.connect(DSN, server_settings={"application_name": TAG, "work_mem": "5MB"}, **more)


@part("shared")
async def schema():
    conn = await connect()
    await conn.execute(f"DROP TABLE IF EXISTS {TABLE}; CREATE TABLE {TABLE} (id int PRIMARY KEY, word text, at date)")
    await conn.executemany(
        f"INSERT INTO {TABLE} VALUES ($1, $2, $3)",
        [(n, f"{TAG}-{n}", datetime.date(2020, 1, 1)) for n in range(1000)],
    )
    equal(await conn.fetchval(f"SELECT count(*) FROM {TABLE}"), 1000)
    await conn.close()


@part("shared")
async def statement_cache():
    """Room for five texts: each further one closes another."""
    conn = await connect(statement_cache_size=5)
    for turn in range(5):
        for n in range(9):
            row = await conn.fetchrow(f"SELECT word, {n} AS n FROM {TABLE} WHERE id = $1", turn)
            equal(tuple(row), (f"{TAG}-{turn}", n))
    await conn.reload_schema_state()
    statement = await conn.prepare(f"SELECT id FROM {TABLE} WHERE word = $1 AND at = $2")
    equal([kind.name for kind in statement.get_parameters()], ["text", "date"])
    for n in range(20):
        async with conn.transaction():
            equal(await statement.fetchval(f"{TAG}-{n}", datetime.date(2020, 1, 1)), n)
    equal(await statement.fetchmany([(f"{TAG}-{n}", datetime.date(2020, 1, 1)) for n in range(3)]), [(0,), (1,), (2,)])
    await conn.close()


@part("shared")
async def own_types():
    conn = await connect()
    await conn.execute(f"CREATE TYPE mood_{TAG} AS ENUM ('sad', 'glad'); CREATE TYPE pair_{TAG} AS (a int, b text)")
    equal(await conn.fetchval(f"SELECT 'glad'::mood_{TAG}"), "glad")
    equal(tuple(await conn.fetchval(f"SELECT row(1, 'x')::pair_{TAG}")), (1, "x"))
    equal(await conn.fetchval(f"SELECT $1::mood_{TAG}[]", ["sad"]), ["sad"])
    await conn.execute(f"DROP TYPE mood_{TAG}; DROP TYPE pair_{TAG}")
    await conn.close()


@part("shared")
async def reads_its_writes():
    conn = await connect()
    await conn.execute("SET synchronous_commit = local")
    for n in range(2000, 2030):
        await conn.execute(f"INSERT INTO {TABLE} VALUES ($1, $2)", n, f"{TAG}+{n}")
        equal(await conn.fetchval(f"SELECT word FROM {TABLE} WHERE id = $1", n), f"{TAG}+{n}")
    await conn.execute("RESET synchronous_commit")
    equal(await conn.execute(f"DELETE FROM {TABLE} WHERE id >= 2000"), "DELETE 30")
    await conn.close()


@part("shared")
async def transactions_with_errors():
    conn = await connect()
    for n in range(10):
        outer = conn.transaction()
        await outer.start()
        await conn.execute(f"UPDATE {TABLE} SET word = 'x' WHERE id = $1", n)
        try:
            async with conn.transaction():
                await conn.execute(f"INSERT INTO {TABLE} VALUES ($1, 'y')", n)
            raise AssertionError("a duplicate key is accepted")
        except asyncpg.UniqueViolationError as error:
            equal(error.constraint_name, f"{TABLE}_pkey")
        equal(await conn.fetchval(f"SELECT word FROM {TABLE} WHERE id = $1", n), "x")
        await outer.rollback()
        equal(await conn.fetchval(f"SELECT word FROM {TABLE} WHERE id = $1", n), f"{TAG}-{n}")
        try:
            await conn.fetch("SELECT $1 FROM WHERE", 1)
            raise AssertionError("nonsense is accepted")
        except asyncpg.PostgresSyntaxError:
            pass
        try:
            await conn.executemany(f"INSERT INTO {TABLE} VALUES ($1, 'z')", [(3000,), (3001,), (1,), (3002,)])
            raise AssertionError("a duplicate key is accepted by executemany")
        except asyncpg.UniqueViolationError:
            equal(await conn.fetchval(f"SELECT count(*) FROM {TABLE} WHERE id >= 3000"), 0)
    for kind in ({"isolation": "serializable", "readonly": True, "deferrable": True}, {"readonly": True}):
        async with conn.transaction(**kind):
            equal(await conn.fetchval(f"SELECT count(*) FROM {TABLE}"), 1000)
    await conn.close()


@part("shared")
async def cursors():
    conn = await connect()
    async with conn.transaction():
        seen = [row["id"] async for row in conn.cursor(f"SELECT id FROM {TABLE} ORDER BY id", prefetch=37)]
        equal(seen, list(range(1000)))
        cursor = await conn.cursor(f"SELECT id FROM {TABLE} ORDER BY id")
        equal((await cursor.fetchrow())["id"], 0)
        equal(await cursor.forward(10), 10)
        equal([row["id"] for row in await cursor.fetch(3)], [11, 12, 13])
    await conn.close()


@part("shared")
async def copy_in_and_out():
    conn = await connect()
    rows = [(n, f"{TAG}~{n}") for n in range(5000, 8000)]
    equal(await conn.copy_records_to_table(TABLE, records=rows, columns=["id", "word"]), "COPY 3000")
    out = io.BytesIO()
    await conn.copy_from_query(f"SELECT id, word FROM {TABLE} WHERE id >= $1 ORDER BY id", 5000, output=out)
    equal(out.getvalue().decode() == "".join(f"{n}\t{word}\n" for n, word in rows), True, "COPY out")
    try:
        await conn.copy_records_to_table(TABLE, records=[(1, "again")], columns=["id", "word"])
        raise AssertionError("a duplicate key is accepted by COPY")
    except asyncpg.UniqueViolationError:
        pass
    try:
        await conn.copy_to_table(TABLE, source=io.BytesIO(b"not a number\n"), columns=["id"])
        raise AssertionError("a bad COPY is accepted")
    except asyncpg.DataError:
        pass
    equal(await conn.execute(f"DELETE FROM {TABLE} WHERE id >= 5000"), "DELETE 3000")
    await conn.close()


@part("shared")
async def cancel_by_timeout():
    conn = await connect(command_timeout=20)
    for _ in range(3):
        try:
            await conn.fetch("SELECT pg_sleep(15)", timeout=0.2)
            raise AssertionError("a time-out does not act")
        except asyncio.TimeoutError:
            pass
        equal(await conn.fetchval("SELECT $1::text", TAG), TAG)
    task = asyncio.create_task(conn.fetch("SELECT pg_sleep(15)"))
    await asyncio.sleep(0.1)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    equal(await conn.fetchval("SELECT $1::text", TAG), TAG)
    await conn.close()


@part("shared")
async def pool():
    """The pool resets each connection it gets back: unlocks, CLOSE ALL, UNLISTEN, RESET ALL."""
    async with asyncpg.create_pool(
        DSN, min_size=1, max_size=4, server_settings={"application_name": TAG, "TimeZone": "Asia/Tokyo"}
    ) as pool:

        async def worker(number):
            for n in range(10):
                async with pool.acquire() as conn:
                    equal(await conn.fetchval("SHOW TimeZone"), "Asia/Tokyo")
                    await conn.execute(f"SET my.word = 'w{number}'")
                    async with conn.transaction():
                        got = await conn.fetchrow("SELECT $1::int AS n, current_setting('my.word') AS w", n)
                        equal(tuple(got), (n, f"w{number}"))

        await asyncio.gather(*(worker(number) for number in range(8)))
        equal(await pool.fetchval("SELECT coalesce(current_setting('my.word', true), '')"), "")


@part("pinned")
async def listen():
    listener, speaker = await connect(), await connect()
    seen = asyncio.Queue()
    await listener.add_listener(f"ch_{TAG}", lambda conn, pid, channel, payload: seen.put_nowait(payload))
    for n in range(5):
        await speaker.execute("SELECT pg_notify($1, $2)", f"ch_{TAG}", str(n))
    equal([await asyncio.wait_for(seen.get(), 10) for _ in range(5)], list("01234"))
    equal(await listener.fetchval("SELECT $1::text", TAG), TAG)
    await listener.remove_listener(f"ch_{TAG}", lambda *_: None)
    await listener.reset()
    await listener.close()
    await speaker.close()


@part("pinned")
async def temporary_tables():
    conn = await connect()
    await conn.execute("CREATE TEMP TABLE mine (n int)")
    await conn.copy_records_to_table("mine", records=[(n,) for n in range(10)])
    for _ in range(5):
        equal(await conn.fetchval("SELECT sum(n) FROM mine"), 45)
    await conn.execute("DROP TABLE mine")
    await conn.close()


@part("shared")
async def tidy_up():
    conn = await connect()
    await conn.execute(f"DROP TABLE IF EXISTS {TABLE}")
    await conn.close()


@part("console")
async def console():
    conn = await connect()
    for name in SHOWS * 2:
        equal(len(await conn.fetch(f"SHOW {name}")) > 0, True, name)
    rows = await conn.fetch("SHOW LISTS")
    equal({type(row["items"]) for row in rows}, {int}, "types")
    for bad, error in (("SHOW nonsense", asyncpg.PostgresSyntaxError), ("RELOAD", asyncpg.InsufficientPrivilegeError)):
        for ask in (conn.fetch, conn.execute):
            try:
                await ask(bad)
                raise AssertionError(f"{bad} is accepted")
            except error:
                pass
    equal(len(await conn.fetch("SHOW VERSION")), 1)
    await conn.close()


main_async()
