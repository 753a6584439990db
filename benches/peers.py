"""The programs that are measured: how each is configured and started. All of them get the same node addresses, trust
authentication on both sides and a pool of the same size; what a program cannot do is said in its label."""

import contextlib
import dataclasses
import os
import shutil

import machine
from servers import free_port

POOL = 20


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a workload asks of the peers that can do it."""

    # Shares of the reads, in the order of the nodes; nodes beyond are left out.
    weights: tuple
    # Backends per node.
    pool_size: int
    # Clients may use TLS, with a certificate that is made for the run.
    tls: bool = False
    # pgweir's worker threads.
    workers: str = "auto"
    # The nodes' ports where they are not the cluster's.
    ports: tuple = ()


class Peer:
    """A port that takes connections, and the process behind it."""

    label = ""
    # The program whose presence makes the peer available.
    program = None

    def __init__(self, stage, cluster, binary, setup):
        self.stage, self.cluster, self.binary, self.setup = stage, cluster, binary, setup
        self.ports = setup.ports or cluster.ports
        self.port = free_port()
        self.process = None
        self.version = self.find_version()
        self.start()

    @classmethod
    def available(cls, _binary):
        return machine.find_program(cls.program) is not None

    def find_version(self):
        return machine.version_of([machine.find_program(self.program), "--version"])

    def start(self):
        raise NotImplementedError

    def stop(self):
        if self.process:
            self.stage.stop(self.process)

    def launch(self, *command):
        name = type(self).__name__.lower()
        self.process = self.stage.start(name, command)
        self.stage.wait_ready(self.process, self.port)

    def database(self, _mode):
        """The database name to connect to for a query mode of pgbench."""
        return "bench"

    def cpu_seconds(self):
        """CPU time so far; None where it cannot be told."""
        return machine.cpu_seconds(self.process.pid) if self.process else None


class Direct(Peer):
    label = "direct"

    @classmethod
    def available(cls, _binary):
        return True

    def find_version(self):
        return f"PostgreSQL {self.cluster.version()}"

    def start(self):
        self.port = self.ports[0]


class Pgweir(Peer):
    label = "pgweir"
    workers = None

    @classmethod
    def available(cls, binary):
        return os.access(binary, os.X_OK)

    def find_version(self):
        return machine.version_of([self.binary, "--version"])

    def start(self):
        stage = self.stage
        # One copy for the whole run: a build meanwhile must not change what is measured, and the user that runs it may
        # not be able to reach the build's directory.
        program = stage.path("pgweir")
        if not os.path.exists(program):
            shutil.copy(self.binary, program)
            os.chmod(program, 0o755)
        weights = self.setup.weights
        nodes = "".join(f"  - {{ hostname: 127.0.0.1, port: {port}, weight: {weight} }}\n"
                        for port, weight in zip(self.ports, weights))
        tls = "ssl: allow\nssl_cert: {}\nssl_key: {}\n".format(*certificate(stage)) if self.setup.tls else ""
        passwords = stage.write("pool_passwd", "bench:TEXTbench\n")
        hba = stage.write("pool_hba.conf", "host all all 127.0.0.1/32 trust\n")
        config = stage.write("pgweir.yaml", f"""
listen_addresses: ["127.0.0.1"]
port: {self.port}
workers: {self.workers or self.setup.workers}
max_client_conn: 12000
metrics_listen: "off"
backends:
{nodes}
{tls}default_pool_size: {self.setup.pool_size}
enable_pool_hba: on
pool_hba_file: {hba}
pool_passwd: {passwords}
sr_check_user: bench
""")
        self.launch(program, "run", "-f", config)


class Pgweir1(Pgweir):
    """As PgBouncer: what one thread costs, which waits less often for more at once."""

    label = "pgweir, 1 worker"
    workers = "1"


class PgBouncer(Peer):
    label = "PgBouncer"
    program = "pgbouncer"

    def _tracks_statements(self):
        """Since 1.21 it can use prepared statements in transaction mode."""
        numbers = [int(word) for word in self.version.split(".") if word.isdigit()]
        return numbers[:2] >= [1, 21]

    def start(self):
        node = f"host=127.0.0.1 port={self.ports[0]} dbname=bench user=bench"
        tls = ""
        if self.setup.tls:
            tls = "client_tls_sslmode = allow\nclient_tls_cert_file = {}\nclient_tls_key_file = {}\n".format(*certificate(self.stage))
        users = self.stage.write("userlist.txt", '"bench" "bench"\n')
        prepared = "max_prepared_statements = 200" if self._tracks_statements() else ""
        config = self.stage.write("pgbouncer.ini", f"""
