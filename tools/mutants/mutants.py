#!/usr/bin/env python3
"""Which single changes of the code do the tests not notice?

A mutant is one small change of a file in FOLDERS: a statement left out, a condition negated, a bound off by one, a
copy or a scope left out. A test fails with it and kills it; a mutant that no test kills is a survivor, and stands for
a defect that the tests would let through.

  tools/mutants/mutants.py --list                   the mutants, with their numbers
  tools/mutants/mutants.py --count 150 --seed 1     runs 150 of them, spread over the files
  tools/mutants/mutants.py --only gpipe/internal/stage/stage.cc
  tools/mutants/mutants.py --mutant 17 --again      this one, once more, say after a test was added
  tools/mutants/mutants.py --count 150 --sparse     puts only these 150 into the programs
  tools/mutants/mutants.py --report                 what is known so far; runs nothing

Compiling against LibTorch takes long, so all mutants are compiled at once: a copy of the tree, in --work, has every
change behind a switch (switch.h), which the environment variable GPIPE_MUTANT closes. A change that does not compile
is taken back. The tests are built once, have to pass with every switch open, and tell which places they reach; then
they run with one mutant after the other, the quickest first, those only that reach its place. A test that fails,
crashes, or takes much longer than usual (a hang) kills.

Thousands of switches make inner loops ten times as slow. Searches then take minutes, and tests that limit a time fail
without a mutant. With --sparse, only the chosen mutants are behind switches; another choice is compiled anew.

Results are kept in --work: a run that was interrupted goes on. They hold as long as the mutated sources stay as they
are; --again runs the survivors among the chosen mutants anew.

explained.txt lists survivors that no test can notice, and why: paragraphs of the file, the line, the change as the
report prints it (or * for all of that line), and the reason.

Mutants are found with regular expressions in formatted code, not by a compiler. Error messages, assertions, busy
waiting and hints such as reserve() are left alone.
"""

import argparse
import bisect
import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FOLDERS = ("balance", "diagnose", "gpipe/distributed", "gpipe/internal", "gpipe/runtime", "gpipe/schedule",
           "interception", "meta", "skip")
# These headers are only for tests, so they are not mutated.
NOT_MUTATED = ("skip/testing.h",)
TESTS = ("//balance/... + //diagnose:all + //gpipe:all + //gpipe/distributed/... + //gpipe/internal/... + "
         "//gpipe/runtime:all + //gpipe/schedule/... + //gpipe/tests/... + //interception:all + //meta:all + "
         "//skip:all")
# These tests take minutes, or depend on the machine rather than the code.
SLOW_TESTS = ("//gpipe/tests/exactness:golden_test", "//diagnose:diagnose_test")
LAST_TESTS = ("//gpipe/tests/exactness:generated_programs_test",)

# Mutants in these lines prove nothing.
USELESS = re.compile(
    r"\breserve\(|pause\(|sleep_for|TORCH_INTERNAL_ASSERT|RECORD_FUNCTION|static_assert|\bassert\(|\bkSpins\b"
    r"|\(void\)"
)
KEYWORDS = frozenset(
    "return throw if for while switch case break continue using const auto static typedef struct class namespace "
    "template public private protected friend constexpr enum else do delete goto extern explicit virtual inline try "
    "catch default operator mutable thread_local new static_assert".split()
)
LEVELS = {
    "=": 1, "+=": 1, "-=": 1, "*=": 1, "/=": 1, "|=": 1, "&=": 1, "?": 1, ":": 1, "||": 2, "&&": 3, "|": 4, "^": 5,
    "&": 6, "==": 7, "!=": 7, "<": 8, ">": 8, "<=": 8, ">=": 8, "<<": 9, ">>": 9, "+": 10, "-": 10, "*": 11, "/": 11,
    "%": 11,
}
OPERATOR = re.compile(r"(?<=\s)(\|\||&&|==|!=|<=|>=|<<|>>|[-+*/|&]=|[-<>+*/%=?:|&^])(?=\s)")
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*"}


class Mutant:
    """`prefix` and `suffix` go around [start, end) of the file; {} in them is the mutant's number."""

    def __init__(self, file, line, line_text, kind, change, start, end, prefix, suffix):
        self.number = -1
        self.twins = 0  # how many earlier mutants would have the same name
        self.file, self.line, self.line_text = file, line, line_text
        self.kind, self.change = kind, change
        self.start, self.end = start, end
        self.prefix, self.suffix = prefix, suffix

    @property
    def name(self):
        """The mutant in a later version of the file, if its line is still there."""
        return "\n".join((self.file, self.line_text, self.kind, self.change, str(self.twins)))

    def to_text(self):
        return "{:>5}  {}:{}  {}: {}".format(self.number, self.file, self.line, self.kind, self.change)


def masked(text):
    """`text` with comments and preprocessor lines blank and string contents replaced, character by character."""
    result = list(text)

    def blank(begin, end, by=" "):
        for k in range(begin, end):
            if result[k] != "\n":
                result[k] = by

    token = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:\\\n|[^\n])*',
        re.S | re.M,
    )
    for match in token.finditer(text):
        if match.group().startswith(('"', "R", "'")):
            blank(match.start() + 1, match.end() - 1, "s")
        else:
            blank(match.start(), match.end())
    return "".join(result)


