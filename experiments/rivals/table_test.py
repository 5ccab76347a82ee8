#!/usr/bin/env python3
"""table.py: ratios, text and JSON of rows."""

import json
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cells
import table

HERE = pathlib.Path(__file__).resolve().parent
HOME = {"processor": "P", "cores": 2, "rounds": 3, "steps": 2}


def row(who, seconds, peak, stages=2, note="", rounds=(), environment=None):
    return {"network": "ResNet", "stages": stages, "mode": "never", "who": who, "version": "1",
            "step_seconds": seconds, "round_seconds": list(rounds), "peak_bytes": peak, "note": note,
            "environment": environment or HOME}


ROWS = [
    row("ours", 0.1, 100 << 20, note="1F1B", rounds=(0.1, 0.08, 0.1)),
    row("LibTorch, plain", 0.05, 50 << 20),
    row("torchgpipe", 0.15, 150 << 20, note="1 thread per stage"),
    row("torch.distributed.pipelining 1F1B", None, None, note="No module named 'torch'"),
    row("ours, own cut", 0.2, None),
    row("torchgpipe, own cut", 0.1, None),
    row("ours", 0.3, 1 << 20, stages=4),
    row("ours, all cores", 0.2, None, stages=4),
    row("torchgpipe", 0.3, None, stages=4),
]

TEXT = """\
ResNet, 2 stages, checkpoint never
  who                                   step (ms) spread / ours peak (MiB) / ours
  ours [1]                                  100.0   1.25      -        100      -
  LibTorch, plain                            50.0      -   0.50         50   0.50
  torchgpipe [2]                            150.0      -   1.50        150   1.50
  torch.distributed.pipelining 1F1B [3]         -      -      -          -      -
  [1] 1F1B
  [2] 1 thread per stage
  [3] No module named 'torch'
"""


