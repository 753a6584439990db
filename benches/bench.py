#!/usr/bin/env python3
"""Measures pgweir beside PostgreSQL itself and the other proxies that are installed. See --help.

Everything runs on loopback, in a temporary directory, on free ports, as the user postgres when started by root, and
is stopped and removed at the end. Peers take turns within each round, so that a noisy minute hits all of them; the
tables show medians. Ratios from one run are worth more than tps from two, and CPU time per transaction more than both.
"""

import argparse
import json
import signal
import sys

import machine
import workloads
from peers import INSTALLABLE, KINDS
from report import need_places, write_plot, write_sections
from servers import Cluster, Stage


# Labels of the peers whose failure is a finding and not a fault.
FOREIGN = ("PgBouncer", "HAProxy", "Pgpool-II")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(workloads.ALL)
    parser.add_argument("--rounds", type=int, default=3, help="how often each cell is measured (default 3; make bench: 5)")
    parser.add_argument("--seconds", type=int, default=5, help="how long each measurement takes (default 5)")
    parser.add_argument("--only", default=",".join(names), help=f"workloads, of {','.join(names)} (default all)")
    parser.add_argument("--peers", default=",".join(KINDS), help=f"of {','.join(KINDS)} (default all installed)")
    parser.add_argument("--clients", help="client counts instead of each workload's own, for example 1,32")
    parser.add_argument("--quick", action="store_true", help="one round of two seconds, fewest and most clients")
    parser.add_argument("--write", metavar="FILE", help="put the tables between the markers in this file")
    parser.add_argument("--json", metavar="FILE", help="write every single measurement there")
    parser.add_argument("--binary", default=machine.DEFAULT_BINARY, help="pgweir's binary (default: the release build)")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 2
    options.only = listed(parser, "--only", options.only, names)
    options.peers = listed(parser, "--peers", options.peers, list(KINDS))
    if "direct" not in options.peers:
        options.peers.insert(0, "direct")  # the ratios need it
    if options.rounds < 1 or options.seconds < 1:
        parser.error("--rounds and --seconds must be at least 1")
    return options


def listed(parser, option, text, known):
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in known:
            parser.error(f"{option}: '{word}' is not one of {', '.join(known)}")
    return words


def interrupted(_signal, _frame):
    raise KeyboardInterrupt


def usable(options):
    """The peers that are there, and a line for each that is not."""
    found = []
    for name in options.peers:
        kind = KINDS[name]
        if kind.available(options.binary):
            found.append(name)
        else:
            print(f"{name} is not there, left out; to include it: {INSTALLABLE[name]}", file=sys.stderr)
    return found


def measure(options, stage):
    peers = usable(options)
    print(f"{machine.summary()}; making a primary and two standbys", file=sys.stderr)
    cluster = Cluster(stage)
    raw = []
    for name in options.only:
        try:
            body, cells = workloads.ALL[name].measure(stage, cluster, peers, options)
        except (machine.Trouble, OSError) as trouble:
            # What can be measured still is; the page keeps what it had.
            print(f"  {name}: {trouble}", file=sys.stderr)
            raw.append({"workload": name, "row": "", "peer": "", "error": str(trouble)})
            continue
        raw.extend(cells)
        print(f"\n{body}\n", flush=True)
        if options.write:
            plot = workloads.plot(name, cells)
            # At once: a run that is stopped has not been for nothing.
            write_sections(options.write, {name: body + write_plot(options.write, name, plot)})
    return raw


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, interrupted)
    try:
        if options.write:
            need_places(options.write, options.only)
        with Stage() as stage:
            raw = measure(options, stage)
    except KeyboardInterrupt:
        print("stopped; everything that was started has ended", file=sys.stderr)
        return 130
    except machine.Trouble as trouble:
        print(f"bench: {trouble}", file=sys.stderr)
        return 1
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": machine.facts(), "measurements": raw}, file, indent=1)
    failures = [cell for cell in raw if cell["error"]]
    for cell in failures:
        print(f"failed: {cell['workload']} {cell['row']} {cell['peer']}: {cell['error']}", file=sys.stderr)
    return 1 if any(cell["peer"] not in FOREIGN for cell in failures) else 0


if __name__ == "__main__":
    sys.exit(main())
