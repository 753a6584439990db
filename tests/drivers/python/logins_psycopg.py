"""psycopg, with the libpq of its wheel: logs in by every method and mode of TLS. argv: HOST PORT ROOT_CERT. A line a way: name, tab,
ok or the error. The databases c_password, c_md5 and c_scram stand for methods.
"""

import sys

import psycopg

HOST, PORT, ROOT = sys.argv[1], int(sys.argv[2]), sys.argv[3]
METHODS = ("password", "md5", "scram")


def ways():
    libpq = psycopg.pq.version()

    def go(database, password="bench", **options):
        with psycopg.connect(host=HOST, port=PORT, dbname=database, user="bench", password=password, **options) as conn:
            return conn.execute("select 1").fetchone()[0]

    for method in METHODS:
        for mode in ("disable", "prefer", "require", "verify-ca", "verify-full"):
            yield f"{method} {mode}", lambda m=method, s=mode: go(f"c_{m}", sslmode=s, sslrootcert=ROOT)
        yield f"{method} wrong", lambda m=method: go(f"c_{m}", password="wrong", sslmode="require")
    for binding in ("disable", "prefer", "require"):
        yield f"scram binding {binding}", lambda b=binding: go("c_scram", sslmode="require", channel_binding=b)
    if libpq >= 170000:
        yield "scram direct", lambda: go("c_scram", sslmode="verify-full", sslrootcert=ROOT, sslnegotiation="direct",
                                         channel_binding="require")
    if libpq >= 160000:
        yield "require_auth", lambda: go("c_scram", sslmode="require", require_auth="scram-sha-256")


for way, run in ways():
    try:
        value = run()
        print(f"{way}\t{'ok' if value == 1 else value}")
    except Exception as error:  # each way is told by itself
        first = (str(error).strip().splitlines() or [""])[0]
        print(f"{way}\tERROR {type(error).__name__}: {first}")
