"""What tests are compiled and linked with: their dependencies, without the precompiled headers of those."""

load("@rules_cc//cc/common:cc_common.bzl", "cc_common")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")

def _impl(ctx):
    merged = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    context = merged.compilation_context
    runfiles = ctx.runfiles()
    for dep in ctx.attr.deps:
        runfiles = runfiles.merge(dep[DefaultInfo].default_runfiles)
    return [
        DefaultInfo(runfiles = runfiles),
        CcInfo(
            compilation_context = cc_common.create_compilation_context(
                headers = depset([header for header in context.headers.to_list() if header.extension not in ["gch", "stamp"]]),
                includes = context.includes,
                quote_includes = context.quote_includes,
                system_includes = context.system_includes,
                defines = context.defines,
            ),
            linking_context = merged.linking_context,
        ),
        coverage_common.instrumented_files_info(ctx, dependency_attributes = ["deps"]),
    ]

# Bazel hands all headers of a library on to targets that depend on it. The headers that are
# precompiled for the code under test differ with a sanitizer. A test's own code is compiled in the
# same way with and without, so it would be compiled twice.
plain_headers = rule(
    implementation = _impl,
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
    provides = [CcInfo],
)
