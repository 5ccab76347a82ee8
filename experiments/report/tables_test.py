"""tables.py and rivals.py: what the cells say, and what they must not say."""

import json
import pathlib
import unittest

import rivals
import tables

DATA = pathlib.Path("experiments/report/testdata")


def read(name):
    return json.loads((DATA / (name + ".json")).read_text())


def texts(lines):
    return [[cell.text for cell in line] for line in lines]


class Numbers(unittest.TestCase):
    def test_three_digits(self):
        cases = {0.6512: "0.651", 21.96: "22.0", 2559: "2559", 9.996: "10.0", 0: "0.00", 1718333333: "1,718,333,333",
                 0.0123456: "0.0123", -1.5: "-1.50", 999.6: "1000"}
        for value, text in cases.items():
            self.assertEqual(tables.three_digits(value), text)

    def test_published(self):
        cases = [(2.774, "2.774"), (1, "1"), ({"value": 21.99, "plus_minus": 0.13}, "21.99±0.13"),
                 ("out of memory", "out of memory"), (15822206000, "15822206000")]
        for figure, text in cases:
            self.assertEqual(tables.published_text(figure), text)
        self.assertEqual([tables.published_value(figure) for figure, _ in cases], [2.774, 1, 21.99, None, 15822206000])


class Rows(unittest.TestCase):
    def test_partitions(self):
        def of(experiment, **settings):
            return tables.partitions({"experiment": experiment, "settings": settings})

        self.assertEqual(of("x", balance=[3, 4]), 2)
        self.assertEqual(of("x", partitions=8, balance=[3, 4]), 8)
        self.assertEqual(of("pipeline-8"), 8)
        self.assertEqual(of("n4m32"), 4)
        self.assertIsNone(of("baseline"))
        self.assertIsNone(of("pipeline-1k"))

    def test_series(self):
        self.assertEqual([tables.series({"experiment": name}) for name in ("n2m1", "n8m32", "pipeline-2")],
                         ["1 micro-batch", "32 micro-batches", ""])

    def test_command_of_a_row(self):
        table = read("made_speed")
        command = "tools/bazel run -c opt //experiments/x -- --scale=small '--json=a file' --experiment=a,b --devices=cpu"
        self.assertEqual(tables.row_command(table, table["rows"][1], command),
                         "tools/bazel run -c opt //experiments/x -- --scale=small --devices=cpu --experiment=baseline "
                         "--ways=simulated")
        spaces = ("tools/bazel run -c opt //experiments/x -- --scale small --json file --experiment a,b "
                  "--trace=x --ways measured")
        self.assertEqual(tables.row_command(table, table["rows"][1], spaces),
                         "tools/bazel run -c opt //experiments/x -- --scale small --experiment=baseline "
                         "--ways=simulated")
        one_way = read("made_accuracy")
        self.assertEqual(tables.row_command(one_way, one_way["rows"][1], "run //x"), "run //x -- --experiment=naive-128")
        self.assertEqual(tables.row_command(one_way, one_way["rows"][0], "run //x"), "")


