#!/usr/bin/env python3
"""Tests that check.py finds planted mistakes, in exactly the versions of Bazel that reject them. Run by tools/lint."""

import io
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from check import LIBTORCH, check  # noqa: E402

# A small project without mistakes.
PROJECT = {
    "MODULE.bazel": """\
module(name = "project")

bazel_dep(name = "rules_cc", version = "1")
bazel_dep(name = "rules_shell", version = "1")
bazel_dep(name = "googletest", version = "1", repo_name = "gtest", dev_dependency = True)

own = use_extension("//:extensions.bzl", "own")
own.thing(path = "/opt/thing")
use_repo(own, "thing")
""",
    "WORKSPACE": """\
workspace(name = "project")

load("//:extensions.bzl", "gtest", "thing")

thing()

gtest()
""",
    "extensions.bzl": """\
def _thing_impl(repository_ctx):
    repository_ctx.file("BUILD.bazel", "load(\\"@rules_cc//cc:defs.bzl\\", \\"cc_library\\")\\ncc_library(name = \\"thing\\")\\n")
    repository_ctx.file("thing.bzl", "PATH = \\"%s\\"\\n" % repository_ctx.attr.path)

_thing = repository_rule(implementation = _thing_impl, attrs = {"path": attr.string()})

def thing(path = ""):
    _thing(name = "thing", path = path)

def gtest():
    _thing(name = "gtest")

def _own_impl(module_ctx):
    thing(module_ctx.modules[0].tags.thing[0].path)

own = module_extension(
    implementation = _own_impl,
    tag_classes = {"thing": tag_class(attrs = {"path": attr.string(mandatory = True)})},
)
""",
    "defs.bzl": """\
load("@rules_cc//cc:defs.bzl", "cc_library")
load("@thing//:thing.bzl", "PATH")

def _impl(ctx):
    return []

tool = rule(implementation = _impl, attrs = {"deps": attr.label_list(), "mode": attr.string(mandatory = True)})

def library(name, deps = []):
    cc_library(name = name, deps = deps + select({"//conditions:default": ["@thing"]}), defines = [PATH])
""",
    "BUILD.bazel": """\
load("@rules_shell//shell:sh_test.bzl", "sh_test")
load(":defs.bzl", "library", "tool")

package(default_visibility = ["//visibility:private"])

library(name = "library", deps = ["@gtest//:gtest"])

tool(name = "tool", mode = "fast")

sh_test(name = "test", srcs = glob(["*.sh"]))
""",
    "test.sh": "",
}

