#!/usr/bin/env python3
"""Product files, functions and folders that are too long to be read in one go.

A product file is a .h, .cc or .cu that is not a test, a benchmark, or in a folder `testing` or `tests`. A header that
only includes another one is not counted, nor is a program that only tests run (*_live_program.cc). The length of a
function is that of its body.

  tools/testing/check_sizes.py    prints them, and fails if there are some
"""

import collections
import pathlib
import re
import subprocess
import sys

MOST_FILES, MOST_LINES, MOST_LINES_OF_FUNCTION = 40, 600, 80
# A tuned inner loop, with the reason in a comment at the function.
TUNED = {"gpipe/schedule/search/greedy.cc": 107}


def is_product(name):
    return (name.endswith((".h", ".cc", ".cu"))
            and not re.search(r"_test|_benchmark|_live_program|(^|/)(testing|tests)/|^tools/", name))


def is_forward(lines):
    return all(not line.strip() or line.startswith(("#", "//")) for line in lines)


def longest_function(lines):
    """(lines of the body, number of its first line), of what is formatted as in .clang-format: a body ends with a brace
    as deep as the line with which the function's head begins, in a class or outside."""
    longest, begin, depth = (0, 0), {}, 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if indent in (0, 2) and text == "}" and indent in begin:
            first = begin.pop(indent)
            longest = max(longest, (number - first + 1, first))
            continue
        if indent in (0, 2) and text and not text.startswith(("//", "#")):
            depth = indent
            begin.pop(depth, None)
        if text.endswith("{"):
            begin.setdefault(depth, number)
    return longest


def main():
    names = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], check=True,
                           stdout=subprocess.PIPE, universal_newlines=True).stdout.split("\n")
    wrong, folders = [], collections.Counter()
    for name in filter(is_product, names):
        if not pathlib.Path(name).exists():  # It is deleted, and the deletion is not committed yet.
            continue
        lines = pathlib.Path(name).read_text(encoding="utf-8").splitlines()
        if name.endswith(".h") and is_forward(lines):
            continue
        folders[str(pathlib.Path(name).parent)] += 1
        if len(lines) > MOST_LINES:
            wrong.append(f"{name}: {len(lines)} lines, at most {MOST_LINES}")
        length, begin = longest_function(lines)
        most = TUNED.get(name, MOST_LINES_OF_FUNCTION)
        if length > most:
            wrong.append(f"{name}:{begin}: a function of {length} lines, at most {most}")
    wrong += [f"{folder}: {count} product files, at most {MOST_FILES}"
              for folder, count in sorted(folders.items()) if count > MOST_FILES]
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
