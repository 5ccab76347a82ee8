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


HEADERS = {
    "gpipe/gpipe.h": '#include "gpipe/options.h"\nnamespace gpipe {\nclass GPipeImpl {};\nTORCH_MODULE(GPipe);\n}',
    "gpipe/options.h": "namespace gpipe {\nstruct Options {\n};\n// struct Remark {};\n}",
    "gpipe/all.h": '#include "balance/cut.h"\n',
    "balance/cut.h": "namespace gpipe::balance {\nstd::vector<int64_t> cut(int64_t parts);\nclass Later;\n}",
    "gpipe/internal/inner.h": "namespace gpipe {\nstruct Inner {\n};\n}",
}


class UnnamedHeaders(unittest.TestCase):
    def problems(self, block, chapter=""):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in HEADERS.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return check_blocks.unnamed_headers(f"{chapter}\n{block}", block, check_blocks.Headers(pathlib.Path(folder)))

    def test_what_the_usual_headers_have_needs_no_name(self):
        self.assertEqual(self.problems("gpipe::GPipe pipe(gpipe::Options());"), [])

    def test_other_headers_must_be_named(self):
        [problem] = self.problems("auto balance = gpipe::balance::cut(2);")
        self.assertIn("gpipe::balance::cut", problem)
        self.assertIn("balance/cut.h", problem)
        self.assertEqual(self.problems("gpipe::balance::cut(2);", 'In "balance/cut.h".'), [])
        self.assertEqual(self.problems('// #include "gpipe/all.h"\ngpipe::balance::cut(2);'), [])

    def test_a_name_that_no_public_header_declares(self):
        for name in ["gpipe::Remark", "gpipe::Inner", "gpipe::balance::Later", "gpipe::cut"]:
            [problem] = self.problems(f"{name} x;")
            self.assertIn("nor is there one", problem)

    def test_aliases_and_headers_of_libtorch(self):
        self.assertEqual(len(self.problems("at::autocast::clear_cache(); nn::ReLU(); F::relu(x);")), 3)
        self.assertEqual(self.problems("torch::nn::ReLU();"), [])
        self.assertEqual(self.problems("F::relu(x);", "`F` is\n`torch::nn::functional`."), [])

    def test_headers_that_another_workspace_cannot_use(self):
        with tempfile.TemporaryDirectory() as folder:
            files = {**HEADERS, "gpipe/testing/fake.h": "", check_blocks.PUBLIC: '#include "gpipe/gpipe.h"\n'}
            for name, text in files.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            headers = check_blocks.Headers(pathlib.Path(folder))
            self.assertEqual(check_blocks.private_headers('"gpipe/gpipe.h", `gpipe/testing/fake.h`, `none/of.h`', headers), [])
            [problem] = check_blocks.private_headers('`gpipe/gpipe.h` and "balance/cut.h"', headers)
            self.assertIn("balance/cut.h", problem)


if __name__ == "__main__":
    unittest.main()
