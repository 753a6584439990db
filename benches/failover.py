#!/usr/bin/env python3
"""How long nobody can write when the primary is killed: runs tests/outage.rs for many rounds and makes a table of it.

Each round kills the primary (SIGKILL, all its processes) under 50 writers, in `failover_mode: promote` with a check
every second, one retry a second later, and `synchronous_standby_names = 'ANY 1 (*)'`; the old primary is rewound and
comes back as a standby, and the next round kills the new one. The test fails when an acknowledged row is missing, or
when a client that was idle or between transactions is told anything.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys

import machine
import report

# The median outage (last acknowledgement before to first one after) that is promised, in milliseconds.
PROMISED = 3000
ROUND = re.compile(r"outage: (\d+) ms; after the kill: noticed (\d+), declared dead (\d+), asked to promote (\d+), takes writes (\d+)")
TOTAL = re.compile(r"outage: median \d+ ms of \d+; (\d+) rows, (\d+) writers cut")
HEADER = ["round", "noticed", "declared dead", "standby chosen", "new primary takes writes", "first row acknowledged", "outage"]


def read(output):
    """The rounds, each (outage, noticed, declared, asked, accepted), and (rows, writers cut)."""
    rounds = [tuple(map(int, found.groups())) for found in ROUND.finditer(output)]
    total = TOTAL.search(output)
    if not rounds or not total:
        raise machine.Trouble(f"the test has told no figures:\n{output[-2000:]}")
    return rounds, tuple(map(int, total.groups()))


def lines(rounds):
    """Rows of the table: where the time went, one phase after the other, and the medians."""
    def row(name, outage, noticed, declared, asked, accepted):
        figures = (noticed, declared - noticed, asked - declared, accepted - asked, max(outage - accepted, 0), outage)
        return [name] + [f"{figure:.0f}" for figure in figures]
    medians = [statistics.median(column) for column in zip(*rounds)]
    return [row(str(number), *figures) for number, figures in enumerate(rounds, 1)] + [row("median", *medians)]


def section(rounds, total, origin, others):
    detection, promotion = (statistics.median(times) for times in zip(*((r[2], r[4] - r[3]) for r in rounds)))
    outage = statistics.median(r[0] for r in rounds)
    return "\n\n".join([
        "### A killed primary",
        "kill -9 of the primary under 50 writers, there and back, in `failover_mode: promote`; "
        "`health_check_period: 1s`, `health_check_max_retries: 1`, `health_check_retry_delay: 1s`, "
        "`synchronous_standby_names = 'ANY 1 (*)'`, a primary and two standbys. Milliseconds; each column is what that step took.",
        report.table(HEADER, lines(rounds)),
        f"Median outage, from the last row acknowledged before to the first one after: **{outage:.0f} ms**, of which detection "
        f"{detection:.0f} ms (most of it the retry) and promotion {promotion:.0f} ms. All {total[0]} acknowledged rows were there "
        f"at the end; {total[1]} writers had a statement in flight and were cut; no client that was idle or between transactions was told anything.",
        f"{origin} Other processes took {others:.0%} of the machine meanwhile.",
    ])


def measure(options):
    command = [options.program] if options.program else [os.environ.get("CARGO", "cargo"), "test", "-q", "-p", "pgweir-tests", "--test", "outage", "--"]
    environment = dict(os.environ, PGWEIR_BIN=os.path.abspath(options.binary), PGWEIR_OUTAGE_ROUNDS=str(options.rounds))
    done = subprocess.run(command + ["--nocapture", "--test-threads=1"], env=environment, cwd=os.path.join(machine.ROOT, "tests"),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise machine.Trouble(f"the test has failed:\n{done.stdout[-6000:]}")
    return read(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="how many failovers (default 10)")
    parser.add_argument("--binary", default=machine.DEFAULT_BINARY, help="pgweir's binary (default: the release build)")
    parser.add_argument("--program", help="the built test, in place of having cargo build and run it")
    parser.add_argument("--write", metavar="FILE", help="put the table between the markers in this file")
    options = parser.parse_args()
    meter = machine.Meter()
    try:
        rounds, total = measure(options)
    except machine.Trouble as trouble:
        print(f"failover: {trouble}", file=sys.stderr)
        return 1
    origin = (f"{machine.facts()['date']}, {machine.source_of(options.binary)}, {machine.summary()}; PostgreSQL "
              f"{machine.version_of([os.path.join(machine.postgres_bin(), 'postgres'), '--version'])}; `make bench-failover`, {len(rounds)} rounds.")
    text = section(rounds, total, origin, meter.others())
    print(text)
    if options.write:
        report.write_sections(options.write, {"failover": text})
    return 0 if statistics.median(r[0] for r in rounds) < PROMISED else 1


if __name__ == "__main__":
    sys.exit(main())
