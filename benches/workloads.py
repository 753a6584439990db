"""What is run: the workloads, one measurement, and the rounds in which peers take turns."""

import dataclasses
import os
import re
import statistics
import subprocess
import sys

import machine
import plot as drawing
import report
from bulk import Bulk
from crowd import Crowd
from idle import Idle
from null import Null
from peers import POOL, Setup, start_peers
from servers import ROWS_OF_TEST_1, clean_environment


def plot(name, cells):
    """The title and the SVG of a workload's plot, when it has one: the CPU time of its rows."""
    wanted = getattr(ALL[name], "plotted", ())
    rows = []
    for wanted_row in wanted:
        values = {}
        for cell in cells:
            if cell["row"] == wanted_row and not cell["error"] and cell.get("cpu") is not None:
                values.setdefault(cell["peer"], []).append(cell["cpu"])
        rows.append((wanted_row, {peer: statistics.median(found) for peer, found in values.items()}))
    if not any(values for _, values in rows):
        return None
    title = "CPU time of the proxy, microseconds per transaction"
    return title, drawing.bars(title, rows)


@dataclasses.dataclass
class Figures:
    """One measurement: transactions per second, mean latency in ms, proxy CPU in us per transaction."""

    tps: float = 0.0
    latency: float = 0.0
    cpu: float = None
    error: str = ""


class Row:
    """The measurements of one mode and client count, by peer."""

    def __init__(self, name, peers):
        self.name = name
        self.runs = {peer: [] for peer in peers}

    def median(self, peer, figure):
        """The median over the rounds that worked; None when none did, or the figure does not exist."""
        values = [getattr(run, figure) for run in self.runs.get(peer, []) if not run.error]
        values = [value for value in values if value is not None]
        return statistics.median(values) if values else None

    def error(self, peer):
        return next((run.error for run in self.runs.get(peer, []) if run.error), "")

    def raw(self, workload):
        for peer, runs in self.runs.items():
            for run in runs:
                yield {"workload": workload, "row": self.name, "peer": peer, **dataclasses.asdict(run)}


def pgbench(peer, seconds, *options, mode="simple", tls=False):
    """One run of pgbench through the peer."""
    # libpq looks for a certificate of its own in the home of whoever started us, which pgbench's user may not enter.
    environment = {**clean_environment(), "PGSSLMODE": "require" if tls else "disable", "HOME": peer.stage.directory}
    tool = peer.stage.tool("pgbench")
    command = [tool, "-n", "-T", str(seconds), "-M", mode, *options, "-h", "127.0.0.1", "-p", str(peer.port),
               "-U", "bench", peer.database(mode)]
    before = peer.cpu_seconds()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds * 3 + 60, check=False,
                              env=environment, cwd=peer.stage.directory, **peer.stage.run_as)
    except subprocess.TimeoutExpired:
        return Figures(error="did not end in time")
    after = peer.cpu_seconds()
    return read_pgbench(done, None if before is None else after - before)


def read_pgbench(done, cpu):
    def number(pattern):
        found = re.search(pattern, done.stdout)
        return float(found[1]) if found else None

    # With -C pgbench counts the connecting in: that is the point of it.
    tps, count = number(r"tps = ([\d.]+)"), number(r"actually processed: (\d+)")
    latency, failed = number(r"latency average = ([\d.]+)"), number(r"failed transactions: (\d+)")
    if done.returncode != 0 or not tps or not count:
        lines = [line for line in done.stderr.splitlines() if "rror" in line or "FATAL" in line] or [done.stderr]
        return Figures(error=lines[0].strip()[-200:] or f"exit code {done.returncode}")
    if failed:
        return Figures(error=f"{failed:.0f} failed transactions")
    return Figures(tps, latency or 0.0, None if cpu is None else cpu / count * 1e6)


