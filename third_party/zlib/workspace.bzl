load("//third_party:system.bzl", "system_library")

def repo():
    system_library(
        name = "zlib",
        build_file = Label("//third_party/zlib:system.BUILD.bazel"),
        package = "zlib1g-dev",
        probe = "include/zlib.h",
    )