class Grid(unittest.TestCase):
    def test_published_figures_stand_beside_what_can_be_compared(self):
        grid = tables.grid(read("made_speed"))
        self.assertEqual(texts(grid.head), [
            ["experiment", "how", "images/s", "speed-up"],
            ["ours", "torchgpipe", "ours ÷ torchgpipe", "ours", "torchgpipe", "Huang et al.", "ours ÷ torchgpipe"]])
        self.assertEqual(texts(grid.body[:2]),
                         [["baseline", "", "1003", "", "–", "1.00", "", "", "–"],
                          ["", "95.9", "95.862", "1.00", "1.00", "1.000", "1", "1.00"]])
        self.assertEqual([cell.rowspan for cell in grid.body[0]], [2, 1, 1, 1, 1, 1, 1, 1, 1])

    def test_published_figures_stand_beside_the_row_that_has_ours(self):
        table = read("made_speed")
        simulated = table["rows"][1]
        planned = json.loads(json.dumps(dict(simulated, origin="planned", way="planned")))
        planned["figures"]["throughput"]["ours"] = None
        simulated["figures"]["speed_up"]["ours"] = None
        table["rows"][1:2] = [planned, simulated]
        body = tables.grid(table).body
        self.assertEqual([line[-6].text for line in body[:3]], ["", "", "95.862"])
        self.assertEqual([line[-3].text for line in body[:3]], ["", "1.000", ""])

    def test_published_figures_have_a_row_of_their_own_where_ours_are_of_another_size(self):
        table = read("made_speed")
        table["rows"] = table["rows"][:1]
        body = tables.grid(table).body
        self.assertEqual(texts(body), [["baseline", "", "–", "95.862", "–", "–", "1.000", "1", "–"],
                                       ["", "1003", "", "–", "1.00", "", "", "–"]])
        self.assertEqual([line[-8].origin for line in body], ["published", "measured"])
        self.assertEqual(len(tables.row_commands(table, "run")), 1)
        table["rows"][0]["settings"]["scale"] = "full"
        self.assertEqual(texts(tables.grid(table).body), [["baseline", "", "1003", "95.862", "–", "1.00", "1.000", "1", "–"]])

    def test_a_row_that_has_no_figure_of_ours_has_the_published_ones(self):
        body = tables.grid(read("made_accuracy")).body
        rows = [(line[-5].origin, line[-3].text) for line in body]
        self.assertEqual(rows, [("published", "22.08±0.06"), ("measured", "–"), ("published", "21.99±0.13"),
                                ("interrupted", ""), ("not run", "22.24±0.19")])

    def test_a_row_that_other_work_disturbed_says_so(self):
        table = read("made_speed")
        table["rows"][0]["settings"]["disturbed"] = True
        self.assertEqual([line[-8].aside for line in tables.grid(table).body[:2]], ["disturbed", ""])

    def test_ratios_have_three_digits(self):
        table = read("made_speed")
        table["rows"][1]["figures"]["speed_up"]["compared"] = 0.98724
        self.assertEqual(tables.grid(table).body[1][-1].text, "0.987")

    def test_a_figure_that_is_not_published_is_one_dash(self):
        table = read("made_speed")
        for row in table["rows"][:2]:
            del row["figures"]["throughput"]["published"]["torchgpipe"]
        self.assertEqual((tables.grid(table).body[0][3].text, tables.grid(table).body[0][3].rowspan), ("–", 2))

    def test_measured_with_more_partitions_than_cores(self):
        table = read("made_speed")
        self.assertEqual(tables.crowded(table), "")
        table["rows"][0]["settings"]["devices"] = "cpu,cpu"
        self.assertEqual(tables.crowded(table), "")
        table["rows"][0]["settings"]["devices"] = "cpu,cpu,cpu"
        self.assertIn("(baseline; cores: 2)", tables.crowded(table))
        table["remarks"].append("Fewer cores than partitions: no speed-up.")
        self.assertEqual(tables.crowded(table), "")

    def test_how_measured_rows_were_made(self):
        table = read("made_speed")
        # The rows at full size are simulated, so only the scale of the measured rows counts.
        self.assertEqual(tables.measured_with(table), {"scale": "smoke"})
        for row, devices in zip(table["rows"][0::2], ["cpu", "cpu,cpu", "cpu,cpu", "cpu"]):
            row["settings"].update(devices=devices, seed=0)
        table["rows"][1]["settings"].update(devices="cuda:0", seed=1)
        self.assertEqual(tables.measured_with(table), {"scale": "smoke", "devices": "cpu; cpu,cpu", "seed": "0"})
        self.assertEqual(tables.measured_with(read("made_memory")), {})

    def test_measured_rows_of_the_published_size_stand_beside_the_published_figures(self):
        table = read("made_speed")
        table["rows"][0]["settings"]["scale"] = "full"
        body = tables.grid(table).body
        self.assertEqual([line[-6].text for line in body[:2]], ["95.862", "95.862"])
        # The measured row of body[2] is at smoke, so it has no published figure beside it.
        self.assertEqual([line[-6].text for line in body[2:4]], ["", "81.796"])

    def test_lines_are_as_wide_as_the_head(self):
        for name in ("made_speed", "made_memory", "made_accuracy"):
            grid = tables.grid(read(name))
            width = 2 + len(grid.head[1])
            self.assertEqual(2 + sum(cell.colspan for cell in grid.head[0][2:]), width)
            below = 0
            for line in grid.body:
                if line[0].header:
                    below = line[0].rowspan
                    shared = sum(cell.rowspan > 1 for cell in line)
                    self.assertEqual(len(line), width)
                else:
                    self.assertEqual(len(line), width - shared)
                below -= 1
                self.assertGreaterEqual(below, 0)

    def test_what_is_missing_is_a_dash_and_says_why(self):
        grid = tables.grid(read("made_memory"))
        baseline = grid.body[0]
        self.assertEqual([cell.text for cell in baseline],
                         ["baseline", "", "–", "–", "0.91", "–", "–", "Out of memory", "–"])
        self.assertEqual((baseline[1].origin, baseline[1].aside), ("failed", "planned"))
        self.assertEqual(grid.notes[baseline[1].notes[0] - 1],
                         "failed: out of memory, as published: 24.1 GiB of 22.38 GiB")

    def test_a_note_that_rows_share_is_one(self):
        grid = tables.grid(read("made_speed"))
        self.assertEqual([line[0 if not line[0].header else 1].notes for line in grid.body[:4]], [(1,), (2,), (1,), (2,)])
        self.assertEqual(len(grid.notes), len(set(grid.notes)))

    def test_a_table_that_does_not_tell_its_columns(self):
        table = read("made_speed")
        del table["columns"], table["ratio"]
        grid = tables.grid(table)
        self.assertEqual(texts(grid.head)[0], ["experiment", "how", "throughput", "speed up"])

    def test_a_published_dash_is_not_a_figure(self):
        table = read("made_memory")
        table["rows"][0]["figures"]["model_gib"]["published"]["torchgpipe"] = "-"
        self.assertEqual(tables.grid(table).body[0][4].kind, "missing")

    def test_counts(self):
        self.assertEqual(tables.count_origins(read("made_memory")), "1 failed, 3 planned")


