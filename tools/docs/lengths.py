#!/usr/bin/env python3
"""Checks how long documents are: a chapter of the guide at most 1,500 words, a design page at most 2,000 and with what it
decides first, the README at most 1,000, a cell of the pages of results at most 200 characters.

  lengths.py          the check; prose wider than 100 columns is a hint
  lengths.py --words  the number of words of each document
  lengths.py --fix    wraps the paragraphs that are wider; tables, code and headings stay

Part of tools/lint.
"""
import fnmatch
import pathlib
import re
import subprocess
import sys

WORDS = [("README.md", 1000), ("docs/guide/*.md", 1500), ("docs/design/*.md", 2000)]
RESULTS = ("docs/results.md", "docs/results_gpu.md")
CELL = 200
COLUMNS = 100
MOST = 20  # the number of hints that are printed
# Pages of tables in which something is looked up. They do not compare alternatives.
TABLES = ("torchgpipe_faults.md", "torchgpipe_parity.md", "torchgpipe_parity_parts.md", "libtorch_inside.md")
LOG = "CHANGELOG.md"  # one line for each change
# A line must not begin with one of these: it would begin a list, a heading, a quotation or a table.
MARK = re.compile(r"([-+*>|]|#+|\d+[.)])$")
ITEM = re.compile(r"(\s*)((?:[-+*]|\d+[.)])\s+)?")


def shown(line):
    """What counts as the width of a line: a link's address may make it longer."""
    return re.sub(r"\]\([^)\s]*\)", "](", line)


def most_words(path):
    return next((most for pattern, most in WORDS if fnmatch.fnmatch(path, pattern)), None)


def paragraphs(text):
    """[(first line, lines)]: an item of a list is one, too. Without tables, headings and blocks of code."""
    found, block, current = [], False, None
    for number, line in enumerate(text.split("\n")):
        fence = re.match(r"\s*(```|~~~)", line)
        block = block != bool(fence)
        plain = not (block or fence) and line.strip() and not re.match(r"\s*(\||#|>|<)", line)
        if not plain:
            current = None
        elif current is None or ITEM.match(line).group(2):
            current = (number, [line])
            found.append(current)
        else:
            current[1].append(line)
    return found


def wide(text):
    """Numbers of the lines of prose that are too wide, from 1."""
    return [first + offset + 1 for first, lines in paragraphs(text) for offset, line in enumerate(lines)
            if len(shown(line)) > COLUMNS and " " in line.strip()]


def wrapped(lines):
    indent, item = ITEM.match(lines[0]).groups(default="")
    later = " " * len(indent + item)
    words = " ".join([lines[0][len(later):]] + [line.strip() for line in lines[1:]]).split(" ")
    done, line = [], indent + item
    empty = True
    for k, word in enumerate(words):
        if not word:
            continue
        longer = line + ("" if empty else " ") + word
        if not empty and len(longer) > COLUMNS and not MARK.match(word):
            done.append(line)
            longer = later + word
        line, empty = longer, False
    return done + [line]


def fixed(text):
    lines = text.split("\n")
    too_wide = set(wide(text))
    for first, old in reversed(paragraphs(text)):
        if too_wide & set(range(first + 1, first + len(old) + 1)):
            lines[first:first + len(old)] = wrapped(old)
    return "\n".join(lines)


def faults(path, text):
    found = []
    words = len(text.split())
    most = most_words(path)
    if most and words > most:
        found.append(f"{path}: {words} words, more than {most}: split it, or say it in fewer")
    if path.startswith("docs/design/") and path != "docs/design/README.md":
        head = text.split("\n## ")[0]
        if "**Decided:**" not in head:
            found.append(f"{path}: does not begin with what it decides (**Decided:**)")
        if "ejected" not in head and not path.endswith(TABLES):
            found.append(f"{path}: does not name the best rejected ways before its first heading")
    if path in RESULTS:
        for number, line in enumerate(text.split("\n"), 1):
            for cell in line.strip("|").split("|") if line.startswith("|") else []:
                if len(cell.strip()) > CELL:
                    found.append(f"{path}:{number}: a cell of {len(cell.strip())} characters, more than {CELL}")
    return found


def documents():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], check=True,
                            capture_output=True, text=True).stdout.split("\n")
    return {path: pathlib.Path(path).read_text(encoding="utf-8")
            for path in sorted(filter(None, listed)) if pathlib.Path(path).exists()}


def main(arguments):
    texts = documents()
    if "--words" in arguments:
        for path, text in texts.items():
            print(f"{len(text.split()):6} {path}")
        return 0
    if "--fix" in arguments:
        for path, text in texts.items():
            if path != LOG and fixed(text) != text:
                pathlib.Path(path).write_text(fixed(text), encoding="utf-8")
        return 0
    found = [fault for path, text in texts.items() for fault in faults(path, text)]
    hints = [f"{path}:{number}: wider than {COLUMNS} columns: tools/docs/lengths.py --fix"
             for path, text in texts.items() if path != LOG for number in wide(text)]
    print("\n".join(hints[:MOST] + found + [f"{len(texts)} documents, {len(hints)} wide lines, {len(found)} faults"]))
    return 1 if found or not texts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
