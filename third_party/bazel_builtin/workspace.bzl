"""Repositories that Bazel itself wants, for a Bazel that cannot download them.

Debian's Bazel reports no version and finds its rules in /usr/share/bazel. Every official Bazel reports
one, brings or downloads its own, and is left alone. Only rules_shell is younger than some of those.
"""

_RULES = "/usr/share/bazel/rules"

# Maps files of rules_cc to the text of our file of that name, which BUILD and .bzl files load. Our
# files give the native rules, or what Bazel's own tools have, under the names that rules_cc uses,
# because Debian's rules_cc does not fit Debian's Bazel.
_RULES_CC = {
    "cc/action_names.bzl": """\
load("@bazel_tools//tools/build_defs/cc:action_names.bzl", _CPP_COMPILE_ACTION_NAME = "CPP_COMPILE_ACTION_NAME")

CPP_COMPILE_ACTION_NAME = _CPP_COMPILE_ACTION_NAME
""",
    "cc/common/cc_common.bzl": """\
load(":native.bzl", "native_cc_common")

cc_common = native_cc_common
""",
    "cc/common/cc_info.bzl": """\
load(":native.bzl", "NativeCcInfo")

CcInfo = NativeCcInfo
""",
    # A file that defines a name cannot use Bazel's rule of that name.
    "cc/common/native.bzl": """\
NativeCcInfo = CcInfo
native_cc_common = cc_common
""",
    "cc/find_cc_toolchain.bzl": """\
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def find_cc_toolchain(ctx):
    return find_cpp_toolchain(ctx)

def use_cc_toolchain():
    return ["@bazel_tools//tools/cpp:toolchain_type"]
""",
}

_RULES_CC_NAMES = [
    "cc_binary",
    "cc_import",
    "cc_library",
    "cc_proto_library",
    "cc_test",
    "cc_toolchain",
    "cc_toolchain_suite",
    "fdo_prefetch_hints",
    "fdo_profile",
    "objc_import",
    "objc_library",
]

# The rules for each of which rules_cc also has a file.
_RULES_CC_FILES = [
    "cc_binary",
    "cc_import",
    "cc_library",
    "cc_test",
]

_RULES_SHELL_NAMES = [
    "sh_binary",
    "sh_library",
    "sh_test",
]

def _native_rules(names):
    """The text of a .bzl file that has native rules under their own names."""
    return "\n\n".join([
        "def {0}(**kwargs):\n    native.{0}(**kwargs)".format(name)
        for name in names
    ]) + "\n"

def _rules_cc_impl(repository_ctx):
    repository_ctx.file("WORKSPACE", "workspace(name = \"rules_cc\")\n")
    repository_ctx.file("BUILD.bazel", "")
    repository_ctx.file("cc/BUILD.bazel", "\n".join([
        "alias(",
        "    name = \"current_cc_toolchain\",",
        "    actual = \"@bazel_tools//tools/cpp:current_cc_toolchain\",",
        "    visibility = [\"//visibility:public\"],",
        ")",
        "",
    ]))
    repository_ctx.file("cc/common/BUILD.bazel", "")
    repository_ctx.file("cc/defs.bzl", _native_rules(_RULES_CC_NAMES))
    for name in _RULES_CC_FILES:
        repository_ctx.file("cc/" + name + ".bzl", _native_rules([name]))
    for path, content in _RULES_CC.items():
        repository_ctx.file(path, content)

_rules_cc_repository = repository_rule(implementation = _rules_cc_impl)

def _rules_cc():
    _rules_cc_repository(name = "rules_cc")

def _rules_shell_impl(repository_ctx):
    repository_ctx.file("WORKSPACE", "workspace(name = \"rules_shell\")\n")
    repository_ctx.file("BUILD.bazel", "")
    repository_ctx.file("shell/BUILD.bazel", "")
    for name in _RULES_SHELL_NAMES:
        repository_ctx.file("shell/" + name + ".bzl", _native_rules([name]))

_rules_shell_repository = repository_rule(implementation = _rules_shell_impl)

def _rules_shell():
    _rules_shell_repository(name = "rules_shell")

def _coverage_impl(repository_ctx):
    repository_ctx.file("WORKSPACE", "workspace(name = \"remote_coverage_tools\")\n")
    repository_ctx.file("BUILD.bazel", "\n".join([
        "package(default_visibility = [\"//visibility:public\"])",
        "filegroup(name = \"coverage_report_generator\")",
        "filegroup(name = \"lcov_merger\")",
        "",
    ]))

_coverage_repository = repository_rule(implementation = _coverage_impl)

def _coverage():
    _coverage_repository(name = "remote_coverage_tools")

def _debian_rules_impl(repository_ctx):
    folder = repository_ctx.path(_RULES + "/" + repository_ctx.attr.folder)
    if not folder.exists:
        fail("\n{} is missing: apt-get install {}   (`tools/bazel` does this by itself)".format(folder, repository_ctx.attr.package))
    for child in folder.readdir():
        repository_ctx.symlink(child, child.basename)

_debian_rules = repository_rule(
    implementation = _debian_rules_impl,
    attrs = {
        "folder": attr.string(mandatory = True),
        "package": attr.string(mandatory = True),
    },
    local = True,
)

def _rules_java():
    _debian_rules(name = "rules_java", folder = "java", package = "bazel-rules-java")

def _rules_proto():
    _debian_rules(name = "rules_proto", folder = "proto", package = "bazel-rules-proto")

def builtin_repositories(bazel_version):
    """Repository -> the function that defines it, for those that this Bazel lacks (its native.bazel_version)."""
    if not bazel_version:
        return {
            "remote_coverage_tools": _coverage,
            "rules_cc": _rules_cc,
            "rules_java": _rules_java,
            "rules_proto": _rules_proto,
            "rules_shell": _rules_shell,
        }

    # From version 8 on, Bazel has rules_shell itself.
    return {"rules_shell": _rules_shell} if int(bazel_version.split(".")[0]) < 8 else {}
