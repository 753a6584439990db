"""What the Python programs share: where to connect, which parts to run, and how to say what went wrong.

DSN is where to connect. TAG is a word of this copy's own: names of tables and channels, and part of what is written,
so that an answer meant for another copy is seen. PARTS is `shared`, `pinned`, `all` (of these two) or `console`: many
copies may do the shared parts at once on very few backends; a pinned part keeps a backend between transactions, and
one copy does it at a time; for `console` DSN leads to the admin database, as a user who may only look.
"""

import asyncio
import os
import sys
import time
import traceback

DSN = os.environ["DSN"]
TAG = os.environ["TAG"]
PARTS = os.environ.get("PARTS", "all")

# What those who look ask the console for; each answers with rows.
SHOWS = ["POOLS", "CLIENTS", "SERVERS", "DATABASES", "USERS", "LISTS", "CONFIG", "VERSION", "STATE", "POOL_NODES"]

_parts = []


def part(kind):
    """Registers a function as a part; it is run in the order of the file."""
    assert kind in ("shared", "pinned", "console")

    def register(function):
        _parts.append((kind, function))
        return function

    return register


def equal(got, wanted, what=""):
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r} instead of {wanted!r}")


def _chosen():
    kinds = ("shared", "pinned") if PARTS == "all" else (PARTS,)
    return [function for kind, function in _parts if kind in kinds]


def _failed(function, began):
    traceback.print_exc()
    print(f"FAILED {TAG}: {function.__name__} after {time.monotonic() - began:.1f} s", file=sys.stderr)
    sys.exit(1)


def main():
    """Runs the chosen parts; the first that fails ends the program with exit code 1."""
    for function in _chosen():
        began = time.monotonic()
        try:
            function()
        except Exception:
            _failed(function, began)
    print(f"ok {TAG}: {len(_chosen())} parts")


def main_async():
    """As main(), for coroutines, in one event loop."""

    async def everything():
        for function in _chosen():
            began = time.monotonic()
            try:
                await asyncio.wait_for(function(), 30)
            except Exception:
                _failed(function, began)

    asyncio.run(everything())
    print(f"ok {TAG}: {len(_chosen())} parts")
