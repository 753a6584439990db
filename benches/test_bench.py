"""Tests of what turns output into tables: python3 -m unittest discover -s benches."""

import argparse
import os
import subprocess
import tempfile
import unittest
from xml.etree import ElementTree

import failover
import machine
import report
import workloads
from workloads import Figures, Row, read_pgbench

GOOD = """transaction type: <builtin: select only>
number of transactions actually processed: 1000
number of failed transactions: 0 (0.000%)
latency average = 0.250 ms
initial connection time = 1.5 ms
tps = 4000.5 (without initial connection time)
"""


def done(stdout="", stderr="", code=0):
    return subprocess.CompletedProcess([], code, stdout, stderr)


class Reading(unittest.TestCase):
    def test_figures_are_read(self):
        figures = read_pgbench(done(GOOD), 0.02)
        self.assertEqual((figures.tps, figures.latency, figures.error), (4000.5, 0.25, ""))
        self.assertAlmostEqual(figures.cpu, 20.0)
        self.assertIsNone(read_pgbench(done(GOOD), None).cpu)

    def test_failures_are_not_figures(self):
        self.assertIn("3 failed", read_pgbench(done(GOOD.replace("transactions: 0", "transactions: 3")), 0).error)
        self.assertIn("no such", read_pgbench(done(stderr="pgbench: error: no such", code=1), 0).error)
        self.assertTrue(read_pgbench(done(GOOD, code=2), 0).error)
        self.assertTrue(read_pgbench(done("", "", 0), 0).error)


class Tables(unittest.TestCase):
    def row(self):
        row = Row("simple, 8 clients", ["direct", "pgweir"])
        row.runs["direct"] = [Figures(100.0), Figures(300.0), Figures(200.0)]
        row.runs["pgweir"] = [Figures(150.0, cpu=9.0), Figures(error="refused"), Figures(170.0, cpu=11.0)]
        return row

    def test_medians_are_over_the_rounds_that_worked(self):
        row = self.row()
        self.assertEqual(row.median("direct", "tps"), 200.0)
        self.assertEqual(row.median("pgweir", "cpu"), 10.0)
        self.assertIsNone(row.median("direct", "cpu"))
        self.assertEqual(report.throughput(row, "pgweir"), "160 (0.80)")

    def test_a_failure_is_said_below_the_table(self):
        self.assertEqual(report.notes([self.row()], ["direct", "pgweir"]), ["Failed: pgweir, simple, 8 clients: refused."])

    def test_only_the_named_section_is_replaced(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "x.md")
            with open(path, "w", encoding="utf-8") as file:
                file.write("a\n<!-- bench one -->\nold\n<!-- /bench one -->\nb\n<!-- bench two -->\nkept\n<!-- /bench two -->\n")
            report.write_sections(path, {"one": r"new \1"})
            with open(path, encoding="utf-8") as file:
                text = file.read()
            self.assertEqual(text.count("new \\1"), 1)
            self.assertNotIn("old", text)
            self.assertIn("kept", text)
            with self.assertRaises(machine.Trouble):
                report.write_sections(path, {"three": ""})

    def test_the_page_has_a_place_for_every_workload(self):
        with open(os.path.join(machine.ROOT, "docs", "benchmarks.md"), encoding="utf-8") as file:
            text = file.read()
        for name in workloads.ALL:
            self.assertIn(f"<!-- bench {name} -->", text)
            self.assertIn(f"<!-- /bench {name} -->", text)


class Failover(unittest.TestCase):
    SAID = ("outage: 2000 ms; after the kill: noticed 100, declared dead 1100, asked to promote 1150, takes writes 1400\n"
            "outage: 1000 ms; after the kill: noticed 50, declared dead 900, asked to promote 950, takes writes 990\n"
            "outage: median 1000 ms of 2; 700 rows, 40 writers cut\n")

    def test_rounds_are_read_and_split(self):
        rounds, total = failover.read(self.SAID)
        self.assertEqual((rounds[0], total), ((2000, 100, 1100, 1150, 1400), (700, 40)))
        lines = failover.lines(rounds)
        self.assertEqual(lines[0], ["1", "100", "1000", "50", "250", "600", "2000"])
        self.assertEqual((lines[2][0], lines[2][-1]), ("median", "1500"))
        self.assertIn("**1500 ms**", failover.section(rounds, total, "today.", 0.0))

    def test_no_figures_are_trouble(self):
        with self.assertRaises(machine.Trouble):
            failover.read("test result: ok")

    def test_the_page_has_a_place_for_it(self):
        with open(os.path.join(machine.ROOT, "docs", "benchmarks.md"), encoding="utf-8") as file:
            self.assertIn("<!-- bench failover -->", file.read())


class Plots(unittest.TestCase):
    def test_a_plot_shows_medians_of_what_worked(self):
        cells = [{"row": "simple, 32 clients", "peer": "pgweir", "cpu": cpu, "error": ""} for cpu in (10.0, 12.0, 14.0)]
        cells.append({"row": "simple, 32 clients", "peer": "<HAProxy>", "cpu": None, "error": "refused"})
        _, svg = workloads.plot("select", cells)
        root = ElementTree.fromstring(svg)
        titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
        self.assertEqual(titles, ["pgweir: 12.0"])
        self.assertIsNone(workloads.plot("select", []), "nothing to show")
        self.assertIsNone(workloads.plot("tpcb", cells), "not one of its rows")

    def test_it_stands_beside_the_page(self):
        with tempfile.TemporaryDirectory() as directory:
            page = os.path.join(directory, "x.md")
            self.assertIn("(plots/one.svg)", report.write_plot(page, "one", ("Cost", "<svg/>")))
            self.assertTrue(os.path.exists(os.path.join(directory, "plots", "one.svg")))


class Percentiles(unittest.TestCase):
    def test_what_is_added_is_the_difference_to_direct(self):
        row = Row("8 clients, 100 a second", ["direct", "pgweir"])
        row.runs["direct"], row.runs["pgweir"] = [Figures(80.0, 200.0)], [Figures(120.0, 260.0)]
        options = argparse.Namespace(rounds=1, seconds=1, binary="/bin/true")
        said = report.latency(workloads.ALL["latency"], row, [], options, 0.0)
        self.assertIn("| pgweir | 120 | 260 | 60 |", said)


class Processes(unittest.TestCase):
    def test_the_time_of_children_counts(self):
        burn = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\n"
        before = machine.cpu_seconds(os.getpid())
        subprocess.run(["python3", "-c", burn], check=True)
        self.assertGreater(machine.cpu_seconds(os.getpid()) - before, 0.15)

    def test_what_we_burn_is_not_the_others(self):
        meter = machine.Meter()
        burn = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
        ours = subprocess.Popen(["python3", "-c", burn])
        ours.wait()
        mine = machine.cpu_seconds(os.getpid()) - meter.own
        self.assertGreater(mine, 0.25)
        self.assertLessEqual(meter.others(), 1.0)
        # What is busy and not ours is theirs: taking our part away must change the answer.
        meter.own -= 10.0
        self.assertEqual(meter.others(), 0.0)

    def test_a_binary_from_elsewhere_has_no_commit(self):
        self.assertIn("unknown", machine.source_of("/bin/true"))
        self.assertIn("commit", machine.source_of(machine.DEFAULT_BINARY))


if __name__ == "__main__":
    unittest.main()