class Source:
    """A file, with the parts of its structure that the search for mutants needs."""

    def __init__(self, file, text):
        self.file, self.text = file, text
        self.code = masked(text)
        self.lines = [0] + [match.end() for match in re.finditer("\n", text)]
        self.partner = {}  # the position of each bracket's partner
        self.block = set()  # positions of the { that begin statements
        self.executable = bytearray(len(text))  # whether a position is within a function's body
        self.excluded = bytearray(len(text))
        self._match_brackets()
        self._exclude()
        self.operators = [(m.start(), m.group()) for m in OPERATOR.finditer(self.code)]

    def _match_brackets(self):
        stack = []
        inside = [False]
        for k, char in enumerate(self.code):
            self.executable[k] = inside[-1]
            if char in "([":
                stack.append(k)
            elif char == "{":
                stack.append(k)
                before = self.code[max(0, k - 200) : k].rstrip()
                head = re.split(r"[;{}]", before)[-1]
                if re.search(r"(\)|\]|\b(else|do|try|const|noexcept|override|mutable))$", before):
                    self.block.add(k)
                elif inside[-1] and re.search(r"[;{}]$", before) and not re.search(r"[=(,]\s*\{$", before):
                    self.block.add(k)
                elif re.search(r"\)\s*->\s*[\w:<>&*, ]+$", head):
                    self.block.add(k)
                if k in self.block:
                    inside.append(True)
                elif re.search(r"\b(struct|class|namespace|enum|union)\b[^()]*$", head):
                    inside.append(False)
                else:
                    inside.append(inside[-1])
            elif char in ")]}" and stack:
                begin = stack.pop()
                self.partner[begin], self.partner[k] = k, begin
                if char == "}":
                    inside.pop()

    def _exclude(self):
        def exclude(begin, end):
            self.excluded[begin:end] = b"\1" * (end - begin)

        for match in re.finditer(r"\bTORCH_\w*CHECK\w*\(", self.code):
            begin = match.end() - 1
            end = self.partner.get(begin, begin)
            comma = self.next_at_depth(begin + 1, ",")
            if comma is not None and comma < end:
                exclude(comma, end)
        for match in re.finditer(r"\b(throw|static_assert|constexpr|using)\b[^;]*;", self.code):
            exclude(match.start(), match.end())
        for begin, line in self.each_line():
            if USELESS.search(line):
                exclude(begin, begin + len(line))

    def each_line(self):
        for begin in self.lines:
            end = self.code.find("\n", begin)
            yield begin, self.code[begin : end if end >= 0 else len(self.code)]

    def next_at_depth(self, begin, chars):
        """The next of `chars` outside brackets; None if the surrounding brackets close first."""
        k = begin
        while k < len(self.code):
            char = self.code[k]
            if char in chars:
                return k
            if char in "([{":
                k = self.partner.get(k, len(self.code))
            elif char in ")]}":
                return None
            k += 1
        return None

    def line_of(self, position):
        return bisect.bisect_right(self.lines, position)

    def is_control(self, opening):
        """Whether this ( belongs to an if, while, for or switch."""
        return re.search(r"\b(if|while|for|switch|catch)(\s+constexpr)?\s*$", self.code[max(0, opening - 30) : opening])

    def stripped(self, begin, end):
        while begin < end and self.code[begin].isspace():
            begin += 1
        while begin < end and self.code[end - 1].isspace():
            end -= 1
        match = re.match(r"(return|throw|else|case|do)\b\s*", self.code[begin:end])
        return (begin + match.end(), end) if match else (begin, end)

    def left_operand(self, position, level):
        k = position - 1
        while k >= 0:
            char = self.code[k]
            if char in ")]}":
                opening = self.partner.get(k)
                if opening is None or (char == "}" and opening in self.block):
                    break
                if char == ")" and self.is_control(opening):
                    break
                k = opening
            elif char in "([{;,":
                break
            else:
                spot = bisect.bisect_right(self.operators, (k, "~")) - 1
                if spot >= 0:
                    begin, operator = self.operators[spot]
                    if begin <= k < begin + len(operator) and LEVELS[operator] < level:
                        break
            k -= 1
        return self.stripped(k + 1, position)

    def right_operand(self, position, level):
        k = position
        while k < len(self.code):
            char = self.code[k]
            if char in "([{":
                if char == "{" and k in self.block:
                    break
                k = self.partner.get(k, len(self.code))
            elif char in ")]};,":
                break
            else:
                spot = bisect.bisect_left(self.operators, (k, ""))
                begin, operator = self.operators[spot] if spot < len(self.operators) else (-1, "")
                if begin == k and LEVELS[operator] <= level:
                    break
            k += 1
        return self.stripped(position, k)

    def chain_before(self, position):
        """The start of the `a.b(c)->d` that ends at `position`."""
        k = position
        while k > 0:
            char = self.code[k - 1]
            if char in ")]":
                k = self.partner.get(k - 1, k - 1)
            elif char.isalnum() or char in "_:.":
                k -= 1
            elif self.code[k - 2 : k] == "->":
                k -= 2
            else:
                break
        return k