# The planted mistakes. Each has a file, the text to be replaced (None: the end of the file), the
# new text, the versions that reject it, the place that must be reported, and the reason.
ALL, NONE = "7 8 9", ""
PLANTED = [
    # Mistakes: names that a version lacks.
    ("BUILD.bazel", None, "cc_library(name = 'x')\n", "9", "BUILD.bazel:11", "@rules_cc//cc:cc_library.bzl"),
    ("BUILD.bazel", None, "sh_binary(name = 'x')\n", "9", "BUILD.bazel:11", "@rules_shell//shell:sh_binary.bzl"),
    ("BUILD.bazel", None, "py_binary(name = 'x')\n", "9", "BUILD.bazel:11", "Variable `py_binary` not found"),
    ("BUILD.bazel", None, "bind(name = 'x', actual = ':y')\n", ALL, "BUILD.bazel:11", "Variable `bind` not found"),
    ("BUILD.bazel", None, "local_repository(name = 'x', path = 'y')\n", ALL, "BUILD.bazel:11", "`local_repository`"),
    ("BUILD.bazel", None, "filegroup(name = 'x', distribs = [])\n", "8 9", "BUILD.bazel:11", "distribs"),
    ("BUILD.bazel", "*.sh", "*.bash", "8 9", "BUILD.bazel:10", "allow_empty"),
    ("BUILD.bazel", None, "filegroup(name = 'x', srcs = glob(['*.no'], allow_empty = True))\n", NONE, "", ""),
    ("BUILD.bazel", None, "filegroup(name = 'x')\n", NONE, "", ""),
    ("defs.bzl", "    cc_library(", "    native.cc_library(", "9", "defs.bzl:10", "@rules_cc//cc:cc_library.bzl"),
    ("defs.bzl", "    cc_library(", "    native.sh_library(", "9", "defs.bzl:10", "called by BUILD.bazel:6"),
    ("defs.bzl", "    cc_library(", "    native.filegroup(", NONE, "", ""),
    ("defs.bzl", "    cc_library(", "    native.local_repository(", ALL, "defs.bzl:10", "`local_repository`"),
    ("defs.bzl", "[PATH]", "[native.bazel_version]", ALL, "defs.bzl:10", "`bazel_version`"),
    ("defs.bzl", None, "info = CcInfo\n", "9", "defs.bzl:11", "@rules_cc//cc/common:cc_info.bzl"),
    ("defs.bzl", None, "def f(ctx):\n    return cc_common.x(ctx)\n", "9", "defs.bzl:12", "cc/common:cc_common.bzl"),
    ("defs.bzl", None, "m = macro(implementation = _impl)\n", "7", "defs.bzl:11", "Variable `macro` not found"),
    ("defs.bzl", None, "s = set([1])\n", "7 8", "defs.bzl:11", "Variable `set` not found"),
    ("defs.bzl", None, "a = attr.label(cfg = 'host')\n", ALL, "defs.bzl:11", "host"),
    ("defs.bzl", "@rules_cc//cc:defs.bzl", "@rules_cc//cc:cc_test.bzl", ALL, "defs.bzl:1", "no symbol `cc_library`"),
    (
        "defs.bzl",
        None,
        'load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")\n',
        "9",
        "defs.bzl:11",
        "nothing is known of @bazel_tools",
    ),
    ("MODULE.bazel", None, "inject_repo(own, 'gtest')\n", "7", "MODULE.bazel:10", "`inject_repo` not found"),
    ("MODULE.bazel", None, "flag_alias(name = 'a', starlark_flag = '//:b')\n", "7 8", "MODULE.bazel:10", "`flag_alias`"),
    ("MODULE.bazel", None, "local_repository(name = 'x', path = 'y')\n", ALL, "MODULE.bazel:10", "`local_repository`"),
    # The mistakes are in a file that a repository rule writes.
    ("extensions.bzl", "@rules_cc//cc:defs.bzl", "@rules_cc//cc:none.bzl", ALL, "@thing//BUILD.bazel:1", "none.bzl"),
    ("extensions.bzl", "load(\\\"@rules_cc//cc:defs.bzl\\\", \\\"cc_library\\\")", "", "9", "@thing//BUILD.bazel:2", "cc_library"),
    # Mistakes in the language.
    ("BUILD.bazel", None, "def f():\n    pass\n", ALL, "BUILD.bazel:11", "`def` is not allowed"),
    ("BUILD.bazel", None, "for x in []:\n    pass\n", ALL, "BUILD.bazel:11", "`for` cannot be used"),
    ("BUILD.bazel", None, "x = struct(a = 1)\n", ALL, "BUILD.bazel:11", "`struct` not found"),
    ("MODULE.bazel", None, "load('//:defs.bzl', 'tool')\n", ALL, "MODULE.bazel:10", "`load` is not allowed"),
    ("BUILD.bazel", "name = \"tool\",", "name = = \"tool\",", ALL, "BUILD.bazel:8", "Parse error"),
    # Mistakes: functions that are called in the wrong kind of file.
    ("extensions.bzl", "    thing(", "    if not native.existing_rule('thing'):\n        thing(", ALL, "extensions.bzl:14", "module extension"),
    ("extensions.bzl", "    thing(", "    if native.bazel_version:\n        thing(", NONE, "", ""),
    ("BUILD.bazel", "load(\":defs.bzl\"", "load(':extensions.bzl', 'thing')\nthing()\nload(\":defs.bzl\"", ALL, "extensions.bzl:8", "neither WORKSPACE nor"),
    ("defs.bzl", None, "native.filegroup(name = 'x')\n", ALL, "defs.bzl:11", "by no BUILD file"),
    ("defs.bzl", "    cc_library(", "    rule(implementation = _impl)\n    cc_library(", ALL, "defs.bzl:10", "called by a function"),
    # Labels.
    ("defs.bzl", "defines = [PATH]", "data = [Label('//:' + Label('//a/b:c').package + str(Label('//x')))]", NONE, "", ""),
    ("defs.bzl", "defines = [PATH]", "data = [Label('@other//:x')]", ALL, "defs.bzl:10", "no repository other visible"),
    ("defs.bzl", "defines = [PATH]", "data = [Label('//x').folder]", ALL, "defs.bzl:10", "no attribute `folder`"),
    # Arguments.
    ("BUILD.bazel", "mode = \"fast\"", "speed = 3", ALL, "BUILD.bazel:8", "no attribute speed"),
    ("BUILD.bazel", ", mode = \"fast\"", "", ALL, "BUILD.bazel:8", "lacks the attribute mode"),
    ("BUILD.bazel", "name = \"tool\"", "name = \"library\"", ALL, "BUILD.bazel:8", "that name already"),
    ("MODULE.bazel", "path = \"/opt/thing\"", "", ALL, "MODULE.bazel:8", "lacks the attribute path"),
    ("MODULE.bazel", "\"/opt/thing\"", "3", ALL, "MODULE.bazel:8", "not a string"),
    ("MODULE.bazel", "own.thing", "own.other", ALL, "MODULE.bazel:8", "no attribute `other`"),
    ("MODULE.bazel", "version = \"1\")", "versions = \"1\")", ALL, "MODULE.bazel:3", "versions"),
    ("defs.bzl", "defines = [PATH]", "linkopts = ['-L/opt/thing']", NONE, "", ""),
    ("defs.bzl", "defines = [PATH]", "linkopts = ['-L/opt/my thing']", ALL, "defs.bzl:10", "splits linkopts at spaces"),
    # Files and repositories.
    ("BUILD.bazel", "\":defs.bzl\"", "\":no.bzl\"", ALL, "BUILD.bazel:2", "there is no file no.bzl"),
    ("BUILD.bazel", "\"library\", \"tool\"", "\"library\", tool = \"tools\"", ALL, "BUILD.bazel:2", "no symbol `tools`"),
    ("extensions.bzl", None, "load(':extensions.bzl', 'own')\n", ALL, "extensions.bzl:20", "loads this file"),
    ("BUILD.bazel", "@gtest//", "@other//", ALL, "defs.bzl:10", "called by BUILD.bazel:6"),
    ("defs.bzl", "@thing\"", "@other//:x\"", ALL, "defs.bzl:10", "no repository other visible"),
    ("defs.bzl", "@thing//", "@gtest//", ALL, "defs.bzl:2", "a dev_dependency"),
    ("defs.bzl", "thing.bzl", "other.bzl", ALL, "defs.bzl:2", "writes no other.bzl"),
    ("MODULE.bazel", "\"thing\")", "\"thing\", \"more\")", ALL, "MODULE.bazel", "makes no repository more"),
    ("MODULE.bazel", None, "bazel_dep(name = 'zlib', version = '1')\n", "7", "WORKSPACE", "zlib is in MODULE.bazel only"),
    ("WORKSPACE", "\ngtest()\n", "", "7", "WORKSPACE", "gtest is in MODULE.bazel only"),
]


