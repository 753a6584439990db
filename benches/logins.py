#!/usr/bin/env python3
"""Logins per second and per second of the proxy's CPU time, by method and with or without TLS: `pgbench -C` through pgweir,
and through PgBouncer where it is installed. Each transaction is `select 1` in a connection of its own, so what is
measured is the login. Prints a Markdown table; `--write docs/benchmarks.md` puts it there.

    benches/logins.py [--binary target/release/pgweir] [--seconds 3] [--rounds 3] [--clients 8] [--write FILE]
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys

import machine
from machine import Trouble
from report import table, write_sections
from servers import Cluster, Stage, clean_environment, free_port

METHODS = ("trust", "md5", "scram-sha-256")


def certificate(stage):
    """A self-signed certificate with an elliptic key, as both proxies are given it."""
    stage.call("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
               "-subj", "/CN=localhost", "-keyout", stage.path("tls.key"), "-out", stage.path("tls.crt"))
    os.chmod(stage.path("tls.key"), 0o600)


def secrets(stage, cluster):
    """What the node stores of `bench`: SCRAM's verifier, and the md5 hash of the same password."""
    stage.sql(cluster.primary, "alter role bench password 'bench'", "postgres", "postgres")
    verifier = stage.sql(cluster.primary, "select rolpassword from pg_authid where rolname = 'bench'", "postgres",
                         "postgres")
    return verifier, stage.sql(cluster.primary, "select 'md5' || md5('benchbench')", "postgres", "postgres")


class Pgweir:
    label = "pgweir"

    def __init__(self, stage, cluster, binary, method, secret):
        self.port = free_port()
        program = stage.path("pgweir")
        if not os.path.exists(program):
            shutil.copy(binary, program)
            os.chmod(program, 0o755)
        passwords = stage.write("pool_passwd", f"bench:{secret}\n")
        hba = stage.write("pool_hba.conf", f"host all all 127.0.0.1/32 {method}\n")
        config = stage.write("pgweir.yaml", f"""
listen_addresses: ["127.0.0.1"]
port: {self.port}
metrics_listen: "off"
backends:
  - {{ hostname: 127.0.0.1, port: {cluster.primary}, weight: 1 }}
enable_pool_hba: on
pool_hba_file: {hba}
pool_passwd: {passwords}
ssl: allow
ssl_cert: {stage.path("tls.crt")}
ssl_key: {stage.path("tls.key")}
sr_check_user: bench
""")
        self.process = stage.start("pgweir-logins", [program, "run", "-f", config])


class PgBouncer:
    label = "PgBouncer"

    def __init__(self, stage, cluster, _binary, method, secret):
        self.port = free_port()
        users = stage.write("userlist.txt", f'"bench" "{secret}"\n')
        config = stage.write("pgbouncer-logins.ini", f"""
[databases]
bench = host=127.0.0.1 port={cluster.primary} dbname=bench user=bench
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = {method}
auth_file = {users}
pool_mode = transaction
max_client_conn = 2000
log_connections = 0
log_disconnections = 0
client_tls_sslmode = allow
client_tls_cert_file = {stage.path("tls.crt")}
client_tls_key_file = {stage.path("tls.key")}
""")
        self.process = stage.start("pgbouncer-logins", [machine.find_program("pgbouncer"), config])


def measure(stage, proxy, tls, options):
    """Logins per second, and per second of CPU time of the proxy."""
    script = stage.write("one.sql", "select 1;\n")
    before = machine.cpu_seconds(proxy.process.pid)
    # libpq looks for a certificate of its own in the home of whoever started us, which pgbench's user may not enter.
    mode = "require" if tls else "disable"
    environment = {**clean_environment(), "PGSSLMODE": mode, "HOME": stage.directory}
    done = subprocess.run(
        [stage.tool("pgbench"), "-h", "127.0.0.1", "-p", str(proxy.port), "-U", "bench", "-n", "-C", "-f", script, "-c",
         str(options.clients), "-j", "2", "-T", str(options.seconds), "bench"],
        capture_output=True, text=True, check=False, env=environment, cwd=stage.directory, **stage.run_as)
    if done.returncode != 0:
        raise Trouble(f"pgbench failed: {done.stderr.strip()[-500:]}")
    count = next(int(line.split(":")[1].split("/")[0]) for line in done.stdout.splitlines()
                 if line.startswith("number of transactions actually processed"))
    used = machine.cpu_seconds(proxy.process.pid) - before
    return count / options.seconds, count / used if used else 0.0


def rounds(stage, proxies, tls, options):
    """Medians of the rounds; the proxies take turns in each."""
    seen = [[] for _ in proxies]
    for _ in range(options.rounds):
        for proxy, results in zip(proxies, seen):
            results.append(measure(stage, proxy, tls, options))
    return [tuple(statistics.median(column) for column in zip(*results)) for results in seen]


def section(kinds, rows, options):
    """What goes into docs/benchmarks.md."""
    header = ["method", "TLS"] + [f"{kind.label}: {what}" for kind in kinds for what in ("logins/s", "per CPU second")]
    about = ("`pgbench -C` with `select 1`, trust on the node. Logins per second are those of the whole machine, pgbench "
             "included, which itself computes SCRAM's 4,096 rounds; what a login costs the proxy is the second column: "
             "logins per second of its CPU time, one core's worth.")
    programs = {Pgweir: options.binary, PgBouncer: machine.find_program("pgbouncer")}
    versions = [f"{kind.label} {machine.version_of([programs[kind], '--version'])}" for kind in kinds]
    source = (f"{machine.facts()['date']}, {machine.source_of(options.binary)}, {machine.summary()}; {', '.join(versions)}; "
              f"`benches/logins.py --clients {options.clients}`, {options.rounds} rounds of {options.seconds} s, medians.")
    return "\n\n".join(["### Logins by method", about, table(header, rows), source])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/pgweir")
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--write", metavar="FILE", help="put the table into this document")
    options = parser.parse_args()
    kinds = [Pgweir] + ([PgBouncer] if machine.find_program("pgbouncer") else [])
    rows = []
    with Stage() as stage:
        cluster = Cluster(stage)
        certificate(stage)
        verifier, digest = secrets(stage, cluster)
        for method in METHODS:
            running = [kind(stage, cluster, options.binary, method, digest if method == "md5" else verifier)
                       for kind in kinds]
            for proxy in running:
                stage.wait_ready(proxy.process, proxy.port)
            for tls in (False, True):
                cells = rounds(stage, running, tls, options)
                rows.append([method, "yes" if tls else "no"] + [f"{value:,.0f}" for cell in cells for value in cell])
                print(rows[-1], file=sys.stderr, flush=True)
            for proxy in running:
                stage.stop(proxy.process)
    made = section(kinds, rows, options)
    print(made)
    if options.write:
        write_sections(options.write, {"logins": made})


if __name__ == "__main__":
    try:
        main()
    except Trouble as trouble:
        sys.exit(f"logins.py: {trouble}")
