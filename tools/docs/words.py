#!/usr/bin/env python3
"""Hints at words that CONTRIBUTING.md asks for in another form: British spellings, "is no", "shall", sentences that
begin with "Of". Hints, not a limit: the exit code is always 0. Part of tools/lint.

  words.py          the lines changed since the base of `tools/lint --tidy`, the first 20 hints
  words.py --all    the same, all hints
  words.py --tree   how often each word stands in all files

It reads the prose of Markdown, without blocks and words of code, and comments and strings of programs.
"""
import collections
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "ci"))
import tidy  # noqa: E402

MOST = 20
COMMENT = {"h": "//", "cc": "//", "cu": "//", "py": "#", "sh": "#", "bzl": "#", "bazel": "#"}
SPELLINGS = {
    "behaviour": "behavior", "colour": "color", "favour": "favor", "honour": "honor", "neighbour": "neighbor",
    "centre": "center", "metre": "meter", "licence": "license", "defence": "defense", "grey": "gray",
    "analyse": "analyze", "catalogue": "catalog", "whilst": "while", "amongst": "among", "learnt": "learned",
    "cancelled": "canceled", "cancelling": "canceling", "labelled": "labeled", "labelling": "labeling",
    "modelled": "modeled", "modelling": "modeling", "relabelled": "relabeled", "relabelling": "relabeling",
    "signalled": "signaled", "travelled": "traveled",
}
ISE = "initial|normal|optim|parallel|quant|serial|synchron|token|recogn|organ|minim|maxim|summar|general|special|util"
# The pattern, the name in the report, and the better wording.
WORDS = [(re.compile(rf"\b{british}(s|d|ed|ing)?\b", re.I), british, american)
         for british, american in SPELLINGS.items()]
WORDS += [
    (re.compile(rf"\b({ISE})is(e|es|ed|ing|ation|er)\b", re.I), "-ise", "-ize"),
    (re.compile(r"(?<![Tt]here )\bis no\b(?! (?:longer|more)\b)"), "is no", 'is not a (or "there is no")'),
    (re.compile(r"(?<![Tt]here )\b(?:are|was|were) no\b(?! (?:longer|more)\b)"), "are no", 'are not (or "there are no")'),
    (re.compile(r"\bshall\b"), "shall", "must, or will"),
    (re.compile(r"(?:^|[.:;!?] )(?:Those of|That of|Of)\b(?! course\b)"), "Of ...", "name the subject first"),
    (re.compile(r"\b(?:rank|process|thread|worker|call|stage|layer)(?:e?s)? who\b"), "... who", "that"),
]


def prose_of(path, text):
    """[(number, prose)] of the lines that have some."""
    found, block = [], False
    mark = COMMENT.get(path.rsplit(".", 1)[-1])
    for number, line in enumerate(text.split("\n"), 1):
        if path.endswith(".md"):
            if re.match(r"\s*```", line):
                block = not block
            line = "" if block else re.sub(r"^[\s>*-]+|`[^`]*`", "", line)
        elif mark:
            code, _, comment = line.partition(mark)
            line = ". ".join([*re.findall(r'"((?:[^"\\]|\\.)*)"', code), comment.strip()])
        else:
            line = ""
        if line.strip():
            found.append((number, line.strip()))
    return found


def hints(path, text):
    """[(number, word, what to write)]"""
    return [(number, word, instead) for number, line in prose_of(path, text)
            for pattern, word, instead in WORDS for _ in pattern.finditer(line)]


def changed(diff):
    """{path: numbers of the lines that are new} of what `git diff -U0` says."""
    found, path = {}, None
    for line in diff.split("\n"):
        if line.startswith("+++ "):
            path = line[len("+++ b/"):] if line.startswith("+++ b/") else None
        where = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)
        if where and path:
            first, count = int(where.group(1)), int(where.group(2) or 1)
            found.setdefault(path, set()).update(range(first, first + count))
    return found


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""  # the file is deleted, or is not a text


def files(*options):
    names = (tidy.git("ls-files", "--exclude-standard", *options) or "").split("\n")
    return [name for name in names if name and not name.startswith("third_party/") and "/words" not in name]


def print_tree():
    counts = collections.Counter(word for path in files("--cached", "--others") for _, word, _ in hints(path, read(path)))
    for word, count in counts.most_common():
        print(f"{count:6} {word}")


def print_changes(most):
    since = tidy.base()[0]
    lines = changed(tidy.git("diff", "-U0", since) or "") if since else {}
    tracked = set(files("--cached"))
    lines = {path: numbers for path, numbers in lines.items() if path in tracked}
    lines.update({path: None for path in files("--others")})  # None: all lines are new
    found = [f"{path}:{number}: {word}: {instead}" for path, numbers in sorted(lines.items())
             for number, word, instead in hints(path, read(path)) if numbers is None or number in numbers]
    for hint in found[:most]:
        print(hint)
    if len(found) > most:
        print(f"{len(found) - most} more hints: tools/docs/words.py --all")


def main(arguments):
    try:
        if "--tree" in arguments:
            print_tree()
        else:
            print_changes(sys.maxsize if "--all" in arguments else MOST)
    except SystemExit as reason:  # there is no base; tidy.py says so, too
        print(reason)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
