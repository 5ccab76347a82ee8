"""Repositories that Bazel itself wants, for a Bazel that cannot download them.

Debian's Bazel reports no version and finds its rules in /usr/share/bazel. Every official Bazel reports
one, brings or downloads its own, and is left alone.
"""

load("//third_party:system.bzl", "maybe")

_RULES = "/usr/share/bazel/rules"

_RULES_CC = """\
\"\"\"The native rules under the names of rules_cc (Debian's rules_cc does not fit Debian's Bazel).\"\"\"

"""

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

def _rules_cc_impl(repository_ctx):
    repository_ctx.file("WORKSPACE", "workspace(name = \"rules_cc\")\n")
    repository_ctx.file("BUILD.bazel", "")
    repository_ctx.file("cc/BUILD.bazel", "")
    repository_ctx.file("cc/defs.bzl", _RULES_CC + "\n\n".join([
        "def {0}(**kwargs):\n    native.{0}(**kwargs)".format(name)
        for name in _RULES_CC_NAMES
    ]) + "\n")

_rules_cc = repository_rule(implementation = _rules_cc_impl)

def _coverage_impl(repository_ctx):
    repository_ctx.file("WORKSPACE", "workspace(name = \"remote_coverage_tools\")\n")
    repository_ctx.file("BUILD.bazel", "\n".join([
        "package(default_visibility = [\"//visibility:public\"])",
        "filegroup(name = \"coverage_report_generator\")",
        "filegroup(name = \"lcov_merger\")",
        "",
    ]))

_coverage = repository_rule(implementation = _coverage_impl)

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

def repos():
    if native.bazel_version:
        return
    maybe(_rules_cc, name = "rules_cc")
    maybe(_coverage, name = "remote_coverage_tools")
    maybe(_debian_rules, name = "rules_java", folder = "java", package = "bazel-rules-java")
    maybe(_debian_rules, name = "rules_proto", folder = "proto", package = "bazel-rules-proto")
