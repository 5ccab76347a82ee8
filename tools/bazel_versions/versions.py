"""What a BUILD file, a .bzl file and a MODULE.bazel file find in Bazel 7, 8 and 9.

The release that stands for a version is the oldest that MODULE.bazel admits: 7.2.1, 8.0.0, 9.0.0. Facts are from Bazel's reference
for these versions (globals of BUILD, .bzl and MODULE.bazel files, `native`) and its release notes. A name that nobody
here needs may be missing: then a file that uses it fails, and the name is to be added once its documentation was read.
"""

# Maps rules and symbols that left Bazel to the file to load them from. Bazel 7 has all of them
# built in. Bazel 8 has those of C++, and loads the others by itself
# (--incompatible_autoload_externally). Bazel 9 has none.
_CC = {
    "cc_binary": "@rules_cc//cc:cc_binary.bzl",
    "cc_import": "@rules_cc//cc:cc_import.bzl",
    "cc_library": "@rules_cc//cc:cc_library.bzl",
    "cc_shared_library": "@rules_cc//cc:cc_shared_library.bzl",
    "cc_test": "@rules_cc//cc:cc_test.bzl",
    "cc_toolchain": "@rules_cc//cc/toolchains:cc_toolchain.bzl",
    "cc_toolchain_suite": "@rules_cc//cc/toolchains:cc_toolchain_suite.bzl",
    "fdo_prefetch_hints": "@rules_cc//cc/toolchains:fdo_prefetch_hints.bzl",
    "fdo_profile": "@rules_cc//cc/toolchains:fdo_profile.bzl",
    "objc_import": "@rules_cc//cc:objc_import.bzl",
    "objc_library": "@rules_cc//cc:objc_library.bzl",
}
LANGUAGE_RULES = {
    **_CC,
    "cc_proto_library": "@protobuf//bazel:cc_proto_library.bzl",
    "java_binary": "@rules_java//java:java_binary.bzl",
    "java_import": "@rules_java//java:java_import.bzl",
    "java_library": "@rules_java//java:java_library.bzl",
    "java_test": "@rules_java//java:java_test.bzl",
    "proto_library": "@protobuf//bazel:proto_library.bzl",
    "py_binary": "@rules_python//python:py_binary.bzl",
    "py_library": "@rules_python//python:py_library.bzl",
    "py_test": "@rules_python//python:py_test.bzl",
    "sh_binary": "@rules_shell//shell:sh_binary.bzl",
    "sh_library": "@rules_shell//shell:sh_library.bzl",
    "sh_test": "@rules_shell//shell:sh_test.bzl",
}
LANGUAGE_SYMBOLS = {
    "CcInfo": "@rules_cc//cc/common:cc_info.bzl",
    "CcToolchainConfigInfo": "@rules_cc//cc/toolchains:cc_toolchain_config_info.bzl",
    "DebugPackageInfo": "@rules_cc//cc/common:debug_package_info.bzl",
    "JavaInfo": "@rules_java//java/common:java_info.bzl",
    "ProtoInfo": "@protobuf//bazel/common:proto_info.bzl",
    "PyInfo": "@rules_python//python:py_info.bzl",
    "cc_common": "@rules_cc//cc/common:cc_common.bzl",
    "java_common": "@rules_java//java/common:java_common.bzl",
}
LOADS = {**LANGUAGE_RULES, **LANGUAGE_SYMBOLS}

# The rules that Bazel itself has in all three versions.
_NATIVE_RULES = [
    "action_listener",
    "alias",
    "config_feature_flag",
    "config_setting",
    "constraint_setting",
    "constraint_value",
    "environment",
    "extra_action",
    "filegroup",
    "genquery",
    "genrule",
    "label_flag",
    "label_setting",
    "platform",
    "starlark_doc_extract",
    "test_suite",
    "toolchain",
    "toolchain_type",
]

# Functions of a package: in BUILD files, and in `native` of the .bzl files that they load.
_PACKAGE_FUNCTIONS = [
    "existing_rule",
    "existing_rules",
    "exports_files",
    "glob",
    "module_name",
    "module_version",
    "package_group",
    "package_name",
    "package_relative_label",
    "repo_name",
    "repository_name",
    "subpackages",
]
_BUILD_ONLY = ["depset", "environment_group", "licenses", "package", "print", "select"]

_BZL = [
    "AnalysisTestResultInfo",
    "DefaultInfo",
    "InstrumentedFilesInfo",
    "Label",
    "OutputGroupInfo",
    "PackageSpecificationInfo",
    "RunEnvironmentInfo",
    "analysis_test_transition",
    "aspect",
    "attr",
    "config",
    "config_common",
    "configuration_field",
    "coverage_common",
    "depset",
    "exec_group",
    "json",
    "module_extension",
    "platform_common",
    "print",
    "provider",
    "repository_rule",
    "rule",
    "select",
    "struct",
    "tag_class",
    "testing",
    "transition",
    "visibility",
]

