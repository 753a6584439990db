"""Memory of idle clients: how much larger a proxy's process grows for each client that has logged in and waits."""

import dataclasses
import resource
import socket
import struct
import sys
import time

import machine
import report
from machine import Trouble
from peers import Setup, start_peers

# Clients that are there before it is measured: what the first ones cost is not each one's.
FIRST = 50
# A query answered, and the process has done what it does afterwards.
SETTLE = 1.0


class Client:
    """A connection that logs in without a password and can run a query."""

    def __init__(self, port, database):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        settings = f"user\0bench\0database\0{database}\0\0".encode()
        self.socket.sendall(struct.pack("!II", 8 + len(settings), 196608) + settings)
        self.until_ready()

    def query(self, text):
        body = text.encode() + b"\0"
        self.socket.sendall(b"Q" + struct.pack("!I", 4 + len(body)) + body)
        self.until_ready()

    def until_ready(self):
        received = b""
        while not received.endswith(b"Z\0\0\0\5I"):
            more = self.socket.recv(65536)
            if not more or received.startswith(b"E"):
                raise Trouble(f"a client was refused: {(received + more)[:200]!r}")
            received += more

    def close(self):
        self.socket.close()


@dataclasses.dataclass(frozen=True)
class Idle:
    """Clients that have logged in, and the same after a query each."""

    name: str
    title: str
    about: str
    clients: int
    peers: tuple = ("pgweir", "pgbouncer")

    def measure(self, stage, cluster, peers, options):
        """The report, and every single measurement."""
        count = min(int(options.clients.split(",")[-1]) if options.clients else self.clients, most_clients())
        meter, rows, versions, raw = machine.Meter(), [], [], []
        for name in [name for name in peers if name in self.peers]:
            with start_peers(stage, cluster, [name], options.binary, Setup((1, 1), 20)) as running:
                peer = running[0]
                idle, used = grown(peer, count)
                rows.append([peer.label, f"{idle:.1f}", f"{used:.1f}"])
                versions.append(f"{peer.label} {peer.version}")
                print(f"  {self.name}, {peer.label}: {idle:.1f} kB a client, {used:.1f} after a query", file=sys.stderr)
                raw += [{"workload": self.name, "row": row, "peer": peer.label, "kB": value, "error": ""}
                        for row, value in (("idle", idle), ("after a query", used))]
        table = report.table(["", "kB a client that has logged in", "kB a client after a query"], rows)
        how = (f"{machine.facts()['date']}, {machine.source_of(options.binary)}, {machine.summary()}; {', '.join(versions)}; "
               f"growth of the resident set over {count} clients. Other processes took {meter.others():.0%} of the machine "
               "meanwhile.")
        return "\n\n".join([f"### {self.title}", self.about, table, how]), raw


def most_clients():
    """As many as we, and a proxy that inherits our limit, may open: two descriptors of ours would be one too many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(hard - 500, 1)


def grown(peer, count):
    clients = [Client(peer.port, peer.database("simple")) for _ in range(FIRST)]
    try:
        before = settled(peer)
        clients += [Client(peer.port, peer.database("simple")) for _ in range(count)]
        idle = settled(peer)
        for client in clients:
            client.query("select 1")
        used = settled(peer)
    finally:
        for client in clients:
            client.close()
    return (idle - before) / count, (used - before) / count


def settled(peer):
    time.sleep(SETTLE)
    return machine.resident_kb(peer.process.pid)
