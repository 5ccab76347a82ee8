#!/usr/bin/env python3
"""options_reference.py on a made-up header, and on ours: the page is what gpipe/options.h says."""
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, "tools/docs")
import options_reference  # noqa: E402

HEADER = """
// How a pipeline is built.
struct Some {
  // `cut`: how it is cut; in any way.
  Some(std::vector<int64_t> cut) : cut_(std::move(cut)) {}  // NOLINT: implicit

  TORCH_ARG(std::vector<int64_t>, cut);

  // Which one, as Kind::kOne says. It matters.
  //   // An example. Of code.
  //   Some({2}).kind(Kind::kTwo)
  // Default: kOne, the first
  // of all.
  TORCH_ARG(Kind, kind) = Kind::kOne;

  // What runs.
  Some& order(Order order) {
    order_ = std::move(order);
    int64_t inner = 0;
    return *this;
  }
  Some& order(Generator generator) {
    generator_ = std::move(generator);
    return *this;
  }
  bool has_order() const { return true; }

  int64_t count = 0;  // how often

 private:
  int64_t hidden_ = 0;
};
"""
CHAPTERS = {"Some": ("Some", {"cut": "04", "kind": "04", "order": "04", "count": "13a"})}


class OptionsReference(unittest.TestCase):
    def page(self, header=HEADER, chapter="cut kind order", chapters=CHAPTERS):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "04-a.md").write_text(chapter)
            pathlib.Path(folder, "13a-b.md").write_text("Count it.")
            with mock.patch.object(options_reference, "CHAPTERS", chapters), \
                    mock.patch.object(options_reference, "OPTIONS", ("Some",)):
                return options_reference.page(header, pathlib.Path(folder))

    def test_a_row_for_each_public_member(self):
        rows = [line for line in self.page().split("\n") if line.startswith("| `")]
        self.assertEqual(rows, [
            "| `cut` | `std::vector<int64_t>` | none: it must be given | How it is cut; in any way. | [4](04-a.md) |",
            "| `kind` | `Kind` | `kOne`, the first of all | Which one, as `Kind::kOne` says. | [4](04-a.md) |",
            "| `order` | `Order` or `Generator` | none: it must be given | What runs. | [4](04-a.md) |",
            "| `count` | `int64_t` | `0` | How often. | [13a](13a-b.md) |",
        ])

    def test_a_new_option_needs_a_chapter(self):
        with self.assertRaisesRegex(ValueError, r"other members of Some: \['more'\]"):
            self.page(HEADER.replace("  // What runs.", "  TORCH_ARG(bool, more) = false;\n\n  // What runs."))

    def test_the_chapter_must_name_the_option(self):
        with self.assertRaisesRegex(ValueError, "04-a.md does not name order"):
            self.page(chapter="cut kind ordered")

    def test_the_page_is_what_the_header_says(self):
        self.assertEqual(options_reference.PAGE.read_text(encoding="utf-8"),
                         options_reference.page(options_reference.HEADER.read_text(encoding="utf-8"),
                                                options_reference.PAGE.parent),
                         "tools/docs/options_reference.py --write")


if __name__ == "__main__":
    unittest.main()
