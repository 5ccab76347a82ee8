#!/usr/bin/env python3
"""Checks that every C++ block of docs/guide stands in a program of examples/guide, word for word.

A program marks what a chapter shows with two lines, and may indent all of it:

    // [name]
    gpipe::GPipe pipe(model, {2, 2});
    // [/name]

A block that is no such region, and a region that no chapter shows, are errors. Markers of other
regions within one are left out. Part of tools/lint; the programs are tests.

check_blocks.py [CHAPTERS PROGRAMS]: the two folders.
"""
import difflib
import pathlib
import re
import sys
import textwrap

MARKER = re.compile(r"\s*// \[(/?)([a-z0-9_]+)\]\s*$")


def blocks(text):
    """(line, code) of each block of C++ in a chapter."""
    found, begin, lines = [], None, []
    for number, line in enumerate(text.split("\n"), 1):
        if begin is None and re.match(r"```(cpp|c\+\+|cc|cxx)\b", line):
            begin, lines = number, []
        elif begin is not None and line.startswith("```"):
            found.append((begin, "\n".join(lines)))
            begin = None
        elif begin is not None:
            lines.append(line)
    return found


def regions(text):
    """{name: code} of a program; ValueError for markers that do not pair up."""
    open_regions, found = {}, {}
    for line in text.split("\n"):
        marker = MARKER.match(line)
        if not marker:
            for lines in open_regions.values():
                lines.append(line)
        elif not marker.group(1):
            if marker.group(2) in open_regions or marker.group(2) in found:
                raise ValueError(f"[{marker.group(2)}] begins twice")
            open_regions[marker.group(2)] = []
        else:
            if marker.group(2) not in open_regions:
                raise ValueError(f"[/{marker.group(2)}] ends what has not begun")
            lines = open_regions.pop(marker.group(2))
            found[marker.group(2)] = textwrap.dedent("\n".join(lines)).strip("\n")
    if open_regions:
        raise ValueError(f"[{sorted(open_regions)[0]}] does not end")
    return found


def difference(block, known):
    """How the region that is most alike differs."""
    nearest = max(known, key=lambda each: difflib.SequenceMatcher(None, block, each[2]).quick_ratio(), default=None)
    if nearest is None:
        return "there are no regions"
    lines = difflib.unified_diff(nearest[2].split("\n"), block.split("\n"), f"{nearest[0]} [{nearest[1]}]", "the chapter",
                                 lineterm="", n=1)
    return "\n".join(lines)


def check(chapters, programs):
    """The problems, as texts, and how many blocks there are."""
    problems, known = [], []
    for program in sorted(programs.glob("*.cc")):
        try:
            for name, code in regions(program.read_text(encoding="utf-8")).items():
                known.append((program, name, code))
        except ValueError as error:
            problems.append(f"{program}: {error}")
    shown, count = set(), 0
    for chapter in sorted(chapters.glob("*.md")):
        for line, block in blocks(chapter.read_text(encoding="utf-8")):
            count += 1
            same = [(program, name) for program, name, code in known if code == block]
            shown.update(same)
            if not same:
                problems.append(f"{chapter}:{line}: this block is no region of a program:\n{difference(block, known)}")
    problems += [f"{program}: no chapter shows [{name}]" for program, name, _ in known if (program, name) not in shown]
    if not count:
        problems.append(f"{chapters}: no chapter has a block of C++")
    return problems, count


def main():
    folders = sys.argv[1:] or ["docs/guide", "examples/guide"]
    problems, count = check(*[pathlib.Path(folder) for folder in folders])
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{count} blocks of C++, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
