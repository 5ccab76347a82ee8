load("//third_party:system.bzl", "maybe", "system_library")

def repo():
    maybe(
        system_library,
        name = "mimalloc",
        build_file = Label("//third_party/mimalloc:system.BUILD.bazel"),
        package = "libmimalloc-dev",
        probe = "include/mimalloc.h",
    )
