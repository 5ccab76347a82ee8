#!/usr/bin/env python3
"""The flags of a program as a table of a page, from the program's --help.

  flags_table.py PROGRAM PAGE          compares the table that is in the page, between <!-- flags --> and <!-- /flags -->
  flags_table.py PROGRAM PAGE --write  writes it there
"""
import pathlib
import re
import subprocess
import sys

BEGIN, END = "<!-- flags -->\n", "<!-- /flags -->"


def flags(text):
    """[(name, default or "", explanation)] of what command/flags.cc prints."""
    found = []
    for line in text.split("\nFlags:\n", 1)[1].splitlines():
        head = re.fullmatch(r"  --(\w+)(?:  \((.*)\))?", line)
        if head:
            found.append([head[1], head[2] or "", []])
        elif found and line.startswith("      "):
            found[-1][2].append(line.strip())
    return [(name, default, " ".join(lines)) for name, default, lines in found]


def table(text):
    rows = ["| Flag | Default | |", "|---|---|---|"]
    for name, default, told in flags(text):
        told = told.replace("|", "\\|")
        # If the text ends with "Default: ...", that is shown as the default.
        own = re.fullmatch(r"(.*?) ?Default: (.*?)\.?", told)
        if own:
            told, default = own.groups()
        elif default:
            default = f"`{default}`"
        rows.append(f"| `--{name}` | {default} | {told} |")
    return "\n".join(rows) + "\n"


def main():
    if len(sys.argv) not in (3, 4) or sys.argv[3:] not in ([], ["--write"]):
        print(__doc__, file=sys.stderr)
        return 2
    program, page = sys.argv[1], pathlib.Path(sys.argv[2])
    made = table(subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout)
    before, _, rest = page.read_text().partition(BEGIN)
    have, end, after = rest.partition(END)
    if not end:
        print(f"{page}: there is no {BEGIN.strip()} with {END} behind it", file=sys.stderr)
        return 1
    if have == made:
        return 0
    if sys.argv[3:]:
        page.write_text(before + BEGIN + made + END + after)
        return 0
    print(f"{page}: its table is not the one of {program} --help. Run tools/docs/flags_table.py PROGRAM PAGE --write",
          file=sys.stderr)
    for line in sorted(set(made.splitlines()) ^ set(have.splitlines())):
        print(("+ " if line in made else "- ") + line, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
