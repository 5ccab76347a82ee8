#!/usr/bin/env python3
"""Checks that every C++ block of docs/guide stands in a program of examples/guide, word for word, and that its chapter
names the headers that it needs. A header that a chapter names must be a public one.

A program marks what a chapter shows with two lines, and may indent all of it:

    // [name]
    gpipe::GPipe pipe(model, {2, 2});
    // [/name]

A block that is not such a region, and a region that no chapter shows, are errors. Markers of other
regions within one are left out. Part of tools/lint; the programs are tests.

A reader who copies a block has <torch/torch.h> and "gpipe/gpipe.h"; chapter 2 says so. A name of gpipe:: from another
header is an error unless the chapter names a header that has it, and so is what ALSO lists.

check_blocks.py [CHAPTERS PROGRAMS]: the two folders. Headers are those of the folder that it runs in.
"""
import difflib
import pathlib
import re
import sys
import textwrap

# If a block uses the first text, its chapter must contain the second.
ALSO = {
    r"\bat::autocast\b": "ATen/autocast_mode.h",
    r"\bTEST(_F)?\(": "gtest/gtest.h",
    r"\bF::": "`F` is `torch::nn::functional`",
    r"(?<!torch::)\bnn::": "`nn` is `torch::nn`",
}
PUBLIC = "examples/downstream/public_headers.cc"
NAMESPACES = {"balance", "distributed", "models", "safetensors", "skip", "testing"}
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
    """The difference from the most similar region."""
    nearest = max(known, key=lambda each: difflib.SequenceMatcher(None, block, each[2]).quick_ratio(), default=None)
    if nearest is None:
        return "there are no regions"
    lines = difflib.unified_diff(nearest[2].split("\n"), block.split("\n"), f"{nearest[0]} [{nearest[1]}]", "the chapter",
                                 lineterm="", n=1)
    return "\n".join(lines)


class Headers:
    """The headers of a folder: what each includes, and what it declares."""

    def __init__(self, root):
        self.root, self.texts = root, {}
        for path in root.glob("*/**/*.h"):
            name = path.relative_to(root).as_posix()
            if not re.search(r"(^|/)(internal|bazel-[^/]*|third_party)/", name):
                self.texts[name] = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))

    def with_included(self, names):
        """The headers of these names and all that they include."""
        found, waiting = set(), [name for name in names if name in self.texts]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [each for each in re.findall(r'#include "(.*?)"', self.texts[name]) if each in self.texts]
        return found

    def declaring(self, namespace, name):
        """The headers that declare the name."""
        pattern = re.compile(rf"\b(class|struct|enum class|using|TORCH_MODULE\() ?{name}\b(?!;)|"
                             rf"^(?! *return)[\w:<>,&* ]+[ &*>]{name}\(", re.MULTILINE)
        return {header for header, text in self.texts.items()
                if re.search(rf"namespace {namespace} {{", text) and pattern.search(text)}


def unnamed_headers(chapter, block, headers):
    """The names that the block uses but neither the usual headers nor those of its chapter declare, as texts."""
    problems = [f"it uses {match[0]} and the chapter does not say {needed}"
                for pattern, needed in ALSO.items()
                if (match := re.search(pattern, block)) and needed not in " ".join(chapter.split())]
    at_hand = headers.with_included(["gpipe/gpipe.h", *re.findall(r"[\w/]+\.h\b", chapter)])
    for chain in sorted(set(re.findall(r"\bgpipe((?:::\w+)+)", block))):
        names = chain.split("::")[1:]
        namespace = "gpipe"
        while names and names[0] in NAMESPACES:
            namespace += "::" + names.pop(0)
        if not names:
            continue
        having = headers.declaring(namespace, names[0])
        if not having & at_hand:
            problems.append(f"it uses {namespace}::{names[0]}, and the chapter names no header that has it"
                            f" ({', '.join(sorted(having)) or 'nor is there one'})")
    return problems


def private_headers(chapter, headers):
    """The headers that a chapter names and that PUBLIC does not include, as texts. Those of tests and examples are not installed."""
    text = pathlib.Path(headers.root, PUBLIC).read_text(encoding="utf-8")
    public = set(re.findall(r'^#include "(.*)"', text, re.MULTILINE))
    named = set(re.findall(r'["`]([a-z_]+/[\w/]+\.h)["`]', chapter)) & set(headers.texts)
    return [f"it names {name}, which {PUBLIC} does not include: another workspace could not use it"
            for name in sorted(named - public) if not name.startswith(("examples/", "gpipe/testing/"))]


def check(chapters, programs, root=None):
    """The problems, as texts, and how many blocks there are. `root`: the folder of the headers; without it, headers are not checked."""
    problems, known = [], []
    headers = Headers(root) if root else None
    for program in sorted(programs.glob("*.cc")):
        try:
            for name, code in regions(program.read_text(encoding="utf-8")).items():
                known.append((program, name, code))
        except ValueError as error:
            problems.append(f"{program}: {error}")
    shown, count = set(), 0
    for chapter in sorted(chapters.glob("*.md")):
        text = chapter.read_text(encoding="utf-8")
        problems += [f"{chapter}: {what}" for what in private_headers(text, headers)] if headers else []
        for line, block in blocks(text):
            count += 1
            if headers:
                problems += [f"{chapter}:{line}: {what}" for what in unnamed_headers(text, block, headers)]
            same = [(program, name) for program, name, code in known if code == block]
            shown.update(same)
            if not same:
                problems.append(f"{chapter}:{line}: this block is not a region of a program:\n{difference(block, known)}")
    problems += [f"{program}: no chapter shows [{name}]" for program, name, _ in known if (program, name) not in shown]
    if not count:
        problems.append(f"{chapters}: no chapter has a block of C++")
    return problems, count


def main():
    folders = sys.argv[1:] or ["docs/guide", "examples/guide"]
    problems, count = check(*[pathlib.Path(folder) for folder in folders], pathlib.Path("."))
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{count} blocks of C++, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
