"""Django: migrations, the ORM, nested atomic blocks, iterators on server-side cursors, persistent connections."""

import threading
from urllib.parse import urlsplit

import django
from django.conf import settings

from common import DSN, TAG, equal, main, part

at = urlsplit(DSN)
# Each copy has a schema of its own, chosen at connect, as tenants do.
SCHEMA = f"s_{TAG}"


def database(**more):
    return {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": at.hostname,
        "PORT": at.port,
        "USER": at.username,
        "PASSWORD": at.password,
        "NAME": at.path[1:],
        "TIME_ZONE": "UTC",
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": True,
        **more,
        "OPTIONS": {"options": f"-c search_path={SCHEMA}", "application_name": TAG, **more.get("OPTIONS", {})},
    }


settings.configure(
    DATABASES={
        "default": database(),
        "bound": database(OPTIONS={"server_side_binding": True, "isolation_level": 2}),
    },
    INSTALLED_APPS=["library"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    TIME_ZONE="Asia/Tokyo",
    USE_TZ=True,
)
django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import IntegrityError, connection, connections, transaction  # noqa: E402
from django.db.models import Count, F, Sum  # noqa: E402
from library.models import Author, Book  # noqa: E402


@part("shared")
def migrations():
    with connection.cursor() as cur:
        cur.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        cur.execute(f"CREATE SCHEMA {SCHEMA}")
    call_command("migrate", verbosity=0)
    equal(Author.objects.get().name, "from the migration")
    call_command("migrate", "library", "0001", verbosity=0)
    call_command("migrate", verbosity=0)
    equal(Author.objects.count(), 1)
    connections.close_all()


@part("shared")
def orm():
    for alias in ("default", "bound"):
        for turn in range(5):
            author = Author.objects.using(alias).create(name=f"{TAG}-{alias}-{turn}", born="1900-01-02")
            Book.objects.using(alias).bulk_create(
                [Book(author=author, title=f"{turn}/{n}", pages=n, extra={"n": n}) for n in range(50)], batch_size=20
            )
            equal(author.books.filter(extra__n__gte=40).count(), 10)
            equal(author.books.aggregate(sum=Sum("pages"))["sum"], 1225)
            equal(author.books.filter(pages=1).update(pages=F("pages") + 1), 1)
            equal(author.books.get(title=f"{turn}/1").pages, 2)
        top = Author.objects.using(alias).annotate(n=Count("books")).filter(name__startswith=f"{TAG}-{alias}")
        equal({row.n for row in top}, {50})
        equal(len(Author.objects.using(alias).prefetch_related("books").filter(name__startswith=f"{TAG}-{alias}")), 5)


@part("shared")
def transactions_with_errors():
    for alias in ("default", "bound"):
        for turn in range(5):
            try:
                with transaction.atomic(alias):
                    Author.objects.using(alias).create(name="unique")
                    try:
                        with transaction.atomic(alias):
                            Author.objects.using(alias).create(name="unique")
                    except IntegrityError:
                        pass
                    equal(Author.objects.using(alias).filter(name="unique").count(), 1)
                    raise KeyError
            except KeyError:
                pass
            equal(Author.objects.using(alias).filter(name="unique").count(), 0)
            Author.objects.using(alias).get_or_create(name="once")
            Author.objects.using(alias).update_or_create(name="once", defaults={"born": "2000-01-01"})
        with transaction.atomic(alias):
            equal(Author.objects.using(alias).select_for_update().get(name="once").born.year, 2000)


@part("shared")
def iterators():
    with transaction.atomic():
        seen = [book.pages for book in Book.objects.order_by("pk").iterator(chunk_size=33)]
        equal(len(seen), 500)
    called = []
    with transaction.atomic():
        transaction.on_commit(lambda: called.append(Author.objects.filter(name="committed").count()))
        Author.objects.create(name="committed")
    equal(called, [1])


@part("pinned")
def iterators_outside_transactions():
    """In autocommit Django declares its cursor WITH HOLD."""
    with connection.cursor() as cur:
        cur.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
    call_command("migrate", verbosity=0)
    author, _ = Author.objects.get_or_create(name="held")
    Book.objects.bulk_create([Book(author=author, title=str(n)) for n in range(100)])
    for turn in range(3):
        seen = 0
        for book in Book.objects.filter(author=author).iterator(chunk_size=30):
            seen += 1
            if seen % 40 == 0:
                Author.objects.filter(pk=author.pk).update(born="1900-01-01")
        equal(seen, 100)
    connections.close_all()


@part("shared")
def threads():
    wrong = []

    def worker(number):
        try:
            for n in range(10):
                with connection.cursor() as cur:
                    cur.execute("SELECT %s, %s, current_setting('TimeZone')", [number * 100 + n, TAG])
                    equal(cur.fetchone(), (number * 100 + n, TAG, "UTC"))
        except Exception as error:
            wrong.append(error)
        finally:
            connections.close_all()

    workers = [threading.Thread(target=worker, args=(number,)) for number in range(3)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    equal(wrong, [])


@part("pinned")
def tidy_up():
    with connection.cursor() as cur:
        cur.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    connections.close_all()


main()
