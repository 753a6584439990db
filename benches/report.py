"""Tables in Markdown, and the file they go into."""

import os
import re

import machine

# The share of the machine that others may take before the figures say more about them.
TOO_MUCH = 0.1


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def origin(workload, versions, options, others):
    """Where the figures come from: one paragraph, so that each table can stand alone."""
    rounds = f"{options.rounds} round{'s' if options.rounds > 1 else ''} of {options.seconds} s, medians"
    text = (f"{machine.facts()['date']}, {machine.source_of(options.binary)}, {machine.summary()}; {', '.join(versions)}; "
            f"`{workload.command()}`, {rounds}. Other processes took {others:.0%} of the machine meanwhile.")
    return text + (" **That is too much for figures to rely on.**" if others > TOO_MUCH else "")


def section(workload, rows, versions, options, others):
    peers = list(rows[0].runs) if rows else []
    parts = [f"### {workload.title}", workload.about, "Transactions per second, and the ratio to direct:",
             table([""] + peers, [[row.name] + [throughput(row, peer) for peer in peers] for row in rows])]
    proxies = [peer for peer in peers if peer != "direct"]
    if proxies:
        parts += ["CPU time of the proxy, microseconds per transaction:",
                  table([""] + proxies, [[row.name] + [cpu(row, peer) for peer in proxies] for row in rows])]
    parts += notes(rows, peers)
    parts.append(origin(workload, versions, options, others))
    return "\n\n".join(parts)


def capacity(workload, row, versions, options, others):
    """Transactions per second by the number of nodes, and the ratio to one node."""
    base = next((row.median(name, "tps") for name in row.runs), None)
    lines = []
    for name in row.runs:
        tps = row.median(name, "tps")
        lines.append([name, "failed", "-"] if tps is None else [name, f"{tps:.0f}", f"{tps / base:.2f}" if base else "-"])
    parts = [f"### {workload.title}", workload.about, table(["", "tps", "ratio to one node"], lines)]
    return "\n\n".join(parts + notes([row], list(row.runs)) + [origin(workload, versions, options, others)])


def figure(value, form):
    return "-" if value is None else format(value, form)


def latency(workload, row, versions, options, others):
    """Median and 99th percentile, and what a peer adds to direct's."""
    base = row.median("direct", "latency")
    lines = []
    for peer in row.runs:
        middle, high = row.median(peer, "tps"), row.median(peer, "latency")
        added = "-" if None in (base, high) or peer == "direct" else f"{high - base:.0f}"
        lines.append([peer, figure(middle, ".0f"), figure(high, ".0f"), added])
    parts = [f"### {workload.title}", workload.about, f"{row.name}; microseconds:",
             table(["", "median", "p99", "p99 added to direct"], lines)]
    return "\n\n".join(parts + notes([row], list(row.runs)) + [origin(workload, versions, options, others)])


def encrypted(workload, rows, versions, options, others):
    """CPU time with and without TLS."""
    plain, secure = rows
    lines = []
    for peer in plain.runs:
        without, with_it = plain.median(peer, "cpu"), secure.median(peer, "cpu")
        added = "-" if None in (without, with_it) else f"{with_it - without:.1f}"
        lines.append([peer, figure(without, ".1f"), figure(with_it, ".1f"), added])
    parts = [f"### {workload.title}", workload.about, table(["us of CPU a transaction", "plain", "TLS", "TLS costs"], lines)]
    return "\n\n".join(parts + notes(rows, list(plain.runs)) + [origin(workload, versions, options, others)])


def throughput(row, peer):
    tps, base = row.median(peer, "tps"), row.median("direct", "tps")
    if tps is None:
        return "failed"
    return f"{tps:.0f}" if peer == "direct" or not base else f"{tps:.0f} ({tps / base:.2f})"


def cpu(row, peer):
    value = row.median(peer, "cpu")
    return "-" if value is None else f"{value:.1f}"


def notes(rows, peers):
    """What failed and why: a hole in a table is a finding."""
    said = dict.fromkeys(f"{peer}, {row.name}: {row.error(peer)}" for row in rows for peer in peers if row.error(peer))
    return ["Failed: " + "; ".join(said) + "."] if said else []


def need_places(path, names):
    """Before hours of measuring: the page has a place for each of them."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for name in names:
        if f"<!-- bench {name} -->" not in text or f"<!-- /bench {name} -->" not in text:
            raise machine.Trouble(f"{path} has no place for '{name}'")


def write_plot(path, name, plot):
    """Puts a plot beside the page; what shows it there."""
    if plot is None:
        return ""
    title, svg = plot
    directory = os.path.join(os.path.dirname(os.path.abspath(path)), "plots")
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, f"{name}.svg"), "w", encoding="utf-8") as file:
        file.write(svg)
    return f"\n\n![{title}](plots/{name}.svg)"


def write_sections(path, sections):
    """Replaces what is between `<!-- bench NAME -->` and `<!-- /bench NAME -->`."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for name, body in sections.items():
        begin, finish = f"<!-- bench {name} -->", f"<!-- /bench {name} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(finish), re.DOTALL)
        if not pattern.search(text):
            raise machine.Trouble(f"{path} has no place for '{name}': add {begin} and {finish}")
        text = pattern.sub(lambda _: f"{begin}\n{body}\n{finish}", text)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