class TableTest(unittest.TestCase):
    def test_text_has_a_line_for_each_row_and_numbered_notes(self):
        self.assertEqual(table.to_text(ROWS[:4]), TEXT)

    def test_ratios_are_of_the_same_cell_and_kind_of_cut(self):
        ratios = [table.ratio(each, table.ours_of(each, ROWS), "step_seconds") for each in ROWS]
        self.assertEqual([None if ratio is None else round(ratio, 2) for ratio in ratios],
                         [None, 0.5, 1.5, None, None, 0.5, 1.5, None, 1.5])

    def test_long_notes_are_wrapped(self):
        text = table.to_text([row("torchgpipe", None, None, note="word " * 40)])
        self.assertLessEqual(max(map(len, text.splitlines())), 84)

    def test_behind_names_the_pipelines_that_are_faster_and_no_others(self):
        self.assertEqual([(each["who"], times) for each, times in table.behind(ROWS)], [("torchgpipe, own cut", 0.5)])
        self.assertEqual([each["stages"] for each, _ in table.behind(ROWS, 1.6)], [2, 2, 4])

    def test_behind_in_memory_is_told_apart_from_behind_in_time(self):
        rows = [row("ours", 0.1, 100), row("LibTorch, plain", 0.2, 50), row("torchgpipe", 0.15, 90)]
        self.assertEqual(table.behind(rows), [])
        self.assertEqual([(each["who"], less) for each, less in table.behind(rows, key="peak_bytes")],
                         [("torchgpipe", 0.9)])

    def test_remarks_name_where_rivals_are_ahead(self):
        rows = [row("ours", 0.1, 100), row("torchgpipe", 0.15, 90),
                row("ours", 0.1, 100, stages=1), row("torchgpipe", 0.08, 80, stages=1)]
        self.assertEqual(table.remarks(rows), [
            "P, 2 cores, 3 rounds of 2 steps: all 2 cells.",
            "Faster than ours: torchgpipe, ResNet, 1 stage, never (0.80).",
            "Less peak memory than our faster side: torchgpipe, ResNet, 2 stages, never (0.90); "
            "ResNet, 1 stage, never (0.80)."])
        ahead = [row("ours", 0.1, 100), row("torchgpipe", 0.15, 200)]
        self.assertEqual(table.remarks(ahead), [
            "P, 2 cores, 3 rounds of 2 steps: ResNet, 2 stages, never.",
            "No pipeline is faster than ours in any cell.",
            "No pipeline has a lower peak of memory than our faster side in any cell."])

    def test_remarks_name_where_each_cell_was_measured(self):
        elsewhere = dict(HOME, processor="Q", cores=1, rounds=7, steps=1)
        rows = [row("ours", 0.1, 100), row("ours", 0.1, 100, stages=1), row("ours", 0.1, 100, stages=4,
                                                                            environment=elsewhere)]
        self.assertEqual(table.remarks(rows), ["P, 2 cores, 3 rounds of 2 steps: the other 2 cells.",
                                               "Q, 1 core, 7 rounds of 1 step: ResNet, 4 stages, never."])
        self.assertEqual(table.to_json(rows)["environment"],
                         {"processor": ["P", "Q"], "cores": [2, 1], "rounds": [3, 7], "steps": [2, 1]})

    def test_remarks_name_contestants_that_were_not_measured_and_why(self):
        rows = [row("ours", 0.1, 100), row("torchgpipe", None, None, note="no Python"),
                row("torchgpipe, all cores", None, None, note="no Python"), row("another", None, None, note="broken")]
        self.assertEqual(table.remarks(rows)[1:], ["Not measured: torchgpipe; torchgpipe, all cores: no Python.",
                                                   "Not measured: another: broken."])
        self.assertEqual(table.remarks([]), [])

    def test_markdown_has_a_line_for_each_cell_and_blanks_for_what_is_missing(self):
        lines = table.to_markdown(ROWS).splitlines()
        self.assertEqual(lines[2:4], [
            "| ResNet | 2 | never | 100 ms, 100 MiB |  |  | 1.50, 1.50 |  |  |  | 0.50, 0.50 |  | 1.25 |",
            "| ResNet | 4 | never | 200 ms, - MiB | 1.50, - |  | 1.50, - |  |  |  |  |  | - |"])
        self.assertEqual({line.count("|") for line in lines[:4]}, {14})
        self.assertEqual(lines[4:6], ["", "- " + table.remarks(ROWS)[0]])
        self.assertLessEqual(max(map(len, lines[4:])), 100)

    def test_ours_over_processes_is_one_of_ours_with_a_column_of_its_own(self):
        rows = [row("ours", 0.2, 100), row(cells.OURS_OVER_PROCESSES, 0.1, 300), row("torchgpipe", 0.3, 600)]
        lines = table.to_markdown(rows).splitlines()
        self.assertIn("| ours, all cores | ours, process per stage | torchgpipe |", lines[0])
        self.assertEqual(lines[2], "| ResNet | 2 | never | 100 ms, 0 MiB | 2.00, 0.33 |  |  | 3.00, 2.00 |  |  |  |  |  | - |")
        self.assertEqual({line.count("|") for line in lines[:3]}, {15})
        slower = [row("ours", 0.2, 100), row(cells.OURS_OVER_PROCESSES, 0.3, 300)]
        self.assertIn("|  |  | 1.50, 3.00 |  |", table.to_markdown(slower))
        # The table of a run without --processes does not have that column.
        self.assertNotIn("process per stage", table.to_markdown(ROWS))

    def test_remarks_compare_those_with_a_process_per_stage_with_each_other(self):
        gpipe, one_f_one_b = (f"{cells.PIPELINING} {schedule}" for schedule in ("GPipe", "1F1B"))
        rows = [row("ours", 0.1, 100), row(cells.OURS_OVER_PROCESSES, 0.2, 200), row("torchgpipe", 0.3, 300),
                row(gpipe, 0.3, 300), row(one_f_one_b, None, None, note="broken"),
                row("ours", 0.1, 100, stages=4), row(cells.OURS_OVER_PROCESSES, 0.4, 400, stages=4),
                row(gpipe, 0.2, 800, stages=4), row(gpipe, 0.1, 100, stages=1)]
        self.assertEqual(table.remarks(rows)[-1], f"Beside ours with a process per stage, {gpipe} takes 0.50 to 1.50 "
                         "times the step and 1.50 to 2.00 times the peak of memory (2 cells).")
        self.assertEqual(len(table.over_processes(rows)), 1)
        rows[1]["step_seconds"] = None
        self.assertIn("takes 0.50 times the step", table.remarks(rows)[-1])
        self.assertEqual(table.over_processes([each for each in rows if each["who"] != cells.OURS_OVER_PROCESSES]), [])

    def test_the_columns_of_a_gpu_are_its_contestants(self):
        there = dict(HOME, device="cuda", gpu="G, driver 1")
        rows = [row(who, seconds, 1 << 20, environment=there) for who, seconds in (
            ("ours", 0.2), ("ours, graphs", 0.1), ("PyTorch, plain", 0.05), ("torchgpipe", 0.4))]
        lines = table.to_markdown(rows).splitlines()
        self.assertIn("| ours, graphs |", lines[0])
        self.assertNotIn("all cores", lines[0])
        self.assertEqual(lines[2],
                         "| ResNet | 2 | never | 100 ms, 1 MiB | 2.00, 1.00 |  | 4.00, 1.00 |  |  |  | 0.50, 1.00 | - |")
        self.assertEqual({line.count("|") for line in lines[:3]}, {13})
        self.assertEqual(table.remarks(rows)[:2], ["G, driver 1, P, 2 cores, 3 rounds of 2 steps: ResNet, 2 stages, "
                                                   "never.", "No pipeline is faster than ours in any cell."])

    def test_json_has_rows_remarks_and_environment(self):
        document = json.loads(json.dumps(table.to_json(ROWS)))
        self.assertEqual(set(document), {"title", "rows", "remarks", "environment", "interrupted"})
        self.assertEqual((document["rows"], document["remarks"]), (ROWS, table.remarks(ROWS)))
        self.assertEqual(document["environment"], HOME)


class PagesTest(unittest.TestCase):
    MEASURED = sorted(path.name for path in HERE.glob("measured*.json"))

    def test_there_are_measured_rows(self):
        self.assertLessEqual({"measured.json", "measured_gpu.json"}, set(self.MEASURED))

    def test_its_tables_are_those_of_the_measured_rows(self):
        pages = [line for page in sorted(HERE.glob("*.md")) for line in page.read_text().splitlines()]
        for name in self.MEASURED:
            measured = table.of_document(json.loads((HERE / name).read_text()))
            self.assertEqual([line for line in table.to_markdown(measured).splitlines() if line not in pages], [],
                             f"python3 experiments/rivals/table.py experiments/rivals/{name} prints it")

    def test_the_measured_rows_say_as_many_rounds_as_they_have(self):
        for name in self.MEASURED:
            document = json.loads((HERE / name).read_text())
            for row in document["rows"]:
                if row["step_seconds"]:
                    self.assertEqual(len(row["round_seconds"]), row["environment"]["rounds"], row)
            self.assertEqual(document, table.to_json(document["rows"]))


if __name__ == "__main__":
    unittest.main()
