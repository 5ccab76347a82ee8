#!/usr/bin/env python3
"""mutants.py on small made-up sources: which mutants it finds, and what they do once compiled."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path("tools/mutants").resolve()))
import mutants

PROGRAM = """\
#include <cstdio>
#include <string>
#include <vector>

struct Box {
  int value = 7;
  Box clone() const { return Box{value + 100}; }
};

// if (comment < 0) return;
int sum(const std::vector<int>& values, bool negative) {
  int total = 0;
  for (size_t k = 0; k < values.size(); ++k) {
    if (values[k] == 3) continue;
    total += values[k];
  }
  if (negative && total > 10) total = -total;
  return total;
}

struct CountScope {
  explicit CountScope(int& number) { ++number; }
  int zero() const { return 0; }
};

bool large(int number) {
  return number >= 10;
}

int main() {
  const Box box;
  const int value = box.clone().value;
  const char* text = large(10) ? "large; 0 < 1" : "small";
  for (const int each : {1, 2}) std::printf("%d ", each);
  int inside = 5;
  const CountScope scope(inside);
  const CountScope used(inside);
  inside += used.zero();
  std::printf("%d %d %s %d %d\\n", sum({5, 3, 7}, true), sum({1}, false) + 1, text, value, inside);
}
"""
EXPECTED = "1 2 -12 2 large; 0 < 1 107 7"


def numbered(text):
    found = mutants.find_mutants("a.cc", text)
    for number, mutant in enumerate(found):
        mutant.number = number
    return found


def changes(text):
    return [(mutant.kind, mutant.change) for mutant in mutants.find_mutants("a.cc", text)]


class Mutants(unittest.TestCase):
    def test_every_kind_is_found(self):
        found = changes(PROGRAM)
        for wanted in (
            ("statement left out", "continue;"),
            ("statement left out", "total += values[k];"),
            ("statement left out", "total = -total;"),
            ("negated", "values[k] == 3 -> not so"),
            ("negated", "negative -> not so"),
            ("negated", "negative && total > 10 -> not so"),
            ("negated", "large(10) -> not so"),
            ("off by one", "k < values.size() -> k <= values.size()"),
            ("off by one", "total > 10 -> total >= 10"),
            ("off by one", "sum({1}, false) + 1 -> sum({1}, false)"),
            ("loop left out", "for (const int each : {1, 2}) -> no loop"),
            ("loop left out", "k < values.size() -> false"),
            ("copy left out", "box.clone() -> box"),
            ("other operator", "value + 100 -> value - 100"),
            ("return negated", "number >= 10 -> not so"),
            ("0 to 1", "0 -> 1 in int total = <0>;"),
            ("scope left out", "const CountScope scope(inside);"),
        ):
            self.assertIn(wanted, found)
        self.assertNotIn(("scope left out", "const CountScope used(inside);"), found)
        self.assertTrue(any(kind == "other truth value" and "<t>rue" in change for kind, change in found))
        self.assertFalse(any("comment" in change or "0 < 1" in change for _, change in found))

    def test_useless_ones_are_left_out(self):
        self.assertEqual([], changes("void f() {\n  throw std::logic_error(a < 0 ? b : c);\n}\n"))
        self.assertEqual([], changes("void f() {\n  values.reserve(n + 1);\n}\n"))
        self.assertEqual([], changes("struct A {\n  explicit A(int a);\n  A();\n  bool b = true;\n};\n"))
        declarations = "void f() {\n  State& state = *state_;\n  std::vector<int> a(b);\n  return g(a);\n}\n"
        self.assertEqual([], changes(declarations))
        check = changes('void f() {\n  TORCH_CHECK(a < b, "a is ", a - b);\n}\n')
        self.assertEqual({"statement left out", "off by one"}, {kind for kind, _ in check})

    def test_compiled_mutants_do_what_they_say(self):
        compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
        if compiler is None:
            self.skipTest("no compiler")
        found = numbered(PROGRAM)
        text = mutants.instrumented(PROGRAM, found)
        with tempfile.TemporaryDirectory() as folder:
            source, program, seen = (os.path.join(folder, name) for name in ("a.cc", "a", "seen"))
            pathlib.Path(source).write_text(text)
            subprocess.run([compiler, "-std=c++17", "-w", "-o", program, source], check=True)

            def output_of(number):
                with open(seen, "wb") as file:
                    file.write(bytes(len(found)))
                environment = dict(os.environ, GPIPE_MUTANT=str(number), GPIPE_MUTANT_SEEN=seen)
                done = subprocess.run([program], env=environment, stdout=subprocess.PIPE, timeout=60)
                return done.stdout.decode().strip() if done.returncode == 0 else "crash"

            self.assertEqual(EXPECTED, output_of(-1))
            self.assertEqual(b"\1" * len(found), pathlib.Path(seen).read_bytes(), "every place is reached")
            outputs = {(mutant.kind, mutant.change): output_of(mutant.number) for mutant in found}
        for (kind, change), expected in {
            ("statement left out", "continue;"): "1 2 -15 2 large; 0 < 1 107 7",
            ("statement left out", "total += values[k];"): "1 2 0 1 large; 0 < 1 107 7",
            ("negated", "negative -> not so"): "1 2 12 2 large; 0 < 1 107 7",
            ("negated", "large(10) -> not so"): "1 2 -12 2 small 107 7",
            ("off by one", "sum({1}, false) + 1 -> sum({1}, false)"): "1 2 -12 1 large; 0 < 1 107 7",
            ("off by one", "number >= 10 -> number > 10"): "1 2 -12 2 small 107 7",
            ("off by one", "total > 10 -> total >= 10"): EXPECTED,
            ("loop left out", "for (const int each : {1, 2}) -> no loop"): "-12 2 large; 0 < 1 107 7",
            ("copy left out", "box.clone() -> box"): "1 2 -12 2 large; 0 < 1 7 7",
            ("other operator", "value + 100 -> value - 100"): "1 2 -12 2 large; 0 < 1 -93 7",
            ("0 to 1", "0 -> 1 in int total = <0>;"): "1 2 -13 3 large; 0 < 1 107 7",
                    ("scope left out", "const CountScope scope(inside);"): "1 2 -12 2 large; 0 < 1 107 6",
        }.items():
            self.assertEqual(expected, outputs[kind, change], change)

    def test_each_mutant_has_a_name_of_its_own(self):
        found = mutants.all_mutants(mutants.ROOT)
        self.assertEqual(len(found), len({mutant.name for mutant in found}))
        self.assertEqual([mutant.name for mutant in found],
                         [mutant.name for mutant in mutants.all_mutants(mutants.ROOT)])

    def test_programs_are_not_mutated(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in mutants.FOLDERS:
                (root / name).mkdir(parents=True, exist_ok=True)
            for name in ("cut.cc", "cut.h", "cut_test.cc", "cut_main.cc", "cut_benchmark.cc", "cut.md"):
                (root / "balance" / name).write_text("")
            self.assertEqual(["balance/cut.cc", "balance/cut.h"], mutants.mutated_files(root))

    def test_rooms_are_mutated_and_what_is_for_tests_is_not(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in mutants.FOLDERS + ("gpipe/internal/cell", "balance/testing"):
                (root / name).mkdir(parents=True, exist_ok=True)
                (root / name / "a.cc").write_text("")
            found = mutants.mutated_files(root)
            self.assertIn("gpipe/internal/cell/a.cc", found)
            self.assertIn("gpipe/internal/a.cc", found)
            self.assertNotIn("balance/testing/a.cc", found)

    def test_errors_of_the_compiler_are_found(self):
        log = (
            "gpipe/internal/a.cc: In function 'int f()':\n"
            "gpipe/internal/a.cc:12:7: error: no\n"
            "gpipe/internal/a.cc:13:7: warning: well\n"
            "skip/b.h:5:1:   required from here\n"
        )
        self.assertEqual(({("gpipe/internal/a.cc", 12)}, {("skip/b.h", 5)}), mutants.error_places(log))

    def test_explanations(self):
        text = "# comment\n\na.cc\nreturn a;\n*\nbecause\n  of that\n\na.cc\nreturn b;\nb -> c\nso\n"
        explained = mutants.parse_explained(text)
        expected = [("a.cc", "return a;", "*", "because of that"), ("a.cc", "return b;", "b -> c", "so")]
        self.assertEqual(expected, explained)
        mutant = mutants.Mutant("a.cc", 1, "return b;", "negated", "b -> d", 0, 0, "", "")
        self.assertIsNone(mutants.explanation(mutant, explained))
        mutant.change = "b -> c"
        self.assertEqual("so", mutants.explanation(mutant, explained))
        with self.assertRaises(ValueError):
            mutants.parse_explained("a.cc\nreturn a;\n*\n")
        mutants.parse_explained(pathlib.Path("tools/mutants/explained.txt").read_text())

    def test_choice_is_spread_and_repeatable(self):
        text = "void f() {\n  a();\n  b();\n  c();\n  d();\n}\n"
        found = mutants.find_mutants("a.cc", text) + mutants.find_mutants("b.cc", text * 9)
        for number, mutant in enumerate(found):
            mutant.number = number
        chosen = mutants.chosen_at_random(found, 8, 1)
        again = mutants.chosen_at_random(found, 8, 1)
        self.assertEqual([mutant.number for mutant in chosen], [mutant.number for mutant in again])
        self.assertEqual({"a.cc", "b.cc"}, {mutant.file for mutant in chosen})
        self.assertLess(sum(mutant.file == "a.cc" for mutant in chosen), 4)

    def test_sparse_builds_the_chosen_mutants_and_replaces_what_does_not_compile(self):
        found = mutants.find_mutants("a.cc", "void f() {\n  a();\n  b();\n  c();\n  d();\n  e();\n}\n")
        for number, mutant in enumerate(found):
            mutant.number = number
        place = mutants.Workplace.__new__(mutants.Workplace)
        place.mutants, place.state = found, {"broken": []}
        place.arguments = types.SimpleNamespace(only=[], mutant=[], without=None, count=2, seed=1, sparse=True)
        first = place.built()
        self.assertEqual(2, len(first))
        self.assertEqual(first, place.chosen())
        place.state["broken"] = [first[0].number]
        second = place.built()
        self.assertEqual(2, len(second))
        self.assertEqual(first[1], second[0])
        self.assertNotIn(second[1], first)
        place.arguments.sparse = False
        self.assertEqual(4, len(place.built()))
        place.arguments.mutant = [3]
        self.assertEqual([found[3]], place.chosen())


if __name__ == "__main__":
    unittest.main()
