"""psycopg, with the libpq of its wheel: logs in by every method and mode of TLS. argv: HOST PORT ROOT_CERT CERT KEY METHODS
SOCKETS. A line a way: name, tab, ok or the error. The databases c_trust, c_cert, c_peer, and one for each of METHODS (password,md5,...)
stand for methods; SOCKETS is the directory of the Unix socket.
"""

import sys

import psycopg

HOST, PORT, ROOT, CERT, KEY = sys.argv[1], int(sys.argv[2]), *sys.argv[3:6]
METHODS, SOCKETS = sys.argv[6].split(","), sys.argv[7]
# What libpq calls them: ldap and pam ask for the password as it is.
NAMES = {"trust": "none", "md5": "md5", "scram": "scram-sha-256"}


def ways():
    libpq = psycopg.pq.version()

    def go(database, password="bench", **options):
        options = {"host": HOST, "port": PORT, "dbname": database, "user": "bench", "password": password, **options}
        with psycopg.connect(**options) as conn:
            return conn.execute("select 1").fetchone()[0]

    modes = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
    for mode in modes:
        yield f"trust {mode}", lambda s=mode: go("c_trust", password="wrong", sslmode=s, sslrootcert=ROOT)
    for mode in ("prefer", "require", "verify-ca", "verify-full"):
        yield f"cert {mode}", lambda s=mode: go("c_cert", sslmode=s, sslrootcert=ROOT, sslcert=CERT, sslkey=KEY)
    yield "cert of nobody refused", lambda: go("c_cert", sslmode="require")
    for method in METHODS:
        for mode in modes:
            yield f"{method} {mode}", lambda m=method, s=mode: go(f"c_{m}", sslmode=s, sslrootcert=ROOT)
        for version in ("TLSv1.2", "TLSv1.3"):
            yield f"{method} {version}", lambda m=method, v=version: go(
                f"c_{m}", sslmode="verify-full", sslrootcert=ROOT, ssl_min_protocol_version=v, ssl_max_protocol_version=v)
        yield f"{method} socket", lambda m=method: go(f"c_{m}", host=SOCKETS)
        yield f"{method} wrong", lambda m=method: go(f"c_{m}", password="wrong", sslmode="require")
    yield "trust socket", lambda: go("c_trust", host=SOCKETS, password="wrong")
    yield "peer socket", lambda: go("c_peer", host=SOCKETS, password="wrong")
    yield "peer as another refused", lambda: go("c_others", host=SOCKETS)
    yield "peer over tcp refused", lambda: go("c_peer", sslmode="require")
    for binding in ("disable", "prefer", "require"):
        yield f"scram binding {binding}", lambda b=binding: go("c_scram", sslmode="require", channel_binding=b)
    if libpq >= 170000:
        yield "scram direct", lambda: go("c_scram", sslmode="verify-full", sslrootcert=ROOT, sslnegotiation="direct",
                                         channel_binding="require")
        yield "cert direct", lambda: go("c_cert", sslmode="verify-full", sslrootcert=ROOT, sslnegotiation="direct",
                                        sslcert=CERT, sslkey=KEY)
    if libpq >= 160000:
        for method in ("trust", *METHODS):
            name = NAMES.get(method, "password")
            yield f"{method} require_auth", lambda m=method, n=name: go(f"c_{m}", sslmode="require", require_auth=n)
            yield f"{method} require_auth refused", lambda m=method, n=name: go(f"c_{m}", require_auth=f"!{n}")
    if libpq >= 180000:
        for method in ("trust", *METHODS):
            for version in ("3.0", "3.2", "latest"):
                yield f"{method} protocol {version}", lambda m=method, v=version: go(f"c_{m}", max_protocol_version=v)
            yield f"{method} at least 3.2", lambda m=method: go(f"c_{m}", min_protocol_version="3.2",
                                                                max_protocol_version="3.2")


for way, run in ways():
    try:
        value = run()
        print(f"{way}\t{'ok' if value == 1 else value}")
    except Exception as error:  # each way is told by itself
        first = (str(error).strip().splitlines() or [""])[0]
        print(f"{way}\tERROR {type(error).__name__}: {first}")
