#!/usr/bin/env python3
"""Public functions of gpipe/schedule and balance without a row in the package's edge_test.cc.

Public are the headers of targets that are visible to all, of what those without headers are made
of, and what these headers include of their package and its rooms; a function is what a header declares at the start of
a line, or as a static member, except for those in a namespace `internal`.

  tools/testing/check_edges.py    prints them, and fails if there are some
"""

import ast
import pathlib
import re
import sys

PACKAGES = ("gpipe/schedule", "balance")
PUBLIC = "//visibility:public"


def targets(package):
    """The targets of a BUILD file, with those attributes that are plain values."""
    result = {}
    for node in ast.parse(pathlib.Path(package, "BUILD.bazel").read_text()).body:
        call = getattr(node, "value", None)
        if not isinstance(call, ast.Call):
            continue
        values = {}
        for each in call.keywords:
            try:
                values[each.arg] = ast.literal_eval(each.value)
            except ValueError:  # it is a select(), or a sum of lists
                pass
        if "name" in values:
            result[values["name"]] = values
    return result


def public_headers(package):
    known = targets(package)
    names = {name for name, values in known.items() if PUBLIC in values.get("visibility", [])}
    names |= {known[name]["library"].lstrip(":") for name in names if "library" in known[name]}
    for name in set(names):
        if not known[name].get("hdrs") and known[name].get("deps"):
            names |= {dep[1:] for dep in known[name]["deps"] if dep.startswith(":")}
    found = set()
    new = {header for name in names for header in known[name].get("hdrs", [])}
    while new:
        found |= new
        texts = " ".join(pathlib.Path(package, header).read_text() for header in new)
        new = set(re.findall(rf'#include "{package}/([^"]*)"', texts)) - found
    return sorted(found)


def functions(text):
    """The names of the functions that a header declares."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"namespace [\w:]*internal \{.*?\n\}", "", text, flags=re.S)
    declared = r"^(?:  static )?(?!using|return|struct|class|enum|TORCH)[A-Za-z_][\w:<>,&* ]*[ &*>](\w+)\("
    return {
        match.group(1)
        for match in re.finditer(declared, text, flags=re.M)
        if not match.group(1).startswith("operator")
    }


def main():
    missing = []
    for package in PACKAGES:
        rows = pathlib.Path(package, "edge_test.cc").read_text()
        named = set(re.findall(r"\w+", " ".join(re.findall(r'"([^"\n]*)"', rows))))
        for header in public_headers(package):
            text = pathlib.Path(package, header).read_text()
            if "Internal to" in text[:500]:
                continue
            missing += [f"{package}/{header}: {name}" for name in sorted(functions(text) - named)]
    for each in missing:
        print(f"{each} has no row in edge_test.cc")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