# Tests of this project's extension in another module, which is the root. Each has the root's tags,
# the tags of a third module on which the root depends, and the reason for which they are refused
# ("": they are not).
ROOT = Path(__file__).resolve().parents[2]
LISTED = [
    line.split()[1]
    for line in (ROOT / "third_party/libtorch/versions.txt").read_text().splitlines()
    if line.startswith("version ")
]
TAGS = [
    ('own.libtorch(path = "/opt/torch", version = "{version}")\nown.cuda(path = "/opt/cuda")\n', ""),
    *((f'own.libtorch(version = "{version}")\n', "") for version in LISTED),
    (
        'own.libtorch(version = "1.0.0")\n',
        'the module "other" asks for gpipe.libtorch(version = "1.0.0"), which this GPipe does not support: '
        + ", ".join(LISTED),
    ),
    (
        'own.libtorch(version = "{version}")\nown.libtorch(version = "{last}")\n',
        "several gpipe.libtorch(version = ...): {version}, {last}",
    ),
    (
        'own.libtorch(path = "/opt/torch", version = "{last}")\n',
        'has version = "{last}", but path = "/opt/torch" is LibTorch {version}',
    ),
    # These tags belong to a third module.
    ("", "", 'own.libtorch(version = "{version}")\n'),
    ('own.libtorch(version = "{last}")\n', "", 'own.libtorch(version = "{last}")\n'),
    (
        "",
        'the module "third" asks for gpipe.libtorch(version = "{last}"), but LibTorch {version} is chosen',
        'own.libtorch(version = "{last}")\n',
    ),
    (
        'own.libtorch(version = "{last}")\n',
        'the module "third" asks for gpipe.libtorch(version = "{version}"), but LibTorch {last} is chosen',
        'own.libtorch(version = "{version}")\n',
    ),
    # The version in a folder is not known before the folder is read.
    ('own.libtorch(path = "/opt/torch")\n', "", 'own.libtorch(version = "{last}")\n'),
    ('own.libtorch(path = "/a")\nown.libtorch(path = "/b")\n', "several gpipe.libtorch(path = ...): /a, /b"),
    ('own.cuda(path = "cuda")\n', "it has no / at its beginning"),
    # One of the two machines that check.py assumes has this folder.
    ('own.cuda(path = "/usr/local/cuda")\n', "it has no bin/nvcc"),
    ("own.cuda()\n", "lacks the attribute path"),
    ('own.libtorch(folder = "/opt/torch")\n', "no attribute folder"),
]
OTHER = """\
module(name = "{name}")
bazel_dep(name = "gpipe")
local_path_override(module_name = "gpipe", path = "..")
own = use_extension("@gpipe//third_party:extensions.bzl", "gpipe")
"""
DEPENDS = """\
bazel_dep(name = "third")
local_path_override(module_name = "third", path = "../third")
"""


