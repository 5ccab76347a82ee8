#!/usr/bin/env python3
"""check_blocks.py on made-up chapters and programs."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, "tools/docs")
import check_blocks  # noqa: E402

PROGRAM = """
int main() {
  // [first]
  int a = 1;
  if (a) {
    // [second]
    return a;
    // [/second]
  }
  // [/first]
}
"""
FIRST = "```cpp\nint a = 1;\nif (a) {\n  return a;\n}\n```\n"
SECOND = "Text.\n\n```cpp\nreturn a;\n```\n"


class CheckBlocks(unittest.TestCase):
    def problems(self, chapter, program=PROGRAM):
        with tempfile.TemporaryDirectory() as folder:
            docs, code = pathlib.Path(folder, "docs"), pathlib.Path(folder, "code")
            docs.mkdir()
            code.mkdir()
            (docs / "01-a.md").write_text(chapter)
            (code / "a.cc").write_text(program)
            return check_blocks.check(docs, code)[0]

    def test_blocks_that_are_regions_pass(self):
        self.assertEqual(self.problems(FIRST + SECOND), [])

    def test_a_region_may_be_shown_twice(self):
        self.assertEqual(self.problems(FIRST + SECOND + SECOND), [])

    def test_another_word_is_found_with_the_line(self):
        [problem] = [each for each in self.problems(FIRST + SECOND + SECOND.replace("a;", "b;")) if "01-a.md" in each]
        self.assertIn("01-a.md:14:", problem)
        self.assertIn("-return a;\n+return b;", problem)

    def test_another_indentation_is_found(self):
        self.assertTrue(self.problems(FIRST.replace("  return", "    return") + SECOND))

    def test_a_region_that_nobody_shows_is_found(self):
        [problem] = self.problems(FIRST)
        self.assertIn("no chapter shows [second]", problem)

    def test_other_languages_are_not_looked_at(self):
        self.assertEqual(self.problems(FIRST + SECOND + "```sh\nls\n```\n\n```\nreturn b;\n```\n"), [])

    def test_markers_have_to_pair_up(self):
        self.assertIn("[first] does not end", self.problems(FIRST, PROGRAM.replace("// [/first]", ""))[0])
        self.assertIn("[/other] ends what", self.problems(FIRST, PROGRAM + "// [/other]\n")[0])
        self.assertIn("[first] begins twice", self.problems(FIRST, PROGRAM + "// [first]\n// [/first]\n")[0])

    def test_nothing_at_all_is_an_error(self):
        self.assertTrue(self.problems("no code\n", "int a;\n"))


if __name__ == "__main__":
    unittest.main()
