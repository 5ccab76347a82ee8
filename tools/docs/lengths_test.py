#!/usr/bin/env python3
"""lengths.py on made-up documents."""
import sys
import unittest

sys.path.insert(0, "tools/docs")
import lengths  # noqa: E402

WIDE = "word " * 25 + "end."


class Lengths(unittest.TestCase):
    def test_each_kind_of_document_has_its_limit(self):
        for path, most in [("README.md", 1000), ("docs/guide/01-a.md", 1500)]:
            self.assertEqual(lengths.faults(path, "word " * most), [])
            (fault,) = lengths.faults(path, "word " * (most + 1))
            self.assertIn(f"{path}: {most + 1} words, more than {most}", fault)
        self.assertEqual(lengths.faults("CHANGELOG.md", "word " * 9999), [])

    def test_a_design_page_begins_with_what_it_decides(self):
        head = "# A\n\n**Decided:** this.\n\n**Rejected:** that.\n"
        self.assertEqual(lengths.faults("docs/design/a.md", head + "\n## B\n"), [])
        self.assertEqual(len(lengths.faults("docs/design/a.md", "# A\n\n## B\n" + head)), 2)
        self.assertEqual(len(lengths.faults("docs/design/a.md", head + "word " * 2000)), 1)
        self.assertEqual(lengths.faults("docs/design/libtorch_inside.md", "**Decided:** this."), [])

    def test_a_cell_of_results_is_short(self):
        self.assertEqual(lengths.faults("docs/results.md", f"| a | {'b' * 200} |"), [])
        (fault,) = lengths.faults("docs/results.md", f"|---|\n| a | {'b' * 201} |")
        self.assertIn("docs/results.md:2: a cell of 201 characters", fault)
        self.assertEqual(lengths.faults("docs/guide/01-a.md", f"| {'b' * 999} |"), [])

    def test_prose_is_wide_and_tables_links_and_code_are_not(self):
        self.assertEqual(lengths.wide(f"Short.\n{WIDE}\n"), [2])
        self.assertEqual(lengths.wide(f"| {WIDE} |\n# {WIDE}\n```\n{WIDE}\n```\n{'x' * 120}\n"), [])
        self.assertEqual(lengths.wide(f"[a]({'b' * 120}) and more"), [])

    def test_only_wide_paragraphs_are_wrapped(self):
        text = f"# A\n\nBroken\nby hand.\n\n- item {WIDE}\n- next\n\n```\n{WIDE}\n```\n"
        fixed = lengths.fixed(text)
        self.assertEqual(lengths.wide(fixed), [])
        self.assertEqual(fixed.split(), text.split())
        self.assertIn("Broken\nby hand.\n", fixed)
        self.assertIn("\n  word", fixed)
        self.assertIn("end.\n- next\n", fixed)
        self.assertIn(f"```\n{WIDE}\n```", fixed)
        self.assertEqual(lengths.fixed(fixed), fixed)

    def test_no_line_begins_with_what_would_be_a_list(self):
        lines = lengths.wrapped(["a" * 98 + " - b " + "c" * 98 + " 2. d"])
        self.assertEqual(lines, ["a" * 98 + " -", "b " + "c" * 98 + " 2.", "d"])


if __name__ == "__main__":
    unittest.main()
