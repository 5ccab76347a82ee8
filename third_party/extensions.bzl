"""The module extension `gpipe`: the repositories that come from no registry. MODULE.bazel uses it.

A workspace that depends on GPipe needs it only to choose another LibTorch than GPipe's default, or to say where
something is on its machines:

    gpipe = use_extension("@gpipe//third_party:extensions.bzl", "gpipe")
    gpipe.libtorch(version = "2.11.0")
    gpipe.cuda(path = "/opt/cuda")
"""

load("//third_party/cuda:workspace.bzl", local_cuda = "repo")
load("//third_party/libtorch:workspace.bzl", libtorch = "repo")
load("//third_party/plotly:workspace.bzl", plotly = "repo")
load("//third_party/precompiled:workspace.bzl", local_compiler = "repo")
load("//third_party/python:workspace.bzl", local_python = "repo")
load("//third_party/tcmalloc:workspace.bzl", tcmalloc = "repo")
load("//third_party/turbojpeg:workspace.bzl", turbojpeg = "repo")
load("//third_party/zlib:workspace.bzl", zlib = "repo")

_cuda_tag = tag_class(
    attrs = {
        "path": attr.string(
            doc = "A CUDA Toolkit (has bin/nvcc), as CUDA_HOME, which wins. Default: /usr/local/cuda or the nvcc on PATH.",
            mandatory = True,
        ),
    },
    doc = "Where the CUDA Toolkit is. Only the root module's counts.",
)

_libtorch_tag = tag_class(
    attrs = {
        "path": attr.string(
            doc = "An unpacked LibTorch or a site-packages folder, as LIBTORCH_ROOT, which wins. Default: the python3 on " +
                  "PATH if it has the chosen version, or a download. Only the root module's counts.",
        ),
        "version": attr.string(
            doc = "A version of third_party/libtorch/versions.txt, such as \"2.15.0\", as GPIPE_LIBTORCH, which wins. The " +
                  "root module's is chosen; another module that asks for another one is an error. Default: the list's first.",
        ),
    },
    doc = "Which LibTorch is to be used.",
)

def _listed_versions(module_ctx):
    """The LibTorch versions that GPipe supports, the default first."""
    lines = module_ctx.read(Label("//third_party/libtorch:versions.txt")).split("\n")
    return [line.split(" ")[1] for line in lines if line.startswith("version ")]

def _version(module_ctx):
    """The root module's choice, "" if it makes none. Fails where a module asks for what it cannot get."""
    listed = _listed_versions(module_ctx)
    asked = [
        (module, tag.version)
        for module in module_ctx.modules
        for tag in module.tags.libtorch
        if tag.version
    ]
    for module, version in asked:
        if version not in listed:
            fail(("the module \"{}\" asks for gpipe.libtorch(version = \"{}\"), which this GPipe does not support: {}. " +
                  "Ask for one of these, or leave the version out.").format(module.name, version, ", ".join(listed)))
    chosen = []
    for module, version in asked:
        if module.is_root and version not in chosen:
            chosen.append(version)
    if len(chosen) > 1:
        fail("MODULE.bazel has several gpipe.libtorch(version = ...): {}. Keep one.".format(", ".join(chosen)))

    # If a folder is given, its version is not known here.
    if module_ctx.os.environ.get("LIBTORCH_ROOT") or _path(module_ctx, "libtorch"):
        return chosen[0] if chosen else ""
    used = module_ctx.os.environ.get("GPIPE_LIBTORCH") or (chosen or listed)[0]
    for module, version in asked:
        if not module.is_root and version != used:
            fail(("the module \"{}\" asks for gpipe.libtorch(version = \"{}\"), but LibTorch {} is chosen, and a program has one. " +
                  "The root module chooses: gpipe.libtorch(version = \"{}\") in its MODULE.bazel.").format(module.name, version, used, version))
    return chosen[0] if chosen else ""

def _path(module_ctx, name):
    """The root module's `path` in the tags of that name, "" if it says none: paths are those of its machines."""
    paths = [
        tag.path
        for module in module_ctx.modules
        if module.is_root
        for tag in getattr(module.tags, name)
        if tag.path
    ]
    if len(paths) > 1:
        fail("MODULE.bazel has several gpipe.{}(path = ...): {}. Keep one.".format(name, ", ".join(paths)))
    return paths[0] if paths else ""

def _gpipe_impl(module_ctx):
    cuda = _path(module_ctx, "cuda")
    libtorch(path = _path(module_ctx, "libtorch"), cuda = cuda, version = _version(module_ctx))
    local_compiler()
    local_cuda(path = cuda)
    local_python()
    plotly()
    tcmalloc()
    turbojpeg()
    zlib()

    # The same modules always make the same repositories, so the lock file needs no entry.
    return module_ctx.extension_metadata(reproducible = True)

gpipe = module_extension(
    doc = "LibTorch, CUDA, and what is taken from the system.",
    # These variables win over the tags.
    environ = ["GPIPE_LIBTORCH", "LIBTORCH_ROOT"],
    implementation = _gpipe_impl,
    tag_classes = {
        "cuda": _cuda_tag,
        "libtorch": _libtorch_tag,
    },
)
