"""Many clients on few backends: how long the unlucky ones wait, and whether everybody is served alike."""

import dataclasses
import selectors
import struct
import sys
import time

import machine
import report
from idle import Client, most_clients
from machine import Trouble
from peers import Setup, start_peers

POOL = 40
# Each client in the list waits; one in so many asks again as soon as it is answered.
ACTIVE = 20
QUERY = b"select pg_sleep(0.005)\0"
END = b"Z\0\0\0\5I"


@dataclasses.dataclass(frozen=True)
class Crowd:
    """A share of many clients busy on a small pool."""

    name: str
    title: str
    about: str
    clients: int
    peers: tuple = ("pgweir", "pgbouncer")

    def measure(self, stage, cluster, peers, options):
        """The report, and every single measurement."""
        # Two descriptors a client here and in a proxy that inherits our limit, and those of the pool.
        count = min(int(options.clients.split(",")[-1]) if options.clients else self.clients, most_clients())
        meter, rows, versions, raw = machine.Meter(), [], [], []
        seconds = max(options.seconds * 3, 5)
        for name in [name for name in peers if name in self.peers]:
            with start_peers(stage, cluster, [name], options.binary, Setup((1, 0), POOL)) as running:
                peer = running[0]
                versions.append(f"{peer.label} {peer.version}")
                cell = {"workload": self.name, "row": f"{count} clients", "peer": peer.label, "error": ""}
                try:
                    cell.update(served(peer, count, seconds))
                    rows.append([peer.label, f"{cell['tps']:.0f}", f"{cell['p50']:.1f}", f"{cell['p99']:.1f}",
                                 f"{cell['fairness']:.2f}"])
                except (OSError, Trouble) as trouble:
                    cell["error"] = str(trouble)
                    rows.append([peer.label] + ["failed"] * 4)
                print(f"  {self.name}, {peer.label}: {cell}", file=sys.stderr)
                raw.append(cell)
        table = report.table(["", "answers a second", "median wait, ms", "p99 wait, ms", "most served / least served"], rows)
        how = (f"{machine.facts()['date']}, {machine.source_of(options.binary)}, {machine.summary()}; {', '.join(versions)}; "
               f"{count} clients logged in, {count // ACTIVE} of them active for {seconds} s on {POOL} backends. Other "
               f"processes took {meter.others():.0%} of the machine meanwhile.")
        return "\n\n".join([f"### {self.title}", self.about, table, how]), raw


def served(peer, count, seconds):
    """Waits and answers of the active clients."""
    clients = [Client(peer.port, peer.database("simple")) for _ in range(count)]
    try:
        return drive(clients[::ACTIVE], seconds)
    finally:
        for client in clients:
            client.close()


def drive(active, seconds):
    """Keeps every one of them asking; who is answered asks at once again."""
    message = b"Q" + struct.pack("!I", 4 + len(QUERY)) + QUERY
    poll = selectors.DefaultSelector()
    sent, counts, waits, tails = {}, dict.fromkeys(active, 0), [], dict.fromkeys(active, b"")
    begun = time.perf_counter()
    # What the pool needs to open its backends is not measured.
    warm, end = begun + 1, begun + 1 + seconds
    for client in active:
        poll.register(client.socket, selectors.EVENT_READ, client)
        client.socket.sendall(message)
        sent[client] = time.perf_counter()
    while (now := time.perf_counter()) < end:
        for key, _ in poll.select(1):
            client = key.data
            received = client.socket.recv(4096)
            if not received:
                raise Trouble("a client lost its connection")
            tails[client] = (tails[client] + received)[-len(END):]
            if tails[client] != END:
                continue
            tails[client], answered = b"", time.perf_counter()
            if now > warm:
                waits.append(answered - sent[client])
                counts[client] += 1
            client.socket.sendall(message)
            sent[client] = answered
    # Those that were never answered have waited all the time.
    waits += [end - sent[client] for client in active if counts[client] == 0]
    waits.sort()
    least = min(counts.values())
    return {"tps": sum(counts.values()) / seconds, "p50": waits[len(waits) // 2] * 1e3,
            "p99": waits[len(waits) * 99 // 100] * 1e3,
            "fairness": max(counts.values()) / least if least else float("inf")}
