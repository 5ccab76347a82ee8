#!/usr/bin/env python3
"""The figures that the chapters of docs/guide show are those that their commands print.

What is shown and can be computed again, that is: every block of plain text, and the tables of figures that do not
depend on the machine. Lines of a block that are only "..." stand for any others.

figures_test.py PROGRAM...: `answers`, the programs of the chapters, and the commands that chapters show. It runs in
the folder that has docs/guide.
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import unittest

GUIDE = pathlib.Path("docs/guide")
# Blocks that no command prints again, by their first words, and why.
OTHER_ON_EACH_MACHINE = {
    "Setup: balance {45, 44}": "measured",
    "a step: 236.4 ms": "measured",
    "[2] loss 0.31": "an example of what ranks write",
}
programs = {}


def chapter(number):
    (path,) = GUIDE.glob(f"{number:02}-*.md")
    return path.read_text(encoding="utf-8")


def run(name, *arguments):
    """What a program prints, line by line."""
    folder = os.environ["TEST_TMPDIR"]  # some write files
    done = subprocess.run([programs[name], *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          encoding="utf-8", check=False)
    if done.returncode:
        raise AssertionError(f"{name} {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}")
    return [line.rstrip() for line in done.stdout.split("\n")]


def blocks(text):
    """(language, text) of each block of a chapter."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def command(block):
    """(program, arguments) of `tools/bazel run //a:b -- arguments`."""
    words = shlex.split(block.replace("\\\n", " "))
    if words[:2] != ["tools/bazel", "run"] or "--" not in words:
        return None
    at = words.index("--")
    return words[at - 1].rpartition(":")[2].rpartition("/")[2], words[at + 1:]


def missing(block, printed):
    """The first part of the block that is not in what was printed; None if there is none."""
    known = lambda line: re.sub(r"namespace \d+", "namespace N", line.rstrip())  # N differs
    printed = [known(line) for line in printed]
    at = 0
    for part in re.split(r"^ *\.\.\.\n", block, flags=re.MULTILINE):
        lines = [known(line) for line in part.rstrip("\n").split("\n")]
        begins = [k for k in range(at, len(printed) - len(lines) + 1) if printed[k:k + len(lines)] == lines]
        if not begins:
            return part
        at = begins[0] + len(lines)
    return None


def rows(text, heading):
    """The cells of the table whose first column has this heading."""
    lines = iter(text.split("\n"))
    for line in lines:
        if line.startswith(f"| {heading} |"):
            table = [line]
            for row in lines:
                if not row.startswith("|"):
                    break
                table.append(row)
            return [[cell.strip() for cell in row.strip("|").split("|")] for row in table if not row.startswith("|---")]
    raise AssertionError(f"there is no table of {heading}")


def compared(*flags):
    """{name: (makespan, what a worker holds, whether it fits)} as //gpipe/schedule:compare prints it, best first."""
    found = {}
    for line in run("compare", "--workers=8", "--nodraw", *flags):
        row = re.match(r"(\S.*?)  +(\d+\.\d+) +\S+ % +(\d+\.\d+) +\d+ +\d+ +[\d.]+(.*)$", line)
        if row:
            found[row[1]] = (float(row[2]), float(row[3]), "does not fit" not in row[4])
    return found


class Blocks(unittest.TestCase):
    def test_plain_text_is_what_is_printed(self):
        outputs, count = {}, 0
        for path in sorted(GUIDE.glob("*.md")):
            text = path.read_text(encoding="utf-8")
            source = re.search(r"The code of this chapter is in\s+\[(\w+)\.cc\]", text)
            before = ("", "")
            for language, block in blocks(text):
                if language == "" and not any(block.startswith(begin) for begin in OTHER_ON_EACH_MACHINE):
                    called = command(before[1]) if before[0] == "sh" else (source[1], ["--check"])
                    key = tuple([called[0], *called[1]])
                    if key not in outputs:
                        outputs[key] = run(called[0], *called[1])
                    part = missing(block, outputs[key])
                    self.assertIsNone(part, f"{path} shows what {' '.join(key)} does not print:\n{part}\nIt prints:\n" +
                                      "\n".join(outputs[key]))
                    count += 1
                before = (language, block)
        self.assertGreaterEqual(count, 6)

    def test_exceptions_are_there(self):
        shown = [block for path in GUIDE.glob("*.md") for _, block in blocks(path.read_text(encoding="utf-8"))]
        for begin in OTHER_ON_EACH_MACHINE:
            self.assertEqual(sum(block.startswith(begin) for block in shown), 1, begin)

    def test_what_differs_is_found(self):
        printed = ["a", "b", "c", "d"]
        self.assertIsNone(missing("b\n...\nd\n", printed))
        self.assertEqual(missing("b\nd\n", printed), "b\nd\n")
        self.assertEqual(missing("c\n...\nb\n", printed), "b\n")


