"""A target that is a C++ library and a command at once."""

load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")

def _impl(ctx):
    executable = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = executable, target_file = ctx.executable.command, is_executable = True)
    command = ctx.attr.command[DefaultInfo]
    library = ctx.attr.library[DefaultInfo]
    return [
        # A target that depends on this one gets the library's runfiles only: the command is not
        # linked for it.
        DefaultInfo(
            executable = executable,
            default_runfiles = library.default_runfiles,
            data_runfiles = ctx.runfiles([executable]).merge(command.default_runfiles),
        ),
        ctx.attr.library[CcInfo],
        coverage_common.instrumented_files_info(ctx, dependency_attributes = ["command", "library"]),
    ]

# `bazel run` of this target runs the command, and C++ rules that list it in `deps` get the library.
# So one name, such as //balance, serves people who run the command and people who include its
# headers. A cc_binary could not do that, because it has no headers to give.
library_and_command = rule(
    implementation = _impl,
    executable = True,
    attrs = {
        "command": attr.label(mandatory = True, executable = True, cfg = "target", doc = "A cc_binary."),
        "library": attr.label(mandatory = True, providers = [CcInfo], doc = "A cc_library."),
    },
    provides = [CcInfo],
)
