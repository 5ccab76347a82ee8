"""Repositories that stand for a library installed by the system's package manager."""

# The prefixes under which a file of an installed library may be, most specific first.
PREFIXES = ["/usr/local", "/usr"]

def find_under_prefix(repository_ctx, relative):
    """Returns the prefix under which `relative` exists, or None."""
    for prefix in PREFIXES:
        if repository_ctx.path(prefix + "/" + relative).exists:
            return prefix
    return None

def missing(repository_ctx, probe, package):
    """Stops with a text that says what to do."""

    # A module extension's repositories have names such as gpipe++gpipe+zlib, in Bazel 7 gpipe~~gpipe~zlib.
    name = repository_ctx.name.split("+")[-1].split("~")[-1]
    if name == repository_ctx.name:
        or_else = "define the repository \"" + name + "\" in your WORKSPACE before gpipe_dependencies()."
    else:
        or_else = "override the repository \"" + name + "\" in your MODULE.bazel (docs/workspace.md)."
    fail("\n".join([
        "",
        "GPipe needs {}, but {} was found under none of {}.".format(name, probe, ", ".join(PREFIXES)),
        "  Debian, Ubuntu:  apt-get install " + package + "   (`tools/bazel` does this by itself)",
        "  elsewhere:       install it with your package manager, or",
        "                   " + or_else,
    ]))

def _system_library_impl(repository_ctx):
    prefix = find_under_prefix(repository_ctx, repository_ctx.attr.probe)
    if not prefix:
        missing(repository_ctx, repository_ctx.attr.probe, repository_ctx.attr.package)
    for link, target in repository_ctx.attr.links.items():
        repository_ctx.symlink(prefix + "/" + target, link)
    repository_ctx.file("WORKSPACE", "workspace(name = \"{}\")\n".format(repository_ctx.name))
    repository_ctx.symlink(repository_ctx.attr.build_file, "BUILD.bazel")

# `probe`: a file, relative to /usr or /usr/local, that proves the library is installed.
#
# `links`: maps names in the repository to files or folders, relative to the prefix where the probe
# was found. Headers in /usr/include need no link, because Bazel treats them as a part of the
# compiler.
system_library = repository_rule(
    implementation = _system_library_impl,
    attrs = {
        "build_file": attr.label(mandatory = True, allow_single_file = True),
        "links": attr.string_dict(),
        "package": attr.string(mandatory = True),
        "probe": attr.string(mandatory = True),
    },
    local = True,
)
