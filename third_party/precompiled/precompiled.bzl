"""A precompiled header: what most sources include is read once for each configuration, not once for each source."""

load("@rules_cc//cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@rules_cc//cc:find_cc_toolchain.bzl", "find_cc_toolchain", "use_cc_toolchain")
load("@rules_cc//cc/common:cc_common.bzl", "cc_common")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")

def _impl(ctx):
    toolchain = find_cc_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    headers = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
    output = ctx.actions.declare_file(ctx.label.name + ".h.gch")
    stamp = ctx.actions.declare_file(ctx.label.name + ".stamp")
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = ctx.file.header.path,
        output_file = output.path,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts + ["-x", "c++-header"],
        include_directories = headers.includes,
        quote_include_directories = headers.quote_includes,
        system_include_directories = headers.system_includes,
        preprocessor_defines = headers.defines,
        use_pic = True,  # as .bazelrc has --force_pic
    )
    ctx.actions.run(
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling %s for %s" % (ctx.file.header.short_path, ctx.label),
        executable = ctx.executable._precompile,
        arguments = [
            ctx.file._plugin.path,
            ctx.file._compiler.path,
            stamp.path,
            cc_common.get_tool_for_action(feature_configuration = features, action_name = CPP_COMPILE_ACTION_NAME),
        ] + cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        inputs = depset([ctx.file.header, ctx.file._plugin, ctx.file._compiler], transitive = [headers.headers, toolchain.all_files]),
        outputs = [output, stamp],
    )
    return [
        DefaultInfo(files = depset([output, stamp])),
        CcInfo(compilation_context = cc_common.create_compilation_context(headers = depset([output, stamp]))),
    ]

# A library that lists the rule NAME among its `deps` may be compiled with `-include
# $(BINDIR)/PACKAGE/NAME.h -include $(BINDIR)/PACKAGE/NAME.stamp`. Only the compiled form of NAME.h
# lies there: if the compiler does not accept it, it finds nothing else, and says so. Bazel trusts
# gcc's list of the files that a source has read. That list names neither the headers that NAME.h
# was made of nor its compiled form. It names NAME.stamp, a comment that changes with all of these.
precompiled_header = rule(
    implementation = _impl,
    attrs = {
        "copts": attr.string_list(doc = "Options that those who use it have, too."),
        "deps": attr.label_list(providers = [CcInfo], doc = "What the header includes."),
        "header": attr.label(mandatory = True, allow_single_file = [".h"]),
        "_precompile": attr.label(default = ":precompile.sh", allow_single_file = True, executable = True, cfg = "exec"),
        "_compiler": attr.label(default = "@local_compiler//:compiler.txt", allow_single_file = True),
        "_plugin": attr.label(default = ":instantiate.cc", allow_single_file = True),
        "_cc_toolchain": attr.label(default = "@rules_cc//cc:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = use_cc_toolchain(),
    provides = [CcInfo],
)