class Rivals(unittest.TestCase):
    def test_each_is_held_against_ours(self):
        time, memory = rivals.grids(read("made_rivals"))
        self.assertEqual([cell.text for cell in time.head[1]], [
            "ours", "ours, own cut", "LibTorch, plain", "torchgpipe", "torch.distributed.pipelining 1F1B",
            "torchgpipe, own cut"])
        self.assertEqual([(cell.text, cell.aside) for cell in time.body[0]], [
            ("ResNet [1, 1]", ""), ("1", ""), ("never", ""), ("200", ""), ("–", ""), ("220", "× 1.10"),
            ("320", "× 1.60"), ("280", "× 1.40"), ("–", "")])
        self.assertEqual([cell.text for cell in memory.head[1]],
                         ["ours", "torchgpipe", "torch.distributed.pipelining 1F1B"])
        self.assertEqual([(cell.text, cell.aside) for cell in memory.body[1]][3:],
                         [("572", ""), ("916", "× 1.60"), ("801", "× 1.40")])

    def test_own_cuts_are_held_against_our_own_cut(self):
        line = rivals.grids(read("made_rivals"))[0].body[-1]
        self.assertEqual([(cell.text, cell.aside) for cell in line][4:],
                         [("117", ""), ("–", ""), ("–", ""), ("–", ""), ("175", "× 1.50")])

    def test_a_contestant_that_could_not_run_says_why(self):
        grid = rivals.grids(read("made_rivals"))[0]
        cell = grid.body[2][7]
        self.assertEqual((cell.text, [grid.notes[k - 1] for k in cell.notes]), ("–", ["the group timed out"]))

    def test_what_was_interrupted_is_marked(self):
        table = read("made_rivals")
        table["rows"][0]["note"] = "interrupted after 4 steps; " + table["rows"][0]["note"]
        grid = rivals.grids(table)[0]
        self.assertEqual([grid.notes[k - 1] for k in grid.body[0][3].notes], ["interrupted after 4 steps"])
        self.assertIn("ours: 1F1B, 1 thread per stage.", rivals.remarks(table))

    def test_remarks(self):
        self.assertIn("torchgpipe: 0.0.7; 1 thread per stage.", rivals.remarks(read("made_rivals")))

    def test_an_interrupted_contest_says_so(self):
        table = read("made_rivals")
        table["interrupted"] = True
        self.assertIn("Interrupted: not everything was measured.", rivals.remarks(table))

    def test_commands_of_the_whole_table_and_of_each_line(self):
        base = "tools/bazel run -c opt //experiments/rivals --"
        found = rivals.commands(read("made_rivals"), base + " --rivals=python3 --stages=2 --rounds=2 --json=FILE")
        self.assertEqual(found[0][1], base + " --rivals=python3")
        self.assertIn("all cells", found[0][0])
        self.assertEqual(found[1], ("ResNet [1, 1], 1, never",
                                    base + " --rivals=python3 --rounds=2 --networks=resnet --stages=1 --modes=never"))
        self.assertEqual(len(found), 1 + len(rivals.cases(read("made_rivals"))))
        # If the rivals ran without --rivals=PYTHON, or the command of the run is not known, the
        # command that is shown names this flag.
        for command in ("", base + " --stages=2", "tools/bazel run -c opt //experiments/rivals"):
            self.assertEqual(rivals.commands(read("made_rivals"), command)[0][1], base + " --rivals=PYTHON")

    def test_networks_as_the_flag_has_them(self):
        table = {"rows": [{"network": name, "stages": 1, "mode": "never", "who": "ours"}
                          for name in ("U-Net (2, 16)", "AmoebaNet-D (3, 32)", "ResNet [1, 1, 1, 1]",
                                       "GPT-2 (4, 256)")]}
        self.assertEqual([command.partition("--networks=")[2].split()[0]
                          for _, command in rivals.commands(table, "")[1:]], ["unet", "amoebanetd", "resnet", "gpt2"])

    def test_a_table_of_some_cells_says_so(self):
        command = "tools/bazel run //experiments/rivals -- --rivals=python3 --stages=2 --modes=never --rounds=2"
        self.assertIn("Not the whole table: --stages=2 --modes=never --rounds=2. The command of all of it is below.",
                      rivals.remarks(read("made_rivals"), command))
        self.assertFalse(any("whole" in text for text in
                             rivals.remarks(read("made_rivals"), "tools/bazel run //x -- --rivals=python3")))

    def test_rows_that_lack_a_python(self):
        table = read("made_rivals")
        self.assertFalse(rivals.lack_python(table))
        table["rows"][2].update(step_seconds=None, note="no Python was given (--rivals=PYTHON)")
        self.assertTrue(rivals.lack_python(table))
        self.assertEqual(rivals.count(table), "23 measured")

    def test_without_ours_nothing_is_compared(self):
        table = read("made_rivals")
        table["rows"] = [row for row in table["rows"] if not row["who"].startswith("ours")]
        self.assertFalse(any(cell.aside for line in rivals.grids(table)[0].body for cell in line))


if __name__ == "__main__":
    unittest.main()
