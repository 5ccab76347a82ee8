"""All dependencies, one `workspace.bzl` per folder."""

load("//third_party/bazel_builtin:workspace.bzl", bazel_builtin = "repos")
load("//third_party/com_github_google_benchmark:workspace.bzl", com_github_google_benchmark = "repo")
load("//third_party/com_github_google_glog:workspace.bzl", com_github_google_glog = "repo")
load("//third_party/com_github_nlohmann_json:workspace.bzl", com_github_nlohmann_json = "repo")
load("//third_party/com_google_absl:workspace.bzl", com_google_absl = "repo")
load("//third_party/com_google_googletest:workspace.bzl", com_google_googletest = "repo")
load("//third_party/cuda:workspace.bzl", cuda = "repo")
load("//third_party/libtorch:workspace.bzl", libtorch = "repo")
load("//third_party/plotly:workspace.bzl", plotly = "repo")
load("//third_party/tcmalloc:workspace.bzl", tcmalloc = "repo")
load("//third_party/turbojpeg:workspace.bzl", turbojpeg = "repo")
load("//third_party/zlib:workspace.bzl", zlib = "repo")

def third_party_repositories():
    """Defines each repository that the calling workspace has not defined yet."""
    bazel_builtin()
    com_github_google_benchmark()
    com_github_google_glog()
    com_github_nlohmann_json()
    com_google_absl()
    com_google_googletest()
    cuda()
    libtorch()
    plotly()
    tcmalloc()
    turbojpeg()
    zlib()
