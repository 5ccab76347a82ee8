"""What a program needs of C++ libraries, as files and a list of them, for a build tool other than Bazel."""

load("@rules_cc//cc/common:cc_common.bzl", "cc_common")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")

def _impl(ctx):
    own = ctx.label.workspace_root  # external/gpipe, or nothing in GPipe's own workspace
    begin = "../%s/" % own.split("/")[-1] if own else ""
    merged = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    lines = []
    files = []
    for header in merged.compilation_context.headers.to_list():
        if header.owner.workspace_root == own and header.extension == "h" and header.is_source:
            lines.append(["header", header.short_path[len(begin):], header.short_path])
            files.append(header)
    for linked in merged.linking_context.linker_inputs.to_list():
        for library in linked.libraries:
            archive = library.pic_static_library or library.static_library
            if archive:
                package = linked.owner.package if linked.owner.workspace_root == own else "third_party"
                lines.append(["archive", package, "whole" if library.alwayslink else "as needed", archive.short_path])
                files.append(archive)
        for flag in linked.user_link_flags:
            lines.append(["flag", str(linked.owner), flag])
    out = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.write(out, "".join(["\t".join(line) + "\n" for line in lines]))
    return [DefaultInfo(files = depset([out]), runfiles = ctx.runfiles([out] + files))]

# Writes a text of lines whose fields are separated by tabs: `header NAME PATH` for each header of
# this workspace, `archive PACKAGE "whole" or "as needed" PATH` for each static library (the package
# of one of another workspace is "third_party"), and `flag LABEL FLAG` for each option of the
# linker. Archives and options are in the linker's order. Paths are those of runfiles, which have
# the files.
link_list = rule(
    implementation = _impl,
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
)