def is_expression_statement(code):
    """A call or an assignment; not a declaration."""
    if re.match(r"\(\*[^()]*\)\(.*\)$", code, re.S):
        return True
    match = re.match(r"(\+\+|--|\*)?([A-Za-z_][\w:]*)", code)
    if not match or match.group(2) in KEYWORDS:
        return False
    k = match.end()
    while k < len(code):
        if code[k] in "([":
            depth = 0
            for k in range(k, len(code)):
                depth += (code[k] in "([{") - (code[k] in ")]}")
                if depth == 0:
                    break
            k += 1
            continue
        part = re.match(r"(\.|->)\s*[A-Za-z_]\w*|\s+(?=\.|->)|<[^;()]*>(?=\()", code[k:])
        if not part:
            break
        k += part.end()
    rest = code[k:]
    if not rest:
        return k > match.end() or bool(match.group(1))
    return re.match(r"\s*([-+*/|&]?=(?!=)|\+\+$|--$)", rest) is not None


class Finder:
    """Finds the mutants of one file."""

    def __init__(self, file, text):
        self.source = Source(file, text)
        self.found = {}

    def add(self, kind, start, end, prefix, suffix, changed, shown=None):
        """`changed`: the new text. `shown`: (begin, end) of the old text in the report."""
        source, text = self.source, self.source.text
        if not source.executable[start] or any(source.excluded[start:end]):
            return
        begin, stop = shown or (start, end)
        old = " ".join(text[begin:stop].split())
        if len(old) > 100:
            old = old[:97] + "..."
        line = source.line_of(begin)
        line_text = text[source.lines[line - 1] :].split("\n", 1)[0].strip()
        change = "{} -> {}".format(old, changed) if changed else old
        mutant = Mutant(source.file, line, line_text, kind, change, start, end, prefix, suffix)
        self.found.setdefault((start, end, kind), mutant)

    def piece(self, begin, end):
        return " ".join(self.source.text[begin:end].split())

    def negate(self, begin, end, kind="negated"):
        code = self.source.code
        if begin >= end or re.search(r"(?<![=!<>+*/|&-])=(?!=)", re.sub(r"\[[&=]\]", "", code[begin:end])):
            return  # it is a declaration or an assignment
        if re.match(r"(const\s+)?(auto|bool)\b", code[begin:end]):
            return
        if kind == "loop left out":
            self.add(kind, begin, end, "(!gpipe_mutant({}) && static_cast<bool>(", "))", "false")
        else:
            self.add(kind, begin, end, "(gpipe_mutant({}) != static_cast<bool>(", "))", "not so")

    def conditions(self):
        """Negated conditions, loops left out and negated returns."""
        source, code, text = self.source, self.source.code, self.source.text
        for match in re.finditer(r"\b(if|while)\s*\(", code):
            begin = match.end()
            end = source.partner.get(begin - 1)
            if end is None:
                continue
            semicolon = source.next_at_depth(begin, ";")
            if semicolon is not None and semicolon < end:
                begin = semicolon + 1
            self.negate(*source.stripped(begin, end), "negated" if match.group(1) == "if" else "loop left out")
        for match in re.finditer(r"\bfor\s*\(", code):
            begin = match.end()
            end = source.partner.get(begin - 1)
            first = source.next_at_depth(begin, ";")
            if end is None:
                continue
            if first is None or first > end:
                colon = text.find(" : ", begin, end)
                if colon >= 0:
                    start = match.start()
                    self.add("loop left out", start, start, "if (!gpipe_mutant({})) ", "", "no loop", (start, end + 1))
                continue
            second = source.next_at_depth(first + 1, ";")
            if second is not None:
                self.negate(*source.stripped(first + 1, second), "loop left out")
        for position, operator in source.operators:
            behind = position + len(operator)
            if operator == "?":
                self.negate(*source.left_operand(position, 2))
            elif operator in ("&&", "||"):
                level = LEVELS[operator]
                self.negate(*source.left_operand(position, level))
                self.negate(*source.right_operand(behind, level))
        for match in re.finditer(r"\breturn\s+([^;]*);", code):
            value = match.group(1)
            begin, end = match.start(1), match.end(1)
            if value in ("true", "false"):
                new = "false" if value == "true" else "true"
                self.add("return negated", begin, end, "(gpipe_mutant({}) != ", ")", new)
            elif source.next_at_depth(begin, ";") == end:
                inside = [(at, op) for at, op in source.operators if begin <= at < end]
                level = [LEVELS[op] for at, op in inside if depth_zero(source, begin, at)]
                if value.startswith("!") and not level or level and min(level) in (2, 3, 7, 8):
                    self.negate(begin, end, "return negated")

    def operators(self):
        """Off by one, and other operators."""
        source, code, text = self.source, self.source.code, self.source.text
        for position, operator in source.operators:
            behind = position + len(operator)
            if operator in COMPARISONS or operator in ARITHMETIC:
                level = LEVELS[operator]
                begin, middle = source.left_operand(position, level)
                right, end = source.right_operand(behind, level)
                if begin >= middle or right >= end:
                    continue
                value = text[right:end]
                if operator in "+-" and value == "1":
                    left = self.piece(begin, position)
                    self.add("off by one", right, end, "(gpipe_mutant({}) ? 0 : ", ")", left, (begin, end))
                    continue
                if operator in ARITHMETIC and re.search(r'"|to_text|to_string|std::string|text\b', text[begin:end]):
                    continue
                new = COMPARISONS.get(operator) or ARITHMETIC[operator]
                mutated = "{} {} {}".format(self.piece(begin, middle), new, self.piece(right, end))
                kind = "off by one" if operator in COMPARISONS else "other operator"
                if re.search(r"//|\[[&=\w, ]*\]\s*(\(|\{)", text[begin:end]):
                    continue  # the mutated code would have to stand there twice
                self.add(kind, begin, end, "(gpipe_mutant({}) ? (" + verbatim(mutated) + ") : (", "))", mutated)
        for match in re.finditer(r"(?<![\w.'])0(?![\w.'])", code):
            where = source_line(source, match.start())
            self.add("0 to 1", match.start(), match.end(), "(gpipe_mutant({}) ? 1 : ", ")", "1 in " + where)

    def copies(self):
        """Copies left out."""
        source, code, text = self.source, self.source.code, self.source.text
        for match in re.finditer(r"\.(clone|detach)\(\)", code):
            begin = source.chain_before(match.start())
            if begin < match.start():
                chain = text[begin : match.start()]
                prefix = "(gpipe_mutant({}) ? " + verbatim(chain) + " : "
                self.add("copy left out", begin, match.end(), prefix, ")", self.piece(begin, match.start()))
        for match in re.finditer(r"\bdetached_alias\(", code):
            end = source.partner.get(match.end() - 1)
            if end is not None:
                argument = text[match.end() : end]
                prefix = "(gpipe_mutant({}) ? (" + verbatim(argument) + ") : "
                self.add("copy left out", match.start(), end + 1, prefix, ")", self.piece(match.end(), end))

    def statements(self):
        """Statements left out."""
        source, code, text = self.source, self.source.code, self.source.text
        for match in re.finditer(r"\b(break|continue);", code):
            self.add("statement left out", match.start(), match.end(), "{{ if (!gpipe_mutant({})) ", " }}", "", None)
        for match in re.finditer(r"[;{})]|\belse\b", code):
            char = match.group()
            at = match.start()
            if char == "{" and at not in source.block:
                continue
            if char == ")" and not (at in source.partner and source.is_control(source.partner[at])):
                continue
            begin = match.end()
            while begin < len(code) and code[begin].isspace():
                begin += 1
            end = source.next_at_depth(begin, ";")
            if end is None or text.count("\n", begin, end) > 8 or not source.executable[begin]:
                continue
            if any(begin <= k < end for k in source.block) or not is_expression_statement(code[begin:end]):
                continue
            before = code[max(0, begin - 200) : begin]
            if re.search(r"\bfor\s*\([^;]*(;[^;]*)?$", before) and not in_statement_place(source, begin):
                continue
            shown = (begin, end + 1)
            if USELESS.search(code[begin:end]):
                continue
            # Excluded text within the statement, such as a message, is left out with it.
            saved = bytes(source.excluded[begin : end + 1])
            source.excluded[begin : end + 1] = bytes(end + 1 - begin)
            if not saved[0]:
                self.add("statement left out", begin, end + 1, "{{ if (!gpipe_mutant({})) {{ ", " }} }}", "", shown)
            source.excluded[begin : end + 1] = saved

    def scopes(self):
        """Left out objects that have an effect while they live."""
        source, code, text = self.source, self.source.code, self.source.text
        scope = r"^[ \t]*((?:const )?((?:\w+::)*\w*(?:Scope|Guard)) (\w+)\(([^;{}]*)\);)$"
        for match in re.finditer(scope, code, re.M):
            begin, end = match.start(1), match.end(1)
            if not source.executable[begin] or "/*" in text[begin:end] or "//" in text[begin:end]:
                continue
            if re.search(r"\b{}\b".format(match.group(3)), code[end : code.find("\n}", end)]):
                continue  # its name is used below, and would then have another type
            declared = "std::optional<{}> {}; if (!gpipe_mutant({{}})) {}.emplace({});".format(
                match.group(2), match.group(3), match.group(3),
                verbatim(" ".join(text[match.start(4) : match.end(4)].split())))  # adds no line
            for key in [key for key in self.found if begin <= key[0] and key[1] <= end]:
                del self.found[key]  # without the scope, its arguments have no effect
            self.add("scope left out", begin, end, declared + " /* ", " */", "", (begin, end))
            source.excluded[begin:end] = b"\1" * (end - begin)

    def arguments(self):
        """Other truth values as arguments."""
        source, code = self.source, self.source.code
        for match in re.finditer(r"\b(true|false)\b", code):
            before = code[: match.start()].rstrip()
            if before.endswith("return") or re.search(r"TORCH_\w*CHECK\w*\($", before):
                continue
            new = "false" if match.group() == "true" else "true"
            self.add("other truth value", match.start(), match.end(), "(gpipe_mutant({}) != ", ")",
                new + " in " + source_line(source, match.start()))


