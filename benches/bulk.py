"""Large results: the CPU time that a proxy takes for each megabyte that passes, of wide rows and of narrow ones."""

import dataclasses
import socket
import statistics
import struct
import sys

import machine
import report
from idle import Client
from machine import Trouble
from peers import Setup, start_peers

READ = 1 << 20
END = b"Z\0\0\0\5I"
MB = 1_000_000
# A round of this is long; more of them tell little more.
MOST_ROUNDS = 3

LOADS = (
    ("COPY of rows of 1 kB", "copy (select repeat('x', 1000) from generate_series(1, {})) to stdout", 1_000_000),
    ("SELECT of rows of 1 kB", "select repeat('x', 1000) from generate_series(1, {})", 1_000_000),
    ("SELECT of one integer a row", "select g from generate_series(1, {}) g", 20_000_000),
)


class Reader(Client):
    """Reads an answer to its end and counts its bytes."""

    def __init__(self, port, database):
        super().__init__(port, database)
        self.socket.settimeout(120)

    def count(self, text):
        body = text.encode() + b"\0"
        self.socket.sendall(b"Q" + struct.pack("!I", 4 + len(body)) + body)
        buffer, view = bytearray(READ), None
        view, total, last = memoryview(buffer), 0, b""
        while last != END:
            got = self.socket.recv_into(view)
            if not got:
                raise Trouble("the connection ended inside of an answer")
            total += got
            last = (last + bytes(view[max(got - len(END), 0):got]))[-len(END):]
        if total < 100_000:
            raise Trouble(f"an answer of {total} bytes: {bytes(view[:200])!r}")
        return total


@dataclasses.dataclass(frozen=True)
class Bulk:
    """Large results through each peer in turn."""

    name: str
    title: str
    about: str
    peers: tuple = ("direct", "pgweir", "pgbouncer", "haproxy")

    def measure(self, stage, cluster, peers, options):
        """The report, and every single measurement."""
        wanted = [name for name in peers if name in self.peers]
        meter, raw = machine.Meter(), []
        rounds = min(options.rounds, MOST_ROUNDS)
        share = 10 if options.quick else 1
        with start_peers(stage, cluster, wanted, options.binary, Setup((1, 0), 20)) as running:
            labels = [peer.label for peer in running]
            versions = [f"{peer.label} {peer.version}" for peer in running]
            for row, text, count in LOADS:
                for number in range(rounds):
                    turn = number % len(running)
                    for peer in running[turn:] + running[:turn]:
                        raw.append(self.one(peer, row, text.format(count // share)))
        lines = [[row] + [median(raw, row, label) for label in labels if label != "direct"] for row, *_ in LOADS]
        table = report.table(["us of CPU a MB"] + [label for label in labels if label != "direct"], lines)
        how = (f"{machine.facts()['date']}, {machine.source_of(options.binary)}, {machine.summary()}; {', '.join(versions)}; "
               f"answers of about 1 GB to one client that throws them away (the integers: 0.4 GB), medians of {rounds}. "
               f"Other processes took {meter.others():.0%} of the machine meanwhile.")
        return "\n\n".join([f"### {self.title}", self.about, table, how]), raw

    def one(self, peer, row, text):
        """One answer."""
        before, cell = peer.cpu_seconds(), {"workload": self.name, "row": row, "peer": peer.label, "us": None, "error": ""}
        try:
            reader = Reader(peer.port, peer.database("simple"))
            total = reader.count(text)
            reader.close()
            if before is not None:
                cell["us"] = (peer.cpu_seconds() - before) / total * MB * 1e6
        except (OSError, Trouble, socket.timeout) as trouble:
            cell["error"] = str(trouble)
        print(f"  {self.name} {row}, {peer.label}: {cell['error'] or cell['us'] or 'done'}", file=sys.stderr)
        return cell


def median(raw, row, label):
    values = [cell["us"] for cell in raw if (cell["row"], cell["peer"]) == (row, label) and cell["us"] is not None]
    return f"{statistics.median(values):.0f}" if values else "failed"
