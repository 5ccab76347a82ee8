load("//third_party:system.bzl", "system_library")

def repo():
    system_library(
        name = "turbojpeg",
        build_file = Label("//third_party/turbojpeg:system.BUILD.bazel"),
        package = "libturbojpeg0-dev",
        probe = "include/turbojpeg.h",
    )