class Bubble(unittest.TestCase):
    def test_share_of_idle_time(self):
        printed = dict(line.split(": ") for line in run("answers", "1.table") if line)
        self.assertGreaterEqual(len(printed), 6)
        heads, shares = rows(chapter(1), "micro-batches")
        for count, share in zip(heads[1:], shares[1:]):
            self.assertEqual(share, printed[count], f"chapter 1, {count} micro-batches")
        for row in rows(chapter(5), "chunks")[1:]:
            self.assertEqual(row[1], printed[row[0]], f"chapter 5, {row[0]} chunks")


class Held(unittest.TestCase):
    def test_micro_batches_by_partition(self):
        (line,) = [line for line in run("answers", "7.1") if line.startswith("8 ")]
        for row in rows(chapter(7), "Schedule")[1:]:
            self.assertIn(row[2].replace(",", ""), line, row[0])


class Schedules(unittest.TestCase):
    def test_formulas(self):
        names = {"p": 8, "m": 32, "F": 1, "B": 2, "I": 1, "W": 1}
        printed = compared("--micro_batches=32", "--nosearch")
        checked = set()
        for row in rows(chapter(20), "Name")[1:]:
            kinds = re.findall(r"`([\w-]+)`", row[0])
            for kind, held in zip(kinds, row[3].split(", ") if "," in row[3] else [row[3]] * len(kinds)):
                for v in (2, 4) if row[1] == "v" else (int(row[1]),):
                    if kind == "gpipe":  # "gpipe" has the times of fill-drain
                        continue
                    makespan, peak, _ = printed[f"{kind} x{v}" if row[1] == "v" else kind]
                    value = lambda text: eval(  # pylint: disable=eval-used
                        re.sub(r"(?<=[\dp)])(?=[(pF])", "*", text), {}, {**names, "v": v})
                    if row[2] != "more":
                        self.assertAlmostEqual(makespan - 32 * 3, value(row[2]), msg=f"idle: {row[0]}")
                    about = 0.5 if held.startswith("about") else 0.005
                    self.assertAlmostEqual(peak, value(held.replace("about ", "")), delta=about, msg=f"held: {row[0]}")
                    checked.add(kind)
        self.assertEqual(checked, {name.split(" ")[0] for name in printed})

    def test_cases(self):
        figure = re.compile(r"(?:`([\w-]+)`(?: (x\d))?|(x\d|in a V)) (?:falls from first to )?(\d+\.\d\d)"
                            r"(?:, which holds all (\d+)| \((\d+(?:\.\d+)?)\))?")
        flags, printed, best = [], {}, None
        for row in rows(chapter(20), "Rule")[1:]:
            if row[1] != "the same":
                flags = shlex.split(row[1].strip("`"))
                printed = compared("--forward=1", "--input=1.1", "--weight=0.7", *flags)
            known = {name: each[0] for name, each in printed.items() if each[2] and not name.startswith("search")}
            found = [each[0] for name, each in printed.items() if each[2] and name.startswith("search")]
            for column, cell in enumerate(row[2:], 2):
                matches = list(figure.finditer(cell))
                self.assertEqual(len(re.findall(r"\d+\.\d\d", cell)), len(matches), f"not understood: {cell}")
                for match in matches:
                    name = f"search {match[3]}" if match[3] else " ".join(filter(None, match.group(1, 2)))
                    self.assertEqual(float(match[4]), printed[name][0], f"{name} with {flags}")
                    if match[5] or match[6]:
                        self.assertEqual(float(match[5] or match[6]), printed[name][1], f"{name} holds, with {flags}")
                if column == 2 and matches:
                    best = float(matches[0][4])
                    self.assertEqual(best, min(known.values()), f"the best known one with {flags}")
                if column == 4 and cell.startswith("the same"):
                    self.assertEqual(best, min(found), f"the search with {flags}")


if __name__ == "__main__":
    programs = {pathlib.Path(path).name.removesuffix("_main").removesuffix("_test"): str(pathlib.Path(path).resolve())
                for path in sys.argv[1:]}
    unittest.main(argv=sys.argv[:1])