_MODULE = [
    "archive_override",
    "bazel_dep",
    "git_override",
    "include",
    "local_path_override",
    "module",
    "multiple_version_override",
    "print",
    "register_execution_platforms",
    "register_toolchains",
    "single_version_override",
    "use_extension",
    "use_repo",
    "use_repo_rule",
]

# Maps files of other repositories to the names that can be loaded from them. Repositories that a
# module extension makes are not here, because the extension writes their files.
_RULES_CC = {
    "cc:action_names.bzl": ["ACTION_NAMES", "CPP_COMPILE_ACTION_NAME"],
    "cc:defs.bzl": [*_CC, "CcInfo", "CcToolchainConfigInfo", "DebugPackageInfo", "cc_common", "cc_proto_library"],
    "cc:find_cc_toolchain.bzl": ["CC_TOOLCHAIN_TYPE", "find_cc_toolchain", "find_cpp_toolchain", "use_cc_toolchain"],
    # If a new .bzl file of rules_cc is used here, add it. The files that LOADS names are known.
}


def _externals(bazel_tools):
    files = {("bazel_tools", file): names for file, names in bazel_tools.items()}
    files.update({("rules_cc", file): names for file, names in _RULES_CC.items()})
    for name, label in LOADS.items():
        repository, file = label[1:].split("//")
        files[repository, file] = [*files.get((repository, file), []), name]
    return files


_BAZEL_TOOLS = {
    "tools/build_defs/repo:git.bzl": ["git_repository", "new_git_repository"],
    "tools/build_defs/repo:http.bzl": ["http_archive", "http_file", "http_jar"],
    "tools/build_defs/repo:local.bzl": ["local_repository", "new_local_repository"],
    "tools/build_defs/repo:utils.bzl": ["maybe"],
}
# rules_cc has these for all versions, so they are not expected in Bazel 9.
_BAZEL_TOOLS_CC = {
    "tools/build_defs/cc:action_names.bzl": ["ACTION_NAMES", "CPP_COMPILE_ACTION_NAME"],
    "tools/cpp:toolchain_utils.bzl": ["find_cpp_toolchain"],
}


class Bazel:
    """One version of Bazel: the names in BUILD files, .bzl files, `native` and MODULE.bazel files, and how its functions behave."""

    def __init__(self, release, rules, symbols, module, bzl, bazel_tools, empty_glob, distribs, workspace):
        self.release = release
        self.major = release.split(".", maxsplit=1)[0]
        self.rules = [*_NATIVE_RULES, *rules]
        self.native_functions = [*_PACKAGE_FUNCTIONS, "package"]
        self.build = [*_PACKAGE_FUNCTIONS, *_BUILD_ONLY, *self.rules]
        self.bzl = [*_BZL, *bzl, *symbols]
        self.symbols = symbols
        self.module = [*_MODULE, *module]
        self.externals = _externals(bazel_tools)
        self.empty_glob = empty_glob  # the default of glob()'s allow_empty
        self.distribs = distribs  # whether rules have the attribute `distribs`
        self.workspace = workspace  # names of WORKSPACE files; empty if they are not read


VERSIONS = {
    "7": Bazel(
        release="7.2.1",
        rules=list(LANGUAGE_RULES),
        symbols=list(LANGUAGE_SYMBOLS),
        module=[],
        bzl=[],
        bazel_tools={**_BAZEL_TOOLS, **_BAZEL_TOOLS_CC},
        empty_glob=True,
        distribs=True,
        workspace=[
            "bind",
            "local_repository",
            "new_local_repository",
            "register_execution_platforms",
            "register_toolchains",
            "workspace",
        ],
    ),
    "8": Bazel(
        release="8.0.0",
        rules=list(LANGUAGE_RULES),
        symbols=list(LANGUAGE_SYMBOLS),
        module=["inject_repo", "override_repo"],
        bzl=["macro", "subrule"],
        bazel_tools={**_BAZEL_TOOLS, **_BAZEL_TOOLS_CC},
        empty_glob=False,
        distribs=False,
        workspace=[],
    ),
    "9": Bazel(
        release="9.0.0",
        rules=[],
        symbols=[],
        module=["flag_alias", "inject_repo", "override_repo"],
        bzl=["macro", "set", "subrule"],
        bazel_tools=_BAZEL_TOOLS,
        empty_glob=False,
        distribs=False,
        workspace=[],
    ),
}