def find_mutants(file, text):
    """The mutants of one file, not numbered."""
    finder = Finder(file, text)
    finder.conditions()
    finder.operators()
    finder.copies()
    finder.statements()
    finder.scopes()  # the last but one: it takes out what was found within a scope
    finder.arguments()
    return nested(sorted(finder.found.values(), key=lambda mutant: (mutant.start, -mutant.end, mutant.kind)))


def verbatim(code):
    """The text with its braces doubled for str.format."""
    return code.replace("{", "{{").replace("}", "}}")


def depth_zero(source, begin, position):
    k = begin
    while k < position:
        if source.code[k] in "([{":
            k = source.partner.get(k, position)
        k += 1
    return k == position


def in_statement_place(source, position):
    """Whether the position is not between the parentheses of a for."""
    for opening, closing in source.partner.items():
        if opening < position < closing and source.code[opening] == "(" and source.is_control(opening):
            if not any(opening < block < position < source.partner.get(block, 0) for block in source.block):
                return False
    return True


def source_line(source, position):
    """The text around a position, for the report."""
    line = source.line_of(position) - 1
    begin = source.lines[line]
    text = source.text[begin:].split("\n", 1)[0]
    column = position - begin
    before, behind = text[max(0, column - 30) : column], text[column + 1 : column + 20]
    return " ".join("{}<{}>{}".format(before, text[column], behind).split())