@dataclasses.dataclass(frozen=True)
class Workload:
    """A load for pgbench, over modes and client counts."""

    name: str
    title: str
    about: str
    modes: tuple
    clients: tuple
    options: tuple = ()
    script: str = None
    # Threads of pgbench; None is one per client, which -C needs: a thread connects one client at a time.
    threads: int = 1
    peers: tuple = ("direct", "pgweir", "pgbouncer", "haproxy", "pgpool")
    # The nodes in use, and their share of the reads: the primary and a standby.
    weights: tuple = (1, 1)
    pool_size: int = POOL
    # What the plot shows: of these rows the CPU time; none for no plot.
    plotted: tuple = ()

    def measure(self, stage, cluster, peers, options):
        """The report, and every single measurement."""
        wanted = [name for name in peers if name in self.peers]
        meter = machine.Meter()
        with start_peers(stage, cluster, wanted, options.binary, Setup(self.weights, self.pool_size)) as running:
            rows = [self.run_row(running, mode, count, options) for mode, count in self.rows(options)]
            versions = [f"{peer.label} {peer.version}" for peer in running]
            others = meter.others()
        return report.section(self, rows, versions, options, others), [cell for row in rows for cell in row.raw(self.name)]

    def rows(self, options):
        clients = self.clients
        if options.clients:
            clients = tuple(int(word) for word in options.clients.split(","))
        elif options.quick:
            clients = tuple(dict.fromkeys((clients[0], clients[-1])))
        return [(mode, count) for mode in self.modes for count in clients]

    def run_row(self, peers, mode, count, options):
        row = Row(f"{mode}, {count} client{'s' if count > 1 else ''}", [peer.label for peer in peers])
        for number in range(options.rounds):
            # Each round begins with another peer: none has always the place after the noisiest one.
            turn = number % len(peers)
            for peer in peers[turn:] + peers[:turn]:
                figures = pgbench(peer, options.seconds, *self.arguments(peer, count), mode=mode)
                row.runs[peer.label].append(figures)
                shown = figures.error or f"{figures.tps:.0f} tps"
                print(f"  {self.name} {row.name}, round {number + 1}, {peer.label}: {shown}", file=sys.stderr)
        return row

    def arguments(self, peer, count):
        threads = min(self.threads or count, count)
        given = ["-c", str(count), "-j", str(threads), *self.options]
        if self.script:
            given += ["-f", peer.stage.write(f"{self.name}.sql", self.script)]
        return given

    def command(self):
        """What is run, for the report."""
        words = ["pgbench -n -M MODE -c CLIENTS", f"-j {self.threads or 'CLIENTS'}", *self.options]
        return " ".join(words + ([f"-f {self.name}.sql"] if self.script else []))


