"""The module extension `gpipe`: the repositories that come from no registry. MODULE.bazel uses it.

A workspace that depends on GPipe needs it only to say where something is on its machines:

    gpipe = use_extension("@gpipe//third_party:extensions.bzl", "gpipe")
    gpipe.libtorch(path = "/opt/libtorch")
"""

load("//third_party/cuda:workspace.bzl", local_cuda = "repo")
load("//third_party/libtorch:workspace.bzl", libtorch = "repo")
load("//third_party/plotly:workspace.bzl", plotly = "repo")
load("//third_party/precompiled:workspace.bzl", local_compiler = "repo")
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
                  "PATH, or a download. Only the root module's counts.",
        ),
        "version": attr.string(
            doc = "The LibTorch that the module was written for, such as \"2.11.0\". Another than GPipe's is an error. " +
                  "Default: whichever GPipe has.",
        ),
    },
    doc = "Which LibTorch is to be used.",
)

def _pinned_version(module_ctx):
    """The LibTorch that GPipe is made for."""
    for line in module_ctx.read(Label("//third_party/libtorch:requirements.txt")).split("\n"):
        if line.startswith("torch=="):
            return line[len("torch=="):].split(" ")[0]
    fail("third_party/libtorch/requirements.txt pins no torch.")

def _check_versions(module_ctx, version):
    for module in module_ctx.modules:
        for tag in module.tags.libtorch:
            if tag.version and tag.version != version:
                fail(("the module \"{}\" asks for gpipe.libtorch(version = \"{}\"), but this GPipe is made for LibTorch {}. " +
                      "Ask for that, or leave the version out.").format(module.name, tag.version, version))

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
    _check_versions(module_ctx, _pinned_version(module_ctx))
    cuda = _path(module_ctx, "cuda")
    libtorch(path = _path(module_ctx, "libtorch"), cuda = cuda)
    local_compiler()
    local_cuda(path = cuda)
    plotly()
    tcmalloc()
    turbojpeg()
    zlib()

    # The same modules make the same repositories: nothing to keep in the lock file.
    return module_ctx.extension_metadata(reproducible = True)

gpipe = module_extension(
    doc = "LibTorch, CUDA, and what is taken from the system.",
    implementation = _gpipe_impl,
    tag_classes = {
        "cuda": _cuda_tag,
        "libtorch": _libtorch_tag,
    },
)
