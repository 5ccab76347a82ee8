"""plots.py: every point comes from the table, and a missing figure has no point."""

import json
import pathlib
import unittest

import plots

DATA = pathlib.Path("experiments/report/testdata")


def read(name):
    return json.loads((DATA / (name + ".json")).read_text())


def lines(plot):
    return {line["name"]: line["y"] for line in plot["series"]}


class Plots(unittest.TestCase):
    def test_speed_up_against_partitions(self):
        plot, measured = plots.of_table(("partitions",), read("made_speed"), "x")
        self.assertEqual((plot["id"], plot["kind"], plot["x"]["labels"]),
                         ("plot-x-1", "lines", ["plain", "1", "2", "4", "8"]))
        self.assertEqual((measured["title"], lines(measured)), (
            "Speed-up against partitions, measured at --scale=smoke",
            {"ours, measured": [1, 0.948, 1.697, None, None]}))
        self.assertEqual(lines(plot), {
            "ours, simulated": [1, 0.8251, 1.4596, 2.8176, 4.4986],
            "torchgpipe, published": [1, 0.853, 1.414, 2.774, 4.294],
            "Huang et al., published": [1, 0.8, 1.42, 2.18, 2.89]})

    def test_what_is_measured_at_the_published_size_is_drawn_beside_the_published(self):
        table = read("made_speed")
        table["rows"][0]["settings"]["scale"] = "full"
        table["rows"][2]["settings"]["scale"] = "full"
        plot, measured = plots.of_table(("partitions",), table, "x")
        self.assertEqual(lines(plot)["ours, measured"], [1, 0.948, None, None, None])
        self.assertEqual(lines(plot)["ours, simulated"], [1, 0.8251, 1.4596, 2.8176, 4.4986])
        self.assertEqual((measured["title"], lines(measured)), (
            "Speed-up against partitions, measured at --scale=smoke",
            {"ours, measured": [None, None, 1.697, None, None]}))

    def test_a_plot_for_each_number_of_micro_batches(self):
        table = read("made_speed")
        table["rows"] = [dict(row, experiment=name, settings={}) for row, name in
                         zip(table["rows"][1::2], ("n2m1", "n2m4", "n4m1", "n4m4"))]
        found = plots.of_table(("partitions",), table, "x")
        self.assertEqual([plot["title"] for plot in found], ["Speed-up against partitions, 1 micro-batch",
                                                             "Speed-up against partitions, 4 micro-batches"])
        self.assertEqual(lines(found[1]), {"ours, simulated": [0.8251, 2.8176], "torchgpipe, published": [0.853, 2.774],
                                           "Huang et al., published": [0.8, 2.18]})

    def test_memory_against_partitions(self):
        found = plots.of_table(("memory",), read("made_memory"), "x")
        self.assertEqual([plot["y"]["title"] for plot in found], ["model (GiB)", "activations (GiB)"])
        self.assertEqual(lines(found[1]), {"ours, planned": [None, 1.02, 3.31, 11.02],
                                           "torchgpipe, published": [None, 0.91, 3.39, 10.83]})

    def test_what_each_device_holds(self):
        def row(experiment, peaks):
            return {"experiment": experiment, "origin": "planned", "figures": {},
                    "settings": {"peak_bytes": [gib << 30 for gib in peaks]}}
        table = {"columns": [], "rows": [row("7b-even", [3, 2]), row("7b-exact", [2, 2]), row("13b-even", [5, 4]),
                                         {"experiment": "70b-even", "origin": "not run", "figures": {}}]}
        found = plots.of_table(("devices",), table, "x")
        self.assertEqual([(plot["title"], plot["x"], lines(plot)) for plot in found], [
            ("7b, planned", {"title": "device", "labels": ["0", "1"]}, {"even": [3, 2], "exact": [2, 2]}),
            ("13b, planned", {"title": "device", "labels": ["0", "1"]}, {"even": [5, 4]})])

    def test_where_memory_ran_out_is_marked(self):
        model, activations = plots.of_table(("memory",), read("made_memory"), "x")
        self.assertEqual({line["name"]: line.get("marks") for line in activations["series"]}, {
            "ours, planned": [plots.NO_MEMORY, None, None, None],
            "torchgpipe, published": [plots.NO_MEMORY, None, None, None]})
        self.assertEqual([line.get("marks") for line in model["series"]],
                         [[plots.NO_MEMORY, None, None, None], None])

    def test_a_plot_without_a_legend_says_whose_it_is(self):
        table = read("made_memory")
        for row in table["rows"]:
            row["figures"]["activation_gib"]["published"] = {}
        self.assertEqual([plot["title"] for plot in plots.of_table(("memory",), table, "x")],
                         ["Model (GiB) against partitions", "Activations (GiB) against partitions, planned"])

    def test_published_figures_of_rows_that_were_not_run(self):
        table = read("made_memory")
        row = table["rows"][3]
        row["origin"] = "not run"
        row["figures"]["activation_gib"]["ours"] = None
        found = plots.of_table(("memory",), table, "x")
        self.assertEqual(lines(found[1]), {"ours, planned": [None, 1.02, 3.31, None],
                                           "torchgpipe, published": [None, 0.91, 3.39, 10.83]})

    def test_curves_of_accuracy(self):
        found = plots.of_table(("epochs",), read("made_accuracy"), "x")
        self.assertEqual(lines(found[0]), {"naive-128": [20.1, 15.0, 11.8], "pipeline-256": [19.25, None, None]})

    def test_what_is_of_another_size_is_not_drawn_beside_the_published(self):
        found = plots.of_table(("bars",), read("made_accuracy"), "x")
        self.assertEqual([plot["title"] for plot in found],
                         ["Top-1 error (%), measured at --scale=smoke", "Images/s, measured at --scale=smoke"])
        throughput = found[1]
        self.assertEqual(lines(throughput), {"ours, measured": [2388, None], "ours, interrupted": [None, 1418]})

    def test_ours_of_two_sizes_are_two_plots(self):
        found = plots.of_table(("bars",), read("made_speed"), "x")
        self.assertEqual([(plot["title"], list(lines(plot))) for plot in found], [
            ("Images/s", ["ours, simulated", "torchgpipe, published"]),
            ("Images/s, measured at --scale=smoke", ["ours, measured"]),
            ("Speed-up", ["ours, simulated", "torchgpipe, published", "Huang et al., published"]),
            ("Speed-up, measured at --scale=smoke", ["ours, measured"])])

    def test_a_table_without_figures_has_no_plots(self):
        table = read("made_accuracy")
        table["rows"] = [row for row in table["rows"] if row["origin"] == "not run"]
        self.assertEqual(plots.of_table(("epochs", "bars", "partitions", "memory"), table, "x"), [])

    def test_rivals(self):
        found = plots.of_rivals(read("made_rivals"))
        self.assertEqual([plot["title"] for plot in found], ["ResNet [1, 1], never", "U-Net (1, 2), never",
                                                             "U-Net (1, 2), always"])
        self.assertEqual(found[0]["x"]["labels"], ["1", "2", "4"])
        *first, last = lines(found[0])["torch.distributed.pipelining 1F1B"]
        self.assertEqual([round(y) for y in first], [280, 140])
        self.assertIsNone(last)


if __name__ == "__main__":
    unittest.main()