@dataclasses.dataclass(frozen=True)
class Latency(Workload):
    """Latency at half of the load that pgweir can take: what its detour adds when nothing is short."""

    def measure(self, stage, cluster, peers, options):
        wanted = [name for name in peers if name in self.peers]
        clients, meter = self.clients[-1], machine.Meter()
        with start_peers(stage, cluster, wanted, options.binary, Setup(self.weights, self.pool_size)) as running:
            ours = next((peer for peer in running if peer.label == "pgweir"), running[0])
            most = pgbench(ours, options.seconds, *self.arguments(ours, clients)).tps
            rate = max(int(most / 2), 100)
            row = Row(f"{clients} clients, {rate} a second", [peer.label for peer in running])
            for number in range(options.rounds):
                turn = number % len(running)
                for peer in running[turn:] + running[:turn]:
                    row.runs[peer.label].append(self.one(peer, options.seconds, clients, rate))
            versions = [f"{peer.label} {peer.version}" for peer in running]
        return report.latency(self, row, versions, options, meter.others()), list(row.raw(self.name))

    def one(self, peer, seconds, clients, rate):
        """A run at that rate; `latency` is its 99th percentile, `tps` its median latency, both in us."""
        prefix = f"{peer.stage.path('latency')}-{peer.label}"
        # Long enough for a percentile.
        figures = pgbench(peer, max(seconds, 3), *self.arguments(peer, clients), "-R", str(rate), "-l", "--log-prefix", prefix)
        times = []
        for name in os.listdir(peer.stage.directory):
            path = peer.stage.path(name)
            if path.startswith(prefix + "."):
                with open(path, encoding="utf-8") as file:
                    # client, number, time, script, seconds, microseconds, lag: the lag is pgbench's own.
                    fields = [line.split() for line in file]
                times += [int(field[2]) - int(field[6]) for field in fields if len(field) > 6 and field[2].isdigit()]
                os.remove(path)
        if figures.error or not times:
            return Figures(error=figures.error or "no latencies")
        times.sort()
        return Figures(times[len(times) // 2], times[len(times) * 99 // 100], figures.cpu)


@dataclasses.dataclass(frozen=True)
class Encrypted(Workload):
    """The same load with and without TLS between client and proxy: what TLS costs a transaction."""

    def measure(self, stage, cluster, peers, options):
        wanted = [name for name in peers if name in self.peers]
        meter, clients = machine.Meter(), self.clients[-1]
        setup = Setup(self.weights, self.pool_size, tls=True)
        with start_peers(stage, cluster, wanted, options.binary, setup) as running:
            rows = [Row(name, [peer.label for peer in running]) for name in ("plain", "TLS")]
            for number in range(options.rounds):
                turn = number % max(len(running), 1)
                for peer in running[turn:] + running[:turn]:
                    for row in rows:
                        figures = pgbench(peer, options.seconds, *self.arguments(peer, clients), tls=row.name == "TLS")
                        row.runs[peer.label].append(figures)
                        print(f"  {self.name} {row.name}, {peer.label}: {figures.error or figures.cpu}", file=sys.stderr)
            versions = [f"{peer.label} {peer.version}" for peer in running]
        return (report.encrypted(self, rows, versions, options, meter.others()),
                [cell for row in rows for cell in row.raw(self.name)])


@dataclasses.dataclass(frozen=True)
class Capacity(Workload):
    """Nodes of limited capacity: does the tps grow with their number? Only pgweir's pools can set such a limit."""

    # The shares of the primary and the two standbys: one standby serves, then both, then all three.
    stages: tuple = ((0, 1, 0), (0, 1, 1), (1, 1, 1))

    def measure(self, stage, cluster, peers, options):
        if "pgweir" not in peers:
            return f"### {self.title}\n\nNot measured: pgweir was not among the peers.", []
        clients = int(options.clients.split(",")[-1]) if options.clients else self.clients[-1]
        row, versions, meter = Row(f"{clients} clients", []), [], machine.Meter()
        for _ in range(options.rounds):
            for weights in self.stages:
                serving = sum(map(bool, weights))
                name = f"{serving} node{'s' if serving > 1 else ''}"
                with start_peers(stage, cluster, ["pgweir"], options.binary, Setup(weights, self.pool_size)) as running:
                    figures = pgbench(running[0], options.seconds, *self.arguments(running[0], clients))
                    versions = [f"{running[0].label} {running[0].version}"]
                row.runs.setdefault(name, []).append(figures)
                print(f"  {self.name}, {name}: {figures.error or f'{figures.tps:.0f} tps'}", file=sys.stderr)
        return report.capacity(self, row, versions, options, meter.others()), list(row.raw(self.name))


SELECT_NAME = f"\\set v_id random(1, {ROWS_OF_TEST_1})\nselect name from test_1 where id=:v_id;\n"
MODES = ("simple", "extended", "prepared")
# pgbench's tpcb-like script in one pipeline: one Sync, one answer.
PIPELINE = """\\set aid random(1, 1000000)
\\set bid random(1, 10)
\\set tid random(1, 100)
\\set delta random(-5000, 5000)
\\startpipeline
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
\\endpipeline
"""

ALL = {workload.name: workload for workload in (
    Workload("select", "One-row reads", "pgbench's `-S` (scale 10). pgweir and Pgpool-II route them to a primary and a "
             "standby of equal weight; the others know one node.", MODES, (1, 32), ("-S",),
             peers=("direct", "pgweir", "pgweir1", "pgbouncer", "haproxy", "pgpool"),
             plotted=("simple, 1 client", "simple, 32 clients", "extended, 32 clients", "prepared, 32 clients")),
    Workload("single", "One-row reads with one node behind", "The same where every peer has the primary only: what the detour "
             "takes of the throughput.", ("simple", "prepared"), (32,), ("-S",), peers=("direct", "pgweir", "pgbouncer", "haproxy"),
             weights=(1,)),
    Latency("latency", "Latency at half load", "pgbench's `-S` at half of the rate that pgweir reached without a limit: what a "
            "detour adds when nothing is short.", ("simple",), (8,), ("-S",),
            peers=("direct", "pgweir", "pgbouncer", "haproxy")),
    Workload("tpcb", "Writing transactions", "pgbench's tpcb-like script, 64 sessions on pools of 20.", ("simple",), (64,),
             threads=2),
    Workload("pipeline", "Writing transactions in one pipeline", "The statements of the tpcb-like script between one BEGIN and one "
             "END, sent at once.", ("extended",), (32,), threads=2, script=PIPELINE,
             peers=("direct", "pgweir", "pgbouncer", "haproxy")),
    Workload("connect", "A connection for every transaction", "The same with `-C`: each transaction connects anew. A pooler "
             "must be well above direct here.", ("simple",), (64,), ("-C",), threads=None),
    Workload("test_1", "One-row reads of a published Pgpool-II test", f"A table of {ROWS_OF_TEST_1} rows, "
             "`select name from test_1 where id=:v_id`, prepared.", ("prepared",), (2, 8, 32), script=SELECT_NAME,
             peers=("direct", "pgweir", "pgpool")),
    Capacity("capacity", "Capacity grows with the nodes", "Pools of 4 backends a node and a statement that takes 5 ms "
             "(`select pg_sleep(0.005)`): a node can serve at most 800 transactions per second.", ("simple",), (32,),
             script="select pg_sleep(0.005);\n", threads=2, pool_size=4),
    Idle("idle", "Memory of idle clients", "Clients that have logged in and wait. HAProxy needs a server's process for each, "
         "Pgpool-II one of its own.", 10_000),
    Crowd("crowd", "Ten thousand clients on forty backends", "One client in twenty asks for `select pg_sleep(0.005)` again and again: "
          "40 backends can answer 8000 times a second, and who is served in turn waits 62 ms.", 10_000),
    Bulk("bulk", "Large results", "One client reads a long answer as fast as it comes."),
    Encrypted("tls", "What TLS costs a transaction", "pgbench's `-S` with 32 clients, with TLS to the proxy and without.", ("simple",),
              (32,), ("-S",), peers=("pgweir", "pgbouncer")),
    Null("null", "A second worker", "A server that answers pgbench's `-S` from memory (benches/null_server.rs), so that what is "
         "left is the proxy's and the load's."),
)}
