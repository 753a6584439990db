"""Facts about this machine, programs on it, and processes: what the measurements need to know and to say."""

import datetime
import functools
import glob
import os
import pwd
import re
import shutil
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEFAULT_BINARY = os.path.join(ROOT, "target", "release", "pgweir")
TICKS = os.sysconf("SC_CLK_TCK")


class Trouble(Exception):
    """Something is missing or failed; the text says what to do."""


def find_program(name):
    """A program on the path or in sbin, where Debian keeps servers and an ordinary user's path does not look."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")


def postgres_bin():
    """The directory of the newest PostgreSQL server."""
    found = glob.glob("/usr/lib/postgresql/*/bin/initdb") + glob.glob("/usr/pgsql-*/bin/initdb")
    on_path = shutil.which("initdb")
    if on_path:
        found.append(os.path.realpath(on_path))
    if not found:
        raise Trouble("no PostgreSQL server found: install one (Debian: apt-get install postgresql)")
    return os.path.dirname(max(found, key=lambda path: major_version(os.path.dirname(path))))


def major_version(bin_directory):
    text = first_line([os.path.join(bin_directory, "postgres"), "--version"])
    number = re.search(r"(\d+)", text)
    return int(number[1]) if number else 0


def first_line(command):
    """What a program says first, wherever it says it; empty when it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return ""
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0] if lines else ""


def version_of(command):
    number = re.search(r"\d+(\.\d+)+", first_line(command))
    return number[0] if number else "?"


def run_as():
    """Arguments for subprocess that give up root, which PostgreSQL and PgBouncer refuse to run as."""
    if os.geteuid() != 0:
        return {}
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        raise Trouble("PostgreSQL refuses to run as root, and there is no user postgres") from None
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


@functools.cache
def facts():
    """What is said of this machine and this source; fixed at the first call, because the source may change meanwhile."""
    cpu = "unknown CPU"
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        cpu = names[0] if names else cpu
    except OSError:
        pass
    commit = first_line(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"])
    changed = first_line(["git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no", "--", "crates"])
    return {
        "date": datetime.date.today().isoformat(),
        "commit": (commit or "unknown") + (" with local changes" if changed else ""),
        "cpu": cpu,
        "cores": os.cpu_count() or 1,
        "kernel": f"{os.uname().sysname} {os.uname().release}",
    }


def source_of(binary):
    """Which source pgweir was built from, as far as that is known: only the build just made is this tree's."""
    if os.path.realpath(binary) == os.path.realpath(DEFAULT_BINARY):
        return f"commit {facts()['commit']}"
    return "a binary of unknown commit"


def summary():
    known = facts()
    return f"{known['cores']} cores, {known['cpu']}, {known['kernel']}"


class Meter:
    """How much of the machine others took since it was made."""

    def __init__(self):
        self.began, self.busy, self.own = time.monotonic(), busy_seconds(), cpu_seconds(os.getpid())

    def others(self):
        """Their share of all cores, from 0 to 1. Interrupts on our behalf count as theirs: an upper bound."""
        elapsed = (time.monotonic() - self.began) * facts()["cores"]
        theirs = (busy_seconds() - self.busy) - (cpu_seconds(os.getpid()) - self.own)
        return min(max(theirs / elapsed, 0.0), 1.0) if elapsed else 0.0


def busy_seconds():
    """Time that the cores were not idle, stolen time included. /proc/stat: user nice system idle iowait irq ..."""
    with open("/proc/stat", encoding="utf-8") as file:
        fields = [int(word) for word in file.readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS


def stat_fields(pid):
    """The fields of /proc/PID/stat after the name, which may hold spaces; field 0 here is the state."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rsplit(")", 1)[1].split()


def process_tree(root):
    children = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            children.setdefault(int(stat_fields(entry)[1]), []).append(int(entry))
        except (OSError, IndexError):
            continue  # it ended while we looked
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo.extend(children.get(pid, []))
    return found


def cpu_seconds(root):
    """User and system time of a process, all that descend from it, and those of them that ended and were waited for."""
    ticks = 0
    for pid in process_tree(root):
        try:
            ticks += sum(map(int, stat_fields(pid)[11:15]))
        except (OSError, IndexError):
            continue
    return ticks / TICKS


def resident_kb(root):
    """The resident set of a process and all that descend from it (kB)."""
    total = 0
    for pid in process_tree(root):
        try:
            with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))
        except OSError:
            continue
    return total
