"""All dependencies, one `workspace.bzl` per folder, for WORKSPACE. MODULE.bazel has the same ones (extensions.bzl)."""

load("//third_party/bazel_builtin:workspace.bzl", "builtin_repositories")
load("//third_party/com_github_google_benchmark:workspace.bzl", com_github_google_benchmark = "repo")
load("//third_party/com_github_google_glog:workspace.bzl", com_github_google_glog = "repo")
load("//third_party/com_github_nlohmann_json:workspace.bzl", com_github_nlohmann_json = "repo")
load("//third_party/com_google_absl:workspace.bzl", com_google_absl = "repo")
load("//third_party/com_google_googletest:workspace.bzl", com_google_googletest = "repo")
load("//third_party/cuda:workspace.bzl", local_cuda = "repo")
load("//third_party/libtorch:workspace.bzl", libtorch = "repo")
load("//third_party/plotly:workspace.bzl", plotly = "repo")
load("//third_party/precompiled:workspace.bzl", local_compiler = "repo")
load("//third_party/python:workspace.bzl", local_python = "repo")
load("//third_party/tcmalloc:workspace.bzl", tcmalloc = "repo")
load("//third_party/turbojpeg:workspace.bzl", turbojpeg = "repo")
load("//third_party/zlib:workspace.bzl", zlib = "repo")

def _libtorch():
    # Only Debian's Bazel 4 does not report a version.
    libtorch(headers_as_folders = not native.bazel_version)

# Each function defines the repository of that name. It does not ask whether there is one already,
# because a module extension cannot ask.
_REPOSITORIES = {
    "com_github_google_benchmark": com_github_google_benchmark,
    "com_github_google_glog": com_github_google_glog,
    "com_github_nlohmann_json": com_github_nlohmann_json,
    "com_google_absl": com_google_absl,
    "com_google_googletest": com_google_googletest,
    "libtorch": _libtorch,
    "local_compiler": local_compiler,
    "local_cuda": local_cuda,
    "local_python": local_python,
    "plotly": plotly,
    "tcmalloc": tcmalloc,
    "turbojpeg": turbojpeg,
    "zlib": zlib,
}

def third_party_repositories():
    """Defines each repository that the calling workspace has not defined yet."""
    repositories = dict(builtin_repositories(native.bazel_version))
    repositories.update(_REPOSITORIES)
    for name, define in repositories.items():
        if not native.existing_rule(name):
            define()