def outcome(root):
    """The reports of check(), for each version that rejects something."""
    said = {}
    for major in ("7", "8", "9"):
        out = io.StringIO()
        if not check(root, [major], out):
            said[major] = out.getvalue()
    return said


def run_planted(file, old, new, majors, where, why):
    """The differences from what is expected."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        for name, text in PROJECT.items():
            if name == file:
                assert old is None or old in text, (file, old)
                text = text + new if old is None else text.replace(old, new, 1)
            (root / name).write_text(text)
        said = outcome(root)
    wrong = []
    if list(said) != majors.split():
        wrong.append(f"rejected by [{' '.join(said)}], not [{majors}]")
    for major, text in said.items():
        if f"{where}: Bazel {major}: " not in text or why not in text:
            wrong.append(f"not said: \"{where}\", \"{why}\"; but: {text}")
    return wrong


def run_tags(tags, why, third=None):
    def named(text):
        return text.replace("{version}", LIBTORCH).replace("{last}", LISTED[-1])

    why = named(why)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        for name in ("BUILD.bazel", "MODULE.bazel", "WORKSPACE", "deps.bzl"):
            shutil.copy(ROOT / name, root)
        shutil.copytree(ROOT / "third_party", root / "third_party")
        (root / "other").mkdir()
        depends = "" if third is None else DEPENDS
        (root / "other/MODULE.bazel").write_text(OTHER.replace("{name}", "other") + depends + named(tags))
        if third is not None:
            (root / "third").mkdir()
            (root / "third/MODULE.bazel").write_text(OTHER.replace("{name}", "third") + named(third))
        said = outcome(root)
    if len(said) != (3 if why else 0):
        return [f"rejected by [{' '.join(said)}]: {said}"]
    return [f"not said: \"{why}\"; but: {text}" for text in said.values() if why not in text]


def main():
    cases = [(run_planted, case) for case in [("BUILD.bazel", None, "", NONE, "", ""), *PLANTED]]
    cases += [(run_tags, case) for case in TAGS]
    failures = 0
    for run, case in cases:
        wrong = run(*case)
        if wrong:
            failures += 1
            print(f"FAILED: {case!r}", *wrong, sep="\n", file=sys.stderr)
    print(f"{len(cases) - failures} of {len(cases)} as expected")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
