"""asyncpg: as logins_psycopg.py."""

import asyncio
import ssl
import sys

import asyncpg

HOST, PORT, ROOT, CERT, KEY = sys.argv[1], int(sys.argv[2]), *sys.argv[3:6]
METHODS, SOCKETS = sys.argv[6].split(","), sys.argv[7]


def context(verify, own=False, version=None):
    made = ssl.create_default_context(cafile=ROOT)
    if version:
        made.minimum_version = made.maximum_version = version
    if own:
        made.load_cert_chain(CERT, KEY)
    made.check_hostname = verify
    made.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
    return made


def ways():
    def go(database, secure, password="bench", host=HOST):
        async def run():
            conn = await asyncpg.connect(host=host, port=PORT, database=database, user="bench", password=password,
                                         ssl=secure, timeout=10)
            try:
                return await conn.fetchval("select 1")
            finally:
                await conn.close()
        return asyncio.run(run())

    def go_direct(database, own=False):
        async def run():
            secure = context(True, own)
            secure.set_alpn_protocols(["postgresql"])
            conn = await asyncpg.connect(host=HOST, port=PORT, database=database, user="bench", password="bench",
                                         ssl=secure, direct_tls=True, timeout=10)
            try:
                return await conn.fetchval("select 1")
            finally:
                await conn.close()
        return asyncio.run(run())

    for name, secure in (("disable", False), ("require", context(False)), ("verify-full", context(True))):
        yield f"trust {name}", lambda s=secure: go("c_trust", s, "wrong")
    yield "cert require", lambda: go("c_cert", context(False, True))
    yield "cert verify-full", lambda: go("c_cert", context(True, True))
    yield "cert direct", lambda: go_direct("c_cert", True)
    yield "cert of nobody refused", lambda: go("c_cert", context(True))
    for method in METHODS:
        for name, secure in (("disable", False), ("require", context(False)), ("verify-full", context(True))):
            yield f"{method} {name}", lambda m=method, s=secure: go(f"c_{m}", s)
        yield f"{method} direct", lambda m=method: go_direct(f"c_{m}")
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            yield f"{method} {version.name}", lambda m=method, v=version: go(f"c_{m}", context(True, version=v))
        yield f"{method} socket", lambda m=method: go(f"c_{m}", False, host=SOCKETS)
        yield f"{method} wrong", lambda m=method: go(f"c_{m}", False, "wrong")
    yield "trust socket", lambda: go("c_trust", False, "wrong", SOCKETS)
    yield "peer socket", lambda: go("c_peer", False, "wrong", SOCKETS)
    yield "peer as another refused", lambda: go("c_others", False, host=SOCKETS)
    yield "peer over tcp refused", lambda: go("c_peer", context(True))


for way, run in ways():
    try:
        value = run()
        print(f"{way}\t{'ok' if value == 1 else value}")
    except Exception as error:  # each way is told by itself
        first = (str(error).strip().splitlines() or [""])[0]
        print(f"{way}\tERROR {type(error).__name__}: {first}")
