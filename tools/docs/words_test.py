#!/usr/bin/env python3
"""words.py on made-up lines."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, "tools/docs")
import words  # noqa: E402

DIFF = """diff --git a/docs/a.md b/docs/a.md
--- a/docs/a.md
+++ b/docs/a.md
@@ -3 +3,2 @@
-old
+new
+newer
@@ -9,2 +11 @@
+one
@@ -20,2 +20,0 @@
-gone
--- a/gone.md
+++ /dev/null
@@ -1 +0,0 @@
-gone
"""


class Words(unittest.TestCase):
    def found(self, text, path="a.md"):
        return [(number, word) for number, word, _ in words.hints(path, text)]

    def test_a_hint_says_the_line_and_what_to_write(self):
        self.assertEqual(words.hints("a.md", "Fine.\nIts behaviour."), [(2, "behaviour", "behavior")])

    def test_each_word_is_found(self):
        self.assertEqual(self.found("Neighbours are initialised."), [(1, "neighbour"), (1, "-ise")])
        self.assertEqual(self.found("That is no error. It shall end."), [(1, "is no"), (1, "shall")])
        self.assertEqual(self.found("A rank who waits; processes who wait."), [(1, "... who"), (1, "... who")])

    def test_a_sentence_that_begins_with_of(self):
        for text in ["Of 30 peaks four differ.", "- Of these.", "That is all. Those of a stage wait."]:
            self.assertEqual(self.found(text), [(1, "Of ...")], text)
        self.assertEqual(self.found("One of them. Of course. The end of a run."), [])

    def test_american_english_passes(self):
        self.assertEqual(self.found("The behavior is not a promise. It is no longer exercised, and promises rise."), [])
        self.assertEqual(self.found("There is no other; where there is no clone."), [])

    def test_code_in_markdown_is_not_looked_at(self):
        self.assertEqual(self.found("`colour`\n```\ncolour\n```\ncolour"), [(5, "colour")])

    def test_comments_and_strings_of_programs_are(self):
        self.assertEqual(self.found('int colour = f(b);  // Of the colour\nthrow E("x is no number");', "a.cc"),
                         [(1, "colour"), (1, "Of ..."), (2, "is no")])
        self.assertEqual(self.found("grey = 1  # grey", "a.py"), [(1, "grey")])
        self.assertEqual(self.found("colour", "a.png"), [])

    def test_new_lines_of_a_diff(self):
        self.assertEqual(words.changed(DIFF), {"docs/a.md": {3, 4, 11}})

    def test_it_never_fails(self):
        program = pathlib.Path("tools/docs/words.py").absolute()
        with tempfile.TemporaryDirectory() as folder:  # a folder that is not a clone
            for arguments in [[], ["--all"], ["--tree"]]:
                subprocess.run([sys.executable, program, *arguments], cwd=folder, check=True)


if __name__ == "__main__":
    unittest.main()