[databases]
bench = {node}
bench_session = {node} pool_mode=session pool_size=100
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
max_client_conn = 12000
default_pool_size = {self.setup.pool_size}
log_connections = 0
log_disconnections = 0
{prepared}
{tls}""")
        self.launch(machine.find_program(self.program), config)

    def database(self, mode):
        return "bench_session" if mode == "prepared" and not self._tracks_statements() else "bench"


class HAProxy(Peer):
    label = "HAProxy"
    program = "haproxy"

    def find_version(self):
        return machine.version_of([machine.find_program(self.program), "-v"])

    def start(self):
        config = self.stage.write("haproxy.cfg", f"""
defaults
  mode tcp
  timeout connect 5s
  timeout client 1h
  timeout server 1h
listen pg
  bind 127.0.0.1:{self.port}
  server p 127.0.0.1:{self.ports[0]}
""")
        self.launch(machine.find_program(self.program), "-db", "-f", config)


class Pgpool(Peer):
    label = "Pgpool-II"
    program = "pgpool"

    def start(self):
        rows = "".join(f"""
backend_hostname{number} = '127.0.0.1'
backend_port{number} = {port}
backend_weight{number} = {weight}
""" for number, (port, weight) in enumerate(zip(self.cluster.ports, self.setup.weights)))
        config = self.stage.write("pgpool.conf", f"""
backend_clustering_mode = 'streaming_replication'
listen_addresses = '127.0.0.1'
port = {self.port}
socket_dir = '{self.stage.directory}'
pcp_port = {free_port()}
pcp_socket_dir = '{self.stage.directory}'
pid_file_name = '{self.stage.path("pgpool.pid")}'
logdir = '{self.stage.directory}'
{rows}
enable_pool_hba = off
num_init_children = 100
max_pool = 1
load_balance_mode = on
statement_level_load_balance = on
sr_check_user = 'bench'
sr_check_database = 'bench'
health_check_period = 0
""")
        empty = self.stage.write("pcp.conf", "")
        passwords = self.stage.write("pgpool_passwd", "bench:TEXTbench\n")
        self.launch(machine.find_program(self.program), "-n", "-f", config, "-F", empty, "-k", passwords)


def certificate(stage):
    """A self-signed certificate with an elliptic key, and the key: the same for every peer of the run."""
    crt, key = stage.path("bench.crt"), stage.path("bench.key")
    if not os.path.exists(crt):
        stage.call("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days",
                   "2", "-subj", "/CN=localhost", "-keyout", key, "-out", crt)
        os.chmod(key, 0o600)
    return crt, key


KINDS = {"direct": Direct, "pgweir": Pgweir, "pgweir1": Pgweir1, "pgbouncer": PgBouncer, "haproxy": HAProxy, "pgpool": Pgpool}
INSTALLABLE = {
    "pgweir": "cargo build --release -p pgweir",
    "pgweir1": "cargo build --release -p pgweir",
    "pgbouncer": "apt-get install pgbouncer",
    "haproxy": "apt-get install haproxy",
    "pgpool": "apt-get install pgpool2",
}


@contextlib.contextmanager
def start_peers(stage, cluster, names, binary, setup):
    """Starts the named peers; stops them afterwards, whatever happened."""
    running = []
    try:
        for name in names:
            running.append(KINDS[name](stage, cluster, binary, setup))
        yield running
    finally:
        for peer in reversed(running):
            peer.stop()
