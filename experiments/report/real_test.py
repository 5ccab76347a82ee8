"""The page of what experiments really write: made-up results would not show that a program has changed.

    real_test.py MEMORY SPEED    # //experiments/unet_memory, //experiments/resnet101_speed
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import page
import page_text
import plots
import run

MEMORY, SPEED = sys.argv[1:3]
FOLDER = tempfile.TemporaryDirectory()


def table_of(program, *flags):
    """The table that the program writes at smoke."""
    file = pathlib.Path(FOLDER.name, "table.json")
    # Each program gets one thread, because tests run in parallel, and threads that spin for a core
    # that they do not get would cost minutes.
    subprocess.run([program, "--scale=smoke", "--seed=4711", "--json={}".format(file), *flags], check=True,
                   stdout=subprocess.DEVNULL, env=dict(os.environ, OMP_NUM_THREADS="1"))
    return json.loads(file.read_text())


class Checks:
    """What holds for every experiment. A class with these has `table`, the kinds of `plots`, and `at_full_size`: how
    rows of the published size are obtained."""

    def html(self, table=None):
        result = run.Result(run.DONE, scale="smoke", json=table or self.table)
        section = page.Section("x", "An experiment", result, self.plots)
        return page.render(page.Report("smoke", "now", "", {}, [section]))

    def rows(self, way):
        found = [row for row in self.table["rows"] if row["way"] == way and row["origin"] != "not run"]
        self.assertTrue(found, way)
        return found

    def test_rows_say_how_they_were_made(self):
        for row in self.rows("measured"):
            settings = row["settings"]
            self.assertEqual((settings.get("scale"), settings.get("seed")), ("smoke", 4711), row["experiment"])
            self.assertEqual(set(settings.get("devices", "").split(",")), {"cpu"}, row["experiment"])
        for row in self.rows(self.at_full_size):
            self.assertEqual(row["settings"].get("scale"), "full", row["experiment"])

    def test_results_that_came_without_a_report_are_of_the_scale_of_their_measured_rows(self):
        self.assertEqual(run.scales(run.Result(run.DONE, json=self.table)), {"smoke"})

    def test_the_page_takes_scale_devices_and_seed_from_the_rows(self):
        table = json.loads(json.dumps(self.table))
        for row in table["rows"]:
            if row["way"] == "measured" and row["settings"]:
                row["settings"].update(scale="small", devices="cuda:5", seed=815)
        text = page_text.of(self.html(table))
        self.assertIn("\nscale\nsmall\ndevices\ncuda:5\nseed\n815\n", text)
        self.assertIn("What is measured at --scale=small is of another size", text)
        self.assertIn("\nscale\nsmoke\ndevices\ncpu", page_text.of(self.html()))

    def test_only_figures_are_shown(self):
        self.assertEqual(re.findall(r"\b(?:None|nan|NaN|inf|null|undefined)\b", page_text.of(self.html())), [])
        self.assertNotIn("NaN", json.dumps(plots.of_table(self.plots, self.table, "x")))

    def test_plots_keep_what_is_of_another_size_apart(self):
        smaller, others = set(), set()  # the names of the lines
        for plot in plots.of_table(self.plots, self.table, "x"):
            names = smaller if "measured at --scale=smoke" in plot["title"] else others
            names.update(line["name"] for line in plot["series"])
        self.assertEqual(smaller, {"ours, measured"})
        self.assertIn("ours, " + self.at_full_size, others)
        self.assertNotIn("ours, measured", others)


class Memory(Checks, unittest.TestCase):
    plots = ("memory",)
    at_full_size = "planned"

    @classmethod
    def setUpClass(cls):
        cls.table = table_of(MEMORY, "--experiment=baseline")

    def test_figures(self):
        text = page_text.of(self.html())
        self.assertIn("1 planned, 1 measured, 4 not run", text)
        self.assertIn("| 362,157,516 | 362.2M |", text)


class Speed(Checks, unittest.TestCase):
    plots = ("partitions",)
    at_full_size = "simulated"

    @classmethod
    def setUpClass(cls):
        cls.table = table_of(SPEED, "--experiment=baseline,pipeline-1")

    def test_figures(self):
        # The simulation is scaled such that its first row is as published.
        self.assertRegex(page_text.of(self.html()),
                         r"\| simulated\S* \| 95\.9 \| 95\.862 \| 1\.00 \| 1 \| 1 \| 1\.00\n")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