def nested(mutants):
    """The mutants, without those that partly overlap others."""
    result, open_spans = [], []
    for mutant in mutants:
        while open_spans and open_spans[-1] <= mutant.start:
            open_spans.pop()
        if open_spans and mutant.end > open_spans[-1]:
            continue
        result.append(mutant)
        open_spans.append(mutant.end)
    return result


def instrumented(text, mutants):
    """`text` with every mutant behind its switch; the lines keep their numbers."""
    inserts = collections.defaultdict(lambda: ([], []))
    for mutant in mutants:  # outer mutants come first
        inserts[mutant.start][1].append(mutant.prefix.format(mutant.number))
        inserts[mutant.end][0].append(mutant.suffix.format(mutant.number))
    if not inserts:
        return text
    result, last = [], 0
    for position in sorted(inserts):
        result.append(text[last:position])
        suffixes, prefixes = inserts[position]
        result += list(reversed(suffixes)) + prefixes
        last = position
    result.append(text[last:])
    return (HERE / "switch.h").read_text() + "#line 1\n" + "".join(result)


def mutated_files(root, folders=FOLDERS):
    """The files to mutate, relative to `root`."""
    result = []
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            # Programs are left out, because tests of single units do not run them.
            other = path.stem.endswith(("_test", "_main", "_benchmark")) or name in NOT_MUTATED or "/testing/" in name
            if path.suffix in (".cc", ".h") and not other:
                result.append(name)
    return result


def all_mutants(root, folders=FOLDERS):
    result = []
    for file in mutated_files(root, folders):
        result += find_mutants(file, (root / file).read_text())
    names = collections.Counter()
    for number, mutant in enumerate(result):
        mutant.number = number
        name = mutant.name
        mutant.twins = names[name]
        names[name] += 1
    return result


def chosen_at_random(mutants, count, seed):
    """A sample of `count` mutants (None: all, as drawn): twice as many from a file with four times as many mutants."""
    generator = random.Random(seed)
    by_file = collections.defaultdict(list)
    for mutant in mutants:
        by_file[mutant.file].append(mutant)
    ranked = []
    for file in sorted(by_file):
        group = by_file[file]
        generator.shuffle(group)
        for k, mutant in enumerate(group):
            ranked.append(((k + generator.random()) / len(group) ** 0.5, mutant.number, mutant))
    return [mutant for _, _, mutant in sorted(ranked)[:count]]


def parse_explained(text):
    """[(file, line, change, reason)]"""
    result = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [line for line in paragraph.strip().split("\n") if not line.startswith("#")]
        if not lines or not lines[0]:
            continue
        if len(lines) < 4:
            raise ValueError("explained.txt: not a file, a line, a change and a reason: " + paragraph.strip())
        file, line, change = (part.strip() for part in lines[:3])
        result.append((file, line, change, " ".join(part.strip() for part in lines[3:])))
    return result


def explanation(mutant, explained):
    for file, line, change, reason in explained:
        if file == mutant.file and line == mutant.line_text and change in ("*", mutant.change):
            return reason
    return None


