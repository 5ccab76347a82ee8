load("//third_party:system.bzl", "system_library")

def repo():
    system_library(
        name = "tcmalloc",
        build_file = Label("//third_party/tcmalloc:system.BUILD.bazel"),
        package = "libgoogle-perftools-dev",
        probe = "include/gperftools/tcmalloc.h",
    )
