"""The stage of a run (a temporary directory, and the processes started in it) and the PostgreSQL servers on it."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import machine
from machine import Trouble

START_WITHIN = 60
STOP_WITHIN = 15
ROWS_OF_TEST_1 = 500_000


class Stage:
    """A temporary directory and what runs in it; leaving it ends and removes all of that."""

    def __init__(self):
        self.run_as = machine.run_as()
        self.bin = machine.postgres_bin()
        self.processes = []
        self.directory = None

    def __enter__(self):
        self.directory = tempfile.mkdtemp(prefix="pgweir-bench-")
        if self.run_as:
            os.chown(self.directory, self.run_as["user"], self.run_as["group"])
        return self

    def __exit__(self, *_):
        # A second Ctrl-C must not leave servers behind.
        previous = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        for process in reversed(self.processes):
            end(process)
        shutil.rmtree(self.directory, ignore_errors=True)
        for number, handler in previous.items():
            signal.signal(number, handler)

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def write(self, name, text):
        path = self.path(name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o600)
        if self.run_as:
            os.chown(path, self.run_as["user"], self.run_as["group"])
        return path

    def start(self, name, command):
        """Starts a program that stays in the foreground; what it prints goes to NAME.log."""
        with open(self.path(f"{name}.log"), "ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory,
                                       start_new_session=True, env=clean_environment(), **self.run_as)
        process.log = self.path(f"{name}.log")
        self.processes.append(process)
        return process

    def stop(self, process):
        end(process)
        self.processes.remove(process)

    def call(self, *command, text=None):
        """Runs a program to its end; its output."""
        done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=self.directory, check=False,
                              env=clean_environment(), timeout=300, **self.run_as)
        if done.returncode != 0:
            raise Trouble(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-500:]}")
        return done.stdout

    def tool(self, name):
        """A PostgreSQL program: beside the server, or on the path when packages split them."""
        beside = os.path.join(self.bin, name)
        found = beside if os.path.exists(beside) else shutil.which(name)
        if not found:
            raise Trouble(f"{name} is missing: install PostgreSQL's client and contrib programs")
        return found

    def wait_ready(self, process, port, user="bench", database="bench"):
        """Until a query through the port is answered."""
        deadline = time.monotonic() + START_WITHIN
        while True:
            try:
                return self.sql(port, "select 1", user, database)
            except Trouble as trouble:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise Trouble(f"{os.path.basename(process.log)}: not ready: {trouble}\n{tail(process.log)}") from None
            time.sleep(0.05)

    def sql(self, port, text, user="bench", database="bench"):
        return self.call(self.tool("psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(port),
                         "-U", user, "-d", database, "-f", "-", text=text).strip()


def clean_environment():
    """Ours without what would point PostgreSQL's programs elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "PGPASSWORD": "bench", "PGSSLMODE": "disable", "PGCONNECT_TIMEOUT": "10"}


def end(process):
    """SIGINT, which every one of these programs takes for a quick but clean stop, then force for the whole session."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def tail(path, lines=15):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-lines:])
    except OSError:
        return ""


def free_port():
    """A port that was free a moment ago; reserved for nobody, but nothing else here takes them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Cluster:
    """A primary and two streaming standbys with pgbench's tables (scale 10) and test_1."""

    def __init__(self, stage):
        self.stage = stage
        self.ports = [free_port() for _ in range(3)]
        primary = stage.path("n0")
        stage.call(stage.tool("initdb"), "-D", primary, "-U", "postgres", "-A", "trust", "-E", "UTF8",
                   "--locale=C", "--no-sync")
        # Trust on both sides everywhere: a client's SCRAM costs milliseconds and would hide what is measured.
        stage.write("n0/pg_hba.conf", "host all,replication all 127.0.0.1/32 trust\n")
        self._start(0)
        self._fill()
        for number in (1, 2):
            stage.call(stage.tool("pg_basebackup"), "-h", "127.0.0.1", "-p", str(self.ports[0]), "-U", "postgres",
                       "-D", stage.path(f"n{number}"), "-R", "-X", "stream", "-c", "fast")
            self._start(number)

    @property
    def primary(self):
        return self.ports[0]

    def _start(self, number):
        settings = {
            "port": self.ports[number], "listen_addresses": "127.0.0.1", "unix_socket_directories": "",
            "max_connections": 500, "shared_buffers": "256MB", "fsync": "off", "max_wal_size": "4GB",
            "wal_keep_size": "1GB" if self._at_least(13) else None, "cluster_name": f"n{number}",
        }
        command = [self.stage.tool("postgres"), "-D", self.stage.path(f"n{number}")]
        for name, value in settings.items():
            if value is not None:
                command += ["-c", f"{name}={value}"]
        process = self.stage.start(f"n{number}", command)
        self.stage.wait_ready(process, self.ports[number], "postgres", "postgres")

    def _at_least(self, version):
        return machine.major_version(self.stage.bin) >= version

    def _fill(self):
        stage = self.stage
        stage.sql(self.primary, "create role bench login superuser", "postgres", "postgres")
        stage.sql(self.primary, "create database bench owner bench", "postgres", "postgres")
        stage.call(stage.tool("pgbench"), "-h", "127.0.0.1", "-p", str(self.primary), "-U", "bench", "-i", "-s", "10",
                   "-q", "bench")
        stage.sql(self.primary, f"""
            create table test_1(id int8 primary key, name text, creat_time timestamp);
            insert into test_1 select i, 'name ' || i, now() from generate_series(1, {ROWS_OF_TEST_1}) i;
            vacuum analyze test_1;""")
        print(f"PostgreSQL {self.version()} on ports {', '.join(map(str, self.ports))}", file=sys.stderr)

    def version(self):
        return self.stage.sql(self.primary, "show server_version").split()[0]
