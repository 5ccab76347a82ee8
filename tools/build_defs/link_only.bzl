"""Libraries that a program is linked with, and that no source is compiled with."""

load("@rules_cc//cc/common:cc_common.bzl", "cc_common")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")

def _impl(ctx):
    merged = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    return [CcInfo(linking_context = merged.linking_context)]

# Hands on only what `deps` add to the link. So a select() among `deps` changes how programs are
# linked, but not how sources are compiled.
link_only = rule(
    implementation = _impl,
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
    provides = [CcInfo],
)

def _without_impl(ctx):
    merged = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    without = [target.label for target in ctx.attr.without]
    inputs = [
        linked
        for linked in merged.linking_context.linker_inputs.to_list()
        if linked.owner not in without
    ]
    return [CcInfo(
        compilation_context = merged.compilation_context,
        linking_context = cc_common.create_linking_context(linker_inputs = depset(inputs, order = "topological")),
    )]

# Links the targets of `deps`, but leaves out what the targets of `without` would add to the link,
# even if `deps` need these only indirectly.
link_without = rule(
    implementation = _without_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "without": attr.label_list(providers = [CcInfo]),
    },
    provides = [CcInfo],
)
