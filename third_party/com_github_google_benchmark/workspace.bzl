load("//third_party:system.bzl", "system_library")

def repo():
    system_library(
        name = "com_github_google_benchmark",
        build_file = Label("//third_party/com_github_google_benchmark:system.BUILD.bazel"),
        package = "libbenchmark-dev",
        probe = "include/benchmark/benchmark.h",
    )
