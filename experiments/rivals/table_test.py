#!/usr/bin/env python3
"""table.py: ratios, text and JSON of rows."""

import json
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import table


def row(who, seconds, peak, stages=2, note="", rounds=()):
    return {"round_seconds": list(rounds), "network": "ResNet", "stages": stages, "mode": "never", "who": who, "version": "1",
            "step_seconds": seconds, "peak_bytes": peak, "note": note}


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

    def test_markdown_has_a_line_for_each_cell_and_blanks_for_what_is_missing(self):
        lines = table.to_markdown(ROWS).splitlines()
        self.assertEqual(lines[2:], [
            "| ResNet | 2 | never | 100 ms, 100 MiB |  |  | 1.50, 1.50 |  |  |  | 0.50, 0.50 |  | 1.25 |",
            "| ResNet | 4 | never | 200 ms, - MiB | 1.50, - |  | 1.50, - |  |  |  |  |  | - |"])
        self.assertEqual({line.count("|") for line in lines}, {14})

    def test_json_has_rows_and_environment(self):
        document = json.loads(json.dumps(table.to_json(ROWS, {"cores": 2})))
        self.assertEqual(set(document), {"title", "rows", "environment", "interrupted"})
        self.assertEqual(document["rows"], ROWS)


if __name__ == "__main__":
    unittest.main()
