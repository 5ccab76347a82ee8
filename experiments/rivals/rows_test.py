#!/usr/bin/env python3
"""rows.py: rows of several runs in one file."""

import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cells
import rows


def row(network, stages, mode, who, rounds=3):
    return {"network": network, "stages": stages, "mode": mode, "who": who,
            "environment": {"cores": 2, "rounds": rounds}}


class RowsTest(unittest.TestCase):
    def test_a_cell_is_measured_anew_as_a_whole(self):
        # A machine with one core has no row "ours, all cores". So the rows that are left of a machine with two cores
        # must not be compared with the new ones.
        old = [row("A", 2, "never", who) for who in ("ours", "ours, all cores", "ours, own cut", "torchgpipe")]
        new = [row("A", 2, "never", "ours", 7), row("A", 2, "never", "torchgpipe", 7)]
        self.assertEqual([(each["who"], each["environment"]["rounds"]) for each in rows.merged(old, new)],
                         [("ours, own cut", 3), ("ours", 7), ("torchgpipe", 7)])
        # Rows of our pipeline over processes must not stay beside rows of a run without --processes, or the reverse.
        over_processes = [*new, row("A", 2, "never", cells.OURS_OVER_PROCESSES, 7)]
        self.assertEqual(rows.merged(over_processes, new), new)
        self.assertEqual(rows.merged(new, over_processes), over_processes)
        other = row("A", 2, "always", "ours", 7)
        self.assertEqual(rows.merged(old, [other]), [*old, other])

    def test_cells_are_in_the_order_of_the_table(self):
        order = [("U-Net (2, 16)", 2, "always"), ("AmoebaNet-D (3, 32)", 1, "never"),
                 ("AmoebaNet-D (3, 32)", 1, "except_last"), ("ResNet [1, 1, 1, 1]", 1, "never"), ("gone", 1, "never")]
        old = [row(*cell, "ours") for cell in reversed(order)]
        self.assertEqual([rows.cell_of(each) for each in rows.merged(old[2:], old[:2])], order)

    def test_a_table_that_does_not_say_where_it_was_measured_is_refused(self):
        old = row("A", 2, "never", "ours")
        self.assertEqual(rows.of_document({"rows": [old]}), [old])
        del old["environment"]
        with self.assertRaisesRegex(ValueError, "do not say in which environment"):
            rows.of_document({"rows": [old], "environment": {"cores": 2}})
        for document in ([], {}, {"rows": 1}, {"rows": [{"experiment": "a"}]}):
            with self.assertRaisesRegex(ValueError, "not a table of rivals"):
                rows.of_document(document)

    def test_rows_of_another_device_are_refused(self):
        on_cpu, on_gpu = row("A", 2, "never", "ours"), row("A", 2, "always", "ours")
        on_gpu["environment"].update(device="cuda", gpu="G")
        self.assertEqual(rows.of_device([on_cpu], "cpu"), [on_cpu])
        self.assertEqual(rows.of_device([on_gpu], "cuda"), [on_gpu])
        with self.assertRaisesRegex(ValueError, "rows were measured with --device=cuda, but this run has --device=cpu"):
            rows.of_device([on_cpu, on_gpu], "cpu")
        with self.assertRaisesRegex(ValueError, "rows were measured with --device=cpu, but this run has --device=cuda"):
            rows.of_device([on_cpu], "cuda")

    def test_the_environment_of_all_has_what_differs_as_lists(self):
        self.assertEqual(rows.environment_of([row("A", 1, "never", "ours"), row("A", 2, "never", "ours", 7)]),
                         {"cores": 2, "rounds": [3, 7]})


if __name__ == "__main__":
    unittest.main()
