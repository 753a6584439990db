"""SQLAlchemy 2 over psycopg 3, psycopg 2 and asyncpg: pools with pre-ping, the ORM, savepoints, streamed results.

A pool may read on another connection than it wrote on.
"""

import asyncio
import threading

from sqlalchemy import ForeignKey, String, create_engine, event, func, inspect, insert, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship, selectinload

from common import DSN, TAG, equal, main, part


class Base(DeclarativeBase):
    pass


class Author(Base):
    __tablename__ = f"author_{TAG}"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(80), unique=True)
    books: Mapped[list["Book"]] = relationship(back_populates="author", cascade="all, delete-orphan")


class Book(Base):
    __tablename__ = f"book_{TAG}"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    author_id: Mapped[int] = mapped_column(ForeignKey(f"author_{TAG}.id"))
    author: Mapped[Author] = relationship(back_populates="books")


def url(driver):
    return DSN.replace("postgresql://", f"postgresql+{driver}://", 1)


def engine(driver, **more):
    made = create_engine(url(driver), pool_pre_ping=True, pool_size=2, max_overflow=1, **more)

    @event.listens_for(made, "connect")
    def settings(dbapi_connection, _record):
        with dbapi_connection.cursor() as cur:
            cur.execute("SET my.word = 'configured'")
        dbapi_connection.commit()

    return made


@part("shared")
def schema():
    made = engine("psycopg")
    with made.begin() as conn:
        Base.metadata.drop_all(conn)
        Base.metadata.create_all(conn)
        equal(inspect(conn).has_table(f"book_{TAG}"), True)
        equal([c["name"] for c in inspect(conn).get_columns(f"book_{TAG}")], ["id", "title", "author_id"])
    made.dispose()


def orm(driver):
    made = engine(driver)
    for turn in range(8):
        name = f"{TAG}-{driver}-{turn}"
        with Session(made) as session:
            author = Author(name=name, books=[Book(title=f"{name}/{n}") for n in range(5)])
            session.add(author)
            session.flush()
            try:
                with session.begin_nested():
                    session.add(Author(name=name))
                    session.flush()
                raise AssertionError("a duplicate is accepted")
            except IntegrityError:
                pass
            with session.begin_nested():
                session.add(Book(title="nested", author=author))
            session.commit()
            loaded = session.scalars(
                select(Author).where(Author.name == name).options(selectinload(Author.books))
            ).one()
            equal(len(loaded.books), 6)
            equal(session.scalar(text("SHOW my.word")), "configured")
            session.delete(loaded)
            session.commit()
    with made.connect() as conn:
        conn.execute(insert(Author), [{"name": f"{TAG}-{driver}-many-{n}"} for n in range(250)])
        got = conn.execution_options(yield_per=30).scalars(
            select(Author.name).where(Author.name.like(f"{TAG}-{driver}-many-%")).order_by(Author.id)
        )
        equal(sum(1 for _ in got), 250)
        conn.rollback()
        equal(conn.scalar(select(func.count()).select_from(Author).where(Author.name.like("%-many-%"))), 0)
    made.dispose()


@part("shared")
def orm_over_psycopg():
    orm("psycopg")


@part("shared")
def orm_over_psycopg2():
    orm("psycopg2")


@part("shared")
def isolation_levels_and_autocommit():
    made = engine("psycopg")
    with made.connect().execution_options(isolation_level="SERIALIZABLE") as conn:
        equal(conn.scalar(text("SHOW transaction_isolation")), "serializable")
    with made.connect() as conn:
        equal(conn.scalar(text("SHOW transaction_isolation")), "read committed")
    with made.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        for n in range(10):
            equal(conn.scalar(text("SELECT :n + 1"), {"n": n}), n + 1)
        conn.execute(text("SET synchronous_commit = local"))
        for n in range(10):
            conn.execute(insert(Author), {"name": f"{TAG}-auto-{n}"})
            equal(conn.scalar(select(func.count()).select_from(Author).where(Author.name == f"{TAG}-auto-{n}")), 1)
        conn.execute(text("RESET synchronous_commit"))
        equal(conn.execute(text(f"DELETE FROM author_{TAG} WHERE name LIKE '%-auto-%'")).rowcount, 10)
    made.dispose()


@part("shared")
def pool_survives_a_lost_connection():
    """The pool's ping finds the connection that a DBA has ended, and the program notices nothing."""
    made = create_engine(url("psycopg2"), pool_pre_ping=True, pool_size=1)
    with made.connect() as conn:
        conn.execute(text("SELECT 1"))
        raw = conn.connection.driver_connection
        number = raw.fileno()
    import os, socket

    socket.socket(fileno=os.dup(number)).shutdown(socket.SHUT_RDWR)
    with made.connect() as conn:
        equal(conn.scalar(text("SELECT :tag"), {"tag": TAG}), TAG)
    made.dispose()


@part("shared")
def threads_share_a_pool():
    made, wrong = engine("psycopg"), []

    def worker(number):
        try:
            for n in range(15):
                with made.begin() as conn:
                    got = conn.execute(text("SELECT :a * 1000 + :b, :tag"), {"a": number, "b": n, "tag": TAG}).one()
                    equal(tuple(got), (number * 1000 + n, TAG))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(wrong, [])
    made.dispose()


@part("shared")
def over_asyncpg():
    async def worker(made, number):
        name = f"{TAG}-async-{number}"
        for turn in range(5):
            async with AsyncSession(made) as session:
                session.add(Author(name=f"{name}-{turn}", books=[Book(title="a"), Book(title="b")]))
                await session.flush()
                try:
                    async with session.begin_nested():
                        session.add(Author(name=f"{name}-{turn}"))
                        await session.flush()
                    raise AssertionError("a duplicate is accepted")
                except (IntegrityError, DBAPIError):
                    pass
                await session.commit()
                count = await session.scalar(
                    select(func.count()).select_from(Book).join(Author).where(Author.name == f"{name}-{turn}")
                )
                equal(count, 2)
        async with made.connect() as conn:
            stream = await conn.stream(text("SELECT generate_series(1, 300)"), execution_options={"yield_per": 40})
            equal(len([row async for row in stream]), 300)

    async def everybody():
        made = create_async_engine(url("asyncpg"), pool_pre_ping=True, pool_size=2, max_overflow=0)
        await asyncio.wait_for(asyncio.gather(*(worker(made, number) for number in range(4))), 40)
        await made.dispose()

    asyncio.run(everybody())


@part("shared")
def tidy_up():
    made = engine("psycopg")
    Base.metadata.drop_all(made)
    made.dispose()


main()