def error_places(log):
    """{(file, line)} of a compiler's messages."""
    errors = set(re.findall(r"^(?:\./)?((?:\w+/)+[\w.]+):(\d+):\d+: (?:fatal )?error: ", log, re.M))
    notes = set(re.findall(r"^(?:\./)?((?:\w+/)+[\w.]+):(\d+):\d+:\s+required from", log, re.M))
    return {(file, int(line)) for file, line in errors}, {(file, int(line)) for file, line in notes}


class Workplace:
    """The copy of the tree with the mutants in it, its test programs, and the results so far."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.work = pathlib.Path(arguments.work)
        self.tree = self.work / "tree"
        self.work.mkdir(parents=True, exist_ok=True)
        self.mutants = all_mutants(ROOT, arguments.folders)
        digest = hashlib.sha256()
        for mutant in self.mutants:
            digest.update((mutant.name + mutant.prefix + str(mutant.start)).encode())
        self.digest = digest.hexdigest()
        self.lock = threading.Lock()
        self.state = {"digest": self.digest, "broken": [], "tests": {}, "results": {}}
        path = self.work / "state.json"
        if path.exists():
            state = json.loads(path.read_text())
            if state["digest"] == self.digest:
                self.state = state
        self.results = self.state["results"]

    def chosen(self):
        """The mutants that the arguments name or draw. One that does not compile leaves its place to the next."""
        arguments = self.arguments
        result = [mutant for mutant in self.mutants if not self.is_left_out(mutant)]
        if arguments.only:
            result = [mutant for mutant in result if mutant.file in arguments.only]
        if arguments.mutant:
            result = [mutant for mutant in result if mutant.number in arguments.mutant]
        if arguments.count is not None:
            result = chosen_at_random(result, None, arguments.seed)
        return [mutant for mutant in result if mutant.number not in self.broken][:arguments.count]

    def save(self):
        path = self.work / "state.json"
        path.with_suffix(".new").write_text(json.dumps(self.state, indent=1))
        path.with_suffix(".new").rename(path)

    def log(self, text):
        print(text, flush=True)

    # Building.

    def is_left_out(self, mutant):
        return bool(self.arguments.without and re.search(self.arguments.without, mutant.file))

    def is_built(self, mutant):
        return mutant.number not in self.broken and not self.is_left_out(mutant)

    def built(self):
        """The mutants that have a switch in the programs."""
        if self.arguments.sparse:
            return self.chosen()
        return [mutant for mutant in self.mutants if self.is_built(mutant)]

    @property
    def broken(self):
        return set(self.state["broken"])

    def write_tree(self):
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
            stdout=subprocess.PIPE).stdout.decode().split("\0")
        names = [name for name in listed if name and (ROOT / name).is_file()]
        if (ROOT / ".bazelrc.user").exists():
            names.append(".bazelrc.user")
        known = set(names)
        if self.tree.exists():
            for path in list(self.tree.rglob("*")):
                name = str(path.relative_to(self.tree))
                if not name.startswith("bazel-") and path.is_file() and name not in known:
                    path.unlink()
        by_file = collections.defaultdict(list)
        for mutant in sorted(self.built(), key=lambda mutant: mutant.number):
            by_file[mutant.file].append(mutant)
        for name in names:
            target = self.tree / name
            content = (ROOT / name).read_bytes()
            if name in by_file:
                content = instrumented(content.decode(), by_file[name]).encode()
            if not target.exists() or target.read_bytes() != content:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
                shutil.copymode(ROOT / name, target)

    def bazel(self, *words, check=True):
        return subprocess.run(["tools/bazel", *words], cwd=self.tree, check=check, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)

    def test_labels(self):
        query = "tests({}) except attr(tags, requires-gpu, {})".format(self.arguments.tests, self.arguments.tests)
        output = subprocess.run(
            ["tools/bazel", "query", "--noshow_progress", "kind(cc_test, {})".format(query)], cwd=self.tree,
            check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()
        return sorted(label for label in output.split() if label not in self.arguments.leave_out.split(","))

    def build(self):
        for attempt in range(12):
            self.write_tree()
            labels = self.test_labels()
            self.log("building {} tests with {} mutants".format(len(labels), len(self.built())))
            done = self.bazel(
                "build", "--config=ci", "--jobs={}".format(self.arguments.build_jobs),
                "--per_file_copt=^({})/.*\\.cc$,-_test\\.cc$@-w".format("|".join(self.arguments.folders)), *labels,
                check=False)
            log = done.stdout.decode(errors="replace")
            (self.work / "build.log").write_text(log)
            if done.returncode == 0:
                return labels
            errors, notes = error_places(log)
            broken = self.at_places(errors) or self.at_places(notes)
            if not broken:
                sys.exit("mutants: the build fails, and not for a mutant: see {}".format(self.work / "build.log"))
            self.log("{} mutants do not compile".format(len(broken)))
            self.state["broken"] = sorted(self.broken | broken)
            self.save()
        sys.exit("mutants: still does not build; see {}".format(self.work / "build.log"))

    def at_places(self, places):
        """The mutants that are in one of these lines, or begin or end there."""
        result = set()
        texts = {}
        for mutant in self.built():
            if mutant.file not in texts:
                texts[mutant.file] = (ROOT / mutant.file).read_text()
            text = texts[mutant.file]
            lines = {text.count("\n", 0, mutant.start) + 1, text.count("\n", 0, mutant.end) + 1}
            if any((mutant.file, line) in places for line in lines):
                result.add(mutant.number)
        return result

    # Running.

    def program(self, label):
        package, name = label[2:].split(":")
        return self.tree / "bazel-bin" / package / name

    def run_test(self, label, limit, **environment):
        """(exit status or None for a time-out, seconds, the first failed case)"""
        program = self.program(label).resolve()
        runfiles = pathlib.Path(str(program) + ".runfiles")
        workspace = re.search(r'name = "(\w+)"', (self.tree / "WORKSPACE").read_text()).group(1)
        with tempfile.TemporaryDirectory() as scratch:
            device = "fake" if label.endswith("_fake_test") else "cpu"
            values = dict(os.environ, GPIPE_TEST_DEVICE=device, TEST_TMPDIR=scratch, TEST_SRCDIR=str(runfiles),
                          RUNFILES_DIR=str(runfiles), TEST_WORKSPACE=workspace, TESTBRIDGE_TEST_RUNNER_FAIL_FAST="1",
                          OMP_WAIT_POLICY="passive", **environment)
            values.setdefault("GPIPE_PROGRAMS", "150")
            values["GPIPE_PROGRAMS_FAILURES"] = "1"
            with open(os.path.join(scratch, "output"), "w+b") as output:
                begin = time.monotonic()
                process = subprocess.Popen(
                    [str(program), "--gtest_fail_fast"], cwd=runfiles / workspace, env=values,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                    preexec_fn=prepare)
                try:
                    status = process.wait(timeout=limit)
                except subprocess.TimeoutExpired:
                    status = None
                seconds = time.monotonic() - begin
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
                output.seek(0)
                text = output.read(1 << 22).decode(errors="replace")
        failed = re.search(r"\[  FAILED  \] ([\w/.]+)", text)
        if failed is None:
            begun = re.findall(r"\[ RUN      \] ([\w/.]+)", text)
            case = begun[-1] if begun else ""
        else:
            case = failed.group(1)
        if status != 0 and not environment.get("GPIPE_MUTANT"):
            (self.work / "baseline_failure.log").write_text(text)
        return status, seconds, case

    def baseline(self, labels):
        """Runs the tests without a mutant. Fills self.state["tests"]: seconds and the places reached."""
        tests = self.state["tests"]
        for label in list(tests):
            if label not in labels:
                del tests[label]
        for label in labels:
            stamp = hashlib.sha256(self.program(label).read_bytes()).hexdigest()
            if tests.get(label, {}).get("stamp") == stamp:
                continue
            seen = self.work / "seen"
            seen.write_bytes(bytes(len(self.mutants)))
            status, seconds, case = self.run_test(label, 1200, GPIPE_MUTANT_SEEN=str(seen))
            if status != 0:
                sys.exit("mutants: {} fails without a mutant ({}, {}); see {}".format(
                    label, status, case, self.work / "baseline_failure.log"))
            reached = [number for number, byte in enumerate(seen.read_bytes()) if byte]
            tests[label] = {"stamp": stamp, "seconds": round(seconds, 2), "reached": reached}
            self.log("{:7.1f} s  {}  reaches {} places".format(seconds, label, len(reached)))
            self.save()

    def judge(self, mutant):
        order = sorted(
            (label in LAST_TESTS, test["seconds"], label)
            for label, test in self.state["tests"].items() if mutant.number in self.reached[label])
        result = {"survived": True, "reached_by": len(order), "seconds": 0.0}
        for _, usual, label in order:
            limit = max(self.arguments.patience * usual, usual + 8)
            status, seconds, case = self.run_test(label, limit, GPIPE_MUTANT=str(mutant.number))
            result["seconds"] = round(result["seconds"] + seconds, 1)
            if status != 0:
                how = "hang" if status is None else "failure" if status == 1 else "crash ({})".format(status)
                result.update(survived=False, killed_by=label, case=case, how=how)
                break
        with self.lock:
            self.results[mutant.name] = result
            self.save()
            self.log(mutant.to_text() + "\n       " + verdict(result))
        return result

    def run(self, mutants):
        self.reached = {label: set(test["reached"]) for label, test in self.state["tests"].items()}
        with concurrent.futures.ThreadPoolExecutor(self.arguments.jobs) as pool:
            list(pool.map(self.judge, mutants))

    # Reporting.

    def report(self, mutants):
        path = HERE / "explained.txt"
        explained = parse_explained(path.read_text()) if path.exists() else []
        for file, line, _, _ in explained:
            if not (ROOT / file).exists() or line not in (ROOT / file).read_text():
                print("explained.txt: {} does not have this line any more, take it out: {}".format(file, line))
        killed, survivors, excused, waiting, broken = [], [], [], [], []
        rows = []
        for mutant in sorted(mutants, key=lambda mutant: mutant.number):
            result = self.results.get(mutant.name)
            reason = explanation(mutant, explained)
            if not self.is_built(mutant):
                broken.append(mutant)
                continue
            row = {"number": mutant.number, "file": mutant.file, "line": mutant.line, "kind": mutant.kind,
                   "change": mutant.change, "text": mutant.line_text, "result": result, "explained": reason}
            rows.append(row)
            if result is None:
                waiting.append(mutant)
            elif not result["survived"]:
                killed.append(mutant)
            elif reason:
                excused.append((mutant, reason))
            else:
                survivors.append(mutant)
        text = []
        for row, mutant in ((row, mutant) for row in rows for mutant in [self.mutants[row["number"]]]):
            if row["result"] is not None:
                text.append("{}\n       {}".format(mutant.to_text(), verdict(row["result"])))
        text.append("\nExplained survivors:")
        text += ["{}\n       {}".format(mutant.to_text(), reason) for mutant, reason in excused]
        text.append("\nSurvivors:")
        for mutant in survivors:
            text.append("\n       ".join((mutant.to_text(), mutant.line_text, verdict(self.results[mutant.name]))))
        hung = sum(self.results[mutant.name]["how"] == "hang" for mutant in killed)
        by_test = collections.Counter(self.results[mutant.name]["killed_by"] for mutant in killed)
        text.append("\nKilled by:")
        text += ["{:5}  {}".format(count, label) for label, count in by_test.most_common()]
        unreached = sum(self.results[mutant.name]["reached_by"] == 0 for mutant in survivors)
        text.append(
            "\n{} mutants run: {} killed ({} of them by a time-out), {} survived and are explained, {} survived ({} of "
            "them where no test comes); {} not run, {} not built".format(
                len(killed) + len(excused) + len(survivors), len(killed), hung, len(excused), len(survivors),
                unreached, len(waiting), len(broken)))
        (self.work / "report.txt").write_text("\n".join(text) + "\n")
        (self.work / "report.json").write_text(json.dumps(rows, indent=1) + "\n")
        return text


def verdict(result):
    if result["survived"]:
        return "SURVIVED ({} tests reach it)".format(result["reached_by"])
    return "killed by {} {} ({})".format(result["killed_by"], result["case"], result["how"])


def prepare():
    """Before a test program: limits, as a mutant may allocate or print without end, and signals as at a terminal. A
    shell has what it starts in the background ignore SIGINT, nohup has it ignore SIGHUP, and that is inherited."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 20, 256 << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    parser.add_argument("--report", action="store_true", help="print the results so far and stop")
    parser.add_argument("--only", action="append", default=[], metavar="FILE", help="mutants of this file; repeatable")
    parser.add_argument("--mutant", action="append", type=int, default=[], metavar="N", help="this mutant; repeatable")
    parser.add_argument("--count", type=int, help="that many, by chance")
    parser.add_argument("--seed", type=int, default=1, help="of that choice")
    parser.add_argument("--again", action="store_true", help="run survivors, and what --mutant names, once more")
    parser.add_argument("--jobs", type=int, default=1, help="how many mutants at the same time")
    parser.add_argument("--build_jobs", type=int, default=1, help="Bazel's --jobs")
    parser.add_argument("--no_build", action="store_true", help="take the programs of the last build")
    parser.add_argument("--minutes", type=float, help="start no mutant later than that")
    parser.add_argument("--patience", type=float, default=5, help="a test that takes so many times as long hangs")
    parser.add_argument("--folders", nargs="*", default=FOLDERS, metavar="FOLDER",
                        help="mutants of these only; the numbers of mutants depend on it")
    parser.add_argument("--tests", default=TESTS, help="a Bazel query expression")
    parser.add_argument("--leave_out", default=",".join(SLOW_TESTS), help="labels of tests, separated by commas")
    parser.add_argument("--without", metavar="REGEX", help="leave these files unmutated: a header that all tests "
                        "include has all of them compiled")
    parser.add_argument("--sparse", action="store_true", help="compile only the chosen mutants")
    parser.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "gpipe-mutants"), help="a scratch folder")
    arguments = parser.parse_args()

    place = Workplace(arguments)
    if arguments.list:
        for mutant in sorted(place.chosen(), key=lambda mutant: mutant.number):
            print(mutant.to_text())
        return
    if not arguments.report:
        if arguments.no_build:
            labels = sorted(place.state["tests"])
        else:
            labels = place.build()
            place.save()
        place.baseline(labels)
    chosen = place.chosen()
    if not arguments.report:
        run = []
        for mutant in chosen:
            known = place.results.get(mutant.name)
            if known is None or (arguments.again and (known["survived"] or arguments.mutant)):
                run.append(mutant)
        if arguments.minutes is not None:
            end = time.monotonic() + 60 * arguments.minutes
            judge = place.judge
            place.judge = lambda mutant: judge(mutant) if time.monotonic() < end else None
        place.run(run)
    print("\n".join(place.report(chosen)))


if __name__ == "__main__":
    main()
