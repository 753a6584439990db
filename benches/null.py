"""Limits of pgweir itself, before a server that answers from memory: what a second worker adds."""

import dataclasses
import os
import shutil
import subprocess
import sys

import machine
import report
from machine import Trouble
from peers import Setup, start_peers
from servers import free_port

SOURCE = os.path.join(machine.ROOT, "benches", "null_server.rs")


def built(stage):
    """The null server's program: a file of plain Rust."""
    program = stage.path("null_server")
    if not os.path.exists(program):
        rustc = shutil.which("rustc")
        if not rustc:
            raise Trouble("no rustc to build the null server with")
        done = subprocess.run([rustc, "-O", "--edition", "2024", SOURCE, "-o", program], capture_output=True, text=True,
                              check=False, timeout=120)
        if done.returncode != 0:
            raise Trouble(f"rustc failed: {done.stderr.strip()[-300:]}")
        os.chmod(program, 0o755)
    return program


@dataclasses.dataclass(frozen=True)
class Null:
    """`-S` against the null server: by itself, and through pgweir with one worker and with two."""

    name: str
    title: str
    about: str
    clients: int = 32

    def measure(self, stage, cluster, peers, options):
        """The report, and every single measurement."""
        from workloads import Row, pgbench  # they know each other
        try:
            program = built(stage)
        except (Trouble, OSError, subprocess.SubprocessError) as trouble:
            return f"### {self.title}\n\nNot measured: {trouble}.", []
        if "pgweir" not in peers:
            return f"### {self.title}\n\nNot measured: pgweir was not among the peers.", []
        meter, row, version = machine.Meter(), Row(f"simple, {self.clients} clients", []), "?"
        port = free_port()
        server = stage.start("null", [program, str(port), str(cluster.primary)])
        stage.wait_ready(server, port)
        arguments = ["-c", str(self.clients), "-j", "2", "-S"]
        for _ in range(options.rounds):
            for label, name, workers in (("null server", "direct", "auto"), ("1 worker", "pgweir", "1"),
                                         ("2 workers", "pgweir", "2")):
                setup = Setup((1,), 20, workers=workers, ports=(port,))
                with start_peers(stage, cluster, [name], options.binary, setup) as running:
                    figures = pgbench(running[0], options.seconds, *arguments)
                    version = running[0].version if name == "pgweir" else version
                row.runs.setdefault(label, []).append(figures)
                print(f"  {self.name}, {label}: {figures.error or f'{figures.tps:.0f} tps'}", file=sys.stderr)
        stage.stop(server)
        return self.report(row, version, options, meter.others()), list(row.raw(self.name))

    def report(self, row, version, options, others):
        """One line for each, and what the second worker adds."""
        lines = [[label, report.figure(row.median(label, "tps"), ".0f"), report.figure(row.median(label, "cpu"), ".1f")]
                 for label in row.runs]
        one, two = (row.median(label, "cpu") for label in ("1 worker", "2 workers"))
        said = []
        if one and two:
            said.append(f"A second worker makes a transaction {two / one:.2f} times as dear: where the load and the servers "
                        f"have cores of their own, two workers do {2 * one / two:.2f} times what one does.")
        tps = [row.median(label, "tps") for label in ("1 worker", "2 workers")]
        if machine.facts()["cores"] < 6:
            said.append(f"This machine has {machine.facts()['cores']} cores, which pgbench and the null server take their "
                        "part of: transactions per second show that limit and not pgweir's.")
        elif all(tps):
            said.append(f"Measured: {tps[1] / tps[0]:.2f} times.")
        table = report.table(["", "tps", "CPU of pgweir, us a transaction"], lines)
        return "\n\n".join([f"### {self.title}", self.about, table, *said, *report.notes([row], list(row.runs)),
                            report.origin(self, [f"pgweir {version}"], options, others)])

    def command(self):
        """What is run, for the report."""
        return f"pgbench -n -S -c {self.clients} -j 2"
