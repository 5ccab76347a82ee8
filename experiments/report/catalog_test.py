"""Tests that the programs that catalog.py lists can be run."""

import pathlib
import unittest

import catalog
import plots


class Catalog(unittest.TestCase):
    def test_every_program_is_among_the_data(self):
        for experiment in catalog.EXPERIMENTS + (catalog.RIVALS,):
            self.assertTrue(pathlib.Path(experiment.program).exists(),
                            "{}: add it to the data in experiments/report/BUILD.bazel".format(experiment.target))

    def test_names_are_unique(self):
        names = [experiment.name for experiment in catalog.EXPERIMENTS]
        self.assertEqual(len(names), len(set(names)))

    def test_plots_are_known(self):
        for experiment in catalog.EXPERIMENTS:
            plots.of_table(experiment.plots, {"rows": [], "columns": []}, "x")

    def test_find(self):
        self.assertEqual(catalog.find([]), list(catalog.EXPERIMENTS))
        name = catalog.EXPERIMENTS[-1].name
        self.assertEqual([experiment.name for experiment in catalog.find([name])], [name])

    def test_flags(self):
        experiment = catalog.Experiment("x", "X", (), 1, edition="2019-06", data=True)
        self.assertEqual(experiment.name, "x-2019-06")
        self.assertEqual(experiment.flags("small", "cpu", "fake"),
                         ["--scale=small", "--edition=2019-06", "--devices=cpu", "--data=fake"])
        self.assertEqual(catalog.Experiment("x", "X", (), 1).flags("small", data="fake"), ["--scale=small"])

    def test_flags_of_the_rivals(self):
        self.assertEqual(catalog.rivals_flags("full"), [])
        self.assertEqual(catalog.rivals_flags("small", "python3"), ["--rivals=python3"])
        self.assertIn("--stages=2", catalog.rivals_flags("smoke"))


if __name__ == "__main__":
    unittest.main()
